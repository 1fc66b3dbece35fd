//! Among invocations: subgroup operations and atomics; and packed dot products.

use rspirv::spirv::{Capability, GroupOperation, MemorySemantics, Op, PackedVectorFormat, Scope};

use super::Printer;
use super::expr::single;
use super::module::Id;
use crate::Error;
use crate::ir::*;
use crate::types::{Elem, Scalar};

impl Printer<'_> {
    pub(super) fn subgroup(
        &mut self,
        op: SubgroupOp,
        a: Value,
        other: Option<Value>,
        ty: Id,
    ) -> Result<Id, Error> {
        let scalar = self.scalar_of(a)?;
        let a = self.value(a)?;
        let scope = self.m.u32(Scope::Subgroup as u32);
        self.m.capability(Capability::GroupNonUniform);
        let wrong = || Error::Invalid(format!("subgroup {op:?} of {scalar}"));
        let pick = |float, signed, unsigned| match scalar {
            Scalar::Bool => Err(wrong()),
            s if s.is_float() => Ok(float),
            s if s.is_signed_int() => Ok(signed),
            _ => Ok(unsigned),
        };
        let add = || pick(Op::GroupNonUniformFAdd, Op::GroupNonUniformIAdd, Op::GroupNonUniformIAdd);
        let (instruction, group) = match op {
            SubgroupOp::Add => (add()?, GroupOperation::Reduce),
            SubgroupOp::InclusiveAdd => (add()?, GroupOperation::InclusiveScan),
            SubgroupOp::ExclusiveAdd => (add()?, GroupOperation::ExclusiveScan),
            SubgroupOp::Min => {
                let op = pick(Op::GroupNonUniformFMin, Op::GroupNonUniformSMin, Op::GroupNonUniformUMin)?;
                (op, GroupOperation::Reduce)
            }
            SubgroupOp::Max => {
                let op = pick(Op::GroupNonUniformFMax, Op::GroupNonUniformSMax, Op::GroupNonUniformUMax)?;
                (op, GroupOperation::Reduce)
            }
            SubgroupOp::Any | SubgroupOp::All => {
                if scalar != Scalar::Bool {
                    return Err(wrong());
                }
                self.m.capability(Capability::GroupNonUniformVote);
                let any = op == SubgroupOp::Any;
                let op = if any { Op::GroupNonUniformAny } else { Op::GroupNonUniformAll };
                return Ok(self.op(op, ty, &[scope, a]));
            }
            SubgroupOp::Shuffle | SubgroupOp::ShuffleXor => {
                let other = other.ok_or_else(wrong)?;
                let other = self.value(other)?;
                self.m.capability(Capability::GroupNonUniformShuffle);
                let xor = op == SubgroupOp::ShuffleXor;
                let op = if xor { Op::GroupNonUniformShuffleXor } else { Op::GroupNonUniformShuffle };
                if self.is_logical() && matches!(scalar.bits(), 16 | 64) {
                    return self.shuffle_words(op, scalar, ty, a, other);
                }
                return Ok(self.op(op, ty, &[scope, a, other]));
            }
        };
        if self.is_logical() && scalar.bits() != 32 {
            return Err(Error::Missing(format!("subgroup {op:?} of {scalar} with bindings")));
        }
        self.m.capability(Capability::GroupNonUniformArithmetic);
        Ok(self.op(instruction, ty, &[scope, group as u32, a]))
    }

    /// A shuffle of a scalar as 32-bit words, which need no `shaderSubgroupExtendedTypes`.
    fn shuffle_words(&mut self, op: Op, scalar: Scalar, ty: Id, a: Id, lane: Id) -> Result<Id, Error> {
        let scope = self.m.u32(Scope::Subgroup as u32);
        if scalar == Scalar::F16 {
            let (word, bits) = (self.m.uint(32), self.bits_of_half(a));
            let shuffled = self.op(op, word, &[scope, bits, lane]);
            return Ok(self.half_of_bits(shuffled));
        }
        let pair = self.vector(Scalar::U32, 2);
        let words = self.op(Op::Bitcast, pair, &[a]);
        let shuffled = self.op(op, pair, &[scope, words, lane]);
        Ok(self.op(Op::Bitcast, ty, &[shuffled]))
    }

    /// A dot product, then an addition: the instruction that does both saturates.
    pub(super) fn packed_dot(
        &mut self,
        signed: bool,
        a: Value,
        b: Value,
        accumulator: Value,
    ) -> Result<Id, Error> {
        self.m.before_core("SPV_KHR_integer_dot_product");
        self.m.capability(Capability::DotProduct);
        self.m.capability(Capability::DotProductInput4x8BitPacked);
        let result = if signed { Scalar::I32 } else { Scalar::U32 };
        let ty = self.scalar(result);
        if single(self.def(accumulator)?.ty)? != result {
            return Err(Error::Invalid(format!("a packed dot product into {}", self.def(accumulator)?.ty)));
        }
        let operands =
            [self.packed(a)?, self.packed(b)?, PackedVectorFormat::PackedVectorFormat4x8Bit as u32];
        let accumulator = self.value(accumulator)?;
        let op = if signed { Op::SDot } else { Op::UDot };
        let dot = self.op(op, ty, &operands);
        Ok(self.op(Op::IAdd, ty, &[accumulator, dot]))
    }

    /// Four packed integers as a u32.
    fn packed(&mut self, value: Value) -> Result<Id, Error> {
        let (scalar, id) = (single(self.def(value)?.ty)?, self.value(value)?);
        match scalar {
            Scalar::U32 => Ok(id),
            Scalar::I32 => {
                let ty = self.m.uint(32);
                Ok(self.op(Op::Bitcast, ty, &[id]))
            }
            other => Err(Error::Invalid(format!("a packed dot product of {other}"))),
        }
    }

    pub(super) fn atomic(
        &mut self,
        place: Storage,
        index: Value,
        op: AtomicOp,
        value: Value,
        comparand: Option<Value>,
        ty: Id,
    ) -> Result<Id, Error> {
        let value = self.value(value)?;
        let comparand = comparand.map(|c| self.value(c)).transpose()?;
        match place {
            Storage::Arg(arg) => {
                let (elem, scope) = (self.arg(arg)?.elem, self.device_scope());
                self.guarded(arg, index, 1, Some(ty), |p| {
                    let pointer = p.arg_pointer(arg, index, ty, elem.size())?;
                    p.atomic_at(pointer, scope, elem, op, value, comparand, ty)
                })
            }
            Storage::Shared(shared) => {
                let (elem, lanes) = (self.shared_decl(shared)?.elem, self.shared_decl(shared)?.lanes);
                if lanes != 1 {
                    return Err(Error::Invalid("an atomic operation on a shared array of vectors".into()));
                }
                let (pointer, _) = self.shared_pointer(shared, index, None)?;
                self.atomic_at(pointer, Scope::Workgroup, elem, op, value, comparand, ty)
            }
        }
    }

    /// The scope of atomics on buffers: GLSL's memory model has no queue families.
    pub(super) fn device_scope(&self) -> Scope {
        if self.m.vulkan { Scope::QueueFamily } else { Scope::Device }
    }

    fn atomic_at(
        &mut self,
        pointer: Id,
        scope: Scope,
        elem: Elem,
        op: AtomicOp,
        value: Id,
        comparand: Option<Id>,
        ty: Id,
    ) -> Result<Id, Error> {
        if !matches!(elem, Elem::U32 | Elem::I32) {
            return Err(Error::Invalid(format!("an atomic operation on {elem}")));
        }
        let signed = elem == Elem::I32;
        let scope = self.m.u32(scope as u32);
        let relaxed = self.m.u32(MemorySemantics::RELAXED.bits());
        let instruction = match op {
            AtomicOp::Add => Op::AtomicIAdd,
            AtomicOp::Min if signed => Op::AtomicSMin,
            AtomicOp::Min => Op::AtomicUMin,
            AtomicOp::Max if signed => Op::AtomicSMax,
            AtomicOp::Max => Op::AtomicUMax,
            AtomicOp::And => Op::AtomicAnd,
            AtomicOp::Or => Op::AtomicOr,
            AtomicOp::Xor => Op::AtomicXor,
            AtomicOp::Exchange => Op::AtomicExchange,
            AtomicOp::CompareExchange => {
                let missing = || Error::Invalid("a compare-exchange without a comparand".into());
                let comparand = comparand.ok_or_else(missing)?;
                let operands = [pointer, scope, relaxed, relaxed, value, comparand];
                return Ok(self.op(Op::AtomicCompareExchange, ty, &operands));
            }
        };
        Ok(self.op(instruction, ty, &[pointer, scope, relaxed, value]))
    }
}
