//! Whole transformer layers: how few nodes are left, and that they compute the same.

use olivine_ir::op::{Binary, HeadLayout, ReduceKind, Rope, RopeScaling, RopeStyle};
use olivine_ir::{DType, Error, Graph, ValueId};

use super::interpreter::difference;
use super::{Outcome, fuse, kernels};

const F32: DType = DType::F32;

struct Sizes {
    batch: usize,
    sequence: usize,
    heads: usize,
    dim: usize,
}

impl Sizes {
    fn width(&self) -> usize {
        self.heads * self.dim
    }
}

fn linear(g: &mut Graph, x: ValueId, name: &str, from: usize, to: usize) -> Result<ValueId, Error> {
    let w = g.param(&format!("{name}.w"), F32, [from, to])?;
    let b = g.param(&format!("{name}.b"), F32, [to])?;
    let y = g.matmul(x, w)?;
    g.add(y, b)
}

fn heads(g: &mut Graph, x: ValueId, s: &Sizes) -> Result<ValueId, Error> {
    let dims = [s.batch, s.sequence, s.heads, s.dim].map(|d| d as i64);
    let x = g.reshape(x, &dims)?;
    g.transpose(x, &[0, 2, 1, 3])
}

fn spelled_layer_norm(g: &mut Graph, x: ValueId, name: &str, width: usize) -> Result<ValueId, Error> {
    let gamma = g.param(&format!("{name}.g"), F32, [width])?;
    let beta = g.param(&format!("{name}.b"), F32, [width])?;
    let mean = g.reduce(ReduceKind::Mean, x, &[-1], true)?;
    let d = g.sub(x, mean)?;
    let sq = g.binary_scalar(Binary::Pow, d, 2.0)?;
    let var = g.reduce(ReduceKind::Mean, sq, &[-1], true)?;
    let var = g.binary_scalar(Binary::Add, var, 1e-5)?;
    let sd = g.sqrt(var)?;
    let n = g.div(d, sd)?;
    let n = g.mul(n, gamma)?;
    g.add(n, beta)
}

fn bert_layer(g: &mut Graph, x: ValueId, mask: ValueId, l: usize, s: &Sizes) -> Result<ValueId, Error> {
    let width = s.width();
    let q = linear(g, x, &format!("{l}.q"), width, width)?;
    let k = linear(g, x, &format!("{l}.k"), width, width)?;
    let v = linear(g, x, &format!("{l}.v"), width, width)?;
    let (q, k, v) = (heads(g, q, s)?, heads(g, k, s)?, heads(g, v, s)?);
    let kt = g.transpose(k, &[0, 1, 3, 2])?;
    let scores = g.matmul(q, kt)?;
    let scores = g.binary_scalar(Binary::Div, scores, (s.dim as f64).sqrt())?;
    let scores = g.add(scores, mask)?;
    let weights = g.softmax(scores, -1)?;
    let y = g.matmul(weights, v)?;
    let y = g.transpose(y, &[0, 2, 1, 3])?;
    let y = g.reshape(y, &[s.batch as i64, s.sequence as i64, width as i64])?;
    let y = linear(g, y, &format!("{l}.out"), width, width)?;
    let x = g.add(y, x)?;
    let x = spelled_layer_norm(g, x, &format!("{l}.ln1"), width)?;
    let h = linear(g, x, &format!("{l}.up"), width, 4 * width)?;
    let e = g.binary_scalar(Binary::Div, h, std::f64::consts::SQRT_2)?;
    let e = g.erf(e)?;
    let e = g.binary_scalar(Binary::Add, e, 1.0)?;
    let h = g.mul(h, e)?;
    let h = g.binary_scalar(Binary::Mul, h, 0.5)?;
    let y = linear(g, h, &format!("{l}.down"), 4 * width, width)?;
    let x = g.add(y, x)?;
    spelled_layer_norm(g, x, &format!("{l}.ln2"), width)
}

fn bert(layers: usize, s: &Sizes) -> Result<Graph, Error> {
    let mut g = Graph::new("bert");
    let mut x = g.input("x", F32, [s.batch, s.sequence, s.width()])?;
    let mask = g.input("mask", F32, [s.batch, 1, 1, s.sequence])?;
    for l in 0..layers {
        x = bert_layer(&mut g, x, mask, l, s)?;
    }
    g.output("y", x)?;
    Ok(g)
}

const SMALL: Sizes = Sizes { batch: 2, sequence: 5, heads: 2, dim: 4 };

#[test]
fn a_bert_layer_becomes_seven_kernels() -> Outcome {
    let g = bert(1, &SMALL)?;
    let fused = fuse(&g)?;
    let expected = ["matmul", "attention", "matmul", "layer_norm", "matmul", "matmul", "layer_norm"];
    assert_eq!(kernels(&fused), expected, "{fused}");
    assert!(difference(&g, &fused) < 1e-6, "differ by {}", difference(&g, &fused));
    Ok(())
}

#[test]
fn the_attention_of_a_bert_layer_needs_no_transposes_around_it() -> Outcome {
    let fused = fuse(&bert(1, &SMALL)?)?;
    let names: Vec<&str> = fused.nodes().iter().map(|n| n.op.name()).collect();
    assert!(!names.contains(&"transpose"), "{names:?}");
    Ok(())
}

#[test]
fn twelve_bert_layers_fuse_quickly() -> Outcome {
    let g = bert(12, &Sizes { batch: 1, sequence: 128, heads: 12, dim: 64 })?;
    let begin = std::time::Instant::now();
    let fused = fuse(&g)?;
    let elapsed = begin.elapsed();
    println!("{} nodes fused to {} in {elapsed:?}", g.nodes().len(), fused.nodes().len());
    assert_eq!(kernels(&fused).len(), 12 * 7);
    // A few milliseconds; the bound leaves room for a busy machine.
    assert!(elapsed.as_millis() < 200, "{elapsed:?}");
    Ok(())
}

fn rms(g: &mut Graph, x: ValueId, name: &str, width: usize) -> Result<ValueId, Error> {
    let gamma = g.param(name, F32, [width])?;
    g.rms_norm(x, gamma, None, 1e-5)
}

fn project(g: &mut Graph, x: ValueId, name: &str, from: usize, to: usize) -> Result<ValueId, Error> {
    let w = g.param(name, F32, [from, to])?;
    g.matmul(x, w)
}

/// Repeats kv heads as `repeat_kv` of the common exporters does.
fn repeat_kv(g: &mut Graph, x: ValueId, kv: usize, s: &Sizes) -> Result<ValueId, Error> {
    let (b, n, d) = (s.batch, s.sequence, s.dim);
    let x = g.reshape(x, &[b as i64, kv as i64, 1, n as i64, d as i64])?;
    let x = g.expand(x, [b, kv, s.heads / kv, n, d])?;
    g.reshape(x, &[b as i64, s.heads as i64, n as i64, d as i64])
}

fn llama_layer(rope: bool, s: &Sizes) -> Result<Graph, Error> {
    let mut g = Graph::new("llama");
    let (width, kv) = (s.width(), s.heads / 2);
    let x = g.input("x", F32, [s.batch, s.sequence, width])?;
    let positions = g.input("positions", DType::I64, [s.sequence])?;
    let mask = g.input("mask", DType::Bool, [1, 1, s.sequence, s.sequence])?;
    let n = rms(&mut g, x, "norm1", width)?;
    let q = project(&mut g, n, "q", width, width)?;
    let k = project(&mut g, n, "k", width, kv * s.dim)?;
    let v = project(&mut g, n, "v", width, kv * s.dim)?;
    let q = heads(&mut g, q, s)?;
    let narrow = Sizes { heads: kv, ..*s };
    let (k, v) = (heads(&mut g, k, &narrow)?, heads(&mut g, v, &narrow)?);
    let spec = Rope {
        layout: HeadLayout::Bhsd,
        style: RopeStyle::NeoX,
        rotary: s.dim,
        base: 1e4,
        scaling: RopeScaling::None,
        tables: false,
    };
    let (q, k) =
        if rope { (g.rope(spec.clone(), q, &[positions])?, g.rope(spec, k, &[positions])?) } else { (q, k) };
    let (k, v) = (repeat_kv(&mut g, k, kv, s)?, repeat_kv(&mut g, v, kv, s)?);
    let kt = g.swap_last_axes(k)?;
    let scores = g.matmul(q, kt)?;
    let scores = g.binary_scalar(Binary::Mul, scores, (s.dim as f64).powf(-0.5))?;
    let low = g.constant(olivine_ir::Tensor::scalar(-1e9f32));
    let scores = g.select(mask, scores, low)?;
    let weights = g.softmax(scores, -1)?;
    let y = g.matmul(weights, v)?;
    let y = g.transpose(y, &[0, 2, 1, 3])?;
    let y = g.reshape(y, &[s.batch as i64, s.sequence as i64, width as i64])?;
    let y = project(&mut g, y, "o", width, width)?;
    let x = g.add(x, y)?;
    let n = rms(&mut g, x, "norm2", width)?;
    let gate = project(&mut g, n, "gate", width, 3 * width)?;
    let sigmoid = g.sigmoid(gate)?;
    let gate = g.mul(gate, sigmoid)?;
    let up = project(&mut g, n, "up", width, 3 * width)?;
    let h = g.mul(gate, up)?;
    let y = project(&mut g, h, "down", 3 * width, width)?;
    let x = g.add(x, y)?;
    g.output("y", x)?;
    Ok(g)
}

#[test]
fn a_llama_layer_keeps_one_kernel_per_step() -> Outcome {
    let s = Sizes { batch: 1, sequence: 6, heads: 4, dim: 4 };
    let fused = fuse(&llama_layer(true, &s)?)?;
    let expected = [
        "rms_norm",
        "matmul",
        "rope",
        "rope",
        "attention",
        "matmul",
        "rms_norm",
        "matmul",
        "fused",
        "matmul",
    ];
    assert_eq!(kernels(&fused), expected, "{fused}");
    let g = llama_layer(false, &s)?;
    let fused = fuse(&g)?;
    assert!(difference(&g, &fused) < 1e-6, "differ by {}", difference(&g, &fused));
    Ok(())
}

#[test]
fn grouped_queries_read_the_kv_heads_as_they_are() -> Outcome {
    let s = Sizes { batch: 1, sequence: 6, heads: 4, dim: 4 };
    let fused = fuse(&llama_layer(true, &s)?)?;
    assert!(!fused.nodes().iter().any(|n| n.op.name() == "expand"), "{fused}");
    Ok(())
}
