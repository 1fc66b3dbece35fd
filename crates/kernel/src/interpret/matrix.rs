//! Cooperative matrices: each is created once; a register holds its number.

use super::{Register, Run, arithmetic, invalid, memory};
use crate::Error;
use crate::ir::*;
use crate::types::{Fragments, MatrixType, Scalar, Type};

impl Run<'_> {
    /// Computes a value that a subgroup holds together, or a part of one.
    pub(super) fn among_matrices(
        &mut self,
        value: Value,
        expr: &Expr,
        ty: Type,
        active: &[bool],
    ) -> Result<(), Error> {
        self.whole_subgroups(active)?;
        let size = self.subgroup as usize;
        for first in (0..self.width).step_by(size).filter(|l| active[*l]) {
            let members = first..(first + size).min(self.width);
            if let Expr::MatrixWord(matrix, i) | Expr::MatrixPart(matrix, i) = expr {
                for lane in members {
                    let bits = match expr {
                        Expr::MatrixPart(..) => self.matrix_part(*matrix, *i, lane)?,
                        _ => self.matrix_word(*matrix, usize::from(*i), lane)?,
                    };
                    self.values[value.index() * self.width + lane] = [bits, 0, 0, 0];
                }
                continue;
            }
            let Type::Matrix(m) = ty else { return Err(invalid(format!("{ty} of matrices"))) };
            let made = self.matrix_expr(expr, m, first)?;
            self.matrices.push(made);
            let register: Register = [self.matrices.len() as u64 - 1, 0, 0, 0];
            for lane in members {
                self.values[value.index() * self.width + lane] = register;
            }
        }
        Ok(())
    }

    /// A matrix' elements as registers hold them, row by row; `lane` is the first of the subgroup.
    fn matrix_expr(&mut self, expr: &Expr, ty: MatrixType, lane: usize) -> Result<Vec<u64>, Error> {
        let count = (ty.rows * ty.columns) as usize;
        match expr {
            Expr::MatrixSplat(_, x) => {
                let bits = memory::widen(ty.elem, memory::narrow(ty.elem, self.get(*x, lane)));
                Ok(vec![bits; count])
            }
            Expr::MatrixLoad { place, index, layout, .. } => {
                let (place, index, layout) = (*place, self.get(*index, lane), *layout);
                let mut elements = Vec::with_capacity(count);
                for row in 0..ty.rows {
                    for column in 0..ty.columns {
                        let bytes = self.matrix_bytes(place, index, ty, layout, lane, (row, column))?;
                        let raw = bytes.iter().rev().fold(0u64, |acc, b| (acc << 8) | u64::from(*b));
                        elements.push(memory::widen(ty.elem, raw));
                    }
                }
                Ok(elements)
            }
            Expr::MatrixMulAdd(a, b, c) => {
                let inner = match self.kernel.ty(*a) {
                    Type::Matrix(m) => m.columns as usize,
                    other => return Err(invalid(format!("{other} as a operand"))),
                };
                let (a, b) = (self.matrix(*a, lane)?, self.matrix(*b, lane)?);
                let mut sums = self.matrix(*c, lane)?.to_vec();
                let (columns, scalar) = (ty.columns as usize, ty.elem.scalar());
                for (i, sum) in sums.iter_mut().enumerate() {
                    let (row, column) = (i / columns, i % columns);
                    let terms = (0..inner).map(|k| (a[row * inner + k], b[k * columns + column]));
                    *sum = match scalar {
                        Scalar::F32 => self.long_sum(*sum, terms),
                        _ => terms.fold(*sum, |sum, (x, y)| {
                            u64::from((sum as u32).wrapping_add((x as u32).wrapping_mul(y as u32)))
                        }),
                    };
                }
                Ok(sums)
            }
            Expr::MatrixBinary(op, a, b) => {
                let scalar = ty.elem.scalar();
                let right = match self.kernel.ty(*b) {
                    Type::Matrix(_) => self.matrix(*b, lane)?.to_vec(),
                    _ => vec![self.get(*b, lane); count],
                };
                let left = self.matrix(*a, lane)?.iter();
                let rounded = |bits: u64| memory::widen(ty.elem, memory::narrow(ty.elem, bits));
                left.zip(right)
                    .map(|(x, y)| arithmetic::binary(*op, scalar, *x, y, self.device).map(rounded))
                    .collect()
            }
            Expr::MatrixOfWords(_, words) => {
                let lanes = self.subgroup as usize;
                let mut elements = vec![0; count];
                for (i, element) in elements.iter_mut().enumerate() {
                    // Elements are dealt to lanes in turn.
                    let (part, of) = (i / lanes, lane + i % lanes);
                    let word = words.get(part / 2).ok_or_else(|| invalid("too few words of a matrix"))?;
                    let bits = self.get(*word, of) >> (16 * (part % 2));
                    *element = memory::widen(ty.elem, bits & 0xffff);
                }
                Ok(elements)
            }
            Expr::MatrixOf(_, parts) => {
                let mut elements = vec![0; count];
                for of in 0..self.subgroup {
                    for (i, part) in (0u32..).zip(parts) {
                        let (row, column) = Fragments::Quads.position(of, i);
                        let bits = self.get(*part, lane + of as usize);
                        let slot = elements.get_mut((row * ty.columns + column) as usize);
                        *slot.ok_or_else(|| invalid("parts of too small a matrix"))? =
                            memory::widen(ty.elem, memory::narrow(ty.elem, bits));
                    }
                }
                Ok(elements)
            }
            _ => Err(invalid("a matrix that is none")),
        }
    }

    /// A sum of exact products in f32; units that are not exact cut off what does not fit instead of rounding.
    fn long_sum(&self, sum: u64, terms: impl Iterator<Item = (u64, u64)>) -> u64 {
        let float = |bits: u64| f64::from(f32::from_bits(bits as u32));
        let sum = terms.fold(float(sum), |sum, (a, b)| sum + float(a) * float(b));
        let mut rounded = sum as f32;
        if self.device.off_by > 0 && f64::from(rounded).abs() > sum.abs() && rounded.is_finite() {
            rounded = f32::from_bits(rounded.to_bits() - 1);
        }
        u64::from(rounded.to_bits())
    }

    fn matrix(&self, value: Value, lane: usize) -> Result<&[u64], Error> {
        let number = self.get(value, lane) as usize;
        self.matrices.get(number).map(Vec::as_slice).ok_or_else(|| invalid("no such matrix"))
    }

    /// The element that a lane holds as its `part`-th.
    fn matrix_part(&self, value: Value, part: u8, lane: usize) -> Result<u64, Error> {
        let Type::Matrix(ty) = self.kernel.ty(value) else { return Err(invalid("a part of no matrix")) };
        let (row, column) = Fragments::Quads.position(lane as u32 % self.subgroup, u32::from(part));
        let found = self.matrix(value, lane)?.get((row * ty.columns + column) as usize);
        found.copied().ok_or_else(|| invalid("a part of too small a matrix"))
    }

    fn matrix_word(&self, value: Value, i: usize, lane: usize) -> Result<u64, Error> {
        let Type::Matrix(ty) = self.kernel.ty(value) else { return Err(invalid("words of no matrix")) };
        let lanes = self.subgroup as usize;
        let matrix = self.matrix(value, lane)?;
        let half = |part: usize| {
            let bits = matrix.get(part * lanes + lane % lanes).ok_or_else(|| invalid("no such word"))?;
            Ok::<u64, Error>(memory::narrow(ty.elem, *bits))
        };
        Ok(half(2 * i)? | (half(2 * i + 1)? << 16))
    }

    pub(super) fn store_matrix(
        &mut self,
        place: Storage,
        index: Value,
        layout: MatrixLayout,
        value: Value,
        active: &[bool],
    ) -> Result<(), Error> {
        self.whole_subgroups(active)?;
        let Type::Matrix(ty) = self.kernel.ty(value) else { return Err(invalid("no matrix is stored")) };
        for lane in (0..self.width).step_by(self.subgroup as usize).filter(|l| active[*l]) {
            let (at, elements) = (self.get(index, lane), self.matrix(value, lane)?.to_vec());
            for (i, bits) in (0u32..).zip(elements) {
                let raw = memory::narrow(ty.elem, bits).to_le_bytes();
                let element = (i / ty.columns, i % ty.columns);
                let bytes = self.matrix_bytes(place, at, ty, layout, lane, element)?;
                bytes.copy_from_slice(&raw[..bytes.len()]);
            }
        }
        Ok(())
    }

    /// The bytes of one element of a matrix in memory, which may hold elements of another size.
    fn matrix_bytes(
        &mut self,
        place: Storage,
        index: u64,
        ty: MatrixType,
        layout: MatrixLayout,
        lane: usize,
        (row, column): (u32, u32),
    ) -> Result<&mut [u8], Error> {
        let stride = self.get(layout.stride, lane);
        let name = self.kernel.name.clone();
        let (bytes, elem, lanes) = self.memory(place)?;
        let (run, within) = if layout.column_major { (column, row) } else { (row, column) };
        let held = u64::from(elem.size()) * lanes as u64;
        let size = ty.elem.size() as usize;
        let first = (index + u64::from(run) * stride) * held + u64::from(within) * size as u64;
        let first = first as usize;
        bytes
            .get_mut(first..first + size)
            .ok_or_else(|| invalid(format!("{name}: a matrix from {index} of {place:?}, past its end")))
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Device, interpret};
    use super::*;
    use crate::types::{Elem, MatrixShape, MatrixUse, Target};
    use crate::{Access, Builder};

    /// A·B of two 16x16 f16 matrices in memory; B's lanes hand their words on through another buffer if asked.
    fn product(through_words: bool) -> Vec<f32> {
        let shape = MatrixShape { operand: Elem::F16, accumulator: Elem::F32, m: 16, n: 16, k: 16 };
        let target = Target { subgroup: Some(32), f16: true, matrices: vec![shape], ..Target::plain() };
        let k = Builder::new("product", 32, &target);
        let [a, b] = ["a", "b"].map(|name| k.arg(name, Elem::F16, Access::Read));
        let c = k.arg("c", Elem::F32, Access::Write);
        let matrix = |elem, role| MatrixType { elem, rows: 16, columns: 16, role };
        let (zero, stride) = (k.u32(0), k.u32(16));
        let x = a.load_matrix(matrix(Elem::F16, MatrixUse::A), zero, stride, false);
        let right = matrix(Elem::F16, MatrixUse::B);
        let mut y = b.load_matrix(right, zero, stride, true);
        if through_words {
            y = k.matrix_of_words(right, &y.matrix_words(4));
        }
        let sum = k.f32(0.0).splat(matrix(Elem::F32, MatrixUse::Accumulator));
        c.store_matrix(zero, stride, false, x.matrix_mul_add(y, sum));
        let kernel = k.finish().expect("a valid kernel");
        let halves = |f: fn(u32) -> f32| -> Vec<u8> {
            (0..256).flat_map(|i| crate::build::half_bits(f(i)).to_le_bytes()).collect()
        };
        let mut buffers = [halves(|i| (i % 7) as f32), halves(|i| (i % 5) as f32 - 1.0), vec![0; 1024]];
        interpret(&kernel, 32, [1, 1, 1], &mut buffers, &[], Device::EXACT).expect("it runs");
        buffers[2].chunks(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()
    }

    #[test]
    fn matrices_multiply_as_they_lie_in_memory() {
        let found = product(false);
        for (i, found) in found.iter().enumerate() {
            let (row, column) = (i / 16, i % 16);
            let terms = (0..16).map(|k| ((row * 16 + k) % 7) as f32 * (((column * 16 + k) % 5) as f32 - 1.0));
            assert_eq!(*found, terms.sum::<f32>(), "row {row}, column {column}");
        }
    }

    #[test]
    fn a_matrix_made_of_the_words_of_its_lanes_is_the_same() {
        assert_eq!(product(true), product(false));
    }
}
