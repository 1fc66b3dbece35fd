//! Random geometries of convolutions, pools and their kin against direct loops, on every instruction set this processor
//! has and on one and two threads.
//!
//! Seeds are fixed. Elements are small whole numbers, so that every sum is exact and results must be equal.
#![allow(clippy::panic, clippy::unwrap_used, reason = "a failed expectation is a failed test")]

mod direct;
mod random;

use std::fmt::Debug;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, PoisonError};

use olivine_cpu::{Threads, Vectors, evaluate, limit_vectors};
use olivine_ir::op::{Conv, ConvTranspose, Im2Col, Pool, PoolKind, QConv, Window};
use olivine_ir::{DType, Op, Tensor, TensorType};

use direct::Direct;
use random::{Geometry, Rng, tensor, typed};

/// The instruction set is the whole process': one test at a time.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// Runs an operation everywhere and collects what differs.
struct Everywhere {
    pools: Vec<Threads>,
    tried: usize,
    failures: Vec<String>,
}

impl Everywhere {
    fn new() -> Self {
        let pools = [1, 2].map(|count| Threads::new(Some(count)).unwrap());
        Everywhere { pools: pools.into(), tried: 0, failures: Vec::new() }
    }

    /// Compares the results of `op` with the expected ones; `what` is printed where they differ.
    fn check(&mut self, what: &dyn Debug, op: &Op, inputs: &[Tensor], expected: &[Vec<f64>]) {
        self.tried += 1;
        for set in [Vectors::Base, Vectors::Avx2, Vectors::Avx512] {
            if limit_vectors(set) != set {
                continue;
            }
            for pool in &self.pools {
                let run = || pool.install(|| evaluate(op, inputs));
                let problem = match catch_unwind(AssertUnwindSafe(run)) {
                    Err(_) => Some("panicked".to_string()),
                    Ok(Err(error)) => Some(error.to_string()),
                    Ok(Ok(found)) => difference(&found, expected),
                };
                if let Some(problem) = problem {
                    self.failures.push(format!("{what:?} on {set:?}, {} thread(s): {problem}", pool.count()));
                }
            }
        }
    }

    fn finish(self) {
        limit_vectors(Vectors::Avx512);
        let first: Vec<_> = self.failures.iter().take(10).collect();
        let count = self.failures.len();
        assert!(first.is_empty(), "{count} failures in {} geometries, the first:\n{first:#?}", self.tried);
        assert!(self.tried > 0);
    }
}

/// Where results differ first.
fn difference(found: &[Tensor], expected: &[Vec<f64>]) -> Option<String> {
    for (number, (found, expected)) in found.iter().zip(expected).enumerate() {
        let found = found.to_f64();
        if found.len() != expected.len() {
            return Some(format!("{} elements, expected {}", found.len(), expected.len()));
        }
        if let Some(i) = (0..found.len()).find(|&i| found[i] != expected[i]) {
            return Some(format!("result {number} at {i}: {}, expected {}", found[i], expected[i]));
        }
    }
    None
}

fn types(inputs: &[Tensor]) -> Vec<TensorType> {
    inputs.iter().map(Tensor::ty).collect()
}

/// What a dtype holds of a number.
fn rounded(values: &[f64], dtype: DType) -> Vec<f64> {
    typed(&[values.len()], dtype, values).to_f64()
}

fn check_conv(all: &mut Everywhere, g: &Geometry, dtype: DType, bias: bool) {
    let (x, w) = (tensor(&g.x(), dtype, 1), tensor(&g.w(), dtype, 2));
    let b = tensor(&[g.groups * g.filters], dtype, 3);
    let direct = Direct::new(&g.window, &g.input, &g.kernel, &g.output());
    let bias_of = bias.then(|| b.to_f64());
    let sums = direct.convolve(g, &x.to_f64(), &w.to_f64(), bias_of.as_deref());
    let op = Conv { window: g.window.clone(), groups: g.groups, bias, epilogue: None };
    let inputs = if bias { vec![x, w, b] } else { vec![x, w] };
    all.check(&(dtype, g), &op.into(), &inputs, &[rounded(&sums, dtype)]);
}

fn check_qconv(all: &mut Everywhere, g: &Geometry, dtypes: [DType; 2], zeros: bool) {
    let (x, w) = (tensor(&g.x(), dtypes[0], 4), tensor(&g.w(), dtypes[1], 5));
    let zero = |dtype| typed(&[], dtype, &[3.0]);
    let direct = Direct::new(&g.window, &g.input, &g.kernel, &g.output());
    let less = |x: &Tensor| x.to_f64().iter().map(|v| v - if zeros { 3.0 } else { 0.0 }).collect::<Vec<_>>();
    let sums = direct.convolve(g, &less(&x), &less(&w), None);
    let op = QConv { window: g.window.clone(), groups: g.groups, x_zero: zeros, w_zero: zeros };
    let mut inputs = vec![x, w];
    if zeros {
        inputs.extend(dtypes.map(zero));
    }
    all.check(&(dtypes, g), &op.into(), &inputs, &[sums]);
}

#[test]
fn random_convolutions_match_direct_loops() {
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let (mut rng, mut all) = (Rng::new(1), Everywhere::new());
    for _ in 0..2500 {
        let g = Geometry::random(&mut rng);
        let dtype = rng.pick(&[DType::F32, DType::F32, DType::F32, DType::F64, DType::F16, DType::BF16]);
        let bias = rng.below(2) == 0;
        check_conv(&mut all, &g, dtype, bias);
    }
    all.finish();
}

#[test]
fn random_integer_convolutions_match_direct_loops() {
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let (mut rng, mut all) = (Rng::new(2), Everywhere::new());
    for _ in 0..1200 {
        let g = Geometry::random(&mut rng);
        let dtypes = [0, 1].map(|_| rng.pick(&[DType::U8, DType::I8]));
        let zeros = rng.below(2) == 0;
        check_qconv(&mut all, &g, dtypes, zeros);
    }
    all.finish();
}

#[test]
fn random_transposed_convolutions_match_direct_loops() {
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let (mut rng, mut all) = (Rng::new(3), Everywhere::new());
    while all.tried < 800 {
        // The geometry of the convolution that is transposed: its outputs are what is read here.
        let g = Geometry::random(&mut rng);
        let dtype = rng.pick(&[DType::F32, DType::F32, DType::F64, DType::F16]);
        let channels = g.groups * g.filters;
        let x = tensor(&[&[g.images, channels], &g.output()[..]].concat(), dtype, 6);
        let w = tensor(&[&[channels, g.channels], &g.kernel[..]].concat(), dtype, 7);
        let op = ConvTranspose {
            window: g.window.clone(),
            groups: g.groups,
            output_padding: g.rest(),
            bias: false,
        };
        // Padding of more than there is to cut off is refused.
        let Ok(result) = olivine_ir::op::Rule::infer(&op, &types(&[x.clone(), w.clone()])) else { continue };
        assert_eq!(&result[0].shape[2..], g.input, "{g:?}");
        let direct = Direct::new(&g.window, &g.input, &g.kernel, &g.output());
        let sums = direct.spread(&g, &x.to_f64(), &w.to_f64());
        all.check(&(dtype, &g), &op.into(), &[x, w], &[rounded(&sums, dtype)]);
    }
    all.finish();
}

#[test]
fn random_pools_match_direct_loops() {
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let (mut rng, mut all) = (Rng::new(4), Everywhere::new());
    while all.tried < 1500 {
        let g = Geometry::random(&mut rng);
        let dtype = rng.pick(&[DType::F32, DType::F32, DType::F64, DType::F16, DType::I32, DType::U8]);
        let kind = rng.pick(&[PoolKind::Max, PoolKind::Average, PoolKind::Lp]);
        // Means are rounded once in f64 and f32 alike.
        if kind != PoolKind::Max && !matches!(dtype, DType::F32 | DType::F64) {
            continue;
        }
        let op = Pool {
            kind,
            kernel: g.kernel.clone(),
            window: g.window.clone(),
            ceil: false,
            count_include_pad: rng.below(2) == 0,
            p: 1,
            indices: kind == PoolKind::Max && rng.below(2) == 0,
        };
        let x = tensor(&g.x(), dtype, 8);
        // Windows of padding alone are refused.
        if olivine_ir::op::Rule::infer(&op, &[x.ty()]).is_err() {
            continue;
        }
        let direct = Direct::new(&g.window, &g.input, &g.kernel, &g.output());
        let (values, positions) = direct.pool(&op, &x.to_f64());
        let mut expected = vec![rounded(&values, dtype)];
        expected.extend(op.indices.then_some(positions));
        all.check(&(dtype, kind, &g), &op.into(), &[x], &expected);
    }
    all.finish();
}

#[test]
fn random_columns_of_windows_match_direct_loops() {
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let (mut rng, mut all) = (Rng::new(5), Everywhere::new());
    for _ in 0..400 {
        let g = Geometry::random(&mut rng);
        let dtype = rng.pick(&[DType::F32, DType::F64, DType::F16, DType::U8]);
        let x = tensor(&g.x(), dtype, 9);
        let columns = Direct::new(&g.window, &g.input, &g.kernel, &g.output()).columns(&x.to_f64());
        let op = Im2Col { kernel: g.kernel.clone(), window: g.window.clone() };
        all.check(&(dtype, &g), &op.into(), &[x], &[columns]);
    }
    all.finish();
}

/// Every number of positions per tile where filters fill the lanes, channels that fill them or nearly, lines of every
/// width in and around vectors, and rows so far apart that bands share one copy of the input.
#[test]
fn filters_and_channels_in_lanes_match_direct_loops() {
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let mut all = Everywhere::new();
    let conv =
        |groups, x: [usize; 2], input: [usize; 2], kernel: [usize; 2], steps: [usize; 2], far: [usize; 2]| {
            let reach = |i: usize| (kernel[i] - 1) * far[i];
            Geometry {
                images: 2,
                groups,
                channels: x[0],
                filters: x[1],
                input: input.to_vec(),
                kernel: kernel.to_vec(),
                window: Window {
                    strides: steps.to_vec(),
                    pads: vec![(reach(0) / 2, reach(0).div_ceil(2)), (reach(1) / 2, reach(1).div_ceil(2))],
                    dilations: far.to_vec(),
                },
            }
        };
    for width in 1..=18 {
        for filters in [32, 33, 47, 50] {
            check_conv(
                &mut all,
                &conv(1, [9, filters], [2, width], [3, 3], [1, 1], [1, 1]),
                DType::F32,
                true,
            );
            check_conv(
                &mut all,
                &conv(1, [70, filters], [1, width], [1, 1], [1, 1], [1, 1]),
                DType::F32,
                true,
            );
        }
        check_conv(&mut all, &conv(1, [300, 32], [1, width], [1, 1], [1, 1], [1, 1]), DType::F32, false);
    }
    for width in (1..=20).chain([31, 32, 33, 47, 48, 49, 50, 63, 64, 65, 99]) {
        for groups in [4, 8, 15, 16, 17, 35] {
            let sides = [
                ([3, 3], [1, 1], [1, 1]),
                ([5, 5], [1, 1], [1, 1]),
                ([3, 3], [2, 2], [1, 1]),
                ([2, 4], [3, 2], [1, 1]),
                ([3, 3], [1, 1], [2, 3]),
            ];
            for (kernel, steps, far) in sides {
                let g = conv(groups, [1, 1], [6, width], kernel, steps, far);
                check_conv(&mut all, &g, if groups == 8 { DType::F64 } else { DType::F32 }, true);
            }
        }
    }
    for (rows, width) in [(50, 30), (70, 9), (131, 17)] {
        for (channels, filters) in [(64, 2), (40, 33)] {
            let g = conv(1, [channels, filters], [rows, width], [5, 1], [1, 1], [9, 1]);
            check_conv(&mut all, &g, DType::F32, true);
            let g = conv(2, [channels, filters], [rows, width], [3, 3], [2, 1], [20, 2]);
            check_conv(&mut all, &g, DType::F32, true);
        }
    }
    all.finish();
}

/// Geometries in which a band of output sees nothing but padding, and pointwise ones whose last band is short.
#[test]
fn bands_wholly_in_padding_and_short_last_bands_match_direct_loops() {
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let mut all = Everywhere::new();
    let geometry = |x: [usize; 2], input: &[usize], kernel: &[usize], pads: &[(usize, usize)]| Geometry {
        images: 1,
        groups: 1,
        channels: x[0],
        filters: x[1],
        input: input.to_vec(),
        kernel: kernel.to_vec(),
        window: Window { pads: pads.to_vec(), ..Window::unit(input.len()) },
    };
    for pads in [[(2, 2), (8200, 2)], [(2, 2), (2, 8200)], [(8200, 2), (2, 2)], [(2, 8200), (2, 2)]] {
        check_conv(&mut all, &geometry([1, 2], &[6, 7], &[5, 5], &pads), DType::F32, true);
    }
    for pad in [255, 256, 257, 600, 1000] {
        for pads in [(pad, 0), (0, pad), (pad, pad)] {
            check_conv(&mut all, &geometry([256, 2], &[5], &[3], &[pads]), DType::F32, true);
            check_conv(&mut all, &geometry([64, 2], &[3, 4], &[3, 3], &[(1, 1), pads]), DType::F32, true);
            check_conv(&mut all, &geometry([64, 2], &[2, 3], &[2, 3], &[pads, (1, 0)]), DType::F32, true);
            // A band as long as the input and its padding is not the input.
            check_conv(&mut all, &geometry([256, 3], &[194], &[3], &[pads]), DType::F32, true);
            check_qconv(
                &mut all,
                &geometry([16, 2], &[3, 4], &[3, 3], &[(1, 1), pads]),
                [DType::U8; 2],
                true,
            );
        }
    }
    for channels in [192, 256, 384, 512] {
        for positions in [193, 196, 208, 385, 400, 600, 601, 777] {
            for filters in [1, 2] {
                let g = geometry([channels, filters], &[1, positions], &[1, 1], &[(0, 0), (0, 0)]);
                check_conv(&mut all, &g, DType::F32, false);
            }
        }
        let g = geometry([channels, 16], &[600], &[1], &[(0, 0)]);
        check_conv(&mut all, &g, DType::F16, false);
    }
    // Distances beyond any memory, of windows that see little.
    for (stride, dilation) in [(1 << 40, 1 << 40), (1, 1 << 40), (1 << 40, 1), ((1 << 40) - 1, 1 << 40)] {
        let mut g = geometry([2, 1], &[3], &[2], &[(1 << 40, 1)]);
        g.window.strides = vec![stride];
        g.window.dilations = vec![dilation];
        if g.fits() {
            check_conv(&mut all, &g, DType::F32, true);
            check_qconv(&mut all, &g, [DType::U8, DType::I8], true);
        }
    }
    all.finish();
}
