//! The tests of the Elixir package, on the processor and on a Vulkan device.

use std::process::Command;

use crate::requirements::{ELIXIR, TESTS, meet};

/// Builds `bindings/elixir` and runs its tests on each device; arguments go to `mix test`.
pub(crate) fn test(args: &[String]) -> Result<(), String> {
    meet(&[TESTS, ELIXIR].concat())?;
    for device in ["cpu", "vulkan"] {
        println!("mix test on {device}");
        let mut command = Command::new("mix");
        command.arg("test").args(args).env("OLIVINE_DEVICE", device);
        crate::run(command.current_dir(crate::root().join("bindings/elixir")))?;
    }
    Ok(())
}
