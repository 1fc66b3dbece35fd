//! An attention node as sizes and operands.

use olivine_ir::op::{Attention, AttentionOperands, MaskKind};
use olivine_ir::{DType, Dim, TensorType};
use olivine_kernel::Scalar;

use super::{MOST_UNSPLIT, splits};
use crate::launch::{Launch, number};
use crate::math;
use crate::pages::PageTable;
use crate::q8_0;
use crate::site::{Operand, Site, Target, class_of};

/// Everything the kernels need to know of a node.
pub(super) struct Problem<'a> {
    pub(super) op: &'a Attention,
    pub(super) q: Operand,
    pub(super) k: Operand,
    pub(super) v: Operand,
    /// The mask with its steps over `[batch, head, query, key]`.
    pub(super) mask: Option<(Operand, Vec<Dim>)>,
    pub(super) sinks: Option<Operand>,
    pub(super) lengths: Option<Operand>,
    /// The pages of each sequence, where k and v are pools of them: their numbers, pages there are, positions of a page.
    pub(super) pages: Option<(Operand, Dim, Dim)>,
    pub(super) target: Target,
    pub(super) batch: Dim,
    pub(super) heads: usize,
    pub(super) kv_heads: usize,
    pub(super) queries: Dim,
    pub(super) keys: Dim,
    pub(super) dim: usize,
    pub(super) value_dim: usize,
    /// What scores and results are accumulated in.
    pub(super) scalar: Scalar,
}

impl<'a> Problem<'a> {
    pub(super) fn new(op: &'a Attention, site: &Site<'_>) -> Result<Self, String> {
        let operand =
            |i: usize| site.operands.get(i).cloned().ok_or_else(|| format!("attention without operand {i}"));
        let (q, k, v) = (operand(0)?, operand(1)?, operand(2)?);
        let target = site.targets.first().cloned().ok_or("attention without a result")?;
        let (batch, heads, queries, dim) = op.layout.sizes(&q.ty.shape);
        let (pool, kv_heads, positions, value_dim) = op.layout.sizes(&v.ty.elements());
        // Kernels are written for the heads; batch and sequence come in any number.
        let [heads, dim, kv_heads, value_dim] = [heads, dim, kv_heads, value_dim].map(number);
        let AttentionOperands { mask, sinks, lengths, pages } = op.optional_operands();
        let pages = pages.map(operand).transpose()?;
        let keys = pages.as_ref().map_or(positions, |pages| pages.sizes()[1] * positions);
        let steps = |m: Operand| {
            let steps = m.broadcast_to(&[batch, heads.into(), queries, keys]);
            steps.map(|s| (m, s)).ok_or_else(|| "the mask does not broadcast".to_string())
        };
        let scalar = math::elem(q.ty.dtype).scalar();
        q8_0::is_packed(&k.ty)?;
        q8_0::is_packed(&v.ty)?;
        if !site.caps.target.has(scalar) {
            return Err(format!("the device has no {scalar}"));
        }
        if queries + keys > i32::MAX / 2 || heads * queries > i32::MAX {
            return Err(format!("{queries} queries and {keys} keys are more than kernels count"));
        }
        Ok(Problem {
            op,
            mask: mask.map(operand).transpose()?.map(steps).transpose()?,
            sinks: sinks.map(operand).transpose()?,
            lengths: lengths.map(operand).transpose()?,
            pages: pages.map(|pages| (pages, pool, positions)),
            q,
            k,
            v,
            target,
            batch,
            heads,
            kv_heads,
            queries,
            keys,
            dim,
            value_dim,
            scalar,
        })
    }

    /// Declares the pages of k and v, if they are pools.
    pub(super) fn page_table<'k>(&self, l: &Launch<'k>) -> Option<PageTable<'k>> {
        let (numbers, pool, positions) = self.pages.as_ref()?;
        Some(PageTable::declare(l, numbers, *pool, *positions))
    }

    /// Heads that share a kv head.
    pub(super) fn group(&self) -> usize {
        self.heads / self.kv_heads.max(1)
    }

    /// Queries of all heads of a kv head; heads of one query are neighbours.
    pub(super) fn rows(&self) -> Dim {
        self.group() * self.queries
    }

    /// Whether keys after a query's position do not count.
    pub(super) fn looks_back(&self) -> bool {
        self.op.causal || self.op.window.is_some()
    }

    /// Whether a key may be masked for one row of a tile and not for another, other than past the last key.
    pub(super) fn masks_elements(&self) -> bool {
        self.looks_back() || self.op.mask != MaskKind::None
    }

    /// The type that accumulators are stored as between dispatches.
    pub(super) fn partial(&self) -> DType {
        if self.scalar == Scalar::F64 { DType::F64 } else { DType::F32 }
    }

    /// Operations of both products, counting every pair of query and key, and bytes of all operands.
    pub(super) fn cost(&self) -> (Dim, Dim) {
        let pairs = self.batch * self.heads * self.queries * self.keys;
        let ty = TensorType::size_bytes;
        let bytes = ty(&self.q.ty) + ty(&self.k.ty) + ty(&self.v.ty) + ty(&self.target.ty);
        (2 * pairs * (self.dim + self.value_dim), bytes)
    }

    /// Rows as tiles are chosen by: the most of a class.
    pub(super) fn row_class(&self) -> usize {
        [1, 4, 8, 16, 32, 64].into_iter().find(|most| self.rows() <= *most).unwrap_or(128)
    }

    /// Workgroups of so many rows, where keys are not split.
    pub(super) fn groups(&self, rows: u32) -> Dim {
        self.batch * self.kv_heads * self.rows().div_ceil(rows)
    }

    /// Ranges that the keys are split into, given how many workgroups keep the device busy, and the rows and keys of a
    /// tile.
    pub(super) fn splits(&self, busy: usize, rows: u32, keys: u32) -> Dim {
        let groups = self.groups(rows);
        // With so many workgroups keys are not split, however many there are.
        if groups * (MOST_UNSPLIT + 1) > busy {
            return Dim::ONE;
        }
        splits(busy, class_of(groups), self.keys.div_ceil(keys))
    }
}
