//! Statements.

use super::Printer;
use super::helper::Helper;
use crate::Error;
use crate::ir::*;
use crate::types::{Scalar, Type};
use crate::validate::subgroup_barriers_reach_all;

impl Printer<'_> {
    pub(super) fn block(&mut self, block: &Block) -> Result<(), Error> {
        block.iter().try_for_each(|stmt| self.stmt(stmt))
    }

    fn inner(&mut self, block: &Block) -> Result<(), Error> {
        self.depth += 1;
        self.block(block)?;
        self.depth -= 1;
        Ok(())
    }

    fn stmt(&mut self, stmt: &Stmt) -> Result<(), Error> {
        match stmt {
            Stmt::Let(value) => self.compute(*value)?,
            Stmt::Set(var, value) => {
                let value = self.value(*value)?;
                self.line(format_args!("x{} = {value};", var.0));
            }
            Stmt::Store { place, index, value } => self.store(*place, *index, *value)?,
            Stmt::StoreLane { shared, index, lane, value } => {
                self.store_lane(*shared, *index, *lane, *value)?;
            }
            Stmt::StoreMatrix { place, index, layout, value } => {
                self.store_matrix(*place, *index, *layout, *value)?;
            }
            Stmt::If { condition, then, otherwise } => {
                let condition = self.value(*condition)?;
                self.line(format_args!("if ({condition}) {{"));
                self.inner(then)?;
                if !otherwise.is_empty() {
                    self.line("} else {");
                    self.inner(otherwise)?;
                }
                self.line("}");
            }
            Stmt::For { counter, .. } if self.has_pairs(*counter)? => {
                return self.missing("a loop that counts in 64 bits");
            }
            Stmt::For { counter, start, end, step, body } => {
                let ty = self.type_name(self.def(*counter)?.ty)?;
                let (start, end, step) = (self.value(*start)?, self.value(*end)?, self.value(*step)?);
                let c = format!("v{}", counter.0);
                self.line(format_args!("for (var {c}: {ty} = {start}; {c} < {end}; {c} += {step}) {{"));
                self.inner(body)?;
                self.line("}");
            }
            Stmt::While { head, condition, body } => {
                self.line("loop {");
                self.inner(head)?;
                let condition = self.value(*condition)?;
                self.line(format_args!("    if (!{condition}) {{ break; }}"));
                self.inner(body)?;
                self.line("}");
            }
            Stmt::Barrier => self.barrier(),
            Stmt::SubgroupBarrier => self.subgroup_barrier()?,
            Stmt::DeviceFence => {
                return Err(Error::Missing("stores ordered between workgroups in WGSL".into()));
            }
            Stmt::Warpgroup(_) => return Err(Error::Missing("warpgroups in WGSL".into())),
            Stmt::Report { position, value, size } => self.report(*position, *value, *size)?,
            Stmt::CheckAccess { arg, index, size } => self.check_access(*arg, *index, *size)?,
        }
        Ok(())
    }

    fn barrier(&mut self) {
        if self.usage.exchanges() {
            self.line("storageBarrier();");
        }
        self.line("workgroupBarrier();");
    }

    /// naga's subgroup barrier orders no memory, so where there is some to order a workgroup barrier must do.
    fn subgroup_barrier(&mut self) -> Result<(), Error> {
        self.needs_subgroups()?;
        if self.kernel.shared.is_empty() && !self.usage.exchanges() {
            self.line("subgroupBarrier();");
        } else if *self.barriers_reach_all.get_or_insert_with(|| subgroup_barriers_reach_all(self.kernel)) {
            self.barrier();
        } else {
            return self.missing("subgroup barrier around memory, where not all subgroups come by,");
        }
        Ok(())
    }

    fn check_access(&mut self, arg: ArgId, index: Value, size: Value) -> Result<(), Error> {
        if !self.options.checked {
            return Ok(());
        }
        let (index, size) = (self.value(index)?, self.value(size)?);
        let (name, inside) = (self.name(), self.helper(Helper::Inside));
        self.line(format_args!("let {name} = {inside}({}u, {index}, 1u, {size});", arg.0));
        Ok(())
    }

    fn report(&mut self, position: Value, value: Value, size: Value) -> Result<(), Error> {
        if !self.options.checked {
            return Ok(());
        }
        let (position, text, size) = (self.value(position)?, self.value(value)?, self.value(size)?);
        let name = self.name();
        self.line(format_args!("let {name} = {text};"));
        let helper = self.helper(Helper::BadIndex);
        match self.def(value)?.ty {
            Type::Scalar(Scalar::I64) if self.is_pair(Scalar::I64) => {
                self.line(format_args!("{helper}({position}, {name}.x, {name}.y, {size});"));
            }
            Type::Scalar(Scalar::I64) => {
                let (low, high) = (format!("bitcast<u64>({name})"), format!("bitcast<u64>({name}) >> 32u"));
                self.line(format_args!("{helper}({position}, u32({low}), u32({high}), {size});"));
            }
            Type::Scalar(Scalar::I32) => {
                let (low, high) = (format!("bitcast<u32>({name})"), format!("bitcast<u32>({name} >> 31u)"));
                self.line(format_args!("{helper}({position}, {low}, {high}, {size});"));
            }
            other => return self.invalid(format_args!("a report of a {other}")),
        }
        Ok(())
    }
}
