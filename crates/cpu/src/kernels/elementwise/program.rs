//! A region made ready to run: dtypes known, registers assigned.

use olivine_ir::DType;
use olivine_ir::op::{Arg, Instr, InstrOp, Region, ScalarOp, Unary};

/// Where a step's operand is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Slot {
    /// The region's i-th input.
    Input(usize),
    /// A register.
    Register(usize),
}

/// One operation over a block.
#[derive(Clone, Debug)]
pub(super) struct Step {
    pub(super) op: ScalarOp,
    /// The last operand's dtype, which decides how the step computes.
    pub(super) dtype: DType,
    pub(super) result: DType,
    pub(super) args: Vec<Slot>,
    /// The register that takes the result, unless `target` does.
    pub(super) to: usize,
    /// The output that is this step's result and nothing else's operand.
    pub(super) target: Option<usize>,
}

/// A region with dtypes resolved and registers assigned.
#[derive(Clone, Debug)]
pub(crate) struct Program {
    pub(super) inputs: Vec<DType>,
    pub(super) steps: Vec<Step>,
    /// Numbers that stay in their register over all blocks.
    pub(super) constants: Vec<(usize, DType, f64)>,
    pub(super) outputs: Vec<(Slot, DType)>,
    pub(super) registers: usize,
}

impl Program {
    /// Prepares a region; one that its operands' dtypes do not fit (which a verified graph never has) gives no outputs.
    pub(crate) fn new(region: &Region, inputs: &[DType]) -> Program {
        let mut program = Program {
            inputs: inputs.to_vec(),
            steps: Vec::new(),
            constants: Vec::new(),
            outputs: Vec::new(),
            registers: 0,
        };
        let (Ok(results), Ok(outputs)) = (region.dtypes(inputs), region.output_dtypes(inputs)) else {
            return program;
        };
        let dtype_of = |arg: Arg| match arg {
            Arg::Input(i) => inputs[i],
            Arg::Instr(i) => results[i],
        };
        let used = used(region);
        // Values first get one register each, in order; registers with disjoint lives are merged afterwards.
        let mut place: Vec<Slot> = Vec::with_capacity(region.instrs.len());
        let locate = |arg: Arg, place: &[Slot]| match arg {
            Arg::Input(i) => Slot::Input(i),
            Arg::Instr(i) => place[i],
        };
        for (i, instr) in region.instrs.iter().enumerate() {
            let fresh = Slot::Register(i);
            if !used[i] {
                place.push(fresh);
                continue;
            }
            match instr.op {
                InstrOp::Splat(dtype, value) => {
                    program.constants.push((i, dtype, value));
                    place.push(fresh);
                }
                InstrOp::Scalar(ScalarOp::Cast(to)) if same_numbers(dtype_of(instr.args[0]), to) => {
                    place.push(locate(instr.args[0], &place));
                }
                InstrOp::Scalar(op) => {
                    let args: Vec<Slot> = instr.args.iter().map(|a| locate(*a, &place)).collect();
                    let dtype = instr.args.last().map_or(DType::F32, |a| dtype_of(*a));
                    program.steps.push(Step { op, dtype, result: results[i], args, to: i, target: None });
                    place.push(fresh);
                }
            }
        }
        program.outputs =
            region.outputs.iter().zip(outputs).map(|(a, dtype)| (locate(*a, &place), dtype)).collect();
        program.assign_registers(region.instrs.len());
        program
    }

    /// The program of one operation on inputs of its own.
    pub(crate) fn single(op: ScalarOp, inputs: &[DType]) -> Program {
        let args = (0..op.arity()).map(Arg::Input).collect();
        let instr = Instr { op: InstrOp::Scalar(op), args };
        Program::new(
            &Region { inputs: op.arity(), instrs: vec![instr], outputs: vec![Arg::Instr(0)] },
            inputs,
        )
    }

    /// The dtype of the first output.
    pub(crate) fn output_dtype(&self) -> Option<DType> {
        self.outputs.first().map(|(_, dtype)| *dtype)
    }

    /// True when the only output is the only input, unchanged.
    pub(super) fn is_copy(&self) -> bool {
        matches!(self.outputs.as_slice(), [(Slot::Input(0), d)] if self.inputs == [*d])
    }

    /// Relative cost per element, in simple operations.
    pub(crate) fn cost(&self) -> usize {
        let step = |s: &Step| match s.op {
            ScalarOp::Unary(u) => match u {
                Unary::Neg | Unary::Abs | Unary::Sign | Unary::Square | Unary::Relu | Unary::Not => 1,
                _ => 4,
            },
            ScalarOp::Activation(_) => 2,
            _ => 1,
        };
        1 + self.steps.iter().map(step).sum::<usize>()
    }

    /// Lets values share registers once their last reader is past, and marks steps that write a target directly.
    fn assign_registers(&mut self, values: usize) {
        let mut last_use = vec![0usize; values];
        for (at, step) in self.steps.iter().enumerate() {
            for slot in &step.args {
                if let Slot::Register(r) = slot {
                    last_use[*r] = at;
                }
            }
        }
        let mut held = vec![false; values];
        for (constant, _, _) in &self.constants {
            held[*constant] = true;
        }
        let read: Vec<bool> =
            (0..values).map(|v| self.steps.iter().any(|s| s.args.contains(&Slot::Register(v)))).collect();
        for (output, (slot, dtype)) in self.outputs.iter().enumerate() {
            let Slot::Register(r) = *slot else { continue };
            let others = self.outputs.iter().filter(|(s, _)| s == slot).count() > 1;
            match self.steps.iter_mut().find(|s| s.to == r) {
                Some(step) if !read[r] && !others && step.result == *dtype && !is_half(*dtype) => {
                    step.target = Some(output);
                }
                _ => held[r] = true,
            }
        }
        let mut free: Vec<usize> = Vec::new();
        let mut count = 0;
        let mut assigned = vec![usize::MAX; values];
        let mut take = |free: &mut Vec<usize>| {
            free.pop().unwrap_or_else(|| {
                count += 1;
                count - 1
            })
        };
        for (constant, _, _) in &mut self.constants {
            assigned[*constant] = take(&mut free);
            *constant = assigned[*constant];
        }
        for (at, step) in self.steps.iter_mut().enumerate() {
            // The result's register is taken before the operands' are given back: a step never works in place.
            let value = step.to;
            assigned[value] = take(&mut free);
            step.to = assigned[value];
            let mut ended: Vec<usize> = Vec::new();
            for slot in &mut step.args {
                if let Slot::Register(v) = *slot {
                    if last_use[v] == at && !held[v] && !ended.contains(&assigned[v]) {
                        ended.push(assigned[v]);
                    }
                    *slot = Slot::Register(assigned[v]);
                }
            }
            if step.target.is_some() {
                ended.push(step.to);
            }
            free.extend(ended);
        }
        for (slot, _) in &mut self.outputs {
            if let Slot::Register(v) = *slot {
                *slot = Slot::Register(assigned[v]);
            }
        }
        self.registers = count;
    }
}

/// f16 or bf16, which registers hold as f32.
pub(super) fn is_half(dtype: DType) -> bool {
    matches!(dtype, DType::F16 | DType::BF16)
}

/// Whether a cast changes nothing of what a register holds.
fn same_numbers(from: DType, to: DType) -> bool {
    from == to || (is_half(from) && to == DType::F32) || (from == DType::Bool && to == DType::U8)
}

/// Which instructions some output depends on.
fn used(region: &Region) -> Vec<bool> {
    let mut used = vec![false; region.instrs.len()];
    let mark = |arg: &Arg, used: &mut Vec<bool>| {
        if let Arg::Instr(i) = arg {
            used[*i] = true;
        }
    };
    for arg in &region.outputs {
        mark(arg, &mut used);
    }
    for i in (0..region.instrs.len()).rev() {
        if used[i] {
            for arg in &region.instrs[i].args {
                mark(arg, &mut used);
            }
        }
    }
    used
}
