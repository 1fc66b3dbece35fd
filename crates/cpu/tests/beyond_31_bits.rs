//! Tensors of more elements than 31 bits count, on the CPU.
//!
//! Inputs are zeros but for a few marks, so that their pages take no memory of their own; results take 2 GiB. Where the
//! machine has less to give, what is not tried is printed. Kernels of floats need four times as much and are checked by
//! `olivine bench large` on a device that has it.
#![allow(clippy::panic, clippy::unwrap_used, reason = "a failed expectation is a failed test")]

use std::sync::Arc;

use olivine_compile::{Options, compile};
use olivine_cpu::{CpuEvaluator, Executable, Weights};
use olivine_ir::op::{PadMode, ReduceKind};
use olivine_ir::{DType, Error, Graph, Tensor, TensorView, ValueId};

/// Elements of the input: more than 31 bits count.
const N: usize = (1 << 31) + 4;
/// Memory that must be free: a result, and room to breathe.
const NEEDED: usize = 4 << 30;

/// Bytes that can be had without swapping; none where it is not known.
fn available() -> usize {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    let kib = line.and_then(|line| line.trim().trim_end_matches("kB").trim().parse::<usize>().ok());
    kib.unwrap_or(0).saturating_mul(1024)
}

/// Computes a graph of one u8 input of `dims` into the beginning of `out`; the answer is how many bytes that are.
fn run(
    x: &[u8],
    dims: &[usize],
    out: &mut [u8],
    build: impl FnOnce(&mut Graph, ValueId) -> Result<ValueId, Error>,
) -> usize {
    let mut g = Graph::new("large");
    let input = g.input("x", DType::U8, dims).unwrap();
    let result = build(&mut g, input).unwrap();
    let bytes = g.ty(result).unwrap().bytes();
    g.output("y", result).unwrap();
    let options = Options { evaluator: Some(&CpuEvaluator), ..Options::default() };
    let start = std::time::Instant::now();
    let executable =
        Executable::new(&compile(&g, &options).unwrap(), Arc::new(Weights::new()), false).unwrap();
    executable.run(&[TensorView::new(dims, x).unwrap()], &mut [&mut out[..bytes]]).unwrap();
    println!("{dims:?} to {bytes} bytes in {:?}", start.elapsed());
    bytes
}

/// Positions of what is not `zero`, with what is there.
fn marks(x: &[u8], zero: u8) -> Vec<(usize, u8)> {
    let mut found = Vec::new();
    for (block, part) in x.chunks(1 << 12).enumerate() {
        if part.iter().any(|v| *v != zero) {
            let places = part.iter().enumerate().filter(|(_, v)| **v != zero);
            found.extend(places.map(|(i, v)| ((block << 12) + i, *v)));
        }
    }
    found
}

#[test]
fn kernels_count_beyond_31_bits() {
    if available() < NEEDED {
        println!("NOT TRIED: tensors of {N} elements need {NEEDED} bytes, {} are free", available());
        return;
    }
    let mut x = vec![0u8; N];
    let mut out = vec![0u8; N + 64];
    let input = [(5, 3u8), (1 << 30, 11), ((1 << 31) - 1, 13), (1 << 31, 17), (N - 2, 19)];
    input.iter().for_each(|(at, value)| x[*at] = *value);

    // Along an axis that long.
    let index = |out: &[u8]| i64::from_le_bytes(out[..8].try_into().unwrap());
    run(&x, &[N], &mut out, |g, x| g.argmax(x, 0, false));
    assert_eq!(index(&out), N as i64 - 2, "argmax");
    run(&x, &[N], &mut out, |g, x| g.reduce(ReduceKind::Max, x, &[0], false));
    assert_eq!(out[0], 19, "maximum");
    run(&x, &[N], &mut out, |g, x| g.reduce(ReduceKind::Sum, x, &[0], false));
    assert_eq!(out[0], 3 + 11 + 13 + 17 + 19, "sum");
    run(&x, &[N], &mut out, |g, x| {
        let i = g.constant(Tensor::new([4], vec![N as i64 - 2, -2, 1 << 31, 5])?);
        g.gather(x, i, 0)
    });
    assert_eq!(out[..4], [19, 19, 17, 3], "gather");
    let tail = (1 << 31) - 2;
    let len = run(&x, &[N], &mut out, |g, x| g.slice(x, 0, tail as i64, N as i64, 1));
    assert_eq!(out[..len], x[tail..], "slice");

    // In all.
    let half = N / 2;
    run(&x, &[2, half], &mut out, |g, x| g.reduce(ReduceKind::Sum, x, &[1], false));
    assert_eq!(out[..2], [3 + 11, 13 + 17 + 19], "sums of rows");
    let len = run(&x, &[half, 2], &mut out, |g, x| g.transpose(x, &[1, 0]));
    let mut turned = input.map(|(at, value)| (at % 2 * half + at / 2, value));
    turned.sort_unstable();
    assert_eq!(marks(&out[..len], 0), turned, "transpose");
    let len = run(&x, &[2, half], &mut out, |g, x| g.transpose(x, &[1, 0]));
    let mut turned = input.map(|(at, value)| (at % half * 2 + at / half, value));
    turned.sort_unstable();
    assert_eq!(marks(&out[..len], 0), turned, "transpose of long rows");
    let len = run(&x, &[N], &mut out, |g, x| {
        let one = g.constant(Tensor::scalar(1u8));
        g.add(x, one)
    });
    assert_eq!(marks(&out[..len], 1), input.map(|(at, value)| (at, value + 1)), "addition");
    let len = run(&x, &[N], &mut out, |g, x| g.pad(x, &[(7, 9)], PadMode::Constant, 2.0));
    assert_eq!((&out[..7], &out[len - 9..len]), (&[2; 7][..], &[2; 9][..]), "padding");
    assert_eq!(marks(&out[7..len - 9], 0), input, "padding");
    let len = run(&x, &[half, 2], &mut out, |g, x| {
        let parts = g.split(x, 0, &[3, half - 3])?;
        g.concat(&[parts[1], parts[0]], 0)
    });
    let mut moved = input.map(|(at, value)| ((at + N - 6) % N, value));
    moved.sort_unstable();
    assert_eq!(marks(&out[..len], 0), moved, "concatenation");
}
