//! Lists of expressions, each list once in the process: a shape holds its expressions as one number.

use std::collections::HashMap;
use std::fmt;
use std::num::NonZeroU32;
use std::sync::{LazyLock, Mutex, PoisonError};

use super::arena::Arena;
use super::store::limit;
use crate::Expression;

type List = Box<[Expression]>;

static LISTS: Arena<List> = Arena::new();
static NUMBERS: LazyLock<Mutex<HashMap<&'static [Expression], NonZeroU32>>> = LazyLock::new(Mutex::default);

/// The expressions of a list of sizes, in four bytes; nothing where all sizes are constants.
///
/// Equal lists are equal numbers, so that comparing two of them looks at neither.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Expressions(Option<NonZeroU32>);

impl Expressions {
    /// Of constants.
    pub const NONE: Expressions = Expressions(None);

    /// Stores a list; `None` when the process holds as many lists as it may hold expressions.
    pub fn new(list: &[Expression]) -> Option<Expressions> {
        // Constants at the end are what a list has beyond its end.
        let Some(last) = list.iter().rposition(|e| !e.is_none()) else { return Some(Expressions::NONE) };
        let list = &list[..=last];
        let mut numbers = NUMBERS.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(&number) = numbers.get(list) {
            return Some(Expressions(Some(number)));
        }
        let number = u32::try_from(numbers.len() + 1).ok().filter(|&number| number <= limit())?;
        let stored = LISTS.insert(number, list.into())?;
        let number = NonZeroU32::new(number)?;
        numbers.insert(stored, number);
        Some(Expressions(Some(number)))
    }

    /// Whether all sizes are constants.
    #[inline]
    pub fn is_none(self) -> bool {
        self.0.is_none()
    }

    /// The expression of one size; none beyond the end of the list.
    #[inline]
    pub fn get(self, index: usize) -> Expression {
        self.as_slice().get(index).copied().unwrap_or(Expression::NONE)
    }

    /// The expressions up to the last that there is.
    #[inline]
    pub fn as_slice(self) -> &'static [Expression] {
        match self.0.and_then(|number| LISTS.get(number.get())) {
            Some(list) => list,
            None => &[],
        }
    }
}

impl fmt::Debug for Expressions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.as_slice()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Dim, Symbol};

    fn expression(dim: Dim) -> Expression {
        dim.parts().unwrap().1
    }

    #[test]
    fn equal_lists_are_one_number_and_are_read_back() {
        let n = expression(Symbol::new("n", 0..=9).unwrap().with_value(3).unwrap());
        let list = Expressions::new(&[Expression::NONE, n]).unwrap();
        assert_eq!(list, Expressions::new(&[Expression::NONE, n, Expression::NONE]).unwrap());
        assert_ne!(list, Expressions::new(&[n]).unwrap());
        assert_eq!((list.get(0), list.get(1), list.get(2)), (Expression::NONE, n, Expression::NONE));
    }

    #[test]
    fn constants_are_stored_nowhere() {
        assert!(Expressions::new(&[]).unwrap().is_none());
        assert!(Expressions::new(&[Expression::NONE; 3]).unwrap().is_none());
        assert_eq!(size_of::<Expressions>(), 4);
    }
}
