//! What a pool makes of a window, element after element.

use olivine_ir::DType;
use olivine_ir::op::{Binary, PoolKind, ScalarOp, Unary};
use olivine_kernel::{Builder, Scalar, Val};

use crate::math::{self, Typed};
use crate::rows::State;

/// Powers up to this are products.
const PRODUCTS: usize = 4;

/// A way to pool. Joins are associative and commutative but for rounding.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fold {
    pub(super) kind: PoolKind,
    pub(super) p: usize,
    pub(super) dtype: DType,
    /// Whether the first position of the largest is kept, too.
    pub(super) located: bool,
}

impl Fold {
    /// The name of its kernels.
    pub(super) fn name(&self) -> String {
        let positions = if self.located { "_positions" } else { "" };
        format!("{}_pool{positions}", self.kind.name())
    }

    fn scalar(&self) -> Scalar {
        math::elem(self.dtype).scalar()
    }

    /// The state of nothing.
    pub(super) fn identity<'k>(&self, k: &'k Builder) -> State<'k> {
        match (self.kind, self.located) {
            (PoolKind::Max, false) => vec![self.least_key(k)],
            // Among equal keys it loses.
            (PoolKind::Max, true) => vec![self.least_key(k), k.u32(u32::MAX)],
            _ => vec![k.number(self.scalar(), 0.0)],
        }
    }

    /// The state of an element at a position.
    pub(super) fn lift<'k>(&self, x: Val<'k>, position: Val<'k>) -> State<'k> {
        match self.kind {
            PoolKind::Max if self.located => vec![self.located_key(x), position],
            PoolKind::Max => vec![self.key(x)],
            PoolKind::Average => vec![x],
            PoolKind::Lp => vec![self.power(x)],
        }
    }

    /// Two states as one.
    pub(super) fn join<'k>(&self, a: &[Val<'k>], b: &[Val<'k>]) -> State<'k> {
        match (self.kind, a, b) {
            (PoolKind::Max, [best, at, ..], [other, place, ..]) => {
                let wins = other.gt(*best) | (other.eq(*best) & place.lt(*at));
                vec![wins.select(*other, *best), wins.select(*place, *at)]
            }
            (PoolKind::Max, ..) => vec![a[0].max(b[0])],
            _ => vec![a[0] + b[0]],
        }
    }

    /// The pooled number of a window whose average is over `count` positions. A window without elements results in 0, and a
    /// maximum of none the least number. A located maximum is read again at its position.
    pub(super) fn finish<'k>(&self, state: &[Val<'k>], count: Val<'k>) -> Val<'k> {
        let x = state[0];
        match self.kind {
            PoolKind::Max => self.number(x),
            PoolKind::Average => count.gt(0.0).select(mean(x, count), x.like(0.0)),
            PoolKind::Lp => match self.p {
                1 => x,
                2 => math::sqrt(x),
                p => self.pow(x, 1.0 / p as f64),
            },
        }
    }

    /// The least number of the dtype.
    pub(super) fn least<'k>(&self, k: &'k Builder) -> Val<'k> {
        self.number(self.least_key(k))
    }

    /// |x|ᵖ.
    fn power<'k>(&self, x: Val<'k>) -> Val<'k> {
        let dtype = self.computed();
        let size = math::scalar_op(&ScalarOp::Unary(Unary::Abs), &[Typed { val: x, dtype }], dtype).val;
        match self.p {
            1 => size,
            p if p <= PRODUCTS => (1..p).fold(size, |product, _| product * size),
            p => self.pow(size, p as f64),
        }
    }

    /// Narrow floats are computed in f32 and rounded when they are stored.
    fn computed(&self) -> DType {
        if self.dtype == DType::F64 { DType::F64 } else { DType::F32 }
    }

    fn pow<'k>(&self, x: Val<'k>, exponent: f64) -> Val<'k> {
        let dtype = self.computed();
        let exponent = Typed { val: x.like(exponent), dtype };
        math::scalar_op(&ScalarOp::Binary(Binary::Pow), &[Typed { val: x, dtype }, exponent], dtype).val
    }

    /// An unsigned integer for a float, in the order of the numbers and above all of them for NaN; integers are their
    /// own keys. Every number keeps its bits, so that −0 is just below 0.
    fn key<'k>(&self, x: Val<'k>) -> Val<'k> {
        let Some(bits) = Bits::of(x.scalar()) else { return x };
        let signed = x.bitcast(bits.signed);
        let turned = signed ^ ((signed >> bits.shift(x)) & bits.constant(x, bits.signed, bits.magnitude()));
        turned.bitcast(bits.unsigned) - bits.constant(x, bits.unsigned, bits.lowest())
    }

    /// The number of a key.
    fn number<'k>(&self, key: Val<'k>) -> Val<'k> {
        let Some(bits) = Bits::of(self.scalar()) else { return key };
        let turned = (key + bits.constant(key, bits.unsigned, bits.lowest())).bitcast(bits.signed);
        let signed =
            turned ^ ((turned >> bits.shift(turned)) & bits.constant(key, bits.signed, bits.magnitude()));
        signed.bitcast(self.scalar())
    }

    /// As [`Fold::key`], but the two zeros are equal and so are all NaNs: of equals the first is wanted.
    fn located_key<'k>(&self, x: Val<'k>) -> Val<'k> {
        let Some(bits) = Bits::of(x.scalar()) else { return x };
        let k = x.builder();
        let raw = x.bitcast(bits.unsigned);
        let negative_zero = bits.constant(x, bits.unsigned, 1 << (bits.width - 1));
        let plain = raw.eq(negative_zero).select(k.constant(bits.unsigned, 0), raw).bitcast(x.scalar());
        // One above the key of +∞.
        let nan = bits.infinity().wrapping_sub(bits.lowest()).wrapping_add(1) & bits.all();
        self.key(plain).min(k.constant(bits.unsigned, nan))
    }

    fn least_key<'k>(&self, k: &'k Builder) -> Val<'k> {
        match Bits::of(self.scalar()) {
            Some(bits) => k.constant(bits.unsigned, 0),
            None => crate::reduce::extreme(k, self.dtype, false),
        }
    }
}

/// A sum over a count, which is no less than 1 and of few digits.
fn mean<'k>(sum: Val<'k>, count: Val<'k>) -> Val<'k> {
    if sum.scalar() == Scalar::F64 {
        return math::div(sum, count);
    }
    // The steps of the quotient know numbers only.
    math::pick(math::is_nan(sum) | math::is_inf(sum), sum, math::div_near(sum, count))
}

/// How the bits of a float order.
#[derive(Clone, Copy)]
struct Bits {
    signed: Scalar,
    unsigned: Scalar,
    width: u32,
}

impl Bits {
    fn of(float: Scalar) -> Option<Self> {
        match float {
            Scalar::F32 => Some(Bits { signed: Scalar::I32, unsigned: Scalar::U32, width: 32 }),
            Scalar::F64 => Some(Bits { signed: Scalar::I64, unsigned: Scalar::U64, width: 64 }),
            _ => None,
        }
    }

    fn all(self) -> u64 {
        u64::MAX >> (64 - self.width)
    }

    /// All bits but the sign's.
    fn magnitude(self) -> u64 {
        self.all() >> 1
    }

    fn infinity(self) -> u64 {
        if self.width == 64 { f64::INFINITY.to_bits() } else { f32::INFINITY.to_bits().into() }
    }

    /// −∞ with its magnitude turned, from which keys are counted; NaNs with a sign lie below and so wrap to the top.
    fn lowest(self) -> u64 {
        (self.infinity() ^ self.magnitude()) | (1 << (self.width - 1))
    }

    fn constant<'k>(self, like: Val<'k>, scalar: Scalar, bits: u64) -> Val<'k> {
        like.builder().constant(scalar, bits)
    }

    fn shift<'k>(self, like: Val<'k>) -> Val<'k> {
        like.builder().constant(self.signed, u64::from(self.width - 1))
    }
}
