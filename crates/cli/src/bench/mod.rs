//! `olivine bench`: how fast operations and models run.

mod cases;
mod copy;
mod model;
mod ops;

use clap::{Args, Subcommand};

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
    /// A built-in model.
    Model(model::ModelArgs),
}

pub(crate) fn run(global: &Global, args: &BenchArgs) -> Result<Answer, Failure> {
    match &args.what {
        What::Ops(args) => ops::run(global, args),
        What::Model(args) => model::run(global, args),
    }
}
