//! Random numbers: Philox4x32-10, and from its words uniform and normal numbers by single operations of f32 that every
//! backend makes in the same order.

use half::{bf16, f16};
use olivine_ir::DType;
use olivine_ir::op::{RngNormal, RngUniform};
use olivine_numerics::philox::{COS, LOG, SIN, TURN, philox};
use olivine_numerics::polynomial::single::{LN2_HIGH, LN2_LOW};

use crate::kernel::kernels;
use crate::operand::{Operand, Target};
use crate::parallel;

kernels! { |op, x, out, call|
    RngUniform => uniform(op, x, out),
    RngNormal => normal(op, x, out),
}

/// Blocks one task makes at least.
const GRAIN: usize = 1 << 13;

/// Where a node's numbers come from.
#[derive(Clone, Copy)]
pub(super) struct Stream {
    key: [u32; 2],
    stream: u32,
    run: [u32; 2],
}

impl Stream {
    /// The stream of a node; the operand is the run counter.
    pub(super) fn new(seed: u64, stream: usize, counter: &Operand<'_>) -> Self {
        let run = match counter.slice::<u32>() {
            [low, high] => [*low, *high],
            _ => [0, 0],
        };
        Stream { key: [seed as u32, (seed >> 32) as u32], stream: stream as u32, run }
    }

    /// The stream of a row that has its own key and number.
    pub(super) fn of_row(stream: usize, [k0, k1, low, high]: [u32; 4]) -> Self {
        Stream { key: [k0, k1], stream: stream as u32, run: [low, high] }
    }

    /// The four words of a block.
    pub(super) fn block(&self, block: u32) -> [u32; 4] {
        philox([block, self.stream, self.run[0], self.run[1]], self.key)
    }
}

/// Equally distributed numbers.
pub(crate) fn uniform(op: &RngUniform, x: &[Operand<'_>], out: &mut [Target<'_>]) {
    let (low, high) = (op.low as f32, op.high as f32);
    let span = high - low;
    let stream = Stream::new(op.seed, op.stream, &x[0]);
    fill(out, &|block| {
        stream.block(block).map(|word| {
            let u = (word >> 8) as f32 * (1.0 / 16_777_216.0);
            low + u * span
        })
    });
}

/// Normally distributed numbers.
pub(crate) fn normal(op: &RngNormal, x: &[Operand<'_>], out: &mut [Target<'_>]) {
    let (mean, scale) = (op.mean as f32, op.scale as f32);
    let stream = Stream::new(op.seed, op.stream, &x[0]);
    fill(out, &|block| {
        let [a, b, c, d] = stream.block(block);
        let ([z0, z1], [z2, z3]) = (box_muller(a, b), box_muller(c, d));
        [z0, z1, z2, z3].map(|z| mean + scale * z)
    });
}

/// Writes four numbers of every block.
fn fill(out: &mut [Target<'_>], block: &(dyn Fn(u32) -> [f32; 4] + Sync)) {
    let Some(target) = out.first_mut() else { return };
    match target.ty.dtype {
        DType::F32 => fill_as(target, block, |x| x),
        DType::F16 => fill_as(target, block, f16::from_f32),
        DType::BF16 => fill_as(target, block, bf16::from_f32),
        _ => fill_as(target, block, f64::from),
    }
}

fn fill_as<T: bytemuck::Pod + Send>(
    target: &mut Target<'_>,
    block: &(dyn Fn(u32) -> [f32; 4] + Sync),
    narrow: impl Fn(f32) -> T + Sync,
) {
    parallel::chunks(target.elements::<T>(), 4 * GRAIN, &|task, part| {
        for (i, four) in part.chunks_mut(4).enumerate() {
            let numbers = block((task * GRAIN + i) as u32);
            four.iter_mut().zip(numbers).for_each(|(to, x)| *to = narrow(x));
        }
    });
}

/// ln((n + 1) / 2²⁴) for n below 2²⁴.
fn log_of(n: u32) -> f32 {
    let bits = ((n + 1) as f32).to_bits();
    // The significand from √½ to √2.
    let high = u32::from(bits & 0x007f_ffff > 0x0035_04f3);
    let exponent = (bits >> 23) as i32 - 127 - 24 + high as i32;
    let f = f32::from_bits((bits & 0x007f_ffff) | (0x3f80_0000 - (high << 23))) - 1.0;
    let z = f * f;
    let p = LOG.iter().copied().reduce(|sum, c| sum * f + c).unwrap_or(0.0);
    let e = exponent as f32;
    let y = (p * f) * z + e * LN2_LOW;
    let y = y - 0.5 * z;
    (f + y) + e * LN2_HIGH
}

/// cos and sin of 2π·n / 2²⁴ for n below 2²⁴.
fn circle(n: u32) -> [f32; 2] {
    let quarter = (n + (1 << 21)) >> 22;
    let rest = n as i32 - (quarter << 22) as i32;
    let x = rest as f32 * TURN;
    let z = x * x;
    let sin = ((SIN[0] * z + SIN[1]) * z + SIN[2]) * z * x + x;
    let cos = ((COS[0] * z + COS[1]) * z + COS[2]) * z * z - 0.5 * z + 1.0;
    match quarter & 3 {
        0 => [cos, sin],
        1 => [-sin, cos],
        2 => [-cos, -sin],
        _ => [sin, -cos],
    }
}

/// Two independent normal numbers from two words.
fn box_muller(a: u32, b: u32) -> [f32; 2] {
    let radius = (log_of(a >> 8) * -2.0).sqrt();
    circle(b >> 8).map(|t| radius * t)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_steps_of_box_and_muller_are_near_the_true_functions() {
        for n in (0..1u32 << 24).step_by(977).chain([0, 1, (1 << 24) - 2, (1 << 24) - 1]) {
            let u = (f64::from(n) + 1.0) / 16_777_216.0;
            let (got, want) = (f64::from(log_of(n)), u.ln());
            assert!((got - want).abs() <= 2e-7 * want.abs(), "ln {u}: {got} for {want}");
            let angle = f64::from(n) / 16_777_216.0 * std::f64::consts::TAU;
            let [cos, sin] = circle(n).map(f64::from);
            assert!((cos - angle.cos()).abs() < 1.5e-7 && (sin - angle.sin()).abs() < 1.5e-7, "{n}");
        }
    }
}
