//! Indices out of the user's data: i32 or i64, counted from the back when negative, perhaps out of range.
//!
//! They are worked on as a low and a high word, so that i64 needs no 64-bit registers.

use olivine_ir::DType;
use olivine_kernel::{Access, Buf, Elem, Scalar, Val};

use crate::launch::Launch;
use crate::site::Operand;

/// A buffer of indices.
#[derive(Clone, Copy)]
pub(crate) struct Indices<'k> {
    buf: Buf<'k>,
    words: usize,
}

/// An index held against an axis.
#[derive(Clone, Copy)]
pub(crate) struct Resolved<'k> {
    /// The position it names, the nearest one where it is out of range.
    pub(crate) at: Val<'k>,
    /// Whether it is in range.
    pub(crate) inside: Val<'k>,
}

impl<'k> Indices<'k> {
    /// Declares a packed operand of indices.
    pub(crate) fn declare(l: &Launch<'k>, name: &str, operand: &Operand) -> Self {
        let (elem, words) = match operand.ty.dtype {
            DType::I32 => (Elem::I32, 1),
            _ if l.k().target().i64 => (Elem::I64, 1),
            _ => (Elem::U32, 2),
        };
        Indices { buf: l.bind(name, elem, Access::Read, operand.memory), words }
    }

    /// The low word, the high word, and the number as a report shows it.
    fn words(self, position: Val<'k>) -> [Val<'k>; 3] {
        let loaded = self.buf.load_vec(position * self.words, self.words as u8);
        match (loaded.as_slice(), self.buf.elem()) {
            ([low, high], _) => {
                // A report without 64-bit registers shows the nearest i32.
                let value = low.bitcast(Scalar::I32);
                let fits = (value >> 31).bitcast(Scalar::U32).eq(*high);
                let k = value.builder();
                let bound = (high.bitcast(Scalar::I32)).lt(0).select(k.i32(i32::MIN), k.i32(i32::MAX));
                [*low, *high, fits.select(value, bound)]
            }
            ([value, ..], Elem::I64) => {
                [value.convert(Scalar::U32), (*value >> 32).convert(Scalar::U32), *value]
            }
            (values, _) => {
                let value = values.first().copied().unwrap_or(position);
                [value.bitcast(Scalar::U32), (value >> 31).bitcast(Scalar::U32), value]
            }
        }
    }

    /// The index at `position`, for an axis of `size`; without a report when it is out of range.
    pub(crate) fn peek(self, position: Val<'k>, size: Val<'k>) -> Resolved<'k> {
        let [low, high, _] = self.words(position);
        resolve(low, high, size)
    }

    /// The index at `position`, for an axis of `size`; checked kernels report it when it is out of range.
    pub(crate) fn resolve(self, position: Val<'k>, size: Val<'k>) -> Resolved<'k> {
        let k = position.builder();
        let [low, high, value] = self.words(position);
        let resolved = resolve(low, high, size);
        k.if_(!resolved.inside, || k.report(position, value, size));
        resolved
    }
}

fn resolve<'k>(low: Val<'k>, high: Val<'k>, size: Val<'k>) -> Resolved<'k> {
    let k = low.builder();
    let negative = high.bitcast(Scalar::I32).lt(0);
    // How far back from the end; 0 stands for -2^32 then.
    let back = k.u32(0) - low;
    let behind = high.eq(u32::MAX) & back.ne(0u32) & back.le(size);
    let ahead = high.eq(0u32) & low.lt(size);
    let inside = negative.select(behind, ahead);
    let nearest = negative.select(k.u32(0), size - 1u32);
    let at = inside.select(negative.select(size - back, low), nearest);
    Resolved { at, inside }
}
