//! Recurrences: a dispatch for every step, all of one kernel; both directions in each.
//!
//! ```text
//!   step: h ─ Rᵀ·h for some units of all gates and some batch entries ─ + projections ─ gates ─ h', c, a row of y
//!   gru that resets before its product:  z, r·h ─ then ─ candidate, h', y          (two dispatches to a step)
//! ```
//! h moves between the result that is the final state and scratch, so that the last step writes the result; c is
//! updated in place. Step number and what is bound change from dispatch to dispatch, the kernel does not.

mod cell;
mod step;
mod tile;

use olivine_ir::op::{Recurrence, RecurrentKind};
use olivine_ir::{DType, Dim, Tensor};

use super::elementwise::whole_copy;
use crate::kernels;
use crate::launch::number;
use crate::math;
use crate::site::{Memory, Operand, Site, Target};
use step::{FLAGS, HIDDEN_IN, HIDDEN_OUT, STEP};

kernels! { |op, site|
    Recurrence => recurrence(op, site),
}

/// The flag of a step before which h is zeros.
const NO_H: u32 = 1;
/// The flag of a step before which c is zeros.
const NO_C: u32 = 2;

/// What one kernel of a step computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pass {
    /// All of an rnn's step, an lstm's, or that of a gru whose reset gate acts after the product.
    Whole,
    /// z and r·h of a gru whose reset gate acts before the product.
    Gates,
    /// The candidate and the state of such a gru.
    Candidate,
}

/// A recurrence and the layout of its operands.
struct Problem<'a> {
    op: &'a Recurrence,
    sequence: Dim,
    batch: Dim,
    hidden: usize,
    projections: Operand,
    r: Operand,
    bias: Option<Operand>,
    lengths: Option<Operand>,
    peepholes: Option<Operand>,
    y: Target,
    h: Target,
    c: Option<Target>,
    /// z and r·h, where a pass of their own makes them.
    between: Option<[Memory; 2]>,
}

impl Problem<'_> {
    fn dirs(&self) -> usize {
        self.op.of.direction.count()
    }

    /// The dtype that gates and state are computed in.
    fn dtype(&self) -> DType {
        self.projections.ty.dtype
    }

    /// The gates whose rows of r a pass multiplies, in order.
    fn gates(&self, pass: Pass) -> &'static [usize] {
        match (pass, self.op.of.kind) {
            (Pass::Gates, _) => &[0, 1],
            (Pass::Candidate, _) => &[2],
            (Pass::Whole, RecurrentKind::Rnn) => &[0],
            (Pass::Whole, RecurrentKind::Gru) => &[0, 1, 2],
            (Pass::Whole, RecurrentKind::Lstm) if self.op.of.input_forget => &[0, 1, 3],
            (Pass::Whole, RecurrentKind::Lstm) => &[0, 1, 2, 3],
        }
    }
}

/// Lowers a recurrence.
pub(crate) fn recurrence(op: &Recurrence, site: &mut Site<'_>) -> Result<(), String> {
    let [projections, r, ..] = site.operands.as_slice() else { return Err("needs projections and r".into()) };
    let (sequence, batch, hidden) = op.open_sizes(&projections.ty, &r.ty)?;
    let elem = math::elem(projections.ty.dtype);
    if !site.caps.target.has(elem.scalar()) {
        return Err(format!("the device has no {elem}"));
    }
    let at = op.optional_operands();
    let operand = |i: Option<usize>| i.and_then(|i| site.operands.get(i)).cloned();
    let [y, h, ..] = site.targets.as_slice() else { return Err("needs targets for y and h".into()) };
    let (initial_h, initial_c) = (operand(at.initial_h), operand(at.initial_c));
    let mut problem = Problem {
        op,
        sequence,
        batch,
        hidden,
        projections: projections.clone(),
        r: r.clone(),
        bias: operand(at.bias),
        lengths: operand(at.lengths),
        peepholes: operand(at.peepholes),
        y: y.clone(),
        h: h.clone(),
        c: site.targets.get(2).cloned(),
        between: None,
    };
    if hidden == 0 || batch == 0 {
        return Ok(());
    }
    if sequence == 0 {
        for (state, target) in [initial_h, initial_c].iter().zip(site.targets[1..].to_vec()) {
            begin(state.as_ref(), &target, site)?;
        }
        return Ok(());
    }
    if let (Some(initial), Some(c)) = (&initial_c, &problem.c) {
        whole_copy(initial, c, site)?;
    }
    let bytes = crate::launch::bytes(&problem.h.ty);
    let other = site.scratch(bytes);
    let passes: &[Pass] = if op.of.kind == RecurrentKind::Gru && !op.of.reset_after {
        problem.between = Some([site.scratch(bytes), site.scratch(bytes)]);
        &[Pass::Gates, Pass::Candidate]
    } else {
        &[Pass::Whole]
    };

    let flags = (if initial_h.is_none() { NO_H } else { 0 }) | (if initial_c.is_none() { NO_C } else { 0 });
    let begins = site.emitted.len();
    let steps = Steps { most: most_steps(sequence), sequence, h: problem.h.memory, other };
    let first = |writes_h: bool| initial_h.as_ref().map_or(steps.memory(!writes_h), |h| h.memory);
    // Which step is the last is known at run time: of each there are two, one that writes the final state, and one that
    // does not. One of them runs.
    let ways: &[bool] = match sequence.as_constant() {
        Some(steps) if steps % 2 == 1 => &[true],
        Some(_) => &[false],
        None => &[true, false],
    };
    for pass in passes {
        step::emit(&problem, *pass, [first(ways[0]), steps.memory(ways[0])], flags, site)?;
    }
    for step in 0..steps.most {
        for way in ways {
            // Steps take turns.
            let writes_h = *way == step.is_multiple_of(2);
            if step == 0 && *way == ways[0] {
                continue;
            }
            for (number, pass) in passes.iter().enumerate() {
                let runs = steps.runs(step, writes_h);
                site.dispatch_again_times(begins + number, runs, |bound| {
                    let hidden = if step == 0 { first(writes_h) } else { steps.memory(!writes_h) };
                    bound.set_arg(HIDDEN_IN, hidden);
                    if *pass != Pass::Gates {
                        bound.set_arg(HIDDEN_OUT, steps.memory(writes_h));
                    }
                    bound.set_param(STEP, step as u32);
                    bound.set_param(FLAGS, if step == 0 { flags } else { 0 });
                });
            }
        }
    }
    let runs = steps.runs(0, ways[0]);
    site.emitted[begins..begins + passes.len()].iter_mut().for_each(|emitted| emitted.groups[0] *= runs);
    Ok(())
}

/// The steps of a recurrence: what one writes the next reads, and the last writes the final state.
struct Steps {
    sequence: Dim,
    /// Steps that there are dispatches for.
    most: usize,
    /// The final state.
    h: Memory,
    /// The state at every other step.
    other: Memory,
}

impl Steps {
    fn memory(&self, is_h: bool) -> Memory {
        if is_h { self.h } else { self.other }
    }

    /// 1 where a step runs and writes the memory of the final state, or the other; else 0.
    fn runs(&self, step: usize, writes_h: bool) -> Dim {
        if self.sequence.is_constant() {
            return Dim::ONE;
        }
        let left = self.sequence - step;
        let is_odd = left.rem_floor(2);
        left.clamp(0, 1) * if writes_h { is_odd } else { 1 - is_odd }
    }
}

/// Steps from which on a plan serves an eighth of them at least.
const FEW_STEPS: usize = 32;

/// How many steps a plan has dispatches for: all, or for an open number of them as many as serve a range.
#[track_caller]
fn most_steps(sequence: Dim) -> usize {
    let now = match sequence.value() {
        Ok(now) if !sequence.is_constant() => now as usize,
        _ => return number(sequence),
    };
    let most = now.next_power_of_two().max(FEW_STEPS);
    let least = if most > FEW_STEPS { most / 8 } else { 0 };
    if sequence > least && sequence <= most { most } else { number(sequence) }
}

/// Writes the state that a recurrence without steps begins and ends with.
fn begin(initial: Option<&Operand>, target: &Target, site: &mut Site<'_>) -> Result<(), String> {
    match initial {
        Some(initial) => whole_copy(initial, target, site),
        None => {
            let zeros = Tensor::zeros(target.ty.dtype, target.ty.shape).map_err(|e| e.to_string())?;
            let memory = site.constant(zeros);
            whole_copy(&Operand { memory, ..target.as_operand() }, target, site)
        }
    }
}
