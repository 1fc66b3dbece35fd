//! Weights that stay packed: matmuls that decode them on the way, and rows of them.
//!
//! ```text
//!   one or two rows of x:  codes of w ─ integer dot products with x in fixed point               fixed.rs
//!   few:            rows of w ─ decoded in registers ─ dot products with all rows of x      rows.rs, formats.rs
//!   more:           rows of w, a block of K at a time ─ f32 panel ─ gemm with all rows of x
//! ```

#[cfg(target_arch = "x86_64")]
mod fixed;
#[cfg(target_arch = "x86_64")]
mod formats;
#[cfg(target_arch = "x86_64")]
mod rows;
#[cfg(target_arch = "x86_64")]
mod sixteen;
#[cfg(test)]
mod tests;
mod weight;

use std::borrow::Cow;
use std::ops::Range;

use half::{bf16, f16};
use olivine_ir::op::{DequantGather, DequantMatMul};
use olivine_ir::{DType, Shape, TensorType};

use crate::kernel::kernels;
use crate::kernels::contraction::{finish_runs, matmul};
use crate::kernels::conv::scratch::with_scratch;
use crate::kernels::elementwise::{FusedRegion, Program};
use crate::kernels::gemm::{Grid, Matrix};
use crate::kernels::index::Indices;
use crate::operand::{Fault, Operand, Target};
use crate::parallel;
use crate::scratch;
use crate::simd::half::{narrow_bf16, narrow_f16, widen_bf16, widen_f16};
#[cfg(target_arch = "x86_64")]
use crate::simd::{Vectors, vectors};
use weight::Weight;

kernels! { |op, x, out, call|
    DequantMatMul => dequant_matmul(op, call.program(), x, &mut out[0], call.checked)?,
    DequantGather => dequant_gather(op, x, &mut out[0], call.checked)?,
}

/// Rows and columns of a weight that are decoded together for a gemm: they stay in L2, and what the gemm packs of x
/// serves all these rows.
const PANEL: (usize, usize) = (64, 1024);

/// Rows of a panel at least.
const LEAST_PANEL: usize = 16;

/// Elements that a task decodes at least.
const GRAIN: usize = 1 << 15;

/// Tasks for each thread, so that a thread that is held up does not hold up the others.
const TASKS: usize = 8;

/// Rows of x as f32.
fn floats<'a>(x: &Operand<'a>) -> Cow<'a, [f32]> {
    match x.ty.dtype {
        DType::F16 => Cow::Owned(widened(x.slice::<f16>(), widen_f16)),
        DType::BF16 => Cow::Owned(widened(x.slice::<bf16>(), widen_bf16)),
        _ => Cow::Borrowed(x.slice()),
    }
}

fn widened<T: Sync>(x: &[T], widen: fn(&[T], &mut [f32])) -> Vec<f32> {
    let mut out = scratch::zeroed::<f32>(x.len());
    parallel::chunks(&mut out, GRAIN, &|i, to| widen(&x[i * GRAIN..][..to.len()], to));
    out
}

/// `x · wᵀ`, then the epilogue.
fn dequant_matmul(
    op: &DequantMatMul,
    program: Option<&Program>,
    x: &[Operand<'_>],
    out: &mut Target<'_>,
    checked: bool,
) -> Result<(), Fault> {
    let (shape, dtype) = (out.shape(), x[0].ty.dtype);
    let product = |result: &mut [f32]| {
        let n = shape.dims().last().copied().unwrap_or(0);
        let k = x[0].shape().dims().last().copied().unwrap_or(0);
        let rows = floats(&x[0]);
        if x[1].ty.packed.is_none() && x[1].ty.dtype.is_float() && !op.grouped {
            float_matmul(&rows, &x[1], (n, k), result);
            return Ok(());
        }
        let weight = Weight::new(&x[1], op.scaling(), &x[op.first_scale()..]);
        if op.grouped {
            return grouped(&weight, &rows, (n, k), x, result, checked);
        }
        let all = Job { first: 0, rows: 0..result.len().checked_div(n).unwrap_or(0) };
        multiply(&weight, &[all], &rows, (n, k), result);
        Ok(())
    };
    if program.is_none() && dtype == DType::F32 {
        return product(out.elements());
    }
    let mut result = scratch::zeroed::<f32>(shape.numel());
    product(&mut result)?;
    match program {
        Some(program) => {
            let epilogue = FusedRegion::new(program, &x[op.first_extra()..], &shape);
            match dtype {
                DType::F32 => finish_runs(&result, out, &|at, run, to| epilogue.apply(at, run, to)),
                _ => finish_runs(&result, out, &|at, run, to| epilogue.apply_wide(at, run, to)),
            }
        }
        None => finish_runs(&result, out, &|_, run, to| narrow(dtype, run, to)),
    }
    Ok(())
}

/// The matmul with a weight of a float dtype, which plain matmuls read as it is stored.
fn float_matmul(x: &[f32], w: &Operand<'_>, (n, k): (usize, usize), result: &mut [f32]) {
    let matrix =
        |dtype, rows, columns| Shape::new(&[rows, columns]).map(|shape| TensorType::new(dtype, shape));
    let m = result.len().checked_div(n).unwrap_or(0);
    let types = (matrix(DType::F32, m, k), matrix(w.ty.dtype, k, n), matrix(DType::F32, m, n));
    // Sizes of tensors that exist.
    let (Ok(a), Ok(b), Ok(out)) = types else { return };
    let mut transposed = Operand { ty: b, ..*w };
    transposed.strides[..2].copy_from_slice(&[1, k as isize]);
    let operands = [Operand::packed(a, bytemuck::cast_slice(x)), transposed];
    matmul(None, &operands, &mut Target { ty: out, bytes: bytemuck::cast_slice_mut(result) });
}

/// f32 as a float dtype.
fn narrow(dtype: DType, from: &[f32], to: &mut [u8]) {
    match dtype {
        DType::F16 => narrow_f16(from, bytemuck::cast_slice_mut(to)),
        DType::BF16 => narrow_bf16(from, bytemuck::cast_slice_mut(to)),
        _ => to.copy_from_slice(bytemuck::cast_slice(from)),
    }
}

/// Rows of x, and the first of the n rows of the weight that they are multiplied with.
struct Job {
    first: usize,
    rows: Range<usize>,
}

/// How a job is done.
enum Way {
    #[cfg(target_arch = "x86_64")]
    Fixed(fixed::Prepared),
    #[cfg(target_arch = "x86_64")]
    Dots(rows::Prepared),
    Panels,
}

/// `out[m, n] = x[m, k] · w[first..first + n, k]ᵀ` for the rows of every job.
fn multiply(weight: &Weight<'_>, jobs: &[Job], x: &[f32], (n, k): (usize, usize), out: &mut [f32]) {
    if k == 0 || n == 0 {
        return out.fill(0.0);
    }
    let of = |job: &Job| &x[job.rows.start * k..job.rows.end * k];
    let ways = scratch::collected(jobs.iter().map(|job| way(weight, of(job), (job.rows.len(), k))));
    let tasks = (TASKS * parallel::threads()).div_ceil(jobs.len().max(1));
    let chunk = n.div_ceil(tasks).max(GRAIN.div_ceil(weight.columns));
    let chunks = n.div_ceil(chunk);
    let grid = Grid::new(out);
    parallel::tasks(jobs.len() * chunks, &|t| {
        let (job, way, start) = (&jobs[t / chunks], &ways[t / chunks], t % chunks * chunk);
        let columns = start..(start + chunk).min(n);
        match way {
            #[cfg(target_arch = "x86_64")]
            Way::Fixed(_) | Way::Dots(_) => {
                let mut to: [&mut [f32]; rows::MOST] = Default::default();
                for (to, m) in to.iter_mut().zip(job.rows.clone()) {
                    // Safety: no other task writes these columns.
                    *to = unsafe { grid.run(m * n + start, columns.len()) };
                }
                let range = job.first + columns.start..job.first + columns.end;
                let to = &mut to[..job.rows.len()];
                match way {
                    Way::Fixed(x) => fixed::multiply(weight, range, x, to),
                    Way::Dots(x) => rows::multiply(weight, range, x, to),
                    Way::Panels => {}
                }
            }
            Way::Panels => {
                // Safety: no other task writes these columns.
                unsafe { panels(weight, job, columns, of(job), (n, k), &grid) };
            }
        }
    });
}

/// How rows of x are multiplied.
fn way(weight: &Weight<'_>, x: &[f32], (m, k): (usize, usize)) -> Way {
    #[cfg(target_arch = "x86_64")]
    if m > 0 && m <= rows::MOST {
        let may = k == weight.columns && vectors() == Vectors::Avx512;
        if let Some(fixed) = may.then(|| fixed::prepare(weight, x)).flatten() {
            return Way::Fixed(fixed);
        }
        if let Some(rows) = rows::Prepared::new(weight, x, k) {
            return Way::Dots(rows);
        }
    }
    let _ = (weight, x, m, k);
    Way::Panels
}

/// A job's matmul with rows `columns` of its weight, a panel of decoded rows at a time.
///
/// # Safety
/// Nobody else may hold or write these columns of the job's rows meanwhile.
unsafe fn panels(
    weight: &Weight<'_>,
    job: &Job,
    columns: Range<usize>,
    x: &[f32],
    (n, k): (usize, usize),
    grid: &Grid<'_, f32>,
) {
    let m = job.rows.len();
    let deep = PANEL.1.next_multiple_of(weight.format.map_or(1, |f| f.elements()));
    let height = PANEL.0.min(columns.len().next_multiple_of(LEAST_PANEL));
    with_scratch(height * deep.min(weight.columns), |panel: &mut [f32]| {
        for start in columns.clone().step_by(height) {
            let height = height.min(columns.end - start);
            for first in (0..k).step_by(deep) {
                let width = deep.min(weight.columns - first);
                for (i, row) in panel[..height * width].chunks_exact_mut(width).enumerate() {
                    decode(weight, job.first + start + i, first, row);
                }
                let b = Matrix { data: &*panel, offset: 0, row_stride: 1, column_stride: width as isize };
                let a = Matrix { data: x, offset: first, row_stride: k as isize, column_stride: 1 };
                let (sizes, to) = ((m, height, width.min(k - first)), job.rows.start * n + start);
                // Safety: the caller's promise.
                unsafe { grid.multiply(sizes, to, n, a, b, 1.0, first > 0) };
            }
        }
    });
}

/// Elements of a row from `first` on, which begins a block.
fn decode(weight: &Weight<'_>, row: usize, first: usize, into: &mut [f32]) {
    #[cfg(target_arch = "x86_64")]
    if rows::decode(weight, row, first, into) {
        return;
    }
    weight.decode(row, first, into);
}

/// Every row of x times the matrix of its expert; rows of no expert are zeros.
fn grouped(
    weight: &Weight<'_>,
    rows: &[f32],
    (n, k): (usize, usize),
    x: &[Operand<'_>],
    result: &mut [f32],
    checked: bool,
) -> Result<(), Fault> {
    let (experts, count) = (Indices::new(&x[2]), x[1].shape()[0]);
    let expert = |i: usize| usize::try_from(experts.at(i)).ok().filter(|e| *e < count);
    if let Some(position) = (0..experts.len()).find(|i| checked && expert(*i).is_none()) {
        return Err(Fault { position, value: experts.at(position), size: count });
    }
    // Rows in the order of their experts.
    let mut order = scratch::with_room::<(usize, usize)>(experts.len());
    order.extend((0..experts.len()).filter_map(|i| Some((expert(i)?, i))));
    order.sort_unstable();
    let mut jobs = scratch::with_room::<Job>(order.len());
    let mut start = 0;
    for group in order.chunk_by(|a, b| a.0 == b.0) {
        jobs.push(Job { first: group[0].0 * n, rows: start..start + group.len() });
        start += group.len();
    }
    let mut sorted = scratch::with_room(order.len() * k);
    order.iter().for_each(|(_, i)| sorted.extend_from_slice(&rows[i * k..][..k]));
    let mut product = scratch::zeroed::<f32>(order.len() * n);
    multiply(weight, &jobs, &sorted, (n, k), &mut product);
    if order.len() < experts.len() {
        result.fill(0.0);
    }
    for ((_, i), row) in order.iter().zip(product.chunks(n.max(1))) {
        result[i * n..][..n].copy_from_slice(row);
    }
    Ok(())
}

/// Rows of a weight by index.
fn dequant_gather(
    op: &DequantGather,
    x: &[Operand<'_>],
    out: &mut Target<'_>,
    checked: bool,
) -> Result<(), Fault> {
    let weight = Weight::new(&x[0], op.scaling(), &x[2..]);
    let (indices, size) = (Indices::new(&x[1]), x[0].shape()[0]);
    if checked {
        indices.check(|_| size)?;
    }
    let (columns, dtype) = (weight.columns, op.dtype);
    if out.bytes.is_empty() {
        return Ok(());
    }
    let least = (GRAIN / 4).div_ceil(columns);
    parallel::grouped(out.bytes, columns * dtype.size(), least, &|i, to| {
        let row = indices.clamped(i, size);
        if dtype == DType::F32 {
            return decode(&weight, row, 0, bytemuck::cast_slice_mut(to));
        }
        with_scratch(columns, |all: &mut [f32]| {
            decode(&weight, row, 0, all);
            narrow(dtype, all, to);
        });
    });
    Ok(())
}
