//! Tokenizers and chat templates against libraries that pip puts under `target`.

use std::process::Command;

/// Fails if text becomes other tokens, or tokens other text, than in `tokenizers`, `sentencepiece` or llama.cpp, or if a chat
/// becomes another prompt than with `jinja2`. With the zoo's folder, smollm2 and minilm are compared too.
pub(crate) fn check(zoo: Option<&str>) -> Result<(), String> {
    let packages = crate::root().join("target/tokenizers/packages");
    let names = ["tokenizers", "sentencepiece", "gguf", "xllamacpp", "jinja2", "protobuf"];
    if !packages.join("tokenizers").is_dir() || !packages.join("google").is_dir() {
        let mut pip = Command::new("python3");
        pip.args(["-m", "pip", "install", "--quiet", "--target"]).arg(&packages).args(names);
        crate::run(&mut pip)?;
    }
    crate::run(crate::cargo().args(["build", "-p", "olivine-tokenizer", "--example", "tokenize"]))?;
    let mut check = Command::new("python3");
    check.arg(crate::root().join("zoo/tokenizer_check.py"));
    check.arg(crate::root().join("target/debug/examples/tokenize"));
    check.arg(crate::root().join("target/tokenizers")).args(zoo);
    crate::run(check.env("PYTHONPATH", &packages).env("TOKENIZERS_PARALLELISM", "false"))
}
