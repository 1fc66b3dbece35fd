//! Support vector machines of `ai.onnx.ml`.

use olivine_ir::op::{Binary, ReduceKind};
use olivine_ir::{DType, ValueId};

use super::coupling::coupled;
use super::linear::matmul;
use super::scores::{Transform, best, class_labels, classified, equally_long, floats_of, labels_at, rows};
use crate::ElementType;
use crate::import::{Answer, NodeContext, Value};
use crate::ops::Entry;
use crate::ops::arity::Takes;
use crate::ops::compose::{binary, cast, floats, indices, reduced, reshaped, size, sizes, with_number};

/// Operators of `ai.onnx.ml`.
pub(super) const OPERATORS: &[Entry] =
    &[("SVMClassifier", Takes(1, 2), svm_classifier), ("SVMRegressor", Takes(1, 1), svm_regressor)];

/// The attributes `kernel_type` and `kernel_params`.
enum Kernel {
    Linear,
    Poly { gamma: f64, offset: f64, degree: f64 },
    Rbf { gamma: f64 },
    Sigmoid { gamma: f64, offset: f64 },
}

impl Kernel {
    fn read(n: &NodeContext<'_, '_>) -> Answer<Kernel> {
        let parameters = n.floats("kernel_params")?.unwrap_or_default();
        let [gamma, offset, degree] = match parameters.as_slice() {
            [] => [0.0; 3],
            &[gamma, offset, degree] => [gamma, offset, degree].map(f64::from),
            other => return Err(n.wrong(format!("`kernel_params` has {} elements, not 3", other.len()))),
        };
        Ok(match n.string_or("kernel_type", "LINEAR")?.as_str() {
            "LINEAR" => Kernel::Linear,
            "POLY" => Kernel::Poly { gamma, offset, degree },
            "RBF" => Kernel::Rbf { gamma },
            "SIGMOID" => Kernel::Sigmoid { gamma, offset },
            other => return Err(n.wrong(format!("kernel_type `{other}` is unknown"))),
        })
    }

    /// The kernel of every row of x with every vector, `[rows, vectors]`.
    fn of(
        &self,
        n: &mut NodeContext<'_, '_>,
        x: ValueId,
        count: usize,
        vectors: Vec<f32>,
    ) -> Answer<ValueId> {
        let affine = |n: &mut NodeContext<'_, '_>, vectors, gamma, offset| {
            let dot = matmul(n, x, count, vectors)?;
            let scaled = with_number(n, Binary::Mul, dot, gamma)?;
            with_number(n, Binary::Add, scaled, offset)
        };
        match *self {
            Kernel::Linear => matmul(n, x, count, vectors),
            Kernel::Poly { gamma, offset, degree } => {
                let inner = affine(n, vectors, gamma, offset)?;
                with_number(n, Binary::Pow, inner, degree)
            }
            Kernel::Sigmoid { gamma, offset } => {
                let inner = affine(n, vectors, gamma, offset)?;
                n.build(|g| g.tanh(inner))
            }
            Kernel::Rbf { gamma } => {
                let distance = square_distances(n, x, count, vectors)?;
                let scaled = with_number(n, Binary::Mul, distance, -gamma)?;
                n.build(|g| g.exp(scaled))
            }
        }
    }
}

/// Differences that are made at a time at most.
const MAX_DIFFERENCES: usize = 1 << 24;

/// Squares of the distances of rows and vectors, `[rows, vectors]`. They are sums of squares of differences,
/// since what is left of |x|² + |v|² − 2x·v has no digits to trust where the two are close; vectors are taken
/// some at a time, since there is a difference for every row, vector and feature.
fn square_distances(
    n: &mut NodeContext<'_, '_>,
    x: ValueId,
    count: usize,
    vectors: Vec<f32>,
) -> Answer<ValueId> {
    let shape = n.shape(x)?;
    let (number, features) = (shape[0], shape[1]);
    let one = reshaped(n, x, &[number, 1, features])?;
    let each = (MAX_DIFFERENCES / shape.numel().max(1)).max(1);
    let mut parts = Vec::new();
    for part in vectors.chunks(each.saturating_mul(features).max(1)) {
        let length = part.len() / features.max(1);
        let part = floats(n, DType::F32, [1, length, features], part.to_vec())?;
        let difference = binary(n, Binary::Sub, one, part)?;
        parts.push(reduced(n, ReduceKind::SumSquare, difference, &[2], false)?);
    }
    match parts.as_slice() {
        [] => {
            let zero = n.scalar(DType::F32, 0.0);
            n.build(|g| g.fill(zero, [number, count]))
        }
        &[all] => Ok(all),
        _ => n.build(|g| g.concat(&parts, 1)),
    }
}

/// The attribute `support_vectors`, so many for rows of x.
fn support_vectors(n: &mut NodeContext<'_, '_>, x: ValueId, count: usize) -> Answer<Vec<f32>> {
    let features = n.shape(x)?[1];
    let Some(total) = count.checked_mul(features) else {
        return Err(n.wrong(format!("{count} vectors of {features} features are too many")));
    };
    floats_of(n, "support_vectors", total)
}

/// The first of `rho`, which there should be so many of at least.
fn rho(n: &NodeContext<'_, '_>, least: usize) -> Answer<Vec<f32>> {
    let rho = n.floats("rho")?.unwrap_or_default();
    match rho.get(..least) {
        Some(first) => Ok(first.to_vec()),
        None => Err(n.wrong(format!("`rho` has {} elements, not {least}", rho.len()))),
    }
}

fn svm_regressor(n: &mut NodeContext<'_, '_>) -> Answer<Vec<Value>> {
    let x = rows(n)?;
    let x = cast(n, x, DType::F32)?;
    let transform = Transform::named(n)?;
    let vectors = n.int_or("n_supports", 0)?;
    let vectors = size(n, "n_supports", vectors)?;
    let coefficients = n.floats("coefficients")?.unwrap_or_default();
    let values = if vectors > 0 {
        let list = support_vectors(n, x, vectors)?;
        Kernel::read(n)?.of(n, x, vectors, list)?
    } else {
        x
    };
    let y = matmul(n, values, 1, coefficients)?;
    let y = with_number(n, Binary::Add, y, f64::from(rho(n, 1)?[0]))?;
    let y = if n.flag("one_class", false)? {
        let (zero, inside, outside) =
            (n.scalar(DType::F32, 0.0), n.scalar(DType::F32, 1.0), n.scalar(DType::F32, -1.0));
        n.build(|g| {
            let above = g.gt(y, zero)?;
            g.select(above, inside, outside)
        })?
    } else {
        transform.apply(n, y)?
    };
    Ok(vec![n.result(y, ElementType::F32)])
}

fn svm_classifier(n: &mut NodeContext<'_, '_>) -> Answer<Vec<Value>> {
    let x = rows(n)?;
    let x = cast(n, x, DType::F32)?;
    let labels = class_labels(n, "classlabels_ints")?;
    if labels.is_empty() {
        return Err(n.wrong("it has no classlabels_ints"));
    }
    let transform = Transform::named(n)?;
    let each = n.ints("vectors_per_class")?.unwrap_or_default();
    let each = sizes(n, "vectors_per_class", &each)?;
    if each.iter().all(|count| *count == 0) {
        // No vectors: a hyperplane for each class.
        let coefficients = n.floats("coefficients")?.unwrap_or_default();
        let scores = matmul(n, x, labels.len(), coefficients)?;
        let scores = with_number(n, Binary::Add, scores, f64::from(rho(n, 1)?[0]))?;
        let label = best(n, scores, labels)?;
        let scores = transform.apply(n, scores)?;
        return classified(n, label, scores);
    }
    equally_long(n, &[("classlabels_ints", labels.len()), ("vectors_per_class", each.len())])?;
    let classes = labels.len();
    if classes < 2 {
        return Err(n.wrong("support vectors decide between two classes at least"));
    }
    let scores = decisions(n, x, &each)?;
    let label = voted(n, scores, labels)?;
    let (a, b) = (n.floats("prob_a")?.unwrap_or_default(), n.floats("prob_b")?.unwrap_or_default());
    equally_long(n, &[("prob_a", a.len()), ("prob_b", b.len())])?;
    let scores = if !a.is_empty() {
        let likely = pair_probabilities(n, scores, a, b)?;
        let likely = coupled(n, likely, classes)?;
        transform.apply(n, likely)?
    } else if classes == 2 {
        transform.of_one_score(n, scores, transform != Transform::None)?
    } else {
        transform.apply(n, scores)?
    };
    classified(n, label, scores)
}

/// All pairs of classes, the first before the second, in the order of their decisions.
pub(super) fn pairs(classes: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..classes).flat_map(move |i| (i + 1..classes).map(move |j| (i, j)))
}

/// What is decided between every two classes, `[rows, pairs]`: above zero for the first.
fn decisions(n: &mut NodeContext<'_, '_>, x: ValueId, each: &[usize]) -> Answer<ValueId> {
    let (classes, number) = (each.len(), n.shape(x)?[0]);
    // There is a rho for every pair: a file that has them all has a number of pairs that can be counted
    // through.
    let count = classes.saturating_mul(classes - 1) / 2;
    let rho = rho(n, count)?;
    let rho = floats(n, DType::F32, [1, count], rho)?;
    let vectors = each.iter().try_fold(0usize, |sum, count| sum.checked_add(*count));
    let Some(vectors) = vectors else { return Err(n.wrong("vectors_per_class are too many")) };
    let others = classes - 1;
    let Some(total) = others.checked_mul(vectors) else { return Err(n.wrong("vectors are too many")) };
    let coefficients = floats_of(n, "coefficients", total)?;
    let coefficients = floats(n, DType::F32, [others, vectors], coefficients)?;
    let list = support_vectors(n, x, vectors)?;
    let kernels = Kernel::read(n)?.of(n, x, vectors, list)?;
    // A class's vectors have a coefficient for each other class: the sums of all classes, [rows, classes ·
    // others].
    let mut sums = Vec::with_capacity(classes);
    let mut start = 0;
    for count in each {
        let sum = if *count > 0 {
            n.build(|g| {
                let values = g.narrow(kernels, 1, start, *count)?;
                let weights = g.narrow(coefficients, 1, start, *count)?;
                let weights = g.transpose(weights, &[1, 0])?;
                g.matmul(values, weights)
            })?
        } else {
            let zero = n.scalar(DType::F32, 0.0);
            n.build(|g| g.fill(zero, [number, others]))?
        };
        sums.push(sum);
        start += count;
    }
    let sums = n.build(|g| g.concat(&sums, 1))?;
    let of_first = indices(n, pairs(classes).map(|(i, j)| (i * others + j - 1) as i64).collect())?;
    let of_second = indices(n, pairs(classes).map(|(i, j)| (j * others + i) as i64).collect())?;
    n.build(|g| {
        let (first, second) = (g.gather(sums, of_first, 1)?, g.gather(sums, of_second, 1)?);
        let sum = g.add(first, second)?;
        g.add(sum, rho)
    })
}

/// The label of the class that most decisions are for, the first of several.
fn voted(n: &mut NodeContext<'_, '_>, decisions: ValueId, labels: Vec<i64>) -> Answer<ValueId> {
    let (shape, classes) = (n.shape(decisions)?, labels.len());
    let first = indices(n, pairs(classes).map(|(i, _)| i as i64).collect())?;
    let second = indices(n, pairs(classes).map(|(_, j)| j as i64).collect())?;
    let (zero, one) = (n.scalar(DType::F32, 0.0), n.scalar(DType::F32, 1.0));
    let class = n.build(|g| {
        let above = g.gt(decisions, zero)?;
        let winner = g.select(above, first, second)?;
        let (none, vote) = (g.fill(zero, [shape[0], classes])?, g.fill(one, shape)?);
        let votes = g.scatter_add(none, winner, vote, 1)?;
        g.argmax(votes, 1, false)
    })?;
    labels_at(n, labels, class)
}

/// How likely the first class of each pair is, given that it is one of the two.
fn pair_probabilities(
    n: &mut NodeContext<'_, '_>,
    decisions: ValueId,
    a: Vec<f32>,
    b: Vec<f32>,
) -> Answer<ValueId> {
    /// Probabilities keep away from certainty, where they cannot be coupled.
    const LEAST: f64 = 1e-7;
    let count = n.shape(decisions)?[1];
    let (Some(a), Some(b)) = (a.get(..count), b.get(..count)) else {
        return Err(n.wrong(format!("`prob_a` has {} elements, not {count}", a.len())));
    };
    let a = floats(n, DType::F32, [1, count], a.to_vec())?;
    let b = floats(n, DType::F32, [1, count], b.to_vec())?;
    n.build(|g| {
        let scaled = g.mul(decisions, a)?;
        let inner = g.add(scaled, b)?;
        let inner = g.neg(inner)?;
        let likely = g.sigmoid(inner)?;
        g.clamp(likely, LEAST, 1.0 - LEAST)
    })
}
