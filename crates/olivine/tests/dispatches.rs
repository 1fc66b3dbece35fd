//! How many dispatches a layer takes, on devices that need not be here: lowering reads plain data.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a failed expectation is a failed test")]

use olivine::internals::compile::{Options, compile};
use olivine::internals::gpu::{Addressing, DeviceCaps, DeviceKind, Program, Record, State, lower};
use olivine::internals::kernel::{Elem, Fragments, MatrixShape, Target};
use olivine::internals::models::{Decoder, Encoder};
use olivine::ir::{BlockFormat, DType, Graph, TensorType};

/// A large NVIDIA card.
fn h200() -> DeviceCaps {
    let shape = |operand, accumulator, k| MatrixShape { operand, accumulator, m: 16, n: 16, k };
    let target = Target {
        subgroup: Some(32),
        f16: true,
        f64: true,
        i64: true,
        shared_bytes: 48 << 10,
        max_invocations: 1024,
        matrices: vec![
            shape(Elem::F16, Elem::F32, 16),
            shape(Elem::F16, Elem::F16, 16),
            shape(Elem::BF16, Elem::F32, 16),
            shape(Elem::I8, Elem::I32, 32),
            shape(Elem::U8, Elem::U32, 32),
        ],
        fragments: Some(Fragments::Quads),
        ..Target::plain()
    };
    caps("a large card", DeviceKind::Discrete, target)
}

/// A software GPU: the processor runs the kernels.
fn lavapipe() -> DeviceCaps {
    let target = Target {
        subgroup: Some(8),
        f16: true,
        f64: true,
        i64: true,
        shared_bytes: 32 << 10,
        max_invocations: 1024,
        ..Target::plain()
    };
    caps("a processor", DeviceKind::Cpu, target)
}

fn caps(name: &str, kind: DeviceKind, target: Target) -> DeviceCaps {
    DeviceCaps {
        name: name.into(),
        driver: "none".into(),
        kind,
        target,
        addressing: Addressing::Pointers,
        max_groups: [65535; 3],
        max_buffer_bytes: 1 << 32,
        memory_bytes: 1 << 34,
        processors: None,
        keeps_denormals: true,
        ptx: None,
    }
}

fn lowered(graph: &Graph, caps: &DeviceCaps, states: &[State]) -> Program {
    lower(&compile(graph, &Options::default()).unwrap(), caps, &Record::new(), states).unwrap()
}

/// The kernels of a layer's dispatches, in order.
fn of_layer<'p>(program: &'p Program, layer: &str) -> Vec<&'p str> {
    let within = format!("{layer}/");
    let of = program.run.iter().filter(|d| d.node.starts_with(&within));
    of.map(|d| program.kernel(d).name.as_str()).collect()
}

#[test]
fn a_layer_of_bert_takes_seven_dispatches() {
    let graph = Encoder { layers: 3, ..Encoder::bert_base(1, 128) }.graph().unwrap();
    for caps in [h200(), lavapipe()] {
        let program = lowered(&graph, &caps, &[]);
        let kernels = of_layer(&program, "layer1");
        assert_eq!(kernels.len(), 7, "{}: {kernels:?}", caps.name);
    }
}

#[test]
fn a_layer_of_llama_takes_eight_dispatches() {
    let prompt = Decoder { layers: 3, ..Decoder::llama_8b(1, 512, 2048) };
    let token = Decoder { sequence: 1, capacity: 256, ..prompt };
    for decoder in [prompt, token] {
        let graph = decoder.graph().unwrap();
        // Inputs are x, the position and the caches; outputs y and the caches.
        let states: Vec<State> = (0..2 * decoder.layers).map(|i| (i + 2, i + 1)).collect();
        for caps in [h200(), lavapipe()] {
            let program = lowered(&graph, &caps, &states);
            let kernels = of_layer(&program, "layer1");
            assert_eq!(kernels.len(), 8, "{} positions, {}: {kernels:?}", decoder.sequence, caps.name);
        }
    }
}

#[test]
fn what_lowering_joins_in_a_layer_of_llama_is_listed() {
    let decoder = Decoder { layers: 2, sequence: 1, capacity: 256, ..Decoder::llama_8b(1, 512, 2048) };
    let states: Vec<State> = (0..2 * decoder.layers).map(|i| (i + 2, i + 1)).collect();
    let program = lowered(&decoder.graph().unwrap(), &h200(), &states);
    let of_layer = program.fusions.iter().filter(|f| f.nodes.iter().all(|n| n.starts_with("layer1/")));
    let rules: Vec<&str> = of_layer.map(|f| f.rule).collect();
    for rule in ["gated matmul", "rope and kv append"] {
        assert_eq!(rules.iter().filter(|r| **r == rule).count(), 1, "{rule}: {rules:?}");
    }
    // A group is one dispatch, named after all of its nodes.
    for fusion in program.fusions.iter().filter(|f| f.rule == "rope and kv append") {
        assert_eq!(fusion.nodes.len(), 4, "{fusion:?}");
        assert!(program.run.iter().any(|d| *d.node == *fusion.nodes.join(" + ")), "{fusion:?}");
    }
}

#[test]
fn matmuls_with_packed_weights_that_read_the_same_x_share_its_digits() {
    let mut g = Graph::new("shared");
    // Digits that fit in workgroup memory are made by every workgroup; these are more.
    let x = g.input("x", DType::F16, [2, 16384]).unwrap();
    let w: Vec<_> = [BlockFormat::Q4_K, BlockFormat::Q4_K, BlockFormat::Q6_K]
        .into_iter()
        .enumerate()
        .map(|(i, format)| {
            g.param_of(&format!("w{i}"), TensorType::packed(format, [16384, 16384]).unwrap()).unwrap()
        })
        .collect();
    let (a, b, c) = (g.dequant_matmul(x, w[0]).unwrap(), g.dequant_matmul(x, w[1]).unwrap(), {
        // Another x in between must not be mixed up with the first.
        let y = g.dequant_matmul(x, w[2]).unwrap();
        g.dequant_matmul(y, w[1]).unwrap()
    });
    for (name, value) in [("a", a), ("b", b), ("c", c)] {
        g.output(name, value).unwrap();
    }
    let mut caps = h200();
    caps.target.packed_dot = true;
    let program = lowered(&g, &caps, &[]);
    let kernels: Vec<&str> = program.run.iter().map(|d| program.kernel(d).name.as_str()).collect();
    // Digits for Q4_K, for Q6_K in another order of elements, and of the second x; the matmuls of the first x are one dispatch.
    let count = |name: &str| kernels.iter().filter(|kernel| **kernel == name).count();
    assert_eq!((count("quantize_rows"), count("dequant_gemv")), (3, 2), "{kernels:?}");
}
