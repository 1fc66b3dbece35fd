//! Log-densities as expressions: a shared DAG in which every operand stands before its users.
//!
//! ```text
//!   Builder, Expr ─┐
//!   text ─ parse ──┴─► Graph (hash-consed, simplified) ─► Density ─ print ─► text
//! ```
//!
//! Every expression has axes: none (a scalar), the observations, the coordinates of the position, or both. Operands are
//! broadcast to the axes of the result; a reduction takes an axis away.

mod builder;
mod function;
mod graph;
mod parse;
mod print;
mod token;

pub use builder::{Builder, Expr, Operand};
pub use function::{Comparison, Function, Operator, Reduction};
pub(crate) use graph::{Axes, Graph, Id, Node, Vector};

use std::str::FromStr;

use crate::Error;

/// Nodes of an expression, and of an expression with its derivatives.
pub const MAX_NODES: usize = 1 << 16;

/// An axis that an expression can have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Axis {
    /// The observations.
    Obs,
    /// The coordinates of the position.
    Coord,
}

/// What a named piece of data is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum DataKind {
    /// One number.
    Scalar,
    /// A number for each observation.
    Column,
    /// A number for each coordinate.
    Vector,
    /// A number for each observation and coordinate, a row for each observation.
    Matrix,
    /// A coordinate's number for each observation, to gather by.
    Index,
}

impl DataKind {
    /// All of them.
    pub const ALL: [DataKind; 5] =
        [DataKind::Scalar, DataKind::Column, DataKind::Vector, DataKind::Matrix, DataKind::Index];

    /// The keyword that declares it in the text form.
    pub const fn name(self) -> &'static str {
        match self {
            DataKind::Scalar => "scalar",
            DataKind::Column => "column",
            DataKind::Vector => "vector",
            DataKind::Matrix => "matrix",
            DataKind::Index => "index",
        }
    }
}

/// A named piece of data that a density reads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DataDecl {
    /// Its name.
    pub name: String,
    /// What it is.
    pub kind: DataKind,
}

/// A log-density: a scalar expression of the position, the observations and named data.
///
/// ```
/// use olivine_chain::Density;
/// let density: Density = "sum_obs(-0.5 * (y - q[0])^2)".parse()?;
/// assert_eq!(density.dims(), 1);
/// assert!("sum_obs(y - q[0]".parse::<Density>().unwrap_err().to_string().starts_with("line 1, column 17"));
/// # Ok::<(), olivine_chain::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Density {
    pub(crate) graph: Graph,
    pub(crate) root: Id,
}

impl Density {
    pub(crate) fn new(graph: Graph, root: Id) -> Result<Self, Error> {
        let axes = graph.axes(root);
        let left = [(Axes::OBS, "observations", "sum_obs"), (Axes::COORD, "coordinates", "sum_coord")];
        for (axis, name, reduce) in left {
            if axes.contains(axis) {
                return Err(Error::Expression(format!(
                    "a density is one number, and this has one for each of the {name}: reduce it with `{reduce}`"
                )));
            }
        }
        Ok(Density { graph, root })
    }

    /// The named data that it reads, in the order in which they were declared.
    pub fn data(&self) -> &[DataDecl] {
        self.graph.data()
    }

    /// Coordinates that a position must have at least: one more than the largest index.
    pub fn dims(&self) -> usize {
        let index = |node: &Node| match node {
            Node::At(Vector::Position, i) => *i as usize + 1,
            _ => 0,
        };
        self.graph.nodes().iter().map(index).max().unwrap_or(0)
    }

    /// The largest index of a vector of data.
    pub(crate) fn largest_index(&self) -> Option<u32> {
        let index = |node: &Node| match node {
            Node::At(_, i) => Some(*i),
            _ => None,
        };
        self.graph.nodes().iter().filter_map(index).max()
    }

    /// Whether it reads the observations.
    pub fn reads_obs(&self) -> bool {
        self.graph.reachable(&[self.root]).iter().any(|id| *self.graph.node(*id) == Node::Obs)
    }

    /// How many different subexpressions it has.
    pub fn size(&self) -> usize {
        self.graph.reachable(&[self.root]).len()
    }
}

impl FromStr for Density {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        parse::parse(text)
    }
}
