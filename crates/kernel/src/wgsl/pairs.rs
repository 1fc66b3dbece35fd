//! 64-bit integers where WGSL has none: pairs of words, `vec2<u32>`, the low one first, as they are in memory. A vector of
//! them is an array of pairs. Arithmetic is exact; what is more than a line is a function of the module.

use super::helper::Helper;
use super::{Dialect, Printer};
use crate::Error;
use crate::ir::*;
use crate::types::{Scalar, Type};

/// The type of a pair.
pub(super) const PAIR: &str = "vec2<u32>";

/// A pair's literal.
pub(super) fn literal(bits: u64) -> String {
    format!("{PAIR}({}u, {}u)", bits as u32, bits >> 32)
}

impl Printer<'_> {
    /// Whether registers of a type are pairs of words.
    pub(super) fn is_pair(&self, scalar: Scalar) -> bool {
        self.options.dialect == Dialect::Plain && matches!(scalar, Scalar::I64 | Scalar::U64)
    }

    /// Whether a value is a pair, or a vector of pairs.
    pub(super) fn has_pairs(&self, value: Value) -> Result<bool, Error> {
        Ok(matches!(self.def(value)?.ty, Type::Scalar(s) | Type::Vector(s, _) if self.is_pair(s)))
    }

    /// The name of a scalar type in the module.
    pub(super) fn scalar_name(&self, scalar: Scalar) -> &'static str {
        if self.is_pair(scalar) { PAIR } else { scalar.name() }
    }

    /// The name of a type of several scalars.
    pub(super) fn vector_name(&self, scalar: Scalar, lanes: u8) -> String {
        match self.is_pair(scalar) {
            true => format!("array<{PAIR}, {lanes}>"),
            false => format!("vec{lanes}<{scalar}>"),
        }
    }

    pub(super) fn pair_unary(&mut self, op: UnaryOp, scalar: Scalar, a: &str) -> Result<String, Error> {
        Ok(match op {
            UnaryOp::Neg => format!("{}({a})", self.helper(Helper::PairNeg)),
            UnaryOp::Not => format!("~{a}"),
            UnaryOp::Abs if scalar == Scalar::U64 => a.to_owned(),
            UnaryOp::Abs => format!("{}({a})", self.helper(Helper::PairAbs)),
            other => return self.missing(format_args!("{other:?} of {scalar}")),
        })
    }

    /// `count` is the literal of a shift's constant count.
    pub(super) fn pair_binary(
        &mut self,
        op: BinaryOp,
        scalar: Scalar,
        [a, b]: [&str; 2],
        count: Option<String>,
    ) -> Result<String, Error> {
        let signed = scalar == Scalar::I64;
        let helper = match op {
            BinaryOp::And => return Ok(format!("{a} & {b}")),
            BinaryOp::Or => return Ok(format!("{a} | {b}")),
            BinaryOp::Xor => return Ok(format!("{a} ^ {b}")),
            BinaryOp::Min => return Ok(format!("select({b}, {a}, {}({a}, {b}))", self.less(signed))),
            BinaryOp::Max => return Ok(format!("select({a}, {b}, {}({a}, {b}))", self.less(signed))),
            BinaryOp::Shl | BinaryOp::Shr => {
                let helper = match op {
                    BinaryOp::Shl => Helper::PairShl,
                    _ if signed => Helper::PairShrSigned,
                    _ => Helper::PairShr,
                };
                let count = count.unwrap_or_else(|| format!("{b}.x"));
                return Ok(format!("{}({a}, {count})", self.helper(helper)));
            }
            BinaryOp::Add => Helper::PairAdd,
            BinaryOp::Sub => Helper::PairSub,
            BinaryOp::Mul => Helper::PairMul,
            BinaryOp::Div if signed => Helper::PairDivSigned,
            BinaryOp::Rem if signed => Helper::PairRemSigned,
            BinaryOp::Div => return Ok(format!("{}({a}, {b}).xy", self.helper(Helper::PairDivide))),
            BinaryOp::Rem => return Ok(format!("{}({a}, {b}).zw", self.helper(Helper::PairDivide))),
            BinaryOp::MulHigh => return self.missing(format_args!("{op:?} of {scalar}")),
        };
        Ok(format!("{}({a}, {b})", self.helper(helper)))
    }

    fn less(&mut self, signed: bool) -> &'static str {
        self.helper(if signed { Helper::PairLessSigned } else { Helper::PairLess })
    }

    pub(super) fn pair_compare(&mut self, op: CompareOp, scalar: Scalar, a: &str, b: &str) -> String {
        let signed = scalar == Scalar::I64;
        match op {
            CompareOp::Eq => format!("all({a} == {b})"),
            CompareOp::Ne => format!("any({a} != {b})"),
            CompareOp::Lt => format!("{}({a}, {b})", self.less(signed)),
            CompareOp::Gt => format!("{}({b}, {a})", self.less(signed)),
            CompareOp::Le => format!("!{}({b}, {a})", self.less(signed)),
            CompareOp::Ge => format!("!{}({a}, {b})", self.less(signed)),
        }
    }

    /// A conversion from or to a pair.
    pub(super) fn pair_convert(&mut self, from: Scalar, to: Scalar, a: &str) -> Result<String, Error> {
        let wide = |s: Scalar| matches!(s, Scalar::I64 | Scalar::U64);
        Ok(match (from, to) {
            _ if wide(from) && wide(to) => a.to_owned(),
            (Scalar::Bool, _) => format!("select({PAIR}(0u, 0u), {PAIR}(1u, 0u), {a})"),
            (Scalar::U32, _) => format!("{PAIR}({a}, 0u)"),
            (Scalar::I32, _) => format!("{PAIR}(bitcast<u32>({a}), bitcast<u32>({a} >> 31u))"),
            (Scalar::F32 | Scalar::F16, _) => {
                let helper = if to == Scalar::I64 { Helper::PairOfFloatSigned } else { Helper::PairOfFloat };
                format!("{}(f32({a}))", self.helper(helper))
            }
            (_, Scalar::Bool) => format!("any({a} != {PAIR}(0u, 0u))"),
            (_, Scalar::U32) => format!("{a}.x"),
            (_, Scalar::I32) => format!("bitcast<i32>({a}.x)"),
            (_, Scalar::F32 | Scalar::F16) => {
                let helper =
                    if from == Scalar::I64 { Helper::PairAsFloatSigned } else { Helper::PairAsFloat };
                let float = format!("{}({a})", self.helper(helper));
                // From 2^24 on, where f32 rounds, f16 has infinity alone.
                if to == Scalar::F16 { format!("f16({float})") } else { float }
            }
            _ => return self.missing(format_args!("a conversion from {from} to {to}")),
        })
    }
}

pub(super) const ADD: &str = "\
fn pair_add(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
    let low = a.x + b.x;
    return vec2<u32>(low, a.y + b.y + select(0u, 1u, low < a.x));
}
";

pub(super) const SUB: &str = "\
fn pair_sub(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
    return vec2<u32>(a.x - b.x, a.y - b.y - select(0u, 1u, a.x < b.x));
}
";

pub(super) const NEG: &str = "\
fn pair_neg(a: vec2<u32>) -> vec2<u32> {
    return vec2<u32>(0u - a.x, ~a.y + select(0u, 1u, a.x == 0u));
}
";

pub(super) const ABS: &str = "\
fn pair_abs(a: vec2<u32>) -> vec2<u32> {
    return select(a, pair_neg(a), a.y >= 0x80000000u);
}
";

pub(super) const MUL: &str = "\
fn pair_mul(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
    return vec2<u32>(a.x * b.x, mul_high(a.x, b.x) + a.x * b.y + a.y * b.x);
}
";

pub(super) const LESS: &str = "\
fn pair_less(a: vec2<u32>, b: vec2<u32>) -> bool {
    return a.y < b.y || (a.y == b.y && a.x < b.x);
}
";

/// The order of signed numbers is that of unsigned ones with the sign turned over.
pub(super) const LESS_SIGNED: &str = "\
fn pair_less_signed(a: vec2<u32>, b: vec2<u32>) -> bool {
    return pair_less(a ^ vec2<u32>(0u, 0x80000000u), b ^ vec2<u32>(0u, 0x80000000u));
}
";

/// A word is shifted by less than its width only.
pub(super) const SHL: &str = "\
fn pair_shl(a: vec2<u32>, n: u32) -> vec2<u32> {
    if (n == 0u) {
        return a;
    }
    if (n >= 32u) {
        return vec2<u32>(0u, a.x << (n - 32u));
    }
    return vec2<u32>(a.x << n, (a.y << n) | (a.x >> (32u - n)));
}
";

pub(super) const SHR: &str = "\
fn pair_shr(a: vec2<u32>, n: u32) -> vec2<u32> {
    if (n == 0u) {
        return a;
    }
    if (n >= 32u) {
        return vec2<u32>(a.y >> (n - 32u), 0u);
    }
    return vec2<u32>((a.x >> n) | (a.y << (32u - n)), a.y >> n);
}
";

pub(super) const SHR_SIGNED: &str = "\
fn pair_shr_signed(a: vec2<u32>, n: u32) -> vec2<u32> {
    let high = bitcast<i32>(a.y);
    if (n == 0u) {
        return a;
    }
    if (n >= 32u) {
        return vec2<u32>(bitcast<u32>(high >> (n - 32u)), bitcast<u32>(high >> 31u));
    }
    return vec2<u32>((a.x >> n) | (a.y << (32u - n)), bitcast<u32>(high >> n));
}
";

/// Quotient and remainder of unsigned numbers, bit by bit where a word does not hold them. What is left over can be a bit
/// longer than a pair for a moment.
pub(super) const DIVIDE: &str = "\
fn pair_divide(a: vec2<u32>, b: vec2<u32>) -> vec4<u32> {
    if ((a.y | b.y) == 0u) {
        return vec4<u32>(a.x / b.x, 0u, a.x % b.x, 0u);
    }
    var quotient = vec2<u32>(0u, 0u);
    var rest = vec2<u32>(0u, 0u);
    for (var i = 0u; i < 64u; i += 1u) {
        let bit = pair_shr(a, 63u - i).x & 1u;
        let over = rest.y >> 31u;
        rest = vec2<u32>((rest.x << 1u) | bit, (rest.y << 1u) | (rest.x >> 31u));
        quotient = vec2<u32>(quotient.x << 1u, (quotient.y << 1u) | (quotient.x >> 31u));
        if (over == 1u || !pair_less(rest, b)) {
            rest = pair_sub(rest, b);
            quotient.x |= 1u;
        }
    }
    return vec4<u32>(quotient, rest);
}
";

pub(super) const DIV_SIGNED: &str = "\
fn pair_div_signed(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
    let quotient = pair_divide(pair_abs(a), pair_abs(b)).xy;
    return select(quotient, pair_neg(quotient), ((a.y ^ b.y) >> 31u) == 1u);
}
";

pub(super) const REM_SIGNED: &str = "\
fn pair_rem_signed(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
    let rest = pair_divide(pair_abs(a), pair_abs(b)).zw;
    return select(rest, pair_neg(rest), (a.y >> 31u) == 1u);
}
";

/// Rounds to nearest even in integers; a mantissa that is rounded up to the next power of two raises the exponent.
pub(super) const AS_FLOAT: &str = "\
fn pair_as_float(a: vec2<u32>) -> f32 {
    if (a.y == 0u && a.x < 0x1000000u) {
        return f32(a.x);
    }
    let top = select(31u - countLeadingZeros(a.x), 63u - countLeadingZeros(a.y), a.y != 0u);
    let down = top - 23u;
    let kept = pair_shr(a, down).x;
    let rest = pair_sub(a, pair_shl(vec2<u32>(kept, 0u), down));
    let twice = pair_shl(rest, 1u);
    let unit = pair_shl(vec2<u32>(1u, 0u), down);
    let up = pair_less(unit, twice) || (all(unit == twice) && (kept & 1u) == 1u);
    return bitcast<f32>(((top + 126u) << 23u) + kept + select(0u, 1u, up));
}
";

pub(super) const AS_FLOAT_SIGNED: &str = "\
fn pair_as_float_signed(a: vec2<u32>) -> f32 {
    let size = pair_as_float(pair_abs(a));
    return select(size, -size, (a.y >> 31u) == 1u);
}
";

/// Truncates; what is out of range, or no number, is unspecified.
pub(super) const OF_FLOAT: &str = "\
fn pair_of_float(x: f32) -> vec2<u32> {
    let bits = bitcast<u32>(x);
    let exponent = (bits >> 23u) & 255u;
    if (exponent < 127u || exponent >= 191u) {
        return vec2<u32>(0u, 0u);
    }
    let mantissa = (bits & 0x7fffffu) | 0x800000u;
    if (exponent <= 150u) {
        return vec2<u32>(mantissa >> (150u - exponent), 0u);
    }
    return pair_shl(vec2<u32>(mantissa, 0u), exponent - 150u);
}
";

pub(super) const OF_FLOAT_SIGNED: &str = "\
fn pair_of_float_signed(x: f32) -> vec2<u32> {
    let size = pair_of_float(abs(x));
    return select(size, pair_neg(size), (bitcast<u32>(x) >> 31u) == 1u);
}
";
