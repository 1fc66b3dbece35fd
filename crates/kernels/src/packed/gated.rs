//! Two matmuls of one x by packed weights, the second of which reads the first in its epilogue: a gate and what it lets through, in
//! one pass where x has few rows.

use olivine_ir::op::{Arg, DequantMatMul, Instr, Region};

use super::together::Member;
use super::{is_small_m, matmul_of, problem_of, rows_as_batches, small_m};
use crate::matmul::grouped;
use crate::matmul::problem::Experts;
use crate::packed::weight::Weight;
use crate::site::{Operand, Site};

/// A gate and another matmul as one whose columns take turns.
pub(super) struct Gated {
    /// The epilogue of both.
    pub(super) region: Region,
    /// The other's extra operands that are not the gate.
    pub(super) extras: Vec<Operand>,
}

impl Gated {
    pub(super) fn new(gate: &Member<'_>, other: &Member<'_>) -> Self {
        let extras = &other.operands[other.op.first_extra().min(other.operands.len())..];
        let others = (0..extras.len()).filter(|i| extras[*i].memory != gate.target.memory);
        let others: Vec<usize> = others.collect();
        Gated {
            region: joined(gate.op, other.op, &others),
            extras: others.iter().map(|i| extras[*i].clone()).collect(),
        }
    }
}

/// Lowers a gate and the matmul that reads it.
pub(super) fn lower(gate: &Member<'_>, other: &Member<'_>, site: &mut Site<'_>) -> Result<(), String> {
    let own = other.operands.get(..other.op.first_extra()).unwrap_or(&other.operands);
    let ([x, w_gate, ..], [_, w, ..]) = (gate.operands.as_slice(), own) else {
        return Err("needs two matmuls".into());
    };
    let Gated { region, extras } = Gated::new(gate, other);
    let mut problem = problem_of([x, w], &extras, &other.target, Some(&region))?;
    let (fast, is_grouped) = (gate.op.fast && other.op.fast, other.op.grouped);
    let is_small = match is_grouped {
        true => problem.m <= grouped::FEW && problem.m > 0,
        false => is_small_m(&problem, fast, site.caps) && problem.m > 0,
    };
    if is_small && problem.n > 0 && problem.k > 0 && problem.batches() > 0 {
        let k = problem.k_number();
        let weights = [w_gate, w].map(|w| Weight::new(w, &[], other.op.scaling(), k, site));
        let [gate_weight, weight] = weights;
        let (gate_weight, weight) = (gate_weight?, weight?);
        if gate_weight.is_twin(&weight) {
            problem.n *= 2;
            problem.pairs = true;
            if is_grouped {
                let count = w.ty.elements().dims().first().copied().unwrap_or(1);
                problem.experts = Some(Experts { ids: own[2].clone(), count });
                rows_as_batches(&mut problem);
            }
            site.joined = Some("gated packed matmul");
            return small_m(problem, (gate_weight, Some(&weight)), fast, &extras, site);
        }
    }
    matmul_of(gate.op, &gate.operands, &gate.target, site)?;
    matmul_of(other.op, &other.operands, &other.target, site)
}

/// The epilogue of both: it takes the sum of the gate, that of the other, and those of the other's extra operands that are not the
/// gate, which are `others`.
fn joined(gate: &DequantMatMul, other: &DequantMatMul, others: &[usize]) -> Region {
    let identity = Region::identity();
    let (first, second) =
        (gate.epilogue.as_ref().unwrap_or(&identity), other.epilogue.as_ref().unwrap_or(&identity));
    let mut instrs: Vec<Instr> = first.instrs.clone();
    let gated = first.outputs.first().copied().unwrap_or(Arg::Input(0));
    let moved = |arg: &Arg| match *arg {
        Arg::Input(0) => Arg::Input(1),
        Arg::Input(i) => match others.iter().position(|other| other + 1 == i) {
            Some(at) => Arg::Input(2 + at),
            None => gated,
        },
        Arg::Instr(i) => Arg::Instr(i + first.instrs.len()),
    };
    for instr in &second.instrs {
        instrs.push(Instr { op: instr.op, args: instr.args.iter().map(moved).collect() });
    }
    Region { inputs: 2 + others.len(), instrs, outputs: second.outputs.iter().map(moved).collect() }
}
