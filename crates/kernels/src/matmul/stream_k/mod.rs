//! Products whose blocks do not fill the device's last round: the blocks of that round are cut along the summed axis
//! into equal shares, one to each workgroup (stream-k), and a second kernel joins what was summed apart.
//!
//! ```text
//!   blocks  0 … whole-1         each a workgroup's
//!           whole … whole+rest-1  all their steps in a row, dealt out evenly: a share is the end of one block,
//!                                 the beginning of the next, or both
//! ```
//! Every workgroup has two slots of f32 sums. Slots of a block are added in the order of its depths, so that the same
//! input gives the same bits.

pub(crate) mod coop;

use olivine_kernel::{Access, Buf, Builder, Elem, Val};
use olivine_program::DeviceCaps;

use crate::launch::Launch;
use crate::matmul::choice::busy;
use crate::matmul::coop::blocks::Blocks;
use crate::matmul::epilogue::{Base, Finish};
use crate::site::{Memory, linear_group};

/// Steps that writing slots and joining them take about as long as.
const JOIN: usize = 16;

/// How a product's blocks are dealt out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shares {
    /// Blocks that are computed whole.
    whole: usize,
    /// Blocks that are shared.
    rest: usize,
    /// Steps of a block.
    steps: usize,
    /// Workgroups that share, and the steps of each, at most as many as a block has.
    sharers: usize,
    each: usize,
}

/// The time of so many whole blocks, in steps, where a device holds `round` of them at a time: workgroups of a
/// round that is not full have more of the device each. How many it holds is known roughly; there may be room for a
/// few more.
pub(crate) fn rounds(count: usize, steps: usize, round: usize) -> usize {
    let (whole, rest) = (count / round, count % round);
    if rest <= count / 25 && whole > 0 {
        return whole * steps;
    }
    whole * steps + steps * (65 * round + 35 * rest) / (100 * round)
}

impl Shares {
    /// The shares of so many blocks of so many steps, if that takes clearly less time than whole blocks.
    pub(crate) fn new(count: usize, steps: usize, caps: &DeviceCaps) -> Option<Self> {
        let round = busy(caps) as usize;
        let (whole, rest) = (count / round * round, count % round);
        let shares = Shares::among(whole, rest, steps, (rest * steps).div_ceil(round).max(1));
        let pays = 10 * shares.time(caps) < 9 * rounds(count, steps, round);
        (rest > 0 && pays).then_some(shares)
    }

    /// The time of a product, in steps.
    pub(crate) fn time(&self, caps: &DeviceCaps) -> usize {
        self.whole / busy(caps) as usize * self.steps + self.each + JOIN
    }

    /// So many blocks whole, the steps of the rest in shares of `each`, from one up to all of a block.
    pub(crate) fn among(whole: usize, rest: usize, steps: usize, each: usize) -> Self {
        Shares { whole, rest, steps, sharers: (rest * steps).div_ceil(each.max(1)), each }
    }

    /// Workgroups in all.
    pub(crate) fn groups(&self) -> usize {
        self.whole + self.sharers
    }

    /// Bytes of the slots.
    pub(crate) fn bytes(&self, blocks: Blocks) -> u64 {
        8 * self.sharers as u64 * u64::from(blocks.m * blocks.n)
    }

    /// Declares the numbers that kernels need.
    pub(crate) fn declare<'k>(&self, l: &Launch<'k>) -> Declared<'k> {
        Declared {
            whole: l.size("whole", self.whole),
            steps: l.size("steps", self.steps),
            each: l.size("each", self.each),
            all: l.size("shared_steps", self.rest * self.steps),
        }
    }
}

/// Shares in a kernel.
pub(crate) struct Declared<'k> {
    whole: Val<'k>,
    steps: Val<'k>,
    each: Val<'k>,
    /// Steps of all shared blocks.
    all: Val<'k>,
}

/// What a workgroup sums of one block.
pub(crate) struct Segment<'k> {
    pub(crate) block: Val<'k>,
    /// Depths.
    pub(crate) start: Val<'k>,
    pub(crate) end: Val<'k>,
    /// Whether that is all of it.
    pub(crate) is_whole: Val<'k>,
    /// Where it goes otherwise.
    pub(crate) slot: Val<'k>,
}

impl<'k> Declared<'k> {
    /// Writes the code for a workgroup's segments, one or two. The whole workgroup comes there together; `depths` are
    /// all, in steps of `step`.
    pub(crate) fn segments(
        &self,
        k: &'k Builder,
        (depths, step): (Val<'k>, u32),
        body: impl FnOnce(Segment<'k>),
    ) {
        let id = linear_group(k);
        let alone = id.lt(self.whole);
        let number = id - self.whole;
        let from = number * self.each;
        let to = (from + self.each).min(self.all);
        let before = from / self.steps;
        let first = from - before * self.steps;
        let zero = k.u32(0);
        let block = alone.select(id, self.whole + before);
        let start = alone.select(zero, first);
        let end = alone.select(self.steps, (first + (to - from)).min(self.steps));
        // What is left over is of the next block.
        let later = alone.select(zero, (to - from) - (end - start));
        let count = later.eq(0u32).select(k.u32(1), k.u32(2));
        let count = (alone | from.lt(self.all)).select(count, zero);
        k.for_(zero, count, k.u32(1), |second| {
            let is_first = second.eq(0u32);
            let (start, end) = (is_first.select(start, zero), is_first.select(end, later));
            body(Segment {
                block: block + second,
                start: start * step,
                end: (end * step).min(depths),
                is_whole: (end - start).eq(self.steps),
                slot: number * 2u32 + second,
            });
        });
    }

    /// The slots of a shared block, by its number among them: the first workgroup that has a share, one past the
    /// last, and whether the first one's is its second segment.
    fn sharers(&self, block: Val<'k>) -> (Val<'k>, Val<'k>, Val<'k>) {
        let from = block * self.steps;
        let first = from / self.each;
        let last = (from + (self.steps - 1u32)) / self.each;
        (first, last + 1u32, (first * self.each).lt(from))
    }
}

/// Stores a run of sums in a slot, by the row and column in the block.
pub(crate) fn keep<'k>(
    parts: Buf<'k>,
    blocks: Blocks,
    slot: Val<'k>,
    (row, column): (Val<'k>, Val<'k>),
    sums: &[Val<'k>],
) {
    parts.store_vec(slot * (blocks.m * blocks.n) + row * blocks.n + column, sums);
}

/// Runs of a block that an invocation joins.
const RUN: u32 = 4;

/// Where a block is.
pub(crate) struct Spot<'k> {
    /// Its first row and column.
    pub(crate) first: (Val<'k>, Val<'k>),
    /// One past the product's last row.
    pub(crate) end: Val<'k>,
    /// Where its batch begins.
    pub(crate) base: Base<'k>,
}

impl Shares {
    /// Workgroups of so many invocations that join shared blocks.
    pub(crate) fn joining_groups(&self, blocks: Blocks, group: u32) -> u64 {
        self.rest as u64 * u64::from(blocks.m * blocks.n).div_ceil(u64::from(RUN * group))
    }

    /// Writes the kernel that joins shared blocks, an invocation to every few columns of a row.
    pub(crate) fn join<'k>(
        &self,
        l: &Launch<'k>,
        blocks: Blocks,
        parts: Memory,
        finish: &Finish<'k, '_>,
        place: impl FnOnce(Val<'k>) -> Spot<'k>,
    ) {
        let k = l.k();
        let from = l.bind("parts", Elem::F32, Access::Read, parts);
        let declared = self.declare(l);
        let across = blocks.n / RUN;
        let runs = blocks.m * across;
        let number = linear_group(k) * k.group() + k.local_index();
        let block = number / runs;
        let run = number % runs;
        let (row, column) = (run / across, run % across * RUN);
        k.if_((block * declared.steps).lt(declared.all), || {
            let Spot { first, end, base } = place(declared.whole + block);
            let (mut sharer, last, is_second) = declared.sharers(block);
            let load = |slot: Val<'k>| {
                let at = slot * (blocks.m * blocks.n) + row * blocks.n + column;
                from.load_vec(at, RUN as u8)
            };
            // A block that one workgroup has summed whole is where it belongs.
            k.if_((first.0 + row).lt(end) & (sharer + 1u32).lt(last), || {
                let slot = sharer * 2u32 + is_second.select(k.u32(1), k.u32(0));
                let sums: Vec<_> = load(slot).into_iter().map(|x| k.var(x)).collect();
                sharer = sharer + 1u32;
                k.for_(sharer, last, k.u32(1), |sharer| {
                    sums.iter().zip(load(sharer * 2u32)).for_each(|(sum, x)| sum.set(sum.get() + x));
                });
                let sums: Vec<Val<'k>> = sums.iter().map(|s| s.get()).collect();
                finish.store(&base, first.0 + row, first.1 + column, &sums);
            });
        });
    }
}
