//! The CPU backend on 64-bit Arm: cross-built, and run under qemu's user emulation where this machine is another.

use std::path::Path;
use std::process::Command;

use crate::{cargo, run};

const TARGET: &str = "aarch64-unknown-linux-gnu";
const LINKER: &str = "aarch64-linux-gnu-gcc";
const EMULATOR: &str = "qemu-aarch64";

/// Debian's compiler, whose standard library for Arm is a package of Debian too.
const DEBIAN_RUSTC: &str = "/usr/bin/rustc";

/// Crates whose tests need no GPU.
const CRATES: [&str; 11] = [
    "olivine-ir",
    "olivine-size",
    "olivine-numerics",
    "olivine-compile",
    "olivine-cpu",
    "olivine-files",
    "olivine-safetensors",
    "olivine-quant",
    "olivine-gguf",
    "olivine-onnx",
    "olivine-cases",
];

/// Tests of the facade that need no GPU: the table of cases is the first.
const FACADE: [&str; 6] = ["parity", "free_sizes", "model_files", "onnx_inputs", "quantised", "run_into"];

/// Tests that bound a time, which emulation multiplies.
const TIMED: [&str; 1] = ["twelve_bert_layers_fuse_quickly"];

/// Tests that start their own program, which takes a system that runs Arm's programs through qemu by itself.
const STARTED: [&str; 1] = ["one_line_is_caught_and_the_rest_is_written"];

/// Builds and runs them; with arguments, `cargo test` with these alone.
pub(crate) fn check(args: &[String]) -> Result<(), String> {
    let rustc = compiler()?;
    let test = || {
        let mut command = cargo();
        command.args(["test", "--target", TARGET, "--target-dir", "target/aarch64"]).env("RUSTC", rustc);
        if !NATIVE {
            command.env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER", LINKER);
            let runner = format!("{EMULATOR} -L {}", libraries());
            command.env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER", runner);
        }
        command
    };
    if !args.is_empty() {
        return run(test().args(args));
    }
    let skipped = skipped();
    if !skipped.is_empty() {
        println!("not tried under emulation: {}", skipped.join(", "));
    }
    let skips: Vec<&str> = skipped.iter().flat_map(|name| ["--skip", name]).collect();
    run(test()
        .args(CRATES.iter().flat_map(|name| ["-p", name]))
        .args(["--lib", "--tests", "--"])
        .args(&skips))?;
    run(test().args(["-p", "olivine"]).args(FACADE.iter().flat_map(|name| ["--test", name])))
}

fn skipped() -> Vec<&'static str> {
    let runs_by_itself = Path::new("/proc/sys/fs/binfmt_misc").join(EMULATOR).exists();
    let timed = TIMED.iter().filter(|_| !NATIVE);
    timed.chain(STARTED.iter().filter(|_| !NATIVE && !runs_by_itself)).copied().collect()
}

const NATIVE: bool = cfg!(all(target_arch = "aarch64", target_os = "linux"));

/// A compiler that has the target's standard library. Says how to install what is missing.
fn compiler() -> Result<&'static str, String> {
    if let Some(missing) = [LINKER, EMULATOR].into_iter().find(|program| !NATIVE && !runs(program)) {
        return Err(format!(
            "`{missing}` is missing: on Debian and Ubuntu `apt-get install gcc-aarch64-linux-gnu qemu-user`"
        ));
    }
    ["rustc", DEBIAN_RUSTC].into_iter().find(|rustc| has_std(rustc)).ok_or_else(|| {
        format!(
            "no compiler here has the standard library of {TARGET}: `rustup target add {TARGET}`, or on Debian \
             `dpkg --add-architecture arm64 && apt-get update && apt-get install rustc-web libstd-rust-web-dev:arm64`"
        )
    })
}

/// The folder whose `lib` has Arm's loader and C library. Debian's multiarch packages put them into the system's own: the
/// cross compiler's loader would then find the other C library, and programs hang.
fn libraries() -> &'static str {
    if Path::new("/lib/ld-linux-aarch64.so.1").exists() { "/" } else { "/usr/aarch64-linux-gnu" }
}

fn runs(program: &str) -> bool {
    Command::new(program).arg("--version").output().is_ok()
}

fn has_std(rustc: &str) -> bool {
    let output = Command::new(rustc).args(["--print", "target-libdir", "--target", TARGET]).output();
    output.is_ok_and(|o| o.status.success() && Path::new(String::from_utf8_lossy(&o.stdout).trim()).is_dir())
}
