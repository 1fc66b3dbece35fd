//! The table, a file per family, a line per case.
//!
//! Adding one: in the family's file, `t.case(what, dtypes, fill, bound, |g| { .. })`; the closure builds the graph from
//! inputs `g.x(shape)` and weights `g.w(shape)` and returns its outputs. Whole numbers with an exact bound are worth
//! more than a tolerance wherever sums of them are exact.

mod attention;
mod binary;
mod composite;
mod contraction;
mod control;
mod conv;
mod dtypes;
mod fused;
mod generate;
mod index;
mod interpolate;
mod large;
mod long;
mod movement;
mod norm;
mod packed;
mod packed_cache;
mod packed_together;
mod pool;
mod quantize;
mod recurrent;
mod reduce;
mod resize;
mod rope;
mod scan;
mod select;
mod signal;
mod state_space;
mod unary;

use olivine_ir::DType;
use olivine_ir::DType::{BF16, F16, F32, F64, I8, I16, I32, I64, U8, U32};

use crate::case::{Case, Table};

/// Every float dtype.
const FLOATS: &[DType] = &[F32, F16, BF16, F64];
/// Every integer dtype.
const INTS: &[DType] = &[I8, U8, I16, I32, U32, I64];
/// Every dtype but bool.
const NUMBERS: &[DType] = &[F32, F16, BF16, F64, I8, U8, I16, I32, U32, I64];
/// A wide and a narrow float.
const PAIR: &[DType] = &[F32, F16];

/// A family's name and what writes its rows.
type Family = (&'static str, fn(&mut Table));

/// Every case; cheap, since no data is made before a case runs.
pub fn table() -> Vec<Case> {
    let families: &[Family] = &[
        ("unary", unary::rows),
        ("cast", select::casts),
        ("binary", binary::rows),
        ("select", select::rows),
        ("contraction", contraction::rows),
        ("norm", norm::rows),
        ("reduce", reduce::rows),
        ("scan", scan::rows),
        ("attention", attention::rows),
        ("packed_cache", packed_cache::rows),
        ("rope", rope::rows),
        ("state_space", state_space::rows),
        ("recurrent", recurrent::rows),
        ("movement", movement::rows),
        ("index", index::rows),
        ("conv", conv::rows),
        ("pool", pool::rows),
        ("resize", resize::rows),
        ("interpolate", interpolate::rows),
        ("signal", signal::rows),
        ("generate", generate::rows),
        ("quantize", quantize::rows),
        ("packed", packed::rows),
        ("composite", composite::rows),
        ("control", control::rows),
        ("fused", fused::rows),
        ("dtypes", dtypes::rows),
        ("large", large::rows),
    ];
    let mut cases = Vec::new();
    for (family, rows) in families {
        let mut table = Table::new(family);
        rows(&mut table);
        cases.append(&mut table.cases);
    }
    cases
}

/// Cases of every family with one axis of `n`. They are no part of [`table`]: a backend runs them in one way only, since
/// all their kernels would be compiled again for every other.
pub fn long_axes(n: usize) -> Vec<Case> {
    let mut table = Table::new("long");
    long::rows(&mut table, n);
    table.cases
}
