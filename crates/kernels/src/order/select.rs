//! The best k of long rows: every workgroup narrows a part of a row down by the digits of records, from the highest on,
//! until so few are left that it can sort them.
//!
//! A record is its key and its position; so no two are equal, and the digits of positions settle what keys leave open.

use olivine_kernel::{Access, AtomicOp, Builder, Elem, Shared, Val, Var};

use super::network::Slots;
use super::{Lines, RecordBufs, Records, SortResults};
use crate::cells::{CellBuf, Cells};
use crate::launch::{Launch, number};
use crate::rows::Clusters;
use crate::site::{Site, linear_group};

/// Bits of a digit.
const BITS: u32 = 11;
/// Records that are left at most when they are sorted, unless more are wanted.
const LEFT: u32 = 1024;
/// Invocations of a workgroup.
const GROUP: u32 = 512;
/// Records of a part at least and at most.
const PART: (usize, usize) = (8192, 65536);
/// Parts that keep a large device busy.
const BUSY: usize = 512;
/// Loads that an invocation has on their way at a time.
const AHEAD: u32 = 4;

/// What fits into workgroup memory.
#[derive(Clone, Copy, Debug)]
pub(super) struct Room {
    group: u32,
    /// Bits of a digit.
    bits: u32,
    /// Records that can be sorted.
    left: u32,
}

/// How rows are cut.
#[derive(Clone, Copy, Debug)]
pub(super) struct Parts {
    /// Records of a row.
    len: usize,
    /// Records of a part; the last may have fewer.
    part: usize,
    /// Parts of a row.
    pub(super) count: usize,
}

impl Room {
    /// For what is wanted of rows; `None` if it is too much to be sorted in workgroup memory.
    pub(super) fn new(lines: &Lines, site: &Site<'_>) -> Option<Self> {
        let shared = site.caps.target.shared_bytes;
        let bits = if shared > 16384 { BITS } else { BITS - 1 };
        // Besides bins and records, a word for every invocation and a few more.
        let taken = (4 << bits) + 4 * GROUP + 64;
        let room = shared.checked_sub(taken)? / (4 * (lines.order.words() as u32 + 1));
        let most = 1 << room.checked_ilog2()?;
        let wanted = u32::try_from(lines.take).ok()?.next_power_of_two();
        let left = wanted.max(LEFT).min(most);
        let group = site.group_size(GROUP).min(left / 2);
        (wanted <= left && group > 0).then_some(Room { group, bits, left })
    }

    /// How rows of so many records are cut: into parts that leave much less than they hold.
    pub(super) fn parts(self, lines: &Lines, len: usize) -> Parts {
        let least = PART.0.max(8 * lines.take);
        let wanted = (lines.rows * len).div_floor(BUSY).clamp(least, PART.1.max(least));
        let part = number(wanted.next_multiple_of(4096));
        Parts { len, part, count: len.div_ceil(part) }
    }
}

/// A word's digit: `word` counts from the most significant of the key to the position.
#[derive(Clone, Copy, Debug)]
struct Digit {
    word: usize,
    shift: u32,
    bits: u32,
}

impl Lines {
    /// All digits of records, from the highest on.
    fn digits(&self, bits: u32) -> Vec<Digit> {
        let words = self.order.words();
        // A position has fewer bits set than what fills parts up.
        let of_place = usize::BITS - self.size.leading_zeros();
        let mut digits = Vec::new();
        for (word, mut rest) in (0..words).map(|w| (w, self.order.bits())).chain([(words, of_place)]) {
            while rest > 0 {
                let taken = bits.min(rest);
                rest -= taken;
                digits.push(Digit { word, shift: rest, bits: taken });
            }
        }
        digits
    }

    /// Keeps the best of every part: as records, or as results where a row is one part.
    pub(super) fn select(
        &self,
        room: Room,
        parts: Parts,
        from: Option<Records>,
        to: Option<Records>,
        site: &mut Site<'_>,
    ) -> Result<(), String> {
        let (group, words) = (room.group, self.order.words());
        let k = site.builder("select", group);
        let l = Launch::new(&k);
        let cells = Cells::new(self.order.dtype.size(), site.caps);
        let source = from.map(|records| RecordBufs::declare(&l, Access::Read, records, words));
        let x = match source {
            None => Some(cells.bind(&l, "x", Access::Read, site.operands[0].memory)),
            Some(_) => None,
        };
        let lanes = match source {
            None if self.inner == 1 => cells.lanes_in(self.size) as u32,
            _ => 1,
        };
        let sink = SortResults::declare(self, &l, site, x);
        let kept = to.map(|records| RecordBufs::declare(&l, Access::Write, records, words));
        let all = l.size("parts_of_all", self.rows * parts.count);
        let (len, part) = (l.size("len", parts.len), l.size("part", parts.part));
        let (count, take) = (l.size("parts", parts.count), sink.take);
        let clusters = Clusters::new(&k, group);

        let work = linear_group(&k);
        let there = work.lt(all);
        let row = work.min(all - 1u32) / count;
        let nth = work.min(all - 1u32) - row * count;
        let first = nth * part;
        let own = part.min(len - first);
        let zero = k.u32(0);
        let search = Search {
            k: &k,
            lines: self,
            room,
            source,
            x,
            lanes,
            sink,
            row,
            len,
            first,
            own,
            bins: k.shared(Elem::U32, 1, 1 << room.bits),
            found: k.shared(Elem::U32, 1, 4),
            limit: (0..=words).map(|_| k.var(zero)).collect(),
            known: (0..=words).map(|_| k.var(zero)).collect(),
            rest: k.var(take),
            before: k.var(zero),
            done: k.var(own.le(room.left)),
        };
        let digits = self.digits(room.bits);
        k.for_(zero, k.u32(digits.len() as u32), k.u32(1), |pass| search.narrow(pass, &digits, &clusters));

        let slots = Slots::new(&k, words + 1, room.left);
        search.collect(&slots);
        slots.sort(room.left);
        slots.each(|slot| {
            k.if_(there & slot.lt(take), || {
                let record = slots.load(slot);
                match (kept, record.last()) {
                    (Some(kept), _) => kept.store((row * count + nth) * take + slot, &record),
                    (None, Some(place)) => search.sink.put(row, slot, *place),
                    (None, None) => {}
                }
            });
        });

        let moved = 2 * self.moved(site);
        let bound = l.done();
        site.dispatch(k, bound, self.rows * parts.count, (0, moved))
    }
}

/// A part of a row, and what is known of the last record that is wanted of it.
struct Search<'a, 'k> {
    k: &'k Builder,
    lines: &'a Lines,
    room: Room,
    source: Option<RecordBufs<'k>>,
    x: Option<CellBuf<'k>>,
    lanes: u32,
    sink: SortResults<'k>,
    row: Val<'k>,
    /// Records of the row.
    len: Val<'k>,
    /// The part's first record, and how many it has.
    first: Val<'k>,
    own: Val<'k>,
    /// Undecided records by digit.
    bins: Shared<'k>,
    /// The digit that was found, how many records come before it and how many have it; a counter.
    found: Shared<'k>,
    /// The words of the last wanted record as far as they are known, and which of their bits are. Records that agree
    /// with them are undecided; those that come before are wanted.
    limit: Vec<Var<'k>>,
    known: Vec<Var<'k>>,
    /// How many of the undecided are wanted, and how many records come before those.
    rest: Var<'k>,
    before: Var<'k>,
    /// Whether few enough are wanted or undecided to sort them.
    done: Var<'k>,
}

impl<'k> Search<'_, 'k> {
    /// Visits all records of the part if `active`, several loaded at a time.
    fn visit(&self, active: Val<'k>, f: impl Fn(&[Val<'k>])) {
        let (k, lanes) = (self.k, self.lanes);
        let (me, group) = (k.local_index(), k.group());
        let step = group * lanes * AHEAD;
        let rounds = active.select((self.own + (step - 1)) / step, k.u32(0));
        k.for_(k.u32(0), rounds, k.u32(1), |round| {
            let mut loaded = Vec::new();
            for i in 0..AHEAD {
                let at = round * step + (me + i * group) * lanes;
                let inside = at.lt(self.own);
                let at = self.first + inside.select(at, k.u32(0));
                match (self.source, self.x) {
                    (Some(records), _) => {
                        loaded.push((inside, records.load(self.row * self.len + at)));
                    }
                    (None, Some(x)) => {
                        let cells = x.load_many(self.sink.source(self.row, at), lanes as usize);
                        for (j, cell) in cells.iter().enumerate() {
                            let mut record = self.lines.order.key(cell);
                            record.push(at + j);
                            loaded.push((inside, record));
                        }
                    }
                    (None, None) => {}
                }
            }
            for (inside, record) in loaded {
                k.if_(inside, || f(&record));
            }
        });
    }

    /// Whether a record comes before the limit as far as that is known, and whether it agrees with it.
    fn compare(&self, record: &[Val<'k>]) -> (Val<'k>, Val<'k>) {
        let (mut less, mut same) = (self.k.bool(false), self.k.bool(true));
        for ((word, limit), known) in record.iter().zip(&self.limit).zip(&self.known).rev() {
            let (word, limit) = (*word & known.get(), limit.get());
            let equal = word.eq(limit);
            less = word.lt(limit) | (equal & less);
            same = same & equal;
        }
        (less, same)
    }

    /// Finds the next digit of the last wanted record.
    fn narrow(&self, pass: Val<'k>, digits: &[Digit], clusters: &Clusters<'k>) {
        let k = self.k;
        let (me, group, zero) = (k.local_index(), k.group(), k.u32(0));
        let pick = |of: fn(&Digit) -> u32| {
            let numbered = digits.iter().enumerate();
            numbered.fold(zero, |chosen, (i, digit)| pass.eq(i).select(k.u32(of(digit)), chosen))
        };
        let (word, shift) = (pick(|d| d.word as u32), pick(|d| d.shift));
        let mask = (k.u32(1) << pick(|d| d.bits)) - 1u32;
        let len = 1u32 << self.room.bits;
        for first in (0..len).step_by(group as usize) {
            self.bins.store(me + first, zero);
        }
        k.barrier();
        self.visit(!self.done.get(), |record| {
            let numbered = record.iter().enumerate();
            let value = numbered.fold(zero, |chosen, (i, w)| word.eq(i).select(*w, chosen));
            k.if_(self.compare(record).1, || {
                self.bins.atomic(AtomicOp::Add, (value >> shift) & mask, k.u32(1));
            });
        });
        k.barrier();
        let per = len / group;
        let counts: Vec<Val<'k>> = (0..per).map(|i| self.bins.load(me * per + i)).collect();
        let sum = counts.iter().fold(zero, |a, b| a + *b);
        let (mut begin, _) = clusters.scan(sum, zero, |a, b| a + b);
        let wanted = self.rest.get();
        for (i, count) in counts.iter().enumerate() {
            let end = begin + *count;
            k.if_(begin.lt(wanted) & wanted.le(end), || {
                [me * per + i, begin, *count].iter().zip(0u32..).for_each(|(v, at)| {
                    self.found.store(k.u32(at), *v);
                });
            });
            begin = end;
        }
        k.barrier();
        let [digit, earlier, count] = [0, 1, 2].map(|at| self.found.load(k.u32(at)));
        k.if_(!self.done.get(), || {
            for (i, (limit, known)) in self.limit.iter().zip(&self.known).enumerate() {
                let here = word.eq(i);
                limit.set(limit.get() | here.select(digit << shift, zero));
                known.set(known.get() | here.select(mask << shift, zero));
            }
            self.rest.set(wanted - earlier);
            self.before.set(self.before.get() + earlier);
            self.done.set((self.before.get() + count).le(self.room.left));
        });
    }

    /// Gathers what is wanted or undecided, in any order, and fills up.
    fn collect(&self, slots: &Slots<'k>) {
        let k = self.k;
        let counter = k.u32(3);
        slots.each(|slot| slots.store_last(slot));
        k.if_(k.local_index().eq(0), || self.found.store(counter, k.u32(0)));
        k.barrier();
        self.visit(k.bool(true), |record| {
            let (less, same) = self.compare(record);
            k.if_(less | same, || {
                let at = self.found.atomic(AtomicOp::Add, counter, k.u32(1));
                // There are never more, whatever the numbers are; memory is safe if there were.
                k.if_(at.lt(self.room.left), || slots.store(at, record));
            });
        });
    }
}
