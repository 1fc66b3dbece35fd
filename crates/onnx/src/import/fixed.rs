//! Values that are known while a graph is built.

use std::collections::HashMap;

use olivine_ir::{DType, Def, Dim, Graph, Node, Op, Tensor, TensorType, ValueId};

use super::limits::work;
use super::walk::Walk;
use super::{Answer, Bound, Known, Stop, TensorRef};
use crate::ElementType;
use crate::error::Error;

/// What follows from inputs is computed here while it is this little, in elements; the device computes the rest.
const LITTLE: usize = 1 << 16;

/// Inputs join the bindings by value while they look like sizes: up to this many integers, or this many other numbers.
/// Every value is compiled for by itself; of larger inputs a stage computes what matters.
const FEW: (usize, usize) = (64, 8);

/// A value of one of the graphs under construction.
pub(super) type GraphValue = (usize, ValueId);

/// What a value follows from.
#[derive(Default)]
pub(super) struct Ancestry {
    /// Values that nodes make, each after what it needs.
    pub(super) nodes: Vec<GraphValue>,
    /// Inputs of the run and values of earlier stages, by place.
    pub(super) inputs: Vec<(GraphValue, String)>,
    /// Elements of all of them.
    elements: usize,
    /// About how many numbers it takes to compute them.
    work: usize,
}

/// The most work, as [`work`] counts, to find out before every iteration whether a shape is still what it was.
const LITTLE_WORK: usize = 1 << 12;

impl Walk<'_> {
    /// The value of a tensor, which decides a shape; the answer may be what it takes to know it. Where it is made of sizes
    /// that are expressions, the import holds for these numbers alone.
    pub(crate) fn fixed(&mut self, held: TensorRef, location: &str) -> Answer<Tensor> {
        let tensor = self.found(held, location)?;
        self.check_sizes((held.frame, held.id), location)?;
        self.pin((held.frame, held.id));
        Ok(tensor)
    }

    /// As [`Walk::fixed`], for those who take its expressions into account.
    pub(super) fn found(&mut self, held: TensorRef, location: &str) -> Answer<Tensor> {
        let at = (held.frame, held.id);
        if let Some(tensor) = self.fixed.get(&at) {
            return Ok(tensor.clone());
        }
        if let Some(tensor) = self.frames.get(held.frame).and_then(|f| f.graph.as_const(held.id)) {
            return Ok(tensor.clone());
        }
        let ancestry = match self.ancestry(&[at], false) {
            Err(Stop::PerIteration) => return self.assumed(at, location),
            found => found?,
        };
        if self.is_too_much(&ancestry) {
            let Some(known) = self.bindings.known.get(self.taken) else {
                return Err(Stop::Stage(Box::new(self.stage_for(&ancestry, at)?)));
            };
            let Known::Value(tensor) = known else {
                return Err(Error::invalid(location, "a loop's results are given for a value").into());
            };
            self.taken += 1;
            self.fixed.insert(at, tensor.clone());
            return Ok(tensor.clone());
        }
        let mut missing = Vec::new();
        for (at, name) in &ancestry.inputs {
            match self.bound(name) {
                Some(value) => {
                    self.fixed.insert(*at, value);
                }
                None => missing.push(name.clone()),
            }
        }
        if !missing.is_empty() {
            missing.sort();
            missing.dedup();
            return Err(Stop::Inputs(missing));
        }
        self.budget.compute(ancestry.work);
        for at in &ancestry.nodes {
            self.compute(*at, location)?;
        }
        self.known(at).ok_or_else(|| {
            Error::invalid(location, "a value that decides a shape cannot be found out").into()
        })
    }

    /// The value that a loop's carried values decide: what it is for the next iteration. The loop holds for as many
    /// iterations as it stays the same; where that is more than a little work to find out, it has no such value.
    fn assumed(&mut self, at: GraphValue, location: &str) -> Answer<Tensor> {
        let (frame, _) = at;
        let outer = self.lifted(at)?;
        let tensor =
            self.fixed(TensorRef { frame: frame - 1, id: outer, element: ElementType::I64 }, location)?;
        let body = &mut self.frames[frame];
        if !body.first.is_empty() {
            body.assumed.push((at.1, tensor.clone()));
        }
        self.fixed.insert(at, tensor.clone());
        Ok(tensor)
    }

    /// A value of a body, computed in the graph around it from what its first iteration is given.
    fn lifted(&mut self, (frame, id): GraphValue) -> Answer<ValueId> {
        let lost = || Error::invalid("import", "a value of a graph that is gone");
        if frame == 0 || frame >= self.frames.len() {
            return Err(Stop::PerIteration);
        }
        let (around, inside) = self.frames.split_at_mut(frame);
        let (around, body) = (around.last_mut().ok_or_else(lost)?, inside.first().ok_or_else(lost)?);
        self.budget.step(body.graph.nodes().len(), || format!("graph `{}`", body.graph.name()))?;
        let nodes = ancestors(&body.graph, &[id]);
        let total = nodes.iter().map(|node| work(&body.graph, node)).fold(0, usize::saturating_add);
        if total > LITTLE_WORK {
            return Err(Stop::PerIteration);
        }
        let captured = body.captures.iter().map(|(outer, inner)| (*inner, *outer));
        let given: HashMap<ValueId, ValueId> = captured.chain(body.first.iter().copied()).collect();
        let there = computed(&body.graph, &nodes, &mut around.graph, given, &[id]);
        let there = there.map_err(|e| Error::invalid("import", e.to_string()))?;
        there.and_then(|ids| ids.first().copied()).ok_or(Stop::PerIteration)
    }

    /// Whether a value is known, or will be once inputs that look like sizes are.
    pub(crate) fn is_decided(&self, held: TensorRef) -> bool {
        match self.ancestry(&[(held.frame, held.id)], true) {
            Ok(ancestry) => !self.is_too_much(&ancestry),
            Err(_) => false,
        }
    }

    /// Whether a value that follows from constants may be computed here and now.
    pub(super) fn is_affordable(&self, held: TensorRef) -> Answer<bool> {
        Ok(self.budget.folds() && self.budget.affords(self.ancestry(&[(held.frame, held.id)], true)?.work))
    }

    /// What the bindings say of an input of the run.
    fn binding(&self, name: &str) -> Option<&Bound> {
        if let Some((_, bound)) = self.bindings.inputs.iter().find(|(n, _)| n == name) {
            return Some(bound);
        }
        // An element of a sequence.
        let (name, index) = name.strip_suffix(']')?.rsplit_once('[')?;
        match self.bindings.inputs.iter().find(|(n, _)| n == name)? {
            (_, Bound::Sequence(items)) => items.get(index.parse::<usize>().ok()?),
            _ => None,
        }
    }

    /// Whether an input may join the bindings by value: those that hold results of loops and stages may not.
    fn is_bound(&self, name: &str) -> bool {
        matches!(self.binding(name), Some(Bound::Tensor { .. }))
    }

    fn bound(&self, name: &str) -> Option<Tensor> {
        match self.binding(name)? {
            Bound::Tensor { value, .. } => value.clone(),
            _ => None,
        }
    }

    pub(super) fn known(&self, at: GraphValue) -> Option<Tensor> {
        if let Some(tensor) = self.fixed.get(&at) {
            return Some(tensor.clone());
        }
        match &self.frames.get(at.0)?.graph.value(at.1).ok()?.def {
            Def::Const(tensor) => Some(tensor.clone()),
            Def::Param { name } => self.model.weight(name),
            Def::Input { .. } => self.known(self.outer(at)?),
            Def::Node { .. } => None,
        }
    }

    /// What stands around a body for one of its inputs.
    pub(super) fn outer(&self, (frame, id): GraphValue) -> Option<GraphValue> {
        let captures = &self.frames.get(frame)?.captures;
        captures.iter().find(|(_, inner)| *inner == id).map(|(outer, _)| (frame - 1, *outer))
    }

    /// Whether the device has to compute what follows from so much.
    fn is_too_much(&self, ancestry: &Ancestry) -> bool {
        !ancestry.inputs.is_empty() && ancestry.elements > LITTLE || !self.budget.affords(ancestry.work)
    }

    /// Everything that values follow from and that is not known yet; with `within` no more of it than is too much.
    pub(super) fn ancestry(&self, of: &[GraphValue], within: bool) -> Answer<Ancestry> {
        let mut found = Ancestry::default();
        let mut seen: HashMap<GraphValue, ()> = HashMap::new();
        // A place, and whether what it needs was looked at.
        let mut open: Vec<(GraphValue, bool)> = of.iter().rev().map(|at| (*at, false)).collect();
        while let Some((at, ready)) = open.pop() {
            self.budget.step(1, || format!("graph `{}`", self.model.name()))?;
            if within && self.is_too_much(&found) {
                break;
            }
            if !ready && seen.insert(at, ()).is_some() || self.fixed.contains_key(&at) {
                continue;
            }
            let lost = || Error::invalid("import", "a value of a graph that is gone");
            let graph = &self.frames.get(at.0).ok_or_else(lost)?.graph;
            let value = graph.value(at.1).map_err(|_| lost())?;
            match &value.def {
                Def::Const(_) | Def::Param { .. } => {}
                Def::Input { name, .. } if at.0 == 0 => {
                    let count = if self.is_bound(name) { weight(&value.ty) } else { LITTLE + 1 };
                    found.elements = found.elements.saturating_add(count);
                    found.inputs.push((at, name.clone()));
                }
                _ if at.0 == 0 && self.stage_values.contains(&at.1) => {
                    found.elements = found.elements.saturating_add(LITTLE + 1);
                    found.inputs.push((at, self.stage_value_name(at.1)));
                }
                Def::Input { .. } => match self.outer(at) {
                    Some(outer) => open.push((outer, false)),
                    None => return Err(Stop::PerIteration),
                },
                Def::Node { node, .. } if ready => {
                    if let Some(node) = graph.nodes().get(node.index()) {
                        found.elements = found.elements.saturating_add(cost(graph, node));
                        found.work = found.work.saturating_add(work(graph, node));
                    }
                    found.nodes.push(at);
                }
                Def::Node { node, .. } => {
                    open.push((at, true));
                    if let Some(node) = graph.nodes().get(node.index()) {
                        open.extend(node.inputs.iter().map(|id| ((at.0, *id), false)));
                    }
                }
            }
        }
        Ok(found)
    }

    /// Computes what a node makes, whose operands are known.
    fn compute(&mut self, at: GraphValue, location: &str) -> Answer<()> {
        if self.fixed.contains_key(&at) {
            return Ok(());
        }
        let wrong = |problem: &str| Error::invalid(location, problem.to_string());
        let graph = &self.frames.get(at.0).ok_or_else(|| wrong("a graph is gone"))?.graph;
        let node = graph.producer(at.1).ok_or_else(|| wrong("a value has no maker"))?.clone();
        let operands: Option<Vec<Tensor>> = node.inputs.iter().map(|id| self.known((at.0, *id))).collect();
        let operands = operands.ok_or_else(|| wrong("an operand is not known"))?;
        let types: Vec<TensorType> = operands.iter().map(Tensor::ty).collect();
        // What is computed here is computed for the sizes of this import.
        let number = |size: Dim| Ok(size.specialize_signed().map_or(size, Dim::from));
        let op = node.op.map_sizes(number).map_err(|e| wrong(&e.to_string()))?;
        let kept = self.evaluator.keeps(&op);
        self.budget.evaluate(&op, &types, kept, || location.to_string())?;
        let results = self.evaluator.evaluate(&op, &operands).map_err(|e| wrong(&e))?;
        self.follow_sizes(at.0, &node, &results);
        for (id, tensor) in node.outputs.iter().zip(results) {
            self.fixed.insert((at.0, *id), tensor);
        }
        Ok(())
    }
}

/// What an input counts for: one that cannot join the bindings makes everything too much.
fn weight(ty: &TensorType) -> usize {
    let few = if matches!(ty.dtype, DType::I64 | DType::I32 | DType::U32) { FEW.0 } else { FEW.1 };
    // How much it is decides who computes it, not what comes of it.
    let count = ty.shape.values().numel();
    if count > few { LITTLE + 1 } else { count }
}

/// Elements that a node makes; one with graphs inside is never little.
fn cost(graph: &Graph, node: &Node) -> usize {
    let sizes = node.outputs.iter().filter_map(|id| graph.ty(*id).ok()).map(|ty| ty.shape.values().numel());
    let made = sizes.fold(0, usize::saturating_add);
    if matches!(node.op, Op::Loop(_) | Op::Scan(_)) { LITTLE + 1 } else { made }
}

/// The nodes that values of a graph follow from, in order.
pub(super) fn ancestors<'g>(graph: &'g Graph, of: &[ValueId]) -> Vec<&'g Node> {
    let mut needed = vec![false; graph.values().len()];
    of.iter().for_each(|id| needed[id.index()] = true);
    let mut found = Vec::new();
    for node in graph.nodes().iter().rev() {
        if node.outputs.iter().any(|id| needed[id.index()]) {
            node.inputs.iter().for_each(|id| needed[id.index()] = true);
            found.push(node);
        }
    }
    found.reverse();
    found
}

/// Nodes of one graph again in another, where `given` stand for some of their operands; the answer is what stands for
/// `ids` there, if all that they need is given.
pub(super) fn computed(
    from: &Graph,
    nodes: &[&Node],
    to: &mut Graph,
    mut given: HashMap<ValueId, ValueId>,
    ids: &[ValueId],
) -> Result<Option<Vec<ValueId>>, olivine_ir::Error> {
    let place = |to: &mut Graph, given: &mut HashMap<ValueId, ValueId>, id: ValueId| {
        if let Some(there) = given.get(&id) {
            return Some(*there);
        }
        let there = to.constant(from.as_const(id)?.clone());
        given.insert(id, there);
        Some(there)
    };
    for node in nodes {
        let operands: Option<Vec<ValueId>> =
            node.inputs.iter().map(|id| place(to, &mut given, *id)).collect();
        let Some(operands) = operands else { return Ok(None) };
        let results = to.add_op(node.op.clone(), &operands)?;
        given.extend(node.outputs.iter().copied().zip(results));
    }
    Ok(ids.iter().map(|id| place(to, &mut given, *id)).collect())
}
