//! Movement: repeats and blocks become reshapes, transposes and expands; joins become concat.

use olivine_ir::op::{Concat, DepthMode, DepthToSpace, Repeat, Roll, SpaceToDepth, Stack, Tile};
use olivine_ir::{Dim, Error, Graph, MAX_RANK, Shape, ValueId, product};

use super::{reshape, rewrites, transpose};

rewrites! { |g, op, to|
    DepthToSpace [x] => depth_to_space(g, op, *x, to),
    SpaceToDepth [x] => space_to_depth(g, op, *x, to),
    Stack [parts @ ..] => stack(g, op, parts),
    Tile [x] => tile(g, op, *x, to),
    Repeat [x] => repeat(g, op, *x, to),
    Roll [x] => roll(g, op, *x),
    Fill [x] => g.expand(*x, to),
}

/// The whole repeated: a new axis before each repeated one, stretched and merged.
fn tile(g: &mut Graph, op: &Tile, x: ValueId, to: Shape) -> Result<ValueId, Error> {
    let shape = g.ty(x)?.shape;
    // An axis of size 1 is stretched in place.
    let sizes = shape.sizes();
    let needs_axis = |i: usize| op.repeats[i] != 1 && sizes[i] != 1;
    let added = (0..shape.rank()).filter(|i| needs_axis(*i)).count();
    if shape.rank() + added <= MAX_RANK {
        let (mut split, mut stretched) = (Vec::new(), Vec::new());
        for (i, (&d, &r)) in sizes.iter().zip(&op.repeats).enumerate() {
            if needs_axis(i) {
                split.push(Dim::ONE);
                stretched.push(r);
            }
            split.push(d);
            stretched.push(if r != 1 && d == 1 { r } else { d });
        }
        let x = reshape(g, x, &split)?;
        let x = expand(g, x, &stretched)?;
        return reshape(g, x, &to.sizes());
    }
    let (mut x, mut dims) = (x, sizes.to_vec());
    for axis in 0..shape.rank() {
        let repeats = op.repeats[axis];
        if repeats == 1 {
            continue;
        }
        let (outer, inner) = around(&dims, axis);
        x = reshape(g, x, &[outer, Dim::ONE, dims[axis] * inner])?;
        x = expand(g, x, &[outer, repeats, dims[axis] * inner])?;
        dims[axis] *= repeats;
    }
    reshape(g, x, &to.sizes())
}

/// Each element repeated: a new axis after the repeated one, stretched and merged.
pub(super) fn repeat(g: &mut Graph, op: &Repeat, x: ValueId, to: Shape) -> Result<ValueId, Error> {
    let dims = g.ty(x)?.shape.sizes().to_vec();
    let (mut split, at) = if dims.len() < MAX_RANK {
        (dims, op.axis + 1)
    } else {
        let (outer, inner) = around(&dims, op.axis);
        (vec![outer, dims[op.axis], inner], 2)
    };
    split.insert(at, Dim::ONE);
    let x = reshape(g, x, &split)?;
    split[at] = op.repeats.into();
    let x = expand(g, x, &split)?;
    reshape(g, x, &to.sizes())
}

/// The products of the sizes before and after an axis.
fn around(dims: &[Dim], axis: usize) -> (Dim, Dim) {
    (product(&dims[..axis]), product(&dims[axis + 1..]))
}

fn expand(g: &mut Graph, x: ValueId, dims: &[Dim]) -> Result<ValueId, Error> {
    if g.ty(x)?.shape == Shape::of_sizes(dims)? { Ok(x) } else { g.expand(x, dims) }
}

fn roll(g: &mut Graph, op: &Roll, x: ValueId) -> Result<ValueId, Error> {
    let size = g.ty(x)?.shape[op.axis];
    let shift = op.shift.rem_euclid(size as i64) as usize;
    if shift == 0 {
        return Ok(x);
    }
    let axis = op.axis as isize;
    let back = g.narrow(x, axis, size - shift, shift)?;
    let front = g.narrow(x, axis, 0, size - shift)?;
    g.concat(&[back, front], axis)
}

fn stack(g: &mut Graph, op: &Stack, parts: &[ValueId]) -> Result<ValueId, Error> {
    let mut rows = Vec::with_capacity(parts.len());
    for part in parts {
        let mut dims = g.ty(*part)?.shape.sizes().to_vec();
        dims.insert(op.axis, Dim::ONE);
        rows.push(reshape(g, *part, &dims)?);
    }
    match rows.as_slice() {
        [one] => Ok(*one),
        _ => g.add1(Concat { axis: op.axis }, &rows),
    }
}

fn depth_to_space(g: &mut Graph, op: &DepthToSpace, x: ValueId, to: Shape) -> Result<ValueId, Error> {
    let s = g.ty(x)?.shape.sizes();
    let (n, depth, h, w, b) = (s[0], to.size(1), s[2], s[3], Dim::from(op.block));
    let (split, perm) = match op.mode {
        DepthMode::Dcr => ([n, b, b, depth, h, w], [0, 3, 4, 1, 5, 2]),
        DepthMode::Crd => ([n, depth, b, b, h, w], [0, 1, 4, 2, 5, 3]),
    };
    let x = reshape(g, x, &split)?;
    let x = transpose(g, x, &perm)?;
    reshape(g, x, &to.sizes())
}

fn space_to_depth(g: &mut Graph, op: &SpaceToDepth, x: ValueId, to: Shape) -> Result<ValueId, Error> {
    let s = g.ty(x)?.shape.sizes();
    let block = Dim::from(op.block);
    let x = reshape(g, x, &[s[0], s[1], to.size(2), block, to.size(3), block])?;
    let x = transpose(g, x, &[0, 3, 5, 1, 2, 4])?;
    reshape(g, x, &to.sizes())
}
