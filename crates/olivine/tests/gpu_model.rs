//! A twelve-layer encoder on GPUs: the CPU's answer, with every operation of it on the device.
#![allow(clippy::panic, clippy::unwrap_used, reason = "a failed expectation is a failed test")]

use olivine::internals::SessionExt as _;
use olivine::internals::models::{Encoder, seeded_input, seeded_params};
use olivine::{Device, PipelineCache, Session, SessionOptions};
use olivine_ir::{Graph, Op, Tensor};

/// BERT-base in depth and head size, narrower so that a software device is done in seconds.
fn encoder() -> Encoder {
    Encoder { hidden: 192, heads: 3, feed_forward: 768, ..Encoder::bert_base(1, 48) }
}

fn answer(session: &Session, graph: &Graph) -> Vec<f64> {
    let executable = session.compile(graph).unwrap();
    executable.set_params(seeded_params(graph, 1).unwrap()).unwrap();
    let inputs: Vec<(&str, Tensor)> = graph
        .inputs()
        .map(|(name, id)| (name, seeded_input(name, graph.ty(id).unwrap().shape, 2).unwrap()))
        .collect();
    let out = executable.run(inputs.iter().map(|(n, t)| (*n, t))).unwrap();
    out.get("y").unwrap().to_f64()
}

#[test]
fn an_encoder_of_twelve_layers_gives_the_cpus_answer_and_nothing_runs_on_the_host() {
    let graph = encoder().graph().unwrap();
    let want = answer(&Session::new(Device::Cpu).unwrap(), &graph);
    for device in [Device::Vulkan, Device::Wgpu] {
        let options = SessionOptions::new().pipeline_cache(PipelineCache::Off);
        let session = Session::with_options(device.clone(), options).unwrap();
        let got = answer(&session, &graph);
        let error: f64 = got.iter().zip(&want).map(|(a, b)| (a - b) * (a - b)).sum();
        let scale: f64 = want.iter().map(|b| b * b).sum();
        let relative = (error / scale).sqrt();
        assert!(relative <= 1e-5, "{device}: relative L2 {relative:e}");

        // Every node that is no view has dispatches of its own in the program.
        let compiled = session.explain(&graph).unwrap();
        let program = session.program(&compiled).unwrap().unwrap();
        for node in compiled.graph.nodes().iter().filter(|n| !matches!(n.op, Op::View(_))) {
            let mut all = program.run.iter().chain(&program.load);
            assert!(all.any(|d| *d.node == *node.name), "{device}: `{}` is not on the device", node.name);
        }
    }
}
