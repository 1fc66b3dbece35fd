//! What can be wrong with sizes.

use std::fmt;

/// Why a [`Dim`](crate::Dim) has no value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Fault {
    /// The result does not fit in 64 bits.
    Overflow,
    /// A division by zero, or a remainder of one.
    DivisionByZero,
    /// The expression is beyond a limit, and nothing records the guards that would allow a constant instead.
    TooComplex,
    /// One symbol has two different values in one computation.
    Inconsistent,
}

impl Fault {
    /// In the order of their numbers.
    pub(crate) const ALL: [Fault; 4] =
        [Fault::Overflow, Fault::DivisionByZero, Fault::TooComplex, Fault::Inconsistent];
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Fault::Overflow => "does not fit in 64 bits",
            Fault::DivisionByZero => "divides by zero",
            Fault::TooComplex => "is too large an expression, or one too many for this process",
            Fault::Inconsistent => "mixes two values of one symbol",
        })
    }
}

/// Why a size cannot be declared, bound, read or evaluated.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A name that no symbol may have.
    #[error("`{name}` cannot be the name of a size: {reason}")]
    InvalidName {
        /// The name, cut where it is long.
        name: String,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// Bounds without a value between them, or beyond 2^62.
    #[error("the bounds of `{name}` are invalid: {min} to {max}")]
    InvalidBounds {
        /// The symbol.
        name: String,
        /// The lower bound.
        min: i64,
        /// The upper bound.
        max: i64,
    },
    /// A name declared twice in one scope, with different bounds or values.
    #[error("`{name}` is declared as {first} and as {second}")]
    DeclaredTwice {
        /// The symbol.
        name: String,
        /// The first declaration.
        first: String,
        /// The second one.
        second: String,
    },
    /// A value outside the declared bounds.
    #[error("`{name}` is {value}: it must be from {min} to {max}")]
    OutOfBounds {
        /// The symbol.
        name: String,
        /// The value.
        value: i64,
        /// The lower bound.
        min: i64,
        /// The upper bound.
        max: i64,
    },
    /// One symbol with two values.
    #[error("`{name}` is both {first} and {second}")]
    BoundTwice {
        /// The symbol.
        name: String,
        /// The value it has.
        first: i64,
        /// The other value.
        second: i64,
    },
    /// A symbol without a value.
    #[error("`{name}` has no value")]
    Unbound {
        /// The symbol.
        name: String,
    },
    /// Arithmetic that has no result.
    #[error("`{expression}` {fault}{}", with(.values))]
    Arithmetic {
        /// The expression.
        expression: String,
        /// The values it was computed from.
        values: String,
        /// What went wrong.
        fault: Fault,
    },
    /// A size below zero.
    #[error("`{expression}` is {value}, which is no size{}", with(.values))]
    Negative {
        /// The expression.
        expression: String,
        /// Its value.
        value: i64,
        /// The values it was computed from.
        values: String,
    },
    /// A size that this machine's `usize` does not hold.
    #[error("`{expression}` is {value}: more than this machine can address")]
    TooLarge {
        /// The expression.
        expression: String,
        /// Its value.
        value: i64,
    },
    /// As many expressions as a process may hold.
    #[error("`{name}` is one size expression too many for this process")]
    TooManyExpressions {
        /// What was to be added.
        name: String,
    },
    /// Text that is no expression.
    #[error("at byte {at} of a size expression: {reason}")]
    Parse {
        /// Where, in bytes from the start.
        at: usize,
        /// What is wrong there.
        reason: String,
    },
}

fn with(values: &str) -> String {
    if values.is_empty() { String::new() } else { format!(", with {values}") }
}
