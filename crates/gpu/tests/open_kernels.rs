//! Kernel families of GPUs with open sizes, on devices that need not be here: a few plans serve all sizes, and evaluated
//! for any of them a plan is the program that those sizes are lowered to.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a failed expectation is a failed test")]

use olivine_ir::op::{
    CoordinateMode, Direction, GridMode, GridPadding, HeadLayout, NearestMode, Recurrent, RecurrentKind,
    RecurrentLayer, Resize, ResizeMode, Rope, RopeScaling, RopeStyle, ScatterMode, TriPart, Window,
};
use olivine_ir::size::Bindings;
use olivine_ir::{BlockFormat, DType, Dim, Error, Graph, Shape, TensorType, ValueId, open_symbol};
use olivine_program::Program;

mod devices;

use devices::{Plans, difference, h200, lowered, plain_card, software};

/// An input and its sizes.
type NamedShape = (&'static str, Vec<usize>);

/// A graph of one input `x`, the sizes of which may be open, and further inputs.
struct Family {
    name: &'static str,
    build: fn(&mut Graph) -> Result<ValueId, Error>,
    /// Names of open sizes, and from where to where they go.
    sizes: &'static [(&'static str, usize, usize)],
    /// The inputs' shapes for values of the open sizes.
    shapes: fn(&[usize]) -> Vec<NamedShape>,
    /// Plans at most, for 40 random sizes.
    plans: usize,
}

/// An input with some sizes open, which are built with 96.
fn input(g: &mut Graph, name: &str, dtype: DType, sizes: &[&str]) -> Result<ValueId, Error> {
    let number = |size: &&str| size.parse::<usize>().unwrap_or(96);
    let open = |size: &&str| size.parse::<usize>().is_err().then(|| size.to_string());
    let dims: Vec<usize> = sizes.iter().map(number).collect();
    g.input_with_dims(name, dtype, Shape::new(&dims)?, sizes.iter().map(open).collect())
}

/// A named size.
fn open(name: &str) -> Dim {
    open_symbol(name).unwrap().with_value(96).unwrap()
}

/// A resize of images `[n, 8, h, w]`.
fn resized(sizes: [Dim; 4], scales: Option<Vec<f64>>, mode: ResizeMode) -> Resize {
    Resize {
        sizes: sizes.to_vec(),
        scales,
        mode,
        coordinates: CoordinateMode::HalfPixel,
        nearest: NearestMode::RoundPreferFloor,
        cubic: -0.75,
        exclude_outside: false,
        antialias: false,
    }
}

fn packed(g: &mut Graph, name: &str, format: BlockFormat, dims: &[usize]) -> Result<ValueId, Error> {
    g.param_of(name, TensorType::packed(format, dims)?)
}

const FAMILIES: &[Family] = &[
    Family {
        name: "packed matmul",
        build: |g| {
            let x = input(g, "x", DType::F32, &["n", "256"])?;
            let w = packed(g, "w", BlockFormat::Q4_0, &[512, 256])?;
            g.dequant_matmul(x, w)
        },
        sizes: &[("n", 9, 600)],
        shapes: |n| vec![("x", vec![n[0], 256])],
        plans: 6,
    },
    Family {
        name: "int8 matmul",
        build: |g| {
            let x = input(g, "x", DType::U8, &["n", "m", "64"])?;
            let w = g.param("w", DType::I8, [64, 96])?;
            g.qmatmul(x, w, None, None)
        },
        sizes: &[("n", 1, 5), ("m", 1, 300)],
        shapes: |n| vec![("x", vec![n[0], n[1], 64])],
        plans: 6,
    },
    Family {
        name: "matmul of f16 over a cache",
        build: |g| {
            let x = input(g, "x", DType::F16, &["8", "24", "n"])?;
            let values = input(g, "values", DType::F16, &["8", "n", "64"])?;
            g.matmul(x, values)
        },
        sizes: &[("n", 65, 2000)],
        shapes: |n| vec![("x", vec![8, 24, n[0]]), ("values", vec![8, n[0], 64])],
        plans: 32,
    },
    Family {
        name: "large matmul of f16 over an open K",
        build: |g| {
            let x = input(g, "x", DType::F16, &["m", "n"])?;
            let y = input(g, "y", DType::F16, &["1000", "n"])?;
            let y = g.swap_last_axes(y)?;
            g.matmul(x, y)
        },
        sizes: &[("m", 200, 900), ("n", 65, 2000)],
        shapes: |n| vec![("x", vec![n[0], n[1]]), ("y", vec![1000, n[1]])],
        plans: 28,
    },
    Family {
        name: "grouped matmul",
        build: |g| {
            let x = input(g, "x", DType::F32, &["n", "64"])?;
            let ids = input(g, "ids", DType::I32, &["n"])?;
            let w = g.param("w", DType::F32, [8, 64, 48])?;
            g.grouped_matmul(x, w, ids)
        },
        sizes: &[("n", 17, 3000)],
        shapes: |n| vec![("x", vec![n[0], 64]), ("ids", vec![n[0]])],
        plans: 4,
    },
    Family {
        name: "grouped packed matmul",
        build: |g| {
            let x = input(g, "x", DType::F32, &["n", "64"])?;
            let ids = input(g, "ids", DType::I32, &["n"])?;
            let w = packed(g, "w", BlockFormat::Q8_0, &[8, 48, 64])?;
            g.dequant_grouped_matmul(x, w, ids)
        },
        sizes: &[("n", 17, 3000)],
        shapes: |n| vec![("x", vec![n[0], 64]), ("ids", vec![n[0]])],
        plans: 4,
    },
    Family {
        name: "packed rows",
        build: |g| {
            let ids = input(g, "ids", DType::I64, &["n", "m"])?;
            let w = packed(g, "w", BlockFormat::Q8_0, &[100, 64])?;
            g.dequant_gather(w, ids, DType::F32)
        },
        sizes: &[("n", 1, 5), ("m", 1, 300)],
        shapes: |n| vec![("ids", vec![n[0], n[1]])],
        plans: 1,
    },
    Family {
        name: "cache append",
        build: |g| {
            let cache = input(g, "cache", DType::F32, &["n", "c", "2", "16"])?;
            let rows = input(g, "rows", DType::F32, &["n", "m", "2", "16"])?;
            let at = input(g, "at", DType::I64, &["n"])?;
            let positions = input(g, "positions", DType::I64, &["n", "m"])?;
            let spec = Rope {
                layout: HeadLayout::Bshd,
                style: RopeStyle::NeoX,
                rotary: 16,
                base: 10000.0,
                scaling: RopeScaling::None,
                tables: false,
            };
            let rows = g.rope(spec, rows, &[positions])?;
            g.kv_append(HeadLayout::Bshd, cache, rows, at)
        },
        sizes: &[("n", 2, 5), ("m", 2, 200), ("c", 256, 4000)],
        shapes: |n| {
            vec![
                ("cache", vec![n[0], n[2], 2, 16]),
                ("rows", vec![n[0], n[1], 2, 16]),
                ("at", vec![n[0]]),
                ("positions", vec![n[0], n[1]]),
            ]
        },
        plans: 2,
    },
    Family {
        name: "scatters",
        build: |g| {
            let x = input(g, "x", DType::F32, &["n", "m"])?;
            let ids = input(g, "ids", DType::I64, &["n", "k"])?;
            let updates = input(g, "updates", DType::F32, &["n", "k"])?;
            let x = g.scatter_elements(x, ids, updates, 1, ScatterMode::Add)?;
            let tuples = input(g, "tuples", DType::I64, &["k", "2"])?;
            let values = input(g, "values", DType::F32, &["k"])?;
            g.scatter_nd(x, tuples, values, ScatterMode::Replace)
        },
        sizes: &[("n", 2, 9), ("m", 2, 1000), ("k", 1, 40)],
        shapes: |n| {
            vec![
                ("x", vec![n[0], n[1]]),
                ("ids", vec![n[0], n[2]]),
                ("updates", vec![n[0], n[2]]),
                ("tuples", vec![n[2], 2]),
                ("values", vec![n[2]]),
            ]
        },
        plans: 3,
    },
    Family {
        name: "gathers",
        build: |g| {
            let x = input(g, "x", DType::F32, &["n", "m"])?;
            let ids = input(g, "ids", DType::I64, &["n", "k"])?;
            let some = g.gather_elements(x, ids, 1)?;
            let rows = input(g, "rows", DType::I64, &["k"])?;
            let rows = g.gather(some, rows, 1)?;
            let tuples = input(g, "tuples", DType::I64, &["k", "2"])?;
            let cells = g.gather_nd(x, tuples, 0)?;
            g.add(rows, cells)
        },
        sizes: &[("n", 2, 9), ("m", 2, 1000), ("k", 2, 40)],
        shapes: |n| {
            vec![
                ("x", vec![n[0], n[1]]),
                ("ids", vec![n[0], n[2]]),
                ("rows", vec![n[2]]),
                ("tuples", vec![n[2], 2]),
            ]
        },
        plans: 3,
    },
    Family {
        name: "spectra",
        build: |g| {
            let x = input(g, "x", DType::F32, &["n", "m", "512"])?;
            g.rfft(x, 2)
        },
        sizes: &[("n", 1, 5), ("m", 1, 300)],
        shapes: |n| vec![("x", vec![n[0], n[1], 512])],
        plans: 6,
    },
    Family {
        name: "bidirectional lstm",
        build: |g| {
            let x = input(g, "x", DType::F32, &["m", "n", "24"])?;
            let (w, r) = (g.param("w", DType::F32, [2, 64, 24])?, g.param("r", DType::F32, [2, 64, 16])?);
            let spec = Recurrent::new(RecurrentKind::Lstm, Direction::Bidirectional);
            Ok(g.recurrent(spec, x, &RecurrentLayer::new(w, r), None)?[0])
        },
        sizes: &[("n", 2, 4), ("m", 9, 300)],
        shapes: |n| vec![("x", vec![n[1], n[0], 24])],
        plans: 8,
    },
    Family {
        name: "gru that resets before its product",
        build: |g| {
            let x = input(g, "x", DType::F32, &["n", "m", "24"])?;
            let (w, r) = (g.param("w", DType::F32, [1, 48, 24])?, g.param("r", DType::F32, [1, 48, 16])?);
            let mut spec = Recurrent::new(RecurrentKind::Gru, Direction::Forward);
            (spec.batch_first, spec.reset_after) = (true, false);
            let out = g.recurrent(spec, x, &RecurrentLayer::new(w, r), None)?;
            Ok(out[1])
        },
        sizes: &[("n", 2, 4), ("m", 33, 200)],
        shapes: |n| vec![("x", vec![n[0], n[1], 24])],
        plans: 8,
    },
    Family {
        name: "pools",
        build: |g| {
            let x = input(g, "x", DType::F32, &["n", "8", "h", "w"])?;
            let window = Window { strides: vec![2, 1], pads: vec![(1, 1), (0, 2)], dilations: vec![1, 1] };
            let most = g.max_pool(x, &[3, 3], window.clone(), false)?;
            let mean = g.avg_pool(x, &[3, 3], window, false, true)?;
            g.add(most, mean)
        },
        sizes: &[("n", 1, 4), ("h", 5, 90), ("w", 5, 90)],
        shapes: |n| vec![("x", vec![n[0], 8, n[1], n[2]])],
        plans: 4,
    },
    Family {
        name: "large windows",
        build: |g| {
            let x = input(g, "x", DType::F32, &["n", "8", "m"])?;
            let window = Window { strides: vec![4], pads: vec![(9, 20)], dilations: vec![2] };
            let most = g.max_pool(x, &[40], window.clone(), true)?;
            let mean = g.avg_pool(x, &[40], window, true, false)?;
            g.add(most, mean)
        },
        sizes: &[("n", 1, 4), ("m", 100, 900)],
        shapes: |n| vec![("x", vec![n[0], 8, n[1]])],
        plans: 6,
    },
    Family {
        name: "convolution",
        build: |g| {
            let x = input(g, "x", DType::F32, &["n", "8", "h", "w"])?;
            let w = g.param("w", DType::F32, [16, 8, 3, 3])?;
            g.conv(x, w, None, Window::same(2, 1, 1), 1)
        },
        sizes: &[("n", 2, 4), ("h", 5, 90), ("w", 5, 90)],
        shapes: |n| vec![("x", vec![n[0], 8, n[1], n[2]])],
        plans: 10,
    },
    Family {
        name: "nearest samples of twice the size",
        build: |g| {
            let x = input(g, "x", DType::F32, &["n", "8", "h", "w"])?;
            let sizes = [open("n"), Dim::from(8), open("h") * 2, open("w") * 2];
            let op = resized(sizes, Some(vec![1.0, 1.0, 2.0, 2.0]), ResizeMode::Nearest);
            g.add1(
                Resize { coordinates: CoordinateMode::Asymmetric, nearest: NearestMode::Floor, ..op },
                &[x],
            )
        },
        sizes: &[("n", 1, 4), ("h", 5, 90), ("w", 5, 90)],
        shapes: |n| vec![("x", vec![n[0], 8, n[1], n[2]])],
        plans: 2,
    },
    Family {
        name: "nearest samples of other sizes",
        build: |g| {
            let x = input(g, "x", DType::F32, &["n", "8", "h", "w"])?;
            let sizes = [open("n"), Dim::from(8), open("w") + 100, Dim::from(33)];
            g.add1(resized(sizes, None, ResizeMode::Nearest), &[x])
        },
        sizes: &[("n", 1, 4), ("h", 5, 90), ("w", 5, 90)],
        shapes: |n| vec![("x", vec![n[0], 8, n[1], n[2]])],
        plans: 3,
    },
    Family {
        name: "linear samples",
        build: |g| {
            let x = input(g, "x", DType::F32, &["n", "8", "h", "w"])?;
            let sizes = [open("n"), Dim::from(8), open("h") * 3, open("w").div_floor(2)];
            let x = g.add1(resized(sizes, None, ResizeMode::Linear), &[x])?;
            let sizes = [open("n"), Dim::from(8), open("h") + open("w"), open("w").div_floor(2)];
            let op = resized(sizes, None, ResizeMode::Linear);
            g.add1(Resize { coordinates: CoordinateMode::AlignCorners, ..op }, &[x])
        },
        sizes: &[("n", 1, 4), ("h", 95, 190), ("w", 5, 90)],
        shapes: |n| vec![("x", vec![n[0], 8, n[1], n[2]])],
        plans: 10,
    },
    Family {
        name: "cubic samples of f16",
        build: |g| {
            let x = input(g, "x", DType::F16, &["n", "8", "h", "w"])?;
            let sizes = [open("n"), Dim::from(8), open("h") * 2 - 1, open("w") + 1];
            g.add1(resized(sizes, None, ResizeMode::Cubic), &[x])
        },
        sizes: &[("n", 1, 4), ("h", 5, 90), ("w", 5, 90)],
        shapes: |n| vec![("x", vec![n[0], 8, n[1], n[2]])],
        plans: 4,
    },
    Family {
        name: "transposed convolution",
        build: |g| {
            let x = input(g, "x", DType::F32, &["n", "8", "h", "w"])?;
            let w = g.param("w", DType::F32, [8, 4, 2, 2])?;
            g.conv_transpose(x, w, None, Window::same(2, 2, 0), 1, &[0, 0])
        },
        sizes: &[("n", 2, 4), ("h", 5, 90), ("w", 5, 90)],
        shapes: |n| vec![("x", vec![n[0], 8, n[1], n[2]])],
        plans: 10,
    },
    Family {
        name: "transposed convolution with padding",
        build: |g| {
            let x = input(g, "x", DType::F32, &["n", "8", "m"])?;
            let w = g.param("w", DType::F32, [8, 6, 5])?;
            let window = Window { strides: vec![3], pads: vec![(1, 2)], dilations: vec![2] };
            g.conv_transpose(x, w, None, window, 2, &[1])
        },
        sizes: &[("n", 2, 4), ("m", 5, 900)],
        shapes: |n| vec![("x", vec![n[0], 8, n[1]])],
        plans: 16,
    },
    Family {
        name: "convolution of volumes",
        build: |g| {
            let x = input(g, "x", DType::F32, &["n", "4", "d", "h", "w"])?;
            let w = g.param("w", DType::F32, [16, 4, 3, 3, 3])?;
            g.conv(x, w, None, Window::same(3, 1, 1), 1)
        },
        sizes: &[("n", 1, 2), ("d", 5, 20), ("h", 5, 40), ("w", 5, 40)],
        shapes: |n| vec![("x", vec![n[0], 4, n[1], n[2], n[3]])],
        plans: 10,
    },
    Family {
        name: "softmax over rows of open length",
        build: |g| {
            let x = input(g, "x", DType::F32, &["6", "n"])?;
            g.softmax(x, 1)
        },
        sizes: &[("n", 1, 448)],
        shapes: |n| vec![("x", vec![6, n[0]])],
        plans: 24,
    },
    Family {
        name: "triangles, positions and one-hot axes",
        build: |g| {
            let x = input(g, "x", DType::F32, &["n", "m", "k"])?;
            let upper = g.trilu(x, TriPart::Upper, 20)?;
            let both = g.trilu(upper, TriPart::Lower, -3)?;
            let (positions, _) = g.nonzero(both)?;
            let values = input(g, "values", DType::I64, &["2"])?;
            g.one_hot(positions, values, 7, 1)
        },
        sizes: &[("n", 1, 5), ("m", 5, 300), ("k", 5, 300)],
        shapes: |n| vec![("x", vec![n[0], n[1], n[2]]), ("values", vec![2])],
        plans: 4,
    },
    Family {
        name: "samples of a grid",
        build: |g| {
            let x = input(g, "x", DType::F32, &["n", "c", "h", "w"])?;
            let grid = input(g, "grid", DType::F32, &["n", "m", "k", "2"])?;
            g.grid_sample(x, grid, GridMode::Linear, GridPadding::Zeros, false)
        },
        sizes: &[("n", 2, 4), ("c", 5, 40), ("h", 5, 90), ("w", 5, 90), ("m", 5, 90), ("k", 5, 90)],
        shapes: |n| vec![("x", vec![n[0], n[1], n[2], n[3]]), ("grid", vec![n[0], n[4], n[5], 2])],
        plans: 2,
    },
    Family {
        name: "orders of rows",
        build: |g| {
            let x = input(g, "x", DType::F32, &["n", "m", "100"])?;
            let (values, _) = g.top_k(x, 8, 2, true)?;
            let sorted = g.sort(x, 2, false)?;
            let ahead = g.slice(sorted, 2, 0, 8, 1)?;
            g.sub(values, ahead)
        },
        sizes: &[("n", 2, 5), ("m", 2, 300)],
        shapes: |n| vec![("x", vec![n[0], n[1], 100])],
        plans: 1,
    },
];

fn graph(family: &Family) -> Graph {
    let mut g = Graph::new("family");
    let y = (family.build)(&mut g).unwrap_or_else(|e| panic!("{}: {e}", family.name));
    g.output("y", y).unwrap();
    g
}

#[test]
fn a_few_plans_serve_all_sizes_of_a_family_as_fixed_sizes_are_lowered() {
    let mut random = 5u64;
    let mut below = |n: usize| {
        random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (random >> 33) as usize % n
    };
    let mut problems = Vec::new();
    for family in FAMILIES {
        let graph = graph(family);
        for caps in [h200(), plain_card(), software()] {
            let mut plans = Plans::new(&graph, &caps);
            for _ in 0..40 {
                let chosen: Vec<usize> =
                    family.sizes.iter().map(|(_, from, to)| from + below(to - from + 1)).collect();
                let mut values = Bindings::new();
                for ((name, ..), value) in family.sizes.iter().zip(&chosen) {
                    values.bind(open_symbol(name).unwrap(), *value as i64).unwrap();
                }
                let shapes: Vec<(&str, Shape)> = (family.shapes)(&chosen)
                    .into_iter()
                    .map(|(name, dims)| (name, Shape::new(&dims).unwrap()))
                    .collect();
                let open = plans.program(&shapes, &values);
                let fixed = lowered(&graph.specialise(&shapes).unwrap(), &caps);
                // The arena keeps the order of its buffers, which costs little.
                let bytes = |program: &Program| program.buffers.iter().map(|b| b.bytes).sum::<u64>();
                if 100 * bytes(&open) > 115 * bytes(&fixed) {
                    let (open, fixed) = (bytes(&open), bytes(&fixed));
                    problems.push(format!("{} of {chosen:?}: {open} bytes, not {fixed}", family.name));
                }
                if let Some(what) = difference(&open, &fixed) {
                    problems.push(format!("{} of {chosen:?} on {}: {what}", family.name, caps.name));
                    break;
                }
            }
            let count = plans.plans.len();
            println!("{} on {}: {count} plans", family.name, caps.name);
            if count > family.plans {
                let guards = plans.last_guards();
                problems.push(format!("{} on {}: {count} plans, such as\n{guards}", family.name, caps.name));
            }
        }
    }
    assert!(problems.is_empty(), "{}", problems.join("\n\n"));
}
