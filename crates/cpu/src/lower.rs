//! From a compiled graph to steps: for every node its prepared kernel, and where each operand and result lives.

use std::collections::HashMap;
use std::ops::Range;

use olivine_compile::plan::{MemoryPlan, PlanOptions, plan_graph_with};
use olivine_compile::{Compiled, reads_strides};
use olivine_ir::{Def, Graph, Node, Op, Tensor, TensorType, ValueId};

use crate::Error;
use crate::cost;
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

impl Step {
    fn work(&self) -> usize {
        let operands: Vec<TensorType> = self.operands.iter().map(|o| o.ty).collect();
        let targets: Vec<TensorType> = self.targets.iter().map(|(ty, _)| *ty).collect();
        let own = cost::work(self.kernel.op(), &operands, &targets);
        own.saturating_add(self.kernel.inner_work())
    }

    /// Checks what running relies on: that every range lies in the arena, and that what the step writes is neither
    /// written twice nor read, but in place.
    fn check_places(&self, arena: usize) -> Result<(), Error> {
        let inside = |place: &Place| match place {
            Place::Arena(range) => range.start <= range.end && range.end <= arena,
            _ => true,
        };
        let writable = |(_, place): &(TensorType, Place)| !matches!(place, Place::Input(_));
        let read = self.operands.iter().filter(|o| !o.in_place).map(|o| &o.place);
        let clash = self.targets.iter().enumerate().any(|(i, (_, target))| {
            self.targets[..i].iter().map(|(_, place)| place).chain(read.clone()).any(|p| overlap(p, target))
        });
        let places =
            self.targets.iter().map(|(_, place)| place).chain(self.operands.iter().map(|o| &o.place));
        if !clash && self.targets.iter().all(writable) && places.into_iter().all(inside) {
            return Ok(());
        }
        Err(Error::Unsupported {
            op: self.kernel.name(),
            node: self.name.clone(),
            problem: "the memory plan gives it overlapping buffers".into(),
        })
    }
}

fn overlap(a: &Place, b: &Place) -> bool {
    match (a, b) {
        (Place::Arena(a), Place::Arena(b)) => a.start.max(b.start) < a.end.min(b.end),
        _ => a == b,
    }
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
    /// The work of a run, as [`cost::work`] counts.
    pub(crate) work: usize,
}

impl Program {
    pub(crate) fn new(compiled: &Compiled, checked: bool) -> Result<Self, Error> {
        let graph = &compiled.graph;
        let viewed = viewed_outputs(graph, &compiled.at_load);
        let absent: Vec<bool> = viewed.iter().map(Option::is_some).collect();
        let options = PlanOptions { absent: &absent, ..PlanOptions::default() };
        let plan = plan_graph_with(graph, &compiled.at_load, &options)
            .map_err(|e| Error::Compile(format!("memory plan: {e}")))?;
        let mut lowering = Lowering::new(graph, &compiled.at_load, &plan, &viewed);
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
                if !run.last_mut().is_some_and(|last| lowering.join_softmax(last, node, &step)) {
                    run.push(step);
                }
            }
        }
        load.iter().chain(&run).try_for_each(|step| step.check_places(plan.arena))?;
        let copies = lowering.output_copies()?;
        let work = run.iter().map(Step::work).fold(0, usize::saturating_add);
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
            work,
        })
    }

    /// Bytes of params, constants and what is computed or packed from them when they are loaded.
    pub(crate) fn stored_bytes(&self) -> usize {
        let given = self.stored.iter().map(|stored| match stored {
            Stored::Const(tensor) => tensor.ty().bytes(),
            Stored::Param(_, ty) => ty.bytes(),
            Stored::Packed => 0,
        });
        let made = self.load.iter().flat_map(|step| &step.targets).map(|(ty, _)| ty.bytes());
        let packed = self.packs.iter().map(|pack| pack.packing.bytes);
        given.chain(made).chain(packed).fold(0, usize::saturating_add)
    }

    /// Bytes a run needs beside inputs and weights.
    pub(crate) fn run_bytes(&self) -> usize {
        self.outputs.iter().map(|(_, ty)| ty.bytes()).fold(self.arena, usize::saturating_add)
    }
}

/// For every value the output that is all of it in order under another shape, so that its node writes it there.
fn viewed_outputs(graph: &Graph, at_load: &[bool]) -> Vec<Option<usize>> {
    let mut viewed = vec![None; graph.values().len()];
    for (i, output) in graph.outputs().iter().enumerate() {
        let Some(Node { op: Op::View(view), inputs, .. }) = graph.producer(output.value) else { continue };
        let (root, id) = (&graph.values()[inputs[0].index()], inputs[0]);
        let Def::Node { node, .. } = root.def else { continue };
        let shape = graph.values()[output.value.index()].ty.shape;
        let in_order =
            (0..shape.rank()).all(|i| shape[i] <= 1 || view.strides[i] == shape.strides()[i] as i64);
        let whole = view.offset == 0 && in_order && shape.numel() == root.ty.shape.numel();
        let made = !at_load[node.index()] && !matches!(graph.nodes()[node.index()].op, Op::View(_));
        let free = viewed[id.index()].is_none() && graph.outputs().iter().all(|o| o.value != id);
        if whole && made && free {
            viewed[id.index()] = Some(i);
        }
    }
    viewed
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
    fn new(graph: &'a Graph, at_load: &[bool], plan: &MemoryPlan, viewed: &[Option<usize>]) -> Self {
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
                    .or_else(|| graph.outputs().iter().position(|o| o.value == id).map(Place::Output))
                    .or_else(|| viewed[id.index()].map(Place::Output)),
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

    /// Lets the product just before a softmax over its rows make that instead, if nobody else reads the product.
    fn join_softmax(&self, product: &mut Step, node: &Node, softmax: &Step) -> bool {
        let Op::Softmax(op) = &node.op else { return false };
        let ([x], [(_, to)]) = (softmax.operands.as_slice(), softmax.targets.as_slice()) else {
            return false;
        };
        let [(ty, made)] = product.targets.as_slice() else { return false };
        let (rank, shape) = (x.ty.shape.rank(), x.ty.shape);
        let rows = op.axis + 1 == rank
            && shape.numel() == ty.shape.numel()
            && ty.shape.rank() > 0
            && shape[rank - 1] == ty.shape[ty.shape.rank() - 1]
            && x.ty.dtype == ty.dtype;
        // The product's operands are still there when the softmax's result is written only if that has other memory.
        let clash = product.operands.iter().any(|o| match (&o.place, to) {
            _ if o.in_place => true,
            (Place::Arena(a), Place::Arena(b)) => a.start < b.end && b.start < a.end,
            (a, b) => a == b,
        });
        let joins = rows && x.place == *made && x.offset == 0 && contiguous(x) && !clash;
        if !joins || !self.is_read_once(node.inputs[0]) || !product.kernel.join_softmax(ty) {
            return false;
        }
        product.targets = vec![(*ty, to.clone())];
        true
    }

    /// Whether a value, and what it is a view of, is read by one node and is no output.
    fn is_read_once(&self, id: ValueId) -> bool {
        let reads = self.graph.nodes().iter().flat_map(|n| &n.inputs).filter(|i| **i == id).count();
        let once = reads == 1 && self.graph.outputs().iter().all(|o| o.value != id);
        match self.graph.producer(id) {
            Some(Node { op: Op::View(_), inputs, .. }) => once && self.is_read_once(inputs[0]),
            _ => once,
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

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use olivine_compile::{Options, compile};
    use olivine_ir::{DType, Error as GraphError, TensorView};

    use super::*;
    use crate::{Executable, Weights};

    /// softmax(q·k) as an output, and what reads it; also the product itself if `scores`.
    fn attention(scores: bool) -> Result<(Graph, Compiled), GraphError> {
        let mut g = Graph::new("attention");
        let (q, k) = (g.input("q", DType::F32, [3, 70, 8])?, g.input("k", DType::F32, [3, 8, 33])?);
        let product = g.matmul(q, k)?;
        let weights = g.softmax(product, -1)?;
        g.output("weights", weights)?;
        let most = g.reduce(olivine_ir::op::ReduceKind::Sum, weights, &[2], false)?;
        g.output("sum", most)?;
        let flat = g.reshape(weights, &[210, 33])?;
        let shifted = g.add(flat, flat)?;
        let twice = g.reshape(shifted, &[-1])?;
        g.output("twice", twice)?;
        if scores {
            g.output("scores", product)?;
        }
        let compiled = compile(&g, &Options::default())
            .map_err(|e| GraphError::Invalid { place: "test".into(), problem: e.to_string() })?;
        Ok((g, compiled))
    }

    #[test]
    fn a_softmax_joins_the_product_that_nobody_else_reads() -> Result<(), Box<dyn std::error::Error>> {
        let (_, joined) = attention(false)?;
        let (_, apart) = attention(true)?;
        let steps = |c: &Compiled| Program::new(c, false).map(|p| p.run.len());
        assert_eq!(steps(&joined)? + 1, steps(&apart)?);
        let number = |i: usize| ((i * 37) % 101) as f32 / 25.0 - 2.0;
        let (q, k): (Vec<f32>, Vec<f32>) =
            ((0..3 * 70 * 8).map(number).collect(), (0..3 * 8 * 33).map(number).collect());
        let inputs = [TensorView::new([3, 70, 8], &q)?, TensorView::new([3, 8, 33], &k)?];
        let (mut ours, mut theirs, mut scores) = (vec![0f32; 6930], vec![0f32; 6930], vec![0f32; 6930]);
        let (mut sum, mut other) = (vec![0f32; 210], vec![0f32; 210]);
        let (mut twice, mut more) = (vec![0f32; 6930], vec![0f32; 6930]);
        Executable::new(&joined, Arc::new(Weights::new()), false)?.run(
            &inputs,
            &mut [
                bytemuck::cast_slice_mut(&mut ours),
                bytemuck::cast_slice_mut(&mut sum),
                bytemuck::cast_slice_mut(&mut twice),
            ],
        )?;
        Executable::new(&apart, Arc::new(Weights::new()), false)?.run(
            &inputs,
            &mut [
                bytemuck::cast_slice_mut(&mut theirs),
                bytemuck::cast_slice_mut(&mut other),
                bytemuck::cast_slice_mut(&mut more),
                bytemuck::cast_slice_mut(&mut scores),
            ],
        )?;
        for (a, b) in ours.iter().zip(&theirs) {
            assert!((a - b).abs() <= 1e-6, "{a} is not {b}");
        }
        assert!(sum.iter().all(|s| (s - 1.0).abs() < 1e-5));
        assert!(twice.iter().zip(&ours).all(|(t, w)| *t == 2.0 * w));
        Ok(())
    }
}
