//! The process-wide store of expressions: append-only, each node once, bounded.
//!
//! Reading takes no lock. Adding takes one.

use std::collections::HashMap;
use std::num::NonZeroU32;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{LazyLock, Mutex, PoisonError};

use super::arena::{Arena, CAPACITY};
use super::range::Range;
use super::{Expr, ExprId, Node};

/// The number of expressions that a process may hold, unless [`set_limit`] says otherwise.
const LIMIT: u32 = CAPACITY - 1;

/// Operands a node on average may have before the store counts as full, so that its bytes are bounded too.
const OPERANDS_PER_NODE: u64 = 8;

/// Deeper expressions are not made: printing recurses.
const MAX_DEPTH: u32 = 128;

/// Expressions that would print more nodes than this are not made: shared operands print once for each use.
const MAX_PRINTED: u32 = 512;

/// A node and what is known about it.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) node: Node,
    pub(crate) range: Range,
    depth: u32,
    printed: u32,
}

static ENTRIES: Arena<Entry> = Arena::new();
static UNKNOWN: Entry = Entry { node: Node::Unknown, range: Range::ALL, depth: 0, printed: 1 };
static INDEX: LazyLock<Mutex<Index>> = LazyLock::new(Mutex::default);
static CURRENT_LIMIT: AtomicU32 = AtomicU32::new(LIMIT);

#[derive(Default)]
struct Index {
    ids: HashMap<&'static Node, ExprId>,
    count: u32,
    operands: u64,
}

/// The entry with this id.
pub(crate) fn entry(id: ExprId) -> &'static Entry {
    ENTRIES.get(id.0.get()).unwrap_or(&UNKNOWN)
}

/// The node with this id.
pub(crate) fn node(id: ExprId) -> &'static Node {
    &entry(id).node
}

/// The range of a number or expression.
pub(crate) fn range(expr: Expr) -> Range {
    match expr {
        Expr::Const(value) => Range::constant(value),
        Expr::Id(id) => entry(id).range,
    }
}

/// The id of this node, made now if it is new; `None` beyond a limit.
pub(crate) fn intern(node: Node) -> Option<ExprId> {
    let mut index = INDEX.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(&id) = index.ids.get(&node) {
        return Some(id);
    }
    let limit = limit();
    if index.count >= limit || index.operands >= u64::from(limit).saturating_mul(OPERANDS_PER_NODE) {
        return None;
    }
    let (mut depth, mut printed, mut operands) = (0, 1u32, 0);
    node.operands(|operand| {
        let operand = entry(operand);
        depth = depth.max(operand.depth + 1);
        printed = printed.saturating_add(operand.printed);
        operands += 1;
    });
    if depth > MAX_DEPTH || printed > MAX_PRINTED {
        return None;
    }
    let number = index.count.checked_add(1)?;
    let id = ExprId(NonZeroU32::new(number)?);
    let range = range_of(&node, |id| entry(id).range);
    let entry = ENTRIES.insert(number, Entry { node, range, depth, printed })?;
    index.ids.insert(&entry.node, id);
    index.count = number;
    index.operands += operands;
    Some(id)
}

/// The id of a number or expression, for nodes whose operands must be nodes.
pub(crate) fn id_of(expr: Expr) -> Option<ExprId> {
    match expr {
        Expr::Const(value) => intern(Node::Const(value)),
        Expr::Id(id) => Some(id),
    }
}

/// The number or expression with this id.
pub(crate) fn expr_of(id: ExprId) -> Expr {
    match node(id) {
        &Node::Const(value) => Expr::Const(value),
        _ => Expr::Id(id),
    }
}

/// Sets how many expressions, and how many lists of them ([`Expressions`](crate::Expressions)), the process may hold:
/// 4,194,303 at most, which is also the default.
///
/// Beyond the limit a size that would be a new expression becomes a constant, with guards that fix its operands.
/// Expressions that exist stay.
pub fn set_expression_limit(limit: u32) {
    CURRENT_LIMIT.store(limit.min(LIMIT), Ordering::Relaxed);
}

/// How many expressions the process may hold.
pub(crate) fn limit() -> u32 {
    CURRENT_LIMIT.load(Ordering::Relaxed)
}

/// True when half of the room is taken: what is kept for messages only must leave the rest to sizes.
pub(crate) fn is_half_full() -> bool {
    expression_count() >= limit() / 2
}

/// How many expressions the process holds.
pub fn expression_count() -> u32 {
    INDEX.lock().unwrap_or_else(PoisonError::into_inner).count
}

/// The range of a node whose operands have these ranges.
pub(crate) fn range_of(node: &Node, of: impl Fn(ExprId) -> Range) -> Range {
    match node {
        &Node::Const(value) => Range::constant(value),
        &Node::Symbol { min, max, .. } => Range::new(min, max),
        Node::Sum { constant, terms } => sum_of_ranges(*constant, terms, of),
        Node::Product(factors) => factors
            .chunk_by(|a, b| a == b)
            .fold(Range::constant(1), |product, same| product.multiply(of(same[0]).power(same.len()))),
        &Node::Floor(a, b) => of(a).divide_floor(of(b)),
        &Node::Ceil(a, b) => of(a).divide_ceil(of(b)),
        &Node::Rem(a, b) => of(a).remainder(of(b)),
        Node::Min(operands) => operands.iter().map(|&id| of(id)).reduce(Range::minimum).unwrap_or(Range::ALL),
        Node::Max(operands) => operands.iter().map(|&id| of(id)).reduce(Range::maximum).unwrap_or(Range::ALL),
        &Node::Abs(a) => of(a).absolute(),
        &Node::NextPowerOfTwo(a) => of(a).next_power_of_two(),
        Node::Failed { .. } | Node::Unknown => Range::ALL,
    }
}

/// The range of a sum.
pub(crate) fn sum_range(constant: i64, terms: &[(ExprId, i64)]) -> Range {
    sum_of_ranges(constant, terms, |id| entry(id).range)
}

fn sum_of_ranges(constant: i64, terms: &[(ExprId, i64)], of: impl Fn(ExprId) -> Range) -> Range {
    terms.iter().fold(Range::constant(constant), |sum, &(term, coefficient)| {
        sum.add(of(term).multiply(Range::constant(coefficient)))
    })
}
