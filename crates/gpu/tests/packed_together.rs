//! Matmuls of one x by packed weights and the norms before them, by the kernel interpreter: as one dispatch where a device can, and by
//! themselves where it cannot.
#![allow(clippy::expect_used, reason = "a failed expectation is a failed test")]

mod common;

use common::Interpreter;
use olivine_cases::{Case, run_table, table};
use olivine_ptx::Order;

fn cases() -> Vec<Case> {
    let named = |case: &Case| ["together", "normed"].iter().any(|part| case.name.contains(part));
    table().into_iter().filter(named).collect()
}

fn pass(device: &Interpreter) {
    let cases = cases();
    assert!(cases.len() > 60);
    let report = run_table(device, &cases, "", 2);
    let wrong: Vec<String> = report.failures().map(|r| format!("{}: {}", r.name, r.outcome)).collect();
    assert!(wrong.is_empty(), "{} of {}:\n{}", wrong.len(), report.results.len(), wrong.join("\n"));
}

#[test]
fn with_integer_dot_products() {
    pass(&Interpreter::with_matrices());
}

#[test]
fn with_floats() {
    pass(&Interpreter::rich(32));
}

#[test]
fn without_subgroups() {
    pass(&Interpreter::plain());
}

#[test]
fn as_ptx() {
    pass(&Interpreter::ptx(Order::Descending));
}

/// Kernels and fusions of a case on a card, by its name.
fn lowered(name: &str) -> (Vec<String>, Vec<&'static str>) {
    let case = cases().into_iter().find(|case| case.name == format!("packed/{name}/f32")).expect("a case");
    let program = Interpreter::with_matrices().lower(&case.graph().expect("a graph")).expect("a program");
    let kernels = program.run.iter().map(|d| program.kernel(d).name.clone()).collect();
    (kernels, program.fusions.iter().map(|fusion| fusion.rule).collect())
}

#[test]
fn matmuls_of_one_x_are_one_dispatch_whatever_their_formats() {
    for mix in ["q4_k", "q4_k-q6_k", "q8_0", "mxfp4", "q4_0-q8_0", "strided", "tables"] {
        for m in 1..=4 {
            let (kernels, fusions) = lowered(&format!("dequant_matmul/together-{mix}-{m}"));
            assert_eq!(kernels, ["dequant_gemv"], "{mix} {m}");
            assert_eq!(fusions, ["packed matmuls of one x"]);
            let (kernels, fusions) = lowered(&format!("dequant_matmul/rms-normed-{mix}-{m}"));
            assert_eq!(kernels, ["rms_norm_gemv"], "{mix} {m}");
            assert_eq!(fusions, ["norm in packed matmuls"]);
        }
    }
}

#[test]
fn a_norm_stays_where_others_read_it() {
    for name in ["returned", "residual"] {
        let (kernels, _) = lowered(&format!("dequant_matmul/rms-normed-{name}"));
        assert_eq!(kernels, ["rms_norm_rows", "dequant_gemv"], "{name}");
    }
}

#[test]
fn digits_of_much_of_x_are_made_once_after_the_norm() {
    let (kernels, fusions) = lowered("dequant_matmul/together-long");
    assert_eq!(kernels, ["rms_norm_rows", "quantize_rows", "quantize_rows", "dequant_gemv"]);
    assert_eq!(fusions, ["packed matmuls of one x"]);
}

#[test]
fn a_matmul_does_not_wait_for_what_reads_another() {
    let (kernels, _) = lowered("dequant_matmul/together-in-turn");
    assert_eq!(kernels.iter().filter(|kernel| *kernel == "dequant_gemv").count(), 2, "{kernels:?}");
}
