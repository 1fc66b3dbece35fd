//! Branches and loops by the kernel interpreter, in memory that begins as garbage, and what their programs look like.
#![allow(clippy::panic, clippy::unwrap_used, reason = "a failed expectation is a failed test")]

mod common;

use common::Interpreter;
use olivine_cases::{run_table, table};
use olivine_gpu::{Content, Program};
use olivine_ir::op::CumulativeKind;
use olivine_ir::{DType, Graph, Tensor};

fn pass(backend: &Interpreter) {
    let report = run_table(backend, &table(), "control/", 2);
    // Registers that the device does not have are no fault of control flow.
    let refused = |r: &&olivine_cases::CaseResult| r.outcome.to_string().contains("the device has no");
    let wrong: Vec<String> =
        report.failures().filter(|r| !refused(r)).map(|r| format!("{}: {}", r.name, r.outcome)).collect();
    assert!(report.passed() > 40, "{} passed", report.passed());
    assert!(wrong.is_empty(), "{} of {}:\n{}", wrong.len(), report.results.len(), wrong.join("\n"));
}

#[test]
fn the_table_passes_on_a_plain_device() {
    pass(&Interpreter::plain());
}

#[test]
fn the_table_passes_with_subgroups_of_thirty_two() {
    pass(&Interpreter::rich(32));
}

/// A loop of `most` trips at most, for as many as an input says or for all of them.
fn looped(most: usize, open: bool) -> Program {
    let mut body = Graph::new("b");
    body.input("trip", DType::I64, []).unwrap();
    let x = body.input("x", DType::F32, [1000]).unwrap();
    let y = body.exp(x).unwrap();
    let y = body.cumulative(CumulativeKind::Sum, y, 0, false, false).unwrap();
    let go = body.constant(Tensor::scalar(true));
    body.output("go", go).unwrap();
    body.output("y", y).unwrap();
    let mut g = Graph::new("g");
    let x = g.input("x", DType::F32, [1000]).unwrap();
    let trips = match open {
        true => g.input("trips", DType::I64, []).unwrap(),
        false => g.constant(Tensor::scalar(most as i64)),
    };
    let begin = g.constant(Tensor::scalar(true));
    let y = g.loop_(trips, begin, &[x], &[], Some(most), body).unwrap();
    g.output("y", y[0]).unwrap();
    Interpreter::plain().lower(&g).unwrap()
}

#[test]
fn a_loop_whose_iterations_are_certain_has_no_gates() {
    let program = looped(200, false);
    assert!(program.run.iter().all(|d| d.indirect.is_none()));
    assert!(!program.buffers.iter().any(|b| matches!(b.content, Content::Gates)));
    let gate = |name: &str| program.kernels.iter().any(|k| k.name == name);
    assert!(!gate("loop_gate") && !gate("branch_gate"));
}

#[test]
fn an_open_loop_is_gated_and_its_gates_have_a_buffer_of_their_own() {
    let program = looped(20, true);
    let gates = program.run.iter().filter(|d| program.kernel(d).name == "loop_gate").count();
    assert_eq!(gates, 20);
    let gated: Vec<_> = program.run.iter().filter_map(|d| d.indirect).collect();
    assert!(gated.len() >= 40, "{} gated dispatches", gated.len());
    for slice in gated {
        assert!(matches!(program.buffers[slice.buffer.0 as usize].content, Content::Gates));
        assert!(slice.bytes == 12 && slice.offset.is_multiple_of(4));
    }
    // The same kernels serve every trip.
    assert!(program.kernels.len() < 12, "{} kernels", program.kernels.len());
    let names: Vec<&str> = program.run.iter().map(|d| &*d.node).collect();
    assert!(names.iter().any(|n| n.starts_with("loop_0/")), "{names:?}");
}
