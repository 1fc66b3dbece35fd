//! [`Dim`]: a size with its value and, where it depends on named sizes, its expression.

use std::fmt;
use std::num::NonZeroU32;
use std::ops::RangeInclusive;

use crate::arithmetic::Op;
use crate::expr::build::combine;
use crate::expr::print::text;
use crate::expr::store::{id_of, intern, is_half_full, node, range};
use crate::expr::{Expr, ExprId, Node, symbols};
use crate::{Bindings, Error, Fault, Symbol, Table, guards};

/// A size: its value in the current compile and, where it depends on named sizes, the expression it has.
///
/// The value is an `i64`, because size arithmetic goes through negative numbers (`past - 1`, the end of a slice).
/// [`Dim::specialize`] and [`Table`] check that what is used as a size is not negative.
///
/// Arithmetic never wraps and never panics. Where there is no result, the `Dim` carries a [`Fault`]: all arithmetic
/// with it has the same fault, it is unequal to everything, and [`Dim::check`] and all that reads it is an error.
///
/// Comparisons answer by the value and record a guard (see [`guards`]). There is no `Eq` and no `Hash`: equal now is
/// not equal for all sizes. Maps use [`Dim::structural`].
#[derive(Clone, Copy, Default)]
pub struct Dim {
    value: i64,
    tag: Tag,
}

/// The expression and the fault in one word: zero for constants, so that one test finds them, and two words are what a
/// function returns in registers.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
struct Tag(u64);

impl Tag {
    const CONSTANT: Tag = Tag(0);

    #[inline]
    fn new(expr: ExprId, fault: Option<Fault>) -> Tag {
        let fault = fault.map_or(0, |fault| fault as u64 + 1);
        Tag(u64::from(expr.0.get()) | fault << 32)
    }

    #[inline]
    fn expr(self) -> Option<ExprId> {
        NonZeroU32::new(self.0 as u32).map(ExprId)
    }

    #[inline]
    fn fault(self) -> Option<Fault> {
        let code = (self.0 >> 32) as usize;
        Fault::ALL.get(code.wrapping_sub(1)).copied()
    }
}

impl Dim {
    /// The constant 0.
    pub const ZERO: Dim = Dim::constant(0);
    /// The constant 1.
    pub const ONE: Dim = Dim::constant(1);

    /// A constant.
    #[inline]
    pub const fn constant(value: i64) -> Dim {
        Dim { value, tag: Tag::CONSTANT }
    }

    #[inline]
    pub(crate) fn symbolic(value: i64, expr: ExprId) -> Dim {
        Dim { value, tag: Tag::new(expr, None) }
    }

    /// A number that does not fit.
    #[cold]
    pub(crate) fn too_large() -> Dim {
        Dim { value: 0, tag: Tag::new(ExprId::UNKNOWN, Some(Fault::Overflow)) }
    }

    /// The value and the expression apart, for tables that keep many sizes; `None` for a size with a fault.
    #[inline]
    pub fn parts(self) -> Option<(i64, Expression)> {
        self.fault().is_none().then(|| (self.value, Expression(self.tag.expr())))
    }

    /// The size that [`Dim::parts`] took apart.
    #[inline]
    pub fn from_parts(value: i64, expression: Expression) -> Dim {
        match expression.0 {
            None => Dim::constant(value),
            Some(id) => Dim::symbolic(value, id),
        }
    }

    /// Reads the text form, such as `2*sequence + min(past, 4)`, with the sizes of a scope.
    ///
    /// The text form has `+`, `-`, `*`, `mod`, parentheses, `floor(a / b)`, `ceil(a / b)`, `min(a, b)`, `max(a, b)`,
    /// `abs(a)` and `next_power_of_two(a)`. Names that are no identifiers are in quotes: `"batch size"`.
    pub fn parse(text: &str, scope: &crate::Scope) -> Result<Dim, Error> {
        crate::parse::parse(text, scope)
    }

    /// True for plain numbers: no expression, no fault.
    #[inline]
    pub fn is_constant(self) -> bool {
        self.tag == Tag::CONSTANT
    }

    /// The number, if this is a constant.
    #[inline]
    pub fn as_constant(self) -> Option<i64> {
        if self.is_constant() { Some(self.value) } else { None }
    }

    /// The symbol, if this is one and nothing else.
    pub fn as_symbol(self) -> Option<Symbol> {
        self.tag.expr().filter(|_| self.fault().is_none()).and_then(Symbol::of)
    }

    /// The symbols this depends on.
    pub fn symbols(self) -> Vec<Symbol> {
        self.tag.expr().map(symbols).unwrap_or_default()
    }

    /// The value in the current compile. No guard is recorded: for messages and estimates, not for decisions.
    pub fn value(self) -> Result<i64, Error> {
        self.check().map(|dim| dim.value)
    }

    /// The size in the current compile, for code that must know the number. Records the guard that it stays this one.
    #[track_caller]
    pub fn specialize(self) -> Result<usize, Error> {
        let value = self.specialize_signed()?;
        if value < 0 {
            return Err(Error::Negative { expression: self.to_string(), value, values: String::new() });
        }
        usize::try_from(value).map_err(|_| Error::TooLarge { expression: self.to_string(), value })
    }

    /// As [`Dim::specialize`], for numbers that may be negative.
    #[track_caller]
    pub fn specialize_signed(self) -> Result<i64, Error> {
        let value = self.value()?;
        guards::pin(self);
        Ok(value)
    }

    /// The size itself, or the error that its fault is.
    pub fn check(self) -> Result<Dim, Error> {
        match self.fault() {
            None => Ok(self),
            Some(fault) => Err(self.error(fault)),
        }
    }

    /// The fault, where arithmetic had no result.
    pub fn fault(self) -> Option<Fault> {
        self.tag.fault()
    }

    /// Between which numbers this lies for all values of its symbols within their bounds.
    pub fn bounds(self) -> RangeInclusive<i64> {
        let (min, max) = range(self.expr()).clamped();
        min..=max
    }

    /// The value for other values of the symbols. A [`Table`] does this for many expressions at once.
    pub fn evaluate(self, bindings: &Bindings) -> Result<i64, Error> {
        let mut table = Table::new();
        let slot = table.add_signed(self)?;
        let mut values = Vec::new();
        table.evaluate(bindings, &mut values)?;
        Ok(values[slot.index()])
    }

    /// The same expression with its value for other values of the symbols: for another compile.
    pub fn rebound(self, bindings: &Bindings) -> Result<Dim, Error> {
        match self.check()?.tag.expr() {
            None => Ok(self),
            Some(id) => Ok(Dim::symbolic(self.evaluate(bindings)?, id)),
        }
    }

    /// A key for maps: equal keys mean sizes that are equal for all values of the symbols.
    pub fn structural(self) -> Structural {
        Structural { value: self.value, tag: self.tag }
    }

    /// The number or expression.
    #[inline]
    pub(crate) fn expr(self) -> Expr {
        match self.tag.expr() {
            None => Expr::Const(self.value),
            Some(id) => Expr::Id(id),
        }
    }

    /// The value, whatever the fault.
    #[inline]
    pub(crate) fn raw(self) -> i64 {
        self.value
    }

    /// The result of an operation; of one operand where both are the same.
    #[inline(never)]
    #[track_caller]
    pub(crate) fn operate(op: Op, a: Dim, b: Dim) -> Dim {
        if a.fault().is_some() {
            return a;
        }
        if b.fault().is_some() {
            return b;
        }
        let value = match op.apply(a.value, b.value) {
            Ok(value) => value,
            Err(fault) => return Dim::failed(op, a, b, fault),
        };
        if a.is_constant() && b.is_constant() {
            return Dim::constant(value);
        }
        if matches!(op, Op::DivFloor | Op::DivCeil | Op::Rem) && !b.is_constant() {
            // A divisor that cancels out leaves nothing in the expression that would fail on zero.
            guards::is_equal(b, Dim::ZERO);
        }
        match combine(op, a.expr(), b.expr()) {
            Some(Expr::Id(id)) => Dim::symbolic(value, id),
            Some(Expr::Const(constant)) if constant == value => Dim::constant(value),
            Some(Expr::Const(_)) => Dim::failed(op, a, b, Fault::Inconsistent),
            None if guards::is_recording() => {
                guards::pin(a);
                guards::pin(b);
                Dim::constant(value)
            }
            None => Dim::failed(op, a, b, Fault::TooComplex),
        }
    }

    #[cold]
    fn failed(op: Op, a: Dim, b: Dim, fault: Fault) -> Dim {
        let values = (a.value, b.value);
        let store = || intern(Node::Failed { op, a: id_of(a.expr())?, b: id_of(b.expr())?, values });
        let expr = if is_half_full() { None } else { store() };
        Dim { value: 0, tag: Tag::new(expr.unwrap_or(ExprId::UNKNOWN), Some(fault)) }
    }

    #[cold]
    fn error(self, fault: Fault) -> Error {
        let mut values = Vec::new();
        if let Some(&Node::Failed { a, b, values: (first, second), .. }) = self.tag.expr().map(node) {
            let mut name = |id: ExprId, value: i64| {
                let entry = format!("{} = {value}", text(Expr::Id(id)));
                if !matches!(node(id), Node::Const(_)) && !values.contains(&entry) {
                    values.push(entry);
                }
            };
            name(a, first);
            name(b, second);
        }
        Error::Arithmetic { expression: text(self.expr()), values: values.join(", "), fault }
    }
}

/// The text form; a size with a fault prints as the operation that failed, in braces.
impl fmt::Display for Dim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.fault(), self.tag.expr()) {
            (None, None) => fmt::Display::fmt(&self.value, f),
            (None, Some(_)) => f.pad(&text(self.expr())),
            (Some(_), _) => f.pad(&format!("{{{}}}", text(self.expr()))),
        }
    }
}

/// The text form and the value: `batch*sequence + 1 = 15`.
impl fmt::Debug for Dim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.fault(), self.tag.expr()) {
            (None, None) => write!(f, "{}", self.value),
            (None, Some(_)) => write!(f, "{self} = {}", self.value),
            (Some(fault), _) => write!(f, "{self} {fault}"),
        }
    }
}

/// The expression of a size without its value, in four bytes; nothing for constants.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Expression(Option<ExprId>);

impl Expression {
    /// Of a constant.
    pub const NONE: Expression = Expression(None);

    /// Whether there is none: the size is a constant.
    #[inline]
    pub fn is_none(self) -> bool {
        self.0.is_none()
    }
}

impl fmt::Debug for Expression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            None => f.write_str("constant"),
            Some(id) => f.write_str(&text(Expr::Id(id))),
        }
    }
}

/// A size as a key: equal where value and expression are the same, which asks no question.
///
/// Equal keys are equal sizes for all values of the symbols. Different keys may still be equal sizes.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Structural {
    value: i64,
    tag: Tag,
}

impl Structural {
    /// The size.
    pub fn dim(self) -> Dim {
        Dim { value: self.value, tag: self.tag }
    }
}

impl fmt::Debug for Structural {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.dim(), f)
    }
}

impl From<Dim> for Structural {
    fn from(dim: Dim) -> Structural {
        dim.structural()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dim_has_16_bytes() {
        assert_eq!(size_of::<Dim>(), 16);
    }

    #[test]
    fn a_tag_keeps_expression_and_fault() {
        let one = ExprId(NonZeroU32::MIN);
        for fault in Fault::ALL.map(Some).into_iter().chain([None]) {
            for expr in [one, ExprId::UNKNOWN] {
                let tag = Tag::new(expr, fault);
                assert_eq!((tag.expr(), tag.fault()), (Some(expr), fault));
            }
        }
        assert_eq!((Tag::CONSTANT.expr(), Tag::CONSTANT.fault()), (None, None));
    }
}
