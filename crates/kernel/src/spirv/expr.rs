//! Expressions.

use rspirv::spirv::{Decoration, GlslStd450Op, Op};

use super::Printer;
use super::module::Id;
use crate::Error;
use crate::ir::*;
use crate::types::{Scalar, Type};

impl Printer<'_> {
    /// Computes a value where the code stands.
    pub(super) fn define(&mut self, value: Value) -> Result<(), Error> {
        let def = self.def(value)?;
        let id = self.expression(def)?;
        self.set(value, id);
        Ok(())
    }

    fn expression(&mut self, def: &Def) -> Result<Id, Error> {
        let ty = self.ty(def.ty)?;
        match &def.expr {
            Expr::Const(..) | Expr::Builtin(_) | Expr::Param(_) | Expr::Counter => {
                Err(Error::Invalid("a constant, a param or a counter computed by a statement".into()))
            }
            Expr::Get(var) => {
                let pointer = self.variable(*var)?;
                Ok(self.op(Op::Load, ty, &[pointer]))
            }
            Expr::Unary(op, a) => self.unary(*op, self.scalar_of(*a)?, ty, *a),
            Expr::Binary(op, a, b) => {
                let scalar = self.scalar_of(*a)?;
                let (a, b) = (self.value(*a)?, self.value(*b)?);
                self.binary(*op, scalar, ty, a, b)
            }
            Expr::Fma(a, b, c) => {
                let operands = [self.value(*a)?, self.value(*b)?, self.value(*c)?];
                let id = self.glsl(GlslStd450Op::Fma, ty, &operands);
                self.m.decorate(id, Decoration::NoContraction, &[]);
                Ok(id)
            }
            Expr::Compare(op, a, b) => {
                let scalar = self.scalar_of(*a)?;
                let (a, b) = (self.value(*a)?, self.value(*b)?);
                let op = comparison(*op, scalar)?;
                Ok(self.op(op, ty, &[a, b]))
            }
            Expr::Select(condition, then, otherwise) => {
                let operands = [self.value(*condition)?, self.value(*then)?, self.value(*otherwise)?];
                Ok(self.op(Op::Select, ty, &operands))
            }
            Expr::Convert(to, a) => {
                let from = self.scalar_of(*a)?;
                let a = self.value(*a)?;
                Ok(self.convert(from, *to, a))
            }
            Expr::Bitcast(to, a) => {
                let from = self.scalar_of(*a)?;
                let a = self.value(*a)?;
                if from == *to { Ok(a) } else { Ok(self.op(Op::Bitcast, ty, &[a])) }
            }
            // Sums and products are decorated so that nothing is drawn together or reordered.
            Expr::Opaque(a) => self.value(*a),
            Expr::Join(low, high) => {
                let words = [self.value(*low)?, self.value(*high)?];
                let pair = self.vector(Scalar::U32, 2);
                let both = self.op(Op::CompositeConstruct, pair, &words);
                Ok(self.op(Op::Bitcast, ty, &[both]))
            }
            Expr::PackHalf(low, high) => {
                let (low, high) = (self.value(*low)?, self.value(*high)?);
                Ok(self.pack_half(low, high))
            }
            Expr::UnpackHalf(word, half) => {
                let word = self.value(*word)?;
                Ok(self.unpack_half(word, *half))
            }
            Expr::Vector(parts) => {
                let parts = parts.iter().map(|p| self.value(*p)).collect::<Result<Vec<_>, _>>()?;
                Ok(self.op(Op::CompositeConstruct, ty, &parts))
            }
            Expr::Extract(vector, lane) => {
                let vector = self.value(*vector)?;
                Ok(self.op(Op::CompositeExtract, ty, &[vector, u32::from(*lane)]))
            }
            Expr::Load { place: Storage::Arg(arg), index, lanes } => self.load_arg(*arg, *index, *lanes),
            Expr::Load { place: Storage::Shared(shared), index, lanes } => {
                let held = self.shared_decl(*shared)?.lanes;
                if held != *lanes {
                    return Err(Error::Invalid(format!("{lanes} lanes of a shared element of {held}")));
                }
                self.load_shared(*shared, *index, None)
            }
            Expr::LoadLane { shared, index, lane } => self.load_shared(*shared, *index, Some(*lane)),
            Expr::LoadUniform { arg, index } => self.load_arg(*arg, *index, 1),
            Expr::Atomic { place, index, op, value, comparand } => {
                self.atomic(*place, *index, *op, *value, *comparand, ty)
            }
            Expr::Subgroup(op, a, other) => self.subgroup(*op, *a, *other, ty),
            Expr::PackedDot { signed, a, b, accumulator } => self.packed_dot(*signed, *a, *b, *accumulator),
            Expr::MatrixSplat(matrix, number) => self.matrix_splat(*matrix, *number, ty),
            Expr::MatrixLoad { ty: matrix, place, index, layout } => {
                self.matrix_load(*matrix, *place, *index, *layout, ty)
            }
            Expr::MatrixMulAdd(a, b, c) => self.matrix_mul_add(*a, *b, *c, ty),
            Expr::MatrixBinary(op, a, b) => self.matrix_binary(*op, *a, *b, ty),
            Expr::MatrixOfWords(matrix, words) => self.matrix_of_words(*matrix, words, ty),
            Expr::MatrixWord(matrix, i) => self.matrix_word(*matrix, *i, ty),
            Expr::MatrixPart(matrix, part) => self.matrix_part(*matrix, *part, ty),
            Expr::MatrixOf(matrix, parts) => self.matrix_from_parts(*matrix, parts, ty),
        }
    }

    pub(super) fn variable(&self, var: VarId) -> Result<Id, Error> {
        let missing = || Error::Invalid(format!("no variable {}", var.0));
        self.vars.get(var.index()).copied().ok_or_else(missing)
    }

    fn unary(&mut self, op: UnaryOp, scalar: Scalar, ty: Id, a: Value) -> Result<Id, Error> {
        let wrong = || Error::Invalid(format!("{op:?} of {scalar}"));
        let a = self.value(a)?;
        let float = scalar.is_float();
        let glsl = match op {
            UnaryOp::Neg if float => return Ok(self.op(Op::FNegate, ty, &[a])),
            UnaryOp::Neg => return Ok(self.op(Op::SNegate, ty, &[a])),
            UnaryOp::Not if scalar == Scalar::Bool => return Ok(self.op(Op::LogicalNot, ty, &[a])),
            UnaryOp::Not if scalar.is_int() => return Ok(self.op(Op::Not, ty, &[a])),
            UnaryOp::CountOnes if scalar.bits() == 32 => return Ok(self.op(Op::BitCount, ty, &[a])),
            UnaryOp::LeadingZeros if scalar == Scalar::U32 => {
                // Of 0 the highest bit is -1.
                let highest = self.glsl(GlslStd450Op::FindUMsb, ty, &[a]);
                let top = self.m.u32(31);
                return Ok(self.op(Op::ISub, ty, &[top, highest]));
            }
            UnaryOp::Abs if float => GlslStd450Op::FAbs,
            UnaryOp::Abs => GlslStd450Op::SAbs,
            UnaryOp::Floor => GlslStd450Op::Floor,
            UnaryOp::Ceil => GlslStd450Op::Ceil,
            UnaryOp::Trunc => GlslStd450Op::Trunc,
            UnaryOp::RoundEven => GlslStd450Op::RoundEven,
            UnaryOp::Sqrt => GlslStd450Op::Sqrt,
            UnaryOp::InverseSqrt => GlslStd450Op::InverseSqrt,
            UnaryOp::Exp2 | UnaryOp::Log2 | UnaryOp::Sin | UnaryOp::Cos if scalar == Scalar::F64 => {
                return Err(Error::Missing(format!("{op:?} of f64")));
            }
            UnaryOp::Exp2 => GlslStd450Op::Exp2,
            UnaryOp::Log2 => GlslStd450Op::Log2,
            UnaryOp::Sin => GlslStd450Op::Sin,
            UnaryOp::Cos => GlslStd450Op::Cos,
            UnaryOp::Not | UnaryOp::CountOnes | UnaryOp::LeadingZeros => return Err(wrong()),
        };
        if !float && glsl != GlslStd450Op::SAbs {
            return Err(wrong());
        }
        Ok(self.glsl(glsl, ty, &[a]))
    }

    fn binary(&mut self, op: BinaryOp, scalar: Scalar, ty: Id, a: Id, b: Id) -> Result<Id, Error> {
        let wrong = || Error::Invalid(format!("{op:?} of {scalar}"));
        let (float, signed, bool) = (scalar.is_float(), scalar.is_signed_int(), scalar == Scalar::Bool);
        let by_sign = |of_signed, of_unsigned| if signed { of_signed } else { of_unsigned };
        let op = match op {
            BinaryOp::Add if float => return Ok(self.exact(Op::FAdd, ty, &[a, b])),
            BinaryOp::Sub if float => return Ok(self.exact(Op::FSub, ty, &[a, b])),
            BinaryOp::Mul if float => return Ok(self.exact(Op::FMul, ty, &[a, b])),
            BinaryOp::Div if float => return Ok(self.exact(Op::FDiv, ty, &[a, b])),
            BinaryOp::Min if float => return Ok(self.glsl(GlslStd450Op::FMin, ty, &[a, b])),
            BinaryOp::Max if float => return Ok(self.glsl(GlslStd450Op::FMax, ty, &[a, b])),
            _ if float => return Err(wrong()),
            BinaryOp::And if bool => Op::LogicalAnd,
            BinaryOp::Or if bool => Op::LogicalOr,
            BinaryOp::Xor if bool => Op::LogicalNotEqual,
            _ if bool => return Err(wrong()),
            BinaryOp::Add => Op::IAdd,
            BinaryOp::Sub => Op::ISub,
            BinaryOp::Mul => Op::IMul,
            BinaryOp::Div => by_sign(Op::SDiv, Op::UDiv),
            BinaryOp::Rem => by_sign(Op::SRem, Op::UMod),
            BinaryOp::Min => {
                let op = if signed { GlslStd450Op::SMin } else { GlslStd450Op::UMin };
                return Ok(self.glsl(op, ty, &[a, b]));
            }
            BinaryOp::Max => {
                let op = if signed { GlslStd450Op::SMax } else { GlslStd450Op::UMax };
                return Ok(self.glsl(op, ty, &[a, b]));
            }
            BinaryOp::And => Op::BitwiseAnd,
            BinaryOp::Or => Op::BitwiseOr,
            BinaryOp::Xor => Op::BitwiseXor,
            BinaryOp::Shl => Op::ShiftLeftLogical,
            BinaryOp::Shr => by_sign(Op::ShiftRightArithmetic, Op::ShiftRightLogical),
            BinaryOp::MulHigh if scalar == Scalar::U32 => {
                let pair = self.m.ty(Op::TypeStruct, &[ty, ty]);
                let both = self.op(Op::UMulExtended, pair, &[a, b]);
                return Ok(self.op(Op::CompositeExtract, ty, &[both, 1]));
            }
            BinaryOp::MulHigh => return Err(wrong()),
        };
        Ok(self.op(op, ty, &[a, b]))
    }

    /// A scalar as another scalar type.
    pub(super) fn convert(&mut self, from: Scalar, to: Scalar, a: Id) -> Id {
        let ty = self.scalar(to);
        if from == to {
            return a;
        }
        if to == Scalar::Bool {
            let zero = self.number(from, 0);
            let op = if from.is_float() { Op::FUnordNotEqual } else { Op::INotEqual };
            return self.op(op, ty, &[a, zero]);
        }
        if from == Scalar::Bool {
            let one = self.number(
                to,
                match to {
                    Scalar::F16 => 0x3c00,
                    Scalar::F32 => u64::from(1f32.to_bits()),
                    Scalar::F64 => 1f64.to_bits(),
                    _ => 1,
                },
            );
            let zero = self.number(to, 0);
            return self.op(Op::Select, ty, &[a, one, zero]);
        }
        match (from.is_float(), to.is_float()) {
            (true, true) => self.op(Op::FConvert, ty, &[a]),
            (true, false) if to.is_signed_int() => self.op(Op::ConvertFToS, ty, &[a]),
            (true, false) => self.op(Op::ConvertFToU, ty, &[a]),
            (false, true) if from.is_signed_int() => self.op(Op::ConvertSToF, ty, &[a]),
            (false, true) => self.op(Op::ConvertUToF, ty, &[a]),
            (false, false) => {
                let signed = from.is_signed_int();
                let mut widened = a;
                if from.bits() != to.bits() {
                    let (op, width) = match signed {
                        true => (Op::SConvert, self.m.int(to.bits())),
                        false => (Op::UConvert, self.m.uint(to.bits())),
                    };
                    widened = self.op(op, width, &[a]);
                }
                if signed == to.is_signed_int() { widened } else { self.op(Op::Bitcast, ty, &[widened]) }
            }
        }
    }
}

fn comparison(op: CompareOp, scalar: Scalar) -> Result<Op, Error> {
    let pick = |float, signed, unsigned| {
        if scalar.is_float() {
            float
        } else if scalar.is_signed_int() {
            signed
        } else {
            unsigned
        }
    };
    Ok(match op {
        CompareOp::Eq if scalar == Scalar::Bool => Op::LogicalEqual,
        CompareOp::Ne if scalar == Scalar::Bool => Op::LogicalNotEqual,
        _ if scalar == Scalar::Bool => return Err(Error::Invalid(format!("{op:?} of bool"))),
        CompareOp::Eq => pick(Op::FOrdEqual, Op::IEqual, Op::IEqual),
        CompareOp::Ne => pick(Op::FUnordNotEqual, Op::INotEqual, Op::INotEqual),
        CompareOp::Lt => pick(Op::FOrdLessThan, Op::SLessThan, Op::ULessThan),
        CompareOp::Le => pick(Op::FOrdLessThanEqual, Op::SLessThanEqual, Op::ULessThanEqual),
        CompareOp::Gt => pick(Op::FOrdGreaterThan, Op::SGreaterThan, Op::UGreaterThan),
        CompareOp::Ge => pick(Op::FOrdGreaterThanEqual, Op::SGreaterThanEqual, Op::UGreaterThanEqual),
    })
}

/// The scalar type of a value that must be one scalar.
pub(super) fn single(ty: Type) -> Result<Scalar, Error> {
    match ty {
        Type::Scalar(s) => Ok(s),
        other => Err(Error::Invalid(format!("{other} where a scalar is needed"))),
    }
}
