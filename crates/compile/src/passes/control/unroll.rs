//! Short loops as straight graphs.

use olivine_ir::op::{Loop, Scan};
use olivine_ir::{Error, Graph, Shape, Tensor, TensorType, ValueId};

use super::inline::inline;
use super::{MOST_UNROLLED_NODES, flag, nodes_of, whole};
use crate::passes::legalise::reshape;

/// A loop's results, if its iterations are known and few.
pub(super) fn loop_(
    g: &mut Graph,
    op: &Loop,
    inputs: &[ValueId],
    name: &str,
) -> Result<Option<Vec<ValueId>>, Error> {
    let [iterations, begin, given @ ..] = inputs else { return Ok(None) };
    let Some(iterations) = known_iterations(g, op, *iterations, *begin) else { return Ok(None) };
    if iterations.saturating_mul(nodes_of(op.body.graph()).max(1)) > MOST_UNROLLED_NODES {
        return Ok(None);
    }
    let (carried, captures) = given.split_at(op.carried);
    let mut carried = carried.to_vec();
    let types: Vec<TensorType> = op.body.outputs().split_off(1 + op.carried);
    let mut rows: Vec<Vec<ValueId>> = vec![Vec::new(); types.len()];
    for iteration in 0..iterations {
        let number = g.constant(Tensor::scalar(iteration as i64));
        let inputs = [&[number], carried.as_slice(), captures].concat();
        let mut outputs = inline(g, &op.body, &inputs, &format!("{name}/{iteration}"))?.split_off(1);
        let made = outputs.split_off(op.carried);
        carried = outputs;
        rows.iter_mut().zip(made).for_each(|(rows, row)| rows.push(row));
    }
    for (ty, rows) in types.iter().zip(rows) {
        let mut parts = Vec::new();
        if !rows.is_empty() {
            parts.push(g.stack(&rows, 0)?);
        }
        let rest = op.max_iterations.unwrap_or(iterations).saturating_sub(iterations);
        if rest > 0 || parts.is_empty() {
            let zero = g.constant(Tensor::scalar_of(ty.dtype, 0.0));
            let sizes = [&[rest.into()], &*ty.shape.sizes()].concat();
            parts.push(g.fill(zero, Shape::of_sizes(&sizes)?)?);
        }
        carried.push(if parts.len() == 1 { parts[0] } else { g.concat(&parts, 0)? });
    }
    carried.push(g.constant(Tensor::scalar(iterations as i64)));
    Ok(Some(carried))
}

/// How many iterations a loop makes, where that is known now.
fn known_iterations(g: &Graph, op: &Loop, iterations: ValueId, begin: ValueId) -> Option<usize> {
    let most = op.max_iterations.unwrap_or(usize::MAX);
    let iterations = whole(g, iterations).map(|t| usize::try_from(t.max(0)).unwrap_or(usize::MAX).min(most));
    if flag(g, begin) == Some(false) || iterations == Some(0) || most == 0 {
        return Some(0);
    }
    let body = op.body.graph();
    let goes_on = body.outputs().first().and_then(|o| flag(body, o.value));
    match (flag(g, begin), goes_on) {
        (Some(true), Some(true)) => iterations,
        (Some(true), Some(false)) => iterations.map(|t| t.min(1)),
        _ => None,
    }
}

/// The size of an axis that is iterated over: what is compiled holds for it alone.
pub(super) fn length(g: &Graph, x: ValueId, axis: usize) -> Result<usize, Error> {
    let size = g.ty(x)?.shape.size(axis);
    size.specialize().map_err(|e| Error::BadData { problem: e.to_string() })
}

/// A scan's results, if its iterations are few.
pub(super) fn scan(
    g: &mut Graph,
    op: &Scan,
    inputs: &[ValueId],
    name: &str,
) -> Result<Option<Vec<ValueId>>, Error> {
    let (states, rest) = inputs.split_at(op.states);
    let (sliced, captures) = rest.split_at(op.axes.len());
    let iterations = match (sliced.first(), op.axes.first()) {
        (Some(x), Some(axis)) => length(g, *x, *axis)?,
        _ => 0,
    };
    if iterations.saturating_mul(nodes_of(op.body.graph()).max(1)) > MOST_UNROLLED_NODES {
        return Ok(None);
    }
    let types: Vec<TensorType> = op.body.outputs().split_off(op.states);
    let mut states = states.to_vec();
    let mut rows: Vec<Vec<ValueId>> = vec![Vec::new(); types.len()];
    for iteration in 0..iterations {
        let mut inputs = states;
        for (i, (x, axis)) in sliced.iter().zip(&op.axes).enumerate() {
            let back = op.reverse.get(i).copied().unwrap_or(false);
            let place = if back { iterations - 1 - iteration } else { iteration } as i64;
            let slice = g.slice(*x, *axis as isize, place, place + 1, 1)?;
            let mut sizes = g.ty(slice)?.shape.sizes().to_vec();
            sizes.remove(*axis);
            inputs.push(reshape(g, slice, &sizes)?);
        }
        inputs.extend_from_slice(captures);
        let mut outputs = inline(g, &op.body, &inputs, &format!("{name}/{iteration}"))?;
        let made = outputs.split_off(op.states);
        states = outputs;
        rows.iter_mut().zip(made).for_each(|(rows, row)| rows.push(row));
    }
    for (i, (ty, mut rows)) in types.iter().zip(rows).enumerate() {
        if op.out_reverse.get(i).copied().unwrap_or(false) {
            rows.reverse();
        }
        states.push(if rows.is_empty() {
            let mut dims = ty.shape.to_vec();
            dims.insert(op.out_axis(i), 0);
            g.constant(Tensor::zeros(ty.dtype, Shape::new(&dims)?)?)
        } else {
            g.stack(&rows, op.out_axis(i))?
        });
    }
    Ok(Some(states))
}
