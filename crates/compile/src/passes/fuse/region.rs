//! Building the program of a fused region out of elementwise nodes.

use olivine_ir::op::{Arg, Instr, InstrOp, Region};
use olivine_ir::{Graph, Node, Op, Tensor, ValueId};

use crate::pattern::scalar_constant;

/// Inputs a region may have: kernels hold one pointer and stride set for each.
pub(super) const MAX_INPUTS: usize = 16;

/// Instructions a region may have.
pub(super) const MAX_INSTRS: usize = 64;

/// A region while it grows; values are the old graph's.
#[derive(Clone)]
pub(super) struct RegionBuilder<'g> {
    graph: &'g Graph,
    /// What values stand for, in the order they came. A region is small and mostly reads what it made last: a search
    /// from the end takes less time than hashing.
    known: Vec<(ValueId, Arg)>,
    /// What the region's inputs stand for.
    pub(super) inputs: Vec<ValueId>,
    instrs: Vec<Instr>,
    /// Whether scalar constants become numbers in the program.
    splats: bool,
}

impl<'g> RegionBuilder<'g> {
    pub(super) fn new(graph: &'g Graph) -> Self {
        RegionBuilder { graph, known: Vec::new(), inputs: Vec::new(), instrs: Vec::new(), splats: true }
    }

    /// Keeps scalar constants as operands, for regions whose shape depends on them.
    pub(super) fn without_splats(mut self) -> Self {
        self.splats = false;
        self
    }

    /// Begins with an existing program whose inputs are `inputs`; its first output stands for `result`.
    pub(super) fn continuing(graph: &'g Graph, region: &Region, inputs: &[ValueId], result: ValueId) -> Self {
        let mut builder = RegionBuilder::new(graph);
        builder.inputs = inputs.to_vec();
        for (i, id) in inputs.iter().enumerate().skip(1) {
            if builder.find(*id).is_none() {
                builder.known.push((*id, Arg::Input(i)));
            }
        }
        builder.instrs.clone_from(&region.instrs);
        if let Some(arg) = region.outputs.first() {
            builder.known.push((result, *arg));
        }
        builder
    }

    /// The argument for a value: computed inside, a number, or an input (a new one if need be).
    pub(super) fn arg(&mut self, id: ValueId) -> Arg {
        if let Some(arg) = self.find(id) {
            return arg;
        }
        let arg = match self.number(id) {
            Some(op) => {
                self.instrs.push(Instr { op, args: Vec::new() });
                Arg::Instr(self.instrs.len() - 1)
            }
            None => {
                self.inputs.push(id);
                Arg::Input(self.inputs.len() - 1)
            }
        };
        self.known.push((id, arg));
        arg
    }

    fn find(&self, id: ValueId) -> Option<Arg> {
        self.known.iter().rfind(|(known, _)| *known == id).map(|(_, arg)| *arg)
    }

    /// A scalar constant as an instruction, if the number survives the way through f64.
    fn number(&self, id: ValueId) -> Option<InstrOp> {
        if !self.splats {
            return None;
        }
        let tensor = self.graph.as_const(id)?;
        let number = scalar_constant(self.graph, id)?;
        let again = Tensor::scalar_of(tensor.dtype(), number);
        // A NaN's payload would not survive printing, so only numbers do.
        (!number.is_nan() && again.data() == tensor.data()).then_some(InstrOp::Splat(tensor.dtype(), number))
    }

    /// Adds an elementwise node; false, with nothing added, if it is not one.
    pub(super) fn push(&mut self, node: &Node) -> bool {
        match &node.op {
            Op::ScalarOp(op) => {
                let args = node.inputs.iter().map(|id| self.arg(*id)).collect();
                self.instrs.push(Instr { op: InstrOp::Scalar(*op), args });
                self.known.push((node.outputs[0], Arg::Instr(self.instrs.len() - 1)));
                true
            }
            Op::Fused(fused) => {
                let args: Vec<Arg> = node.inputs.iter().map(|id| self.arg(*id)).collect();
                let base = self.instrs.len();
                let moved = |arg: &Arg| match arg {
                    Arg::Input(i) => args[*i],
                    Arg::Instr(i) => Arg::Instr(base + i),
                };
                for instr in &fused.region.instrs {
                    let args = instr.args.iter().map(moved).collect();
                    self.instrs.push(Instr { op: instr.op, args });
                }
                for (id, arg) in node.outputs.iter().zip(&fused.region.outputs) {
                    self.known.push((*id, moved(arg)));
                }
                true
            }
            _ => false,
        }
    }

    /// Whether inputs and instructions are within the limits.
    pub(super) fn fits(&self) -> bool {
        self.inputs.len() <= MAX_INPUTS && self.instrs.len() <= MAX_INSTRS
    }

    /// The program that gives `outputs`.
    pub(super) fn finish(mut self, outputs: &[ValueId]) -> (Region, Vec<ValueId>) {
        let outputs = outputs.iter().map(|id| self.arg(*id)).collect();
        (Region { inputs: self.inputs.len(), instrs: self.instrs, outputs }, self.inputs)
    }
}
