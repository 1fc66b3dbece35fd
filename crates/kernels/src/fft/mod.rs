//! Fourier transforms of any length along any axis.
//!
//! ```text
//!   short       a workgroup transforms whole lines: radices up to 16 in registers, exchanges through its memory
//!   long        n = n1·n2(·n3): a pass for each factor, with a turn by roots of unity between
//!   any prime   Bluestein: chirp, transform, filter, transform back, chirp; in one kernel where its memory holds it
//!   real        an even number of real points is half as many complex ones, parted or joined on the way
//! ```
//!
//! Lines are read and written in place: along other axes, neighbouring lines are taken together.

mod butterfly;
mod ends;
mod real;
mod stages;
mod tile;

use olivine_ir::op::{Fft, FftKind};
use olivine_ir::{DType, Dim, Tensor, product};
use olivine_kernel::{Access, Buf, Elem, Scalar, Val};
use olivine_numerics::fft::{chirp, convolution_filter, convolution_length, is_smooth, root, split};

use crate::kernels;
use crate::launch::{Launch, number};
use crate::math;
use crate::site::{Memory, Site, linear_group};
use crate::walk::{Walk, Walker};
use butterfly::{Complex, swapped, times};
use ends::{Input, Output};
use stages::{Butterfly, ButterflyStores, Stages, pair};
use tile::Tile;

kernels! { |op, site|
    Fft => fft(op, site),
}

/// Lowers a transform.
pub(crate) fn fft(op: &Fft, site: &mut Site<'_>) -> Result<(), String> {
    let problem = Problem::new(op, site)?;
    if !site.caps.target.has(problem.work.scalar()) {
        return Err(format!("the device has no {}", problem.work));
    }
    if site.targets[0].ty.shape.has_zero() {
        return Ok(());
    }
    let longest = tile::longest(site, problem.work);
    let points = problem.points;
    if is_smooth(points) && points <= longest {
        return problem.short(points, false, site);
    }
    let (length, chirped) = match is_smooth(points) {
        true => (points, false),
        false => {
            let length = convolution_length(points);
            (length.ok_or_else(|| format!("a transform of {points} points is too long"))?, true)
        }
    };
    if length <= longest {
        return problem.short(length, chirped, site);
    }
    let parts = split(length, 2, longest).or_else(|| split(length, 3, longest));
    let parts = parts.ok_or_else(|| format!("a transform of {points} points is too long for the device"))?;
    problem.long(&parts, chirped, site)
}

/// A transform: `[outer, size, inner]` numbers in, `[outer, bins, inner]` out.
#[derive(Clone, Debug)]
pub(super) struct Problem {
    kind: FftKind,
    n: usize,
    /// Complex points that are transformed: n, or half of it for an even number of real ones.
    points: usize,
    packed: bool,
    size: usize,
    bins: usize,
    outer: Dim,
    inner: usize,
    scale: f64,
    /// What registers and scratch hold.
    work: Elem,
}

/// Strides over the lines of a pass, and the step from one point of a line to the next.
#[derive(Clone, Debug)]
struct LineStrides {
    /// To the first number of the signal that the line belongs to.
    base: Vec<i64>,
    /// To the line's first point in that signal.
    first: Vec<i64>,
    step: usize,
}

/// One kernel: a transform of `points` along some lines.
struct Pass {
    points: usize,
    /// Lines, in the order in which neighbours are taken.
    dims: Vec<Dim>,
    from: LineStrides,
    to: LineStrides,
    /// Strides of the number j by which result k is turned: `e^(−2πi·jk/(points·count))`, and the count of such
    /// numbers.
    turn: Option<(Vec<i64>, usize)>,
    input: Input,
    output: Output,
    /// Whether neighbouring lines are neighbours in memory.
    load_by_line: bool,
    store_by_line: bool,
}

impl Problem {
    fn new(op: &Fft, site: &Site<'_>) -> Result<Self, String> {
        let (x, y) = (&site.operands[0], &site.targets[0]);
        let n = op.length(&x.ty.shape)?;
        let kind = op.kind;
        let dims = x.sizes();
        let axes = if kind.reads_complex() { dims.len() - 1 } else { dims.len() };
        // Kernels are written for lengths and for how far points are apart; lines may be any number.
        let packed = matches!(kind, FftKind::Rfft | FftKind::Irfft) && n.is_multiple_of(2);
        Ok(Problem {
            kind,
            n,
            points: if packed { n / 2 } else { n },
            packed,
            size: number(dims[op.axis]),
            bins: number(y.ty.shape.size(op.axis)),
            outer: product(&dims[..op.axis]),
            inner: number(product(&dims[op.axis + 1..axes])),
            scale: op.norm.scale(kind.is_inverse(), n),
            work: if x.ty.dtype == DType::F64 { Elem::F64 } else { Elem::F32 },
        })
    }

    fn by_line(&self) -> bool {
        self.inner > 1
    }

    /// The road over `[outer, …, inner]` where a signal has `length` numbers.
    fn road(&self, length: usize, first: &[usize], step: usize) -> LineStrides {
        let mut base = vec![0; first.len() + 2];
        base[0] = (length * self.inner) as i64;
        base[first.len() + 1] = 1;
        let first = [0].iter().chain(first).chain(&[0]).map(|s| *s as i64).collect();
        LineStrides { base, first, step }
    }

    /// One kernel for all.
    fn short(&self, length: usize, chirped: bool, site: &mut Site<'_>) -> Result<(), String> {
        let output = if self.packed && self.kind == FftKind::Rfft { Output::Halves } else { Output::Target };
        let pass = Pass {
            points: length,
            dims: vec![self.outer, self.inner.into()],
            from: self.road(self.size, &[], 1),
            to: self.road(self.bins, &[], 1),
            turn: None,
            input: Input::Operand { chirped },
            output,
            load_by_line: self.by_line(),
            store_by_line: self.by_line(),
        };
        self.emit(&pass, chirped, site)
    }

    /// A pass for each part of the length, twice if it is a convolution.
    fn long(&self, parts: &[usize], chirped: bool, site: &mut Site<'_>) -> Result<(), String> {
        let length: usize = parts.iter().product();
        let numbers = self.outer * length * self.inner * 2;
        if numbers.check().is_err() || numbers > u32::MAX {
            return Err("its scratch is larger than the device's indices reach".into());
        }
        let halves = self.packed && self.kind == FftKind::Rfft;
        let bytes = numbers * self.work.size();
        let scratch = [site.scratch(bytes), site.scratch(bytes)];
        let mut written = 0;
        let mut next = || {
            written += 1;
            scratch[written % 2]
        };
        let mut from = Input::Operand { chirped };
        if chirped {
            let filtered = next_of(parts.len(), &mut next);
            self.passes(parts, from, &filtered, Output::Filtered, site)?;
            from = Input::Scratch(*filtered.last().unwrap_or(&scratch[0]));
        }
        if !halves {
            let between = next_of(parts.len() - 1, &mut next);
            return self.passes(parts, from, &between, |_| Output::Target, site);
        }
        let all = next_of(parts.len(), &mut next);
        self.passes(parts, from, &all, Output::Spectrum, site)?;
        real::part(self, *all.last().unwrap_or(&scratch[0]), length, site)
    }

    /// The passes of one transform; `memory` is where each writes, and `last` what the last does with its own.
    fn passes(
        &self,
        parts: &[usize],
        first: Input,
        memory: &[Memory],
        last: impl Fn(Memory) -> Output,
        site: &mut Site<'_>,
    ) -> Result<(), String> {
        let length: usize = parts.iter().product();
        let from_operand = matches!(first, Input::Operand { .. });
        let size = if from_operand { self.size } else { length };
        let own = memory.last().copied().unwrap_or(Memory::Constant(0));
        let last = last(own);
        let out = if matches!(last, Output::Target) { self.bins } else { length };
        let whole = |first: &[usize], step: usize| self.road(length, first, step);
        let (&[n1, rest @ ..], &[to1, ..]) = (&parts, &memory) else {
            return Err("a long transform has several parts".into());
        };
        let after: usize = rest.iter().product();
        let (outer, inner) = (self.outer, Dim::from(self.inner));
        let mut passes = vec![Pass {
            points: *n1,
            dims: vec![outer, after.into(), inner],
            from: self.road(size, &[1], after),
            to: whole(&[1], after),
            turn: Some((vec![0, 1, 0], after)),
            input: first,
            output: Output::Between(*to1),
            load_by_line: true,
            store_by_line: true,
        }];
        match (rest, memory) {
            ([n2], _) => passes.push(Pass {
                points: *n2,
                dims: vec![outer, (*n1).into(), inner],
                from: whole(&[*n2], 1),
                to: self.road(out, &[1], *n1),
                turn: None,
                input: Input::Scratch(*to1),
                output: last,
                load_by_line: self.by_line(),
                store_by_line: true,
            }),
            ([n2, n3], [_, to2, ..]) => {
                passes.push(Pass {
                    points: *n2,
                    dims: vec![outer, (*n1).into(), (*n3).into(), inner],
                    from: whole(&[after, 1], *n3),
                    to: whole(&[after, 1], *n3),
                    turn: Some((vec![0, 0, 1, 0], *n3)),
                    input: Input::Scratch(*to1),
                    output: Output::Between(*to2),
                    load_by_line: true,
                    store_by_line: true,
                });
                passes.push(Pass {
                    points: *n3,
                    dims: vec![outer, (*n2).into(), (*n1).into(), inner],
                    from: whole(&[*n3, after], 1),
                    to: self.road(out, &[*n1, 1], n1 * n2),
                    turn: None,
                    input: Input::Scratch(*to2),
                    output: last,
                    load_by_line: self.by_line(),
                    store_by_line: true,
                });
            }
            _ => return Err("a long transform has two or three parts".into()),
        }
        passes.iter().try_for_each(|pass| self.emit(pass, false, site))
    }

    /// Emits a pass; `convolve` transforms, filters and transforms back in one kernel.
    fn emit(&self, pass: &Pass, convolve: bool, site: &mut Site<'_>) -> Result<(), String> {
        let count = product(&pass.dims);
        let across = pass.load_by_line || pass.store_by_line;
        let tile = Tile::new(site, self.work, pass.points, count, across)
            .ok_or_else(|| format!("no radices for {} points", pass.points))?;
        let k = site.builder(&format!("fft_{}", pass.points), tile.group);
        let l = Launch::new(&k);
        let ends = ends::Ends::new(self, pass, &l, site);
        let roots = stages::roots(&tile.radices);
        let roots = (!roots.is_empty()).then(|| self.table(&l, "roots", roots, site));
        let halved = matches!(pass.output, Output::Halves);
        let stages = Stages::new(&k, &tile, self.work, roots, convolve || halved);
        let turn = pass.turn.as_ref().map(|(_, numbers)| self.turns(&tile, *numbers, &l, site));
        let filter = match convolve {
            true => Some(self.table(&l, "filter", self.filter()?, site)),
            false => None,
        };

        let turn_strides = pass.turn.as_ref().map_or_else(|| vec![0; pass.dims.len()], |(s, _)| s.clone());
        let strides = [&pass.from.base, &pass.from.first, &pass.to.base, &pass.to.first, &turn_strides];
        let walker = Walk::new(&pass.dims, &strides.map(Clone::clone)).declare(&l, &[0; 5]);
        let lines = l.size("lines", count);
        let step_in = if pass.from.step == 1 { k.u32(1) } else { l.size("step_in", pass.from.step) };
        let step_out = if pass.to.step == 1 { k.u32(1) } else { l.size("step_out", pass.to.step) };
        let begin = linear_group(&k) * tile.lines;
        let lines = Lines { walker, begin, count: lines };

        let held = stages.load(
            |spot, point| {
                let place = lines.at(spot.line);
                ends.load(place[0], place[1] + point * step_in)
            },
            pass.load_by_line,
        );
        let mut results = stages.run(held, pass.store_by_line);
        let step = stages.step();
        if let Some(filter) = filter {
            let put = put(&stages, &results, |point, v| swapped(times(v, pair(filter, point))));
            let again = stages.reload(&put, pass.store_by_line);
            results = stages.run(again, pass.store_by_line);
        }
        if halved {
            let put = put(&stages, &results, |point, v| ends.convolved(v, point));
            ends.store_packed_spectrum(&stages, &put, &lines);
        } else {
            for Butterfly { spot, values } in &results {
                let live = lines.has(spot.line);
                spot.if_live(&k, || {
                    k.if_(live, || {
                        let place = lines.at(spot.line);
                        for (q, value) in values.iter().enumerate() {
                            let value = match &turn {
                                None => *value,
                                Some(turn) => times(*value, turn.of(place[4], spot.number, q)),
                            };
                            let point = spot.number + q * step;
                            ends.store(place[2], place[3] + point * step_out, value);
                        }
                    });
                });
            }
        }
        let groups = count.div_ceil(tile.lines);
        let bound = l.done();
        site.dispatch(k, bound, groups, self.cost(pass.points, count))
    }

    /// Operations and bytes of transforming so many lines.
    fn cost(&self, points: usize, lines: Dim) -> (Dim, Dim) {
        let all = lines * points;
        (5 * all * points.max(2).ilog2(), 4 * all * self.work.size())
    }

    /// Declares a table of complex numbers, rounded once.
    fn table<'k>(
        &self,
        l: &Launch<'k>,
        name: &str,
        numbers: Vec<(f64, f64)>,
        site: &mut Site<'_>,
    ) -> Buf<'k> {
        let flat = numbers.into_iter().flat_map(|(re, im)| [re, im]);
        let len = flat.clone().count();
        let tensor = match self.work {
            Elem::F64 => Tensor::new([len], flat.collect::<Vec<f64>>()),
            _ => Tensor::new([len], flat.map(|x| x as f32).collect::<Vec<f32>>()),
        };
        let memory = match tensor {
            Ok(tensor) => site.constant(tensor),
            Err(problem) => {
                l.k().fail(problem.to_string());
                Memory::Constant(0)
            }
        };
        l.bind(name, self.work, Access::Read, memory)
    }

    fn filter(&self) -> Result<Vec<(f64, f64)>, String> {
        convolution_filter(self.points).ok_or_else(|| "the convolution is too long".into())
    }

    /// The roots that turn results: those of a butterfly's first, and those of the distance to its others.
    fn turns<'k>(&self, tile: &Tile, numbers: usize, l: &Launch<'k>, site: &mut Site<'_>) -> Twiddles<'k> {
        let whole = tile.points * numbers;
        let r = tile.radices.last().copied().unwrap_or(1);
        let step = tile.points / r;
        let first = (0..step).flat_map(|k| (0..numbers).map(move |j| root(j * k, whole))).collect();
        let further = (0..r).flat_map(|q| (0..numbers).map(move |j| root(j * q * step, whole))).collect();
        Twiddles {
            first: self.table(l, "turn_first", first, site),
            further: self.table(l, "turn_further", further, site),
            numbers: l.size("turns", numbers),
        }
    }

    fn chirp(&self) -> Vec<(f64, f64)> {
        chirp(self.points)
    }
}

/// The lines of a workgroup.
struct Lines<'k> {
    walker: Walker<'k>,
    begin: Val<'k>,
    count: Val<'k>,
}

impl<'k> Lines<'k> {
    /// Base and first point of a line where it is read, the same where it is written, and what it turns by. Lines past
    /// the last repeat it.
    fn at(&self, line: Val<'k>) -> Vec<Val<'k>> {
        self.walker.at((self.begin + line).min(self.count - 1))
    }

    /// Whether a line is one of the problem's.
    fn has(&self, line: Val<'k>) -> Val<'k> {
        (self.begin + line).lt(self.count)
    }
}

/// So many of what comes next.
fn next_of(count: usize, next: &mut impl FnMut() -> Memory) -> Vec<Memory> {
    (0..count).map(|_| next()).collect()
}

/// Results and their places in workgroup memory, in the order of the line.
fn put<'k>(
    stages: &Stages<'k>,
    results: &[Butterfly<'k>],
    change: impl Fn(Val<'k>, Complex<'k>) -> Complex<'k>,
) -> Vec<ButterflyStores<'k>> {
    let of = |Butterfly { spot, values }: &Butterfly<'k>| {
        let at = |q: usize| spot.number + q * stages.step();
        let values = values.iter().enumerate();
        (*spot, values.map(|(q, v)| (stages.shared_index(spot.line, at(q)), change(at(q), *v))).collect())
    };
    results.iter().map(of).collect()
}

/// The tables by which results are turned between passes.
struct Twiddles<'k> {
    first: Buf<'k>,
    further: Buf<'k>,
    numbers: Val<'k>,
}

impl<'k> Twiddles<'k> {
    /// The root for result q of a butterfly of a line that turns by `j`.
    fn of(&self, j: Val<'k>, butterfly: Val<'k>, q: usize) -> Complex<'k> {
        let first = pair(self.first, butterfly * self.numbers + j);
        match q {
            0 => first,
            q => times(first, pair(self.further, self.numbers * q + j)),
        }
    }
}

/// A factor as a run-time number, exact in f64.
fn factor<'k>(l: &Launch<'k>, name: &str, value: f64, scalar: Scalar) -> Val<'k> {
    if scalar != Scalar::F64 {
        return l.f32(name, value as f32);
    }
    let high = value as f32;
    let middle = (value - f64::from(high)) as f32;
    let low = (value - f64::from(high) - f64::from(middle)) as f32;
    let part = |tail: &str, x: f32| l.f32(&format!("{name}_{tail}"), x).convert(Scalar::F64);
    part("high", high) + part("middle", middle) + part("low", low)
}

/// The register type of a memory element.
fn element(dtype: DType) -> Elem {
    math::elem(dtype)
}
