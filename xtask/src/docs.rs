//! The generated page `docs/ops.md`: which operations pass their cases on which backend.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};

const HEADING: &str = "\
# Operations

<!-- Written by `cargo xtask docs` from the table of cases in crates/cases; changes made here are lost. -->

Cases per dtype: `✓12` means that all twelve pass, `9/12` that three do not, `–` that the operation does not take the
dtype, and an empty cell that it does but there are no cases.

";

/// Writes the page.
pub(crate) fn write() -> Result<(), String> {
    let text = page()?;
    fs::write(path(), text).map_err(|e| format!("cannot write {}: {e}", path().display()))?;
    println!("wrote {}", path().display());
    Ok(())
}

/// Fails if the page differs from what would be written.
pub(crate) fn check() -> Result<(), String> {
    let written = fs::read_to_string(path()).map_err(|e| format!("cannot read {}: {e}", path().display()))?;
    if written == page()? {
        println!("docs/ops.md is up to date");
        Ok(())
    } else {
        Err("docs/ops.md is stale; run: cargo xtask docs".into())
    }
}

fn path() -> PathBuf {
    crate::root().join("docs/ops.md")
}

/// The page as it should be.
fn page() -> Result<String, String> {
    let mut command = Command::new(program()?);
    let output = command.stderr(Stdio::inherit()).output();
    let output = output.map_err(|e| format!("cannot run {command:?}: {e}"))?;
    if !output.status.success() {
        return Err(format!("{command:?} ended with {}", output.status));
    }
    let table = String::from_utf8(output.stdout).map_err(|e| format!("the page is not text: {e}"))?;
    Ok(format!("{HEADING}{table}"))
}

/// Builds the program that prints the table of operations and returns its path.
///
/// It is built as the tests are: the same profile and, through `--workspace`, the same features, so that what they
/// built is used again. `cargo run` cannot do that.
fn program() -> Result<String, String> {
    let mut command = crate::cargo();
    command.args(["build", "-q", "--workspace", "--profile", "test", "--bin", "ops_page"]);
    command.args(["--message-format", "json-render-diagnostics"]).stderr(Stdio::inherit());
    let output = command.output().map_err(|e| format!("cannot run {command:?}: {e}"))?;
    if !output.status.success() {
        return Err(format!("{command:?} ended with {}", output.status));
    }
    let messages = String::from_utf8_lossy(&output.stdout);
    messages
        .lines()
        .rev()
        .find_map(executable)
        .ok_or_else(|| format!("{command:?} does not say where the program is"))
}

/// The `executable` of one of cargo's messages, if it has one.
fn executable(message: &str) -> Option<String> {
    let (_, rest) = message.split_once("\"executable\":\"")?;
    let (path, _) = rest.split_once('"')?;
    Some(path.replace("\\\\", "\\"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_program_is_found_in_cargos_messages() {
        let message =
            r#"{"reason":"compiler-artifact","executable":"/t/debug/examples/ops_page","fresh":true}"#;
        assert_eq!(executable(message).as_deref(), Some("/t/debug/examples/ops_page"));
        assert_eq!(executable(r#"{"reason":"compiler-artifact","executable":null}"#), None);
        assert_eq!(
            executable(r#"{"executable":"C:\\t\\ops_page.exe"}"#).as_deref(),
            Some(r"C:\t\ops_page.exe")
        );
    }
}
