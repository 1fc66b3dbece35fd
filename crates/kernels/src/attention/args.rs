//! What both kernels know of a problem: which keys a row may see, what its scores are and where its result goes.

use olivine_ir::Dim;
use olivine_ir::op::MaskKind;
use olivine_kernel::{Access, Buf, Builder, Scalar, Val};

use super::problem::Problem;
use super::softmax::lowest;
use crate::integers::Integers;
use crate::launch::Launch;
use crate::math;
use crate::site::Memory;

/// Where the results of a workgroup go.
pub(super) enum AttentionTarget {
    /// To the target, finished.
    Target,
    /// Accumulators, and maximum and sum of every row, of one of several ranges of keys.
    Partial {
        /// `[batch, kv head, row, split, value element]`, rows padded to fours.
        values: Memory,
        /// `[batch, kv head, row, split, 2]`.
        sums: Memory,
        /// Ranges that the keys are split into.
        splits: Dim,
    },
}

impl AttentionTarget {
    /// Ranges that the keys are split into, if they are.
    pub(super) fn splits(&self) -> Option<Dim> {
        match self {
            AttentionTarget::Target => None,
            AttentionTarget::Partial { splits, .. } => Some(*splits),
        }
    }
}

/// The buffers of a [`Sink`].
pub(super) enum DeclaredAttentionTarget<'k> {
    Target(Buf<'k>),
    Partial { values: Buf<'k>, sums: Buf<'k> },
}

/// Which part of the problem a workgroup has; the same in all of it.
pub(super) struct WorkgroupCoord<'k> {
    pub(super) batch: Val<'k>,
    pub(super) kv_head: Val<'k>,
    /// Batch and kv head as one number.
    pair: Val<'k>,
    pub(super) tile: Val<'k>,
    split: Val<'k>,
    splits: Val<'k>,
}

impl<'k> WorkgroupCoord<'k> {
    /// The place of the workgroup with this number.
    pub(super) fn of(number: Val<'k>, tiles: Val<'k>, splits: Val<'k>, kv_heads: Val<'k>) -> Self {
        let (rest, split) = (number / splits, number % splits);
        // Later queries see more keys: they go first.
        let (pair, tile) = (rest / tiles, tiles - 1 - rest % tiles);
        WorkgroupCoord { batch: pair / kv_heads, kv_head: pair % kv_heads, pair, tile, split, splits }
    }
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

/// The keys that a workgroup walks over.
pub(super) struct Range<'k> {
    pub(super) begin: Val<'k>,
    pub(super) end: Val<'k>,
    /// Between these every row of the tile sees every key.
    all: (Val<'k>, Val<'k>),
}

impl<'k> Range<'k> {
    /// Whether every row sees all of so many keys from `key` on.
    pub(super) fn all_seen(&self, key: Val<'k>, count: u32) -> Val<'k> {
        (key + count).le(self.all.1) & key.ge(self.all.0)
    }
}

/// Operands, sizes and numbers that do not depend on the kernel.
pub(super) struct AttentionArgs<'k, 'p> {
    k: &'k Builder,
    p: &'p Problem<'p>,
    mask: Option<(Buf<'k>, Vec<Val<'k>>)>,
    pub(super) sinks: Option<Buf<'k>>,
    lengths: Option<Integers<'k>>,
    pub(super) out: DeclaredAttentionTarget<'k>,
    sk: Val<'k>,
    sq: Val<'k>,
    pub(super) rows: Val<'k>,
    heads: Val<'k>,
    pub(super) group: Val<'k>,
    scale: Val<'k>,
    softcap: Option<Val<'k>>,
    window: Option<Val<'k>>,
}

impl<'k, 'p> AttentionArgs<'k, 'p> {
    pub(super) fn declare(l: &Launch<'k>, p: &'p Problem<'p>, sink: &AttentionTarget) -> Self {
        let k = l.k();
        let elem = math::elem(p.partial());
        let mask = p.mask.as_ref().map(|(operand, steps)| {
            let buffer = l.read("mask", operand);
            let step = |(i, s): (usize, &Dim)| match s.as_constant() {
                Some(0) => k.u32(0),
                _ => l.stride(&format!("mask_{i}"), *s),
            };
            let mut steps: Vec<Val<'k>> = steps.iter().enumerate().map(step).collect();
            steps.push(l.size("mask_offset", operand.offset));
            (buffer, steps)
        });
        let (out, sinks) = match sink {
            AttentionTarget::Target => (
                DeclaredAttentionTarget::Target(l.write("out", &p.target)),
                p.sinks.as_ref().map(|s| l.read("sinks", s)),
            ),
            AttentionTarget::Partial { values, sums, .. } => {
                let values = l.bind("part_values", elem, Access::Write, *values);
                (
                    DeclaredAttentionTarget::Partial {
                        values,
                        sums: l.bind("part_sums", elem, Access::Write, *sums),
                    },
                    None,
                )
            }
        };
        // Scores are exponents of two.
        let factor =
            p.op.scale_for(p.dim) * if p.op.softcap.is_some() { 1.0 } else { std::f64::consts::LOG2_E };
        let number = |name: &str, x: f64| match p.scalar {
            Scalar::F64 => k.f64(x),
            _ => l.f32(name, x as f32),
        };
        let window = |w: usize| l.i32("window", w.min(i32::MAX as usize / 2) as i32);
        AttentionArgs {
            k,
            p,
            mask,
            sinks,
            lengths: p.lengths.as_ref().map(|x| Integers::read(l, "lengths", x)),
            out,
            sk: l.size("keys", p.keys),
            sq: l.size("queries", p.queries),
            rows: l.size("rows", p.rows()),
            heads: l.size("heads", p.heads),
            group: l.size("group", p.group()),
            scale: number("scale", factor),
            softcap: p.op.softcap.map(|c| number("softcap", c)),
            window: p.op.window.map(window),
        }
    }

    /// Keys that count for a batch.
    pub(super) fn length(&self, place: &WorkgroupCoord<'k>) -> Val<'k> {
        match self.lengths {
            None => self.sk,
            // One length for all batches, or one for each.
            Some(x) if self.p.lengths.as_ref().is_some_and(|x| x.ty.shape.rank() == 0) => {
                x.uniform(self.k.u32(0)).clamp(self.sk)
            }
            Some(x) => x.uniform(place.batch).clamp(self.sk),
        }
    }

    /// A row of the kv head and the keys it may see by length, causality and window.
    pub(super) fn row_at(&self, place: &WorkgroupCoord<'k>, number: Val<'k>, length: Val<'k>) -> Row<'k> {
        let known = number.min(self.rows - 1);
        let (query, head) = (known / self.group, place.kv_head * self.group + known % self.group);
        let (mut first, mut end) = (self.k.u32(0), length);
        if self.p.looks_back() {
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

    /// The keys that some of `rows` rows from `first_row` on may see, in tiles of `keys`, and of these the range of
    /// this split.
    pub(super) fn range(
        &self,
        place: &WorkgroupCoord<'k>,
        first_row: Val<'k>,
        rows: u32,
        keys: u32,
        length: Val<'k>,
    ) -> Range<'k> {
        let first = self.row_at(place, first_row, length);
        let last = self.row_at(place, first_row + (rows - 1), length);
        let (begin, end) = (first.first, last.end);
        let steps = (end.max(begin) - begin + (keys - 1)) / keys;
        let each = (steps + place.splits - 1) / place.splits * keys;
        let begin = begin + place.split * each;
        let end = end.min(begin + each);
        Range { begin, end, all: (last.first, first.end.min(end)) }
    }

    /// Where a row of the mask begins.
    pub(super) fn mask_row(&self, place: &WorkgroupCoord<'k>, row: &Row<'k>) -> Option<Val<'k>> {
        self.mask.as_ref().map(|(_, steps)| {
            let within = place.batch * steps[0] + row.head * steps[1] + row.query * steps[2];
            steps[4] + within
        })
    }

    /// A score as an exponent of two: scaled, capped and biased.
    pub(super) fn score(&self, product: Val<'k>, mask_row: Option<Val<'k>>, key: Val<'k>) -> Val<'k> {
        let mut score = product * self.scale;
        if let Some(cap) = self.softcap {
            score = math::tanh(score / cap) * (cap * std::f64::consts::LOG2_E);
        }
        if let (Some((buffer, steps)), Some(start)) = (&self.mask, mask_row) {
            let value = buffer.load(start + key * steps[3]);
            score = match self.p.op.mask {
                MaskKind::Keep => value.select(score, score.like(lowest(self.p.scalar))),
                _ => value.fma(std::f64::consts::LOG2_E, score),
            };
        }
        score
    }

    /// A score where the row may see the key, else the lowest there is.
    pub(super) fn seen(&self, score: Val<'k>, row: &Row<'k>, key: Val<'k>) -> Val<'k> {
        let mut sees = key.lt(row.end);
        if self.window.is_some() {
            sees = sees & key.ge(row.first);
        }
        sees.select(score, score.like(lowest(self.p.scalar)))
    }

    /// A row's sink as an exponent of two.
    pub(super) fn sink(&self, row: &Row<'k>) -> Option<Val<'k>> {
        self.sinks.map(|s| s.load(row.head) * std::f64::consts::LOG2_E)
    }

    /// A row's position in the result.
    pub(super) fn target_row(&self, place: &WorkgroupCoord<'k>, row: &Row<'k>) -> Val<'k> {
        super::target_row(self.p.op.layout, place.batch, row.head, row.query, self.heads, self.sq)
    }

    /// A row's position among the partial results.
    pub(super) fn part(&self, place: &WorkgroupCoord<'k>, row: &Row<'k>) -> Val<'k> {
        (place.pair * self.rows + row.number) * place.splits + place.split
    }
}
