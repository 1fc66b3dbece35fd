//! Bitonic networks over records in workgroup memory.

use olivine_kernel::{Access, Builder, Elem, Shared, Val};

use super::{Lines, RecordBufs, Records, SortResults};
use crate::cells::Cells;
use crate::launch::Launch;
use crate::site::{Site, linear_group};

/// Whole rows of `len` records, each filled up to `chunk`, a power of two.
#[derive(Clone, Copy, Debug)]
pub(super) struct Block {
    chunk: usize,
    len: usize,
}

impl Block {
    /// Rows of so many records.
    pub(super) fn whole(len: usize) -> Self {
        Block { chunk: len.next_power_of_two(), len }
    }
}

/// Whether a record comes after another: words compared from the first on, no two records being equal.
pub(super) fn after<'k>(a: &[Val<'k>], b: &[Val<'k>]) -> Option<Val<'k>> {
    let (mut result, mut rest) = (None, a.iter().zip(b).rev());
    if let Some((x, y)) = rest.next() {
        result = Some(x.gt(*y));
    }
    for (x, y) in rest {
        result = result.map(|r| x.gt(*y) | (x.eq(*y) & r));
    }
    result
}

/// Records in workgroup memory, twice as many as invocations or a multiple of that.
pub(super) struct Slots<'k> {
    k: &'k Builder,
    words: Vec<Shared<'k>>,
    count: u32,
}

impl<'k> Slots<'k> {
    /// Memory for `count` records of so many words; both it and the workgroup are powers of two.
    pub(super) fn new(k: &'k Builder, words: usize, count: u32) -> Self {
        if count < 2 * k.group() {
            k.fail(format!("{count} records to sort by {} invocations", k.group()));
        }
        Slots { k, words: (0..words).map(|_| k.shared(Elem::U32, 1, count)).collect(), count }
    }

    pub(super) fn load(&self, at: Val<'k>) -> Vec<Val<'k>> {
        self.words.iter().map(|w| w.load(at)).collect()
    }

    pub(super) fn store(&self, at: Val<'k>, record: &[Val<'k>]) {
        self.words.iter().zip(record).for_each(|(w, v)| w.store(at, *v));
    }

    /// Stores a record that comes after all others.
    pub(super) fn store_last(&self, at: Val<'k>) {
        self.words.iter().for_each(|w| w.store(at, self.k.u32(u32::MAX)));
    }

    /// Runs `f` for every slot, shared out among the workgroup.
    pub(super) fn each(&self, f: impl Fn(Val<'k>)) {
        for first in (0..self.count).step_by(self.k.group() as usize) {
            f(self.k.local_index() + first);
        }
    }

    /// Sorts every run of `chunk` slots, a power of two. Stores to slots before are seen; a barrier comes last.
    pub(super) fn sort(&self, chunk: u32) {
        let k = self.k;
        let one = k.u32(1);
        k.barrier();
        k.for_(one, k.u32(chunk.ilog2() + 1), one, |level| {
            k.for_(k.u32(0), level, one, |m| self.step(level - 1u32 - m, one << level, chunk));
        });
    }

    /// Compares all pairs at a distance of 2^`shift`; a slot's place in its chunk tells by its bit in `span` which way.
    fn step(&self, shift: Val<'k>, span: Val<'k>, chunk: u32) {
        let k = self.k;
        let distance = k.u32(1) << shift;
        for pair in (0..self.count / 2).step_by(k.group() as usize) {
            let pair = k.local_index() + pair;
            let a = ((pair >> shift) << (shift + 1u32)) | (pair & (distance - 1u32));
            let b = a + distance;
            let (low, high) = (self.load(a), self.load(b));
            let upwards = (a & (chunk - 1) & span).eq(0u32);
            if let Some(swap) = after(&low, &high) {
                k.if_(swap.eq(upwards), || {
                    self.store(a, &high);
                    self.store(b, &low);
                });
            }
        }
        k.barrier();
    }
}

impl Lines {
    /// Sorts rows of the operand, or of records, each by one workgroup or together with others, and writes results.
    pub(super) fn block(
        &self,
        block: Block,
        from: Option<Records>,
        site: &mut Site<'_>,
    ) -> Result<(), String> {
        let words = self.order.words();
        let record = 4 * (words as u32 + 1);
        // Every invocation has a pair at least, and short rows share a workgroup.
        let room = 1u32 << (site.caps.target.shared_bytes / record).max(2).ilog2();
        let group = site.group_size(256).min(room / 2);
        let chunk = block.chunk as u32;
        let count = chunk.max(2 * group);
        let together = count / chunk;

        let k = site.builder("sort_blocks", group);
        let l = Launch::new(&k);
        let cells = Cells::new(self.order.dtype.size(), site.caps);
        let source = from.map(|records| RecordBufs::declare(&l, Access::Read, records, words));
        let x = match source {
            None => Some(cells.bind(&l, "x", Access::Read, site.operands[0].memory)),
            Some(_) => None,
        };
        let sink = SortResults::declare(self, &l, site, x);
        let (rows, len) = (l.size("rows", self.rows), l.size("len", block.len));
        let slots = Slots::new(&k, words + 1, count);

        let first = linear_group(&k) * together;
        slots.each(|slot| {
            let (row, at) = (first + slot / chunk, slot % chunk);
            k.if_else(
                row.lt(rows) & at.lt(len),
                || match (source, x) {
                    (Some(records), _) => slots.store(slot, &records.load(row * len + at)),
                    (None, Some(x)) => {
                        let mut record = self.order.key(&x.load(sink.source(row, at)));
                        record.push(at);
                        slots.store(slot, &record);
                    }
                    (None, None) => {}
                },
                || slots.store_last(slot),
            );
        });
        slots.sort(chunk);
        slots.each(|slot| {
            let (row, at) = (first + slot / chunk, slot % chunk);
            k.if_(row.lt(rows) & at.lt(sink.take), || {
                if let Some(place) = slots.load(slot).last() {
                    sink.put(row, at, *place);
                }
            });
        });

        let moved = self.moved(site);
        let bound = l.done();
        site.dispatch(k, bound, self.rows.div_ceil(together), (0, moved))
    }
}
