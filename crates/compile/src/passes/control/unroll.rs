//! Short loops as straight graphs.

use olivine_ir::op::{Loop, Scan};
use olivine_ir::{Error, Graph, Shape, Tensor, TensorType, ValueId};

use super::inline::inline;
use super::{MOST_UNROLLED_NODES, flag, nodes_of, whole};
use crate::passes::legalise::reshape;

/// A loop's results, if its trips are known and few.
pub(super) fn loop_(
    g: &mut Graph,
    op: &Loop,
    inputs: &[ValueId],
    name: &str,
) -> Result<Option<Vec<ValueId>>, Error> {
    let [trips, begin, given @ ..] = inputs else { return Ok(None) };
    let Some(trips) = known_trips(g, op, *trips, *begin) else { return Ok(None) };
    if trips.saturating_mul(nodes_of(op.body.graph()).max(1)) > MOST_UNROLLED_NODES {
        return Ok(None);
    }
    let (carried, captures) = given.split_at(op.carried);
    let mut carried = carried.to_vec();
    let types: Vec<TensorType> = op.body.outputs().split_off(1 + op.carried);
    let mut rows: Vec<Vec<ValueId>> = vec![Vec::new(); types.len()];
    for trip in 0..trips {
        let number = g.constant(Tensor::scalar(trip as i64));
        let inputs = [&[number], carried.as_slice(), captures].concat();
        let mut outputs = inline(g, &op.body, &inputs, &format!("{name}/{trip}"))?.split_off(1);
        let made = outputs.split_off(op.carried);
        carried = outputs;
        rows.iter_mut().zip(made).for_each(|(rows, row)| rows.push(row));
    }
    for (ty, rows) in types.iter().zip(rows) {
        let mut parts = Vec::new();
        if !rows.is_empty() {
            parts.push(g.stack(&rows, 0)?);
        }
        let rest = op.max_trips.unwrap_or(trips).saturating_sub(trips);
        if rest > 0 || parts.is_empty() {
            let zero = g.constant(Tensor::scalar_of(ty.dtype, 0.0));
            parts.push(g.fill(zero, Shape::new(&[&[rest], ty.shape.dims()].concat())?)?);
        }
        carried.push(if parts.len() == 1 { parts[0] } else { g.concat(&parts, 0)? });
    }
    carried.push(g.constant(Tensor::scalar(trips as i64)));
    Ok(Some(carried))
}

/// How many trips a loop makes, where that is known now.
fn known_trips(g: &Graph, op: &Loop, trips: ValueId, begin: ValueId) -> Option<usize> {
    let most = op.max_trips.unwrap_or(usize::MAX);
    let trips = whole(g, trips).map(|t| usize::try_from(t.max(0)).unwrap_or(usize::MAX).min(most));
    if flag(g, begin) == Some(false) || trips == Some(0) || most == 0 {
        return Some(0);
    }
    let body = op.body.graph();
    let goes_on = body.outputs().first().and_then(|o| flag(body, o.value));
    match (flag(g, begin), goes_on) {
        (Some(true), Some(true)) => trips,
        (Some(true), Some(false)) => trips.map(|t| t.min(1)),
        _ => None,
    }
}

/// A scan's results, if its trips are few.
pub(super) fn scan(
    g: &mut Graph,
    op: &Scan,
    inputs: &[ValueId],
    name: &str,
) -> Result<Option<Vec<ValueId>>, Error> {
    let (states, rest) = inputs.split_at(op.states);
    let (sliced, captures) = rest.split_at(op.axes.len());
    let trips = match (sliced.first(), op.axes.first()) {
        (Some(x), Some(axis)) => g.ty(*x)?.shape[*axis],
        _ => 0,
    };
    if trips.saturating_mul(nodes_of(op.body.graph()).max(1)) > MOST_UNROLLED_NODES {
        return Ok(None);
    }
    let types: Vec<TensorType> = op.body.outputs().split_off(op.states);
    let mut states = states.to_vec();
    let mut rows: Vec<Vec<ValueId>> = vec![Vec::new(); types.len()];
    for trip in 0..trips {
        let mut inputs = states;
        for (i, (x, axis)) in sliced.iter().zip(&op.axes).enumerate() {
            let back = op.reverse.get(i).copied().unwrap_or(false);
            let place = if back { trips - 1 - trip } else { trip } as i64;
            let slice = g.slice(*x, *axis as isize, place, place + 1, 1)?;
            let mut dims = g.ty(slice)?.shape.to_vec();
            dims.remove(*axis);
            inputs.push(reshape(g, slice, &dims)?);
        }
        inputs.extend_from_slice(captures);
        let mut outputs = inline(g, &op.body, &inputs, &format!("{name}/{trip}"))?;
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
