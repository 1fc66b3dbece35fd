//! Blocks of key-value caches: 32 elements of 8 bits behind their f16 scale.
//!
//! Blocks of 34 bytes begin at even addresses. Eight invocations write one, in halves of words, which no two of them share; four or
//! eight elements are read as the words that they are in.

use olivine_ir::op::KvAppend;
use olivine_ir::{DType, Dim, TensorType};
use olivine_kernel::{Buf, Elem, Reduction, Scalar, Val};

use crate::math;
use crate::packed::decode::bits::signed_bytes;

/// Elements of a block.
const ELEMENTS: u32 = 32;
/// Bytes of a block.
pub(crate) const BYTES: u32 = 34;
/// Invocations that write a block, four elements each.
pub(crate) const WRITERS: u32 = ELEMENTS / 4;
/// Bits of infinity.
const INFINITY: u32 = 0x7f80_0000;
/// The f16 that is NaN.
const NAN: u32 = 0x7e00;

/// Whether a cache is packed; formats other than that of caches are errors.
pub(crate) fn is_packed(ty: &TensorType) -> Result<bool, String> {
    match ty.packed {
        None => Ok(false),
        Some(format) if format == KvAppend::FORMAT => Ok(true),
        Some(format) => Err(format!("caches can be packed as {} only, not as {format}", KvAppend::FORMAT)),
    }
}

/// Strides of bytes as strides of blocks.
pub(crate) fn block_strides(bytes: &[Dim]) -> Vec<Dim> {
    bytes.iter().map(|stride| stride.div_floor(BYTES as usize)).collect()
}

/// The elements that blocks are written as.
pub(crate) const STORED: Elem = Elem::U16;

/// Writes four neighbouring elements of a block, where they are `inside`: the same bytes as `olivine_quant::encode_q8_0` writes. `four`
/// is their place among the fours of the row whose first block is `row`.
///
/// Every invocation of the workgroup must come here; the eight of a block are neighbours.
pub(crate) fn store_four<'k>(
    sink: Buf<'k>,
    inside: Val<'k>,
    row: Val<'k>,
    four: Val<'k>,
    values: &[Val<'k>],
) {
    let k = row.builder();
    // Magnitudes in the order of their bits, NaN last.
    let magnitude = |x: &Val<'k>| x.bitcast(Scalar::U32) & 0x7fff_ffffu32;
    let largest = values.iter().map(magnitude).reduce(|a, b| a.max(b)).unwrap_or(k.u32(0));
    let largest = k.cluster_reduce(WRITERS, largest, Reduction::Max);
    let finite = largest.lt(INFINITY);
    let number = finite.select(largest, k.u32(0)).bitcast(Scalar::F32);
    let d = math::div(number, k.f32(127.0));
    let scale = math::half_bits(math::round_to(d, DType::F16));
    // A scale that f16 takes for 0 leaves nothing; others have a normal inverse.
    let is_scaled = scale.ne(0);
    let inverse = math::div(k.f32(1.0), is_scaled.select(d, k.f32(1.0)));
    let byte = |x: &Val<'k>| {
        let y = is_scaled.select(*x * inverse, k.f32(0.0));
        let whole = y.trunc();
        let rest = y - whole;
        // Halves go away from zero.
        let more = rest.ge(0.5).select(k.i32(1), k.i32(0)) - rest.le(-0.5).select(k.i32(1), k.i32(0));
        (whole.convert(Scalar::I32) + more).bitcast(Scalar::U32) & 0xffu32
    };
    let bytes: Vec<Val<'k>> = values.iter().map(byte).collect();
    let halves: Vec<Val<'k>> = bytes.chunks(2).map(|pair| pair[0] | (pair[1] << 8u32)).collect();
    let scale = finite.select(scale, k.u32(NAN));
    let (block, within) = (row + four / WRITERS, four % WRITERS);
    let start = block * (BYTES / 2);
    k.if_(inside, || {
        (0u32..).zip(halves).for_each(|(i, half)| sink.store(start + within * 2u32 + (1 + i), half));
        k.if_(within.eq(0), || sink.store(start, scale));
    });
}

/// Words of so many elements.
fn words(count: u32) -> usize {
    count as usize / 4 + 1
}

/// Values that [`load`] returns for so many elements.
pub(crate) fn loads(count: u32) -> usize {
    words(count) + 2
}

/// What `count` elements (4 or 8, at a multiple of their number) of the row that begins at byte `row` are decoded from: words, the last of
/// which has the scale, and the address.
pub(crate) fn load<'k>(buffer: Buf<'k>, row: Val<'k>, element: Val<'k>, count: u32) -> Vec<Val<'k>> {
    let block = row + element / ELEMENTS * BYTES;
    let first = block + element % ELEMENTS + 2u32;
    // The last word may be the one before.
    let last = (first + (count - 1)) >> 2u32;
    let words = (0..count / 4).map(|i| buffer.load((first >> 2u32) + i));
    let mut loaded: Vec<Val<'k>> = words.chain([buffer.load(last)]).collect();
    loaded.extend([buffer.load(block >> 2u32), block & 2u32]);
    loaded
}

/// The elements of what was loaded; of words that are all zeros, zeros.
pub(crate) fn decode<'k>(loaded: &[Val<'k>], count: u32) -> Vec<Val<'k>> {
    let n = words(count);
    let (scale, half) = (loaded[n], loaded[n + 1]);
    // The elements of a block at a whole word begin half a word later.
    let shift = (half ^ 2u32) << 3u32;
    let pair = |w: &[Val<'k>]| (w[0] >> shift) | ((w[1] << 1u32) << (shift ^ 31u32));
    let scale = (scale >> (half << 3u32)).unpack_half(0);
    loaded[..n].windows(2).flat_map(|w| signed_bytes(pair(w))).map(|q| q * scale).collect()
}

/// One element of the row that begins at byte `row`.
pub(crate) fn element<'k>(buffer: Buf<'k>, row: Val<'k>, element: Val<'k>) -> Val<'k> {
    let four = element - element % 4u32;
    let values = decode(&load(buffer, row, four, 4), 4);
    let at = element % 4u32;
    values.iter().enumerate().skip(1).fold(values[0], |x, (i, value)| at.eq(i as u32).select(*value, x))
}
