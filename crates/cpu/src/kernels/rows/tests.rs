//! Rows against their definitions in f64.

use half::{bf16, f16};
use olivine_ir::op::{Arg, Binary, Instr, InstrOp, Region, ScalarOp};
use olivine_ir::{Shape, TensorType};

use super::*;

fn ty(dtype: DType, dims: &[usize]) -> TensorType {
    TensorType::new(dtype, Shape::new(dims).unwrap())
}

fn packed<'a, T: bytemuck::Pod>(dtype: DType, dims: &[usize], data: &'a [T]) -> Operand<'a> {
    Operand::packed(ty(dtype, dims), bytemuck::cast_slice(data))
}

fn target<'a, T: bytemuck::Pod>(dtype: DType, dims: &[usize], data: &'a mut [T]) -> Target<'a> {
    Target { ty: ty(dtype, dims), bytes: bytemuck::cast_slice_mut(data) }
}

fn numbers(n: usize) -> Vec<f32> {
    (0..n).map(|i| ((i * 7919) % 1013) as f32 / 100.0 - 5.0).collect()
}

fn soft(x: &[f32], dims: &[usize], axis: usize, log: bool) -> Vec<f32> {
    let mut out = vec![0f32; x.len()];
    let (x, mut out_target) = ([packed(DType::F32, dims, x)], [target(DType::F32, dims, &mut out)]);
    if log {
        log_softmax(&LogSoftmax { axis }, &x, &mut out_target);
    } else {
        softmax(&Softmax { axis }, &x, &mut out_target);
    }
    out
}

#[test]
fn softmax_along_every_axis_matches_its_definition() {
    for dims in [vec![4, 3, 300, 7], vec![1000], vec![3, 1, 5000], vec![2, 40, 600], vec![1, 9, 70]] {
        let x = numbers(dims.iter().product());
        for axis in 0..dims.len() {
            let (n, inner) = (dims[axis], dims[axis + 1..].iter().product::<usize>());
            let (ours, logs) = (soft(&x, &dims, axis, false), soft(&x, &dims, axis, true));
            for i in 0..x.len() {
                let first = i / (n * inner) * n * inner + i % inner;
                let sum: f64 = (0..n).map(|j| f64::from(x[first + j * inner]).exp()).sum();
                let truth = f64::from(x[i]).exp() / sum;
                assert!((f64::from(ours[i]) / truth - 1.0).abs() < 1e-6, "{dims:?} axis {axis}");
                assert!((f64::from(logs[i]) - truth.ln()).abs() < 3e-6, "{dims:?} axis {axis}");
            }
        }
    }
}

#[test]
fn softmax_does_not_overflow_and_keeps_ieee_at_infinities() {
    let inf = f32::INFINITY;
    let rows =
        [[1e30, 0.0, 1e30], [-inf, -inf, -inf], [-inf, 0.0, 0.0], [inf, 0.0, 0.0], [f32::NAN, 1.0, 2.0]];
    for (dims, axis, x) in
        [([5, 3], 1, rows.concat()), ([3, 5], 0, (0..15).map(|i| rows[i % 5][i / 5]).collect::<Vec<f32>>())]
    {
        let out = soft(&x, &dims, axis, false);
        let at = |row: usize, i: usize| if axis == 1 { out[row * 3 + i] } else { out[i * 5 + row] };
        assert_eq!([at(0, 0), at(0, 1), at(2, 0), at(2, 1)], [0.5, 0.0, 0.0, 0.5]);
        assert!([1, 3, 4].iter().all(|row| (0..3).all(|i| at(*row, i).is_nan())), "{out:?}");
    }
    assert!(soft(&[], &[0, 4], 1, false).is_empty());
    assert!(soft(&[], &[4, 0], 1, true).is_empty());
}

fn layer_norm_by_definition(x: &[f32], gamma: &[f32], beta: &[f32], eps: f64, rms: bool) -> Vec<f64> {
    let n = gamma.len();
    x.chunks(n)
        .flat_map(|row| {
            let mean = if rms { 0.0 } else { row.iter().map(|v| f64::from(*v)).sum::<f64>() / n as f64 };
            let var = row.iter().map(|v| (f64::from(*v) - mean).powi(2)).sum::<f64>() / n as f64;
            let scale = (var + eps).sqrt();
            let norm =
                |i: usize| (f64::from(row[i]) - mean) / scale * f64::from(gamma[i]) + f64::from(beta[i]);
            (0..n).map(norm).collect::<Vec<f64>>()
        })
        .collect()
}

#[test]
fn norms_match_their_definition_even_far_from_zero() {
    for (n, shift, scale) in
        [(768, 0.0, 1.0), (1000, 3e4, 0.01), (5, -7.0, 1e-3), (20_000, 1.0, 1e18), (33, 0.0, 1e-25)]
    {
        let x: Vec<f32> = numbers(3 * n).iter().map(|v| v * scale + shift).collect();
        let (gamma, beta) = (numbers(n), numbers(2 * n)[n..].to_vec());
        let operands = [
            packed(DType::F32, &[3, n], &x),
            packed(DType::F32, &[n], &gamma),
            packed(DType::F32, &[n], &beta),
        ];
        let eps = 1e-12 * f64::from(scale * scale);
        for rms in [false, true] {
            let mut out = vec![0f32; 3 * n];
            let mut targets = [target(DType::F32, &[3, n], &mut out)];
            if rms {
                let op = RmsNorm { axis: 1, eps, bias: true, prologue: None, emit_input: false };
                rms_norm(&op, None, &operands, &mut targets);
            } else {
                let op = LayerNorm { axis: 1, eps, bias: true, prologue: None, emit_input: false };
                layer_norm(&op, None, &operands, &mut targets);
            }
            let truth = layer_norm_by_definition(&x, &gamma, &beta, eps, rms);
            for (a, b) in out.iter().zip(&truth) {
                assert!((f64::from(*a) - b).abs() < 1e-5 * b.abs().max(1.0), "n {n}, rms {rms}: {a} {b}");
            }
        }
    }
}

/// The mean is first guessed from 16 elements of each quarter: here these, or all that grow, say little about it.
#[test]
fn norms_match_their_definition_where_some_elements_are_far_from_the_mean() {
    for n in [1, 2, 63, 64, 65, 127, 1000, 1024, 9001] {
        let sampled = |i: usize| i % (n / 4).max(1) < 16;
        let shapes: [&dyn Fn(usize, f32) -> f32; 5] = [
            &|i, v| if sampled(i) { v + 1e4 } else { v },
            &|i, v| if i < 16 { v - 300.0 } else { v },
            &|i, v| v * 0.01 + i as f32,
            &|i, _| if i == n - 1 { 1.0 } else { 0.0 },
            &|i, v| if sampled(i) { 7.0 } else { v },
        ];
        for (which, shape) in shapes.iter().enumerate() {
            let x: Vec<f32> = numbers(n).iter().enumerate().map(|(i, v)| shape(i, *v)).collect();
            let (gamma, beta) = (vec![1.0f32; n], vec![0.5f32; n]);
            let operands = [
                packed(DType::F32, &[1, n], &x),
                packed(DType::F32, &[n], &gamma),
                packed(DType::F32, &[n], &beta),
            ];
            let mut out = vec![0f32; n];
            let op = LayerNorm { axis: 1, eps: 1e-6, bias: true, prologue: None, emit_input: false };
            layer_norm(&op, None, &operands, &mut [target(DType::F32, &[1, n], &mut out)]);
            let truth = layer_norm_by_definition(&x, &gamma, &beta, 1e-6, false);
            for (a, b) in out.iter().zip(&truth) {
                assert!((f64::from(*a) - b).abs() < 1e-5 * b.abs().max(1.0), "n {n}, shape {which}: {a} {b}");
            }
        }
    }
}

#[test]
fn a_norm_takes_a_prologue_and_emits_its_input() {
    let (m, n) = (70, 600);
    let (x, residual, gamma) = (numbers(m * n), numbers(m * n + 5)[5..].to_vec(), numbers(n));
    let add = Instr {
        op: InstrOp::Scalar(ScalarOp::Binary(Binary::Add)),
        args: vec![Arg::Input(0), Arg::Input(1)],
    };
    let region = Region { inputs: 2, instrs: vec![add], outputs: vec![Arg::Instr(0)] };
    let program = Program::new(&region, &[DType::F32; 2]);
    let sum: Vec<f32> = x.iter().zip(&residual).map(|(a, b)| a + b).collect();
    let truth = layer_norm_by_definition(&sum, &gamma, &vec![0.0; n], 1e-5, true);
    for emit in [false, true] {
        let op =
            RmsNorm { axis: 1, eps: 1e-5, bias: false, prologue: Some(region.clone()), emit_input: emit };
        let (mut out, mut emitted) = (vec![0f32; m * n], vec![0f32; m * n]);
        let operands = [
            packed(DType::F32, &[m, n], &x),
            packed(DType::F32, &[n], &gamma),
            packed(DType::F32, &[m, n], &residual),
        ];
        let mut targets =
            vec![target(DType::F32, &[m, n], &mut out), target(DType::F32, &[m, n], &mut emitted)];
        targets.truncate(1 + usize::from(emit));
        rms_norm(&op, Some(&program), &operands, &mut targets);
        assert!(out.iter().zip(&truth).all(|(a, b)| (f64::from(*a) - b).abs() < 1e-5));
        assert!(!emit || emitted == sum);
    }
}

#[test]
fn narrow_and_wide_floats_norm_in_their_own_way() {
    let n = 257;
    let x = numbers(2 * n);
    let truth = layer_norm_by_definition(&x, &vec![1.0; n], &vec![0.0; n], 1e-5, false);
    let op = LayerNorm { axis: 1, eps: 1e-5, bias: false, prologue: None, emit_input: true };
    let halves: Vec<f16> = x.iter().map(|v| f16::from_f32(*v)).collect();
    let (mut out, mut emitted) = (vec![f16::ZERO; 2 * n], vec![f16::ZERO; 2 * n]);
    let ones = vec![f16::ONE; n];
    let operands = [packed(DType::F16, &[2, n], &halves), packed(DType::F16, &[n], &ones)];
    let mut targets = [target(DType::F16, &[2, n], &mut out), target(DType::F16, &[2, n], &mut emitted)];
    layer_norm(&op, None, &operands, &mut targets);
    assert!(out.iter().zip(&truth).all(|(a, b)| (a.to_f64() - b).abs() < 4e-3));
    assert_eq!(emitted, halves);
    let doubles: Vec<f64> = x.iter().map(|v| f64::from(*v)).collect();
    let (mut out, mut emitted) = (vec![0f64; 2 * n], vec![0f64; 2 * n]);
    let ones = vec![1f64; n];
    let operands = [packed(DType::F64, &[2, n], &doubles), packed(DType::F64, &[n], &ones)];
    let mut targets = [target(DType::F64, &[2, n], &mut out), target(DType::F64, &[2, n], &mut emitted)];
    layer_norm(&op, None, &operands, &mut targets);
    assert!(out.iter().zip(&truth).all(|(a, b)| (a - b).abs() < 1e-12));
    let rows: Vec<bf16> = x.iter().map(|v| bf16::from_f32(*v)).collect();
    let mut out = vec![bf16::ZERO; 2 * n];
    softmax(
        &Softmax { axis: 1 },
        &[packed(DType::BF16, &[2, n], &rows)],
        &mut [target(DType::BF16, &[2, n], &mut out)],
    );
    let sum: f32 = out[..n].iter().map(|v| v.to_f32()).sum();
    assert!((sum - 1.0).abs() < 1e-2);
}

#[test]
fn group_norm_scales_channels_by_their_groups_moments() {
    let (batch, channels, positions, groups) = (3, 12, 35, 4);
    let x = numbers(batch * channels * positions);
    let (gamma, beta) = (numbers(channels), numbers(2 * channels)[channels..].to_vec());
    let mut out = vec![0f32; x.len()];
    let dims = [batch, channels, 5, 7];
    let operands = [
        packed(DType::F32, &dims, &x),
        packed(DType::F32, &[channels], &gamma),
        packed(DType::F32, &[channels], &beta),
    ];
    group_norm(&GroupNorm { groups, eps: 1e-5 }, &operands, &mut [target(DType::F32, &dims, &mut out)]);
    let row = channels / groups * positions;
    let plain = layer_norm_by_definition(&x, &vec![1.0; row], &vec![0.0; row], 1e-5, false);
    for i in 0..x.len() {
        let c = i / positions % channels;
        let truth = plain[i] * f64::from(gamma[c]) + f64::from(beta[c]);
        assert!((f64::from(out[i]) - truth).abs() < 1e-5, "{i}");
    }
}
