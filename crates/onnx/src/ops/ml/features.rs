//! Operators of `ai.onnx.ml` that prepare features: scaling, filling gaps, encoding categories, joining.

use std::collections::HashMap;

use olivine_ir::op::{Binary, PadMode, ReduceKind};
use olivine_ir::{DType, Tensor, ValueId};

use super::scores::{equally_long, numeric, without_strings};
use crate::ElementType;
use crate::import::{Answer, NodeContext, Value};
use crate::ops::Entry;
use crate::ops::arity::{ANY, Takes};
use crate::ops::compose::{binary, cast, floats, indices, reduced, reshaped, sizes, wide};
use crate::ops::dynamic::counted;

/// Operators of `ai.onnx.ml`.
pub(super) const OPERATORS: &[Entry] = &[
    ("FeatureVectorizer", Takes(ANY, 1), feature_vectorizer),
    ("Imputer", Takes(1, 1), imputer),
    ("Normalizer", Takes(1, 1), normalizer),
    ("OneHotEncoder", Takes(1, 1), one_hot_encoder),
    ("Scaler", Takes(1, 1), scaler),
];

/// A result of floats.
fn as_floats(n: &mut NodeContext<'_, '_>, y: ValueId) -> Answer<Vec<Value>> {
    let y = cast(n, y, DType::F32)?;
    Ok(vec![n.result(y, ElementType::F32)])
}

/// Checks that a list has one element, or one for each feature: the sizes of x's last axis.
fn one_a_feature(n: &mut NodeContext<'_, '_>, name: &str, count: usize, x: ValueId) -> Answer<()> {
    let shape = n.shape(x)?;
    let features = shape.dims().last().copied().unwrap_or(1);
    if count == 1 || count == features {
        return Ok(());
    }
    Err(n.wrong(format!("`{name}` has {count} elements for {features} features")))
}

fn scaler(n: &mut NodeContext<'_, '_>) -> Answer<Vec<Value>> {
    let x = numeric(n, 0)?;
    let dtype = wide(n.dtype(x)?);
    let mut y = cast(n, x, dtype)?;
    let (offset, scale) = (n.floats("offset")?, n.floats("scale")?);
    if let (Some(offset), Some(scale)) = (&offset, &scale) {
        equally_long(n, &[("offset", offset.len()), ("scale", scale.len())])?;
    }
    for (name, op, list) in [("offset", Binary::Sub, offset), ("scale", Binary::Mul, scale)] {
        let Some(list) = list else { continue };
        one_a_feature(n, name, list.len(), x)?;
        let list = floats(n, dtype, [list.len()], list)?;
        y = binary(n, op, y, list)?;
    }
    let shape = n.shape(x)?;
    let y = reshaped(n, y, &shape)?;
    as_floats(n, y)
}

fn normalizer(n: &mut NodeContext<'_, '_>) -> Answer<Vec<Value>> {
    let x = numeric(n, 0)?;
    let (shape, dtype) = (n.shape(x)?, wide(n.dtype(x)?));
    let Some(axis) = shape.rank().checked_sub(1).filter(|axis| *axis < 2) else {
        return Err(n.wrong(format!("it takes rows of features or one row, not {shape}")));
    };
    let kind = match n.string_or("norm", "MAX")?.as_str() {
        "MAX" => ReduceKind::Max,
        "L1" => ReduceKind::L1,
        "L2" => ReduceKind::L2,
        other => return Err(n.wrong(format!("norm `{other}` is unknown"))),
    };
    let x = cast(n, x, dtype)?;
    if shape.has_zero() {
        return as_floats(n, x);
    }
    let norm = reduced(n, kind, x, &[axis], true)?;
    let (zero, one) = (n.scalar(dtype, 0.0), n.scalar(dtype, 1.0));
    let y = n.build(|g| {
        let none = g.eq(norm, zero)?;
        let divisor = g.select(none, one, norm)?;
        g.div(x, divisor)
    })?;
    as_floats(n, y)
}

/// The number to replace, those to put in its place, and whether the first is NaN. Floats go with floats and
/// integers with integers; a node that has only the others is taken at its word.
fn imputed(n: &mut NodeContext<'_, '_>, x: ValueId) -> Answer<(ValueId, ValueId, bool)> {
    let dtype = n.dtype(x)?;
    let list = |found: Option<Vec<i64>>| found.filter(|list| !list.is_empty());
    let ints = list(n.ints("imputed_value_int64s")?);
    let reals = n.floats("imputed_value_floats")?.filter(|list| !list.is_empty());
    match (reals, ints) {
        (Some(values), ints) if dtype.is_float() || ints.is_none() => {
            one_a_feature(n, "imputed_value_floats", values.len(), x)?;
            let old = n.float_or("replaced_value_float", 0.0)?;
            let (values, is_nan) = (floats(n, dtype, [values.len()], values)?, old.is_nan());
            Ok((n.scalar(dtype, f64::from(old)), values, is_nan))
        }
        (_, Some(values)) => {
            one_a_feature(n, "imputed_value_int64s", values.len(), x)?;
            let old = n.int_or("replaced_value_int64", 0)?;
            let outside = |v: &i64| dtype == DType::I32 && i32::try_from(*v).is_err();
            if let Some(v) = values.iter().find(|v| outside(v)) {
                return Err(n.wrong(format!("imputed value {v} does not fit into int32")));
            }
            let values = indices(n, values)?;
            let old = n.constant(Tensor::scalar(old));
            Ok((cast(n, old, dtype)?, cast(n, values, dtype)?, false))
        }
        _ => Err(n.wrong("it has neither imputed_value_floats nor imputed_value_int64s")),
    }
}

fn imputer(n: &mut NodeContext<'_, '_>) -> Answer<Vec<Value>> {
    let x = numeric(n, 0)?;
    let (old, values, is_nan) = imputed(n, x)?;
    if is_nan && !n.dtype(x)?.is_float() {
        return n.like_first(x);
    }
    let gap = n.build(|g| if is_nan { g.isnan(x) } else { g.eq(x, old) })?;
    let y = n.build(|g| g.select(gap, values, x))?;
    let shape = n.shape(x)?;
    let y = reshaped(n, y, &shape)?;
    n.like_first(y)
}

fn one_hot_encoder(n: &mut NodeContext<'_, '_>) -> Answer<Vec<Value>> {
    without_strings(n, "cats_strings")?;
    let x = numeric(n, 0)?;
    let categories = n.ints("cats_int64s")?.unwrap_or_default();
    let count = categories.len();
    if count == 0 {
        return Err(n.wrong("it has no cats_int64s"));
    }
    // Of a category that is listed more than once the last place counts.
    let last: HashMap<i64, usize> = categories.iter().copied().zip(0..).collect();
    let counts: Vec<f32> = categories.iter().zip(0..).map(|(c, i)| f32::from(last[c] == i)).collect();
    let mut dims = n.shape(x)?.to_vec();
    let (elements, x) = (n.shape(x)?.numel(), cast(n, x, DType::I64)?);
    let x = reshaped(n, x, &[elements, 1])?;
    let repeated = last.len() < count;
    let categories = indices(n, categories)?;
    let same = n.build(|g| g.eq(x, categories))?;
    if !n.flag("zeros", true)? {
        let known = reduced(n, ReduceKind::Any, same, &[1], false)?;
        let unknown = n.build(|g| g.not(known))?;
        let unknown = cast(n, unknown, DType::I64)?;
        let unknown = reduced(n, ReduceKind::Sum, unknown, &[0], false)?;
        let unknown = counted(n, unknown)?;
        if unknown > 0 {
            return Err(n.wrong(format!("{unknown} elements are of no category, and `zeros` is 0")));
        }
    }
    let mut y = cast(n, same, DType::F32)?;
    if repeated {
        let counts = floats(n, DType::F32, [count], counts)?;
        y = binary(n, Binary::Mul, y, counts)?;
    }
    dims.push(count);
    let y = reshaped(n, y, &dims)?;
    Ok(vec![n.result(y, ElementType::F32)])
}

/// Columns that one input is brought to at most.
const MAX_COLUMNS: usize = 1 << 26;

fn feature_vectorizer(n: &mut NodeContext<'_, '_>) -> Answer<Vec<Value>> {
    let inputs = n.input_count();
    let widths = n.ints("inputdimensions")?.unwrap_or_default();
    let widths = sizes(n, "inputdimensions", &widths)?;
    if !widths.is_empty() && widths.len() != inputs {
        return Err(n.wrong(format!("{} inputdimensions for {inputs} inputs", widths.len())));
    }
    if let Some(width) = widths.iter().find(|w| **w > MAX_COLUMNS) {
        return Err(n.wrong(format!("{width} columns are above {MAX_COLUMNS}")));
    }
    let mut parts = Vec::with_capacity(inputs);
    for i in 0..inputs {
        let x = numeric(n, i)?;
        let shape = n.shape(x)?;
        let (count, features) = match shape.dims() {
            [] => (1, 1),
            [features] => (1, *features),
            [count, rest @ ..] => {
                let features = rest.iter().try_fold(1usize, |all, size| all.checked_mul(*size));
                (*count, features.ok_or_else(|| n.wrong(format!("{shape} has too many features")))?)
            }
        };
        let x = reshaped(n, x, &[count, features])?;
        let x = cast(n, x, DType::F32)?;
        let width = widths.get(i).copied().unwrap_or(features);
        parts.push(if width <= features {
            n.build(|g| g.narrow(x, 1, 0, width))?
        } else {
            let more = (width - features) as i64;
            n.build(|g| g.pad(x, &[(0, 0), (0, more)], PadMode::Constant, 0.0))?
        });
    }
    let y = n.build(|g| g.concat(&parts, 1))?;
    Ok(vec![n.result(y, ElementType::F32)])
}
