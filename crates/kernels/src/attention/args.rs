//! What all kernels know of a problem: what a row's scores are and where its result goes.

use olivine_ir::Dim;
use olivine_ir::op::MaskKind;
use olivine_kernel::{Access, Buf, Builder, Elem, Scalar, Val};

use super::problem::Problem;
use super::softmax::lowest;
use super::visible::{KeyTiles, Range, Row, Split, VisibleKeys};
use crate::launch::Launch;
use crate::math;
use crate::site::Memory;

/// Where the results of a workgroup go.
pub(super) enum AttentionTarget {
    /// To the target, finished.
    Target,
    /// Accumulators, and maximum and sum of every row, of one of several ranges of keys; to the target where there is
    /// only one range.
    Partial {
        /// `[batch, kv head, row, range, value element]`, rows padded to fours.
        values: Memory,
        /// `[batch, kv head, row, range, 2]`.
        sums: Memory,
        /// How the keys are split.
        split: Split,
        /// `[batch, kv head]`: ranges that are done. The workgroup that finds all others done combines them. Without, another dispatch
        /// does.
        arrivals: Option<Memory>,
    },
}

impl AttentionTarget {
    /// The most ranges that the keys are split into, if they are.
    pub(super) fn splits(&self) -> Option<Dim> {
        match self {
            AttentionTarget::Target => None,
            AttentionTarget::Partial { split, .. } => Some(split.most),
        }
    }
}

/// Buffers that results of a workgroup are written to.
#[derive(Clone, Copy)]
pub(super) enum DeclaredAttentionTarget<'k> {
    Target(Buf<'k>),
    Partial { values: Buf<'k>, sums: Buf<'k> },
}

/// Which part of the problem a workgroup has; the same in all of it.
pub(super) struct WorkgroupCoord<'k> {
    pub(super) batch: Val<'k>,
    pub(super) kv_head: Val<'k>,
    /// Batch and kv head as one number.
    pub(super) pair: Val<'k>,
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

/// Operands, sizes and numbers that do not depend on the kernel.
pub(super) struct AttentionArgs<'k, 'p> {
    k: &'k Builder,
    p: &'p Problem<'p>,
    mask: Option<(Buf<'k>, Vec<Val<'k>>)>,
    sinks: Option<Buf<'k>>,
    out: Buf<'k>,
    partial: Option<DeclaredAttentionTarget<'k>>,
    arrivals: Option<Buf<'k>>,
    pub(super) visible: VisibleKeys<'k>,
    pub(super) rows: Val<'k>,
    heads: Val<'k>,
    pub(super) group: Val<'k>,
    scale: Val<'k>,
    softcap: Option<Val<'k>>,
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
        let (partial, arrivals) = match sink {
            AttentionTarget::Target => (None, None),
            AttentionTarget::Partial { values, sums, arrivals, .. } => {
                let access = if arrivals.is_some() { Access::ReadWrite } else { Access::Write };
                let part = |name: &str, memory: &Memory| l.bind(name, elem, access, *memory);
                let (values, sums) = (part("part_values", values), part("part_sums", sums));
                let arrivals =
                    arrivals.map(|memory| l.bind("arrivals", Elem::U32, Access::ReadWrite, memory));
                (Some(DeclaredAttentionTarget::Partial { values, sums }), arrivals)
            }
        };
        // Scores are exponents of two.
        let factor =
            p.op.scale_for(p.dim) * if p.op.softcap.is_some() { 1.0 } else { std::f64::consts::LOG2_E };
        let number = |name: &str, x: f64| match p.scalar {
            Scalar::F64 => k.f64(x),
            _ => l.f32(name, x as f32),
        };
        let visible = VisibleKeys::declare(l, p);
        AttentionArgs {
            k,
            p,
            mask,
            sinks: p.sinks.as_ref().map(|s| l.read("sinks", s)),
            out: l.write("out", &p.target),
            partial,
            arrivals,
            rows: visible.rows,
            group: visible.group,
            visible,
            heads: l.size("heads", p.heads),
            scale: number("scale", factor),
            softcap: p.op.softcap.map(|c| number("softcap", c)),
        }
    }

    /// Keys that count for a workgroup.
    pub(super) fn length(&self, place: &WorkgroupCoord<'k>) -> Val<'k> {
        self.visible.length(place.batch)
    }

    /// A row of the kv head and the keys it may see by length, causality and window.
    pub(super) fn row_at(&self, place: &WorkgroupCoord<'k>, number: Val<'k>, length: Val<'k>) -> Row<'k> {
        self.visible.row_at(place.kv_head, number, length)
    }

    /// Calls `work` with this workgroup's range of the keys that its rows may see. Workgroups without a range return.
    pub(super) fn with_range(
        &self,
        place: &WorkgroupCoord<'k>,
        tiles: KeyTiles,
        length: Val<'k>,
        work: impl FnOnce(Range<'k>),
    ) {
        let ranges = self.visible.ranges(place.tile * tiles.rows, tiles, place.splits, length);
        let range = ranges.range(place.split);
        self.k.if_(place.split.lt(ranges.count), || work(range));
    }

    /// Calls `write` with what the results of a workgroup are written to: the target, where its range is the only one.
    pub(super) fn write_to(&self, range: &Range<'k>, write: impl Fn(DeclaredAttentionTarget<'k>)) {
        let target = || write(DeclaredAttentionTarget::Target(self.out));
        match self.partial {
            None => target(),
            Some(partial) => self.k.if_else(range.is_only, target, || write(partial)),
        }
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
        self.sees(row, key).select(score, score.like(lowest(self.p.scalar)))
    }

    /// Whether a row may see a key.
    pub(super) fn sees(&self, row: &Row<'k>, key: Val<'k>) -> Val<'k> {
        let before = key.lt(row.end);
        if self.visible.window.is_some() { before & key.ge(row.first) } else { before }
    }

    /// What a dot product is multiplied by, as an exponent of two where there is no softcap.
    pub(super) fn scale(&self) -> Val<'k> {
        self.scale
    }

    /// The result.
    pub(super) fn target(&self) -> Buf<'k> {
        self.out
    }

    /// A row's sink as an exponent of two.
    pub(super) fn sink(&self, row: &Row<'k>) -> Option<Val<'k>> {
        self.sinks.map(|s| s.load(row.head) * std::f64::consts::LOG2_E)
    }

    /// A row's position in the result.
    pub(super) fn target_row(&self, place: &WorkgroupCoord<'k>, row: &Row<'k>) -> Val<'k> {
        super::target_row(self.p.op.layout, place.batch, row.head, row.query, self.heads, self.visible.sq)
    }

    /// A row's position among the partial results.
    pub(super) fn part(&self, place: &WorkgroupCoord<'k>, row: &Row<'k>) -> Val<'k> {
        self.part_of(place, row.number, place.split)
    }

    /// The position of what some range has for a row.
    pub(super) fn part_of(&self, place: &WorkgroupCoord<'k>, row: Val<'k>, range: Val<'k>) -> Val<'k> {
        (place.pair * self.rows + row) * place.splits + range
    }

    /// Buffers of partial results, and what counts those that are done, where a workgroup that is last combines them.
    pub(super) fn last(&self) -> Option<(Buf<'k>, Buf<'k>, Buf<'k>)> {
        match (self.partial, self.arrivals) {
            (Some(DeclaredAttentionTarget::Partial { values, sums }), Some(arrivals)) => {
                Some((values, sums, arrivals))
            }
            _ => None,
        }
    }

    /// The result.
    pub(super) fn out(&self) -> Buf<'k> {
        self.out
    }
}
