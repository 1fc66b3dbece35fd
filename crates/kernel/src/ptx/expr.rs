//! Expressions.

use super::{Class, Printer, Reg, suffix};
use crate::Error;
use crate::ir::*;
use crate::types::{Scalar, Type};

impl Printer<'_> {
    /// Computes a value where the code stands.
    pub(super) fn define(&mut self, value: Value) -> Result<(), Error> {
        let def = self.def(value)?;
        let regs = self.expression(def)?;
        self.set(value, regs);
        Ok(())
    }

    fn expression(&mut self, def: &Def) -> Result<Vec<Reg>, Error> {
        let one = |reg: Reg| Ok(vec![reg]);
        match &def.expr {
            Expr::Const(..) | Expr::Builtin(_) | Expr::Param(_) | Expr::Counter => {
                Err(Error::Invalid("a constant, a param or a counter computed by a statement".into()))
            }
            Expr::Get(var) => {
                let (from, to) = (self.variable(*var)?, self.registers(def.ty)?);
                to.iter().zip(from).for_each(|(to, from)| self.copy(*to, from));
                Ok(to)
            }
            Expr::Unary(op, a) => {
                let scalar = self.scalar_of(*a)?;
                let a = self.single(*a)?;
                one(self.unary(*op, scalar, a)?)
            }
            Expr::Binary(op, a, b) => {
                let scalar = self.scalar_of(*a)?;
                let (a, b) = (self.single(*a)?, self.single(*b)?);
                one(self.binary(*op, scalar, a, b)?)
            }
            Expr::Fma(a, b, c) => {
                let scalar = self.scalar_of(*a)?;
                let operands = [self.single(*a)?, self.single(*b)?, self.single(*c)?];
                one(self.op(format_args!("fma.rn.{}", suffix(scalar)), Class::of(scalar), &operands))
            }
            Expr::Compare(op, a, b) => {
                let scalar = self.scalar_of(*a)?;
                let (a, b) = (self.single(*a)?, self.single(*b)?);
                one(self.compare(*op, scalar, a, b)?)
            }
            Expr::Select(condition, then, otherwise) => {
                let condition = self.single(*condition)?;
                let (then, otherwise) = (self.value(*then)?, self.value(*otherwise)?);
                let pairs = then.into_iter().zip(otherwise);
                Ok(pairs.map(|(a, b)| self.select(condition, a, b)).collect())
            }
            Expr::Convert(to, a) => {
                let from = self.scalar_of(*a)?;
                let a = self.single(*a)?;
                one(self.convert(from, *to, a))
            }
            // Registers have a width and no type, and every instruction is exactly rounded.
            Expr::Bitcast(_, a) | Expr::Opaque(a) => self.value(*a),
            Expr::Join(low, high) => {
                let (low, high, result) = (self.single(*low)?, self.single(*high)?, self.reg(Class::B64));
                self.put(format_args!("mov.b64 {result}, {{{low}, {high}}}"));
                one(result)
            }
            Expr::PackHalf(low, high) => {
                let (low, high) = (self.single(*low)?, self.single(*high)?);
                one(self.pack_half(low, high))
            }
            Expr::UnpackHalf(word, half) => {
                let word = self.single(*word)?;
                let halves = self.unpack_b16(word);
                one(self.convert(Scalar::F16, Scalar::F32, halves[usize::from(*half & 1)]))
            }
            Expr::Vector(parts) => parts.iter().map(|p| self.single(*p)).collect(),
            Expr::Extract(vector, lane) => {
                let parts = self.value(*vector)?;
                let missing = || Error::Invalid(format!("component {lane} of %{}", vector.0));
                one(*parts.get(usize::from(*lane)).ok_or_else(missing)?)
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
                one(self.atomic(*place, *index, *op, *value, *comparand)?)
            }
            Expr::Subgroup(op, a, other) => one(self.subgroup(*op, *a, *other)?),
            Expr::PackedDot { signed, a, b, accumulator } => {
                let operands = [self.single(*a)?, self.single(*b)?, self.single(*accumulator)?];
                let name = if *signed { "dp4a.s32.s32" } else { "dp4a.u32.u32" };
                one(self.op(name, Class::B32, &operands))
            }
            Expr::MatrixSplat(matrix, number) => self.matrix_splat(*matrix, *number),
            Expr::MatrixLoad { ty, place, index, layout } => self.matrix_load(*ty, *place, *index, *layout),
            Expr::MatrixMulAdd(a, b, c) => self.matrix_mul_add(*a, *b, *c),
            Expr::MatrixBinary(op, a, b) => self.matrix_binary(*op, *a, *b),
            Expr::MatrixOfWords(_, words) => words.iter().map(|w| self.single(*w)).collect(),
            Expr::MatrixWord(matrix, i) => {
                let words = self.value(*matrix)?;
                let missing = || Error::Invalid(format!("word {i} of %{}", matrix.0));
                one(*words.get(usize::from(*i)).ok_or_else(missing)?)
            }
            Expr::MatrixPart(matrix, part) => one(self.matrix_part(*matrix, *part)?),
            Expr::MatrixOf(matrix, parts) => self.matrix_from_parts(*matrix, parts),
        }
    }

    pub(super) fn select(&mut self, condition: Reg, then: Reg, otherwise: Reg) -> Reg {
        if then.class != Class::Predicate {
            let name = format!("selp.{}", then.class.suffix());
            return self.op(name, then.class, &[then, otherwise, condition]);
        }
        let no = self.op("not.pred", Class::Predicate, &[condition]);
        let first = self.op("and.pred", Class::Predicate, &[condition, then]);
        let second = self.op("and.pred", Class::Predicate, &[no, otherwise]);
        self.op("or.pred", Class::Predicate, &[first, second])
    }

    fn unary(&mut self, op: UnaryOp, scalar: Scalar, a: Reg) -> Result<Reg, Error> {
        let wrong = || Error::Invalid(format!("{op:?} of {scalar}"));
        let (float, class, s) = (scalar.is_float(), Class::of(scalar), suffix(scalar));
        let bits = class.suffix();
        if scalar == Scalar::F16 && is_function(op) {
            // There are no such instructions, or less exact ones; f32 has bits enough that rounding twice is no error.
            let wide = self.convert(Scalar::F16, Scalar::F32, a);
            let result = self.unary(op, Scalar::F32, wide)?;
            return Ok(self.convert(Scalar::F32, Scalar::F16, result));
        }
        let name = match op {
            UnaryOp::Neg if float || scalar.is_signed_int() => format!("neg.{s}"),
            UnaryOp::Abs if float || scalar.is_signed_int() => format!("abs.{s}"),
            UnaryOp::Not if !float => format!("not.{bits}"),
            UnaryOp::CountOnes if scalar.is_int() && scalar.bits() == 32 => "popc.b32".into(),
            UnaryOp::LeadingZeros if scalar == Scalar::U32 => "clz.b32".into(),
            _ if !float => return Err(wrong()),
            UnaryOp::Floor => format!("cvt.rmi.{s}.{s}"),
            UnaryOp::Ceil => format!("cvt.rpi.{s}.{s}"),
            UnaryOp::Trunc => format!("cvt.rzi.{s}.{s}"),
            UnaryOp::RoundEven => format!("cvt.rni.{s}.{s}"),
            UnaryOp::Sqrt => format!("sqrt.rn.{s}"),
            UnaryOp::InverseSqrt if scalar == Scalar::F64 => {
                let root = self.op("sqrt.rn.f64", class, &[a]);
                return Ok(self.op("rcp.rn.f64", class, &[root]));
            }
            UnaryOp::InverseSqrt => "rsqrt.approx.f32".into(),
            UnaryOp::Exp2 | UnaryOp::Log2 | UnaryOp::Sin | UnaryOp::Cos if scalar == Scalar::F64 => {
                return Err(Error::Missing(format!("{op:?} of f64")));
            }
            UnaryOp::Exp2 => "ex2.approx.f32".into(),
            UnaryOp::Log2 => "lg2.approx.f32".into(),
            UnaryOp::Sin => "sin.approx.f32".into(),
            UnaryOp::Cos => "cos.approx.f32".into(),
            UnaryOp::Neg | UnaryOp::Abs | UnaryOp::Not | UnaryOp::CountOnes | UnaryOp::LeadingZeros => {
                return Err(wrong());
            }
        };
        Ok(self.op(name, class, &[a]))
    }

    pub(super) fn binary(&mut self, op: BinaryOp, scalar: Scalar, a: Reg, b: Reg) -> Result<Reg, Error> {
        let wrong = || Error::Invalid(format!("{op:?} of {scalar}"));
        let (float, class, s) = (scalar.is_float(), Class::of(scalar), suffix(scalar));
        let bits = class.suffix();
        let bitwise = scalar.is_int() || scalar == Scalar::Bool;
        let name = match op {
            BinaryOp::And if bitwise => format!("and.{bits}"),
            BinaryOp::Or if bitwise => format!("or.{bits}"),
            BinaryOp::Xor if bitwise => format!("xor.{bits}"),
            _ if scalar == Scalar::Bool => return Err(wrong()),
            // A named rounding mode keeps sums and products apart.
            BinaryOp::Add if float => format!("add.rn.{s}"),
            BinaryOp::Sub if float => format!("sub.rn.{s}"),
            BinaryOp::Mul if float => format!("mul.rn.{s}"),
            BinaryOp::Div if scalar == Scalar::F16 => {
                let [a, b] = [a, b].map(|x| self.convert(Scalar::F16, Scalar::F32, x));
                let quotient = self.op("div.rn.f32", Class::B32, &[a, b]);
                return Ok(self.convert(Scalar::F32, Scalar::F16, quotient));
            }
            BinaryOp::Div if float => format!("div.rn.{s}"),
            BinaryOp::Min => format!("min.{s}"),
            BinaryOp::Max => format!("max.{s}"),
            _ if float => return Err(wrong()),
            BinaryOp::Add => format!("add.{s}"),
            BinaryOp::Sub => format!("sub.{s}"),
            BinaryOp::Mul => format!("mul.lo.{s}"),
            BinaryOp::Div => format!("div.{s}"),
            BinaryOp::Rem => format!("rem.{s}"),
            BinaryOp::Shl | BinaryOp::Shr => {
                let count = if class == Class::B64 { self.convert(Scalar::U64, Scalar::U32, b) } else { b };
                let name = if op == BinaryOp::Shl { format!("shl.{bits}") } else { format!("shr.{s}") };
                return Ok(self.op(name, class, &[a, count]));
            }
            BinaryOp::MulHigh if scalar == Scalar::U32 => "mul.hi.u32".into(),
            BinaryOp::MulHigh | BinaryOp::And | BinaryOp::Or | BinaryOp::Xor => return Err(wrong()),
        };
        Ok(self.op(name, class, &[a, b]))
    }

    fn compare(&mut self, op: CompareOp, scalar: Scalar, a: Reg, b: Reg) -> Result<Reg, Error> {
        if scalar == Scalar::Bool {
            let differ = self.op("xor.pred", Class::Predicate, &[a, b]);
            return match op {
                CompareOp::Ne => Ok(differ),
                CompareOp::Eq => Ok(self.op("not.pred", Class::Predicate, &[differ])),
                _ => Err(Error::Invalid(format!("{op:?} of bool"))),
            };
        }
        let name = match op {
            CompareOp::Eq => "eq",
            CompareOp::Ne if scalar.is_float() => "neu",
            CompareOp::Ne => "ne",
            CompareOp::Lt => "lt",
            CompareOp::Le => "le",
            CompareOp::Gt => "gt",
            CompareOp::Ge => "ge",
        };
        Ok(self.op(format_args!("setp.{name}.{}", suffix(scalar)), Class::Predicate, &[a, b]))
    }
}

/// Functions that f16 takes from f32.
fn is_function(op: UnaryOp) -> bool {
    matches!(
        op,
        UnaryOp::Sqrt
            | UnaryOp::InverseSqrt
            | UnaryOp::Exp2
            | UnaryOp::Log2
            | UnaryOp::Sin
            | UnaryOp::Cos
            | UnaryOp::Floor
            | UnaryOp::Ceil
            | UnaryOp::Trunc
            | UnaryOp::RoundEven
    )
}

/// The scalar type of a value that must be one scalar.
pub(super) fn scalar(ty: Type) -> Result<Scalar, Error> {
    match ty {
        Type::Scalar(s) => Ok(s),
        other => Err(Error::Invalid(format!("{other} where a scalar is needed"))),
    }
}
