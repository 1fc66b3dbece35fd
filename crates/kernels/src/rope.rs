//! Rotary position embedding.
//!
//! An angle is a number of turns times a position, and whole turns do not count: so the fraction of a turn is an exact
//! product of integers modulo 2^64, right for every position, whatever float types the device has.

use olivine_ir::op::{HeadLayout, Rope, RopeStyle};
use olivine_ir::{DType, Dim, Tensor};
use olivine_kernel::{Access, Buf, Elem, Scalar, Val};

use super::integers::Integers;
use super::kv_append::{Cache, CacheRows};
use super::matmul::{MatmulElements, SplitKPartials};
use crate::kernels;
use crate::launch::{Launch, bytes, number};
use crate::math;
use crate::site::{Memory, Operand, Site, Target, linear_group};

kernels! { |op, site|
    Rope => rope(op, site),
}

/// Invocations of a workgroup: few, so that those of one token are on many cores.
pub(super) const GROUP: u32 = 64;

/// Lowers a rotation.
pub(crate) fn rope(op: &Rope, site: &mut Site<'_>) -> Result<(), String> {
    let operands = site.operands.clone();
    let target = site.targets.first().cloned().ok_or("needs a result")?;
    let Some(turn) = Rotation::new(op, &operands, RopeTarget::Packed(target), site)? else { return Ok(()) };
    let group = site.group_size(GROUP);
    let k = site.builder("rope", group);
    let l = Launch::new(&k);
    let declared = turn.declare(&l, None)?;
    declared.run(linear_group(&k) * group + k.local_index());
    let (count, cost, bound) = (turn.count, turn.cost(), l.done());
    site.dispatch(k, bound, count.div_ceil(group), cost)
}

/// Where rotated rows go.
pub(super) enum RopeTarget {
    /// To a packed result.
    Packed(Target),
    /// Among a cache's rows.
    Cache(Box<Cache>),
}

/// A rotation to be declared in a kernel.
pub(super) struct Rotation<'a> {
    pub(super) op: &'a Rope,
    pub(super) x: Operand,
    /// Positions, or the tables of cosines and sines.
    angles: Vec<Operand>,
    /// Each pair's turns per position.
    turns: Option<Memory>,
    amplitude: f64,
    place: RopeTarget,
    /// Pairs, or passing elements, that are loaded together.
    pub(super) lanes: usize,
    units: usize,
    /// Invocations.
    pub(super) count: Dim,
}

impl<'a> Rotation<'a> {
    /// A rotation of operand 0 by what the others say; `None` if there is nothing to rotate.
    pub(super) fn new(
        op: &'a Rope,
        operands: &[Operand],
        place: RopeTarget,
        site: &mut Site<'_>,
    ) -> Result<Option<Self>, String> {
        let [x, angles @ ..] = operands else { return Err("needs an operand".into()) };
        let scalar = math::elem(x.ty.dtype).scalar();
        if !site.caps.target.has(scalar) {
            return Err(format!("the device has no {scalar}"));
        }
        let dims = x.sizes();
        let pairs = op.rotary / 2;
        let rest = number(dims[3]) - op.rotary;
        let lanes = lanes(op, x);
        let units = match &place {
            RopeTarget::Cache(cache) if cache.packed => (2 * pairs + rest) / 4,
            _ => (pairs + rest).div_ceil(lanes),
        };
        let count = dims[0] * dims[1] * dims[2] * units;
        if count == 0 {
            return Ok(None);
        }
        if count > u32::MAX {
            return Err(format!("{count} positions are more than kernels count"));
        }
        let (frequencies, amplitude) = op.frequencies();
        let turns = match (op.tables, pairs) {
            (true, _) | (_, 0) => None,
            _ => Some(site.constant(turn_table(&frequencies)?)),
        };
        let (x, angles) = (x.clone(), angles.to_vec());
        Ok(Some(Rotation { op, x, angles, turns, amplitude, place, lanes, units, count }))
    }

    /// Elements of a row.
    fn width(&self) -> usize {
        number(self.x.sizes()[3])
    }

    /// Operations and bytes.
    pub(super) fn cost(&self) -> (Dim, Dim) {
        let dims = self.x.sizes();
        (dims[0] * dims[1] * dims[2] * (self.op.rotary * 3), 2 * bytes(&self.x.ty))
    }

    /// Whether it reads the product whose parts wait to be summed.
    pub(super) fn reads(&self, partials: &SplitKPartials) -> bool {
        self.x.memory == partials.target().memory
    }

    /// Declares what the rotation reads and writes; `unsummed` is what it reads, if that is still in parts.
    pub(super) fn declare<'k, 't>(
        &'t self,
        l: &Launch<'k>,
        partials: Option<&'t SplitKPartials>,
    ) -> Result<DeclaredRotation<'k, 't>, String> {
        let k = l.k();
        let (op, x) = (self.op, &self.x);
        let dims = x.sizes();
        let from = match partials {
            Some(partials) => MatmulElements::Summed(partials.declare(l)?),
            None => MatmulElements::Stored(l.read("x", x)),
        };
        let to = match &self.place {
            RopeTarget::Packed(target) => DeclaredTarget::Packed(l.write("out", target)),
            RopeTarget::Cache(cache) => DeclaredTarget::Cache(cache.declare(l, math::elem(x.ty.dtype))),
        };
        let angles = match (self.turns, self.angles.as_slice()) {
            (_, [cos, sin, ..]) if op.tables && op.rotary > 0 => {
                Angles::Tables { cos: l.read("cos", cos), sin: l.read("sin", sin) }
            }
            (Some(turns), [positions, ..]) => Angles::Turns {
                positions: Integers::read(l, "positions", positions),
                turns: l.bind("turns", Elem::U32, Access::Read, turns),
                amplitude: match math::elem(x.ty.dtype).scalar() {
                    Scalar::F64 => k.f64(self.amplitude),
                    _ => l.f32("amplitude", self.amplitude as f32),
                },
            },
            _ => Angles::None,
        };
        let rank = if op.tables { 3 } else { 2 };
        let batched = self.angles.first().is_some_and(|o| o.sizes().len() == rank);
        let (n, of_row) = (l.size("n", self.count), l.size("units", self.units));
        let sizes = (l.size("d1", dims[1]), l.size("d2", dims[2]));
        let strides = [0, 1, 2].map(|d| l.stride(&format!("s{d}"), x.strides[d]));
        let element =
            if x.strides[3].as_constant() == Some(1) { k.u32(1) } else { l.stride("s3", x.strides[3]) };
        let offset = l.size("offset", x.offset);
        Ok(DeclaredRotation {
            of: self,
            from,
            to,
            angles,
            batched,
            n,
            of_row,
            sizes,
            strides,
            element,
            offset,
        })
    }
}

/// Where a declared rotation's rows go.
enum DeclaredTarget<'k> {
    Packed(Buf<'k>),
    Cache(CacheRows<'k>),
}

/// A declared rotation.
pub(super) struct DeclaredRotation<'k, 't> {
    pub(super) of: &'t Rotation<'t>,
    pub(super) from: MatmulElements<'k, 't>,
    to: DeclaredTarget<'k>,
    pub(super) angles: Angles<'k>,
    batched: bool,
    pub(super) n: Val<'k>,
    of_row: Val<'k>,
    sizes: (Val<'k>, Val<'k>),
    strides: [Val<'k>; 3],
    pub(super) element: Val<'k>,
    offset: Val<'k>,
}

impl<'k> DeclaredRotation<'k, '_> {
    /// Does one invocation's part; the whole workgroup comes here.
    pub(super) fn run(&self, work: Val<'k>) {
        let k = work.builder();
        if let DeclaredTarget::Cache(cache) = &self.to
            && cache.packed
        {
            return self.pack(work, cache);
        }
        k.if_(work.lt(self.n), || {
            let WorkItem { row, unit, index, place, start } = self.item(work);
            let find = || match &self.to {
                DeclaredTarget::Packed(out) => {
                    Destination { out: *out, to: row * self.of.width(), inside: k.bool(true) }
                }
                DeclaredTarget::Cache(cache) => {
                    let (inside, to) = cache.at(index);
                    Destination { out: cache.sink, to, inside }
                }
            };
            self.turn(start, place, unit, &find);
        });
    }

    /// What an invocation works on.
    pub(super) fn item(&self, work: Val<'k>) -> WorkItem<'k> {
        let (d1, d2) = self.sizes;
        let (row, unit) = (work / self.of_row, work % self.of_row);
        let index = [row / (d1 * d2), row / d2 % d1, row % d2];
        let [b, i1, i2] = index;
        let (place, length) = match self.of.op.layout {
            HeadLayout::Bshd => (i1, d1),
            HeadLayout::Bhsd => (i2, d2),
        };
        let place = if self.batched { b * length + place } else { place };
        let [s0, s1, s2] = self.strides;
        WorkItem { row, unit, index, place, start: self.offset + b * s0 + i1 * s1 + i2 * s2 }
    }

    /// Rotates some pairs of a row, or passes some elements on, to where `find` says.
    ///
    /// What is read of the row comes first, and waits for neither the place in a cache nor the angles.
    fn turn(&self, start: Val<'k>, place: Val<'k>, unit: Val<'k>, find: &dyn Fn() -> Destination<'k>) {
        let k = start.builder();
        let (op, lanes) = (self.of.op, self.of.lanes);
        let (pairs, rest) = (op.rotary / 2, self.of.width() - op.rotary);
        let load = |at: Val<'k>| self.from.load(start + at * self.element, lanes);
        let first = unit * lanes;
        let turn = || {
            let (at, beside) = match op.style {
                RopeStyle::NeoX => (first, first + pairs),
                // Neighbours: twice as many elements, pair by pair.
                RopeStyle::GptJ => (first * 2, first * 2 + lanes),
            };
            let (front, back) = (load(at), load(beside));
            let destination = find();
            let angles: Vec<_> =
                (0..lanes).map(|i| self.angles.at(place * pairs, place, first + i)).collect();
            let (front, back) = match op.style {
                RopeStyle::NeoX => rotate(&front, &back, &angles),
                RopeStyle::GptJ => {
                    let both = [front, back].concat();
                    let a: Vec<_> = both.iter().step_by(2).copied().collect();
                    let b: Vec<_> = both.iter().skip(1).step_by(2).copied().collect();
                    let (even, odd) = rotate(&a, &b, &angles);
                    let mixed: Vec<_> = even.into_iter().zip(odd).flat_map(|(e, o)| [e, o]).collect();
                    (mixed[..lanes].to_vec(), mixed[lanes..].to_vec())
                }
            };
            destination.store(&[(at, front), (beside, back)]);
        };
        let pass = || {
            let at = first + pairs;
            let values = load(at);
            find().store(&[(at, values)]);
        };
        match (pairs, rest) {
            (0, _) => pass(),
            (_, 0) => turn(),
            _ => k.if_else(first.lt(pairs), turn, pass),
        }
    }
}

/// What an invocation works on: a unit of a row.
pub(super) struct WorkItem<'k> {
    row: Val<'k>,
    pub(super) unit: Val<'k>,
    /// The row's indices.
    pub(super) index: [Val<'k>; 3],
    /// The row's place among the angles.
    pub(super) place: Val<'k>,
    /// The row's first element.
    pub(super) start: Val<'k>,
}

/// Where a row of the result begins, if it is anywhere.
struct Destination<'k> {
    out: Buf<'k>,
    to: Val<'k>,
    inside: Val<'k>,
}

impl<'k> Destination<'k> {
    /// Stores elements from their places in the row on.
    fn store(&self, pieces: &[(Val<'k>, Vec<Val<'k>>)]) {
        self.to.builder().if_(self.inside, || {
            pieces.iter().for_each(|(at, values)| self.out.store_vec(self.to + *at, values));
        });
    }
}

/// Pairs, or passing elements, of an invocation: four where all of them are whole vectors.
fn lanes(op: &Rope, x: &Operand) -> usize {
    let dims = x.sizes();
    // A dimension of size 1 is never stepped over.
    let stepped = |(size, step): (&Dim, &Dim)| size.as_constant() == Some(1) || step.is_multiple_of(4);
    let apart = dims.iter().zip(&x.strides).take(3).all(stepped);
    let fours = (op.rotary / 2).is_multiple_of(4) && dims[3].is_multiple_of(4);
    let unit = x.strides[3].as_constant() == Some(1) && x.offset.is_multiple_of(4);
    if apart && fours && unit && x.ty.dtype != DType::F64 { 4 } else { 1 }
}

/// Each pair's angle per position as the fraction of a turn, in units of 2^-64: low word, high word.
fn turn_table(frequencies: &[f64]) -> Result<Tensor, String> {
    let words: Vec<u32> = frequencies
        .iter()
        .flat_map(|f| {
            let turns = turns_of(*f);
            [turns as u32, (turns >> 32) as u32]
        })
        .collect();
    Tensor::new([frequencies.len(), 2], words).map_err(|e| e.to_string())
}

/// The fraction of a turn in an angle of so many radians, in units of 2^-64.
fn turns_of(radians: f64) -> u64 {
    // 1/(2π) in two parts.
    const HIGH: f64 = 0.159_154_943_091_895_35;
    const LOW: f64 = -9.839_338_337_591_243e-18;
    let unit = 2f64.powi(64);
    let high = radians * HIGH;
    let low = radians.mul_add(HIGH, -high) + radians * LOW;
    let fraction = high - high.floor();
    // As integers, so that nothing of the small part is lost beside the large one.
    ((fraction * unit) as u128 as u64).wrapping_add((low * unit).round() as i128 as u64)
}

/// Where cosines and sines come from.
pub(super) enum Angles<'k> {
    None,
    Tables { cos: Buf<'k>, sin: Buf<'k> },
    Turns { positions: Integers<'k>, turns: Buf<'k>, amplitude: Val<'k> },
}

impl<'k> Angles<'k> {
    /// Cosine and sine of a pair at a place of the sequence, whose table row begins at `row`.
    pub(super) fn at(&self, row: Val<'k>, place: Val<'k>, pair: Val<'k>) -> (Val<'k>, Val<'k>) {
        match self {
            Angles::None => (row, row),
            Angles::Tables { cos, sin } => (cos.load(row + pair), sin.load(row + pair)),
            Angles::Turns { positions, turns, amplitude } => {
                let position = positions.at(place);
                let step = turns.load_vec(pair * 2, 2);
                // The low 64 bits of the product: two's complement makes negative positions right.
                let low = position.low * step[0];
                let high = position.low.mul_high(step[0]) + position.low * step[1] + position.high * step[0];
                let (cos, sin) = cos_sin(low, high, amplitude.scalar());
                (cos * *amplitude, sin * *amplitude)
            }
        }
    }
}

/// Cosine and sine of a fraction of a turn, in units of 2^-64, low and high word.
fn cos_sin<'k>(low: Val<'k>, high: Val<'k>, scalar: Scalar) -> (Val<'k>, Val<'k>) {
    // The nearest quarter turn, and what is left: at most an eighth to either side.
    let quarter = (high + (1 << 29)) >> 30;
    let left = (high - (quarter << 30)).bitcast(Scalar::I32);
    let unit = std::f64::consts::TAU / 2f64.powi(32);
    let mut x = left.convert(scalar) * unit;
    if scalar == Scalar::F64 {
        x = low.convert(scalar).fma(unit / 2f64.powi(32), x);
    }
    let terms = if scalar == Scalar::F64 { 9 } else { 5 };
    let (cos, sin) = series(x, terms);
    let odd = (quarter & 1).ne(0);
    let (c, s) = (odd.select(sin, cos), odd.select(cos, sin));
    // Quarters 1 and 2 have negative cosines, 2 and 3 negative sines.
    let negative_cos = ((quarter + 1) & 2).ne(0);
    let negative_sin = (quarter & 2).ne(0);
    (negative_cos.select(-c, c), negative_sin.select(-s, s))
}

/// Cosine and sine of |x| ≤ π/4 by their series: with 5 terms after the first the error is below 2^-33, with 9 below
/// 2^-70.
fn series(x: Val<'_>, terms: i32) -> (Val<'_>, Val<'_>) {
    let square = x * x;
    // Ratios of neighbouring terms, innermost first.
    let nested = |odd: i32| {
        (1..=terms).rev().fold(x.like(1.0), |inner, n| {
            let divisor = f64::from((2 * n - 1 + odd) * (2 * n + odd));
            (inner * square).fma(-1.0 / divisor, 1.0)
        })
    };
    (nested(0), nested(1) * x)
}

/// Turns each pair `(a, b)` to `(a·cos − b·sin, b·cos + a·sin)`.
fn rotate<'k>(a: &[Val<'k>], b: &[Val<'k>], angles: &[(Val<'k>, Val<'k>)]) -> (Vec<Val<'k>>, Vec<Val<'k>>) {
    let turned = a.iter().zip(b).zip(angles).map(|((a, b), (cos, sin))| {
        let (first, second) = (*b * *sin, *a * *sin);
        (a.fma(*cos, -first), b.fma(*cos, second))
    });
    turned.unzip()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fractions_of_a_turn_are_right_to_the_last_bits() {
        use std::f64::consts::TAU;
        // 2^64/(2π) = 2935890503282001226.6…
        assert_eq!(turns_of(1.0), 2_935_890_503_282_001_226);
        assert_eq!(turns_of(0.0), 0);
        assert_eq!(turns_of(2f64.powi(-40)), 2_935_890_503_282_001_226u64 >> 40);
        for radians in [0.1, 3.0, 7.5, 1000.25] {
            let turns = turns_of(radians) as f64 / 2f64.powi(64);
            let want = (radians / TAU).fract();
            assert!((turns - want).abs() < 1e-13, "{radians}: {turns} {want}");
        }
    }
}
