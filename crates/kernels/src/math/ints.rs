//! Integers, which wrap in their own width, and bools. Nothing divides by zero or shifts past the width.

use olivine_ir::DType;
use olivine_ir::op::{Binary, Unary};
use olivine_kernel::Val;

/// A register brought back into a narrow integer's range.
pub(super) fn wrap(x: Val<'_>, dtype: DType) -> Val<'_> {
    match dtype {
        DType::I8 => (x << 24) >> 24,
        DType::I16 => (x << 16) >> 16,
        DType::U8 => x & 255,
        _ => x,
    }
}

/// A function of one integer.
pub(super) fn unary(u: Unary, x: Val<'_>, dtype: DType) -> Val<'_> {
    let zero = x.like(0.0);
    let signed = dtype.is_signed();
    let y = match u {
        Unary::Neg => zero - x,
        Unary::Abs if signed => x.lt(0).select(zero - x, x),
        Unary::Abs => x,
        Unary::Sign => {
            let y = x.gt(0).select(x.like(1.0), zero);
            if signed { x.lt(0).select(x.like(-1.0), y) } else { y }
        }
        Unary::Square => x * x,
        Unary::Relu => x.max(0),
        Unary::Not => !x,
        _ => {
            x.builder().fail(format!("{u:?} of {dtype}"));
            x
        }
    };
    wrap(y, dtype)
}

/// A function of two integers.
pub(super) fn binary<'k>(op: Binary, a: Val<'k>, b: Val<'k>, dtype: DType) -> Val<'k> {
    let y = match op {
        Binary::Add => a + b,
        Binary::Sub => a - b,
        Binary::Mul => a * b,
        Binary::Div => divide(a, b, dtype).0,
        Binary::Rem => divide(a, b, dtype).1,
        Binary::Mod => {
            let r = divide(a, b, dtype).1;
            if dtype.is_signed() { (r.ne(0) & (r ^ b).lt(0)).select(r + b, r) } else { r }
        }
        Binary::Pow => power(a, b, dtype),
        Binary::Max => a.max(b),
        Binary::Min => a.min(b),
        Binary::And => a & b,
        Binary::Or => a | b,
        Binary::Xor => a ^ b,
        Binary::Shl => {
            let past = past_width(b, dtype);
            past.select(a.like(0.0), a << past.select(b.like(0.0), b))
        }
        Binary::Shr => {
            let past = past_width(b, dtype);
            let width = (dtype.size() * 8) as u32;
            if dtype.is_signed() {
                a >> past.select(b.like(f64::from(width - 1)), b)
            } else {
                past.select(a.like(0.0), a >> past.select(b.like(0.0), b))
            }
        }
        Binary::Atan2 => {
            a.builder().fail(format!("atan2 of {dtype}"));
            a
        }
    };
    wrap(y, dtype)
}

fn past_width<'k>(by: Val<'k>, dtype: DType) -> Val<'k> {
    let past = by.ge((dtype.size() * 8) as u32);
    if dtype.is_signed() { past | by.lt(0) } else { past }
}

/// Quotient and remainder, both 0 for a zero divisor; the least integer by −1 wraps.
fn divide<'k>(a: Val<'k>, b: Val<'k>, dtype: DType) -> (Val<'k>, Val<'k>) {
    let zero = a.like(0.0);
    let by_zero = b.eq(0);
    if dtype.is_signed() {
        let by_minus_one = b.eq(-1);
        let held = (by_zero | by_minus_one).select(b.like(1.0), b);
        let q = a / held;
        let quotient = by_minus_one.select(zero - a, q);
        (by_zero.select(zero, quotient), a - q * held)
    } else {
        let held = by_zero.select(b.like(1.0), b);
        let q = a / held;
        (by_zero.select(zero, q), a - q * held)
    }
}

/// aᵇ by repeated squaring; a negative power truncates 1/aⁿ, and 1/0 is 0.
fn power<'k>(a: Val<'k>, b: Val<'k>, dtype: DType) -> Val<'k> {
    let k = a.builder();
    let (zero, one) = (a.like(0.0), a.like(1.0));
    let negative = if dtype.is_signed() { b.lt(0) } else { k.bool(false) };
    let (base, left, result) = (k.var(a), k.var(negative.select(zero, b)), k.var(one));
    k.while_(
        || left.get().gt(0),
        || {
            let (x, n, y) = (base.get(), left.get(), result.get());
            result.set((n & 1).ne(0).select(y * x, y));
            base.set(x * x);
            left.set(n >> 1);
        },
    );
    if !dtype.is_signed() {
        return result.get();
    }
    let unit = a.eq(-1).select((b & 1).ne(0).select(a, one), a.eq(1).select(one, zero));
    negative.select(unit, result.get())
}

/// A function of two bools.
pub(super) fn logic<'k>(op: Binary, a: Val<'k>, b: Val<'k>) -> Val<'k> {
    match op {
        Binary::And => a & b,
        Binary::Or => a | b,
        Binary::Xor => a ^ b,
        _ => {
            a.builder().fail(format!("{op:?} of bools"));
            a
        }
    }
}
