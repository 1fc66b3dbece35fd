//! Sampling at computed coordinates, step by step as ONNX describes it.

use olivine_ir::op::{GridMode, GridPadding, GridSample, RoiAlign, RoiCoordinates, RoiMode};
use olivine_ir::{Shape, TensorType};

use super::Value;
use super::value::{each, flat};
use super::{meanings, one};

meanings! { |op, x, call|
    GridSample => one(grid_sample(op, x, call.ty())),
    RoiAlign => one(roi_align(op, x, call.ty())),
}

/// A place mirrored at two ends until it lies between them.
fn mirrored(mut x: f64, low: f64, high: f64) -> f64 {
    if high <= low {
        return low;
    }
    while x < low || x > high {
        x = if x < low { 2.0 * low - x } else { 2.0 * high - x };
    }
    x
}

/// The ends of an axis, beyond which padding begins.
fn ends(op: &GridSample, size: usize) -> (f64, f64) {
    if op.align_corners { (0.0, size as f64 - 1.0) } else { (-0.5, size as f64 - 0.5) }
}

/// Where a grid's number lies on an axis; NaN if nowhere.
fn coordinate(op: &GridSample, g: f64, size: usize) -> f64 {
    let n = size as f64;
    let x = if op.align_corners { (g + 1.0) / 2.0 * (n - 1.0) } else { ((g + 1.0) * n - 1.0) / 2.0 };
    let x = if op.mode == GridMode::Nearest { x.round_ties_even() } else { x };
    let (low, high) = ends(op, size);
    if low <= x && x <= high {
        return x;
    }
    match op.padding {
        GridPadding::Zeros => x,
        GridPadding::Border => x.clamp(0.0, n - 1.0),
        GridPadding::Reflection if x.is_infinite() => f64::NAN,
        GridPadding::Reflection => mirrored(x, low, high),
    }
}

/// The sample at whole positions, padding included.
fn pixel(op: &GridSample, x: &[f64], shape: &Shape, nc: &[usize], at: &[f64]) -> f64 {
    let mut from = nc.to_vec();
    for (i, size) in at.iter().zip(&shape[2..]) {
        let last = *size as f64 - 1.0;
        let (low, high) = ends(op, *size);
        let i = match op.padding {
            GridPadding::Zeros if *i < 0.0 || *i > last => return 0.0,
            GridPadding::Zeros => *i,
            GridPadding::Border => i.clamp(0.0, last),
            GridPadding::Reflection => mirrored(*i, low, high),
        };
        from.push(i as usize);
    }
    x[flat(shape, &from)]
}

/// Cubic convolution with a = −0.75 at a distance.
fn cubic(distance: f64) -> f64 {
    let (d, a) = (distance.abs(), -0.75);
    if d <= 1.0 {
        (a + 2.0) * d.powi(3) - (a + 3.0) * d.powi(2) + 1.0
    } else if d < 2.0 {
        a * d.powi(3) - 5.0 * a * d.powi(2) + 8.0 * a * d - 4.0 * a
    } else {
        0.0
    }
}

pub(super) fn grid_sample(op: &GridSample, x: &[Value], ty: TensorType) -> Result<Value, String> {
    let (shape, v, grid) = (*x[0].shape(), x[0].as_floats()?, x[1].as_floats()?);
    let spatial = shape.rank() - 2;
    let mut out = Vec::with_capacity(ty.shape.numel());
    each(&ty.shape, |at| {
        let mut cell = vec![at[0]];
        cell.extend(&at[2..]);
        cell.push(0);
        let first = flat(x[1].shape(), &cell);
        // The grid names the last axis first.
        let coordinates: Vec<f64> =
            (0..spatial).map(|a| coordinate(op, grid[first + spatial - 1 - a], shape[2 + a])).collect();
        if coordinates.iter().any(|p| p.is_nan()) {
            return out.push(f64::NAN);
        }
        if op.mode == GridMode::Nearest {
            return out.push(pixel(op, v, &shape, &at[..2], &coordinates));
        }
        let reach = if op.mode == GridMode::Cubic { 2i32 } else { 1 };
        let taps = 2 * reach as usize;
        let mut sum = 0.0;
        let Ok(neighbours) = Shape::new(&vec![taps; spatial]) else { return out.push(f64::NAN) };
        each(&neighbours, |k| {
            let mut weight = 1.0;
            let mut near = Vec::with_capacity(spatial);
            for (k, x) in k.iter().zip(&coordinates) {
                let i = x.floor() + *k as f64 - f64::from(reach - 1);
                // An infinite place has no neighbour but padding, and no distance to it.
                let distance = if x.is_infinite() { 0.0 } else { x - i };
                weight *= if op.mode == GridMode::Cubic { cubic(distance) } else { 1.0 - distance.abs() };
                near.push(i);
            }
            sum += weight * pixel(op, v, &shape, &at[..2], &near);
        });
        out.push(sum);
    });
    Ok(Value::floats(ty, out))
}

/// The start of a region on an axis and the length of one of its bins.
fn bins(op: &RoiAlign, from: f64, to: f64, count: usize) -> (f64, f64) {
    let half = if op.coordinates == RoiCoordinates::HalfPixel { 0.5 } else { 0.0 };
    let (start, end) = (from * op.scale - half, to * op.scale - half);
    let least = if op.coordinates == RoiCoordinates::HalfPixel { f64::NEG_INFINITY } else { 1.0 };
    (start, (end - start).max(least) / count as f64)
}

/// The four weighted neighbours of a place in a plane; none outside it.
fn bilinear(plane: &[f64], height: usize, width: usize, y: f64, x: f64) -> Option<[f64; 4]> {
    if y < -1.0 || y > height as f64 || x < -1.0 || x > width as f64 {
        return None;
    }
    let (y, x) = (y.clamp(0.0, height as f64 - 1.0), x.clamp(0.0, width as f64 - 1.0));
    let (y0, x0) = (y.floor() as usize, x.floor() as usize);
    let (y1, x1) = ((y0 + 1).min(height - 1), (x0 + 1).min(width - 1));
    let (dy, dx) = (y - y0 as f64, x - x0 as f64);
    Some([
        (1.0 - dy) * (1.0 - dx) * plane[y0 * width + x0],
        (1.0 - dy) * dx * plane[y0 * width + x1],
        dy * (1.0 - dx) * plane[y1 * width + x0],
        dy * dx * plane[y1 * width + x1],
    ])
}

fn larger(a: f64, b: f64) -> f64 {
    if a.is_nan() || a > b { a } else { b }
}

pub(super) fn roi_align(op: &RoiAlign, x: &[Value], ty: TensorType) -> Result<Value, String> {
    let (shape, v, regions, batches) = (*x[0].shape(), x[0].as_floats()?, x[1].as_floats()?, x[2].as_ints()?);
    let (height, width) = (shape[2], shape[3]);
    let mut out = Vec::with_capacity(ty.shape.numel());
    each(&ty.shape, |at| {
        let corners = &regions[at[0] * 4..][..4];
        let batch = super::index::clamped(batches[at[0]], shape[0]);
        let plane = &v[(batch * shape[1] + at[1]) * height * width..][..height * width];
        let (top, bin_height) = bins(op, corners[1], corners[3], op.height);
        let (left, bin_width) = bins(op, corners[0], corners[2], op.width);
        if ![top, bin_height, left, bin_width].iter().all(|x| x.is_finite()) {
            return out.push(f64::NAN);
        }
        let samples =
            |bin: f64| if op.sampling_ratio > 0 { op.sampling_ratio as i64 } else { bin.ceil() as i64 };
        let (rows, columns) = (samples(bin_height), samples(bin_width));
        let (mut sum, mut most) = (0.0, None);
        for i in 0..rows {
            for j in 0..columns {
                let y = top + (at[2] as f64 + (i as f64 + 0.5) / rows as f64) * bin_height;
                let x = left + (at[3] as f64 + (j as f64 + 0.5) / columns as f64) * bin_width;
                let near = bilinear(plane, height, width, y, x).unwrap_or_default();
                sum += near.iter().sum::<f64>();
                let best = near.into_iter().reduce(larger).unwrap_or(0.0);
                most = Some(most.map_or(best, |m| larger(m, best)));
            }
        }
        out.push(match op.mode {
            RoiMode::Average => sum / (rows * columns).max(1) as f64,
            RoiMode::Max => most.unwrap_or(0.0),
        });
    });
    Ok(Value::floats(ty, out))
}
