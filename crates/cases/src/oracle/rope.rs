//! Rotary positions, angle by angle.

use std::f64::consts::TAU;

use olivine_ir::op::{HeadLayout, Rope, RopeScaling, RopeStyle};

use super::Value;
use super::value::{each, flat};
use super::{meanings, one};

meanings! { |op, x, call|
    Rope => one(rope(op, x)),
}

/// Angle per position of pair `i`, and the factor on cos and sin.
fn frequency(op: &Rope, i: usize) -> (f64, f64) {
    let d = op.rotary as f64;
    let plain = op.base.powf(-(2.0 * i as f64) / d);
    match op.scaling {
        RopeScaling::None => (plain, 1.0),
        RopeScaling::Linear { factor } => (plain / factor, 1.0),
        RopeScaling::Ntk { factor } => {
            let base = if d > 2.0 { op.base * factor.powf(d / (d - 2.0)) } else { op.base };
            (1.0 / base.powf(2.0 * i as f64 / d), 1.0)
        }
        RopeScaling::Yarn { factor, original, beta_fast, beta_slow } => {
            // The pair that turns so many times within the original context.
            let pair = |turns: f64| d * (original / (turns * TAU)).ln() / (2.0 * op.base.ln());
            let first = pair(beta_fast).floor().max(0.0);
            let last = pair(beta_slow).ceil().min(d - 1.0);
            let last = if first == last { last + 0.001 } else { last };
            let ramp = ((i as f64 - first) / (last - first)).clamp(0.0, 1.0);
            let amplitude = if factor > 1.0 { 1.0 + 0.1 * factor.ln() } else { 1.0 };
            (plain * (1.0 - ramp) + plain / factor * ramp, amplitude)
        }
        RopeScaling::Llama3 { factor, low, high, original } => {
            let turns = original * plain / TAU;
            if turns > high {
                (plain, 1.0)
            } else if turns < low {
                (plain / factor, 1.0)
            } else {
                let smooth = (turns - low) / (high - low);
                (plain * smooth + plain / factor * (1.0 - smooth), 1.0)
            }
        }
    }
}

pub(super) fn rope(op: &Rope, x: &[Value]) -> Result<Value, String> {
    let data = x[0].as_floats()?;
    let shape = *x[0].shape();
    let half = op.rotary / 2;
    let sequence = if op.layout == HeadLayout::Bshd { 1 } else { 2 };
    let mut out = data.to_vec();
    let mut failed = Ok(());
    each(&shape, |at| {
        let e = at[3];
        if e >= op.rotary {
            return;
        }
        let (pair, partner, first) = match op.style {
            RopeStyle::NeoX => (e % half, if e < half { e + half } else { e - half }, e < half),
            RopeStyle::GptJ => (e / 2, e ^ 1, e % 2 == 0),
        };
        match turn(op, x, at[0], at[sequence], shape[sequence], pair) {
            Ok((cos, sin)) => {
                let mut other = at.to_vec();
                other[3] = partner;
                let (own, other) = (data[flat(&shape, at)], data[flat(&shape, &other)]);
                out[flat(&shape, at)] = if first { own * cos - other * sin } else { own * cos + other * sin };
            }
            Err(e) => failed = Err(e),
        }
    });
    failed.map(|()| Value::floats(x[0].ty, out))
}

/// cos and sin of a pair at a place of the sequence.
fn turn(
    op: &Rope,
    x: &[Value],
    b: usize,
    s: usize,
    length: usize,
    pair: usize,
) -> Result<(f64, f64), String> {
    let batched = x[1].shape().rank() == if op.tables { 3 } else { 2 };
    let row = if batched { b * length + s } else { s };
    if op.tables {
        let at = row * (op.rotary / 2) + pair;
        return Ok((x[1].as_floats()?[at], x[2].as_floats()?[at]));
    }
    let (frequency, amplitude) = frequency(op, pair);
    let angle = x[1].as_ints()?[row] as f64 * frequency;
    Ok((angle.cos() * amplitude, angle.sin() * amplitude))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(scaling: RopeScaling) -> Rope {
        Rope {
            layout: HeadLayout::Bshd,
            style: RopeStyle::NeoX,
            rotary: 8,
            base: 10000.0,
            scaling,
            tables: false,
        }
    }

    #[test]
    fn frequencies_follow_the_published_formulas() {
        let close = |a: f64, b: f64| assert!((a - b).abs() < 1e-12 * b.abs(), "{a} is not {b}");
        close(frequency(&with(RopeScaling::None), 1).0, 0.1);
        close(frequency(&with(RopeScaling::Linear { factor: 4.0 }), 1).0, 0.025);
        // 10000 · 2^(8/6) raised to −6/8.
        close(frequency(&with(RopeScaling::Ntk { factor: 2.0 }), 3).0, 0.0005);
        let llama = RopeScaling::Llama3 { factor: 8.0, low: 1.0, high: 4.0, original: 64.0 };
        close(frequency(&with(llama), 0).0, 1.0);
        close(frequency(&with(llama), 3).0, 0.001 / 8.0);
        // One pair between: 64·0.1/2π = 1.01859 turns.
        let smooth = (64.0 * 0.1 / TAU - 1.0) / 3.0;
        close(frequency(&with(llama), 1).0, 0.1 * smooth + 0.0125 * (1.0 - smooth));
        let yarn = RopeScaling::Yarn { factor: 4.0, original: 2048.0, beta_fast: 32.0, beta_slow: 1.0 };
        close(frequency(&with(yarn), 0).0, 1.0);
        close(frequency(&with(yarn), 0).1, 1.0 + 0.1 * 4f64.ln());
        // Pairs 1.008 and 2.513 turn 32 and 1 times: the ramp runs from 1 to 3.
        close(frequency(&with(yarn), 2).0, 0.01 * 0.5 + 0.0025 * 0.5);
        close(frequency(&with(yarn), 3).0, 0.00025);
    }
}
