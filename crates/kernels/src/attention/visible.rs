//! Which keys rows may see, and how these keys are divided among workgroups. The combining dispatch calculates the same.

use olivine_ir::Dim;
use olivine_kernel::{Builder, Scalar, SubgroupOp, Val};

use super::problem::Problem;
use crate::integers::Integers;
use crate::launch::Launch;

/// The tile of rows and keys that a workgroup works on at a time.
#[derive(Clone, Copy, Debug)]
pub(super) struct KeyTiles {
    /// Rows of a workgroup.
    pub(super) rows: u32,
    /// Keys of a step.
    pub(super) keys: u32,
    /// What the first key is a multiple of.
    pub(super) align: u32,
    /// Steps that a range has at least, if keys are split.
    pub(super) least: u32,
}

/// Ranges that the keys are split into.
#[derive(Clone, Copy, Debug)]
pub(super) struct Split {
    /// The most that there may be, where all keys count.
    pub(super) most: Dim,
    /// What is divided.
    pub(super) tiles: KeyTiles,
}

/// A row of an invocation: a query of a head. Rows past the last one repeat it and are not stored.
#[derive(Clone, Copy)]
pub(super) struct Row<'k> {
    /// Position among the rows of the kv head.
    pub(super) number: Val<'k>,
    pub(super) head: Val<'k>,
    pub(super) query: Val<'k>,
    /// Keys it may see.
    pub(super) first: Val<'k>,
    pub(super) end: Val<'k>,
}

/// The keys that some row of a workgroup may see, in ranges.
pub(super) struct Ranges<'k> {
    first: Val<'k>,
    end: Val<'k>,
    /// Keys of a range.
    each: Val<'k>,
    /// Ranges that have keys, at least one: they follow from the length, of which there may be little yet.
    pub(super) count: Val<'k>,
    /// Between these every row of the tile sees every key.
    all: (Val<'k>, Val<'k>),
}

impl<'k> Ranges<'k> {
    /// The range of one workgroup.
    pub(super) fn range(&self, number: Val<'k>) -> Range<'k> {
        let begin = self.first + number * self.each;
        let end = self.end.min(begin + self.each);
        Range { begin, end, count: self.count, is_only: self.count.eq(1), all: self.all }
    }
}

/// The keys that a workgroup walks over.
pub(super) struct Range<'k> {
    pub(super) begin: Val<'k>,
    pub(super) end: Val<'k>,
    /// Ranges of these rows.
    pub(super) count: Val<'k>,
    /// Whether there is no other range of these rows.
    pub(super) is_only: Val<'k>,
    all: (Val<'k>, Val<'k>),
}

impl<'k> Range<'k> {
    /// Whether every row sees all of so many keys from `key` on.
    pub(super) fn all_seen(&self, key: Val<'k>, count: u32) -> Val<'k> {
        (key + count).le(self.all.1.min(self.end)) & key.ge(self.all.0)
    }
}

/// The sizes and numbers that decide which keys a row may see.
pub(super) struct VisibleKeys<'k> {
    k: &'k Builder,
    lengths: Option<Integers<'k>>,
    /// Whether all batches have one length.
    one_length: bool,
    looks_back: bool,
    sk: Val<'k>,
    pub(super) sq: Val<'k>,
    pub(super) rows: Val<'k>,
    pub(super) group: Val<'k>,
    pub(super) window: Option<Val<'k>>,
}

impl<'k> VisibleKeys<'k> {
    pub(super) fn declare(l: &Launch<'k>, p: &Problem<'_>) -> Self {
        let window = |w: usize| l.i32("window", w.min(i32::MAX as usize / 2) as i32);
        VisibleKeys {
            k: l.k(),
            lengths: p.lengths.as_ref().map(|x| Integers::read(l, "lengths", x)),
            one_length: p.lengths.as_ref().is_some_and(|x| x.ty.shape.rank() == 0),
            looks_back: p.looks_back(),
            sk: l.size("keys", p.keys),
            sq: l.size("queries", p.queries),
            rows: l.size("rows", p.rows()),
            group: l.size("group", p.group()),
            window: p.op.window.map(window),
        }
    }

    /// Keys that count for a batch.
    pub(super) fn length(&self, batch: Val<'k>) -> Val<'k> {
        match self.lengths {
            None => self.sk,
            Some(x) if self.one_length => x.uniform(self.k.u32(0)).clamp(self.sk),
            Some(x) => x.uniform(batch).clamp(self.sk),
        }
    }

    /// The same where only a subgroup is known to run together.
    pub(super) fn length_in_subgroup(&self, batch: Val<'k>) -> Val<'k> {
        let Some(lengths) = self.lengths else { return self.sk };
        let at = if self.one_length { self.k.u32(0) } else { batch };
        lengths.at(at).clamp(self.sk).subgroup(SubgroupOp::Max)
    }

    /// A row of the kv head and the keys it may see by length, causality and window.
    pub(super) fn row_at(&self, kv_head: Val<'k>, number: Val<'k>, length: Val<'k>) -> Row<'k> {
        let known = number.min(self.rows - 1);
        let (query, head) = (known / self.group, kv_head * self.group + known % self.group);
        let (mut first, mut end) = (self.k.u32(0), length);
        if self.looks_back {
            // One past the query's own position, which lies before key 0 when there are fewer keys than queries.
            let signed = |x: Val<'k>| x.bitcast(Scalar::I32);
            let past = signed(length + query + 1) - signed(self.sq);
            let unsigned = |x: Val<'k>| x.max(0).bitcast(Scalar::U32);
            end = unsigned(past).min(length);
            if let Some(window) = self.window {
                first = unsigned(past - window).min(end);
            }
        }
        Row { number, head, query, first, end }
    }

    /// The keys that some row of the tile from `first_row` on may see, in at most `most` ranges.
    pub(super) fn ranges(
        &self,
        first_row: Val<'k>,
        tiles: KeyTiles,
        most: Val<'k>,
        length: Val<'k>,
    ) -> Ranges<'k> {
        // What rows see does not depend on their head.
        let of = |row: Val<'k>| self.row_at(self.k.u32(0), row, length);
        let (first, last) = (of(first_row), of(first_row + (tiles.rows - 1)));
        let begin = if tiles.align > 1 { first.first - first.first % tiles.align } else { first.first };
        let end = last.end.max(begin);
        let steps = (end - begin + (tiles.keys - 1)) / tiles.keys;
        let all = (last.first, first.end);
        if most.as_const() == Some(1) {
            return Ranges { first: begin, end, each: steps * tiles.keys, count: most, all };
        }
        let each = ((steps + most - 1) / most).max(tiles.least);
        let count = ((steps + each - 1) / each).max(1);
        Ranges { first: begin, end, each: each * tiles.keys, count, all }
    }
}
