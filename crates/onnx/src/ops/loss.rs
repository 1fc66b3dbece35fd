//! Losses.

use olivine_ir::op::{Binary, ReduceKind};
use olivine_ir::{DType, Tensor, ValueId};

use super::Entry;
use super::arity::Takes;
use super::compose::{binary, cast, reduced, reshaped};
use crate::import::{Answer, NodeContext, Value};

pub(super) const OPERATORS: &[Entry] = &[
    ("NegativeLogLikelihoodLoss", Takes(3, 1), negative_log_likelihood),
    ("SoftmaxCrossEntropyLoss", Takes(3, 2), softmax_cross_entropy),
];

fn negative_log_likelihood(n: &mut NodeContext<'_, '_>) -> Answer<Vec<Value>> {
    let x = n.tensor(0)?;
    let y = likelihood_loss(n, x)?;
    n.like_first(y)
}

fn softmax_cross_entropy(n: &mut NodeContext<'_, '_>) -> Answer<Vec<Value>> {
    let x = n.tensor(0)?;
    if n.shape(x)?.rank() < 2 {
        return Err(n.wrong("its scores have fewer than two axes"));
    }
    let log_prob = n.build(|g| g.log_softmax(x, 1))?;
    let y = likelihood_loss(n, log_prob)?;
    let element = n.element(0)?;
    Ok(vec![n.result(y, element), n.result(log_prob, element)])
}

/// The loss of `[N, C, ..]` of logarithms with the node's labels, weights and reduction.
fn likelihood_loss(n: &mut NodeContext<'_, '_>, x: ValueId) -> Answer<ValueId> {
    let (labels, weights) = (n.tensor(1)?, n.optional(2)?);
    let (shape, dtype) = (n.shape(x)?, n.dtype(x)?);
    let labelled = n.shape(labels)?;
    let outside = |axis: usize| axis != 1;
    let expected: Vec<usize> = (0..shape.rank()).filter(|a| outside(*a)).map(|a| shape[a]).collect();
    if shape.rank() < 2 || labelled.dims() != expected {
        return Err(n.wrong(format!("labels of {labelled} do not fit {shape}")));
    }
    let labels = cast(n, labels, DType::I64)?;
    let ignored = match n.int("ignore_index")? {
        Some(label) => {
            let label = n.constant(Tensor::scalar(label));
            Some(n.build(|g| g.eq(labels, label))?)
        }
        None => None,
    };
    // Labels that are ignored need not name a class.
    let zero = n.constant(Tensor::scalar(0i64));
    let classes = match ignored {
        Some(ignored) => n.build(|g| g.select(ignored, zero, labels))?,
        None => labels,
    };
    let mut dims = labelled.to_vec();
    dims.insert(1, 1);
    let rows = reshaped(n, classes, &dims)?;
    let chosen = n.build(|g| g.gather_elements(x, rows, 1))?;
    let chosen = reshaped(n, chosen, &labelled)?;
    let mut loss = n.build(|g| g.neg(chosen))?;
    let nothing = n.scalar(dtype, 0.0);
    let mut counted = match weights {
        Some(weights) => {
            let weights = cast(n, weights, dtype)?;
            Some(n.build(|g| g.gather(weights, classes, 0))?)
        }
        None => None,
    };
    if let Some(ignored) = ignored {
        let one = n.scalar(dtype, 1.0);
        let weight = counted.unwrap_or(one);
        counted = Some(n.build(|g| g.select(ignored, nothing, weight))?);
        loss = n.build(|g| g.select(ignored, nothing, loss))?;
    }
    if let Some(weight) = counted {
        loss = binary(n, Binary::Mul, loss, weight)?;
    }
    let axes: Vec<usize> = (0..labelled.rank()).collect();
    match n.string_or("reduction", "mean")?.as_str() {
        "none" => Ok(loss),
        "sum" => reduced(n, ReduceKind::Sum, loss, &axes, false),
        "mean" => {
            let Some(weight) = counted else { return reduced(n, ReduceKind::Mean, loss, &axes, false) };
            // Sums of narrow floats go on as wide ones until they are divided.
            let held = super::compose::wide(dtype);
            let (loss, weight) = (cast(n, loss, held)?, cast(n, weight, held)?);
            let total = reduced(n, ReduceKind::Sum, loss, &axes, false)?;
            let count = reduced(n, ReduceKind::Sum, weight, &axes, false)?;
            let mean = binary(n, Binary::Div, total, count)?;
            cast(n, mean, dtype)
        }
        other => Err(n.wrong(format!("reduction `{other}` is unknown"))),
    }
}
