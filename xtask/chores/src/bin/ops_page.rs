//! Prints the table of operations that `cargo xtask docs` keeps in docs/ops.md: every case, run on every backend.
#![forbid(unsafe_code)]

use std::process::ExitCode;

use olivine::PipelineCache;
use olivine::prelude::*;
use olivine_cases::{SessionBackend, admitted, ops_markdown, run_table, table};

fn main() -> ExitCode {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let mut reports = Vec::new();
    for (name, device) in [("cpu", Device::Cpu), ("vulkan", Device::Vulkan), ("wgpu", Device::Wgpu)] {
        let options = SessionOptions::new().pipeline_cache(PipelineCache::Off);
        let backend = match SessionBackend::new(name, device, options) {
            Ok(backend) => backend,
            Err(error) => {
                eprintln!("error: {error}");
                return ExitCode::FAILURE;
            }
        };
        reports.push(run_table(&backend, &table(), "", threads));
    }
    match admitted(&table()) {
        Ok(admitted) => print!("{}", ops_markdown(&reports, &admitted)),
        Err(problem) => {
            eprintln!("error: {problem}");
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}
