//! Loops over a block of numbers, one for each function, which the compiler vectorises.

use super::real::Real;
use crate::expr::{Comparison, Function, Operator};

/// Numbers of a block.
pub(super) const BLOCK: usize = 64;
/// A register of a tape.
pub(super) type Block<T> = [T; BLOCK];

/// Calls a loop with the function as a constant, so that each has a loop of its own.
macro_rules! each {
    ($kind:ident, $value:expr, $body:ident, [$($name:ident),* $(,)?]) => {
        match $value { $($kind::$name => $body!($kind::$name)),* }
    };
}

pub(super) fn unary<T: Real>(f: Function, out: &mut Block<T>, x: &Block<T>) {
    macro_rules! body {
        ($f:expr) => {
            out.iter_mut().zip(x).for_each(|(o, x)| *o = T::unary($f, *x))
        };
    }
    each!(
        Function,
        f,
        body,
        [
            Neg, Abs, Sign, Detach, Square, Reciprocal, Sqrt, Exp, Expm1, Log, Log1p, Sin, Cos, Atan, Tanh,
            Sigmoid, Softplus, Erf, Lgamma, Digamma, Trigamma
        ]
    );
}

pub(super) fn binary<T: Real>(op: Operator, out: &mut Block<T>, a: &Block<T>, b: &Block<T>) {
    macro_rules! body {
        ($f:expr) => {
            out.iter_mut().zip(a.iter().zip(b)).for_each(|(o, (a, b))| *o = T::binary($f, *a, *b))
        };
    }
    each!(Operator, op, body, [Add, Sub, Mul, Div, Pow, Max, Min]);
}

pub(super) fn compare<T: Real>(op: Comparison, out: &mut Block<T>, a: &Block<T>, b: &Block<T>) {
    macro_rules! body {
        ($f:expr) => {
            out.iter_mut().zip(a.iter().zip(b)).for_each(|(o, (a, b))| *o = T::compare($f, *a, *b))
        };
    }
    each!(Comparison, op, body, [Lt, Le, Gt, Ge, Eq, Ne]);
}

pub(super) fn select<T: Real>(out: &mut Block<T>, c: &Block<T>, a: &Block<T>, b: &Block<T>) {
    let zero = T::from_f64(0.0);
    for i in 0..BLOCK {
        out[i] = if c[i] != zero { a[i] } else { b[i] };
    }
}

/// The sum of the first `len` numbers, in eight lanes.
pub(super) fn sum<T: Real>(x: &Block<T>, len: usize) -> f64 {
    let mut lanes = [0f64; 8];
    for chunk in x[..len].chunks(8) {
        lanes.iter_mut().zip(chunk).for_each(|(lane, x)| *lane += x.to_f64());
    }
    lanes.iter().sum()
}

/// The largest of `most` and the first `len` numbers; NaN if one is.
pub(super) fn max<T: Real>(most: f64, x: &Block<T>, len: usize) -> f64 {
    x[..len].iter().fold(most, |most, x| f64::binary(Operator::Max, most, x.to_f64()))
}
