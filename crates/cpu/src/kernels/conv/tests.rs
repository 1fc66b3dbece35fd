//! Kernels against direct loops in f64.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

use olivine_ir::op::{
    Arg, Binary, Conv, ConvTranspose, Im2Col, Instr, InstrOp, Region, Rule, ScalarOp, Unary, Window,
};
use olivine_ir::{DType, Op, Shape, Tensor};

use super::columns::im2col;
use super::{conv, conv_double, conv_single, conv_transpose, packing};
use crate::kernels::elementwise::{Chain, Program};
use crate::operand::{Operand, Target};
use crate::{Vectors, limit_vectors};

/// Small numbers that f16 and bf16 hold exactly, so that only accumulation differs.
fn numbers(dims: &[usize], dtype: DType, seed: u64) -> Tensor {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let values: Vec<f64> = (0..dims.iter().product())
        .map(|_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            ((state >> 40) % 257) as f64 / 64.0 - 2.0
        })
        .collect();
    typed(dims, dtype, &values)
}

fn typed(dims: &[usize], dtype: DType, values: &[f64]) -> Tensor {
    let done = match dtype {
        DType::F32 => Tensor::new(dims, values.iter().map(|&v| v as f32).collect()),
        DType::F64 => Tensor::new(dims, values.to_vec()),
        DType::F16 => Tensor::new(dims, values.iter().map(|&v| half::f16::from_f64(v)).collect()),
        DType::BF16 => Tensor::new(dims, values.iter().map(|&v| half::bf16::from_f64(v)).collect()),
        DType::U8 => Tensor::new(dims, values.iter().map(|&v| (v * 64.0) as u8).collect()),
        _ => Tensor::new(dims, values.iter().map(|&v| (v * 64.0) as i64).collect()),
    };
    done.unwrap()
}

fn run(
    op: &impl Rule,
    inputs: &[&Tensor],
    kernel: impl FnOnce(&[Operand<'_>], &mut [Target<'_>]),
) -> (Shape, Vec<f64>) {
    let types: Vec<_> = inputs.iter().map(|t| t.ty()).collect();
    let ty = op.infer(&types).unwrap()[0];
    let operands: Vec<_> = inputs.iter().map(|t| Operand::packed(t.ty(), t.data().as_bytes())).collect();
    // Words, so that every element type is aligned; poisoned, so that nothing relies on zeros.
    let size = ty.shape.numel() * ty.dtype.size();
    let mut words = vec![u64::MAX; size.div_ceil(8)];
    let bytes = &mut bytemuck::cast_slice_mut(&mut words)[..size];
    kernel(&operands, &mut [Target { ty, bytes }]);
    let bytes: &[u8] = &bytemuck::cast_slice(&words)[..size];
    let data = olivine_ir::Data::from_bytes(ty.dtype, bytes).unwrap();
    (ty.shape, Tensor::from_data(ty.shape, data).unwrap().to_f64())
}

/// As [`run`] for a kernel that takes more operands than the operation itself.
fn run_with_extra(
    op: &Conv,
    inputs: &[&Tensor],
    kernel: impl FnOnce(&[Operand<'_>], &mut [Target<'_>]),
) -> (Shape, Vec<f64>) {
    let all: Vec<_> = inputs.iter().map(|t| Operand::packed(t.ty(), t.data().as_bytes())).collect();
    run(op, &inputs[..3], |_, out| kernel(&all, out))
}

/// Three sizes with leading ones.
fn three(sizes: &[usize], fill: usize) -> [usize; 3] {
    let mut out = [fill; 3];
    out[3 - sizes.len()..].copy_from_slice(sizes);
    out
}

fn flat(at: [usize; 3], dims: [usize; 3]) -> usize {
    (at[0] * dims[1] + at[1]) * dims[2] + at[2]
}

fn positions(dims: [usize; 3]) -> impl Iterator<Item = [usize; 3]> {
    let [a, b, c] = dims;
    (0..a).flat_map(move |z| (0..b).flat_map(move |y| (0..c).map(move |x| [z, y, x])))
}

/// Where kernel position `k` of window `o` lands in the unpadded input.
fn land(window: &Window, o: [usize; 3], k: [usize; 3], input: [usize; 3]) -> Option<[usize; 3]> {
    let lead = 3 - window.strides.len();
    let mut at = [0; 3];
    for i in lead..3 {
        let j = i - lead;
        let p = (o[i] * window.strides[j] + k[i] * window.dilations[j]) as i64 - window.pads[j].0 as i64;
        if p < 0 || p >= input[i] as i64 {
            return None;
        }
        at[i] = p as usize;
    }
    Some(at)
}

fn expected_conv(op: &Conv, x: &Tensor, w: &Tensor, b: Option<&Tensor>, out: &Shape) -> Vec<f64> {
    let (xs, ws) = (x.shape(), w.shape());
    let (xd, kd, od) = (three(&xs[2..], 1), three(&ws[2..], 1), three(&out[2..], 1));
    let [xn, kn] = [xd, kd].map(|d| d.iter().product::<usize>());
    let (x, w, b) = (x.to_f64(), w.to_f64(), b.map(Tensor::to_f64));
    let mut result = Vec::new();
    for n in 0..out[0] {
        for m in 0..out[1] {
            let group = m / (ws[0] / op.groups);
            for o in positions(od) {
                let mut sum = b.as_ref().map_or(0.0, |b| b[m]);
                for c in 0..ws[1] {
                    for k in positions(kd) {
                        if let Some(at) = land(&op.window, o, k, xd) {
                            let plane = n * xs[1] + group * ws[1] + c;
                            sum += x[plane * xn + flat(at, xd)] * w[(m * ws[1] + c) * kn + flat(k, kd)];
                        }
                    }
                }
                result.push(sum);
            }
        }
    }
    result
}

fn expected_transpose(
    op: &ConvTranspose,
    x: &Tensor,
    w: &Tensor,
    b: Option<&Tensor>,
    out: &Shape,
) -> Vec<f64> {
    let (xs, ws) = (x.shape(), w.shape());
    let (xd, kd, od) = (three(&xs[2..], 1), three(&ws[2..], 1), three(&out[2..], 1));
    let [xn, kn, on] = [xd, kd, od].map(|d| d.iter().product::<usize>());
    let (x, w, b) = (x.to_f64(), w.to_f64(), b.map(Tensor::to_f64));
    let mut result = vec![0.0; out.numel()];
    for n in 0..xs[0] {
        for m in 0..out[1] {
            let plane = &mut result[(n * out[1] + m) * on..][..on];
            plane.fill(b.as_ref().map_or(0.0, |b| b[m]));
            let per_group = xs[1] / op.groups;
            for c in (m / ws[1] * per_group)..(m / ws[1] + 1) * per_group {
                for i in positions(xd) {
                    for k in positions(kd) {
                        if let Some(at) = land(&op.window, i, k, od) {
                            plane[flat(at, od)] += x[(n * xs[1] + c) * xn + flat(i, xd)]
                                * w[(c * ws[1] + m % ws[1]) * kn + flat(k, kd)];
                        }
                    }
                }
            }
        }
    }
    result
}

fn close(found: &[f64], expected: &[f64], dtype: DType, what: &str) {
    assert_eq!(found.len(), expected.len(), "{what}");
    let bound = match dtype {
        DType::F64 => 1e-12,
        DType::F32 => 1e-5,
        DType::F16 => 1e-3,
        _ => 8e-3,
    };
    for (i, (f, e)) in found.iter().zip(expected).enumerate() {
        assert!((f - e).abs() <= bound * (4.0 + e.abs()), "{what} at {i}: {f}, expected {e}");
    }
}

const FLOATS: [DType; 4] = [DType::F32, DType::F64, DType::F16, DType::BF16];

fn window(strides: &[usize], pads: &[(usize, usize)], dilations: &[usize]) -> Window {
    Window { strides: strides.to_vec(), pads: pads.to_vec(), dilations: dilations.to_vec() }
}

const SETS: [Vectors; 3] = [Vectors::Base, Vectors::Avx2, Vectors::Avx512];

/// As [`run`], with the weights laid out as at load.
fn run_packed(
    op: &Conv,
    inputs: &[&Tensor],
    kernel: impl FnOnce(&[Operand<'_>], &mut [Target<'_>]),
) -> (Shape, Vec<f64>) {
    run(op, inputs, |x, out| match packing(op, &x[1].ty) {
        Some(packing) => {
            let mut lines = vec![[u64::MAX; 8]; packing.bytes.div_ceil(64)];
            let bytes = &mut bytemuck::cast_slice_mut(&mut lines)[..packing.bytes];
            (packing.pack)(&Op::Conv(op.clone()), &x[1], bytes);
            let mut x = x.to_vec();
            x[1].packed = Some(bytes);
            kernel(&x, out);
        }
        None => kernel(x, out),
    })
}

fn check_conv(x: &[usize], w: &[usize], groups: usize, window: Window) {
    for dtype in FLOATS {
        for bias in [false, true] {
            let op = Conv { window: window.clone(), groups, bias, epilogue: None };
            let (xt, wt, bt) = (numbers(x, dtype, 1), numbers(w, dtype, 2), numbers(&w[..1], dtype, 3));
            let inputs = if bias { vec![&xt, &wt, &bt] } else { vec![&xt, &wt] };
            let text = format!("{dtype:?} {x:?} * {w:?} groups {groups} {window:?}");
            let mut expected = None;
            for set in SETS {
                limit_vectors(set);
                let (shape, found) = run(&op, &inputs, |x, out| conv(&op, None, &OnceLock::new(), x, out));
                let expected =
                    expected.get_or_insert_with(|| expected_conv(&op, &xt, &wt, bias.then_some(&bt), &shape));
                close(&found, expected, dtype, &text);
                let (_, found) = run_packed(&op, &inputs, |x, out| conv(&op, None, &OnceLock::new(), x, out));
                close(&found, expected, dtype, &text);
            }
        }
    }
}

#[test]
fn conv_in_one_dimension_matches_direct_loops() {
    check_conv(&[2, 3, 17], &[5, 3, 4], 1, window(&[3], &[(2, 0)], &[2]));
    check_conv(&[1, 1, 400], &[24, 1, 10], 1, window(&[5], &[(0, 0)], &[1]));
    check_conv(&[1, 8, 1], &[8, 8, 3], 1, window(&[1], &[(1, 1)], &[1]));
}

#[test]
fn conv_in_two_dimensions_matches_direct_loops() {
    check_conv(&[2, 6, 9, 11], &[10, 6, 3, 3], 1, Window::same(2, 1, 1));
    check_conv(&[1, 6, 9, 11], &[10, 6, 3, 2], 1, window(&[2, 3], &[(2, 0), (0, 3)], &[1, 2]));
    check_conv(&[1, 16, 40, 41], &[20, 16, 3, 3], 1, Window::same(2, 1, 1));
    check_conv(&[1, 130, 5, 5], &[40, 130, 3, 3], 1, Window::same(2, 2, 1));
    check_conv(&[1, 40, 4, 3], &[37, 40, 3, 3], 1, Window::same(2, 1, 1));
    check_conv(&[1, 8, 30, 19], &[70, 8, 5, 5], 1, window(&[1, 1], &[(8, 8), (8, 8)], &[4, 4]));
    check_conv(&[2, 9, 7, 3], &[3, 3, 1, 1], 3, window(&[2, 2], &[(0, 0), (1, 1)], &[1, 1]));
    check_conv(&[3, 12, 7, 5], &[12, 4, 3, 3], 3, Window::same(2, 2, 2));
}

#[test]
fn conv_in_three_dimensions_matches_direct_loops() {
    check_conv(
        &[2, 8, 5, 6, 7],
        &[6, 4, 2, 3, 3],
        2,
        window(&[1, 2, 1], &[(1, 0), (0, 2), (2, 1)], &[2, 1, 2]),
    );
    check_conv(
        &[1, 4, 5, 6, 7],
        &[4, 1, 3, 3, 3],
        4,
        window(&[2, 1, 2], &[(1, 1), (0, 1), (2, 0)], &[1, 2, 1]),
    );
}

#[test]
fn pointwise_conv_matches_direct_loops() {
    check_conv(&[2, 24, 13, 13], &[16, 24, 1, 1], 1, Window::unit(2));
    check_conv(&[1, 24, 13, 13], &[16, 12, 1, 1], 2, Window::unit(2));
    check_conv(&[1, 24, 13, 13], &[16, 24, 1, 1], 1, Window::same(2, 2, 0));
    check_conv(&[1, 24, 13], &[16, 24, 1], 1, Window::same(1, 1, 1));
}

#[test]
fn depthwise_conv_matches_direct_loops() {
    check_conv(&[2, 5, 14, 70], &[5, 1, 3, 3], 5, Window::same(2, 1, 1));
    check_conv(&[1, 7, 13, 37], &[14, 1, 5, 3], 7, window(&[2, 2], &[(2, 1), (0, 2)], &[1, 1]));
    check_conv(&[1, 3, 20, 19], &[3, 1, 3, 3], 3, window(&[3, 3], &[(4, 4), (5, 1)], &[2, 4]));
    check_conv(&[1, 1, 60, 80], &[1, 1, 3, 3], 1, Window::same(2, 1, 1));
    check_conv(&[1, 4, 33], &[8, 1, 2], 4, window(&[7], &[(1, 0)], &[1]));
    check_conv(&[1, 2, 6, 1], &[2, 1, 3, 3], 2, window(&[1, 4], &[(1, 1), (6, 6)], &[1, 1]));
    check_conv(&[2, 8, 10, 10], &[8, 2, 3, 3], 4, Window::same(2, 1, 1));
}

#[test]
fn single_filters_by_lines_match_direct_loops() {
    for lines in 1..=9 {
        for width in [10, 16, 31, 33, 50, 64] {
            check_conv(&[1, 2, lines, width], &[2, 1, 5, 5], 2, Window::same(2, 1, 2));
        }
    }
    check_conv(&[2, 4, 6, 40], &[2, 2, 3, 3], 2, Window::same(2, 1, 1));
    check_conv(&[1, 3, 11, 20], &[3, 1, 7, 3], 3, window(&[1, 2], &[(3, 2), (0, 1)], &[1, 1]));
    check_conv(&[1, 3, 11, 40], &[3, 1, 3, 3], 3, window(&[1, 1], &[(1, 1), (2, 2)], &[1, 2]));
    check_conv(&[1, 5, 9, 21], &[5, 1, 3, 3], 5, Window::same(2, 2, 1));
    check_conv(&[1, 5, 10, 64], &[5, 1, 5, 5], 5, Window::same(2, 2, 2));
}

#[test]
fn any_number_of_threads_computes_the_same_convolution() {
    for threads in [1, 3, 8] {
        crate::Threads::new(Some(threads)).unwrap().install(|| {
            check_conv(&[1, 16, 21, 20], &[20, 16, 3, 3], 1, Window::same(2, 1, 1));
            check_conv(&[1, 64, 5, 5], &[30, 64, 3, 3], 1, Window::same(2, 1, 1));
            check_conv(&[1, 64, 5, 5], &[70, 64, 1, 1], 1, Window::unit(2));
            check_conv(&[1, 1, 90, 90], &[2, 1, 3, 3], 1, Window::same(2, 1, 1));
            check_conv(&[1, 1, 9, 20, 20], &[1, 1, 3, 3, 3], 1, Window::same(3, 2, 1));
            check_transpose(&[1, 32, 12, 12], &[32, 3, 4, 4], 1, Window::same(2, 2, 1), &[0, 0]);
        });
    }
}

#[test]
fn conv_with_nothing_to_sum_gives_the_bias() {
    check_conv(&[0, 3, 8, 8], &[4, 3, 3, 3], 1, Window::unit(2));
    check_conv(&[2, 0, 8, 8], &[4, 0, 3, 3], 1, Window::unit(2));
    check_conv(&[2, 0, 8, 8], &[4, 0, 1, 1], 2, Window::unit(2));
    check_conv(&[1, 3, 0, 4], &[4, 3, 2, 2], 1, Window::same(2, 1, 1));
    check_conv(&[1, 9, 0], &[8, 9, 2], 1, Window::same(1, 1, 1));
    check_conv(&[1, 8, 4], &[0, 8, 2], 1, Window::unit(1));
}

#[test]
fn windows_that_see_only_padding_give_the_bias() {
    check_conv(&[1, 2, 3, 3], &[2, 1, 2, 2], 2, window(&[1, 1], &[(5, 5), (4, 4)], &[1, 1]));
    check_conv(&[1, 9, 3, 3], &[8, 9, 2, 2], 1, window(&[2, 1], &[(5, 5), (4, 4)], &[1, 3]));
    check_conv(&[1, 1, 1], &[1, 1, 2], 1, window(&[1 << 40], &[(1 << 40, 1 << 40)], &[1 << 40]));
}

#[test]
fn epilogues_that_are_chains_match_direct_loops() {
    let scalar = |op: ScalarOp, args: &[Arg]| Instr { op: InstrOp::Scalar(op), args: args.to_vec() };
    let binary = |op: Binary, a: Arg, b: Arg| scalar(ScalarOp::Binary(op), &[a, b]);
    let (i, t) = (Arg::Input, Arg::Instr);
    // max((x − mean) · scale, 0.25) with or without a tensor added, then relu and a second scale.
    for plus in [false, true] {
        let mut instrs = vec![
            binary(Binary::Sub, i(0), i(1)),
            binary(Binary::Mul, i(2), t(0)),
            Instr { op: InstrOp::Splat(DType::F32, 0.25), args: vec![] },
            binary(Binary::Max, t(1), t(2)),
        ];
        instrs.push(if plus { binary(Binary::Add, t(3), i(3)) } else { binary(Binary::Sub, t(2), t(3)) });
        instrs.push(scalar(ScalarOp::Unary(Unary::Relu), &[t(4)]));
        instrs.push(binary(Binary::Mul, t(5), i(2)));
        let region = Region { inputs: 4, instrs, outputs: vec![t(6)] };
        for (x, w, groups) in [([2, 6, 9, 7], [10, 6, 3, 3], 1), ([1, 5, 20, 33], [5, 1, 3, 3], 5)] {
            let window = Window::same(2, 1, 1);
            let plain = Conv { window, groups, bias: true, epilogue: None };
            let (xt, wt) = (numbers(&x, DType::F32, 1), numbers(&w, DType::F32, 2));
            let bias = numbers(&w[..1], DType::F32, 3);
            let (mean, scale) =
                (numbers(&[w[0], 1, 1], DType::F32, 4), numbers(&[w[0], 1, 1], DType::F32, 5));
            let added = numbers(&[x[0], w[0], x[2], x[3]], DType::F32, 6);
            let inputs = [&xt, &wt, &bias, &mean, &scale, &added];
            let program = Program::new(&region, &[DType::F32; 4]);
            let shape = *added.shape();
            let mut expected = expected_conv(&plain, &xt, &wt, Some(&bias), &shape);
            let (mean, scale, added) = (mean.to_f64(), scale.to_f64(), added.to_f64());
            for (at, v) in expected.iter_mut().enumerate() {
                let c = at / (x[2] * x[3]) % w[0];
                let first = ((*v - mean[c]) * scale[c]).max(0.25);
                let second = if plus { first + added[at] } else { 0.25 - first };
                *v = second.max(0.0) * scale[c];
            }
            for set in SETS {
                limit_vectors(set);
                let run = |x: &[Operand<'_>], out: &mut [Target<'_>]| {
                    assert!(Chain::new(&program, &x[3..], &shape).is_some());
                    conv(&plain, Some(&program), &OnceLock::new(), x, out);
                };
                let (_, found) = run_with_extra(&plain, &inputs, run);
                close(&found, &expected, DType::F32, &format!("{x:?} * {w:?} plus {plus} {set:?}"));
            }
        }
    }
}

#[test]
fn finishing_sees_every_element_once_with_its_place() {
    let cases: [(&[usize], &[usize], usize); 4] = [
        (&[2, 16, 31, 29], &[24, 16, 3, 3], 1),
        (&[1, 64, 5, 5], &[48, 64, 3, 3], 1),
        (&[2, 6, 40, 41], &[6, 1, 3, 3], 6),
        (&[1, 1, 90, 90], &[1, 1, 3, 3], 1),
    ];
    for (x, w, groups) in cases {
        for dtype in [DType::F32, DType::F64] {
            let op = Conv { window: Window::same(2, 1, 1), groups, bias: false, epilogue: None };
            let (x, w) = (numbers(x, dtype, 4), numbers(w, dtype, 5));
            let seen = AtomicUsize::new(0);
            let single = |start: usize, run: &mut [f32]| {
                seen.fetch_add(run.len(), Ordering::Relaxed);
                run.iter_mut().enumerate().for_each(|(i, v)| *v += ((start + i) % 1000) as f32);
            };
            let double = |start: usize, run: &mut [f64]| {
                seen.fetch_add(run.len(), Ordering::Relaxed);
                run.iter_mut().enumerate().for_each(|(i, v)| *v += ((start + i) % 1000) as f64);
            };
            let (shape, found) = run(&op, &[&x, &w], |x, out| match dtype {
                DType::F64 => conv_double(&op, x, &OnceLock::new(), &mut out[0], Some(&double)),
                _ => conv_single(&op, x, &OnceLock::new(), &mut out[0], Chain::default(), Some(&single)),
            });
            let mut expected = expected_conv(&op, &x, &w, None, &shape);
            expected.iter_mut().enumerate().for_each(|(i, v)| *v += (i % 1000) as f64);
            close(&found, &expected, dtype, &format!("{dtype:?} {shape}"));
            assert_eq!(seen.into_inner(), shape.numel());
        }
    }
}

fn check_transpose(x: &[usize], w: &[usize], groups: usize, window: Window, output_padding: &[usize]) {
    for dtype in FLOATS {
        for bias in [false, true] {
            let op = ConvTranspose {
                window: window.clone(),
                groups,
                output_padding: output_padding.to_vec(),
                bias,
            };
            let (xt, wt) = (numbers(x, dtype, 6), numbers(w, dtype, 7));
            let bt = numbers(&[w[1] * groups], dtype, 8);
            let inputs = if bias { vec![&xt, &wt, &bt] } else { vec![&xt, &wt] };
            let (shape, found) = run(&op, &inputs, |x, out| conv_transpose(&op, x, out));
            let expected = expected_transpose(&op, &xt, &wt, bias.then_some(&bt), &shape);
            close(&found, &expected, dtype, &format!("{dtype:?} {x:?} * {w:?} groups {groups} {window:?}"));
        }
    }
}

#[test]
fn conv_transpose_matches_direct_loops() {
    check_transpose(&[2, 4, 9], &[4, 3, 4], 1, window(&[3], &[(1, 2)], &[2]), &[1]);
    check_transpose(&[1, 6, 7, 5], &[6, 2, 3, 3], 3, window(&[2, 1], &[(1, 0), (0, 2)], &[1, 2]), &[1, 0]);
    check_transpose(&[2, 16, 20, 21], &[16, 9, 4, 4], 1, Window::same(2, 2, 1), &[0, 0]);
    check_transpose(&[1, 32, 30, 30], &[32, 1, 4, 4], 1, Window::same(2, 2, 1), &[1, 1]);
    check_transpose(
        &[1, 4, 3, 4, 2],
        &[4, 2, 2, 3, 3],
        2,
        window(&[1, 2, 3], &[(0, 1), (1, 0), (2, 2)], &[2, 1, 1]),
        &[1, 1, 2],
    );
    check_transpose(&[1, 5, 6, 6], &[5, 1, 3, 3], 5, Window::same(2, 1, 1), &[0, 0]);
}

#[test]
fn conv_transpose_with_nothing_to_sum_gives_the_bias() {
    check_transpose(&[0, 4, 9], &[4, 3, 4], 1, Window::unit(1), &[0]);
    check_transpose(&[2, 0, 3], &[0, 3, 2], 1, Window::unit(1), &[0]);
}

#[test]
fn arbitrary_geometries_match_direct_loops() {
    let mut state = 7u64;
    let mut below = |n: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % n
    };
    let mut tried = 0;
    while tried < 120 {
        let spatial = 1 + below(3);
        let groups = 1 + below(3);
        let (channels, filters) = (1 + below(6), 1 + below(6));
        let mut sizes = |least: usize, most: usize| -> Vec<usize> {
            (0..spatial).map(|_| least + below(most - least + 1)).collect()
        };
        let (input, kernel) = (sizes(1, if spatial == 1 { 60 } else { 9 }), sizes(1, 4));
        let (strides, dilations) = (sizes(1, 3), sizes(1, 3));
        let pads: Vec<(usize, usize)> = sizes(0, 3).into_iter().zip(sizes(0, 3)).collect();
        let output_padding: Vec<usize> = strides.iter().map(|s| s - 1).collect();
        let window = Window { strides, pads, dilations };
        let x = [&[2, channels * groups][..], &input].concat();
        if (0..spatial).all(|i| window.count(i, input[i], kernel[i], false).is_ok()) {
            let w = [&[filters * groups, channels][..], &kernel].concat();
            check_conv(&x, &w, groups, window.clone());
            tried += 1;
        }
        let spread = |i: usize| (input[i] - 1) * window.strides[i] + window.span(i, kernel[i]).unwrap();
        if (0..spatial).all(|i| spread(i) >= window.pads[i].0 + window.pads[i].1) {
            let w = [&[channels * groups, filters][..], &kernel].concat();
            check_transpose(&x, &w, groups, window, &output_padding);
        }
    }
}

#[test]
fn im2col_lays_windows_out_as_columns_for_every_element_size() {
    for dtype in [DType::F32, DType::F16, DType::F64, DType::U8, DType::I64] {
        let x = numbers(&[2, 3, 6, 5], dtype, 9);
        let op = Im2Col { kernel: vec![2, 3], window: window(&[2, 1], &[(1, 0), (0, 2)], &[2, 1]) };
        let (shape, found) = run(&op, &[&x], |x, out| im2col(&op, x, out));
        let count = |i, n, k| op.window.count(i, n, k, false).unwrap();
        let od = [1, count(0, 6, 2), count(1, 5, 3)];
        let values = x.to_f64();
        let mut expected = Vec::new();
        for plane in 0..6 {
            for k in positions([1, 2, 3]) {
                for o in positions(od) {
                    let at = land(&op.window, o, k, [1, 6, 5]);
                    expected.push(at.map_or(0.0, |at| values[plane * 30 + flat(at, [1, 6, 5])]));
                }
            }
        }
        assert_eq!(&shape[..], [2, 18, od[1] * od[2]]);
        assert_eq!(found, expected, "{dtype:?}");
    }
}
