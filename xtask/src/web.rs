//! The library in a browser: the WebAssembly module and its package are built, and pages run them in headless Chromium.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::targets::{debian_cargo, has_std};
use crate::{cargo, onnx, requirements, root, run};

const TARGET: &str = "wasm32-unknown-unknown";

/// Models that the pages run.
const ZOO: [&str; 6] = ["silero", "magika", "ppocr", "minilm", "speech", "smollm2"];

/// What WebAssembly has that every browser with WebGPU knows.
const WASM_FEATURES: [&str; 7] = [
    "--enable-simd",
    "--enable-bulk-memory",
    "--enable-nontrapping-float-to-int",
    "--enable-sign-ext",
    "--enable-mutable-globals",
    "--enable-reference-types",
    "--enable-multivalue",
];

/// `build` the package, `serve` the demo, `test` the pages (all of it without a word), run the table of `cases`, or
/// `bench` against ONNX Runtime Web.
pub(crate) fn chore(args: &[String]) -> Result<(), String> {
    let (what, rest) = match args.split_first() {
        Some((what, rest)) => (what.as_str(), rest),
        None => ("test", args),
    };
    match what {
        "build" => build(),
        "serve" => {
            build()?;
            node("serve.mjs", rest)
        }
        "test" => {
            build()?;
            models()?;
            // What the pages are compared with. CI has built it, with other features than a build of its own would have.
            if !["release", "debug"]
                .iter()
                .any(|profile| root().join("target").join(profile).join("olivine").exists())
            {
                run(cargo().args(["build", "-p", "olivine-cli"]))?;
            }
            node("test.mjs", rest)
        }
        "cases" => {
            prepare()?;
            let module = compile(&["--features", "cases"])?;
            bindgen(&module, &root().join("target/web-cases"))?;
            node("cases.mjs", rest)
        }
        "bench" => {
            build()?;
            models()?;
            node("bench.mjs", rest)
        }
        other => Err(format!("`{other}` is none of build, serve, test, cases and bench")),
    }
}

/// What the machine and npm must have.
fn prepare() -> Result<(), String> {
    requirements::meet(requirements::WEB)?;
    if !has_std(TARGET) {
        requirements::meet(requirements::RUST_SOURCE)?;
        requirements::meet(requirements::WEB_LINKER)?;
    }
    let folder = root().join("web/test");
    let lock = folder.join("package-lock.json");
    // npm writes this file when it is done, so an install that was cut short is begun again.
    let done = folder.join("node_modules/.package-lock.json");
    let time = |path: &Path| std::fs::metadata(path).and_then(|m| m.modified()).ok();
    if time(&done) < time(&lock) {
        run(Command::new("npm").args(["ci", "--no-audit", "--no-fund"]).current_dir(&folder))?;
    }
    Ok(())
}

/// The package with its module, made smaller and faster by `wasm-opt`.
fn build() -> Result<(), String> {
    prepare()?;
    let module = compile(&[])?;
    let folder = root().join("web/olivine/wasm");
    let (source, made) = (folder.join("olivine_web_bg.wasm"), root().join("target/web/olivine.wasm"));
    let time = |path: &Path| std::fs::metadata(path).and_then(|m| m.modified()).ok();
    // It takes a minute, so it is left out where nothing has changed.
    if source.exists() && time(&made) > time(&module) {
        return Ok(());
    }
    bindgen(&module, &folder)?;
    println!("optimising the module");
    let mut optimise = Command::new(root().join("web/test/node_modules/.bin/wasm-opt"));
    run(optimise.arg("-O1").args(WASM_FEATURES).arg(&source).arg("-o").arg(&made))?;
    std::fs::copy(&made, &source).map(drop).map_err(|e| format!("cannot write {}: {e}", source.display()))
}

/// Compiles the module: with the toolchain's own target, or where that cannot be fetched, with Debian's Rust, which
/// compiles the standard library too.
fn compile(args: &[&str]) -> Result<PathBuf, String> {
    let target = root().join("target/web");
    let mut command = if has_std(TARGET) {
        cargo()
    } else {
        let mut debian = debian_cargo();
        debian.env("CARGO_TARGET_WASM32_UNKNOWN_UNKNOWN_LINKER", "wasm-ld-22");
        debian
    };
    command.args(["build", "--profile", "web", "-p", "olivine-web", "--target", TARGET]);
    if !has_std(TARGET) {
        command.args(["-Z", "build-std=std,panic_abort"]);
    }
    let folder = target.join(TARGET).join("web");
    let module = folder.join("olivine_web.wasm");
    // The module with the table and the one without have one name, and cargo takes either for the other.
    let (last, now) = (folder.join("olivine_web.args"), args.join(" "));
    if std::fs::read_to_string(&last).ok().as_deref() != Some(now.as_str()) {
        for stale in [&last, &module, &folder.join("deps/olivine_web.wasm")] {
            let _ = std::fs::remove_file(stale);
        }
    }
    run(command.arg("--target-dir").arg(&target).args(args))?;
    std::fs::write(&last, now).map_err(|e| format!("cannot write {}: {e}", last.display()))?;
    Ok(module)
}

/// Writes a module's JavaScript.
fn bindgen(module: &Path, folder: &Path) -> Result<(), String> {
    let mut command = cargo();
    command.args(["run", "-q", "-p", "olivine-bindgen", "--features", "run", "--"]);
    run(command.arg(module).arg(folder))
}

fn models() -> Result<(), String> {
    onnx::zoo(&ZOO.map(String::from))
}

fn node(script: &str, args: &[String]) -> Result<(), String> {
    run(Command::new("node").arg(root().join("web/test").join(script)).args(args).current_dir(root()))
}
