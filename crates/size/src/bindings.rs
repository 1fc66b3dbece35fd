//! Values of symbols.

use std::fmt;

use crate::{Error, Symbol};

/// Which value each symbol has.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Bindings {
    /// In order of the symbols. Models have a handful.
    values: Vec<(Symbol, i64)>,
}

impl Bindings {
    /// No values.
    pub fn new() -> Bindings {
        Bindings::default()
    }

    pub(crate) fn from_checked(mut values: Vec<(Symbol, i64)>) -> Bindings {
        values.sort_unstable();
        Bindings { values }
    }

    /// Gives a symbol its value. The value must be within the symbol's bounds, and a second one must be the same.
    pub fn bind(&mut self, symbol: Symbol, value: i64) -> Result<(), Error> {
        symbol.check(value)?;
        match self.values.binary_search_by_key(&symbol, |&(symbol, _)| symbol) {
            Ok(at) => {
                let first = self.values[at].1;
                if first != value {
                    return Err(Error::BoundTwice { name: symbol.name().to_owned(), first, second: value });
                }
            }
            Err(at) => self.values.insert(at, (symbol, value)),
        }
        Ok(())
    }

    /// The value of a symbol.
    pub fn get(&self, symbol: Symbol) -> Option<i64> {
        self.values.iter().find(|(other, _)| *other == symbol).map(|&(_, value)| value)
    }

    /// Forgets all values and keeps the memory.
    pub fn clear(&mut self) {
        self.values.clear();
    }

    /// All symbols with their values.
    pub fn iter(&self) -> impl Iterator<Item = (Symbol, i64)> + '_ {
        self.values.iter().copied()
    }
}

/// `batch = 2, sequence = 7`.
impl fmt::Display for Bindings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut texts: Vec<String> =
            self.iter().map(|(symbol, value)| format!("{symbol} = {value}")).collect();
        texts.sort();
        f.write_str(&texts.join(", "))
    }
}
