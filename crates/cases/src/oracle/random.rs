//! Random numbers and draws by the steps that their contract names: f64 arithmetic rounded to f32 after every step, which
//! is what f32 arithmetic gives.

use olivine_ir::op::{RngNormal, RngUniform, Sample};
use olivine_ir::{DType, TensorType};

use super::Value;
use super::{meanings, one};
use crate::bound::round_to;

meanings! { |op, x, call|
    RngUniform => one(uniform(op, x, call.ty())),
    RngNormal => one(normal(op, x, call.ty())),
    Sample => one(sample(op, x, call.ty())),
    Penalties => one(penalties(x)),
}

/// A number as f32 holds it.
fn single(x: f64) -> f64 {
    round_to(DType::F32, x)
}

/// Sums of products by Horner's rule, the highest coefficient first.
fn horner(x: f64, coefficients: &[f64]) -> f64 {
    coefficients.iter().fold(0.0, |sum, c| single(single(sum * x) + single(*c)))
}

/// Philox4x32-10 of counter `(block, stream, run)` and a key.
fn philox(block: u64, stream: usize, run: &[i64], seed: u64) -> [u64; 4] {
    const WORD: u64 = 0xffff_ffff;
    let mut x = [block & WORD, stream as u64, run[0] as u64, run[1] as u64];
    let mut key = [seed & WORD, seed >> 32];
    for _ in 0..10 {
        let (left, right) = (x[0] * 0xD251_1F53, x[2] * 0xCD9E_8D57);
        x = [(right >> 32) ^ x[1] ^ key[0], right & WORD, (left >> 32) ^ x[3] ^ key[1], left & WORD];
        key = [(key[0] + 0x9E37_79B9) & WORD, (key[1] + 0xBB67_AE85) & WORD];
    }
    x
}

pub(super) fn uniform(op: &RngUniform, x: &[Value], ty: TensorType) -> Result<Value, String> {
    let run = x[0].as_ints()?;
    let (low, high) = (single(op.low), single(op.high));
    let span = single(high - low);
    let number = |i: usize| {
        let word = philox(i as u64 / 4, op.stream, run, op.seed)[i % 4];
        single(low + single((word >> 8) as f64 / 16_777_216.0 * span))
    };
    Ok(Value::floats(ty, (0..ty.shape.numel()).map(number).collect()))
}

pub(super) fn normal(op: &RngNormal, x: &[Value], ty: TensorType) -> Result<Value, String> {
    let run = x[0].as_ints()?;
    let (mean, scale) = (single(op.mean), single(op.scale));
    let number = |i: usize| {
        let words = philox(i as u64 / 4, op.stream, run, op.seed);
        let pair = i % 4 / 2 * 2;
        let radius = single((-2.0 * log((words[pair] >> 8) + 1)).sqrt());
        let (cos, sin) = circle(words[pair + 1] >> 8);
        let z = single(radius * if i.is_multiple_of(2) { cos } else { sin });
        single(mean + single(scale * z))
    };
    Ok(Value::floats(ty, (0..ty.shape.numel()).map(number).collect()))
}

/// ln(n / 2²⁴) for n from 1 to 2²⁴.
fn log(n: u64) -> f64 {
    let mut exponent = f64::from(63 - n.leading_zeros());
    let mut significand = n as f64 / exponent.exp2();
    if significand > single(std::f64::consts::SQRT_2) {
        (significand, exponent) = (significand / 2.0, exponent + 1.0);
    }
    let (f, e) = (significand - 1.0, exponent - 24.0);
    let p = horner(
        f,
        &[
            7.0376836292e-2,
            -1.1514610310e-1,
            1.1676998740e-1,
            -1.2420140846e-1,
            1.4249322787e-1,
            -1.6668057665e-1,
            2.0000714765e-1,
            -2.4999993993e-1,
            3.3333331174e-1,
        ],
    );
    let z = single(f * f);
    let y = single(single(single(p * f) * z) + single(e * single(-2.12194440e-4)));
    let y = single(y - z / 2.0);
    single(single(f + y) + e * 0.693359375)
}

/// cos and sin of 2π·n / 2²⁴ for n below 2²⁴.
fn circle(n: u64) -> (f64, f64) {
    let quarter = (n as f64 / 4_194_304.0 + 0.5).floor();
    let x = single((n as f64 - quarter * 4_194_304.0) * single(std::f64::consts::TAU / 16_777_216.0));
    let z = single(x * x);
    let sin = horner(z, &[-1.9515295891e-4, 8.3321608736e-3, -1.6666654611e-1]);
    let sin = single(single(single(sin * z) * x) + x);
    let cos = horner(z, &[2.443315711809948e-5, -1.388731625493765e-3, 4.166664568298827e-2]);
    let cos = single(single(single(single(cos * z) * z) - z / 2.0) + 1.0);
    match quarter as u64 % 4 {
        0 => (cos, sin),
        1 => (-sin, cos),
        2 => (-cos, -sin),
        _ => (sin, -cos),
    }
}

/// ⌊2³⁰·eˣ⌋ for x ≤ 0.
fn weight(x: f64) -> u128 {
    if x <= -21.0 {
        return 0;
    }
    let n = single(x * single(std::f64::consts::LOG2_E)).round_ties_even();
    let r = single(x - n * 0.693359375);
    let r = single(r - single(n * single(-2.12194440e-4)));
    let p = horner(
        r,
        &[
            1.9875691500e-4,
            1.3981999507e-3,
            8.3334519073e-3,
            4.1665795894e-2,
            1.6666665459e-1,
            5.0000001201e-1,
        ],
    );
    let y = single(single(single(p * single(r * r)) + r) + 1.0);
    (y * (n + 30.0).exp2()) as u128
}

/// The likeliest first, then filters, then the draw: everything in exact integers once tokens are weighed.
pub(super) fn sample(op: &Sample, x: &[Value], ty: TensorType) -> Result<Value, String> {
    let logits = x[0].as_floats()?;
    let v = x[0].shape().last().copied().unwrap_or(1);
    let of = |numbers: &[f64], row: usize| if numbers.len() == 1 { numbers[0] } else { numbers[row] };
    let numbers: Vec<Vec<f64>> = x[1..5].iter().map(Value::to_f64).collect();
    let run = x[5].as_ints()?;
    let least = (-100f64).exp2();
    // Draws of no rows.
    let none = x[5].shape().has_zero();
    let draw = |(row, logits): (usize, &[f64])| {
        let [mut t, mut k, p, min_p] = [0, 1, 2, 3].map(|i| of(&numbers[i], row));
        if none || t.is_nan() || t < least {
            (t, k) = (1.0, 1.0);
        }
        let inverse = single(1.0 / t.min(1.0 / least));
        let clean: Vec<f64> =
            logits.iter().map(|x| if x.is_nan() { f64::NEG_INFINITY } else { *x }).collect();
        let most = clean.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let weights: Vec<u128> = clean
            .iter()
            .map(|x| if *x == most { 1 << 30 } else { weight(single(single(x - most) * inverse)) })
            .collect();
        let mut order: Vec<usize> = (0..v).collect();
        // A stable sort: equals stay in order, the two zeros among them.
        order.sort_by(|i, j| clean[*j].partial_cmp(&clean[*i]).unwrap_or(std::cmp::Ordering::Equal));
        if k >= 1.0 {
            order.truncate(k as usize);
        }
        if p < 1.0 {
            let total: u128 = order.iter().map(|i| weights[*i]).sum();
            let part = (p.max(0.0) * 4_294_967_296.0).floor() as u128;
            let wanted = (total * part).div_ceil(1 << 32).max(1);
            let mut sum = 0;
            let count = order.iter().take_while(|i| {
                let open = sum < wanted;
                sum += weights[**i];
                open
            });
            let count = count.count();
            order.truncate(count);
        }
        let threshold = single(min_p.clamp(0.0, 1.0) * 1_073_741_824.0) as u128;
        order.retain(|i| weights[*i] >= threshold);
        order.sort_unstable();
        let total: u128 = order.iter().map(|i| weights[*i]).sum();
        let word = match run.get(4 * row..4 * row + 4) {
            Some(own) if x[5].shape().rank() == 2 => {
                philox(0, op.stream, &own[2..], own[0] as u64 | (own[1] as u64) << 32)[0]
            }
            _ if none => 0,
            _ => philox(row as u64, op.stream, run, op.seed)[0],
        };
        let mark = (total * u128::from(word)) >> 32;
        let mut sum = 0;
        let token = order.iter().find(|i| {
            sum += weights[**i];
            sum > mark
        });
        token.map_or(-1, |i| *i as i64)
    };
    Ok(Value::ints(ty, logits.chunks(v).enumerate().map(draw).collect()))
}

/// Logits by how often their token came before.
pub(super) fn penalties(x: &[Value]) -> Result<Value, String> {
    let (logits, tokens) = (x[0].as_floats()?, x[1].as_ints()?);
    let v = x[0].shape().last().copied().unwrap_or(1).max(1);
    let t = x[1].shape().last().copied().unwrap_or(0);
    let numbers: Vec<Vec<f64>> = x[2..5].iter().map(Value::to_f64).collect();
    let mut out = logits.to_vec();
    for (row, out) in out.chunks_mut(v).enumerate() {
        let of = |i: usize| if numbers[i].len() == 1 { numbers[i][0] } else { numbers[i][row] };
        let tokens = &tokens[row * t..(row + 1) * t];
        for (token, x) in out.iter_mut().enumerate() {
            let count = tokens.iter().filter(|i| **i == token as i64).count();
            if count > 0 {
                let repeated = if *x > 0.0 { *x / of(0) } else { *x * of(0) };
                *x = repeated - of(1) * count as f64 - of(2);
            }
        }
    }
    Ok(Value::floats(x[0].ty, out))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn philox_gives_the_known_answers() {
        assert_eq!(philox(0, 0, &[0, 0], 0), [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]);
        let ones = [i64::from(u32::MAX); 2];
        let known = [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd];
        assert_eq!(philox(u64::MAX, u32::MAX as usize, &ones, u64::MAX), known);
    }

    #[test]
    fn the_steps_are_near_the_functions_that_they_stand_for() {
        for n in (1..=1u64 << 24).step_by(4093) {
            let u = n as f64 / 16_777_216.0;
            assert!((log(n) - u.ln()).abs() <= 2e-7 * u.ln().abs(), "ln {u}");
            let (cos, sin) = circle(n - 1);
            let angle = (n - 1) as f64 / 16_777_216.0 * std::f64::consts::TAU;
            assert!((cos - angle.cos()).abs() < 2e-7 && (sin - angle.sin()).abs() < 2e-7, "angle {angle}");
            let x = single(-21.0 * u);
            let want = x.exp() * 1_073_741_824.0;
            assert!((weight(x) as f64 - want).abs() <= 1.0 + 2e-7 * want, "exp {x}");
        }
    }
}
