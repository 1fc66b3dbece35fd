//! x as integers: sums of digits of 8 bits, so that products with packed weights are integer dot products.
//!
//! The elements of a run are multiples of one scale, which makes the largest of them as large as the digits can hold: two
//! digits for elements of 16 bits, three for f32. Their error is below that of the dtype, relative to the largest of
//! the run.

use olivine_kernel::{Builder, Elem, Scalar, Val};

use super::decode::Group;

/// 1.5·2^23: a float that is added to it has its integer part in the low bits of the sum.
const ROUNDING: f32 = 12_582_912.0;
/// Smaller ones are as good as zeros.
const TINY: f32 = 7.888_609e-31;

/// How many digits elements have.
pub(crate) fn count(elem: Elem) -> u32 {
    if elem == Elem::F32 { 3 } else { 2 }
}

/// The largest integer of so many digits, with room for rounding.
fn limit(digits: u32) -> f32 {
    if digits == 3 { 4_161_280.0 } else { 32_512.0 }
}

/// The largest magnitude; infinity if one is infinite or NaN.
pub(crate) fn largest<'k>(x: &[Val<'k>]) -> Val<'k> {
    let k = x[0].builder();
    let largest = x[1..].iter().fold(x[0].abs(), |most, x| most.max(x.abs()));
    // NaN would be lost. Magnitudes are made smaller, so that no sum of finite ones is infinite.
    let sum = x.iter().fold(k.f32(0.0), |sum, x| x.fma(1.0f32 / 1024.0, sum));
    let finite = (sum.bitcast(Scalar::U32) & 0x7f80_0000u32).ne(0x7f80_0000u32);
    finite.select(largest, k.f32(f32::INFINITY))
}

/// What the integers are to be multiplied by; NaN if the largest is infinite.
pub(crate) fn scale(largest: Val<'_>, digits: u32) -> Val<'_> {
    let k = largest.builder();
    let scale = largest.max(TINY) * (1.0 / limit(digits));
    largest.lt(f32::INFINITY).select(scale, k.f32(f32::NAN))
}

/// Words of four signed bytes of some elements, by words and by digits, the highest first. `turns` words share as many
/// groups of four elements, in turns.
pub(crate) fn words<'k>(x: &[Val<'k>], largest: Val<'k>, digits: u32, turns: u32) -> Vec<Vec<Val<'k>>> {
    let k = x[0].builder();
    let inverse = k.f32(limit(digits)) / largest.max(TINY);
    // Lower digits are from -128 to 127: half of their range is added, which carries into the next.
    let rounding = ROUNDING + if digits == 3 { 32_896.0 } else { 128.0 };
    let bits: Vec<Val<'k>> = x.iter().map(|x| x.fma(inverse, rounding).bitcast(Scalar::U32)).collect();
    let turns = turns as usize;
    let mut all = Vec::new();
    for unit in bits.chunks(4 * turns) {
        for turn in 0..turns {
            let four: Vec<Val<'k>> = unit.iter().skip(turn).step_by(turns).copied().collect();
            all.push(bytes([four[0], four[1], four[2], four[3]], digits));
        }
    }
    all
}

/// The bytes of four integers, digit by digit.
fn bytes<'k>([a, b, c, d]: [Val<'k>; 4], digits: u32) -> Vec<Val<'k>> {
    const EVEN: u32 = 0x00ff_00ff;
    let low = |a: Val<'k>, b: Val<'k>| (a & 0xffffu32) | (b << 16);
    let (even, odd) = (low(a, c), low(b, d));
    let last = ((even & EVEN) | ((odd & EVEN) << 8)) ^ 0x8080_8080u32;
    let middle = ((even >> 8) & EVEN) | (odd & !EVEN);
    if digits == 2 {
        return vec![middle, last];
    }
    let high = |a: Val<'k>, b: Val<'k>| (a >> 16) | (b & 0xffff_0000u32);
    let (even, odd) = (high(a, c), high(b, d));
    // Seven bits, 64 too high.
    let first = ((even & EVEN) | ((odd & EVEN) << 8)) ^ 0x4040_4040u32;
    vec![first | ((first & 0x4040_4040u32) << 1), middle ^ 0x8080_8080u32, last]
}

/// An invocation's part of x for one run.
pub(crate) struct Digits<'k> {
    /// By words, and by digits.
    words: Vec<Vec<Val<'k>>>,
    scale: Val<'k>,
    /// Of every group of elements that share a scale of the weight.
    sums: Vec<Sum<'k>>,
}

struct Sum<'k> {
    digits: Vec<Val<'k>>,
    all: Val<'k>,
}

impl<'k> Digits<'k> {
    /// Words by digits, and their sums by groups of so many elements.
    pub(crate) fn new(words: Vec<Vec<Val<'k>>>, scale: Val<'k>, group: u32) -> Self {
        let k = scale.builder();
        let sum = |words: &[Vec<Val<'k>>]| {
            let ones = k.u32(0x0101_0101);
            let digits = dots(k, words.iter().map(|w| (ones, w.as_slice())), None);
            Sum { all: joined(&digits), digits }
        };
        let sums = words.chunks((group / 4) as usize).map(sum).collect();
        Digits { words, scale, sums }
    }

    /// Adds the products with the groups of a run to a total.
    pub(crate) fn dot(&self, groups: &[Group<'k>], total: Val<'k>) -> Val<'k> {
        let k = total.builder();
        let mut rest = self.words.as_slice();
        let mut run = k.f32(0.0);
        for (group, sum) in groups.iter().zip(&self.sums) {
            let Some((words, bias)) = group.q.integers() else { continue };
            let (mine, others) = rest.split_at(words.len());
            rest = others;
            // What is to be subtracted from every element of the weight, for all of them at once.
            let first = (bias != 0).then(|| sum.digits.iter().map(|s| *s * (-bias)).collect());
            let digits = dots(k, words.iter().copied().zip(mine.iter().map(Vec::as_slice)), first);
            run = group.finish(joined(&digits), sum.all, run);
        }
        run.fma(self.scale, total)
    }
}

/// Sums of products with each digit, on top of the first ones.
fn dots<'a, 'k: 'a>(
    k: &'k Builder,
    pairs: impl Iterator<Item = (Val<'k>, &'a [Val<'k>])>,
    first: Option<Vec<Val<'k>>>,
) -> Vec<Val<'k>> {
    let mut sums = first;
    for (word, digits) in pairs {
        let sums = sums.get_or_insert_with(|| vec![k.i32(0); digits.len()]);
        for (sum, digit) in sums.iter_mut().zip(digits) {
            *sum = word.packed_dot(*digit, *sum, true);
        }
    }
    sums.unwrap_or_default()
}

/// A sum of digits as a float.
fn joined<'k>(digits: &[Val<'k>]) -> Val<'k> {
    let float = |x: Val<'k>| x.convert(Scalar::F32);
    match digits {
        [high, low] => float(*high * 256i32 + *low),
        [high, middle, low] => float(*high).fma(65536.0f32, float(*middle * 256i32 + *low)),
        _ => float(digits[0]),
    }
}
