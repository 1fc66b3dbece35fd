//! An attention node as sizes and operands.

use olivine_ir::op::{Attention, MaskKind};
use olivine_ir::{DType, TensorType};
use olivine_kernel::Scalar;

use crate::math;
use crate::site::{Operand, Site, Target};

/// Everything the kernels need to know of a node.
pub(super) struct Problem<'a> {
    pub(super) op: &'a Attention,
    pub(super) q: Operand,
    pub(super) k: Operand,
    pub(super) v: Operand,
    /// The mask with its steps over `[batch, head, query, key]`.
    pub(super) mask: Option<(Operand, Vec<i64>)>,
    pub(super) sinks: Option<Operand>,
    pub(super) lengths: Option<Operand>,
    pub(super) target: Target,
    pub(super) batch: usize,
    pub(super) heads: usize,
    pub(super) kv_heads: usize,
    pub(super) queries: usize,
    pub(super) keys: usize,
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
        let (_, kv_heads, keys, value_dim) = op.layout.sizes(&v.ty.shape);
        let (mask, sinks, lengths) = op.optional_operands();
        let steps = |m: Operand| {
            let steps = m.broadcast_to(&[batch, heads, queries, keys]);
            steps.map(|s| (m, s)).ok_or_else(|| "the mask does not broadcast".to_string())
        };
        let scalar = math::elem(q.ty.dtype).scalar();
        if !site.caps.target.has(scalar) {
            return Err(format!("the device has no {scalar}"));
        }
        let positions = queries.saturating_add(keys);
        if positions > i32::MAX as usize / 2 || heads * queries > i32::MAX as usize {
            return Err(format!("{queries} queries and {keys} keys are more than kernels count"));
        }
        Ok(Problem {
            op,
            mask: mask.map(operand).transpose()?.map(steps).transpose()?,
            sinks: sinks.map(operand).transpose()?,
            lengths: lengths.map(operand).transpose()?,
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

    /// Heads that share a kv head.
    pub(super) fn group(&self) -> usize {
        self.heads / self.kv_heads.max(1)
    }

    /// Queries of all heads of a kv head; heads of one query are neighbours.
    pub(super) fn rows(&self) -> usize {
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
    pub(super) fn cost(&self) -> (u64, u64) {
        let pairs = (self.batch * self.heads) as u64 * self.queries as u64 * self.keys as u64;
        let ty = |t: &TensorType| t.bytes() as u64;
        let bytes = ty(&self.q.ty) + ty(&self.k.ty) + ty(&self.v.ty) + ty(&self.target.ty);
        (2 * pairs * (self.dim + self.value_dim) as u64, bytes)
    }
}
