//! Steps over integers and bools, and selection.

use bytemuck::Pod;
use olivine_ir::DType;
use olivine_ir::op::{Binary, Compare, ScalarOp, Unary};

use crate::operand::Number;
use crate::simd::{Fn1, Fn2, Kernel, map1, map2, run};

/// What integers can do beyond [`Number`].
pub(super) trait Int: Number + Ord {
    fn negated(self) -> Self;
    fn magnitude(self) -> Self;
    fn sign(self) -> Self;
    fn quotient(self, other: Self) -> Self;
    fn remainder(self, other: Self) -> Self;
    fn modulo(self, other: Self) -> Self;
    fn power(self, exponent: Self) -> Self;
    fn and(self, other: Self) -> Self;
    fn or(self, other: Self) -> Self;
    fn xor(self, other: Self) -> Self;
    fn inverted(self) -> Self;
    fn shifted_left(self, by: Self) -> Self;
    fn shifted_right(self, by: Self) -> Self;
}

macro_rules! int {
    ($($t:ty, $abs:expr, $sign:expr);* $(;)?) => {$(
        impl Int for $t {
            #[inline(always)] fn negated(self) -> Self { self.wrapping_neg() }
            #[inline(always)] fn magnitude(self) -> Self { $abs(self) }
            #[inline(always)] fn sign(self) -> Self { $sign(self) }
            #[inline(always)] fn quotient(self, other: Self) -> Self {
                if other == 0 { 0 } else { self.wrapping_div(other) }
            }
            #[inline(always)] fn remainder(self, other: Self) -> Self {
                if other == 0 { 0 } else { self.wrapping_rem(other) }
            }
            #[inline(always)]
            #[allow(unused_comparisons, reason = "the macro serves unsigned types too")]
            fn modulo(self, other: Self) -> Self {
                let r = self.remainder(other);
                if r != 0 && (r < 0) != (other < 0) { r.wrapping_add(other) } else { r }
            }
            #[allow(unused_comparisons, reason = "the macro serves unsigned types too")]
            fn power(self, exponent: Self) -> Self {
                if exponent < 0 {
                    let odd = exponent & 1 == 1;
                    return if self == 1 || (self == (0 as $t).wrapping_sub(1) && !odd) {
                        1
                    } else if self < 0 && self.wrapping_add(1) == 0 {
                        self
                    } else {
                        0
                    };
                }
                let (mut base, mut left, mut result) = (self, exponent, 1);
                while left != 0 {
                    if left & 1 == 1 {
                        result = <$t>::wrapping_mul(result, base);
                    }
                    base = base.wrapping_mul(base);
                    left >>= 1;
                }
                result
            }
            #[inline(always)] fn and(self, other: Self) -> Self { self & other }
            #[inline(always)] fn or(self, other: Self) -> Self { self | other }
            #[inline(always)] fn xor(self, other: Self) -> Self { self ^ other }
            #[inline(always)] fn inverted(self) -> Self { !self }
            #[inline(always)]
            fn shifted_left(self, by: Self) -> Self {
                if by as u64 >= u64::from(<$t>::BITS) { 0 } else { self << by }
            }
            #[inline(always)]
            fn shifted_right(self, by: Self) -> Self {
                let past = by as u64 >= u64::from(<$t>::BITS);
                // A shift by width − 1 and one more leaves only copies of the sign.
                if past { (self >> (<$t>::BITS - 1)) >> 1.min(<$t>::BITS - 1) } else { self >> by }
            }
        }
    )*};
}
int! {
    i8, i8::wrapping_abs, i8::signum;
    i16, i16::wrapping_abs, i16::signum;
    i32, i32::wrapping_abs, i32::signum;
    i64, i64::wrapping_abs, i64::signum;
    u8, |x: u8| x, |x: u8| x.min(1);
    u32, |x: u32| x, |x: u32| x.min(1);
}

/// Runs a step over integers of one dtype.
pub(super) fn step<T: Int>(op: ScalarOp, args: [&[u8]; 3], out: &mut [u8]) {
    use {Binary as B, Unary as U};
    match op {
        ScalarOp::Unary(u) => match u {
            U::Neg => unary(args, out, T::negated),
            U::Abs => unary(args, out, T::magnitude),
            U::Sign => unary(args, out, T::sign),
            U::Square => unary(args, out, |x: T| x.times(x)),
            U::Relu => unary(args, out, |x: T| x.max(T::ZERO)),
            U::Not => unary(args, out, T::inverted),
            _ => {}
        },
        ScalarOp::Binary(b) => match b {
            B::Add => binary(args, out, T::plus),
            B::Sub => binary(args, out, T::minus),
            B::Mul => binary(args, out, T::times),
            B::Div => binary(args, out, T::quotient),
            B::Pow => binary(args, out, T::power),
            B::Max => binary(args, out, |a: T, b| a.max(b)),
            B::Min => binary(args, out, |a: T, b| a.min(b)),
            B::Rem => binary(args, out, T::remainder),
            B::Mod => binary(args, out, T::modulo),
            B::And => binary(args, out, T::and),
            B::Or => binary(args, out, T::or),
            B::Xor => binary(args, out, T::xor),
            B::Shl => binary(args, out, T::shifted_left),
            B::Shr => binary(args, out, T::shifted_right),
            B::Atan2 => {}
        },
        ScalarOp::Compare(c) => compare::<T>(c, args, out),
        ScalarOp::Fma => ternary(args, out, |a: T, b, c| a.times(b).plus(c)),
        ScalarOp::Clamp => ternary(args, out, |x: T, low, high| x.max(low).min(high)),
        ScalarOp::Activation(_) | ScalarOp::Cast(_) | ScalarOp::Bitcast(_) | ScalarOp::Where => {}
    }
}

/// Runs a step over bools.
pub(super) fn step_bool(op: ScalarOp, args: [&[u8]; 3], out: &mut [u8]) {
    match op {
        ScalarOp::Unary(_) => unary(args, out, |x: u8| u8::from(x == 0)),
        ScalarOp::Binary(Binary::And) => {
            binary(args, out, |a: u8, b: u8| u8::from(a != 0) & u8::from(b != 0))
        }
        ScalarOp::Binary(Binary::Or) => binary(args, out, |a: u8, b: u8| u8::from(a | b != 0)),
        ScalarOp::Binary(_) => binary(args, out, |a: u8, b: u8| u8::from((a != 0) != (b != 0))),
        ScalarOp::Compare(c) => compare::<u8>(c, args, out),
        _ => {}
    }
}

/// Compares two blocks of one dtype.
pub(super) fn compare<T: Number>(c: Compare, args: [&[u8]; 3], out: &mut [u8]) {
    match c {
        Compare::Eq => binary(args, out, |a: T, b: T| u8::from(a == b)),
        Compare::Ne => binary(args, out, |a: T, b: T| u8::from(a != b)),
        Compare::Lt => binary(args, out, |a: T, b: T| u8::from(a < b)),
        Compare::Le => binary(args, out, |a: T, b: T| u8::from(a <= b)),
        Compare::Gt => binary(args, out, |a: T, b: T| u8::from(a > b)),
        Compare::Ge => binary(args, out, |a: T, b: T| u8::from(a >= b)),
    }
}

/// `where(args[0], args[1], args[2])` over elements of `size` bytes.
pub(super) fn select(size: usize, args: [&[u8]; 3], out: &mut [u8]) {
    match size {
        1 => select_as::<u8>(args, out),
        2 => select_as::<u16>(args, out),
        4 => select_as::<u32>(args, out),
        _ => select_as::<u64>(args, out),
    }
}

fn select_as<T: Pod>(args: [&[u8]; 3], out: &mut [u8]) {
    struct Select<'a, T>(&'a [u8], &'a [T], &'a [T], &'a mut [T]);
    impl<T: Pod> Kernel for Select<'_, T> {
        type Output = ();
        const WIDE: bool = size_of::<T>() == 4;
        #[inline(always)]
        fn run<const FMA: bool>(self) {
            for (((o, c), a), b) in self.3.iter_mut().zip(self.0).zip(self.1).zip(self.2) {
                *o = if *c != 0 { *a } else { *b };
            }
        }
    }
    let (a, b) = (bytemuck::cast_slice(args[1]), bytemuck::cast_slice(args[2]));
    run(Select::<T>(args[0], a, b, bytemuck::cast_slice_mut(out)));
}

/// A closure as a vector loop.
#[derive(Clone, Copy)]
struct By<F>(F);

impl<T: Number, U: Number, F: Fn(T) -> U + Copy> Fn1<T, U> for By<F> {
    const WIDE: bool = matches!(T::DTYPE, DType::F32) || matches!(U::DTYPE, DType::F32);
    #[inline(always)]
    fn call<const FMA: bool>(self, x: T) -> U {
        (self.0)(x)
    }
}

impl<T: Number, U: Number, F: Fn(T, T) -> U + Copy> Fn2<T, U> for By<F> {
    const WIDE: bool = matches!(T::DTYPE, DType::F32);
    #[inline(always)]
    fn call<const FMA: bool>(self, a: T, b: T) -> U {
        (self.0)(a, b)
    }
}

pub(super) fn unary<T: Number, U: Number>(args: [&[u8]; 3], out: &mut [u8], f: impl Fn(T) -> U + Copy) {
    map1(By(f), bytemuck::cast_slice(args[0]), bytemuck::cast_slice_mut(out));
}

pub(super) fn binary<T: Number, U: Number>(args: [&[u8]; 3], out: &mut [u8], f: impl Fn(T, T) -> U + Copy) {
    let (a, b) = (bytemuck::cast_slice(args[0]), bytemuck::cast_slice(args[1]));
    map2(By(f), a, b, bytemuck::cast_slice_mut(out));
}

pub(super) fn ternary<T: Number>(args: [&[u8]; 3], out: &mut [u8], f: impl Fn(T, T, T) -> T + Copy) {
    struct Ternary<'a, T, F>(F, [&'a [T]; 3], &'a mut [T]);
    impl<T: Number, F: Fn(T, T, T) -> T> Kernel for Ternary<'_, T, F> {
        type Output = ();
        const WIDE: bool = matches!(T::DTYPE, DType::F32);
        #[inline(always)]
        fn run<const FMA: bool>(self) {
            let [a, b, c] = self.1;
            for (((o, a), b), c) in self.2.iter_mut().zip(a).zip(b).zip(c) {
                *o = (self.0)(*a, *b, *c);
            }
        }
    }
    run(Ternary(f, args.map(bytemuck::cast_slice), bytemuck::cast_slice_mut(out)));
}
