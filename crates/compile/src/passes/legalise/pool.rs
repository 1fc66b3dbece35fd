//! Pools whose windows divide an operand: reductions, which share long folds out.

use olivine_ir::op::{AdaptivePool, Binary, Pool, PoolKind, ReduceKind};
use olivine_ir::{Dim, Error, Graph, Shape, ValueId};

use super::{cast, reshape, rewrites, working_dtype};

rewrites! { |g, op, to|
    GlobalPool [x] => global_pool(g, op.kind, op.p, *x),
    Pool [x] => global_pool(g, op.kind, op.p, *x),
    AdaptivePool [x] => adaptive_pool(g, op, *x),
}

/// Elements of a window that is worth a reduction of its own where there are several.
const LARGE: usize = 1024;

/// Whether a pool's only window is all of a plane.
pub(super) fn sees_all(op: &Pool, x: Shape) -> bool {
    let unpadded = op.window.pads.iter().all(|p| *p == (0, 0));
    let dense = op.window.dilations.iter().zip(&op.kernel).all(|(d, k)| *d == 1 || *k == 1);
    let sizes = x.sizes();
    let whole = |sizes: &[Dim]| {
        sizes.len() == op.kernel.len() && sizes.iter().zip(&op.kernel).all(|(size, k)| *size == *k)
    };
    !op.indices && unpadded && dense && sizes.get(2..).is_some_and(whole)
}

/// Whether a pool's windows are one, or large, and none overlaps another.
pub(super) fn divides(op: &AdaptivePool, x: Shape) -> bool {
    let sizes = x.sizes();
    let Some(sizes) = sizes.get(2..) else { return false };
    let even = sizes.iter().zip(&op.output).all(|(size, n)| size.is_multiple_of(*n));
    let area = || sizes.iter().zip(&op.output).map(|(size, n)| size.div_floor(*n)).product::<Dim>();
    even && (op.output.iter().all(|n| *n == 1) || area() >= LARGE)
}

/// A pool over all positions; spatial axes stay with size 1.
fn global_pool(g: &mut Graph, kind: PoolKind, p: usize, x: ValueId) -> Result<ValueId, Error> {
    let axes: Vec<isize> = (2..g.ty(x)?.shape.rank() as isize).collect();
    pooled(g, kind, p, x, &axes, true)
}

/// A pool whose windows become axes of their own.
fn adaptive_pool(g: &mut Graph, op: &AdaptivePool, x: ValueId) -> Result<ValueId, Error> {
    let shape = g.ty(x)?.shape;
    let shape = shape.sizes();
    let mut dims = shape[..2].to_vec();
    for (size, n) in shape[2..].iter().zip(&op.output) {
        dims.extend([(*n).into(), size.div_floor(*n)]);
    }
    let axes: Vec<isize> = (0..op.output.len() as isize).map(|i| 3 + 2 * i).collect();
    let x = reshape(g, x, &dims)?;
    pooled(g, op.kind, 1, x, &axes, false)
}

fn pooled(
    g: &mut Graph,
    kind: PoolKind,
    p: usize,
    x: ValueId,
    axes: &[isize],
    keep: bool,
) -> Result<ValueId, Error> {
    let dtype = g.ty(x)?.dtype;
    let kind = match (kind, p) {
        (PoolKind::Average, _) => ReduceKind::Mean,
        (PoolKind::Max, _) => ReduceKind::Max,
        (PoolKind::Lp, 1) => ReduceKind::L1,
        (PoolKind::Lp, 2) => ReduceKind::L2,
        (PoolKind::Lp, p) => {
            let x = cast(g, x, working_dtype(dtype))?;
            let size = g.abs(x)?;
            let power = g.binary_scalar(Binary::Pow, size, p as f64)?;
            let sum = g.reduce(ReduceKind::Sum, power, axes, keep)?;
            let root = g.binary_scalar(Binary::Pow, sum, 1.0 / p as f64)?;
            return cast(g, root, dtype);
        }
    };
    g.reduce(kind, x, axes, keep)
}
