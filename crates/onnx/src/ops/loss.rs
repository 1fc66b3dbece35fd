//! Losses and steps of training.

use olivine_ir::op::{Binary, ReduceKind};
use olivine_ir::{DType, Tensor, ValueId};

use super::Entry;
use super::arity::{ANY, Takes};
use super::compose::{binary, cast, reduced, reshaped, with_number};
use crate::import::{Answer, NodeContext, Value};

pub(super) const OPERATORS: &[Entry] = &[
    ("NegativeLogLikelihoodLoss", Takes(3, 1), negative_log_likelihood),
    ("SoftmaxCrossEntropyLoss", Takes(3, 2), softmax_cross_entropy),
];

/// Operators of `ai.onnx.preview.training`.
pub(super) const TRAINING: &[Entry] = &[
    ("Adagrad", Takes(ANY, ANY), adagrad),
    ("Adam", Takes(ANY, ANY), adam),
    ("Momentum", Takes(ANY, ANY), momentum),
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

/// Tensors after the rate and the count of updates, in equal groups: as many of each kind as there are
/// variables.
fn variables(n: &mut NodeContext<'_, '_>, kinds: usize) -> Answer<Vec<Vec<ValueId>>> {
    let all: Vec<ValueId> = (2..n.input_count()).map(|i| n.tensor(i)).collect::<Answer<_>>()?;
    if all.is_empty() || !all.len().is_multiple_of(kinds) {
        return Err(n.wrong(format!("{} tensors are not in {kinds} equal groups", all.len())));
    }
    let count = all.len() / kinds;
    Ok((0..count).map(|i| (0..kinds).map(|k| all[k * count + i]).collect()).collect())
}

/// Results of every variable, put in order by kind.
fn by_kind(n: &mut NodeContext<'_, '_>, results: Vec<Vec<ValueId>>) -> Answer<Vec<Value>> {
    let element = n.element(2)?;
    let kinds = results.first().map_or(0, Vec::len);
    let ids = (0..kinds).flat_map(|k| results.iter().filter_map(move |r| r.get(k).copied()));
    Ok(ids.map(|id| n.result(id, element)).collect())
}

/// A gradient with that of the norm of the variable added.
fn regularised(n: &mut NodeContext<'_, '_>, x: ValueId, gradient: ValueId) -> Answer<ValueId> {
    let factor = f64::from(n.float_or("norm_coefficient", 0.0)?);
    let pull = with_number(n, Binary::Mul, x, factor)?;
    binary(n, Binary::Add, pull, gradient)
}

/// The rate as a scalar of a variable's dtype.
fn rate(n: &mut NodeContext<'_, '_>, x: ValueId) -> Answer<ValueId> {
    let (rate, dtype) = (n.tensor(0)?, n.dtype(x)?);
    let rate = reshaped(n, rate, &[])?;
    cast(n, rate, dtype)
}

/// The count of updates as a scalar of a dtype.
fn updates(n: &mut NodeContext<'_, '_>, dtype: DType) -> Answer<ValueId> {
    let count = n.tensor(1)?;
    let count = reshaped(n, count, &[])?;
    cast(n, count, dtype)
}

fn momentum(n: &mut NodeContext<'_, '_>) -> Answer<Vec<Value>> {
    let (alpha, beta) = (n.float_or("alpha", 0.0)?, n.float_or("beta", 0.0)?);
    let nesterov = match n.string_or("mode", "standard")?.as_str() {
        "standard" => false,
        "nesterov" => true,
        other => return Err(n.wrong(format!("mode `{other}` is unknown"))),
    };
    let mut results = Vec::new();
    for group in variables(n, 3)? {
        let (x, gradient, velocity) = (group[0], group[1], group[2]);
        let rate = rate(n, x)?;
        let gradient = regularised(n, x, gradient)?;
        // The first update takes the gradient whole.
        let count = updates(n, DType::I64)?;
        let dtype = n.dtype(x)?;
        let new = n.build(|g| {
            let zero = g.constant(Tensor::scalar(0i64));
            let later = g.gt(count, zero)?;
            let one = g.constant(Tensor::scalar_of(dtype, 1.0));
            let beta = g.constant(Tensor::scalar_of(dtype, f64::from(beta)));
            let share = g.select(later, beta, one)?;
            let taken = g.mul(share, gradient)?;
            let kept = g.binary_scalar(Binary::Mul, velocity, f64::from(alpha))?;
            let velocity = g.add(kept, taken)?;
            let step = if nesterov {
                let ahead = g.binary_scalar(Binary::Mul, velocity, f64::from(alpha))?;
                g.add(gradient, ahead)?
            } else {
                velocity
            };
            let step = g.mul(rate, step)?;
            Ok(vec![g.sub(x, step)?, velocity])
        })?;
        results.push(new);
    }
    by_kind(n, results)
}

fn adagrad(n: &mut NodeContext<'_, '_>) -> Answer<Vec<Value>> {
    let (decay, epsilon) = (n.float_or("decay_factor", 0.0)?, n.float_or("epsilon", 1e-6)?);
    let mut results = Vec::new();
    for group in variables(n, 3)? {
        let (x, gradient, history) = (group[0], group[1], group[2]);
        let (rate, dtype) = (rate(n, x)?, n.dtype(x)?);
        let count = updates(n, dtype)?;
        let gradient = regularised(n, x, gradient)?;
        let new = n.build(|g| {
            let slower = g.binary_scalar(Binary::Mul, count, f64::from(decay))?;
            let slower = g.binary_scalar(Binary::Add, slower, 1.0)?;
            let rate = g.div(rate, slower)?;
            let square = g.square(gradient)?;
            let history = g.add(history, square)?;
            let root = g.sqrt(history)?;
            let scale = g.binary_scalar(Binary::Add, root, f64::from(epsilon))?;
            let step = g.mul(rate, gradient)?;
            let step = g.div(step, scale)?;
            Ok(vec![g.sub(x, step)?, history])
        })?;
        results.push(new);
    }
    by_kind(n, results)
}

fn adam(n: &mut NodeContext<'_, '_>) -> Answer<Vec<Value>> {
    let (alpha, beta) = (f64::from(n.float_or("alpha", 0.9)?), f64::from(n.float_or("beta", 0.999)?));
    let epsilon = f64::from(n.float_or("epsilon", 1e-6)?);
    let after = f64::from(n.float_or("norm_coefficient_post", 0.0)?);
    let mut results = Vec::new();
    for group in variables(n, 4)? {
        let (x, gradient, first, second) = (group[0], group[1], group[2], group[3]);
        let (rate, dtype) = (rate(n, x)?, n.dtype(x)?);
        let count = updates(n, dtype)?;
        let gradient = regularised(n, x, gradient)?;
        let new = n.build(|g| {
            let average = |g: &mut olivine_ir::Graph, old, new, share: f64| {
                let kept = g.binary_scalar(Binary::Mul, old, share)?;
                let taken = g.binary_scalar(Binary::Mul, new, 1.0 - share)?;
                g.add(kept, taken)
            };
            let first = average(g, first, gradient, alpha)?;
            let square = g.square(gradient)?;
            let second = average(g, second, square, beta)?;
            let root = g.sqrt(second)?;
            let root = g.binary_scalar(Binary::Add, root, epsilon)?;
            // Averages that begin at zero are too small at first; the rate makes up for it.
            let missing = |g: &mut olivine_ir::Graph, share: f64| {
                let share = g.constant(Tensor::scalar_of(dtype, share));
                let power = g.pow(share, count)?;
                let less = g.neg(power)?;
                g.binary_scalar(Binary::Add, less, 1.0)
            };
            let (of_second, of_first) = (missing(g, beta)?, missing(g, alpha)?);
            let of_second = g.sqrt(of_second)?;
            let corrected = g.mul(rate, of_second)?;
            let corrected = g.div(corrected, of_first)?;
            let zero = g.constant(Tensor::scalar_of(dtype, 0.0));
            let later = g.gt(count, zero)?;
            let rate = g.select(later, corrected, rate)?;
            let step = g.mul(rate, first)?;
            let step = g.div(step, root)?;
            let x = g.sub(x, step)?;
            let x = g.binary_scalar(Binary::Mul, x, 1.0 - after)?;
            Ok(vec![x, first, second])
        })?;
        results.push(new);
    }
    by_kind(n, results)
}
