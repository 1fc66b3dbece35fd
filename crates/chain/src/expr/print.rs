//! Densities as text that [`parse`](super::parse) reads back: a `let` for each subexpression, so that depth does not
//! matter.

use std::fmt;

use super::{Axis, DataKind, Density, Id, Node, Operator, Reduction, Vector};

impl fmt::Display for Density {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for kind in DataKind::ALL {
            let names: Vec<&str> =
                self.data().iter().filter(|d| d.kind == kind).map(|d| d.name.as_str()).collect();
            if !names.is_empty() {
                writeln!(f, "{} {};", kind.name(), names.join(", "))?;
            }
        }
        for id in self.graph.reachable(&[self.root]) {
            if !self.is_leaf(id) && id != self.root {
                writeln!(f, "let _{} = {};", id.0, self.text(id))?;
            }
        }
        write!(f, "{}", self.text(self.root))
    }
}

impl Density {
    fn is_leaf(&self, id: Id) -> bool {
        self.graph.node(id).operands().is_empty()
    }

    fn operand(&self, id: Id) -> String {
        if self.is_leaf(id) { self.text(id) } else { format!("_{}", id.0) }
    }

    fn text(&self, id: Id) -> String {
        let vector = |v: &Vector| match v {
            Vector::Position => "q",
            Vector::Data(i) => self.data()[*i as usize].name.as_str(),
        };
        let name = |i: &u32| self.data()[*i as usize].name.clone();
        match self.graph.node(id) {
            Node::Const(bits) => match f64::from_bits(*bits) {
                x if x.is_nan() => "nan".into(),
                x if x == f64::INFINITY => "inf".into(),
                x if x == f64::NEG_INFINITY => "(-inf)".into(),
                x if x.is_sign_negative() => format!("({x:?})"),
                x => format!("{x:?}"),
            },
            Node::Count(Axis::Obs) => "n_obs".into(),
            Node::Count(Axis::Coord) => "dim".into(),
            Node::Obs => "y".into(),
            Node::Position => "q".into(),
            Node::Coord => "coord".into(),
            Node::Data(i) => name(i),
            Node::At(v, i) => format!("{}[{i}]", vector(v)),
            Node::Gather(v, i) => format!("{}[{}]", vector(v), name(i)),
            Node::Unary(f, x) => format!("{}({})", f.name(), self.operand(*x)),
            Node::Binary(op, a, b) => {
                let (a, b) = (self.operand(*a), self.operand(*b));
                match op {
                    Operator::Add => format!("{a} + {b}"),
                    Operator::Sub => format!("{a} - {b}"),
                    Operator::Mul => format!("{a} * {b}"),
                    Operator::Div => format!("{a} / {b}"),
                    _ => format!("{}({a}, {b})", op.name()),
                }
            }
            Node::Compare(op, a, b) => format!("{}({}, {})", op.name(), self.operand(*a), self.operand(*b)),
            Node::Select(c, a, b) => {
                format!("select({}, {}, {})", self.operand(*c), self.operand(*a), self.operand(*b))
            }
            Node::Reduce(how, axis, x) => {
                let how = if *how == Reduction::Sum { "sum" } else { "max" };
                let axis = if *axis == Axis::Obs { "obs" } else { "coord" };
                format!("{how}_{axis}({})", self.operand(*x))
            }
            // Made by differentiation, which densities are not printed after.
            Node::Scatter(x, i) => format!("scatter({}, {})", self.operand(*x), name(i)),
        }
    }
}
