//! The gated delta net on keys and queries of length one.

use olivine_ir::op::{Binary, GatedDeltaNet, ReduceKind};
use olivine_ir::{Error, Graph, Node, ValueId};

use super::{cast, working_dtype};
use crate::Rewriter;

/// Normalises q and k in front of the rule itself.
pub(super) fn normalise(
    out: &mut Rewriter<'_>,
    node: &Node,
    op: &GatedDeltaNet,
    eps: f64,
) -> Result<(), Error> {
    let mut inputs = node.inputs.iter().map(|id| out.get(*id)).collect::<Result<Vec<_>, _>>()?;
    let op = GatedDeltaNet { normalise: None, ..op.clone() };
    let results = out.new.scoped(&node.name, |g| {
        for rows in inputs.iter_mut().take(2) {
            *rows = of_length_one(g, *rows, eps)?;
        }
        g.add_op(op, &inputs)
    })?;
    for (old, new) in node.outputs.iter().zip(results) {
        out.bind(*old, new);
    }
    Ok(())
}

/// x / √(Σx² + eps) along the last axis; what is narrower than f32 stays there.
fn of_length_one(g: &mut Graph, x: ValueId, eps: f64) -> Result<ValueId, Error> {
    let work = working_dtype(g.ty(x)?.dtype);
    let x = cast(g, x, work)?;
    let squares = g.reduce(ReduceKind::SumSquare, x, &[-1], true)?;
    let sum = g.binary_scalar(Binary::Add, squares, eps)?;
    let length = g.rsqrt(sum)?;
    g.mul(x, length)
}
