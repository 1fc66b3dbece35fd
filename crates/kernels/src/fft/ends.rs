//! Where a pass reads its points and writes its results.

use olivine_ir::op::FftKind;
use olivine_kernel::{Access, Buf, Builder, Elem, Val};

use super::butterfly::{Complex, swapped, times};
use super::stages::{ButterflyIndex, ButterflyStores, Stages, pair};
use super::{Lines, Pass, Problem, element, factor, real};
use crate::launch::Launch;
use crate::site::{Memory, Site};

/// What a pass reads.
#[derive(Clone, Copy, Debug)]
pub(super) enum Input {
    /// The node's operand; with `chirped`, times the chirp.
    Operand { chirped: bool },
    /// What another pass of the same transform wrote.
    Scratch(Memory),
}

/// What a pass writes.
#[derive(Clone, Copy, Debug)]
pub(super) enum Output {
    /// The node's target.
    Target,
    /// Numbers for the next pass.
    Between(Memory),
    /// A transform times the convolution's filter, its parts swapped for the way back.
    Filtered(Memory),
    /// The spectrum of packed real numbers, still to be parted.
    Spectrum(Memory),
    /// The same, parted in workgroup memory and written to the target.
    Halves,
}

/// The buffers and tables of a pass' ends.
pub(super) struct Ends<'a, 'k> {
    problem: &'a Problem,
    pass: &'a Pass,
    k: &'k Builder,
    source: Buf<'k>,
    sink: Buf<'k>,
    /// The operand's first element.
    offset: Val<'k>,
    /// Whether pairs of the operand can be loaded at once.
    pairs: bool,
    inner: Val<'k>,
    /// Points of the operand; those past are zero.
    limit: Option<Val<'k>>,
    points: Val<'k>,
    chirp: Option<Buf<'k>>,
    filter: Option<Buf<'k>>,
    halves: Option<Buf<'k>>,
    scale: Option<Val<'k>>,
    /// Whether the results are the problem's own, to be scaled.
    last: bool,
    convolved: bool,
}

impl<'a, 'k> Ends<'a, 'k> {
    pub(super) fn new(problem: &'a Problem, pass: &'a Pass, l: &Launch<'k>, site: &mut Site<'_>) -> Self {
        let k = l.k();
        let x = site.operands[0].clone();
        let y = site.targets[0].clone();
        let from_operand = matches!(pass.input, Input::Operand { .. });
        let source = match pass.input {
            Input::Operand { .. } => l.bind("x", element(x.ty.dtype), Access::Read, x.memory),
            Input::Scratch(memory) => l.bind("x", problem.work, Access::Read, memory),
        };
        let sink = match pass.output {
            Output::Target | Output::Halves => l.bind("y", element(y.ty.dtype), Access::Write, y.memory),
            Output::Between(memory) | Output::Filtered(memory) | Output::Spectrum(memory) => {
                l.bind("y", problem.work, Access::Write, memory)
            }
        };
        let last = !matches!(pass.output, Output::Between(_) | Output::Filtered(_));
        let chirped = matches!(pass.input, Input::Operand { chirped: true });
        let convolved = last && problem.is_convolution();
        let chirp = (chirped || convolved).then(|| problem.table(l, "chirp", problem.chirp(), site));
        let filter = matches!(pass.output, Output::Filtered(_)).then(|| match problem.filter() {
            Ok(numbers) => problem.table(l, "filter", numbers, site),
            Err(wrong) => {
                k.fail(wrong);
                source
            }
        });
        let joins = from_operand && problem.kind == FftKind::Irfft && problem.packed;
        let parts = matches!(pass.output, Output::Halves);
        let halves = (joins || parts).then(|| problem.table(l, "halves", real::roots(problem.n), site));
        // How many numbers a signal of the operand has as the transform sees it.
        let short = match problem.kind {
            FftKind::Rfft if problem.packed => problem.size < 2 * problem.points,
            FftKind::Irfft => problem.size < problem.n / 2 + 1,
            _ => problem.size < problem.points,
        };
        let limit = (from_operand && short).then(|| l.size("size", problem.size));
        let even = x.offset.is_multiple_of(2);
        let pairs = match problem.kind {
            FftKind::Rfft => even && problem.packed && problem.inner == 1 && problem.size.is_multiple_of(2),
            _ => even,
        };
        let offset = match x.first() {
            0 => k.u32(0),
            offset => l.size("offset", if from_operand { offset } else { 0 }),
        };
        let inner = if problem.inner == 1 { k.u32(1) } else { l.size("inner", problem.inner) };
        let scale =
            (last && problem.scale != 1.0).then(|| factor(l, "scale", problem.scale, problem.work.scalar()));
        let points = l.size("points", problem.points);
        Ends {
            problem,
            pass,
            k,
            source,
            sink,
            offset,
            pairs,
            inner,
            limit,
            points,
            chirp,
            filter,
            halves,
            scale,
            last,
            convolved,
        }
    }

    fn zero(&self) -> Val<'k> {
        self.k.number(self.problem.work.scalar(), 0.0)
    }

    /// Point `at` of the signal that begins at `base`.
    pub(super) fn load(&self, base: Val<'k>, at: Val<'k>) -> Complex<'k> {
        let Input::Operand { chirped } = self.pass.input else {
            return pair(self.source, base + at * self.inner);
        };
        // A convolution is longer than its signal.
        let inside = chirped.then(|| at.lt(self.points));
        let at = inside.map_or(at, |inside| inside.select(at, self.k.u32(0)));
        let mut value = self.operand(base, at);
        if self.problem.kind.is_inverse() {
            value = swapped(value);
        }
        if let (true, Some(chirp)) = (chirped, self.chirp) {
            value = times(value, pair(chirp, at));
        }
        match inside {
            None => value,
            Some(inside) => (inside.select(value.0, self.zero()), inside.select(value.1, self.zero())),
        }
    }

    /// Point `at` of what the operand says.
    fn operand(&self, base: Val<'k>, at: Val<'k>) -> Complex<'k> {
        let problem = self.problem;
        match problem.kind {
            FftKind::Fft | FftKind::Ifft => self.complex(base, at),
            FftKind::Rfft if problem.packed && self.pairs => {
                let index = base + at * 2;
                let inside = self.limit.map(|size| (at * 2).lt(size));
                let index = inside.map_or(index, |inside| inside.select(index, self.k.u32(0)));
                self.or_zero(inside, self.load_pair(index + self.offset))
            }
            FftKind::Rfft if problem.packed => (self.real(base, at * 2), self.real(base, at * 2 + 1)),
            FftKind::Rfft => (self.real(base, at), self.zero()),
            FftKind::Irfft if problem.packed => {
                let (a, b) = (self.complex(base, at), self.complex(base, self.points - at));
                // The first and the last are real.
                let edge = at.eq(0);
                let real = |v: Complex<'k>| (v.0, edge.select(self.zero(), v.1));
                let root = self.halves.map(|table| pair(table, at));
                root.map_or(a, |root| real::joined(real(a), real(b), root))
            }
            FftKind::Irfft => {
                let upper = at.gt(problem.n / 2);
                let place = upper.select(self.points - at, at);
                let (re, im) = self.complex(base, place);
                let im = upper.select(-im, im);
                (re, at.eq(0).select(self.zero(), im))
            }
        }
    }

    fn or_zero(&self, inside: Option<Val<'k>>, value: Complex<'k>) -> Complex<'k> {
        match inside {
            None => value,
            Some(inside) => (inside.select(value.0, self.zero()), inside.select(value.1, self.zero())),
        }
    }

    fn complex(&self, base: Val<'k>, at: Val<'k>) -> Complex<'k> {
        let index = base + at * self.inner;
        let inside = self.limit.map(|size| at.lt(size));
        let index = inside.map_or(index, |inside| inside.select(index, self.k.u32(0)));
        self.or_zero(inside, self.load_pair(index * 2 + self.offset))
    }

    fn real(&self, base: Val<'k>, at: Val<'k>) -> Val<'k> {
        let index = base + at * self.inner;
        match self.limit {
            None => self.source.load(index + self.offset),
            Some(size) => {
                let inside = at.lt(size);
                let index = inside.select(index, self.k.u32(0));
                inside.select(self.source.load(index + self.offset), self.zero())
            }
        }
    }

    /// Two neighbouring elements.
    fn load_pair(&self, index: Val<'k>) -> Complex<'k> {
        if !self.pairs {
            return (self.source.load(index), self.source.load(index + 1));
        }
        match self.source.load_vec(index, 2)[..] {
            [re, im] => (re, im),
            _ => (index, index),
        }
    }

    /// The result of a convolution at a point, its chirp undone; other results as they are.
    pub(super) fn convolved(&self, value: Complex<'k>, at: Val<'k>) -> Complex<'k> {
        match self.chirp.filter(|_| self.convolved) {
            None => value,
            Some(chirp) => times(swapped(value), pair(chirp, at.min(self.points - 1))),
        }
    }

    fn scaled(&self, value: Complex<'k>) -> Complex<'k> {
        let value = if self.problem.kind.is_inverse() { swapped(value) } else { value };
        self.scale.map_or(value, |scale| (value.0 * scale, value.1 * scale))
    }

    /// Stores result `at` of the signal whose results begin at `base`.
    pub(super) fn store(&self, base: Val<'k>, at: Val<'k>, value: Complex<'k>) {
        if !self.last {
            let value = match self.filter {
                None => value,
                Some(filter) => swapped(times(value, pair(filter, at))),
            };
            return self.sink.store_vec((base + at * self.inner) * 2, &[value.0, value.1]);
        }
        let problem = self.problem;
        let wanted = match problem.kind {
            FftKind::Rfft if !problem.packed => problem.n / 2 + 1,
            _ => problem.points,
        };
        let all = !self.convolved && wanted == problem.points;
        let inside = if all { self.k.bool(true) } else { at.lt(wanted) };
        self.k.if_(inside, || {
            let value = self.scaled(self.convolved(value, at));
            match (self.pass.output, problem.kind) {
                (Output::Target, FftKind::Irfft) if problem.packed && problem.inner == 1 => {
                    self.sink.store_vec(base + at * 2, &[value.0, value.1]);
                }
                (Output::Target, FftKind::Irfft) if problem.packed => {
                    let index = base + at * 2 * self.inner;
                    self.sink.store(index, value.0);
                    self.sink.store(index + self.inner, value.1);
                }
                (Output::Target, FftKind::Irfft) => self.sink.store(base + at * self.inner, value.0),
                _ => self.sink.store_vec((base + at * self.inner) * 2, &[value.0, value.1]),
            }
        });
    }

    /// Puts a packed spectrum into workgroup memory and stores the real signal's, each point with its mirror's.
    pub(super) fn store_packed_spectrum(
        &self,
        stages: &Stages<'k>,
        put: &[ButterflyStores<'k>],
        lines: &Lines<'k>,
    ) {
        let (k, points) = (self.k, self.problem.points);
        let spots: Vec<ButterflyIndex<'k>> = stages.spots(points / 2 + 1, self.pass.store_by_line);
        let mirror = |point: Val<'k>| point.eq(0).select(point, self.points - point);
        let take: Vec<Val<'k>> = spots
            .iter()
            .flat_map(|s| {
                [stages.shared_index(s.line, s.number), stages.shared_index(s.line, mirror(s.number))]
            })
            .collect();
        let taken = stages.exchange(put, &take);
        let Some(table) = self.halves else { return };
        for (spot, taken) in spots.iter().zip(taken.chunks(2)) {
            let &[a, b] = taken else { continue };
            let (place, live) = (lines.at(spot.line), lines.has(spot.line));
            spot.if_live(k, || {
                k.if_(live, || {
                    let point = spot.number;
                    let other = self.points - point;
                    let [first, second] = real::parted(a, b, pair(table, point));
                    let (first, second) = (self.scaled(first), self.scaled(second));
                    let index = |point: Val<'k>| (place[2] + point * self.inner) * 2;
                    self.sink.store_vec(index(point), &[first.0, first.1]);
                    k.if_(other.ne(point), || self.sink.store_vec(index(other), &[second.0, second.1]));
                });
            });
        }
    }
}

impl Problem {
    /// Whether its points have a prime too large for stages.
    fn is_convolution(&self) -> bool {
        !olivine_numerics::fft::is_smooth(self.points)
    }

    /// What scratch holds.
    pub(super) fn work(&self) -> Elem {
        self.work
    }
}
