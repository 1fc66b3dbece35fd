//! Operators, one file a family: each turns a node into operations of the graph.

mod angle;
mod arithmetic;
mod arity;
mod attention;
mod cast;
mod cell;
mod compose;
#[cfg(test)]
mod computed;
mod contraction;
mod control;
mod convolution;
mod deform;
mod dynamic;
mod elementwise;
mod image;
mod index;
mod integer;
mod integer_product;
mod join;
mod loss;
mod microsoft;
mod microsoft_lstm;
mod microsoft_quantize;
mod ml;
mod ml_coupling;
mod ml_features;
mod ml_linear;
mod ml_scores;
mod ml_svm;
mod ml_trees;
mod norm;
mod pool;
mod quantize;
mod random;
mod recurrent;
mod reduce;
mod resize;
mod scan;
mod schema;
mod sequence;
mod shape;
mod signal;
mod small_float;
mod suppression;
mod trees;

#[cfg(test)]
mod tests;
#[cfg(test)]
mod tests_driver;
#[cfg(test)]
mod tests_loops;
#[cfg(test)]
mod tests_ml;

use std::collections::HashMap;
use std::sync::OnceLock;

use crate::import::{NodeContext, Value};
pub(crate) use schema::problem;

/// Imports a node: its results, in order.
pub(crate) type Importer = fn(&mut NodeContext<'_, '_>) -> crate::import::Answer<Vec<Value>>;

/// An operator's name and its import.
pub(crate) type Entry = (&'static str, Importer);

/// The families of ONNX's own domain.
const ONNX: &[&[Entry]] = &[
    arithmetic::OPERATORS,
    attention::OPERATORS,
    cast::OPERATORS,
    contraction::OPERATORS,
    control::OPERATORS,
    convolution::OPERATORS,
    deform::OPERATORS,
    dynamic::OPERATORS,
    elementwise::OPERATORS,
    image::OPERATORS,
    index::OPERATORS,
    integer::OPERATORS,
    integer_product::OPERATORS,
    join::OPERATORS,
    loss::OPERATORS,
    ml::OPERATORS,
    microsoft::IN_ONNX,
    norm::OPERATORS,
    pool::OPERATORS,
    quantize::OPERATORS,
    random::OPERATORS,
    recurrent::OPERATORS,
    reduce::OPERATORS,
    scan::OPERATORS,
    resize::OPERATORS,
    sequence::OPERATORS,
    shape::OPERATORS,
    signal::OPERATORS,
    suppression::OPERATORS,
];

/// The families of `com.microsoft`.
const MICROSOFT: &[&[Entry]] =
    &[microsoft::OPERATORS, microsoft_lstm::OPERATORS, microsoft_quantize::OPERATORS];

/// The families of `ai.onnx.ml`.
const ML: &[&[Entry]] = &[ml::ML, ml_features::ML, ml_linear::ML, ml_svm::ML, ml_trees::ML, trees::ML];

/// The families of `ai.onnx.preview`.
const PREVIEW: &[&[Entry]] = &[attention::PREVIEW];

/// The families of `ai.onnx.preview.training`.
const TRAINING: &[&[Entry]] = &[loss::TRAINING];

/// The import of an operator, if there is one.
pub(crate) fn importer(domain: &str, name: &str) -> Option<Importer> {
    type Table = HashMap<&'static str, Importer>;
    static ONNX_TABLE: OnceLock<Table> = OnceLock::new();
    static MICROSOFT_TABLE: OnceLock<Table> = OnceLock::new();
    static ML_TABLE: OnceLock<Table> = OnceLock::new();
    static PREVIEW_TABLE: OnceLock<Table> = OnceLock::new();
    static TRAINING_TABLE: OnceLock<Table> = OnceLock::new();
    let table = |families: &[&[Entry]]| families.iter().copied().flatten().copied().collect::<Table>();
    match domain {
        "" | "ai.onnx" => ONNX_TABLE.get_or_init(|| table(ONNX)).get(name).copied(),
        "com.microsoft" => MICROSOFT_TABLE.get_or_init(|| table(MICROSOFT)).get(name).copied(),
        "ai.onnx.ml" => ML_TABLE.get_or_init(|| table(ML)).get(name).copied(),
        "ai.onnx.preview" => PREVIEW_TABLE.get_or_init(|| table(PREVIEW)).get(name).copied(),
        "ai.onnx.preview.training" => TRAINING_TABLE.get_or_init(|| table(TRAINING)).get(name).copied(),
        _ => None,
    }
}
