//! Type checks for systems other than this one. A check links nothing, so it needs no linker and no C library of theirs.

use std::path::Path;
use std::process::Command;

use crate::{cargo, requirements, root, run};

/// Windows and macOS as most have them.
const TARGETS: [&str; 2] = ["x86_64-pc-windows-msvc", "aarch64-apple-darwin"];

/// Checks the library and the program for every target, or for those named.
pub(crate) fn check(args: &[String]) -> Result<(), String> {
    let named: Vec<&str> = args.iter().map(String::as_str).collect();
    for target in if named.is_empty() { TARGETS.to_vec() } else { named } {
        println!("{target}");
        let mut command = compiler(target)?;
        // Other flags would make cargo check everything else again too.
        command.args(["--target-dir", "target/targets"]).env("RUSTFLAGS", "-D warnings");
        // TLS is partly in C and assembler, for which there is no compiler of these targets here.
        let features = "olivine/default,olivine-cli/pull,olivine-cli/serve";
        command.args(["--no-default-features", "--features", features]);
        run(command.args(["-p", "olivine", "-p", "olivine-cli"]))?;
    }
    Ok(())
}

/// `cargo check` for a target: with the toolchain's own standard library, or where that cannot be fetched, with Debian's
/// Rust, which has the library's source.
fn compiler(target: &str) -> Result<Command, String> {
    if has_std(target) {
        let mut command = cargo();
        command.args(["check", "--quiet", "--target", target]);
        return Ok(command);
    }
    requirements::meet(requirements::RUST_SOURCE)?;
    let mut command = debian_cargo();
    command.args(["check", "--quiet", "--target", target, "-Z", "build-std=std,panic_abort"]);
    Ok(command)
}

/// Debian's cargo with unstable options, which compiles the standard library itself.
pub(crate) fn debian_cargo() -> Command {
    let mut command = Command::new("/usr/bin/cargo");
    command.current_dir(root()).env("RUSTC", "/usr/bin/rustc").env("RUSTC_BOOTSTRAP", "1");
    // Set by the cargo that runs this program, for its own toolchain.
    command.env_remove("RUSTUP_TOOLCHAIN").env_remove("CARGO").env_remove("LD_LIBRARY_PATH");
    command
}

/// Whether the toolchain has the standard library of a target.
pub(crate) fn has_std(target: &str) -> bool {
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let asked = Command::new(rustc).args(["--print", "target-libdir", "--target", target]).output();
    asked.is_ok_and(|o| o.status.success() && Path::new(String::from_utf8_lossy(&o.stdout).trim()).is_dir())
}
