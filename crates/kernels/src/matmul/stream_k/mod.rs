//! Matmuls whose tiles do not fill the last wave: the tiles of that wave are cut along K
//! into equal pieces, one for each workgroup (stream-K), and a second kernel adds the partial sums (fixup).
//!
//! ```text
//!   blocks  0 … whole-1         each a workgroup's
//!           whole … whole+rest-1  all their steps in a row, divided evenly: a piece is the end of one block,
//!                                 the beginning of the next, or both
//! ```
//! Every workgroup has two slots of f32 sums. Slots of a block are added in the order of K, so that the same
//! input produces the same bits.

pub(crate) mod coop;

use olivine_kernel::{Access, Buf, Builder, Elem, Val};
use olivine_program::DeviceCaps;

use crate::launch::Launch;
use crate::matmul::choice::busy;
use crate::matmul::coop::blocks::CoopTile;
use crate::matmul::epilogue::{BatchOffset, Epilogue};
use crate::site::{Memory, linear_group};

/// Steps that writing slots and joining them take about as long as.
const JOIN: usize = 16;

/// A stream-K schedule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StreamK {
    /// Blocks that are computed whole.
    whole: usize,
    /// Tiles that are split.
    rest: usize,
    /// Steps of a block.
    steps: usize,
    /// Workgroups that work on them, and the steps of each, at most as many as a block has.
    workers: usize,
    each: usize,
}

/// The time of so many whole blocks, in steps, where a device holds `round` of them at a time: workgroups of a
/// round that is not full have more of the device each. How many it holds is known roughly; there may be room for a
/// few more.
pub(crate) fn waves(count: usize, steps: usize, round: usize) -> usize {
    let (whole, rest) = (count / round, count % round);
    if rest <= count / 25 && whole > 0 {
        return whole * steps;
    }
    whole * steps + steps * (65 * round + 35 * rest) / (100 * round)
}

impl StreamK {
    /// The schedule of so many blocks of so many steps, if that takes clearly less time than whole blocks.
    pub(crate) fn new(count: usize, steps: usize, caps: &DeviceCaps) -> Option<Self> {
        let round = busy(caps) as usize;
        let schedule = StreamK::of_last_wave(count, steps, caps)?;
        (10 * schedule.time(caps) < 9 * waves(count, steps, round)).then_some(schedule)
    }

    /// The schedule of so many blocks of so many steps, if the last wave is not full.
    pub(crate) fn of_last_wave(count: usize, steps: usize, caps: &DeviceCaps) -> Option<Self> {
        let round = busy(caps) as usize;
        let (whole, rest) = (count / round * round, count % round);
        let schedule = StreamK::among(whole, rest, steps, (rest * steps).div_ceil(round).max(1));
        (rest > 0).then_some(schedule)
    }

    /// Blocks above which it pays for none.
    pub(crate) fn most_blocks(caps: &DeviceCaps) -> u64 {
        9 * busy(caps)
    }

    /// The time of a matmul, in steps.
    pub(crate) fn time(&self, caps: &DeviceCaps) -> usize {
        self.whole / busy(caps) as usize * self.steps + self.each + JOIN
    }

    /// So many blocks whole, the steps of the rest in pieces of `each`, from one up to all of a block.
    pub(crate) fn among(whole: usize, rest: usize, steps: usize, each: usize) -> Self {
        StreamK { whole, rest, steps, workers: (rest * steps).div_ceil(each.max(1)), each }
    }

    /// Workgroups in all.
    pub(crate) fn groups(&self) -> usize {
        self.whole + self.workers
    }

    /// Bytes of the slots.
    pub(crate) fn bytes(&self, blocks: CoopTile) -> u64 {
        8 * self.workers as u64 * u64::from(blocks.m * blocks.n)
    }

    /// Declares the numbers that kernels need.
    pub(crate) fn declare<'k>(&self, l: &Launch<'k>) -> DeclaredStreamK<'k> {
        DeclaredStreamK {
            whole: l.size("whole", self.whole),
            steps: l.size("steps", self.steps),
            each: l.size("each", self.each),
            all: l.size("shared_steps", self.rest * self.steps),
        }
    }
}

/// A schedule declared in a kernel.
pub(crate) struct DeclaredStreamK<'k> {
    whole: Val<'k>,
    steps: Val<'k>,
    each: Val<'k>,
    /// Steps of all stream-K tiles.
    all: Val<'k>,
}

/// What a workgroup sums of one block.
pub(crate) struct Segment<'k> {
    pub(crate) block: Val<'k>,
    /// Indices along K.
    pub(crate) start: Val<'k>,
    pub(crate) end: Val<'k>,
    /// Whether that is all of it.
    pub(crate) is_whole: Val<'k>,
    /// Its partial-sum slot otherwise.
    pub(crate) slot: Val<'k>,
}

impl<'k> DeclaredStreamK<'k> {
    /// Writes the code for a workgroup's segments, one or two. The whole workgroup comes there together; `k_size` are
    /// all, in steps of `step`.
    pub(crate) fn segments(
        &self,
        k: &'k Builder,
        (k_size, step): (Val<'k>, u32),
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
                end: (end * step).min(k_size),
                is_whole: (end - start).eq(self.steps),
                slot: number * 2u32 + second,
            });
        });
    }

    /// The slots of a stream-K tile, by its number among them: the first workgroup that has a share, one past the
    /// last, and whether the first one's is its second segment.
    fn workers(&self, block: Val<'k>) -> (Val<'k>, Val<'k>, Val<'k>) {
        let from = block * self.steps;
        let first = from / self.each;
        let last = (from + (self.steps - 1u32)) / self.each;
        (first, last + 1u32, (first * self.each).lt(from))
    }
}

/// Stores a run of sums in a slot, by the row and column in the block.
pub(crate) fn keep<'k>(
    parts: Buf<'k>,
    blocks: CoopTile,
    slot: Val<'k>,
    (row, column): (Val<'k>, Val<'k>),
    sums: &[Val<'k>],
) {
    parts.store_vec(slot * (blocks.m * blocks.n) + row * blocks.n + column, sums);
}

/// Runs of a block that an invocation joins.
const RUN: u32 = 4;

/// Where a block is.
pub(crate) struct TileOrigin<'k> {
    /// Its first row and column.
    pub(crate) first: (Val<'k>, Val<'k>),
    /// One past the matmul's last row.
    pub(crate) end: Val<'k>,
    /// Where its batch begins.
    pub(crate) base: BatchOffset<'k>,
}

impl StreamK {
    /// Workgroups of so many invocations that join stream-K tiles.
    pub(crate) fn fixup_groups(&self, blocks: CoopTile, group: u32) -> u64 {
        self.rest as u64 * u64::from(blocks.m * blocks.n).div_ceil(u64::from(RUN * group))
    }

    /// Writes the kernel that joins stream-K tiles, an invocation to every few columns of a row.
    pub(crate) fn join<'k>(
        &self,
        l: &Launch<'k>,
        blocks: CoopTile,
        parts: Memory,
        epilogue: &Epilogue<'k, '_>,
        place: impl FnOnce(Val<'k>) -> TileOrigin<'k>,
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
            let TileOrigin { first, end, base } = place(declared.whole + block);
            let (mut worker, last, is_second) = declared.workers(block);
            let load = |slot: Val<'k>| {
                let at = slot * (blocks.m * blocks.n) + row * blocks.n + column;
                from.load_vec(at, RUN as u8)
            };
            // A block that one workgroup has summed whole is where it belongs.
            k.if_((first.0 + row).lt(end) & (worker + 1u32).lt(last), || {
                let slot = worker * 2u32 + is_second.select(k.u32(1), k.u32(0));
                let sums: Vec<_> = load(slot).into_iter().map(|x| k.var(x)).collect();
                worker = worker + 1u32;
                k.for_(worker, last, k.u32(1), |worker| {
                    sums.iter().zip(load(worker * 2u32)).for_each(|(sum, x)| sum.set(sum.get() + x));
                });
                let sums: Vec<Val<'k>> = sums.iter().map(|s| s.get()).collect();
                epilogue.store(&base, first.0 + row, first.1 + column, &sums);
            });
        });
    }
}
