//! Linear models of `ai.onnx.ml`.

use olivine_ir::op::Binary;
use olivine_ir::{DType, ValueId};

use super::scores::{Transform, best, class_labels, classified, either, floats_of, rows};
use crate::ElementType;
use crate::import::{Answer, NodeContext, Value};
use crate::ops::Entry;
use crate::ops::arity::Takes;
use crate::ops::compose::{binary, cast, floats, size};

/// Operators of `ai.onnx.ml`.
pub(super) const OPERATORS: &[Entry] = &[
    ("LinearClassifier", Takes(1, 2), linear_classifier),
    ("LinearRegressor", Takes(1, 1), linear_regressor),
];

/// x, `[rows, features]`, times the transpose of a matrix that has a row for each result.
pub(super) fn matmul(
    n: &mut NodeContext<'_, '_>,
    x: ValueId,
    results: usize,
    matrix: Vec<f32>,
) -> Answer<ValueId> {
    let features = n.shape(x)?[1];
    if results.checked_mul(features) != Some(matrix.len()) {
        let found = matrix.len();
        return Err(n.wrong(format!("{found} coefficients for {results} results of {features} features")));
    }
    let matrix = floats(n, DType::F32, [results, features], matrix)?;
    n.build(|g| {
        let columns = g.transpose(matrix, &[1, 0])?;
        g.matmul(x, columns)
    })
}

/// Scores plus the attribute `intercepts`, if there are any.
fn with_intercepts(n: &mut NodeContext<'_, '_>, scores: ValueId, count: usize) -> Answer<ValueId> {
    if n.floats("intercepts")?.is_none_or(|list| list.is_empty()) {
        return Ok(scores);
    }
    let intercepts = floats_of(n, "intercepts", count)?;
    let intercepts = floats(n, DType::F32, [1, count], intercepts)?;
    binary(n, Binary::Add, scores, intercepts)
}

fn linear_classifier(n: &mut NodeContext<'_, '_>) -> Answer<Vec<Value>> {
    let x = rows(n)?;
    let x = cast(n, x, DType::F32)?;
    let labels = class_labels(n, "classlabels_ints")?;
    let transform = Transform::named(n)?;
    let coefficients = n.floats("coefficients")?.unwrap_or_default();
    let features = n.shape(x)?[1];
    let count = coefficients.len().checked_div(features).unwrap_or(0);
    if count == 0 {
        return Err(n.wrong(format!("{} coefficients for {features} features", coefficients.len())));
    }
    let scores = matmul(n, x, count, coefficients)?;
    let scores = with_intercepts(n, scores, count)?;
    if count == 1 {
        let pair = <[i64; 2]>::try_from(labels.as_slice());
        let label = either(n, scores, 0.0, pair.unwrap_or([0, 1]))?;
        let scores = match pair {
            Ok(_) => transform.of_one_score(n, scores, true)?,
            Err(_) => transform.apply(n, scores)?,
        };
        return classified(n, label, scores);
    }
    let labels = if labels.is_empty() { (0..count as i64).collect() } else { labels };
    if labels.len() != count {
        return Err(n.wrong(format!("{} labels for {count} classes", labels.len())));
    }
    let label = best(n, scores, labels)?;
    let scores = transform.apply(n, scores)?;
    classified(n, label, scores)
}

fn linear_regressor(n: &mut NodeContext<'_, '_>) -> Answer<Vec<Value>> {
    let x = rows(n)?;
    let x = cast(n, x, DType::F32)?;
    let targets = n.int_or("targets", 1)?;
    let targets = size(n, "targets", targets)?;
    let transform = Transform::named(n)?;
    let coefficients = n.floats("coefficients")?.unwrap_or_default();
    let y = matmul(n, x, targets, coefficients)?;
    let y = with_intercepts(n, y, targets)?;
    let y = transform.apply(n, y)?;
    Ok(vec![n.result(y, ElementType::F32)])
}
