//! matmul and grouped_matmul.

use std::borrow::Cow;

use half::{bf16, f16};
use olivine_ir::{DType, Shape, TensorType, product};

use crate::kernel::kernels;
use crate::kernels::conv::scratch::with_scratch;
use crate::kernels::elementwise::{FusedRegion, Program};
use crate::kernels::gemm::{Accumulator, Finish, Grid, Matrix, Rhs, gemm, serial_gemm};
use crate::kernels::rows::softmax_rows;
use crate::operand::{Fault, Number, Operand, Target, with_number};
use crate::parallel;
use crate::scratch;
use crate::simd;
use crate::simd::half::{narrow_bf16, narrow_f16, widen_bf16, widen_f16};

kernels! { |op, x, out, call|
    GroupedMatMul => grouped_matmul(x, out, call.checked)?,
    MatMul => if call.kernel.softmax {
        matmul_softmax(call.program(), x, &mut out[0])
    } else {
        matmul(call.program(), x, &mut out[0])
    },
}

/// A float that is widened for the matmul.
trait Narrow: Number + Rhs<f32> {
    fn widen(x: &[Self], out: &mut [f32]);
    fn narrow(x: &[f32], out: &mut [Self]);
}

impl Narrow for f16 {
    fn widen(x: &[Self], out: &mut [f32]) {
        widen_f16(x, out);
    }
    fn narrow(x: &[f32], out: &mut [Self]) {
        narrow_f16(x, out);
    }
}

impl Narrow for bf16 {
    fn widen(x: &[Self], out: &mut [f32]) {
        widen_bf16(x, out);
    }
    fn narrow(x: &[f32], out: &mut [Self]) {
        narrow_bf16(x, out);
    }
}

/// Elements that are converted at a time.
const CONVERTED: usize = 1 << 14;

/// The sizes of a batched matmul and where each batch's operands begin.
struct Batched {
    rows: usize,
    columns: usize,
    k_len: usize,
    /// Element offsets of a and b per batch.
    offsets: Vec<(usize, usize)>,
    a_strides: (isize, isize),
    b_strides: (isize, isize),
}

impl Batched {
    /// The compiler gives both operands rank 2 or more.
    fn new(a: &Operand<'_>, b: &Operand<'_>, out: &Shape) -> Self {
        let (ra, rb, r) = (a.shape().rank(), b.shape().rank(), out.rank());
        let last_two = |x: &Operand<'_>, rank: usize| (x.strides[rank - 2], x.strides[rank - 1]);
        let mut batched = Batched {
            rows: out[r - 2],
            columns: out[r - 1],
            k_len: a.shape()[ra - 1],
            offsets: batch_offsets(a, b, &out[..r - 2]),
            a_strides: last_two(a, ra),
            b_strides: last_two(b, rb),
        };
        if b.shape()[..rb - 2].iter().all(|d| *d == 1) {
            batched.merge_batches_into_rows(a);
        }
        batched
    }

    /// One tall matmul when all batches share b and a's rows continue from batch to batch.
    fn merge_batches_into_rows(&mut self, a: &Operand<'_>) {
        let step = self.a_strides.0 * self.rows as isize;
        let continues = self.offsets.windows(2).all(|w| w[1].0 as isize - w[0].0 as isize == step);
        let whole = a.shape()[..a.shape().rank() - 2].iter().product::<usize>() == self.offsets.len();
        if continues && whole && self.offsets.len() > 1 {
            self.rows *= self.offsets.len();
            self.offsets.truncate(1);
        }
    }
}

/// Offsets of every batch, batch dims broadcast.
fn batch_offsets(a: &Operand<'_>, b: &Operand<'_>, batch: &[usize]) -> Vec<(usize, usize)> {
    let stride = |x: &Operand<'_>, axis: usize| {
        // The axis of x under a result's batch axis, if it has one that is not broadcast.
        let own = (axis + x.shape().rank()).checked_sub(batch.len() + 2);
        own.map_or(0, |i| if x.shape()[i] == 1 { 0 } else { x.strides[i] })
    };
    let mut offsets = vec![(a.offset as isize, b.offset as isize)];
    for (axis, size) in batch.iter().enumerate() {
        let (sa, sb) = (stride(a, axis), stride(b, axis));
        scratch::probe::<(isize, isize)>(2 * offsets.len() * size);
        offsets = offsets
            .iter()
            .flat_map(|(oa, ob)| (0..*size as isize).map(move |i| (oa + i * sa, ob + i * sb)))
            .collect();
    }
    offsets.into_iter().map(|(oa, ob)| (oa as usize, ob as usize)).collect()
}

/// Matmul, then the epilogue on every run of it while it is still in cache.
///
/// f16 and bf16 accumulate in f32 and round once, before the epilogue; integers wrap. The right operand of f32 may be
/// stored in f16 or bf16.
pub(crate) fn matmul(epilogue: Option<&Program>, x: &[Operand<'_>], out: &mut Target<'_>) {
    let (a, b, shape) = (&x[0], &x[1], out.shape());
    let Some(program) = epilogue else {
        return match a.ty.dtype {
            DType::F32 => matmul_in_f32(a, b, &shape, out.elements(), None),
            DType::F64 => matmul_with::<f64, f64>(a, b, &shape, out.elements(), None),
            DType::F16 => narrowed::<f16>(&unrounded_matmul::<f16>(a, b, &shape), out.elements()),
            DType::BF16 => narrowed::<bf16>(&unrounded_matmul::<bf16>(a, b, &shape), out.elements()),
            dtype => with_number!(dtype, T => matmul_integer::<T>(a, b, &shape, out.elements())),
        };
    };
    let epilogue = FusedRegion::new(program, &x[2..], &shape);
    let same = program.output_dtype() == Some(a.ty.dtype);
    match a.ty.dtype {
        DType::F32 if same => {
            matmul_in_f32(a, b, &shape, out.elements(), Some(&|at, run| epilogue.apply_in_place(at, run)));
        }
        DType::F64 if same => {
            let finish = |at: usize, run: &mut [f64]| epilogue.apply_in_place(at, run);
            matmul_with::<f64, f64>(a, b, &shape, out.elements(), Some(&finish));
        }
        DType::F16 | DType::BF16 => {
            let unrounded = match a.ty.dtype {
                DType::F16 => unrounded_matmul::<f16>(a, b, &shape),
                _ => unrounded_matmul::<bf16>(a, b, &shape),
            };
            finish_runs(&unrounded, out, &|at, run, to| epilogue.apply_wide(at, run, to));
        }
        dtype => with_number!(dtype, T => {
            let mut result = scratch::zeroed::<T>(shape.numel());
            let ty = TensorType::new(dtype, shape);
            matmul(None, &x[..2], &mut Target { ty, bytes: bytemuck::cast_slice_mut(&mut result) });
            finish_runs(&result, out, &|at, run, to| epilogue.apply(at, run, to));
        }),
    }
}

/// Rows at most that a matmul turns into their softmax while they are in cache, and their bytes.
const SCORE_ROWS: usize = 192;
const SCORE_BYTES: usize = 768 << 10;

/// Whether a softmax over a matmul's rows is faster inside the matmul: where rows are many, and short enough for cache.
pub(crate) fn suits_softmax(dtype: DType, result: &Shape) -> bool {
    let sizes = result.sizes();
    let Some((columns, rows)) = sizes.split_last().filter(|(_, rows)| !rows.is_empty()) else { return false };
    dtype == DType::F32 && product(rows) >= 64 && *columns >= 1 && *columns <= SCORE_BYTES / 64
}

/// Matmul in f32 and its epilogue, then the softmax of every row while it is in cache.
pub(crate) fn matmul_softmax(epilogue: Option<&Program>, x: &[Operand<'_>], out: &mut Target<'_>) {
    let (a, b, shape) = (&x[0], &x[1], out.shape());
    let batched = Batched::new(a, b, &shape);
    let (rows, columns, k_len) = (batched.rows, batched.columns, batched.k_len);
    let epilogue = epilogue.map(|program| FusedRegion::new(program, &x[2..], &shape));
    let (da, db) = (a.elements::<f32>(), b.elements::<f32>());
    let out = out.elements::<f32>();
    if out.is_empty() {
        return;
    }
    let stream = size_of_val(out) >= simd::STREAM_FROM;
    let most = (SCORE_BYTES / (columns * size_of::<f32>())).clamp(1, SCORE_ROWS);
    let tall = rows.div_ceil(rows.div_ceil(most));
    let down = rows.div_ceil(tall);
    let grid = Grid::new(out);
    let task = |t: usize| {
        let (batch, row) = (t / down, t % down * tall);
        let height = tall.min(rows - row);
        let (oa, ob) = batched.offsets[batch];
        let matrix =
            |data, offset, (row_stride, column_stride)| Matrix { data, offset, row_stride, column_stride };
        let left = matrix(da, oa, batched.a_strides).after(row, 0);
        let right = matrix(db, ob, batched.b_strides);
        with_scratch(height * columns, |scores: &mut [f32]| {
            serial_gemm((height, columns, k_len), left, right, 1.0, false, scores);
            let first = (batch * rows + row) * columns;
            if let Some(epilogue) = &epilogue {
                epilogue.apply_in_place(first, scores);
            }
            // Safety: no other task writes these rows.
            softmax_rows(scores, unsafe { grid.run(first, height * columns) }, columns, stream);
        });
    };
    parallel::tasks(batched.offsets.len() * down, &task);
}

/// Called with a run's first flat position, the run, and the bytes of the target it becomes.
pub(crate) type FinishRun<'a, T> = &'a (dyn Fn(usize, &[T], &mut [u8]) + Sync);

/// Hands the result of a matmul to its epilogue in runs, on all threads.
pub(crate) fn finish_runs<T: Sync>(result: &[T], out: &mut Target<'_>, finish: FinishRun<'_, T>) {
    const RUN: usize = 4096;
    let size = out.ty.dtype.size();
    parallel::chunks(out.bytes, RUN * size, &|i, to| {
        finish(i * RUN, &result[i * RUN..][..to.len() / size], to);
    });
}

fn narrowed<T: Narrow>(result: &[f32], out: &mut [T]) {
    parallel::chunks(out, CONVERTED, &|i, to| T::narrow(&result[i * CONVERTED..][..to.len()], to));
}

/// Matmul of an f32 operand with one that is stored in f32, f16 or bf16.
fn matmul_in_f32(
    a: &Operand<'_>,
    b: &Operand<'_>,
    shape: &Shape,
    out: &mut [f32],
    finish: Option<Finish<'_, f32>>,
) {
    match b.ty.dtype {
        DType::F16 => matmul_with::<f32, f16>(a, b, shape, out, finish),
        DType::BF16 => matmul_with::<f32, bf16>(a, b, shape, out, finish),
        _ => matmul_with::<f32, f32>(a, b, shape, out, finish),
    }
}

/// Matmul into `out` (contiguous, of shape `shape`), with an epilogue on every finished run.
fn matmul_with<T: Accumulator, E: Rhs<T> + bytemuck::AnyBitPattern>(
    a: &Operand<'_>,
    b: &Operand<'_>,
    shape: &Shape,
    out: &mut [T],
    finish: Option<Finish<'_, T>>,
) {
    let batched = Batched::new(a, b, shape);
    let (da, db) = (a.elements::<T>(), b.elements::<E>());
    multiply(&batched, da, db, out, finish);
}

fn multiply<T: Accumulator, E: Rhs<T>>(
    batched: &Batched,
    da: &[T],
    db: &[E],
    out: &mut [T],
    finish: Option<Finish<'_, T>>,
) {
    let sizes = (batched.rows, batched.columns, batched.k_len);
    let each = batched.rows * batched.columns;
    if each == 0 {
        return;
    }
    let one = |i: usize, run: &mut [T]| {
        let Some((oa, ob)) = batched.offsets.get(i) else { return };
        let a = Matrix {
            data: da,
            offset: *oa,
            row_stride: batched.a_strides.0,
            column_stride: batched.a_strides.1,
        };
        let b = Matrix {
            data: db,
            offset: *ob,
            row_stride: batched.b_strides.0,
            column_stride: batched.b_strides.1,
        };
        gemm(sizes, a, b, run, i * each, finish);
    };
    if batched.offsets.len() > 1 && out.len() * batched.k_len > 1 << 18 {
        let least = (1usize << 15).div_ceil(each.saturating_mul(batched.k_len).max(1));
        parallel::grouped(out, each, least, &one);
    } else {
        out.chunks_mut(each).enumerate().for_each(|(i, run)| one(i, run));
    }
}

/// Widens strided elements into packed f32 in the operand's own index order.
fn widened<T: Narrow>(x: &Operand<'_>) -> Vec<f32> {
    let mut out = scratch::zeroed::<f32>(x.shape().numel());
    if let Some(data) = x.contiguous::<T>() {
        parallel::chunks(&mut out, CONVERTED, &|i, to| T::widen(&data[i * CONVERTED..][..to.len()], to));
        return out;
    }
    let data = x.elements::<T>();
    let mut narrow = scratch::with_room(x.shape().numel());
    for_each_offset(x, |offset| narrow.push(data[offset]));
    T::widen(&narrow, &mut out);
    out
}

/// Visits element offsets in row-major order.
fn for_each_offset(x: &Operand<'_>, mut visit: impl FnMut(usize)) {
    let (shape, rank) = (x.shape(), x.shape().rank());
    if shape.has_zero() {
        return;
    }
    let mut index = [0usize; 8];
    let mut offset = x.offset as isize;
    loop {
        visit(offset as usize);
        let mut axis = rank;
        loop {
            if axis == 0 {
                return;
            }
            axis -= 1;
            index[axis] += 1;
            offset += x.strides[axis];
            if index[axis] < shape[axis] {
                break;
            }
            offset -= x.strides[axis] * shape[axis] as isize;
            index[axis] = 0;
        }
    }
}

/// The matmul of f16 or bf16 operands, unrounded.
fn unrounded_matmul<T: Narrow>(a: &Operand<'_>, b: &Operand<'_>, shape: &Shape) -> Vec<f32> {
    let wide = widened::<T>(a);
    let a = Operand::packed(TensorType::new(DType::F32, *a.shape()), bytemuck::cast_slice(&wide));
    let mut out = scratch::zeroed::<f32>(shape.numel());
    matmul_with::<f32, T>(&a, b, shape, &mut out, None);
    out
}

fn matmul_integer<T: Number>(a: &Operand<'_>, b: &Operand<'_>, shape: &Shape, out: &mut [T]) {
    let batched = Batched::new(a, b, shape);
    let (da, db) = (a.elements::<T>(), b.elements::<T>());
    let at = |data: &[T], offset: usize, delta: isize| data[(offset as isize + delta) as usize];
    let each = batched.rows * batched.columns;
    if each == 0 {
        return;
    }
    for (run, (oa, ob)) in out.chunks_mut(each).zip(&batched.offsets) {
        run.fill(T::ZERO);
        for (i, row) in run.chunks_mut(batched.columns).enumerate() {
            for k in 0..batched.k_len {
                let x = at(da, *oa, i as isize * batched.a_strides.0 + k as isize * batched.a_strides.1);
                for (j, o) in row.iter_mut().enumerate() {
                    let y = at(db, *ob, k as isize * batched.b_strides.0 + j as isize * batched.b_strides.1);
                    *o = o.plus(x.times(y));
                }
            }
        }
    }
}

/// `out[i] = x[i] · w[expert[i]]`: rows are grouped by expert, so that each matrix is read once.
pub(crate) fn grouped_matmul(x: &[Operand<'_>], out: &mut [Target<'_>], checked: bool) -> Result<(), Fault> {
    let experts = expert_ids(&x[2]);
    let count = x[1].shape()[0];
    if checked {
        let bad = experts.iter().position(|e| *e < 0 || *e >= count as i64);
        if let Some(position) = bad {
            return Err(Fault { position, value: experts[position], size: count });
        }
    }
    match x[0].ty.dtype {
        DType::F64 => grouped::<f64, f64>(x, &mut out[0], &experts, |s| Cow::Borrowed(s), |v| v),
        DType::F16 => grouped::<f16, f32>(x, &mut out[0], &experts, widened_slice, f16::from_f32),
        DType::BF16 => grouped::<bf16, f32>(x, &mut out[0], &experts, widened_slice, bf16::from_f32),
        _ => grouped::<f32, f32>(x, &mut out[0], &experts, |s| Cow::Borrowed(s), |v| v),
    }
    Ok(())
}

fn expert_ids(x: &Operand<'_>) -> Vec<i64> {
    match x.ty.dtype {
        DType::I32 => scratch::collected(x.slice::<i32>().iter().map(|e| i64::from(*e))),
        _ => scratch::copied(x.slice::<i64>()),
    }
}

fn widened_slice<T: Narrow>(x: &[T]) -> Cow<'_, [f32]> {
    let mut out = scratch::zeroed::<f32>(x.len());
    T::widen(x, &mut out);
    Cow::Owned(out)
}

/// Rows of `[M, K]` times the `[K, N]` matrix of their expert; rows of no expert become zeros.
fn grouped<T: Number + Rhs<A>, A: Accumulator>(
    x: &[Operand<'_>],
    out: &mut Target<'_>,
    experts: &[i64],
    widen: fn(&[T]) -> Cow<'_, [A]>,
    narrow: fn(A) -> T,
) {
    let (k, n) = (x[1].shape()[1], x[1].shape()[2]);
    let (rows, weights) = (x[0].slice::<T>(), x[1].slice::<T>());
    let out = out.elements::<T>();
    out.fill(T::ZERO);
    if k * n == 0 {
        return;
    }
    let mut groups: Vec<Vec<usize>> = vec![Vec::new(); x[1].shape()[0]];
    for (i, expert) in experts.iter().enumerate() {
        if let Some(group) = usize::try_from(*expert).ok().and_then(|e| groups.get_mut(e)) {
            group.push(i);
        }
    }
    for (group, matrix) in groups.iter().zip(weights.chunks(k * n)).filter(|(group, _)| !group.is_empty()) {
        let a: Vec<A> = group.iter().flat_map(|i| widen(&rows[i * k..(i + 1) * k]).into_owned()).collect();
        let mut c = scratch::zeroed::<A>(group.len() * n);
        gemm((group.len(), n, k), Matrix::packed(&a, k), Matrix::packed(matrix, n), &mut c, 0, None);
        for (i, row) in group.iter().zip(c.chunks(n)) {
            out[i * n..(i + 1) * n].iter_mut().zip(row).for_each(|(o, v)| *o = narrow(*v));
        }
    }
}
