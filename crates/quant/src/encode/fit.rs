//! The search for scales. Integers follow from a scale by rounding, and the best scale for given integers is a linear least
//! squares problem: candidates around the range of the elements are tried and refined so.

use super::{Block, inverse};

/// Sums run in this many lanes, so that they vectorise; every group is a multiple of it.
pub(super) const LANES: usize = 8;

/// Rounds to the nearest integer of a range.
pub(super) fn round(x: f32, low: i32, high: i32) -> i32 {
    level(x, low as f32, high as f32) as i32
}

/// [`round`] as a float. Adding and subtracting 1.5 · 2²³ rounds what is far smaller, in two instructions on every processor.
pub(super) fn level(x: f32, low: f32, high: f32) -> f32 {
    const SHIFT: f32 = 12_582_912.0;
    x.clamp(low, high) + SHIFT - SHIFT
}

/// The scale `d` for which `d · q` is nearest to the elements, with `q` from `low` to `high`; its sign is free where the
/// range is not symmetric.
pub(super) fn symmetric(block: Block<'_>, low: i32, high: i32) -> f32 {
    let (low, high) = (low as f32, high as f32);
    search(block, [low, high], |x| x.map(|x| level(x, low, high)))
}

/// As [`symmetric`], for elements that are an index into a table of values.
pub(super) fn table(block: Block<'_>, values: &[i8; 16]) -> f32 {
    search(block, [f32::from(values[0]), f32::from(values[15])], |x| table_levels(values, x))
}

/// The nearest of ascending values, in lanes.
pub(super) fn table_levels(values: &[i8; 16], x: [f32; LANES]) -> [f32; LANES] {
    let mut levels = [f32::from(values[0]); LANES];
    for pair in values.windows(2) {
        let (low, high) = (f32::from(pair[0]), f32::from(pair[1]));
        for i in 0..LANES {
            levels[i] += if x[i] > 0.5 * (low + high) { high - low } else { 0.0 };
        }
    }
    levels
}

/// The index of the nearest of ascending values.
pub(super) fn nearest(values: &[i8; 16], x: f32) -> usize {
    values.windows(2).filter(|pair| x > 0.5 * (f32::from(pair[0]) + f32::from(pair[1]))).count()
}

/// The best `d` for elements `d · level`, where the extreme element is near `d` times one of the ends.
fn search(block: Block<'_>, ends: [f32; 2], levels: impl Fn([f32; LANES]) -> [f32; LANES]) -> f32 {
    let extreme = block.x.iter().copied().fold(0.0f32, |m, x| if x.abs() > m.abs() { x } else { m });
    let mut best = (0.0, 0.0);
    // Steps shrink or stretch the range by up to a sixth; each is refined once.
    for end in ends {
        for step in -9..=9 {
            let mut d = extreme / (end * (1.0 + 0.02 * step as f32));
            for _ in 0..2 {
                let (xq, qq) = moments(block, inverse(d), &levels);
                if qq <= 0.0 {
                    break;
                }
                // Σ w (x − d q)² is least at d = Σwxq / Σwqq, and less than Σ w x² by this.
                d = xq / qq;
                if d * xq > best.0 {
                    best = (d * xq, d);
                }
            }
        }
    }
    best.1
}

/// Σ w x q and Σ w q q, with q the level of `x · inverse`.
fn moments(block: Block<'_>, inverse: f32, levels: impl Fn([f32; LANES]) -> [f32; LANES]) -> (f32, f32) {
    let (mut xq, mut qq) = ([0.0f32; LANES], [0.0f32; LANES]);
    for (x, w) in block.x.as_chunks::<LANES>().0.iter().zip(block.weight.as_chunks::<LANES>().0) {
        let q = levels(x.map(|x| x * inverse));
        for i in 0..LANES {
            xq[i] += w[i] * x[i] * q[i];
            qq[i] += w[i] * q[i] * q[i];
        }
    }
    (xq.iter().sum(), qq.iter().sum())
}

/// The scale `d` and offset `m` for which `d · q + m` is nearest to the elements, with `q` from 0 to `high`. With `below` the
/// offset is at most 0, as formats that subtract an unsigned minimum need.
pub(super) fn affine(block: Block<'_>, high: i32, below: bool) -> (f32, f32) {
    let (mut low, mut top) = (f32::INFINITY, f32::NEG_INFINITY);
    for &x in block.x {
        (low, top) = (low.min(x), top.max(x));
    }
    if below {
        low = low.min(0.0);
    }
    if top <= low {
        return (0.0, low);
    }
    let most = high as f32;
    let mut best = (f32::INFINITY, (0.0, low));
    let mut keep = |d: f32, m: f32| {
        let inverse = inverse(d);
        let error = squared_error(block, |x| d * level((x - m) * inverse, 0.0, most) + m);
        if error < best.0 {
            best = (error, (d, m));
        }
    };
    let width = top - low;
    keep(width / most, low);
    // Ranges that cut a little off at either end or add a little, each refined by least squares.
    let cut = |steps: i32| width * (steps - 1) as f32 * 0.35 / most;
    for below_cut in 0..4 {
        for above_cut in 0..4 {
            let (mut m, end) = (low + cut(below_cut), top - cut(above_cut));
            if below {
                m = m.min(0.0);
            }
            let mut d = (end - m) / most;
            for _ in 0..2 {
                if !d.is_normal() || d < 0.0 {
                    break;
                }
                (d, m) = least_squares(block, (d, m), most, below);
                keep(d, m);
            }
        }
    }
    best.1
}

/// The `d` and `m` that minimise Σ w (x − d q − m)² for the integers that a first guess gives.
fn least_squares(block: Block<'_>, (d, m): (f32, f32), high: f32, below: bool) -> (f32, f32) {
    let inverse = inverse(d);
    let mut sums = [[0.0f32; LANES]; 5];
    for (x, w) in block.x.as_chunks::<LANES>().0.iter().zip(block.weight.as_chunks::<LANES>().0) {
        for i in 0..LANES {
            let q = level((x[i] - m) * inverse, 0.0, high);
            let (wx, wq) = (w[i] * x[i], w[i] * q);
            sums[0][i] += w[i];
            sums[1][i] += wx;
            sums[2][i] += wq;
            sums[3][i] += wx * q;
            sums[4][i] += wq * q;
        }
    }
    let [sw, sx, sq, sxq, sqq] = sums.map(|lanes| lanes.iter().map(|&x| f64::from(x)).sum::<f64>());
    let determinant = sw * sqq - sq * sq;
    let (d, m) = if determinant > 0.0 {
        ((sw * sxq - sx * sq) / determinant, (sx * sqq - sq * sxq) / determinant)
    } else {
        (0.0, if sw > 0.0 { sx / sw } else { 0.0 })
    };
    if below && m > 0.0 {
        return (if sqq > 0.0 { (sxq / sqq) as f32 } else { 0.0 }, 0.0);
    }
    (d as f32, m as f32)
}

/// Σ w (x − y)² where `y` is what an element decodes to.
pub(super) fn squared_error(block: Block<'_>, decoded: impl Fn(f32) -> f32) -> f32 {
    let mut sums = [0.0f32; LANES];
    for (x, w) in block.x.as_chunks::<LANES>().0.iter().zip(block.weight.as_chunks::<LANES>().0) {
        for i in 0..LANES {
            let error = x[i] - decoded(x[i]);
            sums[i] += w[i] * error * error;
        }
    }
    sums.iter().sum()
}
