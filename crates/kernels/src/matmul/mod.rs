//! Matrix products: which kernel a shape gets, and the kernels.
//!
//! ```text
//!   node ─ Problem (batches of [m, k]·[k, n], by strides) ─ choose ─┬─ matrices  halves by cooperative matrices
//!                                                                   ├─ shares    the same, the last blocks shared
//!                                                                   ├─ narrow    a few dozen rows of halves, likewise
//!                                                                   ├─ triple    f32 by three products of halves
//!                                                                   ├─ lanes     the same for few rows by stored columns
//!                                                                   ├─ tiled     panels in workgroup memory
//!                                                                   ├─ skinny    few rows: dots, sweeps
//!                                                                   └─ split     sums of parts of a long axis
//! ```
//! All of them end in [`finish::Finish`]: the epilogue and the store.

mod block_out;
mod blocks;
mod candidates;
mod choice;
mod convolve;
mod experts;
mod feed;
mod finish;
mod fragments;
mod grouped;
mod implicit;
mod lanes;
mod matrices;
#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic, reason = "a failed expectation is a failed test")]
mod matrices_tests;
mod narrow;
mod out;
mod pairs;
mod panel;
mod planes;
mod problem;
mod raw;
mod shared_blocks;
mod shares;
mod sides;
mod skinny;
mod split;
mod stream;
mod taps;
#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic, reason = "a failed expectation is a failed test")]
mod tests;
mod tiled;
mod triple;
mod triple_block;
#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic, reason = "a failed expectation is a failed test")]
mod triple_tests;
mod words;

use olivine_ir::op::{MatMul, Region};
use olivine_kernel::Val;

use crate::math;
use crate::site::{Operand, Site, Target};
use choice::{Choice, Shape, choose};
use finish::Sink;
use problem::Lie;
use stream::{Side, longest};

pub(crate) use convolve::convolve;
pub(crate) use finish::{is_heavy, settled, sum_elem};
pub(crate) use grouped::grouped;
pub(crate) use pairs::paired;
pub(crate) use problem::{Extra, Factor, Problem};
pub use split::Unsummed;
pub(crate) use split::{Elements, Sums};
pub(crate) use taps::{Bounds, Class, MOST_BITS, Tap, TapAxis, Taps};
pub(crate) use tiled::in_bands;

/// Lowers a matrix product.
pub(crate) fn matmul(op: &MatMul, site: &mut Site<'_>) -> Result<(), String> {
    let operands = site.operands.clone();
    let target = site.targets.first().ok_or("a product needs a target")?.clone();
    matmul_of(&operands, &target, op.epilogue.as_ref(), site)
}

/// Lowers a product of operands 0 and 1; the others are its epilogue's.
fn matmul_of(
    operands: &[Operand],
    target: &Target,
    epilogue: Option<&Region>,
    site: &mut Site<'_>,
) -> Result<(), String> {
    let [_, _, extras @ ..] = operands else { return Err("a product needs two operands".into()) };
    lower(Problem::new(operands, target, epilogue)?, extras, site)
}

/// Chooses and emits; `extras` are the further operands as they broadcast to the target.
pub(crate) fn lower(problem: Problem<'_>, extras: &[Operand], site: &mut Site<'_>) -> Result<(), String> {
    let elem = sum_elem(math::elem(problem.dtype()));
    if !site.caps.target.has(elem.scalar()) {
        return Err(format!("the device has no {elem}"));
    }
    let shape = Shape { m: problem.m, n: problem.n, k: problem.k, batches: problem.batches() };
    let lie = |side: Side, lie: Lie| Lie { lanes: longest(&problem, side, lie.along) as usize, ..lie };
    let (a, b) = (lie(Side::A, problem.lie_of_a()), lie(Side::B, problem.lie_of_b()));
    let default = narrow::choose(&problem, &shape, site.caps)
        .map(Choice::Narrow)
        .or_else(|| {
            let chosen = blocks::choose(&problem, &shape, site.caps, site.may_leave_parts);
            chosen.map(|(blocks, splits)| {
                // Whoever sums parts anyway takes those of a split without another dispatch.
                let shared = candidates::shared(blocks, splits, &shape, site.caps);
                let shared = shared.filter(|_| !site.may_leave_parts);
                shared.unwrap_or(Choice::Matrices { blocks, splits })
            })
        })
        .or_else(|| {
            let config = triple::choose(&problem, &shape, site.caps)?;
            let cut = lanes::choose(&problem, &shape, site.caps);
            Some(cut.map_or(Choice::Triple(config), Choice::Lanes))
        })
        .unwrap_or_else(|| choose(&shape, a, b, elem.size(), site.caps));
    if matches!(default, Choice::Nothing | Choice::Zeros) {
        return emit(problem, default, extras, site);
    }
    let candidates = candidates::candidates(&problem, &shape, default, elem.size(), site.caps);
    let class = candidates::class(&problem, &shape);
    let choice = site.tuned(candidates::FAMILY, class, default, candidates);
    emit(problem, choice, extras, site)
}

fn emit(problem: Problem<'_>, choice: Choice, extras: &[Operand], site: &mut Site<'_>) -> Result<(), String> {
    let elem = sum_elem(math::elem(problem.dtype()));
    let size = problem.target.ty.shape.numel() as u64 * u64::from(elem.size());
    let choice = if problem.pairs { choice.of_pairs() } else { choice };
    let (swapped, splits) = match choice {
        Choice::Nothing => return Ok(()),
        Choice::Zeros => {
            let none = site.scratch(16);
            return split::emit(&problem, none, 0, extras, site);
        }
        Choice::Tiles { splits, .. } | Choice::Matrices { splits, .. } => (false, splits),
        Choice::Narrow(_) | Choice::Lanes(_) | Choice::Shared { .. } => (false, 1),
        Choice::Dots { swapped, cut } | Choice::Sweep { swapped, cut } => (swapped, cut.splits),
        Choice::Triple(config) => (false, config.splits),
    };
    let parts = (splits > 1).then(|| site.scratch(size * splits as u64));
    let sink = parts.map_or(Sink::Target, Sink::Parts);
    let problem = if swapped { problem.swapped() } else { problem };
    match choice {
        Choice::Tiles { tile, .. } => tiled::emit(&problem, tile, splits, &sink, site)?,
        Choice::Matrices { blocks, .. } => matrices::emit(&problem, blocks, splits, &sink, site)?,
        Choice::Shared { blocks, shares } => shared_blocks::emit(&problem, blocks, shares, site)?,
        Choice::Narrow(cut) => narrow::emit(&problem, &cut, &sink, site)?,
        Choice::Dots { cut, .. } => skinny::dots(&problem, &cut, &sink, site)?,
        Choice::Sweep { cut, .. } => skinny::sweep(&problem, &cut, &sink, site)?,
        Choice::Triple(config) => triple::emit(&problem, config, &sink, site)?,
        Choice::Lanes(cut) => lanes::emit(&problem, cut, &sink, site)?,
        Choice::Nothing | Choice::Zeros => {}
    }
    match parts {
        Some(parts) => split::emit(&problem, parts, splits, extras, site),
        None => Ok(()),
    }
}

/// x·y + sum: rounded once on floats where the device can, wrapped on integers.
fn multiply_add<'k>(x: Val<'k>, y: Val<'k>, sum: Val<'k>) -> Val<'k> {
    if x.scalar().is_float() { x.fma(y, sum) } else { x * y + sum }
}
