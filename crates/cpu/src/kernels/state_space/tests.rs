use olivine_ir::op::{GatedDeltaNet, Mamba2, SelectiveScan};
use olivine_ir::{DType, Op, Shape, TensorType};

use super::heads::{gated_delta_net, mamba2};
use super::selective::selective_scan;
use super::*;

fn ty(dims: &[usize]) -> TensorType {
    TensorType::new(DType::F64, Shape::new(dims).unwrap())
}

fn numbers(dims: &[usize], low: f64, high: f64) -> (TensorType, Vec<f64>) {
    let at = |i: usize| low + (high - low) * ((i * 37 + dims.len() * 11) % 101) as f64 / 100.0;
    (ty(dims), (0..dims.iter().product()).map(at).collect())
}

/// Runs an operation on f64 operands.
fn run(op: &Op, operands: &[(TensorType, Vec<f64>)]) -> Vec<(TensorType, Vec<f64>)> {
    let types: Vec<TensorType> = operands.iter().map(|o| o.0).collect();
    let results = op.infer(&types).unwrap();
    let mut memory: Vec<Vec<f64>> = results.iter().map(|t| vec![7.0; t.shape.numel()]).collect();
    let x: Vec<Operand<'_>> =
        operands.iter().map(|(t, v)| Operand::packed(*t, bytemuck::cast_slice(v))).collect();
    let mut out: Vec<Target<'_>> = results
        .iter()
        .zip(&mut memory)
        .map(|(ty, m)| Target { ty: *ty, bytes: bytemuck::cast_slice_mut(m) })
        .collect();
    match op {
        Op::SelectiveScan(op) => selective_scan(op, &x, &mut out),
        Op::Mamba2(op) => mamba2(op, &x, &mut out),
        Op::GatedDeltaNet(op) => gated_delta_net(op, &x, &mut out),
        other => panic!("{} has no such state", other.name()),
    }
    results.into_iter().zip(memory).collect()
}

/// A part of the second axis.
fn cut((ty_, data): &(TensorType, Vec<f64>), from: usize, to: usize) -> (TensorType, Vec<f64>) {
    let mut dims = ty_.shape.to_vec();
    let (length, inner): (usize, usize) = (dims[1], dims[2..].iter().product());
    dims[1] = to - from;
    let rows = data.chunks(length * inner);
    (ty(&dims), rows.flat_map(|r| r[from * inner..to * inner].iter().copied()).collect())
}

/// Whether a sequence in two calls, the state carried over, is the sequence in one.
fn carries(op: &Op, whole: &[(TensorType, Vec<f64>)], along: &[usize], middle: usize) {
    let length = whole[0].0.shape[1];
    let of = |from, to, state: Option<&(TensorType, Vec<f64>)>| {
        let mut parts: Vec<_> = whole
            .iter()
            .enumerate()
            .map(|(i, x)| if along.contains(&i) { cut(x, from, to) } else { x.clone() })
            .collect();
        if let (Some(state), Some(last)) = (state, parts.last_mut()) {
            *last = state.clone();
        }
        run(op, &parts)
    };
    let once = run(op, whole);
    let first = of(0, middle, None);
    let second = of(middle, length, Some(&first[1]));
    assert_eq!(second[1], once[1], "{}", op.name());
    assert_eq!(cut(&once[0], 0, middle), first[0]);
    assert_eq!(cut(&once[0], middle, length), second[0]);
}

#[test]
fn a_sequence_in_two_calls_is_the_sequence_in_one() {
    let scan = SelectiveScan { state: true, softplus: true, ..SelectiveScan::new() };
    let operands = [
        numbers(&[2, 9, 70], -1.0, 1.0),
        numbers(&[2, 9, 70], -1.0, 1.0),
        numbers(&[70, 3], -2.0, 0.0),
        numbers(&[2, 9, 3], -1.0, 1.0),
        numbers(&[2, 9, 3], -1.0, 1.0),
        numbers(&[2, 70, 3], -1.0, 1.0),
    ];
    carries(&scan.into(), &operands, &[0, 1, 3, 4], 4);
    let operands = [
        numbers(&[2, 9, 4, 5], -1.0, 1.0),
        numbers(&[2, 9, 4], 0.0, 1.0),
        numbers(&[4], -2.0, 0.0),
        numbers(&[2, 9, 2, 3], -1.0, 1.0),
        numbers(&[2, 9, 2, 3], -1.0, 1.0),
        numbers(&[2, 4, 5, 3], -1.0, 1.0),
    ];
    carries(&Mamba2 { skip: false, state: true }.into(), &operands, &[0, 1, 3, 4], 0);
    let net = GatedDeltaNet { state: true, ..GatedDeltaNet::new() };
    let operands = [
        numbers(&[2, 9, 2, 3], -0.5, 0.5),
        numbers(&[2, 9, 2, 3], -0.5, 0.5),
        numbers(&[2, 9, 4, 5], -1.0, 1.0),
        numbers(&[2, 9, 4], -2.0, 0.0),
        numbers(&[2, 9, 4], 0.0, 1.0),
        numbers(&[2, 4, 3, 5], -1.0, 1.0),
    ];
    carries(&net.into(), &operands, &[0, 1, 2, 3, 4], 8);
}

#[test]
fn a_delta_net_that_forgets_everything_sees_its_last_key_alone() {
    let step = |dims: &[usize], data: &[f64]| (ty(dims), data.to_vec());
    let operands = [
        step(&[1, 2, 1, 2], &[9.0, 9.0, 3.0, 1.0]),
        step(&[1, 2, 1, 2], &[5.0, 5.0, 1.0, 2.0]),
        step(&[1, 2, 1, 1], &[4.0, 10.0]),
        step(&[1, 2, 1], &[0.0, f64::NEG_INFINITY]),
        step(&[1, 2, 1], &[1.0, 0.5]),
    ];
    let out = run(&GatedDeltaNet { scale: Some(1.0), ..GatedDeltaNet::new() }.into(), &operands);
    // d = 10·0.5, S = k·d, o = S·q.
    assert_eq!(out[1].1, [5.0, 10.0]);
    assert_eq!(out[0].1[1], 25.0);
}
