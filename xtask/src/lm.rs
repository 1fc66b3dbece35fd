//! Language models against Hugging Face transformers and llama.cpp.

use std::path::Path;
use std::process::Command;

/// The versions whose results are recorded.
const TRANSFORMERS: &str = "transformers==4.57.6";
const TORCH: &str = "torch==2.8.0";

/// Fails if a small model of any architecture, from a folder or from a GGUF file, has other logits than transformers, as recorded,
/// or llama.cpp. With the zoo's folder, smollm2's perplexity is compared with llama.cpp's, and stories15m's tokens and minilm's
/// embeddings with those known, on every backend.
pub(crate) fn check(zoo: Option<&str>) -> Result<(), String> {
    let packages = crate::root().join("target/lm/packages");
    if !packages.join("gguf").is_dir() || !packages.join("safetensors").is_dir() {
        let mut pip = Command::new("python3");
        pip.args(["-m", "pip", "install", "--quiet", "--target"]).arg(&packages);
        crate::run(pip.args(["gguf", "numpy", "safetensors"]))?;
    }
    crate::run(crate::cargo().args(["build", "-p", "olivine-cli"]))?;
    let mut check = Command::new("python3");
    check.arg(crate::root().join("zoo/lm_check.py")).arg(crate::root().join("target/debug/olivine"));
    if let Some(zoo) = zoo {
        check.args(["--zoo", zoo]);
    }
    crate::run(check.env("PYTHONPATH", &packages))
}

/// Writes crates/lm/tests/references with transformers. Its packages take 7 GB under `target`.
pub(crate) fn record(names: &[String]) -> Result<(), String> {
    let venv = crate::root().join("target/lm/venv");
    let python = venv.join("bin/python");
    if !Path::new(&python).exists() {
        crate::run(Command::new("python3").args(["-m", "venv"]).arg(&venv))?;
        let install = ["-m", "pip", "install", "--quiet", TORCH, TRANSFORMERS];
        crate::run(Command::new(&python).args(install))?;
    }
    crate::run(Command::new(&python).arg(crate::root().join("zoo/lm_reference.py")).args(names))
}
