//! The CPU backend on 64-bit Arm: cross-built, and run under qemu's user emulation where this machine is another.

use std::process::Command;

use crate::{cargo, run};

const TARGET: &str = "aarch64-unknown-linux-gnu";

/// Crates whose tests need no GPU.
const CRATES: [&str; 8] = [
    "olivine-ir",
    "olivine-numerics",
    "olivine-compile",
    "olivine-cpu",
    "olivine-files",
    "olivine-safetensors",
    "olivine-onnx",
    "olivine-cases",
];

/// Tests of the facade that need no GPU: the table of cases is the first.
const FACADE: [&str; 6] = ["parity", "free_sizes", "model_files", "onnx_inputs", "quantised", "run_into"];

/// Builds and runs them.
pub(crate) fn check() -> Result<(), String> {
    let (linker, emulator) = ("aarch64-linux-gnu-gcc", "qemu-aarch64");
    let native = cfg!(all(target_arch = "aarch64", target_os = "linux"));
    for program in [linker, emulator] {
        if !native && Command::new(program).arg("--version").output().is_err() {
            return Err(format!(
                "`{program}` is missing: on Debian and Ubuntu `apt-get install gcc-aarch64-linux-gnu qemu-user`, and \
                 `rustup target add {TARGET}`"
            ));
        }
    }
    let test = || {
        let mut command = cargo();
        command.args(["test", "--target", TARGET, "--target-dir", "target/aarch64"]);
        if !native {
            command.env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER", linker);
            let runner = format!("{emulator} -L /usr/aarch64-linux-gnu");
            command.env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER", runner);
        }
        command
    };
    run(test().args(CRATES.iter().flat_map(|name| ["-p", name])))?;
    run(test().args(["-p", "olivine"]).args(FACADE.iter().flat_map(|name| ["--test", name])))
}
