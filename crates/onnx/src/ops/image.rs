//! Sampling images at computed places.

use olivine_ir::op::{Binary, GridMode, GridPadding, RoiAlign, RoiCoordinates, RoiMode};
use olivine_ir::{DType, ValueId};

use super::Entry;
use super::arity::Takes;
use super::compose::{as_float, cast, reshaped, size, sizes, with_number};
use crate::import::{Answer, NodeContext, Value};

pub(super) const OPERATORS: &[Entry] = &[
    ("AffineGrid", Takes(2, 1), affine_grid),
    ("GridSample", Takes(2, 1), grid_sample),
    ("RoiAlign", Takes(3, 1), roi_align),
];

fn grid_sample(n: &mut NodeContext<'_, '_>) -> Answer<Vec<Value>> {
    let given = n.tensor(0)?;
    let dtype = n.dtype(given)?;
    let (mut x, mut grid) = (as_float(n, 0)?, n.tensor(1)?);
    let mode = match n.string_or("mode", "linear")?.as_str() {
        "linear" | "bilinear" => GridMode::Linear,
        "cubic" | "bicubic" => GridMode::Cubic,
        "nearest" => GridMode::Nearest,
        other => return Err(n.wrong(format!("mode `{other}` is unknown"))),
    };
    let padding = n.string_or("padding_mode", "zeros")?;
    let padding = GridPadding::from_name(&padding)
        .ok_or_else(|| n.wrong(format!("padding_mode `{padding}` is unknown")))?;
    let align_corners = n.flag("align_corners", false)?;
    let (shape, places) = (n.shape(x)?, n.shape(grid)?);
    let line = shape.rank() == 3 && places.rank() == 3 && places[2] == 1 && mode != GridMode::Cubic;
    if line {
        // A line is an image of one row, read at the middle of it.
        x = reshaped(n, x, &[shape[0], shape[1], 1, shape[2]])?;
        let along = reshaped(n, grid, &[places[0], 1, places[1], 1])?;
        let across = with_number(n, Binary::Mul, along, 0.0)?;
        grid = n.build(|g| g.concat(&[along, across], 3))?;
    }
    let mut y = n.build(|g| g.grid_sample(x, grid, mode, padding, align_corners))?;
    if line {
        y = reshaped(n, y, &[shape[0], shape[1], places[1]])?;
    }
    let y = cast(n, y, dtype)?;
    n.like_first(y)
}

fn affine_grid(n: &mut NodeContext<'_, '_>) -> Answer<Vec<Value>> {
    let (theta, wanted) = (n.tensor(0)?, n.fixed_ints(1)?);
    let (shape, wanted) = (n.shape(theta)?, sizes(n, "size", &wanted)?);
    let spatial = wanted.len().saturating_sub(2);
    if !(2..=3).contains(&spatial) || shape.dims() != [wanted[0], spatial, spatial + 1] {
        return Err(n.wrong(format!("transforms of {shape} do not fit a size of {wanted:?}")));
    }
    let align = n.flag("align_corners", false)?;
    let dtype = n.dtype(theta)?;
    let places = &wanted[2..];
    // Coordinates of every place, the last axis first, then a one.
    let mut along = Vec::with_capacity(spatial + 1);
    for axis in (0..spatial).rev() {
        let size = places[axis];
        let (first, step) = match (align, size) {
            (true, 1) => (0.0, 0.0),
            (true, _) => (-1.0, 2.0 / (size as f64 - 1.0)),
            (false, _) => (1.0 / size as f64 - 1.0, 2.0 / size as f64),
        };
        let numbers = n.build(|g| g.range(dtype, first, step, size))?;
        let mut dims = vec![1; spatial];
        dims[axis] = size;
        let numbers = reshaped(n, numbers, &dims)?;
        along.push(n.build(|g| g.expand(numbers, places))?);
    }
    let one = n.scalar(dtype, 1.0);
    along.push(n.build(|g| g.fill(one, places))?);
    let grid = n.build(|g| g.stack(&along, spatial))?;
    let count = places.iter().fold(1usize, |a, b| a.saturating_mul(*b));
    let grid = reshaped(n, grid, &[count, spatial + 1])?;
    let moved = n.build(|g| g.matmul_nt(grid, theta))?;
    let dims: Vec<usize> = [wanted[0]].into_iter().chain(places.iter().copied()).chain([spatial]).collect();
    let y = reshaped(n, moved, &dims)?;
    n.like_first(y)
}

fn roi_align(n: &mut NodeContext<'_, '_>) -> Answer<Vec<Value>> {
    let (x, regions, batch): (ValueId, ValueId, ValueId) = (n.tensor(0)?, n.tensor(1)?, n.tensor(2)?);
    let default = if n.opset() < 16 { "output_half_pixel" } else { "half_pixel" };
    let coordinates = n.string_or("coordinate_transformation_mode", default)?;
    let coordinates = RoiCoordinates::from_name(&coordinates)
        .ok_or_else(|| n.wrong(format!("coordinate_transformation_mode `{coordinates}` is unknown")))?;
    let mode = match n.string_or("mode", "avg")?.as_str() {
        "avg" => RoiMode::Average,
        "max" => RoiMode::Max,
        other => return Err(n.wrong(format!("mode `{other}` is unknown"))),
    };
    let (height, width) = (n.int_or("output_height", 1)?, n.int_or("output_width", 1)?);
    let sampling_ratio = n.int_or("sampling_ratio", 0)?;
    let op = RoiAlign {
        mode,
        height: size(n, "output_height", height)?,
        width: size(n, "output_width", width)?,
        sampling_ratio: size(n, "sampling_ratio", sampling_ratio)?,
        scale: f64::from(n.float_or("spatial_scale", 1.0)?),
        coordinates,
    };
    let dtype = n.dtype(x)?;
    let regions = cast(n, regions, dtype)?;
    let batch = cast(n, batch, DType::I64)?;
    let y = n.build(|g| g.roi_align(op, x, regions, batch))?;
    n.like_first(y)
}
