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

use olivine_ir::op::{Recurrence, RecurrentKind, RecurrentSizes};
use olivine_ir::{DType, Tensor};

use super::elementwise::whole_copy;
use crate::kernels;
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
    sizes: RecurrentSizes,
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
    let sizes = op.sizes(&projections.ty, &r.ty)?;
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
        sizes,
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
    if sizes.batch == 0 || sizes.hidden == 0 {
        return Ok(());
    }
    if sizes.sequence == 0 {
        for (state, target) in [initial_h, initial_c].iter().zip(site.targets[1..].to_vec()) {
            begin(state.as_ref(), &target, site)?;
        }
        return Ok(());
    }
    if let (Some(initial), Some(c)) = (&initial_c, &problem.c) {
        whole_copy(initial, c, site)?;
    }
    let bytes = problem.h.ty.bytes() as u64;
    let other = site.scratch(bytes);
    let passes: &[Pass] = if op.of.kind == RecurrentKind::Gru && !op.of.reset_after {
        problem.between = Some([site.scratch(bytes), site.scratch(bytes)]);
        &[Pass::Gates, Pass::Candidate]
    } else {
        &[Pass::Whole]
    };

    // What is written at a step is read at the next, and the last is the final state.
    let written = |step: usize| if (sizes.sequence - step) % 2 == 1 { problem.h.memory } else { other };
    let unwritten = if written(0) == other { problem.h.memory } else { other };
    let first = initial_h.as_ref().map_or(unwritten, |h| h.memory);
    let flags = (if initial_h.is_none() { NO_H } else { 0 }) | (if initial_c.is_none() { NO_C } else { 0 });
    let begins = site.emitted.len();
    for pass in passes {
        step::emit(&problem, *pass, [first, written(0)], flags, site)?;
    }
    for step in 1..sizes.sequence {
        for number in 0..passes.len() {
            site.dispatch_again(begins + number, |bound| {
                bound.set_arg(HIDDEN_IN, written(step - 1));
                if passes[number] != Pass::Gates {
                    bound.set_arg(HIDDEN_OUT, written(step));
                }
                bound.set_param(STEP, step as u32);
                bound.set_param(FLAGS, 0);
            });
        }
    }
    Ok(())
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
