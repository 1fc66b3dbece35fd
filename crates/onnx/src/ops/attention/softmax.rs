//! Softmax and its logarithm.

use olivine_ir::op::{LogSoftmax, Softmax};
use olivine_ir::{Dim, Op, ValueId, product};

use super::super::compose::reshaped_to;
use crate::import::{Answer, NodeContext, Value};

pub(super) fn softmax(n: &mut NodeContext<'_, '_>) -> Answer<Vec<Value>> {
    along(n, |axis| Softmax { axis }.into())
}

pub(super) fn log_softmax(n: &mut NodeContext<'_, '_>) -> Answer<Vec<Value>> {
    along(n, |axis| LogSoftmax { axis }.into())
}

/// Normalises along an axis; up to opset 12, along all axes from it on taken as one.
fn along(n: &mut NodeContext<'_, '_>, op: impl Fn(usize) -> Op) -> Answer<Vec<Value>> {
    let x = n.tensor(0)?;
    let shape = n.shape(x)?;
    let rank = shape.rank();
    let y = if rank == 0 {
        as_matrix(n, x, [Dim::ONE; 2], &op)?
    } else if n.opset() < 13 {
        let axis = n.int_or("axis", 1)?;
        // The axis that follows the last one makes every row a single element.
        let axis = if axis == rank as i64 { rank } else { n.axis(axis, rank)? };
        let sizes = shape.sizes();
        as_matrix(n, x, [product(&sizes[..axis]), product(&sizes[axis..])], &op)?
    } else {
        let axis = n.axis(n.int_or("axis", -1)?, rank)?;
        n.add(op(axis), &[x])?
    };
    n.like_first(y)
}

fn as_matrix(
    n: &mut NodeContext<'_, '_>,
    x: ValueId,
    sizes: [Dim; 2],
    op: &impl Fn(usize) -> Op,
) -> Answer<ValueId> {
    let shape = n.shape(x)?;
    let matrix = reshaped_to(n, x, &sizes)?;
    let y = n.add(op(1), &[matrix])?;
    reshaped_to(n, y, &shape.sizes())
}
