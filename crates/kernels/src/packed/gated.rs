//! Two matmuls of one x by packed weights, the second of which reads the first in its epilogue: a gate and what it lets through, in
//! one pass where x has few rows.

use olivine_ir::op::{Arg, DequantMatMul, Instr, Region};

use super::{is_small_m, matmul_of, problem_of, rows_as_batches, small_m};
use crate::matmul::grouped;
use crate::matmul::problem::Experts;
use crate::packed::weight::Weight;
use crate::site::{Operand, Site};

/// Lowers both. Operands are those of the gate, `count` of them, and then the other's; targets theirs.
pub(crate) fn gated(
    gate: &DequantMatMul,
    count: usize,
    other: &DequantMatMul,
    site: &mut Site<'_>,
) -> Result<(), String> {
    let (operands, targets) = (site.operands.clone(), site.targets.clone());
    let (of_gate, of_other) = operands.split_at(count.min(operands.len()));
    let [gate_target, target] = targets.as_slice() else { return Err("needs two targets".into()) };
    let (own, extras) = of_other.split_at(other.first_extra().min(of_other.len()));
    let ([x, w_gate, ..], [_, w, ..]) = (of_gate, own) else { return Err("needs two matmuls".into()) };

    let others: Vec<usize> = (0..extras.len()).filter(|i| extras[*i].memory != gate_target.memory).collect();
    let rest: Vec<Operand> = others.iter().map(|i| extras[*i].clone()).collect();
    let region = joined(gate, other, &others);
    let mut problem = problem_of([x, w], &rest, target, Some(&region))?;
    let fast = gate.fast && other.fast;
    let is_small = match other.grouped {
        true => problem.m <= grouped::FEW && problem.m > 0,
        false => is_small_m(&problem, fast, site.caps) && problem.m > 0,
    };
    if is_small && problem.n > 0 && problem.k > 0 && problem.batches() > 0 {
        let k = problem.k_number();
        let weights = [w_gate, w].map(|w| Weight::new(w, &[], other.scaling(), k, site));
        let [gate_weight, weight] = weights;
        let (gate_weight, weight) = (gate_weight?, weight?);
        if gate_weight.is_twin(&weight) {
            problem.n *= 2;
            problem.pairs = true;
            if other.grouped {
                let count = w.ty.elements().dims().first().copied().unwrap_or(1);
                problem.experts = Some(Experts { ids: own[2].clone(), count });
                rows_as_batches(&mut problem);
            }
            return small_m(problem, (gate_weight, Some(&weight)), fast, &rest, site);
        }
    }
    matmul_of(gate, of_gate, gate_target, site)?;
    matmul_of(other, of_other, target, site)
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
