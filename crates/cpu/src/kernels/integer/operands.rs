//! The two operands of an integer GEMM as its micro-kernels read them: unsigned rows, and panels of signed columns.

use olivine_ir::DType;

use super::micro::{ColumnTerms, PANEL, RowTerms, STEP, STRIP, Strip};
use crate::operand::Operand;
use crate::parallel;
use crate::scratch;
use crate::simd;

/// Flips the sign bit, which turns i8 into u8 that are 128 more, and u8 into i8 that are 128 less.
const FLIP: u8 = 0x80;

/// A summed axis of `k_len` elements in whole steps.
pub(super) fn padded(k_len: usize) -> usize {
    k_len.next_multiple_of(STEP)
}

/// A matrix of bytes read through strides.
#[derive(Clone, Copy)]
pub(super) struct Bytes<'a> {
    pub(super) data: &'a [u8],
    /// Position of the first element.
    pub(super) first: isize,
    /// From line to line: rows of the lhs, columns of the rhs.
    pub(super) line: isize,
    /// Along the summed axis.
    pub(super) step: isize,
    /// What every byte is changed with to have the sign of its operand.
    pub(super) flip: u8,
}

/// The byte that makes a left side of this dtype unsigned.
pub(super) fn left_flip(dtype: DType) -> u8 {
    if dtype == DType::I8 { FLIP } else { 0 }
}

/// The byte that makes a right side of this dtype signed.
pub(super) fn right_flip(dtype: DType) -> u8 {
    if dtype == DType::U8 { FLIP } else { 0 }
}

impl<'a> Bytes<'a> {
    fn at(&self, line: usize, k: usize) -> u8 {
        self.data[(self.first + line as isize * self.line + k as isize * self.step) as usize] ^ self.flip
    }

    /// The bytes as they are from `(line, k)` on, if neighbours there are contiguous along `step`.
    fn run(&self, line: usize, k: usize, step: isize, len: usize) -> Option<&'a [u8]> {
        let first = self.first + line as isize * self.line + k as isize * self.step;
        if step == 1 { self.data.get(first as usize..)?.get(..len) } else { None }
    }

    /// Rows in the layout that micro-kernels read, and their pitch.
    fn in_place(&self, rows: usize, k_len: usize) -> Option<(&'a [u8], usize)> {
        let fits = self.flip == 0 && self.step == 1 && k_len.is_multiple_of(STEP);
        let pitch = usize::try_from(if rows <= 1 { k_len as isize } else { self.line }).ok()?;
        let len = rows.saturating_sub(1) * pitch + k_len;
        if fits { Some((self.data.get(self.first as usize..)?.get(..len)?, pitch)) } else { None }
    }

    /// Lays rows from `first` on out one after the other, the summed axis filled up with zeros.
    fn pack_rows(&self, first: usize, k_len: usize, to: &mut [u8]) {
        for (row, to) in to.chunks_exact_mut(padded(k_len).max(1)).enumerate() {
            let (to, pad) = to.split_at_mut(k_len);
            match self.run(first + row, 0, self.step, k_len) {
                Some(run) => to.iter_mut().zip(run).for_each(|(t, x)| *t = x ^ self.flip),
                None => to.iter_mut().enumerate().for_each(|(k, t)| *t = self.at(first + row, k)),
            }
            pad.fill(0);
        }
    }

    /// Lays up to [`PANEL`] columns from `first` on out as a panel, the summed axis filled up with zeros.
    fn pack_panel(&self, first: usize, columns: usize, k_len: usize, to: &mut [u8]) {
        to.fill(0);
        let whole = columns == PANEL;
        for (group, to) in to.as_chunks_mut::<{ STEP * PANEL }>().0.iter_mut().enumerate() {
            let k = group * STEP;
            let count = (k_len - k).min(STEP);
            let row = |i: usize| {
                let run = if i < count && whole { self.run(first, k + i, self.line, PANEL) } else { None };
                run.and_then(|run| run.first_chunk::<PANEL>())
            };
            if let (Some(a), Some(b), Some(c), Some(d)) = (row(0), row(1), row(2), row(3)) {
                for j in 0..PANEL {
                    to[STEP * j] = a[j] ^ self.flip;
                    to[STEP * j + 1] = b[j] ^ self.flip;
                    to[STEP * j + 2] = c[j] ^ self.flip;
                    to[STEP * j + 3] = d[j] ^ self.flip;
                }
                continue;
            }
            for (c, to) in to.chunks_exact_mut(STEP).take(columns).enumerate() {
                match self.run(first + c, k, self.step, count) {
                    Some(run) => to.iter_mut().zip(run).for_each(|(t, x)| *t = x ^ self.flip),
                    None => (0..count).for_each(|i| to[i] = self.at(first + c, k + i)),
                }
            }
        }
    }
}

/// Zero points of a side's lines, shifted as its bytes are.
#[derive(Clone, Copy)]
pub(super) struct Zeros<'a> {
    points: &'a [u8],
    signed: bool,
    shift: i32,
}

impl<'a> Zeros<'a> {
    /// The zero points of a left side of some dtype.
    pub(super) fn left(dtype: DType, given: Option<&Operand<'a>>) -> Self {
        Zeros::new(dtype, given, if dtype == DType::I8 { 128 } else { 0 })
    }

    /// The zero points of a right side of some dtype.
    pub(super) fn right(dtype: DType, given: Option<&Operand<'a>>) -> Self {
        Zeros::new(dtype, given, if dtype == DType::U8 { -128 } else { 0 })
    }

    fn new(dtype: DType, given: Option<&Operand<'a>>, shift: i32) -> Self {
        let points = given.map_or(&[][..], |x| x.slice());
        Zeros { points, signed: dtype == DType::I8, shift }
    }

    /// The zero point of a line.
    pub(super) fn of(&self, line: usize) -> i32 {
        let byte = match self.points {
            [] => 0,
            [one] => *one,
            many => many[line],
        };
        self.shift + if self.signed { i32::from(byte as i8) } else { i32::from(byte) }
    }

    /// The zero points of lines from `first` on.
    pub(super) fn after(self, first: usize) -> Self {
        let points = if self.points.len() > 1 { &self.points[first..] } else { self.points };
        Zeros { points, ..self }
    }

    /// Whether there is one for every line.
    pub(super) fn is_per_line(&self) -> bool {
        self.points.len() > 1
    }

    /// Whether all are zero.
    fn is_zero(&self) -> bool {
        self.points.len() <= 1 && self.of(0) == 0
    }
}

/// Bytes of a matrix in panels with the sums of its columns.
pub(super) fn panels_bytes(columns: usize, k_len: usize) -> usize {
    columns.next_multiple_of(PANEL) * (padded(k_len) + size_of::<i32>())
}

/// A right side in panels.
#[derive(Clone, Copy)]
pub(super) struct Panels<'a> {
    pub(super) columns: usize,
    pub(super) k_len: usize,
    pub(super) bytes: &'a [u8],
    /// Of every column, those that fill the last panel up included.
    pub(super) sums: &'a [i32],
}

impl<'a> Panels<'a> {
    /// Reads what [`pack_panels`] wrote.
    pub(super) fn new(columns: usize, k_len: usize, packed: &'a [u8]) -> Self {
        let (bytes, sums) =
            packed[..panels_bytes(columns, k_len)].split_at(columns.next_multiple_of(PANEL) * padded(k_len));
        let sums = if sums.is_empty() { &[] } else { bytemuck::cast_slice(sums) };
        Panels { columns, k_len, bytes, sums }
    }

    /// `columns` columns from `first` on, which is a multiple of [`PANEL`].
    pub(super) fn part(self, first: usize, columns: usize) -> Self {
        let bytes = &self.bytes[first * padded(self.k_len)..];
        Panels { columns, bytes, sums: &self.sums[first..], ..self }
    }
}

/// Lays a right side out in panels, followed by its columns' sums; `to` is aligned for i32.
pub(super) fn pack_panels(x: Bytes<'_>, columns: usize, k_len: usize, to: &mut [u8]) {
    let wide = columns.next_multiple_of(PANEL);
    let (panels, sums) = to.split_at_mut(wide * padded(k_len));
    let size = PANEL * padded(k_len);
    parallel::grouped(panels, size, (1usize << 16).div_ceil(size.max(1)), &|p, panel| {
        x.pack_panel(p * PANEL, (columns - p * PANEL).min(PANEL), k_len, panel);
    });
    if !sums.is_empty() {
        sum_columns(panels, k_len, bytemuck::cast_slice_mut(sums));
    }
}

/// The sums of panels' columns: a row of ones times them.
pub(super) fn sum_columns(panels: &[u8], k_len: usize, sums: &mut [i32]) {
    let mut ones = scratch::filled(1u8, padded(k_len));
    ones[k_len..].fill(0);
    let columns = ColumnTerms { sums: [0; STRIP * PANEL], zeros: [0; STRIP * PANEL] };
    for (i, sums) in sums.chunks_mut(STRIP * PANEL).enumerate() {
        let strip = Strip {
            steps: padded(k_len) / STEP,
            left: &ones,
            pitch: 0,
            rows: &[RowTerms::default()],
            panels: &panels[i * STRIP * PANEL * padded(k_len)..],
            columns: &columns,
            width: sums.len(),
        };
        // Safety: a row of `width` sums, held by this call alone.
        unsafe { strip.multiply(sums.as_mut_ptr(), 0) };
    }
}

/// Bytes of rows with their sums.
pub(super) fn rows_bytes(rows: usize, k_len: usize) -> usize {
    rows * (padded(k_len) + size_of::<i32>())
}

/// Rows of a left side as micro-kernels read them.
#[derive(Clone, Copy)]
pub(super) struct Rows<'a> {
    pub(super) bytes: &'a [u8],
    pub(super) pitch: usize,
    /// Of every row.
    pub(super) sums: &'a [i32],
}

impl<'a> Rows<'a> {
    /// Reads what [`pack_rows`] wrote.
    pub(super) fn new(rows: usize, k_len: usize, packed: &'a [u8]) -> Self {
        let (bytes, sums) = packed[..rows_bytes(rows, k_len)].split_at(rows * padded(k_len));
        let sums = if sums.is_empty() { &[] } else { bytemuck::cast_slice(sums) };
        Rows { bytes, pitch: padded(k_len), sums }
    }

    /// Rows from `first` on, `count` of them.
    pub(super) fn part(self, first: usize, count: usize) -> Self {
        Rows { bytes: &self.bytes[first * self.pitch..], sums: &self.sums[first..][..count], ..self }
    }
}

/// Lays a left side out in rows, followed by their sums; `to` is aligned for i32.
pub(super) fn pack_rows(x: Bytes<'_>, rows: usize, k_len: usize, to: &mut [u8]) {
    let (bytes, sums) = to.split_at_mut(rows * padded(k_len));
    x.pack_rows(0, k_len, bytes);
    if !sums.is_empty() {
        sum_rows(bytes, padded(k_len), padded(k_len), bytemuck::cast_slice_mut(sums));
    }
}

/// The sums of rows of `k_len` bytes `pitch` apart.
fn sum_rows(bytes: &[u8], pitch: usize, k_len: usize, sums: &mut [i32]) {
    struct Sum<'a>(&'a [u8]);
    impl simd::Kernel for Sum<'_> {
        type Output = i32;
        #[inline(always)]
        fn run<const FMA: bool>(self) -> i32 {
            self.0.iter().fold(0i32, |sum, x| sum.wrapping_add(i32::from(*x)))
        }
    }
    for (row, sum) in sums.iter_mut().enumerate() {
        *sum = simd::run(Sum(&bytes[row * pitch..][..k_len]));
    }
}

/// Rows `first..first + sums.len()` of the lhs, read in their own layout or packed in `scratch`, which has room for
/// them; their sums only where zero points of the right side ask for them.
pub(super) fn rows<'a>(
    x: &Bytes<'a>,
    first: usize,
    k_len: usize,
    right_zeros: &Zeros<'_>,
    scratch: &'a mut [u8],
    sums: &'a mut [i32],
) -> Rows<'a> {
    let count = sums.len();
    let moved = Bytes { first: x.first + first as isize * x.line, ..*x };
    let (bytes, pitch) = match moved.in_place(count, k_len) {
        Some(in_place) => in_place,
        None => {
            let to = &mut scratch[..count * padded(k_len)];
            moved.pack_rows(0, k_len, to);
            (&*to, padded(k_len))
        }
    };
    if right_zeros.is_zero() {
        sums.fill(0);
    } else {
        sum_rows(bytes, pitch, padded(k_len), sums);
    }
    Rows { bytes, pitch, sums }
}

/// Rows that share one pass over a strip's panels.
const BLOCK: usize = 96;

/// Rows times columns, both with their zero points, into rows `pitch` apart from `out` on.
///
/// # Safety
/// `out` must be valid for writing `right.columns` elements in each of the rows, and nobody else may hold them.
pub(super) unsafe fn multiply(
    (left, left_zeros): (Rows<'_>, Zeros<'_>),
    (right, right_zeros): (Panels<'_>, Zeros<'_>),
    out: *mut i32,
    pitch: usize,
) {
    const WIDTH: usize = STRIP * PANEL;
    let mut column = 0;
    while column < right.columns {
        let width = (right.columns - column).min(WIDTH);
        let (right, zeros) = (right.part(column, width), right_zeros.after(column));
        let mut columns = ColumnTerms { sums: [0; WIDTH], zeros: [0; WIDTH] };
        for (c, (sum, zero)) in columns.sums.iter_mut().zip(&mut columns.zeros).take(width).enumerate() {
            *zero = zeros.of(c);
            *sum = right.sums[c].wrapping_sub((right.k_len as i32).wrapping_mul(*zero));
        }
        for (block, sums) in left.sums.chunks(BLOCK).enumerate() {
            let first = block * BLOCK;
            let mut terms = [RowTerms::default(); BLOCK];
            for (r, (terms, sum)) in terms.iter_mut().zip(sums).enumerate() {
                let zero = left_zeros.of(first + r).wrapping_neg();
                *terms = RowTerms { zero, sum: sum.wrapping_neg() };
            }
            let strip = Strip {
                steps: padded(right.k_len) / STEP,
                left: &left.bytes[first * left.pitch..],
                pitch: left.pitch,
                rows: &terms[..sums.len()],
                panels: right.bytes,
                columns: &columns,
                width,
            };
            // Safety: these rows and columns are in the caller's.
            unsafe { strip.multiply(out.add(first * pitch + column), pitch) };
        }
        column += width;
    }
}
