use olivine_ir::{Shape, Tensor, TensorType};

use super::*;

/// Reduces `[2, 300, 3, 70]` (as strided by `perm`) over every subset of axes and compares with direct loops in f64.
fn check(kind: ReduceKind, perm: [usize; 4], direct: impl Fn(&[f64]) -> f64) {
    let sizes = [2usize, 300, 3, 70];
    let data: Vec<f32> =
        (0..sizes.iter().product::<usize>()).map(|i| ((i * 37) % 101) as f32 / 50.0 - 1.0).collect();
    let packed = Shape::new(&sizes).unwrap().strides();
    let shape = Shape::new(&perm.map(|p| sizes[p])).unwrap();
    let mut x = Operand::packed(TensorType::new(DType::F32, shape), bytemuck::cast_slice(&data));
    for (i, p) in perm.iter().enumerate() {
        x.strides[i] = packed[*p];
    }
    for mask in 0..16usize {
        let axes: Vec<usize> = (0..4).filter(|a| mask >> a & 1 == 1).collect();
        let op = Reduce { kind, axes: axes.clone(), keepdims: false };
        let kept: Vec<usize> = (0..4).filter(|a| !axes.contains(a)).collect();
        let result = Shape::new(&kept.iter().map(|a| shape[*a]).collect::<Vec<_>>()).unwrap();
        let mut out = Tensor::new::<f32>(result, vec![f32::NAN; result.numel()]).unwrap();
        let ty = out.ty();
        let bytes = out.data_mut().unwrap().as_bytes_mut().unwrap();
        reduce(&op, &[x], &mut [Target { ty, bytes }]);
        let mut groups: Vec<Vec<f64>> = vec![Vec::new(); result.numel()];
        for flat in 0..shape.numel() {
            let (mut rest, mut at, mut index) = (flat, [0usize; 4], 0);
            for a in (0..4).rev() {
                at[a] = rest % shape[a];
                rest /= shape[a];
            }
            for a in &kept {
                index = index * shape[*a] + at[*a];
            }
            let offset: isize = (0..4).map(|a| at[a] as isize * x.strides[a]).sum();
            groups[index].push(f64::from(data[offset as usize]));
        }
        for (got, group) in out.as_slice::<f32>().unwrap().iter().zip(&groups) {
            let want = direct(group);
            let error = (f64::from(*got) - want).abs();
            assert!(error <= 2e-7 * want.abs() + 1e-9, "{kind:?} {axes:?} {perm:?}: {got} for {want}");
        }
    }
}

#[test]
fn every_subset_of_axes_in_every_memory_order_gives_the_direct_result() {
    for perm in [[0, 1, 2, 3], [3, 1, 0, 2], [1, 3, 2, 0]] {
        check(ReduceKind::Sum, perm, |v| v.iter().sum());
        check(ReduceKind::Max, perm, |v| v.iter().copied().fold(f64::NEG_INFINITY, f64::max));
        check(ReduceKind::LogSumExp, perm, |v| v.iter().map(|x| x.exp()).sum::<f64>().ln());
        check(ReduceKind::L2, perm, |v| v.iter().map(|x| x * x).sum::<f64>().sqrt());
    }
}

fn one(kind: ReduceKind, data: &[f32]) -> f32 {
    let ty = TensorType::new(DType::F32, Shape::new(&[data.len()]).unwrap());
    let x = Operand::packed(ty, bytemuck::cast_slice(data));
    let mut out = [0f32];
    let target =
        Target { ty: TensorType::new(DType::F32, Shape::SCALAR), bytes: bytemuck::cast_slice_mut(&mut out) };
    reduce(&Reduce { kind, axes: vec![0], keepdims: false }, &[x], &mut [target]);
    out[0]
}

#[test]
fn infinities_nan_and_nothing_follow_the_contract() {
    use ReduceKind as K;
    let (inf, nan) = (f32::INFINITY, f32::NAN);
    assert_eq!(one(K::LogSumExp, &[-inf, -inf]), -inf);
    assert_eq!(one(K::LogSumExp, &[inf, 1.0, inf]), inf);
    assert_eq!(one(K::LogSumExp, &[1000.0, 1000.0]), 1000.0 + std::f32::consts::LN_2);
    assert!(one(K::LogSumExp, &[nan, inf, 1.0]).is_nan());
    assert_eq!(one(K::LogSumExp, &[]), -inf);
    assert!(one(K::Max, &[1.0, nan, 2.0]).is_nan() && one(K::Min, &[1.0, nan, 2.0]).is_nan());
    assert_eq!(
        (one(K::Max, &[]), one(K::Min, &[]), one(K::Sum, &[]), one(K::Prod, &[])),
        (-inf, inf, 0.0, 1.0)
    );
    assert!(one(K::Mean, &[]).is_nan());
}

#[test]
fn a_sum_of_twenty_million_keeps_its_last_bits() {
    let data = vec![0.1f32; 20_000_000];
    let want = f64::from(0.1f32) * 20_000_000.0;
    assert_eq!(one(ReduceKind::Sum, &data), want as f32);
}

/// Sums and maxima of a narrow type along both axes of a matrix, read in order and transposed.
fn narrow_matches<T: Number>(numbers: impl Fn(usize) -> T) {
    for [rows, columns] in [[3, 1023], [3, 1024], [3, 1025], [2, 5000], [1025, 2], [2049, 3], [40, 2050]] {
        let data: Vec<T> = (0..rows * columns).map(&numbers).collect();
        for (transposed, axis) in [(false, 0), (false, 1), (true, 0), (true, 1)] {
            let dims = if transposed { [columns, rows] } else { [rows, columns] };
            let ty = TensorType::new(T::DTYPE, Shape::new(&dims).unwrap());
            let mut x = Operand::packed(ty, bytemuck::cast_slice(&data));
            if transposed {
                x.strides[..2].copy_from_slice(&[1, columns as isize]);
            }
            for kind in [ReduceKind::Sum, ReduceKind::Max] {
                let mut out = vec![T::ONE; dims[1 - axis]];
                let ty = TensorType::new(T::DTYPE, Shape::new(&[out.len()]).unwrap());
                let op = Reduce { kind, axes: vec![axis], keepdims: false };
                reduce(&op, &[x], &mut [Target { ty, bytes: bytemuck::cast_slice_mut(&mut out) }]);
                for (kept, got) in out.iter().enumerate() {
                    let line = (0..dims[axis]).map(|i| {
                        let (r, c) = if axis == 0 { (i, kept) } else { (kept, i) };
                        data[(r as isize * x.strides[0] + c as isize * x.strides[1]) as usize]
                    });
                    let want = match kind {
                        // Small whole numbers: every partial sum is exact, or wraps.
                        ReduceKind::Sum => line.fold(T::ZERO, T::plus),
                        _ => line.fold(T::LOWEST, T::larger),
                    };
                    assert!(*got == want, "{} {kind:?} {dims:?} axis {axis} at {kept}", T::DTYPE);
                }
            }
        }
    }
}

#[test]
fn narrow_types_are_widened_block_by_block() {
    narrow_matches(|i| (i * 37 % 256) as u8);
    narrow_matches(|i| (i * 37 % 256) as u8 as i8);
    narrow_matches(|i| (i * 7919 % 65536) as u16 as i16);
    narrow_matches(|i| (i as i32).wrapping_mul(123_456_789));
    narrow_matches(|i| (i as u32).wrapping_mul(123_456_789));
    let few = |i: usize| f32::from(u8::from(i.is_multiple_of(97)));
    narrow_matches(|i| f16::from_f32(few(i)));
    narrow_matches(|i| bf16::from_f32(few(i)));
}
