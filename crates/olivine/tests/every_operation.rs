//! One graph with every operation, compiled for GPUs: nothing of it is left to the host.
#![allow(clippy::panic, clippy::unwrap_used, reason = "a failed expectation is a failed test")]

use std::collections::{BTreeSet, HashSet};

use olivine::internals::SessionExt as _;
use olivine::{Device, PipelineCache, SessionOptions};
use olivine_cases::{Case, Joined, SessionBackend, table};
use olivine_ir::{DType, Op};

/// What the table has no cases of: what only the compiler makes of the others, and a user's own, which custom_ops.rs tests.
const NOT_IN_THE_TABLE: &[&str] = &["view", "fused", "recurrence", "custom"];

/// For every operation a case that has it, in f32 where there is one; a case serves all the operations it has.
fn cases() -> Vec<Case> {
    let table = table();
    let mut missing: BTreeSet<&str> = Op::names().into_iter().collect();
    missing.retain(|name| !NOT_IN_THE_TABLE.contains(name));
    let mut chosen = Vec::new();
    for dtype in [Some(DType::F32), None] {
        for case in table.iter().filter(|c| c.family != "large" && dtype.is_none_or(|d| c.dtype == d)) {
            let graph = case.graph().unwrap();
            let empty = graph.values().iter().any(|v| v.ty.shape.numel() == 0);
            let small = graph.values().iter().all(|v| v.ty.shape.numel() <= 1 << 14);
            let has_new = graph.nodes().iter().any(|n| missing.contains(n.op.name()));
            // A graph of constants alone would be folded away.
            let fed = graph.inputs().next().is_some() || graph.nodes().iter().all(|n| n.inputs.is_empty());
            if !empty && small && has_new && fed {
                graph.nodes().iter().for_each(|n| {
                    missing.remove(n.op.name());
                });
                chosen.push(case.clone());
            }
        }
    }
    assert!(missing.is_empty(), "no case has {missing:?}");
    chosen
}

fn runs_on(device: Device) {
    let options = SessionOptions::new().pipeline_cache(PipelineCache::Off);
    let backend = SessionBackend::new("gpu", device, options).unwrap();
    let joined = Joined::new(&cases()).unwrap();

    let compiled = backend.session().explain(&joined.all.graph).unwrap();
    let program = backend.session().program(&compiled).unwrap().unwrap();
    let dispatched: HashSet<&str> =
        program.load.iter().chain(&program.run).flat_map(|dispatch| dispatch.node.split(" + ")).collect();
    for node in compiled.graph.nodes() {
        let empty = node.outputs.iter().all(|id| compiled.graph.ty(*id).unwrap().shape.numel() == 0);
        let served = matches!(node.op, Op::View(_)) || empty || dispatched.contains(node.name.as_str());
        assert!(served, "{} `{}` has no dispatch", node.op.name(), node.name);
    }

    for (name, outcome) in joined.check(&backend).unwrap() {
        assert!(outcome.passed(), "{name}: {outcome}");
    }
}

#[test]
fn a_graph_of_every_operation_runs_wholly_on_vulkan() {
    runs_on(Device::Vulkan);
}

#[test]
fn a_graph_of_every_operation_runs_wholly_on_wgpu() {
    runs_on(Device::Wgpu);
}
