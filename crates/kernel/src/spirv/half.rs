//! f16 and bf16 as bits: made and read with integers, exact on every device.

use rspirv::spirv::Op;

use super::Printer;
use super::module::Id;
use crate::types::Scalar;

impl Printer<'_> {
    /// An integer operation on two u32.
    pub(super) fn word(&mut self, op: Op, a: Id, b: Id) -> Id {
        let ty = self.m.uint(32);
        self.op(op, ty, &[a, b])
    }

    /// The same with a constant.
    pub(super) fn word_const(&mut self, op: Op, a: Id, b: u32) -> Id {
        let b = self.m.u32(b);
        self.word(op, a, b)
    }

    fn test(&mut self, op: Op, a: Id, b: u32) -> Id {
        let (ty, b) = (self.m.bool(), self.m.u32(b));
        self.op(op, ty, &[a, b])
    }

    fn choose(&mut self, condition: Id, then: Id, otherwise: Id) -> Id {
        let ty = self.m.uint(32);
        self.op(Op::Select, ty, &[condition, then, otherwise])
    }

    pub(super) fn as_float(&mut self, bits: Id) -> Id {
        let ty = self.m.float(32);
        self.op(Op::Bitcast, ty, &[bits])
    }

    pub(super) fn as_bits(&mut self, float: Id) -> Id {
        let ty = self.m.uint(32);
        self.op(Op::Bitcast, ty, &[float])
    }

    /// The f32 of the f16 in the low 16 bits of a word; the bits above are ignored.
    pub(super) fn half_to_float(&mut self, word: Id) -> Id {
        if self.options.converts_f16() {
            let half = self.half_of_bits(word);
            let ty = self.m.float(32);
            return self.op(Op::FConvert, ty, &[half]);
        }
        let magnitude = self.word_const(Op::BitwiseAnd, word, 0x7fff);
        let placed = self.word_const(Op::ShiftLeftLogical, magnitude, 13);
        let normal = self.word_const(Op::IAdd, placed, 0x3800_0000);
        // Infinities and NaN: the exponent moves to the top.
        let special = self.word_const(Op::IAdd, placed, 0x7000_0000);
        // Subnormal: with the exponent of 2^-14 the mantissa counts on top of 2^-14, which is taken away again; no
        // subnormal f32 is met on the way, so that devices that flush them agree.
        let above = self.word_const(Op::IAdd, placed, 0x3880_0000);
        let above = self.as_float(above);
        let ty = self.m.float(32);
        let least_normal = self.number(Scalar::F32, 0x3880_0000);
        let subnormal = self.exact(Op::FSub, ty, &[above, least_normal]);
        let subnormal = self.as_bits(subnormal);
        let is_special = self.test(Op::UGreaterThanEqual, magnitude, 0x7c00);
        let is_subnormal = self.test(Op::ULessThan, magnitude, 0x0400);
        let bits = self.choose(is_special, special, normal);
        let bits = self.choose(is_subnormal, subnormal, bits);
        let sign = self.word_const(Op::BitwiseAnd, word, 0x8000);
        let sign = self.word_const(Op::ShiftLeftLogical, sign, 16);
        let bits = self.word(Op::BitwiseOr, bits, sign);
        self.as_float(bits)
    }

    /// An f32 rounded to nearest even to f16, in the low 16 bits of a word that is zero above.
    pub(super) fn float_to_half(&mut self, float: Id) -> Id {
        if self.options.converts_f16() {
            let ty = self.m.float(16);
            let half = self.op(Op::FConvert, ty, &[float]);
            return self.bits_of_half(half);
        }
        let bits = self.as_bits(float);
        let magnitude = self.word_const(Op::BitwiseAnd, bits, 0x7fff_ffff);
        // Below 2^-14: adding 0.5 lets the f32 adder round to the grid of subnormals.
        let ty = self.m.float(32);
        let absolute = self.as_float(magnitude);
        let half = self.number(Scalar::F32, 0x3f00_0000);
        let shifted = self.exact(Op::FAdd, ty, &[absolute, half]);
        let shifted = self.as_bits(shifted);
        let subnormal = self.word_const(Op::ISub, shifted, 0x3f00_0000);
        let odd = self.word_const(Op::ShiftRightLogical, magnitude, 13);
        let odd = self.word_const(Op::BitwiseAnd, odd, 1);
        let rounded = self.word_const(Op::IAdd, magnitude, 0xc800_0fff);
        let rounded = self.word(Op::IAdd, rounded, odd);
        let normal = self.word_const(Op::ShiftRightLogical, rounded, 13);
        let is_subnormal = self.test(Op::ULessThan, magnitude, 0x3880_0000);
        let finite = self.choose(is_subnormal, subnormal, normal);
        let (infinity, nan) = (self.m.u32(0x7c00), self.m.u32(0x7e00));
        let is_nan = self.test(Op::UGreaterThan, magnitude, 0x7f80_0000);
        let special = self.choose(is_nan, nan, infinity);
        let is_special = self.test(Op::UGreaterThanEqual, magnitude, 0x4780_0000);
        let result = self.choose(is_special, special, finite);
        let sign = self.word_const(Op::ShiftRightLogical, bits, 16);
        let sign = self.word_const(Op::BitwiseAnd, sign, 0x8000);
        self.word(Op::BitwiseOr, result, sign)
    }

    /// An f32 rounded to nearest even to bf16, in the low 16 bits of a word that is zero above; NaN stays NaN.
    pub(super) fn float_to_bfloat(&mut self, float: Id) -> Id {
        let bits = self.as_bits(float);
        let upper = self.word_const(Op::ShiftRightLogical, bits, 16);
        let odd = self.word_const(Op::BitwiseAnd, upper, 1);
        let rounded = self.word_const(Op::IAdd, bits, 0x7fff);
        let rounded = self.word(Op::IAdd, rounded, odd);
        let rounded = self.word_const(Op::ShiftRightLogical, rounded, 16);
        let quiet = self.word_const(Op::BitwiseOr, upper, 0x40);
        let magnitude = self.word_const(Op::BitwiseAnd, bits, 0x7fff_ffff);
        let is_nan = self.test(Op::UGreaterThan, magnitude, 0x7f80_0000);
        self.choose(is_nan, quiet, rounded)
    }

    /// The f16 register of the low 16 bits of a word.
    pub(super) fn half_of_bits(&mut self, word: Id) -> Id {
        let (pair, half) = (self.vector(Scalar::F16, 2), self.m.float(16));
        let both = self.op(Op::Bitcast, pair, &[word]);
        self.op(Op::CompositeExtract, half, &[both, 0])
    }

    /// The bits of an f16 register, zero above.
    pub(super) fn bits_of_half(&mut self, half: Id) -> Id {
        let (pair, word) = (self.vector(Scalar::F16, 2), self.m.uint(32));
        let zero = self.number(Scalar::F16, 0);
        let both = self.op(Op::CompositeConstruct, pair, &[half, zero]);
        self.op(Op::Bitcast, word, &[both])
    }

    /// Two f32 as f16 in one word, the first low.
    pub(super) fn pack_half(&mut self, low: Id, high: Id) -> Id {
        if self.options.converts_f16() {
            let (floats, halves) = (self.vector(Scalar::F32, 2), self.vector(Scalar::F16, 2));
            let both = self.op(Op::CompositeConstruct, floats, &[low, high]);
            let both = self.op(Op::FConvert, halves, &[both]);
            let word = self.m.uint(32);
            return self.op(Op::Bitcast, word, &[both]);
        }
        let (low, high) = (self.float_to_half(low), self.float_to_half(high));
        let high = self.word_const(Op::ShiftLeftLogical, high, 16);
        self.word(Op::BitwiseOr, low, high)
    }

    /// The f32 of the f16 in the low (0) or high (1) half of a word.
    pub(super) fn unpack_half(&mut self, word: Id, half: u8) -> Id {
        if self.options.converts_f16() {
            let (pair, f16, f32) = (self.vector(Scalar::F16, 2), self.m.float(16), self.m.float(32));
            let both = self.op(Op::Bitcast, pair, &[word]);
            let one = self.op(Op::CompositeExtract, f16, &[both, u32::from(half)]);
            return self.op(Op::FConvert, f32, &[one]);
        }
        let low = if half == 0 { word } else { self.word_const(Op::ShiftRightLogical, word, 16) };
        self.half_to_float(low)
    }
}
