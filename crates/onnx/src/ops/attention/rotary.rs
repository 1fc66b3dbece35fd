//! Rotary position embedding with tables of cosines and sines.

use olivine_ir::ValueId;
use olivine_ir::op::{HeadLayout, Rope, RopeScaling, RopeStyle};

use super::{divided, reshaped};
use crate::import::{Answer, NodeContext, Value};

/// Which elements of a head rotate, and which of them form a pair.
#[derive(Clone, Copy)]
pub(in crate::ops) struct Rotation {
    /// Neighbours form a pair, not the two halves.
    pub(in crate::ops) interleaved: bool,
    /// How many leading elements rotate; all if 0.
    pub(in crate::ops) elements: usize,
}

impl Rotation {
    /// As a node's attributes say.
    pub(in crate::ops) fn of(n: &NodeContext<'_, '_>) -> Answer<Self> {
        let elements = n.int_or("rotary_embedding_dim", 0)?;
        let elements = usize::try_from(elements)
            .map_err(|_| n.wrong(format!("rotary_embedding_dim {elements} is negative")))?;
        Ok(Rotation { interleaved: n.flag("interleaved", false)?, elements })
    }

    /// Rotates x of rank 4 by tables `[sequence, pairs]` or `[batch, sequence, pairs]`.
    pub(in crate::ops) fn apply(
        self,
        n: &mut NodeContext<'_, '_>,
        x: ValueId,
        layout: HeadLayout,
        (cos, sin): (ValueId, ValueId),
    ) -> Answer<ValueId> {
        let shape = n.shape(x)?;
        if shape.rank() != 4 {
            return Err(n.wrong(format!("its input should have rank 3 or 4, it is {shape}")));
        }
        let (batch, _, sequence, size) = layout.numbers(&shape);
        let rotary = if self.elements == 0 { size } else { self.elements };
        let dtype = n.dtype(x)?;
        let mut tables = Vec::with_capacity(2);
        for table in [cos, sin] {
            let found = n.shape(table)?;
            let (rank, pairs) = (found.rank(), found.last().copied().unwrap_or(0));
            if pairs.checked_mul(2) != Some(rotary) {
                return Err(n.wrong(format!("a table of {found} does not rotate {rotary} elements")));
            }
            let table = n.build(|g| g.cast(table, dtype))?;
            tables.push(if rank == 3 {
                n.build(|g| g.expand(table, [batch, sequence, pairs]))?
            } else {
                table
            });
        }
        let style = if self.interleaved { RopeStyle::GptJ } else { RopeStyle::NeoX };
        let op = Rope { layout, style, rotary, base: 1.0, scaling: RopeScaling::None, tables: true };
        n.build(|g| g.rope(op, x, &tables))
    }
}

/// Rows of the tables of cosines and sines.
pub(in crate::ops) fn rows(
    n: &mut NodeContext<'_, '_>,
    (cos, sin): (ValueId, ValueId),
    positions: ValueId,
) -> Answer<(ValueId, ValueId)> {
    Ok((n.build(|g| g.gather(cos, positions, 0))?, n.build(|g| g.gather(sin, positions, 0))?))
}

/// Rotates a node's input 0: `[batch, heads, sequence, size]`, or `[batch, sequence, heads·size]`.
pub(in crate::ops) fn rotated(
    n: &mut NodeContext<'_, '_>,
    rotation: Rotation,
    heads: Option<usize>,
    tables: (ValueId, ValueId),
) -> Answer<Vec<Value>> {
    let x = n.tensor(0)?;
    let shape = n.shape(x)?;
    let y = match shape.dims() {
        [batch, sequence, hidden] => {
            let heads = heads.ok_or_else(|| n.wrong("num_heads is missing"))?;
            let size = divided(n, *hidden, heads, "heads")?;
            let split = reshaped(n, x, &[*batch, *sequence, heads, size])?;
            let y = rotation.apply(n, split, HeadLayout::Bshd, tables)?;
            reshaped(n, y, &shape)?
        }
        _ => rotation.apply(n, x, HeadLayout::Bhsd, tables)?,
    };
    n.like_first(y)
}

/// ONNX's RotaryEmbedding: the tables are ready for the sequence, or positions choose their rows.
pub(super) fn rotary_embedding(n: &mut NodeContext<'_, '_>) -> Answer<Vec<Value>> {
    let mut tables = (n.tensor(1)?, n.tensor(2)?);
    if let Some(positions) = n.optional(3)? {
        tables = rows(n, tables, positions)?;
    }
    let heads = n.int_or("num_heads", 0)?;
    let heads = usize::try_from(heads).ok().filter(|h| *h > 0);
    let rotation = Rotation::of(n)?;
    rotated(n, rotation, heads, tables)
}
