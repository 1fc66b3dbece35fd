//! Densities written in Rust: a [`Builder`] that records, and [`Expr`]s that know it.

use std::cell::RefCell;
use std::ops;

use super::{Axis, Comparison, DataKind, Density, Function, Graph, Id, Node, Operator, Reduction, Vector};
use crate::Error;

/// Records expressions. A mistake is remembered and comes out of [`Builder::density`].
///
/// ```
/// use olivine_chain::Builder;
/// let b = Builder::new();
/// let (q, y) = (b.position(), b.obs());
/// let (mean, scale) = (q.at(0), q.at(1).exp());
/// let likelihood = (-0.5 * ((y - mean) / scale).square() - scale.log()).sum_obs();
/// let prior = (-0.5 * q.square()).sum_coord();
/// let density = b.density(likelihood + prior)?;
/// assert_eq!(density.dims(), 2);
/// # Ok::<(), olivine_chain::Error>(())
/// ```
#[derive(Default)]
pub struct Builder {
    inner: RefCell<Inner>,
}

#[derive(Default)]
struct Inner {
    graph: Graph,
    error: Option<Error>,
}

impl Builder {
    /// A builder without expressions.
    pub fn new() -> Self {
        Builder::default()
    }

    /// The position, which has a number for each coordinate.
    pub fn position(&self) -> Expr<'_> {
        self.record(|g| g.add(Node::Position))
    }

    /// The observations.
    pub fn obs(&self) -> Expr<'_> {
        self.record(|g| g.add(Node::Obs))
    }

    /// The number of each coordinate, from 0.
    pub fn coord(&self) -> Expr<'_> {
        self.record(|g| g.add(Node::Coord))
    }

    /// How many observations or coordinates there are.
    pub fn count(&self, axis: Axis) -> Expr<'_> {
        self.record(|g| g.add(Node::Count(axis)))
    }

    /// A number.
    pub fn number(&self, x: f64) -> Expr<'_> {
        self.record(|g| g.constant(x))
    }

    /// A number that is given with the data.
    pub fn scalar(&self, name: &str) -> Expr<'_> {
        self.data(name, DataKind::Scalar)
    }

    /// Data with a number for each observation.
    pub fn column(&self, name: &str) -> Expr<'_> {
        self.data(name, DataKind::Column)
    }

    /// Data with a number for each coordinate.
    pub fn vector(&self, name: &str) -> Expr<'_> {
        self.data(name, DataKind::Vector)
    }

    /// Data with a number for each observation and coordinate.
    pub fn matrix(&self, name: &str) -> Expr<'_> {
        self.data(name, DataKind::Matrix)
    }

    fn data(&self, name: &str, kind: DataKind) -> Expr<'_> {
        self.record(|g| {
            super::parse::check_name(name)?;
            let i = g.declare(name, kind)?;
            g.add(Node::Data(i))
        })
    }

    /// ln Σ eˣ of some expressions, without overflow; −∞ of none.
    pub fn logsumexp<'b>(&'b self, terms: &[Expr<'b>]) -> Expr<'b> {
        let ids: Vec<Id> = terms.iter().map(|t| t.id).collect();
        self.record(|g| g.logsumexp(&ids))
    }

    /// The finished density, a scalar expression.
    pub fn density(&self, expr: Expr<'_>) -> Result<Density, Error> {
        let mut inner = self.inner.borrow_mut();
        match inner.error.take() {
            Some(error) => Err(error),
            None if !std::ptr::eq(self, expr.b) => {
                Err(Error::Expression("the expression belongs to another builder".into()))
            }
            None => Density::new(inner.graph.clone(), expr.id),
        }
    }

    fn record(&self, add: impl FnOnce(&mut Graph) -> Result<Id, Error>) -> Expr<'_> {
        let mut inner = self.inner.borrow_mut();
        let id = match add(&mut inner.graph) {
            Ok(id) => id,
            Err(error) => {
                inner.error.get_or_insert(error);
                // A node of any kind stands for it: the error comes out in the end.
                if inner.graph.nodes().is_empty() {
                    let _ = inner.graph.add(Node::Position);
                }
                Id(0)
            }
        };
        Expr { b: self, id }
    }
}

/// An expression of a [`Builder`].
#[derive(Clone, Copy)]
pub struct Expr<'b> {
    b: &'b Builder,
    id: Id,
}

/// An expression or a number.
pub trait Operand<'b> {
    /// The expression, of `other`'s builder if it is a number.
    fn expr(self, other: Expr<'b>) -> Expr<'b>;
}

impl<'b> Operand<'b> for Expr<'b> {
    fn expr(self, other: Expr<'b>) -> Expr<'b> {
        if !std::ptr::eq(self.b, other.b) {
            return other.b.record(|_| Err(Error::Expression("expressions of two builders meet".into())));
        }
        self
    }
}

impl<'b> Operand<'b> for f64 {
    fn expr(self, other: Expr<'b>) -> Expr<'b> {
        other.b.number(self)
    }
}

impl<'b> Expr<'b> {
    /// A function of it.
    pub fn apply(self, function: Function) -> Expr<'b> {
        self.b.record(|g| g.unary(function, self.id))
    }

    /// A function of it and another.
    pub fn with(self, operator: Operator, other: impl Operand<'b>) -> Expr<'b> {
        let other = other.expr(self);
        self.b.record(|g| g.binary(operator, self.id, other.id))
    }

    /// 1 where a comparison holds, 0 elsewhere.
    pub fn compare(self, comparison: Comparison, other: impl Operand<'b>) -> Expr<'b> {
        let other = other.expr(self);
        self.b.record(|g| g.add(Node::Compare(comparison, self.id, other.id)))
    }

    /// `then` where this is not 0, `otherwise` elsewhere.
    pub fn select(self, then: impl Operand<'b>, otherwise: impl Operand<'b>) -> Expr<'b> {
        let (then, otherwise) = (then.expr(self), otherwise.expr(self));
        self.b.record(|g| g.add(Node::Select(self.id, then.id, otherwise.id)))
    }

    /// Element `index` of the position or of a vector of data.
    pub fn at(self, index: u32) -> Expr<'b> {
        self.b.record(|g| g.at(self.id, index))
    }

    /// For each observation the element of the position, or of a vector of data, that the index data of this name
    /// names.
    pub fn gather(self, index: &str) -> Expr<'b> {
        self.b.record(|g| {
            super::parse::check_name(index)?;
            let index = g.declare(index, DataKind::Index)?;
            g.gather(self.id, index)
        })
    }

    /// Combines the values along an axis.
    pub fn reduce(self, how: Reduction, axis: Axis) -> Expr<'b> {
        self.b.record(|g| g.reduce(how, axis, self.id))
    }

    /// The sum over the observations.
    pub fn sum_obs(self) -> Expr<'b> {
        self.reduce(Reduction::Sum, Axis::Obs)
    }

    /// The sum over the coordinates.
    pub fn sum_coord(self) -> Expr<'b> {
        self.reduce(Reduction::Sum, Axis::Coord)
    }

    /// The power.
    pub fn pow(self, exponent: impl Operand<'b>) -> Expr<'b> {
        self.with(Operator::Pow, exponent)
    }

    /// The larger of two.
    pub fn max(self, other: impl Operand<'b>) -> Expr<'b> {
        self.with(Operator::Max, other)
    }

    /// The smaller of two.
    pub fn min(self, other: impl Operand<'b>) -> Expr<'b> {
        self.with(Operator::Min, other)
    }
}

macro_rules! methods {
    ($($name:ident $function:ident),* $(,)?) => {
        impl<'b> Expr<'b> {$(
            #[doc = concat!("[`Function::", stringify!($function), "`] of it.")]
            pub fn $name(self) -> Expr<'b> {
                self.apply(Function::$function)
            }
        )*}
    };
}
methods!(
    abs Abs, square Square, sqrt Sqrt, exp Exp, expm1 Expm1, log Log, log1p Log1p, sin Sin, cos Cos, atan Atan,
    tanh Tanh, detach Detach, sigmoid Sigmoid, softplus Softplus, erf Erf, lgamma Lgamma,
);

macro_rules! operators {
    ($($trait:ident $method:ident $op:ident),* $(,)?) => {$(
        impl<'b, O: Operand<'b>> ops::$trait<O> for Expr<'b> {
            type Output = Expr<'b>;
            fn $method(self, other: O) -> Expr<'b> {
                self.with(Operator::$op, other)
            }
        }

        impl<'b> ops::$trait<Expr<'b>> for f64 {
            type Output = Expr<'b>;
            fn $method(self, other: Expr<'b>) -> Expr<'b> {
                other.b.number(self).with(Operator::$op, other)
            }
        }
    )*};
}
operators!(Add add Add, Sub sub Sub, Mul mul Mul, Div div Div);

impl<'b> ops::Neg for Expr<'b> {
    type Output = Expr<'b>;
    fn neg(self) -> Expr<'b> {
        self.apply(Function::Neg)
    }
}

impl Graph {
    /// The vector that a node is, to index it.
    fn vector(&self, id: Id) -> Result<Vector, Error> {
        match self.node(id) {
            Node::Position => Ok(Vector::Position),
            Node::Data(i) if self.data()[*i as usize].kind == DataKind::Vector => Ok(Vector::Data(*i)),
            _ => Err(Error::Expression(
                "only the position and vectors of data can be indexed: index first, then compute".into(),
            )),
        }
    }

    pub(super) fn at(&mut self, id: Id, index: u32) -> Result<Id, Error> {
        if index >= 1 << 24 {
            return Err(Error::Expression(format!("index {index} is too large")));
        }
        let vector = self.vector(id)?;
        self.add(Node::At(vector, index))
    }

    pub(super) fn gather(&mut self, id: Id, index: u32) -> Result<Id, Error> {
        let vector = self.vector(id)?;
        self.add(Node::Gather(vector, index))
    }

    pub(super) fn logsumexp(&mut self, terms: &[Id]) -> Result<Id, Error> {
        let Some((first, rest)) = terms.split_first() else { return self.constant(f64::NEG_INFINITY) };
        let mut most = *first;
        for term in rest {
            most = self.binary(Operator::Max, most, *term)?;
        }
        // What is taken away is added again: its derivative is 0.
        let most = self.unary(Function::Detach, most)?;
        let mut sum = None;
        for term in terms {
            let less = self.binary(Operator::Sub, *term, most)?;
            let exp = self.unary(Function::Exp, less)?;
            sum = Some(match sum {
                Some(sum) => self.binary(Operator::Add, sum, exp)?,
                None => exp,
            });
        }
        let log = self.unary(Function::Log, sum.unwrap_or(most))?;
        self.binary(Operator::Add, most, log)
    }
}
