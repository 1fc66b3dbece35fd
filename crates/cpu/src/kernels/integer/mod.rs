//! Matmuls and convolutions of 8-bit integers less their zero points, with i32 accumulators.
//!
//! ```text
//!   operands rows of unsigned bytes, panels of signed columns, their sums and zero points
//!   micro    rows times a strip of panels, in registers (x86: for VNNI and AVX2)
//!   conv     windows as panels, times rows of weights; where filters are few, `depthwise`: line by line
//! ```
//!
//! Weights are laid out when a model is loaded: a matmul's rhs in panels, a convolution's filters in rows.

mod conv;
mod depthwise;
mod micro;
mod operands;
#[cfg(test)]
mod tests;
#[cfg(target_arch = "x86_64")]
mod x86;

use olivine_ir::op::QMatMul;
use olivine_ir::{Shape, TensorType};

pub(crate) use conv::filters_packing;
use operands::{
    Bytes, Panels, Zeros, left_flip, multiply, pack_panels, padded, panels_bytes, right_flip, rows,
};

use super::conv::scratch::with_scratch;
use super::gemm::Grid;
use crate::kernel::Packing;
use crate::kernel::kernels;
use crate::operand::{Operand, Target};
use crate::parallel;

kernels! { |op, x, out, call|
    QMatMul => qmatmul(op, x, out),
}

/// Multiplications that are worth a task of their own.
const TASK: usize = 1 << 20;

/// Rows of a task at most, in bytes and in number: they stay in cache while the panels pass by.
const ROWS_BYTES: usize = 256 << 10;
const ROWS: usize = 96;

/// Columns that task borders are multiples of.
const COLUMNS: usize = 64;

/// Sizes of a right side: matrices, rows and columns.
fn right_sizes(shape: &Shape) -> (usize, usize, usize) {
    let rank = shape.rank();
    (shape[..rank - 2].iter().product(), shape[rank - 2], shape[rank - 1])
}

/// The layout of the rhs of an integer matmul, packed at load.
pub(crate) fn panels_packing(right: &TensorType) -> Packing {
    let (matrices, k_len, columns) = right_sizes(&right.shape);
    let bytes = matrices * panels_bytes(columns, k_len);
    Packing { layout: "integer panels".into(), bytes, pack: |_, x, to| pack_right(x, to) }
}

/// Lays all matrices of a right side out, one after the other.
fn pack_right(x: &Operand<'_>, to: &mut [u8]) {
    let (matrices, k_len, columns) = right_sizes(x.shape());
    let each = panels_bytes(columns, k_len);
    if each == 0 {
        return;
    }
    let (rank, batch) = (x.shape().rank(), &x.shape()[..x.shape().rank() - 2]);
    for (number, to) in to.chunks_exact_mut(each).take(matrices).enumerate() {
        let bytes = Bytes {
            data: x.bytes(),
            first: Batch::of(x, batch, number).start,
            line: x.strides[rank - 1],
            step: x.strides[rank - 2],
            flip: right_flip(x.ty.dtype),
        };
        pack_panels(bytes, columns, k_len, to);
    }
}

/// One matrix of an operand.
struct Batch {
    /// Its number among the operand's own.
    matrix: usize,
    /// The position of its first element.
    start: isize,
}

impl Batch {
    /// The matrix under a result's batch `number`, batch dims broadcast.
    fn of(x: &Operand<'_>, batch: &[usize], mut number: usize) -> Self {
        let own = x.shape().rank() - 2;
        let mut found = Batch { matrix: 0, start: x.offset as isize };
        let mut matrices = 1;
        for (i, size) in batch.iter().enumerate().rev() {
            let index = number % size;
            number /= size;
            if let Some(axis) = (i + own).checked_sub(batch.len())
                && x.shape()[axis] != 1
            {
                found.matrix += index * matrices;
                found.start += index as isize * x.strides[axis];
                matrices *= size;
            }
        }
        found
    }
}

/// Integer matmul.
pub(crate) fn qmatmul(op: &QMatMul, x: &[Operand<'_>], out: &mut [Target<'_>]) {
    let Some(target) = out.first_mut() else { return };
    if target.shape().has_zero() {
        return;
    }
    match x[1].packed {
        Some(packed) => batches(op, x, packed, target),
        None => {
            let (matrices, k_len, columns) = right_sizes(x[1].shape());
            with_scratch(matrices * panels_bytes(columns, k_len), |packed| {
                pack_right(&x[1], packed);
                batches(op, x, packed, target);
            });
        }
    }
}

/// All matrices of a batched matmul whose rhs is packed.
fn batches(op: &QMatMul, x: &[Operand<'_>], packed: &[u8], target: &mut Target<'_>) {
    let (a, b, shape) = (&x[0], &x[1], target.shape());
    let (_, k_len, columns) = right_sizes(b.shape());
    let rank = a.shape().rank();
    let zero = |given: bool, at: usize| given.then(|| &x[at]);
    let left_zeros = Zeros::left(a.ty.dtype, zero(op.a_zero, 2));
    let right_zeros = Zeros::right(b.ty.dtype, zero(op.b_zero, 2 + usize::from(op.a_zero)));
    let batch = &shape[..shape.rank() - 2];
    let count: usize = batch.iter().product();
    let one = |number: usize, rows: usize, out: &mut [i32]| {
        let left = Bytes {
            data: a.bytes(),
            first: Batch::of(a, batch, number).start,
            line: a.strides[rank - 2],
            step: a.strides[rank - 1],
            flip: left_flip(a.ty.dtype),
        };
        let matrix = Batch::of(b, batch, number).matrix * panels_bytes(columns, k_len);
        let right = Panels::new(columns, k_len, &packed[matrix..]);
        matmul(rows, (left, left_zeros), (right, right_zeros), out);
    };
    let rows = a.shape()[rank - 2];
    let out = target.elements::<i32>();
    let shared = b.shape()[..b.shape().rank() - 2].iter().all(|d| *d == 1);
    if shared && count > 1 && !left_zeros.is_per_line() && rows_continue(a, batch) {
        one(0, rows * count, out);
    } else if count < parallel::threads() || out.len().saturating_mul(k_len) <= TASK {
        out.chunks_mut(rows * columns).enumerate().for_each(|(i, out)| one(i, rows, out));
    } else {
        let least = TASK.div_ceil((rows * columns).saturating_mul(k_len).max(1));
        parallel::grouped(out, rows * columns, least, &|i, out| one(i, rows, out));
    }
}

/// Whether the rows of all batches are at one distance from each other.
fn rows_continue(x: &Operand<'_>, batch: &[usize]) -> bool {
    let own = &x.shape()[..x.shape().rank() - 2];
    let mut step = x.strides[own.len()] * x.shape()[own.len()] as isize;
    for (size, stride) in own.iter().zip(&x.strides).rev() {
        if *size != 1 && *stride != step {
            return false;
        }
        step *= *size as isize;
    }
    own.iter().product::<usize>() == batch.iter().product::<usize>()
}

/// One matrix of a result: rows of the left side times the panels of the right.
fn matmul(
    rows_count: usize,
    (left, left_zeros): (Bytes<'_>, Zeros<'_>),
    (right, right_zeros): (Panels<'_>, Zeros<'_>),
    out: &mut [i32],
) {
    let (columns, k_len) = (right.columns, right.k_len);
    // Fewer rows than this wait for memory: the panels are read for them all the same.
    let least = 4;
    let work = rows_count.max(least).saturating_mul(columns).saturating_mul(k_len);
    let threads = parallel::threads();
    let tall = (ROWS_BYTES / padded(k_len).max(1)).clamp(1, ROWS).min(rows_count);
    let down = rows_count.div_ceil(tall);
    let wide = if work <= TASK || threads == 1 || down >= 4 * threads {
        columns
    } else {
        (TASK / (tall.max(least) * k_len).max(1)).max(1).next_multiple_of(COLUMNS).min(columns)
    };
    let across = columns.div_ceil(wide);
    let grid = Grid::new(out);
    let task = |t: usize| {
        let (row, column) = (t / across * tall, t % across * wide);
        let (height, width) = (tall.min(rows_count - row), wide.min(columns - column));
        let (right, right_zeros) = (right.part(column, width), right_zeros.after(column));
        with_scratch(height * padded(k_len), |scratch: &mut [u8]| {
            let mut sums = [0; ROWS];
            let left = rows(&left, row, k_len, &right_zeros, scratch, &mut sums[..height]);
            let to = grid.corner(row * columns + column, height, width, columns);
            // Safety: no other task writes these rows and columns.
            unsafe { multiply((left, left_zeros.after(row)), (right, right_zeros), to, columns) };
        });
    };
    if work <= TASK || threads == 1 {
        (0..down * across).for_each(task);
    } else {
        parallel::tasks(down * across, &task);
    }
}
