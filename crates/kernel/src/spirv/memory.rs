//! Accesses to buffers and workgroup arrays. Narrow elements are loaded as one word and taken apart.

use rspirv::spirv::{Capability, MemoryAccess, Op, StorageClass};

use super::module::Id;
use super::{Printer, Reach};
use crate::Error;
use crate::ir::*;
use crate::layout::ArgLayout;
use crate::types::{Elem, Scalar, Type};

/// How elements of a narrow type are packed in one access.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Container {
    /// 8 or 16 bits.
    Narrow(u32),
    Word,
    TwoWords,
}

impl Container {
    /// That of 1, 2 or 4 elements of one or two bytes.
    fn of(elem: Elem, lanes: u8) -> Self {
        match elem.size() * u32::from(lanes) {
            bytes @ (1 | 2) => Container::Narrow(8 * bytes),
            4 => Container::Word,
            _ => Container::TwoWords,
        }
    }
}

/// An access is of 1, 2 or 4 elements: others have no alignment of their own size.
fn whole(elem: Elem, lanes: u8) -> Result<(), Error> {
    match lanes {
        1 | 2 | 4 => Ok(()),
        _ => Err(Error::Invalid(format!("an access to {lanes} {elem}"))),
    }
}

impl<'a> Printer<'a> {
    /// An integer type of 8 or 16 bits that only passes between memory and words.
    fn narrow_type(&mut self, bits: u32, signed: bool) -> Id {
        self.m.capability(match bits {
            8 => Capability::StorageBuffer8BitAccess,
            _ => Capability::StorageBuffer16BitAccess,
        });
        if signed { self.m.int(bits) } else { self.m.uint(bits) }
    }

    /// The type of an element in a buffer.
    pub(super) fn memory_type(&mut self, elem: Elem) -> Id {
        match elem {
            Elem::F16 => {
                self.m.capability(Capability::StorageBuffer16BitAccess);
                self.m.float(16)
            }
            Elem::BF16 | Elem::U16 => self.narrow_type(16, false),
            Elem::I16 => self.narrow_type(16, true),
            Elem::U8 | Elem::Bool => self.narrow_type(8, false),
            Elem::I8 => self.narrow_type(8, true),
            wide => self.scalar(wide.scalar()),
        }
    }

    // Pointers.

    /// The address of an element.
    pub(super) fn address(&mut self, layout: ArgLayout, arg: ArgId, index: Value) -> Result<Id, Error> {
        let (base, size) = (self.address_of(layout, arg)?, self.arg(arg)?.elem.size());
        let u64_ty = self.m.uint(64);
        if let Expr::Const(Scalar::U32 | Scalar::U64, i) = self.def(index)?.expr {
            if i == 0 {
                return Ok(base);
            }
            let offset = self.m.u64(i.wrapping_mul(u64::from(size)));
            return Ok(self.op(Op::IAdd, u64_ty, &[base, offset]));
        }
        let mut offset = self.wide_index(index)?;
        if size > 1 {
            // A product of a widened index: one multiply-add of 32 to 64 bits where devices have it.
            let size = self.m.u64(u64::from(size));
            offset = self.op(Op::IMul, u64_ty, &[offset, size]);
        }
        Ok(self.op(Op::IAdd, u64_ty, &[base, offset]))
    }

    /// An index as u64.
    pub(super) fn wide_index(&mut self, index: Value) -> Result<Id, Error> {
        let id = self.value(index)?;
        match self.def(index)?.ty {
            Type::Scalar(Scalar::U64) => Ok(id),
            Type::Scalar(Scalar::U32) => {
                let ty = self.m.uint(64);
                Ok(self.op(Op::UConvert, ty, &[id]))
            }
            other => Err(Error::Invalid(format!("an index of {other}"))),
        }
    }

    /// A pointer to a value of `ty`, of `bytes` bytes, at an element of a buffer.
    pub(super) fn arg_pointer(&mut self, arg: ArgId, index: Value, ty: Id, bytes: u32) -> Result<Id, Error> {
        let Reach::Pointers(layout) = self.reach else {
            return self.bound_pointer(arg, index, ty, bytes);
        };
        let address = self.address(layout, arg, index)?;
        let pointer = self.m.pointer(StorageClass::PhysicalStorageBuffer, ty);
        Ok(self.op(Op::ConvertUToPtr, pointer, &[address]))
    }

    /// A pointer to an element of a workgroup array, or to one scalar of it.
    pub(super) fn shared_pointer(
        &mut self,
        shared: SharedId,
        index: Value,
        lane: Option<u8>,
    ) -> Result<(Id, Id), Error> {
        let decl = self.shared_decl(shared)?;
        if self.def(index)?.ty != Type::Scalar(Scalar::U32) {
            return Err(Error::Invalid(format!("a shared index of {}", self.def(index)?.ty)));
        }
        let (element, scalar) = (self.shared_type(decl)?, self.shared_scalar(decl.elem)?);
        let ty = if lane.is_some() { scalar } else { element };
        let base = self.shared.get(shared.index()).copied();
        let base = base.ok_or_else(|| Error::Invalid(format!("no shared array {}", shared.0)))?;
        let mut indices = vec![base, self.value(index)?];
        match lane {
            Some(lane) if lane >= decl.lanes => {
                return Err(Error::Invalid(format!("lane {lane} of a shared element of {}", decl.lanes)));
            }
            Some(lane) if decl.lanes > 1 => indices.push(self.m.u32(u32::from(lane))),
            _ => {}
        }
        let pointer = self.m.pointer(StorageClass::Workgroup, ty);
        Ok((self.op(Op::AccessChain, pointer, &indices), ty))
    }

    /// What stands behind the pointer of a buffer access: its alignment, and whether other invocations' accesses to
    /// it are ordered by barriers. Bindings know the one by themselves, and in GLSL's memory model the other.
    pub(super) fn arg_operands(&mut self, arg: ArgId, align: u32) -> Result<Vec<u32>, Error> {
        let ordered = self.communicates && self.arg(arg)?.access == Access::ReadWrite;
        let order = if ordered { MemoryAccess::NON_PRIVATE_POINTER } else { MemoryAccess::NONE };
        Ok(match (self.is_logical(), self.m.vulkan && ordered) {
            (true, false) => Vec::new(),
            (true, true) => vec![order.bits()],
            (false, _) => vec![(MemoryAccess::ALIGNED | order).bits(), align],
        })
    }

    /// What stands behind the pointer of an access to workgroup memory: that barriers order it, where the memory model
    /// needs it.
    pub(super) fn shared_operands(&self) -> &'static [u32] {
        const NON_PRIVATE: [u32; 1] = [MemoryAccess::NON_PRIVATE_POINTER.bits()];
        if self.m.vulkan { &NON_PRIVATE } else { &[] }
    }

    // Workgroup arrays.

    pub(super) fn shared_decl(&self, shared: SharedId) -> Result<&'a SharedDecl, Error> {
        let missing = || Error::Invalid(format!("no shared array {}", shared.0));
        self.kernel.shared.get(shared.index()).ok_or_else(missing)
    }

    fn shared_scalar(&mut self, elem: Elem) -> Result<Id, Error> {
        match elem {
            Elem::F16 if self.options.f16_registers => Ok(self.m.float(16)),
            Elem::F32 | Elem::F64 | Elem::I32 | Elem::U32 | Elem::I64 | Elem::U64 => {
                Ok(self.scalar(elem.scalar()))
            }
            _ => Err(Error::Missing(format!("workgroup memory of {elem}"))),
        }
    }

    pub(super) fn shared_type(&mut self, decl: &SharedDecl) -> Result<Id, Error> {
        if !matches!(decl.lanes, 1 | 2 | 4) || decl.len == 0 {
            return Err(Error::Invalid(format!(
                "a shared array of {} x {} {}",
                decl.len, decl.lanes, decl.elem
            )));
        }
        let scalar = self.shared_scalar(decl.elem)?;
        Ok(self.m.vector(scalar, u32::from(decl.lanes)))
    }

    pub(super) fn load_shared(
        &mut self,
        shared: SharedId,
        index: Value,
        lane: Option<u8>,
    ) -> Result<Id, Error> {
        let (elem, lanes) = (self.shared_decl(shared)?.elem, self.shared_decl(shared)?.lanes);
        let (pointer, ty) = self.shared_pointer(shared, index, lane)?;
        let loaded = self.op(Op::Load, ty, &[&[pointer], self.shared_operands()].concat());
        if elem != Elem::F16 {
            return Ok(loaded);
        }
        let lanes = if lane.is_some() { 1 } else { lanes };
        if self.options.converts_f16() {
            let floats = self.vector(Scalar::F32, lanes);
            return Ok(self.op(Op::FConvert, floats, &[loaded]));
        }
        let f16 = self.m.float(16);
        Ok(self.each_lane(Scalar::F32, lanes, |p, lane| {
            let half = if lanes == 1 { loaded } else { p.op(Op::CompositeExtract, f16, &[loaded, lane]) };
            let bits = p.bits_of_half(half);
            p.half_to_float(bits)
        }))
    }

    pub(super) fn store_shared(
        &mut self,
        shared: SharedId,
        index: Value,
        lane: Option<u8>,
        value: Value,
    ) -> Result<(), Error> {
        let (elem, lanes) = (self.shared_decl(shared)?.elem, self.shared_decl(shared)?.lanes);
        let lanes = if lane.is_some() { 1 } else { lanes };
        self.expect_lanes(value, elem, lanes)?;
        let (pointer, ty) = self.shared_pointer(shared, index, lane)?;
        let mut stored = self.value(value)?;
        if elem == Elem::F16 {
            stored = if self.options.converts_f16() {
                self.op(Op::FConvert, ty, &[stored])
            } else {
                let f32 = self.m.float(32);
                self.each_lane(Scalar::F16, lanes, |p, lane| {
                    let one =
                        if lanes == 1 { stored } else { p.op(Op::CompositeExtract, f32, &[stored, lane]) };
                    let bits = p.float_to_half(one);
                    p.half_of_bits(bits)
                })
            };
        }
        self.act(Op::Store, &[&[pointer, stored], self.shared_operands()].concat());
        Ok(())
    }

    /// A vector of what `make` returns for every lane; the scalar itself for one.
    fn each_lane(&mut self, scalar: Scalar, lanes: u8, mut make: impl FnMut(&mut Self, u32) -> Id) -> Id {
        let parts: Vec<Id> = (0..u32::from(lanes)).map(|lane| make(self, lane)).collect();
        self.gather(scalar, &parts)
    }

    fn gather(&mut self, scalar: Scalar, parts: &[Id]) -> Id {
        if let [one] = parts {
            return *one;
        }
        let ty = self.vector(scalar, parts.len() as u8);
        self.op(Op::CompositeConstruct, ty, parts)
    }

    fn expect_lanes(&self, value: Value, elem: Elem, lanes: u8) -> Result<(), Error> {
        let expected = match lanes {
            1 => Type::Scalar(elem.scalar()),
            n => Type::Vector(elem.scalar(), n),
        };
        let ty = self.def(value)?.ty;
        if ty == expected { Ok(()) } else { Err(Error::Invalid(format!("{ty} stored as {lanes} {elem}"))) }
    }

    // Buffers.

    /// Loads `lanes` elements from `index` on; checked kernels get 0 beyond the end.
    pub(super) fn load_arg(&mut self, arg: ArgId, index: Value, lanes: u8) -> Result<Id, Error> {
        let elem = self.arg(arg)?.elem;
        whole(elem, lanes)?;
        let result = self.vector(elem.scalar(), lanes);
        self.guarded(arg, index, lanes, Some(result), |p| p.load_elements(arg, index, elem, lanes))
    }

    fn load_elements(&mut self, arg: ArgId, index: Value, elem: Elem, lanes: u8) -> Result<Id, Error> {
        let bytes = elem.size() * u32::from(lanes);
        let operands = self.arg_operands(arg, bytes)?;
        let load = |p: &mut Self, ty: Id| -> Result<Id, Error> {
            let pointer = p.arg_pointer(arg, index, ty, bytes)?;
            Ok(p.op(Op::Load, ty, &[&[pointer], operands.as_slice()].concat()))
        };
        let in_words = self.in_words(elem);
        if elem.size() >= 4 {
            let ty = self.vector(elem.scalar(), lanes);
            return load(self, ty);
        }
        if elem == Elem::F16 && self.options.converts_f16() && !in_words {
            self.m.capability(Capability::StorageBuffer16BitAccess);
            let (halves, floats) = (self.vector(Scalar::F16, lanes), self.vector(Scalar::F32, lanes));
            let loaded = load(self, halves)?;
            return Ok(self.op(Op::FConvert, floats, &[loaded]));
        }
        let (u32_ty, i32_ty) = (self.m.uint(32), self.m.int(32));
        let signed = matches!(elem, Elem::I8 | Elem::I16);
        let words = match Container::of(elem, lanes) {
            Container::Narrow(_) if in_words => vec![self.load_part(arg, index, elem)?],
            Container::Narrow(bits) => {
                let ty = self.narrow_type(bits, signed && lanes == 1);
                let loaded = load(self, ty)?;
                if signed && lanes == 1 {
                    return Ok(self.op(Op::SConvert, i32_ty, &[loaded]));
                }
                vec![self.op(Op::UConvert, u32_ty, &[loaded])]
            }
            Container::Word => vec![load(self, u32_ty)?],
            Container::TwoWords => {
                let ty = self.m.vector(u32_ty, 2);
                let loaded = load(self, ty)?;
                (0..2).map(|i| self.op(Op::CompositeExtract, u32_ty, &[loaded, i])).collect()
            }
        };
        let per_word = (4 / elem.size()).min(u32::from(lanes));
        let mut parts = Vec::new();
        for word in words {
            for position in 0..per_word {
                parts.push(self.part(word, elem, position, lanes == 1 && !in_words));
            }
        }
        Ok(self.gather(elem.scalar(), &parts))
    }

    /// The register of one narrow element in a word; `alone` says that the word is zero above it.
    fn part(&mut self, word: Id, elem: Elem, position: u32, alone: bool) -> Id {
        let bits = 8 * elem.size();
        let (offset, count) = (self.m.u32(position * bits), self.m.u32(bits));
        match elem {
            Elem::I8 | Elem::I16 => {
                let ty = self.m.int(32);
                let word = self.op(Op::Bitcast, ty, &[word]);
                self.op(Op::BitFieldSExtract, ty, &[word, offset, count])
            }
            Elem::BF16 => {
                let placed = match position {
                    0 => self.word_const(Op::ShiftLeftLogical, word, 16),
                    _ => self.word_const(Op::BitwiseAnd, word, 0xffff_0000),
                };
                self.as_float(placed)
            }
            Elem::F16 => self.unpack_half(word, position as u8),
            _ => {
                let ty = self.m.uint(32);
                let part =
                    if alone { word } else { self.op(Op::BitFieldUExtract, ty, &[word, offset, count]) };
                if elem != Elem::Bool {
                    return part;
                }
                let (bool, zero) = (self.m.bool(), self.m.u32(0));
                self.op(Op::INotEqual, bool, &[part, zero])
            }
        }
    }

    /// Stores a scalar or a vector from `index` on.
    pub(super) fn store_arg(&mut self, arg: ArgId, index: Value, value: Value) -> Result<(), Error> {
        let elem = self.arg(arg)?.elem;
        let lanes = match self.def(value)?.ty {
            Type::Vector(_, n) => n,
            _ => 1,
        };
        whole(elem, lanes)?;
        self.expect_lanes(value, elem, lanes)?;
        self.guarded(arg, index, lanes, None, |p| p.store_elements(arg, index, elem, lanes, value))?;
        Ok(())
    }

    fn store_elements(
        &mut self,
        arg: ArgId,
        index: Value,
        elem: Elem,
        lanes: u8,
        value: Value,
    ) -> Result<Id, Error> {
        let bytes = elem.size() * u32::from(lanes);
        let operands = self.arg_operands(arg, bytes)?;
        let value = self.value(value)?;
        let store = |p: &mut Self, ty: Id, stored: Id| -> Result<Id, Error> {
            let pointer = p.arg_pointer(arg, index, ty, bytes)?;
            p.act(Op::Store, &[&[pointer, stored], operands.as_slice()].concat());
            Ok(pointer)
        };
        let in_words = self.in_words(elem);
        if elem.size() >= 4 {
            let ty = self.vector(elem.scalar(), lanes);
            return store(self, ty, value);
        }
        if elem == Elem::F16 && self.options.converts_f16() && !in_words {
            self.m.capability(Capability::StorageBuffer16BitAccess);
            let halves = self.vector(Scalar::F16, lanes);
            let stored = self.op(Op::FConvert, halves, &[value]);
            return store(self, halves, stored);
        }
        let container = Container::of(elem, lanes);
        let scalar = self.scalar(elem.scalar());
        let mut words = Vec::new();
        let per_word = 4 / elem.size();
        for lane in 0..u32::from(lanes) {
            let one = if lanes == 1 { value } else { self.op(Op::CompositeExtract, scalar, &[value, lane]) };
            let mut bits = self.narrow_bits(one, elem, lanes > 1 || in_words);
            match words.last_mut() {
                Some(below) if lane % per_word != 0 => {
                    let shift = 8 * elem.size() * (lane % per_word);
                    bits = self.word_const(Op::ShiftLeftLogical, bits, shift);
                    *below = self.word(Op::BitwiseOr, *below, bits);
                }
                _ => words.push(bits),
            }
        }
        let u32_ty = self.m.uint(32);
        match (container, words.as_slice()) {
            (Container::Narrow(bits), [word]) if in_words => self.store_part(arg, index, elem, bits, *word),
            (Container::Narrow(bits), [word]) => {
                let ty = self.narrow_type(bits, false);
                let stored = self.op(Op::UConvert, ty, &[*word]);
                store(self, ty, stored)
            }
            (Container::Word, [word]) => store(self, u32_ty, *word),
            (_, words) => {
                let ty = self.m.vector(u32_ty, 2);
                let stored = self.op(Op::CompositeConstruct, ty, words);
                store(self, ty, stored)
            }
        }
    }

    /// The bits of a register value as a narrow element, in the low bits of a word; zero above if `clean`.
    fn narrow_bits(&mut self, value: Id, elem: Elem, clean: bool) -> Id {
        let u32_ty = self.m.uint(32);
        let word = match elem {
            Elem::F16 => return self.float_to_half(value),
            Elem::BF16 => return self.float_to_bfloat(value),
            Elem::Bool => {
                let (one, zero) = (self.m.u32(1), self.m.u32(0));
                return self.op(Op::Select, u32_ty, &[value, one, zero]);
            }
            Elem::I8 | Elem::I16 => self.op(Op::Bitcast, u32_ty, &[value]),
            _ => value,
        };
        let mask = (1 << (8 * elem.size())) - 1;
        if clean { self.word_const(Op::BitwiseAnd, word, mask) } else { word }
    }
}
