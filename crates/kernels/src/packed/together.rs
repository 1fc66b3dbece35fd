//! Matmuls of one x by packed weights that do not wait for each other, as one dispatch where x has few rows.
//!
//! ```text
//!   norm ── x·Q   x·K   x·V          one dispatch: the norm in its prologue
//!   norm ── x·W   (x·V)·silu(x·W)    the same with a gate: columns of both take turns
//! ```

use olivine_ir::op::DequantMatMul;
use olivine_ir::{Dim, Op, product};

use super::gated::{self, Gated};
use super::gemv::{self, GemvCut, Part, RowNorm};
use super::weight::Weight;
use super::{SmallM, choose_small_m, coop, matmul_of, problem_of};
use crate::launch::number;
use crate::matmul::problem::Problem;
use crate::site::{Operand, Site, Target, recorded_class, rounded};

/// Rows of x up to which matmuls of it are lowered together: a GEMV has so many in registers.
const MOST_ROWS: usize = 4;

/// Whether matmuls of these rows by packed weights gain by being lowered together.
#[track_caller]
pub fn joins_as_gemv(x: &Operand) -> bool {
    let sizes = x.sizes();
    let rows = sizes.split_last().map_or(Dim::ONE, |(_, outer)| product(outer));
    rows <= MOST_ROWS
}

/// A node of the group.
pub(super) struct Member<'a> {
    pub(super) op: &'a DequantMatMul,
    pub(super) operands: Vec<Operand>,
    pub(super) target: Target,
}

/// A norm before the matmuls.
struct NormNode<'a> {
    op: &'a Op,
    operands: Vec<Operand>,
    target: Target,
}

/// A matmul, perhaps with the gate that it reads in its epilogue.
struct Work<'a, 'm> {
    matmul: &'m Member<'a>,
    gate: Option<&'m Member<'a>>,
    /// What both become together.
    gated: Option<Gated>,
}

/// A matmul of a small M, and how a GEMV computes it.
struct GemvMatmul<'p> {
    problem: Problem<'p>,
    weight: Weight,
    twin: Option<Weight>,
    fast: bool,
    digits: u32,
}

/// Lowers matmuls of one x, after the norm that makes it if the first node is one. Operands and targets of all stand one after another.
pub(crate) fn together(ops: &[(&Op, usize)], site: &mut Site<'_>) -> Result<(), String> {
    let (operands, targets) = (site.operands.clone(), site.targets.clone());
    let mut rest = operands.as_slice();
    let (mut norm, mut members) = (None, Vec::new());
    for ((op, count), target) in ops.iter().zip(&targets) {
        let (own, others) = rest.split_at_checked(*count).ok_or("operands are missing")?;
        rest = others;
        let (operands, target) = (own.to_vec(), target.clone());
        match op {
            Op::DequantMatMul(op) => members.push(Member { op, operands, target }),
            op if norm.is_none() && members.is_empty() => norm = Some(NormNode { op, operands, target }),
            op => return Err(format!("{} among matmuls by packed weights", op.name())),
        }
    }
    let work = works(&members);
    let matmuls: Option<Vec<GemvMatmul<'_>>> =
        work.iter().map(|work| work.gemv(site)).collect::<Result<_, String>>()?;
    let parts = match matmuls.filter(|all| all.iter().all(|of| of.reads_like(&all[0]))) {
        Some(all) => parts(all, site)?,
        None => None,
    };
    let Some(mut parts) = parts else {
        if let Some(norm) = &norm {
            norm.lower(site)?;
        }
        return work.iter().try_for_each(|work| work.lower(site));
    };
    let prologue = norm.as_ref().and_then(|norm| norm.prologue(&parts, site));
    match (&norm, &prologue) {
        (Some(norm), Some(_)) => parts.iter_mut().for_each(|part| norm.put_before(&mut part.problem)),
        (Some(norm), None) => norm.lower(site)?,
        (None, _) => {}
    }
    let mut dispatches: Vec<Vec<Part<'_>>> = Vec::new();
    for part in parts {
        let joins = |parts: &&mut Vec<Part<'_>>| {
            let all: Vec<Part<'_>> = parts.iter().chain([&part]).cloned().collect();
            gemv::fits_together(&all, prologue.as_ref(), site.caps)
        };
        match dispatches.iter_mut().find(joins) {
            Some(parts) => parts.push(part),
            None => dispatches.push(vec![part]),
        }
    }
    site.joined = match (&prologue, dispatches.as_slice()) {
        (Some(_), _) => Some("norm in packed matmuls"),
        (None, all) if all.iter().any(|parts| parts.len() > 1) => Some("packed matmuls of one x"),
        (None, all) => {
            let is_gated = all.iter().flatten().any(|part| part.twin.is_some());
            is_gated.then_some("gated packed matmul")
        }
    };
    dispatches.iter().try_for_each(|parts| gemv::emit(parts, prologue.as_ref(), site))
}

/// The matmuls, each gate with what it lets through.
fn works<'a, 'm>(members: &'m [Member<'a>]) -> Vec<Work<'a, 'm>> {
    let reads = |other: &Member<'_>, gate: &Member<'_>| {
        other.operands.iter().skip(other.op.first_extra()).any(|extra| extra.memory == gate.target.memory)
    };
    let gate_of = |other: &Member<'_>| members.iter().find(|gate| reads(other, gate));
    let is_gate = |gate: &Member<'_>| members.iter().any(|other| reads(other, gate));
    let others = members.iter().filter(|member| !is_gate(member));
    let work = |matmul| {
        let gate = gate_of(matmul);
        Work { matmul, gate, gated: gate.map(|gate| Gated::new(gate, matmul)) }
    };
    others.map(work).collect()
}

impl Work<'_, '_> {
    /// Lowers it alone.
    fn lower(&self, site: &mut Site<'_>) -> Result<(), String> {
        match self.gate {
            None => matmul_of(self.matmul.op, &self.matmul.operands, &self.matmul.target, site),
            Some(gate) => gated::lower(gate, self.matmul, site),
        }
    }

    /// Its form as a matmul of few rows; `None` if it is none.
    fn gemv(&self, site: &mut Site<'_>) -> Result<Option<GemvMatmul<'_>>, String> {
        let Member { op, operands, target } = self.matmul;
        let (own, extras) = operands.split_at(op.first_extra().min(operands.len()));
        let [x, w, ..] = own else { return Err("a matmul needs two operands".into()) };
        let (extras, region) = match &self.gated {
            Some(gated) => (gated.extras.as_slice(), Some(&gated.region)),
            None => (extras, op.epilogue.as_ref()),
        };
        let mut problem = problem_of([x, w], extras, target, region)?;
        let is_none = op.grouped || problem.n == 0 || problem.k == 0 || problem.batches() == 0;
        if is_none || problem.m == 0 || problem.m > MOST_ROWS {
            return Ok(None);
        }
        let k = problem.k_number();
        let weight = |op: &DequantMatMul, operands: &[Operand], site: &mut Site<'_>| {
            let scales = operands.get(op.first_scale()..op.first_extra()).ok_or("operands are missing")?;
            Weight::new(&operands[1], scales, op.scaling(), k, site)
        };
        let weight_of = weight(op, operands, site)?;
        let (weight, twin) = match self.gate {
            None => (weight_of, None),
            Some(gate) => {
                let first = weight(gate.op, &gate.operands, site)?;
                if !first.is_twin(&weight_of) {
                    return Ok(None);
                }
                problem.n *= 2;
                problem.pairs = true;
                (first, Some(weight_of))
            }
        };
        let fast = op.fast && self.gate.is_none_or(|gate| gate.op.fast);
        if problem.m >= coop::PREFERRED_ROWS && coop::matrix_elem(&problem, fast, site.caps).is_some() {
            return Ok(None);
        }
        let digits = gemv::digits(&problem, &weight, fast, site.caps);
        Ok(Some(GemvMatmul { problem, weight, twin, fast, digits }))
    }
}

impl GemvMatmul<'_> {
    /// Whether another has the same x.
    fn reads_like(&self, other: &GemvMatmul<'_>) -> bool {
        let (mine, others) = (&self.problem, &other.problem);
        mine.a.operand.reads_like(&others.a.operand) && mine.batch.strides[0] == others.batch.strides[0]
    }

    /// The weight as a GEMV reads it.
    fn decoded(&self) -> Weight {
        self.weight.of_integers(self.digits > 0)
    }
}

/// The parts of the dispatches: how each matmul is cut. `None` if one is better computed otherwise.
fn parts<'p>(all: Vec<GemvMatmul<'p>>, site: &mut Site<'_>) -> Result<Option<Vec<Part<'p>>>, String> {
    let Some(cuts) = cuts(&all, site) else { return Ok(None) };
    let mut parts: Vec<Part<'p>> = Vec::with_capacity(all.len());
    for (GemvMatmul { mut problem, weight, twin, digits, .. }, cut) in all.into_iter().zip(cuts) {
        let weight = weight.decoded_as(digits > 0, site)?;
        let weight = parts.iter().fold(weight, |weight, part| weight.with_table_of(&part.weight));
        problem.packed = Some(weight.clone());
        let cut = if twin.is_some() { cut.of_pairs() } else { cut };
        parts.push(Part { problem, weight, twin, cut });
    }
    Ok(Some(parts))
}

/// How each matmul is cut: the workgroups of all together fill the device, and are of one size where formats allow it.
fn cuts(all: &[GemvMatmul<'_>], site: &mut Site<'_>) -> Option<Vec<GemvCut>> {
    let first = all.first()?;
    if let [GemvMatmul { problem, weight, twin, fast, digits }] = all {
        let chosen = choose_small_m(problem, (weight, *digits, twin.is_some()), *fast, site);
        return match chosen {
            SmallM::Gemv(cut) => Some(vec![cut]),
            SmallM::Coop(..) => None,
        };
    }
    let problem = &first.problem;
    let (n, k) = (all.iter().map(|one| one.problem.columns()).sum(), problem.k_number());
    let batches = problem.batch_count();
    let m = recorded_class(problem.m, site.is_tuned(gemv::FAMILY));
    let mut names: Vec<String> = all.iter().map(|one| one.weight.name()).collect();
    names.dedup();
    let (names, batch) = (names.join("+"), rounded(batches));
    let class = format!("{names} {} {m}x{}x{} b{batch}", problem.dtype(), rounded(n), rounded(k));
    let (sizes, caps) = ((number(problem.m.next_power_of_two()), n, k), site.caps);
    let default = gemv::choose(&first.decoded(), first.digits, sizes, batches, caps);
    let candidates = gemv::candidates(&first.decoded(), default, sizes, batches, caps);
    let chosen = site.tuned(gemv::FAMILY, class, default, candidates);
    let cut = |one: &GemvMatmul<'_>| match (one.weight.name(), one.digits)
        == (first.weight.name(), first.digits)
    {
        true => chosen,
        false => gemv::choose(&one.decoded(), one.digits, sizes, batches, caps).in_groups_of(chosen.group()),
    };
    Some(all.iter().map(cut).collect())
}

impl NormNode<'_> {
    /// Lowers it alone.
    fn lower(&self, site: &mut Site<'_>) -> Result<(), String> {
        let operands = std::mem::replace(&mut site.operands, self.operands.clone());
        let targets = std::mem::replace(&mut site.targets, vec![self.target.clone()]);
        let lowered = crate::lower(self.op, site);
        (site.operands, site.targets) = (operands, targets);
        lowered
    }

    /// The norm as a prologue of all parts, if each can make digits of what it normalises.
    fn prologue(&self, parts: &[Part<'_>], site: &Site<'_>) -> Option<RowNorm> {
        let axis = match self.op {
            Op::RmsNorm(op) => op.axis,
            Op::LayerNorm(op) => op.axis,
            _ => return None,
        };
        let norm = RowNorm::of(self.op, &self.operands)?;
        let row = number(product(self.target.ty.shape.sizes().get(axis..)?));
        let reads = |part: &Part<'_>| {
            let x = &part.problem.a.operand;
            part.makes_digits(&site.caps.target)
                && part.problem.k == row
                && x.memory == self.target.memory
                && x.is_packed()
                && x.ty.dtype == self.operands[0].ty.dtype
                && gemv::fits_together(std::slice::from_ref(part), Some(&norm), site.caps)
        };
        parts.iter().all(reads).then_some(norm)
    }

    /// Has a matmul read what the norm does.
    fn put_before(&self, problem: &mut Problem<'_>) {
        let x = &self.operands[0];
        let own = &mut problem.a.operand;
        (own.memory, own.offset, own.stored) = (x.memory, x.offset, x.stored);
    }
}
