//! What memory speed bounds: row kernels, reductions and transposes over every class of shapes.
//!
//! Names are an operation, a dtype and sizes; an axis other than the last stands behind them.

use olivine::ir::op::ReduceKind;
use olivine::ir::{DType, Error, Graph, ValueId};

use super::{Measurement, Unit, device};
use crate::answer::Failure;

/// An operation along one axis.
#[derive(Clone, Copy)]
enum Row {
    Softmax,
    LayerNorm,
    RmsNorm,
    Sum,
    Max,
    Argmax,
}

impl Row {
    fn name(self) -> &'static str {
        match self {
            Row::Softmax => "softmax",
            Row::LayerNorm => "layer_norm",
            Row::RmsNorm => "rms_norm",
            Row::Sum => "sum",
            Row::Max => "max",
            Row::Argmax => "argmax",
        }
    }

    /// Bytes beside those of the input: what is written, where so many results are left of so many elements, and
    /// weights.
    fn further(self, dtype: DType, elements: usize, results: usize) -> usize {
        let row = elements / results;
        match self {
            Row::Softmax => elements * dtype.size(),
            Row::LayerNorm => (elements + 2 * row) * dtype.size(),
            Row::RmsNorm => (elements + row) * dtype.size(),
            Row::Sum | Row::Max => results * dtype.size(),
            Row::Argmax => results * DType::I64.size(),
        }
    }

    fn add(self, g: &mut Graph, x: ValueId, axis: isize) -> Result<ValueId, Error> {
        let ty = g.ty(x)?;
        let weight = |g: &mut Graph, name: &str| g.param(name, ty.dtype, [ty.shape[ty.shape.rank() - 1]]);
        match self {
            Row::Softmax => g.softmax(x, axis),
            Row::LayerNorm => {
                let (gamma, beta) = (weight(g, "n.gamma")?, weight(g, "n.beta")?);
                g.layer_norm(x, gamma, Some(beta), 1e-5)
            }
            Row::RmsNorm => {
                let gamma = weight(g, "n.gamma")?;
                g.rms_norm(x, gamma, None, 1e-5)
            }
            Row::Sum => g.reduce(ReduceKind::Sum, x, &[axis], false),
            Row::Max => g.reduce(ReduceKind::Max, x, &[axis], false),
            Row::Argmax => g.argmax(x, axis, false),
        }
    }
}

/// Rows of every class: one, few and many, from millions of elements down to three; lengths that vectors divide and
/// others.
const ROWS: [[usize; 2]; 9] = [
    [1, 16 << 20],
    [8, 2 << 20],
    [256, 64 << 10],
    [4096, 4096],
    [16384, 1001],
    [4096, 4097],
    [256 << 10, 64],
    [1 << 20, 16],
    [4 << 20, 3],
];

/// As few of them as have every kernel.
const QUICK_ROWS: [[usize; 2]; 3] = [[1, 100_000], [50, 33], [1000, 3]];

/// Softmax, norms and reductions along rows, along columns and in the middle.
pub(super) fn rows(quick: bool) -> Result<Vec<Measurement>, Failure> {
    use Row::*;
    let shapes: &[[usize; 2]] = if quick { &QUICK_ROWS } else { &ROWS };
    let mut list = Vec::new();
    for shape in shapes {
        for op in [Softmax, LayerNorm, Sum, Argmax] {
            list.push(along(op, DType::F32, shape, 1)?);
        }
        for op in [Softmax, LayerNorm, Sum] {
            list.push(along(op, DType::F16, shape, 1)?);
        }
    }
    let square = if quick { [64, 64] } else { [4096, 4096] };
    for (op, dtype) in [
        (RmsNorm, DType::F32),
        (RmsNorm, DType::F16),
        (Max, DType::F32),
        (Max, DType::F16),
        (Softmax, DType::BF16),
        (Sum, DType::BF16),
    ] {
        list.push(along(op, dtype, &square, 1)?);
    }
    let columns: [[usize; 2]; 4] = if quick {
        [[64, 64], [5000, 3], [5, 1000], [50, 33]]
    } else {
        [[4096, 4096], [4 << 20, 3], [16, 1 << 20], [16384, 1001]]
    };
    for shape in columns {
        list.push(along(Sum, DType::F32, &shape, 0)?);
    }
    list.push(along(Sum, DType::F16, &square, 0)?);
    list.push(along(Softmax, DType::F32, &square, 0)?);
    let middle = if quick { [3, 40, 20] } else { [64, 1024, 256] };
    for op in [Softmax, Sum, Max, Argmax] {
        list.push(along(op, DType::F32, &middle, 1)?);
    }
    for op in [Softmax, Sum] {
        list.push(along(op, DType::F16, &middle, 1)?);
    }
    Ok(list)
}

fn along(op: Row, dtype: DType, shape: &[usize], axis: usize) -> Result<Measurement, Failure> {
    let elements: usize = shape.iter().product();
    let bytes = elements * dtype.size() + op.further(dtype, elements, elements / shape[axis]);
    let place = if axis + 1 == shape.len() { String::new() } else { format!(" axis {axis}") };
    let name = format!("{} {dtype} {}{place}", op.name(), sizes(shape));
    device(name, Unit::Bytes(bytes as f64), |g| {
        let x = g.input("x", dtype, shape)?;
        op.add(g, x, axis as isize)
    })
}

/// Transposes: of matrices, of batches, of heads and of channels.
pub(super) fn transposes(quick: bool) -> Result<Vec<Measurement>, Failure> {
    let full: [(DType, &[usize], &[usize]); 12] = [
        (DType::F32, &[4095, 4097], &[1, 0]),
        (DType::F32, &[4 << 20, 3], &[1, 0]),
        (DType::F32, &[3, 4 << 20], &[1, 0]),
        (DType::F32, &[64, 512, 512], &[0, 2, 1]),
        (DType::F32, &[8, 512, 32, 128], &[0, 2, 1, 3]),
        (DType::F32, &[32, 56, 56, 160], &[0, 3, 1, 2]),
        (DType::F16, &[4096, 4096], &[1, 0]),
        (DType::F16, &[4095, 4097], &[1, 0]),
        (DType::F16, &[64, 512, 512], &[0, 2, 1]),
        (DType::F16, &[8, 512, 32, 128], &[0, 2, 1, 3]),
        (DType::U8, &[8192, 8192], &[1, 0]),
        (DType::U8, &[32, 3, 512, 512], &[0, 2, 3, 1]),
    ];
    let few: [(DType, &[usize], &[usize]); 3] = [
        (DType::F32, &[65, 33], &[1, 0]),
        (DType::F16, &[2, 64, 32], &[0, 2, 1]),
        (DType::U8, &[2, 3, 8, 8], &[0, 2, 3, 1]),
    ];
    let cases = if quick { few.as_slice() } else { full.as_slice() };
    (cases.iter())
        .map(|(dtype, shape, order)| {
            let bytes = 2 * shape.iter().product::<usize>() * dtype.size();
            let order_name: String = order.iter().map(usize::to_string).collect();
            let name = format!("transpose {dtype} {} to {order_name}", sizes(shape));
            device(name, Unit::Bytes(bytes as f64), |g| {
                let x = g.input("x", *dtype, *shape)?;
                g.transpose(x, order)
            })
        })
        .collect()
}

fn sizes(shape: &[usize]) -> String {
    shape.iter().map(usize::to_string).collect::<Vec<_>>().join("x")
}
