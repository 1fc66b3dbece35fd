//! What the models of `ai.onnx.ml` have in common: rows of features, scores, and labels for classes.

use olivine_ir::op::{Binary, ReduceKind};
use olivine_ir::{DType, Tensor, ValueId};

use crate::ElementType;
use crate::import::{Answer, NodeContext, Value};
use crate::ops::compose::{cast, indices, reduced, reshaped, with_number};

/// The attribute `post_transform`.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Transform {
    None,
    Softmax,
    Logistic,
    SoftmaxZero,
    Probit,
}

impl Transform {
    /// As its name says.
    pub(super) fn named(n: &NodeContext<'_, '_>) -> Answer<Transform> {
        Ok(match n.string_or("post_transform", "NONE")?.as_str() {
            "NONE" => Transform::None,
            "SOFTMAX" => Transform::Softmax,
            "LOGISTIC" => Transform::Logistic,
            "SOFTMAX_ZERO" => Transform::SoftmaxZero,
            "PROBIT" => Transform::Probit,
            other => return Err(n.wrong(format!("post_transform `{other}` is unknown"))),
        })
    }

    /// As its number says.
    pub(super) fn numbered(n: &NodeContext<'_, '_>) -> Answer<Transform> {
        Ok(match n.int_or("post_transform", 0)? {
            0 => Transform::None,
            1 => Transform::Softmax,
            2 => Transform::Logistic,
            3 => Transform::SoftmaxZero,
            4 => Transform::Probit,
            other => return Err(n.wrong(format!("post_transform {other} is unknown"))),
        })
    }

    /// The scores of each row, transformed.
    pub(super) fn apply(self, n: &mut NodeContext<'_, '_>, scores: ValueId) -> Answer<ValueId> {
        match self {
            Transform::None => Ok(scores),
            Transform::Softmax => n.build(|g| g.softmax(scores, 1)),
            Transform::Logistic => n.build(|g| g.sigmoid(scores)),
            Transform::SoftmaxZero => softmax_zero(n, scores),
            Transform::Probit => probit(n, scores),
        }
    }

    /// The scores of two classes, `[rows, 2]`, from that of the second, `[rows, 1]`. The specification says
    /// nothing of models that give one score for two classes; this is what ONNX Runtime makes of them: a
    /// softmax leaves the scores as they are, and the first class has what is missing from 1 where the score
    /// is like a probability, else the opposite. A probit has no meaning but for probabilities.
    pub(super) fn of_one_score(
        self,
        n: &mut NodeContext<'_, '_>,
        score: ValueId,
        like_probability: bool,
    ) -> Answer<ValueId> {
        let opposite = n.build(|g| g.neg(score))?;
        let rest = if like_probability || self == Transform::Probit {
            with_number(n, Binary::Add, opposite, 1.0)?
        } else {
            opposite
        };
        let first = if self == Transform::Logistic { opposite } else { rest };
        let both = n.build(|g| g.concat(&[first, score], 1))?;
        match self {
            Transform::Logistic | Transform::Probit => self.apply(n, both),
            Transform::None | Transform::Softmax | Transform::SoftmaxZero => Ok(both),
        }
    }
}

/// Scores that are no farther from zero are zero to [`Transform::SoftmaxZero`].
const NEARLY_ZERO: f64 = 1e-7;

/// Softmax over the scores that are not zero; those that are stay.
fn softmax_zero(n: &mut NodeContext<'_, '_>, y: ValueId) -> Answer<ValueId> {
    let dtype = n.dtype(y)?;
    let zero = n.scalar(dtype, 0.0);
    let least = n.scalar(dtype, f64::NEG_INFINITY);
    let limit = n.scalar(dtype, NEARLY_ZERO);
    let is_zero = n.build(|g| {
        let size = g.abs(y)?;
        g.le(size, limit)
    })?;
    let others = n.build(|g| g.select(is_zero, least, y))?;
    let shares = n.build(|g| g.softmax(others, 1))?;
    n.build(|g| g.select(is_zero, zero, shares))
}

/// The number whose standard normal probability is p, by Winitzki's formula for the inverse of the error
/// function: what both ONNX's own implementation and ONNX Runtime compute.
fn probit(n: &mut NodeContext<'_, '_>, p: ValueId) -> Answer<ValueId> {
    const A: f64 = 0.147;
    let at = with_number(n, Binary::Mul, p, 2.0)?;
    let at = with_number(n, Binary::Sub, at, 1.0)?;
    n.build(|g| {
        let dtype = g.ty(at)?.dtype;
        let one = g.constant(Tensor::scalar_of(dtype, 1.0));
        let (below, above) = (g.sub(one, at)?, g.add(one, at)?);
        let product = g.mul(below, above)?;
        let log = g.log(product)?;
        let half = g.binary_scalar(Binary::Mul, log, 0.5)?;
        let middle = g.binary_scalar(Binary::Add, half, 2.0 / (std::f64::consts::PI * A))?;
        let scaled = g.binary_scalar(Binary::Mul, log, 1.0 / A)?;
        let square = g.square(middle)?;
        let under = g.sub(square, scaled)?;
        let root = g.sqrt(under)?;
        // Rounding may bring the difference of p = 1/2 below the zero that it is.
        let inner = g.sub(root, middle)?;
        let inner = g.binary_scalar(Binary::Max, inner, 0.0)?;
        let size = g.sqrt(inner)?;
        let size = g.binary_scalar(Binary::Mul, size, std::f64::consts::SQRT_2)?;
        let sign = g.sign(at)?;
        g.mul(size, sign)
    })
}

/// Input 0 as rows of features, `[rows, features]`, in its own dtype; one row where there is one axis.
pub(super) fn rows(n: &mut NodeContext<'_, '_>) -> Answer<ValueId> {
    let x = numeric(n, 0)?;
    let shape = n.shape(x)?;
    match *shape.dims() {
        [features] => reshaped(n, x, &[1, features]),
        [_, _] => Ok(x),
        _ => Err(n.wrong(format!("it takes rows of features, not {shape}"))),
    }
}

/// Input `i`, of one of the element types that these operators take.
pub(super) fn numeric(n: &mut NodeContext<'_, '_>, i: usize) -> Answer<ValueId> {
    match n.element(i)? {
        ElementType::F32 | ElementType::F64 | ElementType::I32 | ElementType::I64 => n.tensor(i),
        other => {
            Err(n.wrong(format!("input {i} should be floats, doubles, int32 or int64, it is {other:?}")))
        }
    }
}

/// Class labels that are integers; none where the node names none.
pub(super) fn class_labels(n: &NodeContext<'_, '_>, ints: &str) -> Answer<Vec<i64>> {
    without_strings(n, "classlabels_strings")?;
    Ok(n.ints(ints)?.unwrap_or_default())
}

/// Refuses an attribute of strings.
pub(super) fn without_strings(n: &NodeContext<'_, '_>, name: &str) -> Answer<()> {
    match n.strings(name)? {
        Some(list) if !list.is_empty() => Err(n.wrong(format!(
            "its `{name}` are strings, which live on no device: only integer labels can be imported"
        ))),
        _ => Ok(()),
    }
}

/// The labels of classes that are given by number.
pub(super) fn labels_at(n: &mut NodeContext<'_, '_>, labels: Vec<i64>, class: ValueId) -> Answer<ValueId> {
    let labels = indices(n, labels)?;
    n.build(|g| g.gather(labels, class, 0))
}

/// The label of every row's greatest score.
pub(super) fn best(n: &mut NodeContext<'_, '_>, scores: ValueId, labels: Vec<i64>) -> Answer<ValueId> {
    let class = n.build(|g| g.argmax(scores, 1, false))?;
    labels_at(n, labels, class)
}

/// The second of two labels where a score, `[rows, 1]`, is above a threshold, else the first.
pub(super) fn either(
    n: &mut NodeContext<'_, '_>,
    score: ValueId,
    threshold: f64,
    labels: [i64; 2],
) -> Answer<ValueId> {
    let dtype = n.dtype(score)?;
    let threshold = n.scalar(dtype, threshold);
    let above = n.build(|g| g.gt(score, threshold))?;
    let above = reduced(n, ReduceKind::Any, above, &[1], false)?;
    let class = cast(n, above, DType::I64)?;
    labels_at(n, labels.to_vec(), class)
}

/// A classifier's two results.
pub(super) fn classified(n: &mut NodeContext<'_, '_>, label: ValueId, scores: ValueId) -> Answer<Vec<Value>> {
    let scores = cast(n, scores, DType::F32)?;
    Ok(vec![n.result(label, ElementType::I64), n.result(scores, ElementType::F32)])
}

/// Lists of which all should be as long as the first.
pub(super) fn equally_long(n: &NodeContext<'_, '_>, lists: &[(&str, usize)]) -> Answer<()> {
    let Some((first, length)) = lists.first() else { return Ok(()) };
    match lists.iter().find(|(_, other)| other != length) {
        Some((name, other)) => {
            Err(n.wrong(format!("`{name}` has {other} elements where `{first}` has {length}")))
        }
        None => Ok(()),
    }
}

/// A list of floats that should have so many elements.
pub(super) fn floats_of(n: &NodeContext<'_, '_>, name: &str, count: usize) -> Answer<Vec<f32>> {
    let list = n.floats(name)?.unwrap_or_default();
    if list.len() == count {
        return Ok(list);
    }
    Err(n.wrong(format!("`{name}` has {} elements, not {count}", list.len())))
}
