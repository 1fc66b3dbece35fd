//! Arithmetic on recorded values.

use std::fmt;
use std::ops;

use super::Builder;
use crate::ir::*;
use crate::types::{Fragments, MatrixType, Scalar, Type};

/// A value of the kernel being written.
#[derive(Clone, Copy)]
pub struct Val<'k> {
    pub(super) k: &'k Builder,
    pub(crate) id: Value,
}

impl fmt::Debug for Val<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "%{}: {}", self.id.0, self.ty())
    }
}

/// The bits of a number in a type; floats are rounded to it, integers truncated and wrapped.
pub(crate) fn bits_of(scalar: Scalar, x: f64) -> u64 {
    match scalar {
        Scalar::Bool => u64::from(x != 0.0),
        Scalar::I32 => u64::from(x as i64 as u32),
        Scalar::U32 => u64::from(x as i64 as u32),
        Scalar::I64 => x as i64 as u64,
        Scalar::U64 => x as u64,
        Scalar::F16 => u64::from(half_bits(x as f32)),
        Scalar::F32 => u64::from((x as f32).to_bits()),
        Scalar::F64 => x.to_bits(),
    }
}

/// An f32 as the bits of an f16, rounded to nearest even.
pub(crate) fn half_bits(x: f32) -> u16 {
    let bits = x.to_bits();
    let sign = ((bits >> 16) & 0x8000) as u16;
    let magnitude = bits & 0x7fff_ffff;
    if magnitude > 0x7f80_0000 {
        return sign | 0x7e00;
    }
    if magnitude >= 0x4780_0000 {
        return sign | 0x7c00;
    }
    if magnitude < 0x3880_0000 {
        // Below 2^-14: adding 0.5 lets the f32 adder round to the subnormal grid.
        let shifted = f32::from_bits(magnitude) + 0.5;
        return sign | (shifted.to_bits() - 0x3f00_0000) as u16;
    }
    let odd = (magnitude >> 13) & 1;
    sign | ((magnitude - 0x3800_0000 + 0xfff + odd) >> 13) as u16
}

impl<'k> Val<'k> {
    /// The builder it belongs to.
    pub fn builder(self) -> &'k Builder {
        self.k
    }

    /// Its type.
    pub fn ty(self) -> Type {
        self.k.inner.borrow().kernel.ty(self.id)
    }

    /// Its scalar type; that of the components for a vector.
    pub fn scalar(self) -> Scalar {
        self.ty().scalar().unwrap_or(Scalar::F32)
    }

    /// Its bits if it is a constant.
    pub fn as_const(self) -> Option<u64> {
        match self.k.inner.borrow().kernel.values[self.id.index()].expr {
            Expr::Const(_, bits) => Some(bits),
            _ => None,
        }
    }

    /// A number of this value's type.
    pub fn like(self, x: f64) -> Val<'k> {
        self.k.number(self.scalar(), x)
    }

    fn expect(self, what: &str, ok: bool) {
        if !ok {
            self.k.fail(format!("{what} of {}", self.ty()));
        }
    }

    fn same(self, other: Val<'k>, what: &str) {
        if self.ty() != other.ty() {
            self.k.fail(format!("{what} of {} and {}", self.ty(), other.ty()));
        }
    }

    /// An operation of one operand.
    pub fn unary(self, op: UnaryOp) -> Val<'k> {
        let s = self.scalar();
        let ok = match op {
            UnaryOp::Neg | UnaryOp::Abs => s.is_float() || s.is_signed_int(),
            UnaryOp::Not => !s.is_float(),
            UnaryOp::CountOnes => matches!(s, Scalar::U32 | Scalar::I32),
            UnaryOp::LeadingZeros => s == Scalar::U32,
            UnaryOp::Exp2 | UnaryOp::Log2 | UnaryOp::Sin | UnaryOp::Cos => {
                matches!(s, Scalar::F32 | Scalar::F16)
            }
            _ => s.is_float(),
        };
        self.expect(&format!("{op:?}"), ok && matches!(self.ty(), Type::Scalar(_)));
        self.k.compute(Expr::Unary(op, self.id), self.ty())
    }

    /// An operation of two operands of one type.
    pub fn binary(self, op: BinaryOp, other: Val<'k>) -> Val<'k> {
        self.same(other, &format!("{op:?}"));
        let s = self.scalar();
        let ok = match op {
            BinaryOp::Add | BinaryOp::Sub | BinaryOp::Mul | BinaryOp::Div | BinaryOp::Min | BinaryOp::Max => {
                s != Scalar::Bool
            }
            BinaryOp::Rem | BinaryOp::Shl | BinaryOp::Shr => s.is_int(),
            BinaryOp::And | BinaryOp::Or | BinaryOp::Xor => !s.is_float(),
            BinaryOp::MulHigh => s == Scalar::U32,
        };
        self.expect(&format!("{op:?}"), ok && matches!(self.ty(), Type::Scalar(_)));
        if let Some(folded) = self.fold(op, other) {
            return folded;
        }
        self.k.compute(Expr::Binary(op, self.id, other.id), self.ty())
    }

    /// Index arithmetic on constants is done here, so that printed kernels read well.
    fn fold(self, op: BinaryOp, other: Val<'k>) -> Option<Val<'k>> {
        let s = self.scalar();
        if !matches!(s, Scalar::U32 | Scalar::I32) {
            return None;
        }
        match (op, self.as_const(), other.as_const()) {
            (BinaryOp::Add, Some(0), _) | (BinaryOp::Mul, Some(1), _) => return Some(other),
            (BinaryOp::Add | BinaryOp::Sub, _, Some(0)) | (BinaryOp::Mul | BinaryOp::Div, _, Some(1)) => {
                return Some(self);
            }
            (BinaryOp::Mul, Some(0), _) => return Some(self),
            (BinaryOp::Mul, _, Some(0)) => return Some(other),
            _ => {}
        }
        let (a, b) = (self.as_const()? as u32, other.as_const()? as u32);
        let folded = match (op, s) {
            (BinaryOp::Add, _) => a.wrapping_add(b),
            (BinaryOp::Sub, _) => a.wrapping_sub(b),
            (BinaryOp::Mul, _) => a.wrapping_mul(b),
            (BinaryOp::Div, Scalar::U32) => a.checked_div(b)?,
            (BinaryOp::Rem, Scalar::U32) => a.checked_rem(b)?,
            (BinaryOp::Shl, _) => a.checked_shl(b)?,
            (BinaryOp::Shr, Scalar::U32) => a.checked_shr(b)?,
            (BinaryOp::And, _) => a & b,
            (BinaryOp::Or, _) => a | b,
            _ => return None,
        };
        Some(self.k.constant(s, u64::from(folded)))
    }

    /// A comparison.
    pub fn compare(self, op: CompareOp, other: Val<'k>) -> Val<'k> {
        self.same(other, &format!("{op:?}"));
        let ordered = !matches!(op, CompareOp::Eq | CompareOp::Ne);
        self.expect(&format!("{op:?}"), !(ordered && self.scalar() == Scalar::Bool));
        if self.scalar() == Scalar::U32
            && let (Some(a), Some(b)) = (self.as_const(), other.as_const())
        {
            return self.k.bool(match op {
                CompareOp::Eq => a == b,
                CompareOp::Ne => a != b,
                CompareOp::Lt => a < b,
                CompareOp::Le => a <= b,
                CompareOp::Gt => a > b,
                CompareOp::Ge => a >= b,
            });
        }
        self.k.compute(Expr::Compare(op, self.id, other.id), Type::Scalar(Scalar::Bool))
    }

    /// This where `self` (a bool) is true, else the other.
    pub fn select(self, then: Val<'k>, otherwise: Val<'k>) -> Val<'k> {
        then.same(otherwise, "select");
        self.expect("a condition", self.ty() == Type::Scalar(Scalar::Bool));
        match self.as_const() {
            Some(1) => then,
            Some(_) => otherwise,
            None => self.k.compute(Expr::Select(self.id, then.id, otherwise.id), then.ty()),
        }
    }

    /// self·b + c, rounded once where the device can.
    pub fn fma(self, b: impl Number<'k>, c: impl Number<'k>) -> Val<'k> {
        let (b, c) = (b.val(self), c.val(self));
        self.same(b, "fma");
        self.same(c, "fma");
        self.expect("fma", self.scalar().is_float());
        self.k.compute(Expr::Fma(self.id, b.id, c.id), self.ty())
    }

    /// As another scalar type; see [`Expr::Convert`].
    pub fn convert(self, to: Scalar) -> Val<'k> {
        if self.scalar() == to {
            return self;
        }
        self.expect("a conversion", matches!(self.ty(), Type::Scalar(_)));
        if let (Scalar::U32 | Scalar::I32, Scalar::U32 | Scalar::I32, Some(bits)) =
            (self.scalar(), to, self.as_const())
        {
            return self.k.constant(to, bits);
        }
        self.k.compute(Expr::Convert(to, self.id), Type::Scalar(to))
    }

    /// The same bits as another scalar type.
    pub fn bitcast(self, to: Scalar) -> Val<'k> {
        if self.scalar() == to {
            return self;
        }
        self.expect("a bitcast", self.scalar().bits() == to.bits() && self.scalar() != Scalar::Bool);
        self.k.compute(Expr::Bitcast(to, self.id), Type::Scalar(to))
    }

    /// The same number, kept apart from the arithmetic around it; see [`Expr::Opaque`].
    pub fn opaque(self) -> Val<'k> {
        self.expect("opaque", matches!(self.ty(), Type::Scalar(Scalar::F32 | Scalar::F64)));
        self.k.compute(Expr::Opaque(self.id), self.ty())
    }

    /// A u64 of this u32 (low) and another (high).
    pub fn join(self, high: Val<'k>) -> Val<'k> {
        self.same(high, "join");
        self.expect("join", self.ty() == Type::Scalar(Scalar::U32));
        self.k.compute(Expr::Join(self.id, high.id), Type::Scalar(Scalar::U64))
    }

    /// This and another f32 as f16 in a u32, this one low.
    pub fn pack_half(self, high: Val<'k>) -> Val<'k> {
        self.same(high, "pack_half");
        self.expect("pack_half", self.ty() == Type::Scalar(Scalar::F32));
        self.k.compute(Expr::PackHalf(self.id, high.id), Type::Scalar(Scalar::U32))
    }

    /// The f16 in the low (0) or high (1) half of this u32, as f32.
    pub fn unpack_half(self, half: u8) -> Val<'k> {
        self.expect("unpack_half", self.ty() == Type::Scalar(Scalar::U32) && half < 2);
        self.k.compute(Expr::UnpackHalf(self.id, half), Type::Scalar(Scalar::F32))
    }

    /// A vector's components; the scalar itself otherwise.
    pub fn components(self) -> Vec<Val<'k>> {
        match self.ty() {
            Type::Vector(s, n) => {
                (0..n).map(|i| self.k.compute(Expr::Extract(self.id, i), Type::Scalar(s))).collect()
            }
            _ => vec![self],
        }
    }

    /// Among the lanes of the subgroup; the result's type is this value's.
    pub fn subgroup(self, op: SubgroupOp) -> Val<'k> {
        self.k.compute(Expr::Subgroup(op, self.id, None), self.ty())
    }

    /// The value of the lane at this one's number xor `mask`.
    pub fn shuffle_xor(self, mask: u32) -> Val<'k> {
        let mask = self.k.u32(mask);
        self.k.compute(Expr::Subgroup(SubgroupOp::ShuffleXor, self.id, Some(mask.id)), self.ty())
    }

    /// The value of a lane.
    pub fn shuffle(self, lane: Val<'k>) -> Val<'k> {
        self.k.compute(Expr::Subgroup(SubgroupOp::Shuffle, self.id, Some(lane.id)), self.ty())
    }

    /// The sum of four 8-bit products and an accumulator; operands are u32 with four packed integers.
    pub fn packed_dot(self, other: Val<'k>, accumulator: Val<'k>, signed: bool) -> Val<'k> {
        self.same(other, "packed_dot");
        let expr = Expr::PackedDot { signed, a: self.id, b: other.id, accumulator: accumulator.id };
        self.k.compute(expr, accumulator.ty())
    }

    /// A cooperative matrix with this number everywhere.
    pub fn splat(self, ty: MatrixType) -> Val<'k> {
        self.k.compute(Expr::MatrixSplat(ty, self.id), Type::Matrix(ty))
    }

    /// self·b + c of cooperative matrices.
    pub fn matrix_mul_add(self, b: Val<'k>, c: Val<'k>) -> Val<'k> {
        self.k.compute(Expr::MatrixMulAdd(self.id, b.id, c.id), c.ty())
    }

    /// The words that this lane holds of a cooperative matrix of 16-bit elements; [`Builder::matrix_of_words`] makes
    /// the matrix again. Which elements they are is the device's secret.
    pub fn matrix_words(self, count: u8) -> Vec<Val<'k>> {
        let word = |i| self.k.compute(Expr::MatrixWord(self.id, i), Type::Scalar(Scalar::U32));
        (0..count).map(word).collect()
    }

    /// The sum of two cooperative matrices of one type.
    pub fn matrix_add(self, other: Val<'k>) -> Val<'k> {
        self.k.compute(Expr::MatrixBinary(BinaryOp::Add, self.id, other.id), self.ty())
    }

    /// The elements of a cooperative matrix that this invocation holds; only where the target says which they are.
    pub fn matrix_parts(self) -> Vec<Val<'k>> {
        let Type::Matrix(m) = self.ty() else {
            self.k.fail(format!("parts of {}", self.ty()));
            return Vec::new();
        };
        let part = |i| self.k.compute(Expr::MatrixPart(self.id, i), Type::Scalar(m.elem.scalar()));
        (0..Fragments::COUNT).map(part).collect()
    }

    /// A cooperative matrix times a number of its element type.
    pub fn matrix_scale(self, by: Val<'k>) -> Val<'k> {
        self.k.compute(Expr::MatrixBinary(BinaryOp::Mul, self.id, by.id), self.ty())
    }
}

/// A value, or a number that becomes one of the other operand's type.
pub trait Number<'k> {
    /// The value, of `other`'s type if it is a number.
    fn val(self, other: Val<'k>) -> Val<'k>;
}

impl<'k> Number<'k> for Val<'k> {
    fn val(self, _: Val<'k>) -> Val<'k> {
        self
    }
}

macro_rules! numbers {
    ($($ty:ty),*) => {$(
        impl<'k> Number<'k> for $ty {
            fn val(self, other: Val<'k>) -> Val<'k> {
                other.like(self as f64)
            }
        }
    )*};
}
numbers!(i32, u32, usize, f32, f64);

macro_rules! operators {
    ($($trait:ident $method:ident $op:ident),*) => {$(
        impl<'k, N: Number<'k>> ops::$trait<N> for Val<'k> {
            type Output = Val<'k>;
            fn $method(self, other: N) -> Val<'k> {
                self.binary(BinaryOp::$op, other.val(self))
            }
        }
    )*};
}
operators!(
    Add add Add, Sub sub Sub, Mul mul Mul, Div div Div, Rem rem Rem, BitAnd bitand And, BitOr bitor Or,
    BitXor bitxor Xor, Shl shl Shl, Shr shr Shr
);

impl<'k> ops::Neg for Val<'k> {
    type Output = Val<'k>;
    fn neg(self) -> Val<'k> {
        self.unary(UnaryOp::Neg)
    }
}

impl<'k> ops::Not for Val<'k> {
    type Output = Val<'k>;
    fn not(self) -> Val<'k> {
        self.unary(UnaryOp::Not)
    }
}

macro_rules! methods {
    ($($(#[$doc:meta])* $name:ident => $op:ident),* $(,)?) => {
        impl<'k> Val<'k> {$(
            $(#[$doc])*
            pub fn $name(self) -> Val<'k> {
                self.unary(UnaryOp::$op)
            }
        )*}
    };
}
methods! {
    /// Absolute value.
    abs => Abs,
    /// Largest integer not above.
    floor => Floor,
    /// Least integer not below.
    ceil => Ceil,
    /// Toward zero.
    trunc => Trunc,
    /// To the nearest integer, half to even.
    round_even => RoundEven,
    /// The device's square root.
    sqrt => Sqrt,
    /// The device's reciprocal square root.
    inverse_sqrt => InverseSqrt,
    /// The device's 2^x.
    exp2_native => Exp2,
    /// The device's log2.
    log2_native => Log2,
    /// The device's sine.
    sin_native => Sin,
    /// The device's cosine.
    cos_native => Cos,
    /// Number of set bits.
    count_ones => CountOnes,
    /// Number of zeros above the highest set bit.
    leading_zeros => LeadingZeros,
}

macro_rules! comparisons {
    ($($(#[$doc:meta])* $name:ident => $op:ident),* $(,)?) => {
        impl<'k> Val<'k> {$(
            $(#[$doc])*
            pub fn $name(self, other: impl Number<'k>) -> Val<'k> {
                self.compare(CompareOp::$op, other.val(self))
            }
        )*}
    };
}
comparisons! {
    /// Equal.
    eq => Eq,
    /// Not equal; true for NaN.
    ne => Ne,
    /// Below.
    lt => Lt,
    /// Not above.
    le => Le,
    /// Above.
    gt => Gt,
    /// Not below.
    ge => Ge,
}

impl<'k> Val<'k> {
    /// The lesser; with a NaN operand an unspecified one of the two.
    pub fn min(self, other: impl Number<'k>) -> Val<'k> {
        self.binary(BinaryOp::Min, other.val(self))
    }

    /// The greater; with a NaN operand an unspecified one of the two.
    pub fn max(self, other: impl Number<'k>) -> Val<'k> {
        self.binary(BinaryOp::Max, other.val(self))
    }

    /// The upper half of a u32 product.
    pub fn mul_high(self, other: impl Number<'k>) -> Val<'k> {
        self.binary(BinaryOp::MulHigh, other.val(self))
    }

    /// Whether a float is NaN.
    pub fn is_nan(self) -> Val<'k> {
        self.ne(self)
    }
}
