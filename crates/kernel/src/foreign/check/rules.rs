//! Instructions that compute a value from values: what their operands' types must be.

use rspirv::spirv::Op;

use super::{Globals, Problem, Type};

/// What a scalar or a vector is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Bool,
    Int(u32),
    Float(u32),
}

/// A scalar or vector: kind and number of components, 1 for a scalar.
pub(super) type Lanes = (Kind, u32);

impl Globals {
    /// A type as lanes, if it is a scalar or vector.
    pub(super) fn lanes(&self, ty: u32) -> Option<Lanes> {
        match self.ty(ty)? {
            Type::Bool => Some((Kind::Bool, 1)),
            Type::Int { bits, .. } => Some((Kind::Int(*bits), 1)),
            Type::Float(bits) => Some((Kind::Float(*bits), 1)),
            Type::Vector(of, count) => self.lanes(*of).map(|(kind, _)| (kind, *count)),
            _ => None,
        }
    }

    /// Checks an instruction on scalars and vectors by its operands' types; `None` where it is none, or an operand is
    /// neither.
    pub(super) fn computes(&self, op: Op, ty: u32, operands: &[u32]) -> Option<Result<(), Problem>> {
        use Kind::{Bool, Float, Int};
        let wrong = || Some(Err(format!("{op:?} on operands that it does not take")));
        let lanes: Option<Vec<Lanes>> = operands.iter().map(|ty| self.lanes(*ty)).collect();
        let (Some(lanes), Some((kind, count))) = (lanes, self.lanes(ty)) else {
            return None;
        };
        let same = |n: usize| lanes.len() == n && lanes.iter().all(|l| *l == (kind, count));
        let bools = (kind, count);
        let compares = |n: usize, float: bool| {
            let first = lanes.first().copied().unwrap_or((Bool, 0));
            let numbers = match first.0 {
                Float(_) => float,
                Int(_) => !float,
                Bool => false,
            };
            lanes.len() == n && lanes.iter().all(|l| *l == first) && numbers && bools == (Bool, first.1)
        };
        let converts = |from: fn(Kind) -> bool, to: fn(Kind) -> bool| match lanes.as_slice() {
            [(k, n)] => from(*k) && to(kind) && *n == count,
            _ => false,
        };
        let is_int = |k: Kind| matches!(k, Int(_));
        let is_float = |k: Kind| matches!(k, Float(_));
        let fits = match op {
            Op::SNegate | Op::Not => same(1) && is_int(kind),
            Op::FNegate => same(1) && is_float(kind),
            Op::IAdd
            | Op::ISub
            | Op::IMul
            | Op::UDiv
            | Op::SDiv
            | Op::UMod
            | Op::SRem
            | Op::SMod
            | Op::BitwiseOr
            | Op::BitwiseXor
            | Op::BitwiseAnd => same(2) && is_int(kind),
            Op::FAdd | Op::FSub | Op::FMul | Op::FDiv | Op::FRem | Op::FMod => same(2) && is_float(kind),
            Op::ShiftRightLogical | Op::ShiftRightArithmetic | Op::ShiftLeftLogical => match lanes.as_slice()
            {
                [base, (Int(_), n)] => *base == (kind, count) && is_int(kind) && *n == count,
                _ => false,
            },
            Op::BitReverse | Op::BitCount => same(1) && kind == Int(32),
            Op::BitFieldInsert => match lanes.as_slice() {
                [a, b, (Int(32), 1), (Int(32), 1)] => {
                    *a == (kind, count) && *b == (kind, count) && kind == Int(32)
                }
                _ => false,
            },
            Op::BitFieldSExtract | Op::BitFieldUExtract => match lanes.as_slice() {
                [a, (Int(32), 1), (Int(32), 1)] => *a == (kind, count) && kind == Int(32),
                _ => false,
            },
            Op::LogicalEqual | Op::LogicalNotEqual | Op::LogicalOr | Op::LogicalAnd => {
                same(2) && kind == Bool
            }
            Op::LogicalNot => same(1) && kind == Bool,
            Op::Any | Op::All => (kind, count) == (Bool, 1) && matches!(lanes.as_slice(), [(Bool, 2..)]),
            Op::IsNan | Op::IsInf => compares(1, true),
            Op::IEqual
            | Op::INotEqual
            | Op::UGreaterThan
            | Op::SGreaterThan
            | Op::UGreaterThanEqual
            | Op::SGreaterThanEqual
            | Op::ULessThan
            | Op::SLessThan
            | Op::ULessThanEqual
            | Op::SLessThanEqual => compares(2, false),
            Op::FOrdEqual
            | Op::FUnordEqual
            | Op::FOrdNotEqual
            | Op::FUnordNotEqual
            | Op::FOrdLessThan
            | Op::FUnordLessThan
            | Op::FOrdGreaterThan
            | Op::FUnordGreaterThan
            | Op::FOrdLessThanEqual
            | Op::FUnordLessThanEqual
            | Op::FOrdGreaterThanEqual
            | Op::FUnordGreaterThanEqual => compares(2, true),
            Op::Select => match (lanes.as_slice(), operands) {
                ([(Bool, n), ..], [_, a, b]) => *a == ty && *b == ty && *n == count,
                _ => false,
            },
            Op::ConvertFToU | Op::ConvertFToS => converts(is_float, is_int),
            Op::ConvertSToF | Op::ConvertUToF => converts(is_int, is_float),
            Op::UConvert | Op::SConvert => converts(is_int, is_int) && !same(1),
            Op::FConvert => converts(is_float, is_float) && !same(1),
            Op::Bitcast => match lanes.as_slice() {
                [(k, n)] => {
                    let bits = |k: Kind| match k {
                        Bool => 0,
                        Int(bits) | Float(bits) => bits,
                    };
                    bits(*k) * n == bits(kind) * count && bits(kind) > 0 && operands != [ty]
                }
                _ => false,
            },
            Op::VectorTimesScalar => match lanes.as_slice() {
                [vector, scalar] => {
                    *vector == (kind, count) && count > 1 && *scalar == (kind, 1) && is_float(kind)
                }
                _ => false,
            },
            Op::Dot => match lanes.as_slice() {
                [a, b] => a == b && a.1 > 1 && (kind, count) == (a.0, 1) && is_float(kind),
                _ => false,
            },
            Op::VectorExtractDynamic => match lanes.as_slice() {
                [(k, 2..), (Int(_), 1)] => *k == kind && count == 1,
                _ => false,
            },
            Op::VectorInsertDynamic => match lanes.as_slice() {
                [vector, (k, 1), (Int(_), 1)] => *vector == (kind, count) && count > 1 && *k == kind,
                _ => false,
            },
            _ => return None,
        };
        // Signs of integers may differ; other types are the same when their lanes are.
        if fits { Some(Ok(())) } else { wrong() }
    }
}
