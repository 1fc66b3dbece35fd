//! Integer operands that steer a kernel, i32 or i64, on devices with or without 64-bit registers.

use olivine_ir::DType;
use olivine_kernel::{Access, Buf, Elem, Scalar, Val};

use crate::launch::Launch;
use crate::site::Operand;

/// A packed operand of i32 or i64, read as 32-bit words.
#[derive(Clone, Copy)]
pub(crate) struct Integers<'k> {
    words: Buf<'k>,
    wide: bool,
}

impl<'k> Integers<'k> {
    /// Declares the buffer.
    pub(crate) fn read(l: &Launch<'k>, name: &str, operand: &Operand) -> Self {
        let wide = operand.ty.dtype == DType::I64;
        Integers { words: l.bind(name, Elem::U32, Access::Read, operand.memory), wide }
    }

    /// The integer at a position.
    pub(crate) fn at(self, index: Val<'k>) -> Integer<'k> {
        self.with(index, |buffer, i| buffer.load(i))
    }

    /// The integer at a position that is the same in the whole workgroup.
    pub(crate) fn uniform(self, index: Val<'k>) -> Integer<'k> {
        self.with(index, |buffer, i| buffer.load_uniform(i))
    }

    fn with(self, index: Val<'k>, load: impl Fn(Buf<'k>, Val<'k>) -> Val<'k>) -> Integer<'k> {
        if self.wide {
            let low = load(self.words, index * 2);
            return Integer { low, high: load(self.words, index * 2 + 1) };
        }
        let low = load(self.words, index);
        let high = (low.bitcast(Scalar::I32) >> 31).bitcast(Scalar::U32);
        Integer { low, high }
    }
}

/// A 64-bit integer in two words.
#[derive(Clone, Copy)]
pub(crate) struct Integer<'k> {
    pub(crate) low: Val<'k>,
    pub(crate) high: Val<'k>,
}

impl<'k> Integer<'k> {
    /// This plus a u32, wrapping.
    pub(crate) fn plus(self, other: Val<'k>) -> Self {
        let low = self.low + other;
        let carry = low.lt(self.low).convert(Scalar::U32);
        Integer { low, high: self.high + carry }
    }

    /// Whether it is in `0..size`.
    pub(crate) fn below(self, size: Val<'k>) -> Val<'k> {
        self.high.eq(0) & self.low.lt(size)
    }

    /// The nearest number in `0..=most`.
    pub(crate) fn clamp(self, most: Val<'k>) -> Val<'k> {
        let negative = self.high.bitcast(Scalar::I32).lt(0);
        let within = self.high.eq(0).select(self.low.min(most), most);
        negative.select(most.like(0.0), within)
    }
}
