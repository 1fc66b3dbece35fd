//! What top_k, top_p and min_p leave of a row: a threshold key, and how many of those equal to it.

use olivine_kernel::{Access, AtomicOp, Buf, Builder, Elem, Scalar, Shared, Val};

use super::wide::{Wide, add_global, add_shared, scan};
use super::{Chunk, ONE, Plan, Scale, ScaleArgs, filter};
use crate::launch::Launch;
use crate::site::{Memory, Site};

/// Bits of a key that one histogram counts by.
#[derive(Clone, Copy, Debug)]
pub(super) struct Digit {
    shift: u32,
    width: u32,
}

/// Bins of a histogram, and the digits of a key, the highest first: as wide as workgroup memory allows.
pub(super) fn digits(shared_bytes: u32) -> (u32, Vec<Digit>) {
    let widths: &[u32] = if shared_bytes >= 32768 { &[11, 11, 10] } else { &[8, 8, 8, 8] };
    let mut shift = 32;
    let digit = |width: &u32| {
        shift -= width;
        Digit { shift, width: *width }
    };
    (1 << widths[0], widths.iter().map(digit).collect())
}

/// Four words of every row that a dispatch leaves for later ones.
#[derive(Clone, Copy)]
pub(super) struct State<'k>(Buf<'k>);

impl<'k> State<'k> {
    pub(super) fn bind(l: &Launch<'k>, name: &str, access: Access, memory: Memory) -> Self {
        State(l.bind(name, Elem::U32, access, memory))
    }

    pub(super) fn load(self, row: Val<'k>) -> [Val<'k>; 4] {
        [0u32, 1, 2, 3].map(|i| self.0.load(row * 4 + i))
    }

    fn store(self, row: Val<'k>, words: [Val<'k>; 4]) {
        words.into_iter().enumerate().for_each(|(i, word)| self.0.store(row * 4 + i, word));
    }
}

/// What is counted towards a threshold.
#[derive(Clone, Copy, PartialEq, Eq)]
enum By {
    Count,
    Weight,
}

/// The bin that holds a threshold, and what all bins above it hold.
struct Found<'k> {
    bin: Val<'k>,
    count: Val<'k>,
    weight: Wide<'k>,
}

/// Workgroup memory for finding bins.
struct Finder<'k> {
    bins: u32,
    memory: Shared<'k>,
    found: Shared<'k>,
}

impl<'k> Finder<'k> {
    fn new(k: &'k Builder, plan: &Plan) -> Self {
        let memory = k.shared(Elem::U32, 1, 3 * plan.group);
        Finder { bins: plan.bins, memory, found: k.shared(Elem::U32, 1, 4) }
    }

    /// The highest bin at which the sum from the top reaches the target; the whole workgroup must take part.
    fn find(&self, histogram: Buf<'k>, row: Val<'k>, by: By, target: Wide<'k>) -> Found<'k> {
        let k = row.builder();
        let me = k.local_index();
        let each = self.bins / k.group();
        let own: Vec<(Val<'k>, Val<'k>, Wide<'k>)> = (0..each)
            .map(|i| {
                let bin = k.u32(self.bins - 1) - (me * each + i);
                let at = (row * self.bins + bin) * 3;
                let weight = Wide { low: histogram.load(at + 1), high: histogram.load(at + 2) };
                (bin, histogram.load(at), weight)
            })
            .collect();
        let (mut count, mut weight) = (k.u32(0), Wide::zero(k));
        for (_, c, w) in &own {
            (count, weight) = (count + *c, weight.plus(*w));
        }
        let (to_here, weight_to_here) = scan(self.memory, count, weight);
        let (mut count, mut weight) = (to_here - count, weight_to_here.minus(weight));
        for (bin, c, w) in own {
            let (next, next_weight) = (count + c, weight.plus(w));
            let (before, after) = match by {
                By::Count => (Wide::of(count), Wide::of(next)),
                By::Weight => (weight, next_weight),
            };
            k.if_(before.below(target) & !after.below(target), || {
                let words = [bin, count, weight.low, weight.high];
                words.into_iter().enumerate().for_each(|(i, word)| {
                    self.found.store(k.u32(i as u32), word);
                });
            });
            (count, weight) = (next, next_weight);
        }
        k.barrier();
        let [bin, count, low, high] = [0u32, 1, 2, 3].map(|i| self.found.load(k.u32(i)));
        Found { bin, count, weight: Wide { low, high } }
    }
}

/// Run-time numbers of the digit that is counted by, and of the one before.
struct Shifts<'k> {
    shift: Val<'k>,
    mask: Val<'k>,
    /// Where the digits found so far begin.
    above: Val<'k>,
}

impl<'k> Shifts<'k> {
    fn declare(l: &Launch<'k>, digit: Digit) -> Self {
        Shifts {
            shift: l.size("shift", digit.shift as usize),
            mask: l.size("mask", (1 << digit.width) - 1),
            above: l.size("above", (digit.shift + digit.width) as usize),
        }
    }

    fn digit(&self, key: Val<'k>) -> Val<'k> {
        (key >> self.shift) & self.mask
    }
}

/// Adds the chunk's keys to the row's histogram; those of which `counts` is false do not count.
fn histogram<'k>(
    chunk: &Chunk<'k>,
    scale: &Scale<'k>,
    digit: &Shifts<'k>,
    bins: u32,
    to: Buf<'k>,
    counts: impl Fn(Val<'k>) -> Val<'k>,
) {
    let k = chunk.row.builder();
    let (me, group) = (k.local_index(), k.u32(k.group()));
    let (numbers, weights) = (k.shared(Elem::U32, 1, bins), k.shared(Elem::U32, 1, 2 * bins));
    k.for_(me, k.u32(bins), group, |i| numbers.store(i, k.u32(0)));
    k.for_(me, k.u32(2 * bins), group, |i| weights.store(i, k.u32(0)));
    k.barrier();
    chunk.each(|key| {
        k.if_(counts(key), || {
            let bin = digit.digit(key);
            numbers.atomic(AtomicOp::Add, bin, k.u32(1));
            let weight = scale.weigh(key);
            k.if_(weight.ne(0), || add_shared(weights, bin, weight));
        });
    });
    k.barrier();
    k.for_(me, k.u32(bins), group, |bin| {
        let number = numbers.load(bin);
        k.if_(number.ne(0), || {
            let at = (chunk.row * bins + bin) * 3;
            to.atomic(AtomicOp::Add, at, number);
            let weight = Wide { low: weights.load(bin * 2), high: weights.load(bin * 2 + 1) };
            add_global(to, at + 1, weight);
        });
    });
}

/// Emits the search for the thresholds and the sums of what they keep.
pub(super) fn emit(plan: &Plan, site: &mut Site<'_>) -> Result<(), String> {
    let levels = plan.digits.len();
    first(plan, site)?;
    for level in 1..levels {
        refine(By::Count, level, plan.digits[level - 1], plan.digits[level], plan, site)?;
    }
    turn(plan, site)?;
    for level in 2..levels {
        let slot = levels + level - 1;
        refine(By::Weight, slot, plan.digits[level - 1], plan.digits[level], plan, site)?;
    }
    sums(plan, site)
}

/// The histogram of the first digit, and what top_k wants.
fn first(plan: &Plan, site: &mut Site<'_>) -> Result<(), String> {
    let k = site.builder("sample_histogram", plan.group);
    let l = Launch::new(&k);
    let (chunk, there) = Chunk::declare(&l, plan);
    let args = ScaleArgs::declare(&l, plan);
    let (top_k, step) = filter(&l, "top_k", &plan.filters[1]);
    let to = l.bind("histogram", Elem::U32, Access::ReadWrite, plan.histograms.1[0]);
    let state = State::bind(&l, "state", Access::Write, plan.states[0]);
    let digit = Shifts::declare(&l, plan.digits[0]);
    k.if_(there, || {
        let scale = Scale::read(&args, &chunk);
        histogram(&chunk, &scale, &digit, plan.bins, to, |_| k.bool(true));
        k.if_(chunk.number.eq(0) & k.local_index().eq(0), || {
            let wanted = top_k.load(chunk.row * step);
            let some = wanted.gt(0) & wanted.bitcast(Scalar::U32).lt(chunk.v);
            let wanted = some.select(wanted.bitcast(Scalar::U32), chunk.v);
            let (_, greedy) = args.temperature(chunk.row);
            let wanted = greedy.select(k.u32(1), wanted);
            state.store(chunk.row, [k.u32(0), wanted, k.u32(0), k.u32(0)]);
        });
    });
    let bound = l.done();
    site.dispatch(k, bound, plan.groups(), plan.cost())
}

/// Finds one more digit of a threshold and counts by the next.
///
/// States by count: the digits so far, how many are wanted of those that share them, and the weight above them. States
/// by weight: the digits so far, and the weight that is wanted of those that share them.
fn refine(
    by: By,
    slot: usize,
    found: Digit,
    next: Digit,
    plan: &Plan,
    site: &mut Site<'_>,
) -> Result<(), String> {
    let name = if by == By::Count { "sample_refine_count" } else { "sample_refine_weight" };
    let k = site.builder(name, plan.group);
    let l = Launch::new(&k);
    let (chunk, there) = Chunk::declare(&l, plan);
    let args = ScaleArgs::declare(&l, plan);
    let from = l.bind("before", Elem::U32, Access::Read, plan.histograms.1[slot - 1]);
    let old = State::bind(&l, "old", Access::Read, plan.states[slot - 1]);
    let to = l.bind("histogram", Elem::U32, Access::ReadWrite, plan.histograms.1[slot]);
    let state = State::bind(&l, "state", Access::Write, plan.states[slot]);
    let (digit, found_shift) = (Shifts::declare(&l, next), l.size("found", found.shift as usize));
    let finder = Finder::new(&k, plan);
    k.if_(there, || {
        let scale = Scale::read(&args, &chunk);
        let [prefix, a, b, c] = old.load(chunk.row);
        let target = if by == By::Count { Wide::of(a) } else { Wide { low: a, high: b } };
        let found = finder.find(from, chunk.row, by, target);
        let prefix = prefix | (found.bin << found_shift);
        let words = match by {
            By::Count => {
                let above = Wide { low: b, high: c }.plus(found.weight);
                [prefix, a - found.count, above.low, above.high]
            }
            By::Weight => {
                let rest = target.minus(found.weight);
                [prefix, rest.low, rest.high, k.u32(0)]
            }
        };
        k.if_(chunk.number.eq(0) & k.local_index().eq(0), || state.store(chunk.row, words));
        let shared = prefix >> digit.above;
        histogram(&chunk, &scale, &digit, plan.bins, to, |key| (key >> digit.above).eq(shared));
    });
    let bound = l.done();
    site.dispatch(k, bound, plan.groups(), plan.cost())
}

/// Finds top_k's last digit, and with it the weight that top_p wants; its first digit is known at once.
fn turn(plan: &Plan, site: &mut Site<'_>) -> Result<(), String> {
    let levels = plan.digits.len();
    let k = site.builder("sample_update", plan.group);
    let l = Launch::new(&k);
    let (chunk, there) = Chunk::declare(&l, plan);
    let args = ScaleArgs::declare(&l, plan);
    let (top_p, step) = filter(&l, "top_p", &plan.filters[2]);
    let first = l.bind("first", Elem::U32, Access::Read, plan.histograms.1[0]);
    let from = l.bind("before", Elem::U32, Access::Read, plan.histograms.1[levels - 1]);
    let to = l.bind("histogram", Elem::U32, Access::ReadWrite, plan.histograms.1[levels]);
    let old = State::bind(&l, "old", Access::Read, plan.states[levels - 1]);
    let state = State::bind(&l, "state", Access::Write, plan.states[levels]);
    let (digit, first_shift) =
        (Shifts::declare(&l, plan.digits[1]), l.size("first_shift", plan.digits[0].shift as usize));
    let finder = Finder::new(&k, plan);
    k.if_(there, || {
        let scale = Scale::read(&args, &chunk);
        let [prefix, wanted, low, high] = old.load(chunk.row);
        let found = finder.find(from, chunk.row, By::Count, Wide::of(wanted));
        let (key, ties) = (prefix | found.bin, wanted - found.count);
        let above = Wide { low, high }.plus(found.weight);
        let total = above.plus(Wide::product(ties, scale.weigh(key)));

        let p = top_p.load(chunk.row * step);
        let bits = p.bitcast(Scalar::U32);
        let magnitude = bits & 0x7fff_ffff;
        let off = magnitude.gt(0x7f80_0000) | ((bits >> 31).eq(0) & magnitude.ge(0x3f80_0000));
        let part = (off | (bits >> 31).ne(0)).select(k.f32(0.0), p);
        let (part, rest) = total.scaled((part * 4_294_967_296.0).convert(Scalar::U32));
        let part = part.plus(Wide::of(rest));
        let one = Wide::of(k.u32(1));
        let target = total.or(off, one.or(part.below(one), part));

        let found = finder.find(first, chunk.row, By::Weight, target);
        let (prefix, rest) = (found.bin << first_shift, target.minus(found.weight));
        k.if_(chunk.number.eq(0) & k.local_index().eq(0), || {
            state.store(chunk.row, [prefix, rest.low, rest.high, k.u32(0)]);
        });
        let shared = prefix >> digit.above;
        histogram(&chunk, &scale, &digit, plan.bins, to, |key| (key >> digit.above).eq(shared));
    });
    let bound = l.done();
    site.dispatch(k, bound, plan.groups(), plan.cost())
}

/// Finds top_p's last digit; then every chunk's weight above the threshold, and its ties with it.
///
/// The state is the threshold, how many ties are kept, a tie's weight, and the least weight that min_p keeps.
fn sums(plan: &Plan, site: &mut Site<'_>) -> Result<(), String> {
    let last = plan.histograms.1.len() - 1;
    let k = site.builder("sample_sums", plan.group);
    let l = Launch::new(&k);
    let (chunk, there) = Chunk::declare(&l, plan);
    let args = ScaleArgs::declare(&l, plan);
    let (min_p, step) = filter(&l, "min_p", &plan.filters[3]);
    let from = l.bind("before", Elem::U32, Access::Read, plan.histograms.1[last]);
    let old = State::bind(&l, "old", Access::Read, plan.states[last]);
    let state = State::bind(&l, "state", Access::Write, plan.states[last + 1]);
    let parts = l.bind("parts", Elem::U32, Access::Write, plan.parts);
    let finder = Finder::new(&k, plan);
    k.if_(there, || {
        let (me, row) = (k.local_index(), chunk.row);
        let scale = Scale::read(&args, &chunk);
        let [prefix, low, high, _] = old.load(row);
        let wanted = Wide { low, high };
        let found = finder.find(from, row, By::Weight, wanted);
        let threshold = prefix | found.bin;
        let tie_weight = scale.weigh(threshold);
        let ties = wanted.minus(found.weight).divided_up(tie_weight);

        let p = min_p.load(row * step);
        let bits = p.bitcast(Scalar::U32);
        let part = bits.gt(0x7f80_0000u32).select(k.u32(0), bits.min(0x3f80_0000u32)).bitcast(Scalar::F32);
        let least = (part * f64::from(ONE)).convert(Scalar::U32);
        let tie_weight = tie_weight.lt(least).select(k.u32(0), tie_weight);
        k.if_(chunk.number.eq(0) & me.eq(0), || state.store(row, [threshold, ties, tie_weight, least]));

        let (tied, low, high) = (k.var(k.u32(0)), k.var(k.u32(0)), k.var(k.u32(0)));
        chunk.each(|key| {
            k.if_(key.eq(threshold), || tied.set(tied.get() + 1));
            k.if_(key.gt(threshold), || {
                let weight = scale.weigh(key);
                k.if_(weight.ge(least), || {
                    let sum = Wide { low: low.get(), high: high.get() }.plus(Wide::of(weight));
                    low.set(sum.low);
                    high.set(sum.high);
                });
            });
        });
        let (tied, above) = scan(finder.memory, tied.get(), Wide { low: low.get(), high: high.get() });
        k.if_(me.eq(plan.group - 1), || {
            let at = (row * chunk.chunks + chunk.number) * 3;
            let words = [tied, above.low, above.high];
            words.into_iter().enumerate().for_each(|(i, word)| parts.store(at + i, word));
        });
    });
    let bound = l.done();
    site.dispatch(k, bound, plan.groups(), plan.cost())
}
