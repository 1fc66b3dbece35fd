//! Convolutions, pools, recurrent layers and transforms of open sizes: a few plans, on the CPU one, with the results of a
//! compile for fixed sizes, bit for bit.
#![forbid(unsafe_code)]
#![allow(clippy::panic, clippy::unwrap_used, reason = "a failed expectation is a failed test")]

use olivine::internals::ExecutableExt;
use olivine::internals::models::{seeded_input, seeded_params};
use olivine::prelude::*;
use olivine_ir::op::{
    Direction, PadMode, PoolKind, Recurrent, RecurrentKind, RecurrentLayer, ReduceKind, ResizeMode,
    ScatterMode, Stft, Window,
};
use olivine_ir::{Def, Dim, Error as GraphError, Shape, ValueId, open_symbol};

/// A layer on top of an image `[batch, 8, height, width]`.
type Layer = fn(&mut Graph, ValueId) -> Result<ValueId, GraphError>;

/// A layer, and the plans that it needs on the CPU and on Vulkan.
type LayerCase = (&'static str, Layer, usize, Option<usize>);

/// The layers, and the plans that sizes from 9 on need, on the CPU and on Vulkan; none where many classes of reductions
/// come before the layer, or each size has a plan of its own.
const LAYERS: [LayerCase; 14] = [
    ("convolution", |g, x| conv(g, x, [16, 8, 3, 3], Window::same(2, 1, 1), 1), 1, Some(8)),
    ("convolution with a stride", |g, x| conv(g, x, [16, 8, 3, 3], Window::same(2, 2, 1), 1), 1, Some(8)),
    ("pointwise convolution", |g, x| conv(g, x, [24, 8, 1, 1], Window::unit(2), 1), 1, Some(8)),
    ("depthwise convolution", |g, x| conv(g, x, [8, 1, 5, 5], Window::same(2, 1, 2), 8), 1, Some(8)),
    (
        "transposed convolution",
        |g, x| {
            let w = g.param("w", DType::F32, [8, 4, 2, 2])?;
            g.conv_transpose(x, w, None, Window::same(2, 2, 0), 1, &[0, 0])
        },
        1,
        Some(8),
    ),
    (
        "pools",
        |g, x| {
            let most = g.max_pool(x, &[3, 3], Window::same(2, 2, 1), false)?;
            let mean = g.global_pool(PoolKind::Average, x)?;
            g.add(most, mean)
        },
        1,
        Some(8),
    ),
    (
        "reflected padding",
        |g, x| g.pad(x, &[(0, 0), (0, 0), (2, 1), (0, 3)], PadMode::Reflect, 0.0),
        1,
        Some(8),
    ),
    (
        "bidirectional lstm",
        |g, x| {
            // Columns are steps, and rows together with channels the features of a step.
            let mean = g.reduce(ReduceKind::Mean, x, &[2], false)?;
            let steps = g.transpose(mean, &[2, 0, 1])?;
            let w = g.param("w", DType::F32, [2, 24, 8])?;
            let r = g.param("r", DType::F32, [2, 24, 6])?;
            let spec = Recurrent::new(RecurrentKind::Lstm, Direction::Bidirectional);
            Ok(g.recurrent(spec, steps, &RecurrentLayer::new(w, r), None)?[0])
        },
        1,
        None,
    ),
    (
        "einsum",
        |g, x| {
            let w = g.param("w", DType::F32, [8, 5])?;
            g.einsum("bchw,ck->bhwk", &[x, w])
        },
        1,
        Some(8),
    ),
    (
        "gru",
        |g, x| {
            let mean = g.reduce(ReduceKind::Mean, x, &[3], false)?;
            let steps = g.transpose(mean, &[0, 2, 1])?;
            let w = g.param("w", DType::F32, [1, 18, 8])?;
            let r = g.param("r", DType::F32, [1, 18, 6])?;
            let mut spec = Recurrent::new(RecurrentKind::Gru, Direction::Reverse);
            (spec.batch_first, spec.reset_after) = (true, false);
            let out = g.recurrent(spec, steps, &RecurrentLayer::new(w, r), None)?;
            let last = g.reshape(out[1], &[-1, 1, 1, 6])?;
            let all = g.reshape(out[0], &[0, 0, 1, 6])?;
            g.add(all, last)
        },
        1,
        None,
    ),
    (
        "average pools",
        |g, x| {
            let window = Window { strides: vec![3, 2], pads: vec![(1, 2), (2, 0)], dilations: vec![1, 2] };
            let all = g.avg_pool(x, &[4, 3], window.clone(), true, true)?;
            let inside = g.avg_pool(x, &[4, 3], window, true, false)?;
            g.concat(&[all, inside], 1)
        },
        1,
        Some(8),
    ),
    (
        "spectra",
        |g, x| {
            let lines = g.reduce(ReduceKind::Sum, x, &[1, 2], false)?;
            let frames = Stft { frame_length: 16, frame_step: 5, onesided: true, center: true };
            g.stft(lines, None, frames)
        },
        1,
        Some(8),
    ),
    (
        "order of channels",
        |g, x| {
            let (values, _) = g.top_k(x, 3, 1, true)?;
            let sorted = g.sort(x, 1, false)?;
            g.concat(&[values, sorted], 1)
        },
        1,
        Some(4),
    ),
    (
        "scatter",
        |g, x| {
            let ahead = g.slice(x, 3, 0, 9, 1)?;
            let most = g.cast(ahead, DType::I64)?;
            g.scatter_elements(x, most, ahead, 3, ScatterMode::Add)
        },
        1,
        Some(4),
    ),
];

/// Layers whose kernels read tables that follow from sizes.
const TABLE_LAYERS: [LayerCase; 4] = [
    (
        "transposed convolution with padding",
        |g, x| {
            let w = g.param("w", DType::F32, [8, 3, 4, 5])?;
            let window = Window { strides: vec![3, 2], pads: vec![(1, 0), (2, 1)], dilations: vec![1, 2] };
            g.conv_transpose(x, w, None, window, 2, &[1, 0])
        },
        1,
        None,
    ),
    (
        "convolution of volumes",
        |g, x| {
            let x = g.stack(&[x, x], 1)?;
            conv(g, x, [4, 2, 3, 3, 3], Window::same(3, 1, 1), 1)
        },
        1,
        Some(8),
    ),
    (
        "nearest samples",
        |g, x| {
            let [batch, channels, height, width] = sizes_of(g, x);
            let x = g.resize(x, &[batch, channels, height * 2, width * 2], ResizeMode::Nearest)?;
            g.resize(x, &[batch, channels, width + 3, Dim::from(21)], ResizeMode::Nearest)
        },
        1,
        Some(8),
    ),
    (
        "interpolation",
        |g, x| {
            let [batch, channels, height, width] = sizes_of(g, x);
            let x = g.resize(x, &[batch, channels, height * 2, width * 2 - 1], ResizeMode::Linear)?;
            g.resize(x, &[batch, channels, height, height + width], ResizeMode::Cubic)
        },
        1,
        Some(8),
    ),
];

/// The sizes of an input, named ones as symbols.
fn sizes_of(g: &Graph, x: ValueId) -> [Dim; 4] {
    let value = &g.values()[x.index()];
    let Def::Input { dims, .. } = &value.def else { panic!("no input") };
    std::array::from_fn(|axis| match dims.get(axis).and_then(Option::as_ref) {
        Some(name) => open_symbol(name).unwrap().with_value(value.ty.shape[axis] as i64).unwrap(),
        None => value.ty.shape[axis].into(),
    })
}

fn conv<const RANK: usize>(
    g: &mut Graph,
    x: ValueId,
    filters: [usize; RANK],
    window: Window,
    groups: usize,
) -> Result<ValueId, GraphError> {
    let w = g.param("w", DType::F32, filters)?;
    let b = g.param("b", DType::F32, [filters[0]])?;
    let y = g.conv(x, w, Some(b), window, groups)?;
    g.relu(y)
}

fn graph(layer: Layer, [batch, height, width]: [usize; 3], open: bool) -> Graph {
    let mut g = Graph::new("layer");
    let name = |name: &str| open.then(|| name.to_string());
    let dims = vec![name("batch"), None, name("height"), name("width")];
    let x = g.input_with_dims("x", DType::F32, [batch, 8, height, width], dims).unwrap();
    let y = layer(&mut g, x).unwrap();
    g.output("y", y).unwrap();
    g
}

fn compiled(session: &Session, graph: &Graph) -> Executable {
    let executable = session.compile(graph).unwrap();
    executable.set_params(seeded_params(graph, 3).unwrap()).unwrap();
    executable
}

#[test]
fn a_few_plans_serve_layers_of_all_sizes() {
    few_plans_serve(&LAYERS, 23);
}

#[test]
fn a_few_plans_serve_layers_whose_tables_follow_from_sizes() {
    few_plans_serve(&TABLE_LAYERS, 29);
}

fn few_plans_serve(layers: &[LayerCase], mut random: u64) {
    let mut below = |n: u64| {
        random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        ((random >> 33) % n) as usize
    };
    for (device, runs) in [(Device::Cpu, 25), (Device::Vulkan, 10)] {
        let session = Session::new(device.clone()).unwrap();
        for &(name, layer, on_cpu, on_vulkan) in layers {
            let open = compiled(&session, &graph(layer, [2, 16, 16], true));
            for _ in 0..runs {
                // Sizes that differ from each other, and from those that layers have.
                let sizes = [2 + below(4), 9 + below(20), 30 + below(40)];
                let shape = Shape::new(&[sizes[0], 8, sizes[1], sizes[2]]).unwrap();
                let x = seeded_input("x", shape, 5).unwrap();
                let got = open.run([("x", &x)]).unwrap();
                let want = compiled(&session, &graph(layer, sizes, false)).run([("x", &x)]).unwrap();
                assert_eq!(
                    got["y"].shape().dims(),
                    want["y"].shape().dims(),
                    "{device:?}: {name} of {shape}"
                );
                assert_eq!(got["y"].bytes(), want["y"].bytes(), "{device:?}: {name} of {shape}");
            }
            let most = if device == Device::Cpu { Some(on_cpu) } else { on_vulkan };
            // The size that was declared may be of another class.
            let few = most.is_none_or(|most| open.compiled() <= most + 1);
            assert!(few, "{device:?}: {name}: {} plans, {:#?}", open.compiled(), open.guards());
        }
    }
}

#[test]
fn sizes_that_resizes_and_transposed_convolutions_cannot_take_are_errors_and_others_go_on() {
    let less: Layer = |g, x| {
        let [batch, channels, height, width] = sizes_of(g, x);
        g.resize(x, &[batch, channels, height - 5, width * (1 << 20)], ResizeMode::Linear)
    };
    let cut: Layer = |g, x| {
        let w = g.param("w", DType::F32, [8, 4, 3, 3])?;
        g.conv_transpose(x, w, None, Window::same(2, 2, 4), 1, &[0, 0])
    };
    for device in [Device::Cpu, Device::Vulkan] {
        let session = Session::new(device.clone()).unwrap();
        let run = |open: &Executable, sizes: [usize; 3]| {
            let x = Tensor::zeros(DType::F32, [sizes[0], 8, sizes[1], sizes[2]]).unwrap();
            open.run([("x", &x)]).map(|out| out["y"].shape().dims().to_vec()).map_err(|e| e.to_string())
        };
        let open = compiled(&session, &graph(less, [1, 8, 1], true));
        assert_eq!(run(&open, [1, 7, 1]).unwrap(), [1, 8, 2, 1 << 20], "{device:?}");
        // Fewer than none, none, and more than memory has.
        let problem = run(&open, [1, 3, 1]).unwrap_err();
        for part in ["-2", "height = 3"] {
            assert!(problem.contains(part), "{device:?}: {problem}");
        }
        assert_eq!(run(&open, [1, 5, 1]).unwrap(), [1, 8, 0, 1 << 20], "{device:?}");
        // A size of 0 has no expressions.
        let problem = run(&open, [0, 7, 1]).unwrap_err();
        assert!(problem.contains("batch"), "{device:?}: {problem}");
        let problem = run(&open, [100, 900, 100]).unwrap_err();
        assert!(!problem.is_empty(), "{device:?}");
        assert_eq!(run(&open, [1, 6, 1]).unwrap(), [1, 8, 1, 1 << 20], "{device:?}");

        let open = compiled(&session, &graph(cut, [1, 8, 8], true));
        assert_eq!(run(&open, [2, 9, 7]).unwrap(), [2, 4, 11, 7], "{device:?}");
        let problem = run(&open, [2, 9, 3]).unwrap_err();
        for part in ["conv_transpose", "width = 3"] {
            assert!(problem.contains(part), "{device:?}: {problem}");
        }
        assert!(run(&open, [0, 9, 7]).unwrap().contains(&0), "{device:?}");
        assert_eq!(run(&open, [1, 4, 5]).unwrap(), [1, 4, 1, 3], "{device:?}");
    }
}

#[test]
fn sizes_that_a_layer_cannot_take_are_errors_and_others_go_on() {
    let session = Session::new(Device::Cpu).unwrap();
    let layer: Layer = |g, x| conv(g, x, [4, 8, 3, 3], Window::unit(2), 1);
    let open = compiled(&session, &graph(layer, [1, 8, 8], true));
    let run = |sizes: [usize; 4]| {
        let x = Tensor::zeros(DType::F32, sizes).unwrap();
        open.run([("x", &x)]).map(|out| out["y"].shape().dims().to_vec())
    };
    assert_eq!(run([2, 8, 7, 5]).unwrap(), [2, 4, 5, 3]);
    let problem = run([1, 8, 2, 9]).unwrap_err().to_string();
    assert!(problem.contains("conv") && problem.contains('2'), "{problem}");
    assert_eq!(run([3, 8, 4, 4]).unwrap(), [3, 4, 2, 2]);
    assert_eq!(run([0, 8, 4, 4]).unwrap(), [0, 4, 2, 2]);
}
