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
mod integer_matmul;
mod join;
mod loss;
mod microsoft;
mod ml;
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
use arity::Arity;
pub(crate) use schema::problem;

/// Imports a node: its results, in order.
pub(crate) type Importer = fn(&mut NodeContext<'_, '_>) -> crate::import::Answer<Vec<Value>>;

/// An operator's name, its most inputs and outputs, and its import.
pub(crate) type Entry = (&'static str, Arity, Importer);

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
    integer_matmul::OPERATORS,
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
const MICROSOFT: &[&[Entry]] = microsoft::FAMILIES;

/// The families of `ai.onnx.ml`.
const ML: &[&[Entry]] = ml::FAMILIES;

/// The families of `ai.onnx.preview`.
const PREVIEW: &[&[Entry]] = &[attention::PREVIEW];

/// The families of a domain.
fn families(domain: &str) -> &'static [&'static [Entry]] {
    match domain {
        "" | "ai.onnx" => ONNX,
        "com.microsoft" => MICROSOFT,
        "ai.onnx.ml" => ML,
        "ai.onnx.preview" => PREVIEW,
        _ => &[],
    }
}

/// The domains that have operators.
const DOMAINS: [&str; 4] = ["", "com.microsoft", "ai.onnx.ml", "ai.onnx.preview"];

/// An operator, if it is known.
fn entry(domain: &str, name: &str) -> Option<&'static Entry> {
    type Table = HashMap<(&'static str, &'static str), &'static Entry>;
    static TABLE: OnceLock<Table> = OnceLock::new();
    let table = TABLE.get_or_init(|| {
        let of =
            |domain| families(domain).iter().copied().flatten().map(move |entry| ((domain, entry.0), entry));
        DOMAINS.into_iter().flat_map(of).collect()
    });
    let domain = if domain == "ai.onnx" { "" } else { domain };
    table.get(&(domain, name)).copied()
}

/// The import of an operator, if there is one.
pub(crate) fn importer(domain: &str, name: &str) -> Option<Importer> {
    entry(domain, name).map(|(_, _, import)| *import)
}

/// The most inputs and outputs of an operator in a version of its set; `None` for one that is not known.
fn most(domain: &str, name: &str, opset: i64) -> Option<(usize, usize)> {
    entry(domain, name).map(|(_, arity, _)| arity.most(opset))
}
