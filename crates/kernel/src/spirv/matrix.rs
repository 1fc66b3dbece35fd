//! Cooperative matrices (`SPV_KHR_cooperative_matrix`).

use rspirv::spirv::{
    Capability, CooperativeMatrixLayout, CooperativeMatrixOperands, CooperativeMatrixUse, Op, Scope,
    StorageClass,
};

use super::expr::single;
use super::module::Id;
use super::{Printer, Reach};
use crate::Error;
use crate::ir::*;
use crate::types::{Elem, MatrixType, MatrixUse, Scalar, Type};

impl Printer<'_> {
    pub(super) fn matrix_type(&mut self, ty: MatrixType) -> Result<Id, Error> {
        self.m.extension("SPV_KHR_cooperative_matrix");
        self.m.capability(Capability::CooperativeMatrixKHR);
        let component = self.component(ty.elem)?;
        let role = match ty.role {
            MatrixUse::A => CooperativeMatrixUse::MatrixAKHR,
            MatrixUse::B => CooperativeMatrixUse::MatrixBKHR,
            MatrixUse::Accumulator => CooperativeMatrixUse::MatrixAccumulatorKHR,
        };
        let numbers = [Scope::Subgroup as u32, ty.rows, ty.columns, role as u32].map(|x| self.m.u32(x));
        let [scope, rows, columns, role] = numbers;
        Ok(self.m.ty(Op::TypeCooperativeMatrixKHR, &[component, scope, rows, columns, role]))
    }

    fn component(&mut self, elem: Elem) -> Result<Id, Error> {
        match elem {
            // wgpu enables neither their registers nor their storage.
            Elem::BF16 | Elem::I8 | Elem::U8 if self.is_logical() => {
                Err(Error::Missing(format!("cooperative matrices of {elem} with bindings")))
            }
            Elem::F16 => Ok(self.m.float(16)),
            Elem::BF16 => Ok(self.m.bfloat()),
            Elem::I8 | Elem::U8 => {
                self.m.capability(Capability::Int8);
                Ok(if elem == Elem::I8 { self.m.int(8) } else { self.m.uint(8) })
            }
            Elem::F32 | Elem::F64 | Elem::I32 | Elem::U32 => Ok(self.scalar(elem.scalar())),
            _ => Err(Error::Missing(format!("cooperative matrices of {elem}"))),
        }
    }

    fn matrix_of(&self, value: Value) -> Result<MatrixType, Error> {
        match self.def(value)?.ty {
            Type::Matrix(m) => Ok(m),
            other => Err(Error::Invalid(format!("{other} where a matrix is needed"))),
        }
    }

    /// A number as a component: registers are wider than some components.
    fn as_component(&mut self, elem: Elem, number: Value) -> Result<Id, Error> {
        let scalar = single(self.def(number)?.ty)?;
        let (id, ty) = (self.value(number)?, self.component(elem)?);
        match (elem, scalar) {
            (Elem::F16, Scalar::F16) => Ok(id),
            (Elem::F16 | Elem::BF16, Scalar::F32) => Ok(self.op(Op::FConvert, ty, &[id])),
            (Elem::I8, Scalar::I32) => Ok(self.op(Op::SConvert, ty, &[id])),
            (Elem::U8, Scalar::U32) => Ok(self.op(Op::UConvert, ty, &[id])),
            _ if scalar == elem.scalar() => Ok(id),
            _ => Err(Error::Invalid(format!("{scalar} as a component of a matrix of {elem}"))),
        }
    }

    pub(super) fn matrix_splat(&mut self, matrix: MatrixType, number: Value, ty: Id) -> Result<Id, Error> {
        let component = self.as_component(matrix.elem, number)?;
        Ok(self.op(Op::CompositeConstruct, ty, &[component]))
    }

    pub(super) fn matrix_mul_add(&mut self, a: Value, b: Value, c: Value, ty: Id) -> Result<Id, Error> {
        let signs = [
            (a, CooperativeMatrixOperands::MATRIX_A_SIGNED_COMPONENTS_KHR),
            (b, CooperativeMatrixOperands::MATRIX_B_SIGNED_COMPONENTS_KHR),
            (c, CooperativeMatrixOperands::MATRIX_C_SIGNED_COMPONENTS_KHR),
            (c, CooperativeMatrixOperands::MATRIX_RESULT_SIGNED_COMPONENTS_KHR),
        ];
        let mut flags = CooperativeMatrixOperands::NONE_KHR;
        for (value, flag) in signs {
            if matches!(self.matrix_of(value)?.elem, Elem::I8 | Elem::I32) {
                flags |= flag;
            }
        }
        let mut operands = vec![self.value(a)?, self.value(b)?, self.value(c)?];
        if !flags.is_empty() {
            operands.push(flags.bits());
        }
        Ok(self.op(Op::CooperativeMatrixMulAddKHR, ty, &operands))
    }

    pub(super) fn matrix_binary(&mut self, op: BinaryOp, a: Value, b: Value, ty: Id) -> Result<Id, Error> {
        let elem = self.matrix_of(a)?.elem;
        let left = self.value(a)?;
        match op {
            BinaryOp::Mul => {
                let by = self.as_component(elem, b)?;
                Ok(self.op(Op::MatrixTimesScalar, ty, &[left, by]))
            }
            BinaryOp::Add if self.matrix_of(a)? == self.matrix_of(b)? => {
                let right = self.value(b)?;
                let op = if elem.scalar().is_float() { Op::FAdd } else { Op::IAdd };
                Ok(self.op(op, ty, &[left, right]))
            }
            _ => Err(Error::Invalid(format!("{op:?} of {} and {}", self.def(a)?.ty, self.def(b)?.ty))),
        }
    }

    /// An element as a register: wider than some components.
    pub(super) fn matrix_part(&mut self, matrix: Value, part: u8, ty: Id) -> Result<Id, Error> {
        let elem = self.matrix_of(matrix)?.elem;
        let (id, component) = (self.value(matrix)?, self.component(elem)?);
        let found = self.op(Op::CompositeExtract, component, &[id, u32::from(part)]);
        Ok(match elem {
            Elem::F16 | Elem::BF16 => self.op(Op::FConvert, ty, &[found]),
            Elem::I8 => self.op(Op::SConvert, ty, &[found]),
            Elem::U8 => self.op(Op::UConvert, ty, &[found]),
            _ => found,
        })
    }

    pub(super) fn matrix_from_parts(
        &mut self,
        matrix: MatrixType,
        parts: &[Value],
        ty: Id,
    ) -> Result<Id, Error> {
        let mut whole = self.m.zero(ty);
        for (i, part) in parts.iter().enumerate() {
            let component = self.as_component(matrix.elem, *part)?;
            whole = self.op(Op::CompositeInsert, ty, &[component, whole, i as u32]);
        }
        Ok(whole)
    }

    pub(super) fn matrix_load(
        &mut self,
        matrix: MatrixType,
        place: Storage,
        index: Value,
        layout: MatrixLayout,
        ty: Id,
    ) -> Result<Id, Error> {
        if let (Storage::Arg(arg), true) = (place, self.options.checked) {
            // A variable and not a phi: matrices are opaque to drivers in more than one way.
            let variable = self.local(ty);
            let zero = self.m.zero(ty);
            self.act(Op::Store, &[variable, zero]);
            let (first, last) = self.matrix_span(arg, matrix, index, layout)?;
            self.guarded_until(arg, first, last, None, |p| {
                let loaded = p.matrix_load_at(matrix, place, index, layout, ty)?;
                p.act(Op::Store, &[variable, loaded]);
                Ok(loaded)
            })?;
            return Ok(self.op(Op::Load, ty, &[variable]));
        }
        self.matrix_load_at(matrix, place, index, layout, ty)
    }

    fn matrix_load_at(
        &mut self,
        matrix: MatrixType,
        place: Storage,
        index: Value,
        layout: MatrixLayout,
        ty: Id,
    ) -> Result<Id, Error> {
        let (pointer, access) = self.matrix_pointer(matrix, place, index, layout)?;
        let mut operands = vec![pointer];
        operands.extend(self.matrix_layout(layout)?);
        operands.extend(access);
        Ok(self.op(Op::CooperativeMatrixLoadKHR, ty, &operands))
    }

    pub(super) fn matrix_store(
        &mut self,
        place: Storage,
        index: Value,
        layout: MatrixLayout,
        value: Value,
    ) -> Result<(), Error> {
        let matrix = self.matrix_of(value)?;
        let stored = self.value(value)?;
        let write = |p: &mut Self| -> Result<Id, Error> {
            let (pointer, access) = p.matrix_pointer(matrix, place, index, layout)?;
            let mut operands = vec![pointer, stored];
            operands.extend(p.matrix_layout(layout)?);
            operands.extend(access);
            p.act(Op::CooperativeMatrixStoreKHR, &operands);
            Ok(pointer)
        };
        match place {
            Storage::Arg(arg) if self.options.checked => {
                let (first, last) = self.matrix_span(arg, matrix, index, layout)?;
                self.guarded_until(arg, first, last, None, write)?;
            }
            _ => {
                write(self)?;
            }
        }
        Ok(())
    }

    /// A pointer to a component that the lane holds of a matrix in a variable.
    fn part_place(&mut self, variable: Id, component: Id, i: u32) -> Id {
        let pointer = self.m.pointer(StorageClass::Function, component);
        let i = self.m.u32(i);
        self.op(Op::AccessChain, pointer, &[variable, i])
    }

    pub(super) fn matrix_of_words(
        &mut self,
        matrix: MatrixType,
        words: &[Value],
        ty: Id,
    ) -> Result<Id, Error> {
        let component = self.component(matrix.elem)?;
        let pair = self.m.vector(component, 2);
        let variable = self.local(ty);
        for (i, word) in (0u32..).zip(words) {
            let word = self.value(*word)?;
            let both = self.op(Op::Bitcast, pair, &[word]);
            for half in 0..2 {
                let part = self.op(Op::CompositeExtract, component, &[both, half]);
                let place = self.part_place(variable, component, 2 * i + half);
                self.act(Op::Store, &[place, part]);
            }
        }
        Ok(self.op(Op::Load, ty, &[variable]))
    }

    pub(super) fn matrix_word(&mut self, matrix: Value, i: u8, ty: Id) -> Result<Id, Error> {
        let component = self.component(self.matrix_of(matrix)?.elem)?;
        let value = self.value(matrix)?;
        let matrix_ty = self.matrix_type(self.matrix_of(matrix)?)?;
        let variable = self.local(matrix_ty);
        self.act(Op::Store, &[variable, value]);
        let halves: Vec<Id> = (0..2)
            .map(|half| {
                let place = self.part_place(variable, component, 2 * u32::from(i) + half);
                self.op(Op::Load, component, &[place])
            })
            .collect();
        let pair = self.m.vector(component, 2);
        let both = self.op(Op::CompositeConstruct, pair, &halves);
        Ok(self.op(Op::Bitcast, ty, &[both]))
    }

    /// Layout and stride as operands.
    fn matrix_layout(&mut self, layout: MatrixLayout) -> Result<[Id; 2], Error> {
        let order = match layout.column_major {
            true => CooperativeMatrixLayout::ColumnMajorKHR,
            false => CooperativeMatrixLayout::RowMajorKHR,
        };
        Ok([self.m.u32(order as u32), self.value(layout.stride)?])
    }

    /// A pointer to the matrix's first element, and the operands of the access.
    fn matrix_pointer(
        &mut self,
        matrix: MatrixType,
        place: Storage,
        index: Value,
        layout: MatrixLayout,
    ) -> Result<(Id, Vec<u32>), Error> {
        match place {
            Storage::Shared(shared) => {
                let (pointer, _) = self.shared_pointer(shared, index, None)?;
                Ok((pointer, self.shared_operands().to_vec()))
            }
            Storage::Arg(arg) => {
                let elem = self.arg(arg)?.elem;
                let Reach::Pointers(arguments) = self.reach else {
                    return self.bound_matrix(arg, index, elem);
                };
                let mut element = self.memory_type(elem);
                if (elem, matrix.elem) == (Elem::BF16, Elem::BF16) {
                    element = self.m.bfloat();
                }
                // The pointer of a matrix must point into an array.
                let block = self.m.unsized_block(element, elem.size());
                let block_ty = self.m.pointer(StorageClass::PhysicalStorageBuffer, block);
                let pointer_ty = self.m.pointer(StorageClass::PhysicalStorageBuffer, element);
                let address = self.address(arguments, arg, index)?;
                let array = self.op(Op::ConvertUToPtr, block_ty, &[address]);
                let zero = self.m.u32(0);
                let pointer = self.op(Op::AccessChain, pointer_ty, &[array, zero, zero]);
                let run = if layout.column_major { matrix.rows } else { matrix.columns };
                // Vulkan asks for rows (columns) aligned to their own size, 16 bytes at most.
                let align = (run * matrix.elem.size()).clamp(1, 16);
                Ok((pointer, self.arg_operands(arg, align)?))
            }
        }
    }

    /// The same with bindings.
    fn bound_matrix(&mut self, arg: ArgId, index: Value, elem: Elem) -> Result<(Id, Vec<u32>), Error> {
        if self.in_words(elem) {
            return Err(Error::Missing(format!("cooperative matrices in a binding of {elem}")));
        }
        let element = self.memory_type(elem);
        let pointer = self.bound_pointer(arg, index, element, elem.size())?;
        Ok((pointer, self.arg_operands(arg, elem.size())?))
    }

    /// The first and the last element of a buffer that a matrix takes, as checks count them: u64, with bindings u32.
    fn matrix_span(
        &mut self,
        arg: ArgId,
        matrix: MatrixType,
        index: Value,
        layout: MatrixLayout,
    ) -> Result<(Id, Id), Error> {
        let (runs, run) = match layout.column_major {
            true => (matrix.columns, matrix.rows),
            false => (matrix.rows, matrix.columns),
        };
        let held = self.arg(arg)?.elem.size();
        let elements = (run * matrix.elem.size()).div_ceil(held).max(1);
        let (runs, rest) = (runs.max(1) - 1, elements - 1);
        let (ty, first, stride, runs, rest) = if self.is_logical() {
            let (first, stride) = (self.word_index(index)?, self.word_index(layout.stride)?);
            (self.m.uint(32), first, stride, self.m.u32(runs), self.m.u32(rest))
        } else {
            let (first, stride) = (self.wide_index(index)?, self.wide_index(layout.stride)?);
            (self.m.uint(64), first, stride, self.m.u64(runs.into()), self.m.u64(rest.into()))
        };
        let far = self.op(Op::IMul, ty, &[stride, runs]);
        let far = self.op(Op::IAdd, ty, &[far, rest]);
        let last = self.op(Op::IAdd, ty, &[first, far]);
        Ok((first, last))
    }
}
