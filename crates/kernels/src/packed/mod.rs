//! Weights that stay packed: matmuls with them and rows of them.
//!
//! ```text
//!   Weight: bytes, scales, zero points ── decode: runs of 8 to 64 elements of any format ─┬─ gather
//!                                                                                        ├─ gemv    a few rows
//!                                                                                        ├─ coop    a few dozen rows
//!                                                                                        ├─ the panels of tiled and
//!                                                                                        │  cooperative matmuls
//!                                                                                        └─ unpack  very many rows
//! ```
//! `together` lowers matmuls of one x that do not wait for each other, with the norm that makes x, where x has few rows.

mod coop;
pub(crate) mod decode;
mod digits;
mod gated;
mod gather;
mod gemv;
mod planes;
mod pool;
#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic, reason = "a failed expectation is a failed test")]
mod tests;
mod together;
mod unpack;
pub(crate) mod weight;

use std::fmt;

use olivine_ir::op::{DequantMatMul, Region, ScalarOp};
use olivine_ir::{DType, Dim, Shape, TensorType};
use olivine_kernel::Elem;
use olivine_program::DeviceCaps;

use crate::elementwise;
use crate::kernels;
use crate::launch::{bytes, number};
use crate::matmul;
use crate::matmul::choice::{Choice, SMALL_M};
use crate::matmul::epilogue::Destination;
use crate::matmul::grouped;
use crate::matmul::problem::{Experts, Problem};
use crate::site::{Operand, Site, Target, recorded_class, rounded};
use crate::walk::Walk;
use weight::Weight;

pub use together::joins_as_gemv;
pub(crate) use together::together;

kernels! { |op, site|
    DequantMatMul => dequant_matmul(op, site),
    DequantGather => gather::gather(op, site),
}

/// Lowers a matmul with a packed weight.
fn dequant_matmul(op: &DequantMatMul, site: &mut Site<'_>) -> Result<(), String> {
    let operands = site.operands.clone();
    let target = site.targets.first().ok_or("a matmul needs a target")?.clone();
    matmul_of(op, &operands, &target, site)
}

/// The form of a matmul of some operands, the weight's elements as if they were x's and transposed.
fn problem_of<'a>(
    [x, w]: [&Operand; 2],
    extras: &[Operand],
    target: &Target,
    region: Option<&'a Region>,
) -> Result<Problem<'a>, String> {
    let k = x.sizes().last().map_or(1, |k| number(*k));
    let n = w.ty.elements().dims().iter().rev().nth(1).copied().unwrap_or(1);
    let ty = TensorType::new(x.ty.dtype, Shape::new(&[k, n]).map_err(|e| e.to_string())?);
    let view =
        Operand { ty, strides: vec![Dim::ONE, k.into()], offset: Dim::ZERO, memory: w.memory, stored: false };
    let all: Vec<Operand> = [x.clone(), view].into_iter().chain(extras.iter().cloned()).collect();
    Problem::new(&all, target, region)
}

fn matmul_of(
    op: &DequantMatMul,
    operands: &[Operand],
    target: &Target,
    site: &mut Site<'_>,
) -> Result<(), String> {
    let (own, extras) = operands.split_at(op.first_extra().min(operands.len()));
    let [x, w, ..] = own else { return Err("a matmul needs two operands".into()) };
    let mut problem = problem_of([x, w], extras, target, op.epilogue.as_ref())?;
    let (k, stored) = (problem.k_number(), w.ty.elements());
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
        return by_experts(problem, weight, op.fast, extras, site);
    }
    if is_small_m(&problem, op.fast, site.caps) {
        return small_m(problem, (weight, None), op.fast, extras, site);
    }
    if op.fast {
        round_x(&mut problem, site)?;
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
    fast: bool,
    extras: &[Operand],
    site: &mut Site<'_>,
) -> Result<(), String> {
    let Some(experts) = problem.experts.clone() else { return Err("a grouped matmul needs experts".into()) };
    if problem.m > grouped::FEW && experts.count <= grouped::MOST_EXPERTS {
        if fast {
            round_x(&mut problem, site)?;
        }
        problem.packed = Some(weight.decoded_as(false, site)?);
        return grouped::many(&problem, &experts, site);
    }
    rows_as_batches(&mut problem);
    small_m(problem, (weight, None), fast, extras, site)
}

/// Makes x in f32 one of f16, once for all matmuls that read it, where matrices of f16 multiply it. The result stays f32.
fn round_x(problem: &mut Problem<'_>, site: &mut Site<'_>) -> Result<(), String> {
    let x = problem.a.operand.clone();
    let target = &site.caps.target;
    let has_matrices = target.matrices.iter().any(|matrix| matrix.operand == Elem::F16);
    if x.ty.dtype != DType::F32 || !has_matrices || !x.is_packed() {
        return Ok(());
    }
    let ty = TensorType { dtype: DType::F16, ..x.ty };
    let memory = site.shared("f16".into(), &x, bytes(&ty), |site, memory| {
        let cast = elementwise::region_of(&ScalarOp::Cast(DType::F16), 1);
        elementwise::emit("cast", &cast, std::slice::from_ref(&x), &[Target { ty, memory }], site)
    })?;
    problem.a.operand = Operand { ty, memory, offset: Dim::ZERO, stored: false, ..x };
    problem.b.operand.ty.dtype = DType::F16;
    problem.result = DType::F32;
    Ok(())
}

/// Makes each row a batch of its own, with an expert of its own.
fn rows_as_batches(problem: &mut Problem<'_>) {
    let mut strides = vec![vec![problem.k], vec![Dim::ZERO]];
    strides.extend(problem.extras.iter().map(|extra| vec![extra.row]));
    problem.batch = Walk::new(&[problem.rows()], &strides);
    problem.m = Dim::ONE;
    problem.a.outer = Dim::ZERO;
    problem.extras.iter_mut().for_each(|extra| extra.row = Dim::ZERO);
}

/// A kernel for a matmul that is bound by the speed at which the weight is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SmallM {
    Gemv(gemv::GemvCut),
    Coop(coop::CoopCut, Elem),
}

impl fmt::Display for SmallM {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SmallM::Gemv(cut) => cut.fmt(f),
            SmallM::Coop(cut, _) => cut.fmt(f),
        }
    }
}

/// Whether a matmul with rows of one matrix is bound by the speed at which the weight is read.
fn is_small_m(problem: &Problem<'_>, fast: bool, caps: &DeviceCaps) -> bool {
    problem.m <= SMALL_M || coop::matrix_elem(problem, fast, caps).is_some()
}

/// A matmul bound by the speed at which the weight is read, or the weight and its twin.
fn small_m(
    mut problem: Problem<'_>,
    (weight, twin): (Weight, Option<&Weight>),
    fast: bool,
    extras: &[Operand],
    site: &mut Site<'_>,
) -> Result<(), String> {
    let integers = gemv::digits(&problem, &weight, fast, site.caps);
    match choose_small_m(&problem, (&weight, integers, twin.is_some()), fast, site) {
        SmallM::Gemv(cut) => {
            let weight = weight.decoded_as(integers > 0, site)?;
            problem.packed = Some(weight.clone());
            let cut = if twin.is_some() { cut.of_pairs() } else { cut };
            gemv::emit(&[gemv::Part { problem, weight, twin: twin.cloned(), cut }], None, site)
        }
        SmallM::Coop(cut, elem) => {
            let weight = weight.decoded_as(false, site)?;
            problem.packed = Some(weight.clone());
            in_parts(&problem, cut.splits, extras, site, |to, site| {
                coop::emit(&problem, (&weight, twin), (cut, elem), to, site)
            })
        }
    }
}

/// The kernel for a matmul, by the record or by default; `digits` is what a GEMV makes of x, `paired` says that the weight has a twin.
fn choose_small_m(
    problem: &Problem<'_>,
    (weight, digits, paired): (&Weight, u32, bool),
    fast: bool,
    site: &mut Site<'_>,
) -> SmallM {
    let (n, k, batches) = (problem.columns(), problem.k_number(), problem.batch_count());
    let m = recorded_class(problem.m, site.is_tuned(gemv::FAMILY));
    let class = format!(
        "{} {} {m}x{}x{} b{}",
        weight.name(),
        problem.dtype(),
        rounded(n),
        rounded(k),
        rounded(batches)
    );
    let caps = site.caps;
    // Rows are kept in registers by powers of two: one choice serves all that share one.
    let sizes = (number(problem.m.next_power_of_two()), n, k);
    let decoded = weight.of_integers(digits > 0);
    let cut = gemv::choose(&decoded, digits, sizes, batches, caps);
    let mut default = SmallM::Gemv(cut);
    let mut all = Vec::new();
    if problem.m <= SMALL_M {
        let cuts = gemv::candidates(&decoded, cut, sizes, batches, caps);
        all.extend(cuts.into_iter().map(SmallM::Gemv));
    }
    if let Some(elem) = coop::matrix_elem(problem, fast, caps) {
        let (matrices, rows) = (1 + u32::from(paired), coop::rows(problem.m));
        let sizes = (rows as usize, n / matrices as usize, k);
        if problem.m >= coop::PREFERRED_ROWS {
            let cut = coop::choose(weight, sizes, matrices, caps);
            default = SmallM::Coop(cut, elem);
        }
        let cuts = coop::candidates(weight, sizes, matrices, caps);
        all.extend(cuts.into_iter().map(|cut| SmallM::Coop(cut, elem)));
    }
    site.tuned(gemv::FAMILY, class, default, all)
}

/// Emits a matmul, or its partial sums and what adds them up.
fn in_parts<'a>(
    problem: &Problem<'_>,
    splits: u32,
    extras: &[Operand],
    site: &mut Site<'a>,
    emit: impl FnOnce(&Destination, &mut Site<'a>) -> Result<(), String>,
) -> Result<(), String> {
    if splits == 1 {
        return emit(&Destination::Target, site);
    }
    let size = problem.target.ty.shape.sizes().numel() * 4;
    let parts = site.scratch(size * splits);
    emit(&Destination::Partials(parts), site)?;
    matmul::split_k::emit(problem, parts, splits as usize, extras, site)
}
