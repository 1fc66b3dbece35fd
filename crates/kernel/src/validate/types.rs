//! The type of each expression, derived from its operands.

use super::scope::Scope;
use crate::Error;
use crate::ir::*;
use crate::types::{Elem, Fragments, MatrixSupport, MatrixType, MatrixUse, Scalar, Type};

const BOOL: Type = Type::Scalar(Scalar::Bool);
const F32: Type = Type::Scalar(Scalar::F32);
const U32: Type = Type::Scalar(Scalar::U32);

impl Scope<'_, '_> {
    /// The type of value `at`, an expression.
    pub(super) fn expr(&self, at: Value, expr: &Expr) -> Result<Type, Error> {
        let kernel = self.rules.kernel;
        let ty = match expr {
            Expr::Const(scalar, bits) => {
                let width = scalar.bits();
                if width < 64 && bits >> width != 0 {
                    return self.wrong(at, format_args!("{bits:#x} does not fit {scalar}"));
                }
                Type::Scalar(*scalar)
            }
            Expr::Builtin(builtin) => {
                match builtin {
                    Builtin::GroupId(d) | Builtin::GroupCount(d) if *d > 2 => {
                        return self.wrong(at, format_args!("dimension {d} of the grid"));
                    }
                    Builtin::Lane | Builtin::SubgroupId => {
                        self.rules.subgroups(format_args!("{builtin:?}"))?
                    }
                    _ => {}
                }
                U32
            }
            Expr::Param(param) => match kernel.params.get(param.index()) {
                Some(decl) => Type::Scalar(decl.scalar),
                None => return self.wrong(at, format_args!("there is no param {}", param.0)),
            },
            Expr::Counter => return self.wrong(at, "a counter without its loop"),
            Expr::Get(var) => match kernel.vars.get(var.index()) {
                Some(ty) => *ty,
                None => return self.wrong(at, format_args!("there is no variable {}", var.0)),
            },
            Expr::Unary(op, a) => self.unary(at, *op, *a)?,
            Expr::Binary(op, a, b) => self.binary(at, *op, *a, *b)?,
            Expr::Fma(a, b, c) => {
                let ty = self.same(at, &[*a, *b, *c])?;
                self.require(at, ty.is_float(), "fma", ty)?;
                Type::Scalar(ty)
            }
            Expr::Compare(op, a, b) => {
                let ty = self.same(at, &[*a, *b])?;
                let equality = matches!(op, CompareOp::Eq | CompareOp::Ne);
                self.require(at, equality || ty != Scalar::Bool, format_args!("{op:?}"), ty)?;
                BOOL
            }
            Expr::Select(condition, then, otherwise) => {
                self.expect(*condition, BOOL, format_args!("%{}: condition", at.0))?;
                Type::Scalar(self.same(at, &[*then, *otherwise])?)
            }
            Expr::Convert(to, a) => {
                self.scalar(at, *a)?;
                Type::Scalar(*to)
            }
            Expr::Bitcast(to, a) => {
                let from = self.scalar(at, *a)?;
                if from.bits() != to.bits() || from == Scalar::Bool {
                    return self.wrong(at, format_args!("bitcast of {from} to {to}"));
                }
                Type::Scalar(*to)
            }
            Expr::Opaque(a) => {
                let ty = self.scalar(at, *a)?;
                self.require(at, matches!(ty, Scalar::F32 | Scalar::F64), "opaque", ty)?;
                Type::Scalar(ty)
            }
            Expr::Join(low, high) => {
                self.expect(*low, U32, format_args!("%{}: join", at.0))?;
                self.expect(*high, U32, format_args!("%{}: join", at.0))?;
                Type::Scalar(Scalar::U64)
            }
            Expr::PackHalf(low, high) => {
                self.expect(*low, F32, format_args!("%{}: pack", at.0))?;
                self.expect(*high, F32, format_args!("%{}: pack", at.0))?;
                U32
            }
            Expr::UnpackHalf(word, half) => {
                self.expect(*word, U32, format_args!("%{}: unpack", at.0))?;
                if *half > 1 {
                    return self.wrong(at, format_args!("half {half} of a word"));
                }
                F32
            }
            Expr::Vector(parts) => {
                if !matches!(parts.len(), 2 | 4) {
                    return self.wrong(at, format_args!("a vector of {}", parts.len()));
                }
                Type::Vector(self.same(at, parts)?, parts.len() as u8)
            }
            Expr::Extract(vector, lane) => match self.ty(*vector)? {
                Type::Vector(scalar, n) if *lane < n => Type::Scalar(scalar),
                other => return self.wrong(at, format_args!("component {lane} of {other}")),
            },
            Expr::Load { place, index, lanes } => {
                let scalar = self.memory(*place, *index, *lanes, false)?;
                if *lanes == 1 { Type::Scalar(scalar) } else { Type::Vector(scalar, *lanes) }
            }
            Expr::LoadLane { shared, index, lane } => Type::Scalar(self.lane(*shared, *index, *lane)?),
            Expr::LoadUniform { arg, index } => {
                let scalar = self.memory(Storage::Arg(*arg), *index, 1, false)?;
                if kernel.args.get(arg.index()).is_some_and(|a| a.access != Access::Read) {
                    return self.wrong(at, "a uniform load of a buffer that the kernel writes");
                }
                Type::Scalar(scalar)
            }
            Expr::Atomic { place, index, op, value, comparand } => {
                let comparands = comparand.as_slice();
                if (*op == AtomicOp::CompareExchange) == comparands.is_empty() {
                    return self.wrong(at, format_args!("{op:?} with {} comparands", comparands.len()));
                }
                self.atomic(at, *place, *index, *value, comparands)?
            }
            Expr::Subgroup(op, a, other) => self.subgroup(at, *op, *a, *other)?,
            Expr::PackedDot { signed, a, b, accumulator } => {
                if !self.rules.target.packed_dot {
                    return self.rules.missing("packed dot products");
                }
                let ty = self.same(at, &[*a, *b])?;
                self.require(at, matches!(ty, Scalar::U32 | Scalar::I32), "packed dot product", ty)?;
                let sum = Type::Scalar(if *signed { Scalar::I32 } else { Scalar::U32 });
                self.expect(*accumulator, sum, format_args!("%{}: accumulator", at.0))?;
                sum
            }
            Expr::MatrixSplat(ty, number) => {
                self.matrix_number(at, *ty, *number)?;
                if !matches!(
                    self.rules.kernel.values.get(number.index()),
                    Some(Def { expr: Expr::Const(_, 0), .. })
                ) {
                    self.full_matrices(format_args!("{} of a number other than zero", Type::Matrix(*ty)))?;
                }
                Type::Matrix(*ty)
            }
            Expr::MatrixLoad { ty, place, index, layout } => {
                self.matrix_memory(*place, *index, *layout, *ty, false)?;
                Type::Matrix(*ty)
            }
            Expr::MatrixMulAdd(a, b, c) => self.matrix_multiply(at, *a, *b, *c)?,
            Expr::MatrixBinary(op, a, b) => {
                let Type::Matrix(m) = self.ty(*a)? else {
                    return self.wrong(at, format_args!("%{} is no matrix", a.0));
                };
                self.full_matrices(format_args!("arithmetic on {}", Type::Matrix(m)))?;
                match op {
                    BinaryOp::Add => self.expect(*b, Type::Matrix(m), format_args!("%{}: sum", at.0))?,
                    BinaryOp::Mul => self.matrix_number(at, m, *b)?,
                    _ => return self.wrong(at, format_args!("{op:?} of matrices")),
                }
                Type::Matrix(m)
            }
            Expr::MatrixOfWords(m, words) => {
                self.words(at, *m, words.len())?;
                for word in words {
                    self.expect(*word, U32, format_args!("%{}: a word of a matrix", at.0))?;
                }
                Type::Matrix(*m)
            }
            Expr::MatrixWord(matrix, i) => {
                let Type::Matrix(m) = self.ty(*matrix)? else {
                    return self.wrong(at, format_args!("%{} is no matrix", matrix.0));
                };
                self.words(at, m, self.lane_words(m))?;
                if usize::from(*i) >= self.lane_words(m) {
                    return self.wrong(at, format_args!("word {i} of {}", Type::Matrix(m)));
                }
                U32
            }
            Expr::MatrixPart(matrix, part) => {
                let Type::Matrix(m) = self.ty(*matrix)? else {
                    return self.wrong(at, format_args!("%{} is no matrix", matrix.0));
                };
                self.fragments(at, m)?;
                if *part >= Fragments::COUNT {
                    return self.wrong(at, format_args!("part {part} of {}", Type::Matrix(m)));
                }
                Type::Scalar(m.elem.scalar())
            }
            Expr::MatrixOf(ty, parts) => {
                self.fragments(at, *ty)?;
                if parts.len() != usize::from(Fragments::COUNT) {
                    return self.wrong(at, format_args!("{} of {} parts", Type::Matrix(*ty), parts.len()));
                }
                parts.iter().try_for_each(|part| self.matrix_number(at, *ty, *part))?;
                Type::Matrix(*ty)
            }
        };
        match ty {
            Type::Scalar(s) | Type::Vector(s, _) => self.rules.register(s, format_args!("%{}", at.0))?,
            Type::Matrix(m) => self.rules.matrix(m)?,
        }
        Ok(ty)
    }

    fn wrong<T>(&self, at: Value, problem: impl std::fmt::Display) -> Result<T, Error> {
        self.rules.invalid(format_args!("%{}: {problem}", at.0))
    }

    fn require(&self, at: Value, holds: bool, what: impl std::fmt::Display, of: Scalar) -> Result<(), Error> {
        if holds { Ok(()) } else { self.wrong(at, format_args!("{what} of {of}")) }
    }

    /// The type of an operand that is a scalar.
    fn scalar(&self, at: Value, value: Value) -> Result<Scalar, Error> {
        match self.ty(value)? {
            Type::Scalar(s) => Ok(s),
            other => self.wrong(at, format_args!("%{} is {other}, not a scalar", value.0)),
        }
    }

    /// The type of several scalar operands that must be of one.
    fn same(&self, at: Value, values: &[Value]) -> Result<Scalar, Error> {
        let Some((first, rest)) = values.split_first() else {
            return self.wrong(at, "no operands");
        };
        let scalar = self.scalar(at, *first)?;
        for other in rest {
            let found = self.scalar(at, *other)?;
            if found != scalar {
                return self.wrong(at, format_args!("%{} is {scalar}, %{} is {found}", first.0, other.0));
            }
        }
        Ok(scalar)
    }

    fn unary(&self, at: Value, op: UnaryOp, a: Value) -> Result<Type, Error> {
        let s = self.scalar(at, a)?;
        let holds = match op {
            UnaryOp::Neg | UnaryOp::Abs => s.is_float() || s.is_signed_int(),
            UnaryOp::Not => !s.is_float(),
            UnaryOp::CountOnes => matches!(s, Scalar::U32 | Scalar::I32),
            UnaryOp::LeadingZeros => s == Scalar::U32,
            UnaryOp::Exp2 | UnaryOp::Log2 | UnaryOp::Sin | UnaryOp::Cos => {
                matches!(s, Scalar::F32 | Scalar::F16)
            }
            UnaryOp::Floor
            | UnaryOp::Ceil
            | UnaryOp::Trunc
            | UnaryOp::RoundEven
            | UnaryOp::Sqrt
            | UnaryOp::InverseSqrt => s.is_float(),
        };
        self.require(at, holds, format_args!("{op:?}"), s)?;
        Ok(Type::Scalar(s))
    }

    fn binary(&self, at: Value, op: BinaryOp, a: Value, b: Value) -> Result<Type, Error> {
        let s = self.same(at, &[a, b])?;
        let holds = match op {
            BinaryOp::Add | BinaryOp::Sub | BinaryOp::Mul | BinaryOp::Div | BinaryOp::Min | BinaryOp::Max => {
                s != Scalar::Bool
            }
            BinaryOp::Rem | BinaryOp::Shl | BinaryOp::Shr => s.is_int(),
            BinaryOp::And | BinaryOp::Or | BinaryOp::Xor => !s.is_float(),
            BinaryOp::MulHigh => s == Scalar::U32,
        };
        self.require(at, holds, format_args!("{op:?}"), s)?;
        if let Some(Def { expr: Expr::Const(_, bits), .. }) = self.rules.kernel.values.get(b.index()) {
            match op {
                BinaryOp::Div | BinaryOp::Rem if s.is_int() && *bits == 0 => {
                    return self.wrong(at, "division by zero");
                }
                BinaryOp::Shl | BinaryOp::Shr if *bits >= u64::from(s.bits()) => {
                    return self.wrong(at, format_args!("{s} shifted by {bits}"));
                }
                _ => {}
            }
        }
        Ok(Type::Scalar(s))
    }

    fn subgroup(&self, at: Value, op: SubgroupOp, a: Value, other: Option<Value>) -> Result<Type, Error> {
        self.rules.subgroups(format_args!("{op:?}"))?;
        let s = self.scalar(at, a)?;
        let vote = matches!(op, SubgroupOp::Any | SubgroupOp::All);
        self.require(at, vote == (s == Scalar::Bool), format_args!("subgroup {op:?}"), s)?;
        match (op, other) {
            (SubgroupOp::ShuffleXor | SubgroupOp::Shuffle, Some(lane)) => {
                self.expect(lane, U32, format_args!("%{}: {op:?}", at.0))?;
                let lane = self.rules.kernel.values.get(lane.index()).map(|d| &d.expr);
                if op == SubgroupOp::ShuffleXor && !matches!(lane, Some(Expr::Const(..))) {
                    return self.wrong(at, "ShuffleXor by a number that is not constant");
                }
            }
            (SubgroupOp::ShuffleXor | SubgroupOp::Shuffle, None) => {
                return self.wrong(at, format_args!("{op:?} without a lane"));
            }
            (_, Some(_)) => return self.wrong(at, format_args!("{op:?} with a second operand")),
            (_, None) => {}
        }
        Ok(Type::Scalar(s))
    }

    /// Checks an access and returns the register type of its scalars.
    pub(super) fn memory(
        &self,
        place: Storage,
        index: Value,
        lanes: u8,
        store: bool,
    ) -> Result<Scalar, Error> {
        if !matches!(lanes, 1 | 2 | 4) {
            return self.rules.invalid(format_args!("an access of {lanes} elements at once"));
        }
        let elem = self.place(place, index, store)?;
        if let Storage::Shared(shared) = place
            && let Some(decl) = self.rules.kernel.shared.get(shared.index())
            && decl.lanes != lanes
        {
            return self.rules.invalid(format_args!(
                "an access of {lanes} scalars to shared array {}, whose elements have {}",
                shared.0, decl.lanes
            ));
        }
        Ok(elem.scalar())
    }

    /// Checks storage and index, and returns the element type.
    fn place(&self, place: Storage, index: Value, store: bool) -> Result<Elem, Error> {
        let rules = self.rules;
        match place {
            Storage::Arg(arg) => {
                let Some(decl) = rules.kernel.args.get(arg.index()) else {
                    return rules.invalid(format_args!("there is no buffer {}", arg.0));
                };
                let (allowed, what) =
                    if store { (decl.access.writes(), "store") } else { (decl.access.reads(), "load") };
                if !allowed {
                    return rules.invalid(format_args!(
                        "{what} on buffer `{}`, which is declared {:?}",
                        decl.name, decl.access
                    ));
                }
                match self.ty(index)? {
                    Type::Scalar(Scalar::U32 | Scalar::U64) => Ok(decl.elem),
                    other => rules.invalid(format_args!(
                        "index %{} of buffer `{}` is {other}, not u32 or u64",
                        index.0, decl.name
                    )),
                }
            }
            Storage::Shared(shared) => {
                let Some(decl) = rules.kernel.shared.get(shared.index()) else {
                    return rules.invalid(format_args!("there is no shared array {}", shared.0));
                };
                self.expect(index, U32, format_args!("index of shared array {}", shared.0))?;
                if let Some(Def { expr: Expr::Const(_, i), .. }) = rules.kernel.values.get(index.index())
                    && *i >= u64::from(decl.len)
                {
                    return rules.invalid(format_args!(
                        "index {i} of shared array {}, which has {} elements",
                        shared.0, decl.len
                    ));
                }
                Ok(decl.elem)
            }
        }
    }

    /// Checks an access to one scalar of a shared element and returns its register type.
    pub(super) fn lane(&self, shared: SharedId, index: Value, lane: u8) -> Result<Scalar, Error> {
        let elem = self.place(Storage::Shared(shared), index, false)?;
        match self.rules.kernel.shared.get(shared.index()) {
            Some(decl) if lane < decl.lanes => Ok(elem.scalar()),
            _ => self.rules.invalid(format_args!("scalar {lane} of shared array {}", shared.0)),
        }
    }

    fn atomic(
        &self,
        at: Value,
        place: Storage,
        index: Value,
        value: Value,
        comparands: &[Value],
    ) -> Result<Type, Error> {
        let scalar = self.memory(place, index, 1, false)?;
        let elem = self.place(place, index, true)?;
        if !matches!(elem, Elem::U32 | Elem::I32) {
            return self.wrong(at, format_args!("an atomic operation on {elem}"));
        }
        let ty = Type::Scalar(scalar);
        for operand in comparands.iter().chain([&value]) {
            self.expect(*operand, ty, format_args!("%{}: atomic operation", at.0))?;
        }
        Ok(ty)
    }

    /// Checks that a number can fill or scale a matrix: of the register type of its elements, or f16 itself.
    fn matrix_number(&self, at: Value, m: MatrixType, number: Value) -> Result<(), Error> {
        let found = self.scalar(at, number)?;
        if found == m.elem.scalar() || (found == Scalar::F16 && m.elem == Elem::F16) {
            return Ok(());
        }
        self.wrong(at, format_args!("%{} is {found}, the matrix {}", number.0, Type::Matrix(m)))
    }

    /// Refuses what only [`MatrixSupport::Full`] has.
    fn full_matrices(&self, what: impl std::fmt::Display) -> Result<(), Error> {
        match self.rules.target.matrix_support {
            MatrixSupport::Full => Ok(()),
            MatrixSupport::Basic => self.rules.missing(what),
        }
    }

    /// Words that each lane holds of a matrix of 16-bit elements.
    fn lane_words(&self, m: MatrixType) -> usize {
        let lanes = self.rules.target.subgroup.unwrap_or(1).max(1);
        (m.rows * m.columns / 2 / lanes) as usize
    }

    /// Checks that a matrix is so many words in each lane.
    fn words(&self, at: Value, m: MatrixType, count: usize) -> Result<(), Error> {
        self.full_matrices(format_args!("words of {}", Type::Matrix(m)))?;
        let halves = matches!(m.elem, Elem::F16 | Elem::BF16);
        if halves && count > 0 && count == self.lane_words(m) {
            return Ok(());
        }
        self.wrong(at, format_args!("{} as {count} words of a lane", Type::Matrix(m)))
    }

    /// Checks that it is known which elements of a matrix an invocation holds.
    fn fragments(&self, at: Value, m: MatrixType) -> Result<(), Error> {
        self.full_matrices(format_args!("elements of {}", Type::Matrix(m)))?;
        match self.rules.target.fragments {
            Some(fragments) if fragments.covers(m) => Ok(()),
            Some(_) => self.wrong(at, format_args!("parts of {}", Type::Matrix(m))),
            None => self.rules.missing(format_args!("elements of {}", Type::Matrix(m))),
        }
    }

    /// Checks a matrix's access to memory.
    pub(super) fn matrix_memory(
        &self,
        place: Storage,
        index: Value,
        layout: MatrixLayout,
        m: MatrixType,
        store: bool,
    ) -> Result<(), Error> {
        let elem = self.place(place, index, store)?;
        self.expect(layout.stride, U32, "stride of a matrix")?;
        // Workgroup memory may hold the elements of matrices packed in words.
        let packed = elem == Elem::U32 && matches!(place, Storage::Shared(_));
        if elem != m.elem && !packed {
            return self.rules.invalid(format_args!("matrix {} in memory of {elem}", Type::Matrix(m)));
        }
        let vectors = match place {
            Storage::Shared(shared) => {
                self.rules.kernel.shared.get(shared.index()).is_some_and(|decl| decl.lanes > 1)
            }
            Storage::Arg(_) => false,
        };
        if elem != m.elem || vectors {
            let of = if vectors { " vectors" } else { "" };
            self.full_matrices(format_args!("{} in memory of {elem}{of}", Type::Matrix(m)))?;
        }
        Ok(())
    }

    fn matrix_multiply(&self, at: Value, a: Value, b: Value, c: Value) -> Result<Type, Error> {
        let types = (self.ty(a)?, self.ty(b)?, self.ty(c)?);
        let (Type::Matrix(x), Type::Matrix(y), Type::Matrix(z)) = types else {
            return self.wrong(at, "a matrix multiply of values that are not matrices");
        };
        if (x.role, y.role, z.role) != (MatrixUse::A, MatrixUse::B, MatrixUse::Accumulator) {
            return self
                .wrong(at, format_args!("a matrix multiply of {}, {} and {}", types.0, types.1, types.2));
        }
        let fits = x.elem == y.elem && x.columns == y.rows && x.rows == z.rows && y.columns == z.columns;
        if !fits {
            return self
                .wrong(at, format_args!("a matrix multiply of {}, {} and {}", types.0, types.1, types.2));
        }
        let offered = self.rules.target.matrices.iter().any(|s| {
            (s.operand, s.accumulator, s.m, s.n, s.k) == (x.elem, z.elem, x.rows, y.columns, x.columns)
        });
        if !offered {
            return self
                .rules
                .missing(format_args!("matrix multiply {} x {} + {}", types.0, types.1, types.2));
        }
        Ok(types.2)
    }
}
