//! Numbers as words of the same order, so that comparing needs no thought of NaN or signs, nor registers of their type.

use olivine_ir::DType;
use olivine_kernel::Val;

use crate::kernels::cells::Cell;

/// Which order, and what is equal in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct KeyOrder {
    pub(crate) dtype: DType,
    /// Largest first.
    pub(crate) descending: bool,
    /// Whether negative zero comes before zero; they are equal otherwise.
    pub(crate) zeros_differ: bool,
}

impl KeyOrder {
    /// Words of a key.
    pub(crate) fn words(self) -> usize {
        if self.dtype.size() == 8 { 2 } else { 1 }
    }

    /// An element's key, the most significant word first: unsigned, the least first, NaN as the largest number.
    pub(crate) fn key<'k>(self, cell: &Cell<'k>) -> Vec<Val<'k>> {
        let mut words = cell.words();
        words.reverse();
        let Some(top) = words.first().copied() else { return words };
        let k = top.builder();
        let bits = self.dtype.size().min(4) as u32 * 8;
        let sign = k.u32(1 << (bits - 1));
        let all = k.u32(u32::MAX >> (32 - bits));
        if self.dtype.is_float() {
            let low = words.get(1).copied();
            let magnitude = top & !sign;
            let (infinity, nan) = limits(self.dtype);
            let above = magnitude.gt(infinity);
            let is_nan = low.map_or(above, |l| above | (magnitude.eq(infinity) & l.ne(0u32)));
            let is_zero = low.map_or(magnitude.eq(0u32), |l| (magnitude | l).eq(0u32));
            let plain = if self.zeros_differ { top } else { is_zero.select(magnitude, top) };
            let top = is_nan.select(k.u32(nan), plain);
            let negative = (top & sign).ne(0u32);
            words[0] = negative.select(top ^ all, top | sign);
            if let Some(low) = low {
                let low = is_nan.select(k.u32(0), low);
                words[1] = negative.select(!low, low);
            }
        } else if self.dtype.is_signed() {
            words[0] = top ^ sign;
        }
        if self.descending {
            words.iter_mut().for_each(|w| *w = !*w);
        }
        words
    }
}

/// The top words of infinity and of a quiet NaN.
fn limits(dtype: DType) -> (u32, u32) {
    match dtype {
        DType::F16 => (0x7c00, 0x7e00),
        DType::BF16 => (0x7f80, 0x7fc0),
        DType::F64 => (0x7ff0_0000, 0x7ff8_0000),
        _ => (0x7f80_0000, 0x7fc0_0000),
    }
}
