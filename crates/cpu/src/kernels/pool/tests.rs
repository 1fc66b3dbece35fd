//! Pools against direct loops in f64.

use olivine_ir::op::{AdaptivePool, Pool, PoolKind, Rule, Window};
use olivine_ir::{DType, Data, Tensor};

use super::{adaptive_pool, pool};
use crate::operand::{Operand, Target};

/// Small whole numbers with many ties.
fn numbers(dims: &[usize], dtype: DType) -> Tensor {
    let mut state = 12345u64;
    let values: Vec<i32> = (0..dims.iter().product())
        .map(|_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            ((state >> 40) % 13) as i32 - 6
        })
        .collect();
    let whole = |v: &i32| if dtype == DType::U8 { v + 6 } else { *v };
    macro_rules! of {
        ($t:ty) => {
            Tensor::new(dims, values.iter().map(|v| whole(v) as $t).collect::<Vec<$t>>())
        };
    }
    let done = match dtype {
        DType::F64 => of!(f64),
        DType::F16 => Tensor::new(dims, values.iter().map(|&v| half::f16::from_f32(v as f32)).collect()),
        DType::BF16 => Tensor::new(dims, values.iter().map(|&v| half::bf16::from_f32(v as f32)).collect()),
        DType::I8 => of!(i8),
        DType::U8 => of!(u8),
        DType::I64 => of!(i64),
        _ => of!(f32),
    };
    done.unwrap()
}

fn run(op: &impl Rule, x: &Tensor, kernel: impl FnOnce(&[Operand<'_>], &mut [Target<'_>])) -> Vec<Tensor> {
    let types = op.infer(&[x.ty()]).unwrap();
    let mut words: Vec<Vec<u64>> =
        types.iter().map(|t| vec![u64::MAX; (t.shape.numel() * t.dtype.size()).div_ceil(8)]).collect();
    let sized = |t: &olivine_ir::TensorType| t.shape.numel() * t.dtype.size();
    let mut targets: Vec<Target<'_>> = words
        .iter_mut()
        .zip(&types)
        .map(|(w, ty)| Target { ty: *ty, bytes: &mut bytemuck::cast_slice_mut(w)[..sized(ty)] })
        .collect();
    kernel(&[Operand::packed(x.ty(), x.data().as_bytes())], &mut targets);
    words
        .iter()
        .zip(&types)
        .map(|(w, ty)| {
            let data = Data::from_bytes(ty.dtype, &bytemuck::cast_slice(w)[..sized(ty)]).unwrap();
            Tensor::from_data(ty.shape, data).unwrap()
        })
        .collect()
}

/// A window's elements in order (flat position in its plane), and how many of its places the padding covers too.
fn window_of(op: &Pool, input: &[usize], at: &[usize]) -> (Vec<usize>, usize) {
    let mut seen = Vec::new();
    let mut padded = 0;
    for flat in 0..op.kernel.iter().product() {
        let mut rest = flat;
        let mut k = vec![0; input.len()];
        for i in (0..input.len()).rev() {
            k[i] = rest % op.kernel[i];
            rest /= op.kernel[i];
        }
        let place = |i: usize| at[i] * op.window.strides[i] + k[i] * op.window.dilations[i];
        let (before, after) = (|i: usize| op.window.pads[i].0, |i: usize| op.window.pads[i].1);
        let axes = 0..input.len();
        if axes.clone().all(|i| place(i) < input[i] + before(i) + after(i)) {
            padded += 1;
        }
        if axes.clone().all(|i| place(i) >= before(i) && place(i) - before(i) < input[i]) {
            seen.push(axes.fold(0, |flat, i| flat * input[i] + place(i) - before(i)));
        }
    }
    (seen, padded)
}

fn check(kind: PoolKind, x: &[usize], kernel: &[usize], window: Window, ceil: bool) {
    let floats: &[DType] = &[DType::F32, DType::F64, DType::F16, DType::BF16];
    let all: &[DType] = &[DType::F32, DType::F64, DType::F16, DType::BF16, DType::I8, DType::U8, DType::I64];
    for &dtype in if kind == PoolKind::Max { all } else { floats } {
        for flag in [false, true] {
            for p in [1, 2, 3] {
                let op = Pool {
                    kind,
                    kernel: kernel.to_vec(),
                    window: window.clone(),
                    ceil,
                    count_include_pad: flag,
                    p,
                    indices: flag && kind == PoolKind::Max,
                };
                compare(&op, &numbers(x, dtype));
            }
        }
    }
}

fn compare(op: &Pool, x: &Tensor) {
    let found = run(op, x, |x, out| pool(op, x, out));
    let (shape, values) = (*found[0].shape(), found[0].to_f64());
    let (input, data) = (&x.shape()[2..], x.to_f64());
    let (plane_in, plane_out): (usize, usize) = (input.iter().product(), shape[2..].iter().product());
    let bound = match x.dtype() {
        DType::F16 => 1e-3,
        DType::BF16 => 8e-3,
        _ => 1e-6,
    };
    for (i, &value) in values.iter().enumerate() {
        let mut rest = i % plane_out;
        let mut at = vec![0; input.len()];
        for a in (0..input.len()).rev() {
            at[a] = rest % shape[2 + a];
            rest /= shape[2 + a];
        }
        let (seen, padded) = window_of(op, input, &at);
        let base = i / plane_out * plane_in;
        let elements: Vec<f64> = seen.iter().map(|s| data[base + s]).collect();
        let expected = match op.kind {
            PoolKind::Max => elements.iter().copied().fold(f64::NEG_INFINITY, f64::max),
            PoolKind::Average => {
                let count = if op.count_include_pad { padded } else { seen.len() };
                elements.iter().sum::<f64>() / count as f64
            }
            PoolKind::Lp => {
                let p = op.p as i32;
                elements.iter().map(|v| v.abs().powi(p)).sum::<f64>().powf(1.0 / f64::from(p))
            }
        };
        assert!(
            (value - expected).abs() <= bound * (1.0 + expected.abs()),
            "{op:?} {x:?} {i}: {value} {expected}"
        );
        if op.indices {
            let first = seen.iter().find(|s| data[base + **s] == expected).unwrap();
            assert_eq!(found[1].as_slice::<i64>().unwrap()[i], (base + first) as i64);
        }
    }
}

fn window(strides: &[usize], pads: &[(usize, usize)], dilations: &[usize]) -> Window {
    Window { strides: strides.to_vec(), pads: pads.to_vec(), dilations: dilations.to_vec() }
}

#[test]
fn pools_match_direct_loops() {
    for kind in [PoolKind::Max, PoolKind::Average, PoolKind::Lp] {
        for ceil in [false, true] {
            check(kind, &[2, 3, 11, 70], &[3, 3], Window::same(2, 2, 1), ceil);
            check(kind, &[2, 3, 6, 7], &[2, 3], window(&[1, 3], &[(1, 0), (0, 2)], &[2, 1]), ceil);
            check(kind, &[1, 2, 9], &[4], window(&[3], &[(1, 2)], &[1]), ceil);
            check(
                kind,
                &[1, 2, 5, 4, 6],
                &[2, 2, 3],
                window(&[2, 1, 2], &[(1, 0), (0, 1), (1, 2)], &[1, 2, 1]),
                ceil,
            );
            check(kind, &[2, 2, 7, 40], &[7, 40], Window::unit(2), ceil);
            check(kind, &[0, 2, 7, 5], &[3, 3], Window::unit(2), ceil);
            check(kind, &[1, 2, 5, 1], &[2, 1], Window::unit(2), ceil);
        }
    }
}

#[test]
fn an_overhanging_window_divides_by_what_the_padding_covers() {
    let x = Tensor::new([1, 1, 4], vec![1f32, 2.0, 3.0, 4.0]).unwrap();
    let op = Pool {
        kind: PoolKind::Average,
        kernel: vec![3],
        window: window(&[2], &[(1, 0)], &[1]),
        ceil: true,
        count_include_pad: true,
        p: 2,
        indices: false,
    };
    let found = run(&op, &x, |x, out| pool(&op, x, out));
    assert_eq!(found[0].as_slice::<f32>().unwrap(), [1.0, 3.0]);
    let op = Pool { kernel: vec![2], window: window(&[3], &[(0, 0)], &[1]), ..op };
    let found = run(&op, &x, |x, out| pool(&op, x, out));
    assert_eq!(found[0].as_slice::<f32>().unwrap(), [1.5, 4.0]);
}

#[test]
fn max_takes_nan_and_its_first_position() {
    let nan = f32::NAN;
    let x = Tensor::new([1, 1, 6], vec![3.0, nan, 5.0, nan, f32::NEG_INFINITY, f32::NEG_INFINITY]).unwrap();
    for indices in [false, true] {
        let op = Pool {
            kind: PoolKind::Max,
            kernel: vec![2],
            window: window(&[1], &[(0, 1)], &[1]),
            ceil: false,
            count_include_pad: false,
            p: 2,
            indices,
        };
        let found = run(&op, &x, |x, out| pool(&op, x, out));
        let values = found[0].as_slice::<f32>().unwrap();
        assert!(values[..4].iter().all(|v| v.is_nan()), "{values:?}");
        assert_eq!(values[4..], [f32::NEG_INFINITY; 2]);
        if indices {
            assert_eq!(found[1].as_slice::<i64>().unwrap(), [1, 1, 3, 3, 4, 5]);
        }
    }
}

#[test]
fn adaptive_pools_divide_axes_as_their_windows_say() {
    for dtype in [DType::F32, DType::F64, DType::F16, DType::BF16] {
        for (dims, output) in
            [(vec![2, 3, 7, 50], vec![3, 2]), (vec![1, 2, 3], vec![5]), (vec![1, 2, 4, 3, 5], vec![2, 3, 1])]
        {
            let x = numbers(&dims, dtype);
            for kind in [PoolKind::Max, PoolKind::Average] {
                let op = AdaptivePool { kind, output: output.clone() };
                let found = run(&op, &x, |x, out| adaptive_pool(&op, x, out));
                let (values, data) = (found[0].to_f64(), x.to_f64());
                let input = &dims[2..];
                let (n_in, n_out): (usize, usize) = (input.iter().product(), output.iter().product());
                for (i, &value) in values.iter().enumerate() {
                    let mut elements = Vec::new();
                    for flat in 0..n_in {
                        let (mut rest, mut to, mut inside) = (flat, i % n_out, true);
                        for a in (0..input.len()).rev() {
                            let (at, o) = (rest % input[a], to % output[a]);
                            let start = o * input[a] / output[a];
                            inside &= at >= start && at < ((o + 1) * input[a]).div_ceil(output[a]);
                            rest /= input[a];
                            to /= output[a];
                        }
                        if inside {
                            elements.push(data[i / n_out * n_in + flat]);
                        }
                    }
                    let expected = match kind {
                        PoolKind::Max => elements.iter().copied().fold(f64::NEG_INFINITY, f64::max),
                        _ => elements.iter().sum::<f64>() / elements.len() as f64,
                    };
                    assert!((value - expected).abs() < 1e-2 * (1.0 + expected.abs()), "{op:?} {dims:?} {i}");
                    if dtype == DType::F64 {
                        assert!((value - expected).abs() < 1e-12);
                    }
                }
            }
        }
    }
}
