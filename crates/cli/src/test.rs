//! `olivine test`: the project's tests on models and cases that others made.

use clap::{Args, Subcommand};

use crate::Global;
use crate::answer::{Answer, Failure};
use crate::{conformance, zoo};

#[derive(Args)]
pub(crate) struct TestArgs {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand)]
enum What {
    /// Run ONNX's backend tests on a device.
    Onnx(conformance::ConformanceArgs),
    /// Run the models of the zoo and compare with the results of ONNX Runtime and llama.cpp.
    Zoo(zoo::ZooTestArgs),
}

pub(crate) fn run(global: &Global, args: &TestArgs) -> Result<Answer, Failure> {
    match &args.what {
        What::Onnx(args) => conformance::run(global, args),
        What::Zoo(args) => zoo::run(global, args),
    }
}
