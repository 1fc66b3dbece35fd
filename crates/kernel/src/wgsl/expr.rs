//! Values: each is a `let` of its block, but numbers, params and builtins stand where they are used.

use super::binding::{def, unknown};
use super::helper::Helper;
use super::literal::literal;
use super::pairs;
use super::{Dialect, Printer};
use crate::Error;
use crate::ir::*;
use crate::types::{Elem, MatrixType, Scalar, Type};

impl<'k> Printer<'k> {
    pub(super) fn def(&self, value: Value) -> Result<&'k Def, Error> {
        def(self.kernel, value)
    }

    /// A value as an operand.
    pub(super) fn value(&mut self, value: Value) -> Result<String, Error> {
        Ok(match &self.def(value)?.expr {
            Expr::Const(scalar, bits) if self.is_pair(*scalar) => pairs::literal(*bits),
            Expr::Const(scalar, bits) => literal(*scalar, *bits).unwrap_or_else(|| format!("k{}", value.0)),
            Expr::Param(param) => match self.param_names.get(param.index()) {
                Some(name) => format!("params.{name}"),
                None => return Err(unknown(self.kernel, "param", param.0)),
            },
            Expr::Builtin(builtin) => self.builtin(*builtin)?,
            _ => format!("v{}", value.0),
        })
    }

    /// Operands of one operation. At least one is no constant expression: those are evaluated when the module is
    /// made, where an overflow, which is nothing special at run time, is an error.
    fn operands<const N: usize>(&mut self, values: [Value; N]) -> Result<[String; N], Error> {
        let mut texts = [const { String::new() }; N];
        let mut constant = true;
        for (text, value) in texts.iter_mut().zip(values) {
            *text = self.value(value)?;
            constant &= matches!(self.def(value)?.expr, Expr::Const(..));
        }
        if constant && let Some(first) = texts.first_mut() {
            let name = self.name();
            self.line(format_args!("let {name} = {first};"));
            *first = name;
        }
        Ok(texts)
    }

    fn builtin(&mut self, builtin: Builtin) -> Result<String, Error> {
        let axis = |d: u8| match d {
            0 => Ok('x'),
            1 => Ok('y'),
            2 => Ok('z'),
            _ => self.invalid(format_args!("dimension {d} of the grid")),
        };
        let (text, declaration) = match builtin {
            Builtin::GroupId(d) => {
                (format!("group_id.{}", axis(d)?), "@builtin(workgroup_id) group_id: vec3<u32>")
            }
            Builtin::GroupCount(d) => {
                (format!("group_count.{}", axis(d)?), "@builtin(num_workgroups) group_count: vec3<u32>")
            }
            Builtin::LocalIndex => {
                ("local_index".to_owned(), "@builtin(local_invocation_index) local_index: u32")
            }
            Builtin::Lane => ("lane".to_owned(), "@builtin(subgroup_invocation_id) lane: u32"),
            Builtin::SubgroupId => ("subgroup_id".to_owned(), "@builtin(subgroup_id) subgroup_id: u32"),
        };
        if matches!(builtin, Builtin::Lane | Builtin::SubgroupId) {
            self.needs_subgroups()?;
        }
        self.builtins.insert(declaration);
        Ok(text)
    }

    pub(super) fn needs_subgroups(&self) -> Result<(), Error> {
        match self.options.dialect {
            Dialect::Native => Ok(()),
            Dialect::Plain => {
                Err(Error::Missing(format!("subgroups in plain WGSL, which `{}` uses", self.kernel.name)))
            }
        }
    }

    fn scalar(&self, value: Value) -> Result<Scalar, Error> {
        match self.def(value)?.ty {
            Type::Scalar(s) => Ok(s),
            other => self.invalid(format_args!("%{} is {other}, not a scalar", value.0)),
        }
    }

    /// The statement that computes a value.
    pub(super) fn compute(&mut self, value: Value) -> Result<(), Error> {
        let def = self.def(value)?;
        let text = match &def.expr {
            // They stand where they are used.
            Expr::Const(..) | Expr::Builtin(_) | Expr::Param(_) => return Ok(()),
            Expr::Counter => return self.invalid(format_args!("%{}: a counter outside its loop", value.0)),
            Expr::Get(var) => match self.kernel.vars.get(var.index()) {
                Some(_) => format!("x{}", var.0),
                None => return Err(unknown(self.kernel, "variable", var.0)),
            },
            Expr::Unary(op, a) => self.unary(*op, *a)?,
            Expr::Binary(op, a, b) => self.binary(*op, *a, *b)?,
            Expr::Fma(a, b, c) => {
                let [a, b, c] = self.operands([*a, *b, *c])?;
                format!("fma({a}, {b}, {c})")
            }
            Expr::Compare(op, a, b) if self.has_pairs(*a)? => {
                let scalar = self.scalar(*a)?;
                let [a, b] = self.operands([*a, *b])?;
                self.pair_compare(*op, scalar, &a, &b)
            }
            Expr::Compare(op, a, b) => {
                let [a, b] = self.operands([*a, *b])?;
                let op = match op {
                    CompareOp::Eq => "==",
                    CompareOp::Ne => "!=",
                    CompareOp::Lt => "<",
                    CompareOp::Le => "<=",
                    CompareOp::Gt => ">",
                    CompareOp::Ge => ">=",
                };
                format!("{a} {op} {b}")
            }
            Expr::Select(condition, then, otherwise) => {
                let [condition, then, otherwise] = self.operands([*condition, *then, *otherwise])?;
                format!("select({otherwise}, {then}, {condition})")
            }
            Expr::Convert(to, a) => self.convert(*to, *a)?,
            // Signed and unsigned pairs are one type.
            Expr::Bitcast(_, a) if self.has_pairs(*a)? => self.value(*a)?,
            Expr::Bitcast(to, a) => {
                let [a] = self.operands([*a])?;
                format!("bitcast<{to}>({a})")
            }
            Expr::Opaque(a) => {
                let scalar = self.scalar(*a)?;
                let a = self.value(*a)?;
                match scalar {
                    Scalar::F32 => format!("bitcast<f32>(bitcast<u32>({a}) ^ params.zero)"),
                    Scalar::F64 => format!("bitcast<f64>(bitcast<u64>({a}) ^ u64(params.zero))"),
                    other => return self.invalid(format_args!("opaque of {other}")),
                }
            }
            Expr::Join(low, high) if self.is_pair(Scalar::U64) => {
                let [low, high] = self.operands([*low, *high])?;
                format!("{}({low}, {high})", pairs::PAIR)
            }
            Expr::Join(low, high) => {
                let [low, high] = self.operands([*low, *high])?;
                format!("u64({low}) | (u64({high}) << 32u)")
            }
            Expr::PackHalf(low, high) => {
                let [low, high] = self.operands([*low, *high])?;
                let half = self.helper(Helper::Half);
                format!("{half}({low}) | ({half}({high}) << 16u)")
            }
            Expr::UnpackHalf(word, half) => {
                let [word] = self.operands([*word])?;
                format!("unpack2x16float({word}).{}", if *half == 0 { 'x' } else { 'y' })
            }
            Expr::Vector(parts) => {
                let mut texts = Vec::with_capacity(parts.len());
                for part in parts {
                    texts.push(self.value(*part)?);
                }
                format!("{}({})", self.type_name(def.ty)?, texts.join(", "))
            }
            Expr::Extract(vector, lane) => {
                let text = self.value(*vector)?;
                match self.def(*vector)?.ty {
                    Type::Vector(scalar, _) => self.part(&text, scalar, *lane)?,
                    _ => format!("{text}.{}", self.component(*lane)?),
                }
            }
            Expr::Load { place, index, lanes } => self.load(*place, *index, *lanes)?,
            Expr::LoadLane { shared, index, lane } => self.load_lane(*shared, *index, *lane)?,
            Expr::LoadUniform { arg, index } => self.load_uniform(*arg, *index)?,
            Expr::Atomic { place, index, op, value: operand, comparand } => {
                return self.atomic(value, *place, *index, *op, *operand, *comparand);
            }
            Expr::Subgroup(op, a, other) => self.subgroup(*op, *a, *other)?,
            Expr::PackedDot { signed, a, b, accumulator } => {
                let word = |k: &mut Self, v: Value| -> Result<String, Error> {
                    let text = k.value(v)?;
                    Ok(if k.scalar(v)? == Scalar::I32 { format!("bitcast<u32>({text})") } else { text })
                };
                let (a, b) = (word(self, *a)?, word(self, *b)?);
                let dot = if *signed { "dot4I8Packed" } else { "dot4U8Packed" };
                format!("{} + {dot}({a}, {b})", self.value(*accumulator)?)
            }
            Expr::MatrixSplat(ty, number) => self.splat(*ty, *number)?,
            Expr::MatrixLoad { ty, place, index, layout } => {
                self.load_matrix(*ty, *place, *index, *layout)?
            }
            Expr::MatrixMulAdd(a, b, c) => {
                let (a, b, c) = (self.value(*a)?, self.value(*b)?, self.value(*c)?);
                format!("coopMultiplyAdd({a}, {b}, {c})")
            }
            Expr::MatrixBinary(op, a, b) => self.matrix_binary(*op, *a, *b)?,
            Expr::MatrixOfWords(..) | Expr::MatrixWord(..) => {
                return Err(Error::Missing("the words of cooperative matrices in WGSL".into()));
            }
            Expr::MatrixPart(..) | Expr::MatrixOf(..) => {
                return Err(Error::Missing("elements of cooperative matrices in WGSL".into()));
            }
        };
        self.line(format_args!("let v{} = {text};", value.0));
        Ok(())
    }

    pub(super) fn component(&self, lane: u8) -> Result<char, Error> {
        match lane {
            0 => Ok('x'),
            1 => Ok('y'),
            2 => Ok('z'),
            3 => Ok('w'),
            _ => self.invalid(format_args!("component {lane} of a vector")),
        }
    }

    fn unary(&mut self, op: UnaryOp, a: Value) -> Result<String, Error> {
        let scalar = self.scalar(a)?;
        let [a] = self.operands([a])?;
        if self.is_pair(scalar) {
            return self.pair_unary(op, scalar, &a);
        }
        let function = match op {
            UnaryOp::Neg => return Ok(format!("-{a}")),
            UnaryOp::Not if scalar == Scalar::Bool => return Ok(format!("!{a}")),
            UnaryOp::Not => return Ok(format!("~{a}")),
            UnaryOp::Abs => "abs",
            UnaryOp::Floor => "floor",
            UnaryOp::Ceil => "ceil",
            UnaryOp::Trunc => "trunc",
            UnaryOp::RoundEven => "round",
            UnaryOp::Sqrt => "sqrt",
            UnaryOp::InverseSqrt => "inverseSqrt",
            UnaryOp::Exp2 => "exp2",
            UnaryOp::Log2 => "log2",
            UnaryOp::Sin => "sin",
            UnaryOp::Cos => "cos",
            UnaryOp::CountOnes => "countOneBits",
            UnaryOp::LeadingZeros => "countLeadingZeros",
        };
        Ok(format!("{function}({a})"))
    }

    fn binary(&mut self, op: BinaryOp, a: Value, b: Value) -> Result<String, Error> {
        let scalar = self.scalar(a)?;
        let count = match self.def(b)?.expr {
            Expr::Const(_, bits) => Some(format!("{}u", bits as u32)),
            _ => None,
        };
        let [a, b] = self.operands([a, b])?;
        if self.is_pair(scalar) {
            return self.pair_binary(op, scalar, [&a, &b], count);
        }
        let operator = match op {
            BinaryOp::Add => "+",
            BinaryOp::Sub => "-",
            BinaryOp::Mul => "*",
            BinaryOp::Div => "/",
            BinaryOp::Rem => "%",
            BinaryOp::And => "&",
            BinaryOp::Or => "|",
            BinaryOp::Xor if scalar == Scalar::Bool => "!=",
            BinaryOp::Xor => "^",
            BinaryOp::Min => return Ok(format!("min({a}, {b})")),
            BinaryOp::Max => return Ok(format!("max({a}, {b})")),
            BinaryOp::Shl | BinaryOp::Shr => {
                let count = match count {
                    Some(literal) => literal,
                    None if scalar == Scalar::U32 => b,
                    None => format!("u32({b})"),
                };
                let operator = if op == BinaryOp::Shl { "<<" } else { ">>" };
                return Ok(format!("{a} {operator} {count}"));
            }
            BinaryOp::MulHigh => {
                let helper = self.helper(Helper::MulHigh);
                return Ok(format!("{helper}({a}, {b})"));
            }
        };
        Ok(format!("{a} {operator} {b}"))
    }

    fn convert(&mut self, to: Scalar, a: Value) -> Result<String, Error> {
        let from = self.scalar(a)?;
        let [a] = self.operands([a])?;
        if from != to && (self.is_pair(from) || self.is_pair(to)) {
            return self.pair_convert(from, to, &a);
        }
        Ok(match (from, to) {
            _ if from == to => a,
            (Scalar::Bool, _) => format!("select({}, {}, {a})", small(to, false), small(to, true)),
            (_, Scalar::Bool) => format!("{a} != {}", small(from, false)),
            // Width and signedness change one after the other, the width as the operand's signedness says.
            (Scalar::I32, Scalar::U64) => format!("bitcast<u64>(i64({a}))"),
            (Scalar::U32, Scalar::I64) => format!("bitcast<i64>(u64({a}))"),
            (Scalar::I64, Scalar::U32) => format!("u32(bitcast<u64>({a}))"),
            (Scalar::U64, Scalar::I32) => format!("i32(bitcast<i64>({a}))"),
            (Scalar::I64, Scalar::U64) | (Scalar::U64, Scalar::I64) => format!("bitcast<{to}>({a})"),
            _ => format!("{to}({a})"),
        })
    }

    fn subgroup(&mut self, op: SubgroupOp, a: Value, other: Option<Value>) -> Result<String, Error> {
        self.needs_subgroups()?;
        let a = self.value(a)?;
        let function = match op {
            SubgroupOp::Add => "subgroupAdd",
            SubgroupOp::Min => "subgroupMin",
            SubgroupOp::Max => "subgroupMax",
            SubgroupOp::InclusiveAdd => "subgroupInclusiveAdd",
            SubgroupOp::ExclusiveAdd => "subgroupExclusiveAdd",
            SubgroupOp::Any => "subgroupAny",
            SubgroupOp::All => "subgroupAll",
            SubgroupOp::ShuffleXor => "subgroupShuffleXor",
            SubgroupOp::Shuffle => "subgroupShuffle",
        };
        Ok(match other {
            Some(other) => format!("{function}({a}, {})", self.value(other)?),
            None => format!("{function}({a})"),
        })
    }

    fn splat(&mut self, ty: MatrixType, number: Value) -> Result<String, Error> {
        match self.def(number)?.expr {
            Expr::Const(_, 0) => Ok(format!("{}()", self.matrix_type(ty)?)),
            _ => self.missing("cooperative matrix made of a number other than zero"),
        }
    }

    fn matrix_binary(&mut self, op: BinaryOp, a: Value, b: Value) -> Result<String, Error> {
        let (left, right) = (self.value(a)?, self.value(b)?);
        match (op, self.def(a)?.ty) {
            (BinaryOp::Add, _) => Ok(format!("{left} + {right}")),
            (BinaryOp::Mul, Type::Matrix(MatrixType { elem: Elem::F16, .. }))
                if self.scalar(b)? != Scalar::F16 =>
            {
                Ok(format!("{left} * f16({right})"))
            }
            (BinaryOp::Mul, _) => Ok(format!("{left} * {right}")),
            _ => self.invalid(format_args!("{op:?} of cooperative matrices")),
        }
    }
}

/// 0 or 1 of a type.
fn small(scalar: Scalar, one: bool) -> String {
    let bits = match scalar {
        Scalar::F16 => 0x3c00,
        Scalar::F32 => 0x3f80_0000,
        Scalar::F64 => 0x3ff0_0000_0000_0000,
        _ => 1,
    };
    literal(scalar, if one { bits } else { 0 }).unwrap_or_default()
}
