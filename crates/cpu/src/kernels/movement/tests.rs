use olivine_ir::op::{Concat, Pad, PadMode};
use olivine_ir::{DType, Shape, TensorType};

use super::pad::pad;
use super::*;
use crate::kernel::attribute_sizes;

fn shape(dims: &[usize]) -> Shape {
    Shape::new(dims).unwrap()
}

/// An operand with explicit strides over `data`.
fn view<'a>(data: &'a [i32], dims: &[usize], strides: &[isize], offset: usize) -> Operand<'a> {
    let mut x = Operand::packed(TensorType::new(DType::I32, shape(dims)), bytemuck::cast_slice(data));
    x.strides[..strides.len()].copy_from_slice(strides);
    x.offset = offset;
    x
}

/// Every element of an operand in row-major order, by direct indexing.
fn read(x: &Operand<'_>) -> Vec<i32> {
    let dims = x.shape().dims().to_vec();
    (0..x.shape().numel())
        .map(|mut i| {
            let mut at = x.offset as isize;
            for axis in (0..dims.len()).rev() {
                at += (i % dims[axis]) as isize * x.strides[axis];
                i /= dims[axis];
            }
            x.elements::<i32>()[at as usize]
        })
        .collect()
}

fn copied(x: &Operand<'_>) -> Vec<i32> {
    let mut out = vec![-1i32; x.shape().numel()];
    copy_strided(x, bytemuck::cast_slice_mut(&mut out));
    out
}

#[test]
fn a_view_of_any_strides_is_copied_out_in_order() {
    let data: Vec<i32> = (0..200_000).collect();
    let cases: &[(&[usize], &[isize], usize)] = &[
        (&[], &[], 7),
        (&[0, 3], &[3, 1], 0),
        (&[200_000], &[1], 0),
        (&[200_000], &[-1], 199_999),
        (&[400, 500], &[1, 400], 0),
        (&[37, 41], &[1, 37], 5),
        (&[3, 70, 9], &[70, 1, 210], 2),
        (&[5, 4, 3, 2], &[1, 5, 20, 60], 0),
        (&[4, 1000], &[0, 0], 9),
        (&[100, 3], &[3, 0], 9),
        (&[2, 3, 1, 2, 1, 2, 3, 2], &[144, 48, 7, -24, 0, 12, 4, 2], 100),
        (&[300, 300], &[-1, 300], 299),
        (&[2, 64, 12, 64], &[64 * 768, 768, 64, 1], 0),
        (&[2, 12, 64, 64], &[64 * 768, 64, 768, 1], 0),
        (&[2, 12, 64, 64], &[64 * 768, 64, 1, 768], 0),
    ];
    for (dims, strides, offset) in cases {
        let x = view(&data, dims, strides, *offset);
        assert_eq!(copied(&x), read(&x), "{dims:?} by {strides:?}");
    }
}

#[test]
fn elements_of_1_2_4_and_8_bytes_are_copied_alike() {
    for dtype in [DType::Bool, DType::F16, DType::I64] {
        let (rows, columns) = (45, 67);
        let bytes: Vec<u64> =
            (0..(rows * columns) as u64).map(|i| i.wrapping_mul(0x0101_0101_0101_0107)).collect();
        let bytes: &[u8] = &bytemuck::cast_slice::<u64, u8>(&bytes)[..rows * columns * dtype.size()];
        let mut x = Operand::packed(TensorType::new(dtype, shape(&[columns, rows])), bytes);
        x.strides[..2].copy_from_slice(&[1, columns as isize]);
        let mut out = vec![0u64; rows * columns];
        let out = &mut bytemuck::cast_slice_mut::<u64, u8>(&mut out)[..bytes.len()];
        copy_strided(&x, out);
        let size = dtype.size();
        for c in 0..columns {
            for r in 0..rows {
                let (a, b) = ((c * rows + r) * size, (r * columns + c) * size);
                assert_eq!(out[a..a + size], bytes[b..b + size], "{dtype} {c} {r}");
            }
        }
    }
}

fn joined(axis: usize, x: &[Operand<'_>]) -> Vec<i32> {
    let mut dims = x[0].shape().to_vec();
    dims[axis] = x.iter().map(|p| p.shape()[axis]).sum();
    let ty = TensorType::new(DType::I32, shape(&dims));
    let mut out = vec![-1i32; ty.shape.numel()];
    concat(&Concat { axis }, x, &mut [Target { ty, bytes: bytemuck::cast_slice_mut(&mut out) }]);
    out
}

/// The same by copying slab after slab of the packed operands.
fn joined_directly(axis: usize, x: &[Operand<'_>]) -> Vec<i32> {
    let outer: usize = x[0].shape()[..axis].iter().product();
    let parts: Vec<Vec<i32>> = x.iter().map(read).collect();
    (0..outer)
        .flat_map(|o| {
            parts.iter().flat_map(move |p| {
                let n = p.len() / outer;
                p[o * n..(o + 1) * n].to_vec()
            })
        })
        .collect()
}

#[test]
fn joining_reads_strides_and_skips_empty_parts_on_every_axis_of_rank_8() {
    let data: Vec<i32> = (0..70_000).collect();
    for axis in 0..8 {
        let dims = |n: usize| {
            let mut d = [2, 1, 3, 2, 2, 1, 2, 3];
            d[axis] = n;
            d
        };
        let a = view(&data, &dims(2), &[1, 5, 9, -2, 31, 2, 64, 100], 50);
        let empty = view(&data, &dims(0), &[1; 8], 0);
        let b = view(&data, &dims(3), &[0, 5, 9, 2, 31, 2, 64, 1], 50);
        let x = [a, empty, b, a];
        assert_eq!(joined(axis, &x), joined_directly(axis, &x), "axis {axis}");
    }
    let x = [view(&data, &[200, 1], &[1, 1], 0), view(&data, &[200, 160], &[1, 200], 3)];
    assert_eq!(joined(1, &x), joined_directly(1, &x));
    let x = [view(&data, &[150, 150], &[1, 150], 0), view(&data, &[300, 150], &[150, 1], 3)];
    assert_eq!(joined(0, &x), joined_directly(0, &x));
}

fn padded<T: Pod>(dtype: DType, data: &[T], dims: &[usize], op: &Pad) -> Vec<T> {
    let ty = TensorType::new(dtype, shape(dims));
    let out_dims: Vec<usize> =
        dims.iter().zip(&op.pads).map(|(d, (b, a))| (*b + *a + *d).specialize().unwrap()).collect();
    let out_ty = TensorType::new(dtype, shape(&out_dims));
    let mut out = vec![T::zeroed(); out_ty.shape.numel()];
    let x = Operand::packed(ty, bytemuck::cast_slice(data));
    let numbers: Vec<usize> =
        attribute_sizes(&op.clone().into()).into_iter().map(|n| n.specialize().unwrap()).collect();
    pad(op, &numbers, &[x], &mut [Target { ty: out_ty, bytes: bytemuck::cast_slice_mut(&mut out) }]);
    out
}

fn op(pads: &[(i64, i64)], mode: PadMode, value: f64) -> Pad {
    let pads = pads.iter().map(|(before, after)| ((*before).into(), (*after).into())).collect();
    Pad { pads, mode, value }
}

#[test]
fn each_mode_pads_a_row_as_numpy_does() {
    let x = [1i32, 2, 3, 4];
    let row = |mode, before, after| padded(DType::I32, &x, &[4], &op(&[(before, after)], mode, 9.0));
    assert_eq!(row(PadMode::Constant, 2, 1), [9, 9, 1, 2, 3, 4, 9]);
    assert_eq!(row(PadMode::Reflect, 3, 2), [4, 3, 2, 1, 2, 3, 4, 3, 2]);
    assert_eq!(row(PadMode::Edge, 2, 3), [1, 1, 1, 2, 3, 4, 4, 4, 4]);
    assert_eq!(row(PadMode::Wrap, 2, 4), [3, 4, 1, 2, 3, 4, 1, 2, 3, 4]);
    assert_eq!(row(PadMode::Constant, -1, -2), [2]);
    assert_eq!(row(PadMode::Constant, -4, 2), [9, 9]);
    assert_eq!(row(PadMode::Constant, -6, 3), [9]);
    assert_eq!(row(PadMode::Reflect, -1, 2), [2, 3, 4, 3, 2]);
    assert_eq!(row(PadMode::Edge, 2, -3), [1, 1, 1]);
    assert_eq!(row(PadMode::Wrap, -2, 1), [3, 4, 1]);
    assert_eq!(row(PadMode::Edge, -6, 5), [4, 4, 4]);
    assert_eq!(row(PadMode::Edge, -2, -2), [0i32; 0]);
}

#[test]
fn the_pad_value_is_cast_to_the_dtype() {
    let p = |value| op(&[(1, 0)], PadMode::Constant, value);
    assert_eq!(padded(DType::U8, &[7u8], &[1], &p(-3.0)), [0, 7]);
    assert_eq!(padded(DType::Bool, &[1u8], &[1], &p(5.0)), [1, 1]);
    assert_eq!(padded(DType::I64, &[7i64], &[1], &p(f64::NAN)), [0, 7]);
    assert_eq!(padded(DType::F32, &[7f32], &[1], &p(f64::NEG_INFINITY)), [f32::NEG_INFINITY, 7.0]);
}

#[test]
fn several_axes_pad_together_and_a_scalar_passes() {
    let dims = [3, 4, 5];
    let x: Vec<i32> = (0..60).collect();
    let pads = [(1, 2), (-1, 2), (2, 1)];
    for mode in [PadMode::Constant, PadMode::Reflect, PadMode::Edge, PadMode::Wrap] {
        let out = padded(DType::I32, &x, &dims, &op(&pads, mode, -5.0));
        let mut i = 0;
        for a in -1..5i64 {
            for b in 1..6i64 {
                for c in -2..6i64 {
                    let place = |p: i64, n: i64| match mode {
                        PadMode::Constant => ((0..n).contains(&p)).then_some(p),
                        PadMode::Reflect => Some(if p < 0 {
                            -p
                        } else if p >= n {
                            2 * n - 2 - p
                        } else {
                            p
                        }),
                        PadMode::Edge => Some(p.clamp(0, n - 1)),
                        PadMode::Wrap => Some(p.rem_euclid(n)),
                    };
                    let want = match (place(a, 3), place(b, 4), place(c, 5)) {
                        (Some(a), Some(b), Some(c)) => x[(a * 20 + b * 5 + c) as usize],
                        _ => -5,
                    };
                    assert_eq!(out[i], want, "{mode:?} at {a} {b} {c}");
                    i += 1;
                }
            }
        }
        assert_eq!(padded(DType::I32, &[3], &[], &op(&[], mode, 1.0)), [3]);
        assert!(padded::<i32>(DType::I32, &[], &[0, 2], &op(&[(0, 0), (1, 1)], mode, 1.0)).is_empty());
    }
    assert_eq!(padded::<i32>(DType::I32, &[], &[0], &op(&[(1, 1)], PadMode::Constant, 4.0)), [4, 4]);
}
