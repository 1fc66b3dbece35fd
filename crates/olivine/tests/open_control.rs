//! Branches and loops over values of open sizes: on the CPU one plan serves all sizes, with the results of a compile for
//! fixed ones, bit for bit.
#![forbid(unsafe_code)]
#![allow(clippy::panic, clippy::unwrap_used, reason = "a failed expectation is a failed test")]

use olivine::internals::ExecutableExt as _;
use olivine::internals::models::seeded_params;
use olivine::prelude::*;
use olivine_ir::op::ReduceKind;
use olivine_ir::{Error as GraphError, TensorType, ValueId};

/// A generator of numbers that tests repeat.
struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) as usize % n.max(1)
    }
}

fn ty(g: &Graph, id: ValueId) -> TensorType {
    g.ty(id).unwrap()
}

/// Whether the sum of all of `x` is above 0.
fn positive(g: &mut Graph, x: ValueId) -> Result<ValueId, GraphError> {
    let axes: Vec<isize> = (0..ty(g, x).shape.rank() as isize).collect();
    let sum = g.reduce(ReduceKind::Sum, x, &axes, false)?;
    let zero = g.constant(Tensor::scalar(0.0f32));
    g.gt(sum, zero)
}

/// A step that keeps the shape of `[n, m, 4]`.
fn kept(g: &mut Graph, x: ValueId, random: &mut Random) -> Result<ValueId, GraphError> {
    Ok(match random.below(7) {
        0 => g.gelu(x)?,
        1 => g.softmax(x, 1)?,
        2 => {
            let sum = g.reduce(ReduceKind::Sum, x, &[0, 1], true)?;
            g.sub(x, sum)?
        }
        3 => {
            let turned = g.transpose(x, &[1, 0, 2])?;
            let bent = g.tanh(turned)?;
            g.transpose(bent, &[1, 0, 2])?
        }
        4 => {
            let flat = g.reshape(x, &[-1, 4])?;
            let wave = g.sin(flat)?;
            let most = g.reduce(ReduceKind::Max, wave, &[0], true)?;
            g.add(x, most)?
        }
        5 => {
            let twice = g.concat(&[x, x], 1)?;
            let every = g.slice(twice, 1, 0, i64::MAX, 2)?;
            g.mul(x, every)?
        }
        _ => {
            let other = g.swap_last_axes(x)?;
            let scores = g.matmul(x, other)?;
            let weights = g.softmax(scores, -1)?;
            g.matmul(weights, x)?
        }
    })
}

/// A branch or the body of a loop: a few steps on `x`, which captures `y` as well.
fn steps(g: &mut Graph, x: ValueId, y: ValueId, random: &mut Random) -> Result<ValueId, GraphError> {
    let mut value = g.add(x, y)?;
    for _ in 0..1 + random.below(3) {
        value = kept(g, value, random)?;
    }
    Ok(value)
}

/// A graph of `[n, m, 4]` and `[m, 4]` with a branch, a loop or a scan in it.
fn graph(seed: u64, [n, m]: [usize; 2], open: bool) -> Result<Graph, GraphError> {
    let mut random = Random(seed);
    let random = &mut random;
    let mut g = Graph::new("control");
    let name = |name: &str| open.then(|| name.to_string());
    let x = g.input_with_dims("x", DType::F32, [n, m, 4], vec![name("n"), name("m"), None])?;
    let y = g.input_with_dims("y", DType::F32, [m, 4], vec![name("m"), None])?;
    let value = kept(&mut g, x, random)?;
    let inner = |kinds: &[(&str, TensorType)]| -> Result<(Graph, Vec<ValueId>), GraphError> {
        let mut body = Graph::new("body");
        let inputs =
            kinds.iter().map(|(name, ty)| body.input(name, ty.dtype, ty.shape)).collect::<Result<_, _>>()?;
        Ok((body, inputs))
    };
    let of = [("value", ty(&g, value)), ("y", ty(&g, y))];
    let result = match seed % 3 {
        0 => {
            let mut branch = |g: &Graph| -> Result<Graph, GraphError> {
                let _ = g;
                let (mut body, inputs) = inner(&of)?;
                let out = steps(&mut body, inputs[0], inputs[1], random)?;
                body.output("out", out)?;
                Ok(body)
            };
            let (then, other) = (branch(&g)?, branch(&g)?);
            let condition = positive(&mut g, x)?;
            g.if_(condition, then, other, &[value, y])?[0]
        }
        1 => {
            // As many iterations as the data asks for, at most five, with a row for each.
            let count = TensorType::new(DType::I64, Shape::SCALAR);
            let (mut body, inputs) = inner(&[("iteration", count), of[0], of[1]])?;
            let out = steps(&mut body, inputs[1], inputs[2], random)?;
            let go_on = positive(&mut body, out)?;
            body.output("go_on", go_on)?;
            body.output("out", out)?;
            body.output("row", out)?;
            let (most, begin) = (g.constant(Tensor::scalar(5i64)), g.constant(Tensor::scalar(true)));
            let results = g.loop_(most, begin, &[value], &[y], Some(5), body)?;
            let rows = g.reduce(ReduceKind::Sum, results[1], &[0], false)?;
            g.add(results[0], rows)?
        }
        _ => {
            // For each of the four columns, of which there are too few to be unrolled in a long body.
            let slice = {
                let mut sizes = of[0].1.shape.dims().to_vec();
                sizes.pop();
                TensorType::new(DType::F32, Shape::new(&sizes)?)
            };
            let (mut body, inputs) = inner(&[("state", of[0].1), ("slice", slice), of[1]])?;
            let mut out = inputs[0];
            for _ in 0..12 {
                out = steps(&mut body, out, inputs[2], random)?;
            }
            let column = body.reshape(inputs[1], &[0, 0, 1])?;
            let out = body.add(out, column)?;
            body.output("out", out)?;
            let sliced = g.transpose(value, &[2, 0, 1])?;
            g.scan(&[value], &[sliced], &[y], body)?[0]
        }
    };
    let w = g.param("w", DType::F32, [4, 3])?;
    let last = g.matmul(result, w)?;
    g.output("last", last)?;
    Ok(g)
}

fn compiled(session: &Session, graph: &Graph) -> Executable {
    let executable = session.compile(graph).unwrap();
    executable.set_params(seeded_params(graph, 3).unwrap()).unwrap();
    executable
}

#[test]
fn branches_and_loops_of_open_sizes_equal_their_fixed_twins_bit_for_bit() {
    for (device, graphs) in [(Device::Cpu, 90), (Device::Vulkan, 6)] {
        let session = Session::new(device.clone()).unwrap();
        let mut random = Random(17);
        for seed in 0..graphs {
            let open = compiled(&session, &graph(seed, [5, 11], true).unwrap());
            let runs = if device == Device::Cpu { 6 } else { 2 };
            for _ in 0..runs {
                // Sizes that equal neither each other nor the number of columns: shapes are compared.
                let [n, m] = [5 + random.below(4), 10 + random.below(7)];
                let mut numbers = |count: usize| -> Vec<f32> {
                    (0..count).map(|_| random.below(17) as f32 / 4.0 - 2.0).collect()
                };
                let x = Tensor::new([n, m, 4], numbers(n * m * 4)).unwrap();
                let y = Tensor::new([m, 4], numbers(m * 4)).unwrap();
                let fixed = compiled(&session, &graph(seed, [n, m], false).unwrap());
                let got = open.run([("x", &x), ("y", &y)]).unwrap();
                let want = fixed.run([("x", &x), ("y", &y)]).unwrap();
                assert_eq!(
                    got["last"].bytes(),
                    want["last"].bytes(),
                    "{device:?}, seed {seed}: n {n}, m {m}"
                );
            }
            if device == Device::Cpu {
                let guards = open.guards();
                assert!(open.compiled() <= 2, "seed {seed}: {} plans: {guards:#?}", open.compiled());
            }
        }
    }
}
