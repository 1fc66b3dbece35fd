//! Named sizes and the scope that declares them.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::RangeInclusive;

use crate::expr::print::text;
use crate::expr::store::{intern, node};
use crate::expr::{Expr, ExprId, Node};
use crate::{Bindings, Dim, Error};

/// Longer names are refused.
const MAX_NAME_BYTES: usize = 128;
/// Bounds beyond this are refused, so that a sum of two symbols always fits.
const LARGEST: i64 = 1 << 62;

/// A named size with bounds.
///
/// Symbols of the same name, scope number and bounds are one symbol in the whole process. Two models may share
/// them: values are bound for each run. A scope number of its own keeps equal names apart where graphs are joined.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Symbol(ExprId);

impl Symbol {
    /// The bounds of a dimension about which nothing is known.
    pub const ANY_SIZE: RangeInclusive<i64> = 0..=1 << 40;

    /// The symbol of this name in the scope with number zero.
    pub fn new(name: &str, bounds: RangeInclusive<i64>) -> Result<Symbol, Error> {
        Symbol::in_scope(0, name, bounds)
    }

    /// The symbol of this name in the scope with this number.
    pub fn in_scope(scope: u32, name: &str, bounds: RangeInclusive<i64>) -> Result<Symbol, Error> {
        let reason = if name.is_empty() {
            Some("it is empty")
        } else if name.len() > MAX_NAME_BYTES {
            Some("it is longer than 128 bytes")
        } else if name.chars().any(char::is_control) {
            Some("it has control characters")
        } else {
            None
        };
        if let Some(reason) = reason {
            let start: String = name.chars().filter(|c| !c.is_control()).take(32).collect();
            return Err(Error::InvalidName { name: start, reason });
        }
        let (min, max) = (*bounds.start(), *bounds.end());
        if min > max || min < -LARGEST || max > LARGEST {
            return Err(Error::InvalidBounds { name: name.to_owned(), min, max });
        }
        let node = Node::Symbol { name: name.into(), scope, min, max };
        intern(node).map(Symbol).ok_or_else(|| Error::TooManyExpressions { name: name.to_owned() })
    }

    /// The symbol of a stored expression that is one.
    pub(crate) fn of(id: ExprId) -> Option<Symbol> {
        matches!(node(id), Node::Symbol { .. }).then_some(Symbol(id))
    }

    /// The name.
    pub fn name(self) -> &'static str {
        match node(self.0) {
            Node::Symbol { name, .. } => name,
            _ => "",
        }
    }

    /// The values it may have.
    pub fn bounds(self) -> RangeInclusive<i64> {
        match node(self.0) {
            Node::Symbol { min, max, .. } => *min..=*max,
            _ => 0..=0,
        }
    }

    /// The symbol as a size that has this value in the current compile.
    pub fn with_value(self, value: i64) -> Result<Dim, Error> {
        self.check(value)?;
        Ok(Dim::symbolic(value, self.0))
    }

    pub(crate) fn check(self, value: i64) -> Result<(), Error> {
        let bounds = self.bounds();
        if bounds.contains(&value) {
            return Ok(());
        }
        Err(Error::OutOfBounds {
            name: self.name().to_owned(),
            value,
            min: *bounds.start(),
            max: *bounds.end(),
        })
    }
}

impl fmt::Display for Symbol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&text(Expr::Id(self.0)))
    }
}

impl fmt::Debug for Symbol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The named sizes of one model or graph, with their values in the current compile.
#[derive(Clone, Debug, Default)]
pub struct Scope {
    number: u32,
    sizes: BTreeMap<String, (Symbol, i64)>,
}

impl Scope {
    /// A scope with number zero, whose symbols are shared with all other scopes of that number.
    pub fn new() -> Scope {
        Scope::default()
    }

    /// A scope with this number.
    pub fn with_number(number: u32) -> Scope {
        Scope { number, ..Scope::default() }
    }

    /// Declares a size. The same declaration again returns the same size; another one of that name is an error.
    pub fn declare(&mut self, name: &str, bounds: RangeInclusive<i64>, value: i64) -> Result<Dim, Error> {
        let symbol = Symbol::in_scope(self.number, name, bounds.clone())?;
        let dim = symbol.with_value(value)?;
        let &mut (first, first_value) = self.sizes.entry(name.to_owned()).or_insert((symbol, value));
        if (first, first_value) == (symbol, value) {
            return Ok(dim);
        }
        let declaration =
            |bounds: RangeInclusive<i64>, value| format!("{value} of {} to {}", bounds.start(), bounds.end());
        Err(Error::DeclaredTwice {
            name: name.to_owned(),
            first: declaration(first.bounds(), first_value),
            second: declaration(bounds, value),
        })
    }

    /// The size of this name.
    pub fn get(&self, name: &str) -> Option<Dim> {
        self.sizes.get(name).and_then(|&(symbol, value)| symbol.with_value(value).ok())
    }

    /// The symbols with their values in the current compile, in order of their names.
    pub fn iter(&self) -> impl Iterator<Item = (Symbol, i64)> + '_ {
        self.sizes.values().copied()
    }

    /// The values of the current compile.
    pub fn bindings(&self) -> Bindings {
        Bindings::from_checked(self.iter().collect())
    }
}
