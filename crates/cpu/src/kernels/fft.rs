//! Fourier transforms along any axis: lines are gathered side by side, transformed together, and put back.
//!
//! A real signal of even length is half as many complex numbers; odd ones are transformed as complex numbers.

use half::{bf16, f16};
use olivine_ir::op::{Fft, FftKind};
use olivine_ir::{DType, Shape};
use olivine_numerics::fft::{Line, Plan, Real, root};

use crate::kernel::kernels;
use crate::operand::{Number, Operand, Target};
use crate::parallel;
use crate::scratch;

kernels! { |op, x, out, call|
    Fft => {
        let tables = call.kernel.fft.get_or_init(|| Tables::new(op, &x[0].ty.shape, x[0].ty.dtype));
        fft(op, tables, x, out);
    },
}

/// Bytes of the lines that are transformed together: what stays in a core's own cache.
const TOGETHER: usize = 256 << 10;

/// Lines side by side at most: a few vectors of the widest registers.
const LANES: usize = 32;

/// Numbers that a task handles at least.
const GRAIN: usize = 1 << 13;

/// A number in memory and what it is computed in.
trait Sample: Number {
    type Work: Real + bytemuck::Pod;
    fn widen(self) -> Self::Work;
    fn narrow(work: Self::Work) -> Self;
}

macro_rules! samples {
    ($($t:ty => $work:ty, $widen:expr, $narrow:expr);*) => {$(
        impl Sample for $t {
            type Work = $work;
            fn widen(self) -> $work { $widen(self) }
            fn narrow(work: $work) -> Self { $narrow(work) }
        }
    )*};
}
samples! {
    f32 => f32, |x| x, |x| x;
    f64 => f64, |x| x, |x| x;
    f16 => f32, f16::to_f32, f16::from_f32;
    bf16 => f32, bf16::to_f32, bf16::from_f32
}

/// What a transform of one length needs, made at its first run.
pub(crate) enum Tables {
    Single(Prepared<f32>),
    Double(Prepared<f64>),
    /// The length is too large for any machine.
    None,
}

/// A plan, and for packed real signals the roots that join and part their halves.
pub(crate) struct Prepared<T> {
    plan: Plan<T>,
    packed: Option<Vec<(T, T)>>,
}

impl Tables {
    /// Prepares the transform of an operand.
    pub(crate) fn new(op: &Fft, x: &Shape, dtype: DType) -> Tables {
        let Ok(n) = op.length(x) else { return Tables::None };
        // The compiler's tables are made by collecting; a line of a prime length takes the most.
        scratch::probe::<(f64, f64)>(n.saturating_mul(6));
        let made = if dtype == DType::F64 {
            Prepared::new(op.kind, n).map(Tables::Double)
        } else {
            Prepared::new(op.kind, n).map(Tables::Single)
        };
        made.unwrap_or(Tables::None)
    }
}

impl<T: Real> Prepared<T> {
    fn new(kind: FftKind, n: usize) -> Option<Self> {
        let real = matches!(kind, FftKind::Rfft | FftKind::Irfft);
        if real && n.is_multiple_of(2) {
            let roots = (0..=n / 2).map(|k| {
                let (re, im) = root(k, n);
                (T::of(re), T::of(im))
            });
            return Some(Prepared { plan: Plan::new(n / 2)?, packed: Some(roots.collect()) });
        }
        Some(Prepared { plan: Plan::new(n)?, packed: None })
    }
}

/// Transforms along an axis.
pub(crate) fn fft(op: &Fft, tables: &Tables, x: &[Operand<'_>], out: &mut [Target<'_>]) {
    let (Some(x), Some(target)) = (x.first(), out.first_mut()) else { return };
    match (x.ty.dtype, tables) {
        (DType::F32, Tables::Single(tables)) => run::<f32>(op, tables, x, target),
        (DType::F16, Tables::Single(tables)) => run::<f16>(op, tables, x, target),
        (DType::BF16, Tables::Single(tables)) => run::<bf16>(op, tables, x, target),
        (DType::F64, Tables::Double(tables)) => run::<f64>(op, tables, x, target),
        _ => {}
    }
}

/// The shape of the work: `[outer, size, inner]` complex or real numbers in, `[outer, bins, inner]` out.
struct Lines {
    kind: FftKind,
    n: usize,
    scale: f64,
    size: usize,
    bins: usize,
    inner: usize,
}

fn run<E: Sample>(op: &Fft, tables: &Prepared<E::Work>, x: &Operand<'_>, target: &mut Target<'_>) {
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
    let lines = Lines { kind, n, scale, size: from[op.axis], bins: to[op.axis], inner };
    let source = x.slice::<E>();
    let out = target.elements::<E>();
    let parts = if kind.writes_complex() { 2 } else { 1 };
    let most = (TOGETHER / (4 * n * size_of::<E::Work>())).clamp(1, LANES);
    let least = GRAIN.div_ceil(n * most);
    if inner == 1 {
        // Some lines for every thread, if there are not enough for all of them to be full.
        let lanes = most.min(outer.div_ceil(parallel::threads()));
        parallel::grouped(out, lanes * lines.bins * parts, least, &|block, out| {
            let count = out.len() / (lines.bins * parts);
            let y = lines.transform::<E>(tables, source, block * lanes, count);
            for (at, out) in out.chunks_exact_mut(parts).enumerate() {
                let (lane, k) = (at / lines.bins, at % lines.bins);
                store(y_at(&y, k * count + lane), out);
            }
        });
        return;
    }
    // Results of neighbouring lines lie side by side, so they are collected first and put in place by rows.
    let lanes = most.min(inner);
    let blocks = inner.div_ceil(lanes);
    let room = lines.bins * lanes * parts;
    let mut collected = scratch::filled(E::Work::default(), outer * blocks * room);
    parallel::grouped(&mut collected, room, least, &|block, out| {
        let (o, first) = (block / blocks, block % blocks * lanes);
        let count = lanes.min(inner - first);
        let y = lines.transform::<E>(tables, source, o * inner + first, count);
        for k in 0..lines.bins {
            for lane in 0..count {
                let at = (k * lanes + lane) * parts;
                let (re, im) = y_at(&y, k * count + lane);
                out[at] = re;
                if parts == 2 {
                    out[at + 1] = im;
                }
            }
        }
    });
    let collected = &collected;
    parallel::grouped(out, inner * parts, GRAIN.div_ceil(inner * parts), &|row, out| {
        let (o, k) = (row / lines.bins, row % lines.bins);
        for (block, out) in out.chunks_mut(lanes * parts).enumerate() {
            let at = (o * blocks + block) * room + k * lanes * parts;
            for (y, x) in out.iter_mut().zip(&collected[at..]) {
                *y = E::narrow(*x);
            }
        }
    });
}

fn y_at<T: Copy>(y: &Line<T>, at: usize) -> (T, T) {
    (y.re[at], y.im[at])
}

fn store<E: Sample>((re, im): (E::Work, E::Work), out: &mut [E]) {
    match out {
        [a, b] => (*a, *b) = (E::narrow(re), E::narrow(im)),
        [a] => *a = E::narrow(re),
        _ => {}
    }
}

impl Lines {
    /// The results of `count` lines from `first` on, point by point and side by side; a real result is the real part.
    fn transform<E: Sample>(
        &self,
        tables: &Prepared<E::Work>,
        source: &[E],
        first: usize,
        count: usize,
    ) -> Line<E::Work> {
        let zero = E::Work::default();
        let at = |line: usize, j: usize| (line / self.inner * self.size + j) * self.inner + line % self.inner;
        let real = |line: usize, j: usize| if j < self.size { source[at(line, j)].widen() } else { zero };
        let complex = |line: usize, j: usize| {
            if j >= self.size {
                return (zero, zero);
            }
            let at = 2 * at(line, j);
            (source[at].widen(), source[at + 1].widen())
        };
        let inverse = self.kind.is_inverse();
        let points = tables.plan.len();
        let mut z = Line::default();
        z.clear(points * count);
        for j in 0..points {
            for lane in 0..count {
                let line = first + lane;
                let (re, im) = match (self.kind, &tables.packed) {
                    (FftKind::Fft | FftKind::Ifft, _) => complex(line, j),
                    (FftKind::Rfft, Some(_)) => (real(line, 2 * j), real(line, 2 * j + 1)),
                    (FftKind::Rfft, None) => (real(line, j), zero),
                    (FftKind::Irfft, Some(roots)) => {
                        let (mut a, mut b) = (complex(line, j), complex(line, points - j));
                        if j == 0 {
                            (a.1, b.1) = (zero, zero);
                        }
                        let (even, odd) = ((a.0 + b.0, a.1 - b.1), (a.0 - b.0, a.1 + b.1));
                        let (c, s) = roots[j];
                        let odd = (odd.0 * c + odd.1 * s, odd.1 * c - odd.0 * s);
                        (even.0 - odd.1, even.1 + odd.0)
                    }
                    (FftKind::Irfft, None) if j == 0 => (complex(line, 0).0, zero),
                    (FftKind::Irfft, None) if j <= self.n / 2 => complex(line, j),
                    (FftKind::Irfft, None) => {
                        let (re, im) = complex(line, self.n - j);
                        (re, -im)
                    }
                };
                // With its parts swapped before and after, a forward transform is the inverse one.
                let at = j * count + lane;
                (z.re[at], z.im[at]) = if inverse { (im, re) } else { (re, im) };
            }
        }
        tables.plan.run(&mut z, &mut Line::default(), count);
        if inverse {
            std::mem::swap(&mut z.re, &mut z.im);
        }
        let mut y = match (self.kind, &tables.packed) {
            (FftKind::Rfft, Some(roots)) => part(&z, roots, points, count),
            (FftKind::Irfft, Some(_)) => joined(z, points, count),
            _ => z,
        };
        if self.scale != 1.0 {
            let scale = E::Work::of(self.scale);
            y.re.iter_mut().chain(&mut y.im).for_each(|x| *x = *x * scale);
        }
        y
    }
}

/// The spectrum of a real signal from that of its even and odd samples as one complex signal.
fn part<T: Real>(z: &Line<T>, roots: &[(T, T)], points: usize, count: usize) -> Line<T> {
    let half = T::of(0.5);
    let mut y = Line::default();
    y.clear((points + 1) * count);
    for (k, (c, s)) in roots.iter().enumerate() {
        for lane in 0..count {
            let (a, b) = (y_at(z, k % points * count + lane), y_at(z, (points - k) % points * count + lane));
            let (even, odd) = ((a.0 + b.0, a.1 - b.1), (a.1 + b.1, b.0 - a.0));
            let at = k * count + lane;
            y.re[at] = half * (even.0 + odd.0 * *c - odd.1 * *s);
            y.im[at] = half * (even.1 + odd.0 * *s + odd.1 * *c);
        }
    }
    y
}

/// Even and odd samples in turn.
fn joined<T: Real>(z: Line<T>, points: usize, count: usize) -> Line<T> {
    let mut y = Line::default();
    y.clear(2 * points * count);
    for j in 0..points {
        for lane in 0..count {
            y.re[2 * j * count + lane] = z.re[j * count + lane];
            y.re[(2 * j + 1) * count + lane] = z.im[j * count + lane];
        }
    }
    y
}
