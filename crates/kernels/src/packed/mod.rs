//! Weights that stay packed: matmuls with them and rows of them.
//!
//! ```text
//!   Weight: bytes, scales, zero points ── decode: runs of 8 to 64 elements of any format ─┬─ gather
//!                                                                                        ├─ gemv    few rows
//!                                                                                        ├─ the panels of tiled and
//!                                                                                        │  cooperative matmuls
//!                                                                                        └─ unpack  very many rows
//! ```

pub(crate) mod decode;
mod digits;
mod gather;
mod gemv;
mod planes;
#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic, reason = "a failed expectation is a failed test")]
mod tests;
mod unpack;
pub(crate) mod weight;

use olivine_ir::op::DequantMatMul;
use olivine_ir::{Dim, Shape, TensorType};

use crate::kernels;
use crate::launch::number;
use crate::matmul;
use crate::matmul::choice::{Choice, SMALL_M};
use crate::matmul::epilogue::Destination;
use crate::matmul::grouped;
use crate::matmul::problem::{Experts, Problem};
use crate::site::{Operand, Site, recorded_class, rounded};
use crate::walk::Walk;
use weight::Weight;

kernels! { |op, site|
    DequantMatMul => dequant_matmul(op, site),
    DequantGather => gather::gather(op, site),
}

/// Lowers a matmul with a packed weight.
fn dequant_matmul(op: &DequantMatMul, site: &mut Site<'_>) -> Result<(), String> {
    let operands = site.operands.clone();
    let (own, extras) = operands.split_at(op.first_extra().min(operands.len()));
    let [x, w, ..] = own else { return Err("a matmul needs two operands".into()) };
    let target = site.targets.first().ok_or("a matmul needs a target")?.clone();
    let k = x.sizes().last().map_or(1, |k| number(*k));
    let stored = w.ty.elements();
    let n = stored.dims().iter().rev().nth(1).copied().unwrap_or(1);
    // The weight's elements as if they were x's, transposed.
    let shape = Shape::new(&[k, n]).map_err(|e| e.to_string())?;
    let ty = TensorType::new(x.ty.dtype, shape);
    let view =
        Operand { ty, strides: vec![Dim::ONE, k.into()], offset: Dim::ZERO, memory: w.memory, stored: false };
    let all: Vec<Operand> = [x.clone(), view].into_iter().chain(extras.iter().cloned()).collect();
    let mut problem = Problem::new(&all, &target, op.epilogue.as_ref())?;
    if problem.m == 0 || problem.n == 0 || problem.batches() == 0 {
        return Ok(());
    }
    let count = if op.grouped { stored.dims()[0] } else { 1 };
    if k == 0 || count == 0 {
        return matmul::emit(problem, Choice::Zeros, extras, site);
    }
    let weight = Weight::new(w, &own[op.first_scale()..], op.scaling(), k, site)?;
    if op.grouped {
        problem.experts = Some(Experts { ids: own[2].clone(), count });
        return by_experts(problem, weight, extras, site);
    }
    if problem.m <= SMALL_M {
        return small_m(problem, weight, extras, site);
    }
    let weight = weight.decoded_as(false, site)?;
    match unpack::first(&problem, &weight, site)? {
        Some(memory) => problem.b.operand.memory = memory,
        None => problem.packed = Some(weight),
    }
    matmul::lower(problem, extras, site)
}

/// Rows with the matrices of their experts.
fn by_experts(
    mut problem: Problem<'_>,
    weight: Weight,
    extras: &[Operand],
    site: &mut Site<'_>,
) -> Result<(), String> {
    let Some(experts) = problem.experts.clone() else { return Err("a grouped matmul needs experts".into()) };
    if problem.m > grouped::FEW && experts.count <= grouped::MOST_EXPERTS {
        problem.packed = Some(weight.decoded_as(false, site)?);
        return grouped::many(&problem, &experts, site);
    }
    // Each row is a batch of its own.
    let mut strides = vec![vec![problem.k], vec![Dim::ZERO]];
    strides.extend(problem.extras.iter().map(|extra| vec![extra.row]));
    problem.batch = Walk::new(&[problem.rows()], &strides);
    problem.m = Dim::ONE;
    problem.a.outer = Dim::ZERO;
    problem.extras.iter_mut().for_each(|extra| extra.row = Dim::ZERO);
    small_m(problem, weight, extras, site)
}

/// A matmul bound by the speed at which the weight is read.
fn small_m(
    mut problem: Problem<'_>,
    weight: Weight,
    extras: &[Operand],
    site: &mut Site<'_>,
) -> Result<(), String> {
    let digits = gemv::digits(&problem, &weight, site.caps);
    let weight = weight.decoded_as(digits > 0, site)?;
    problem.packed = Some(weight.clone());
    // Rows are kept in registers by powers of two: one choice serves all that share one.
    let rows = number(problem.m.next_power_of_two());
    let (sizes, batches) = ((rows, problem.columns(), problem.k_number()), problem.batch_count());
    let default = gemv::choose(&weight, digits, sizes, batches, site.caps);
    let candidates = gemv::candidates(&weight, default, sizes, batches, site.caps);
    let [n, k] = [problem.columns(), problem.k_number()].map(rounded);
    let m = recorded_class(problem.m, site.is_tuned(gemv::FAMILY));
    let class = format!("{} {} {m}x{n}x{k} b{}", weight.name(), problem.dtype(), rounded(batches));
    let cut = site.tuned(gemv::FAMILY, class, default, candidates);
    if cut.splits == 1 {
        return gemv::emit(&problem, &weight, cut, &Destination::Target, site);
    }
    let size = problem.target.ty.shape.sizes().numel() * 4;
    let parts = site.scratch(size * cut.splits);
    gemv::emit(&problem, &weight, cut, &Destination::Partials(parts), site)?;
    matmul::split_k::emit(&problem, parts, cut.splits as usize, extras, site)
}
