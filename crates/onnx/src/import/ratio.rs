//! Arithmetic on sizes as models write it: on integers, and on floats between a cast and a rounding.

use olivine_ir::op::{Binary, Compare, ScalarOp, Unary};
use olivine_ir::size::Fault;
use olivine_ir::{DType, Data, Dim, Tensor};

/// A size, or among floats a size over a whole number: `ceil(cast(n) / 32)` stays an expression of `n`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ratio {
    pub(super) numerator: Dim,
    /// Above 0.
    denominator: i64,
}

/// The largest denominator: constants such as 0.0625 have it, decimals such as 0.1 do not.
const LARGEST_DENOMINATOR: i64 = 1 << 20;

/// Floats represent integers below this exactly.
fn exact_below(dtype: DType) -> Option<i64> {
    match dtype {
        DType::F32 => Some(1 << 24),
        DType::F64 => Some(1 << 53),
        _ => None,
    }
}

impl From<Dim> for Ratio {
    fn from(size: Dim) -> Self {
        Ratio { numerator: size, denominator: 1 }
    }
}

impl Ratio {
    /// The size, if it is one.
    pub(super) fn size(self) -> Option<Dim> {
        (self.denominator == 1).then_some(self.numerator)
    }

    /// Whether it does not fit in 64 bits.
    pub(super) fn overflows(self) -> bool {
        self.numerator.fault() == Some(Fault::Overflow)
    }

    /// The elements of a constant; none if some are too fine or too large.
    pub(super) fn of_tensor(tensor: &Tensor) -> Option<Vec<Ratio>> {
        match tensor.data() {
            Data::I64(v) => Some(v.iter().map(|v| Dim::from(*v).into()).collect()),
            Data::I32(v) => Some(v.iter().map(|v| Dim::from(*v).into()).collect()),
            Data::F32(_) | Data::F64(_) => {
                let limit = exact_below(tensor.dtype())?;
                tensor.to_f64().into_iter().map(|v| Ratio::of_float(v, limit)).collect()
            }
            _ => None,
        }
    }

    fn of_float(value: f64, limit: i64) -> Option<Ratio> {
        let mut denominator = 1;
        while (value * denominator as f64).fract() != 0.0 {
            denominator *= 2;
            if denominator > LARGEST_DENOMINATOR {
                return None;
            }
        }
        let numerator = value * denominator as f64;
        // Also false for NaN.
        (numerator.abs() < limit as f64).then(|| Ratio { numerator: (numerator as i64).into(), denominator })
    }

    /// Whether this is the number, as a float of this dtype where it is one.
    pub(super) fn is(self, number: f64, dtype: DType) -> bool {
        let Ok(numerator) = self.numerator.value() else { return false };
        let value = numerator as f64 / self.denominator as f64;
        match dtype {
            DType::F32 => value as f32 == number as f32,
            _ => value == number,
        }
    }

    /// Whether floats hold this without rounding: the denominator is a power of two, and the numerator is asked to be below
    /// the dtype's limit.
    fn is_exact(self, dtype: DType) -> bool {
        let Some(limit) = exact_below(dtype) else { return self.denominator == 1 };
        self.denominator.count_ones() == 1 && self.numerator < limit && self.numerator > -limit
    }

    /// This as a float that is exact, or as the integer that it is.
    fn exact(self, dtype: DType) -> Option<Ratio> {
        self.is_exact(dtype).then_some(self)
    }

    /// The nearest whole number below or above. A float that was rounded once, by a division, is on the same side of every
    /// whole number as the ratio.
    fn floor(self) -> Ratio {
        self.numerator.div_floor(self.denominator).into()
    }

    fn ceil(self) -> Ratio {
        self.numerator.div_ceil(self.denominator).into()
    }

    fn trunc(self) -> Ratio {
        match self.denominator {
            1 => self,
            _ if self.numerator >= 0 => self.floor(),
            _ => self.ceil(),
        }
    }

    fn neg(self) -> Ratio {
        Ratio { numerator: -self.numerator, ..self }
    }

    /// Both over one denominator.
    fn together(self, other: Ratio) -> Option<(Dim, Dim, i64)> {
        let denominator = self.denominator.checked_mul(other.denominator)?;
        if self.denominator == other.denominator {
            return Some((self.numerator, other.numerator, self.denominator));
        }
        (denominator <= LARGEST_DENOMINATOR)
            .then(|| (self.numerator * other.denominator, other.numerator * self.denominator, denominator))
    }

    /// A number over a denominator, in lowest terms where that is plain.
    fn over(numerator: Dim, denominator: i64) -> Option<Ratio> {
        match numerator.as_constant() {
            Some(number) if number % denominator == 0 => Some(Dim::from(number / denominator).into()),
            _ => (denominator <= LARGEST_DENOMINATOR).then_some(Ratio { numerator, denominator }),
        }
    }

    /// The quotient of two integers, rounded towards zero as ONNX does.
    fn quotient(self, by: Ratio) -> Option<Ratio> {
        let (a, b) = (self.size()?, by.size()?);
        match b > 0 {
            true if a >= 0 => Some(a.div_floor(b).into()),
            true => Some((-(-a).div_floor(b)).into()),
            false => None,
        }
    }

    /// The quotient of two floats, which may be rounded. With a numerator below the dtype's limit it is further from every
    /// whole number that it is not than rounding moves it.
    fn divided(self, by: Ratio, dtype: DType) -> Option<Ratio> {
        let number = by.numerator.as_constant().filter(|number| *number > 0)?;
        let (numerator, limit) = (self.numerator * by.denominator, exact_below(dtype)?);
        if numerator >= limit || numerator <= -limit {
            return None;
        }
        Ratio::over(numerator, self.denominator.checked_mul(number)?)
    }

    /// What an integer division leaves, with the sign of the dividend (`Rem`) or of the divisor (`Mod`).
    fn remainder(self, by: Ratio, floored: bool) -> Option<Ratio> {
        let (a, b) = (self.size()?, by.size()?);
        let rest = match b > 0 {
            true if floored || a >= 0 => a.rem_floor(b),
            true => -(-a).rem_floor(b),
            false => return None,
        };
        Some(rest.into())
    }
}

/// What an elementwise operation makes of sizes.
pub(super) enum Outcome {
    /// The elements of the result.
    Numbers(Vec<Ratio>),
    /// The result is the same for all sizes that give the same answers to the questions that were asked.
    Decided,
}

/// Computes on sizes, with operands that were broadcast; comparisons are questions, whose answers are recorded. `from` and `to`
/// are the dtypes of the operands and of the result.
pub(super) fn elementwise(op: &ScalarOp, x: &[Vec<Ratio>], from: DType, to: DType) -> Option<Outcome> {
    let each = |f: &dyn Fn(Ratio) -> Option<Ratio>, x: &[Ratio]| -> Option<Outcome> {
        x.iter().map(|x| f(*x)).collect::<Option<Vec<_>>>().map(Outcome::Numbers)
    };
    match (op, x) {
        (ScalarOp::Cast(DType::Bool), [x]) => {
            x.iter().for_each(|x| _ = x.numerator == 0);
            Some(Outcome::Decided)
        }
        (ScalarOp::Cast(DType::I64 | DType::I32), [x]) => each(&|x| Some(x.trunc()), x),
        (ScalarOp::Cast(DType::F32 | DType::F64), [x]) => each(&|x| x.exact(to), x),
        (ScalarOp::Unary(op), [x]) => each(&|x| unary(*op, x), x),
        (ScalarOp::Binary(op), [a, b]) => {
            let pairs = a.iter().zip(b);
            pairs.map(|(a, b)| binary(*op, *a, *b, to)).collect::<Option<Vec<_>>>().map(Outcome::Numbers)
        }
        (ScalarOp::Compare(op), [a, b]) => {
            for (a, b) in a.iter().zip(b) {
                let (a, b, _) = a.exact(from)?.together(b.exact(from)?)?;
                let _ = match op {
                    Compare::Eq | Compare::Ne => a == b,
                    Compare::Lt | Compare::Ge => a < b,
                    Compare::Gt | Compare::Le => a > b,
                };
            }
            Some(Outcome::Decided)
        }
        (ScalarOp::Clamp, [x, low, high]) => {
            let limits = low.iter().zip(high);
            let clamped = x
                .iter()
                .zip(limits)
                .map(|(x, (low, high))| binary(Binary::Min, binary(Binary::Max, *x, *low, to)?, *high, to));
            clamped.collect::<Option<Vec<_>>>().map(Outcome::Numbers)
        }
        _ => None,
    }
}

fn unary(op: Unary, x: Ratio) -> Option<Ratio> {
    match op {
        Unary::Neg => Some(x.neg()),
        Unary::Abs => Some(if x.numerator < 0 { x.neg() } else { x }),
        Unary::Relu => Some(Ratio { numerator: x.numerator.max(0), ..x }),
        Unary::Ceil => Some(x.ceil()),
        Unary::Floor => Some(x.floor()),
        Unary::Trunc => Some(x.trunc()),
        Unary::Sign if x.numerator == 0 => Some(Dim::ZERO.into()),
        Unary::Sign if x.numerator > 0 => Some(Dim::ONE.into()),
        Unary::Sign => Some(Dim::constant(-1).into()),
        _ => None,
    }
}

/// Of floats, operands and results must be exact; only the result of a division may be rounded.
fn binary(op: Binary, a: Ratio, b: Ratio, dtype: DType) -> Option<Ratio> {
    let (a, b) = (a.exact(dtype)?, b.exact(dtype)?);
    let integers = exact_below(dtype).is_none();
    let sum = |b: Ratio| {
        let (a, b, denominator) = a.together(b)?;
        Ratio::over(a + b, denominator)
    };
    let pick = |f: fn(Dim, Dim) -> Dim| {
        let (a, b, denominator) = a.together(b)?;
        Ratio::over(f(a, b), denominator)
    };
    match op {
        Binary::Add => sum(b)?.exact(dtype),
        Binary::Sub => sum(b.neg())?.exact(dtype),
        Binary::Mul => {
            Ratio::over(a.numerator * b.numerator, a.denominator.checked_mul(b.denominator)?)?.exact(dtype)
        }
        Binary::Div if integers => a.quotient(b),
        Binary::Div => a.divided(b, dtype),
        Binary::Mod if integers => a.remainder(b, true),
        Binary::Rem if integers => a.remainder(b, false),
        Binary::Min => pick(|a, b| a.min(b)),
        Binary::Max => pick(|a, b| a.max(b)),
        _ => None,
    }
}
