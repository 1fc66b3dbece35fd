//! Checked kernels: accesses beyond the end of a buffer are skipped and reported, and so are bad indices of the
//! user's data. The first report of a run stays.

use rspirv::spirv::{FunctionControl, MemoryAccess, MemorySemantics, Op, SelectionControl, StorageClass};

use super::expr::single;
use super::module::Id;
use super::{Printer, Reach};
use crate::Error;
use crate::ir::*;
use crate::layout::Report;
use crate::types::Scalar;

impl Printer<'_> {
    /// Does an access to `lanes` elements; in checked kernels only where they are inside the buffer. `result` is the
    /// type of what `access` returns, if it is used; it is 0 where the access is skipped.
    pub(super) fn guarded(
        &mut self,
        arg: ArgId,
        index: Value,
        lanes: u8,
        result: Option<Id>,
        access: impl FnOnce(&mut Self) -> Result<Id, Error>,
    ) -> Result<Id, Error> {
        if !self.options.checked {
            return access(self);
        }
        let first = if self.is_logical() { self.word_index(index)? } else { self.wide_index(index)? };
        let ty = self.checked_index();
        let last = match lanes {
            1 => first,
            n => {
                let more = u64::from(n) - 1;
                let more = if self.is_logical() { self.m.u32(more as u32) } else { self.m.u64(more) };
                self.op(Op::IAdd, ty, &[first, more])
            }
        };
        self.guarded_until(arg, first, last, result, access)
    }

    /// The type that indices are compared in: buffers reached by pointers may be indexed past u32.
    fn checked_index(&mut self) -> Id {
        let bits = if self.is_logical() { 32 } else { 64 };
        self.m.uint(bits)
    }

    /// The same for an access from element `first` to element `last`, both of the type of checked indices.
    pub(super) fn guarded_until(
        &mut self,
        arg: ArgId,
        first: Id,
        last: Id,
        result: Option<Id>,
        access: impl FnOnce(&mut Self) -> Result<Id, Error>,
    ) -> Result<Id, Error> {
        let size = self.length_of(arg)?;
        let (ty, bool) = (self.checked_index(), self.m.bool());
        let limit = if self.is_logical() { size } else { self.op(Op::UConvert, ty, &[size]) };
        let mut inside = self.op(Op::ULessThan, bool, &[last, limit]);
        if first != last {
            // A last one that wrapped around would pass alone.
            let first_inside = self.op(Op::ULessThan, bool, &[first, limit]);
            inside = self.op(Op::LogicalAnd, bool, &[first_inside, inside]);
        }
        let zero = result.map(|ty| self.m.zero(ty));
        let [good, bad, merge] = [(); 3].map(|()| self.m.id());
        self.act(Op::SelectionMerge, &[merge, SelectionControl::NONE.bits()]);
        self.act(Op::BranchConditional, &[inside, good, bad]);
        self.begin(bad);
        let shown = if self.is_logical() { last } else { self.clipped(last) };
        let (what, none) = (self.m.u32(arg.0), self.m.u32(0));
        self.call_report([what, shown, none, none, size])?;
        self.jump(merge);
        self.begin(good);
        let value = access(self)?;
        let from = self.label;
        self.jump(merge);
        self.begin(merge);
        match (result, zero) {
            (Some(ty), Some(zero)) => Ok(self.op(Op::Phi, ty, &[value, from, zero, bad])),
            _ => Ok(value),
        }
    }

    /// A u64 as u32, the greatest where it does not fit.
    fn clipped(&mut self, index: Id) -> Id {
        let (u32_ty, u64_ty, bool) = (self.m.uint(32), self.m.uint(64), self.m.bool());
        let most = self.m.u64(u64::from(u32::MAX));
        let fits = self.op(Op::ULessThan, bool, &[index, most]);
        let shown = self.op(Op::Select, u64_ty, &[fits, index, most]);
        self.op(Op::UConvert, u32_ty, &[shown])
    }

    /// [`Stmt::CheckAccess`]: nothing unless the kernel is checked.
    pub(super) fn report_access(&mut self, arg: ArgId, index: Value, size: Value) -> Result<(), Error> {
        if !self.options.checked {
            return Ok(());
        }
        let (index, size, bool) = (self.value(index)?, self.value(size)?, self.m.bool());
        let inside = self.op(Op::ULessThan, bool, &[index, size]);
        let [bad, merge] = [(); 2].map(|()| self.m.id());
        self.act(Op::SelectionMerge, &[merge, SelectionControl::NONE.bits()]);
        self.act(Op::BranchConditional, &[inside, merge, bad]);
        self.begin(bad);
        let (what, none) = (self.m.u32(arg.0), self.m.u32(0));
        self.call_report([what, index, none, none, size])?;
        self.jump(merge);
        self.begin(merge);
        Ok(())
    }

    /// [`Stmt::Report`]: nothing unless the kernel is checked.
    pub(super) fn report_index(&mut self, position: Value, value: Value, size: Value) -> Result<(), Error> {
        if !self.options.checked {
            return Ok(());
        }
        let scalar = single(self.def(value)?.ty)?;
        let (position, value, size) = (self.value(position)?, self.value(value)?, self.value(size)?);
        let word = self.m.uint(32);
        let [low, high] = match scalar {
            Scalar::I32 => {
                let sign = self.word_const(Op::ShiftRightArithmetic, value, 31);
                [self.op(Op::Bitcast, word, &[value]), sign]
            }
            Scalar::I64 => {
                let pair = self.vector(Scalar::U32, 2);
                let words = self.op(Op::Bitcast, pair, &[value]);
                [0, 1].map(|i| self.op(Op::CompositeExtract, word, &[words, i]))
            }
            other => return Err(Error::Invalid(format!("a report of an index of {other}"))),
        };
        let what = self.m.u32(Report::BAD_INDEX);
        self.call_report([what, position, low, high, size])
    }

    /// Calls the function that writes a report: what, index, value low, value high, size.
    fn call_report(&mut self, words: [Id; 5]) -> Result<(), Error> {
        let (function, mut operands) = match &self.report {
            Some((function, first)) => (*function, first.clone()),
            None => {
                let first = self.report_operands()?;
                let function = self.report_function()?;
                self.report = Some((function, first.clone()));
                (function, first)
            }
        };
        let void = self.m.void();
        operands.insert(0, function);
        operands.extend(words);
        self.op(Op::FunctionCall, void, &operands);
        Ok(())
    }

    /// `report([address], dispatch, what, index, low, high, size)`: takes word 0 and, if it is the first, writes the
    /// others.
    fn report_function(&mut self) -> Result<Id, Error> {
        let (void, u32_ty, bool) = (self.m.void(), self.m.uint(32), self.m.bool());
        let by_address = !self.is_logical();
        let mut types = vec![void];
        if by_address {
            types.push(self.m.uint(64));
        }
        types.extend([u32_ty; 6]);
        let signature = self.m.ty(Op::TypeFunction, &types);
        let scope = self.m.u32(self.device_scope() as u32);
        let relaxed = self.m.u32(MemorySemantics::RELAXED.bits());
        let (zero, one) = (self.m.u32(0), self.m.u32(1));
        let function = self.m.id();
        self.m.name(function, "report");
        let saved = std::mem::take(&mut self.code);
        self.act(Op::Function, &[void, function, FunctionControl::NONE.bits(), signature]);
        let address = match by_address {
            true => {
                let u64_ty = self.m.uint(64);
                Some(self.op(Op::FunctionParameter, u64_ty, &[]))
            }
            false => None,
        };
        let words = [(); 6].map(|()| self.op(Op::FunctionParameter, u32_ty, &[]));
        let [start, first, end] = [(); 3].map(|()| self.m.id());
        self.act(Op::Label, &[start]);
        let taken = self.report_word(address, 0)?;
        let old = self.op(Op::AtomicCompareExchange, u32_ty, &[taken, scope, relaxed, relaxed, one, zero]);
        let is_first = self.op(Op::IEqual, bool, &[old, zero]);
        self.act(Op::SelectionMerge, &[end, SelectionControl::NONE.bits()]);
        self.act(Op::BranchConditional, &[is_first, first, end]);
        self.act(Op::Label, &[first]);
        let [dispatch, what, index, low, high, size] = words;
        let aligned = [MemoryAccess::ALIGNED.bits(), 4];
        let access: &[u32] = if by_address { &aligned } else { &[] };
        for (i, word) in [(1, dispatch), (2, what), (3, index), (5, low), (6, high), (7, size)] {
            let pointer = self.report_word(address, i)?;
            self.act(Op::Store, &[&[pointer, word], access].concat());
        }
        self.act(Op::Branch, &[end]);
        self.act(Op::Label, &[end]);
        self.act(Op::Return, &[]);
        self.act(Op::FunctionEnd, &[]);
        let words = std::mem::replace(&mut self.code, saved);
        self.m.function(&words);
        Ok(function)
    }

    /// A pointer to a word of the report, which is at `address` or bound.
    fn report_word(&mut self, address: Option<Id>, word: u32) -> Result<Id, Error> {
        let Some(address) = address else {
            let Reach::Bindings { report: Some(binding), .. } = self.reach else {
                return Err(Error::Invalid("a report where none is bound".into()));
            };
            return Ok(self.bound_report(binding, word));
        };
        let (u32_ty, u64_ty) = (self.m.uint(32), self.m.uint(64));
        let pointer_ty = self.m.pointer(StorageClass::PhysicalStorageBuffer, u32_ty);
        let at = match word {
            0 => address,
            word => {
                let offset = self.m.u64(u64::from(4 * word));
                self.op(Op::IAdd, u64_ty, &[address, offset])
            }
        };
        Ok(self.op(Op::ConvertUToPtr, pointer_ty, &[at]))
    }
}
