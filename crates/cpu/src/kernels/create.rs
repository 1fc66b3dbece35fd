//! Tensors made from a rule, and the positions of what is not zero.

use bytemuck::Pod;
use olivine_ir::DType;
use olivine_ir::op::{NonZero, OneHot, Range, TriPart, Trilu};

use super::movement::with_size;
use crate::kernel::kernels;
use crate::operand::{Number, Operand, Target, with_number};
use crate::parallel;

kernels! { |op, x, out, call|
    OneHot => one_hot(op, x, out),
    Trilu => trilu(op, x, out),
    Range => range(op, x, out),
    NonZero => nonzero(op, x, out),
}

/// Elements one task writes at least.
const GRAIN: usize = 1 << 15;

/// A new axis in which the index' position is on and all others are off.
pub(crate) fn one_hot(op: &OneHot, x: &[Operand<'_>], out: &mut [Target<'_>]) {
    let Some(target) = out.first_mut() else { return };
    if target.ty.shape.has_zero() {
        return;
    }
    let inner: usize = x[0].shape()[op.axis..].iter().product();
    with_size!(target.ty.dtype.size(), T => match x[0].ty.dtype {
        DType::I32 => hot::<T, i32>(op.depth, inner, &x[0], &x[1], target),
        _ => hot::<T, i64>(op.depth, inner, &x[0], &x[1], target),
    });
}

fn hot<T: Pod + Send + Sync, I: Pod + Into<i64> + Sync>(
    depth: usize,
    inner: usize,
    indices: &Operand<'_>,
    values: &Operand<'_>,
    target: &mut Target<'_>,
) {
    let (indices, values) = (indices.slice::<I>(), values.slice::<T>());
    let (off, on) = (values[0], values[1]);
    let slabs = GRAIN.div_ceil(depth * inner);
    parallel::chunks(target.elements::<T>(), slabs * depth * inner, &|task, part| {
        part.fill(off);
        let first = task * slabs * inner;
        for (slab, indices) in part.chunks_mut(depth * inner).zip(indices[first..].chunks(inner)) {
            for (i, index) in indices.iter().enumerate() {
                let index: i64 = (*index).into();
                let index = if index < 0 { index.saturating_add(depth as i64) } else { index };
                if (0..depth as i64).contains(&index) {
                    slab[index as usize * inner + i] = on;
                }
            }
        }
    });
}

/// One triangle of the last two axes.
pub(crate) fn trilu(op: &Trilu, x: &[Operand<'_>], out: &mut [Target<'_>]) {
    let Some(target) = out.first_mut() else { return };
    let shape = target.ty.shape;
    if shape.has_zero() {
        return;
    }
    let (height, width) = (shape[shape.rank() - 2], shape[shape.rank() - 1]);
    let clamp = |column: i64| column.clamp(0, width as i64) as usize;
    with_size!(target.ty.dtype.size(), T => {
        let src = x[0].slice::<T>();
        let rows = GRAIN.div_ceil(width);
        parallel::chunks(target.elements::<T>(), rows * width, &|task, part| {
            for (i, out) in part.chunks_mut(width).enumerate() {
                let row = task * rows + i;
                let diagonal = ((row % height) as i64).saturating_add(op.diagonal);
                let kept = match op.part {
                    TriPart::Upper => clamp(diagonal)..width,
                    TriPart::Lower => 0..clamp(diagonal.saturating_add(1)),
                };
                out[..kept.start].fill(0);
                out[kept.end..].fill(0);
                out[kept.clone()].copy_from_slice(&src[row * width..][kept]);
            }
        });
    });
}

/// Numbers at equal distances.
pub(crate) fn range(op: &Range, _: &[Operand<'_>], out: &mut [Target<'_>]) {
    macro_rules! fill {
        ($target:expr, $t:ty, |$i:ident| $value:expr) => {
            for ($i, o) in $target.elements::<$t>().iter_mut().enumerate() {
                *o = $value;
            }
        };
    }
    let (start, step) = (op.start as i64, op.step as i64);
    let whole = |i: usize| start.wrapping_add(step.wrapping_mul(i as i64));
    let real = |i: usize| op.start + i as f64 * op.step;
    for target in out {
        match op.dtype {
            DType::F32 => fill!(target, f32, |i| Number::from_f64(real(i))),
            DType::F16 => fill!(target, half::f16, |i| Number::from_f64(real(i))),
            DType::BF16 => fill!(target, half::bf16, |i| Number::from_f64(real(i))),
            DType::F64 => fill!(target, f64, |i| real(i)),
            DType::I8 => fill!(target, i8, |i| whole(i) as i8),
            DType::U8 | DType::Bool => fill!(target, u8, |i| whole(i) as u8),
            DType::I16 => fill!(target, i16, |i| whole(i) as i16),
            DType::I32 => fill!(target, i32, |i| whole(i) as i32),
            DType::U32 => fill!(target, u32, |i| whole(i) as u32),
            DType::I64 => fill!(target, i64, |i| whole(i)),
        }
    }
}

/// Positions of what is not zero, one column each, and their count.
pub(crate) fn nonzero(_: &NonZero, x: &[Operand<'_>], out: &mut [Target<'_>]) {
    let [positions, count] = out else { return };
    let positions = positions.elements::<i64>();
    let total = with_number!(x[0].ty.dtype, T => columns(x[0].slice::<T>(), x[0].shape(), positions));
    count.elements::<i64>().fill(total as i64);
}

fn columns<T: Number>(x: &[T], dims: &[usize], positions: &mut [i64]) -> usize {
    let n = x.len();
    let mut count = 0;
    for (flat, _) in x.iter().enumerate().filter(|(_, v)| **v != T::ZERO) {
        let mut rest = flat;
        for (axis, size) in dims.iter().enumerate().rev() {
            positions[axis * n + count] = (rest % size) as i64;
            rest /= size;
        }
        count += 1;
    }
    for axis in 0..dims.len() {
        positions[axis * n + count..(axis + 1) * n].fill(-1);
    }
    count
}

#[cfg(test)]
mod tests {
    use olivine_ir::{Shape, TensorType};

    use super::*;

    fn ty(dtype: DType, dims: &[usize]) -> TensorType {
        TensorType::new(dtype, Shape::new(dims).unwrap())
    }

    fn packed<'a, T: Pod>(dtype: DType, dims: &[usize], data: &'a [T]) -> Operand<'a> {
        Operand::packed(ty(dtype, dims), bytemuck::cast_slice(data))
    }

    #[test]
    fn one_hot_places_the_new_axis_and_turns_nothing_on_outside() {
        let index = [0i64, -1, 3, -4, 2, 1];
        let values = [5i16, 9];
        for axis in 0..3 {
            let x = [packed(DType::I64, &[2, 3], &index), packed(DType::I16, &[2], &values)];
            let mut dims = vec![2, 3];
            dims.insert(axis, 3);
            let mut out = [77i16; 18];
            let target = Target { ty: ty(DType::I16, &dims), bytes: bytemuck::cast_slice_mut(&mut out) };
            one_hot(&OneHot { axis, depth: 3 }, &x, &mut [target]);
            for (i, v) in out.iter().enumerate() {
                let mut at = vec![i / (dims[1] * dims[2]), i / dims[2] % dims[1], i % dims[2]];
                let p = at.remove(axis) as i64;
                let index = index[at[0] * 3 + at[1]];
                let hot = (-3..3).contains(&index) && index.rem_euclid(3) == p;
                assert_eq!(*v, if hot { 9 } else { 5 }, "axis {axis} element {i}");
            }
        }
        let x = [packed(DType::I32, &[], &[1i32]), packed(DType::I16, &[2], &values)];
        let mut out = [77i16; 2];
        let target = Target { ty: ty(DType::I16, &[2]), bytes: bytemuck::cast_slice_mut(&mut out) };
        one_hot(&OneHot { axis: 0, depth: 2 }, &x, &mut [target]);
        assert_eq!(out, [5, 9]);
    }

    #[test]
    fn a_triangle_stays_whatever_the_diagonal() {
        let x: Vec<f32> = (1..=24).map(|i| i as f32).collect();
        for part in [TriPart::Upper, TriPart::Lower] {
            for diagonal in [0, 1, -2, 3, 9, -9, i64::MAX, i64::MIN] {
                let mut out = [f32::NAN; 24];
                let target =
                    Target { ty: ty(DType::F32, &[2, 3, 4]), bytes: bytemuck::cast_slice_mut(&mut out) };
                trilu(&Trilu { part, diagonal }, &[packed(DType::F32, &[2, 3, 4], &x)], &mut [target]);
                for i in 0..24 {
                    let offset =
                        i128::from(i as i64 % 4) - i128::from(i as i64 / 4 % 3) - i128::from(diagonal);
                    let kept = if part == TriPart::Upper { offset >= 0 } else { offset <= 0 };
                    assert_eq!(out[i], if kept { x[i] } else { 0.0 }, "{part:?} {diagonal} {i}");
                }
            }
        }
    }

    #[test]
    fn a_range_counts_exactly_in_integers_and_in_f64_otherwise() {
        let run = |dtype, start, step, count| {
            let ty = ty(dtype, &[count]);
            let mut bytes = vec![0u64; count];
            let mut target = Target { ty, bytes: &mut bytemuck::cast_slice_mut(&mut bytes)[..ty.bytes()] };
            range(&Range { dtype, start, step, count: count.into() }, &[], std::slice::from_mut(&mut target));
            target.bytes.to_vec()
        };
        let big = run(DType::I64, 9.007_199_254_740_992e15, 3.0, 3);
        assert_eq!(bytemuck::pod_collect_to_vec::<u8, i64>(&big), [1 << 53, (1 << 53) + 3, (1 << 53) + 6]);
        let down = run(DType::I8, 2.0, -2.0, 3);
        assert_eq!(bytemuck::pod_collect_to_vec::<u8, i8>(&down), [2, 0, -2]);
        let real = run(DType::F32, 0.1, 0.1, 3);
        assert_eq!(bytemuck::pod_collect_to_vec::<u8, f32>(&real), [0.1, 0.2, (0.1 + 2.0 * 0.1) as f32]);
        assert!(run(DType::F16, 1.0, 1.0, 0).is_empty());
    }

    #[test]
    fn nonzero_lists_positions_then_fills_with_minus_one() {
        let x = [0.0f32, f32::NAN, -0.0, 1.0, 0.0, -2.0];
        let mut positions = [7i64; 12];
        let mut count = [7i64];
        let out = &mut [
            Target { ty: ty(DType::I64, &[2, 6]), bytes: bytemuck::cast_slice_mut(&mut positions) },
            Target { ty: ty(DType::I64, &[]), bytes: bytemuck::cast_slice_mut(&mut count) },
        ];
        nonzero(&NonZero {}, &[packed(DType::F32, &[2, 3], &x)], out);
        assert_eq!(positions, [0, 1, 1, -1, -1, -1, 1, 0, 2, -1, -1, -1]);
        assert_eq!(count, [3]);
        let out = &mut [
            Target { ty: ty(DType::I64, &[0, 1]), bytes: bytemuck::cast_slice_mut::<i64, u8>(&mut []) },
            Target { ty: ty(DType::I64, &[]), bytes: bytemuck::cast_slice_mut(&mut count) },
        ];
        nonzero(&NonZero {}, &[packed(DType::Bool, &[], &[1u8])], out);
        assert_eq!(count, [1]);
    }
}
