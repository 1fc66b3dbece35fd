//! Numbers as words of the same order, so that comparing needs no thought of NaN or signs, nor registers of their type.

use olivine_ir::DType;
use olivine_kernel::Val;

use crate::cells::{Cell, Cells};

/// Which order, and what is equal in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct KeyOrder {
    pub(crate) dtype: DType,
    /// Largest first.
    pub(crate) descending: bool,
    /// Whether all bits count: negative zero comes before zero, and NaN is told from NaN. A key then says what the
    /// element was. Otherwise equal numbers have equal keys.
    pub(crate) bits_differ: bool,
}

impl KeyOrder {
    /// Words of a key.
    pub(crate) fn words(self) -> usize {
        if self.dtype.size() == 8 { 2 } else { 1 }
    }

    /// Bits of a key's word that count.
    pub(crate) fn bits(self) -> u32 {
        self.dtype.size().min(4) as u32 * 8
    }

    /// An element's key, the most significant word first: unsigned, the least first, NaN above all numbers. Of narrow
    /// dtypes only the low bits count.
    pub(crate) fn key<'k>(self, cell: &Cell<'k>) -> Vec<Val<'k>> {
        let mut words = cell.words();
        words.reverse();
        let Some(top) = words.first().copied() else { return words };
        let k = top.builder();
        let (sign, all) = self.marks();
        let (sign, all) = (k.u32(sign), k.u32(all));
        if self.dtype.is_float() {
            let low = words.get(1).copied();
            let (top, low) = if self.bits_differ { (top, low) } else { self.same_bits(top, low) };
            let negative = (top & sign).ne(0u32);
            words[0] = negative.select(top ^ all, top | sign);
            if let Some(low) = low {
                words[1] = negative.select(!low, low);
            }
            if self.bits_differ {
                self.turn(&mut words, false);
            }
        } else if self.dtype.is_signed() {
            words[0] = top ^ sign;
        }
        if self.descending {
            words.iter_mut().for_each(|w| *w = !*w);
        }
        words
    }

    /// The element that has a key in which all bits count.
    pub(crate) fn element<'k>(self, key: &[Val<'k>], cells: Cells) -> Option<Cell<'k>> {
        let mut words = key.to_vec();
        let k = words.first()?.builder();
        let (sign, all) = self.marks();
        let (sign, all) = (k.u32(sign), k.u32(all));
        if self.descending {
            words.iter_mut().for_each(|w| *w = !*w);
        }
        if self.dtype.is_float() {
            self.turn(&mut words, true);
            let positive = (words[0] & sign).ne(0u32);
            words[0] = positive.select(words[0] ^ sign, words[0] ^ all);
            if let Some(low) = words.get_mut(1) {
                *low = positive.select(*low, !*low);
            }
        } else if self.dtype.is_signed() {
            words[0] = words[0] ^ sign;
        }
        let (top, low) = (words[0] & all, words.get(1).copied());
        Some(cells.of_words(low.unwrap_or(top), if low.is_some() { top } else { k.u32(0) }))
    }

    /// The sign of the top word, and all of its bits.
    fn marks(self) -> (u32, u32) {
        let bits = self.bits();
        (1 << (bits - 1), u32::MAX >> (32 - bits))
    }

    /// One zero and one NaN.
    fn same_bits<'k>(self, top: Val<'k>, low: Option<Val<'k>>) -> (Val<'k>, Option<Val<'k>>) {
        let k = top.builder();
        let magnitude = top & k.u32(!self.marks().0);
        let (infinity, nan) = limits(self.dtype);
        let above = magnitude.gt(infinity);
        let is_nan = low.map_or(above, |l| above | (magnitude.eq(infinity) & l.ne(0u32)));
        let is_zero = low.map_or(magnitude.eq(0u32), |l| (magnitude | l).eq(0u32));
        let plain = is_zero.select(magnitude, top);
        (is_nan.select(k.u32(nan), plain), low.map(|l| is_nan.select(k.u32(0), l)))
    }

    /// Turns the circle of ordered words so that NaNs with a sign, which stand below −∞, come after those without; or
    /// turns it back.
    fn turn<'k>(self, words: &mut [Val<'k>], back: bool) {
        let Some(top) = words.first().copied() else { return };
        let k = top.builder();
        let all = k.u32(self.marks().1);
        // How many NaNs with a sign there are, as far as the top word goes.
        let (infinity, _) = limits(self.dtype);
        let nans = k.u32(!infinity & (self.marks().1 >> 1));
        let Some(low) = words.get(1).copied() else {
            words[0] = (if back { top + nans } else { top - nans }) & all;
            return;
        };
        // Of two words, the count's lower one has all bits set.
        if back {
            words[1] = low - 1u32;
            words[0] = top + nans + low.ne(0u32).select(k.u32(1), k.u32(0));
        } else {
            words[1] = low + 1u32;
            words[0] = top - nans - low.ne(u32::MAX).select(k.u32(1), k.u32(0));
        }
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
