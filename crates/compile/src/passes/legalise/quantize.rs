//! Quantisation as elementwise steps; fusion makes one kernel of them.

use olivine_ir::op::{DequantizeLinear, Granularity, QuantizeLinear, Repeat};
use olivine_ir::{DType, Error, Graph, Shape, ValueId};

use super::movement::repeat;
use super::{cast, reshape, rewrites};

rewrites! { |g, op, to|
    QuantizeLinear [x, scale, zero @ ..] => quantize(g, op, *x, *scale, zero.first()),
    DequantizeLinear [x, scale, zero @ ..] => dequantize(g, op, *x, *scale, zero.first()),
}

/// `saturate(round(x / scale) + zero)` in f32.
fn quantize(
    g: &mut Graph,
    op: &QuantizeLinear,
    x: ValueId,
    scale: ValueId,
    zero: Option<&ValueId>,
) -> Result<ValueId, Error> {
    let over = g.ty(x)?.shape;
    let granularity = fits(op.granularity(&g.ty(scale)?.shape, &over))?;
    let x = cast(g, x, DType::F32)?;
    let scale = spread(g, scale, granularity, &over)?;
    let scale = cast(g, scale, DType::F32)?;
    let mut y = g.div(x, scale)?;
    y = g.round(y)?;
    if let Some(zero) = zero {
        let zero = spread(g, *zero, granularity, &over)?;
        let zero = g.cast(zero, DType::F32)?;
        y = g.add(y, zero)?;
    }
    // The cast saturates.
    g.cast(y, op.dtype)
}

/// `(x − zero)·scale`, the product in f32.
fn dequantize(
    g: &mut Graph,
    op: &DequantizeLinear,
    x: ValueId,
    scale: ValueId,
    zero: Option<&ValueId>,
) -> Result<ValueId, Error> {
    let over = g.ty(x)?.shape;
    let (granularity, dtype) = (fits(op.granularity(&g.ty(scale)?.shape, &over))?, g.ty(scale)?.dtype);
    let mut y = cast(g, x, DType::I32)?;
    if let Some(zero) = zero {
        let zero = spread(g, *zero, granularity, &over)?;
        let zero = cast(g, zero, DType::I32)?;
        y = g.sub(y, zero)?;
    }
    let y = g.cast(y, DType::F32)?;
    let scale = spread(g, scale, granularity, &over)?;
    let scale = cast(g, scale, DType::F32)?;
    let y = g.mul(y, scale)?;
    cast(g, y, dtype)
}

fn fits(granularity: Result<Granularity, String>) -> Result<Granularity, Error> {
    granularity.map_err(|problem| Error::Invalid { location: "quantisation".into(), problem })
}

/// Scales or zero points so that they broadcast over a tensor of sizes `over`.
fn spread(g: &mut Graph, x: ValueId, granularity: Granularity, over: &[usize]) -> Result<ValueId, Error> {
    match granularity {
        Granularity::Tensor => Ok(x),
        Granularity::Axis(axis) => {
            let mut dims = vec![1; over.len() - axis];
            dims[0] = over[axis];
            reshape(g, x, &dims)
        }
        Granularity::Block { axis, size } => {
            // A block longer than the axis is as good as one that fills it.
            let repeats = size.min(over[axis].max(1));
            let mut dims = g.ty(x)?.shape.to_vec();
            dims[axis] *= repeats;
            let all = repeat(g, &Repeat { axis, repeats }, x, Shape::new(&dims)?)?;
            g.narrow(all, axis as isize, 0, over[axis])
        }
    }
}
