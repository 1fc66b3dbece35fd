//! Matmuls: which kernel a shape gets, and the kernels.
//!
//! ```text
//!   node ─ Problem (batches of [m, k]·[k, n], by strides) ─ choose ─┬─ warpgroup  f16, bf16 and f32 by warpgroups, as PTX
//!                                                                   ├─ coop       f16 and bf16 by cooperative matrices
//!                                                                   ├─ stream_k   the same, the last wave of tiles split
//!                                                                   ├─ split_f32  f32 by three matmuls of f16
//!                                                                   ├─ tiled      panels in workgroup memory
//!                                                                   ├─ small_m    few rows: GEMV and its relatives
//!                                                                   └─ split_k    adds partial sums of a long K
//! ```
//! All of them end in [`epilogue`]: the epilogue and the store. [`grouped`] multiplies rows by the matrix of their
//! expert, [`int8`] quantised operands (by warpgroups too), [`gated`] a gate and the value it multiplies in one pass.

pub(crate) mod candidates;
pub(crate) mod choice;
pub(crate) mod coop;
pub(crate) mod epilogue;
mod gated;
pub(crate) mod grouped;
mod int8;
pub(crate) mod problem;
mod small_m;
mod split_f32;
pub(crate) mod split_k;
pub(crate) mod stream_k;
#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic, reason = "a failed expectation is a failed test")]
pub(crate) mod tests;
pub(crate) mod tiled;
mod vector_load;
mod warpgroup;

use olivine_ir::Dim;
use olivine_ir::op::{MatMul, Region};
use olivine_kernel::Val;

use crate::kernels;
use crate::math;
use crate::site::{Operand, Site, Target, choose_by_class, class_of};
use choice::{Choice, Shape, choose};
use epilogue::Destination;
use problem::Layout;
use vector_load::{MatrixRole, max_vector};

pub(crate) use epilogue::{accumulator_elem, is_heavy, rounded_sum};
pub(crate) use gated::gated;
pub(crate) use problem::{EpilogueOperand, MatrixOperand, Problem};
pub use split_k::SplitKPartials;
pub(crate) use split_k::{DeclaredPartials, MatmulElements};

kernels! { |op, site|
    MatMul => matmul(op, site),
}

/// Lowers a matmul.
pub(crate) fn matmul(op: &MatMul, site: &mut Site<'_>) -> Result<(), String> {
    let operands = site.operands.clone();
    let target = site.targets.first().ok_or("a matmul needs a target")?.clone();
    matmul_of(&operands, &target, op.epilogue.as_ref(), site)
}

/// Lowers a matmul of operands 0 and 1; the others are its epilogue's.
fn matmul_of(
    operands: &[Operand],
    target: &Target,
    epilogue: Option<&Region>,
    site: &mut Site<'_>,
) -> Result<(), String> {
    let [_, _, extras @ ..] = operands else { return Err("a matmul needs two operands".into()) };
    lower(Problem::new(operands, target, epilogue)?, extras, site)
}

/// Chooses and emits; `extras` are the further operands as they broadcast to the target.
pub(crate) fn lower(problem: Problem<'_>, extras: &[Operand], site: &mut Site<'_>) -> Result<(), String> {
    let elem = accumulator_elem(math::elem(problem.dtype()));
    if !site.caps.target.has(elem.scalar()) {
        return Err(format!("the device has no {elem}"));
    }
    let layout = |side: MatrixRole, layout: Layout| Layout {
        lanes: max_vector(&problem, side, layout.along) as usize,
        ..layout
    };
    let (a, b) = (layout(MatrixRole::A, problem.layout_of_a()), layout(MatrixRole::B, problem.layout_of_b()));
    // Packed elements are decoded on their way into workgroup memory: other kernels have none.
    let is_plain = problem.packed.is_none();
    let (caps, may_defer_sum) = (site.caps, site.may_defer_sum);
    let choose_for = |shape: &Shape| {
        (is_plain.then(|| small_m::coop::choose(&problem, shape, caps)).flatten())
            .map(Choice::SmallMCoop)
            .or_else(|| {
                // f32 by warpgroups has not run on a card: it is for the tuner to choose.
                let measured = problem.dtype() != olivine_ir::DType::F32;
                let path = warpgroup::choose(&problem, shape, caps).filter(|_| measured);
                path.map(Choice::Warpgroup)
            })
            .or_else(|| {
                let chosen = coop::blocks::choose(&problem, shape, caps, may_defer_sum);
                chosen.map(|(blocks, splits)| Choice::Coop { blocks, splits })
            })
            .or_else(|| {
                let config = split_f32::choose(&problem, shape, caps).filter(|_| is_plain)?;
                let cut = split_f32::small_m::choose(&problem, shape, caps);
                Some(cut.map_or(Choice::SplitF32(config), Choice::SplitF32SmallM))
            })
            .unwrap_or_else(|| match is_plain {
                true => choose(shape, a, b, elem.size(), caps),
                false => choice::tiled(shape, elem.size(), caps),
            })
    };
    // Whoever sums parts anyway takes those of a split without another dispatch.
    let stream_k_pays = |shape: &Shape, choice: Choice| match choice {
        Choice::Coop { blocks, splits } => {
            !may_defer_sum && candidates::stream_k_pays(blocks, splits, shape, caps)
        }
        _ => false,
    };
    let is_tuned = site.is_tuned(candidates::FAMILY);
    // A record has a choice for each class, and so have matmuls whose other sizes are open.
    let others = [problem.n, problem.k, problem.batches()];
    let (shape, default) = if is_tuned || others.iter().any(|size| !size.is_constant()) {
        let shape = Shape::of(&problem);
        (shape, choose_for(&shape))
    } else {
        let (default, _) = choose_by_class(problem.m, |m| {
            let shape = Shape::with_rows(&problem, m);
            let choice = choose_for(&shape);
            (choice, stream_k_pays(&shape, choice))
        });
        let now = Dim::from(problem.m.value().unwrap_or(0));
        (Shape::with_rows(&problem, class_of(now)), default)
    };
    let default = match default {
        Choice::Coop { blocks, splits } if stream_k_pays(&shape, default) => {
            candidates::shared(&problem, blocks, splits, &shape, caps).unwrap_or(default)
        }
        other => other,
    };
    if matches!(default, Choice::Empty | Choice::Zeros) {
        return emit(problem, default, extras, site);
    }
    let candidates = candidates::candidates(&problem, &shape, default, elem.size(), is_tuned, site.caps);
    let class = candidates::class(&problem, &shape, is_tuned);
    let class = match &problem.packed {
        Some(weight) => format!("{} {class}", weight.name()),
        None => class,
    };
    let choice = site.tuned(candidates::FAMILY, class, default, candidates);
    emit(problem, choice, extras, site)
}

pub(crate) fn emit(
    problem: Problem<'_>,
    choice: Choice,
    extras: &[Operand],
    site: &mut Site<'_>,
) -> Result<(), String> {
    let elem = accumulator_elem(math::elem(problem.dtype()));
    let size = problem.target.ty.shape.sizes().numel() * elem.size();
    let choice = if problem.pairs { choice.of_gated() } else { choice };
    let (swapped, splits) = match choice {
        Choice::Empty => return Ok(()),
        Choice::Zeros => {
            let none = site.scratch(16);
            return split_k::emit(&problem, none, 0, extras, site);
        }
        Choice::Tiled { splits, .. } | Choice::Coop { splits, .. } => (false, splits),
        Choice::SmallMCoop(_) | Choice::SplitF32SmallM(_) | Choice::StreamK { .. } | Choice::Warpgroup(_) => {
            (false, 1)
        }
        Choice::GemvDot { swapped, cut } | Choice::GemvAxpy { swapped, cut } => (swapped, cut.splits),
        Choice::SplitF32(config) => (false, config.splits),
    };
    let parts = (splits > 1).then(|| site.scratch(size * splits));
    let destination = parts.map_or(Destination::Target, Destination::Partials);
    let problem = if swapped { problem.swapped() } else { problem };
    match choice {
        Choice::Tiled { tile, .. } => tiled::emit(&problem, tile, splits, &destination, site)?,
        Choice::Coop { blocks, .. } => coop::emit(&problem, blocks, splits, &destination, site)?,
        Choice::StreamK { blocks, schedule } => stream_k::coop::emit(&problem, blocks, schedule, site)?,
        Choice::Warpgroup(path) => warpgroup::emit(&problem, path, site)?,
        Choice::SmallMCoop(cut) => small_m::coop::emit(&problem, &cut, &destination, site)?,
        Choice::GemvDot { cut, .. } => small_m::gemv::dots(&problem, &cut, &destination, site)?,
        Choice::GemvAxpy { cut, .. } => small_m::gemv::sweep(&problem, &cut, &destination, site)?,
        Choice::SplitF32(config) => split_f32::emit(&problem, config, &destination, site)?,
        Choice::SplitF32SmallM(cut) => split_f32::small_m::emit(&problem, cut, &destination, site)?,
        Choice::Empty | Choice::Zeros => {}
    }
    match parts {
        Some(parts) => split_k::emit(&problem, parts, splits, extras, site),
        None => Ok(()),
    }
}

/// x·y + sum: rounded once on floats where the device can, wrapped on integers.
pub(crate) fn multiply_add<'k>(x: Val<'k>, y: Val<'k>, sum: Val<'k>) -> Val<'k> {
    if x.scalar().is_float() { x.fma(y, sum) } else { x * y + sum }
}
