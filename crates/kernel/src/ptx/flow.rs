//! Statements and structured control flow.

use super::expr::scalar;
use super::{Class, Printer, Reg, line, suffix};
use crate::Error;
use crate::ir::*;
use crate::types::Scalar;

impl Printer<'_> {
    pub(super) fn block(&mut self, block: &Block) -> Result<(), Error> {
        block.iter().try_for_each(|stmt| self.statement(stmt))
    }

    fn statement(&mut self, stmt: &Stmt) -> Result<(), Error> {
        match stmt {
            Stmt::Let(value) => self.define(*value),
            Stmt::Set(var, value) => {
                let (to, from) = (self.variable(*var)?, self.value(*value)?);
                to.iter().zip(from).for_each(|(to, from)| self.copy(*to, from));
                Ok(())
            }
            Stmt::Store { place: Storage::Arg(arg), index, value } => self.store_arg(*arg, *index, *value),
            Stmt::Store { place: Storage::Shared(shared), index, value } => {
                self.store_shared(*shared, *index, None, *value)
            }
            Stmt::StoreLane { shared, index, lane, value } => {
                self.store_shared(*shared, *index, Some(*lane), *value)
            }
            Stmt::StoreMatrix { place, index, layout, value } => {
                self.matrix_store(*place, *index, *layout, *value)
            }
            Stmt::If { condition, then, otherwise } => self.if_else(*condition, then, otherwise),
            Stmt::For { counter, start, end, step, body } => self.count(*counter, *start, *end, *step, body),
            Stmt::While { head, condition, body } => self.while_loop(head, *condition, body),
            Stmt::Barrier => {
                self.put(format_args!("bar.sync 0"));
                Ok(())
            }
            Stmt::SubgroupBarrier => {
                self.put(format_args!("bar.warp.sync 0xffffffff"));
                Ok(())
            }
            Stmt::DeviceFence => {
                self.put(format_args!("fence.acq_rel.gpu"));
                Ok(())
            }
            Stmt::Warpgroup(stmt) => self.warpgroup(stmt),
            // Of checked kernels alone.
            Stmt::Report { .. } | Stmt::CheckAccess { .. } => Ok(()),
        }
    }

    fn begin(&mut self, label: u32) {
        line(&mut self.code, format_args!("L{label}:"));
    }

    fn jump(&mut self, to: u32) {
        self.put(format_args!("bra L{to}"));
    }

    fn jump_unless(&mut self, condition: Reg, to: u32) {
        line(&mut self.code, format_args!("    @!{condition} bra L{to};"));
    }

    fn if_else(&mut self, condition: Value, then: &Block, otherwise: &Block) -> Result<(), Error> {
        let condition = self.single(condition)?;
        let (second, merge) = (self.label(), self.label());
        self.jump_unless(condition, second);
        self.block(then)?;
        if !otherwise.is_empty() {
            self.jump(merge);
        }
        self.begin(second);
        if !otherwise.is_empty() {
            self.block(otherwise)?;
            self.begin(merge);
        }
        Ok(())
    }

    /// Loops stay loops: authors unroll in Rust what should be.
    fn count(
        &mut self,
        counter: Value,
        start: Value,
        end: Value,
        step: Value,
        body: &Block,
    ) -> Result<(), Error> {
        let kind = scalar(self.def(start)?.ty)?;
        if !matches!(kind, Scalar::U32 | Scalar::I32) {
            return Err(Error::Invalid(format!("a loop over {kind}")));
        }
        let (start, end, step) = (self.single(start)?, self.single(end)?, self.single(step)?);
        let (header, merge) = (self.label(), self.label());
        let now = self.reg(Class::B32);
        self.copy(now, start);
        self.begin(header);
        line(&mut self.code, format_args!("    .pragma \"nounroll\";"));
        let goes_on = self.op(format_args!("setp.lt.{}", suffix(kind)), Class::Predicate, &[now, end]);
        self.jump_unless(goes_on, merge);
        self.set(counter, vec![now]);
        self.block(body)?;
        self.put(format_args!("add.u32 {now}, {now}, {step}"));
        self.jump(header);
        self.begin(merge);
        Ok(())
    }

    fn while_loop(&mut self, head: &Block, condition: Value, body: &Block) -> Result<(), Error> {
        let (header, merge) = (self.label(), self.label());
        self.begin(header);
        line(&mut self.code, format_args!("    .pragma \"nounroll\";"));
        self.block(head)?;
        let condition = self.single(condition)?;
        self.jump_unless(condition, merge);
        self.block(body)?;
        self.jump(header);
        self.begin(merge);
        Ok(())
    }
}
