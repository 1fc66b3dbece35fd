//! Decays: powers of two whose exponents are sums along the sequence.
//!
//! Within a chunk a decay from one step to a later one is the power of a difference of running sums. A sum far from
//! zero would carry the rounding of its size into every difference, so f32 sums are kept with what their roundings
//! lost.

use olivine_kernel::{Access, Buf, Elem, Scalar, Val};

use super::heads::{Heads, Kind};
use crate::attention::exp2_below;
use crate::launch::Launch;
use crate::rows::GROUP;
use crate::site::{Memory, Site, linear_group};

/// 2^x for any x; 0 where the result would be denormal.
pub(super) fn exp2(x: Val<'_>) -> Val<'_> {
    let most = if x.scalar() == Scalar::F64 { 1024.0 } else { 128.0 };
    exp2_below(x.gt(most).select(x.like(most), x))
}

/// Exponents below which a step forgets everything: a sum of such is as good as one of −∞, and its differences exist.
fn forgotten(scalar: Scalar) -> f64 {
    if scalar == Scalar::F64 { -2200.0 } else { -300.0 }
}

/// A running sum of exponents, and the part of it that does not fit.
#[derive(Clone, Copy)]
pub(super) struct Exponent<'k> {
    high: Val<'k>,
    low: Option<Val<'k>>,
}

impl<'k> Exponent<'k> {
    /// The decay since the chunk began.
    pub(super) fn decay(self) -> Val<'k> {
        exp2(self.low.map_or(self.high, |low| self.high + low))
    }

    /// The decay since an earlier step.
    pub(super) fn since(self, earlier: Exponent<'k>) -> Val<'k> {
        let difference = self.high - earlier.high;
        exp2(match (self.low, earlier.low) {
            (Some(a), Some(b)) => difference + (a - b),
            _ => difference,
        })
    }
}

/// The running sums of every chunk, `[batch, head, padded step]`; steps past the last have no decay.
#[derive(Clone, Copy)]
pub(super) struct Exponents<'k> {
    buffer: Buf<'k>,
}

impl<'k> Exponents<'k> {
    pub(super) fn read(l: &Launch<'k>, elem: Elem, memory: Memory) -> Self {
        Exponents { buffer: l.bind("exponents", elem, Access::Read, memory) }
    }

    /// The sum at a row, counted over batches, heads and padded steps.
    pub(super) fn at(self, row: Val<'k>) -> Exponent<'k> {
        if self.buffer.elem() == Elem::F64 {
            return Exponent { high: self.buffer.load(row), low: None };
        }
        let both = self.buffer.load_vec(row * 2, 2);
        Exponent { high: both[0], low: Some(both[1]) }
    }
}

/// Numbers of one sum.
pub(super) fn numbers(elem: Elem) -> usize {
    if elem == Elem::F64 { 1 } else { 2 }
}

/// Emits the running sums of all chunks; an invocation takes a step of a head and walks to it from its chunk's first.
pub(super) fn emit(p: &Heads, site: &mut Site<'_>) -> Result<Memory, String> {
    let rows = p.batch * p.heads * p.padded();
    let memory = site.scratch((rows * numbers(p.elem) * p.elem.size() as usize) as u64);
    let group = site.group_size(GROUP);
    let k = site.builder("state_exponents", group);
    let l = Launch::new(&k);
    let steps = l.read("steps", &p.steps);
    let rates = match &p.kind {
        Kind::Mamba { rates, .. } => Some(l.read("rates", rates)),
        Kind::Delta { .. } => None,
    };
    let out = l.bind("exponents", p.elem, Access::Write, memory);
    let (count, heads) = (l.size("rows", rows), l.size("heads", p.heads));
    let (length, padded) = (l.size("length", p.length), l.size("padded", p.padded()));
    let work = linear_group(&k) * group + k.local_index();
    k.if_(work.lt(count), || {
        // Neighbours take neighbouring heads, which is the layout of the steps.
        let (rest, head) = (work / heads, work % heads);
        let (batch, step) = (rest / padded, rest % padded);
        let rate = rates.map(|r| r.load(head));
        let zero = k.number(p.scalar, 0.0);
        let (high, low) = (k.var(zero), k.var(zero));
        let first = step - step % p.chunk;
        k.for_(first, (step + 1).min(length), k.u32(1), |j| {
            let step = steps.load((batch * length + j) * heads + head);
            let exponent = rate.map_or(step, |r| step * r) * std::f64::consts::LOG2_E;
            let least = k.number(p.scalar, forgotten(p.scalar));
            let exponent = exponent.lt(least).select(least, exponent);
            let before = high.get();
            let sum = (before + exponent).opaque();
            let taken = (sum - before).opaque();
            let lost = (before - (sum - taken).opaque()) + (exponent - taken);
            high.set(sum);
            low.set(low.get() + lost);
        });
        let row = (batch * heads + head) * padded + step;
        if p.elem == Elem::F64 {
            out.store(row, high.get() + low.get());
        } else {
            out.store_vec(row * 2, &[high.get(), low.get()]);
        }
    });
    let bound = l.done();
    let cost = ((rows * p.chunk as usize) as u64, (rows * 12) as u64);
    site.dispatch(k, bound, (rows as u64).div_ceil(u64::from(group)), cost)?;
    Ok(memory)
}
