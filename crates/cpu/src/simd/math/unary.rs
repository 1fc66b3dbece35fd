//! The table of elementwise functions of one float: each in f32, over blocks, and in f64.
//!
//! f16 and bf16 go through f32. A function without a line here does not compile.

use olivine_ir::op::{Activation, Unary};
use olivine_numerics::polynomial::double::{SELU_BELOW, SELU_SCALE};

use super::double::{self, max, min};
use super::{double_gates as gates, *};
use crate::simd::{Fn1, map1};

/// Declares the two functions that look a function up: `Variant(x) = its value in f32, its value in f64`. In the first,
/// `FMA` says whether the processor has a fused multiply-add. `blocks` are loops over whole blocks of f32.
macro_rules! functions {
    (
        no_floats { $($other:ident),* $(,)? }
        blocks { $($block:ident($y:ident) = $loop:ident, $double_of_block:expr;)* }
        $($variant:ident($x:ident) = $single:expr, $double:expr;)*
    ) => {
        /// A function of a block of f32 numbers; [`Unary::Not`] and those with bool results do nothing.
        pub(crate) fn unary_f32(op: Unary, x: &[f32], out: &mut [f32]) {
            match op {
                $(Unary::$variant => {
                    #[derive(Clone, Copy)]
                    struct F;
                    impl Fn1<f32, f32> for F {
                        #[inline(always)]
                        fn call<const FMA: bool>(self, $x: f32) -> f32 {
                            $single
                        }
                    }
                    map1(F, x, out);
                })*
                $(Unary::$block => $loop(x, out),)*
                $(Unary::$other)|* => {}
            }
        }

        /// A function of one f64; [`Unary::Not`] and those with bool results return their argument.
        #[inline]
        pub(crate) fn unary_f64(op: Unary, x: f64) -> f64 {
            match op {
                $(Unary::$variant => {
                    let $x = x;
                    $double
                })*
                $(Unary::$block => {
                    let $y = x;
                    $double_of_block
                })*
                $(Unary::$other)|* => x,
            }
        }
    };
}

functions! {
    no_floats { Not, IsNan, IsInf }
    blocks {
        Sin(x) = sin_block, x.sin();
        Cos(x) = cos_block, x.cos();
        Tan(x) = tan_block, x.tan();
    }
    Neg(x) = -x, -x;
    Abs(x) = x.abs(), x.abs();
    Sign(x) = sign(x), if x > 0.0 { 1.0 } else if x < 0.0 { -1.0 } else { x };
    Reciprocal(x) = 1.0 / x, 1.0 / x;
    Square(x) = x * x, x * x;
    Sqrt(x) = x.sqrt(), x.sqrt();
    Rsqrt(x) = 1.0 / x.sqrt(), 1.0 / x.sqrt();
    Exp(x) = exp::<FMA>(x), x.exp();
    Expm1(x) = expm1::<FMA>(x), x.exp_m1();
    Log(x) = log::<FMA>(x), x.ln();
    Log1p(x) = log1p::<FMA>(x), x.ln_1p();
    Log2(x) = log2::<FMA>(x), x.log2();
    Asin(x) = f64::from(x).asin() as f32, x.asin();
    Acos(x) = f64::from(x).acos() as f32, x.acos();
    Atan(x) = f64::from(x).atan() as f32, x.atan();
    Sinh(x) = f64::from(x).sinh() as f32, x.sinh();
    Cosh(x) = f64::from(x).cosh() as f32, x.cosh();
    Tanh(x) = tanh::<FMA>(x), x.tanh();
    Asinh(x) = double::asinh(f64::from(x)) as f32, double::asinh(x);
    Acosh(x) = double::acosh(f64::from(x)) as f32, double::acosh(x);
    Atanh(x) = double::atanh(f64::from(x)) as f32, double::atanh(x);
    Erf(x) = erf::<FMA>(x), gates::erf(x);
    Ceil(x) = x.ceil(), x.ceil();
    Floor(x) = x.floor(), x.floor();
    Round(x) = x.round_ties_even(), x.round_ties_even();
    Trunc(x) = x.trunc(), x.trunc();
    Relu(x) = relu::<FMA>(x), max(x, 0.0);
    Sigmoid(x) = sigmoid::<FMA>(x), double::sigmoid(x);
    Silu(x) = silu::<FMA>(x), gates::silu(x);
    Gelu(x) = gelu::<FMA>(x), gates::gelu(x);
    GeluTanh(x) = gelu_tanh::<FMA>(x), gates::gelu_tanh(x);
    Softplus(x) = softplus::<FMA>(x), double::softplus(x);
    Softsign(x) = softsign::<FMA>(x), if x.is_infinite() { x.signum() } else { x / (1.0 + x.abs()) };
    Selu(x) = selu::<FMA>(x),
        if x > 0.0 || x.is_nan() { SELU_SCALE * x } else { SELU_BELOW * x.exp_m1() };
    Mish(x) = mish::<FMA>(x), gates::mish(x);
    HardSwish(x) = hard_swish::<FMA>(x), double::times(x, min(max((x + 3.0) / 6.0, 0.0), 1.0));
    LogSigmoid(x) = log_sigmoid::<FMA>(x), -double::softplus(-x);
}

/// A function of a block of f32 numbers with attributes.
pub(crate) fn activation_f32(op: Activation, x: &[f32], out: &mut [f32]) {
    map1(Parametric(op), x, out);
}

#[derive(Clone, Copy)]
struct Parametric(Activation);

impl Fn1<f32, f32> for Parametric {
    #[inline(always)]
    fn call<const FMA: bool>(self, x: f32) -> f32 {
        match self.0 {
            Activation::LeakyRelu { alpha } => leaky_relu(x, alpha as f32),
            Activation::Elu { alpha } => elu::<FMA>(x, alpha as f32),
            Activation::Celu { alpha } => celu::<FMA>(x, alpha as f32),
            Activation::HardSigmoid { alpha, beta } => hard_sigmoid(x, alpha as f32, beta as f32),
            Activation::Hardshrink { lambd } => {
                if x.abs() <= lambd as f32 {
                    0.0
                } else {
                    x
                }
            }
        }
    }
}

/// A function of one f64 with attributes.
pub(crate) fn activation_f64(op: Activation, x: f64) -> f64 {
    match op {
        Activation::LeakyRelu { alpha } if x < 0.0 => alpha * x,
        Activation::Elu { alpha } if x < 0.0 => alpha * x.exp_m1(),
        Activation::LeakyRelu { .. } | Activation::Elu { .. } => x,
        Activation::Celu { alpha } => max(x, 0.0) + min(alpha * (x / alpha).exp_m1(), 0.0),
        Activation::HardSigmoid { alpha, beta } => min(max(alpha * x + beta, 0.0), 1.0),
        Activation::Hardshrink { lambd } => {
            if x.abs() <= lambd {
                0.0
            } else {
                x
            }
        }
    }
}
