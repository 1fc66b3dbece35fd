//! Prints the table of operations that `cargo xtask docs` keeps in docs/ops.md: every case, run on the CPU.
#![forbid(unsafe_code)]

use std::process::ExitCode;

use olivine::prelude::*;
use olivine_cases::{SessionBackend, ops_markdown, run_table, table};

fn main() -> ExitCode {
    let backend = match SessionBackend::new("cpu", Device::Cpu, SessionOptions::default()) {
        Ok(backend) => backend,
        Err(error) => {
            eprintln!("error: {error}");
            return ExitCode::FAILURE;
        }
    };
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let report = run_table(&backend, &table(), "", threads);
    for failure in report.failures() {
        eprintln!("{}: {}", failure.name, failure.outcome);
    }
    print!("{}", ops_markdown(&[report]));
    ExitCode::SUCCESS
}
