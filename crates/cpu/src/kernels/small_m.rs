//! f32 GEMM with small M: b is read in its own layout, once or nearly so, and nothing is packed. It may be stored in f16
//! or bf16, which become f32 as they are loaded.
//!
//! ```text
//!   rows of b contiguous:    tiles of a few rows and vectors of columns, summed over a block of K
//!   columns of b contiguous: dot products of a few rows and columns at a time
//! ```

#![allow(
    clippy::needless_range_loop,
    reason = "loops over vectors by number are unrolled, iterators need not be"
)]

use std::ops::Range;

use super::gemm::Matrix;
use crate::simd::vector::{Stored, Vector, prefetch_l2};

#[cfg(target_arch = "x86_64")]
use {
    crate::simd::{Vectors, vectors},
    std::arch::x86_64::{__m128, __m256, __m512},
};

/// The largest M that is computed here if b's rows are contiguous; [`suits`] has a smaller one for many b of f32.
const BY_ROWS: usize = 32;
/// The largest M if its columns are, where sums across a vector cost extra.
const BY_COLUMNS: usize = 16;

/// N and K of the blocks of b that one group of rows after the other uses, so that they stay in the
/// second-level cache. Accumulators go to memory after each block; a larger K means fewer of these stores.
const NEAR_BLOCK: (usize, usize) = (512, 128);
/// Blocks of a b that is not in cache: memory delivers few long runs faster than many short ones.
const FAR_BLOCK: (usize, usize) = (2048, 8);
/// Elements from which b is assumed not to be in cache.
const FAR: usize = 1 << 19;

/// `out = scale · a · b` (or `out + scale · a · b`); b's elements may be stored in another type.
pub(crate) struct GemmArgs<'a, T, E = T> {
    pub(super) sizes: (usize, usize, usize),
    pub(super) a: Matrix<'a, T>,
    pub(super) b: Matrix<'a, E>,
    pub(super) scale: T,
    pub(super) accumulate: bool,
    /// The result's first element, and its row stride.
    pub(super) out: *mut T,
    pub(super) pitch: usize,
}

/// Whether a GEMM of sizes M, N and K is faster here than by the gemm crates, on one thread.
pub(super) fn suits<T, E>(
    (rows, columns, k_len): (usize, usize, usize),
    a: &Matrix<'_, T>,
    b: &Matrix<'_, E>,
) -> bool {
    // Elements that have to be widened cost the gemm crates another pass.
    let widened = size_of::<E>() < size_of::<T>();
    let by_rows = match widened || !gemm_has_avx512() {
        true => rows <= BY_ROWS,
        false => suits_avx512(rows, columns.saturating_mul(k_len)),
    };
    (b.column_stride == 1 && by_rows) || (along_columns(a, b) && rows <= BY_COLUMNS)
}

/// Elements of b up to which a call of the gemm crates costs more than their tiles save.
const TINY: usize = 1 << 13;
/// Elements of b up to which it is still in the first or second-level cache when it is read a second time.
const NEAR: usize = 1 << 16;

/// Whether so many rows times a b of so many f32 are faster here than by the gemm crates with AVX-512, as measured
/// (`docs/performance/2026-11-18-cpu-small-m.md`). Those too leave such a b unpacked for up to some fifty rows.
fn suits_avx512(rows: usize, elements: usize) -> bool {
    if elements <= TINY {
        return rows <= BY_ROWS;
    }
    // Four rows are a tile; what is left of others reads b again.
    rows <= 2 || (elements <= NEAR && (rows == 4 || rows == 8))
}

/// Whether the gemm crates use AVX-512 here.
#[cfg(target_arch = "x86_64")]
fn gemm_has_avx512() -> bool {
    vectors() == Vectors::Avx512
}

#[cfg(not(target_arch = "x86_64"))]
fn gemm_has_avx512() -> bool {
    false
}

/// Whether both operands are contiguous along K. Without explicit vectors, dot products are left to the gemm crates, which
/// read such operands slowly in WebAssembly.
fn along_columns<T, E>(a: &Matrix<'_, T>, b: &Matrix<'_, E>) -> bool {
    cfg!(any(target_arch = "x86_64", target_arch = "wasm32")) && b.row_stride == 1 && a.column_stride == 1
}

impl<E: Stored> GemmArgs<'_, f32, E> {
    /// Computes it.
    ///
    /// # Safety
    /// The operands must hold all that is read of them, b's rows must be contiguous or both operands along K, the
    /// result's rows must be writable and nobody else's meanwhile.
    pub(super) unsafe fn small_m(&self) {
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
            self.with::<crate::simd::vector::Plain<f32>>();
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
    /// That of [`GemmArgs::small_m`], and the processor must have `L`'s instruction set; so for all below.
    #[inline(always)]
    unsafe fn with<L: Vector<Elem = f32>>(&self) {
        // One column is contiguous in either layout; dot products are faster.
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
    unsafe fn by_rows<L: Vector<Elem = f32>>(&self) {
        let (rows, columns, k_len) = self.sizes;
        let (width, stretch) = match rows {
            _ if k_len * columns < FAR => NEAR_BLOCK,
            // Many rows have many accumulators.
            9.. if L::MANY => (FAR_BLOCK.0, 2 * FAR_BLOCK.1),
            _ => FAR_BLOCK,
        };
        // A GEMM bound by memory prefetches the next block; more rows are bound by arithmetic.
        let far = k_len * columns >= FAR && rows <= 8;
        let next = if far { self.b.row_stride * stretch as isize } else { 0 };
        for panel in (0..columns).step_by(width) {
            let panel = panel..(panel + width).min(columns);
            for first in (0..k_len).step_by(stretch) {
                let k_range = first..(first + stretch).min(k_len);
                let mut row = 0;
                while row < rows {
                    let next = if row == 0 { next } else { 0 };
                    // Safety: the caller's promise. As many accumulators as registers allow, and enough to hide the latency of a multiply-add.
                    row += unsafe {
                        match (rows - row, L::MANY) {
                            (1, _) => self.strip::<L, 1, 8, 4>(row, &panel, &k_range, next),
                            (2 | 3, _) => self.strip::<L, 2, 4, 2>(row, &panel, &k_range, next),
                            (_, false) => self.strip::<L, 4, 2, 2>(row, &panel, &k_range, next),
                            (_, true) => self.strip::<L, 4, 4, 2>(row, &panel, &k_range, next),
                        }
                    };
                }
            }
        }
    }

    /// `R` rows of a panel, in tiles of `V` vectors, then `W`, then one; returns `R`.
    #[inline(always)]
    unsafe fn strip<L: Vector<Elem = f32>, const R: usize, const V: usize, const W: usize>(
        &self,
        row: usize,
        panel: &Range<usize>,
        k_range: &Range<usize>,
        next: isize,
    ) -> usize {
        let (mut column, end) = (panel.start, panel.end);
        // Safety: the caller's promise; tiles stay inside the panel.
        unsafe {
            while end - column >= V * L::N {
                self.tile::<L, R, V>(row, column, k_range, L::N, next);
                column += V * L::N;
            }
            while end - column >= W * L::N {
                self.tile::<L, R, W>(row, column, k_range, L::N, next);
                column += W * L::N;
            }
            while column < end {
                let some = (end - column).min(L::N);
                self.tile::<L, R, 1>(row, column, k_range, some, 0);
                column += some;
            }
        }
        R
    }

    /// A tile of `R` rows and `V` vectors of columns; a tile of one vector may have only its first `some` lanes. It
    /// prefetches what is `next` elements on in b, unless that is zero.
    #[inline(always)]
    unsafe fn tile<L: Vector<Elem = f32>, const R: usize, const V: usize>(
        &self,
        row: usize,
        column: usize,
        k_range: &Range<usize>,
        some: usize,
        next: isize,
    ) {
        let whole = some == L::N;
        let add = self.accumulate || k_range.start > 0;
        // Safety: the caller's promise: the tile's elements of all three are there.
        unsafe {
            let mut sums = [[L::splat(0.0); V]; R];
            let mut x = self.a.pointer(row, k_range.start);
            let mut y = self.b.pointer(k_range.start, column);
            for _ in k_range.clone() {
                let mut right = [L::splat(0.0); V];
                for v in 0..V {
                    if next != 0 {
                        prefetch_l2(y.wrapping_offset(next).wrapping_add(v * L::N));
                    }
                    right[v] = if whole { E::load(y.add(v * L::N)) } else { E::load_first(y, some) };
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
                        (true, false) => L::load_first(to, some),
                    };
                    let result = sums[r][v].mul_add(scale, old);
                    if whole { result.store(to) } else { result.store_first(to, some) }
                }
            }
        }
    }

    #[inline(always)]
    unsafe fn by_columns<L: Vector<Elem = f32>>(&self) {
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

    /// The dot products of `R` rows with `C` columns; returns `R`.
    #[inline(always)]
    unsafe fn dots<L: Vector<Elem = f32>, const R: usize, const C: usize>(
        &self,
        row: usize,
        column: usize,
    ) -> usize {
        let k_len = self.sizes.2;
        let whole = k_len / L::N * L::N;
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
            if whole < k_len {
                for c in 0..C {
                    let right: L = E::load_first(y.offset(c as isize * across).add(whole), k_len - whole);
                    for r in 0..R {
                        let left = L::load_first(x.offset(r as isize * down).add(whole), k_len - whole);
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
    use super::super::gemm::{Rhs, gemm, serial_gemm};
    use super::*;
    use crate::simd::{Vectors, limit_vectors};

    fn numbers(n: usize, by: usize) -> Vec<f32> {
        (0..n).map(|i| ((i * by) % 17) as f32 - 8.0).collect()
    }

    /// Small whole numbers: every order of sums gives the same.
    fn check(rows: usize, columns: usize, k_len: usize) {
        let (a, b) = (numbers(rows * k_len, 7), numbers(columns * k_len, 5));
        let by_rows = Matrix::packed(&b, columns);
        let by_columns = Matrix { data: &b, offset: 0, row_stride: 1, column_stride: k_len as isize };
        let turned = Matrix { data: &a, offset: 0, row_stride: 1, column_stride: rows as isize };
        for (a, b) in [
            (Matrix::packed(&a, k_len), by_rows),
            (Matrix::packed(&a, k_len), by_columns),
            (turned, by_rows),
            (turned, by_columns),
        ] {
            let at = |m: &Matrix<'_, f32>, r: usize, c: usize| {
                m.data[m.offset + r * m.row_stride as usize + c * m.column_stride as usize]
            };
            let sum = |r, c| (0..k_len).map(|k| at(&a, r, k) * at(&b, k, c)).sum::<f32>();
            let want: Vec<f32> = (0..rows * columns).map(|i| sum(i / columns, i % columns)).collect();
            let mut out = vec![f32::NAN; rows * columns];
            gemm((rows, columns, k_len), a, b, &mut out, 0, None);
            assert_eq!(out, want, "{rows}x{columns}x{k_len}");
            serial_gemm((rows, columns, k_len), a, b, -2.0, true, &mut out);
            assert!(out.iter().zip(&want).all(|(o, w)| *o == -w), "{rows}x{columns}x{k_len} accumulated");
            if b.column_stride == 1 || along_columns(&a, &b) {
                // Whatever the choice between this and the gemm crates.
                out.fill(f32::NAN);
                let (sizes, to) = ((rows, columns, k_len), out.as_mut_ptr());
                let args = GemmArgs { sizes, a, b, scale: 1.0, accumulate: false, out: to, pitch: columns };
                if rows * columns * k_len > 0 {
                    // Safety: all three are whole.
                    unsafe { args.small_m() };
                    assert_eq!(out, want, "{rows}x{columns}x{k_len} by small M");
                }
            }
        }
    }

    /// The same with b stored narrow, whose small whole numbers are exact.
    fn check_stored<E: Stored + Rhs<f32>>(sizes: (usize, usize, usize), narrow: fn(f32) -> E) {
        let (rows, columns, k_len) = sizes;
        let (a, b) = (numbers(rows * k_len, 7), numbers(columns * k_len, 5));
        let stored: Vec<E> = b.iter().map(|x| narrow(*x)).collect();
        for (row_stride, column_stride) in [(columns as isize, 1), (1, k_len as isize)] {
            let wide = Matrix { data: &b, offset: 0, row_stride, column_stride };
            let stored = Matrix { data: &stored, offset: 0, row_stride, column_stride };
            let (mut want, mut out) = (vec![0f32; rows * columns], vec![f32::NAN; rows * columns]);
            gemm(sizes, Matrix::packed(&a, k_len), wide, &mut want, 0, None);
            gemm(sizes, Matrix::packed(&a, k_len), stored, &mut out, 0, None);
            assert_eq!(out, want, "{rows}x{columns}x{k_len} by {row_stride}, {column_stride}");
        }
    }

    #[test]
    fn weights_stored_in_f16_and_bf16_give_the_same_on_every_instruction_set() {
        for vectors in [Vectors::Base, Vectors::Avx2, Vectors::Avx512] {
            limit_vectors(vectors);
            for rows in [1, 3, 9, 40] {
                for (columns, k_len) in [(1, 70), (17, 5), (64, 33), (530, 19), (4, 0), (300, 700)] {
                    check_stored((rows, columns, k_len), half::f16::from_f32);
                    check_stored((rows, columns, k_len), half::bf16::from_f32);
                }
            }
            check_stored((10, 1100, 500), half::f16::from_f32);
        }
        limit_vectors(Vectors::Avx512);
    }

    #[test]
    fn small_m_with_matrices_of_either_layout_are_right_on_every_instruction_set() {
        for vectors in [Vectors::Base, Vectors::Avx2, Vectors::Avx512] {
            limit_vectors(vectors);
            for rows in [1, 2, 3, 5, 8, 9, 31, 33] {
                for (columns, k_len) in
                    [(1, 1), (1, 70), (3, 16), (4, 0), (17, 5), (64, 33), (530, 19), (0, 3)]
                {
                    check(rows, columns, k_len);
                }
            }
            check(1, 1100, 300);
            check(7, 300, 530);
            // Larger than a b that is assumed to be in cache.
            check(3, 2100, 260);
            check(10, 1100, 500);
        }
        limit_vectors(Vectors::Avx512);
    }

    #[test]
    fn small_m_is_chosen_by_the_elements_of_b() {
        for rows in 1..40 {
            let chosen = |elements| suits_avx512(rows, elements);
            assert_eq!(chosen(TINY), rows <= BY_ROWS);
            assert_eq!(chosen(TINY + 1), [1, 2, 4, 8].contains(&rows));
            assert_eq!(chosen(NEAR + 1), rows <= 2);
            // A part of b never needs another method than b itself where that is this one.
            assert!(!chosen(NEAR + 1) || chosen(NEAR));
            assert!(!chosen(NEAR) || chosen(TINY));
        }
    }
}
