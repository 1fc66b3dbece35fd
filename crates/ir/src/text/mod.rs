//! The text form of a graph: prints, and parses back to an equal graph.
//!
//! ```text
//! graph "bert" {
//!   %0 = input "x": f32[1, seq=128, 768]
//!   %1 = param "w": f32[768, 768]
//!   %2 = const f32[] 0.5
//!   %3 = const f32[100, 100] base64 "…"
//!   %4: f32[1, 128, 768] = matmul(%0, %1) "layer0/q"
//!   %5: f32[1, 128, 4], %6: i64[1, 128, 4] = top_k(%4) {k=4, axis=2, largest=true} "best"
//!   output "y" = %5
//! }
//! ```
//!
//! Values are numbered from 0 in the order of their definitions, so a use can only name a value above it. A result's
//! type and a node's name may be left out; a type that is given must be the inferred one. Attributes that are not
//! given mean `none`. An attribute may be a graph (`if`, `loop`, `scan`), written as the whole is, with numbers of its
//! own. Elements stand as numbers, or as the base64 of their little-endian bytes. `#` and `//` begin
//! comments.

mod base64;
mod lex;
mod literal;
mod parse;
mod print;

use std::fmt;
use std::str::FromStr;

use crate::op::Registry;
use crate::{Error, Graph, Op};

pub use print::Printer;

impl fmt::Display for Graph {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Printer::new(self).fmt(f)
    }
}

impl FromStr for Graph {
    type Err = Error;
    fn from_str(text: &str) -> Result<Self, Error> {
        Graph::parse_with(text, &Registry::default())
    }
}

/// An operation with its attributes as a graph's text has it, without operands: `top_k {k=4, axis=2, largest=true}`.
impl FromStr for Op {
    type Err = Error;
    fn from_str(text: &str) -> Result<Self, Error> {
        parse::Parser::new(text, &Registry::default())?.whole_op()
    }
}

impl Graph {
    /// Reads a graph whose custom operations are in a registry.
    pub fn parse_with(text: &str, registry: &Registry) -> Result<Graph, Error> {
        parse::Parser::new(text, registry)?.whole()
    }
}
