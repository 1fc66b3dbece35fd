//! Non-maximum suppression: boxes by falling score, without those that overlap one taken before.

use olivine_ir::op::{Compare, Loop, ReduceKind, ScalarOp};
use olivine_ir::{DType, Error as GraphError, Graph, SubGraph, Tensor, ValueId};

use super::Entry;
use super::arity::Takes;
use super::dynamic::counts;
use crate::ElementType;
use crate::import::{Answer, NodeContext, Value};

pub(super) const OPERATORS: &[Entry] = &[("NonMaxSuppression", Takes(5, 1), non_max_suppression)];

/// Sizes of the problem.
#[derive(Clone, Copy)]
struct Sizes {
    batch: usize,
    classes: usize,
    boxes: usize,
    /// Boxes that are taken of a class at most.
    most: usize,
}

fn non_max_suppression(n: &mut NodeContext<'_, '_>) -> Answer<Vec<Value>> {
    let (boxes, scores) = (n.tensor(0)?, n.tensor(1)?);
    let (b, s) = (n.shape(boxes)?, n.shape(scores)?);
    let (&[batch, count, 4], &[batch_too, classes, count_too]) = (b.dims(), s.dims()) else {
        return Err(n.wrong(format!("boxes {b} and scores {s}")));
    };
    if (batch, count) != (batch_too, count_too) {
        return Err(n.wrong(format!("boxes {b} and scores {s}")));
    }
    let most = match n.optional_ints(2)? {
        Some(most) => most.first().map_or(0, |m| usize::try_from(*m).unwrap_or(0)),
        None => 0,
    };
    let sizes = Sizes { batch, classes, boxes: count, most: most.min(count) };
    if sizes.most == 0 || batch == 0 || classes == 0 {
        let none = n.built(Tensor::zeros(DType::I64, [0, 3]))?;
        let none = n.constant(none);
        return Ok(vec![n.result(none, ElementType::I64)]);
    }
    let overlap = threshold(n, 3)?;
    let overlap = match overlap {
        Some(overlap) => overlap,
        None => n.scalar(DType::F32, 0.0),
    };
    let least = threshold(n, 4)?;
    let by_center = n.flag("center_point_box", false)?;
    let candidates = n.build(|g| {
        let alive = match least {
            Some(least) => g.gt(scores, least)?,
            None => {
                let yes = g.constant(Tensor::scalar(true));
                g.fill(yes, [batch, classes, count])?
            }
        };
        let (rank, corners) = (ranks(g, scores)?, corners(g, boxes, by_center)?);
        Ok(Candidates { alive, rank, corners, overlap })
    })?;
    let (taken, places, found) = all_taken(n, &candidates, sizes)?;
    let y = n.build(|g| {
        // Rows of batch, class and iteration become rows of batch, class and box.
        let places = g.narrow(places, 1, 0, found)?;
        let places = g.transpose(places, &[1, 0])?;
        let chosen = g.gather_nd(taken, places, 0)?;
        let chosen = g.reshape(chosen, &[found as i64, 1])?;
        let of = g.narrow(places, 1, 0, 2)?;
        g.concat(&[of, chosen], 1)
    })?;
    Ok(vec![n.result(y, ElementType::I64)])
}

/// What boxes are chosen from.
struct Candidates {
    /// Which are left, `[batch, classes, boxes]`.
    alive: ValueId,
    /// How many come before each, of the same shape.
    rank: ValueId,
    corners: [ValueId; 5],
    overlap: ValueId,
}

/// Iterations that a suppression runs without checking whether they are too few.
const FEW_ITERATIONS: usize = 256;

/// Takes boxes until none are left or there are enough of every class: the boxes, where among them there is one, and
/// how many there are. Models ask for as many as there may be and find a few, so iterations are added as long as something
/// is left to take.
fn all_taken(
    n: &mut NodeContext<'_, '_>,
    candidates: &Candidates,
    sizes: Sizes,
) -> Answer<(ValueId, ValueId, usize)> {
    let mut iterations = sizes.most.min(FEW_ITERATIONS);
    loop {
        let tried = Sizes { most: iterations, ..sizes };
        let (taken, places, outcome) = n.build(|g| {
            let (left, taken, valid) = take(g, candidates, tried)?;
            let (places, found) = g.nonzero(valid)?;
            let left = g.reduce(ReduceKind::Any, left, &[0, 1, 2], false)?;
            let left = g.cast(left, DType::I64)?;
            Ok((taken, places, g.stack(&[found, left], 0)?))
        })?;
        let [found, left] = counts(n, outcome)?;
        if left == 0 || iterations == sizes.most {
            return Ok((taken, places, found));
        }
        iterations = iterations.saturating_mul(4).min(sizes.most);
    }
}

/// A threshold as a scalar; nothing where the input is left out or empty.
fn threshold(n: &mut NodeContext<'_, '_>, input: usize) -> Answer<Option<ValueId>> {
    let Some(id) = n.optional(input)? else { return Ok(None) };
    match n.shape(id)?.numel() {
        0 => Ok(None),
        1 => n.build(|g| g.reshape(id, &[])).map(Some),
        _ => Err(n.wrong(format!("input {input} is no scalar"))),
    }
}

/// The two corners of `[batch, boxes, 4]` and the areas, each `[batch, boxes]`: least and greatest of one axis, least
/// and greatest of the other, area.
fn corners(g: &mut Graph, boxes: ValueId, by_center: bool) -> Result<[ValueId; 5], GraphError> {
    let ty = g.ty(boxes)?;
    let (batch, count) = (ty.shape[0] as i64, ty.shape[1] as i64);
    let mut parts = Vec::with_capacity(4);
    for part in g.split(boxes, 2, &[1; 4])? {
        parts.push(g.reshape(part, &[batch, count])?);
    }
    let [a, b, c, d] = [parts[0], parts[1], parts[2], parts[3]];
    let mut limits = |first: ValueId, second: ValueId| -> Result<(ValueId, ValueId), GraphError> {
        if by_center {
            let two = g.constant(Tensor::scalar_of(ty.dtype, 2.0));
            let half = g.div(second, two)?;
            Ok((g.sub(first, half)?, g.add(first, half)?))
        } else {
            Ok((g.min(first, second)?, g.max(first, second)?))
        }
    };
    let ((low0, high0), (low1, high1)) = (limits(a, c)?, limits(b, d)?);
    let (side0, side1) = (g.sub(high0, low0)?, g.sub(high1, low1)?);
    Ok([low0, high0, low1, high1, g.mul(side0, side1)?])
}

/// For every box of every class how many come before it: what sorts the order of the boxes itself.
fn ranks(g: &mut Graph, scores: ValueId) -> Result<ValueId, GraphError> {
    let order = g.argsort(scores, 2, true)?;
    g.argsort(order, 2, false)
}

/// One iteration takes the best box that is left of every class and strikes out what overlaps it. The results are what is
/// left, and each `[batch, classes, most]` the boxes taken and whether there was one.
fn take(
    g: &mut Graph,
    candidates: &Candidates,
    sizes: Sizes,
) -> Result<(ValueId, ValueId, ValueId), GraphError> {
    let Candidates { alive, rank, corners, overlap } = *candidates;
    let Sizes { batch, classes, boxes, most } = sizes;
    let dtype = g.ty(corners[0])?.dtype;
    let mut body = Graph::new("take");
    body.input("trip", DType::I64, [])?;
    let left = body.input("left", DType::Bool, [batch, classes, boxes])?;
    let place = body.input("rank", DType::I64, [batch, classes, boxes])?;
    let mut of_all = Vec::with_capacity(5);
    for i in 0..5 {
        of_all.push(body.input(&format!("corner_{i}"), dtype, [batch, boxes])?);
    }
    let limit = body.input("overlap", DType::F32, [])?;

    let far = body.constant(Tensor::scalar(boxes as i64));
    let rank_left = body.select(left, place, far)?;
    let best = body.argmin(rank_left, 2, false)?;
    let found = body.reduce(ReduceKind::Any, left, &[2], false)?;

    let mut of_best = Vec::with_capacity(5);
    for part in &mut of_all {
        let one = body.gather_elements(*part, best, 1)?;
        of_best.push(body.reshape(one, &[batch as i64, classes as i64, 1])?);
        *part = body.reshape(*part, &[batch as i64, 1, boxes as i64])?;
    }
    let zero = body.constant(Tensor::scalar_of(dtype, 0.0));
    let mut sides = Vec::with_capacity(2);
    for i in [0, 2] {
        let low = body.max(of_all[i], of_best[i])?;
        let high = body.min(of_all[i + 1], of_best[i + 1])?;
        let side = body.sub(high, low)?;
        sides.push(body.max(side, zero)?);
    }
    let common = body.mul(sides[0], sides[1])?;
    let both = body.add(of_all[4], of_best[4])?;
    let union = body.sub(both, common)?;
    let share = body.div(common, union)?;
    let share = body.cast(share, DType::F32)?;
    // Boxes without an area overlap nothing.
    let mut struck = body.gt(share, limit)?;
    for area in [of_all[4], of_best[4], union, common] {
        let some = body.gt(area, zero)?;
        struck = body.and(struck, some)?;
    }
    let number = body.range(DType::I64, 0.0, 1.0, boxes)?;
    let itself = body.reshape(best, &[batch as i64, classes as i64, 1])?;
    let itself = body.add1(ScalarOp::Compare(Compare::Eq), &[number, itself])?;
    let gone = body.or(struck, itself)?;
    let stays = body.not(gone)?;
    let next = body.and(left, stays)?;
    let going = body.reduce(ReduceKind::Any, next, &[0, 1, 2], false)?;
    body.output("going", going)?;
    body.output("left", next)?;
    body.output("best", best)?;
    body.output("found", found)?;

    let iterations = g.constant(Tensor::scalar(most as i64));
    let start = g.constant(Tensor::scalar(true));
    let op = Loop { carried: 1, max_iterations: Some(most), body: SubGraph::new(body)? };
    let operands = [&[iterations, start, alive, rank], corners.as_slice(), &[overlap]].concat();
    let results = g.add_op(op, &operands)?;
    let taken = g.transpose(results[1], &[1, 2, 0])?;
    let valid = g.transpose(results[2], &[1, 2, 0])?;
    Ok((results[0], taken, valid))
}
