//! Statements and structured control flow.

use rspirv::spirv::{LoopControl, MemorySemantics, Op, Scope, SelectionControl};

use super::Printer;
use super::expr::single;
use super::module::Id;
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
                let (pointer, value) = (self.variable(*var)?, self.value(*value)?);
                self.act(Op::Store, &[pointer, value]);
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
                self.barrier(Scope::Workgroup);
                Ok(())
            }
            Stmt::SubgroupBarrier => {
                self.barrier(Scope::Subgroup);
                Ok(())
            }
            Stmt::DeviceFence => {
                self.device_fence();
                Ok(())
            }
            Stmt::Warpgroup(_) => Err(Error::Missing("warpgroups in SPIR-V".into())),
            Stmt::Report { position, value, size } => self.report_index(*position, *value, *size),
            Stmt::CheckAccess { arg, index, size } => self.report_access(*arg, *index, *size),
        }
    }

    /// Ends the block with a jump.
    pub(super) fn jump(&mut self, to: Id) {
        self.act(Op::Branch, &[to]);
    }

    fn if_else(&mut self, condition: Value, then: &Block, otherwise: &Block) -> Result<(), Error> {
        let condition = self.value(condition)?;
        let (first, merge) = (self.m.id(), self.m.id());
        let second = if otherwise.is_empty() { merge } else { self.m.id() };
        self.act(Op::SelectionMerge, &[merge, SelectionControl::NONE.bits()]);
        self.act(Op::BranchConditional, &[condition, first, second]);
        self.begin(first);
        self.block(then)?;
        self.jump(merge);
        if second != merge {
            self.begin(second);
            self.block(otherwise)?;
            self.jump(merge);
        }
        self.begin(merge);
        Ok(())
    }

    /// `header` tests the counter, `latch` steps it. Loops stay loops: authors unroll in Rust what should be.
    fn count(
        &mut self,
        counter: Value,
        start: Value,
        end: Value,
        step: Value,
        body: &Block,
    ) -> Result<(), Error> {
        let scalar = single(self.def(start)?.ty)?;
        let below = match scalar {
            Scalar::U32 => Op::ULessThan,
            Scalar::I32 => Op::SLessThan,
            other => return Err(Error::Invalid(format!("a loop over {other}"))),
        };
        let (start, end, step) = (self.value(start)?, self.value(end)?, self.value(step)?);
        let (ty, bool) = (self.scalar(scalar), self.m.bool());
        let [header, first, latch, merge, next] = [(); 5].map(|()| self.m.id());
        let before = self.label;
        self.jump(header);
        self.begin(header);
        let now = self.op(Op::Phi, ty, &[start, before, next, latch]);
        let goes_on = self.op(below, bool, &[now, end]);
        self.act(Op::LoopMerge, &[merge, latch, LoopControl::DONT_UNROLL.bits()]);
        self.act(Op::BranchConditional, &[goes_on, first, merge]);
        self.begin(first);
        self.set(counter, now);
        self.block(body)?;
        self.jump(latch);
        self.begin(latch);
        self.act(Op::IAdd, &[ty, next, now, step]);
        self.jump(header);
        self.begin(merge);
        Ok(())
    }

    fn while_loop(&mut self, head: &Block, condition: Value, body: &Block) -> Result<(), Error> {
        let [header, test, first, latch, merge] = [(); 5].map(|()| self.m.id());
        self.jump(header);
        self.begin(header);
        self.act(Op::LoopMerge, &[merge, latch, LoopControl::DONT_UNROLL.bits()]);
        self.jump(test);
        self.begin(test);
        self.block(head)?;
        let condition = self.value(condition)?;
        self.act(Op::BranchConditional, &[condition, first, merge]);
        self.begin(first);
        self.block(body)?;
        self.jump(latch);
        self.begin(latch);
        self.jump(header);
        self.begin(merge);
        Ok(())
    }

    fn barrier(&mut self, scope: Scope) {
        let mut semantics = MemorySemantics::ACQUIRE_RELEASE | MemorySemantics::WORKGROUP_MEMORY;
        if self.m.vulkan {
            semantics |= MemorySemantics::MAKE_AVAILABLE | MemorySemantics::MAKE_VISIBLE;
        }
        if self.communicates {
            semantics |= MemorySemantics::UNIFORM_MEMORY;
        }
        let (scope, semantics) = (self.m.u32(scope as u32), self.m.u32(semantics.bits()));
        self.act(Op::ControlBarrier, &[scope, scope, semantics]);
    }

    /// Releases and acquires buffers for the device. With a barrier of the workgroup on either side of an atomic operation, its stores are
    /// seen by the workgroup that comes last.
    fn device_fence(&mut self) {
        let mut semantics = MemorySemantics::ACQUIRE_RELEASE | MemorySemantics::UNIFORM_MEMORY;
        if self.m.vulkan {
            semantics |= MemorySemantics::MAKE_AVAILABLE | MemorySemantics::MAKE_VISIBLE;
        }
        let scope = self.device_scope();
        let (scope, semantics) = (self.m.u32(scope as u32), self.m.u32(semantics.bits()));
        self.act(Op::MemoryBarrier, &[scope, semantics]);
    }
}
