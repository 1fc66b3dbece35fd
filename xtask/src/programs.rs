//! The first programs of the book, as a user has them: each in a package of its own that depends on `olivine` by path.

use std::fs;
use std::path::Path;

use crate::{cargo, run};

/// A program of the book: a name, the page whose first Rust block it is, and whether it runs without a file of the user's.
const PROGRAMS: [(&str, &str, bool); 3] = [
    ("first-graph", "docs/start/first-graph.md", true),
    ("first-model", "docs/start/first-model.md", false),
    ("kv-cache", "docs/guides/state.md", true),
];

/// Builds each with the default features and with none, and runs those that need no file.
pub(crate) fn check() -> Result<(), String> {
    for (name, page, runs) in PROGRAMS {
        let path = crate::root().join(page);
        let text = fs::read_to_string(&path).map_err(|e| format!("cannot read {page}: {e}"))?;
        let source = first_program(&text).ok_or_else(|| format!("{page} has no program"))?;
        println!("{name}: {} lines of {page}", source.lines().count());
        for default_features in [false, true] {
            let package = crate::root().join("target/programs").join(name);
            write(&package, name, &source, default_features)
                .map_err(|e| format!("cannot write {name}: {e}"))?;
            let mut command = cargo();
            command.current_dir(&package).arg(if runs { "run" } else { "build" });
            // The lock file of the workspace: what was tested, and no registry is asked.
            fs::copy(crate::root().join("Cargo.lock"), package.join("Cargo.lock"))
                .map_err(|e| e.to_string())?;
            run(command.args(["--quiet", "--target-dir"]).arg(crate::root().join("target/programs/target")))?;
        }
    }
    Ok(())
}

/// The first Rust block of a page.
fn first_program(page: &str) -> Option<String> {
    let (_, after) = page.split_once("\n```rust")?;
    let (_, after) = after.split_once('\n')?;
    after.split_once("\n```").map(|(program, _)| format!("{program}\n"))
}

/// Writes a program's package. Its build is not optimised: that would take longer than all runs.
fn write(package: &Path, name: &str, source: &str, default_features: bool) -> std::io::Result<()> {
    let olivine = crate::root().join("crates/olivine");
    let manifest = format!(
        "[package]\nname = {name:?}\nedition = \"2024\"\n\n\
         [dependencies]\nolivine = {{ path = {olivine:?}, default-features = {default_features} }}\n\n\
         [profile.dev]\ndebug = false\n\n[workspace]\n"
    );
    fs::create_dir_all(package.join("src"))?;
    fs::write(package.join("Cargo.toml"), manifest)?;
    fs::write(package.join("src/main.rs"), source)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_program_of_a_page_is_its_first_rust_block() {
        let page = "# A\n\n```toml\nx = 1\n```\n\n```rust,no_run\nfn main() {}\n```\n\n```rust\nfn other() {}\n```\n";
        assert_eq!(first_program(page).as_deref(), Some("fn main() {}\n"));
        assert_eq!(first_program("# A\n"), None);
    }
}
