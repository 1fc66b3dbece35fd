//! Matmuls: everything becomes a matmul of operands with rank 2 or more.

use olivine_ir::op::{Binary, DotGeneral, LoraMatMul, MatMul};
use olivine_ir::{Dim, Error, Graph, MAX_RANK, Shape, ValueId, product};

use super::{reshape, rewrites, transpose};

rewrites! { |g, op, to|
    MatMul [a, b, extra @ ..] => vector_matmul(g, op, *a, *b, extra, to),
    DotGeneral [a, b] => dot_general(g, op, *a, *b),
    LoraMatMul [x, w, a, b] => lora(g, op, *x, *w, *a, *b),
}

/// A matmul one of whose operands has rank 1: the missing axis is added, and taken out of the result.
fn vector_matmul(
    g: &mut Graph,
    op: &MatMul,
    a: ValueId,
    b: ValueId,
    extra: &[ValueId],
    to: Shape,
) -> Result<ValueId, Error> {
    let (sa, sb) = (g.ty(a)?.shape, g.ty(b)?.shape);
    let (row, column) = (sa.rank() == 1, sb.rank() == 1);
    let a = if row { reshape(g, a, &[Dim::ONE, sa.size(0)])? } else { a };
    let b = if column { reshape(g, b, &[sb.size(0), Dim::ONE])? } else { b };
    let mut operands = vec![a, b];
    for &id in extra {
        // Region operands are aligned with the result from the right: they need the same axes put in.
        let own = g.ty(id)?.shape;
        let mut dims = vec![Dim::ONE; to.rank() - own.rank()];
        dims.extend_from_slice(&own.sizes());
        if row {
            dims.insert(dims.len() - usize::from(!column), Dim::ONE);
        }
        if column {
            dims.push(Dim::ONE);
        }
        operands.push(reshape(g, id, &dims)?);
    }
    let matmul = g.add1(op.clone(), &operands)?;
    reshape(g, matmul, &to.sizes())
}

fn dot_general(g: &mut Graph, op: &DotGeneral, a: ValueId, b: ValueId) -> Result<ValueId, Error> {
    let left = ContractionOperand { value: a, batch: &op.lhs_batch, contract: &op.lhs_contract };
    let right = ContractionOperand { value: b, batch: &op.rhs_batch, contract: &op.rhs_contract };
    dot(g, &left, &right)
}

/// One operand of a general matmul: its batch and contracted axes, in the order in which they pair.
pub(super) struct ContractionOperand<'a> {
    pub(super) value: ValueId,
    pub(super) batch: &'a [usize],
    pub(super) contract: &'a [usize],
}

/// The general matmul; result axes are batch axes, then free axes of the left, then of the right.
pub(super) fn dot(
    g: &mut Graph,
    left: &ContractionOperand<'_>,
    right: &ContractionOperand<'_>,
) -> Result<ValueId, Error> {
    let (sa, sb) = (g.ty(left.value)?.shape, g.ty(right.value)?.shape);
    let free_a = DotGeneral::free_axes(sa.rank(), left.batch, left.contract);
    let free_b = DotGeneral::free_axes(sb.rank(), right.batch, right.contract);
    let a = transpose(g, left.value, &[left.batch, &free_a, left.contract].concat())?;
    let b = transpose(g, right.value, &[right.batch, right.contract, &free_b].concat())?;

    let sizes = |shape: &Shape, axes: &[usize]| axes.iter().map(|i| shape.size(*i)).collect::<Vec<Dim>>();
    let (batch, rows, columns) = (sizes(&sa, left.batch), sizes(&sa, &free_a), sizes(&sb, &free_b));
    let (m, n) = (product(&rows), product(&columns));
    let k = product(&sizes(&sa, left.contract));
    // Separate axes stay strides where a merged one could need a copy, so axes are merged only where they must be.
    let kept_batch = if batch.len() + 2 <= MAX_RANK { batch.clone() } else { vec![product(&batch)] };
    let kept_rows =
        if batch.is_empty() && (1..MAX_RANK).contains(&rows.len()) { rows.clone() } else { vec![m] };
    let a = reshape(g, a, &[&kept_batch, &kept_rows, &[k][..]].concat())?;
    let b = reshape(g, b, &[&kept_batch, &[k, n][..]].concat())?;
    let matmul = g.matmul(a, b)?;
    reshape(g, matmul, &[batch, rows, columns].concat())
}

/// `x·W + (scale·(x·A))·B`.
fn lora(
    g: &mut Graph,
    op: &LoraMatMul,
    x: ValueId,
    w: ValueId,
    a: ValueId,
    b: ValueId,
) -> Result<ValueId, Error> {
    let shape = g.ty(x)?.shape;
    let row = shape.rank() == 1;
    let x = if row { reshape(g, x, &[Dim::ONE, shape.size(0)])? } else { x };
    let main = g.matmul(x, w)?;
    let narrow = g.matmul(x, a)?;
    let narrow = g.binary_scalar(Binary::Mul, narrow, op.scale)?;
    let adapter = g.matmul(narrow, b)?;
    let sum = g.add(main, adapter)?;
    if !row {
        return Ok(sum);
    }
    let columns = g.ty(w)?.shape[1];
    reshape(g, sum, &[columns])
}
