use bytemuck::Pod;
use half::{bf16, f16};
use olivine_ir::op::{ArgReduce, ArgReduceKind, ArgSort, Cumulative, CumulativeKind, Sort, TopK};
use olivine_ir::{Op, Shape, TensorType};

use super::arg::arg_reduce;
use super::cumulative::cumulative;
use super::order::{argsort, sort, top_k};
use super::*;
use crate::operand::{Number, Operand, Target};

/// Infers the results, runs the kernel, and gives the results' words back.
fn run<T: Number>(op: impl Into<Op>, dims: &[usize], data: &[T]) -> Vec<Vec<u64>> {
    let op = op.into();
    let ty = TensorType::new(T::DTYPE, Shape::new(dims).unwrap());
    let x = [Operand::packed(ty, bytemuck::cast_slice(data))];
    let types = op.infer(&[ty]).unwrap();
    let mut memory: Vec<Vec<u64>> =
        types.iter().map(|t| vec![0xA5A5_A5A5_A5A5_A5A5; t.bytes().div_ceil(8)]).collect();
    let mut out: Vec<Target<'_>> = types
        .iter()
        .zip(&mut memory)
        .map(|(ty, m)| Target { ty: *ty, bytes: &mut bytemuck::cast_slice_mut(m)[..ty.bytes()] })
        .collect();
    match &op {
        Op::Cumulative(op) => cumulative(op, &x, &mut out),
        Op::TopK(op) => top_k(op, &x, &mut out),
        Op::Sort(op) => sort(op, &x, &mut out),
        Op::ArgSort(op) => argsort(op, &x, &mut out),
        Op::ArgReduce(op) => arg_reduce(op, &x, &mut out),
        other => panic!("{} is not a scan", other.name()),
    }
    memory
}

fn elements<T: Pod>(memory: &[u64], count: usize) -> Vec<T> {
    bytemuck::cast_slice::<u64, T>(memory)[..count].to_vec()
}

/// Numbers with many equals, and for floats NaN, infinities and both zeros.
fn mixed<T: Number>(n: usize) -> Vec<T> {
    (0..n)
        .map(|i| match i * 2_654_435_761 % 4_294_967_296 / 7 % 23 {
            0 => T::from_f64(f64::NAN),
            1 => T::from_f64(f64::NEG_INFINITY),
            2 => T::from_f64(f64::INFINITY),
            3 => T::from_f64(-0.0),
            4 => T::ZERO,
            v => T::from_f64(v as f64 * 1.5 - 14.0),
        })
        .collect()
}

/// Lines along an axis: `(flat index of each element)`.
fn lines(dims: &[usize], axis: usize) -> Vec<Vec<usize>> {
    let a = Axis::new(dims, axis);
    (0..a.outer)
        .flat_map(|o| {
            (0..a.inner).map(move |i| (0..a.size).map(|s| (o * a.size + s) * a.inner + i).collect())
        })
        .collect()
}

const SHAPES: [&[usize]; 6] =
    [&[7], &[3, 1], &[4, 9, 5], &[2, 300, 70], &[1, 3000], &[2, 1, 3, 2, 2, 1, 2, 3]];

/// Order with NaN above every number and equal to itself.
fn nan_last<T: Number>(a: T, b: T) -> std::cmp::Ordering {
    a.partial_cmp(&b).unwrap_or_else(|| a.is_nan().cmp(&b.is_nan()))
}

fn orders_match<T: Number>() {
    for dims in SHAPES {
        let x: Vec<T> = mixed(dims.iter().product());
        for axis in 0..dims.len() {
            for descending in [false, true] {
                let order = elements::<i64>(&run(ArgSort { axis, descending }, dims, &x)[0], x.len());
                let sorted = elements::<T>(&run(Sort { axis, descending }, dims, &x)[0], x.len());
                let k = dims[axis].min(dims[axis] / 2 + 1);
                let top = run(TopK { k, axis, largest: descending }, dims, &x);
                let mut small = dims.to_vec();
                small[axis] = k;
                let n: usize = small.iter().product();
                let (values, positions) = (elements::<T>(&top[0], n), elements::<i64>(&top[1], n));
                for (line, part) in lines(dims, axis).iter().zip(lines(&small, axis)) {
                    let mut want: Vec<usize> = (0..line.len()).collect();
                    want.sort_by(|a, b| {
                        let order = nan_last(x[line[*a]], x[line[*b]]);
                        if descending { order.reverse() } else { order }
                    });
                    for (i, w) in want.iter().enumerate() {
                        assert_eq!(order[line[i]], *w as i64, "{} {dims:?} {axis} {descending}", T::DTYPE);
                        assert!(nan_last(sorted[line[i]], x[line[*w]]).is_eq());
                        if i < k {
                            assert_eq!(positions[part[i]], *w as i64);
                            assert_eq!(
                                bytemuck::bytes_of(&values[part[i]]),
                                bytemuck::bytes_of(&x[line[*w]])
                            );
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn sort_argsort_and_top_k_agree_with_a_stable_sort_for_every_dtype() {
    orders_match::<f32>();
    orders_match::<f64>();
    orders_match::<f16>();
    orders_match::<bf16>();
    orders_match::<i8>();
    orders_match::<u8>();
    orders_match::<i16>();
    orders_match::<i32>();
    orders_match::<u32>();
    orders_match::<i64>();
}

#[test]
fn top_k_of_long_rows_keeps_ties_in_order_whatever_the_data() {
    let n = 40_000;
    let falling: Vec<f32> = (0..n).map(|i| -((i / 3) as f32)).collect();
    let rising: Vec<f32> = falling.iter().rev().copied().collect();
    for x in [mixed::<f32>(n), falling, rising, vec![1.0; n]] {
        for largest in [true, false] {
            let mut want: Vec<usize> = (0..n).collect();
            want.sort_by(|a, b| if largest { nan_last(x[*b], x[*a]) } else { nan_last(x[*a], x[*b]) });
            for k in [1, 5, 300, n] {
                let got = elements::<i64>(&run(TopK { k, axis: 0, largest }, &[n], &x)[1], k);
                assert!(got.iter().zip(&want).all(|(g, w)| *g == *w as i64), "k {k} largest {largest}");
            }
        }
    }
    assert!(run(TopK { k: 0, axis: 0, largest: true }, &[3], &[1.0f32, 2.0, 3.0])[0].is_empty());
    assert!(run(Sort { axis: 1, descending: false }, &[3, 0], &[] as &[f32])[0].is_empty());
}

fn extremes_match<T: Number>() {
    for dims in SHAPES {
        let x: Vec<T> = mixed(dims.iter().product());
        for axis in 0..dims.len() {
            for kind in [ArgReduceKind::Max, ArgReduceKind::Min] {
                for last in [false, true] {
                    let got = run(ArgReduce { kind, axis, keepdims: last, last }, dims, &x);
                    for (line, g) in
                        lines(dims, axis).iter().zip(elements::<i64>(&got[0], x.len() / dims[axis]))
                    {
                        let mut best = 0;
                        for i in 1..line.len() {
                            let (a, b) = (x[line[i]], x[line[best]]);
                            let better = match kind {
                                _ if b.is_nan() => false,
                                _ if a.is_nan() => true,
                                ArgReduceKind::Max => a > b,
                                ArgReduceKind::Min => a < b,
                            };
                            if better || (last && (a == b || (a.is_nan() && b.is_nan()))) {
                                best = i;
                            }
                        }
                        assert_eq!(g, best as i64, "{} {dims:?} {axis} {kind:?} last {last}", T::DTYPE);
                    }
                }
            }
        }
    }
}

#[test]
fn argmax_and_argmin_find_first_and_last_and_let_nan_win() {
    extremes_match::<f32>();
    extremes_match::<f16>();
    extremes_match::<bf16>();
    extremes_match::<f64>();
    extremes_match::<i8>();
    extremes_match::<u8>();
    extremes_match::<i64>();
    let low =
        run(ArgReduce { kind: ArgReduceKind::Max, axis: 0, keepdims: false, last: false }, &[3], &[0u8; 3]);
    assert_eq!(low[0], [0]);
}

fn scans_match<T: Number>(tolerance: f64) {
    for dims in SHAPES {
        let x: Vec<T> = (0..dims.iter().product::<usize>())
            .map(|i| T::from_f64(((i * 7919 % 31) as f64 - 12.0) / 16.0 + 1.0))
            .collect();
        for axis in 0..dims.len() {
            for kind in [CumulativeKind::Sum, CumulativeKind::Prod, CumulativeKind::Max] {
                for (exclusive, reverse) in [(false, false), (true, false), (false, true), (true, true)] {
                    let op = Cumulative { kind, axis, exclusive, reverse };
                    let got = elements::<T>(&run(op, dims, &x)[0], x.len());
                    for mut line in lines(dims, axis) {
                        if reverse {
                            line.reverse();
                        }
                        let mut acc = match kind {
                            CumulativeKind::Sum => 0.0,
                            CumulativeKind::Prod => 1.0,
                            CumulativeKind::Max => T::LOWEST.to_f64(),
                        };
                        for i in line {
                            let before = acc;
                            let v = x[i].to_f64();
                            acc = match kind {
                                CumulativeKind::Sum => acc + v,
                                CumulativeKind::Prod => acc * v,
                                CumulativeKind::Max => acc.max(v),
                            };
                            let want = T::from_f64(if exclusive { before } else { acc }).to_f64();
                            let error = (got[i].to_f64() - want).abs();
                            let close = got[i].to_f64() == want || error <= tolerance * want.abs();
                            assert!(
                                close,
                                "{} {dims:?} {axis} {kind:?}: {} {want}",
                                T::DTYPE,
                                got[i].to_f64()
                            );
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn scans_run_both_ways_with_and_without_their_own_element() {
    scans_match::<f32>(1e-7);
    scans_match::<f64>(1e-14);
    scans_match::<f16>(1e-3);
    scans_match::<bf16>(8e-3);
}

#[test]
fn integer_sums_wrap_and_a_long_float_sum_stays_exact() {
    let op = |kind| Cumulative { kind, axis: 0, exclusive: false, reverse: false };
    let got = elements::<i8>(&run(op(CumulativeKind::Sum), &[4], &[100i8, 27, 1, -1])[0], 4);
    assert_eq!(got, [100, 127, -128, 127]);
    let got = elements::<u8>(&run(op(CumulativeKind::Prod), &[3], &[16u8, 16, 3])[0], 3);
    assert_eq!(got, [16, 0, 0]);
    let n = 1 << 20;
    let got = elements::<f32>(&run(op(CumulativeKind::Sum), &[n], &vec![0.1f32; n])[0], n);
    assert_eq!(got[n - 1], (f64::from(0.1f32) * n as f64) as f32);
    let nan = [1.0f32, f32::NAN, 3.0];
    let got = elements::<f32>(&run(op(CumulativeKind::Max), &[3], &nan)[0], 3);
    assert!(got[0] == 1.0 && got[1].is_nan() && got[2].is_nan());
}
