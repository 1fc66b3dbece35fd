//! What a dispatch hands to a kernel that reaches buffers by pointers: one block of addresses and numbers. And the
//! params, which are members of a block in both ways.

use rspirv::spirv::{MemoryAccess, Op, StorageClass};

use super::module::Id;
use super::{Printer, Reach};
use crate::Error;
use crate::ir::*;
use crate::layout::ArgLayout;

/// A number in the block of arguments.
#[derive(Clone, Copy)]
enum Slot {
    Address(usize),
    Report,
    Length(usize),
    Dispatch,
    Param(usize),
}

impl Printer<'_> {
    pub(super) fn param(&mut self, param: ParamId) -> Result<Id, Error> {
        let missing = || Error::Invalid(format!("no param {}", param.0));
        let decl = self.kernel.params.get(param.index()).ok_or_else(missing)?;
        let ty = self.scalar(decl.scalar);
        let id = match self.reach {
            Reach::Pointers(layout) => self.slot(layout, Slot::Param(param.index()), ty),
            Reach::Bindings { params, .. } => {
                self.bound_param(params, param.index() + usize::from(self.options.checked), ty)?
            }
        };
        self.m.name(id, &decl.name);
        Ok(id)
    }

    /// The number of the dispatch, in checked kernels.
    fn dispatch_number(&mut self) -> Result<Id, Error> {
        let ty = self.m.uint(32);
        match self.reach {
            Reach::Pointers(layout) => Ok(self.slot(layout, Slot::Dispatch, ty)),
            Reach::Bindings { params, .. } => self.bound_param(params, 0, ty),
        }
    }

    /// The first operands of the function that writes reports.
    pub(super) fn report_operands(&mut self) -> Result<Vec<Id>, Error> {
        let mut operands = Vec::new();
        if let Reach::Pointers(layout) = self.reach {
            let ty = self.m.uint(64);
            operands.push(self.slot(layout, Slot::Report, ty));
        }
        operands.push(self.dispatch_number()?);
        Ok(operands)
    }

    /// The address of a buffer.
    pub(super) fn address_of(&mut self, layout: ArgLayout, arg: ArgId) -> Result<Id, Error> {
        let decl = self.arg(arg)?;
        if let Some(Some(id)) = self.addresses.get(arg.index()) {
            return Ok(*id);
        }
        let ty = self.m.uint(64);
        let id = self.slot(layout, Slot::Address(arg.index()), ty);
        self.m.name(id, &decl.name);
        if let Some(known) = self.addresses.get_mut(arg.index()) {
            *known = Some(id);
        }
        Ok(id)
    }

    /// The number of elements of a buffer, in checked kernels.
    pub(super) fn length_of(&mut self, arg: ArgId) -> Result<Id, Error> {
        if let Some(Some(id)) = self.lengths.get(arg.index()) {
            return Ok(*id);
        }
        let ty = self.m.uint(32);
        let id = match self.reach {
            Reach::Pointers(layout) => self.slot(layout, Slot::Length(arg.index()), ty),
            Reach::Bindings { .. } => self.bound_length(arg)?,
        };
        if let Some(known) = self.lengths.get_mut(arg.index()) {
            *known = Some(id);
        }
        Ok(id)
    }

    /// Loads a number of the block, at the function's start.
    fn slot(&mut self, layout: ArgLayout, slot: Slot, ty: Id) -> Id {
        let args = self.kernel.args.len();
        let (member, offset) = match slot {
            Slot::Address(i) => (i, layout.address_offset(i)),
            Slot::Report => (args, layout.report_offset()),
            Slot::Length(i) => (args + 1 + i, layout.length_offset(i)),
            Slot::Dispatch => (2 * args + 1, layout.dispatch_offset()),
            Slot::Param(i) if self.options.checked => (2 * args + 2 + i, layout.param_offset(i)),
            Slot::Param(i) => (args + i, layout.param_offset(i)),
        };
        let push = self.push_constants(layout);
        if layout.in_push {
            return self.load_member(StorageClass::PushConstant, push, member, ty);
        }
        let u64_ty = self.m.uint(64);
        let base = match self.block_address {
            Some(id) => id,
            None => {
                let id = self.load_member(StorageClass::PushConstant, push, 0, u64_ty);
                self.block_address = Some(id);
                id
            }
        };
        let offset_id = self.m.u64(u64::from(offset));
        let pointer_ty = self.m.pointer(StorageClass::PhysicalStorageBuffer, ty);
        let align = if matches!(slot, Slot::Address(_) | Slot::Report) { 8 } else { 4 };
        self.at_start(|p| {
            let address = p.op(Op::IAdd, u64_ty, &[base, offset_id]);
            let pointer = p.op(Op::ConvertUToPtr, pointer_ty, &[address]);
            p.op(Op::Load, ty, &[pointer, MemoryAccess::ALIGNED.bits(), align])
        })
    }

    /// Loads a member of a block, at the function's start.
    pub(super) fn load_member(&mut self, class: StorageClass, block: Id, member: usize, ty: Id) -> Id {
        let pointer_ty = self.m.pointer(class, ty);
        let member = self.m.u32(member as u32);
        self.at_start(|p| {
            let pointer = p.op(Op::AccessChain, pointer_ty, &[block, member]);
            p.op(Op::Load, ty, &[pointer])
        })
    }

    fn push_constants(&mut self, layout: ArgLayout) -> Id {
        if let Some(id) = self.push {
            return id;
        }
        let (u32_ty, u64_ty) = (self.m.uint(32), self.m.uint(64));
        let mut members = Vec::new();
        if layout.in_push {
            let args = self.kernel.args.len();
            members.extend((0..args).map(|i| (u64_ty, layout.address_offset(i))));
            if self.options.checked {
                members.push((u64_ty, layout.report_offset()));
                members.extend((0..args).map(|i| (u32_ty, layout.length_offset(i))));
                members.push((u32_ty, layout.dispatch_offset()));
            }
            for (i, param) in self.kernel.params.iter().enumerate() {
                let ty = self.scalar(param.scalar);
                members.push((ty, layout.param_offset(i)));
            }
        } else {
            members.push((u64_ty, 0));
        }
        let block = self.m.block(&members);
        let id = self.m.variable(StorageClass::PushConstant, block);
        self.push = Some(id);
        id
    }
}
