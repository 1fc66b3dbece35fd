//! Every value is computed once, before its uses and in a block around them; statements have the right types.

use super::Rules;
use crate::Error;
use crate::ir::*;
use crate::types::{Scalar, Type};

/// What became of a value.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Seen {
    /// Not computed yet.
    No,
    /// In scope here.
    Here,
    /// Computed in a block that has ended.
    Ended,
}

/// Walks a kernel's statements in order.
pub(super) fn check(rules: &Rules<'_>) -> Result<(), Error> {
    let values = &rules.kernel.values;
    let mut scope = Scope { rules, seen: vec![Seen::No; values.len()], open: Vec::new() };
    for (i, def) in values.iter().enumerate() {
        if matches!(def.expr, Expr::Const(..) | Expr::Param(_) | Expr::Builtin(_)) {
            scope.derive(Value(i as u32), def)?;
            scope.seen[i] = Seen::Here;
        }
    }
    scope.block(&rules.kernel.body)
}

/// A walk through the blocks.
pub(super) struct Scope<'r, 'k> {
    pub(super) rules: &'r Rules<'k>,
    seen: Vec<Seen>,
    /// Values in scope that some block computed, innermost last.
    open: Vec<Value>,
}

impl<'r, 'k> Scope<'r, 'k> {
    fn invalid<T>(&self, problem: impl std::fmt::Display) -> Result<T, Error> {
        self.rules.invalid(problem)
    }

    /// A value's type, if it may be used here.
    pub(super) fn ty(&self, value: Value) -> Result<Type, Error> {
        match (self.seen.get(value.index()), self.rules.kernel.values.get(value.index())) {
            (Some(Seen::Here), Some(def)) => Ok(def.ty),
            (Some(Seen::No), Some(_)) => {
                self.invalid(format_args!("%{} is used before it is computed", value.0))
            }
            (Some(Seen::Ended), Some(_)) => {
                self.invalid(format_args!("%{} is used outside the block that computes it", value.0))
            }
            _ => self.invalid(format_args!("there is no value %{}", value.0)),
        }
    }

    /// Checks that a value of an exact type may be used here.
    pub(super) fn expect(&self, value: Value, ty: Type, what: impl std::fmt::Display) -> Result<(), Error> {
        let found = self.ty(value)?;
        if found == ty {
            return Ok(());
        }
        self.invalid(format_args!("{what}: %{} is {found}, not {ty}", value.0))
    }

    fn derive(&self, value: Value, def: &Def) -> Result<(), Error> {
        let derived = self.expr(value, &def.expr)?;
        if derived != def.ty {
            return self.invalid(format_args!("%{} is declared {}, but is {derived}", value.0, def.ty));
        }
        Ok(())
    }

    fn define(&mut self, value: Value) -> Result<(), Error> {
        match self.seen.get_mut(value.index()) {
            Some(seen @ Seen::No) => *seen = Seen::Here,
            Some(_) => return self.invalid(format_args!("%{} is computed twice", value.0)),
            None => return self.invalid(format_args!("there is no value %{}", value.0)),
        }
        self.open.push(value);
        Ok(())
    }

    pub(super) fn block(&mut self, block: &Block) -> Result<(), Error> {
        let outer = self.open.len();
        self.statements(block)?;
        self.end(outer);
        Ok(())
    }

    fn end(&mut self, outer: usize) {
        for value in self.open.drain(outer..) {
            if let Some(seen) = self.seen.get_mut(value.index()) {
                *seen = Seen::Ended;
            }
        }
    }

    fn statements(&mut self, block: &Block) -> Result<(), Error> {
        block.iter().try_for_each(|stmt| self.stmt(stmt))
    }

    fn stmt(&mut self, stmt: &Stmt) -> Result<(), Error> {
        const BOOL: Type = Type::Scalar(Scalar::Bool);
        const U32: Type = Type::Scalar(Scalar::U32);
        match stmt {
            Stmt::Let(value) => {
                if let Some(def) = self.rules.kernel.values.get(value.index()) {
                    if def.expr == Expr::Counter {
                        return self.invalid(format_args!("%{}: a counter without its loop", value.0));
                    }
                    self.derive(*value, def)?;
                }
                self.define(*value)
            }
            Stmt::Set(var, value) => match self.rules.kernel.vars.get(var.index()) {
                Some(ty) => self.expect(*value, *ty, format_args!("set of variable {}", var.0)),
                None => self.invalid(format_args!("there is no variable {}", var.0)),
            },
            Stmt::Store { place, index, value } => self.store(*place, *index, *value),
            Stmt::StoreLane { shared, index, lane, value } => {
                let scalar = self.lane(*shared, *index, *lane)?;
                self.expect(*value, Type::Scalar(scalar), format_args!("store to shared array {}", shared.0))
            }
            Stmt::StoreMatrix { place, index, layout, value } => match self.ty(*value)? {
                Type::Matrix(m) => self.matrix_memory(*place, *index, *layout, m, true),
                other => self.invalid(format_args!("%{} is {other}, not a matrix", value.0)),
            },
            Stmt::If { condition, then, otherwise } => {
                self.expect(*condition, BOOL, "condition")?;
                self.block(then)?;
                self.block(otherwise)
            }
            Stmt::For { counter, start, end, step, body } => {
                self.counter(*counter, [*start, *end, *step])?;
                let outer = self.open.len();
                self.define(*counter)?;
                self.statements(body)?;
                self.end(outer);
                Ok(())
            }
            Stmt::While { head, condition, body } => {
                let outer = self.open.len();
                self.statements(head)?;
                self.expect(*condition, BOOL, "condition")?;
                self.statements(body)?;
                self.end(outer);
                Ok(())
            }
            Stmt::Barrier => Ok(()),
            Stmt::SubgroupBarrier => self.rules.subgroups("a subgroup barrier"),
            Stmt::DeviceFence if !self.rules.target.device_fences => {
                self.rules.missing("stores ordered between workgroups")
            }
            Stmt::DeviceFence => Ok(()),
            Stmt::Warpgroup(stmt) => self.warpgroup(stmt),
            Stmt::CheckAccess { arg, index, size } => {
                if arg.index() >= self.rules.kernel.args.len() {
                    return self.invalid(format_args!("there is no buffer {}", arg.0));
                }
                self.expect(*index, U32, "index of a checked access")?;
                self.expect(*size, U32, "size of a checked access")
            }
            Stmt::Report { position, value, size } => {
                self.expect(*position, U32, "position of a report")?;
                self.expect(*size, U32, "size of a report")?;
                match self.ty(*value)? {
                    Type::Scalar(Scalar::I32 | Scalar::I64) => Ok(()),
                    other => self.invalid(format_args!("report of %{}, which is {other}", value.0)),
                }
            }
        }
    }

    fn counter(&self, counter: Value, numbers: [Value; 3]) -> Result<(), Error> {
        let Some(def) = self.rules.kernel.values.get(counter.index()) else {
            return self.invalid(format_args!("there is no value %{}", counter.0));
        };
        if def.expr != Expr::Counter {
            return self.invalid(format_args!("%{} counts a loop, but is no counter", counter.0));
        }
        if !matches!(def.ty, Type::Scalar(Scalar::U32 | Scalar::I32)) {
            return self.invalid(format_args!("counter %{} of {}", counter.0, def.ty));
        }
        for number in numbers {
            self.expect(number, def.ty, format_args!("loop of counter %{}", counter.0))?;
        }
        let step = self.rules.kernel.values.get(numbers[2].index());
        if let Some(Def { expr: Expr::Const(scalar, bits), .. }) = step
            && (*bits == 0 || (*scalar == Scalar::I32 && *bits > i32::MAX as u64))
        {
            return self.invalid(format_args!("loop of counter %{}: the step is not above zero", counter.0));
        }
        Ok(())
    }

    fn store(&self, place: Storage, index: Value, value: Value) -> Result<(), Error> {
        let found = self.ty(value)?;
        let lanes = match found {
            Type::Vector(_, n) => n,
            _ => 1,
        };
        let scalar = self.memory(place, index, lanes, true)?;
        let ty = if lanes == 1 { Type::Scalar(scalar) } else { Type::Vector(scalar, lanes) };
        self.expect(value, ty, "store")
    }
}
