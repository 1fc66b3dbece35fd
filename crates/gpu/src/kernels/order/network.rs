//! Bitonic networks: whole ones over blocks in workgroup memory, single wide steps in global memory.

use olivine_kernel::{Access, Builder, Elem, Shared, Val};

use super::{Lines, RecordBufs, Records, Sink, To};
use crate::kernels::cells::Cells;
use crate::lower::launch::Launch;
use crate::lower::site::{Site, linear_group};

/// How rows lie in blocks: `chunks` to a row of `len` records, `chunk` (a power of two) records each.
#[derive(Clone, Copy, Debug)]
pub(super) struct Block {
    pub(super) chunk: usize,
    pub(super) chunks: usize,
    pub(super) len: usize,
}

/// What happens to a block.
#[derive(Clone, Copy, Debug)]
pub(super) enum Network {
    /// Sorted.
    Sort,
    /// Sorted, every second block of a row backwards.
    SortByTurns,
    /// Merged as part of spans of so many records, every second span backwards.
    Merge {
        /// Records of a span.
        span: usize,
    },
}

/// Whether a record comes after another: words compared from the first on, no two records being equal.
fn after<'k>(a: &[Val<'k>], b: &[Val<'k>]) -> Option<Val<'k>> {
    let (mut result, mut rest) = (None, a.iter().zip(b).rev());
    if let Some((x, y)) = rest.next() {
        result = Some(x.gt(*y));
    }
    for (x, y) in rest {
        result = result.map(|r| x.gt(*y) | (x.eq(*y) & r));
    }
    result
}

/// Of a slot: its chunk's number, its row, its chunk's number in the row, its place in the chunk. `first` is the
/// number of the workgroup's first chunk.
fn place<'k>(slot: Val<'k>, first: Val<'k>, chunks: Val<'k>, chunk: u32) -> [Val<'k>; 4] {
    let within = slot / chunk;
    let number = first + within;
    let row = number / chunks;
    [number, row, number - row * chunks, slot - within * chunk]
}

/// Records in workgroup memory.
struct Slots<'k> {
    k: &'k Builder,
    words: Vec<Shared<'k>>,
    count: u32,
}

impl<'k> Slots<'k> {
    fn load(&self, at: Val<'k>) -> Vec<Val<'k>> {
        self.words.iter().map(|w| w.load(at)).collect()
    }

    fn store(&self, at: Val<'k>, record: &[Val<'k>]) {
        self.words.iter().zip(record).for_each(|(w, v)| w.store(at, *v));
    }

    /// Runs `f` for every slot, shared out among the workgroup.
    fn each(&self, f: impl Fn(Val<'k>)) {
        for first in (0..self.count).step_by(self.k.group() as usize) {
            f(self.k.local_index() + first);
        }
    }

    /// Compares all pairs at a distance of 2^`shift`; a slot's place in its row (`first` on) tells by its bits in `span`
    /// which way.
    fn step(&self, shift: Val<'k>, span: Val<'k>, first: Val<'k>, chunk: u32) {
        let k = self.k;
        let distance = k.u32(1) << shift;
        for pair in (0..self.count / 2).step_by(k.group() as usize) {
            let pair = k.local_index() + pair;
            let a = ((pair >> shift) << (shift + 1u32)) | (pair & (distance - 1u32));
            let b = a + distance;
            let (low, high) = (self.load(a), self.load(b));
            let upwards = ((first + (a & (chunk - 1))) & span).eq(0u32);
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
    /// Takes blocks of all rows through a network, from the operand or from records.
    pub(super) fn block(
        &self,
        block: Block,
        network: Network,
        from: Option<Records>,
        to: To,
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
        let total = self.rows * block.chunks;

        let k = site.builder(network.name(), group);
        let l = Launch::new(&k);
        let cells = Cells::new(self.order.dtype.size(), site.caps);
        // A network in place binds its records once.
        let in_place = matches!(network, Network::Merge { .. });
        let source = from.map(|records| {
            let access = if in_place { Access::ReadWrite } else { Access::Read };
            RecordBufs::declare(&l, access, records, words)
        });
        let x = match source {
            None => Some(cells.bind(&l, "x", Access::Read, site.operands[0].memory)),
            Some(_) => None,
        };
        let sink = match to {
            To::Results => Some(Sink::declare(self, &l, site, x)),
            _ => None,
        };
        let kept = match to {
            To::First(records) | To::All(records) if !in_place => {
                Some(RecordBufs::declare(&l, Access::Write, records, words))
            }
            _ => source,
        };
        let all = l.size("chunks_of_all", total);
        let (len, chunks) = (l.size("len", block.len), l.size("chunks", block.chunks));
        let (size, inner) = (l.size("line", self.size), l.size("line_inner", self.inner));
        let take = l.size("kept", self.take.min(block.chunk));
        let width = l.size("width", if let To::All(r) = to { r.len } else { block.chunks * self.take });
        let slots =
            Slots { k: &k, words: (0..=words).map(|_| k.shared(Elem::U32, 1, count)).collect(), count };

        let number = linear_group(&k) * together;
        slots.each(|slot| {
            let [number, row, nth, local] = place(slot, number, chunks, chunk);
            let at = nth * chunk + local;
            k.if_else(
                number.lt(all) & at.lt(len),
                || match (source, x) {
                    (Some(records), _) => slots.store(slot, &records.load(row * len + at)),
                    (None, Some(x)) => {
                        let outer = row / inner;
                        let cell = x.load((outer * size + at) * inner + (row - outer * inner));
                        let mut record = self.order.key(&cell);
                        record.push(at);
                        slots.store(slot, &record);
                    }
                    (None, None) => {}
                },
                // What fills a block up comes last.
                || slots.store(slot, &vec![k.u32(u32::MAX); words + 1]),
            );
        });
        k.barrier();

        let levels = chunk.ilog2();
        let (one, start) = (k.u32(1), (number % chunks) * chunk);
        match network {
            Network::Sort | Network::SortByTurns => {
                let first = if matches!(network, Network::Sort) { k.u32(0) } else { start };
                k.for_(one, k.u32(levels + 1), one, |level| {
                    k.for_(k.u32(0), level, one, |m| {
                        slots.step(level - 1u32 - m, one << level, first, chunk);
                    });
                });
            }
            Network::Merge { span } => {
                let span = l.size("span", span);
                k.for_(k.u32(0), k.u32(levels), one, |m| {
                    slots.step(k.u32(levels) - 1u32 - m, span, start, chunk);
                });
            }
        }

        slots.each(|slot| {
            let [number, row, nth, local] = place(slot, number, chunks, chunk);
            let there = number.lt(all);
            match (to, &sink, kept) {
                (To::Results, Some(sink), _) => {
                    let last = slots.words.last();
                    k.if_(there & local.lt(take), || {
                        if let Some(places) = last {
                            sink.put(row, local, places.load(slot));
                        }
                    });
                }
                (To::First(_), _, Some(kept)) => k.if_(there & local.lt(take), || {
                    kept.store(row * width + nth * take + local, &slots.load(slot));
                }),
                (To::All(_), _, Some(kept)) => k.if_(there, || {
                    kept.store(row * width + nth * chunk + local, &slots.load(slot));
                }),
                _ => k.fail("a block that goes nowhere"),
            }
        });

        let moved = self.moved(site);
        let bound = l.done();
        site.dispatch(k, bound, total.div_ceil(together as usize) as u64, (0, moved))
    }

    /// Compares all records of spans with those `distance` further on.
    pub(super) fn step(
        &self,
        records: Records,
        span: usize,
        distance: usize,
        site: &mut Site<'_>,
    ) -> Result<(), String> {
        let group = site.group_size(256);
        let k = site.builder("sort_step", group);
        let l = Launch::new(&k);
        let bufs = RecordBufs::declare(&l, Access::ReadWrite, records, self.order.words());
        let pairs = self.rows * records.len / 2;
        let count = l.size("pairs", pairs);
        let (shift, span) = (l.size("shift", distance.ilog2() as usize), l.size("span", span));
        let len = l.size("len", records.len);

        let work = linear_group(&k) * group + k.local_index();
        k.if_(work.lt(count), || {
            let distance = k.u32(1) << shift;
            // Rows are powers of two, so pairs never leave theirs.
            let a = ((work >> shift) << (shift + 1u32)) | (work & (distance - 1u32));
            let b = a + distance;
            let (low, high) = (bufs.load(a), bufs.load(b));
            let upwards = (a & (len - 1u32) & span).eq(0u32);
            if let Some(swap) = after(&low, &high) {
                k.if_(swap.eq(upwards), || {
                    bufs.store(a, &high);
                    bufs.store(b, &low);
                });
            }
        });
        let moved = (8 * pairs * (self.order.words() + 1)) as u64;
        let bound = l.done();
        site.dispatch(k, bound, pairs.div_ceil(group as usize) as u64, (0, moved))
    }
}

impl Network {
    fn name(self) -> &'static str {
        match self {
            Network::Sort | Network::SortByTurns => "sort_blocks",
            Network::Merge { .. } => "sort_merge",
        }
    }
}
