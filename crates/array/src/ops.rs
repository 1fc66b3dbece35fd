//! The numbers of immediate operations.
//!
//! A number means the same function for every dtype, and is never given to another. New operations take the next free
//! number. What a dtype cannot do (`exp` of integers) is the error `unsupported`; a number that is not here is
//! `bad_input`.

use olivine_ir::op::{Binary, ReduceKind, Unary};

/// Declares the numbers of one family.
macro_rules! codes {
    ($(#[$doc:meta])* $module:ident: $kind:ident { $($name:ident = $variant:ident),* $(,)? }) => {
        $(#[$doc])*
        pub mod $module {
            use super::$kind;
            codes!(@constants 0u32, $($name = $variant, $kind;)*);

            /// The operations in the order of their numbers.
            pub const ALL: &[$kind] = &[$($kind::$variant),*];

            /// The operation of a number.
            pub fn of(code: u32) -> Option<$kind> {
                ALL.get(usize::try_from(code).ok()?).copied()
            }
        }
    };
    (@constants $at:expr,) => {};
    (@constants $at:expr, $name:ident = $variant:ident, $kind:ident; $($rest:tt)*) => {
        #[doc = concat!("The number of [`", stringify!($kind), "::", stringify!($variant), "`].")]
        pub const $name: u32 = $at;
        codes!(@constants $at + 1, $($rest)*);
    };
}

codes! {
    /// Operations of two buffers.
    binary: Binary {
        ADD = Add, MUL = Mul, SUB = Sub, DIV = Div, POW = Pow, MAX = Max, MIN = Min,
        REM = Rem, MOD = Mod, ATAN2 = Atan2, AND = And, OR = Or, XOR = Xor, SHL = Shl, SHR = Shr,
    }
}

codes! {
    /// Operations of one buffer.
    unary: Unary {
        EXP = Exp, LOG = Log, SQRT = Sqrt, ABS = Abs, NEG = Neg, SIGMOID = Sigmoid, TANH = Tanh, RELU = Relu,
        CEIL = Ceil, FLOOR = Floor, SIGN = Sign, RECIPROCAL = Reciprocal, SQUARE = Square,
        RSQRT = Rsqrt, EXPM1 = Expm1, LOG1P = Log1p, LOG2 = Log2, SIN = Sin, COS = Cos, TAN = Tan, ASIN = Asin,
        ACOS = Acos, ATAN = Atan, SINH = Sinh, COSH = Cosh, ASINH = Asinh, ACOSH = Acosh, ATANH = Atanh,
        ERF = Erf, ROUND = Round, TRUNC = Trunc, SILU = Silu, GELU = Gelu, GELU_TANH = GeluTanh,
        SOFTPLUS = Softplus, SOFTSIGN = Softsign, SELU = Selu, MISH = Mish, HARD_SWISH = HardSwish,
        LOG_SIGMOID = LogSigmoid, NOT = Not,
    }
}

codes! {
    /// Reductions of the middle of three axes.
    reduce: ReduceKind {
        SUM = Sum, MAX = Max, MIN = Min, PROD = Prod, MEAN = Mean, L1 = L1, L2 = L2, SUM_SQUARE = SumSquare,
        LOG_SUM = LogSum, LOG_SUM_EXP = LogSumExp,
    }
}
