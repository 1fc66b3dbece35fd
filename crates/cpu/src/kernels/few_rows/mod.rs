//! f32 products of few rows: the other operand is read where it lies, once or nearly so, and nothing is packed. It may be
//! stored in f16 or bf16, which become f32 as they are loaded.
//!
//! ```text
//!   rows of b contiguous:    tiles of a few rows and vectors of columns, summed over a stretch of the depth
//!   columns of b contiguous: dot products of a few rows and columns at a time
//! ```

#![allow(
    clippy::needless_range_loop,
    reason = "loops over vectors by number are unrolled, iterators need not be"
)]

mod lanes;

use std::ops::Range;

use super::product::Matrix;
use lanes::Lanes;
pub(crate) use lanes::Stored;

#[cfg(target_arch = "x86_64")]
use {
    crate::simd::{Vectors, vectors},
    std::arch::x86_64::{__m128, __m256, __m512},
};

/// Rows up to which a product is done here if b's rows are contiguous.
const BY_ROWS: usize = 32;
/// As many if its columns are, where sums across a vector cost extra.
const BY_COLUMNS: usize = 16;

/// Columns and depth of the blocks of b that one group of rows after the other uses, so that they stay in the
/// second-level cache. Sums go to memory after each block: a deep one has fewer of them.
const NEAR_BLOCK: (usize, usize) = (512, 128);
/// Blocks of a b that comes from memory, which brings few long runs faster than many short ones.
const FAR_BLOCK: (usize, usize) = (2048, 8);
/// Elements from which b is taken to come from memory.
const FAR: usize = 1 << 19;

/// A product; b's elements may be stored in another type.
pub(crate) struct FewRows<'a, T, E = T> {
    pub(super) sizes: (usize, usize, usize),
    pub(super) a: Matrix<'a, T>,
    pub(super) b: Matrix<'a, E>,
    pub(super) scale: T,
    pub(super) accumulate: bool,
    /// The result's first element, and how far its rows lie apart.
    pub(super) out: *mut T,
    pub(super) pitch: usize,
}

/// Whether a product of so many rows is better done here.
pub(super) fn suits<T, E>(rows: usize, a: &Matrix<'_, T>, b: &Matrix<'_, E>) -> bool {
    (b.column_stride == 1 && rows <= BY_ROWS) || (along_columns(a, b) && rows <= BY_COLUMNS)
}

/// Whether both operands are contiguous along the depth. Without vectors of their own, dot products are left to others.
fn along_columns<T, E>(a: &Matrix<'_, T>, b: &Matrix<'_, E>) -> bool {
    cfg!(target_arch = "x86_64") && b.row_stride == 1 && a.column_stride == 1
}

impl<E: Stored> FewRows<'_, f32, E> {
    /// Computes it.
    ///
    /// # Safety
    /// The operands must hold all that is read of them, [`suits`] must hold, the result's rows must be writable and
    /// nobody else's meanwhile.
    pub(super) unsafe fn multiply(&self) {
        // Safety: `vectors` has seen what the types need; the rest is the caller's promise.
        #[cfg(target_arch = "x86_64")]
        unsafe {
            match vectors() {
                Vectors::Avx512 => self.with_avx512(),
                Vectors::Avx2 => self.with_avx2(),
                Vectors::Base => self.with::<__m128>(),
            }
        }
        // Safety: as above.
        #[cfg(not(target_arch = "x86_64"))]
        unsafe {
            self.with::<lanes::Plain>();
        }
    }

    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,bmi2,f16c")]
    unsafe fn with_avx512(&self) {
        // Safety: the features are enabled here; the rest is the caller's promise.
        unsafe { self.with::<__m512>() }
    }

    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2,fma,bmi2,f16c")]
    unsafe fn with_avx2(&self) {
        // Safety: as above.
        unsafe { self.with::<__m256>() }
    }

    /// # Safety
    /// That of [`FewRows::multiply`], and the processor must have `L`'s instruction set; so for all below.
    #[inline(always)]
    unsafe fn with<L: Lanes>(&self) {
        // One column is contiguous either way; along it is faster.
        let one_column = self.sizes.1 == 1;
        // Safety: the caller's promise.
        unsafe {
            if along_columns(&self.a, &self.b) && (self.b.column_stride != 1 || one_column) {
                self.by_columns::<L>();
            } else {
                self.by_rows::<L>();
            }
        }
    }

    #[inline(always)]
    unsafe fn by_rows<L: Lanes>(&self) {
        let (rows, columns, depth) = self.sizes;
        let (width, stretch) = match rows {
            _ if depth * columns < FAR => NEAR_BLOCK,
            // Many rows have many sums.
            9.. if L::MANY => (FAR_BLOCK.0, 2 * FAR_BLOCK.1),
            _ => FAR_BLOCK,
        };
        // What waits for memory has the next block brought near while it is at this one; more rows are busy enough.
        let far = depth * columns >= FAR && rows <= 8;
        let next = if far { self.b.row_stride * stretch as isize } else { 0 };
        for panel in (0..columns).step_by(width) {
            let panel = panel..(panel + width).min(columns);
            for first in (0..depth).step_by(stretch) {
                let depths = first..(first + stretch).min(depth);
                let mut row = 0;
                while row < rows {
                    let next = if row == 0 { next } else { 0 };
                    // Safety: the caller's promise. As many sums as registers allow, and enough to overlap.
                    row += unsafe {
                        match (rows - row, L::MANY) {
                            (1, _) => self.strip::<L, 1, 8, 4>(row, &panel, &depths, next),
                            (2 | 3, _) => self.strip::<L, 2, 4, 2>(row, &panel, &depths, next),
                            (_, false) => self.strip::<L, 4, 2, 2>(row, &panel, &depths, next),
                            (_, true) => self.strip::<L, 4, 4, 2>(row, &panel, &depths, next),
                        }
                    };
                }
            }
        }
    }

    /// `R` rows of a panel, in tiles of `V` vectors, then `W`, then one; the answer is `R`.
    #[inline(always)]
    unsafe fn strip<L: Lanes, const R: usize, const V: usize, const W: usize>(
        &self,
        row: usize,
        panel: &Range<usize>,
        depths: &Range<usize>,
        next: isize,
    ) -> usize {
        let (mut column, end) = (panel.start, panel.end);
        // Safety: the caller's promise; tiles stay inside the panel.
        unsafe {
            while end - column >= V * L::N {
                self.tile::<L, R, V>(row, column, depths, L::N, next);
                column += V * L::N;
            }
            while end - column >= W * L::N {
                self.tile::<L, R, W>(row, column, depths, L::N, next);
                column += W * L::N;
            }
            while column < end {
                let some = (end - column).min(L::N);
                self.tile::<L, R, 1>(row, column, depths, some, 0);
                column += some;
            }
        }
        R
    }

    /// A tile of `R` rows and `V` vectors of columns; of one vector, only the first `some` lanes may be there. What lies
    /// `next` elements on in b, if that is not zero, will be read soon.
    #[inline(always)]
    unsafe fn tile<L: Lanes, const R: usize, const V: usize>(
        &self,
        row: usize,
        column: usize,
        depths: &Range<usize>,
        some: usize,
        next: isize,
    ) {
        let whole = some == L::N;
        let add = self.accumulate || depths.start > 0;
        // Safety: the caller's promise: the tile's elements of all three are there.
        unsafe {
            let mut sums = [[L::splat(0.0); V]; R];
            let mut x = self.a.pointer(row, depths.start);
            let mut y = self.b.pointer(depths.start, column);
            for _ in depths.clone() {
                let mut right = [L::splat(0.0); V];
                for v in 0..V {
                    if next != 0 {
                        L::prefetch(y.wrapping_offset(next).wrapping_add(v * L::N));
                    }
                    right[v] = if whole { E::load(y.add(v * L::N)) } else { E::load_some(y, some) };
                }
                for r in 0..R {
                    let left = L::splat(*x.offset(r as isize * self.a.row_stride));
                    for v in 0..V {
                        sums[r][v] = left.mul_add(right[v], sums[r][v]);
                    }
                }
                x = x.wrapping_offset(self.a.column_stride);
                y = y.wrapping_offset(self.b.row_stride);
            }
            let scale = L::splat(self.scale);
            for r in 0..R {
                for v in 0..V {
                    let to = self.out.add((row + r) * self.pitch + column + v * L::N);
                    let old = match (add, whole) {
                        (false, _) => L::splat(0.0),
                        (true, true) => L::load(to),
                        (true, false) => L::load_some(to, some),
                    };
                    let result = sums[r][v].mul_add(scale, old);
                    if whole { result.store(to) } else { result.store_some(to, some) }
                }
            }
        }
    }

    #[inline(always)]
    unsafe fn by_columns<L: Lanes>(&self) {
        let (rows, columns, _) = self.sizes;
        let mut column = 0;
        while column < columns {
            let taken = match columns - column {
                8.. if rows == 1 => 8,
                4.. => 4,
                _ => 1,
            };
            let mut row = 0;
            while row < rows {
                // Safety: the caller's promise.
                row += unsafe {
                    match (rows - row, taken) {
                        (1, 1) => self.dots::<L, 1, 1>(row, column),
                        (1, 4) => self.dots::<L, 1, 4>(row, column),
                        (1, _) => self.dots::<L, 1, 8>(row, column),
                        (_, 1) => self.dots::<L, 2, 1>(row, column),
                        _ => self.dots::<L, 2, 4>(row, column),
                    }
                };
            }
            column += taken;
        }
    }

    /// The dot products of `R` rows with `C` columns; the answer is `R`.
    #[inline(always)]
    unsafe fn dots<L: Lanes, const R: usize, const C: usize>(&self, row: usize, column: usize) -> usize {
        let depth = self.sizes.2;
        let whole = depth / L::N * L::N;
        // Safety: the caller's promise: rows and columns are there from end to end.
        unsafe {
            let (x, y) = (self.a.pointer(row, 0), self.b.pointer(0, column));
            let (down, across) = (self.a.row_stride, self.b.column_stride);
            let mut sums = [[L::splat(0.0); C]; R];
            for k in (0..whole).step_by(L::N) {
                let mut left = [L::splat(0.0); R];
                for r in 0..R {
                    left[r] = L::load(x.offset(r as isize * down).add(k));
                }
                for c in 0..C {
                    let right: L = E::load(y.offset(c as isize * across).add(k));
                    for r in 0..R {
                        sums[r][c] = left[r].mul_add(right, sums[r][c]);
                    }
                }
            }
            if whole < depth {
                for c in 0..C {
                    let right: L = E::load_some(y.offset(c as isize * across).add(whole), depth - whole);
                    for r in 0..R {
                        let left = L::load_some(x.offset(r as isize * down).add(whole), depth - whole);
                        sums[r][c] = left.mul_add(right, sums[r][c]);
                    }
                }
            }
            for r in 0..R {
                for c in 0..C {
                    let to = self.out.add((row + r) * self.pitch + column + c);
                    let old = if self.accumulate { *to } else { 0.0 };
                    *to = old + sums[r][c].sum() * self.scale;
                }
            }
        }
        R
    }
}

#[cfg(test)]
mod tests {
    use super::super::product::{Rhs, multiply, product};
    use super::*;
    use crate::simd::{Vectors, limit_vectors};

    fn numbers(n: usize, by: usize) -> Vec<f32> {
        (0..n).map(|i| ((i * by) % 17) as f32 - 8.0).collect()
    }

    /// Small whole numbers: every order of sums gives the same.
    fn check(rows: usize, columns: usize, depth: usize) {
        let (a, b) = (numbers(rows * depth, 7), numbers(columns * depth, 5));
        let by_rows = Matrix::packed(&b, columns);
        let by_columns = Matrix { data: &b, offset: 0, row_stride: 1, column_stride: depth as isize };
        let turned = Matrix { data: &a, offset: 0, row_stride: 1, column_stride: rows as isize };
        for (a, b) in [
            (Matrix::packed(&a, depth), by_rows),
            (Matrix::packed(&a, depth), by_columns),
            (turned, by_rows),
            (turned, by_columns),
        ] {
            let at = |m: &Matrix<'_, f32>, r: usize, c: usize| {
                m.data[m.offset + r * m.row_stride as usize + c * m.column_stride as usize]
            };
            let sum = |r, c| (0..depth).map(|k| at(&a, r, k) * at(&b, k, c)).sum::<f32>();
            let want: Vec<f32> = (0..rows * columns).map(|i| sum(i / columns, i % columns)).collect();
            let mut out = vec![f32::NAN; rows * columns];
            product((rows, columns, depth), a, b, &mut out, 0, None);
            assert_eq!(out, want, "{rows}x{columns}x{depth}");
            multiply((rows, columns, depth), a, b, -2.0, true, &mut out);
            assert!(out.iter().zip(&want).all(|(o, w)| *o == -w), "{rows}x{columns}x{depth} accumulated");
        }
    }

    /// The same with b stored narrow, whose small whole numbers are exact.
    fn check_stored<E: Stored + Rhs<f32>>(sizes: (usize, usize, usize), narrow: fn(f32) -> E) {
        let (rows, columns, depth) = sizes;
        let (a, b) = (numbers(rows * depth, 7), numbers(columns * depth, 5));
        let stored: Vec<E> = b.iter().map(|x| narrow(*x)).collect();
        for (row_stride, column_stride) in [(columns as isize, 1), (1, depth as isize)] {
            let wide = Matrix { data: &b, offset: 0, row_stride, column_stride };
            let stored = Matrix { data: &stored, offset: 0, row_stride, column_stride };
            let (mut want, mut out) = (vec![0f32; rows * columns], vec![f32::NAN; rows * columns]);
            product(sizes, Matrix::packed(&a, depth), wide, &mut want, 0, None);
            product(sizes, Matrix::packed(&a, depth), stored, &mut out, 0, None);
            assert_eq!(out, want, "{rows}x{columns}x{depth} by {row_stride}, {column_stride}");
        }
    }

    #[test]
    fn weights_stored_in_f16_and_bf16_give_the_same_on_every_instruction_set() {
        for vectors in [Vectors::Base, Vectors::Avx2, Vectors::Avx512] {
            limit_vectors(vectors);
            for rows in [1, 3, 9, 40] {
                for (columns, depth) in [(1, 70), (17, 5), (64, 33), (530, 19), (4, 0), (300, 700)] {
                    check_stored((rows, columns, depth), half::f16::from_f32);
                    check_stored((rows, columns, depth), half::bf16::from_f32);
                }
            }
        }
        limit_vectors(Vectors::Avx512);
    }

    #[test]
    fn few_rows_times_matrices_of_either_order_are_right_on_every_instruction_set() {
        for vectors in [Vectors::Base, Vectors::Avx2, Vectors::Avx512] {
            limit_vectors(vectors);
            for rows in [1, 2, 3, 5, 8, 9, 31, 33] {
                for (columns, depth) in
                    [(1, 1), (1, 70), (3, 16), (4, 0), (17, 5), (64, 33), (530, 19), (0, 3)]
                {
                    check(rows, columns, depth);
                }
            }
            check(1, 1100, 300);
            check(7, 300, 530);
            // Beyond what is taken to be near.
            check(3, 2100, 260);
            check(10, 1100, 500);
        }
        limit_vectors(Vectors::Avx512);
    }
}
