//! Rotary position embedding. Cosines and sines are made once per position and pair, then serve every head.

use half::{bf16, f16};
use olivine_ir::DType;
use olivine_ir::op::{HeadLayout, Rope, RopeStyle};

use super::attention::{Acc, Real};
use crate::kernel::kernels;
use crate::operand::{Number, Operand, Target};
use crate::parallel;
use crate::scratch;

kernels! { |op, x, out, call|
    Rope => rope(op, x, out),
}

/// Elements one task writes at least.
const GRAIN: usize = 1 << 14;
/// Angles one task computes at least.
const ANGLES: usize = 1 << 10;

/// Rotates pairs of the leading elements of each head.
pub(crate) fn rope(op: &Rope, x: &[Operand<'_>], out: &mut [Target<'_>]) {
    let Some(target) = out.first_mut() else { return };
    if target.ty.shape.has_zero() {
        return;
    }
    match target.ty.dtype {
        DType::F16 => rotate::<f16>(op, x, target),
        DType::BF16 => rotate::<bf16>(op, x, target),
        DType::F64 => rotate::<f64>(op, x, target),
        _ => rotate::<f32>(op, x, target),
    }
}

/// Cosine and sine of every pair at every position: `[positions, pairs]`.
struct Table<A> {
    cos: Vec<A>,
    sin: Vec<A>,
}

fn table<T: Real>(op: &Rope, x: &[Operand<'_>]) -> Table<T::Acc> {
    if op.tables {
        let wide = |t: &Operand<'_>| {
            let src = t.slice::<T>();
            let mut out = scratch::zeroed::<T::Acc>(src.len());
            T::widen(src, &mut out);
            out
        };
        return Table { cos: wide(&x[1]), sin: wide(&x[2]) };
    }
    let (frequencies, amplitude) = op.frequencies();
    let pairs = frequencies.len();
    let position = |i: usize| match x[1].ty.dtype {
        DType::I32 => f64::from(x[1].slice::<i32>()[i]),
        _ => x[1].slice::<i64>()[i] as f64,
    };
    let entries = x[1].shape().numel() * pairs;
    let (mut cos, mut sin) = (scratch::zeroed::<T::Acc>(entries), scratch::zeroed::<T::Acc>(entries));
    if entries > 0 {
        let rows = ANGLES.div_ceil(pairs);
        let size = rows * pairs;
        parallel::chunks2((&mut cos, size), (&mut sin, size), &|task, cos, sin| {
            for (i, (c, s)) in cos.iter_mut().zip(sin).enumerate() {
                let (sine, cosine) = (position(task * rows + i / pairs) * frequencies[i % pairs]).sin_cos();
                (*c, *s) = (Number::from_f64(cosine * amplitude), Number::from_f64(sine * amplitude));
            }
        });
    }
    Table { cos, sin }
}

fn rotate<T: Real>(op: &Rope, x: &[Operand<'_>], target: &mut Target<'_>) {
    let (_, _, sequence, dim) = op.layout.numbers(&target.ty.shape);
    let pairs = op.rotary / 2;
    let Table { cos, sin } = table::<T>(op, x);
    // Positions without a batch axis serve every batch.
    let batch_step = if cos.len() > sequence * pairs { sequence } else { 0 };
    let (src, strides, offset) = (x[0].elements::<T>(), x[0].strides, x[0].offset);
    let (size1, size2) = (target.ty.shape[1], target.ty.shape[2]);
    let rows = GRAIN.div_ceil(dim);
    parallel::chunks(target.elements::<T>(), rows * dim, &|task, part| {
        let (mut row, mut rotated) = (scratch::zeroed::<T::Acc>(dim), scratch::zeroed::<T::Acc>(op.rotary));
        for (i, out) in part.chunks_mut(dim).enumerate() {
            let index = task * rows + i;
            let (b, i1, i2) = (index / (size1 * size2), index / size2 % size1, index % size2);
            let s = match op.layout {
                HeadLayout::Bshd => i1,
                HeadLayout::Bhsd => i2,
            };
            let at = [b, i1, i2].iter().zip(&strides).map(|(i, s)| *i as isize * s).sum::<isize>();
            let start = (offset as isize + at) as usize;
            let entry = (b * batch_step + s) * pairs;
            let (cos, sin) = (&cos[entry..entry + pairs], &sin[entry..entry + pairs]);
            if strides[3] == 1 || dim == 1 {
                let src = &src[start..start + dim];
                T::widen(&src[..op.rotary], &mut row[..op.rotary]);
                out[op.rotary..].copy_from_slice(&src[op.rotary..]);
            } else {
                let element = |d: usize| src[(start as isize + d as isize * strides[3]) as usize];
                (0..op.rotary).for_each(|d| row[d] = element(d).wide());
                (op.rotary..dim).for_each(|d| out[d] = element(d));
            }
            turn(op.style, &row[..op.rotary], cos, sin, &mut rotated);
            T::narrow(&rotated, &mut out[..op.rotary]);
        }
    });
}

/// Turns each pair `(a, b)` to `(a·cos − b·sin, b·cos + a·sin)`.
fn turn<A: Acc>(style: RopeStyle, x: &[A], cos: &[A], sin: &[A], out: &mut [A]) {
    match style {
        RopeStyle::NeoX => {
            let pairs = cos.len();
            let (a, b) = x.split_at(pairs);
            let (front, back) = out.split_at_mut(pairs);
            for i in 0..pairs {
                front[i] = a[i] * cos[i] - b[i] * sin[i];
                back[i] = b[i] * cos[i] + a[i] * sin[i];
            }
        }
        RopeStyle::GptJ => {
            for (((o, x), c), s) in out.chunks_exact_mut(2).zip(x.chunks_exact(2)).zip(cos).zip(sin) {
                o[0] = x[0] * *c - x[1] * *s;
                o[1] = x[1] * *c + x[0] * *s;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use bytemuck::Pod;
    use olivine_ir::op::RopeScaling;
    use olivine_ir::{Op, Shape, TensorType};

    use super::*;

    fn packed<'a, T: Pod>(dtype: DType, dims: &[usize], data: &'a [T]) -> Operand<'a> {
        Operand::packed(TensorType::new(dtype, Shape::new(dims).unwrap()), bytemuck::cast_slice(data))
    }

    fn spec(layout: HeadLayout, style: RopeStyle, rotary: usize) -> Rope {
        Rope { layout, style, rotary, base: 10_000.0, scaling: RopeScaling::None, tables: false }
    }

    /// Runs a case on a transposed x and compares with loops in f64.
    fn check<T: Real>(
        op: &Rope,
        sizes: [usize; 4],
        x: &[Operand<'_>],
        angle: impl Fn(usize, usize, usize) -> (f64, f64),
        tolerance: f64,
    ) {
        let [b, h, s, d] = sizes;
        let dims = op.layout.dims(b, h, s, d);
        let n = b * h * s * d;
        let data: Vec<T> = (0..n).map(|i| T::from_f64((i * 37 % 101) as f64 / 50.0 - 1.0)).collect();
        let mut first = packed(T::DTYPE, &dims, &data);
        let steps = [1, dims[0], dims[0] * dims[1], dims[0] * dims[1] * dims[2]];
        for backwards in [false, true] {
            if backwards {
                (0..4).for_each(|i| first.strides[i] = steps[i] as isize);
            }
            let all: Vec<Operand<'_>> = [&[first], x].concat();
            let types: Vec<TensorType> = all.iter().map(|o| o.ty).collect();
            let ty = Op::from(op.clone()).infer(&types).unwrap()[0];
            let mut out = vec![T::from_f64(55.0); n];
            rope(op, &all, &mut [Target { ty, bytes: bytemuck::cast_slice_mut(&mut out) }]);
            let get = |at: [usize; 4]| {
                let at: isize = at.iter().zip(first.strides()).map(|(i, s)| *i as isize * s).sum();
                data[at as usize].to_f64()
            };
            for i in 0..n {
                let at = [i / (dims[1] * dims[2] * d), i / (dims[2] * d) % dims[1], i / d % dims[2], i % d];
                let seq = if op.layout == HeadLayout::Bshd { at[1] } else { at[2] };
                let (half, e) = (op.rotary / 2, at[3]);
                let want = if e >= op.rotary {
                    get(at)
                } else {
                    let (pair, other, second) = match op.style {
                        RopeStyle::NeoX => (e % half, (e + half) % op.rotary, e >= half),
                        RopeStyle::GptJ => (e / 2, e ^ 1, e % 2 == 1),
                    };
                    let (c, s) = angle(at[0], seq, pair);
                    let beside = get([at[0], at[1], at[2], other]);
                    if second { get(at) * c + beside * s } else { get(at) * c - beside * s }
                };
                assert!(
                    (out[i].to_f64() - want).abs() <= tolerance,
                    "{op:?} {i}: {} {want}",
                    out[i].to_f64()
                );
            }
        }
    }

    #[test]
    fn both_styles_and_layouts_rotate_by_positions_of_either_rank() {
        for layout in [HeadLayout::Bshd, HeadLayout::Bhsd] {
            for style in [RopeStyle::NeoX, RopeStyle::GptJ] {
                for rotary in [0, 2, 6, 10] {
                    let op = spec(layout, style, rotary);
                    let (frequencies, _) = op.frequencies();
                    let flat = [3i32, 0, -5, 1_000_000];
                    let angle = |_: usize, s: usize, p: usize| {
                        let a = f64::from(flat[s]) * frequencies[p];
                        (a.cos(), a.sin())
                    };
                    let positions = [packed(DType::I32, &[4], &flat)];
                    check::<f32>(&op, [2, 3, 4, 11], &positions, angle, 3e-7);
                    check::<f64>(&op, [2, 4, 4, 10], &positions, angle, 1e-14);
                    check::<f16>(&op, [2, 3, 4, 10], &positions, angle, 2e-3);
                    check::<bf16>(&op, [2, 1, 4, 10], &positions, angle, 1e-2);
                    let each = [7i64, 1, 2, 3, 9, 8, 7, 6];
                    let angle = |b: usize, s: usize, p: usize| {
                        let a = each[b * 4 + s] as f64 * frequencies[p];
                        (a.cos(), a.sin())
                    };
                    check::<f32>(&op, [2, 3, 4, 10], &[packed(DType::I64, &[2, 4], &each)], angle, 3e-7);
                }
            }
        }
    }

    #[test]
    fn tables_replace_positions_and_scaling_reaches_the_amplitude() {
        let mut op = spec(HeadLayout::Bhsd, RopeStyle::NeoX, 4);
        op.scaling = RopeScaling::Yarn { factor: 4.0, original: 64.0, beta_fast: 32.0, beta_slow: 1.0 };
        let (frequencies, amplitude) = op.frequencies();
        let positions = [5i64, 100];
        let angle = |_: usize, s: usize, p: usize| {
            let a = positions[s] as f64 * frequencies[p];
            (a.cos() * amplitude, a.sin() * amplitude)
        };
        check::<f32>(&op, [1, 2, 2, 4], &[packed(DType::I64, &[2], &positions)], angle, 3e-7);
        op.tables = true;
        for batch in [1, 3] {
            let entries = batch * 2 * 2;
            let cos: Vec<f32> = (0..entries).map(|i| i as f32 * 0.1).collect();
            let sin: Vec<f32> = (0..entries).map(|i| 1.0 - i as f32 * 0.2).collect();
            let dims: &[usize] = if batch == 1 { &[2, 2] } else { &[3, 2, 2] };
            let x = [packed(DType::F32, dims, &cos), packed(DType::F32, dims, &sin)];
            let angle = |b: usize, s: usize, p: usize| {
                let i = (b % batch * 2 + s) * 2 + p;
                (f64::from(cos[i]), f64::from(sin[i]))
            };
            check::<f32>(&op, [3, 2, 2, 4], &x, angle, 3e-7);
        }
    }
}
