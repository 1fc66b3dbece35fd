//! Matmuls of rows with the matrix of their expert.
//!
//! Few rows are matmuls of their own. Many are put in the order of their experts and divided in tiles of one
//! expert each; then every tile is a matmul, of rows wherever they are.

mod coop;
pub(crate) mod experts;
mod sort;
#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic, reason = "a failed expectation is a failed test")]
mod tests;
mod tiled;

use crate::kernels;
use crate::launch::number;
use crate::math;
use crate::matmul::choice;
use crate::matmul::choice::{Choice, MEDIUM, SMALL, Shape};
use crate::matmul::epilogue::accumulator_elem;
pub(crate) use crate::matmul::grouped::sort::MOST_EXPERTS;
use crate::matmul::grouped::sort::sort;
use crate::matmul::problem::{Axis, Experts, MatrixOperand, Problem};
use crate::matmul::vector_load::{MatrixRole, max_vector};
use crate::site::{Operand, Site, Target};
use crate::walk::Walk;
use olivine_ir::Dim;

kernels! { |op, site|
    GroupedMatMul => grouped(site),
}

/// Rows up to which each is a matmul of its own.
pub(crate) const FEW: usize = 16;

/// Lowers a matmul of rows `[M, K]` with the matrices `[E, K, N]` of their experts.
pub(crate) fn grouped(site: &mut Site<'_>) -> Result<(), String> {
    let operands = site.operands.clone();
    let [x, w, ids] = operands.as_slice() else {
        return Err("a grouped matmul needs three operands".into());
    };
    let target = site.targets.first().ok_or("a matmul needs a target")?.clone();
    let mut problem = problem_of(x, w, ids, target)?;
    let elem = accumulator_elem(math::elem(problem.dtype()));
    if !site.caps.target.has(elem.scalar()) {
        return Err(format!("the device has no {elem}"));
    }
    let (m, n, k_offset) = (problem.m, problem.columns(), problem.k_number());
    let Some(experts) = problem.experts.clone() else { return Err("a grouped matmul needs experts".into()) };
    if n == 0 || m == 0 {
        return Ok(());
    }
    if k_offset == 0 || experts.count == 0 {
        return super::emit(problem, Choice::Zeros, &[], site);
    }
    if m <= FEW || experts.count > MOST_EXPERTS {
        problem.batch = Walk::new(&[m], &[vec![Dim::from(k_offset)], vec![Dim::ZERO]]);
        problem.batch.drop_single();
        problem.m = Dim::ONE;
        problem.a.outer = Dim::ZERO;
        let run = max_vector(&problem, MatrixRole::B, Axis::Outer);
        let cut = choice::sweep(
            &Shape { m: 1, n: n.into(), k: k_offset.into(), batches: m },
            run as usize,
            site.caps,
        );
        return super::emit(problem, Choice::GemvAxpy { swapped: false, cut }, &[], site);
    }
    many(&problem, &experts, site)
}

/// Emits the matmul of many rows: their order, and tiles of it.
pub(crate) fn many(problem: &Problem<'_>, experts: &Experts, site: &mut Site<'_>) -> Result<(), String> {
    let m = problem.m;
    if let Some(cut) = coop::choose(problem, experts, site) {
        let sorted = sort(experts, m, cut.blocks.m, site)?;
        return coop::emit(problem, experts, cut, &sorted, site);
    }
    let tile = if m >= 32 * experts.count { MEDIUM } else { SMALL };
    let wide = accumulator_elem(math::elem(problem.dtype())).size() > 4;
    let tile = if wide { tile.wide() } else { tile };
    let sorted = sort(experts, m, tile.m, site)?;
    tiled::emit(problem, experts, tile, &sorted, site)
}

/// One matmul of all rows; which of B's matrices a row takes is left to the kernels.
fn problem_of(x: &Operand, w: &Operand, ids: &Operand, target: Target) -> Result<Problem<'static>, String> {
    let ([m, k_size], [count, _, n]) = (&x.sizes()[..], w.dims()) else {
        return Err(format!("a grouped matmul of {} and {}", x.ty, w.ty));
    };
    let (m, k_offset, count, n) = (*m, number(*k_size), *count, *n);
    let stride = |size: usize, stride: usize| if size == 1 { Dim::ZERO } else { stride.into() };
    let row = if m == 1 { Dim::ZERO } else { k_offset.into() };
    Ok(Problem {
        m,
        n: n.into(),
        k: k_offset.into(),
        a: MatrixOperand { operand: x.clone(), outer: row, k_stride: stride(k_offset, 1) },
        b: MatrixOperand { operand: w.clone(), outer: stride(n, 1), k_stride: stride(k_offset, n) },
        batch: Walk::new::<Dim, Dim>(&[], &[vec![], vec![]]),
        extras: Vec::new(),
        region: None,
        target,
        out: (n.into(), Dim::ONE),
        experts: Some(Experts { ids: ids.clone(), count }),
        bias: false,
        result: x.ty.dtype,
        pairs: false,
        taps: None,
        packed: None,
    })
}
