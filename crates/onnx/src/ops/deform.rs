//! Deformable convolutions, and col2im.

use olivine_ir::op::Binary;
use olivine_ir::{DType, Tensor, ValueId};

use super::Entry;
use super::arity::Takes;
use super::compose::{binary, cast, floats, in_range, reshaped, size, sizes, wide};
use super::convolution::{moves, per_channel, spatial_sizes};
use crate::import::{Answer, NodeContext, Value};

pub(super) const OPERATORS: &[Entry] =
    &[("Col2Im", Takes(3, 1), col2im), ("DeformConv", Takes(5, 1), deform_conv)];

/// Samples between pixels for every tap of the kernel, then a matmul with the weights.
fn deform_conv(n: &mut NodeContext<'_, '_>) -> Answer<Vec<Value>> {
    let (x, w, offset) = (n.tensor(0)?, n.tensor(1)?, n.tensor(2)?);
    let (bias, mask) = (n.optional(3)?, n.optional(4)?);
    let (_, kernel) = spatial_sizes(n, x, w)?;
    let input = n.shape(x)?[2..].to_vec();
    let (spatial, dtype) = (input.len(), n.dtype(x)?);
    let moves = moves(n, spatial)?;
    let (group, groups) = (n.int_or("group", 1)?, n.int_or("offset_group", 1)?);
    let (group, groups) = (size(n, "group", group)?.max(1), size(n, "offset_group", groups)?.max(1));
    let (xs, ws, os) = (n.shape(x)?, n.shape(w)?, n.shape(offset)?);
    let taps: usize = kernel.iter().fold(1usize, |a, b| a.saturating_mul(*b));
    let fits = spatial <= 3
        && os.rank() == xs.rank()
        && os[0] == xs[0]
        && xs[1].is_multiple_of(groups)
        && ws[1].checked_mul(group) == Some(xs[1])
        && ws[0].is_multiple_of(group)
        && groups.checked_mul(taps).and_then(|t| t.checked_mul(spatial)) == Some(os[1]);
    if !fits {
        return Err(n.wrong(format!(
            "x of {xs}, w of {ws} and offsets of {os} do not fit in {group} and {groups} groups"
        )));
    }
    let (batch, channels, places) = (xs[0], xs[1], os[2..].to_vec());
    let area = places.iter().try_fold(1usize, |a, b| a.checked_mul(*b)).filter(|area| *area <= MAX_GRID);
    let Some(area) = area.filter(|_| taps <= MAX_GRID) else {
        return Err(n.wrong(format!("{taps} taps at {places:?} places are more than {MAX_GRID} of either")));
    };
    // Places to read, one row of taps and result positions for every batch and group of offsets.
    let each = batch * groups;
    let offset = reshaped(n, offset, &[each, taps, spatial, area])?;
    let offset = cast(n, offset, wide(dtype))?;
    let mut along = Vec::with_capacity(spatial);
    for axis in 0..spatial {
        let inner: usize = kernel[axis + 1..].iter().fold(1usize, |a, b| a.saturating_mul(*b));
        let reach: usize = places[axis + 1..].iter().fold(1usize, |a, b| a.saturating_mul(*b));
        let start = -(moves.pads[axis].0 as f32);
        let tap = |t: usize| (t / inner.max(1) % kernel[axis] * moves.dilations[axis]) as f32;
        let step = |p: usize| (p / reach.max(1) % places[axis] * moves.strides[axis]) as f32;
        let rows = floats(n, wide(dtype), [taps, 1], (0..taps).map(|t| start + tap(t)).collect())?;
        let columns = floats(n, wide(dtype), [1, area], (0..area).map(step).collect())?;
        let regular = binary(n, Binary::Add, rows, columns)?;
        let moved = n.build(|g| g.narrow(offset, 2, axis, 1))?;
        let moved = reshaped(n, moved, &[each, taps, area])?;
        let at = binary(n, Binary::Add, moved, regular)?;
        along.push(reshaped(n, at, &[each, 1, taps * area])?);
    }
    let pixels = input.iter().fold(1usize, |a, b| a.saturating_mul(*b));
    let x = reshaped(n, x, &[each, channels / groups, pixels])?;
    let x = cast(n, x, wide(dtype))?;
    let read = between_pixels(n, x, &input, &along)?;
    let mut read = reshaped(n, read, &[each, channels / groups, taps, area])?;
    if let Some(mask) = mask {
        let mask = reshaped(n, mask, &[each, 1, taps, area])?;
        let mask = cast(n, mask, wide(dtype))?;
        read = binary(n, Binary::Mul, read, mask)?;
    }
    let read = cast(n, read, dtype)?;
    let columns = reshaped(n, read, &[batch, group, ws[1] * taps, area])?;
    let w = reshaped(n, w, &[group, ws[0] / group, ws[1] * taps])?;
    let y = n.build(|g| g.matmul(w, columns))?;
    let dims: Vec<usize> = [batch, ws[0]].into_iter().chain(places).collect();
    let mut y = reshaped(n, y, &dims)?;
    if let Some(bias) = bias {
        let bias = per_channel(n, bias, spatial)?;
        y = binary(n, Binary::Add, y, bias)?;
    }
    n.like_first(y)
}

/// Channels of an image `[B, C, pixels]` read at places `[B, 1, P]` along each axis, linear between pixels;
/// around the image there are zeros.
fn between_pixels(
    n: &mut NodeContext<'_, '_>,
    x: ValueId,
    image: &[usize],
    along: &[ValueId],
) -> Answer<ValueId> {
    let (shape, dtype) = (n.shape(x)?, n.dtype(x)?);
    let places = n.shape(along[0])?[2];
    let to = [shape[0], shape[1], places];
    let mut sum: Option<ValueId> = None;
    for corner in 0..1usize << image.len() {
        let part = n.build(|g| {
            let (mut weight, mut index): (Option<ValueId>, Option<ValueId>) = (None, None);
            for (axis, at) in along.iter().enumerate() {
                let near = g.floor(*at)?;
                let near = g.binary_scalar(Binary::Add, near, (corner >> axis & 1) as f64)?;
                let distance = g.sub(*at, near)?;
                let distance = g.abs(distance)?;
                let share = g.neg(distance)?;
                let share = g.binary_scalar(Binary::Add, share, 1.0)?;
                let held = g.clamp(near, 0.0, image[axis] as f64 - 1.0)?;
                let inside = g.eq(held, near)?;
                let held_dtype = g.ty(share)?.dtype;
                let zero = g.constant(Tensor::scalar_of(held_dtype, 0.0));
                let share = g.select(inside, share, zero)?;
                let step = g.cast(held, DType::I64)?;
                weight = Some(match weight {
                    Some(others) => g.mul(others, share)?,
                    None => share,
                });
                index = Some(match index {
                    Some(others) => {
                        let rows = g.binary_scalar(Binary::Mul, others, image[axis] as f64)?;
                        g.add(rows, step)?
                    }
                    None => step,
                });
            }
            let (Some(weight), Some(index)) = (weight, index) else { return Ok(x) };
            let index = g.expand(index, to)?;
            let pixel = g.gather_elements(x, index, 2)?;
            let weight = g.cast(weight, dtype)?;
            g.mul(pixel, weight)
        })?;
        sum = Some(match sum {
            Some(sum) => binary(n, Binary::Add, sum, part)?,
            None => part,
        });
    }
    Ok(sum.unwrap_or(x))
}

/// Columns added up where they overlap.
fn col2im(n: &mut NodeContext<'_, '_>) -> Answer<Vec<Value>> {
    let x = n.tensor(0)?;
    let (image, block) = (n.fixed_ints(1)?, n.fixed_ints(2)?);
    let (image, block) = (sizes(n, "image_shape", &image)?, sizes(n, "block_shape", &block)?);
    let moves = moves(n, image.len())?;
    let window = moves.window(n, &moves.pads)?;
    let y = n.build(|g| g.col2im(x, &image, &block, window))?;
    let element = n.element(0)?;
    let y = in_range(n, y, element)?;
    n.like_first(y)
}

/// Taps, and places of the result, that are written down one by one; a batch of nothing has room for any number.
const MAX_GRID: usize = 1 << 24;
