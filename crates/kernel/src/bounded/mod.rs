//! Bounds checks written into a kernel, for kernels whose author is not trusted with memory.
//!
//! ```text
//!   Kernel, any indices ─ bounded ─► Kernel that stays inside its buffers and arrays, + one param per buffer: its length
//! ```
//!
//! The checks are ordinary instructions, so every printer and the interpreter has them:
//!
//! | access | outside of its buffer or array |
//! |---|---|
//! | load, uniform load, load of a lane | reads the last element (vector) |
//! | store, store of a lane | is dropped |
//! | atomic | is dropped and returns 0 |
//! | matrix load, matrix store | returns zeros, is dropped |
//!
//! An index of a vector is rounded down to a multiple of its lanes, and a matrix that is not aligned as
//! [`Buf::load_matrix`](crate::Buf::load_matrix) asks counts as outside. What else devices leave undefined is defined
//! too, because a compiler may assume that it never happens: variables begin as zeros, a divisor of 0 counts as 1,
//! shifts are taken modulo the width, and conversions to integers saturate.

mod arithmetic;
mod matrix;
mod memory;

use std::collections::HashMap;

use crate::Error;
use crate::ir::*;
use crate::types::{Scalar, Target, Type};

/// The most elements that a buffer of a bounded kernel may have.
pub const MAX_BOUNDED_LENGTH: u64 = u32::MAX as u64 - 16;

/// A kernel that does what `kernel` does where that stays inside its memory, and nothing else elsewhere. Its params are
/// the kernel's, and behind them the number of elements of every buffer, [`MAX_BOUNDED_LENGTH`] at most. A buffer has
/// at least 16 bytes, and its last 16 are its own even where they hold fewer elements.
pub fn bounded(mut kernel: Kernel, target: &Target) -> Result<Kernel, Error> {
    if kernel.foreign.is_some() {
        return Err(Error::Invalid(format!("{}: finished code cannot be given bounds", kernel.name)));
    }
    let body = std::mem::take(&mut kernel.body);
    let known = kernel.values.iter().zip(0..).map(|(def, i)| (def.expr.clone(), Value(i)));
    let known = known.filter(|(expr, _)| matches!(expr, Expr::Const(..))).collect();
    let vars = kernel.vars.clone();
    let names: Vec<String> = kernel.args.iter().map(|arg| format!("{}_length", arg.name)).collect();
    let mut writer = Writer { kernel, lengths: Vec::new(), known, block: Vec::new() };
    for name in names {
        writer.kernel.params.push(ParamDecl { name, scalar: Scalar::U32 });
        let param = ParamId(writer.kernel.params.len() as u32 - 1);
        let length = writer.value(Expr::Param(param), Type::Scalar(Scalar::U32));
        writer.lengths.push(length);
    }
    for (var, ty) in (0..).map(VarId).zip(vars) {
        let zero = writer.zero(ty);
        writer.block.push(Stmt::Set(var, zero));
    }
    writer.statements(body)?;
    writer.kernel.body = writer.block;
    crate::validate(&writer.kernel, target)?;
    Ok(writer.kernel)
}

/// Writes a kernel anew, block by block.
struct Writer {
    /// Without a body; values that exist keep their numbers.
    kernel: Kernel,
    /// The number of elements of every buffer.
    lengths: Vec<Value>,
    /// Constants by what they are.
    known: HashMap<Expr, Value>,
    /// The block being written.
    block: Block,
}

impl Writer {
    fn statements(&mut self, block: Block) -> Result<(), Error> {
        block.into_iter().try_for_each(|stmt| self.stmt(stmt))
    }

    /// Another block, written apart.
    fn inner(&mut self, write: impl FnOnce(&mut Self) -> Result<(), Error>) -> Result<Block, Error> {
        let outer = std::mem::take(&mut self.block);
        let done = write(self);
        let inner = std::mem::replace(&mut self.block, outer);
        done.map(|()| inner)
    }

    fn stmt(&mut self, stmt: Stmt) -> Result<(), Error> {
        let stmt = match stmt {
            Stmt::Let(value) => return self.computed(value),
            Stmt::Store { place, index, value } => return self.store(place, index, value),
            Stmt::StoreLane { shared, index, lane, value } => {
                let inside = self.shared_inside(shared, index)?;
                return self.guarded(inside, |w| {
                    w.block.push(Stmt::StoreLane { shared, index, lane, value });
                    Ok(())
                });
            }
            Stmt::StoreMatrix { place, index, layout, value } => {
                return self.store_matrix(place, index, layout, value);
            }
            Stmt::If { condition, then, otherwise } => Stmt::If {
                condition,
                then: self.inner(|w| w.statements(then))?,
                otherwise: self.inner(|w| w.statements(otherwise))?,
            },
            Stmt::For { counter, start, end, step, body } => {
                let body = self.inner(|w| w.statements(body))?;
                Stmt::For { counter, start, end, step, body }
            }
            Stmt::While { head, condition, body } => Stmt::While {
                head: self.inner(|w| w.statements(head))?,
                condition,
                body: self.inner(|w| w.statements(body))?,
            },
            Stmt::Warpgroup(_) => {
                return Err(Error::Missing(format!(
                    "bounds of warpgroups, which `{}` uses",
                    self.kernel.name
                )));
            }
            plain @ (Stmt::Set(..)
            | Stmt::Barrier
            | Stmt::SubgroupBarrier
            | Stmt::DeviceFence
            | Stmt::Report { .. }
            | Stmt::CheckAccess { .. }) => plain,
        };
        self.block.push(stmt);
        Ok(())
    }

    /// A value that the kernel computes here.
    fn computed(&mut self, value: Value) -> Result<(), Error> {
        let expr = self.def(value)?.expr.clone();
        let expr = match expr {
            Expr::Load { place, index, lanes } => self.load(place, index, lanes)?,
            Expr::LoadUniform { arg, index } => {
                let index = self.clamped(arg, index, 1)?;
                Expr::LoadUniform { arg, index }
            }
            Expr::LoadLane { shared, index, lane } => {
                let index = self.shared_clamped(shared, index)?;
                Expr::LoadLane { shared, index, lane }
            }
            Expr::Atomic { place, index, .. } => {
                let inside = match place {
                    Storage::Arg(arg) => self.inside(arg, index, 1)?.0,
                    Storage::Shared(shared) => self.shared_inside(shared, index)?,
                };
                self.where_inside(inside, value, expr)?
            }
            Expr::MatrixLoad { ty, place, index, layout } => {
                let inside = self.matrix_inside(place, ty, index, layout)?;
                self.where_inside(inside, value, expr)?
            }
            Expr::Binary(op, a, b) => self.binary(op, a, b)?,
            Expr::Convert(to, a) => self.convert(to, a)?,
            other => other,
        };
        self.kernel.values[value.index()].expr = expr;
        self.block.push(Stmt::Let(value));
        Ok(())
    }

    /// An expression where a condition holds, elsewhere 0: a variable that is set there.
    fn where_inside(&mut self, inside: Value, value: Value, expr: Expr) -> Result<Expr, Error> {
        let ty = self.def(value)?.ty;
        self.kernel.vars.push(ty);
        let var = VarId(self.kernel.vars.len() as u32 - 1);
        let zero = self.zero(ty);
        self.block.push(Stmt::Set(var, zero));
        self.guarded(inside, |w| {
            let found = w.let_(expr, ty);
            w.block.push(Stmt::Set(var, found));
            Ok(())
        })?;
        Ok(Expr::Get(var))
    }

    /// Statements that only run where a condition holds.
    fn guarded(
        &mut self,
        condition: Value,
        write: impl FnOnce(&mut Self) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let then = self.inner(write)?;
        self.block.push(Stmt::If { condition, then, otherwise: Block::new() });
        Ok(())
    }

    // Recording.

    fn def(&self, value: Value) -> Result<&Def, Error> {
        let missing = || Error::Invalid(format!("{}: there is no value %{}", self.kernel.name, value.0));
        self.kernel.values.get(value.index()).ok_or_else(missing)
    }

    /// The type of a scalar.
    fn scalar(&self, value: Value) -> Result<Scalar, Error> {
        match self.def(value)?.ty {
            Type::Scalar(scalar) => Ok(scalar),
            other => Err(Error::Invalid(format!("{}: %{} is {other}", self.kernel.name, value.0))),
        }
    }

    fn value(&mut self, expr: Expr, ty: Type) -> Value {
        self.kernel.values.push(Def { expr, ty });
        Value(self.kernel.values.len() as u32 - 1)
    }

    /// A value computed here.
    fn let_(&mut self, expr: Expr, ty: Type) -> Value {
        let value = self.value(expr, ty);
        self.block.push(Stmt::Let(value));
        value
    }

    fn constant(&mut self, scalar: Scalar, bits: u64) -> Value {
        let expr = Expr::Const(scalar, bits);
        if let Some(known) = self.known.get(&expr) {
            return *known;
        }
        let value = self.value(expr.clone(), Type::Scalar(scalar));
        self.known.insert(expr, value);
        value
    }

    /// A constant's bits.
    fn as_const(&self, value: Value) -> Option<u64> {
        match self.kernel.values.get(value.index())?.expr {
            Expr::Const(_, bits) => Some(bits),
            _ => None,
        }
    }

    /// Two scalars of one type.
    fn op(&mut self, op: BinaryOp, a: Value, b: Value) -> Result<Value, Error> {
        let ty = self.def(a)?.ty;
        Ok(self.let_(Expr::Binary(op, a, b), ty))
    }

    fn compare(&mut self, op: CompareOp, a: Value, b: Value) -> Value {
        self.let_(Expr::Compare(op, a, b), Type::Scalar(Scalar::Bool))
    }

    fn select(&mut self, condition: Value, then: Value, otherwise: Value) -> Result<Value, Error> {
        let ty = self.def(then)?.ty;
        Ok(self.let_(Expr::Select(condition, then, otherwise), ty))
    }

    /// Zeros of any type.
    fn zero(&mut self, ty: Type) -> Value {
        match ty {
            Type::Scalar(scalar) => self.constant(scalar, 0),
            Type::Vector(scalar, lanes) => {
                let zero = self.constant(scalar, 0);
                self.let_(Expr::Vector(vec![zero; usize::from(lanes)]), ty)
            }
            Type::Matrix(m) => {
                let zero = self.constant(m.elem.scalar(), 0);
                self.let_(Expr::MatrixSplat(m, zero), ty)
            }
        }
    }
}
