//! Drawing tokens: thresholds by histograms of the logits' order, then a draw by running sums.
//!
//! ```text
//!   peak ── histogram ── refine (count) … ── turn ── refine (weight) … ── sums ── draw
//!            digit 1      digits 2 …         top_k is known; top_p       chunks    token
//!                                            begins from digit 1 again
//! ```
//!
//! A logit becomes an order key of 32 bits and a weight of 31. A row is cut into chunks, a workgroup each; a dispatch
//! adds their histograms of one digit of the keys that share the digits found so far. Weights are integers, so sums do
//! not depend on the order of addition. Every workgroup of the next dispatch finds the digit that holds the threshold
//! by itself; the row's first one keeps what was found.
//!
//! Where no row draws, each takes its largest logit by a reduction.

mod draw;
mod thresholds;
mod wide;

use olivine_ir::Dim;
use olivine_ir::op::Sample;
use olivine_kernel::{Access, Buf, Elem, Reduction, Scalar, Val};

use super::arg_reduce::largest_logit;
use super::random::horner;
use crate::kernels;
use crate::launch::{Launch, bytes, number};
use crate::math;
use crate::site::{Memory, Operand, Site, linear_group};
use thresholds::Digit;

kernels! { |op, site|
    Sample => sample(op, site),
}

/// Logits of one chunk at least, where rows alone make the device busy.
const CHUNK: usize = 4096;
/// The same of few rows.
const SMALL_CHUNK: usize = 1024;
/// Chunks of all rows up to which they are small.
const BUSY: usize = 1024;
/// Logits that an invocation loads before it looks at the first of them.
const TOGETHER: u32 = 4;
/// Chunks of a row at most; a workgroup of the smallest size looks at all of them at once.
const MOST_CHUNKS: usize = 128;
/// The weight of the likeliest token.
const ONE: u32 = 1 << 30;
/// The order key of −∞, which NaN has too.
const NOTHING: u32 = 0x007f_ffff;
/// The bits of 2⁻¹⁰⁰: temperatures below take the likeliest token.
const LEAST_TEMPERATURE: u32 = (127 - 100) << 23;
/// The bits of 2¹⁰⁰: temperatures above are taken for it.
const MOST_TEMPERATURE: u32 = (127 + 100) << 23;

/// What all dispatches of a draw share.
struct Plan {
    logits: Operand,
    filters: [Operand; 4],
    rows: Dim,
    v: usize,
    chunks: usize,
    chunk: usize,
    group: u32,
    digits: Vec<Digit>,
    /// Bins of a histogram.
    bins: u32,
    /// Keys of the chunks' largest logits.
    peaks: Memory,
    /// Every histogram, and each by itself.
    histograms: (Memory, Vec<Memory>),
    /// What each dispatch found.
    states: Vec<Memory>,
    /// Kept weight and ties of each chunk.
    parts: Memory,
}

impl Plan {
    fn new(site: &mut Site<'_>) -> Result<Self, String> {
        let [logits, temperature, top_k, top_p, min_p, _] = site
            .operands
            .clone()
            .try_into()
            .map_err(|operands: Vec<Operand>| format!("{} operands instead of 6", operands.len()))?;
        let sizes = logits.sizes();
        let v = sizes.last().map_or(1, |v| number(*v));
        let rows = sizes.numel().div_floor(v.max(1));
        let few = rows * v.div_ceil(SMALL_CHUNK) <= BUSY;
        let chunk = v.div_ceil(MOST_CHUNKS).max(if few { SMALL_CHUNK } else { CHUNK });
        let chunks = v.div_ceil(chunk);
        let (bins, digits) = thresholds::digits(site.caps.target.shared_bytes);
        let count = 2 * digits.len() - 1;
        let one = rows * bins * 12;
        let all = site.scratch(one * count);
        let Memory::Scratch { offset, .. } = all else { return Err("histograms have no scratch".into()) };
        let each = (0..count)
            .map(|i| Memory::Scratch {
                offset: (offset.dim() + i * one).structural(),
                bytes: one.structural(),
            })
            .collect();
        Ok(Plan {
            logits,
            filters: [temperature, top_k, top_p, min_p],
            rows,
            v,
            chunks,
            chunk,
            group: site.group_size(256),
            digits,
            bins,
            peaks: site.scratch(rows * chunks * 4),
            histograms: (all, each),
            states: (0..=count).map(|_| site.scratch(rows * 16)).collect(),
            parts: site.scratch(rows * chunks * 12),
        })
    }

    /// Workgroups of a dispatch over all chunks.
    fn groups(&self) -> Dim {
        self.rows * self.chunks
    }

    fn cost(&self) -> (Dim, Dim) {
        (self.rows * self.v, bytes(&self.logits.ty))
    }
}

/// Lowers a draw.
pub(crate) fn sample(op: &Sample, site: &mut Site<'_>) -> Result<(), String> {
    if site.targets[0].ty.shape.has_zero() {
        return Ok(());
    }
    if site.operands[5].ty.shape.has_zero() {
        return largest_logit(site);
    }
    let plan = Plan::new(site)?;
    peak(&plan, site)?;
    thresholds::emit(&plan, site)?;
    draw::emit(op, &plan, site)
}

/// A chunk in registers: which row and part of it this workgroup has.
struct Chunk<'k> {
    row: Val<'k>,
    number: Val<'k>,
    /// Position of its first logit in the row, and one past its last.
    first: Val<'k>,
    end: Val<'k>,
    v: Val<'k>,
    chunks: Val<'k>,
    logits: Buf<'k>,
}

impl<'k> Chunk<'k> {
    /// Declares what a dispatch over all chunks needs; the condition holds in workgroups that have one.
    fn declare(l: &Launch<'k>, plan: &Plan) -> (Self, Val<'k>) {
        let k = l.k();
        let logits = l.read("logits", &plan.logits);
        let (v, chunks, chunk) =
            (l.size("v", plan.v), l.size("chunks", plan.chunks), l.size("chunk", plan.chunk));
        let rows = l.size("rows", plan.rows);
        let id = linear_group(k);
        let row = id / chunks;
        let number = id - row * chunks;
        let first = number * chunk;
        let end = (first + chunk).min(v);
        (Chunk { row, number, first, end, v, chunks, logits }, row.lt(rows))
    }

    /// Calls `body` with the key of every logit, by all invocations.
    fn each(&self, body: impl Fn(Val<'k>)) {
        let k = self.row.builder();
        let group = k.group();
        k.for_(self.first + k.local_index(), self.end, k.u32(group * TOGETHER), |first| {
            let places: Vec<Val<'k>> = (0..TOGETHER).map(|i| first + i * group).collect();
            // Loads past the end repeat the last logit, so that none waits for a branch.
            let keys: Vec<Val<'k>> = places.iter().map(|at| self.key((*at).min(self.end - 1))).collect();
            for (at, key) in places.into_iter().zip(keys) {
                k.if_(at.lt(self.end), || body(key));
            }
        });
    }

    /// The key of one logit of the row.
    fn key(&self, i: Val<'k>) -> Val<'k> {
        let k = i.builder();
        let bits = self.logits.load(self.row * self.v + i).bitcast(Scalar::U32);
        let magnitude = bits & 0x7fff_ffff;
        let bits = magnitude.eq(0).select(k.u32(0), bits);
        let key = (bits >> 31).eq(0).select(bits | 0x8000_0000u32, !bits);
        magnitude.gt(0x7f80_0000).select(k.u32(NOTHING), key)
    }
}

/// What turns keys of a row into weights.
struct Scale<'k> {
    most: Val<'k>,
    highest: Val<'k>,
    inverse: Val<'k>,
}

impl<'k> Scale<'k> {
    /// Reads the row's largest key and temperature; the whole workgroup must take part.
    fn read(l: &ScaleArgs<'k>, chunk: &Chunk<'k>) -> Self {
        let k = chunk.row.builder();
        let me = k.local_index();
        let own =
            k.if_value(me.lt(chunk.chunks), || l.peaks.load(chunk.row * chunk.chunks + me), || k.u32(0));
        let most = k.group_reduce(own, Reduction::Max);
        let (t, greedy) = l.temperature(chunk.row);
        let inverse = math::div(k.f32(1.0), t);
        let inverse = greedy.select(k.f32(1.0), inverse);
        Scale { most, highest: logit(most), inverse }
    }

    /// The weight of a key.
    fn weigh(&self, key: Val<'k>) -> Val<'k> {
        let k = key.builder();
        let x = ((logit(key) - self.highest).opaque() * self.inverse).opaque();
        let some = k.if_value(
            key.ne(NOTHING) & (x.bitcast(Scalar::U32) & 0x7fff_ffff).lt(21.0f32.to_bits()),
            || weight(x),
            || k.u32(0),
        );
        key.eq(self.most).select(k.u32(ONE), some)
    }
}

/// The buffers of a [`Scale`], declared before anything is computed.
struct ScaleArgs<'k> {
    peaks: Buf<'k>,
    temperatures: Buf<'k>,
    step: Val<'k>,
}

impl<'k> ScaleArgs<'k> {
    fn declare(l: &Launch<'k>, plan: &Plan) -> Self {
        let (temperatures, step) = filter(l, "temperature", &plan.filters[0]);
        ScaleArgs { peaks: l.bind("peaks", Elem::U32, Access::Read, plan.peaks), temperatures, step }
    }

    /// A row's temperature within its bounds, and whether it takes the likeliest token.
    fn temperature(&self, row: Val<'k>) -> (Val<'k>, Val<'k>) {
        let k = row.builder();
        let bits = self.temperatures.load(row * self.step).bitcast(Scalar::U32);
        // As an unsigned number, a negative one or NaN is above ∞.
        let greedy = bits.lt(LEAST_TEMPERATURE) | bits.gt(0x7f80_0000u32);
        let bits = greedy.select(k.u32(0x3f80_0000), bits.min(MOST_TEMPERATURE));
        (bits.bitcast(Scalar::F32), greedy)
    }
}

/// Declares an operand of one number for all rows or one each, and the step from row to row.
fn filter<'k>(l: &Launch<'k>, name: &str, operand: &Operand) -> (Buf<'k>, Val<'k>) {
    let each = usize::from(operand.ty.shape.rank() > 0);
    (l.read(name, operand), l.size(&format!("{name}_step"), each))
}

/// The logit of a key.
fn logit(key: Val<'_>) -> Val<'_> {
    (key >> 31).ne(0).select(key ^ 0x8000_0000u32, !key).bitcast(Scalar::F32)
}

/// ⌊2³⁰·eˣ⌋ for x from −21 to 0, by the CPU backend's steps in its order.
fn weight(x: Val<'_>) -> Val<'_> {
    let n = (x * std::f32::consts::LOG2_E).opaque().round_even();
    let r = (x - (n * 0.693_359_4f32).opaque()).opaque();
    let r = (r - (n * -2.121_944_4e-4f32).opaque()).opaque();
    let p = horner(r, &[1.987_569_1e-4, 1.398_199_9e-3, 8.333_452e-3, 4.166_579_6e-2, 1.666_666_5e-1, 0.5]);
    let y = ((p.opaque() * (r * r).opaque()).opaque() + r).opaque() + 1.0;
    let power = ((n.convert(Scalar::I32) + (30 + 127)) << 23).bitcast(Scalar::F32);
    (y.opaque() * power).convert(Scalar::U32)
}

/// Finds the chunks' largest keys, and clears the histograms.
fn peak(plan: &Plan, site: &mut Site<'_>) -> Result<(), String> {
    let k = site.builder("sample_peak", plan.group);
    let l = Launch::new(&k);
    let (chunk, there) = Chunk::declare(&l, plan);
    let peaks = l.bind("peaks", Elem::U32, Access::Write, plan.peaks);
    let all = l.bind("histograms", Elem::U32, Access::Write, plan.histograms.0);
    let words = l.size("words", plan.rows * plan.bins * 3 * plan.histograms.1.len());
    k.if_(there, || {
        let (id, groups) =
            (chunk.row * chunk.chunks + chunk.number, l.size("groups", plan.rows * plan.chunks));
        let (group, me) = (k.u32(plan.group), k.local_index());
        k.for_(id * group + me, words, groups * group, |i| all.store(i, k.u32(0)));
        let most = k.var(k.u32(0));
        chunk.each(|key| most.set(most.get().max(key)));
        let most = k.group_reduce(most.get(), Reduction::Max);
        k.if_(me.eq(0), || peaks.store(id, most));
    });
    let bound = l.done();
    site.dispatch(k, bound, plan.groups(), plan.cost())
}
