//! Fourier transforms along any axis: lines are gathered, transformed by rustfft and realfft, and put back.

use std::sync::Arc;

use olivine_ir::op::{Fft, FftKind};
use olivine_ir::{DType, Shape};
use realfft::{ComplexToReal, RealFftPlanner, RealToComplex};
use rustfft::FftPlanner;
use rustfft::num_complex::Complex;

use crate::kernel::kernels;
use crate::operand::{Number, Operand, Target};
use crate::parallel;
use crate::scratch;

kernels! { |op, x, out, call|
    Fft => {
        let plan = call.plans.fft.get_or_init(|| Plan::new(op, &x[0].ty.shape));
        fft(op, plan, x, out);
    },
}

/// Bytes of the lines that are transformed together: what stays in a core's own cache.
const TOGETHER: usize = 256 << 10;

/// Lines that a task gathers at most along the last axis, and neighbouring ones along others.
const LINES: usize = 256;
const NEIGHBOURS: usize = 32;

/// Numbers that a task handles at least.
const GRAIN: usize = 1 << 13;

/// A transform of one length, made at the first run. Lines of every dtype are computed in f64: results are as good as
/// rounded once, and memory bounds the time.
pub(crate) enum Plan {
    /// Complex numbers to complex numbers.
    Complex(Arc<dyn rustfft::Fft<f64>>),
    /// Real numbers to half of their spectrum.
    Forward(Arc<dyn RealToComplex<f64>>),
    /// Half of a spectrum to real numbers.
    Inverse(Arc<dyn ComplexToReal<f64>>),
    /// The operand has no such transform; the operation's rule refuses it.
    None,
}

impl Plan {
    /// Prepares the transform of an operand.
    pub(crate) fn new(op: &Fft, x: &Shape) -> Plan {
        let Ok(n) = op.length(x) else { return Plan::None };
        // The planners take their memory themselves; a line of a prime length takes the most.
        scratch::probe::<Complex<f64>>(n.saturating_mul(8));
        match op.kind {
            FftKind::Fft => Plan::Complex(FftPlanner::new().plan_fft_forward(n)),
            FftKind::Ifft => Plan::Complex(FftPlanner::new().plan_fft_inverse(n)),
            FftKind::Rfft => Plan::Forward(RealFftPlanner::new().plan_fft_forward(n)),
            FftKind::Irfft => Plan::Inverse(RealFftPlanner::new().plan_fft_inverse(n)),
        }
    }

    fn scratch_len(&self) -> usize {
        match self {
            Plan::Complex(fft) => fft.get_inplace_scratch_len(),
            Plan::Forward(fft) => fft.get_scratch_len(),
            Plan::Inverse(fft) => fft.get_scratch_len(),
            Plan::None => 0,
        }
    }
}

/// Transforms along an axis.
pub(crate) fn fft(op: &Fft, plan: &Plan, x: &[Operand<'_>], out: &mut [Target<'_>]) {
    let (Some(x), Some(target)) = (x.first(), out.first_mut()) else { return };
    match x.ty.dtype {
        DType::F16 => run::<half::f16>(op, plan, x, target),
        DType::BF16 => run::<half::bf16>(op, plan, x, target),
        DType::F64 => run::<f64>(op, plan, x, target),
        _ => run::<f32>(op, plan, x, target),
    }
}

/// The shape of the work: `[outer, size, inner]` complex or real numbers in, `[outer, bins, inner]` out.
struct Lines<'a, E> {
    plan: &'a Plan,
    source: &'a [E],
    n: usize,
    size: usize,
    bins: usize,
    inner: usize,
    /// What results are multiplied by, unless it is 1.
    scale: Option<f64>,
}

/// Memory of a task for some lines, one after another: complex numbers, real ones, and what the plan asks for.
struct Room {
    complex: Vec<Complex<f64>>,
    real: Vec<f64>,
    scratch: Vec<Complex<f64>>,
}

fn run<E: Number>(op: &Fft, plan: &Plan, x: &Operand<'_>, target: &mut Target<'_>) {
    let (from, to) = (x.ty.shape, target.ty.shape);
    let Ok(n) = op.length(&from) else { return };
    if to.has_zero() {
        return;
    }
    let kind = op.kind;
    let axes = if kind.reads_complex() { from.rank() - 1 } else { from.rank() };
    let inner: usize = from[op.axis + 1..axes].iter().product();
    let outer: usize = from[..op.axis].iter().product();
    let scale = op.norm.scale(kind.is_inverse(), n);
    let scale = (scale != 1.0).then_some(scale);
    let lines =
        Lines { plan, source: x.slice::<E>(), n, size: from[op.axis], bins: to[op.axis], inner, scale };
    let out = target.elements::<E>();
    let parts = if kind.writes_complex() { 2 } else { 1 };
    let most = TOGETHER / (4 * n * size_of::<f64>());
    if inner == 1 {
        // Some lines for every thread, if there are not enough for all of them to be full.
        let count = most.clamp(1, LINES).min(outer.div_ceil(parallel::threads()));
        let least = GRAIN.div_ceil(n * count);
        parallel::grouped(out, count * lines.bins * parts, least, &|block, out| {
            let room = lines.transform(block * count, out.len() / (lines.bins * parts));
            match parts {
                2 => out.chunks_exact_mut(2).zip(&room.complex).for_each(|(out, z)| {
                    (out[0], out[1]) = (E::from_f64(lines.scaled(z.re)), E::from_f64(lines.scaled(z.im)));
                }),
                _ => out.iter_mut().zip(&room.real).for_each(|(out, y)| *out = E::from_f64(lines.scaled(*y))),
            }
        });
        return;
    }
    // Results of neighbouring lines are contiguous, so they are collected first and put in place by rows.
    let lanes = most.clamp(1, NEIGHBOURS).min(inner);
    let blocks = inner.div_ceil(lanes);
    let room = lines.bins * lanes * parts;
    let mut collected = scratch::zeroed::<E>(outer * blocks * room);
    parallel::grouped(&mut collected, room, GRAIN.div_ceil(n * lanes), &|block, out| {
        let (o, first) = (block / blocks, block % blocks * lanes);
        let count = lanes.min(inner - first);
        let room = lines.transform(o * inner + first, count);
        for k in 0..lines.bins {
            for lane in 0..count {
                let out = &mut out[(k * lanes + lane) * parts..][..parts];
                match out {
                    [re, im] => {
                        let z = room.complex[lane * lines.bins + k];
                        (*re, *im) = (E::from_f64(lines.scaled(z.re)), E::from_f64(lines.scaled(z.im)));
                    }
                    _ => out[0] = E::from_f64(lines.scaled(room.real[lane * lines.bins + k])),
                }
            }
        }
    });
    let collected = &collected;
    parallel::grouped(out, inner * parts, GRAIN.div_ceil(inner * parts), &|row, out| {
        let (o, k) = (row / lines.bins, row % lines.bins);
        for (block, out) in out.chunks_mut(lanes * parts).enumerate() {
            let at = (o * blocks + block) * room + k * lanes * parts;
            let len = out.len();
            out.copy_from_slice(&collected[at..at + len]);
        }
    });
}

impl<E: Number> Lines<'_, E> {
    fn scaled(&self, x: f64) -> f64 {
        self.scale.map_or(x, |scale| x * scale)
    }

    /// The results of `count` lines from `first` on, line after line: real numbers of an inverse real transform, else
    /// complex ones.
    fn transform(&self, first: usize, count: usize) -> Room {
        let n = self.n;
        let half = n / 2 + 1;
        let (complex, real) = match self.plan {
            Plan::Complex(_) => (n, 0),
            Plan::Forward(_) | Plan::Inverse(_) => (half, n),
            Plan::None => (0, 0),
        };
        let mut room = Room {
            complex: scratch::filled(Complex::default(), complex * count),
            real: scratch::filled(0.0, real * count),
            scratch: scratch::filled(Complex::default(), self.plan.scratch_len()),
        };
        match self.plan {
            Plan::Complex(fft) => {
                self.gather_complex(first, count, n, &mut room.complex);
                fft.process_with_scratch(&mut room.complex, &mut room.scratch);
            }
            Plan::Forward(fft) => {
                self.gather(count, n, |at, j| {
                    room.real[at * n + j] = self.source[self.at(first + at, j)].to_f64()
                });
                let lines = room.real.chunks_exact_mut(n).zip(room.complex.chunks_exact_mut(half));
                for (line, spectrum) in lines {
                    // Only lengths that do not fit fail, and these are the plan's own.
                    let done = fft.process_with_scratch(line, spectrum, &mut room.scratch);
                    debug_assert!(done.is_ok());
                    // It returns zeros for imaginary parts that are; of what is not finite they are NaN.
                    spectrum[0].im = zero_if_finite(spectrum[0].re);
                    if n.is_multiple_of(2) {
                        spectrum[half - 1].im = zero_if_finite(spectrum[half - 1].re);
                    }
                }
            }
            Plan::Inverse(fft) => {
                self.gather_complex(first, count, half, &mut room.complex);
                let lines = room.complex.chunks_exact_mut(half).zip(room.real.chunks_exact_mut(n));
                for (spectrum, line) in lines {
                    // The spectrum of real numbers has no imaginary part there, whatever is given.
                    spectrum[0].im = 0.0;
                    if n.is_multiple_of(2) {
                        spectrum[half - 1].im = 0.0;
                    }
                    let done = fft.process_with_scratch(spectrum, line, &mut room.scratch);
                    debug_assert!(done.is_ok());
                }
            }
            Plan::None => {}
        }
        room
    }

    /// Where a line's number is, counted in real or complex numbers.
    fn at(&self, line: usize, j: usize) -> usize {
        (line / self.inner * self.size + j) * self.inner + line % self.inner
    }

    /// Calls `take` for every line and number below `points` that the operand has, in the order of memory.
    fn gather(&self, count: usize, points: usize, mut take: impl FnMut(usize, usize)) {
        let points = points.min(self.size);
        if self.inner == 1 {
            (0..count).for_each(|line| (0..points).for_each(|j| take(line, j)));
        } else {
            (0..points).for_each(|j| (0..count).for_each(|line| take(line, j)));
        }
    }

    fn gather_complex(&self, first: usize, count: usize, points: usize, to: &mut [Complex<f64>]) {
        self.gather(count, points, |line, j| {
            let at = 2 * self.at(first + line, j);
            to[line * points + j] = Complex::new(self.source[at].to_f64(), self.source[at + 1].to_f64());
        });
    }
}

fn zero_if_finite(x: f64) -> f64 {
    if x.is_finite() { 0.0 } else { f64::NAN }
}
