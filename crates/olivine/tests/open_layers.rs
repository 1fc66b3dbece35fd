//! Convolutions, pools, recurrent layers and transforms of open sizes on the CPU: one plan, with the results of a compile
//! for fixed sizes, bit for bit.
#![forbid(unsafe_code)]
#![allow(clippy::panic, clippy::unwrap_used, reason = "a failed expectation is a failed test")]

use olivine::internals::ExecutableExt;
use olivine::internals::models::{seeded_input, seeded_params};
use olivine::prelude::*;
use olivine_ir::op::{
    Direction, PadMode, PoolKind, Recurrent, RecurrentKind, RecurrentLayer, ReduceKind, Window,
};
use olivine_ir::{Error as GraphError, Shape, ValueId};

/// A layer on top of an image `[batch, 8, height, width]`.
type Layer = fn(&mut Graph, ValueId) -> Result<ValueId, GraphError>;

/// The layers, and the plans that sizes from 9 on need.
const LAYERS: [(&str, Layer, usize); 9] = [
    ("convolution", |g, x| conv(g, x, [16, 8, 3, 3], Window::same(2, 1, 1), 1), 1),
    ("convolution with a stride", |g, x| conv(g, x, [16, 8, 3, 3], Window::same(2, 2, 1), 1), 1),
    ("pointwise convolution", |g, x| conv(g, x, [24, 8, 1, 1], Window::unit(2), 1), 1),
    ("depthwise convolution", |g, x| conv(g, x, [8, 1, 5, 5], Window::same(2, 1, 2), 8), 1),
    (
        "transposed convolution",
        |g, x| {
            let w = g.param("w", DType::F32, [8, 4, 2, 2])?;
            g.conv_transpose(x, w, None, Window::same(2, 2, 0), 1, &[0, 0])
        },
        1,
    ),
    (
        "pools",
        |g, x| {
            let most = g.max_pool(x, &[3, 3], Window::same(2, 2, 1), false)?;
            let mean = g.global_pool(PoolKind::Average, x)?;
            g.add(most, mean)
        },
        1,
    ),
    ("reflected padding", |g, x| g.pad(x, &[(0, 0), (0, 0), (2, 1), (0, 3)], PadMode::Reflect, 0.0), 1),
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
    ),
    (
        "einsum",
        |g, x| {
            let w = g.param("w", DType::F32, [8, 5])?;
            g.einsum("bchw,ck->bhwk", &[x, w])
        },
        1,
    ),
];

fn conv(
    g: &mut Graph,
    x: ValueId,
    filters: [usize; 4],
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
fn one_plan_serves_layers_of_all_sizes() {
    let session = Session::new(Device::Cpu).unwrap();
    let mut random = 23u64;
    let mut below = |n: u64| {
        random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        ((random >> 33) % n) as usize
    };
    for (name, layer, plans) in LAYERS {
        let open = compiled(&session, &graph(layer, [2, 16, 16], true));
        for _ in 0..25 {
            // Sizes that differ from each other, and from those that layers have.
            let sizes = [2 + below(4), 9 + below(20), 30 + below(40)];
            let shape = Shape::new(&[sizes[0], 8, sizes[1], sizes[2]]).unwrap();
            let x = seeded_input("x", shape, 5).unwrap();
            let got = open.run([("x", &x)]).unwrap();
            let want = compiled(&session, &graph(layer, sizes, false)).run([("x", &x)]).unwrap();
            assert_eq!(got["y"].shape().dims(), want["y"].shape().dims(), "{name} of {shape}");
            assert_eq!(got["y"].bytes(), want["y"].bytes(), "{name} of {shape}");
        }
        // The size that was declared may be of another class.
        assert!(open.compiled() <= plans + 1, "{name}: {:#?}", open.guards());
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
