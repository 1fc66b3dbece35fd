//! Elementwise operations: one number from the numbers at the same position, operands broadcast as NumPy does.

use crate::attr::{Attr, AttrField, Attrs, same_float};
use crate::graph::{Graph, ValueId};
use crate::op::{Rule, Spelled, arity};
use crate::{DType, Error, MAX_ELEMENTS, Shape, Tensor, TensorType, words};

words! {
    /// A function of one number without attributes.
    pub enum Unary {
        /// -x; integers wrap.
        Neg = "neg",
        /// |x|; integers wrap.
        Abs = "abs",
        /// -1, 0 or 1; NaN stays NaN, zeros keep their sign.
        Sign = "sign",
        /// 1 / x.
        Reciprocal = "reciprocal",
        /// x·x; integers wrap.
        Square = "square",
        /// √x.
        Sqrt = "sqrt",
        /// 1 / √x.
        Rsqrt = "rsqrt",
        /// eˣ.
        Exp = "exp",
        /// eˣ − 1 without cancellation.
        Expm1 = "expm1",
        /// Natural logarithm.
        Log = "log",
        /// ln(1 + x) without cancellation.
        Log1p = "log1p",
        /// Base-2 logarithm.
        Log2 = "log2",
        /// Sine.
        Sin = "sin",
        /// Cosine.
        Cos = "cos",
        /// Tangent.
        Tan = "tan",
        /// Arc sine.
        Asin = "asin",
        /// Arc cosine.
        Acos = "acos",
        /// Arc tangent.
        Atan = "atan",
        /// Hyperbolic sine.
        Sinh = "sinh",
        /// Hyperbolic cosine.
        Cosh = "cosh",
        /// Hyperbolic tangent.
        Tanh = "tanh",
        /// Inverse hyperbolic sine.
        Asinh = "asinh",
        /// Inverse hyperbolic cosine.
        Acosh = "acosh",
        /// Inverse hyperbolic tangent.
        Atanh = "atanh",
        /// The error function.
        Erf = "erf",
        /// Towards +∞.
        Ceil = "ceil",
        /// Towards −∞.
        Floor = "floor",
        /// To nearest, halves to even.
        Round = "round",
        /// Towards zero.
        Trunc = "trunc",
        /// max(x, 0); NaN stays NaN.
        Relu = "relu",
        /// 1 / (1 + e⁻ˣ).
        Sigmoid = "sigmoid",
        /// x · sigmoid(x).
        Silu = "silu",
        /// x · Φ(x), by the error function.
        Gelu = "gelu",
        /// The tanh approximation of gelu.
        GeluTanh = "gelu_tanh",
        /// ln(1 + eˣ).
        Softplus = "softplus",
        /// x / (1 + |x|).
        Softsign = "softsign",
        /// selu with its two fixed constants.
        Selu = "selu",
        /// x · tanh(softplus(x)).
        Mish = "mish",
        /// x · hard_sigmoid(x) with slope 1/6 and offset 1/2.
        HardSwish = "hard_swish",
        /// ln(sigmoid(x)).
        LogSigmoid = "log_sigmoid",
        /// Logical on bool, bitwise on integers.
        Not = "not",
        /// True where x is NaN.
        IsNan = "isnan",
        /// True where x is +∞ or −∞.
        IsInf = "isinf",
    }
}

words! {
    /// A function of two numbers of one dtype.
    pub enum Binary {
        /// a + b; integers wrap.
        Add = "add",
        /// a − b; integers wrap.
        Sub = "sub",
        /// a · b; integers wrap.
        Mul = "mul",
        /// a / b; integers truncate towards zero, and x / 0 is 0.
        Div = "div",
        /// aᵇ; a negative base with an integral exponent is right. An integer to a negative power truncates.
        Pow = "pow",
        /// The larger; NaN if either is.
        Max = "max",
        /// The smaller; NaN if either is.
        Min = "min",
        /// Remainder with the sign of a (C's fmod); integer x rem 0 is 0.
        Rem = "rem",
        /// Remainder with the sign of b (Python's %); integer x mod 0 is 0.
        Mod = "mod",
        /// The angle of the point (b, a).
        Atan2 = "atan2",
        /// Logical on bool, bitwise on integers.
        And = "and",
        /// Logical on bool, bitwise on integers.
        Or = "or",
        /// Logical on bool, bitwise on integers.
        Xor = "xor",
        /// a · 2ᵇ on integers; bits shifted out are lost, b past the width gives 0.
        Shl = "shl",
        /// a / 2ᵇ towards −∞ on integers; b past the width gives 0, or −1 for negative a.
        Shr = "shr",
    }
}

words! {
    /// A comparison of two numbers of one dtype; the result is bool.
    pub enum Compare {
        /// a = b.
        Eq = "eq",
        /// a ≠ b.
        Ne = "ne",
        /// a < b.
        Lt = "lt",
        /// a ≤ b.
        Le = "le",
        /// a > b.
        Gt = "gt",
        /// a ≥ b.
        Ge = "ge",
    }
}

/// Declares the functions with attributes, and with them their spelling.
macro_rules! activations {
    ($($(#[$doc:meta])* $variant:ident = $word:literal { $($(#[$fdoc:meta])* $field:ident),* $(,)? }),* $(,)?) => {
        /// A function of one float with attributes.
        #[derive(Clone, Copy, Debug)]
        pub enum Activation { $($(#[$doc])* $variant { $($(#[$fdoc])* $field: f64),* }),* }

        impl Activation {
            const NAMES: &'static [&'static str] = &[$($word),*];

            /// The name in the text form.
            pub fn name(self) -> &'static str {
                match self { $(Activation::$variant { .. } => $word),* }
            }

            /// One of each function, with attributes that `number` returns.
            pub fn each(mut number: impl FnMut() -> f64) -> Vec<Activation> {
                vec![$(Activation::$variant { $($field: number()),* }),*]
            }

            fn attributes(self) -> Vec<(&'static str, f64)> {
                match self { $(Activation::$variant { $($field),* } => vec![$((stringify!($field), $field)),*]),* }
            }

            fn read(name: &str, attrs: &Attrs) -> Option<Result<Self, String>> {
                let read = match name {
                    $($word => attrs.only(&[$(stringify!($field)),*]).and_then(|()| {
                        Ok(Activation::$variant { $($field: attrs.get(stringify!($field))?),* })
                    }),)*
                    _ => return None,
                };
                Some(read)
            }
        }
    };
}

activations! {
    /// x, or alpha·x below zero.
    LeakyRelu = "leaky_relu" {
        /// Slope below zero.
        alpha,
    },
    /// x, or alpha·(eˣ − 1) below zero.
    Elu = "elu" {
        /// Scale below zero.
        alpha,
    },
    /// max(0, x) + min(0, alpha·(e^(x/alpha) − 1)).
    Celu = "celu" {
        /// Scale below zero.
        alpha,
    },
    /// alpha·x + beta held within 0 and 1.
    HardSigmoid = "hard_sigmoid" {
        /// Slope.
        alpha,
        /// Value at zero.
        beta,
    },
    /// x, or 0 where |x| ≤ lambd; NaN stays NaN.
    Hardshrink = "hardshrink" {
        /// The largest magnitude that becomes 0.
        lambd,
    },
}

impl PartialEq for Activation {
    fn eq(&self, other: &Self) -> bool {
        let (a, b) = (self.attributes(), other.attributes());
        self.name() == other.name() && a.iter().zip(b).all(|((_, a), (_, b))| same_float(*a, b))
    }
}

/// Any elementwise operation: the alphabet of fused regions.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ScalarOp {
    /// One operand, no attributes.
    Unary(Unary),
    /// One float operand, attributes.
    Activation(Activation),
    /// Conversion to a dtype: floats truncate and saturate to integers, NaN gives 0, x to bool is x ≠ 0.
    Cast(DType),
    /// The bits of a number read as another dtype of the same size; neither is bool.
    Bitcast(DType),
    /// Two operands.
    Binary(Binary),
    /// Two operands, bool result.
    Compare(Compare),
    /// `where(cond, a, b)`: a where the bool is true.
    Where,
    /// a·b + c with one rounding.
    Fma,
    /// `clamp(x, low, high)` = min(max(x, low), high).
    Clamp,
}

impl ScalarOp {
    /// Number of operands.
    pub fn arity(self) -> usize {
        match self {
            ScalarOp::Unary(_) | ScalarOp::Activation(_) | ScalarOp::Cast(_) | ScalarOp::Bitcast(_) => 1,
            ScalarOp::Binary(_) | ScalarOp::Compare(_) => 2,
            ScalarOp::Where | ScalarOp::Fma | ScalarOp::Clamp => 3,
        }
    }

    /// Floating-point operations of one element, about: functions count as the polynomials that compute them.
    pub fn flops(self) -> usize {
        use Unary as U;
        const DIVISION: usize = 4;
        const FUNCTION: usize = 20;
        match self {
            ScalarOp::Unary(U::Reciprocal | U::Sqrt | U::Rsqrt | U::Softsign | U::HardSwish) => DIVISION,
            ScalarOp::Unary(
                U::Neg
                | U::Abs
                | U::Sign
                | U::Square
                | U::Ceil
                | U::Floor
                | U::Round
                | U::Trunc
                | U::Relu
                | U::Not
                | U::IsNan
                | U::IsInf,
            ) => 1,
            ScalarOp::Unary(U::Mish | U::LogSigmoid) | ScalarOp::Binary(Binary::Pow) => 2 * FUNCTION,
            ScalarOp::Unary(_) | ScalarOp::Binary(Binary::Atan2) => FUNCTION,
            ScalarOp::Activation(_) | ScalarOp::Binary(Binary::Div | Binary::Rem | Binary::Mod) => DIVISION,
            ScalarOp::Fma | ScalarOp::Clamp => 2,
            _ => 1,
        }
    }

    /// Whether it is computed by a polynomial or several.
    pub fn is_function(self) -> bool {
        self.flops() >= 20
    }

    /// The result's dtype, or why the operands' dtypes are refused.
    pub fn result_dtype(self, operands: &[DType]) -> Result<DType, String> {
        use Unary as U;
        if operands.len() != self.arity() {
            return Err(format!("takes {} operands, got {}", self.arity(), operands.len()));
        }
        let d = operands[operands.len() - 1];
        let refuse = |want: &str| Err(format!("needs {want}, got {d}"));
        let values = if self == ScalarOp::Where { &operands[1..] } else { operands };
        if let Some(other) = values.iter().find(|x| **x != d) {
            return Err(format!("dtypes differ: {other} and {d}"));
        }
        match self {
            ScalarOp::Cast(to) => Ok(to),
            ScalarOp::Bitcast(to) if d == DType::Bool || to == DType::Bool => refuse("a number dtype"),
            ScalarOp::Bitcast(to) if d.size() != to.size() => Err(format!("{d} and {to} differ in size")),
            ScalarOp::Bitcast(to) => Ok(to),
            ScalarOp::Activation(_) if !d.is_float() => refuse("a float dtype"),
            ScalarOp::Activation(_) => Ok(d),
            ScalarOp::Unary(u) => match u {
                U::Not if d == DType::Bool || d.is_int() => Ok(d),
                U::Not => refuse("bool or an integer dtype"),
                U::IsNan | U::IsInf if d.is_float() => Ok(DType::Bool),
                U::Neg | U::Abs | U::Sign | U::Square | U::Relu if d.is_int() => Ok(d),
                _ if d.is_float() => Ok(d),
                _ => refuse("a float dtype"),
            },
            ScalarOp::Binary(b) => match b {
                Binary::And | Binary::Or | Binary::Xor if d == DType::Bool || d.is_int() => Ok(d),
                Binary::And | Binary::Or | Binary::Xor => refuse("bool or an integer dtype"),
                Binary::Shl | Binary::Shr if d.is_int() => Ok(d),
                Binary::Shl | Binary::Shr => refuse("an integer dtype"),
                Binary::Atan2 if !d.is_float() => refuse("a float dtype"),
                _ if d == DType::Bool => refuse("a number dtype"),
                _ => Ok(d),
            },
            ScalarOp::Compare(c) => match c {
                Compare::Eq | Compare::Ne => Ok(DType::Bool),
                _ if d == DType::Bool => refuse("a number dtype"),
                _ => Ok(DType::Bool),
            },
            ScalarOp::Where if operands[0] != DType::Bool => {
                Err(format!("the condition must be bool, got {}", operands[0]))
            }
            ScalarOp::Where => Ok(d),
            ScalarOp::Fma | ScalarOp::Clamp if d == DType::Bool => refuse("a number dtype"),
            ScalarOp::Fma | ScalarOp::Clamp => Ok(d),
        }
    }
}

impl Spelled for ScalarOp {
    fn name(&self) -> &'static str {
        match self {
            ScalarOp::Unary(u) => u.name(),
            ScalarOp::Binary(b) => b.name(),
            ScalarOp::Compare(c) => c.name(),
            ScalarOp::Activation(a) => a.name(),
            ScalarOp::Cast(_) => "cast",
            ScalarOp::Bitcast(_) => "bitcast",
            ScalarOp::Where => "where",
            ScalarOp::Fma => "fma",
            ScalarOp::Clamp => "clamp",
        }
    }

    fn attrs(&self) -> Attrs {
        let field = |name: &str, value: Attr| (name.to_string(), value);
        Attrs(match *self {
            ScalarOp::Cast(to) | ScalarOp::Bitcast(to) => vec![field("to", to.write())],
            ScalarOp::Activation(a) => {
                a.attributes().into_iter().map(|(name, number)| field(name, number.write())).collect()
            }
            _ => Vec::new(),
        })
    }

    fn names() -> Vec<&'static str> {
        let others = ["cast", "bitcast", "where", "fma", "clamp"];
        let plain = Unary::ALL.iter().map(|u| u.name()).chain(Binary::ALL.iter().map(|b| b.name()));
        let plain = plain.chain(Compare::ALL.iter().map(|c| c.name()));
        plain.chain(Activation::NAMES.iter().copied()).chain(others).collect()
    }

    fn read(name: &str, attrs: &Attrs) -> Option<Result<Self, String>> {
        let plain = match name {
            "where" => Some(ScalarOp::Where),
            "fma" => Some(ScalarOp::Fma),
            "clamp" => Some(ScalarOp::Clamp),
            _ => Unary::from_name(name)
                .map(ScalarOp::Unary)
                .or_else(|| Binary::from_name(name).map(ScalarOp::Binary))
                .or_else(|| Compare::from_name(name).map(ScalarOp::Compare)),
        };
        if let Some(op) = plain {
            return Some(attrs.only(&[]).map(|()| op));
        }
        match name {
            "cast" => Some(attrs.only(&["to"]).and_then(|()| Ok(ScalarOp::Cast(attrs.get("to")?)))),
            "bitcast" => Some(attrs.only(&["to"]).and_then(|()| Ok(ScalarOp::Bitcast(attrs.get("to")?)))),
            _ => Activation::read(name, attrs).map(|a| a.map(ScalarOp::Activation)),
        }
    }
}

impl Rule for ScalarOp {
    fn infer(&self, operands: &[TensorType]) -> Result<Vec<TensorType>, String> {
        arity(operands, self.arity()..=self.arity())?;
        let dtypes: Vec<DType> = operands.iter().map(|t| t.dtype).collect();
        let dtype = self.result_dtype(&dtypes)?;
        Ok(vec![TensorType::new(dtype, broadcast_all(operands)?)])
    }

    fn reads_strides(&self, _operand: usize) -> bool {
        true
    }
}

/// The common shape of all operands under NumPy broadcasting.
pub(crate) fn broadcast_all(operands: &[TensorType]) -> Result<Shape, String> {
    operands.iter().try_fold(Shape::SCALAR, |acc, t| {
        acc.broadcast(&t.shape).ok_or_else(|| {
            let fits = acc
                .values()
                .iter()
                .rev()
                .zip(t.shape.values().iter().rev())
                .all(|(a, b)| a == b || *a == 1 || *b == 1);
            let most = MAX_ELEMENTS.ilog2();
            let why = if fits { format!(": more than 2^{most} elements") } else { String::new() };
            format!("shapes do not broadcast: {acc} with {}{why}", t.shape)
        })
    })
}

macro_rules! unary_methods {
    ($($method:ident => $variant:ident),* $(,)?) => {$(
        #[doc = concat!("Elementwise `", stringify!($method), "`; see [`Unary::", stringify!($variant), "`].")]
        pub fn $method(&mut self, x: ValueId) -> Result<ValueId, Error> {
            self.add1(ScalarOp::Unary(Unary::$variant), &[x])
        }
    )*};
}

macro_rules! binary_methods {
    ($kind:ident: $($method:ident => $variant:ident),* $(,)?) => {$(
        #[doc = concat!("Elementwise `", stringify!($method), "` with broadcasting; see [`", stringify!($kind), "::", stringify!($variant), "`].")]
        pub fn $method(&mut self, a: ValueId, b: ValueId) -> Result<ValueId, Error> {
            self.add1(ScalarOp::$kind($kind::$variant), &[a, b])
        }
    )*};
}

impl Graph {
    unary_methods! {
        neg => Neg, abs => Abs, sign => Sign, reciprocal => Reciprocal, square => Square, sqrt => Sqrt,
        rsqrt => Rsqrt, exp => Exp, expm1 => Expm1, log => Log, log1p => Log1p, log2 => Log2, sin => Sin,
        cos => Cos, tan => Tan, asin => Asin, acos => Acos, atan => Atan, sinh => Sinh, cosh => Cosh,
        tanh => Tanh, asinh => Asinh, acosh => Acosh, atanh => Atanh, erf => Erf, ceil => Ceil,
        floor => Floor, round => Round, trunc => Trunc, relu => Relu, sigmoid => Sigmoid, silu => Silu,
        gelu => Gelu, gelu_tanh => GeluTanh, softplus => Softplus, softsign => Softsign, selu => Selu,
        mish => Mish, hard_swish => HardSwish, log_sigmoid => LogSigmoid, not => Not, isnan => IsNan,
        isinf => IsInf,
    }

    binary_methods! { Binary:
        add => Add, sub => Sub, mul => Mul, div => Div, pow => Pow, max => Max, min => Min, rem => Rem,
        modulo => Mod, atan2 => Atan2, and => And, or => Or, xor => Xor, shl => Shl, shr => Shr,
    }

    binary_methods! { Compare: eq => Eq, ne => Ne, lt => Lt, le => Le, gt => Gt, ge => Ge }

    /// Elementwise activation with attributes.
    pub fn activation(&mut self, activation: Activation, x: ValueId) -> Result<ValueId, Error> {
        self.add1(ScalarOp::Activation(activation), &[x])
    }

    /// Conversion to another dtype.
    pub fn cast(&mut self, x: ValueId, to: DType) -> Result<ValueId, Error> {
        self.add1(ScalarOp::Cast(to), &[x])
    }

    /// The same bits as another dtype of the same size.
    pub fn bitcast(&mut self, x: ValueId, to: DType) -> Result<ValueId, Error> {
        self.add1(ScalarOp::Bitcast(to), &[x])
    }

    /// `a` where the condition is true, `b` elsewhere; all three broadcast.
    pub fn select(&mut self, condition: ValueId, a: ValueId, b: ValueId) -> Result<ValueId, Error> {
        self.add1(ScalarOp::Where, &[condition, a, b])
    }

    /// a·b + c with one rounding.
    pub fn fma(&mut self, a: ValueId, b: ValueId, c: ValueId) -> Result<ValueId, Error> {
        self.add1(ScalarOp::Fma, &[a, b, c])
    }

    /// x held within two numbers.
    pub fn clamp(&mut self, x: ValueId, low: f64, high: f64) -> Result<ValueId, Error> {
        let dtype = self.ty(x)?.dtype;
        let low = self.constant(Tensor::scalar_of(dtype, low));
        let high = self.constant(Tensor::scalar_of(dtype, high));
        self.add1(ScalarOp::Clamp, &[x, low, high])
    }

    /// Elementwise with a number of x's dtype on the right: `binary_scalar(Binary::Mul, x, 0.5)`.
    pub fn binary_scalar(&mut self, op: Binary, x: ValueId, number: f64) -> Result<ValueId, Error> {
        let dtype = self.ty(x)?.dtype;
        let number = self.constant(Tensor::scalar_of(dtype, number));
        self.add1(ScalarOp::Binary(op), &[x, number])
    }
}
