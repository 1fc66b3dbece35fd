//! Random numbers: Philox4x32-10 and what is made of its words, by the CPU backend's steps in its order.
//!
//! Every step is one exact operation on f32: products are opaque, so that no compiler joins one with a sum, and nothing
//! here comes near the numbers that devices flush.

use olivine_ir::DType;
use olivine_ir::op::{RngNormal, RngUniform};
use olivine_kernel::{Access, Buf, Elem, Scalar, Val};
use olivine_numerics::philox::{COS, KEY_STEPS, LOG, MULTIPLIERS, ROUNDS, SIN, TURN};
use olivine_numerics::polynomial::single::{LN2_HIGH, LN2_LOW};

use crate::kernels;
use crate::launch::{Launch, bytes};
use crate::math;
use crate::site::{Operand, Site, linear_group};

kernels! { |op, site|
    RngUniform => uniform(op, site),
    RngNormal => normal(op, site),
}

/// Integer operations of a block, for profiles.
const BLOCK_OPS: u64 = 100;

/// Where a node's numbers come from, in registers.
pub(super) struct Stream<'k> {
    key: [Val<'k>; 2],
    stream: Val<'k>,
    run: [Val<'k>; 2],
}

impl<'k> Stream<'k> {
    /// Declares the seed, the stream and the run counter, which is read from memory at every run.
    pub(super) fn declare(l: &Launch<'k>, seed: u64, stream: usize, counter: &Operand) -> Self {
        let run = l.bind("run_counter", Elem::U32, Access::Read, counter.memory);
        let key = [l.size("seed", seed as u32 as usize), l.size("seed_high", (seed >> 32) as usize)];
        let stream = l.size("stream", stream);
        Stream { key, stream, run: [run.load_uniform(0u32), run.load_uniform(1u32)] }
    }

    /// The stream of a row that has its own key and number in memory.
    pub(super) fn of_row(stream: Val<'k>, draws: Buf<'k>, row: Val<'k>) -> Self {
        let [k0, k1, low, high] = [0u32, 1, 2, 3].map(|i| draws.load_uniform(row * 4 + i));
        Stream { key: [k0, k1], stream, run: [low, high] }
    }

    /// The four words of a block.
    pub(super) fn block(&self, block: Val<'k>) -> [Val<'k>; 4] {
        let [mut a, mut b, mut c, mut d] = [block, self.stream, self.run[0], self.run[1]];
        let [mut k0, mut k1] = self.key;
        for round in 0..ROUNDS {
            if round > 0 {
                (k0, k1) = (k0 + KEY_STEPS[0], k1 + KEY_STEPS[1]);
            }
            let (high0, low0) = (a.mul_high(MULTIPLIERS[0]), a * MULTIPLIERS[0]);
            let (high1, low1) = (c.mul_high(MULTIPLIERS[1]), c * MULTIPLIERS[1]);
            (a, b, c, d) = (high1 ^ b ^ k0, low1, high0 ^ d ^ k1, low0);
        }
        [a, b, c, d]
    }
}

/// Equally distributed numbers.
pub(crate) fn uniform(op: &RngUniform, site: &mut Site<'_>) -> Result<(), String> {
    let (low, high) = (op.low as f32, op.high as f32);
    fill("rng_uniform", (op.seed, op.stream), [low, high - low], site, |words, [low, span]| {
        words.map(|word| {
            let u = (word >> 8).convert(Scalar::F32) * (1.0 / 16_777_216.0);
            low + (u * span).opaque()
        })
    })
}

/// Normally distributed numbers.
pub(crate) fn normal(op: &RngNormal, site: &mut Site<'_>) -> Result<(), String> {
    let numbers = [op.mean as f32, op.scale as f32];
    fill("rng_normal", (op.seed, op.stream), numbers, site, |[a, b, c, d], [mean, scale]| {
        let ([z0, z1], [z2, z3]) = (box_muller(a, b), box_muller(c, d));
        [z0, z1, z2, z3].map(|z| mean + (scale * z).opaque())
    })
}

/// Writes four numbers of every block, an invocation each; memory is padded to four.
fn fill(
    name: &str,
    (seed, stream): (u64, usize),
    [shift, scale]: [f32; 2],
    site: &mut Site<'_>,
    numbers: impl for<'k> Fn([Val<'k>; 4], [Val<'k>; 2]) -> [Val<'k>; 4],
) -> Result<(), String> {
    let (counter, target) = (site.operands[0].clone(), site.targets[0].clone());
    let (n, dtype) = (target.ty.shape.sizes().numel(), target.ty.dtype);
    if n == 0 {
        return Ok(());
    }
    if dtype == DType::F64 && !site.caps.target.f64 {
        return Err("the device has no f64".into());
    }
    let group = site.group_size(256);
    let k = site.builder(name, group);
    let l = Launch::new(&k);
    let to = l.write("y", &target);
    let stream = Stream::declare(&l, seed, stream, &counter);
    let (count, blocks) = (l.size("n", n), l.size("blocks", n.div_ceil(4)));
    let (shift, scale) = (l.f32("shift", shift), l.f32("scale", scale));
    let block = linear_group(&k) * group + k.local_index();
    k.if_(block.lt(blocks), || {
        let first = block * 4;
        let values = numbers(stream.block(block), [shift, scale]).map(|x| math::round_to(x, dtype));
        if dtype == DType::F64 {
            for (i, x) in values.iter().enumerate() {
                k.if_((first + i).lt(count), || to.store(first + i, x.convert(Scalar::F64)));
            }
        } else {
            to.store_vec(first, &values);
        }
    });
    let blocks = n.div_ceil(4);
    let bound = l.done();
    site.dispatch(k, bound, blocks.div_ceil(group), (blocks * BLOCK_OPS, bytes(&target.ty)))
}

/// A polynomial, the highest coefficient first, rounded after every step.
pub(super) fn horner<'k>(x: Val<'k>, coefficients: &[f32]) -> Val<'k> {
    let mut rest = coefficients.iter();
    let first = x.like(f64::from(rest.next().copied().unwrap_or(0.0)));
    rest.fold(first, |sum, c| (sum * x).opaque() + *c)
}

/// ln((n + 1) / 2²⁴) for n below 2²⁴.
fn log_of(n: Val<'_>) -> Val<'_> {
    let k = n.builder();
    let bits = (n + 1).convert(Scalar::F32).bitcast(Scalar::U32);
    let fraction = bits & 0x007f_ffff;
    let high = fraction.gt(0x0035_04f3).select(k.u32(1), k.u32(0));
    let exponent = (bits >> 23) + high;
    let e = exponent.convert(Scalar::I32) - (127 + 24);
    let f = (fraction | (k.u32(0x3f80_0000) - (high << 23))).bitcast(Scalar::F32).opaque() - 1.0;
    let z = (f * f).opaque();
    let p = horner(f, &LOG);
    let e = e.convert(Scalar::F32);
    let y = ((p * f).opaque() * z).opaque() + (e * LN2_LOW).opaque();
    let y = y.opaque() - (z * 0.5).opaque();
    (f + y.opaque()).opaque() + (e * LN2_HIGH).opaque()
}

/// cos and sin of 2π·n / 2²⁴ for n below 2²⁴.
fn circle(n: Val<'_>) -> [Val<'_>; 2] {
    let quarter = (n + (1u32 << 21)) >> 22;
    let rest = n.bitcast(Scalar::I32) - (quarter << 22).bitcast(Scalar::I32);
    let x = (rest.convert(Scalar::F32) * TURN).opaque();
    let z = (x * x).opaque();
    let sin = horner(z, &SIN);
    let sin = (((sin * z).opaque() * x).opaque() + x).opaque();
    let cos = horner(z, &COS);
    let cos = (((cos * z).opaque() * z).opaque() - (z * 0.5).opaque()).opaque() + 1.0;
    // Quarters 1 and 3 change places; signs are bits.
    let (cos, sin) = (cos.bitcast(Scalar::U32), sin.bitcast(Scalar::U32));
    let odd = (quarter & 1).ne(0);
    let first = odd.select(sin, cos) ^ sign_if((quarter + 1) & 2);
    let second = odd.select(cos, sin) ^ sign_if(quarter & 2);
    [first.bitcast(Scalar::F32), second.bitcast(Scalar::F32)]
}

/// Two independent normal numbers from two words.
fn box_muller<'k>(a: Val<'k>, b: Val<'k>) -> [Val<'k>; 2] {
    let radius = math::sqrt((log_of(a >> 8) * -2.0).opaque());
    circle(b >> 8).map(|t| (radius * t).opaque())
}

/// The sign bit where a number is not zero.
fn sign_if(x: Val<'_>) -> Val<'_> {
    let k = x.builder();
    x.ne(0).select(k.u32(0x8000_0000), k.u32(0))
}
