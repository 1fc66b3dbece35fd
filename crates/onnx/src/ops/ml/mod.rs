//! Operators of `ai.onnx.ml` on numbers, and the counting of n-grams.
//!
//! ```text
//!   features.rs              scaling, encoding and filling in of features
//!   linear.rs, svm.rs        linear models and support vector machines; coupling.rs makes probabilities of votes
//!   trees.rs                 ensembles as ai.onnx.ml 1 to 4 list them, classifiers and regressors
//!   tree_ensemble.rs         TreeEnsemble, and how any ensemble is walked
//!   scores.rs                labels and transforms of scores
//! ```

mod coupling;
mod features;
mod linear;
mod scores;
mod svm;
mod tree_ensemble;
mod trees;

use olivine_ir::op::{Binary, ReduceKind};
use olivine_ir::{DType, Tensor, ValueId};

use super::Entry;
use super::arity::Takes;
use super::compose::{binary, cast, floats, indices, reduced, reshaped, sizes};
use crate::ElementType;
use crate::import::{Answer, NodeContext, Value};

/// Operators of ONNX's own domain.
pub(super) const OPERATORS: &[Entry] = &[("TfIdfVectorizer", Takes(1, 1), tf_idf_vectorizer)];

/// The families of `ai.onnx.ml`.
pub(super) const FAMILIES: &[&[Entry]] =
    &[ML, features::OPERATORS, linear::OPERATORS, svm::OPERATORS, trees::OPERATORS, tree_ensemble::OPERATORS];

const ML: &[Entry] = &[
    ("ArrayFeatureExtractor", Takes(2, 1), array_feature_extractor),
    ("Binarizer", Takes(1, 1), binarizer),
    ("LabelEncoder", Takes(1, 1), label_encoder),
];

fn array_feature_extractor(n: &mut NodeContext<'_, '_>) -> Answer<Vec<Value>> {
    let (mut x, at) = (n.tensor(0)?, n.tensor(1)?);
    let shape = n.shape(x)?;
    let count = n.shape(at)?.numel();
    let at = reshaped(n, at, &[count])?;
    if shape.rank() == 1 {
        x = reshaped(n, x, &[1, shape[0]])?;
    }
    let y = n.build(|g| g.gather(x, at, -1))?;
    n.like_first(y)
}

fn binarizer(n: &mut NodeContext<'_, '_>) -> Answer<Vec<Value>> {
    let x = n.tensor(0)?;
    let dtype = n.dtype(x)?;
    let threshold = f64::from(n.float_or("threshold", 0.0)?);
    // An integer is above a float if it is above the whole number below it.
    let threshold = if dtype.is_float() { threshold } else { threshold.floor() };
    let threshold = n.scalar(dtype, threshold);
    let y = n.build(|g| g.gt(x, threshold))?;
    let y = cast(n, y, dtype)?;
    n.like_first(y)
}

/// A list of numbers that an encoder has under one of several names.
fn listed(n: &NodeContext<'_, '_>, kind: &str) -> Answer<(ElementType, Tensor)> {
    if let Some(found) = n.tensor_attribute(&format!("{kind}_tensor"))? {
        return Ok(found);
    }
    if let Some(list) = n.ints(&format!("{kind}_int64s"))? {
        let tensor = Tensor::new([list.len()], list);
        return Ok((ElementType::I64, n.built(tensor)?));
    }
    if let Some(list) = n.floats(&format!("{kind}_floats"))? {
        let tensor = Tensor::new([list.len()], list);
        return Ok((ElementType::F32, n.built(tensor)?));
    }
    Err(n.wrong(format!("its {kind} are no numbers")))
}

/// Numbers for numbers by a table; those that are not in it become the default.
fn label_encoder(n: &mut NodeContext<'_, '_>) -> Answer<Vec<Value>> {
    let x = n.tensor(0)?;
    let (_, keys) = listed(n, "keys")?;
    let (element, values) = listed(n, "values")?;
    let (count, to) = (keys.shape().numel(), values.dtype());
    if values.shape().numel() != count {
        return Err(n.wrong(format!("{count} keys for {} values", values.shape().numel())));
    }
    let default = match (n.tensor_attribute("default_tensor")?, to.is_float()) {
        (Some((_, tensor)), _) => tensor.to_f64().first().copied().unwrap_or(0.0),
        (None, true) => f64::from(n.float_or("default_float", -0.0)?),
        (None, false) => n.int_or("default_int64", -1)? as f64,
    };
    let default = n.scalar(to, default);
    let shape = n.shape(x)?;
    if count == 0 || shape.has_zero() {
        let y = n.build(|g| g.fill(default, shape))?;
        return Ok(vec![n.result(y, element)]);
    }
    let dtype = n.dtype(x)?;
    let keys = n.constant(keys);
    let keys = cast(n, keys, dtype)?;
    let (keys, values) = (reshaped(n, keys, &[count])?, n.constant(values));
    let values = reshaped(n, values, &[count])?;
    let one = reshaped(n, x, &[shape.numel(), 1])?;
    let y = n.build(|g| {
        let mut same = g.eq(one, keys)?;
        if dtype.is_float() {
            // NaN may be a key.
            let (a, b) = (g.isnan(one)?, g.isnan(keys)?);
            let both = g.and(a, b)?;
            same = g.or(same, both)?;
        }
        let hits = g.cast(same, DType::I32)?;
        let at = g.argmax(hits, 1, false)?;
        let found = g.reduce(ReduceKind::Any, same, &[1], false)?;
        let value = g.gather(values, at, 0)?;
        g.select(found, value, default)
    })?;
    let y = reshaped(n, y, &shape)?;
    Ok(vec![n.result(y, element)])
}

/// Columns that counts are made for at most.
const MAX_COLUMNS: usize = 1 << 26;

/// N-grams of one length: their items, row by row, and where each is counted in the result.
struct Grams {
    length: usize,
    items: Vec<i64>,
    columns: Vec<i64>,
}

/// The pool's n-grams by length.
fn pool(n: &NodeContext<'_, '_>) -> Answer<Vec<Grams>> {
    let Some(pool) = n.ints("pool_int64s")? else {
        return Err(n.wrong("only pools of integers can be imported"));
    };
    let starts = n.ints("ngram_counts")?.unwrap_or_default();
    let starts = sizes(n, "ngram_counts", &starts)?;
    let columns = n.ints("ngram_indexes")?.unwrap_or_default();
    let mut found = Vec::new();
    let mut next = 0;
    for (i, start) in starts.iter().enumerate() {
        let (length, end) = (i + 1, starts.get(i + 1).copied().unwrap_or(pool.len()));
        let items = pool.get(*start..end).ok_or_else(|| n.wrong("ngram_counts leave the pool"))?;
        let count = items.len() / length;
        let columns = columns.get(next..next + count);
        let columns = columns.ok_or_else(|| n.wrong("there are fewer ngram_indexes than n-grams"))?;
        next += count;
        if count > 0 {
            let items = items[..count * length].to_vec();
            found.push(Grams { length, items, columns: columns.to_vec() });
        }
    }
    Ok(found)
}

fn tf_idf_vectorizer(n: &mut NodeContext<'_, '_>) -> Answer<Vec<Value>> {
    let x = n.tensor(0)?;
    let shape = n.shape(x)?;
    let required = |name: &str| -> Answer<usize> {
        let value = n.int(name)?.ok_or_else(|| n.wrong(format!("it has no {name}")))?;
        usize::try_from(value).map_err(|_| n.wrong(format!("{name} is {value}")))
    };
    let (shortest, longest) = (required("min_gram_length")?.max(1), required("max_gram_length")?);
    let skips = required("max_skip_count")?;
    let mode = n.string_or("mode", "")?;
    let columns = n.ints("ngram_indexes")?.unwrap_or_default();
    let columns = sizes(n, "ngram_indexes", &columns)?;
    let width = columns.iter().max().map_or(0, |c| c.saturating_add(1));
    if width > MAX_COLUMNS {
        return Err(n.wrong(format!("{width} columns are above {MAX_COLUMNS}")));
    }
    let (rows, length) = match shape.dims() {
        [] => (1, 1),
        [length] => (1, *length),
        [rows, length] => (*rows, *length),
        _ => return Err(n.wrong(format!("it takes rows of items, not {shape}"))),
    };
    let x = reshaped(n, x, &[rows, length])?;
    let x = cast(n, x, DType::I64)?;
    let zero = n.scalar(DType::F32, 0.0);
    let mut counts = n.build(|g| g.fill(zero, [rows, width]))?;
    for grams in pool(n)?.into_iter().filter(|g| (shortest..=longest).contains(&g.length)) {
        // A single item is the same whatever is skipped after it.
        let most = if grams.length == 1 { 0 } else { skips };
        let number = grams.columns.len();
        let items = Tensor::new([1, 1, number, grams.length], grams.items);
        let items = n.built(items)?;
        let items = n.constant(items);
        let mut total: Option<ValueId> = None;
        for distance in 1..=most + 1 {
            let reach = (grams.length - 1).checked_mul(distance).filter(|r| *r < length);
            let Some(reach) = reach else { break };
            let found = occurrences(n, x, items, grams.length, distance, length - reach)?;
            total = Some(match total {
                Some(sum) => binary(n, Binary::Add, sum, found)?,
                None => found,
            });
        }
        if let Some(total) = total {
            let at = indices(n, grams.columns)?;
            let at = n.build(|g| g.expand(at, [rows, number]))?;
            counts = n.build(|g| g.scatter_add(counts, at, total, 1))?;
        }
    }
    let weights = match n.floats("weights")? {
        Some(weights) if mode != "TF" && !weights.is_empty() => {
            // One a column, as ONNX's own implementation and ONNX Runtime read them, not one an n-gram of the
            // pool.
            let ordered = (0..width).map(|i| weights.get(i).copied().unwrap_or(1.0)).collect();
            Some(floats(n, DType::F32, [width], ordered)?)
        }
        _ => None,
    };
    let mut y = match mode.as_str() {
        "TF" | "TFIDF" => counts,
        "IDF" => {
            let found = n.build(|g| g.gt(counts, zero))?;
            cast(n, found, DType::F32)?
        }
        other => return Err(n.wrong(format!("mode `{other}` is unknown"))),
    };
    if let Some(weights) = weights {
        y = binary(n, Binary::Mul, y, weights)?;
    }
    if shape.rank() < 2 {
        y = reshaped(n, y, &[width])?;
    }
    Ok(vec![n.result(y, ElementType::F32)])
}

/// How often each n-gram stands in each row, its items so far apart: `[rows, n-grams]`.
fn occurrences(
    n: &mut NodeContext<'_, '_>,
    x: ValueId,
    items: ValueId,
    gram: usize,
    distance: usize,
    starts: usize,
) -> Answer<ValueId> {
    let (rows, number) = (n.shape(x)?[0], n.shape(items)?[2]);
    let mut all: Option<ValueId> = None;
    for i in 0..gram {
        let read = n.build(|g| g.narrow(x, 1, i * distance, starts))?;
        let read = reshaped(n, read, &[rows, starts, 1])?;
        let item = n.build(|g| g.narrow(items, 3, i, 1))?;
        let item = reshaped(n, item, &[1, 1, number])?;
        let same = n.build(|g| g.eq(read, item))?;
        all = Some(match all {
            Some(others) => n.build(|g| g.and(others, same))?,
            None => same,
        });
    }
    let all = all.ok_or_else(|| n.wrong("an n-gram of no items"))?;
    let ones = cast(n, all, DType::F32)?;
    reduced(n, ReduceKind::Sum, ones, &[1], false)
}
