//! GEMM on strided memory: the only file that calls the `gemm` crates.

use std::marker::PhantomData;

use half::{bf16, f16};

use super::conv::scratch::with_scratch;
use super::small_m::{self, GemmArgs};
use crate::operand::Number;
use crate::parallel;
use crate::simd::half::{widen_bf16, widen_f16};
use crate::simd::vector::Stored;

/// A float that a GEMM accumulates in.
pub(crate) trait Accumulator: Number + Rhs<Self> + Send + Sync {}

impl Accumulator for f32 {}
impl Accumulator for f64 {}

/// A float that has a gemm.
trait Gemm: Number {
    /// `dst := alpha·dst + beta·lhs·rhs`: sizes m, n and k, then each matrix with its column and row stride, whether dst is
    /// read, and what complex numbers would need.
    const GEMM: fn() -> GemmFn<Self>;
}

/// The signature of the gemm crates.
type GemmFn<T> = unsafe fn(
    usize,
    usize,
    usize,
    *mut T,
    isize,
    isize,
    bool,
    *const T,
    isize,
    isize,
    *const T,
    isize,
    isize,
    T,
    T,
    bool,
    bool,
    bool,
    gemm_common::Parallelism,
);

impl Gemm for f32 {
    const GEMM: fn() -> GemmFn<f32> = gemm_f32::gemm::f32::get_gemm_fn;
}

impl Gemm for f64 {
    const GEMM: fn() -> GemmFn<f64> = gemm_f64::gemm::f64::get_gemm_fn;
}

/// How the right operand of a GEMM that accumulates in `T` may be stored.
pub(crate) trait Rhs<T>: Copy + Send + Sync {
    /// Computes a GEMM with M, N and K of at least 1, on this thread.
    ///
    /// # Safety
    /// The operands must hold all that is read of them, and the result's rows must be writable and nobody else's
    /// meanwhile.
    unsafe fn multiply(args: GemmArgs<'_, T, Self>);
}

impl Rhs<f32> for f32 {
    unsafe fn multiply(args: GemmArgs<'_, f32>) {
        // Safety: the caller's promise.
        unsafe {
            match small_m::suits(args.sizes, &args.a, &args.b) {
                true => args.small_m(),
                false => call_gemm(&args),
            }
        }
    }
}

impl Rhs<f64> for f64 {
    unsafe fn multiply(args: GemmArgs<'_, f64>) {
        // Safety: the caller's promise.
        unsafe { call_gemm(&args) }
    }
}

impl Rhs<f32> for f16 {
    unsafe fn multiply(args: GemmArgs<'_, f32, f16>) {
        // Safety: the caller's promise.
        unsafe { multiply_stored(&args, widen_f16) }
    }
}

impl Rhs<f32> for bf16 {
    unsafe fn multiply(args: GemmArgs<'_, f32, bf16>) {
        // Safety: the caller's promise.
        unsafe { multiply_stored(&args, widen_bf16) }
    }
}

/// Elements of an f16 or bf16 right operand that are widened at a time for large M: they stay in L2 until they are packed.
const WIDENED: usize = 1 << 16;

/// A GEMM whose right operand is widened as it is read: in registers for small M, some of its rows at a time for
/// large.
///
/// # Safety
/// That of [`Rhs::multiply`].
unsafe fn multiply_stored<E: Stored>(args: &GemmArgs<'_, f32, E>, widen: fn(&[E], &mut [f32])) {
    let GemmArgs { sizes: (rows, columns, k_len), a, b, scale, accumulate, out, pitch } = *args;
    if small_m::suits(args.sizes, &a, &b) {
        // Safety: the caller's promise.
        return unsafe { args.small_m() };
    }
    let stretch = (WIDENED / columns).clamp(1, k_len);
    with_scratch(stretch * columns, |panel: &mut [f32]| {
        for first in (0..k_len).step_by(stretch) {
            let some = stretch.min(k_len - first);
            let part = &mut panel[..some * columns];
            let b = widen_part(b.after(first, 0), some, columns, part, widen);
            let (sizes, a) = ((rows, columns, some), a.after(0, first));
            let accumulate = accumulate || first > 0;
            // Safety: the caller's promise; the part of b is whole.
            unsafe { call_gemm(&GemmArgs { sizes, a, b, scale, accumulate, out, pitch }) };
        }
    });
}

/// Widens the first `rows` and `columns` of a matrix along its contiguous axis, if it has one.
fn widen_part<'a, E: Copy>(
    from: Matrix<'_, E>,
    rows: usize,
    columns: usize,
    to: &'a mut [f32],
    widen: fn(&[E], &mut [f32]),
) -> Matrix<'a, f32> {
    let at = |r: usize, c: usize| from.after(r, c).offset;
    if from.row_stride == 1 && from.column_stride != 1 {
        for (c, column) in to.chunks_exact_mut(rows).enumerate() {
            widen(&from.data[at(0, c)..][..rows], column);
        }
        return Matrix { data: to, offset: 0, row_stride: 1, column_stride: rows as isize };
    }
    for (r, row) in to.chunks_exact_mut(columns).enumerate() {
        if from.column_stride == 1 {
            widen(&from.data[at(r, 0)..][..columns], row);
        } else {
            for (c, x) in row.iter_mut().enumerate() {
                widen(&from.data[at(r, c)..][..1], std::slice::from_mut(x));
            }
        }
    }
    Matrix::packed(to, columns)
}

/// A matmul by the gemm crates.
///
/// # Safety
/// That of [`Rhs::multiply`].
unsafe fn call_gemm<T: Gemm>(args: &GemmArgs<'_, T>) {
    let GemmArgs { sizes: (rows, columns, k_len), a, b, scale, accumulate, out, pitch } = *args;
    let (mut a, mut b, pitch) = (a, b, pitch as isize);
    // The microkernels write columns: rows are columns of the transposed matmul bᵀ·aᵀ.
    let transposed = pitch > 1;
    let along = if transposed { &b } else { &a };
    let backwards = if transposed { along.row_stride < 0 } else { along.column_stride < 0 };
    if backwards && k_len > 0 {
        // The gemm crates want the left operand's steps along k forwards; a sum may begin at its end.
        (a, b) = (a.after(0, k_len - 1), b.after(k_len - 1, 0));
        (a.column_stride, b.row_stride) = (-a.column_stride, -b.row_stride);
    }
    let (m, n, columns_apart, rows_apart) =
        if transposed { (columns, rows, pitch, 1) } else { (rows, columns, 1, pitch) };
    let (lhs, lhs_columns, lhs_rows) =
        if transposed { (b, b.row_stride, b.column_stride) } else { (a, a.column_stride, a.row_stride) };
    let (rhs, rhs_columns, rhs_rows) =
        if transposed { (a, a.row_stride, a.column_stride) } else { (b, b.column_stride, b.row_stride) };
    // Safety: the caller's promise.
    unsafe {
        T::GEMM()(
            m,
            n,
            k_len,
            out,
            columns_apart,
            rows_apart,
            accumulate,
            lhs.data.as_ptr().add(lhs.offset),
            lhs_columns,
            lhs_rows,
            rhs.data.as_ptr().add(rhs.offset),
            rhs_columns,
            rhs_rows,
            T::ONE,
            scale,
            false,
            false,
            false,
            gemm_common::Parallelism::None,
        );
    }
}

/// A matrix read through strides from `data[offset]` on.
#[derive(Clone, Copy)]
pub(crate) struct Matrix<'a, T> {
    pub(crate) data: &'a [T],
    pub(crate) offset: usize,
    pub(crate) row_stride: isize,
    pub(crate) column_stride: isize,
}

impl<'a, T> Matrix<'a, T> {
    /// Row-major with `columns` per row.
    pub(crate) fn packed(data: &'a [T], columns: usize) -> Self {
        Matrix { data, offset: 0, row_stride: columns as isize, column_stride: 1 }
    }

    /// Whether every element of a `rows × columns` reading is in the data.
    fn holds(&self, rows: usize, columns: usize) -> bool {
        if rows == 0 || columns == 0 {
            return true;
        }
        let (mut low, mut high) = (self.offset as isize, self.offset as isize);
        for (count, stride) in [(rows, self.row_stride), (columns, self.column_stride)] {
            let reach = (count as isize - 1) * stride;
            if reach < 0 { low += reach } else { high += reach }
        }
        low >= 0 && (high as usize) < self.data.len()
    }

    /// Where an element of the matrix is.
    #[inline(always)]
    pub(super) fn pointer(&self, row: usize, column: usize) -> *const T {
        let steps = row as isize * self.row_stride + column as isize * self.column_stride;
        self.data.as_ptr().wrapping_add(self.offset).wrapping_offset(steps)
    }

    /// The matrix without its first `rows` and `columns`.
    pub(crate) fn after(self, rows: usize, columns: usize) -> Self {
        let steps = rows as isize * self.row_stride + columns as isize * self.column_stride;
        Matrix { offset: (self.offset as isize + steps) as usize, ..self }
    }
}

/// Called on every finished run of a result row: the run's first flat position in the result, and its elements.
pub(crate) type Finish<'a, T> = &'a (dyn Fn(usize, &mut [T]) + Sync);

/// Tile sizes: both operands' panels of a tile stay in L2 beside the tile, which the epilogue then finds there.
const TILE_ROWS: usize = 256;
const TILE_COLUMNS: usize = 192;
const WIDE_TILE_COLUMNS: usize = 384;

/// Below this many multiplications one thread is faster than two.
const SERIAL_WORK: usize = 64 * 64 * 64;

/// A result of many rows, of which each task writes rectangles of its own.
pub(crate) struct Grid<'a, T> {
    first: *mut T,
    len: usize,
    owner: PhantomData<&'a mut [T]>,
}

// Safety: a grid only hands out memory through `run` and `multiply`, whose callers promise to keep to disjoint parts.
unsafe impl<T: Send> Send for Grid<'_, T> {}
// Safety: as above.
unsafe impl<T: Send> Sync for Grid<'_, T> {}

impl<'a, T> Grid<'a, T> {
    pub(crate) fn new(data: &'a mut [T]) -> Self {
        Grid { first: data.as_mut_ptr(), len: data.len(), owner: PhantomData }
    }

    /// `len` elements from `start` on.
    ///
    /// # Safety
    /// Nobody else may hold or write these elements while the slice lives.
    #[allow(clippy::mut_from_ref)]
    pub(crate) unsafe fn run(&self, start: usize, len: usize) -> &mut [T] {
        assert!(start <= self.len && len <= self.len - start, "a run lies inside its grid");
        // Safety: in bounds as asserted; exclusive by the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.first.add(start), len) }
    }

    /// Where the rectangle begins whose first element is at `start` and whose row stride is `pitch`.
    pub(crate) fn corner(&self, start: usize, rows: usize, columns: usize, pitch: usize) -> *mut T {
        let end = start + rows.saturating_sub(1) * pitch + columns;
        assert!(end <= self.len, "a rectangle lies inside its grid");
        self.first.wrapping_add(start)
    }
}

impl<T: Accumulator> Grid<'_, T> {
    /// Writes `scale · a · b` (or adds it, with `accumulate`) to the rectangle that begins at `start` and whose row stride is
    /// `pitch`, on this thread.
    ///
    /// # Safety
    /// Nobody else may hold or write the rectangle meanwhile.
    pub(crate) unsafe fn multiply<E: Rhs<T>>(
        &self,
        (rows, columns, k_len): (usize, usize, usize),
        start: usize,
        pitch: usize,
        a: Matrix<'_, T>,
        b: Matrix<'_, E>,
        scale: T,
        accumulate: bool,
    ) {
        if rows == 0 || columns == 0 {
            return;
        }
        assert!(start + (rows - 1) * pitch + columns <= self.len, "a rectangle lies inside its grid");
        assert!(a.holds(rows, k_len) && b.holds(k_len, columns), "the operands of a GEMM are whole");
        if k_len == 0 {
            for row in (0..rows).filter(|_| !accumulate) {
                // Safety: inside, as asserted; exclusive by the caller's promise.
                unsafe { self.run(start + row * pitch, columns) }.fill(T::ZERO);
            }
            return;
        }
        let out = self.first.wrapping_add(start);
        let args = GemmArgs { sizes: (rows, columns, k_len), a, b, scale, accumulate, out, pitch };
        // Safety: all three rectangles are in bounds as asserted; the result is exclusive by the caller's promise.
        unsafe { E::multiply(args) };
    }
}

/// `out = scale · a · b` (or `out + scale · a · b`, with `accumulate`), packed, on this thread.
pub(crate) fn serial_gemm<T: Accumulator>(
    sizes: (usize, usize, usize),
    a: Matrix<'_, T>,
    b: Matrix<'_, T>,
    scale: T,
    accumulate: bool,
    out: &mut [T],
) {
    // Safety: the grid is this call's alone.
    unsafe { Grid::new(out).multiply(sizes, 0, sizes.1, a, b, scale, accumulate) }
}

/// `out[M, N] = a[M, K] · b[K, N]`, packed, on all threads, then `finish` on every run.
///
/// `start` is the flat position of `out` in the whole result, for `finish`.
pub(crate) fn gemm<T: Accumulator, E: Rhs<T>>(
    (rows, columns, k_len): (usize, usize, usize),
    a: Matrix<'_, T>,
    b: Matrix<'_, E>,
    out: &mut [T],
    start: usize,
    finish: Option<Finish<'_, T>>,
) {
    assert!(a.holds(rows, k_len) && b.holds(k_len, columns) && out.len() == rows * columns);
    if rows == 0 || columns == 0 {
        return;
    }
    let threads = parallel::threads();
    let serial = rows * columns * k_len.max(1) <= SERIAL_WORK || threads == 1;
    let tile_rows = rows.div_ceil(rows.div_ceil(TILE_ROWS));
    let share = TILE_COLUMNS.max(columns.div_ceil(threads));
    let widest = match rows {
        // b is not packed ahead: long runs of its rows are read fastest.
        _ if small_m::suits((rows, share.min(columns), k_len), &a, &b) => share,
        TILE_ROWS.. => WIDE_TILE_COLUMNS,
        _ => TILE_COLUMNS,
    };
    let tile_columns = if serial { columns } else { even_part(columns, widest) };
    let across = columns.div_ceil(tile_columns);
    let tiles = rows.div_ceil(tile_rows) * across;
    let grid = Grid::new(out);
    let tile = |t: usize| {
        let (r, c) = (t / across * tile_rows, t % across * tile_columns);
        let (height, width) = (tile_rows.min(rows - r), tile_columns.min(columns - c));
        let size = (height, width, k_len);
        // Safety: no other tile touches these rows and columns.
        unsafe { grid.multiply(size, r * columns + c, columns, a.after(r, 0), b.after(0, c), T::ONE, false) };
        let Some(finish) = finish else { return };
        // Whole rows follow each other: they are one run.
        let (runs, len) = if width == columns { (1, height * width) } else { (height, width) };
        for run in 0..runs {
            let first = (r + run) * columns + c;
            // Safety: this run belongs to this tile alone.
            finish(start + first, unsafe { grid.run(first, len) });
        }
    };
    if serial {
        (0..tiles).for_each(tile);
    } else {
        parallel::tasks(tiles, &tile);
    }
}

/// Cuts `total` into equal parts of at most `most`, rounded up to whole vectors.
fn even_part(total: usize, most: usize) -> usize {
    let parts = total.div_ceil(most);
    total.div_ceil(parts).next_multiple_of(16)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(rows: usize, columns: usize, k_len: usize) {
        let a: Vec<f32> = (0..rows * k_len).map(|i| ((i * 7) % 13) as f32 - 6.0).collect();
        let bt: Vec<f32> = (0..columns * k_len).map(|i| ((i * 5) % 11) as f32 - 5.0).collect();
        let b = Matrix { data: &bt, offset: 0, row_stride: 1, column_stride: k_len as isize };
        let mut out = vec![f32::NAN; rows * columns];
        let add_one = |_: usize, run: &mut [f32]| run.iter_mut().for_each(|x| *x += 1.0);
        gemm((rows, columns, k_len), Matrix::packed(&a, k_len), b, &mut out, 0, Some(&add_one));
        for r in 0..rows {
            for c in 0..columns {
                let want: f32 = (0..k_len).map(|k| a[r * k_len + k] * bt[c * k_len + k]).sum::<f32>() + 1.0;
                assert_eq!(out[r * columns + c], want, "{rows}x{columns}x{k_len} at {r},{c}");
            }
        }
    }

    #[test]
    fn tiles_of_every_size_cover_the_result_once() {
        for (r, c, k) in [(1, 1, 1), (3, 5, 0), (0, 4, 4), (300, 17, 40), (130, 500, 33), (257, 401, 9)] {
            check(r, c, k);
        }
    }

    #[test]
    fn operands_may_run_backwards_and_results_accumulate() {
        let (a, b) = ([6.0, 5.0, 4.0, 3.0, 2.0, 1.0f64], [1.0, 0.0, -1.0f64]);
        // [[1, 2, 3], [4, 5, 6]] read from its last element, times a column.
        let backwards = Matrix { data: &a, offset: 5, row_stride: -3, column_stride: -1 };
        let mut out = [10.0, 20.0];
        serial_gemm((2, 1, 3), backwards, Matrix::packed(&b, 1), 2.0, true, &mut out);
        assert_eq!(out, [6.0, 16.0]);
        serial_gemm((2, 1, 3), backwards, Matrix::packed(&b, 1), 0.5, false, &mut out);
        assert_eq!(out, [-1.0, -1.0]);
        serial_gemm((2, 1, 0), backwards, Matrix::packed(&b, 1), 1.0, true, &mut out);
        assert_eq!(out, [-1.0, -1.0]);
        serial_gemm((2, 1, 0), backwards, Matrix::packed(&b, 1), 1.0, false, &mut out);
        assert_eq!(out, [0.0, 0.0]);
    }
}
