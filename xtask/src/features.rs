//! Whether the crate compiles with every combination of its features, without a warning.

use std::path::Path;

use crate::{cargo, run};

const FEATURES: [&str; 3] = ["vulkan", "wgpu", "onnx"];

/// Dependencies that a build for the CPU alone must not have.
const NOT_ON_THE_CPU: [&str; 5] = ["ash", "wgpu", "naga", "prost", "olivine-vulkan"];

/// Checks every combination, and what the smallest depends on.
pub(crate) fn check() -> Result<(), String> {
    let manifest = Path::new("crates/olivine/Cargo.toml");
    for set in 0..1usize << FEATURES.len() {
        let chosen: Vec<&str> =
            FEATURES.iter().enumerate().filter(|(i, _)| set >> i & 1 == 1).map(|(_, f)| *f).collect();
        println!("features: {}", if chosen.is_empty() { "none".into() } else { chosen.join(", ") });
        let mut check = cargo();
        check.args(["check", "--quiet", "--no-default-features", "--manifest-path"]).arg(manifest);
        check.args(["--features", &chosen.join(",")]).env("RUSTFLAGS", "-D warnings");
        if set == 0 || set + 1 == 1 << FEATURES.len() {
            check.args(["--features", "async,ndarray"]);
        }
        // Other flags would make cargo build everything else again too.
        run(check.args(["--target-dir", "target/features"]))?;
    }
    let mut tree = cargo();
    tree.args(["tree", "--no-default-features", "--edges", "normal", "--prefix", "none", "--manifest-path"]);
    let output = tree.arg(manifest).output().map_err(|e| format!("cargo tree: {e}"))?;
    let text = String::from_utf8_lossy(&output.stdout);
    let names: Vec<&str> = text.lines().filter_map(|line| line.split(' ').next()).collect();
    match NOT_ON_THE_CPU.iter().find(|name| names.contains(name)) {
        _ if !output.status.success() || names.is_empty() => Err("cargo tree lists nothing".into()),
        Some(name) => Err(format!("a build for the CPU alone depends on `{name}`")),
        None => Ok(()),
    }
}
