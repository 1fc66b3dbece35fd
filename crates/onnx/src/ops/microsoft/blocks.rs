//! Weights of few bits, with a scale and a zero point for each block.

use olivine_ir::op::Binary;
use olivine_ir::{DType, ValueId};

use crate::ElementType;
use crate::import::{Answer, NodeContext, Value};
use crate::ops::attention::{count, reshaped};

/// Bits of a packed value: so many that a byte holds a whole number of them.
fn bits(n: &NodeContext<'_, '_>) -> Answer<usize> {
    match n.int_or("bits", 4)? {
        bits @ (2 | 4 | 8) => Ok(bits as usize),
        bits => Err(n.wrong(format!("values of {bits} bits cannot be imported"))),
    }
}

/// Bytes as the values packed in them, from the lowest bits on, along the last axis.
fn unpacked(n: &mut NodeContext<'_, '_>, x: ValueId, bits: usize) -> Answer<ValueId> {
    if bits == 8 {
        return Ok(x);
    }
    let mask = f64::from((1u32 << bits) - 1);
    let shape = n.shape(x)?;
    let values = n.build(|g| {
        let parts = (0..8 / bits).map(|i| {
            let shifted = if i == 0 { x } else { g.binary_scalar(Binary::Shr, x, (i * bits) as f64)? };
            g.binary_scalar(Binary::And, shifted, mask)
        });
        let parts: Vec<ValueId> = parts.collect::<Result<_, _>>()?;
        g.stack(&parts, shape.rank())
    })?;
    let mut dims = shape.to_vec();
    if let Some(last) = dims.last_mut() {
        *last *= 8 / bits;
    }
    reshaped(n, values, &dims)
}

/// A times the transpose of B, `[N, K]` in blocks along K.
pub(super) fn matmul(n: &mut NodeContext<'_, '_>) -> Answer<Vec<Value>> {
    let (rows, columns) = (count(n, "N")?, count(n, "K")?);
    let (block, bits) = (count(n, "block_size")?, bits(n)?);
    if n.has(4) {
        return Err(n.wrong("weights in another order (g_idx) cannot be imported"));
    }
    if n.int_or("weight_prepacked", 0)? != 0 {
        return Err(n.wrong("weights packed for one device cannot be imported"));
    }
    if block % (8 / bits) != 0 {
        return Err(n.wrong(format!("blocks of {block} values of {bits} bits are no whole bytes")));
    }
    let blocks = columns.div_ceil(block);
    let (a, packed, scales) = (n.tensor(0)?, n.tensor(1)?, n.tensor(2)?);
    let bytes = blocks.checked_mul(block / (8 / bits)).ok_or_else(|| n.wrong("K is too large"))?;
    let packed = reshaped(n, packed, &[rows, bytes])?;
    let values = unpacked(n, packed, bits)?;
    let scales = reshaped(n, scales, &[rows, blocks])?;
    let zero = match n.optional(3)? {
        Some(zero) if n.dtype(zero)? == DType::U8 => {
            let zero = reshaped(n, zero, &[rows, (blocks * bits).div_ceil(8)])?;
            let zero = unpacked(n, zero, bits)?;
            n.build(|g| g.narrow(zero, 1, 0, blocks))?
        }
        Some(zero) => reshaped(n, zero, &[rows, blocks])?,
        None => {
            let middle = n.scalar(DType::U8, f64::from(1u32 << (bits - 1)));
            n.build(|g| g.fill(middle, [rows, blocks]))?
        }
    };
    let weights = if n.dtype(zero)? == DType::U8 {
        let values = n.build(|g| g.narrow(values, 1, 0, columns))?;
        n.build(|g| g.dequantize_linear(values, scales, Some(zero), 1, block))?
    } else {
        let values = reshaped(n, values, &[rows, blocks, block])?;
        let (zero, scales) =
            (reshaped(n, zero, &[rows, blocks, 1])?, reshaped(n, scales, &[rows, blocks, 1])?);
        let dtype = n.dtype(scales)?;
        let weights = n.build(|g| {
            let (values, zero) = (g.cast(values, DType::F32)?, g.cast(zero, DType::F32)?);
            let above = g.sub(values, zero)?;
            let scales = g.cast(scales, DType::F32)?;
            let weights = g.mul(above, scales)?;
            g.cast(weights, dtype)
        })?;
        let weights = reshaped(n, weights, &[rows, blocks * block])?;
        n.build(|g| g.narrow(weights, 1, 0, columns))?
    };
    let mut y = n.build(|g| g.matmul_nt(a, weights))?;
    if let Some(bias) = n.optional(5)? {
        y = n.build(|g| g.add(y, bias))?;
    }
    n.like_first(y)
}

/// Gather of data in blocks along one axis, with their reals as the result.
pub(super) fn gather(n: &mut NodeContext<'_, '_>) -> Answer<Vec<Value>> {
    let (element, scale_element) = (n.element(0)?, n.element(2)?);
    let (data, indices, scales, zero) = (n.tensor(0)?, n.tensor(1)?, n.tensor(2)?, n.optional(3)?);
    let packed = element == ElementType::U8;
    let bits = if packed { bits(n)? } else { 8 };
    let rank = n.shape(data)?.rank();
    let along = n.axis(n.int_or("gather_axis", 0)?, rank)?;
    let blocks = n.axis(n.int_or("quantize_axis", 1)?, rank)?;
    let block = usize::try_from(n.int_or("block_size", 128)?).unwrap_or(0);
    if !matches!(element, ElementType::U8 | ElementType::I4 | ElementType::U4) {
        return Err(n.wrong(format!("data of {element} cannot be imported")));
    }
    if block == 0 || along == blocks {
        return Err(n.wrong("blocks of nothing, or along the axis that is gathered, cannot be imported"));
    }
    if packed && along == rank - 1 && bits < 8 {
        return Err(n.wrong("packed values cannot be gathered along the last axis"));
    }
    let length = n.shape(data)?[along];
    let chosen = n.shape(indices)?;
    let pick = |n: &mut NodeContext<'_, '_>, x: ValueId, packed: bool| -> Answer<ValueId> {
        let rows = n.build(|g| g.gather(x, indices, along as isize))?;
        if packed { unpacked(n, rows, bits) } else { Ok(rows) }
    };
    let values = pick(n, data, packed)?;
    let scales = pick(n, scales, false)?;
    let scale_shape = n.shape(scales)?;
    let dtype = n.dtype(values)?;
    let zero = match zero {
        Some(zero) => {
            let zero = pick(n, zero, packed)?;
            // Packed zero points fill whole bytes.
            let last = scale_shape.rank() as isize - 1;
            let size = scale_shape.last().copied().unwrap_or(0);
            Some(n.build(|g| g.narrow(zero, last, 0, size))?)
        }
        None if packed => {
            let middle = n.scalar(dtype, f64::from(1u32 << (bits - 1)));
            Some(n.build(|g| g.fill(middle, scale_shape))?)
        }
        None => None,
    };
    let axis = if blocks > along { blocks + chosen.rank() - 1 } else { blocks };
    let y = n.build(|g| g.dequantize_linear(values, scales, zero, axis as isize, block))?;
    let y = zeros_outside(n, y, indices, along, length)?;
    Ok(vec![n.result(y, scale_element)])
}

/// Zeros where an index is out of range.
fn zeros_outside(
    n: &mut NodeContext<'_, '_>,
    y: ValueId,
    indices: ValueId,
    along: usize,
    length: usize,
) -> Answer<ValueId> {
    let (ty, picked) = (n.ty(y)?, n.ty(indices)?);
    let mut dims = vec![1; ty.shape.rank()];
    for (to, size) in dims.iter_mut().skip(along).zip(picked.shape.iter()) {
        *to = *size;
    }
    let column = reshaped(n, indices, &dims)?;
    let (low, high) = (n.scalar(picked.dtype, -(length as f64)), n.scalar(picked.dtype, length as f64));
    let zero = n.scalar(ty.dtype, 0.0);
    n.build(|g| {
        let (from, to) = (g.ge(column, low)?, g.lt(column, high)?);
        let inside = g.and(from, to)?;
        g.select(inside, y, zero)
    })
}
