//! Drawing tokens from logits, with weights that are integers, so that every backend draws the same.

use std::cmp::Reverse;

use half::{bf16, f16};
use olivine_ir::DType;
use olivine_ir::op::Sample;

use super::random::Stream;
use crate::kernel::kernels;
use crate::operand::{Operand, Target};
use crate::parallel;
use crate::scratch;

kernels! { |op, x, out, call|
    Sample => sample(op, x, out),
}

/// The weight of the likeliest token.
const ONE: u32 = 1 << 30;
/// The order key of −∞, which NaN has too.
const NOTHING: u32 = 0x007f_ffff;
/// Temperatures below take the likeliest token; those above its inverse are taken for that.
const LEAST_TEMPERATURE: f32 = f32::from_bits((127 - 100) << 23);

/// What a row is drawn with.
struct Filters {
    inverse_temperature: f32,
    top_k: usize,
    top_p: f32,
    min_p: f32,
}

/// Draws a token from each row.
pub(crate) fn sample(op: &Sample, x: &[Operand<'_>], out: &mut [Target<'_>]) {
    let (Some(target), [logits, temperature, top_k, top_p, min_p, counter]) = (out.first_mut(), x) else {
        return;
    };
    let v = logits.shape().last().copied().unwrap_or(0);
    let stream = Stream::new(op.seed, op.stream, counter);
    // Draws of no rows.
    let none = counter.shape().has_zero();
    let word = |row: usize| match counter.shape().rank() {
        2 => match counter.slice::<u32>().get(4 * row..4 * row + 4) {
            Some(&[k0, k1, low, high]) => Stream::of_row(op.stream, [k0, k1, low, high]).block(0)[0],
            _ => 0,
        },
        _ => stream.block(row as u32)[0],
    };
    let filters = |row: usize| {
        let t = of_row::<f32>(temperature, row);
        let k = of_row::<i32>(top_k, row);
        let greedy = none || t.is_nan() || t < LEAST_TEMPERATURE;
        let all = usize::try_from(k).ok().filter(|k| *k > 0).unwrap_or(v);
        Filters {
            inverse_temperature: if greedy { 1.0 } else { 1.0 / t.min(1.0 / LEAST_TEMPERATURE) },
            top_k: if greedy { 1 } else { all },
            top_p: of_row(top_p, row),
            min_p: of_row(min_p, row),
        }
    };
    parallel::chunks(target.elements::<i32>(), 1, &|row, to| {
        let range = row * v..(row + 1) * v;
        let keys: Vec<u32> = match logits.ty.dtype {
            DType::F16 => scratch::collected(logits.slice::<f16>()[range].iter().map(|x| key(x.to_f32()))),
            DType::BF16 => scratch::collected(logits.slice::<bf16>()[range].iter().map(|x| key(x.to_f32()))),
            _ => scratch::collected(logits.slice::<f32>()[range].iter().map(|x| key(*x))),
        };
        to[0] = draw(&keys, &filters(row), word(row)) as i32;
    });
}

/// A row's number, or the one for all rows.
fn of_row<T: bytemuck::Pod + Default>(x: &Operand<'_>, row: usize) -> T {
    let numbers = x.slice::<T>();
    numbers.get(if numbers.len() == 1 { 0 } else { row }).copied().unwrap_or_default()
}

/// A number that orders like the logit.
fn key(x: f32) -> u32 {
    let bits = if x == 0.0 { 0 } else { x.to_bits() };
    match bits >> 31 {
        _ if x.is_nan() => NOTHING,
        0 => bits | 0x8000_0000,
        _ => !bits,
    }
}

/// The logit of a key.
fn logit(key: u32) -> f32 {
    f32::from_bits(if key >> 31 == 1 { key ^ 0x8000_0000 } else { !key })
}

/// ⌊2³⁰·eˣ⌋ for x ≤ 0.
fn weight(x: f32) -> u32 {
    if x.to_bits() & 0x7fff_ffff >= 21.0f32.to_bits() {
        return 0;
    }
    const P: [f32; 6] = [1.987_569_1e-4, 1.398_199_9e-3, 8.333_452e-3, 4.166_579_6e-2, 1.666_666_5e-1, 0.5];
    let n = (x * std::f32::consts::LOG2_E).round_ties_even();
    let r = x - n * 0.693_359_4;
    let r = r - n * -2.121_944_4e-4;
    let p = P.iter().copied().reduce(|sum, c| sum * r + c).unwrap_or(0.0);
    let y = (p * (r * r) + r) + 1.0;
    (y * f32::from_bits(((n as i32 + 30 + 127) as u32) << 23)) as u32
}

/// ⌊x·y / 2³²⌋, and whether something is left.
fn scaled(x: u64, y: u32) -> (u64, bool) {
    let wide = u128::from(x) * u128::from(y);
    ((wide >> 32) as u64, wide as u32 != 0)
}

/// The token that a word of Philox draws.
fn draw(keys: &[u32], filters: &Filters, word: u32) -> usize {
    let most = keys.iter().copied().max().unwrap_or(NOTHING);
    if filters.top_k == 1 {
        return keys.iter().position(|key| *key == most).unwrap_or(0);
    }
    let highest = logit(most);
    let weigh = |key: u32| match key {
        _ if key == most => ONE,
        NOTHING => 0,
        _ => weight((logit(key) - highest) * filters.inverse_temperature),
    };
    let mut kept: Vec<(u32, u32)> =
        scratch::collected(keys.iter().enumerate().map(|(i, key)| (*key, i as u32)));
    scratch::probe::<(u32, u32, u32)>(kept.len());
    let order = |(key, i): &(u32, u32)| (Reverse(*key), *i);
    if filters.top_k < kept.len() {
        kept.select_nth_unstable_by_key(filters.top_k - 1, order);
        kept.truncate(filters.top_k);
    }
    let mut kept: Vec<(u32, u32, u32)> =
        kept.into_iter().map(|(key, i)| (key, i, weigh(key))).filter(|(_, _, w)| *w > 0).collect();
    if filters.top_p < 1.0 {
        kept.sort_unstable_by_key(|(key, i, _)| order(&(*key, *i)));
        let total: u64 = kept.iter().map(|(_, _, w)| u64::from(*w)).sum();
        let (part, rest) = scaled(total, (filters.top_p * 4_294_967_296.0) as u32);
        let wanted = (part + u64::from(rest)).max(1);
        let mut sum = 0;
        let enough = |(_, _, w): &(u32, u32, u32)| {
            sum += u64::from(*w);
            sum >= wanted
        };
        let count = kept.iter().position(enough).map_or(kept.len(), |last| last + 1);
        kept.truncate(count);
    }
    // NaN is no filter.
    let least = if filters.min_p > 0.0 { (filters.min_p.min(1.0) * ONE as f32) as u32 } else { 0 };
    kept.retain(|(_, _, w)| *w >= least);
    kept.sort_unstable_by_key(|(_, i, _)| *i);
    let total: u64 = kept.iter().map(|(_, _, w)| u64::from(*w)).sum();
    let (mark, _) = scaled(total, word);
    let mut sum = 0;
    let past = |(_, _, w): &&(u32, u32, u32)| {
        sum += u64::from(*w);
        sum > mark
    };
    kept.iter().find(past).map_or(0, |(_, i, _)| *i as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filters(top_k: usize, top_p: f32, min_p: f32) -> Filters {
        Filters { inverse_temperature: 1.0, top_k, top_p, min_p }
    }

    fn drawn(logits: &[f32], filters: &Filters) -> Vec<usize> {
        let keys: Vec<u32> = logits.iter().map(|x| key(*x)).collect();
        let mut all: Vec<usize> =
            (0..64u32).map(|i| draw(&keys, filters, i.wrapping_mul(0x0410_4105))).collect();
        all.sort_unstable();
        all.dedup();
        all
    }

    #[test]
    fn weights_are_those_of_exp() {
        assert_eq!(weight(0.0), ONE);
        assert_eq!(weight(f32::NEG_INFINITY), 0);
        for i in 0..2000 {
            let x = -(i as f32) * 0.0105;
            let want = f64::from(x).exp() * f64::from(ONE);
            assert!((f64::from(weight(x)) - want).abs() <= 1.0 + want * 2e-7, "{x}");
        }
    }

    #[test]
    fn filters_keep_what_they_should() {
        let x = [1.0, 3.0, 2.0, 3.0, f32::NAN, f32::NEG_INFINITY];
        assert_eq!(drawn(&x, &filters(1, 1.0, 0.0)), [1]);
        assert_eq!(drawn(&x, &filters(2, 1.0, 0.0)), [1, 3]);
        assert_eq!(drawn(&x, &filters(3, 1.0, 0.0)), [1, 2, 3]);
        assert_eq!(drawn(&x, &filters(6, 1.0, 0.0)), [0, 1, 2, 3]);
        assert_eq!(drawn(&x, &filters(6, 0.0, 0.0)), [1]);
        assert_eq!(drawn(&x, &filters(6, 0.5, 0.0)), [1, 3]);
        assert_eq!(drawn(&x, &filters(6, 1.0, 0.3)), [1, 2, 3]);
        assert_eq!(drawn(&x, &filters(6, 1.0, 7.0)), [1, 3]);
        assert_eq!(drawn(&[f32::NAN, f32::NEG_INFINITY], &filters(2, 1.0, 0.0)), [0, 1]);
        assert_eq!(drawn(&[f32::INFINITY, 1e30], &filters(2, 1.0, 0.0)), [0]);
    }
}
