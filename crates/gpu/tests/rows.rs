//! Row kernels by the kernel interpreter: devices that are not here, and arithmetic as poor as devices may have it.

mod common;

use common::Interpreter;
use olivine_cases::{row_cases, run_table};

fn pass(backend: &Interpreter) {
    let report = run_table(backend, &row_cases(21_000), "", 2);
    let wrong: Vec<String> = report.failures().map(|r| format!("{}: {}", r.name, r.outcome)).collect();
    assert!(report.results.len() > 100);
    assert!(wrong.is_empty(), "{} of {}:\n{}", wrong.len(), report.results.len(), wrong.join("\n"));
}

#[test]
fn rows_of_every_length_with_subgroups_of_thirty_two() {
    pass(&Interpreter::rich(32));
}

#[test]
fn rows_of_every_length_without_subgroups() {
    pass(&Interpreter::plain());
}
