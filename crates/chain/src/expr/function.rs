//! The scalar functions of densities: their names and derivatives.

use super::{Graph, Id, Node};
use crate::Error;

macro_rules! functions {
    ($(#[$doc:meta])* $kind:ident { $($(#[$each:meta])* $name:ident $text:literal),* $(,)? }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum $kind { $($(#[$each])* $name),* }

        impl $kind {
            /// All of them, in declaration order.
            pub const ALL: &'static [$kind] = &[$($kind::$name),*];

            /// The name in the text form.
            pub const fn name(self) -> &'static str {
                match self { $($kind::$name => $text),* }
            }

            /// The one of this name.
            pub fn from_name(name: &str) -> Option<$kind> {
                $kind::ALL.iter().copied().find(|f| f.name() == name)
            }
        }
    };
}

functions! {
    /// Functions of one number.
    Function {
        /// −x.
        Neg "neg",
        /// |x|; its derivative at 0 is 0.
        Abs "abs",
        /// −1, 0 or 1; its derivative is 0.
        Sign "sign",
        /// x, whose derivative counts as 0.
        Detach "detach",
        /// x².
        Square "square",
        /// 1/x.
        Reciprocal "reciprocal",
        /// √x.
        Sqrt "sqrt",
        /// eˣ.
        Exp "exp",
        /// eˣ − 1.
        Expm1 "expm1",
        /// ln x.
        Log "log",
        /// ln(1 + x).
        Log1p "log1p",
        /// sin x.
        Sin "sin",
        /// cos x.
        Cos "cos",
        /// arctan x.
        Atan "atan",
        /// tanh x.
        Tanh "tanh",
        /// 1/(1 + e⁻ˣ).
        Sigmoid "sigmoid",
        /// ln(1 + eˣ).
        Softplus "softplus",
        /// The error function.
        Erf "erf",
        /// ln |Γ(x)|.
        Lgamma "lgamma",
        /// (ln Γ)′(x).
        Digamma "digamma",
        /// (ln Γ)″(x).
        Trigamma "trigamma",
    }
}

functions! {
    /// Functions of two numbers.
    Operator {
        /// a + b.
        Add "add",
        /// a − b.
        Sub "sub",
        /// a · b.
        Mul "mul",
        /// a / b.
        Div "div",
        /// aᵇ.
        Pow "pow",
        /// The larger; NaN if either is.
        Max "max",
        /// The smaller; NaN if either is.
        Min "min",
    }
}

functions! {
    /// Comparisons, which are 1 where they hold and 0 elsewhere.
    Comparison {
        /// a < b.
        Lt "lt",
        /// a ≤ b.
        Le "le",
        /// a > b.
        Gt "gt",
        /// a ≥ b.
        Ge "ge",
        /// a = b.
        Eq "eq",
        /// a ≠ b.
        Ne "ne",
    }
}

functions! {
    /// How values of an axis are combined.
    Reduction {
        /// The sum.
        Sum "sum",
        /// The largest; every element that equals it gets the whole derivative.
        Max "max",
    }
}

impl Function {
    /// Its derivative at `x`, whose function value is `y`; `None` where it is 0 everywhere. Trigamma has none here.
    pub(crate) fn derivative(self, g: &mut Graph, x: Id, y: Id) -> Result<Option<Id>, Error> {
        let one = g.constant(1.0)?;
        Ok(Some(match self {
            Function::Neg => g.constant(-1.0)?,
            Function::Abs => g.unary(Function::Sign, x)?,
            Function::Sign | Function::Detach => return Ok(None),
            Function::Square => g.scaled(x, 2.0)?,
            Function::Reciprocal => {
                let square = g.unary(Function::Square, y)?;
                g.unary(Function::Neg, square)?
            }
            Function::Sqrt => {
                let half = g.constant(0.5)?;
                g.binary(Operator::Div, half, y)?
            }
            Function::Exp => y,
            Function::Expm1 => g.binary(Operator::Add, y, one)?,
            Function::Log => g.unary(Function::Reciprocal, x)?,
            Function::Log1p => {
                let shifted = g.binary(Operator::Add, x, one)?;
                g.unary(Function::Reciprocal, shifted)?
            }
            Function::Sin => g.unary(Function::Cos, x)?,
            Function::Cos => {
                let sin = g.unary(Function::Sin, x)?;
                g.unary(Function::Neg, sin)?
            }
            Function::Atan => {
                let square = g.unary(Function::Square, x)?;
                let sum = g.binary(Operator::Add, square, one)?;
                g.unary(Function::Reciprocal, sum)?
            }
            Function::Tanh => {
                let square = g.unary(Function::Square, y)?;
                g.binary(Operator::Sub, one, square)?
            }
            Function::Sigmoid => {
                // σ(x)·σ(−x), which keeps its digits where σ is near 1.
                let minus = g.unary(Function::Neg, x)?;
                let other = g.unary(Function::Sigmoid, minus)?;
                g.binary(Operator::Mul, y, other)?
            }
            Function::Softplus => g.unary(Function::Sigmoid, x)?,
            Function::Erf => {
                let square = g.unary(Function::Square, x)?;
                let minus = g.unary(Function::Neg, square)?;
                let exp = g.unary(Function::Exp, minus)?;
                g.scaled(exp, std::f64::consts::FRAC_2_SQRT_PI)?
            }
            Function::Lgamma => g.unary(Function::Digamma, x)?,
            Function::Digamma => g.unary(Function::Trigamma, x)?,
            Function::Trigamma => {
                return Err(Error::Expression(
                    "trigamma cannot be differentiated: it is the derivative of digamma".into(),
                ));
            }
        }))
    }
}

impl Operator {
    /// The product of an adjoint with the derivative by the first (`side` 0) or second operand; `y` is the value.
    pub(crate) fn pull(
        self,
        g: &mut Graph,
        side: usize,
        [a, b, y]: [Id; 3],
        adjoint: Id,
    ) -> Result<Id, Error> {
        use Operator::{Add, Div, Max, Min, Mul, Pow, Sub};
        match (self, side) {
            (Add, _) | (Sub, 0) => Ok(adjoint),
            (Sub, _) => g.unary(Function::Neg, adjoint),
            (Mul, 0) => g.binary(Mul, adjoint, b),
            (Mul, _) => g.binary(Mul, adjoint, a),
            (Div, 0) => g.binary(Div, adjoint, b),
            (Div, _) => {
                let scaled = g.binary(Div, adjoint, b)?;
                let product = g.binary(Mul, scaled, y)?;
                g.unary(Function::Neg, product)
            }
            (Pow, 0) => {
                let one = g.constant(1.0)?;
                let less = g.binary(Sub, b, one)?;
                let power = g.binary(Pow, a, less)?;
                let slope = g.binary(Mul, b, power)?;
                g.binary(Mul, adjoint, slope)
            }
            (Pow, _) => {
                let log = g.unary(Function::Log, a)?;
                let slope = g.binary(Mul, y, log)?;
                g.binary(Mul, adjoint, slope)
            }
            // Of equal operands the first counts.
            (Max, 0) => g.masked(Comparison::Ge, a, b, adjoint),
            (Max, _) => g.masked(Comparison::Lt, a, b, adjoint),
            (Min, 0) => g.masked(Comparison::Le, a, b, adjoint),
            (Min, _) => g.masked(Comparison::Gt, a, b, adjoint),
        }
    }
}

impl Graph {
    /// `x` times a number.
    pub(crate) fn scaled(&mut self, x: Id, by: f64) -> Result<Id, Error> {
        let by = self.constant(by)?;
        self.binary(Operator::Mul, x, by)
    }

    /// `x` where the comparison holds, else 0.
    pub(crate) fn masked(&mut self, op: Comparison, a: Id, b: Id, x: Id) -> Result<Id, Error> {
        let (condition, zero) = (self.add(Node::Compare(op, a, b))?, self.constant(0.0)?);
        self.add(Node::Select(condition, x, zero))
    }
}
