//! Whether every crate can be published: with its readme and licences, and built from its package alone.

use std::path::Path;

use crate::{cargo, run};

/// What every package has.
const FILES: [&str; 4] = ["Cargo.toml", "README.md", "LICENSE-MIT", "LICENSE-APACHE"];

/// Lists what the packages have, then packages and builds them in the order of their dependencies; nothing is uploaded.
pub(crate) fn check(args: &[String]) -> Result<(), String> {
    let folders = std::fs::read_dir("crates").map_err(|e| format!("cannot read `crates`: {e}"))?;
    let mut manifests: Vec<_> = folders.flatten().map(|entry| entry.path().join("Cargo.toml")).collect();
    manifests.retain(|manifest| manifest.is_file());
    manifests.sort();
    for manifest in &manifests {
        check_files(manifest)?;
    }
    println!("{} packages have their readme and licences", manifests.len());
    run(cargo().args(["publish", "--workspace", "--dry-run"]).args(args))
}

fn check_files(manifest: &Path) -> Result<(), String> {
    let mut list = cargo();
    list.args(["package", "--list", "--allow-dirty", "--manifest-path"]).arg(manifest);
    let output = list.output().map_err(|e| format!("cargo package: {e}"))?;
    if !output.status.success() {
        let problem = String::from_utf8_lossy(&output.stderr);
        return Err(format!("`{}` cannot be packaged: {}", manifest.display(), problem.trim()));
    }
    let text = String::from_utf8_lossy(&output.stdout);
    let missing: Vec<&str> =
        FILES.into_iter().filter(|file| !text.lines().any(|line| line == *file)).collect();
    match missing.as_slice() {
        [] => Ok(()),
        missing => Err(format!("the package of `{}` lacks {}", manifest.display(), missing.join(", "))),
    }
}
