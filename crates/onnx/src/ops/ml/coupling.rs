//! Probabilities of classes from those of pairs of classes, as LIBSVM couples them: the second method of Wu,
//! Lin and Weng ("Probability estimates for multi-class classification by pairwise coupling", 2004).
//!
//! With r(i, j) the probability of i among i and j, the classes' probabilities p are those that sum up to 1
//! and make pᵀQp least, where Q(t, t) = Σⱼ r(j, t)² and Q(t, j) = −r(j, t)·r(t, j). They are come near to by
//! steps, and where these end is part of the result: a row is left as it is once its error is small, long
//! before all digits stand.

use olivine_ir::op::{Binary, Loop, ReduceKind};
use olivine_ir::{DType, Error, Graph, SubGraph, Tensor, ValueId};

use super::svm::pairs;
use crate::import::{Answer, NodeContext};
use crate::ops::compose::{binary, indices, reshaped, with_number};

/// Steps at least, whatever the number of classes.
const STEPS: usize = 100;

/// The classes' probabilities, `[rows, classes]`, from those of the first class of each pair, `[rows,
/// pairs]`.
pub(super) fn coupled(n: &mut NodeContext<'_, '_>, likely: ValueId, classes: usize) -> Answer<ValueId> {
    let rows = n.shape(likely)?[0];
    let even = n.scalar(DType::F32, 1.0 / classes as f64);
    let start = n.build(|g| g.fill(even, [rows, classes]))?;
    if rows == 0 {
        return Ok(start);
    }
    let q = quadratic(n, likely, classes)?;
    let most = STEPS.max(classes);
    let body = step(rows, classes);
    let body = n.built(body)?;
    n.build(|g| {
        let trips = g.constant(Tensor::scalar(most as i64));
        let begin = g.constant(Tensor::scalar(true));
        let op = Loop { carried: 1, max_iterations: Some(most), body: SubGraph::new(body)? };
        let results = g.add_op(op, &[trips, begin, start, q])?;
        Ok(results[0])
    })
}

/// Q of every row, `[rows, classes, classes]`.
fn quadratic(n: &mut NodeContext<'_, '_>, likely: ValueId, classes: usize) -> Answer<ValueId> {
    let shape = n.shape(likely)?;
    let (rows, count) = (shape[0], shape[1]);
    let unlikely = n.build(|g| g.neg(likely))?;
    let unlikely = with_number(n, Binary::Add, unlikely, 1.0)?;
    let zero = n.scalar(DType::F32, 0.0);
    let none = n.build(|g| g.fill(zero, [rows, 1]))?;
    let all = n.build(|g| g.concat(&[likely, unlikely, none], 1))?;
    // Where in `all` r(i, j) stands; the zero is for the diagonal.
    let mut places = vec![2 * count as i64; classes * classes];
    for (place, (i, j)) in pairs(classes).enumerate() {
        places[i * classes + j] = place as i64;
        places[j * classes + i] = (count + place) as i64;
    }
    let places = indices(n, places)?;
    let r = n.build(|g| g.gather(all, places, 1))?;
    let r = reshaped(n, r, &[rows, classes, classes])?;
    let turned = n.build(|g| g.transpose(r, &[0, 2, 1]))?;
    let products = binary(n, Binary::Mul, r, turned)?;
    let diagonal = n.build(|g| g.reduce(ReduceKind::SumSquare, r, &[1], true))?;
    let identity: Vec<f32> = (0..classes * classes).map(|i| f32::from(i / classes == i % classes)).collect();
    let identity = Tensor::new([classes, classes], identity);
    let identity = n.built(identity)?;
    let identity = n.constant(identity);
    let diagonal = binary(n, Binary::Mul, diagonal, identity)?;
    binary(n, Binary::Sub, diagonal, products)
}

/// One step: each class's probability in turn is set to what is best with the others as they are.
fn step(rows: usize, classes: usize) -> Result<Graph, Error> {
    let mut g = Graph::new("couple");
    g.input("trip", DType::I64, [])?;
    let start = g.input("p", DType::F32, [rows, classes])?;
    let q = g.input("q", DType::F32, [rows, classes, classes])?;
    let row = [rows as i64, 1, classes as i64];
    let across = g.reshape(start, &row)?;
    let products = g.mul(q, across)?;
    let mut qp = g.reduce(ReduceKind::Sum, products, &[2], false)?;
    let products = g.mul(start, qp)?;
    let mut pqp = g.reduce(ReduceKind::Sum, products, &[1], true)?;
    let error = g.sub(qp, pqp)?;
    let error = g.abs(error)?;
    let error = g.reduce(ReduceKind::Max, error, &[1], true)?;
    let limit = g.constant(Tensor::scalar(0.005 / classes as f32));
    // Rows that are NaN never end otherwise.
    let active = g.ge(error, limit)?;
    let going = g.reduce(ReduceKind::Any, active, &[0, 1], false)?;
    let mut p = start;
    for t in 0..classes {
        let of_t = g.narrow(q, 1, t, 1)?;
        let of_t = g.reshape(of_t, &[rows as i64, classes as i64])?;
        let (own, at) = (g.narrow(of_t, 1, t, 1)?, g.narrow(qp, 1, t, 1)?);
        let gap = g.sub(pqp, at)?;
        let change = g.div(gap, own)?;
        let scale = g.binary_scalar(Binary::Add, change, 1.0)?;
        let inner = g.mul(change, own)?;
        let twice = g.binary_scalar(Binary::Mul, at, 2.0)?;
        let inner = g.add(inner, twice)?;
        let inner = g.mul(change, inner)?;
        let inner = g.add(pqp, inner)?;
        let inner = g.div(inner, scale)?;
        pqp = g.div(inner, scale)?;
        let moved = g.mul(of_t, change)?;
        let moved = g.add(qp, moved)?;
        qp = g.div(moved, scale)?;
        let only: Vec<f32> = (0..classes).map(|i| f32::from(i == t)).collect();
        let only = g.constant(Tensor::new([1, classes], only)?);
        let moved = g.mul(only, change)?;
        let moved = g.add(p, moved)?;
        p = g.div(moved, scale)?;
    }
    let next = g.select(active, p, start)?;
    g.output("going", going)?;
    g.output("p", next)?;
    Ok(g)
}
