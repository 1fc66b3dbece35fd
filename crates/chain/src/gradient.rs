//! Reverse-mode differentiation on the DAG: the gradient of a density as more nodes of the same graph.
//!
//! Nodes are visited once, users before operands. An adjoint that meets a node of fewer axes is summed over the others:
//! contributions of all uses are added first, so that there is one sum for each such node. The adjoint of a sum over
//! observations is not multiplied into its terms but into the sums of their derivatives: these need no other value than
//! the sum itself does, and one pass over the observations computes all of them.

use std::collections::BTreeMap;

use crate::Error;
use crate::expr::{Axes, Axis, Comparison, Density, Function, Graph, Id, Node, Operator, Reduction, Vector};

/// A density with its partial derivatives.
#[derive(Clone, Debug)]
pub(crate) struct Gradient {
    pub(crate) graph: Graph,
    /// The density.
    pub(crate) value: Id,
    /// The derivative by every coordinate, an expression over the coordinates; `None` if that is 0.
    pub(crate) dense: Option<Id>,
    /// What single coordinates have beside it: scalars, each coordinate once.
    pub(crate) at: Vec<(u32, Id)>,
}

/// Whose derivatives an adjoint is a part of: the density's, or those of a scalar reduction, still to be multiplied with
/// the reduction's own adjoint.
type Seed = Option<Id>;

/// Adjoints of a node: by seed and by the axes of the use.
type Contributions = BTreeMap<(Seed, Axes), Id>;

struct Reverse {
    graph: Graph,
    contributions: Vec<Contributions>,
    active: Vec<bool>,
    /// Adjoints of the reductions that are seeds.
    scales: BTreeMap<Id, Id>,
    dense: Option<Id>,
    at: BTreeMap<u32, Id>,
}

/// Differentiates a density by its position.
pub(crate) fn differentiate(density: &Density) -> Result<Gradient, Error> {
    let graph = density.graph.clone();
    let nodes = graph.nodes().len();
    let mut active = vec![false; nodes];
    for (i, node) in graph.nodes().iter().enumerate() {
        let position = matches!(
            node,
            Node::Position | Node::At(Vector::Position, _) | Node::Gather(Vector::Position, _)
        );
        active[i] = position
            || match node {
                Node::Compare(..) | Node::Unary(Function::Sign | Function::Detach, _) => false,
                Node::Select(_, a, b) => active[a.index()] || active[b.index()],
                node => node.operands().iter().any(|x| active[x.index()]),
            };
    }
    let mut reverse = Reverse {
        graph,
        contributions: vec![Contributions::new(); nodes],
        active,
        scales: BTreeMap::new(),
        dense: None,
        at: BTreeMap::new(),
    };
    let one = reverse.graph.constant(1.0)?;
    reverse.accumulate(density.root, None, Axes::NONE, one)?;
    for i in (0..=density.root.0).rev() {
        reverse.visit(Id(i))?;
    }
    let Reverse { graph, dense, at, .. } = reverse;
    Ok(Gradient { graph, value: density.root, dense, at: at.into_iter().collect() })
}

impl Reverse {
    /// Adds to the adjoint of a node that is used in an expression of these axes.
    fn accumulate(&mut self, to: Id, seed: Seed, axes: Axes, value: Id) -> Result<(), Error> {
        if !self.active[to.index()] || self.graph.as_const(value) == Some(0.0) {
            return Ok(());
        }
        let sum = match self.contributions[to.index()].get(&(seed, axes)) {
            Some(earlier) => self.graph.binary(Operator::Add, *earlier, value)?,
            None => value,
        };
        self.contributions[to.index()].insert((seed, axes), sum);
        Ok(())
    }

    fn visit(&mut self, id: Id) -> Result<(), Error> {
        for (seed, adjoint) in self.adjoints(id)? {
            self.pull(id, seed, adjoint)?;
        }
        Ok(())
    }

    /// The adjoints of a node by seed, summed to its own axes.
    fn adjoints(&mut self, id: Id) -> Result<BTreeMap<Seed, Id>, Error> {
        let own = self.graph.axes(id);
        let mut adjoints: BTreeMap<Seed, Id> = BTreeMap::new();
        for ((seed, axes), mut value) in std::mem::take(&mut self.contributions[id.index()]) {
            let mut seed = seed;
            // The coordinates first: sums over them are taken while the observations are gone through.
            for axis in [Axis::Coord, Axis::Obs] {
                if axes.without(own).contains(axis.into()) {
                    value = self.graph.reduce(Reduction::Sum, axis, value)?;
                    if seed.is_some_and(|seed| self.seed_axis(seed) == Some(axis)) {
                        value = self.scaled(seed.take(), value)?;
                    }
                }
            }
            let sum = match adjoints.get(&seed) {
                Some(earlier) => self.graph.binary(Operator::Add, *earlier, value)?,
                None => value,
            };
            adjoints.insert(seed, sum);
        }
        Ok(adjoints)
    }

    fn seed_axis(&self, seed: Id) -> Option<Axis> {
        match self.graph.node(seed) {
            Node::Reduce(_, axis, _) => Some(*axis),
            _ => None,
        }
    }

    fn scaled(&mut self, seed: Seed, value: Id) -> Result<Id, Error> {
        match seed.and_then(|seed| self.scales.get(&seed).copied()) {
            Some(scale) => self.graph.binary(Operator::Mul, scale, value),
            None => Ok(value),
        }
    }

    /// Hands a node's adjoint to its operands.
    fn pull(&mut self, id: Id, seed: Seed, adjoint: Id) -> Result<(), Error> {
        let axes = self.graph.axes(id);
        match self.graph.node(id).clone() {
            Node::Unary(f, x) if self.active[x.index()] => {
                if let Some(slope) = f.derivative(&mut self.graph, x, id)? {
                    let value = self.graph.binary(Operator::Mul, adjoint, slope)?;
                    self.accumulate(x, seed, axes, value)?;
                }
            }
            Node::Binary(op, a, b) => {
                for (side, x) in [a, b].into_iter().enumerate() {
                    if self.active[x.index()] {
                        let value = op.pull(&mut self.graph, side, [a, b, id], adjoint)?;
                        self.accumulate(x, seed, axes, value)?;
                    }
                }
            }
            Node::Select(c, a, b) => {
                let zero = self.graph.constant(0.0)?;
                let first = self.graph.add(Node::Select(c, adjoint, zero))?;
                self.accumulate(a, seed, axes, first)?;
                let second = self.graph.add(Node::Select(c, zero, adjoint))?;
                self.accumulate(b, seed, axes, second)?;
            }
            Node::Reduce(how, _, x) => {
                let (mut seed, mut value) = (seed, adjoint);
                // Only scalars are seeds: a sum that has an axis left is multiplied into its terms.
                if axes == Axes::NONE && self.graph.as_const(adjoint).is_none() {
                    self.scales.insert(id, adjoint);
                    (seed, value) = (Some(id), self.graph.constant(1.0)?);
                }
                if how == Reduction::Max {
                    value = self.graph.masked(Comparison::Eq, x, id, value)?;
                }
                self.accumulate(x, seed, self.graph.axes(x), value)?;
            }
            Node::Position => {
                let value = self.scaled(seed, adjoint)?;
                self.add_dense(value)?;
            }
            Node::Gather(Vector::Position, index) => {
                let scalar = self.graph.axes(adjoint) == Axes::NONE;
                let terms = if scalar { self.graph.constant(1.0)? } else { adjoint };
                let mut value = self.graph.add(Node::Scatter(terms, index))?;
                if scalar {
                    value = self.graph.binary(Operator::Mul, adjoint, value)?;
                }
                let value = self.scaled(seed, value)?;
                self.add_dense(value)?;
            }
            Node::At(Vector::Position, i) => {
                let sum = match self.at.get(&i) {
                    Some(earlier) => self.graph.binary(Operator::Add, *earlier, adjoint)?,
                    None => adjoint,
                };
                self.at.insert(i, sum);
            }
            _ => {}
        }
        Ok(())
    }

    fn add_dense(&mut self, value: Id) -> Result<(), Error> {
        self.dense = Some(match self.dense {
            Some(earlier) => self.graph.binary(Operator::Add, earlier, value)?,
            None => value,
        });
        Ok(())
    }
}
