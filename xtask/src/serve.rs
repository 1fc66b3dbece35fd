//! The server against the `openai` package, which pip puts under `target`.

use std::process::Command;

/// Fails if the `openai` package does not get from `olivine serve` what it expects, or if bad input or many streams harm it. Needs
/// smollm2, minilm and stories15m of the zoo. `args` are for the script, such as `--minutes 10`.
pub(crate) fn check(args: &[String]) -> Result<(), String> {
    let packages = crate::root().join("target/serve/packages");
    if !packages.join("openai").is_dir() || !packages.join("gguf").is_dir() {
        let mut pip = Command::new("python3");
        pip.args(["-m", "pip", "install", "--quiet", "--target"])
            .arg(&packages)
            .args(["openai", "gguf", "numpy"]);
        crate::run(&mut pip)?;
    }
    crate::onnx::zoo(&["smollm2".into(), "minilm".into(), "stories15m".into()])?;
    crate::run(crate::cargo().args(["build", "-p", "olivine-cli"]))?;
    let mut check = Command::new("python3");
    check.arg(crate::root().join("zoo/serve_check.py")).arg(crate::root().join("target/debug/olivine"));
    check.arg(crate::root().join("target/zoo")).args(args);
    crate::run(check.env("PYTHONPATH", &packages))
}
