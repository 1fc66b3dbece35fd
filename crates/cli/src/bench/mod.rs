//! `olivine bench`: how fast operations and models run.

mod accuracy;
mod cases;
mod chain;
mod copy;
mod gpu;
mod large;
mod lengths;
mod model;
mod ops;
mod quant;
mod start;

use clap::{Args, Subcommand};

pub(crate) use copy::Copy;

use crate::Global;
use crate::answer::{Answer, Failure};

#[derive(Args)]
pub(crate) struct BenchArgs {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand)]
enum What {
    /// Single operations at sizes where speed shows.
    Ops(ops::OpsArgs),
    /// A built-in model or an ONNX file.
    Model(model::ModelArgs),
    /// A GPU's rates at sizes that show them, by its own timestamps.
    Gpu(gpu::GpuArgs),
    /// The error of f32 matmuls on numbers of several kinds.
    Accuracy(accuracy::AccuracyArgs),
    /// From the start of this process to a model's first result.
    Start(start::StartArgs),
    /// Leapfrog chains of a mixture on every device, or on the one of --device.
    Chain(chain::ChainArgs),
    /// Matmuls with packed weights, format by format.
    Quant(quant::QuantArgs),
    /// A language model: prefill, decode, time to the first token, memory.
    Lm(crate::lm::bench::BenchLmArgs),
    /// What a run costs more when its sizes are new.
    Lengths(lengths::LengthsArgs),
    /// Models of the zoo, beside ONNX Runtime.
    Zoo(crate::zoo::ZooBenchArgs),
    /// What runs of the zoo's models were predicted to take, beside what they take, at three sizes.
    Predict(crate::zoo::PredictArgs),
    /// Check a tensor, operations and a model that need more than 32-bit offsets.
    Large(large::LargeArgs),
}

pub(crate) fn run(global: &Global, args: &BenchArgs) -> Result<Answer, Failure> {
    match &args.what {
        What::Ops(args) => ops::run(global, args),
        What::Model(args) => model::run(global, args),
        What::Gpu(args) => gpu::run(global, args),
        What::Accuracy(args) => accuracy::run(global, args),
        What::Start(args) => start::run(global, args),
        What::Chain(args) => chain::run(global, args),
        What::Quant(args) => quant::run(global, args),
        What::Lm(args) => crate::lm::bench::run(global, args),
        What::Lengths(args) => lengths::run(global, args),
        What::Zoo(args) => crate::zoo::run_bench(global, args),
        What::Predict(args) => crate::zoo::run_predict(global, args),
        What::Large(args) => large::run(global, args),
    }
}
