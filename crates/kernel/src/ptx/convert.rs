//! Between the types of registers, and between registers and the bits that memory holds.

use super::{Class, Printer, Reg, suffix};
use crate::types::{Elem, Scalar};

impl Printer<'_> {
    /// A scalar as another scalar type.
    pub(super) fn convert(&mut self, from: Scalar, to: Scalar, a: Reg) -> Reg {
        let class = Class::of(to);
        if from == to {
            return a;
        }
        if to == Scalar::Bool {
            let zero = self.constant(Class::of(from), 0);
            let name = match from {
                f if f.is_float() => format!("setp.neu.{}", suffix(f)),
                i => format!("setp.ne.{}", suffix(i)),
            };
            return self.op(name, class, &[a, zero]);
        }
        if from == Scalar::Bool {
            let one = match to {
                Scalar::F16 => 0x3c00,
                Scalar::F32 => u64::from(1f32.to_bits()),
                Scalar::F64 => 1f64.to_bits(),
                _ => 1,
            };
            let (one, zero) = (self.constant(class, one), self.constant(class, 0));
            return self.select(a, one, zero);
        }
        let (s, t) = (suffix(from), suffix(to));
        let name = match (from.is_float(), to.is_float()) {
            (true, true) if to.bits() > from.bits() => format!("cvt.{t}.{s}"),
            (_, true) => format!("cvt.rn.{t}.{s}"),
            (true, false) => format!("cvt.rzi.{t}.{s}"),
            (false, false) if from.bits() == to.bits() => return a,
            // The source's sign fills the upper bits.
            (false, false) if from.is_signed_int() => format!("cvt.s{}.{s}", to.bits()),
            (false, false) => format!("cvt.u{}.{s}", to.bits()),
        };
        self.op(name, class, &[a])
    }

    /// Two f32 rounded to f16 in one word, the first in its low half.
    pub(super) fn pack_half(&mut self, low: Reg, high: Reg) -> Reg {
        self.op("cvt.rn.f16x2.f32", Class::B32, &[high, low])
    }

    /// The same to bf16.
    pub(super) fn pack_bfloat(&mut self, low: Reg, high: Reg) -> Reg {
        self.op("cvt.rn.bf16x2.f32", Class::B32, &[high, low])
    }

    /// The low and the high half of a word.
    pub(super) fn unpack_b16(&mut self, word: Reg) -> [Reg; 2] {
        let halves = [self.reg(Class::B16), self.reg(Class::B16)];
        self.put(format_args!("mov.b32 {{{}, {}}}, {word}", halves[0], halves[1]));
        halves
    }

    /// A word of two halves.
    pub(super) fn pack_b16(&mut self, low: Reg, high: Reg) -> Reg {
        let word = self.reg(Class::B32);
        self.put(format_args!("mov.b32 {word}, {{{low}, {high}}}"));
        word
    }

    /// The f32 whose upper half is a bf16.
    pub(super) fn widen_bfloat(&mut self, half: Reg) -> Reg {
        let zero = self.constant(Class::B16, 0);
        self.pack_b16(zero, half)
    }

    /// The register of a narrow element as a load left it; see [`Printer::loaded`].
    pub(super) fn widen(&mut self, elem: Elem, raw: Reg) -> Reg {
        match elem {
            Elem::F16 => self.convert(Scalar::F16, Scalar::F32, raw),
            Elem::BF16 => self.widen_bfloat(raw),
            Elem::Bool => self.convert(Scalar::U32, Scalar::Bool, raw),
            _ => raw,
        }
    }

    /// A register as stores take it for an element.
    pub(super) fn narrow(&mut self, elem: Elem, value: Reg) -> Reg {
        match elem {
            Elem::F16 => self.convert(Scalar::F32, Scalar::F16, value),
            Elem::BF16 => self.op("cvt.rn.bf16.f32", Class::B16, &[value]),
            Elem::Bool => self.convert(Scalar::Bool, Scalar::U32, value),
            _ => value,
        }
    }

    /// The class of the register that a load of an element fills, and the instruction's type. Integers are extended as
    /// they are loaded, and cut off as they are stored.
    pub(super) fn loaded(elem: Elem) -> (Class, &'static str) {
        match elem {
            Elem::F16 | Elem::BF16 => (Class::B16, "b16"),
            Elem::I8 => (Class::B32, "s8"),
            Elem::U8 | Elem::Bool => (Class::B32, "u8"),
            Elem::I16 => (Class::B32, "s16"),
            Elem::U16 => (Class::B32, "u16"),
            Elem::F32 | Elem::I32 | Elem::U32 => (Class::B32, "b32"),
            Elem::F64 | Elem::I64 | Elem::U64 => (Class::B64, "b64"),
        }
    }
}
