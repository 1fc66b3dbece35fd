//! Matmuls, tensor contractions and determinants.

use olivine_ir::op::{Binary, Granularity};
use olivine_ir::{DType, Error, Graph, Tensor, TensorType, ValueId};

use super::Entry;
use super::arity::{ANY, Takes};
use super::compose::{binary, cast, in_range, reshaped, wide, with_number};
use crate::import::{Answer, NodeContext, Value};

pub(super) const OPERATORS: &[Entry] = &[
    ("Det", Takes(1, 1), det),
    ("Einsum", Takes(ANY, 1), einsum),
    ("Gemm", Takes(3, 1), gemm),
    ("MatMul", Takes(2, 1), matmul),
];

fn matmul(n: &mut NodeContext<'_, '_>) -> Answer<Vec<Value>> {
    let (a, b) = (n.tensor(0)?, n.tensor(1)?);
    if let Some(y) = packed_matmul(n, a, false)? {
        return n.like_first(y);
    }
    let y = n.build(|g| g.matmul(a, b))?;
    let element = n.element(0)?;
    let y = in_range(n, y, element)?;
    n.like_first(y)
}

fn gemm(n: &mut NodeContext<'_, '_>) -> Answer<Vec<Value>> {
    let (mut a, mut b) = (n.tensor(0)?, n.tensor(1)?);
    for x in [a, b] {
        let shape = n.shape(x)?;
        if shape.rank() != 2 {
            return Err(n.wrong(format!("its matrices have rank 2, one is {shape}")));
        }
    }
    if n.flag("transA", false)? {
        a = n.build(|g| g.swap_last_axes(a))?;
    }
    let transposed = n.flag("transB", false)?;
    if transposed {
        b = n.build(|g| g.swap_last_axes(b))?;
    }
    let (alpha, beta) = (n.float_or("alpha", 1.0)?, n.float_or("beta", 1.0)?);
    let y = match packed_matmul(n, a, transposed)? {
        Some(y) => y,
        None => n.build(|g| g.matmul(a, b))?,
    };
    let mut y = scaled(n, y, alpha)?;
    if beta != 0.0
        && let Some(c) = n.optional(2)?
    {
        let (from, to) = (n.shape(c)?, n.shape(y)?);
        if from.broadcast(&to) != Some(to) {
            return Err(n.wrong(format!("C of {from} does not broadcast to {to}")));
        }
        let c = scaled(n, c, beta)?;
        y = binary(n, Binary::Add, y, c)?;
    }
    n.like_first(y)
}

/// `a · b` where input 1 is a dequantised weight of few bits, which stays packed; b is the input or its transpose.
fn packed_matmul(n: &mut NodeContext<'_, '_>, a: ValueId, transposed: bool) -> Answer<Option<ValueId>> {
    let Some(matrix) = n.walk.dequantised(n.tensor_ref(1)?).cloned() else { return Ok(None) };
    let ty = n.ty(a)?;
    // Rows of the packed matrix run along K.
    let by_rows = matrix.transposed != transposed;
    let [rows, columns] = if by_rows { matrix.dims } else { [matrix.dims[1], matrix.dims[0]] };
    let k_axis = usize::from(by_rows);
    let is_narrow = matches!(ty.dtype, DType::F32 | DType::F16 | DType::BF16);
    if !is_narrow || rows == 0 || columns == 0 || ty.shape.last() != Some(&columns) {
        return Ok(None);
    }
    // Rows are whole bytes, and whole blocks where they are not. A block that fills rows stands for one scale a row, or
    // for one of all.
    let per_byte = matrix.format.elements();
    let (padded, block) = match matrix.granularity {
        Granularity::Block { axis, size } if axis == k_axis => {
            let is_whole = columns.is_multiple_of(per_byte);
            let whole = columns.checked_next_multiple_of(size).map(|k| k.next_multiple_of(per_byte));
            (if is_whole { columns } else { whole.ok_or_else(|| n.wrong("K is too large"))? }, size)
        }
        Granularity::Axis(axis) if axis == k_axis => return Ok(None),
        Granularity::Block { .. } => return Ok(None),
        Granularity::Axis(_) | Granularity::Tensor => {
            let whole = columns.next_multiple_of(per_byte);
            (whole, whole)
        }
    };
    let packed = TensorType::packed(matrix.format, [rows, padded]);
    let packed = n.built(packed)?;
    let Some(weight) = n.walk.packed(&matrix.stored, packed, !by_rows)? else { return Ok(None) };
    let spread = |n: &mut NodeContext<'_, '_>, x: ValueId| match matrix.granularity {
        Granularity::Block { .. } if by_rows => Ok(x),
        Granularity::Block { .. } => n.build(|g| g.swap_last_axes(x)),
        Granularity::Axis(_) => reshaped(n, x, &[rows, 1]),
        Granularity::Tensor => n.build(|g| g.expand(x, [rows, 1])),
    };
    let scales = spread(n, matrix.scales)?;
    let zero = match matrix.zero {
        Some(zero) => {
            let zero = spread(n, zero)?;
            let (from, to) = (n.dtype(zero)?, n.dtype(scales)?);
            let is_integer = matches!(from, DType::U8 | DType::I8);
            Some(if is_integer { zero } else { n.build(|g| g.cast(zero, to))? })
        }
        None => None,
    };
    let y = n.build(|g| g.dequant_matmul_scaled(a, weight, (scales, zero), (block, 0)))?;
    Ok(Some(y))
}

/// x times a float; integers are multiplied exactly and rounded towards zero.
fn scaled(n: &mut NodeContext<'_, '_>, x: ValueId, by: f32) -> Answer<ValueId> {
    let dtype = n.dtype(x)?;
    if by == 1.0 {
        return Ok(x);
    }
    if dtype.is_float() || by.fract() == 0.0 {
        return with_number(n, Binary::Mul, x, f64::from(by));
    }
    let wide = cast(n, x, DType::F64)?;
    let wide = with_number(n, Binary::Mul, wide, f64::from(by))?;
    cast(n, wide, dtype)
}

fn einsum(n: &mut NodeContext<'_, '_>) -> Answer<Vec<Value>> {
    let equation = n.string("equation")?.ok_or_else(|| n.wrong("it has no equation"))?;
    let operands = n.tensors()?;
    let y = n.build(|g| g.einsum(&equation, &operands))?;
    let element = n.element(0)?;
    let y = in_range(n, y, element)?;
    n.like_first(y)
}

/// Determinants by elimination, column after column, the largest number left in a column as its pivot.
fn det(n: &mut NodeContext<'_, '_>) -> Answer<Vec<Value>> {
    let x = n.tensor(0)?;
    let (ty, shape) = (n.dtype(x)?, n.shape(x)?);
    let rank = shape.rank();
    if rank < 2 || shape[rank - 1] != shape[rank - 2] {
        return Err(n.wrong(format!("it takes square matrices, not {shape}")));
    }
    let (rows, outer, dtype) = (shape[rank - 1], &shape[..rank - 2], wide(ty));
    let one = n.scalar(ty, 1.0);
    if rows == 0 {
        let y = n.build(|g| g.fill(one, outer))?;
        return n.like_first(y);
    }
    let batch = outer.iter().fold(1usize, |a, b| a.saturating_mul(*b));
    let matrices = reshaped(n, x, &[batch, rows, rows])?;
    let matrices = cast(n, matrices, dtype)?;
    let one = n.scalar(dtype, 1.0);
    let products = n.build(|g| g.fill(one, [batch, 1]))?;
    let columns = n.build(|g| g.range(DType::I64, 0.0, 1.0, rows))?;
    let body = elimination(dtype, batch, rows);
    let body = n.built(body)?;
    let results = n.build(|g| g.scan(&[matrices, products], &[columns], &[], body))?;
    let product = *results.get(1).ok_or_else(|| n.wrong("an elimination without a result"))?;
    let y = reshaped(n, product, outer)?;
    let y = cast(n, y, ty)?;
    n.like_first(y)
}

/// One step of the elimination of matrices `[batch, rows, rows]`: they and the products of pivots so far
/// `[batch, 1]`, before and after the column of a number.
fn elimination(dtype: DType, batch: usize, rows: usize) -> Result<Graph, Error> {
    let mut graph = Graph::new("elimination");
    let g = &mut graph;
    let a = g.input("matrices", dtype, [batch, rows, rows])?;
    let product = g.input("products", dtype, [batch, 1])?;
    let k = g.input("column", DType::I64, [])?;
    let zero = g.constant(Tensor::scalar_of(dtype, 0.0));
    let below_all = g.constant(Tensor::scalar_of(dtype, -1.0));
    let numbers = g.range(DType::I64, 0.0, 1.0, rows)?;
    let column = g.gather(a, k, 2)?;
    let size = g.abs(column)?;
    let left = g.ge(numbers, k)?;
    let size = g.select(left, size, below_all)?;
    let at = g.argmax(size, 1, true)?;
    // The pivot's row and row k change places, and with them the sign.
    let (is_k, is_pivot) = (g.eq(numbers, k)?, g.eq(numbers, at)?);
    let order = g.select(is_pivot, k, numbers)?;
    let order = g.select(is_k, at, order)?;
    let order = g.reshape(order, &[batch as i64, rows as i64, 1])?;
    let order = g.expand(order, [batch, rows, rows])?;
    let a = g.gather_elements(a, order, 1)?;
    let row = g.gather(a, k, 1)?;
    let pivot = g.gather(row, k, 1)?;
    let pivot = g.reshape(pivot, &[batch as i64, 1])?;
    let (stays, negative) = (g.eq(at, k)?, g.neg(pivot)?);
    let factor = g.select(stays, pivot, negative)?;
    let product = g.mul(product, factor)?;
    // A column of zeros has no pivot; the determinant is zero whatever is eliminated.
    let column = g.gather(a, k, 2)?;
    let ratio = g.div(column, pivot)?;
    let (below, singular) = (g.gt(numbers, k)?, g.eq(pivot, zero)?);
    let ratio = g.select(below, ratio, zero)?;
    let ratio = g.select(singular, zero, ratio)?;
    let ratio = g.reshape(ratio, &[batch as i64, rows as i64, 1])?;
    let row = g.reshape(row, &[batch as i64, 1, rows as i64])?;
    let taken = g.mul(ratio, row)?;
    let a = g.sub(a, taken)?;
    g.output("0", a)?;
    g.output("1", product)?;
    Ok(graph)
}
