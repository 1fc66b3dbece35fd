//! Buffers as bindings: a variable for every type that a buffer is accessed as, all on its binding. Parts of words that
//! cannot be accessed by themselves are taken from their word, and put into it by atomics so that the neighbours stay.

use rspirv::spirv::{Decoration, MemorySemantics, Op, StorageClass};

use super::module::Id;
use super::{Printer, Reach};
use crate::Error;
use crate::interface::ParamsLocation;
use crate::ir::*;
use crate::types::{Elem, Scalar, Type};

impl Printer<'_> {
    /// Whether accesses to single elements go through their word. One-byte elements are never alone, so that accesses
    /// to one and to two of them do not mix atomics with plain stores.
    pub(super) fn in_words(&self, elem: Elem) -> bool {
        match self.reach {
            Reach::Pointers(_) => false,
            Reach::Bindings { storage16, .. } => elem.size() == 1 || (elem.size() == 2 && !storage16),
        }
    }

    /// A binding as an array of values of `bytes` bytes.
    fn view(&mut self, binding: u32, ty: Id, bytes: u32, name: &str, coherent: bool) -> Id {
        if let Some(id) = self.views.get(&(binding, ty)) {
            return *id;
        }
        let block = self.m.unsized_block(ty, bytes);
        let id = self.m.variable(StorageClass::StorageBuffer, block);
        self.m.name(id, name);
        self.m.decorate(id, Decoration::DescriptorSet, &[0]);
        self.m.decorate(id, Decoration::Binding, &[binding]);
        // Views of one binding overlap, and so may the ranges of two.
        self.m.decorate(id, Decoration::Aliased, &[]);
        if coherent {
            self.m.decorate(id, Decoration::Coherent, &[]);
        }
        self.views.insert((binding, ty), id);
        id
    }

    /// A buffer as an array of values of `bytes` bytes; coherent where invocations hand each other data through it.
    fn arg_view(&mut self, arg: ArgId, ty: Id, bytes: u32) -> Result<Id, Error> {
        let decl = self.arg(arg)?;
        // Vulkan's memory model needs it at every access instead.
        let coherent = self.communicates && decl.access == Access::ReadWrite && !self.m.vulkan;
        Ok(self.view(arg.0, ty, bytes, &decl.name, coherent))
    }

    /// A pointer to the value of `bytes` bytes that begins with, or contains, an element.
    pub(super) fn bound_pointer(
        &mut self,
        arg: ArgId,
        index: Value,
        ty: Id,
        bytes: u32,
    ) -> Result<Id, Error> {
        let shift = (bytes / self.arg(arg)?.elem.size()).max(1).trailing_zeros();
        let at = match self.def(index)?.expr {
            Expr::Const(Scalar::U32 | Scalar::U64, i) => {
                self.m.u32(u32::try_from(i >> shift).unwrap_or(u32::MAX))
            }
            _ => {
                let index = self.word_index(index)?;
                if shift == 0 { index } else { self.word_const(Op::ShiftRightLogical, index, shift) }
            }
        };
        let view = self.arg_view(arg, ty, bytes)?;
        let (pointer_ty, zero) = (self.m.pointer(StorageClass::StorageBuffer, ty), self.m.u32(0));
        Ok(self.op(Op::AccessChain, pointer_ty, &[view, zero, at]))
    }

    /// An index as u32; in checked kernels one that does not fit stays outside of every buffer.
    pub(super) fn word_index(&mut self, index: Value) -> Result<Id, Error> {
        let id = self.value(index)?;
        match self.def(index)?.ty {
            Type::Scalar(Scalar::U32) => Ok(id),
            Type::Scalar(Scalar::U64) => {
                let (u32_ty, bool) = (self.m.uint(32), self.m.bool());
                let low = self.op(Op::UConvert, u32_ty, &[id]);
                if !self.options.checked {
                    return Ok(low);
                }
                let (most, outside) = (self.m.u64(u64::from(u32::MAX)), self.m.u32(u32::MAX));
                let fits = self.op(Op::ULessThan, bool, &[id, most]);
                Ok(self.op(Op::Select, u32_ty, &[fits, low, outside]))
            }
            other => Err(Error::Invalid(format!("an index of {other}"))),
        }
    }

    /// The position of an element's first bit in its word.
    fn bit_offset(&mut self, index: Value, elem: Elem) -> Result<Id, Error> {
        let index = self.word_index(index)?;
        let position = self.word_const(Op::BitwiseAnd, index, 4 / elem.size() - 1);
        Ok(self.word_const(Op::ShiftLeftLogical, position, (8 * elem.size()).trailing_zeros()))
    }

    /// The word that holds narrow elements, with the one at `index` in its low bits.
    pub(super) fn load_part(&mut self, arg: ArgId, index: Value, elem: Elem) -> Result<Id, Error> {
        let u32_ty = self.m.uint(32);
        let pointer = self.bound_pointer(arg, index, u32_ty, 4)?;
        let word = self.op(Op::Load, u32_ty, &[pointer]);
        let offset = self.bit_offset(index, elem)?;
        Ok(self.word(Op::ShiftRightLogical, word, offset))
    }

    /// Puts `bits` bits, the low ones of a word that is zero above, where the element at `index` begins.
    pub(super) fn store_part(
        &mut self,
        arg: ArgId,
        index: Value,
        elem: Elem,
        bits: u32,
        part: Id,
    ) -> Result<Id, Error> {
        let u32_ty = self.m.uint(32);
        let pointer = self.bound_pointer(arg, index, u32_ty, 4)?;
        let offset = self.bit_offset(index, elem)?;
        let mask = self.m.u32((1 << bits) - 1);
        let taken = self.word(Op::ShiftLeftLogical, mask, offset);
        let kept = self.op(Op::Not, u32_ty, &[taken]);
        let placed = self.word(Op::ShiftLeftLogical, part, offset);
        let scope = self.m.u32(self.device_scope() as u32);
        let relaxed = self.m.u32(MemorySemantics::RELAXED.bits());
        self.op(Op::AtomicAnd, u32_ty, &[pointer, scope, relaxed, kept]);
        self.op(Op::AtomicOr, u32_ty, &[pointer, scope, relaxed, placed]);
        Ok(pointer)
    }

    /// The number of elements bound, read at the function's start; of narrow ones those in whole words.
    pub(super) fn bound_length(&mut self, arg: ArgId) -> Result<Id, Error> {
        let elem = self.arg(arg)?.elem;
        let ty = if elem.size() < 4 { self.m.uint(32) } else { self.scalar(elem.scalar()) };
        let view = self.arg_view(arg, ty, elem.size().max(4))?;
        let u32_ty = self.m.uint(32);
        Ok(self.at_start(|p| {
            let length = p.op(Op::ArrayLength, u32_ty, &[view, 0]);
            match 4 / elem.size() {
                0 | 1 => length,
                per_word => p.word_const(Op::IMul, length, per_word),
            }
        }))
    }

    /// Loads a number of the block of params, at the function's start.
    pub(super) fn bound_param(
        &mut self,
        place: Option<ParamsLocation>,
        member: usize,
        ty: Id,
    ) -> Result<Id, Error> {
        let class = match place {
            Some(ParamsLocation::Immediate { .. }) => StorageClass::PushConstant,
            Some(ParamsLocation::Uniform { .. }) => StorageClass::Uniform,
            None => return Err(Error::Invalid("a param of a kernel that has none".into())),
        };
        let block = match self.push {
            Some(id) => id,
            None => {
                let mut types = Vec::new();
                if self.options.checked {
                    types.push(self.m.uint(32));
                }
                types.extend(self.kernel.params.iter().map(|p| self.scalar(p.scalar)).collect::<Vec<_>>());
                let members: Vec<_> = types.into_iter().zip((0..).step_by(4)).collect();
                let block = self.m.block(&members);
                let id = self.m.variable(class, block);
                if let Some(ParamsLocation::Uniform { binding, .. }) = place {
                    self.m.decorate(id, Decoration::DescriptorSet, &[0]);
                    self.m.decorate(id, Decoration::Binding, &[binding]);
                }
                self.push = Some(id);
                id
            }
        };
        Ok(self.load_member(class, block, member, ty))
    }

    /// A pointer to a word of the report that is bound.
    pub(super) fn bound_report(&mut self, binding: u32, word: u32) -> Id {
        let u32_ty = self.m.uint(32);
        let view = self.view(binding, u32_ty, 4, "reports", false);
        let pointer_ty = self.m.pointer(StorageClass::StorageBuffer, u32_ty);
        let (zero, word) = (self.m.u32(0), self.m.u32(word));
        self.op(Op::AccessChain, pointer_ty, &[view, zero, word])
    }
}
