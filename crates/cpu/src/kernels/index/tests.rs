use bytemuck::Pod;
use olivine_ir::op::{Gather, GatherElements, GatherNd, ScatterElements, ScatterMode, ScatterNd};
use olivine_ir::{DType, Op, Shape, TensorType};

use super::gather::{gather, gather_elements, gather_nd};
use super::scatter::{scatter_elements, scatter_nd};
use super::*;
use crate::operand::{OperandSource, Target};

fn ty(dtype: DType, dims: &[usize]) -> TensorType {
    TensorType::new(dtype, Shape::new(dims).unwrap())
}

fn packed<'a, T: Pod>(dtype: DType, dims: &[usize], data: &'a [T]) -> Operand<'a> {
    Operand::packed(ty(dtype, dims), bytemuck::cast_slice(data))
}

/// Infers the result, runs the kernel on a poisoned target, and gives the elements back.
fn run<T: Pod>(op: impl Into<Op>, x: &[Operand<'_>], checked: bool) -> Result<Vec<T>, Fault> {
    let op = op.into();
    let types: Vec<TensorType> = x.iter().map(|o| o.ty).collect();
    let ty = op.infer(&types).unwrap()[0];
    let mut bytes = vec![0xABAB_ABAB_ABAB_ABABu64; ty.bytes().div_ceil(8)];
    let bytes: &mut [u8] = &mut bytemuck::cast_slice_mut(&mut bytes)[..ty.bytes()];
    let out = &mut [Target { ty, bytes }];
    match &op {
        Op::Gather(op) => gather(op, x, out, checked)?,
        Op::GatherElements(op) => gather_elements(op, x, out, checked)?,
        Op::GatherNd(op) => gather_nd(op, x, out, checked)?,
        Op::ScatterElements(op) => scatter_elements(op, x, out, checked)?,
        Op::ScatterNd(op) => scatter_nd(op, x, out, checked)?,
        other => panic!("{} is not an index operation", other.name()),
    }
    Ok(out[0].elements::<T>().to_vec())
}

#[test]
fn gather_takes_slices_from_the_front_and_the_back() {
    let x: Vec<f32> = (0..24).map(|i| i as f32).collect();
    let x = packed(DType::F32, &[2, 3, 4], &x);
    let i = [2i64, -3, 0, -1];
    let got: Vec<f32> = run(Gather { axis: 1 }, &[x, packed(DType::I64, &[2, 2], &i)], true).unwrap();
    let mut want = Vec::new();
    for o in 0..2 {
        for k in [2, 0, 0, 2] {
            want.extend((0..4).map(|j| (o * 12 + k * 4 + j) as f32));
        }
    }
    assert_eq!(got, want);
    let got: Vec<f32> = run(Gather { axis: 2 }, &[x, packed(DType::I32, &[], &[-2i32])], true).unwrap();
    assert_eq!(got, [2.0, 6.0, 10.0, 14.0, 18.0, 22.0]);
    let none: Vec<f32> =
        run(Gather { axis: 0 }, &[x, packed::<i64>(DType::I64, &[0, 3], &[])], true).unwrap();
    assert!(none.is_empty());
    let x = packed::<f32>(DType::F32, &[3, 0], &[]);
    let none: Vec<f32> = run(Gather { axis: 0 }, &[x, packed(DType::I64, &[1], &[9i64])], false).unwrap();
    assert!(none.is_empty());
}

#[test]
fn an_index_out_of_range_is_a_fault_when_checked_and_clamped_otherwise() {
    let x = packed(DType::U8, &[3], &[10u8, 20, 30]);
    let i = [1i64, i64::MIN, -4, 3, i64::MAX];
    let i = packed(DType::I64, &[5], &i);
    assert_eq!(run::<u8>(Gather { axis: 0 }, &[x, i], false).unwrap(), [20, 10, 10, 30, 30]);
    let fault = Fault { position: 1, value: i64::MIN, size: 3 };
    assert_eq!(run::<u8>(Gather { axis: 0 }, &[x, i], true), Err(fault));
    assert_eq!(run::<u8>(GatherElements { axis: 0 }, &[x, i], false).unwrap(), [20, 10, 10, 30, 30]);
    assert_eq!(run::<u8>(GatherElements { axis: 0 }, &[x, i], true), Err(fault));
    let x = packed(DType::I16, &[2, 2], &[1i16, 2, 3, 4]);
    let i = packed(DType::I32, &[2, 2], &[0i32, 5, -7, 1]);
    assert_eq!(run::<i16>(GatherNd { batch_dims: 0 }, &[x, i], false).unwrap(), [2, 2]);
    let fault = Fault { position: 1, value: 5, size: 2 };
    assert_eq!(run::<i16>(GatherNd { batch_dims: 0 }, &[x, i], true), Err(fault));
}

#[test]
fn gather_elements_reads_within_smaller_indices_on_every_axis() {
    let dims = [3, 4, 5];
    let x: Vec<i64> = (0..60).collect();
    for axis in 0..3 {
        let mut small = [2, 3, 4];
        small[axis] = 6;
        let n: usize = small.iter().product();
        let index: Vec<i32> = (0..n).map(|i| (i * 7 % (2 * dims[axis])) as i32 - dims[axis] as i32).collect();
        let operands = [packed(DType::I64, &dims, &x), packed(DType::I32, &small, &index)];
        let got: Vec<i64> = run(GatherElements { axis }, &operands, true).unwrap();
        for i in 0..n {
            let mut at = [i / (small[1] * small[2]), i / small[2] % small[1], i % small[2]];
            at[axis] = index[i].rem_euclid(dims[axis] as i32) as usize;
            assert_eq!(got[i], x[at[0] * 20 + at[1] * 5 + at[2]], "axis {axis} element {i}");
        }
    }
}

#[test]
fn gather_nd_shares_batches_and_takes_whole_tensors_for_empty_tuples() {
    let x: Vec<f64> = (0..24).map(f64::from).collect();
    let x = packed(DType::F64, &[2, 3, 4], &x);
    let i = [1i64, -1, 0, 2];
    let i = packed(DType::I64, &[2, 2, 1], &i);
    let got: Vec<f64> = run(GatherNd { batch_dims: 1 }, &[x, i], true).unwrap();
    let row = |s: i32| (s..s + 4).map(f64::from).collect::<Vec<_>>();
    assert_eq!(got, [row(4), row(8), row(12), row(20)].concat());
    let empty = packed::<i64>(DType::I64, &[2, 0], &[]);
    let got: Vec<f64> = run(GatherNd { batch_dims: 0 }, &[x, empty], true).unwrap();
    assert_eq!(got.len(), 48);
    assert_eq!(got[24..], x.slice::<f64>()[..]);
}

/// How an update meets what is there.
type Meet = fn(f32, f32) -> f32;

/// Scatters one update after another.
fn directly(
    axis: usize,
    dims: [usize; 3],
    x: &[f32],
    small: [usize; 3],
    index: &[i64],
    u: &[f32],
    f: Meet,
) -> Vec<f32> {
    let mut out = x.to_vec();
    for i in 0..index.len() {
        let mut at = [i / (small[1] * small[2]), i / small[2] % small[1], i % small[2]];
        let size = dims[axis] as i64;
        let p = if index[i] < 0 { index[i] + size } else { index[i] };
        if !(0..size).contains(&p) {
            continue;
        }
        at[axis] = p as usize;
        let o = &mut out[(at[0] * dims[1] + at[1]) * dims[2] + at[2]];
        *o = f(*o, u[i]);
    }
    out
}

#[test]
fn scattered_elements_combine_in_order_and_writes_outside_are_dropped() {
    let modes: [(ScatterMode, Meet); 5] = [
        (ScatterMode::Replace, |_, b| b),
        (ScatterMode::Add, |a, b| a + b),
        (ScatterMode::Mul, |a, b| a * b),
        (ScatterMode::Max, |a, b| if a.is_nan() || b.is_nan() { f32::NAN } else { a.max(b) }),
        (ScatterMode::Min, |a, b| if a.is_nan() || b.is_nan() { f32::NAN } else { a.min(b) }),
    ];
    for (dims, trim) in [([3, 4, 5], 1), ([40, 30, 35], 0)] {
        for axis in 0..3 {
            for (mode, f) in modes {
                let mut small = dims.map(|d| d - trim);
                small[axis] = dims[axis] + 3;
                let n: usize = small.iter().product();
                let x: Vec<f32> = (0..dims.iter().product()).map(|i| (i % 13) as f32 - 6.0).collect();
                let mut u: Vec<f32> = (0..n).map(|i| (i * 31 % 17) as f32 * 0.25 - 2.0).collect();
                u[n / 2] = f32::NAN;
                let size = dims[axis] as i64;
                let index: Vec<i64> = (0..n as i64).map(|i| i * 11 % (2 * size + 3) - size - 1).collect();
                let operands = [
                    packed(DType::F32, &dims, &x),
                    packed(DType::I64, &small, &index),
                    packed(DType::F32, &small, &u),
                ];
                let got: Vec<f32> = run(ScatterElements { axis, mode }, &operands, false).unwrap();
                let want = directly(axis, dims, &x, small, &index, &u, f);
                let bits = |v: &[f32]| {
                    v.iter().map(|x| if x.is_nan() { 1 } else { x.to_bits() }).collect::<Vec<_>>()
                };
                assert_eq!(bits(&got), bits(&want), "{mode:?} axis {axis}");
                assert!(run::<f32>(ScatterElements { axis, mode }, &operands, true).is_err());
            }
        }
    }
}

#[test]
fn scatter_in_place_keeps_what_is_in_the_target() {
    let target_ty = ty(DType::I32, &[4]);
    let mut data = [1i32, 2, 3, 4];
    let index = [-1i64, 1, 1];
    let u = [10i32, 20, 30];
    let mut x = packed::<i32>(DType::I32, &[4], &[]);
    x.source = OperandSource::Target;
    let op = ScatterElements { axis: 0, mode: ScatterMode::Add };
    let operands = [x, packed(DType::I64, &[3], &index), packed(DType::I32, &[3], &u)];
    let out = &mut [Target { ty: target_ty, bytes: bytemuck::cast_slice_mut(&mut data) }];
    scatter_elements(&op, &operands, out, true).unwrap();
    assert_eq!(data, [1, 52, 3, 14]);
}

#[test]
fn scattered_slices_combine_in_order_small_and_large() {
    for inner in [3usize, 200] {
        let rows = 50;
        let x: Vec<i32> = (0..(rows * inner) as i32).collect();
        let n = 400;
        let index: Vec<i32> =
            (0..n as i32 * 2).map(|i| if i % 2 == 0 { i * 7 % 13 - 6 } else { i * 5 % 20 - 10 }).collect();
        let u: Vec<i32> = (0..(n * inner) as i32).map(|i| i % 101).collect();
        for mode in [ScatterMode::Replace, ScatterMode::Add] {
            let operands = [
                packed(DType::I32, &[5, 10, inner], &x),
                packed(DType::I32, &[n, 2], &index),
                packed(DType::I32, &[n, inner], &u),
            ];
            let got: Vec<i32> = run(ScatterNd { mode }, &operands, false).unwrap();
            let mut want = x.clone();
            for r in 0..n {
                let (a, b) = (index[r * 2], index[r * 2 + 1]);
                if !(-5..5).contains(&a) || !(-10..10).contains(&b) {
                    continue;
                }
                let at = (a.rem_euclid(5) * 10 + b.rem_euclid(10)) as usize * inner;
                for j in 0..inner {
                    want[at + j] = if mode == ScatterMode::Add {
                        want[at + j] + u[r * inner + j]
                    } else {
                        u[r * inner + j]
                    };
                }
            }
            assert_eq!(got, want, "{mode:?} {inner}");
        }
    }
    let x = packed(DType::Bool, &[2], &[0u8, 1]);
    let operands =
        [x, packed::<i64>(DType::I64, &[2, 0], &[]), packed(DType::Bool, &[2, 2], &[1u8, 1, 1, 0])];
    assert_eq!(run::<u8>(ScatterNd { mode: ScatterMode::Replace }, &operands, true).unwrap(), [1, 0]);
}
