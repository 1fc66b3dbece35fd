//! Resizing: each result position is a weighted sum of samples, axis after axis.

use olivine_ir::op::{CoordinateMode, NearestMode, Resize, ResizeMode};
use olivine_ir::{Shape, TensorType};

use super::Value;
use super::value::{around, flat};
use super::{meanings, one};

meanings! { |op, x, call|
    Resize => one(resize(op, &x[0], call.ty())),
}

/// One axis of a resize.
struct Axis {
    input: usize,
    output: usize,
    scale: f64,
}

impl Axis {
    fn of(op: &Resize, (from, to): (&Shape, &Shape), axis: usize) -> Axis {
        let (input, output) = (from[axis], to[axis]);
        let scale = op.scales.as_ref().map_or(output as f64 / input as f64, |s| s[axis]);
        Axis { input, output, scale }
    }

    fn is_identity(&self) -> bool {
        self.input == self.output && self.scale == 1.0
    }

    /// Where a result position is among the samples.
    fn coordinate(&self, mode: CoordinateMode, i: usize) -> f64 {
        let (i, input, output) = (i as f64, self.input as f64, self.output as f64);
        let half_pixel = (i + 0.5) / self.scale - 0.5;
        match mode {
            CoordinateMode::HalfPixel => half_pixel,
            CoordinateMode::HalfPixelSymmetric => {
                let adjustment = output / (self.scale * input);
                input / 2.0 * (1.0 - adjustment) + half_pixel
            }
            CoordinateMode::PytorchHalfPixel => {
                if self.output > 1 {
                    half_pixel
                } else {
                    0.0
                }
            }
            CoordinateMode::AlignCorners => {
                // The length is not rounded where the model gave a scale, as in ONNX's own tests.
                let length = self.scale * input;
                if self.output > 1 { i * (input - 1.0) / (length - 1.0) } else { 0.0 }
            }
            CoordinateMode::Asymmetric => i / self.scale,
        }
    }
}

fn nearest(mode: NearestMode, x: f64, size: usize) -> usize {
    let near = match mode {
        NearestMode::RoundPreferFloor => (x - 0.5).ceil(),
        NearestMode::RoundPreferCeil => (x + 0.5).floor(),
        NearestMode::Floor => x.floor(),
        NearestMode::Ceil => x.ceil(),
    };
    near.clamp(0.0, size as f64 - 1.0) as usize
}

/// The filter at a distance from its centre.
fn filter(op: &Resize, distance: f64) -> f64 {
    let (d, a) = (distance.abs(), op.cubic);
    match op.mode {
        ResizeMode::Cubic if d <= 1.0 => ((a + 2.0) * d - (a + 3.0)) * d * d + 1.0,
        ResizeMode::Cubic if d < 2.0 => ((a * d - 5.0 * a) * d + 8.0 * a) * d - 4.0 * a,
        ResizeMode::Cubic => 0.0,
        _ => (1.0 - d).max(0.0),
    }
}

/// Samples and weights of one result position.
fn weights(op: &Resize, axis: &Axis, i: usize) -> Vec<(usize, f64)> {
    let x = axis.coordinate(op.coordinates, i);
    let stretch = if op.antialias { axis.scale.min(1.0) } else { 1.0 };
    let reach = if op.mode == ResizeMode::Cubic { 2.0 } else { 1.0 } / stretch;
    let (low, high) = ((x - reach).floor() as i64, (x + reach).ceil() as i64);
    let last = axis.input as i64 - 1;
    let mut out = Vec::new();
    let mut total = 0.0;
    for j in low..=high {
        if op.exclude_outside && !(0..=last).contains(&j) {
            continue;
        }
        let weight = filter(op, (j as f64 - x) * stretch);
        total += weight;
        out.push((j.clamp(0, last) as usize, weight));
    }
    if op.exclude_outside || op.antialias {
        out.iter_mut().for_each(|(_, w)| *w /= total);
    }
    out
}

pub(super) fn resize(op: &Resize, x: &Value, ty: TensorType) -> Result<Value, String> {
    let shape = *x.shape();
    if ty.shape.has_zero() {
        return Ok(x.pick(ty, |_| None));
    }
    let axes: Vec<Axis> = (0..shape.rank()).map(|a| Axis::of(op, (&shape, &ty.shape), a)).collect();
    if op.mode == ResizeMode::Nearest {
        return Ok(x.pick(ty, |at| {
            let from: Vec<usize> = at
                .iter()
                .zip(&axes)
                .map(|(i, a)| nearest(op.nearest, a.coordinate(op.coordinates, *i), a.input))
                .collect();
            Some(flat(&shape, &from))
        }));
    }
    let (mut data, mut dims) = (x.as_floats()?.to_vec(), shape.to_vec());
    for (number, axis) in axes.iter().enumerate().filter(|(_, a)| !a.is_identity()) {
        let (outer, size, inner) = around(&dims, number);
        let mut out = Vec::with_capacity(outer * axis.output * inner);
        for o in 0..outer {
            for i in 0..axis.output {
                let taps = weights(op, axis, i);
                for n in 0..inner {
                    out.push(taps.iter().map(|(j, w)| w * data[(o * size + j) * inner + n]).sum::<f64>());
                }
            }
        }
        data = out;
        dims[number] = axis.output;
    }
    Ok(Value::floats(ty, data))
}
