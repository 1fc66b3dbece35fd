//! Short ways to what many imports are composed of.

use olivine_ir::op::{Binary, ReduceKind, ScalarOp};
use olivine_ir::{DType, Dim, IntoShape, Shape, Tensor, ValueId};

use crate::ElementType;
use crate::import::{Answer, NodeContext};

/// x under other sizes, zeros among them taken as they are.
#[track_caller]
pub(super) fn reshaped(n: &mut NodeContext<'_, '_>, x: ValueId, sizes: &[usize]) -> Answer<ValueId> {
    let sizes: Vec<Dim> = sizes.iter().map(|size| (*size).into()).collect();
    reshaped_to(n, x, &sizes)
}

/// As [`reshaped`], with sizes that may be expressions.
#[track_caller]
pub(super) fn reshaped_to(n: &mut NodeContext<'_, '_>, x: ValueId, sizes: &[Dim]) -> Answer<ValueId> {
    let (from, to) = (n.shape(x)?, Shape::of_sizes(sizes));
    let to = n.built(to)?;
    if from == to {
        return Ok(x);
    }
    if to.sizes().numel() != from.sizes().numel() {
        return Err(n.wrong(format!("{from} cannot become {to}")));
    }
    if to.has_zero() {
        let dtype = n.dtype(x)?;
        let nothing = n.scalar(dtype, 0.0);
        return n.build(|g| g.fill(nothing, to));
    }
    n.build(|g| g.reshape_to(x, sizes))
}

/// x in a dtype.
pub(super) fn cast(n: &mut NodeContext<'_, '_>, x: ValueId, to: DType) -> Answer<ValueId> {
    if n.dtype(x)? == to { Ok(x) } else { n.build(|g| g.cast(x, to)) }
}

/// A function of two operands.
pub(super) fn binary(n: &mut NodeContext<'_, '_>, op: Binary, a: ValueId, b: ValueId) -> Answer<ValueId> {
    n.add(ScalarOp::Binary(op), &[a, b])
}

/// A function of an operand and a number.
pub(super) fn with_number(
    n: &mut NodeContext<'_, '_>,
    op: Binary,
    x: ValueId,
    number: f64,
) -> Answer<ValueId> {
    n.build(|g| g.binary_scalar(op, x, number))
}

/// A reduction of axes counted from the front.
pub(super) fn reduced(
    n: &mut NodeContext<'_, '_>,
    kind: ReduceKind,
    x: ValueId,
    axes: &[usize],
    keepdims: bool,
) -> Answer<ValueId> {
    n.add(olivine_ir::op::Reduce { kind, axes: axes.to_vec(), keepdims }, &[x])
}

/// A list of indices as a constant.
pub(super) fn indices(n: &mut NodeContext<'_, '_>, list: Vec<i64>) -> Answer<ValueId> {
    let tensor = Tensor::new([list.len()], list);
    let tensor = n.built(tensor)?;
    Ok(n.constant(tensor))
}

/// Numbers of a float dtype as a constant.
pub(super) fn floats(
    n: &mut NodeContext<'_, '_>,
    dtype: DType,
    shape: impl IntoShape,
    numbers: Vec<f32>,
) -> Answer<ValueId> {
    let tensor = Tensor::new(shape, numbers);
    let tensor = n.built(tensor)?;
    let id = n.constant(tensor);
    cast(n, id, dtype)
}

/// The dtype to compute sums in that go with a dtype's elements.
pub(super) fn wide(dtype: DType) -> DType {
    if dtype == DType::F64 { DType::F64 } else { DType::F32 }
}

/// Sums and products of held elements brought back into their type's range.
pub(super) fn in_range(n: &mut NodeContext<'_, '_>, x: ValueId, element: ElementType) -> Answer<ValueId> {
    let wrapped = match element {
        ElementType::U16 => 0xffff,
        ElementType::U4 => 0xf,
        ElementType::U2 => 0x3,
        _ => return Ok(x),
    };
    with_number(n, Binary::And, x, f64::from(wrapped))
}

/// Input `i` as floats: its own where it has them, else f32.
pub(super) fn as_float(n: &mut NodeContext<'_, '_>, i: usize) -> Answer<ValueId> {
    let x = n.tensor(i)?;
    let dtype = n.dtype(x)?;
    if dtype.is_float() { Ok(x) } else { cast(n, x, DType::F32) }
}

/// A size from a file or a run.
pub(super) fn size(n: &NodeContext<'_, '_>, what: &str, value: i64) -> Answer<usize> {
    usize::try_from(value).map_err(|_| n.wrong(format!("{what} is {value}")))
}

/// Sizes from a file or a run.
pub(super) fn sizes(n: &NodeContext<'_, '_>, what: &str, values: &[i64]) -> Answer<Vec<usize>> {
    values.iter().map(|v| size(n, what, *v)).collect()
}
