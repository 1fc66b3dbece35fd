//! Runs small graphs in f64, one element at a time: only what the fusion tests need.

use std::collections::HashMap;

use olivine_ir::op::{
    Arg, Attention, Binary, HeadLayout, InstrOp, MaskKind, Reduce, ReduceKind, Region, ScalarOp, Unary,
};
use olivine_ir::{Def, Graph, Op, Shape, ValueId};

/// A tensor of doubles.
#[derive(Clone, Debug)]
pub(super) struct Array {
    pub(super) shape: Shape,
    pub(super) data: Vec<f64>,
}

impl Array {
    fn fill(shape: Shape, mut at: impl FnMut(&[usize]) -> f64) -> Array {
        let mut index = vec![0; shape.rank()];
        let mut data = Vec::with_capacity(shape.numel());
        for _ in 0..shape.numel() {
            data.push(at(&index));
            for axis in (0..shape.rank()).rev() {
                index[axis] += 1;
                if index[axis] < shape[axis] {
                    break;
                }
                index[axis] = 0;
            }
        }
        Array { shape, data }
    }

    /// The element at a position of a shape this one broadcasts to.
    fn at(&self, index: &[usize]) -> f64 {
        let lead = index.len() - self.shape.rank();
        let strides = self.shape.strides();
        let axes = (0..self.shape.rank()).filter(|a| self.shape[*a] > 1);
        self.data[axes.map(|a| index[lead + a] * strides[a] as usize).sum::<usize>()]
    }
}

fn scalar(op: ScalarOp, x: &[f64]) -> f64 {
    match op {
        ScalarOp::Unary(u) => match u {
            Unary::Neg => -x[0],
            Unary::Relu => x[0].max(0.0),
            Unary::Exp => x[0].exp(),
            Unary::Tanh => x[0].tanh(),
            Unary::Abs => x[0].abs(),
            Unary::Square => x[0] * x[0],
            Unary::Sqrt => x[0].sqrt(),
            Unary::Sigmoid => 1.0 / (1.0 + (-x[0]).exp()),
            Unary::Silu => x[0] / (1.0 + (-x[0]).exp()),
            // A stand-in for the error function: the tests compare graphs with each other, not with tables.
            Unary::Erf => (x[0] * 1.2).tanh(),
            Unary::Gelu => x[0] * 0.5 * (1.0 + (x[0] * std::f64::consts::FRAC_1_SQRT_2 * 1.2).tanh()),
            Unary::Not => f64::from(u8::from(x[0] == 0.0)),
            other => unimplemented_op(&format!("{other:?}")),
        },
        ScalarOp::Binary(b) => match b {
            Binary::Add => x[0] + x[1],
            Binary::Sub => x[0] - x[1],
            Binary::Mul => x[0] * x[1],
            Binary::Div => x[0] / x[1],
            Binary::Max => x[0].max(x[1]),
            Binary::Pow => x[0].powf(x[1]),
            other => unimplemented_op(&format!("{other:?}")),
        },
        ScalarOp::Where => {
            if x[0] != 0.0 {
                x[1]
            } else {
                x[2]
            }
        }
        ScalarOp::Cast(_) => x[0],
        other => unimplemented_op(&format!("{other:?}")),
    }
}

/// NaN never equals anything, so a test that meets a missing operation fails.
fn unimplemented_op(name: &str) -> f64 {
    eprintln!("the interpreter lacks {name}");
    f64::NAN
}

fn region(r: &Region, inputs: &[f64]) -> Vec<f64> {
    let mut results: Vec<f64> = Vec::new();
    for instr in &r.instrs {
        let args: Vec<f64> = instr.args.iter().map(|a| arg(*a, inputs, &results)).collect();
        results.push(match instr.op {
            InstrOp::Splat(_, x) => x,
            InstrOp::Scalar(op) => scalar(op, &args),
        });
    }
    r.outputs.iter().map(|a| arg(*a, inputs, &results)).collect()
}

fn arg(a: Arg, inputs: &[f64], results: &[f64]) -> f64 {
    match a {
        Arg::Input(i) => inputs[i],
        Arg::Instr(i) => results[i],
    }
}

fn with_region(r: &Option<Region>, main: Array, extra: &[&Array]) -> Array {
    let Some(r) = r else { return main };
    Array::fill(main.shape, |i| {
        let inputs: Vec<f64> = std::iter::once(main.at(i)).chain(extra.iter().map(|e| e.at(i))).collect();
        region(r, &inputs)[0]
    })
}

fn matmul(a: &Array, b: &Array, shape: Shape) -> Array {
    let inner = a.shape[a.shape.rank() - 1];
    let rank = shape.rank();
    Array::fill(shape, |i| {
        let (mut left, mut right) = (i.to_vec(), i.to_vec());
        (0..inner)
            .map(|k| {
                left[rank - 1] = k;
                right[rank - 2] = k;
                a.at(&left) * b.at(&right)
            })
            .sum()
    })
}

fn norm(x: &Array, weights: &[&Array], axis: usize, eps: f64, centred: bool) -> Array {
    let width = x.shape[axis..].iter().product::<usize>();
    let mut out = x.clone();
    for (r, row) in x.data.chunks(width).enumerate() {
        let mean = if centred { row.iter().sum::<f64>() / width as f64 } else { 0.0 };
        let square = row.iter().map(|v| (v - mean) * (v - mean)).sum::<f64>() / width as f64;
        for (c, v) in row.iter().enumerate() {
            let bias = weights.get(1).map_or(0.0, |b| b.data[c]);
            out.data[r * width + c] = (v - mean) / (square + eps).sqrt() * weights[0].data[c] + bias;
        }
    }
    out
}

fn attention(op: &Attention, x: &[&Array], shape: Shape) -> Array {
    let [q, k, v] = [x[0], x[1], x[2]];
    let (_, heads, _, dim) = op.layout.numbers(&q.shape);
    let (_, kv_heads, keys, _) = op.layout.numbers(&k.shape);
    let position = |b: usize, h: usize, s: usize, d: usize| match op.layout {
        HeadLayout::Bshd => [b, s, h, d],
        HeadLayout::Bhsd => [b, h, s, d],
    };
    Array::fill(shape, |i| {
        let (b, h, s, d) = match op.layout {
            HeadLayout::Bshd => (i[0], i[2], i[1], i[3]),
            HeadLayout::Bhsd => (i[0], i[1], i[2], i[3]),
        };
        let kv = h / (heads / kv_heads);
        let score = |key: usize| {
            let dot: f64 =
                (0..dim).map(|c| q.at(&position(b, h, s, c)) * k.at(&position(b, kv, key, c))).sum();
            let mut score = dot * op.scale_for(dim);
            if let Some(cap) = op.softcap {
                score = cap * (score / cap).tanh();
            }
            match op.mask {
                MaskKind::None => score,
                MaskKind::Bias => score + x[3].at(&[b, h, s, key]),
                MaskKind::Keep if x[3].at(&[b, h, s, key]) != 0.0 => score,
                MaskKind::Keep => f64::NEG_INFINITY,
            }
        };
        let scores: Vec<f64> = (0..keys).map(score).collect();
        let top = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let weights: Vec<f64> = scores.iter().map(|s| (s - top).exp()).collect();
        let sum: f64 = weights.iter().sum();
        (0..keys).map(|key| weights[key] / sum * v.at(&position(b, kv, key, d))).sum()
    })
}

fn node(op: &Op, x: &[&Array], shapes: &[Shape]) -> Vec<Array> {
    let shape = shapes[0];
    let one = |a: Array| vec![a];
    match op {
        Op::ScalarOp(op) => {
            one(Array::fill(shape, |i| scalar(*op, &x.iter().map(|a| a.at(i)).collect::<Vec<_>>())))
        }
        Op::Fused(f) => (0..shapes.len())
            .map(|o| {
                Array::fill(shape, |i| region(&f.region, &x.iter().map(|a| a.at(i)).collect::<Vec<_>>())[o])
            })
            .collect(),
        Op::MatMul(m) => one(with_region(&m.epilogue, matmul(x[0], x[1], shape), &x[2..])),
        Op::LayerNorm(n) => {
            let own = 2 + usize::from(n.bias);
            let input = with_region(&n.prologue, x[0].clone(), &x[own..]);
            let mut out = one(norm(&input, &x[1..own], n.axis, n.eps, true));
            out.extend(n.emit_input.then_some(input));
            out
        }
        Op::RmsNorm(n) => {
            let own = 2 + usize::from(n.bias);
            let input = with_region(&n.prologue, x[0].clone(), &x[own..]);
            let mut out = one(norm(&input, &x[1..own], n.axis, n.eps, false));
            out.extend(n.emit_input.then_some(input));
            out
        }
        Op::Attention(a) => one(attention(a, x, shape)),
        Op::Softmax(s) => one(Array::fill(shape, |i| {
            let mut j = i.to_vec();
            let row: Vec<f64> = (0..shape[s.axis])
                .map(|k| {
                    j[s.axis] = k;
                    x[0].at(&j)
                })
                .collect();
            let top = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            (x[0].at(i) - top).exp() / row.iter().map(|v| (v - top).exp()).sum::<f64>()
        })),
        Op::Reduce(Reduce { kind, axes, keepdims: true }) => one(Array::fill(shape, |i| {
            let block: Vec<usize> = axes.iter().map(|a| x[0].shape[*a]).collect();
            let all = Array::fill(Shape::new(&block).unwrap_or_default(), |at| {
                let mut j = i.to_vec();
                axes.iter().zip(at).for_each(|(a, p)| j[*a] = *p);
                x[0].at(&j)
            });
            let sum: f64 = all.data.iter().sum();
            if *kind == ReduceKind::Mean { sum / all.data.len() as f64 } else { sum }
        })),
        Op::Reshape(_) => one(Array { shape, data: x[0].data.clone() }),
        Op::Expand(_) => one(Array::fill(shape, |i| x[0].at(i))),
        Op::Transpose(t) => one(Array::fill(shape, |i| {
            let mut j = i.to_vec();
            t.perm.iter().zip(i).for_each(|(axis, p)| j[*axis] = *p);
            x[0].at(&j)
        })),
        Op::Slice(s) => {
            let ranges = s.ranges(&x[0].shape).unwrap_or_default();
            one(Array::fill(shape, |i| {
                let j: Vec<usize> = i
                    .iter()
                    .zip(&ranges)
                    .map(|(p, (start, step, _))| (start.as_constant().unwrap() + *p as i64 * step) as usize)
                    .collect();
                x[0].at(&j)
            }))
        }
        Op::Concat(c) => one(Array::fill(shape, |i| {
            let mut j = i.to_vec();
            for part in x {
                if j[c.axis] < part.shape[c.axis] {
                    return part.at(&j);
                }
                j[c.axis] -= part.shape[c.axis];
            }
            f64::NAN
        })),
        other => {
            unimplemented_op(other.name());
            shapes.iter().map(|s| Array::fill(*s, |_| f64::NAN)).collect()
        }
    }
}

/// The graph's outputs by name; inputs and params get numbers that depend only on their names.
pub(super) fn run(graph: &Graph) -> Vec<(String, Array)> {
    let mut values: HashMap<ValueId, Array> = HashMap::new();
    for id in graph.ids() {
        let value = &graph.values()[id.index()];
        let array = match &value.def {
            Def::Input { name, .. } | Def::Param { name } => seeded(name, value.ty.shape, value.ty.dtype),
            Def::Const(t) => Array { shape: *t.shape(), data: t.to_f64() },
            Def::Node { .. } => continue,
        };
        values.insert(id, array);
    }
    for n in graph.nodes() {
        let inputs: Vec<&Array> = n.inputs.iter().filter_map(|id| values.get(id)).collect();
        let shapes: Vec<Shape> = n.outputs.iter().map(|id| graph.values()[id.index()].ty.shape).collect();
        let results = node(&n.op, &inputs, &shapes);
        values.extend(n.outputs.iter().copied().zip(results));
    }
    graph.outputs().iter().filter_map(|o| Some((o.name.clone(), values.get(&o.value)?.clone()))).collect()
}

fn seeded(name: &str, shape: Shape, dtype: olivine_ir::DType) -> Array {
    let mut state =
        name.bytes().fold(0x1234_5678_9abc_def1u64, |h, b| (h ^ u64::from(b)).wrapping_mul(0x100_0000_01b3));
    let mut next = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    // Names that differ in one letter begin alike.
    for _ in 0..16 {
        next();
    }
    Array::fill(shape, |_| {
        let x = (next() >> 40) as f64 / f64::from(1 << 24) * 2.0 - 1.0;
        if dtype == olivine_ir::DType::Bool { f64::from(u8::from(x > -0.4)) } else { x }
    })
}

/// The largest difference between two graphs' outputs, relative to 1 + |value|; infinite if they are not comparable.
pub(super) fn difference(a: &Graph, b: &Graph) -> f64 {
    let (a, b) = (run(a), run(b));
    if a.len() != b.len() || a.is_empty() {
        return f64::INFINITY;
    }
    let mut worst: f64 = 0.0;
    for ((name_a, x), (name_b, y)) in a.iter().zip(&b) {
        if name_a != name_b || x.shape != y.shape {
            return f64::INFINITY;
        }
        for (p, q) in x.data.iter().zip(&y.data) {
            let d = (p - q).abs() / (1.0 + p.abs());
            worst = if d.is_nan() { f64::INFINITY } else { worst.max(d) };
        }
    }
    worst
}
