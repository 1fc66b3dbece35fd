//! One axis of a resize: where results lie in the operand, and which samples make them. Every backend reads the same
//! tables, so that all of them choose the same samples.
//!
//! Sizes come apart from the operation: its own may be expressions.

use std::ops::Range;

use olivine_ir::op::{CoordinateMode, NearestMode, Resize, ResizeMode};
use olivine_ir::{Error, memory};

/// Samples and weights for every position of an axis' result, the same number for each.
pub struct Filter {
    /// The operand's size.
    pub input: usize,
    /// The result's size.
    pub output: usize,
    /// Samples per position.
    pub taps: usize,
    /// The samples, position after position.
    pub indices: Vec<usize>,
    /// Their weights.
    pub weights: Vec<f64>,
}

/// Beyond every position that a sample can have.
const FAR: f64 = (1u64 << 52) as f64;

/// One axis of a resize.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ResizedAxis {
    /// The operand's size.
    pub input: usize,
    /// The result's size.
    pub output: usize,
    /// The scale, where the model gave one; otherwise it follows from the sizes.
    pub given: Option<f64>,
}

impl ResizedAxis {
    /// The axes of a resize between two shapes of its rank.
    pub fn all(op: &Resize, from: &[usize], to: &[usize]) -> Vec<Self> {
        let of = |(axis, (input, output)): (usize, (&usize, &usize))| ResizedAxis {
            input: *input,
            output: *output,
            given: given_scale(op, axis),
        };
        from.iter().zip(to).enumerate().map(of).collect()
    }

    /// True when the axis passes through untouched.
    pub fn is_unchanged(&self) -> bool {
        self.input == self.output && self.given.is_none_or(is_one)
    }

    fn scale(&self) -> f64 {
        self.given.unwrap_or(self.output as f64 / self.input as f64)
    }
}

/// The scale that the model gave for an axis.
pub fn given_scale(op: &Resize, axis: usize) -> Option<f64> {
    op.scales.as_ref().map(|scales| scales[axis])
}

/// Whether a given scale leaves an axis as it is, where its size stays.
pub fn is_one(scale: f64) -> bool {
    (scale - 1.0).abs() <= 1e-9
}

/// Where position `i` of the result lies in the operand.
fn coordinate(op: &Resize, axis: &ResizedAxis, i: usize) -> f64 {
    let (input, output, scale) = (axis.input as f64, axis.output as f64, axis.scale());
    // A given scale may stand for a fractional size, which the result's size rounds down.
    let exact = scale * input;
    let centre = (i as f64 + 0.5) / scale;
    let x = match op.coordinates {
        CoordinateMode::HalfPixel => centre - 0.5,
        CoordinateMode::HalfPixelSymmetric => input / 2.0 * (1.0 - output / exact) + centre - 0.5,
        CoordinateMode::PytorchHalfPixel if axis.output == 1 => 0.0,
        CoordinateMode::PytorchHalfPixel => centre - 0.5,
        CoordinateMode::AlignCorners if i == 0 || exact == 1.0 => 0.0,
        CoordinateMode::AlignCorners => i as f64 * (input - 1.0) / (exact - 1.0),
        CoordinateMode::Asymmetric => i as f64 / scale,
    };
    // A position on a sample stays on it, whatever rounding the arithmetic above picked up.
    if (x - x.round()).abs() <= 8.0 * f64::EPSILON * input { x.round() } else { x }
}

/// The nearest sample for every position of an axis.
pub fn nearest(op: &Resize, axis: &ResizedAxis) -> Result<Vec<usize>, Error> {
    if axis.is_unchanged() {
        return memory::collected(0..axis.input);
    }
    memory::collected((0..axis.output).map(|i| {
        let x = coordinate(op, axis, i);
        let at = match op.nearest {
            NearestMode::RoundPreferFloor if x - x.floor() <= 0.5 => x.floor(),
            NearestMode::RoundPreferCeil if x - x.floor() < 0.5 => x.floor(),
            NearestMode::RoundPreferFloor | NearestMode::RoundPreferCeil => x.floor() + 1.0,
            NearestMode::Floor => x.floor(),
            NearestMode::Ceil => x.ceil(),
        };
        (at.max(0.0) as usize).min(axis.input.saturating_sub(1))
    }))
}

/// Samples of a position where no filter is stretched, which no size changes; `None` where downsampling stretches it.
pub fn fixed_taps(op: &Resize) -> Option<usize> {
    let taps = if op.mode == ResizeMode::Cubic { 4 } else { 2 };
    (!op.antialias).then_some(taps)
}

impl Filter {
    /// The interpolation of an axis; samples outside are the edge's.
    pub fn new(op: &Resize, axis: &ResizedAxis) -> Result<Self, Error> {
        let (input, output) = (axis.input, axis.output);
        let cubic = op.mode == ResizeMode::Cubic;
        // Downsampling with antialiasing stretches the filter by the inverse of the scale.
        // A scale far below one over the size would only repeat the edges, at the cost of a long filter.
        let least = 0.25 / input.max(1) as f64;
        let shrink = if op.antialias { axis.scale().max(least).min(1.0) } else { 1.0 };
        let radius = if cubic { 2.0 } else { 1.0 };
        let lead = (-radius / shrink).floor() as i64 + 1;
        let taps = (2 - 2 * lead) as usize;
        let all = output.saturating_mul(taps);
        let (indices, room) = (memory::with_room(all)?, memory::with_room(all)?);
        let mut filter = Filter { input, output, taps, indices, weights: room };
        let mut weights = memory::zeroed(taps)?;
        for i in 0..output {
            let x = coordinate(op, axis, i).clamp(-FAR, FAR);
            // The sample before x, strictly: a position on a sample counts as the end of the step towards it.
            let before = x.ceil() - 1.0;
            let ratio = x - before;
            for (k, w) in weights.iter_mut().enumerate() {
                let distance = (shrink * ((lead + k as i64) as f64 - ratio)).abs();
                *w = if cubic { cubic_weight(distance, op.cubic) } else { (1.0 - distance).max(0.0) };
            }
            let place = |k: usize| before as i64 + lead + k as i64;
            let outside = |k: usize| place(k) < 0 || place(k) >= input as i64;
            // A position all of whose samples lie outside keeps them: it reads the edge.
            if op.exclude_outside && (0..taps).any(|k| !outside(k) && weights[k] != 0.0) {
                (0..taps).filter(|&k| outside(k)).for_each(|k| weights[k] = 0.0);
            }
            if op.exclude_outside || op.antialias {
                let sum: f64 = weights.iter().sum();
                weights.iter_mut().filter(|_| sum != 0.0).for_each(|w| *w /= sum);
            }
            filter.weights.extend_from_slice(&weights);
            let last = input.saturating_sub(1) as i64;
            filter.indices.extend((0..taps).map(|k| place(k).clamp(0, last) as usize));
        }
        Ok(filter)
    }

    /// Every sample as it is.
    pub fn identity(size: usize) -> Result<Self, Error> {
        let (indices, weights) = (memory::collected(0..size)?, memory::filled(1.0, size)?);
        Ok(Filter { input: size, output: size, taps: 1, indices, weights })
    }

    /// True for [`Filter::identity`].
    pub fn is_identity(&self) -> bool {
        self.taps == 1
    }

    /// Samples and weights of one position, which is below the result's size.
    pub fn of(&self, i: usize) -> (&[usize], &[f64]) {
        let at = i * self.taps..(i + 1) * self.taps;
        (&self.indices[at.clone()], &self.weights[at])
    }

    /// The samples that positions `first..end` read, with those between.
    pub fn reach(&self, first: usize, end: usize) -> Range<usize> {
        let seen = &self.indices[first * self.taps..end * self.taps];
        let (lo, hi) = seen.iter().fold((self.input, 0), |(lo, hi), &i| (lo.min(i), hi.max(i + 1)));
        lo..hi.max(lo)
    }
}

/// Cubic convolution at a distance, with parameter `a`.
fn cubic_weight(x: f64, a: f64) -> f64 {
    if x <= 1.0 {
        ((a + 2.0) * x - (a + 3.0)) * x * x + 1.0
    } else if x < 2.0 {
        ((a * x - 5.0 * a) * x + 8.0 * a) * x - 4.0 * a
    } else {
        0.0
    }
}
