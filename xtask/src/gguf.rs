//! GGUF against the `gguf` package and llama.cpp's own library, which pip puts under `target`.

use std::process::Command;

/// Fails if a block decodes to other bits than in the `gguf` package, if a file that one side writes is not read by the other,
/// if an encoder is worse than llama.cpp's, or if a preset gives a tensor another type. With the zoo's folder, every tensor of smollm2 is compared too.
pub(crate) fn check(zoo: Option<&str>) -> Result<(), String> {
    let packages = crate::root().join("target/gguf");
    if !packages.join("gguf").is_dir() || !packages.join("xllamacpp").is_dir() {
        let mut pip = Command::new("python3");
        pip.args(["-m", "pip", "install", "--quiet", "--target"]).arg(&packages).args(["gguf", "xllamacpp"]);
        crate::run(&mut pip)?;
    }
    crate::run(crate::cargo().args(["build", "-p", "olivine-quant", "--example", "convert"]))?;
    crate::run(crate::cargo().args([
        "build",
        "-p",
        "olivine-gguf",
        "--example",
        "copy",
        "--example",
        "decode",
        "--example",
        "kinds",
    ]))?;
    let mut check = Command::new("python3");
    check.arg(crate::root().join("zoo/gguf_check.py")).arg(crate::root().join("target/debug/examples"));
    check.args(zoo);
    crate::run(check.env("PYTHONPATH", &packages))
}
