//! Products of rows with the matrix of their expert.
//!
//! Few rows are products of their own. Many are put in the order of their experts and dealt out in tiles of one
//! expert each; then every tile is a product, of rows wherever they are.

mod coop;
pub(crate) mod experts;
mod sort;
#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic, reason = "a failed expectation is a failed test")]
mod tests;
mod tiled;

use crate::kernels;
use crate::math;
use crate::matmul::choice;
use crate::matmul::choice::{Choice, MEDIUM, SMALL, Shape};
use crate::matmul::epilogue::sum_elem;
use crate::matmul::grouped::sort::{MOST_EXPERTS, sort};
use crate::matmul::problem::{Axis, Experts, Factor, Problem};
use crate::matmul::vector_load::{Side, longest};
use crate::site::{Operand, Site, Target};
use crate::walk::Walk;

kernels! { |op, site|
    GroupedMatMul => grouped(site),
}

/// Rows up to which each is a product of its own.
const FEW: usize = 16;

/// Lowers a product of rows `[M, K]` with the matrices `[E, K, N]` of their experts.
pub(crate) fn grouped(site: &mut Site<'_>) -> Result<(), String> {
    let operands = site.operands.clone();
    let [x, w, ids] = operands.as_slice() else {
        return Err("a grouped product needs three operands".into());
    };
    let target = site.targets.first().ok_or("a product needs a target")?.clone();
    let mut problem = problem_of(x, w, ids, target)?;
    let elem = sum_elem(math::elem(problem.dtype()));
    if !site.caps.target.has(elem.scalar()) {
        return Err(format!("the device has no {elem}"));
    }
    let Problem { m, n, k: depth, .. } = problem;
    let Some(experts) = problem.experts.clone() else { return Err("a grouped product needs experts".into()) };
    if m * n == 0 {
        return Ok(());
    }
    if depth == 0 || experts.count == 0 {
        return super::emit(problem, Choice::Zeros, &[], site);
    }
    if m <= FEW || experts.count > MOST_EXPERTS {
        problem.batch = Walk::new(&[m], &[vec![depth as i64], vec![0]]);
        problem.m = 1;
        problem.a.outer = 0;
        let run = longest(&problem, Side::B, Axis::Outer);
        let cut = choice::sweep(&Shape { m: 1, n, k: depth, batches: m }, run as usize, site.caps);
        return super::emit(problem, Choice::Sweep { swapped: false, cut }, &[], site);
    }
    if let Some(cut) = coop::choose(&problem, &experts, site) {
        let sorted = sort(&experts, m, cut.blocks.m, site)?;
        return coop::emit(&problem, &experts, cut, &sorted, site);
    }
    let tile = if m >= 32 * experts.count { MEDIUM } else { SMALL };
    let tile = if elem.size() > 4 { tile.wide() } else { tile };
    let sorted = sort(&experts, m, tile.m, site)?;
    tiled::emit(&problem, &experts, tile, &sorted, site)
}

/// One product of all rows; which of B's matrices a row takes is left to the kernels.
fn problem_of(x: &Operand, w: &Operand, ids: &Operand, target: Target) -> Result<Problem<'static>, String> {
    let ([m, depth], [count, _, n]) = (x.dims(), w.dims()) else {
        return Err(format!("a grouped product of {} and {}", x.ty, w.ty));
    };
    let (m, depth, count, n) = (*m, *depth, *count, *n);
    let stride = |size: usize, stride: usize| if size == 1 { 0 } else { stride as i64 };
    Ok(Problem {
        m,
        n,
        k: depth,
        a: Factor { operand: x.clone(), outer: stride(m, depth), depth: stride(depth, 1) },
        b: Factor { operand: w.clone(), outer: stride(n, 1), depth: stride(depth, n) },
        batch: Walk::new(&[], &[vec![], vec![]]),
        extras: Vec::new(),
        region: None,
        target,
        out: (n as i64, 1),
        experts: Some(Experts { ids: ids.clone(), count }),
        bias: false,
        pairs: false,
        taps: None,
    })
}
