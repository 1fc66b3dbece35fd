//! A matmul brought to one form: batches of `[m, k] · [k, n]`, every operand by strides, as few batches as possible.

use olivine_ir::op::Region;
use olivine_ir::{DType, Dim};

use crate::conv::taps::Taps;
use crate::launch::{bytes, number};
use crate::packed::weight::Weight;
use crate::site::{Operand, Target};
use crate::walk::Walk;

/// An operand: its stride over rows (of A) or columns (of B), and over K. Axes of size 1 have stride 0.
#[derive(Clone, Debug)]
pub(crate) struct MatrixOperand {
    pub(crate) operand: Operand,
    pub(crate) outer: Dim,
    pub(crate) k_stride: Dim,
}

impl MatrixOperand {
    /// The axis along which it is contiguous, given how many positions and indices along K it has.
    #[track_caller]
    pub(crate) fn along(&self, extent: impl Into<Dim>, k_size: impl Into<Dim>) -> Axis {
        let near = |stride: Dim, size: Dim| if size == 1 { None } else { Some(stride.abs().max(1)) };
        match (near(self.outer, extent.into()), near(self.k_stride, k_size.into())) {
            (Some(_), None) => Axis::Outer,
            (Some(outer), Some(k_stride)) if outer < k_stride => Axis::Outer,
            _ => Axis::K,
        }
    }
}

/// A further operand of the epilogue.
#[derive(Clone, Debug)]
pub(crate) struct EpilogueOperand {
    pub(crate) operand: Operand,
    pub(crate) row: Dim,
    pub(crate) column: Dim,
}

/// A batched matmul and what becomes of it.
#[derive(Clone, Debug)]
pub(crate) struct Problem<'a> {
    pub(crate) m: Dim,
    pub(crate) n: Dim,
    pub(crate) k: Dim,
    pub(crate) a: MatrixOperand,
    pub(crate) b: MatrixOperand,
    /// Batch axes with the strides of A, B and the extra operands.
    pub(crate) batch: Walk,
    pub(crate) extras: Vec<EpilogueOperand>,
    pub(crate) region: Option<&'a Region>,
    pub(crate) target: Target,
    /// Strides of the target over rows and columns; batches are `m·n` apart.
    pub(crate) out: (Dim, Dim),
    /// For every batch, which of `count` matrices of B it takes; B's batch strides are 0 then.
    pub(crate) experts: Option<Experts>,
    /// Whether the last extra operand is added to the sum before the sum is rounded; the epilogue does not see it.
    pub(crate) bias: bool,
    /// What sums are rounded to before the epilogue: the dtype of the matmul.
    pub(crate) result: DType,
    /// Whether an even column and the odd one after it make one element of the target: the epilogue takes both. There
    /// is one batch then.
    pub(crate) pairs: bool,
    /// B's elements, if they are packed: kernels decode them. B's own strides are those of its elements then.
    pub(crate) packed: Option<Weight>,
    /// How B is gathered and where columns go, if not by strides. Batches are groups of channels then, and `n` and `k`
    /// those of the largest class.
    pub(crate) taps: Option<Taps>,
}

/// Matrices chosen at run time.
#[derive(Clone, Debug)]
pub(crate) struct Experts {
    pub(crate) ids: Operand,
    pub(crate) count: usize,
}

/// Which axis of an operand neighbouring invocations should walk, and how many neighbours one load may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Layout {
    pub(crate) along: Axis,
    pub(crate) lanes: usize,
}

/// An axis of an operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Axis {
    /// Rows of A, columns of B.
    Outer,
    /// The summed one.
    K,
}

impl<'a> Problem<'a> {
    /// The form of a matmul node; `operands` are A, B and the epilogue's.
    pub(crate) fn new(
        operands: &[Operand],
        target: &Target,
        region: Option<&'a Region>,
    ) -> Result<Self, String> {
        let [a, b, extra @ ..] = operands else { return Err("a matmul needs two operands".into()) };
        let dims = target.ty.shape.sizes();
        let (has_m, has_n) = (a.ty.shape.rank() > 1, b.ty.shape.rank() > 1);
        let rank = dims
            .len()
            .checked_sub(usize::from(has_m) + usize::from(has_n))
            .ok_or_else(|| format!("a matmul of shape {}", target.ty.shape))?;
        let (batch_dims, matrix) = dims.split_at(rank);
        let m = if has_m { matrix[0] } else { Dim::ONE };
        let n = if has_n { matrix[usize::from(has_m)] } else { Dim::ONE };
        let k = a.sizes().last().copied().unwrap_or(Dim::ONE);

        let (mut strides, mut extras) = (Vec::new(), Vec::new());
        for operand in [a, b] {
            let own = operand.ty.shape.rank().saturating_sub(2);
            strides.push(batch_strides(&operand.sizes()[..own], &operand.strides[..own], batch_dims)?);
        }
        for operand in extra {
            let over = operand
                .broadcast_to(&dims)
                .ok_or_else(|| format!("{} does not broadcast to {}", operand.ty, target.ty.shape))?;
            let (over_batch, over) = over.split_at(rank);
            strides.push(over_batch.to_vec());
            extras.push(EpilogueOperand {
                operand: operand.clone(),
                row: if has_m { over[0] } else { Dim::ZERO },
                column: if has_n { over[usize::from(has_m)] } else { Dim::ZERO },
            });
        }
        let at = |operand: &Operand, back: usize, size: Dim| {
            let strides = &operand.strides;
            let steps = strides.len() >= back && size != 1;
            if steps { strides[strides.len() - back] } else { Dim::ZERO }
        };
        let a = MatrixOperand { outer: at(a, 2, m), k_stride: at(a, 1, k), operand: a.clone() };
        let b_k_stride = if has_n { at(b, 2, k) } else { at(b, 1, k) };
        let b = MatrixOperand {
            outer: if has_n { at(b, 1, n) } else { Dim::ZERO },
            k_stride: b_k_stride,
            operand: b.clone(),
        };
        let mut problem = Problem {
            m,
            n,
            k,
            result: a.operand.ty.dtype,
            a,
            b,
            batch: Walk::new(batch_dims, &strides),
            extras,
            region,
            target: target.clone(),
            out: (n, Dim::ONE),
            experts: None,
            bias: false,
            pairs: false,
            taps: None,
            packed: None,
        };
        problem.fold();
        problem.batch.drop_single();
        Ok(problem)
    }

    /// The form of a matmul whose even and odd columns make one element each of the target; `operands` are A, B and
    /// what else the epilogue takes.
    pub(crate) fn of_gated(
        operands: &[Operand],
        target: &Target,
        region: &'a Region,
    ) -> Result<Self, String> {
        let mut operands = operands.to_vec();
        let b = operands.get_mut(1).ok_or("a matmul needs two operands")?;
        // The matmul by the even columns of B has the target's shape.
        let whole = b.clone();
        let mut dims = b.dims().to_vec();
        let (Some(columns), Some(stride)) = (dims.last_mut(), b.strides.last_mut()) else {
            return Err("a matmul of a scalar".into());
        };
        (*columns, *stride) = (*columns / 2, *stride * 2);
        b.ty.shape = olivine_ir::Shape::new(&dims).map_err(|e| e.to_string())?;
        let mut problem = Problem::new(&operands, target, Some(region))?;
        problem.n *= 2;
        problem.b.outer = whole.strides.last().copied().unwrap_or(Dim::ONE);
        problem.b.operand = whole;
        problem.pairs = true;
        Ok(problem)
    }

    /// Where every operand's matrices begin, as the batch walk counts them.
    pub(crate) fn offsets(&self) -> Vec<Dim> {
        let operands = [self.a.operand.offset, self.b.operand.offset];
        operands.into_iter().chain(self.extras.iter().map(|e| e.operand.offset)).collect()
    }

    /// Rows as a number: what is lowered then holds for these alone.
    #[track_caller]
    pub(crate) fn rows(&self) -> usize {
        number(self.m)
    }

    /// Columns as a number: what is lowered then holds for these alone.
    #[track_caller]
    pub(crate) fn columns(&self) -> usize {
        number(self.n)
    }

    /// K as a number: what is lowered then holds for this alone.
    #[track_caller]
    pub(crate) fn k_number(&self) -> usize {
        number(self.k)
    }

    /// Batches as a number: what is lowered then holds for these alone.
    #[track_caller]
    pub(crate) fn batch_count(&self) -> usize {
        number(self.batches())
    }

    /// Number of batches.
    pub(crate) fn batches(&self) -> Dim {
        self.batch.numel()
    }

    /// The operands' type.
    pub(crate) fn dtype(&self) -> DType {
        self.a.operand.ty.dtype
    }

    /// Operations, and bytes that must move at least.
    pub(crate) fn cost(&self) -> (Dim, Dim) {
        let flops = 2 * self.m * self.n * self.k * self.batches();
        let weight = self.packed.as_ref().map_or_else(|| bytes(&self.b.operand.ty), Weight::bytes);
        let others = [&self.a.operand].into_iter().chain(self.extras.iter().map(|e| &e.operand));
        let read = weight + others.map(|o| bytes(&o.ty)).sum::<Dim>();
        (flops, read + bytes(&self.target.ty))
    }

    /// The transposed matmul: rows become columns, the target's strides with them.
    pub(crate) fn swapped(mut self) -> Self {
        std::mem::swap(&mut self.a, &mut self.b);
        std::mem::swap(&mut self.m, &mut self.n);
        self.out = (self.out.1, self.out.0);
        self.batch.strides.swap(0, 1);
        for extra in &mut self.extras {
            std::mem::swap(&mut extra.row, &mut extra.column);
        }
        self
    }

    /// Makes batches rows where B is the same for all of them, or columns where A is (a single row then).
    fn fold(&mut self) {
        while let Some(size) = self.batch.dims.last().copied() {
            let inner: Vec<Dim> = (0..self.batch.strides.len()).map(|o| self.batch.inner(o)).collect();
            let is_one = |size: Dim| size == 1;
            let continues = |size: Dim, stride: Dim, step: Dim| is_one(size) || step == size * stride;
            let (m, n) = (self.m, self.n);
            let rows = inner[1].as_constant() == Some(0)
                && continues(m, self.a.outer, inner[0])
                && self.extras.iter().zip(&inner[2..]).all(|(e, step)| continues(m, e.row, *step));
            let columns = is_one(m)
                && inner[0].as_constant() == Some(0)
                && continues(n, self.b.outer, inner[1])
                && self.extras.iter().zip(&inner[2..]).all(|(e, step)| continues(n, e.column, *step));
            if !rows && !columns {
                return;
            }
            let outer = if rows { &mut self.a.outer } else { &mut self.b.outer };
            if is_one(if rows { m } else { n }) {
                *outer = inner[usize::from(!rows)];
                for (extra, step) in self.extras.iter_mut().zip(&inner[2..]) {
                    *(if rows { &mut extra.row } else { &mut extra.column }) = *step;
                }
            }
            if rows {
                self.m *= size;
            } else {
                self.n *= size;
            }
            self.out = (self.n, Dim::ONE);
            self.batch.dims.pop();
            self.batch.strides.iter_mut().for_each(|s| {
                s.pop();
            });
        }
    }

    /// The layout of A.
    pub(crate) fn layout_of_a(&self) -> Layout {
        self.layout(&self.a, self.m, 0)
    }

    /// The layout of B.
    pub(crate) fn layout_of_b(&self) -> Layout {
        self.layout(&self.b, self.n, 1)
    }

    fn layout(&self, operand: &MatrixOperand, extent: Dim, number: usize) -> Layout {
        let along = operand.along(extent, self.k);
        let (unit, other, size) = match along {
            Axis::Outer => (operand.outer, operand.k_stride, extent),
            Axis::K => (operand.k_stride, operand.outer, self.k),
        };
        let steps = [other, operand.operand.offset];
        let jumps = self.batch.strides[number].iter().copied().chain(steps);
        let lanes = if is_unit(unit) { vector_lanes(operand.operand.ty.dtype, size, jumps) } else { 1 };
        Layout { along, lanes }
    }

    /// Neighbouring columns that may be stored as one vector.
    pub(crate) fn store_lanes(&self) -> usize {
        if let Some(taps) = &self.taps {
            let lanes = |run: Dim| vector_lanes(self.target.ty.dtype, run, [].into_iter());
            return taps.run().map_or(1, lanes);
        }
        if is_unit(self.out.1) { vector_lanes(self.target.ty.dtype, self.n, [].into_iter()) } else { 1 }
    }

    /// Neighbouring columns of an extra operand that may be loaded as one vector.
    pub(crate) fn extra_lanes(&self, i: usize) -> usize {
        let extra = &self.extras[i];
        let jumps = self.batch.strides[2 + i].iter().copied();
        let jumps = jumps.chain([extra.row, extra.operand.offset]);
        if let Some(taps) = &self.taps {
            let run = taps.run().filter(|_| is_unit(extra.column)).unwrap_or(Dim::ONE);
            let jumps = jumps.chain([taps.extra_images[i]]);
            return vector_lanes(extra.operand.ty.dtype, run, jumps);
        }
        if is_unit(extra.column) { vector_lanes(extra.operand.ty.dtype, self.n, jumps) } else { 1 }
    }
}

/// Whether a stride is 1.
#[track_caller]
fn is_unit(stride: Dim) -> bool {
    stride == 1
}

/// Elements to a vector of at most 16 bytes that `size` neighbours are made of whole, at steps that keep it aligned.
fn vector_lanes(dtype: DType, size: Dim, steps: impl Iterator<Item = Dim>) -> usize {
    let steps: Vec<Dim> = steps.collect();
    let most = if dtype.size() > 4 { 2 } else { 4 };
    let fits = |lanes: &usize| steps.iter().all(|s| s.is_multiple_of(*lanes)) && size.is_multiple_of(*lanes);
    [4, 2].into_iter().filter(|lanes| *lanes <= most).find(fits).unwrap_or(1)
}

/// An operand's strides over broadcast batch axes.
fn batch_strides(dims: &[Dim], strides: &[Dim], to: &[Dim]) -> Result<Vec<Dim>, String> {
    let missing = to.len().checked_sub(dims.len()).ok_or("more batch axes than the result has")?;
    let mut over = vec![Dim::ZERO; to.len()];
    for (i, (size, stride)) in dims.iter().zip(strides).enumerate() {
        let is_one = size.as_constant() == Some(1);
        if size.structural() == to[missing + i].structural() || !is_one && *size == to[missing + i] {
            over[missing + i] = if is_one { Dim::ZERO } else { *stride };
        } else if *size != 1 {
            return Err(format!("a batch of {size} for one of {}", to[missing + i]));
        }
    }
    Ok(over)
}
