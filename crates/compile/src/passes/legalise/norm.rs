//! Norms: reductions and elementwise steps, in f32 where the dtype is narrower.

use olivine_ir::op::{AdaLayerNorm, BatchNorm, Binary, InstanceNorm, L2Norm, LayerNorm2d, ReduceKind};
use olivine_ir::{DType, Dim, Error, Graph, Tensor, ValueId, memory};

use super::{cast, reshape, rewrites, transpose, working_dtype};

rewrites! { |g, op, to|
    InstanceNorm [x, gamma, beta] => instance_norm(g, op, *x, *gamma, *beta),
    BatchNorm [x, gamma, beta, mean, variance] => batch_norm(g, op, *x, [*gamma, *beta, *mean, *variance]),
    LayerNorm2d [x, gamma, beta] => layer_norm2d(g, op, *x, *gamma, *beta),
    AdaLayerNorm [x, scale, shift] => ada_layer_norm(g, op, *x, *scale, *shift),
    L2Norm [x] => l2_norm(g, op, *x),
}

fn instance_norm(
    g: &mut Graph,
    op: &InstanceNorm,
    x: ValueId,
    gamma: ValueId,
    beta: ValueId,
) -> Result<ValueId, Error> {
    let channels = g.ty(x)?.shape.number(1);
    g.group_norm(x, gamma, beta, channels, op.eps)
}

/// `(x − mean)·(gamma·rsqrt(var + eps)) + beta`; the factor depends on weights alone and so is made once, at load.
///
/// The mean is taken off before the product because `x·factor − mean·factor` cancels when the mean is large.
fn batch_norm(
    g: &mut Graph,
    op: &BatchNorm,
    x: ValueId,
    per_channel: [ValueId; 4],
) -> Result<ValueId, Error> {
    let ty = g.ty(x)?;
    let work = working_dtype(ty.dtype);
    let mut dims = vec![Dim::ONE; ty.shape.rank() - 1];
    dims[0] = ty.shape.size(1);
    let mut along_channels = per_channel;
    for value in &mut along_channels {
        *value = cast(g, *value, work)?;
        *value = reshape(g, *value, &dims)?;
    }
    let [gamma, beta, mean, variance] = along_channels;
    let spread = g.binary_scalar(Binary::Add, variance, op.eps)?;
    let spread = g.rsqrt(spread)?;
    let factor = g.mul(gamma, spread)?;
    let x = cast(g, x, work)?;
    let centred = g.sub(x, mean)?;
    let scaled = g.mul(centred, factor)?;
    let shifted = g.add(scaled, beta)?;
    cast(g, shifted, ty.dtype)
}

fn layer_norm2d(
    g: &mut Graph,
    op: &LayerNorm2d,
    x: ValueId,
    gamma: ValueId,
    beta: ValueId,
) -> Result<ValueId, Error> {
    let rank = g.ty(x)?.shape.rank();
    let last: Vec<usize> = [0].into_iter().chain(2..rank).chain([1]).collect();
    let back: Vec<usize> = [0, rank - 1].into_iter().chain(1..rank - 1).collect();
    let x = transpose(g, x, &last)?;
    let y = g.layer_norm(x, gamma, Some(beta), op.eps)?;
    transpose(g, y, &back)
}

fn ada_layer_norm(
    g: &mut Graph,
    op: &AdaLayerNorm,
    x: ValueId,
    scale: ValueId,
    shift: ValueId,
) -> Result<ValueId, Error> {
    let ty = g.ty(x)?;
    let work = working_dtype(ty.dtype);
    let width = ty.shape.number(ty.shape.rank() - 1);
    let ones = match work {
        DType::F64 => Tensor::new([width], memory::filled(1.0f64, width)?)?,
        _ => Tensor::new([width], memory::filled(1.0f32, width)?)?,
    };
    let ones = g.constant(ones);
    let x = cast(g, x, work)?;
    let scale = cast(g, scale, work)?;
    let shift = cast(g, shift, work)?;
    let normal = g.layer_norm(x, ones, None, op.eps)?;
    let factor = g.binary_scalar(Binary::Add, scale, 1.0)?;
    let scaled = g.mul(normal, factor)?;
    let shifted = g.add(scaled, shift)?;
    cast(g, shifted, ty.dtype)
}

fn l2_norm(g: &mut Graph, op: &L2Norm, x: ValueId) -> Result<ValueId, Error> {
    let dtype = g.ty(x)?.dtype;
    // The sum of squares of f16 numbers overflows f16 long before their norm does.
    let x = cast(g, x, working_dtype(dtype))?;
    let length = g.reduce(ReduceKind::L2, x, &[op.axis as isize], true)?;
    let length = g.binary_scalar(Binary::Max, length, op.eps)?;
    let unit = g.div(x, length)?;
    cast(g, unit, dtype)
}
