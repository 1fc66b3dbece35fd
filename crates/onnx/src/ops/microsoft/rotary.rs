//! RotaryEmbedding as it was before ONNX took it over.

use olivine_ir::DType;

use crate::import::{Answer, NodeContext, Value};
use crate::ops::attention::divided;
use crate::ops::attention::rotary::{Rotation, rotated, rows};

pub(super) fn rotary_embedding(n: &mut NodeContext<'_, '_>) -> Answer<Vec<Value>> {
    if n.flag("is_packed_batching", false)? {
        return Err(n.wrong("packed batches cannot be imported"));
    }
    let x = n.tensor(0)?;
    let shape = n.shape(x)?;
    let (positions, tables) = (n.tensor(1)?, (n.tensor(2)?, n.tensor(3)?));
    let rotation = Rotation::of(n)?;
    let heads = match (n.int_or("num_heads", 0)?, shape.dims()) {
        (0, [_, _, hidden]) => {
            // Heads are as large as the tables say.
            let pairs = n.shape(tables.0)?.last().copied().unwrap_or(0);
            let size = if rotation.elements == 0 { pairs.saturating_mul(2) } else { 0 };
            Some(divided(n, *hidden, size, "elements a head")?)
        }
        (heads, _) => usize::try_from(heads).ok().filter(|h| *h > 0),
    };
    let sequence = match shape.dims() {
        [_, sequence, _] | [_, _, sequence, _] => *sequence,
        _ => return Err(n.wrong(format!("its input should have rank 3 or 4, it is {shape}"))),
    };
    // One position is the first of the sequence.
    let positions = if n.shape(positions)?.rank() == 1 {
        n.build(|g| {
            let offsets = g.range(DType::I64, 0.0, 1.0, sequence)?;
            let first = g.cast(positions, DType::I64)?;
            g.add(offsets, first)
        })?
    } else {
        positions
    };
    let tables = rows(n, tables, positions)?;
    rotated(n, rotation, heads, tables)
}
