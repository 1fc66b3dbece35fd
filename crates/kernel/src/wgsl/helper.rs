//! Functions that a module contains where it needs them.

use std::collections::BTreeSet;

use super::pairs;

/// A function of the module.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Helper {
    /// f32 to the bits of an f16.
    Half,
    /// f32 to the bits of a bf16.
    Brain,
    /// The upper half of a product.
    MulHigh,
    /// Whether an access stays inside a buffer; reports it otherwise.
    Inside,
    /// An index that stays inside a buffer: itself, or 0 after a report.
    Bound,
    /// Reports an index of the user's data.
    BadIndex,
    /// a + b of pairs; what follows is arithmetic of pairs too.
    PairAdd,
    PairSub,
    PairNeg,
    PairAbs,
    PairMul,
    /// Of unsigned numbers, as all without `Signed`.
    PairLess,
    PairLessSigned,
    PairShl,
    PairShr,
    PairShrSigned,
    /// Quotient and remainder.
    PairDivide,
    PairDivSigned,
    PairRemSigned,
    PairAsFloat,
    PairAsFloatSigned,
    PairOfFloat,
    PairOfFloatSigned,
}

impl Helper {
    pub(super) fn name(self) -> &'static str {
        match self {
            Helper::Half => "half_bits",
            Helper::Brain => "brain_bits",
            Helper::MulHigh => "mul_high",
            Helper::Inside => "inside",
            Helper::Bound => "bound",
            Helper::BadIndex => "bad_index",
            Helper::PairAdd => "pair_add",
            Helper::PairSub => "pair_sub",
            Helper::PairNeg => "pair_neg",
            Helper::PairAbs => "pair_abs",
            Helper::PairMul => "pair_mul",
            Helper::PairLess => "pair_less",
            Helper::PairLessSigned => "pair_less_signed",
            Helper::PairShl => "pair_shl",
            Helper::PairShr => "pair_shr",
            Helper::PairShrSigned => "pair_shr_signed",
            Helper::PairDivide => "pair_divide",
            Helper::PairDivSigned => "pair_div_signed",
            Helper::PairRemSigned => "pair_rem_signed",
            Helper::PairAsFloat => "pair_as_float",
            Helper::PairAsFloatSigned => "pair_as_float_signed",
            Helper::PairOfFloat => "pair_of_float",
            Helper::PairOfFloatSigned => "pair_of_float_signed",
        }
    }

    /// These and those that they call.
    pub(super) fn with_needs(used: &BTreeSet<Helper>) -> BTreeSet<Helper> {
        let mut all = BTreeSet::new();
        let mut open: Vec<Helper> = used.iter().copied().collect();
        while let Some(helper) = open.pop() {
            if all.insert(helper) {
                open.extend(helper.needs());
            }
        }
        all
    }

    /// Those that it calls.
    fn needs(self) -> &'static [Helper] {
        match self {
            Helper::Bound => &[Helper::Inside],
            Helper::PairAbs => &[Helper::PairNeg],
            Helper::PairMul => &[Helper::MulHigh],
            Helper::PairLessSigned => &[Helper::PairLess],
            Helper::PairDivide => &[Helper::PairShr, Helper::PairLess, Helper::PairSub],
            Helper::PairDivSigned | Helper::PairRemSigned => &[Helper::PairDivide, Helper::PairAbs],
            Helper::PairAsFloat => &[Helper::PairShr, Helper::PairShl, Helper::PairSub, Helper::PairLess],
            Helper::PairAsFloatSigned => &[Helper::PairAsFloat, Helper::PairAbs],
            Helper::PairOfFloat => &[Helper::PairShl],
            Helper::PairOfFloatSigned => &[Helper::PairOfFloat, Helper::PairNeg],
            _ => &[],
        }
    }

    pub(super) fn source(self) -> &'static str {
        match self {
            Helper::Half => HALF,
            Helper::Brain => BRAIN,
            Helper::MulHigh => MUL_HIGH,
            Helper::Inside => INSIDE,
            Helper::Bound => BOUND,
            Helper::BadIndex => BAD_INDEX,
            Helper::PairAdd => pairs::ADD,
            Helper::PairSub => pairs::SUB,
            Helper::PairNeg => pairs::NEG,
            Helper::PairAbs => pairs::ABS,
            Helper::PairMul => pairs::MUL,
            Helper::PairLess => pairs::LESS,
            Helper::PairLessSigned => pairs::LESS_SIGNED,
            Helper::PairShl => pairs::SHL,
            Helper::PairShr => pairs::SHR,
            Helper::PairShrSigned => pairs::SHR_SIGNED,
            Helper::PairDivide => pairs::DIVIDE,
            Helper::PairDivSigned => pairs::DIV_SIGNED,
            Helper::PairRemSigned => pairs::REM_SIGNED,
            Helper::PairAsFloat => pairs::AS_FLOAT,
            Helper::PairAsFloatSigned => pairs::AS_FLOAT_SIGNED,
            Helper::PairOfFloat => pairs::OF_FLOAT,
            Helper::PairOfFloatSigned => pairs::OF_FLOAT_SIGNED,
        }
    }
}

/// Rounds to nearest even in integers. Below 2^-14 the mantissa with its leading one is shifted to the grid of
/// subnormal numbers; from a shift of 25 on nothing is left of it.
const HALF: &str = "\
fn half_bits(x: f32) -> u32 {
    let bits = bitcast<u32>(x);
    let sign = (bits >> 16u) & 0x8000u;
    let size = bits & 0x7fffffffu;
    if (size > 0x7f800000u) {
        return sign | 0x7e00u;
    }
    if (size >= 0x47800000u) {
        return sign | 0x7c00u;
    }
    if (size < 0x38800000u) {
        let down = min(126u - (size >> 23u), 25u);
        let whole = (size & 0x7fffffu) | 0x800000u;
        let kept = whole >> down;
        let rest = whole & ((1u << down) - 1u);
        let half = 1u << (down - 1u);
        let up = rest > half || (rest == half && (kept & 1u) == 1u);
        return sign | (kept + select(0u, 1u, up));
    }
    return sign | ((size - 0x38000000u + 0xfffu + ((size >> 13u) & 1u)) >> 13u);
}
";

const BRAIN: &str = "\
fn brain_bits(x: f32) -> u32 {
    let bits = bitcast<u32>(x);
    if ((bits & 0x7fffffffu) > 0x7f800000u) {
        return (bits >> 16u) | 0x40u;
    }
    return (bits + 0x7fffu + ((bits >> 16u) & 1u)) >> 16u;
}
";

/// By 16-bit pieces; no sum of three of them passes 32 bits.
const MUL_HIGH: &str = "\
fn mul_high(a: u32, b: u32) -> u32 {
    let a0 = a & 0xffffu;
    let a1 = a >> 16u;
    let b0 = b & 0xffffu;
    let b1 = b >> 16u;
    let low = a1 * b0 + ((a0 * b0) >> 16u);
    let middle = a0 * b1 + (low & 0xffffu);
    return a1 * b1 + (low >> 16u) + (middle >> 16u);
}
";

/// The words are those of [`crate::Report`].
const INSIDE: &str = "\
fn inside(arg: u32, index: u32, count: u32, size: u32) -> bool {
    if (index < size && count <= size - index) {
        return true;
    }
    if (atomicExchange(&report[0], 1u) == 0u) {
        atomicStore(&report[1], params.dispatch);
        atomicStore(&report[2], arg);
        atomicStore(&report[3], index);
        atomicStore(&report[7], size);
    }
    return false;
}
";

const BOUND: &str = "\
fn bound(arg: u32, index: u32, count: u32, size: u32) -> u32 {
    return select(0u, index, inside(arg, index, count, size));
}
";

const BAD_INDEX: &str = "\
fn bad_index(position: u32, low: u32, high: u32, size: u32) {
    if (atomicExchange(&report[0], 1u) == 0u) {
        atomicStore(&report[1], params.dispatch);
        atomicStore(&report[2], 0xffffffffu);
        atomicStore(&report[3], position);
        atomicStore(&report[5], low);
        atomicStore(&report[6], high);
        atomicStore(&report[7], size);
    }
}
";
