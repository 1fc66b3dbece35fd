//! Finding an expression in a graph.

use std::collections::HashSet;

use olivine_ir::attr::Attr;
use olivine_ir::op::{Binary, Reduce, ReduceKind, ScalarOp, Unary};
use olivine_ir::{DType, Def, Graph, Node, NodeId, Op, ValueId};

use super::parse::MAX_NAMES;
use super::{Expr, Pattern};

/// What a pattern's names stand for in a match.
#[derive(Clone, Debug)]
pub(crate) struct Match<'p> {
    pattern: &'p Pattern,
    found: Found,
    nodes: Vec<NodeId>,
}

/// The part of a match that backtracking restores.
#[derive(Clone, Copy, Debug, Default)]
struct Found {
    values: [Option<ValueId>; MAX_NAMES],
    numbers: [Option<f64>; MAX_NAMES],
    axis: Option<usize>,
}

impl Match<'_> {
    /// The value a lower-case name stands for.
    pub(crate) fn value(&self, name: &str) -> Option<ValueId> {
        let index = self.pattern.values.iter().position(|n| n == name)?;
        self.found.values[index]
    }

    /// The number an upper-case name stands for.
    pub(crate) fn number(&self, name: &str) -> Option<f64> {
        let index = self.pattern.numbers.iter().position(|n| n == name)?;
        self.found.numbers[index]
    }

    /// The first of the trailing axes that the pattern's reductions run over.
    pub(crate) fn axis(&self) -> Option<usize> {
        self.found.axis
    }

    /// The nodes that the pattern covers, the root's among them.
    pub(crate) fn nodes(&self) -> &[NodeId] {
        &self.nodes
    }
}

impl Pattern {
    /// Looks for the pattern with `root` as its result; `uses` are the graph's use counts.
    pub(crate) fn find(&self, graph: &Graph, uses: &[usize], root: ValueId) -> Option<Match<'_>> {
        if !self.may_start_at(graph, root) {
            return None;
        }
        let mut m = Matcher { graph, found: Found::default(), nodes: Vec::new() };
        if !m.expr(&self.root, root) || !m.is_closed(uses, root) {
            return None;
        }
        Some(Match { pattern: self, found: m.found, nodes: m.nodes })
    }

    /// Whether a graph whose operations have these names has all that the pattern needs.
    pub(crate) fn may_be_among(&self, names: &HashSet<&str>) -> bool {
        self.root.may_be_among(names)
    }

    /// A cheap look at the root's operation, which rules out nearly every node.
    fn may_start_at(&self, graph: &Graph, root: ValueId) -> bool {
        let Some(op) = graph.producer(root).and_then(|n| scalar(&n.op)) else { return true };
        match self.root {
            Expr::Sum(_) => matches!(op, ScalarOp::Binary(Binary::Add | Binary::Sub)),
            Expr::Product(_) => {
                matches!(
                    op,
                    ScalarOp::Binary(Binary::Mul | Binary::Div | Binary::Pow)
                        | ScalarOp::Unary(Unary::Square)
                )
            }
            _ => true,
        }
    }
}

impl Expr {
    /// As [`Pattern::may_be_among`]; what has several spellings may always be there.
    fn may_be_among(&self, names: &HashSet<&str>) -> bool {
        let all = |of: &[Expr]| of.iter().all(|e| e.may_be_among(names));
        match self {
            Expr::Value(_) | Expr::Capture(_) | Expr::Number(_) => true,
            Expr::Sum(terms) | Expr::Product(terms) => all(terms),
            Expr::Neg(e) | Expr::Inverse(e) => e.may_be_among(names),
            Expr::Call { name, args, .. } => {
                let there = match name.as_str() {
                    "square" | "sqrt" | "rsqrt" | "clamp" => true,
                    "mean" => names.contains(ReduceKind::Mean.name()),
                    "sum" => names.contains(ReduceKind::Sum.name()),
                    "amax" => names.contains(ReduceKind::Max.name()),
                    name => names.contains(name),
                };
                there && all(args)
            }
        }
    }
}

struct Matcher<'g> {
    graph: &'g Graph,
    found: Found,
    nodes: Vec<NodeId>,
}

impl<'g> Matcher<'g> {
    /// Tries a way to match; what it bound is undone if it fails.
    fn attempt(&mut self, way: impl FnOnce(&mut Self) -> bool) -> bool {
        let (found, covered) = (self.found, self.nodes.len());
        let matched = way(self);
        if !matched {
            self.found = found;
            self.nodes.truncate(covered);
        }
        matched
    }

    /// The node that makes a value, noted as covered.
    fn enter(&mut self, value: ValueId) -> Option<&'g Node> {
        let graph = self.graph;
        let Def::Node { node, .. } = graph.values().get(value.index())?.def else { return None };
        self.nodes.push(node);
        graph.nodes().get(node.index())
    }

    fn expr(&mut self, e: &Expr, v: ValueId) -> bool {
        match e {
            Expr::Value(i) => match self.found.values[*i] {
                Some(bound) => bound == v,
                None => {
                    self.found.values[*i] = Some(v);
                    true
                }
            },
            Expr::Capture(i) => match (scalar_constant(self.graph, v), self.found.numbers[*i]) {
                (Some(n), Some(bound)) => n == bound,
                (Some(n), None) => {
                    self.found.numbers[*i] = Some(n);
                    true
                }
                (None, _) => false,
            },
            Expr::Number(n) => is_about(self.graph, v, *n),
            Expr::Sum(terms) => self.sum(&terms.iter().collect::<Vec<_>>(), v),
            Expr::Product(factors) => self.product(&factors.iter().collect::<Vec<_>>(), v),
            Expr::Neg(e) => self.attempt(|m| m.unary(v, Unary::Neg, |m, x| m.expr(e, x))),
            Expr::Inverse(e) => self.inverse(e, v),
            Expr::Call { name, attrs, args } => self.attempt(|m| m.call(name, attrs, args, v)),
        }
    }

    fn unary(&mut self, v: ValueId, op: Unary, inner: impl FnOnce(&mut Self, ValueId) -> bool) -> bool {
        match self.enter(v) {
            Some(node) if node.op == Op::ScalarOp(ScalarOp::Unary(op)) => inner(self, node.inputs[0]),
            _ => false,
        }
    }

    fn binary(&mut self, v: ValueId) -> Option<(Binary, ValueId, ValueId)> {
        let node = self.enter(v)?;
        match (&node.op, node.inputs.as_slice()) {
            (Op::ScalarOp(ScalarOp::Binary(op)), [a, b]) => Some((*op, *a, *b)),
            _ => None,
        }
    }

    /// Terms in any order and association: one side of an addition takes some, the other the rest.
    fn sum(&mut self, terms: &[&Expr], v: ValueId) -> bool {
        if let [only] = terms {
            return self.expr(only, v);
        }
        self.attempt(|m| match m.binary(v) {
            Some((Binary::Add, a, b)) => {
                splits(terms).any(|(left, right)| m.attempt(|m| m.sum(&left, a) && m.sum(&right, b)))
            }
            Some((Binary::Sub, a, b)) => splits(terms).any(|(left, right)| {
                let Some(right) = flipped(&right, negatable, Expr::negated) else { return false };
                m.attempt(|m| m.sum(&left, a) && m.sum(&right.iter().collect::<Vec<_>>(), b))
            }),
            _ => false,
        })
    }

    /// Factors in any order and association, as [`Matcher::sum`]; equal factors may be a power.
    fn product(&mut self, factors: &[&Expr], v: ValueId) -> bool {
        if let [only] = factors {
            return self.expr(only, v);
        }
        if factors.iter().all(|f| f == &factors[0]) && self.attempt(|m| m.power(factors[0], factors.len(), v))
        {
            return true;
        }
        self.attempt(|m| match m.binary(v) {
            Some((Binary::Mul, a, b)) => splits(factors)
                .any(|(left, right)| m.attempt(|m| m.product(&left, a) && m.product(&right, b))),
            Some((Binary::Div, a, b)) => splits(factors).any(|(left, right)| {
                let Some(right) = flipped(&right, invertible, Expr::inverted) else { return false };
                m.attempt(|m| m.product(&left, a) && m.product(&right.iter().collect::<Vec<_>>(), b))
            }),
            _ => false,
        })
    }

    /// `base` to a whole power, spelled as one operation.
    fn power(&mut self, base: &Expr, exponent: usize, v: ValueId) -> bool {
        match self.enter(v) {
            Some(Node { op: Op::ScalarOp(ScalarOp::Unary(Unary::Square)), inputs, .. }) => {
                exponent == 2 && self.expr(base, inputs[0])
            }
            Some(Node { op: Op::ScalarOp(ScalarOp::Binary(Binary::Pow)), inputs, .. }) => {
                is_about(self.graph, inputs[1], exponent as f64) && self.expr(base, inputs[0])
            }
            _ => false,
        }
    }

    fn inverse(&mut self, e: &Expr, v: ValueId) -> bool {
        self.attempt(|m| m.unary(v, Unary::Reciprocal, |m, x| m.expr(e, x)))
            || self.attempt(|m| match m.binary(v) {
                Some((Binary::Div, a, b)) => is_about(m.graph, a, 1.0) && m.expr(e, b),
                Some((Binary::Pow, a, b)) => is_about(m.graph, b, -1.0) && m.expr(e, a),
                _ => false,
            })
    }

    fn call(&mut self, name: &str, attrs: &[(String, f64)], args: &[Expr], v: ValueId) -> bool {
        match (name, args) {
            ("square", [x]) => {
                self.attempt(|m| m.power(x, 2, v))
                    || self.attempt(|m| match m.binary(v) {
                        Some((Binary::Mul, a, b)) => a == b && m.expr(x, a),
                        _ => false,
                    })
            }
            ("sqrt", [x]) => {
                self.attempt(|m| m.unary(v, Unary::Sqrt, |m, y| m.expr(x, y)))
                    || self.attempt(|m| m.fixed_power(x, 0.5, v))
            }
            ("rsqrt", [x]) => {
                self.attempt(|m| m.unary(v, Unary::Rsqrt, |m, y| m.expr(x, y)))
                    || self.attempt(|m| m.fixed_power(x, -0.5, v))
                    || self.inverse(&Expr::call("sqrt", x.clone()), v)
            }
            ("clamp", [x, low, high]) => {
                self.attempt(|m| m.operation(name, attrs, args, v))
                    || self.attempt(|m| {
                        m.bounded(v, Binary::Min, high, |m, y| {
                            m.bounded(y, Binary::Max, low, |m, z| m.expr(x, z))
                        })
                    })
                    || (*low == Expr::Number(0.0)
                        && self.attempt(|m| {
                            m.bounded(v, Binary::Min, high, |m, y| {
                                m.unary(y, Unary::Relu, |m, z| m.expr(x, z))
                            })
                        }))
            }
            ("mean", [x]) => self.reduction(ReduceKind::Mean, x, v),
            ("sum", [x]) => self.reduction(ReduceKind::Sum, x, v),
            ("amax", [x]) => self.reduction(ReduceKind::Max, x, v),
            _ => self.operation(name, attrs, args, v),
        }
    }

    fn fixed_power(&mut self, base: &Expr, exponent: f64, v: ValueId) -> bool {
        match self.binary(v) {
            Some((Binary::Pow, a, b)) => is_about(self.graph, b, exponent) && self.expr(base, a),
            _ => false,
        }
    }

    /// `op(inner, bound)` in either order.
    fn bounded(
        &mut self,
        v: ValueId,
        op: Binary,
        bound: &Expr,
        inner: impl FnOnce(&mut Self, ValueId) -> bool,
    ) -> bool {
        match self.binary(v) {
            Some((found, a, b)) if found == op => {
                if self.attempt(|m| m.expr(bound, b)) {
                    inner(self, a)
                } else {
                    self.expr(bound, a) && inner(self, b)
                }
            }
            _ => false,
        }
    }

    /// A reduction over trailing axes that keeps them.
    fn reduction(&mut self, wanted: ReduceKind, x: &Expr, v: ValueId) -> bool {
        let Some(Node { op: Op::Reduce(Reduce { kind, axes, keepdims: true }), inputs, .. }) = self.enter(v)
        else {
            return false;
        };
        let rank = self.graph.values()[inputs[0].index()].ty.shape.rank();
        let Some(first) = rank.checked_sub(axes.len()) else { return false };
        let trailing = !axes.is_empty() && axes.iter().all(|a| *a >= first);
        if *kind != wanted || !trailing || self.found.axis.is_some_and(|a| a != first) {
            return false;
        }
        self.found.axis = Some(first);
        self.expr(x, inputs[0])
    }

    /// An operation by its name in the text form.
    fn operation(&mut self, name: &str, attrs: &[(String, f64)], args: &[Expr], v: ValueId) -> bool {
        let Some(node) = self.enter(v) else { return false };
        if node.op.name() != name || node.inputs.len() != args.len() || !self.has_attrs(node, attrs) {
            return false;
        }
        let in_order =
            |m: &mut Self, operands: &[ValueId]| args.iter().zip(operands).all(|(e, x)| m.expr(e, *x));
        if self.attempt(|m| in_order(m, &node.inputs)) {
            return true;
        }
        let swaps = matches!(scalar(&node.op), Some(ScalarOp::Binary(Binary::Max | Binary::Min)));
        swaps && self.attempt(|m| in_order(m, &[node.inputs[1], node.inputs[0]]))
    }

    fn has_attrs(&self, node: &Node, wanted: &[(String, f64)]) -> bool {
        if wanted.is_empty() {
            return true;
        }
        let rank = node.inputs.first().map_or(0, |x| self.graph.values()[x.index()].ty.shape.rank());
        let attrs = node.op.attrs().0;
        wanted.iter().all(|(name, number)| {
            let from_back = name == "axis" && *number < 0.0;
            let number = if from_back { number + rank as f64 } else { *number };
            attrs.iter().any(|(n, attr)| {
                n == name
                    && match attr {
                        Attr::Int(i) => *i as f64 == number,
                        Attr::Float(x) => (x - number).abs() <= 1e-4 * number.abs(),
                        _ => false,
                    }
            })
        })
    }

    /// Whether every covered value but the root is used by covered nodes alone.
    fn is_closed(&mut self, uses: &[usize], root: ValueId) -> bool {
        self.nodes.sort_unstable();
        self.nodes.dedup();
        let nodes = self.graph.nodes();
        let inside = |v: ValueId| -> usize {
            let readers = self.nodes.iter().flat_map(|n| &nodes[n.index()].inputs);
            readers.filter(|x| **x == v).count()
        };
        self.nodes
            .iter()
            .flat_map(|n| &nodes[n.index()].outputs)
            .all(|v| *v == root || uses.get(v.index()).is_some_and(|count| *count == inside(*v)))
    }
}

fn scalar(op: &Op) -> Option<ScalarOp> {
    match op {
        Op::ScalarOp(op) => Some(*op),
        _ => None,
    }
}

/// All ways to cut a list into two non-empty parts, order within a part kept.
fn splits<'e>(items: &[&'e Expr]) -> impl Iterator<Item = (Vec<&'e Expr>, Vec<&'e Expr>)> {
    let items = items.to_vec();
    let all = (1usize << items.len().min(16)) - 1;
    (1..all).map(move |taken| {
        let mut parts = (Vec::new(), Vec::new());
        for (i, e) in items.iter().enumerate() {
            if taken >> i & 1 == 1 { parts.0.push(*e) } else { parts.1.push(*e) }
        }
        parts
    })
}

/// Every item turned around, if each of them can be.
fn flipped(items: &[&Expr], can: fn(&Expr) -> bool, turn: fn(Expr) -> Expr) -> Option<Vec<Expr>> {
    items.iter().all(|e| can(e)).then(|| items.iter().map(|e| turn(Expr::clone(e))).collect())
}

fn negatable(e: &Expr) -> bool {
    matches!(e, Expr::Number(_) | Expr::Neg(_))
}

fn invertible(e: &Expr) -> bool {
    matches!(e, Expr::Number(_) | Expr::Inverse(_)) || e.is_call("rsqrt") || e.is_call("sqrt")
}

/// The number in a constant of one element.
pub(crate) fn scalar_constant(graph: &Graph, v: ValueId) -> Option<f64> {
    let tensor = graph.as_const(v)?;
    if tensor.shape().numel() != 1 { None } else { tensor.to_f64().first().copied() }
}

/// Whether a value is a constant of about this number, as its dtype would round it.
fn is_about(graph: &Graph, v: ValueId, number: f64) -> bool {
    let Some(constant) = scalar_constant(graph, v) else { return false };
    let rounding = match graph.values()[v.index()].ty.dtype {
        DType::F16 => 1.0 / 2048.0,
        DType::BF16 => 1.0 / 256.0,
        _ => 0.0,
    };
    (constant - number).abs() <= (1e-4 + rounding) * number.abs()
}
