//! Graphs with open sizes: one plan for a class of sizes, with the results of a compile for fixed ones, bit for bit.
#![forbid(unsafe_code)]
#![allow(clippy::panic, clippy::unwrap_used, reason = "a failed expectation is a failed test")]

#[allow(dead_code, reason = "a part is enough here")]
#[path = "../../onnx/tests/wire/mod.rs"]
mod wire;

mod graphs;

use olivine::internals::ExecutableExt;
use olivine::internals::compile::{Options, compile};
use olivine::prelude::*;
use olivine_ir::op::{Attention, HeadLayout, PadMode, ReduceKind};
use olivine_ir::{Error as GraphError, Shape, ValueId};

/// A generator of numbers that tests repeat.
struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) as usize % n.max(1)
    }
}

/// Devices that the tests run on: the CPU, and Vulkan.
fn devices() -> Vec<Device> {
    vec![Device::Cpu, Device::Vulkan]
}

/// The encoder of a transformer over `[batch, sequence, width]`, with sizes open or fixed.
fn encoder(batch: usize, sequence: usize, open: bool) -> Result<Graph, GraphError> {
    let (width, heads) = (48i64, 4i64);
    let mut g = Graph::new("encoder");
    let name = |name: &str| open.then(|| name.to_string());
    let dims = vec![name("batch"), name("sequence")];
    let ids = g.input_with_dims("ids", DType::I64, [batch, sequence], dims)?;
    let table = g.param("table", DType::F32, [50, width as usize])?;
    let mut x = g.gather(table, ids, 0)?;
    for layer in 0..2 {
        let mut param = |name: &str, dims: &[usize]| g.param(&format!("{layer}.{name}"), DType::F32, dims);
        let w = width as usize;
        let [wq, wk, wv, wo] =
            [param("q", &[w, w])?, param("k", &[w, w])?, param("v", &[w, w])?, param("o", &[w, w])?];
        let (up, down) = (param("up", &[w, 4 * w])?, param("down", &[4 * w, w])?);
        let (gamma, beta) = (param("gamma", &[w])?, param("beta", &[w])?);
        let split = |g: &mut Graph, x: ValueId, by: ValueId| -> Result<ValueId, GraphError> {
            let y = g.matmul(x, by)?;
            g.reshape(y, &[0, 0, heads, width / heads])
        };
        let (q, k, v) = (split(&mut g, x, wq)?, split(&mut g, x, wk)?, split(&mut g, x, wv)?);
        let mixed = g.attention(Attention::new(HeadLayout::Bshd), q, k, v, &[])?;
        let mixed = g.reshape(mixed, &[0, 0, width])?;
        let mixed = g.matmul(mixed, wo)?;
        let sum = g.add(x, mixed)?;
        let y = g.layer_norm(sum, gamma, Some(beta), 1e-5)?;
        let hidden = g.matmul(y, up)?;
        let hidden = g.gelu(hidden)?;
        let hidden = g.matmul(hidden, down)?;
        x = g.add(y, hidden)?;
    }
    let pooled = g.reduce(ReduceKind::Mean, x, &[1], false)?;
    g.output("hidden", x)?;
    g.output("pooled", pooled)?;
    Ok(g)
}

fn params(graph: &Graph) -> Vec<(String, Tensor)> {
    olivine::internals::models::seeded_params(graph, 3).unwrap()
}

fn compiled(session: &Session, graph: &Graph) -> Executable {
    let executable = session.compile(graph).unwrap();
    executable.set_params(params(graph)).unwrap();
    executable
}

fn bytes(outputs: &Outputs) -> Vec<(String, Vec<u8>)> {
    outputs.iter().map(|(name, tensor)| (name.to_string(), tensor.bytes().to_vec())).collect()
}

#[test]
fn an_encoder_of_any_batch_and_length_equals_its_fixed_twin_bit_for_bit() {
    for device in devices() {
        let session = Session::new(device.clone()).unwrap();
        let open = compiled(&session, &encoder(2, 5, true).unwrap());
        let mut random = Random(5);
        for _ in 0..30 {
            let (batch, sequence) = (1 + random.below(4), 1 + random.below(40));
            let ids: Vec<i64> = (0..batch * sequence).map(|_| random.below(50) as i64).collect();
            let ids = Tensor::new([batch, sequence], ids).unwrap();
            let fixed = compiled(&session, &encoder(batch, sequence, false).unwrap());
            let (got, want) = (open.run([("ids", &ids)]).unwrap(), fixed.run([("ids", &ids)]).unwrap());
            assert_eq!(bytes(&got), bytes(&want), "{device:?}: batch {batch}, sequence {sequence}");
        }
        if device == Device::Cpu {
            // One for sequences of one position, and one for all others.
            assert!(open.compiled() <= 2, "{:#?}", open.guards());
        }
    }
}

/// One step of a random graph over values whose sizes are products of `n`, `m` and numbers.
fn random_step(g: &mut Graph, x: ValueId, step: usize, random: &mut Random) -> Result<ValueId, GraphError> {
    // Params have sizes that are numbers for all `n` and `m`.
    let shape = g.specialise_symbolic(&[])?.values()[x.index()].ty.shape;
    let rank = shape.rank();
    let last = shape.size(rank.saturating_sub(1)).as_constant().filter(|_| rank > 0);
    let axis = random.below(rank) as isize;
    Ok(match random.below(16) {
        0 => g.gelu(x)?,
        1 => g.add(x, x)?,
        2 if last.is_some() => {
            let bias = g.param(&format!("bias{step}"), DType::F32, [last.unwrap_or(1) as usize])?;
            g.mul(x, bias)?
        }
        3 if last.is_some() && rank > 1 => {
            let columns = 1 + random.below(9);
            let w = g.param(&format!("w{step}"), DType::F32, [last.unwrap_or(1) as usize, columns])?;
            g.matmul(x, w)?
        }
        4 => g.softmax(x, axis)?,
        5 if last.is_some() => {
            let gamma = g.param(&format!("gamma{step}"), DType::F32, [last.unwrap_or(1) as usize])?;
            g.rms_norm(x, gamma, None, 1e-5)?
        }
        6 if rank > 1 => g.swap_last_axes(x)?,
        7 => g.reshape(x, &[-1])?,
        8 if rank > 1 => g.reshape(x, &[0, -1])?,
        9 => g.concat(&[x, x], axis)?,
        10 => g.slice(x, axis, 0, i64::MAX, 2)?,
        11 => g.reduce(ReduceKind::Sum, x, &[axis], true)?,
        12 => {
            let ahead = g.slice(x, axis, 0, 1, 1)?;
            g.sub(x, ahead)?
        }
        13 if rank < 5 => {
            let pads: Vec<(i64, i64)> =
                (0..rank).map(|_| (random.below(2) as i64, random.below(3) as i64)).collect();
            g.pad(x, &pads, PadMode::Constant, 0.5)?
        }
        15 => {
            let ahead = g.slice(x, axis, 0, 1, 1)?;
            let end = g.exp(ahead)?;
            g.slice_scatter(x, end, axis, 0usize)?
        }
        14 if rank > 1 && rank < 4 => {
            let other = g.swap_last_axes(x)?;
            g.matmul(x, other)?
        }
        _ => g.neg(x)?,
    })
}

/// A random graph of `[n, m, 4]` and `[m, 4]`.
fn random_graph(seed: u64) -> Result<Graph, GraphError> {
    let mut random = Random(seed);
    let mut g = Graph::new("random");
    let name = |name: &str| Some(name.to_string());
    let x = g.input_with_dims("x", DType::F32, [2, 3, 4], vec![name("n"), name("m"), None])?;
    let y = g.input_with_dims("y", DType::F32, [3, 4], vec![name("m"), None])?;
    let mut value = g.add(x, y)?;
    for step in 0..1 + random.below(6) {
        value = random_step(&mut g, value, step, &mut random)?;
    }
    g.output("value", value)?;
    Ok(g)
}

/// The graph for certain sizes, which are no names any more.
fn fixed_twin(graph: &Graph, n: usize, m: usize) -> Result<Graph, GraphError> {
    let shapes = [("x", Shape::new(&[n, m, 4])?), ("y", Shape::new(&[m, 4])?)];
    let text = graph.specialise(&shapes)?.to_string();
    text.replace("f32[n=", "f32[").replace("f32[m=", "f32[").replace(", m=", ", ").parse()
}

fn numbers(count: usize, random: &mut Random) -> Vec<f32> {
    (0..count).map(|_| random.below(17) as f32 / 4.0 - 2.0).collect()
}

#[test]
fn random_graphs_with_open_sizes_equal_their_fixed_twins_bit_for_bit() {
    // A software GPU compiles each graph's kernels for seconds: `cargo xtask test --all` tries all of them.
    let on_gpus = if std::env::var_os("OLIVINE_TEST_ALL").is_some() { 2000 } else { 60 };
    for (device, graphs) in devices().into_iter().zip([2000, on_gpus]) {
        let session = Session::new(device.clone()).unwrap();
        let mut random = Random(11);
        for seed in 0..graphs {
            let Ok(graph) = random_graph(seed) else { continue };
            let open = compiled(&session, &graph);
            for _ in 0..3 {
                let (n, m) = (random.below(7), random.below(9));
                let x = Tensor::new([n, m, 4], numbers(n * m * 4, &mut random)).unwrap();
                let y = Tensor::new([m, 4], numbers(m * 4, &mut random)).unwrap();
                let got = open.run([("x", &x), ("y", &y)]);
                // A graph may not fit some sizes: then neither does its twin.
                let Ok(fixed) = fixed_twin(&graph, n, m) else {
                    assert!(got.is_err(), "{device:?}, seed {seed}: n {n}, m {m}");
                    continue;
                };
                let want = compiled(&session, &fixed).run([("x", &x), ("y", &y)]).unwrap();
                let got =
                    got.unwrap_or_else(|e| panic!("{device:?}, seed {seed}: n {n}, m {m}: {e}\n{graph}"));
                let what = format!("{device:?}, seed {seed}: n {n}, m {m}\n{graph}");
                if reads_inputs(&fixed) {
                    assert_eq!(bytes(&got), bytes(&want), "{what}");
                } else {
                    assert_near(&got["value"], &want["value"], &what);
                }
            }
        }
    }
}

/// Whether a run computes anything. An empty input can leave only weights: then a compile for fixed sizes computes the
/// result at load, where matmuls read packed weights and sum in another order.
fn reads_inputs(graph: &Graph) -> bool {
    let compiled = compile(graph, &Options::default()).unwrap();
    compiled.graph.nodes().is_empty() || compiled.at_load.contains(&false)
}

fn assert_near(got: &Tensor, want: &Tensor, what: &str) {
    assert_eq!(got.shape().dims(), want.shape().dims(), "{what}");
    let both = got.as_slice::<f32>().unwrap().iter().zip(want.as_slice::<f32>().unwrap());
    for (got, want) in both {
        assert!(got == want || (got - want).abs() <= 1e-6 * want.abs(), "{got}, not {want}: {what}");
    }
}

#[test]
fn convolutions_and_reductions_of_any_sizes_equal_their_fixed_twins_bit_for_bit() {
    let session = Session::new(Device::Vulkan).unwrap();
    let open = compiled(&session, &graphs::vision(DType::F32, [1, 16, 16], true).unwrap());
    let mut random = Random(3);
    for i in 0..24 {
        let (n, h, w) = (1 + random.below(3) * (i % 2), 1 + random.below(40), 1 + random.below(70));
        let x = Tensor::new([n, 3, h, w], numbers(n * 3 * h * w, &mut random)).unwrap();
        let fixed = compiled(&session, &graphs::vision(DType::F32, [n, h, w], false).unwrap());
        let (got, want) = (open.run([("x", &x)]).unwrap(), fixed.run([("x", &x)]).unwrap());
        assert_eq!(bytes(&got), bytes(&want), "n {n}, h {h}, w {w}");
    }
    // Multiples of 32, as detectors of text take them.
    let before = open.compiled();
    for w in (4..44).map(|i| 32 * i) {
        let x = Tensor::new([1, 3, 64, w], numbers(3 * 64 * w, &mut random)).unwrap();
        open.run([("x", &x)]).unwrap();
    }
    let plans = open.compiled() - before;
    assert!(plans <= 20, "{plans} plans: {:#?}", open.guards());
}

/// What exporters write around attention: sizes out of `Shape`, put together again for `Reshape`, `Expand`, `Range`,
/// `ConstantOfShape` and `Slice`.
fn exported() -> Model {
    use wire::{F32, I64, floats, int_attribute, ints, ints_attribute, node, value};
    let table: Vec<f32> = (0..64 * 8).map(|i| (i % 23) as f32 / 8.0 - 1.0).collect();
    let graph = wire::Graph {
        nodes: vec![
            node("Shape", &["x"], &["shape"]),
            node("Gather", &["shape", "zero"], &["batch"]),
            node("Gather", &["shape", "one"], &["length"]),
            node("Unsqueeze", &["batch", "axis0"], &["batch1"]),
            node("Unsqueeze", &["length", "axis0"], &["length1"]),
            node("Concat", &["batch1", "length1", "heads"], &["split"]).inside(5, &int_attribute("axis", 0)),
            node("Reshape", &["x", "split"], &["by_head"]),
            node("Transpose", &["by_head"], &["heads_first"])
                .inside(5, &ints_attribute("perm", &[0, 2, 1, 3])),
            node("Transpose", &["by_head"], &["turned"]).inside(5, &ints_attribute("perm", &[0, 2, 3, 1])),
            node("MatMul", &["heads_first", "turned"], &["scores"]),
            node("Softmax", &["scores"], &["weights"]).inside(5, &int_attribute("axis", -1)),
            node("MatMul", &["weights", "heads_first"], &["mixed"]),
            node("Transpose", &["mixed"], &["together"]).inside(5, &ints_attribute("perm", &[0, 2, 1, 3])),
            node("Reshape", &["together", "flat"], &["joined"]),
            node("Slice", &["table", "start", "length1", "axis0"], &["positions"]),
            node("Add", &["joined", "positions"], &["placed"]),
            node("Concat", &["batch1", "length1"], &["pair"]).inside(5, &int_attribute("axis", 0)),
            node("ConstantOfShape", &["pair"], &["zeros"]),
            node("Unsqueeze", &["zeros", "axis2"], &["column"]),
            node("Add", &["placed", "column"], &["y"]),
            node("Range", &["zero", "length", "one"], &["numbers"]),
        ],
        initializers: vec![
            ints("zero", &[], &[0]),
            ints("one", &[], &[1]),
            ints("axis0", &[1], &[0]),
            ints("axis2", &[1], &[2]),
            ints("heads", &[2], &[2, 4]),
            ints("flat", &[3], &[0, 0, -1]),
            ints("start", &[1], &[0]),
            floats("table", &[64, 8], &table),
        ],
        inputs: vec![value("x", F32, &["batch", "sequence", "8"])],
        outputs: vec![value("y", F32, &["batch", "sequence", "8"]), value("numbers", I64, &["sequence"])],
        ..wire::Graph::default()
    };
    Model::from_onnx(graph.model()).unwrap()
}

#[test]
fn an_exported_model_is_imported_and_compiled_once_for_all_lengths() {
    for device in devices() {
        let session = Session::new(device.clone()).unwrap();
        let model = exported();
        let open = session.compile(&model).unwrap();
        let mut random = Random(3);
        for _ in 0..20 {
            let (batch, length) = (1 + random.below(3), 2 + random.below(60));
            let x = Tensor::new([batch, length, 8], numbers(batch * length * 8, &mut random)).unwrap();
            let options = CompileOptions::default().dim("batch", batch).dim("sequence", length);
            let fixed = session.compile_with(&model, &options).unwrap();
            let (got, want) = (open.run([("x", &x)]).unwrap(), fixed.run([("x", &x)]).unwrap());
            assert_eq!(bytes(&got), bytes(&want), "{device:?}: batch {batch}, length {length}");
        }
        if device == Device::Cpu {
            assert!(open.compiled() <= 2, "{:#?}", open.guards());
        }
        // The table has 64 positions.
        let x = Tensor::new([1, 65, 8], vec![0f32; 65 * 8]).unwrap();
        assert!(open.run([("x", &x)]).is_err());
        let x = Tensor::new([1, 64, 8], vec![0f32; 64 * 8]).unwrap();
        assert!(open.run([("x", &x)]).is_ok(), "an error leaves it working");
    }
}

/// A part of a param that an open size chooses: it is no weight that is read once, although its own sizes are fixed.
#[test]
fn a_row_of_a_param_that_an_open_size_chooses_is_chosen_anew_for_every_size() {
    for device in [Device::Cpu, Device::Vulkan] {
        let session = Session::new(device.clone()).unwrap();
        let mut g = Graph::new("row");
        let x = g.input_with_dims("x", DType::F32, [3], vec![Some("past".into())]).unwrap();
        let table = g.param("table", DType::F32, [10, 4]).unwrap();
        let past = olivine_ir::open_symbol("past").unwrap().with_value(3).unwrap();
        let row = g.slice(table, 0, past, past + 1, 1).unwrap();
        let row = g.exp(row).unwrap();
        let sum = g.reduce(ReduceKind::Sum, x, &[0], true).unwrap();
        let y = g.add(row, sum).unwrap();
        g.output("y", y).unwrap();
        let executable = session.compile(&g).unwrap();
        let table: Vec<f32> = (0..40).map(|i| i as f32 / 8.0).collect();
        executable.set_param("table", Tensor::new([10, 4], table.clone()).unwrap()).unwrap();
        for past in [3, 5, 2, 9] {
            let x = Tensor::zeros(DType::F32, [past]).unwrap();
            let out = executable.run([("x", &x)]).unwrap();
            let got = out["y"].as_slice::<f32>().unwrap();
            for (got, at) in got.iter().zip(&table[past * 4..past * 4 + 4]) {
                assert!((got - at.exp()).abs() <= 1e-5 * at.exp(), "{device:?}, past {past}: {got}");
            }
        }
    }
}
