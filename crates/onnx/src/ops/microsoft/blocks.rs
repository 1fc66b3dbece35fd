//! Weights of few bits, with a scale and a zero point for each block.

use olivine_ir::op::{Binary, DequantGather, DequantMatMul, Scaling};
use olivine_ir::{BlockFormat, DType, TensorType, ValueId};

use crate::ElementType;
use crate::import::{Answer, NodeContext, Value};
use crate::ops::attention::{count, reshaped};
use crate::stored::format_of;

/// Bits of a packed value, by the attribute's name: so many that a byte holds a whole number of them.
pub(super) fn bits(n: &NodeContext<'_, '_>, attribute: &str) -> Answer<usize> {
    match n.int_or(attribute, 4)? {
        bits @ (2 | 4 | 8) => Ok(bits as usize),
        bits => Err(n.wrong(format!("values of {bits} bits cannot be imported"))),
    }
}

/// Bytes as the values packed in them, from the lowest bits on, along the last axis.
pub(super) fn unpacked(n: &mut NodeContext<'_, '_>, x: ValueId, bits: usize) -> Answer<ValueId> {
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

/// A weight of few bits with its scales, as it goes into `dequant_matmul` and `dequant_gather`.
pub(super) struct Packed {
    pub(super) weight: ValueId,
    pub(super) scales: ValueId,
    zero: Option<ValueId>,
    scaling: Scaling,
}

impl Packed {
    /// With zero points, or the middle of so many bits for all.
    pub(super) fn new(
        weight: ValueId,
        scales: ValueId,
        block: usize,
        zero: Option<ValueId>,
        offset: usize,
    ) -> Self {
        let offset = if zero.is_some() { 0 } else { offset };
        Packed { weight, scales, zero, scaling: Scaling { block, zero: zero.is_some(), offset } }
    }

    /// `x · wᵀ`; with experts, every row of x has its own matrix.
    pub(super) fn matmul(
        &self,
        n: &mut NodeContext<'_, '_>,
        x: ValueId,
        experts: Option<ValueId>,
    ) -> Answer<ValueId> {
        let op = DequantMatMul { grouped: experts.is_some(), ..DequantMatMul::scaled(self.scaling) };
        let operands = [x, self.weight].into_iter().chain(experts).chain([self.scales]).chain(self.zero);
        n.add(op, &operands.collect::<Vec<_>>())
    }

    /// Rows as floats of the scales' dtype.
    fn gather(&self, n: &mut NodeContext<'_, '_>, indices: ValueId) -> Answer<ValueId> {
        let op = DequantGather::new(n.dtype(self.scales)?, self.scaling);
        let operands = [self.weight, indices, self.scales].into_iter().chain(self.zero);
        n.add(op, &operands.collect::<Vec<_>>())
    }
}

/// The zero point of all blocks where none is given: the middle.
pub(super) fn middle(bits: usize) -> usize {
    1 << (bits - 1)
}

/// Input `at`, bytes that hold elements of so many bits, as a tensor of these sizes that is still packed; `None` where it
/// is not one of the model's weights.
pub(super) fn as_packed(
    n: &mut NodeContext<'_, '_>,
    at: usize,
    bits: usize,
    dims: &[usize],
) -> Answer<Option<ValueId>> {
    let x = n.tensor(at)?;
    let Some(stored) = n.walk.stored(n.tensor_ref(at)?) else { return Ok(None) };
    let format = match bits {
        2 => BlockFormat::U2,
        4 => BlockFormat::U4,
        _ => return reshaped(n, x, dims).map(Some),
    };
    let ty = TensorType::packed(format, dims);
    let ty = n.built(ty)?;
    if n.shape(x)?.numel() != ty.bytes() || ty.shape.has_zero() {
        return Ok(None);
    }
    n.walk.packed(&stored, ty, false)
}

/// Input `at`, zero points of so many bits, packed along the last of these axes; where they cannot stay so, a byte each.
pub(super) fn packed_zero_points(
    n: &mut NodeContext<'_, '_>,
    at: usize,
    bits: usize,
    dims: &[usize],
) -> Answer<ValueId> {
    let mut padded = dims.to_vec();
    if let Some(last) = padded.last_mut() {
        *last = last.next_multiple_of(8 / bits);
    }
    match as_packed(n, at, bits, &padded)? {
        Some(zero) => Ok(zero),
        None => dense_zero_points(n, at, bits, dims),
    }
}

/// Input `at`, zero points of so many bits that are packed along the last of these axes, a byte each.
pub(super) fn dense_zero_points(
    n: &mut NodeContext<'_, '_>,
    at: usize,
    bits: usize,
    dims: &[usize],
) -> Answer<ValueId> {
    let (mut bytes, blocks) = (dims.to_vec(), dims.last().copied().unwrap_or(0));
    if let Some(last) = bytes.last_mut() {
        *last = last.div_ceil(8 / bits);
    }
    let zero = n.tensor(at)?;
    let zero = reshaped(n, zero, &bytes)?;
    let zero = unpacked(n, zero, bits)?;
    n.build(|g| g.narrow(zero, -1, 0, blocks))
}

/// A times the transpose of B, `[N, K]` in blocks along K.
pub(super) fn matmul(n: &mut NodeContext<'_, '_>) -> Answer<Vec<Value>> {
    let (rows, columns) = (count(n, "N")?, count(n, "K")?);
    let (block, bits) = (count(n, "block_size")?, bits(n, "bits")?);
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
    let padded = blocks.checked_mul(block).ok_or_else(|| n.wrong("K is too large"))?;
    let (a, scales) = (n.tensor(0)?, n.tensor(2)?);
    let scales = reshaped(n, scales, &[rows, blocks])?;
    let weight = match n.dtype(a)? {
        DType::F32 | DType::F16 | DType::BF16 => as_packed(n, 1, bits, &[rows, padded])?,
        _ => None,
    };
    let mut y = match weight {
        Some(weight) => {
            let zero = match n.optional(3)? {
                Some(zero) if n.dtype(zero)? == DType::U8 => {
                    Some(packed_zero_points(n, 3, bits, &[rows, blocks])?)
                }
                Some(zero) => {
                    let (zero, dtype) = (reshaped(n, zero, &[rows, blocks])?, n.dtype(scales)?);
                    Some(n.build(|g| g.cast(zero, dtype))?)
                }
                None => None,
            };
            Packed::new(weight, scales, block, zero, middle(bits)).matmul(n, a, None)?
        }
        None => {
            let weights = dense(n, (rows, columns), (block, bits), scales)?;
            n.build(|g| g.matmul_nt(a, weights))?
        }
    };
    if let Some(bias) = n.optional(5)? {
        y = n.build(|g| g.add(y, bias))?;
    }
    n.like_first(y)
}

/// Input 1, `[N, K]` in blocks along K, as floats: of weights that are computed or given at every run.
fn dense(
    n: &mut NodeContext<'_, '_>,
    (rows, columns): (usize, usize),
    (block, bits): (usize, usize),
    scales: ValueId,
) -> Answer<ValueId> {
    let blocks = columns.div_ceil(block);
    let packed = n.tensor(1)?;
    let packed = reshaped(n, packed, &[rows, blocks * block / (8 / bits)])?;
    let values = unpacked(n, packed, bits)?;
    let zero = match n.optional(3)? {
        Some(zero) if n.dtype(zero)? == DType::U8 => dense_zero_points(n, 3, bits, &[rows, blocks])?,
        Some(zero) => reshaped(n, zero, &[rows, blocks])?,
        None => {
            let middle = n.scalar(DType::U8, middle(bits) as f64);
            n.build(|g| g.fill(middle, [rows, blocks]))?
        }
    };
    if n.dtype(zero)? == DType::U8 {
        let values = n.build(|g| g.narrow(values, 1, 0, columns))?;
        return n.build(|g| g.dequantize_linear(values, scales, Some(zero), 1, block));
    }
    let values = reshaped(n, values, &[rows, blocks, block])?;
    let (zero, scales) = (reshaped(n, zero, &[rows, blocks, 1])?, reshaped(n, scales, &[rows, blocks, 1])?);
    let dtype = n.dtype(scales)?;
    let weights = n.build(|g| {
        let (values, zero) = (g.cast(values, DType::F32)?, g.cast(zero, DType::F32)?);
        let above = g.sub(values, zero)?;
        let scales = g.cast(scales, DType::F32)?;
        let weights = g.mul(above, scales)?;
        g.cast(weights, dtype)
    })?;
    let weights = reshaped(n, weights, &[rows, blocks * block])?;
    n.build(|g| g.narrow(weights, 1, 0, columns))
}

/// Rows of a weight that stays packed, if the node is such a gather: of a matrix of the model's, with blocks along its rows.
fn packed_rows(
    n: &mut NodeContext<'_, '_>,
    element: ElementType,
    bits: usize,
    block: usize,
) -> Answer<Option<Packed>> {
    let (data, scales) = (n.tensor(0)?, n.tensor(2)?);
    let [rows, columns] = *n.shape(data)?.dims() else { return Ok(None) };
    let (is_bytes, zero) = (element == ElementType::U8, n.optional(3)?);
    let columns = if is_bytes { columns.saturating_mul(8 / bits) } else { columns };
    let dims = [rows, columns.div_ceil(block)];
    let narrow = matches!(n.dtype(scales)?, DType::F32 | DType::F16 | DType::BF16);
    if n.shape(scales)?.dims() != dims || rows == 0 || columns == 0 || !narrow {
        return Ok(None);
    }
    if is_bytes {
        let Some(weight) = as_packed(n, 0, bits, &[rows, columns])? else { return Ok(None) };
        let zero = match zero {
            Some(_) => Some(packed_zero_points(n, 3, bits, &dims)?),
            None => None,
        };
        return Ok(Some(Packed::new(weight, scales, block, zero, middle(bits))));
    }
    let (Some(stored), Some(format)) = (n.walk.stored(n.tensor_ref(0)?), format_of(element)) else {
        return Ok(None);
    };
    let Ok(ty) = TensorType::packed(format, [rows, columns]) else { return Ok(None) };
    if zero.is_some_and(|zero| n.shape(zero).is_ok_and(|shape| shape.dims() != dims)) {
        return Ok(None);
    }
    let weight = n.walk.packed(&stored, ty, false)?;
    Ok(weight.map(|weight| Packed::new(weight, scales, block, zero, 0)))
}

/// Gather of data in blocks along one axis, with their reals as the result.
pub(super) fn gather(n: &mut NodeContext<'_, '_>) -> Answer<Vec<Value>> {
    let (element, scale_element) = (n.element(0)?, n.element(2)?);
    let (data, indices, scales, zero) = (n.tensor(0)?, n.tensor(1)?, n.tensor(2)?, n.optional(3)?);
    let packed = element == ElementType::U8;
    let bits = if packed { bits(n, "bits")? } else { 8 };
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
    let (inside, first) = (in_range(n, indices, length)?, n.dtype(indices)?);
    let first = n.scalar(first, 0.0);
    let indices = n.build(|g| g.select(inside, indices, first))?;
    if along == 0
        && blocks == rank - 1
        && let Some(rows) = packed_rows(n, element, bits, block)?
    {
        let y = rows.gather(n, indices)?;
        let y = zeros_outside(n, y, inside, along)?;
        return Ok(vec![n.result(y, scale_element)]);
    }
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
    let y = zeros_outside(n, y, inside, along)?;
    Ok(vec![n.result(y, scale_element)])
}

/// Which indices are in range.
fn in_range(n: &mut NodeContext<'_, '_>, indices: ValueId, length: usize) -> Answer<ValueId> {
    let dtype = n.dtype(indices)?;
    let (low, high) = (n.scalar(dtype, -(length as f64)), n.scalar(dtype, length as f64));
    n.build(|g| {
        let (from, to) = (g.ge(indices, low)?, g.lt(indices, high)?);
        g.and(from, to)
    })
}

/// Zeros where an index was out of range.
fn zeros_outside(n: &mut NodeContext<'_, '_>, y: ValueId, inside: ValueId, along: usize) -> Answer<ValueId> {
    let (ty, picked) = (n.ty(y)?, n.shape(inside)?);
    let mut dims = vec![1; ty.shape.rank()];
    for (to, size) in dims.iter_mut().skip(along).zip(picked.iter()) {
        *to = *size;
    }
    let (column, zero) = (reshaped(n, inside, &dims)?, n.scalar(ty.dtype, 0.0));
    n.build(|g| g.select(column, y, zero))
}
