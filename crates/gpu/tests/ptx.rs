//! The table of cases on kernels printed as PTX, run by an emulator: every family that a large NVIDIA card lowers to.
#![allow(clippy::expect_used, reason = "a failed expectation is a failed test")]

mod common;

use std::collections::HashSet;

use common::Interpreter;
use olivine_cases::{Case, attention_cases, run_table, table};
use olivine_ptx::Order;

/// Cases that together have every kernel of the device's programs under each of its names, and some more.
fn sample(device: &Interpreter, cases: Vec<Case>, one_in: usize) -> Vec<Case> {
    let mut known = HashSet::new();
    let mut chosen = Vec::new();
    for (i, case) in cases.into_iter().enumerate() {
        let Ok(program) = device.lower(&case.graph().expect("a graph")) else { continue };
        let fresh = program.kernels.iter().filter(|k| known.insert(k.name.clone())).count() > 0;
        if fresh || i % one_in == 0 {
            chosen.push(case);
        }
    }
    chosen
}

fn pass(device: &Interpreter, cases: &[Case]) {
    let report = run_table(device, cases, "", 2);
    let wrong: Vec<String> = report.failures().map(|r| format!("{}: {}", r.name, r.outcome)).collect();
    assert!(!report.results.is_empty());
    assert!(wrong.is_empty(), "{} of {}:\n{}", wrong.len(), report.results.len(), wrong.join("\n"));
}

#[test]
fn every_kernel_of_the_table_computes_the_same_as_ptx() {
    let device = Interpreter::ptx(Order::Ascending);
    let cases = sample(&device, table(), 16);
    assert!(cases.len() > 100, "{} cases", cases.len());
    pass(&device, &cases);
}

#[test]
fn attention_computes_the_same_as_ptx() {
    let cases = attention_cases(12, 23);
    pass(&Interpreter::ptx(Order::Descending), &cases);
}

#[test]
fn packed_caches_compute_the_same_as_ptx() {
    let cases: Vec<Case> = table().into_iter().filter(|c| c.family == "packed_cache").step_by(6).collect();
    pass(&Interpreter::ptx(Order::Ascending), &cases);
}
