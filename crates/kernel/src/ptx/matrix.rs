//! Cooperative matrices as the fragments of `mma.sync`.
//!
//! ```text
//!   A: lines are rows, B: lines are columns, accumulator: lines are rows; the other direction is `along`
//!
//!   lane l holds of every block of 8 lines the line l / 4, and there from every run of four words the word l % 4:
//!       word (block b, run c) = elements c·4w + (l % 4)·w ... + w of line 8b + l / 4,    w elements to a word
//! ```
//!
//! Registers are in the order of blocks, then runs; of 32-bit elements a word is two registers. For matrices of 16 by 16
//! elements this is the order of [`Fragments::Quads`](crate::Fragments).

use super::{Braced, Class, Printer, Reg};
use crate::Error;
use crate::ir::*;
use crate::types::{Elem, MatrixType, MatrixUse, Scalar};

/// What a lane holds of a matrix.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fragment {
    pub(super) elem: Elem,
    /// Blocks of 8 lines.
    pub(super) blocks: u32,
    /// Runs of four words along a line.
    pub(super) runs: u32,
    /// Elements to a word.
    pub(super) word: u32,
    /// Whether lines are rows.
    pub(super) by_rows: bool,
}

impl Fragment {
    pub(super) fn of(ty: MatrixType) -> Result<Self, Error> {
        let missing = || Error::Missing(format!("PTX of matrices {}", crate::Type::Matrix(ty)));
        let by_rows = ty.role != MatrixUse::B;
        let (lines, along) = if by_rows { (ty.rows, ty.columns) } else { (ty.columns, ty.rows) };
        let word = match (ty.elem, ty.role) {
            (Elem::F16 | Elem::BF16, _) => 2,
            (Elem::I8 | Elem::U8, MatrixUse::A | MatrixUse::B) => 4,
            (Elem::F32 | Elem::I32 | Elem::U32, MatrixUse::Accumulator) => 2,
            _ => return Err(missing()),
        };
        let whole = lines.is_multiple_of(8) && along.is_multiple_of(4 * word) && lines > 0 && along > 0;
        if !whole || lines > 16 || along > 8 * word {
            return Err(missing());
        }
        Ok(Fragment { elem: ty.elem, blocks: lines / 8, runs: along / (4 * word), word, by_rows })
    }

    /// Registers to a word.
    pub(super) fn width(self) -> usize {
        if self.elem.size() == 4 { 2 } else { 1 }
    }

    /// Registers of a lane.
    pub(super) fn registers(self) -> usize {
        (self.blocks * self.runs) as usize * self.width()
    }

    /// The registers of one word.
    fn part(self, regs: &[Reg], block: u32, run: u32) -> Result<&[Reg], Error> {
        let first = (block * self.runs + run) as usize * self.width();
        let missing = || Error::Invalid("a matrix with too few registers".into());
        regs.get(first..first + self.width()).ok_or_else(missing)
    }
}

impl Printer<'_> {
    /// A word of one number everywhere, or the number itself of 32-bit elements.
    fn repeated(&mut self, elem: Elem, number: Value) -> Result<Reg, Error> {
        let scalar = self.scalar_of(number)?;
        let reg = self.single(number)?;
        Ok(match (elem, scalar) {
            (Elem::F16, Scalar::F16) => self.pack_b16(reg, reg),
            (Elem::F16, Scalar::F32) => self.pack_half(reg, reg),
            (Elem::BF16, Scalar::F32) => self.pack_bfloat(reg, reg),
            (Elem::I8, Scalar::I32) | (Elem::U8, Scalar::U32) => {
                let low = self.op_const("and.b32", Class::B32, reg, 0xff);
                self.op_const("mul.lo.u32", Class::B32, low, 0x0101_0101)
            }
            _ if scalar == elem.scalar() => reg,
            _ => return Err(Error::Invalid(format!("{scalar} as a component of a matrix of {elem}"))),
        })
    }

    pub(super) fn matrix_splat(&mut self, ty: MatrixType, number: Value) -> Result<Vec<Reg>, Error> {
        let word = self.repeated(ty.elem, number)?;
        Ok(vec![word; Fragment::of(ty)?.registers()])
    }

    pub(super) fn matrix_mul_add(&mut self, a: Value, b: Value, c: Value) -> Result<Vec<Reg>, Error> {
        let types = [self.matrix_of(a)?, self.matrix_of(b)?, self.matrix_of(c)?];
        let [left, right, sum] = types.map(Fragment::of);
        let (left, right, sum) = (left?, right?, sum?);
        let (a, b, c) = (self.value(a)?, self.value(b)?, self.value(c)?);
        let fits = left.blocks == 2
            && sum.blocks == 2
            && left.runs == right.runs
            && sum.runs == right.blocks
            && types[0].elem == types[1].elem;
        let (operand, accumulator) = match (types[0].elem, types[2].elem) {
            (Elem::F16, Elem::F32) => ("f16", "f32"),
            (Elem::F16, Elem::F16) => ("f16", "f16"),
            (Elem::BF16, Elem::F32) => ("bf16", "f32"),
            (Elem::I8, Elem::I32) => ("s8", "s32"),
            // Sums wrap, so that their sign is no matter.
            (Elem::U8, Elem::U32 | Elem::I32) => ("u8", "s32"),
            _ => return Err(Error::Missing("PTX of such a matrix multiply".into())),
        };
        if !fits {
            return Err(Error::Missing("PTX of a matrix multiply of such a size".into()));
        }
        let inner = left.runs * 4 * left.word;
        let mut x = Vec::new();
        for run in 0..left.runs {
            for block in 0..2 {
                x.extend_from_slice(left.part(&a, block, run)?);
            }
        }
        let result = self.regs(Class::B32, sum.registers());
        for block in 0..right.blocks {
            let mut y = Vec::new();
            for run in 0..right.runs {
                y.extend_from_slice(right.part(&b, block, run)?);
            }
            let of = |regs: &[Reg]| -> Result<Vec<Reg>, Error> {
                Ok([sum.part(regs, 0, block)?, sum.part(regs, 1, block)?].concat())
            };
            let (z, d) = (of(&c)?, of(&result)?);
            self.put(format_args!(
                "mma.sync.aligned.m16n8k{inner}.row.col.{accumulator}.{operand}.{operand}.{accumulator} {}, {}, {}, {}",
                Braced(&d),
                Braced(&x),
                Braced(&y),
                Braced(&z)
            ));
        }
        Ok(result)
    }

    pub(super) fn matrix_binary(&mut self, op: BinaryOp, a: Value, b: Value) -> Result<Vec<Reg>, Error> {
        let ty = self.matrix_of(a)?;
        let count = Fragment::of(ty)?.registers();
        let left = self.value(a)?;
        let right = match op {
            BinaryOp::Mul => vec![self.repeated(ty.elem, b)?; count],
            BinaryOp::Add if self.matrix_of(b)? == ty => self.value(b)?,
            _ => {
                return Err(Error::Invalid(format!("{op:?} of {} and {}", self.def(a)?.ty, self.def(b)?.ty)));
            }
        };
        let name = match (op, ty.elem) {
            (BinaryOp::Mul, Elem::F32) => "mul.rn.f32",
            (BinaryOp::Mul, Elem::F16) => "mul.rn.f16x2",
            (BinaryOp::Mul, Elem::I32 | Elem::U32) => "mul.lo.u32",
            (_, Elem::F32) => "add.rn.f32",
            (_, Elem::F16) => "add.rn.f16x2",
            (_, Elem::I32 | Elem::U32) => "add.u32",
            (_, elem) => return Err(Error::Missing(format!("PTX of {op:?} of matrices of {elem}"))),
        };
        let pairs = left.into_iter().zip(right);
        Ok(pairs.map(|(x, y)| self.op(name, Class::B32, &[x, y])).collect())
    }

    /// An element as a register.
    pub(super) fn matrix_part(&mut self, matrix: Value, part: u8) -> Result<Reg, Error> {
        let elem = self.matrix_of(matrix)?.elem;
        let regs = self.value(matrix)?;
        let missing = || Error::Invalid(format!("part {part} of %{}", matrix.0));
        let part = usize::from(part);
        Ok(match elem {
            Elem::F16 | Elem::BF16 => {
                let word = *regs.get(part / 2).ok_or_else(missing)?;
                let half = self.unpack_b16(word)[part % 2];
                self.widen(elem, half)
            }
            Elem::F32 | Elem::I32 | Elem::U32 => *regs.get(part).ok_or_else(missing)?,
            _ => return Err(Error::Missing(format!("elements of matrices of {elem}"))),
        })
    }

    pub(super) fn matrix_from_parts(&mut self, ty: MatrixType, parts: &[Value]) -> Result<Vec<Reg>, Error> {
        let scalars = parts.iter().map(|p| self.scalar_of(*p)).collect::<Result<Vec<_>, _>>()?;
        let regs = parts.iter().map(|p| self.single(*p)).collect::<Result<Vec<_>, _>>()?;
        let wide = scalars.iter().all(|s| *s == ty.elem.scalar());
        let result: Vec<Reg> = match ty.elem {
            Elem::F32 | Elem::I32 | Elem::U32 if wide => regs,
            Elem::F16 if scalars.iter().all(|s| *s == Scalar::F16) => {
                regs.as_chunks::<2>().0.iter().map(|[a, b]| self.pack_b16(*a, *b)).collect()
            }
            Elem::F16 if wide => {
                regs.as_chunks::<2>().0.iter().map(|[a, b]| self.pack_half(*a, *b)).collect()
            }
            Elem::BF16 if wide => {
                regs.as_chunks::<2>().0.iter().map(|[a, b]| self.pack_bfloat(*a, *b)).collect()
            }
            elem => return Err(Error::Missing(format!("matrices of {elem} from their elements"))),
        };
        if result.len() == Fragment::of(ty)?.registers() {
            return Ok(result);
        }
        Err(Error::Invalid(format!("{} of {} parts", crate::Type::Matrix(ty), parts.len())))
    }
}
