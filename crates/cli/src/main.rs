//! The `olivine` program: what is on this machine, how a graph is compiled, and how fast it runs.
//!
//! ```text
//!   arguments ── one file per command ── Answer (text and JSON) ── stdout
//!                                    └── Failure (error, causes, hint) ── stderr
//! ```
#![forbid(unsafe_code)]

mod answer;
mod bench;
mod completions;
mod conformance;
mod demo;
mod devices;
mod doctor;
mod explain;
mod gguf;
mod lm;
mod measure;
mod memory;
mod model;
mod noise;
mod onnx;
mod panics;
mod profile;
mod progress;
#[cfg(feature = "pull")]
mod pull;
mod source;
mod svg;
mod table;
mod test;
mod timing;
mod tune;
mod verify;
mod warnings;
mod zoo;

use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};
use olivine::internals::OptionsExt as _;
use olivine::internals::gpu::Ptx;
use olivine::{Device, Precision, Session, SessionOptions};

use answer::{Answer, Failure};

#[derive(Parser)]
#[command(name = "olivine", version, about = "A machine-learning compiler and runtime.")]
struct Cli {
    #[command(flatten)]
    global: Global,
    #[command(subcommand)]
    command: Command,
}

/// Flags of every command.
#[derive(Args, Clone)]
struct Global {
    /// Print one JSON document instead of text.
    #[arg(long, global = true)]
    json: bool,
    /// Device to use: auto, cpu, vulkan, vulkan:N, vulkan:uuid:…, vulkan:name:…, wgpu, wgpu:N, wgpu:vulkan:N.
    #[arg(long, global = true, value_name = "DEVICE")]
    device: Option<String>,
    /// Threads on the CPU; one per core when not given.
    #[arg(long, global = true, value_name = "N", value_parser = threads)]
    threads: Option<usize>,
    /// How exactly f32 models are computed: exact, or fast, which multiplies in f16 on GPUs. Language models are decoded fast unless
    /// told otherwise, all else is exact.
    #[arg(long, global = true, value_name = "PRECISION")]
    precision: Option<Precision>,
    /// On Vulkan, launch all kernels as PTX where NVIDIA's driver takes it, to try them; without, matmuls by warpgroups alone are.
    #[arg(long, global = true, conflicts_with = "no_ptx")]
    ptx: bool,
    /// On Vulkan, launch no kernels as PTX.
    #[arg(long, global = true)]
    no_ptx: bool,
    /// No progress bars.
    #[arg(long, short, global = true)]
    quiet: bool,
}

#[derive(Subcommand)]
enum Command {
    /// List the devices of this machine, or those that --device names, and why others are missing; or rank them for a
    /// model.
    Devices(devices::DevicesArgs),
    /// Check what Olivine needs on this machine and say how to install what is missing.
    Doctor,
    /// Build a small transformer and run it on every device.
    Demo(demo::DemoArgs),
    /// Show the stages of compiling a graph.
    Explain(explain::ExplainArgs),
    /// Show where a model's time goes, beside the device's peak rates.
    Profile(profile::ProfileArgs),
    /// Measure operations and models.
    Bench(bench::BenchArgs),
    /// Time the candidate kernels of each shape and cache the fastest for this device.
    Tune(tune::TuneArgs),
    /// Run the table of cases on a device and compare with the exact results.
    Verify(verify::VerifyArgs),
    /// Run a model.
    Run(onnx::run::RunArgs),
    /// Talk to a language model, a line for each turn.
    Chat(lm::chat::ChatArgs),
    /// Continue a prompt with a language model.
    Generate(lm::generate::GenerateArgs),
    /// Serve a language model, or embeddings, by OpenAI's API.
    #[cfg(feature = "serve")]
    Serve(lm::serve::ServeArgs),
    /// Fetch a model from a URL, or copy it; resumed and hashed.
    #[cfg(feature = "pull")]
    Pull(pull::PullArgs),
    /// Measure how well a language model predicts a text.
    Perplexity(lm::perplexity::PerplexityArgs),
    /// Show a model's inputs, outputs and operators, and the memory that a run takes.
    Inspect(onnx::inspect::InspectArgs),
    /// Compiles a model ahead for ranges of sizes.
    Prepare(onnx::prepare::PrepareArgs),
    /// Write a GGUF file with weights of other types.
    Quantize(gguf::quantize::QuantizeArgs),
    /// Run an ONNX model on every device and in ONNX Runtime, and name the first node that differs.
    Check(onnx::check::CheckArgs),
    /// Tests of the project itself that need files from elsewhere.
    Test(test::TestArgs),
    /// Print a completion script for a shell.
    Completions(completions::CompletionsArgs),
}

impl Global {
    /// The device asked for, or the best there is.
    fn device(&self) -> Result<Device, Failure> {
        match &self.device {
            Some(text) => Ok(text.parse::<Device>()?),
            None => Ok(Device::auto()?),
        }
    }

    /// A session on the device asked for, with its threads.
    fn session(&self) -> Result<Session, Failure> {
        Ok(Session::with_options(self.device()?, self.options())?)
    }

    /// A session to decode a language model in.
    fn decoding_session(&self) -> Result<Session, Failure> {
        let precision = self.precision.unwrap_or(Precision::Fast);
        Ok(Session::with_options(self.device()?, self.options().precision(precision))?)
    }

    fn options(&self) -> SessionOptions {
        let precision = self.precision.unwrap_or_default();
        SessionOptions::new().threads(self.threads).precision(precision).ptx(self.ptx())
    }

    /// Which kernels are launched as PTX.
    fn ptx(&self) -> Ptx {
        match (self.ptx, self.no_ptx) {
            (true, _) => Ptx::All,
            (_, true) => Ptx::Off,
            _ => Ptx::Warpgroups,
        }
    }

    /// Threads that a session of these options uses.
    fn thread_count(&self) -> usize {
        self.threads.unwrap_or_else(olivine::internals::cpu::default_threads)
    }
}

/// Reads a number of threads; more than a few thousand is a slip of the finger, not a machine.
fn threads(text: &str) -> Result<usize, String> {
    match text.parse::<usize>() {
        Ok(n) if (1..=4096).contains(&n) => Ok(n),
        _ => Err("expected a number from 1 to 4096".into()),
    }
}

fn main() -> ExitCode {
    timing::process_started();
    warnings::install();
    let cli = Cli::parse();
    let answer = match &cli.command {
        Command::Devices(args) => devices::run(&cli.global, args),
        Command::Doctor => doctor::run(&cli.global),
        Command::Demo(args) => demo::run(&cli.global, args),
        Command::Explain(args) => explain::run(&cli.global, args),
        Command::Profile(args) => profile::run(&cli.global, args),
        Command::Bench(args) => bench::run(&cli.global, args),
        Command::Tune(args) => tune::run(&cli.global, args),
        Command::Verify(args) => verify::run(&cli.global, args),
        Command::Run(args) => onnx::run::run(&cli.global, args),
        Command::Chat(args) => lm::chat::run(&cli.global, args),
        Command::Generate(args) => lm::generate::run(&cli.global, args),
        #[cfg(feature = "serve")]
        Command::Serve(args) => lm::serve::run(&cli.global, args),
        #[cfg(feature = "pull")]
        Command::Pull(args) => pull::run(&cli.global, args),
        Command::Perplexity(args) => lm::perplexity::run(&cli.global, args),
        Command::Inspect(args) => onnx::inspect::run(&cli.global, args),
        Command::Prepare(args) => onnx::prepare::run(&cli.global, args),
        Command::Quantize(args) => gguf::quantize::run(&cli.global, args),
        Command::Check(args) => onnx::check::run(&cli.global, args),
        Command::Test(args) => test::run(&cli.global, args),
        Command::Completions(args) => completions::run(args),
    };
    answer.unwrap_or_else(Answer::from).print(cli.global.json)
}
