//! The DAG: nodes, their axes, and simplification while they are added.

use std::collections::HashMap;

use super::{Axis, Comparison, DataDecl, DataKind, Function, MAX_NODES, Operator, Reduction};
use crate::Error;
use crate::cpu::Real;

/// A node of a [`Graph`]; operands have smaller numbers than their users.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Id(pub(crate) u32);

impl Id {
    pub(crate) fn index(self) -> usize {
        self.0 as usize
    }
}

/// Which axes an expression has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Axes(u8);

impl Axes {
    pub(crate) const NONE: Axes = Axes(0);
    pub(crate) const OBS: Axes = Axes(1);
    pub(crate) const COORD: Axes = Axes(2);
    pub(crate) const BOTH: Axes = Axes(3);

    pub(crate) fn contains(self, other: Axes) -> bool {
        self.0 & other.0 == other.0
    }

    pub(crate) fn union(self, other: Axes) -> Axes {
        Axes(self.0 | other.0)
    }

    pub(crate) fn without(self, other: Axes) -> Axes {
        Axes(self.0 & !other.0)
    }
}

impl From<Axis> for Axes {
    fn from(axis: Axis) -> Axes {
        match axis {
            Axis::Obs => Axes::OBS,
            Axis::Coord => Axes::COORD,
        }
    }
}

/// A vector that can be indexed: elementwise functions are applied after indexing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Vector {
    Position,
    /// The i-th piece of data, a vector.
    Data(u32),
}

/// An expression.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Node {
    /// A number, by its bits.
    Const(u64),
    /// How long an axis is, as a number.
    Count(Axis),
    /// The observations.
    Obs,
    /// The position.
    Position,
    /// The number of the coordinate.
    Coord,
    /// The i-th piece of data; not an index.
    Data(u32),
    /// One element.
    At(Vector, u32),
    /// For each observation the element that the i-th piece of data, an index, names.
    Gather(Vector, u32),
    Unary(Function, Id),
    Binary(Operator, Id, Id),
    Compare(Comparison, Id, Id),
    /// The second where the first is not 0, else the third.
    Select(Id, Id, Id),
    Reduce(Reduction, Axis, Id),
    /// For each coordinate the sum of the values of the observations whose index names it; made by differentiation.
    Scatter(Id, u32),
}

impl Node {
    pub(crate) fn operands(&self) -> Vec<Id> {
        match *self {
            Node::Unary(_, x) | Node::Reduce(_, _, x) | Node::Scatter(x, _) => vec![x],
            Node::Binary(_, a, b) | Node::Compare(_, a, b) => vec![a, b],
            Node::Select(c, a, b) => vec![c, a, b],
            _ => Vec::new(),
        }
    }
}

/// Hash-consed expressions.
#[derive(Clone, Debug, Default)]
pub(crate) struct Graph {
    nodes: Vec<Node>,
    axes: Vec<Axes>,
    known: HashMap<Node, Id>,
    data: Vec<DataDecl>,
}

impl Graph {
    pub(crate) fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    pub(crate) fn node(&self, id: Id) -> &Node {
        &self.nodes[id.index()]
    }

    pub(crate) fn axes(&self, id: Id) -> Axes {
        self.axes[id.index()]
    }

    pub(crate) fn data(&self) -> &[DataDecl] {
        &self.data
    }

    /// Declares data, or finds what was declared with the same name and kind.
    pub(crate) fn declare(&mut self, name: &str, kind: DataKind) -> Result<u32, Error> {
        if let Some(i) = self.data.iter().position(|d| d.name == name) {
            let earlier = self.data[i].kind;
            if earlier != kind {
                let (earlier, kind) = (earlier.name(), kind.name());
                return Err(Error::Expression(format!("`{name}` is declared as {earlier} and as {kind}")));
            }
            return Ok(i as u32);
        }
        if self.data.len() >= 256 {
            return Err(Error::TooLarge { what: "pieces of data", limit: 256 });
        }
        self.data.push(DataDecl { name: name.into(), kind });
        Ok(self.data.len() as u32 - 1)
    }

    /// The number that a node is.
    pub(crate) fn as_const(&self, id: Id) -> Option<f64> {
        match self.node(id) {
            Node::Const(bits) => Some(f64::from_bits(*bits)),
            _ => None,
        }
    }

    pub(crate) fn constant(&mut self, x: f64) -> Result<Id, Error> {
        self.add(Node::Const(x.to_bits()))
    }

    pub(crate) fn unary(&mut self, f: Function, x: Id) -> Result<Id, Error> {
        self.add(Node::Unary(f, x))
    }

    pub(crate) fn binary(&mut self, op: Operator, a: Id, b: Id) -> Result<Id, Error> {
        self.add(Node::Binary(op, a, b))
    }

    pub(crate) fn reduce(&mut self, how: Reduction, axis: Axis, x: Id) -> Result<Id, Error> {
        self.add(Node::Reduce(how, axis, x))
    }

    /// Adds a node, or what it simplifies to. Simplification changes results by the sign of a zero,
    /// and where a quotient by a scalar becomes a product with its inverse, by rounding.
    pub(crate) fn add(&mut self, node: Node) -> Result<Id, Error> {
        if let Some(id) = self.simpler(&node)? {
            return Ok(id);
        }
        if let Some(id) = self.known.get(&node) {
            return Ok(*id);
        }
        if self.nodes.len() >= MAX_NODES {
            return Err(Error::TooLarge { what: "subexpressions", limit: MAX_NODES });
        }
        let axes = self.axes_of(&node);
        let id = Id(self.nodes.len() as u32);
        self.known.insert(node.clone(), id);
        self.nodes.push(node);
        self.axes.push(axes);
        Ok(id)
    }

    fn axes_of(&self, node: &Node) -> Axes {
        match node {
            Node::Const(_) | Node::Count(_) | Node::At(..) => Axes::NONE,
            Node::Obs | Node::Gather(..) => Axes::OBS,
            Node::Position | Node::Coord | Node::Scatter(..) => Axes::COORD,
            Node::Data(i) => match self.data[*i as usize].kind {
                DataKind::Scalar => Axes::NONE,
                DataKind::Column | DataKind::Index => Axes::OBS,
                DataKind::Vector => Axes::COORD,
                DataKind::Matrix => Axes::BOTH,
            },
            Node::Reduce(_, axis, x) => self.axes(*x).without((*axis).into()),
            _ => node.operands().iter().fold(Axes::NONE, |axes, id| axes.union(self.axes(*id))),
        }
    }

    fn simpler(&mut self, node: &Node) -> Result<Option<Id>, Error> {
        use Operator::{Add, Div, Mul, Pow, Sub};
        let number = |id: Id| self.as_const(id);
        let folded = match *node {
            Node::Unary(f, x) => number(x).map(|x| f64::unary(f, x)),
            Node::Binary(op, a, b) => number(a).zip(number(b)).map(|(a, b)| f64::binary(op, a, b)),
            Node::Compare(op, a, b) => number(a).zip(number(b)).map(|(a, b)| f64::compare(op, a, b)),
            _ => None,
        };
        if let Some(x) = folded {
            return self.constant(x).map(Some);
        }
        Ok(match *node {
            Node::Binary(Add, a, b) if number(a) == Some(0.0) => Some(b),
            Node::Binary(Add | Sub, a, b) if number(b) == Some(0.0) => Some(a),
            Node::Binary(Mul, a, b) if number(a) == Some(1.0) => Some(b),
            Node::Binary(Mul | Div | Pow, a, b) if number(b) == Some(1.0) => Some(a),
            Node::Binary(Mul, a, b) if number(a) == Some(-1.0) => Some(self.unary(Function::Neg, b)?),
            Node::Binary(Mul, a, b) if number(b) == Some(-1.0) => Some(self.unary(Function::Neg, a)?),
            Node::Binary(Pow, a, b) if number(b) == Some(2.0) => Some(self.unary(Function::Square, a)?),
            Node::Binary(Sub, a, b) if number(a) == Some(0.0) => Some(self.unary(Function::Neg, b)?),
            Node::Binary(Div, a, b) if number(a) == Some(1.0) => Some(self.unary(Function::Reciprocal, b)?),
            // One quotient instead of one for each observation or coordinate.
            Node::Binary(Div, a, b) if self.axes(b) == Axes::NONE && self.axes(a) != Axes::NONE => {
                let inverse = self.unary(Function::Reciprocal, b)?;
                Some(self.binary(Mul, a, inverse)?)
            }
            // A sum with the negative is a difference, and constants stand first, so that equal terms meet.
            Node::Binary(Add, a, b) => match *self.node(b) {
                Node::Unary(Function::Neg, x) => Some(self.binary(Sub, a, x)?),
                _ if number(b).is_some() && number(a).is_none() => Some(self.binary(Add, b, a)?),
                _ => None,
            },
            Node::Binary(Mul, a, b) if number(b).is_some() && number(a).is_none() => {
                Some(self.binary(Mul, b, a)?)
            }
            Node::Unary(Function::Neg, x) => match *self.node(x) {
                Node::Unary(Function::Neg, x) => Some(x),
                Node::Binary(Sub, a, b) => Some(self.binary(Sub, b, a)?),
                Node::Binary(Mul, a, b) if number(a).is_some() => {
                    let minus = self.unary(Function::Neg, a)?;
                    Some(self.binary(Mul, minus, b)?)
                }
                _ => None,
            },
            Node::Select(c, a, b) => match number(c) {
                Some(c) => Some(if c != 0.0 { a } else { b }),
                None if a == b => Some(a),
                None => None,
            },
            // What does not vary along the axis.
            Node::Reduce(how, axis, x) if !self.axes(x).contains(axis.into()) => Some(match how {
                Reduction::Max => x,
                Reduction::Sum => {
                    let count = self.add(Node::Count(axis))?;
                    self.binary(Mul, count, x)?
                }
            }),
            _ => None,
        })
    }

    /// The nodes that some root depends on, operands first.
    pub(crate) fn reachable(&self, roots: &[Id]) -> Vec<Id> {
        let mut needed = vec![false; self.nodes.len()];
        roots.iter().for_each(|id| needed[id.index()] = true);
        for i in (0..self.nodes.len()).rev() {
            if needed[i] {
                self.nodes[i].operands().iter().for_each(|x| needed[x.index()] = true);
            }
        }
        (0..self.nodes.len() as u32).map(Id).filter(|id| needed[id.index()]).collect()
    }
}
