//! The numbers that chains are computed in: f32 and f64.

use olivine_ir::Element;

use super::special::{digamma, lgamma, trigamma};
use crate::expr::{Comparison, Function, Operator};

/// f32 or f64.
pub(crate) trait Real: Element + bytemuck::Pod + Default + PartialEq + Send + Sync {
    fn from_f64(x: f64) -> Self;
    fn to_f64(self) -> f64;
    fn unary(f: Function, x: Self) -> Self;
    fn binary(op: Operator, a: Self, b: Self) -> Self;
    fn compare(op: Comparison, a: Self, b: Self) -> Self;
}

macro_rules! real {
    ($($ty:ident),*) => {$(
        impl Real for $ty {
            #[inline(always)]
            fn from_f64(x: f64) -> Self {
                x as $ty
            }

            #[inline(always)]
            #[allow(clippy::unnecessary_cast, reason = "one of the two types needs it")]
            fn to_f64(self) -> f64 {
                self as f64
            }

            #[inline(always)]
            #[allow(clippy::unnecessary_cast, reason = "one of the two types needs it")]
            fn unary(f: Function, x: Self) -> Self {
                match f {
                    Function::Neg => -x,
                    Function::Abs => x.abs(),
                    Function::Sign => {
                        if x == 0.0 || x.is_nan() { x } else { (1.0 as $ty).copysign(x) }
                    }
                    Function::Detach => x,
                    Function::Square => x * x,
                    Function::Reciprocal => 1.0 / x,
                    Function::Sqrt => x.sqrt(),
                    Function::Exp => x.exp(),
                    Function::Expm1 => x.exp_m1(),
                    Function::Log => x.ln(),
                    Function::Log1p => x.ln_1p(),
                    Function::Sin => x.sin(),
                    Function::Cos => x.cos(),
                    Function::Atan => x.atan(),
                    Function::Tanh => x.tanh(),
                    Function::Sigmoid => {
                        // Of −|x|, whose exponential does not overflow.
                        let small = (-x.abs()).exp();
                        let low = small / (1.0 + small);
                        if x >= 0.0 { 1.0 / (1.0 + small) } else { low }
                    }
                    Function::Softplus => {
                        let above = if x > 0.0 { x } else { 0.0 };
                        if x.is_nan() { x } else { above + (-x.abs()).exp().ln_1p() }
                    }
                    Function::Erf => olivine_cpu::erf(x as f64) as $ty,
                    Function::Lgamma => lgamma(x as f64) as $ty,
                    Function::Digamma => digamma(x as f64) as $ty,
                    Function::Trigamma => trigamma(x as f64) as $ty,
                }
            }

            #[inline(always)]
            fn binary(op: Operator, a: Self, b: Self) -> Self {
                match op {
                    Operator::Add => a + b,
                    Operator::Sub => a - b,
                    Operator::Mul => a * b,
                    Operator::Div => a / b,
                    Operator::Pow => a.powf(b),
                    Operator::Max => if a > b || a.is_nan() { a } else { b },
                    Operator::Min => if a < b || a.is_nan() { a } else { b },
                }
            }

            #[inline(always)]
            fn compare(op: Comparison, a: Self, b: Self) -> Self {
                let holds = match op {
                    Comparison::Lt => a < b,
                    Comparison::Le => a <= b,
                    Comparison::Gt => a > b,
                    Comparison::Ge => a >= b,
                    Comparison::Eq => a == b,
                    Comparison::Ne => a != b,
                };
                if holds { 1.0 } else { 0.0 }
            }
        }
    )*};
}
real!(f32, f64);
