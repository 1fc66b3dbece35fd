//! Blocks of 256 elements whose scales are quantised too. Groups are fitted one by one; then the scales' own scale is searched
//! with the groups' integers following it.

use super::fit::{LANES, affine, level, nearest, round, symmetric, table, table_levels};
use super::{Block, inverse, put_f16};
use crate::decode::IQ4_VALUES;

/// One part of a block.
fn group(block: Block<'_>, size: usize, i: usize) -> Block<'_> {
    Block { x: &block.x[i * size..(i + 1) * size], weight: &block.weight[i * size..(i + 1) * size] }
}

fn f16(x: f32) -> f32 {
    half::f16::from_f32(x).to_f32()
}

/// Scales of a block in which element = d · scale of its group · level.
struct Scaled {
    d: f32,
    scales: [i32; 16],
}

/// Searches `d` and integer scales from `low` to `high` for groups of `size` elements, whose best scales are given. `levels`
/// rounds elements over its scale to the nearest value that the format has.
fn scaled(
    block: Block<'_>,
    size: usize,
    (low, high): (i32, i32),
    best: impl Fn(Block<'_>) -> f32,
    levels: impl Fn([f32; LANES]) -> [f32; LANES],
) -> Scaled {
    let groups = block.x.len() / size;
    let mut wanted = [0.0f32; 16];
    for (i, wanted) in wanted[..groups].iter_mut().enumerate() {
        *wanted = best(group(block, size, i));
    }
    let extreme = wanted.iter().copied().fold(0.0f32, |m, s| if s.abs() > m.abs() { s } else { m });
    let mut result = (f32::INFINITY, Scaled { d: 0.0, scales: [0; 16] });
    if extreme == 0.0 {
        return result.1;
    }
    for end in [low as f32, high as f32] {
        for step in -2..=2 {
            let mut d = f16(extreme / (end * (1.0 + 0.03 * step as f32)));
            for _ in 0..2 {
                let (mut scales, mut error, mut xq, mut qq) = ([0; 16], 0.0, 0.0, 0.0);
                for i in 0..groups {
                    let part = group(block, size, i);
                    let middle = round(wanted[i] * inverse(d), low, high);
                    // The neighbours of the nearest scale may round the elements better.
                    let mut least = (f32::INFINITY, 0.0, 0.0);
                    for scale in (middle - 1).max(low)..=(middle + 1).min(high) {
                        let moments = moments(part, d * scale as f32, scale as f32, &levels);
                        if moments.0 < least.0 {
                            (least, scales[i]) = (moments, scale);
                        }
                    }
                    error += least.0;
                    xq += least.1;
                    qq += least.2;
                }
                if error < result.0 {
                    result = (error, Scaled { d, scales });
                }
                if qq == 0.0 {
                    break;
                }
                d = f16(xq / qq);
            }
        }
    }
    result.1
}

/// Of elements as `scale · level`: the squared error, Σ w x u and Σ w u u, with `u` the integer scale times the level.
fn moments(
    part: Block<'_>,
    scale: f32,
    integer: f32,
    levels: impl Fn([f32; LANES]) -> [f32; LANES],
) -> (f32, f32, f32) {
    let inverse = inverse(scale);
    let mut sums = [[0.0f32; LANES]; 3];
    for (x, w) in part.x.as_chunks::<LANES>().0.iter().zip(part.weight.as_chunks::<LANES>().0) {
        let levels = levels(x.map(|x| x * inverse));
        for i in 0..LANES {
            let (u, off) = (integer * levels[i], x[i] - scale * levels[i]);
            sums[0][i] += w[i] * off * off;
            sums[1][i] += w[i] * x[i] * u;
            sums[2][i] += w[i] * u * u;
        }
    }
    sums.map(|lanes| lanes.iter().sum()).into()
}

pub(super) fn q3_k(block: Block<'_>, into: &mut [u8]) {
    let found = scaled(block, 16, (-32, 31), |b| symmetric(b, -4, 3), |x| x.map(|x| level(x, -4.0, 3.0)));
    let d = put_f16(into, 108, found.d);
    for (i, &scale) in found.scales.iter().enumerate() {
        let six = (scale + 32) as u8;
        into[96 + i % 8] |= (six & 15) << (4 * (i / 8));
        into[104 + i % 4] |= (six >> 4) << (2 * (i / 4));
    }
    for (i, &x) in block.x.iter().enumerate() {
        let q = (round(x * inverse(d * found.scales[i / 16] as f32), -4, 3) + 4) as u8;
        into[32 + i / 128 * 32 + i % 32] |= (q & 3) << (2 * (i / 32 % 4));
        into[i % 32] |= (q >> 2) << (i / 32);
    }
}

pub(super) fn q6_k(block: Block<'_>, into: &mut [u8]) {
    let found =
        scaled(block, 16, (-128, 127), |b| symmetric(b, -32, 31), |x| x.map(|x| level(x, -32.0, 31.0)));
    let d = put_f16(into, 208, found.d);
    for (i, &scale) in found.scales.iter().enumerate() {
        into[192 + i] = scale as i8 as u8;
    }
    for (i, &x) in block.x.iter().enumerate() {
        let q = (round(x * inverse(d * found.scales[i / 16] as f32), -32, 31) + 32) as u8;
        into[i / 128 * 64 + i % 64] |= (q & 15) << (4 * (i / 64 % 2));
        into[128 + i / 128 * 32 + i % 32] |= (q >> 4) << (2 * (i / 32 % 4));
    }
}

pub(super) fn iq4_xs(block: Block<'_>, into: &mut [u8]) {
    let found = scaled(block, 32, (-32, 31), |b| table(b, &IQ4_VALUES), |x| table_levels(&IQ4_VALUES, x));
    let d = put_f16(into, 0, found.d);
    let mut high = 0u16;
    for (i, &scale) in found.scales[..8].iter().enumerate() {
        let six = (scale + 32) as u8;
        into[4 + i / 2] |= (six & 15) << (4 * (i % 2));
        high |= u16::from(six >> 4) << (2 * i);
    }
    into[2..4].copy_from_slice(&high.to_le_bytes());
    for (i, &x) in block.x.iter().enumerate() {
        let q = nearest(&IQ4_VALUES, x * inverse(d * found.scales[i / 32] as f32)) as u8;
        into[8 + i / 32 * 16 + i % 16] |= q << (4 * (i / 16 % 2));
    }
}

/// Scales and minimums of a block in which element = d · scale · q − dmin · min.
struct Offset {
    d: f32,
    dmin: f32,
    scales: [i32; 16],
    mins: [i32; 16],
}

impl Offset {
    /// The integer of element `i`, which is in a group.
    fn quant(&self, x: f32, group: usize, high: i32) -> i32 {
        let (scale, min) = (self.d * self.scales[group] as f32, self.dmin * self.mins[group] as f32);
        round((x + min) * inverse(scale), 0, high)
    }
}

/// Searches both scales and the integers from 0 to `most` of every group of `size` elements, which are 0 to `high`.
fn offset(block: Block<'_>, size: usize, high: i32, most: i32) -> Offset {
    let groups = block.x.len() / size;
    let (mut scales, mut mins) = ([0.0f32; 16], [0.0f32; 16]);
    for i in 0..groups {
        let (d, m) = affine(group(block, size, i), high, true);
        (scales[i], mins[i]) = (d.max(0.0), -m);
    }
    let largest = |of: &[f32; 16]| of.iter().fold(0.0f32, |m, &x| m.max(x));
    let (mut d, mut dmin) = (f16(largest(&scales) / most as f32), f16(largest(&mins) / most as f32));
    let mut best = (f32::INFINITY, Offset { d: 0.0, dmin: 0.0, scales: [0; 16], mins: [0; 16] });
    for _ in 0..4 {
        let mut trial = Offset { d, dmin, scales: [0; 16], mins: [0; 16] };
        let (mut error, mut sums) = (0.0, Sums::default());
        for i in 0..groups {
            let part = group(block, size, i);
            let (scale, min) =
                (round(scales[i] * inverse(d), 0, most), round(mins[i] * inverse(dmin), 0, most));
            let mut least = (f32::INFINITY, Sums::default());
            for scale in (scale - 1).max(0)..=(scale + 1).min(most) {
                for min in (min - 1).max(0)..=(min + 1).min(most) {
                    let found = sums_of(part, d, dmin, scale, min, high);
                    if found.0 < least.0 {
                        (least, trial.scales[i], trial.mins[i]) = (found, scale, min);
                    }
                }
            }
            error += least.0;
            sums.add(&least.1);
        }
        if error < best.0 {
            best = (error, trial);
        }
        let Some(next) = sums.solve() else { break };
        let next = (f16(next.0), f16(next.1));
        if next == (d, dmin) {
            break;
        }
        (d, dmin) = next;
    }
    best.1
}

/// What the least squares problem of `d` and `dmin` needs: x ≈ d · u − dmin · v.
#[derive(Clone, Copy, Default)]
struct Sums {
    xu: f64,
    xv: f64,
    uu: f64,
    uv: f64,
    vv: f64,
}

impl Sums {
    fn add(&mut self, other: &Sums) {
        self.xu += other.xu;
        self.xv += other.xv;
        self.uu += other.uu;
        self.uv += other.uv;
        self.vv += other.vv;
    }

    /// Both scales, where they are determined and positive.
    fn solve(&self) -> Option<(f32, f32)> {
        let determinant = self.uu * self.vv - self.uv * self.uv;
        let (d, dmin) = if determinant > 1e-9 * self.uu * self.vv && self.vv > 0.0 {
            let d = (self.xu * self.vv - self.xv * self.uv) / determinant;
            (d, (self.xu * self.uv - self.xv * self.uu) / determinant)
        } else if self.uu > 0.0 {
            (self.xu / self.uu, 0.0)
        } else {
            return None;
        };
        (d > 0.0 && dmin >= 0.0).then_some((d as f32, dmin as f32))
    }
}

fn sums_of(part: Block<'_>, d: f32, dmin: f32, scale: i32, min: i32, high: i32) -> (f32, Sums) {
    let (step, low, high) = (d * scale as f32, dmin * min as f32, high as f32);
    let (inverse, integer) = (inverse(step), scale as f32);
    let mut sums = [[0.0f32; LANES]; 6];
    for (x, w) in part.x.as_chunks::<LANES>().0.iter().zip(part.weight.as_chunks::<LANES>().0) {
        for i in 0..LANES {
            let q = level((x[i] + low) * inverse, 0.0, high);
            let (off, u) = (x[i] - (step * q - low), integer * q);
            sums[0][i] += w[i] * off * off;
            sums[1][i] += w[i] * x[i] * u;
            sums[2][i] += w[i] * x[i];
            sums[3][i] += w[i] * u * u;
            sums[4][i] += w[i] * u;
            sums[5][i] += w[i];
        }
    }
    let [error, xu, x, uu, u, one] = sums.map(|lanes| lanes.iter().sum::<f32>());
    let (v, wide) = (f64::from(min), f64::from);
    (error, Sums { xu: wide(xu), xv: v * wide(x), uu: wide(uu), uv: v * wide(u), vv: v * v * wide(one) })
}

pub(super) fn q2_k(block: Block<'_>, into: &mut [u8]) {
    let mut found = offset(block, 16, 3, 15);
    for i in 0..16 {
        into[i] = (found.scales[i] | found.mins[i] << 4) as u8;
    }
    (found.d, found.dmin) = (put_f16(into, 80, found.d), put_f16(into, 82, found.dmin));
    for (i, &x) in block.x.iter().enumerate() {
        into[16 + i / 128 * 32 + i % 32] |= (found.quant(x, i / 16, 3) as u8) << (2 * (i / 32 % 4));
    }
}

pub(super) fn q4_k(block: Block<'_>, into: &mut [u8]) {
    let found = offset(block, 32, 15, 63);
    put_scales(&found, into);
    for (i, &x) in block.x.iter().enumerate() {
        into[16 + i / 64 * 32 + i % 32] |= (found.quant(x, i / 32, 15) as u8) << (4 * (i / 32 % 2));
    }
}

pub(super) fn q5_k(block: Block<'_>, into: &mut [u8]) {
    let found = offset(block, 32, 31, 63);
    put_scales(&found, into);
    for (i, &x) in block.x.iter().enumerate() {
        let q = found.quant(x, i / 32, 31) as u8;
        into[48 + i / 64 * 32 + i % 32] |= (q & 15) << (4 * (i / 32 % 2));
        into[16 + i % 32] |= (q >> 4) << (i / 32);
    }
}

/// Both scales and the eight 6-bit scales and minimums, where `scale_min` reads them.
fn put_scales(found: &Offset, into: &mut [u8]) {
    put_f16(into, 0, found.d);
    put_f16(into, 2, found.dmin);
    let packed = &mut into[4..16];
    for i in 0..8 {
        let (scale, min) = (found.scales[i] as u8, found.mins[i] as u8);
        if i < 4 {
            packed[i] |= scale;
            packed[i + 4] |= min;
        } else {
            packed[i + 4] = scale & 15 | min << 4;
            packed[i - 4] |= scale >> 4 << 6;
            packed[i] |= min >> 4 << 6;
        }
    }
}
