//! Reading and writing at computed positions.
//!
//! A negative index counts from the back. Out of range, checked mode reports the first index before anything is
//! written; otherwise reads are clamped into the axis and writes are dropped.

mod gather;
mod scatter;
#[cfg(test)]
mod tests;

use olivine_ir::DType;

use crate::operand::{Fault, Operand};

/// Index operands of either width.
#[derive(Clone, Copy)]
pub(super) enum Indices<'a> {
    Narrow(&'a [i32]),
    Wide(&'a [i64]),
}

impl<'a> Indices<'a> {
    pub(super) fn new(x: &Operand<'a>) -> Self {
        match x.ty.dtype {
            DType::I32 => Indices::Narrow(x.slice()),
            _ => Indices::Wide(x.slice()),
        }
    }

    pub(super) fn len(self) -> usize {
        match self {
            Indices::Narrow(v) => v.len(),
            Indices::Wide(v) => v.len(),
        }
    }

    pub(super) fn at(self, i: usize) -> i64 {
        match self {
            Indices::Narrow(v) => i64::from(v[i]),
            Indices::Wide(v) => v[i],
        }
    }

    /// The position index `i` names on an axis, if it is in range.
    fn resolve(self, i: usize, size: usize) -> Option<usize> {
        let index = self.at(i);
        let index = if index < 0 { index.saturating_add(size as i64) } else { index };
        usize::try_from(index).ok().filter(|p| *p < size)
    }

    /// The position index `i` names, moved to the nearest one in range.
    pub(super) fn clamped(self, i: usize, size: usize) -> usize {
        let nearest = if self.at(i) < 0 { 0 } else { size.saturating_sub(1) };
        self.resolve(i, size).unwrap_or(nearest)
    }

    /// The first index out of range, where `size` says the axis of each.
    pub(super) fn check(self, size: impl Fn(usize) -> usize) -> Result<(), Fault> {
        match (0..self.len()).find(|i| self.resolve(*i, size(*i)).is_none()) {
            None => Ok(()),
            Some(position) => Err(Fault { position, value: self.at(position), size: size(position) }),
        }
    }
}
