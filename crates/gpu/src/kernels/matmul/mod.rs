//! Matrix products: which kernel a shape gets, and the kernels.
//!
//! ```text
//!   node ─ Problem (batches of [m, k]·[k, n], by strides) ─ choose ─┬─ matrices  halves by cooperative matrices
//!                                                                   ├─ tiled     panels in workgroup memory
//!                                                                   ├─ skinny    few rows: dots, sweeps
//!                                                                   └─ split     sums of parts of a long axis
//! ```
//! All of them end in [`finish::Finish`]: the epilogue and the store.

mod choice;
mod convolve;
mod experts;
mod finish;
mod grouped;
mod matrices;
mod panel;
mod problem;
mod skinny;
mod split;
mod taps;
#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic, reason = "a failed expectation is a failed test")]
mod tests;
mod tiled;
mod words;

use olivine_ir::op::MatMul;
use olivine_kernel::Val;

use crate::lower::site::{Operand, Site};
use crate::math;

use choice::{Choice, Shape, choose};
use finish::Sink;
use skinny::Skinny;

pub(in crate::kernels) use convolve::convolve;
pub(in crate::kernels) use finish::{is_heavy, settled, sum_elem};
pub(crate) use grouped::grouped;
pub(in crate::kernels) use problem::{Extra, Factor, Problem};
pub(in crate::kernels) use taps::{Bounds, Class, MOST_BITS, Tap, TapAxis, Taps};

/// Lowers a matrix product.
pub(crate) fn matmul(op: &MatMul, site: &mut Site<'_>) -> Result<(), String> {
    let operands = site.operands.clone();
    let [_, _, extras @ ..] = operands.as_slice() else { return Err("a product needs two operands".into()) };
    let target = site.targets.first().ok_or("a product needs a target")?.clone();
    let problem = Problem::new(&operands, &target, op.epilogue.as_ref())?;
    lower(problem, extras, site)
}

/// Chooses and emits; `extras` are the further operands as they broadcast to the target.
pub(in crate::kernels) fn lower(
    problem: Problem<'_>,
    extras: &[Operand],
    site: &mut Site<'_>,
) -> Result<(), String> {
    let elem = sum_elem(math::elem(problem.dtype()));
    if !site.caps.target.has(elem.scalar()) {
        return Err(format!("the device has no {elem}"));
    }
    let shape = Shape { m: problem.m, n: problem.n, k: problem.k, batches: problem.batches() };
    if let Some((blocks, splits)) = matrices::choose(&problem, &shape, site.caps) {
        return emit(problem, Choice::Matrices { blocks, splits }, extras, site);
    }
    let choice = choose(&shape, problem.lie_of_a(), problem.lie_of_b(), elem.size(), site.caps);
    emit(problem, choice, extras, site)
}

fn emit(problem: Problem<'_>, choice: Choice, extras: &[Operand], site: &mut Site<'_>) -> Result<(), String> {
    let elem = sum_elem(math::elem(problem.dtype()));
    let size = problem.target.ty.shape.numel() as u64 * u64::from(elem.size());
    let (swapped, splits) = match choice {
        Choice::Nothing => return Ok(()),
        Choice::Zeros => {
            let none = site.scratch(16);
            return split::emit(&problem, none, 0, extras, site);
        }
        Choice::Tiles { splits, .. } | Choice::Matrices { splits, .. } => (false, splits),
        Choice::Dots { swapped, splits, .. } | Choice::Sweep { swapped, splits, .. } => (swapped, splits),
    };
    let parts = (splits > 1).then(|| site.scratch(size * splits as u64));
    let sink = parts.map_or(Sink::Target, Sink::Parts);
    let problem = if swapped { problem.swapped() } else { problem };
    match choice {
        Choice::Tiles { tile, .. } => tiled::emit(&problem, tile, splits, &sink, site)?,
        Choice::Matrices { blocks, .. } => matrices::emit(&problem, blocks, splits, &sink, site)?,
        Choice::Dots { rows, width, .. } => {
            skinny::dots(&problem, &Skinny { rows, splits }, width, &sink, site)?;
        }
        Choice::Sweep { rows, .. } => skinny::sweep(&problem, &Skinny { rows, splits }, &sink, site)?,
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
