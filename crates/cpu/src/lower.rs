//! From a compiled graph to steps: for every node its prepared kernel, and where each operand and result lives.

use std::collections::HashMap;
use std::ops::Range;

use olivine_compile::plan::{MemoryPlan, plan_graph};
use olivine_compile::{Compiled, reads_strides};
use olivine_ir::{Def, Graph, Node, Op, Tensor, TensorType, ValueId};

use crate::Error;
use crate::kernel::{Kernel, Packing};
use crate::operand::row_major;

/// Where a value's bytes are during a run.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Place {
    /// The caller's i-th input.
    Input(usize),
    /// The i-th stored value: a constant, a param or a load-time result.
    Stored(usize),
    /// A range of the arena.
    Arena(Range<usize>),
    /// The caller's i-th output.
    Output(usize),
}

/// An operand: a strided reading of a place.
#[derive(Clone, Debug)]
pub(crate) struct Reading {
    pub(crate) place: Place,
    pub(crate) ty: TensorType,
    pub(crate) strides: [isize; 8],
    pub(crate) offset: usize,
    /// Shares its bytes with target 0.
    pub(crate) in_place: bool,
    /// The stored value that holds it laid out for the kernel.
    pub(crate) packed: Option<usize>,
}

/// An operand to lay out for a kernel when the model is loaded.
pub(crate) struct Pack {
    pub(crate) op: Op,
    pub(crate) packing: Packing,
    pub(crate) operand: Reading,
    /// The stored value it becomes.
    pub(crate) to: usize,
    /// As [`Step::expression`].
    pub(crate) expression: Option<String>,
}

/// One kernel call.
pub(crate) struct Step {
    pub(crate) name: String,
    pub(crate) kernel: Kernel,
    pub(crate) operands: Vec<Reading>,
    pub(crate) targets: Vec<(TensorType, Place)>,
    /// What a load-time step computes, spelled out down to params and small constants; executables of one model
    /// share results by it.
    pub(crate) expression: Option<String>,
}

/// What a stored value is before loading.
pub(crate) enum Stored {
    Const(Tensor),
    Param(String, TensorType),
    /// A result of a load-time step.
    Packed,
}

/// A lowered graph.
pub(crate) struct Program {
    pub(crate) inputs: Vec<(String, TensorType)>,
    pub(crate) outputs: Vec<(String, TensorType)>,
    pub(crate) stored: Vec<Stored>,
    pub(crate) load: Vec<Step>,
    /// After the load-time steps.
    pub(crate) packs: Vec<Pack>,
    pub(crate) run: Vec<Step>,
    /// Outputs whose value lives elsewhere: copied at the end of a run.
    pub(crate) copies: Vec<(Reading, usize)>,
    pub(crate) arena: usize,
}

impl Program {
    pub(crate) fn new(compiled: &Compiled, checked: bool) -> Result<Self, Error> {
        let graph = &compiled.graph;
        let plan =
            plan_graph(graph, &compiled.at_load).map_err(|e| Error::Compile(format!("memory plan: {e}")))?;
        let mut lowering = Lowering::new(graph, &compiled.at_load, &plan);
        let (mut load, mut run) = (Vec::new(), Vec::new());
        for (i, node) in graph.nodes().iter().enumerate() {
            if matches!(node.op, Op::View(_)) {
                continue;
            }
            let mut step = lowering.step(node, plan.in_place[i], checked)?;
            if compiled.at_load[i] {
                load.push(step);
            } else {
                lowering.pack_operands(node, &mut step);
                run.push(step);
            }
        }
        let copies = lowering.output_copies()?;
        let types = |ids: Vec<(&str, ValueId)>| {
            ids.into_iter().map(|(n, id)| (n.to_string(), graph.values()[id.index()].ty)).collect::<Vec<_>>()
        };
        Ok(Program {
            inputs: types(graph.inputs().collect()),
            outputs: types(graph.outputs().iter().map(|o| (o.name.as_str(), o.value)).collect()),
            stored: lowering.stored,
            load,
            packs: lowering.packs,
            run,
            copies,
            arena: plan.arena,
        })
    }

    /// Bytes a run needs beside inputs and weights.
    pub(crate) fn run_bytes(&self) -> usize {
        self.outputs.iter().map(|(_, ty)| ty.bytes()).fold(self.arena, usize::saturating_add)
    }
}

/// Constants up to this many bytes are spelled by their content.
const SPELLED_CONSTANT: usize = 256;

struct Lowering<'a> {
    graph: &'a Graph,
    places: Vec<Option<Place>>,
    stored: Vec<Stored>,
    /// How load-time values are spelled.
    spelled: HashMap<ValueId, String>,
    packs: Vec<Pack>,
}

impl<'a> Lowering<'a> {
    fn new(graph: &'a Graph, at_load: &[bool], plan: &MemoryPlan) -> Self {
        let mut lowering = Lowering {
            graph,
            places: vec![None; graph.values().len()],
            stored: Vec::new(),
            spelled: HashMap::new(),
            packs: Vec::new(),
        };
        let mut inputs = 0;
        for id in graph.ids() {
            let value = &graph.values()[id.index()];
            let place = match &value.def {
                Def::Input { .. } => {
                    inputs += 1;
                    Some(Place::Input(inputs - 1))
                }
                Def::Param { name } => {
                    lowering.spelled.insert(id, format!("param {name:?}"));
                    Some(lowering.store(Stored::Param(name.clone(), value.ty)))
                }
                Def::Const(tensor) => {
                    let bytes = tensor.bytes();
                    if bytes.len() <= SPELLED_CONSTANT {
                        lowering.spelled.insert(id, format!("const {}{bytes:?}", value.ty));
                    }
                    Some(lowering.store(Stored::Const(tensor.clone())))
                }
                Def::Node { node, .. } if matches!(graph.nodes()[node.index()].op, Op::View(_)) => None,
                Def::Node { node, .. } if at_load[node.index()] => Some(lowering.store(Stored::Packed)),
                Def::Node { .. } => plan.slots[id.index()]
                    .as_ref()
                    .map(|slot| Place::Arena(slot.offset..slot.offset + slot.bytes))
                    .or_else(|| graph.outputs().iter().position(|o| o.value == id).map(Place::Output)),
            };
            lowering.places[id.index()] = place;
        }
        lowering
    }

    fn store(&mut self, stored: Stored) -> Place {
        self.stored.push(stored);
        Place::Stored(self.stored.len() - 1)
    }

    /// Follows a view to the bytes it reads.
    fn reading(&self, id: ValueId) -> Option<Reading> {
        let ty = self.graph.ty(id).ok()?;
        match self.graph.producer(id) {
            Some(Node { op: Op::View(view), inputs, .. }) => {
                let mut strides = [0; 8];
                for (s, v) in strides.iter_mut().zip(&view.strides) {
                    *s = *v as isize;
                }
                let place = self.places[inputs[0].index()].clone()?;
                Some(Reading { place, ty, strides, offset: view.offset, in_place: false, packed: None })
            }
            _ => {
                let place = self.places[id.index()].clone()?;
                Some(Reading {
                    place,
                    ty,
                    strides: row_major(&ty.shape),
                    offset: 0,
                    in_place: false,
                    packed: None,
                })
            }
        }
    }

    fn step(&mut self, node: &Node, in_place: Option<usize>, checked: bool) -> Result<Step, Error> {
        let fail =
            |problem: String| Error::Unsupported { op: node.op.name(), node: node.name.clone(), problem };
        let mut operands = Vec::with_capacity(node.inputs.len());
        for (i, id) in node.inputs.iter().enumerate() {
            let mut reading = self.reading(*id).ok_or_else(|| fail(format!("operand {i} has no place")))?;
            reading.in_place = in_place == Some(i);
            if !reads_strides(&node.op, i) && !contiguous(&reading) {
                return Err(fail(format!("operand {i} is strided")));
            }
            operands.push(reading);
        }
        let mut targets = Vec::with_capacity(node.outputs.len());
        for id in &node.outputs {
            let place =
                self.places[id.index()].clone().ok_or_else(|| fail("a result has no place".into()))?;
            targets.push((self.graph.values()[id.index()].ty, place));
        }
        let dtypes: Vec<_> = operands.iter().map(|o| o.ty.dtype).collect();
        let kernel = Kernel::prepare(&node.op, &dtypes, checked).map_err(fail)?;
        let expression = self.spell(node);
        Ok(Step { name: node.name.clone(), kernel, operands, targets, expression })
    }

    /// Has operands that are known at load laid out as the kernel wants them.
    fn pack_operands(&mut self, node: &Node, step: &mut Step) {
        let types: Vec<TensorType> = step.operands.iter().map(|o| o.ty).collect();
        for (i, (operand, id)) in step.operands.iter_mut().zip(&node.inputs).enumerate() {
            if !matches!(operand.place, Place::Stored(_)) {
                continue;
            }
            let Some(packing) = step.kernel.packing(i, &types) else { continue };
            let spelled = self.spelling(*id);
            let expression = spelled.map(|s| format!("{} of {}{s}", packing.layout, operand.ty));
            let made = |p: &Pack| expression.is_some() && p.expression == expression;
            let to = match self.packs.iter().find(|p| made(p)) {
                Some(pack) => pack.to,
                None => {
                    self.stored.push(Stored::Packed);
                    let to = self.stored.len() - 1;
                    let op = step.kernel.op().clone();
                    self.packs.push(Pack { op, packing, operand: operand.clone(), to, expression });
                    to
                }
            };
            operand.packed = Some(to);
        }
    }

    /// Spells a load-time node; `None` for run-time nodes and those that use a large constant.
    fn spell(&mut self, node: &Node) -> Option<String> {
        let operands = node.inputs.iter().map(|id| self.spelling(*id)).collect::<Option<Vec<String>>>()?;
        let text = format!("{}{}({})", node.op.name(), node.op.attrs(), operands.join(", "));
        for (i, id) in node.outputs.iter().enumerate() {
            self.spelled.insert(*id, format!("{text}.{i}"));
        }
        Some(text)
    }

    fn spelling(&self, id: ValueId) -> Option<String> {
        if let Some(text) = self.spelled.get(&id) {
            return Some(text.clone());
        }
        let Some(Node { op: op @ Op::View(_), inputs, .. }) = self.graph.producer(id) else { return None };
        Some(format!("view{}({})", op.attrs(), self.spelled.get(&inputs[0])?))
    }

    fn output_copies(&self) -> Result<Vec<(Reading, usize)>, Error> {
        let mut copies = Vec::new();
        for (i, output) in self.graph.outputs().iter().enumerate() {
            let reading = self.reading(output.value).ok_or_else(|| Error::Unsupported {
                op: "output",
                node: output.name.clone(),
                problem: "its value has no place".into(),
            })?;
            if reading.place != Place::Output(i) {
                copies.push((reading, i));
            }
        }
        Ok(copies)
    }
}

fn contiguous(reading: &Reading) -> bool {
    let packed = row_major(&reading.ty.shape);
    (0..reading.ty.shape.rank()).all(|i| reading.ty.shape[i] <= 1 || reading.strides[i] == packed[i])
}
