//! The arithmetic of an online softmax. Scores are kept as exponents of two: scaled by log2(e) when they are made.

use olivine_kernel::{Scalar, Val};

/// What a masked score is: weights relative to any maximum are 0.
pub(super) fn lowest(scalar: Scalar) -> f64 {
    if scalar == Scalar::F64 { f64::MIN } else { f64::from(f32::MIN) }
}

/// 2^x for x ≤ 0; 0 where the result would be denormal, NaN for NaN.
///
/// The device's own power may be off by units that grow with |x|, so it only sees the fraction.
pub(crate) fn exp2_below(x: Val<'_>) -> Val<'_> {
    let double = x.scalar() == Scalar::F64;
    let least = if double { -1022.0 } else { -126.0 };
    // Apart from x, or a compiler that expects no NaN makes a maximum of it.
    let tiny = x.opaque().lt(least);
    let x = tiny.select(x.like(least), x);
    let whole = x.round_even();
    let fraction = x - whole;
    let exponent = whole.convert(Scalar::I32);
    let result = if double {
        let high = ((exponent + 1023) << 20).bitcast(Scalar::U32);
        let scale = high.like(0.0).join(high).bitcast(Scalar::F64);
        exp2_fraction(fraction) * scale
    } else {
        fraction.exp2_native() * ((exponent + 127) << 23).bitcast(Scalar::F32)
    };
    tiny.select(result.like(0.0), result)
}

/// 2^x for |x| ≤ 1/2 in f64: the series of e^y, whose term of degree 14 is below 2^-57.
fn exp2_fraction(x: Val<'_>) -> Val<'_> {
    let y = x * std::f64::consts::LN_2;
    let mut factorial = 1.0;
    let terms: Vec<f64> = (0..14)
        .map(|n| {
            factorial *= f64::from(n.max(1));
            1.0 / factorial
        })
        .collect();
    terms.iter().rev().skip(1).fold(y.like(terms[13]), |sum, term| sum.fma(y, *term))
}

/// The number from which scores are counted: the maximum, or 0 while there is none.
pub(super) fn base(maximum: Val<'_>) -> Val<'_> {
    let least = maximum.like(lowest(maximum.scalar()));
    maximum.le(least).select(maximum.like(0.0), maximum)
}

/// What a row's accumulated values are multiplied by: one over the sum of weights, a sink's among them; 0 for a row
/// without any weight.
pub(super) fn normaliser<'k>(maximum: Val<'k>, sum: Val<'k>, sink: Option<Val<'k>>) -> Val<'k> {
    let (rescale, total) = match sink {
        None => (sum.like(1.0), sum),
        Some(sink) => {
            let base = base(maximum.max(sink));
            let rescale = exp2_below(maximum - base);
            (rescale, sum.fma(rescale, exp2_below(sink - base)))
        }
    };
    total.eq(0).select(total.like(0.0), rescale / total)
}

/// What was accumulated over some keys of a row, relative to their maximum.
pub(super) struct Accumulated<'k> {
    pub(super) maximum: Val<'k>,
    pub(super) sum: Val<'k>,
    /// Some elements of the weighted values.
    pub(super) values: Vec<Val<'k>>,
}

/// What was accumulated over all of several groups of keys, added in their order.
pub(super) fn merge<'k>(parts: &[Accumulated<'k>]) -> Accumulated<'k> {
    let maximum = parts.iter().skip(1).fold(parts[0].maximum, |most, part| most.max(part.maximum));
    let from = base(maximum);
    let rescales: Vec<Val<'k>> = parts.iter().map(|part| exp2_below(part.maximum - from)).collect();
    let add = |of: &dyn Fn(&Accumulated<'k>) -> Val<'k>| {
        let first = of(&parts[0]) * rescales[0];
        parts.iter().zip(&rescales).skip(1).fold(first, |sum, (part, rescale)| of(part).fma(*rescale, sum))
    };
    let values = (0..parts[0].values.len()).map(|i| add(&|part| part.values[i])).collect();
    Accumulated { maximum, sum: add(&|part| part.sum), values }
}
