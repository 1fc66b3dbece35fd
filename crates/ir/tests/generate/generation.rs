//! Random numbers, tokens and quantised tensors.

use olivine_ir::DType;
use olivine_ir::op::{
    DequantizeLinear, Penalties, QConv, QMatMul, QuantizeLinear, RngNormal, RngUniform, Sample,
};
use olivine_ir::{Shape, TensorType};

use super::heavy::window;
use super::{Made, Rng, ty};

pub(crate) const MAKERS: &[fn(&mut Rng) -> Made] =
    &[uniform, normal, sample, penalties, quantize, dequantize, qmatmul, qconv];

fn counter() -> TensorType {
    ty(DType::U32, &[2])
}

fn random_shape(rng: &mut Rng) -> Shape {
    Shape::new(&rng.shape(0, 8)).unwrap_or_default()
}

fn uniform(rng: &mut Rng) -> Made {
    let (dtype, shape, low) = (rng.float(), random_shape(rng), rng.pick(&[-0.0, 1e-40, -7.25]));
    let high = low + rng.pick(&[0.0, 1.0, 1e30]);
    let (seed, stream) = (rng.next(), rng.next() as u32 as usize);
    (RngUniform { dtype, shape, low, high, seed, stream }.into(), vec![counter()])
}

fn normal(rng: &mut Rng) -> Made {
    let (dtype, shape, mean) = (rng.float(), random_shape(rng), rng.pick(&[-0.0, 1e-40, -7.25]));
    let (scale, seed, stream) = (rng.pick(&[0.0, 1.0, -2.0]), rng.next(), rng.below(9));
    (RngNormal { dtype, shape, mean, scale, seed, stream }.into(), vec![counter()])
}

/// A scalar, or one number per row.
fn filter(rng: &mut Rng, dtype: DType, rows: &[usize]) -> TensorType {
    if rng.chance(50) { ty(dtype, &[]) } else { ty(dtype, rows) }
}

fn sample(rng: &mut Rng) -> Made {
    let rows = rng.shape(0, 1);
    let dtype = rng.pick(&[DType::F32, DType::F16, DType::BF16]);
    let mut types = vec![ty(dtype, &[&rows[..], &[rng.within(1, 5)]].concat())];
    for dtype in [DType::F32, DType::I32, DType::F32, DType::F32] {
        types.push(filter(rng, dtype, &rows));
    }
    types.push(counter());
    (Sample { seed: rng.next(), stream: rng.below(9) }.into(), types)
}

fn penalties(rng: &mut Rng) -> Made {
    let rows = rng.shape(0, 1);
    let (dtype, index, v, t) = (rng.float(), rng.index(), rng.within(1, 5), rng.size());
    let mut types = vec![ty(dtype, &[&rows[..], &[v]].concat()), ty(index, &[&rows[..], &[t]].concat())];
    for _ in 0..3 {
        types.push(filter(rng, DType::F32, &rows));
    }
    (Penalties {}.into(), types)
}

/// A tensor's sizes, the scales' over it, the axis and the block.
fn scales(rng: &mut Rng) -> (Vec<usize>, Vec<usize>, usize, usize) {
    let x = rng.shape(1, 8);
    let axis = rng.below(x.len());
    let block = rng.within(1, 5);
    match rng.below(3) {
        0 => (x, Vec::new(), axis, block - 1),
        1 => (x.clone(), vec![x[axis]], axis, 0),
        _ => {
            let mut blocks = x.clone();
            blocks[axis] = x[axis].div_ceil(block);
            (x, blocks, axis, block)
        }
    }
}

fn quantize(rng: &mut Rng) -> Made {
    let (x, scale, axis, block) = scales(rng);
    let real = rng.pick(&[DType::F32, DType::F16, DType::BF16]);
    let dtype = rng.pick(&[DType::I8, DType::U8, DType::I16]);
    let mut types = vec![ty(real, &x), ty(real, &scale)];
    if rng.chance(50) {
        types.push(ty(dtype, &scale));
    }
    (QuantizeLinear { dtype, axis, block }.into(), types)
}

fn dequantize(rng: &mut Rng) -> Made {
    let (x, scale, axis, block) = scales(rng);
    let real = rng.pick(&[DType::F32, DType::F16, DType::BF16]);
    let dtype = rng.pick(&[DType::I8, DType::U8, DType::I16, DType::I32]);
    let mut types = vec![ty(dtype, &x), ty(real, &scale)];
    if rng.chance(50) {
        types.push(ty(dtype, &scale));
    }
    (DequantizeLinear { axis, block }.into(), types)
}

/// Two 8-bit operands with the zero points that are given: of so many lines each.
fn with_zeros(rng: &mut Rng, dims: [&[usize]; 2], lines: [usize; 2]) -> (bool, bool, Vec<TensorType>) {
    let dtypes = [0; 2].map(|_| rng.pick(&[DType::I8, DType::U8]));
    let given = [0; 2].map(|_| rng.chance(50));
    let mut types = vec![ty(dtypes[0], dims[0]), ty(dtypes[1], dims[1])];
    for i in 0..2 {
        let zeros = if lines[i] == usize::MAX || rng.chance(50) { vec![] } else { vec![lines[i]] };
        if given[i] {
            types.push(ty(dtypes[i], &zeros));
        }
    }
    (given[0], given[1], types)
}

fn qmatmul(rng: &mut Rng) -> Made {
    let batch = rng.shape(0, 6);
    let [m, k, n] = [0; 3].map(|_| rng.size());
    let a = [&rng.broadcast_to(&batch)[..], &[m, k]].concat();
    let b = [&rng.broadcast_to(&batch)[..], &[k, n]].concat();
    let (a_zero, b_zero, types) = with_zeros(rng, [&a, &b], [m, n]);
    (QMatMul { a_zero, b_zero }.into(), types)
}

fn qconv(rng: &mut Rng) -> Made {
    let spatial = rng.within(1, 3);
    let (window, kernel, input) = window(rng, spatial);
    let groups = rng.within(1, 3);
    let [n, c, m] = [0; 3].map(|_| rng.size());
    let x = [&[n, c * groups][..], &input].concat();
    let w = [&[m * groups, c][..], &kernel].concat();
    let (x_zero, w_zero, types) = with_zeros(rng, [&x, &w], [usize::MAX, m * groups]);
    (QConv { window, groups, x_zero, w_zero }.into(), types)
}
