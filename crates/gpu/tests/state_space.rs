//! Sequence models with a state: how they are dispatched, and their kernels by the kernel interpreter, for which memory
//! that nobody wrote holds NaN.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a failed expectation is a failed test")]

mod common;

use common::Interpreter;
use olivine_cases::{Case, run_table, table};
use olivine_ir::op::{GatedDeltaNet, Mamba2, SelectiveScan};
use olivine_ir::{DType, Graph};

/// Every twelfth of the family's shorter cases, from one of the first twelve on; devices run all.
fn cases(from: usize) -> Vec<Case> {
    let ours = |c: &Case| {
        c.family == "state_space"
            && !["1000", "4096", "200", "decay-chunks"].iter().any(|n| c.name.contains(n))
    };
    table().into_iter().filter(ours).skip(from).step_by(12).collect()
}

fn pass(backend: &Interpreter, cases: &[Case]) {
    let report = run_table(backend, cases, "", 2);
    let wrong: Vec<String> = report.failures().map(|r| format!("{}: {}", r.name, r.outcome)).collect();
    assert!(report.results.len() > 10);
    assert!(wrong.is_empty(), "{} of {}:\n{}", wrong.len(), report.results.len(), wrong.join("\n"));
}

#[test]
fn subgroups_of_eight() {
    pass(&Interpreter::rich(8), &cases(0));
}

#[test]
fn subgroups_of_thirty_two() {
    pass(&Interpreter::rich(32), &cases(4));
}

#[test]
fn no_subgroups_and_the_least_memory() {
    let mut cases = cases(8);
    cases.retain(|c| !c.name.ends_with("/f64"));
    pass(&Interpreter::plain(), &cases);
}

/// Graphs of the three models over a sequence.
fn models(length: usize) -> Vec<Graph> {
    let (b, l, h, p, n) = (2, length, 4, 64, 32);
    let mut scan = Graph::new("scan");
    let f = |g: &mut Graph, name: &str, dims: &[usize]| g.input(name, DType::F32, dims).unwrap();
    let operands = [("x", vec![b, l, p]), ("d", vec![b, l, p]), ("a", vec![p, n])];
    let [x, d, a] = operands.map(|(name, dims)| f(&mut scan, name, &dims));
    let [keys, queries] = ["b", "c"].map(|name| f(&mut scan, name, &[b, l, n]));
    let (y, state) = scan.selective_scan(SelectiveScan::new(), [x, d, a, keys, queries], &[]).unwrap();
    scan.output("y", y).unwrap();
    scan.output("state", state).unwrap();

    let mut mamba = Graph::new("mamba");
    let operands = [("x", vec![b, l, h, p]), ("dt", vec![b, l, h]), ("a", vec![h])];
    let [x, dt, a] = operands.map(|(name, dims)| f(&mut mamba, name, &dims));
    let [keys, queries] = ["b", "c"].map(|name| f(&mut mamba, name, &[b, l, 1, n]));
    let spec = Mamba2 { skip: false, state: false };
    let (y, state) = mamba.mamba2(spec, [x, dt, a, keys, queries], &[]).unwrap();
    mamba.output("y", y).unwrap();
    mamba.output("state", state).unwrap();

    let mut net = Graph::new("net");
    let [q, k] = ["q", "k"].map(|name| f(&mut net, name, &[b, l, h, n]));
    let v = f(&mut net, "v", &[b, l, h, p]);
    let [g, beta] = ["g", "beta"].map(|name| f(&mut net, name, &[b, l, h]));
    let (o, state) = net.gated_delta_net(GatedDeltaNet::new(), [q, k, v, g, beta], None).unwrap();
    net.output("o", o).unwrap();
    net.output("state", state).unwrap();
    vec![scan, mamba, net]
}

#[test]
fn a_token_is_one_dispatch_and_a_long_sequence_is_cut_into_chunks() {
    let device = Interpreter::rich(32);
    for graph in models(1) {
        assert_eq!(device.lower(&graph).unwrap().run.len(), 1, "{}", graph.name());
    }
    let long = models(4096);
    for (graph, dispatches) in long.iter().zip([3, 4, 4]) {
        let program = device.lower(graph).unwrap();
        assert_eq!(program.run.len(), dispatches, "{}", graph.name());
        // The largest is parallel over chunks, not only over what a batch has.
        let most = program.run.iter().map(|d| d.groups.iter().map(|g| *g as usize).product()).max();
        assert!(most >= Some(2 * 4096 / 64), "{}: {most:?} workgroups", graph.name());
    }
}

#[test]
fn another_length_needs_no_other_kernels() {
    let device = Interpreter::rich(32);
    for (a, b) in models(1000).iter().zip(models(3001)) {
        let hashes = |g: &Graph| -> Vec<_> {
            device.lower(g).unwrap().kernels.iter().map(|k| k.content_hash()).collect()
        };
        assert_eq!(hashes(a), hashes(&b), "{}", a.name());
    }
}
