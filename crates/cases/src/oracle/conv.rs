//! Convolutions as the sums that define them.

use olivine_ir::op::{Col2Im, Conv, ConvTranspose, Im2Col, Window};
use olivine_ir::{Shape, TensorType};

use super::region::apply_region;
use super::value::{each, flat, wrap};
use super::{Numbers, Value};
use super::{meanings, one};

meanings! { |op, x, call|
    Conv => one(conv(op, x, call.ty())),
    ConvTranspose => one(conv_transpose(op, x, call.ty())),
    Im2Col => one(Ok(im2col(op, &x[0], call.ty()))),
    Col2Im => one(Ok(col2im(op, &x[0], call.ty()))),
}

/// Where window `o` reads with kernel element `k` on every axis; `None` in the padding.
pub(super) fn tap(window: &Window, size: &[usize], o: &[usize], k: &[usize]) -> Option<Vec<usize>> {
    (0..size.len())
        .map(|a| {
            let at = o[a] * window.strides[a] + k[a] * window.dilations[a];
            at.checked_sub(window.pads[a].0).filter(|i| *i < size[a])
        })
        .collect()
}

fn shape_of(dims: &[usize]) -> Result<Shape, String> {
    Shape::new(dims).map_err(|e| e.to_string())
}

pub(super) fn conv(op: &Conv, x: &[Value], ty: TensorType) -> Result<Value, String> {
    let (data, w) = (x[0].as_floats()?, x[1].as_floats()?);
    let bias = if op.bias { Some(x[2].as_floats()?) } else { None };
    let (sx, sw) = (*x[0].shape(), *x[1].shape());
    let kernel = shape_of(&sw[2..])?;
    let per_group = (sx[1] / op.groups, sw[0] / op.groups);
    let mut out = Vec::with_capacity(ty.shape.numel());
    each(&ty.shape, |at| {
        let m = at[1];
        let first = m / per_group.1 * per_group.0;
        let mut sum = bias.map_or(0.0, |b| b[m]);
        each(&kernel, |k| {
            let Some(from) = tap(&op.window, &sx[2..], &at[2..], k) else { return };
            for c in 0..per_group.0 {
                let xi =
                    (at[0] * sx[1] + first + c) * sx[2..].iter().product::<usize>() + flat(&sx[2..], &from);
                let wi = (m * sw[1] + c) * kernel.numel() + flat(&kernel, k);
                sum += data[xi] * w[wi];
            }
        });
        out.push(sum);
    });
    let own = 2 + usize::from(op.bias);
    apply_region(&op.epilogue, Value::floats(TensorType::new(x[0].ty.dtype, ty.shape), out), &x[own..], ty)
}

/// Every input element spreads its kernel over the result.
pub(super) fn conv_transpose(op: &ConvTranspose, x: &[Value], ty: TensorType) -> Result<Value, String> {
    let (data, w) = (x[0].as_floats()?, x[1].as_floats()?);
    let (sx, sw, so) = (*x[0].shape(), *x[1].shape(), ty.shape);
    let kernel = shape_of(&sw[2..])?;
    let mut out = vec![0.0; so.numel()];
    if op.bias {
        let bias = x[2].as_floats()?;
        let mut i = 0;
        each(&so, |at| {
            out[i] = bias[at[1]];
            i += 1;
        });
    }
    let (c_group, m_group) = (sx[1] / op.groups, sw[1]);
    let mut xi = 0;
    each(&sx, |at| {
        let value = data[xi];
        xi += 1;
        each(&kernel, |k| {
            let to: Option<Vec<usize>> = (0..k.len())
                .map(|a| {
                    let p = at[2 + a] * op.window.strides[a] + k[a] * op.window.dilations[a];
                    p.checked_sub(op.window.pads[a].0).filter(|i| *i < so[2 + a])
                })
                .collect();
            let Some(to) = to else { return };
            for m in 0..m_group {
                let channel = at[1] / c_group * m_group + m;
                let oi = (at[0] * so[1] + channel) * so[2..].iter().product::<usize>() + flat(&so[2..], &to);
                out[oi] += value * w[(at[1] * m_group + m) * kernel.numel() + flat(&kernel, k)];
            }
        });
    });
    Ok(Value::floats(ty, out))
}

/// How often a window fits on each axis of an image.
fn window_counts(window: &Window, image: &[usize], kernel: &[usize]) -> Vec<usize> {
    let count = |a: usize| {
        let span = kernel[a].saturating_sub(1) * window.dilations[a] + kernel[a].min(1);
        (image[a] + window.pads[a].0 + window.pads[a].1 - span) / window.strides[a] + 1
    };
    (0..kernel.len()).map(count).collect()
}

/// The coordinates of a row-major position.
fn unravel(mut n: usize, dims: &[usize]) -> Vec<usize> {
    let mut at = vec![0; dims.len()];
    for a in (0..dims.len()).rev() {
        (at[a], n) = (n % dims[a], n / dims[a]);
    }
    at
}

pub(super) fn im2col(op: &Im2Col, x: &Value, ty: TensorType) -> Value {
    let sx = *x.shape();
    let counts = window_counts(&op.window, &sx[2..], &op.kernel);
    let area: usize = op.kernel.iter().product();
    x.pick(ty, |at| {
        let (channel, k) = (at[1] / area, unravel(at[1] % area, &op.kernel));
        let from = tap(&op.window, &sx[2..], &unravel(at[2], &counts), &k)?;
        Some((at[0] * sx[1] + channel) * sx[2..].iter().product::<usize>() + flat(&sx[2..], &from))
    })
}

/// Every element of a column goes to where its window read it.
fn col2im(op: &Col2Im, x: &Value, ty: TensorType) -> Value {
    let counts = window_counts(&op.window, &op.image, &op.kernel);
    let (area, plane): (usize, usize) = (op.kernel.iter().product(), op.image.iter().product());
    let mut places = Vec::with_capacity(x.len());
    each(x.shape(), |at| {
        let (channel, k) = (at[1] / area, unravel(at[1] % area, &op.kernel));
        let to = tap(&op.window, &op.image, &unravel(at[2], &counts), &k);
        places.push(to.map(|to| (at[0] * ty.shape[1] + channel) * plane + flat(&op.image, &to)));
    });
    match &x.data {
        Numbers::Floats(data) => {
            let mut out = vec![0.0; ty.shape.numel()];
            places.iter().zip(data).for_each(|(place, v)| place.iter().for_each(|p| out[*p] += v));
            Value::floats(ty, out)
        }
        Numbers::Ints(data) => {
            let mut out = vec![0i64; ty.shape.numel()];
            for (place, v) in places.iter().zip(data) {
                place.iter().for_each(|p| out[*p] = wrap(ty.dtype, out[*p].wrapping_add(*v)));
            }
            Value::ints(ty, out)
        }
    }
}
