//! Loads, stores and atomics that stay inside.

use super::Writer;
use crate::Error;
use crate::ir::*;
use crate::types::{Scalar, Type};

/// Bytes that a buffer has to itself: its size is rounded up to them.
pub(super) const GRAIN: u32 = 16;

impl Writer {
    pub(super) fn elem_size(&self, arg: ArgId) -> Result<u32, Error> {
        let missing = || Error::Invalid(format!("{}: there is no buffer {}", self.kernel.name, arg.0));
        self.kernel.args.get(arg.index()).map(|a| a.elem.size()).ok_or_else(missing)
    }

    pub(super) fn shared_decl(&self, shared: SharedId) -> Result<&SharedDecl, Error> {
        let missing = || Error::Invalid(format!("{}: no shared array {}", self.kernel.name, shared.0));
        self.kernel.shared.get(shared.index()).ok_or_else(missing)
    }

    /// The length of a buffer as an integer type.
    pub(super) fn length(&mut self, arg: ArgId, scalar: Scalar) -> Result<Value, Error> {
        let missing = || Error::Invalid(format!("{}: there is no buffer {}", self.kernel.name, arg.0));
        let length = *self.lengths.get(arg.index()).ok_or_else(missing)?;
        Ok(match scalar {
            Scalar::U32 => length,
            wide => self.let_(Expr::Convert(wide, length), Type::Scalar(wide)),
        })
    }

    /// An index rounded down to a multiple of a power of two.
    fn aligned(&mut self, index: Value, lanes: u8) -> Result<Value, Error> {
        if lanes < 2 {
            return Ok(index);
        }
        let scalar = self.scalar(index)?;
        let all = if scalar == Scalar::U64 { u64::MAX } else { u64::from(u32::MAX) };
        let mask = self.constant(scalar, all & !(u64::from(lanes) - 1));
        self.op(BinaryOp::And, index, mask)
    }

    /// Whether `lanes` elements, [`GRAIN`] bytes at most, begin inside a buffer, and the aligned index; checked runs
    /// report the access if they do not.
    pub(super) fn inside(&mut self, arg: ArgId, index: Value, lanes: u8) -> Result<(Value, Value), Error> {
        let index = self.aligned(index, lanes)?;
        let scalar = self.scalar(index)?;
        let length = self.length(arg, scalar)?;
        let shown = self.narrowed(index)?;
        let size = self.length(arg, Scalar::U32)?;
        self.block.push(Stmt::CheckAccess { arg, index: shown, size });
        Ok((self.compare(CompareOp::Lt, index, length), index))
    }

    /// An index as u32, the greatest where it does not fit.
    pub(super) fn narrowed(&mut self, index: Value) -> Result<Value, Error> {
        if self.scalar(index)? == Scalar::U32 {
            return Ok(index);
        }
        let (most, outside) =
            (self.constant(Scalar::U64, u32::MAX.into()), self.constant(Scalar::U32, u32::MAX.into()));
        let fits = self.compare(CompareOp::Lt, index, most);
        let low = self.let_(Expr::Convert(Scalar::U32, index), Type::Scalar(Scalar::U32));
        self.select(fits, low, outside)
    }

    /// An index of `lanes` elements that begin inside a buffer: the one asked for, or the last.
    pub(super) fn clamped(&mut self, arg: ArgId, index: Value, lanes: u8) -> Result<Value, Error> {
        let (inside, index) = self.inside(arg, index, lanes)?;
        let scalar = self.scalar(index)?;
        let length = self.length(arg, scalar)?;
        let one = self.constant(scalar, 1);
        let length = self.op(BinaryOp::Max, length, one)?;
        let last = self.op(BinaryOp::Sub, length, one)?;
        let last = self.aligned(last, lanes)?;
        self.select(inside, index, last)
    }

    /// Whether an index is inside a workgroup array.
    pub(super) fn shared_inside(&mut self, shared: SharedId, index: Value) -> Result<Value, Error> {
        let len = self.shared_decl(shared)?.len;
        let len = self.constant(Scalar::U32, len.into());
        Ok(self.compare(CompareOp::Lt, index, len))
    }

    /// An index inside a workgroup array.
    pub(super) fn shared_clamped(&mut self, shared: SharedId, index: Value) -> Result<Value, Error> {
        let last = u64::from(self.shared_decl(shared)?.len.saturating_sub(1));
        if self.as_const(index).is_some_and(|i| i <= last) {
            return Ok(index);
        }
        let last = self.constant(Scalar::U32, last);
        self.op(BinaryOp::Min, index, last)
    }

    /// Elements of one access: those of a vector over [`GRAIN`] bytes may begin inside a buffer and end outside.
    fn lanes_at_once(&self, arg: ArgId, lanes: u8) -> Result<u8, Error> {
        let most = (GRAIN / self.elem_size(arg)?).max(1);
        Ok(u32::from(lanes).min(most) as u8)
    }

    pub(super) fn load(&mut self, place: Storage, index: Value, lanes: u8) -> Result<Expr, Error> {
        let arg = match place {
            Storage::Shared(shared) => {
                let index = self.shared_clamped(shared, index)?;
                return Ok(Expr::Load { place, index, lanes });
            }
            Storage::Arg(arg) => arg,
        };
        let at_once = self.lanes_at_once(arg, lanes)?;
        if at_once == lanes {
            let index = self.clamped(arg, index, lanes)?;
            return Ok(Expr::Load { place, index, lanes });
        }
        let scalar = self.kernel.args[arg.index()].elem.scalar();
        let mut parts = Vec::new();
        for (_, index) in self.steps(index, lanes, at_once)? {
            let index = self.clamped(arg, index, at_once)?;
            let load = Expr::Load { place, index, lanes: at_once };
            let vector = self.let_(load, Type::Vector(scalar, at_once));
            for lane in 0..at_once {
                parts.push(self.let_(Expr::Extract(vector, lane), Type::Scalar(scalar)));
            }
        }
        Ok(Expr::Vector(parts))
    }

    /// Where the parts of a long vector begin in it, and their indices.
    fn steps(&mut self, index: Value, lanes: u8, at_once: u8) -> Result<Vec<(u8, Value)>, Error> {
        let index = self.aligned(index, lanes)?;
        let scalar = self.scalar(index)?;
        let mut steps = vec![(0, index)];
        for first in (at_once..lanes).step_by(usize::from(at_once)) {
            let more = self.constant(scalar, first.into());
            steps.push((first, self.op(BinaryOp::Or, index, more)?));
        }
        Ok(steps)
    }

    pub(super) fn store(&mut self, place: Storage, index: Value, value: Value) -> Result<(), Error> {
        let (scalar, lanes) = match self.def(value)?.ty {
            Type::Vector(scalar, lanes) => (scalar, lanes),
            Type::Scalar(scalar) => (scalar, 1),
            other => return Err(Error::Invalid(format!("{}: {other} is stored", self.kernel.name))),
        };
        let arg = match place {
            Storage::Shared(shared) => {
                let inside = self.shared_inside(shared, index)?;
                return self.guarded(inside, |w| {
                    w.block.push(Stmt::Store { place, index, value });
                    Ok(())
                });
            }
            Storage::Arg(arg) => arg,
        };
        let at_once = self.lanes_at_once(arg, lanes)?;
        for (first, index) in self.steps(index, lanes, at_once)? {
            let (inside, index) = self.inside(arg, index, at_once)?;
            self.guarded(inside, |w| {
                let value = if at_once == lanes {
                    value
                } else {
                    let part = |w: &mut Self, lane| w.let_(Expr::Extract(value, lane), Type::Scalar(scalar));
                    let parts = (first..first + at_once).map(|lane| part(w, lane)).collect();
                    w.let_(Expr::Vector(parts), Type::Vector(scalar, at_once))
                };
                w.block.push(Stmt::Store { place, index, value });
                Ok(())
            })?;
        }
        Ok(())
    }
}
