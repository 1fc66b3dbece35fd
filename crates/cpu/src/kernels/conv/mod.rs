//! Convolutions.
//!
//! ```text
//!   division.rs, plan.rs, planes.rs: bands, their operands ┐
//!   weights.rs: panels of filters, laid out at load ───────┼─▶ engine.rs: tiles (tile.rs, filters.rs, …) on all threads
//!   lanes.rs: vectors per instruction set ─────────────────┘
//! ```

use std::sync::OnceLock;

use olivine_ir::op::{Activation, Conv, ConvTranspose, ScalarOp, Unary};
use olivine_ir::{DType, Shape, TensorType};

use crate::kernel::kernels;
use crate::kernels::contraction::finish_runs;
use crate::kernels::elementwise::{Chain, FusedRegion, Link, Program, apply};
use crate::operand::{Operand, Target, with_number};

mod columns;
pub(crate) mod depthwise;
mod division;
mod engine;
pub(crate) mod filters;
pub(crate) mod geometry;
pub(crate) mod in_place;
mod patches;
pub(crate) mod plan;
pub(crate) mod planes;
pub(crate) mod real;
pub(crate) mod scratch;
#[cfg(test)]
mod tests;
mod tile;
mod transpose;
pub(crate) mod transpose_block;
pub(crate) mod vector;
mod weights;

use crate::scratch::zeroed;
use engine::{ConvEpilogue, RunEpilogue};
use geometry::Geometry;
use plan::Plan;
use real::{Half, Real, narrowed, widened};
use scratch::with_scratch;
use tile::EpilogueOp;
use weights::{Panels, packed};

pub(crate) use weights::packing;

kernels! { |op, x, out, call|
    Conv => conv(op, call.program(), &call.plans.conv, x, out),
    ConvTranspose => conv_transpose(op, x, out),
}

/// Multiply-adds below which threads cost more than they bring.
const SMALL: usize = 1 << 16;

/// A convolution in the type it is computed in.
pub(crate) struct Problem<'a, T> {
    geometry: Geometry,
    images: usize,
    groups: usize,
    /// Input channels per group.
    channels: usize,
    /// Filters of all groups.
    w_filters: usize,
    x: &'a [T],
    w: &'a [T],
}

impl<'a, T> Problem<'a, T> {
    fn new(op: &Conv, operands: &[Operand<'_>], x: &'a [T], w: &'a [T]) -> Self {
        Problem::of_shapes(op, operands[0].shape(), operands[1].shape(), x, w)
    }

    fn of_shapes(op: &Conv, xs: &Shape, ws: &Shape, x: &'a [T], w: &'a [T]) -> Self {
        let counts: Vec<usize> =
            (2..xs.rank()).map(|i| op.window.count(i - 2, xs[i], ws[i], false).unwrap_or_default()).collect();
        Problem {
            geometry: Geometry::new(&op.window, &xs[2..], &ws[2..], &counts).flattened(),
            images: xs[0],
            groups: op.groups,
            channels: ws[1],
            w_filters: ws[0],
            x,
            w,
        }
    }

    /// Filters per group.
    fn filters(&self) -> usize {
        self.w_filters / self.groups
    }

    /// Products per result.
    fn k_len(&self) -> usize {
        self.channels * self.geometry.kernel_len()
    }

    /// Multiply-adds in all.
    fn work(&self) -> usize {
        let per_filter = self.geometry.output_len().saturating_mul(self.k_len().max(1));
        per_filter.saturating_mul(self.w_filters).saturating_mul(self.images)
    }

    /// One channel of the operand.
    fn plane(&self, image: usize, group: usize, channel: usize) -> &'a [T] {
        let len = self.geometry.input_len();
        &self.x[((image * self.groups + group) * self.channels + channel) * len..][..len]
    }
}

/// Multiply-adds that a convolution of such operands takes the time of, with those of lanes that hold no result; `None` where
/// it goes a way whose time follows from the results alone.
pub(crate) fn executed(op: &Conv, x: &TensorType, w: &TensorType) -> Option<usize> {
    let problem = Problem::<f32>::of_shapes(op, &x.shape, &w.shape, &[], &[]);
    if problem.groups == 0 || problem.filters() == 0 || problem.work() == 0 {
        return None;
    }
    Plan::new(&problem, vector::lanes::<f32>().1).executed(&problem)
}

/// Convolution: x `[N, C, ..]`, w `[M, C/groups, ..]` and a bias `[M]`, then the epilogue on results in cache.
///
/// `plan` is the operation's own, cached for calls with operands of the same shapes.
pub(crate) fn conv(
    op: &Conv,
    epilogue: Option<&Program>,
    plan: &OnceLock<Plan>,
    x: &[Operand<'_>],
    out: &mut [Target<'_>],
) {
    let (own, shape, dtype) = (2 + usize::from(op.bias), out[0].shape(), x[0].ty.dtype);
    let target = &mut out[0];
    let Some(program) = epilogue else {
        return match dtype {
            DType::F64 => conv_double(op, x, plan, target, None),
            DType::F16 => conv_half::<half::f16>(op, x, plan, target),
            DType::BF16 => conv_half::<half::bf16>(op, x, plan, target),
            _ => conv_single(op, x, plan, target, Chain::default(), None),
        };
    };
    let same = program.output_dtype() == Some(dtype);
    if dtype == DType::F32
        && same
        && let Some(chain) = Chain::new(program, &x[own..], &shape)
    {
        return conv_single(op, x, plan, target, chain, None);
    }
    let epilogue = FusedRegion::new(program, &x[own..], &shape);
    match dtype {
        DType::F32 if same => {
            let finish = |at: usize, run: &mut [f32]| epilogue.apply_in_place(at, run);
            conv_single(op, x, plan, target, Chain::default(), Some(&finish));
        }
        DType::F64 if same => {
            conv_double(op, x, plan, target, Some(&|at, run: &mut [f64]| epilogue.apply_in_place(at, run)));
        }
        // The result is rounded to its own dtype before the region sees it, as if it had been stored.
        dtype => with_number!(dtype, T => {
            let mut result = zeroed::<T>(shape.numel());
            let ty = TensorType::new(dtype, shape);
            let plain = Target { ty, bytes: bytemuck::cast_slice_mut(&mut result) };
            conv(op, None, plan, x, &mut [plain]);
            finish_runs(&result, target, &|at, run, to| epilogue.apply(at, run, to));
        }),
    }
}

/// A convolution of f32, then a chain, then `finish` on every run.
fn conv_single(
    op: &Conv,
    x: &[Operand<'_>],
    plan: &OnceLock<Plan>,
    target: &mut Target<'_>,
    mut chain: Chain<'_>,
    finish: Option<RunEpilogue<'_, f32>>,
) {
    let bias = op.bias.then(|| x[2].slice());
    let affine = chain.take_affine();
    let later = chain.split_positions();
    let ops = leading_ops(&mut chain);
    let of_tile = |tile: &mut [f32], spare: &mut [f32], width: usize, filter: usize| {
        apply(&chain.links, tile, spare, width, filter, 0);
    };
    let (shape, positions) = (target.shape(), target.shape()[2..].iter().product::<usize>());
    let of_run = |at: usize, run: &mut [f32]| {
        with_scratch(run.len(), |spare: &mut [f32]| {
            apply(&later.links, run, spare, run.len(), at / positions.max(1) % shape[1], at);
        });
    };
    let problem = Problem::new(op, x, x[0].slice(), x[1].slice());
    let panels = Panels::new(problem.w, packed(&x[1]), op.groups, problem.filters(), problem.k_len());
    let mut epilogue = ConvEpilogue::new(&problem, &panels, |filter| {
        let bias = bias.map_or(0.0, |b| b[filter]);
        affine.as_ref().map_or((1.0, bias), |a| (a.scale[filter], bias * a.scale[filter] + a.shift[filter]))
    });
    epilogue.ops = ops.into_iter().map(|c| panels.padded(c, op.groups)).collect();
    epilogue.tile = (!chain.links.is_empty()).then_some(&of_tile);
    epilogue.run = if later.links.is_empty() { finish } else { Some(&of_run) };
    engine::convolve(&problem, &panels, &epilogue, plan, target.elements::<f32>());
}

/// Takes off a chain's first links, those that tiles apply in registers.
fn leading_ops(chain: &mut Chain<'_>) -> Vec<EpilogueOp<f32>> {
    let op = |link: &Link<'_>| match link {
        Link::Affine(affine) => Some(EpilogueOp::Affine(affine.scale.clone(), affine.shift.clone())),
        Link::AtLeast(low) => Some(EpilogueOp::Clamp(*low, f32::INFINITY)),
        Link::AtMost(high) => Some(EpilogueOp::Clamp(f32::NEG_INFINITY, *high)),
        Link::Map(ScalarOp::Unary(Unary::Relu)) => Some(EpilogueOp::Clamp(0.0, f32::INFINITY)),
        Link::Map(ScalarOp::Unary(Unary::HardSwish)) => Some(EpilogueOp::HardSwish),
        Link::Map(ScalarOp::Activation(Activation::HardSigmoid { alpha, beta })) => {
            Some(EpilogueOp::HardSigmoid(*alpha as f32, *beta as f32))
        }
        Link::Map(ScalarOp::Activation(Activation::LeakyRelu { alpha })) => {
            Some(EpilogueOp::Leaky(*alpha as f32))
        }
        _ => None,
    };
    let ops: Vec<EpilogueOp<f32>> = chain.links.iter().map_while(op).collect();
    chain.links.drain(..ops.len());
    ops
}

fn conv_double(
    op: &Conv,
    x: &[Operand<'_>],
    plan: &OnceLock<Plan>,
    target: &mut Target<'_>,
    finish: Option<RunEpilogue<'_, f64>>,
) {
    let bias = op.bias.then(|| x[2].slice());
    convolve(op, x, (x[0].slice(), x[1].slice(), bias), plan, target.elements::<f64>(), finish);
}

fn conv_half<H: Half>(op: &Conv, x: &[Operand<'_>], plan: &OnceLock<Plan>, target: &mut Target<'_>) {
    let (data, w) = (widened(x[0].slice::<H>()), widened(x[1].slice::<H>()));
    let bias = op.bias.then(|| widened(x[2].slice::<H>()));
    let mut result = zeroed::<f32>(target.shape().numel());
    convolve(op, x, (&data, &w, bias.as_deref()), plan, &mut result, None);
    narrowed(&result, target.elements::<H>());
}

/// A convolution of weights that were not packed at load.
fn convolve<T: Real>(
    op: &Conv,
    operands: &[Operand<'_>],
    (x, w, bias): (&[T], &[T], Option<&[T]>),
    plan: &OnceLock<Plan>,
    out: &mut [T],
    finish: Option<RunEpilogue<'_, T>>,
) {
    let problem = Problem::new(op, operands, x, w);
    let panels = Panels::new(w, None, op.groups, problem.filters(), problem.k_len());
    let mut epilogue =
        ConvEpilogue::new(&problem, &panels, |filter| (T::ONE, bias.map_or(T::ZERO, |b| b[filter])));
    epilogue.run = finish;
    engine::convolve(&problem, &panels, &epilogue, plan, out);
}

/// Transposed convolution: x `[N, C, ..]`, w `[C, M/groups, ..]` and a bias `[M]`.
pub(crate) fn conv_transpose(op: &ConvTranspose, x: &[Operand<'_>], out: &mut [Target<'_>]) {
    let target = &mut out[0];
    match x[0].ty.dtype {
        DType::F64 => {
            let bias = op.bias.then(|| x[2].slice());
            transpose::scatter(
                op,
                x,
                x[0].slice(),
                x[1].slice(),
                bias,
                target.shape(),
                target.elements::<f64>(),
            );
        }
        DType::F16 => transpose_half::<half::f16>(op, x, target),
        DType::BF16 => transpose_half::<half::bf16>(op, x, target),
        _ => {
            let bias = op.bias.then(|| x[2].slice());
            transpose::scatter(
                op,
                x,
                x[0].slice(),
                x[1].slice(),
                bias,
                target.shape(),
                target.elements::<f32>(),
            );
        }
    }
}

fn transpose_half<H: Half>(op: &ConvTranspose, x: &[Operand<'_>], target: &mut Target<'_>) {
    let (data, w) = (widened(x[0].slice::<H>()), widened(x[1].slice::<H>()));
    let bias = op.bias.then(|| widened(x[2].slice::<H>()));
    let mut result = zeroed::<f32>(target.shape().numel());
    transpose::scatter(op, x, &data, &w, bias.as_deref(), target.shape(), &mut result);
    narrowed(&result, target.elements::<H>());
}
