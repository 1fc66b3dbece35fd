//! 64-bit sums in two words, for devices with or without 64-bit registers.

use olivine_kernel::{AtomicOp, Buf, Builder, Shared, Val};

/// A 64-bit number.
#[derive(Clone, Copy)]
pub(super) struct Wide<'k> {
    pub(super) low: Val<'k>,
    pub(super) high: Val<'k>,
}

fn one_if(condition: Val<'_>) -> Val<'_> {
    let k = condition.builder();
    condition.select(k.u32(1), k.u32(0))
}

impl<'k> Wide<'k> {
    pub(super) fn zero(k: &'k Builder) -> Self {
        Wide { low: k.u32(0), high: k.u32(0) }
    }

    pub(super) fn of(low: Val<'k>) -> Self {
        Wide { low, high: low.builder().u32(0) }
    }

    /// The product of two words.
    pub(super) fn product(a: Val<'k>, b: Val<'k>) -> Self {
        Wide { low: a * b, high: a.mul_high(b) }
    }

    pub(super) fn plus(self, other: Self) -> Self {
        let low = self.low + other.low;
        Wide { low, high: self.high + other.high + one_if(low.lt(other.low)) }
    }

    pub(super) fn minus(self, other: Self) -> Self {
        Wide { low: self.low - other.low, high: self.high - other.high - one_if(self.low.lt(other.low)) }
    }

    pub(super) fn below(self, other: Self) -> Val<'k> {
        self.high.lt(other.high) | (self.high.eq(other.high) & self.low.lt(other.low))
    }

    pub(super) fn or(self, condition: Val<'k>, other: Self) -> Self {
        Wide { low: condition.select(self.low, other.low), high: condition.select(self.high, other.high) }
    }

    /// ⌊self·word / 2³²⌋, and 1 if something is left, else 0.
    pub(super) fn scaled(self, word: Val<'k>) -> (Self, Val<'k>) {
        let whole = Wide::product(self.high, word).plus(Wide::of(self.low.mul_high(word)));
        (whole, one_if((self.low * word).ne(0)))
    }

    /// The least t for which t·word is not below self; it is below 2³¹.
    pub(super) fn divided_up(self, word: Val<'k>) -> Val<'k> {
        let k = word.builder();
        let t = k.var(k.u32(0));
        // The largest t for which (t − 1)·word + 1 ≤ self, by its bits.
        let bit = k.var(k.u32(1 << 30));
        k.while_(
            || bit.get().ne(0),
            || {
                let next = t.get() | bit.get();
                k.if_(Wide::product(next - 1, word).below(self), || t.set(next));
                bit.set(bit.get() >> 1);
            },
        );
        t.get()
    }
}

/// Adds a word to a 64-bit sum of a workgroup's, words one after another.
pub(super) fn add_shared<'k>(to: Shared<'k>, at: Val<'k>, word: Val<'k>) {
    let k = word.builder();
    let before = to.atomic(AtomicOp::Add, at * 2, word);
    k.if_((before + word).lt(word), || {
        to.atomic(AtomicOp::Add, at * 2 + 1, k.u32(1));
    });
}

/// Adds a 64-bit number to a sum in memory.
pub(super) fn add_global<'k>(to: Buf<'k>, at: Val<'k>, number: Wide<'k>) {
    let k = at.builder();
    let before = to.atomic(AtomicOp::Add, at, number.low);
    let high = number.high + one_if((before + number.low).lt(number.low));
    k.if_(high.ne(0), || {
        to.atomic(AtomicOp::Add, at + 1, high);
    });
}

/// Subgroups of a workgroup up to which each invocation adds what those before its own hold.
const FEW_SUBGROUPS: u32 = 32;

/// Counts and sums of the invocations up to this one, itself among them. The whole workgroup must take part; `memory`
/// has three words for each invocation.
pub(super) fn scan<'k>(memory: Shared<'k>, count: Val<'k>, sum: Wide<'k>) -> (Val<'k>, Wide<'k>) {
    let k = count.builder();
    let few = |s: &u32| k.group().is_multiple_of(*s) && k.group() / s <= FEW_SUBGROUPS;
    match k.target().subgroup.filter(few) {
        Some(subgroup) => scan_subgroups(subgroup, memory, count, sum),
        None => scan_memory(memory, count, sum),
    }
}

/// The same by shuffles, and by memory for what each subgroup holds.
fn scan_subgroups<'k>(
    subgroup: u32,
    memory: Shared<'k>,
    count: Val<'k>,
    sum: Wide<'k>,
) -> (Val<'k>, Wide<'k>) {
    let k = count.builder();
    let (lane, own) = (k.lane(), k.local_index() / subgroup);
    let parts = k.group() / subgroup;
    let add_if = |condition: Val<'k>, (count, sum): (Val<'k>, Wide<'k>), words: [Val<'k>; 3]| {
        let [number, low, high] = words.map(|word| condition.select(word, k.u32(0)));
        (count + number, sum.plus(Wide { low, high }))
    };
    let mut all = (count, sum);
    let mut step = 1;
    while step < subgroup {
        let reaches = lane.ge(step);
        // Lanes without one before them ask themselves.
        let from = reaches.select(lane - step, lane);
        all = add_if(reaches, all, [all.0, all.1.low, all.1.high].map(|word| word.shuffle(from)));
        step *= 2;
    }
    k.barrier();
    k.if_(lane.eq(subgroup - 1), || {
        let words = [all.0, all.1.low, all.1.high];
        (0..3u32).zip(words).for_each(|(i, word)| memory.store(own + i * parts, word));
    });
    k.barrier();
    for part in 0..parts - 1 {
        all = add_if(own.gt(part), all, [0, 1, 2].map(|i| memory.load(k.u32(part + i * parts))));
    }
    k.barrier();
    all
}

/// The same by memory alone.
fn scan_memory<'k>(memory: Shared<'k>, count: Val<'k>, sum: Wide<'k>) -> (Val<'k>, Wide<'k>) {
    let k = count.builder();
    let (me, group) = (k.local_index(), k.group());
    let (counts, lows, highs) = (k.var(count), k.var(sum.low), k.var(sum.high));
    let mut step = 1;
    while step < group {
        k.barrier();
        memory.store(me, counts.get());
        memory.store(me + group, lows.get());
        memory.store(me + 2 * group, highs.get());
        k.barrier();
        k.if_(me.ge(step), || {
            let from = me - step;
            counts.set(counts.get() + memory.load(from));
            let other = Wide { low: memory.load(from + group), high: memory.load(from + 2 * group) };
            let sum = Wide { low: lows.get(), high: highs.get() }.plus(other);
            lows.set(sum.low);
            highs.set(sum.high);
        });
        step *= 2;
    }
    k.barrier();
    (counts.get(), Wide { low: lows.get(), high: highs.get() })
}
