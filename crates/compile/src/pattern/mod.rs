//! Fusion rules as expressions: `x * 0.5 * (1 + erf(x * 0.70710678))` finds every spelling of itself in a graph.
//!
//! ```text
//!   text ─ parse ─ Expr ─ matcher on a value ─ Match (what the names stand for)
//! ```
//!
//! - A lower-case name stands for any value; the same name, the same value.
//! - An upper-case name stands for any scalar constant; its number is captured.
//! - A number matches a scalar constant of about that value, as its dtype rounds it.
//! - `name(a, b)` is the operation of that name; `name[attr=number](a)` also asks for an attribute's value, negative
//!   axes counting from the back. `mean`, `sum` and `amax` are reductions that keep their axes, over trailing axes; all
//!   of one pattern over the same.
//! - Sums and products match in any order and association; subtraction, division by numbers, `1/sqrt(x)` for
//!   `rsqrt(x)`, `x*x` and `pow(x, 2)` for `square(x)` and the like need no rule of their own.
//! - Nothing matches if a value inside is also used outside.

mod matcher;
mod parse;

pub(crate) use matcher::{Match, scalar_constant};

/// A pattern: what to look for, and the names in it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Pattern {
    root: Expr,
    /// Lower-case names in order of appearance.
    values: Vec<String>,
    /// Upper-case names in order of appearance.
    numbers: Vec<String>,
}

/// An expression in normal form: differences are sums with negated terms, quotients products with inverted factors.
#[derive(Clone, Debug, PartialEq)]
enum Expr {
    Value(usize),
    Capture(usize),
    Number(f64),
    Sum(Vec<Expr>),
    Product(Vec<Expr>),
    Neg(Box<Expr>),
    Inverse(Box<Expr>),
    Call { name: String, attrs: Vec<(String, f64)>, args: Vec<Expr> },
}

impl Expr {
    fn call(name: &str, arg: Expr) -> Expr {
        Expr::Call { name: name.into(), attrs: Vec::new(), args: vec![arg] }
    }

    fn is_call(&self, wanted: &str) -> bool {
        matches!(self, Expr::Call { name, .. } if name == wanted)
    }

    /// `-self`.
    fn negated(self) -> Expr {
        match self {
            Expr::Number(n) => Expr::Number(-n),
            Expr::Neg(e) => *e,
            e => Expr::Neg(Box::new(e)),
        }
    }

    /// `1 / self`.
    fn inverted(self) -> Expr {
        match self {
            Expr::Number(n) => Expr::Number(1.0 / n),
            Expr::Inverse(e) => *e,
            Expr::Call { name, attrs, args } if name == "sqrt" || name == "rsqrt" => {
                let name = if name == "sqrt" { "rsqrt" } else { "sqrt" };
                Expr::Call { name: name.into(), attrs, args }
            }
            e => Expr::Inverse(Box::new(e)),
        }
    }
}
