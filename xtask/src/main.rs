//! Repository chores, run as `cargo xtask <chore>`. It uses nothing but the standard library, so that it builds at once.
#![forbid(unsafe_code)]

mod aarch64;
mod book;
mod docs;
mod elixir;
mod features;
mod gguf;
mod lm;
mod onnx;
mod programs;
mod ptx;
mod publish;
mod requirements;
mod serve;
mod size;
mod targets;
mod tokenizers;
mod umath;
mod web;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

const USAGE: &str = "\
cargo xtask <chore>

  test [ARGS…]    install what the tests need, then `cargo test --workspace ARGS…`
  test --all [ARGS…]
                  the same with every case of the table on the GPU backends; without warm shader caches a software
                  device compiles for half an hour
  docs [--check]  write docs/ops.md from the table of cases run on every backend; --check fails if it is stale or
                  a page of docs has a link that leads nowhere
  docs --links    check the pages alone
  zoo [NAMES…]    bring models out of registry packages into target/zoo: `small`, `wide`, `all` or names
  onnx [--update] run ONNX's backend tests; those that passed must pass; --update adds to them and writes the page
  elixir [ARGS…]  install Elixir if need be, then build bindings/elixir and run `mix test ARGS…` on the CPU and Vulkan
  umath           run NumPy's validation sets of elementary functions on every backend
  gguf [ZOO]      compare GGUF files and block formats with the `gguf` package and with llama.cpp; with the zoo's folder,
                  such as target/zoo, all tensors of smollm2 too
  tokenizers [ZOO]
                  compare tokenizers and chat templates with `tokenizers`, `sentencepiece`, llama.cpp and `jinja2`; with the
                  zoo's folder smollm2 and minilm too
  lm [ZOO]        compare language models of every architecture with what transformers computed and with llama.cpp; with the
                  zoo's folder smollm2, stories15m and minilm too
  lm --record [NAMES…]
                  record what transformers computes; it installs torch under target/lm, 7 GB
  serve [ARGS…]   use `olivine serve` by the `openai` package, then by many streams; `--minutes N` for longer
  web [test]      build the npm package, and run it and the demo in headless Chromium
  web build       build web/olivine alone; `web serve` serves the demo
  web cases [FILTER]
                  run the table of cases on WebGPU in headless Chromium
  web bench       time models beside ONNX Runtime Web in the same browser
  features        check that the crate compiles with every combination of its features
  programs        build and run the first programs of the book as packages of their own, with and without features
  publish [ARGS…] check that every crate can be published: `cargo publish --workspace --dry-run ARGS…`, which builds each from its
                  package, and that each package has a readme and licences; `--no-verify` packages alone
  ptx [--all]     print the kernel library as PTX and assemble it with NVIDIA's `ptxas`, which pip brings: a sample for four
                  generations of cards, with --all every kernel for Hopper
  probe [GiB]     print what every Vulkan device offers, and try a large buffer
  rates [GiB]     print the Vulkan driver's rates: transfers, latency, a buffer above 4 GiB
  aarch64 [ARGS…] build for 64-bit Arm and run the tests that need no GPU, under qemu where this machine is another;
                  with ARGS `cargo test ARGS…` for that target
  targets [NAMES…]
                  type-check the library and the program for Windows and macOS, or for the targets named
  loom            try the thread pool's synchronisation in every interleaving
  size            list source files over 800 lines and fail if there are any
  fuzz [ARGS…]    parse a million mutated graphs; `--cases N` for another number
  fuzz onnx [ARGS…]
                  import a million mutated ONNX models; `--cases N`, and `--suite DIR` for more models to mutate
  fuzz gguf [ARGS…]
                  read a million mutated GGUF files; `--cases N`
  fuzz tokenizer [ARGS…]
                  make a million tokenizers of mutated metadata and use them; `--cases N`
";

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let (chore, rest) = match args.split_first() {
        Some((chore, rest)) => (chore.as_str(), rest),
        None => ("", args.as_slice()),
    };
    let done = match (chore, rest) {
        ("test", _) => test(rest),
        ("docs", []) => docs::write(),
        ("docs", [flag]) if flag == "--check" => book::check().and_then(|()| docs::check()),
        ("docs", [flag]) if flag == "--links" => book::check(),
        ("zoo", _) => onnx::zoo(rest),
        ("onnx", []) => onnx::check(),
        ("onnx", [flag]) if flag == "--update" => onnx::update(),
        ("elixir", _) => elixir::test(rest),
        ("umath", []) => umath::check(),
        ("gguf", []) => gguf::check(None),
        ("gguf", [zoo]) => gguf::check(Some(zoo)),
        ("tokenizers", []) => tokenizers::check(None),
        ("tokenizers", [zoo]) => tokenizers::check(Some(zoo)),
        ("lm", [flag, names @ ..]) if flag == "--record" => lm::record(names),
        ("lm", []) => lm::check(None),
        ("lm", [zoo]) => lm::check(Some(zoo)),
        ("serve", _) => serve::check(rest),
        ("web", _) => web::chore(rest),
        ("features", []) => features::check(),
        ("programs", []) => programs::check(),
        ("publish", _) => publish::check(rest),
        ("ptx", []) => ptx::check(false),
        ("ptx", [flag]) if flag == "--all" => ptx::check(true),
        ("aarch64", _) => aarch64::check(rest),
        ("targets", _) => targets::check(rest),
        ("loom", []) => loom(),
        ("size", []) => size::check(),
        ("fuzz", _) => fuzz(rest),
        ("probe", _) => run_chore("vulkan_probe", rest),
        ("rates", _) => run_chore("vulkan_rates", rest),
        ("help" | "--help" | "-h", _) => {
            println!("{USAGE}");
            Ok(())
        }
        _ => {
            eprintln!("{USAGE}");
            return ExitCode::from(2);
        }
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(problem) => {
            eprintln!("error: {problem}");
            ExitCode::FAILURE
        }
    }
}

fn test(args: &[String]) -> Result<(), String> {
    requirements::meet(requirements::TESTS)?;
    let (all, args) = match args.split_first() {
        Some((flag, rest)) if flag == "--all" => (true, rest),
        _ => (false, args),
    };
    let mut command = cargo();
    if all {
        command.env("OLIVINE_TEST_ALL", "1");
    }
    run(command.args(["test", "--workspace"]).args(args))
}

/// Runs a program of `xtask/chores`, which has the dependencies that this one does without.
fn run_chore(name: &str, args: &[String]) -> Result<(), String> {
    run(cargo().args(["run", "--release", "-p", "olivine-chores", "--bin", name, "--"]).args(args))
}

/// Loom's types replace those of `std` by a `cfg`, which is part of every crate's build: this one has a folder of its own.
fn loom() -> Result<(), String> {
    let mut command = cargo();
    command.env("RUSTFLAGS", "--cfg loom").args(["test", "-p", "olivine-loom", "--release", "--lib"]);
    run(command.args(["--target-dir", "target/loom"]))
}

fn fuzz(args: &[String]) -> Result<(), String> {
    let mut command = cargo();
    // Not a release build: sums that overflow are to panic.
    let args = match args.split_first() {
        Some((what, rest)) if what == "onnx" => {
            command.args(["run", "-p", "olivine-fuzz", "--bin", "fuzz_onnx", "--"]);
            rest
        }
        Some((what, rest)) if what == "tokenizer" => {
            command.args(["run", "-p", "olivine-fuzz", "--bin", "fuzz_tokenizer", "--"]);
            rest
        }
        Some((what, rest)) if what == "gguf" => {
            command.args(["run", "-p", "olivine-fuzz", "--bin", "fuzz_gguf", "--"]);
            rest
        }
        _ => {
            command.args(["run", "-p", "olivine-fuzz", "--bin", "fuzz_graph", "--"]);
            args
        }
    };
    if !args.iter().any(|a| a == "--cases") {
        command.args(["--cases", "1000000"]);
    }
    run(command.args(args))
}

/// Cargo, in the repository's root.
fn cargo() -> Command {
    let program = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(program);
    command.current_dir(root());
    // What cargo says of this package: a build script that reads it (ring's) would run again, and all that depends on it be
    // built again, after each command that is not a chore.
    for (name, _) in std::env::vars_os() {
        if name
            .to_str()
            .is_some_and(|name| name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_"))
        {
            command.env_remove(name);
        }
    }
    command
}

/// Runs a command and says which one failed.
fn run(command: &mut Command) -> Result<(), String> {
    let line = format!("{command:?}");
    match command.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("{line} ended with {status}")),
        Err(error) => Err(format!("cannot run {line}: {error}")),
    }
}

/// The repository's root.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().map_or_else(|| ".".into(), Path::to_path_buf)
}

#[cfg(test)]
mod tests {
    use super::root;

    #[test]
    fn every_crate_carries_both_licences() {
        for entry in std::fs::read_dir(root().join("crates")).unwrap() {
            let folder = entry.unwrap().path();
            for file in ["LICENSE-APACHE", "LICENSE-MIT"] {
                let (its, ours) = (folder.join(file), root().join(file));
                assert_eq!(std::fs::read(&its).ok(), std::fs::read(ours).ok(), "{}", its.display());
            }
        }
    }
}
