//! Expressions: nodes, the process-wide store that makes equal nodes one, and how they are built.
//!
//! ```text
//!   arena ── values by number, which never move
//!   store ── nodes by id, each made once
//!   list ─── lists of expressions by number, each made once
//!   poly ─── sums of products with integer coefficients, the canonical form
//!   build ── one function for each operation: simplifies, then asks the store
//!   range ── interval arithmetic
//!   sign ─── what interval arithmetic does not see
//!   print ── the text form
//! ```

use std::collections::HashSet;
use std::num::NonZeroU32;

use crate::Symbol;
use crate::arithmetic::Op;

pub(crate) mod arena;
pub(crate) mod build;
pub(crate) mod list;
pub(crate) mod poly;
pub(crate) mod print;
pub(crate) mod range;
pub(crate) mod sign;
pub(crate) mod store;

/// The number of a node in the store. Operands have smaller numbers than the nodes that use them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct ExprId(pub(crate) NonZeroU32);

impl ExprId {
    /// Stands for an expression that could not be stored; it belongs to faulty sizes only.
    pub(crate) const UNKNOWN: ExprId = ExprId(NonZeroU32::MAX);
}

/// A number or a stored expression.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Expr {
    Const(i64),
    Id(ExprId),
}

/// A stored expression in canonical form.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Node {
    /// A number, where an operand must be a node.
    Const(i64),
    /// A named size.
    Symbol {
        name: Box<str>,
        scope: u32,
        min: i64,
        max: i64,
    },
    /// A constant and terms with their coefficients, in order of their ids. A term is no sum and no constant.
    Sum {
        constant: i64,
        terms: Box<[(ExprId, i64)]>,
    },
    /// At least two factors, in order of their ids.
    Product(Box<[ExprId]>),
    Floor(ExprId, ExprId),
    /// Only where the divisor is no constant; with a constant, it is a `Floor`.
    Ceil(ExprId, ExprId),
    Rem(ExprId, ExprId),
    /// At least two operands, in order of their ids.
    Min(Box<[ExprId]>),
    Max(Box<[ExprId]>),
    Abs(ExprId),
    NextPowerOfTwo(ExprId),
    /// An operation that failed on these values, for the error that names it.
    Failed {
        op: Op,
        a: ExprId,
        b: ExprId,
        values: (i64, i64),
    },
    /// See [`ExprId::UNKNOWN`].
    Unknown,
}

impl Node {
    /// Calls `visit` with each operand.
    pub(crate) fn operands(&self, mut visit: impl FnMut(ExprId)) {
        match self {
            Node::Const(_) | Node::Symbol { .. } | Node::Unknown => {}
            Node::Sum { terms, .. } => terms.iter().for_each(|&(term, _)| visit(term)),
            Node::Product(operands) | Node::Min(operands) | Node::Max(operands) => {
                operands.iter().for_each(|&operand| visit(operand));
            }
            &Node::Floor(a, b) | &Node::Ceil(a, b) | &Node::Rem(a, b) | &Node::Failed { a, b, .. } => {
                visit(a);
                visit(b);
            }
            &Node::Abs(a) | &Node::NextPowerOfTwo(a) => visit(a),
        }
    }
}

/// All expressions that these are made of, themselves included, operands first.
pub(crate) fn reachable(
    roots: impl IntoIterator<Item = ExprId>,
    known: impl Fn(ExprId) -> bool,
) -> Vec<ExprId> {
    let mut found = HashSet::new();
    let mut open: Vec<ExprId> = roots.into_iter().collect();
    while let Some(id) = open.pop() {
        if !known(id) && found.insert(id) {
            store::node(id).operands(|operand| open.push(operand));
        }
    }
    let mut found: Vec<ExprId> = found.into_iter().collect();
    found.sort_unstable();
    found
}

/// The symbols of an expression.
pub(crate) fn symbols(id: ExprId) -> Vec<Symbol> {
    reachable([id], |_| false).into_iter().filter_map(Symbol::of).collect()
}
