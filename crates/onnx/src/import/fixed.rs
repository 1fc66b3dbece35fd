//! Values that are known while a graph is built.

use std::collections::HashMap;

use olivine_ir::{DType, Def, Graph, Node, Op, Tensor, TensorType, ValueId};

use super::limits::work;
use super::walk::Walk;
use super::{Answer, Bound, Held, Stop};
use crate::error::Error;

/// What follows from inputs is computed here while it is this little, in elements; the device computes the rest.
const LITTLE: usize = 1 << 16;

/// Inputs join the bindings by value while they look like sizes: up to this many integers, or this many other numbers.
/// Every value is compiled for by itself; of larger inputs a stage tells what matters of them.
const FEW: (usize, usize) = (64, 8);

/// A value of one of the graphs under construction.
type Place = (usize, ValueId);

/// What a value follows from.
#[derive(Default)]
struct Ancestry {
    /// Values that nodes make, each after what it needs.
    nodes: Vec<Place>,
    /// Inputs of the run, by place.
    inputs: Vec<(Place, String)>,
    /// Elements of all of them.
    elements: usize,
    /// About how many numbers it takes to compute them.
    work: usize,
}

impl Walk<'_> {
    /// The value of a tensor, which decides a shape; the answer may be what it takes to know it.
    pub(crate) fn fixed(&mut self, held: Held, place: &str) -> Answer<Tensor> {
        let at = (held.frame, held.id);
        if let Some(tensor) = self.fixed.get(&at) {
            return Ok(tensor.clone());
        }
        if let Some(tensor) = self.frames.get(held.frame).and_then(|f| f.graph.as_const(held.id)) {
            return Ok(tensor.clone());
        }
        let ancestry = self.ancestry(at, false)?;
        if self.is_too_much(&ancestry) {
            if self.guesses.is_some() {
                return Err(Stop::PerTrip);
            }
            let known = self.bindings.known.get(self.taken).cloned();
            let Some(tensor) = known else { return Err(Stop::Stage(Box::new(self.stage(&ancestry, at)?))) };
            self.taken += 1;
            self.fixed.insert(at, tensor.clone());
            return Ok(tensor);
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
        if !missing.is_empty() && self.guesses.is_some() {
            return Err(Stop::PerTrip);
        }
        if !missing.is_empty() {
            missing.sort();
            missing.dedup();
            return Err(Stop::Inputs(missing));
        }
        self.budget.compute(ancestry.work);
        for at in &ancestry.nodes {
            self.compute(*at, place)?;
        }
        self.known(at)
            .ok_or_else(|| Error::invalid(place, "a value that decides a shape cannot be found out").into())
    }

    /// Whether a value is known, or will be once inputs that look like sizes are.
    pub(crate) fn is_decided(&self, held: Held) -> bool {
        match self.ancestry((held.frame, held.id), true) {
            Ok(ancestry) => !self.is_too_much(&ancestry),
            Err(_) => false,
        }
    }

    /// Whether a value that follows from constants may be computed here and now.
    pub(super) fn is_affordable(&self, held: Held) -> Answer<bool> {
        Ok(self.budget.folds() && self.budget.affords(self.ancestry((held.frame, held.id), true)?.work))
    }

    fn bound(&self, name: &str) -> Option<Tensor> {
        let base = |bound: &Bound| match bound {
            Bound::Tensor { value, .. } => value.clone(),
            _ => None,
        };
        if let Some((_, bound)) = self.bindings.inputs.iter().find(|(n, _)| n == name) {
            return base(bound);
        }
        // An element of a sequence.
        let (name, index) = name.strip_suffix(']')?.rsplit_once('[')?;
        let (_, bound) = self.bindings.inputs.iter().find(|(n, _)| n == name)?;
        match bound {
            Bound::Sequence(items) => base(items.get(index.parse::<usize>().ok()?)?),
            _ => None,
        }
    }

    fn known(&self, at: Place) -> Option<Tensor> {
        if let Some(tensor) = self.fixed.get(&at) {
            return Some(tensor.clone());
        }
        match &self.frames.get(at.0)?.graph.value(at.1).ok()?.def {
            Def::Const(tensor) => Some(tensor.clone()),
            Def::Param { name } => self.model.weight(name).cloned(),
            Def::Input { .. } => self.known(self.outer(at)?),
            Def::Node { .. } => None,
        }
    }

    /// What stands around a body for one of its inputs.
    fn outer(&self, (frame, id): Place) -> Option<Place> {
        let captures = &self.frames.get(frame)?.captures;
        captures.iter().find(|(_, inner)| *inner == id).map(|(outer, _)| (frame - 1, *outer))
    }

    /// Whether the device has to compute what follows from so much.
    fn is_too_much(&self, ancestry: &Ancestry) -> bool {
        !ancestry.inputs.is_empty() && ancestry.elements > LITTLE || !self.budget.affords(ancestry.work)
    }

    /// Everything that a value follows from and that is not known yet; with `within` no more of it than is too much.
    fn ancestry(&self, at: Place, within: bool) -> Answer<Ancestry> {
        let mut found = Ancestry::default();
        let mut seen: HashMap<Place, ()> = HashMap::new();
        // A place, and whether what it needs was looked at.
        let mut open = vec![(at, false)];
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
                    found.elements = found.elements.saturating_add(weight(&value.ty));
                    found.inputs.push((at, name.clone()));
                }
                Def::Input { .. } => match self.outer(at) {
                    Some(outer) => open.push((outer, false)),
                    None => return Err(Stop::PerTrip),
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
    fn compute(&mut self, at: Place, place: &str) -> Answer<()> {
        if self.fixed.contains_key(&at) {
            return Ok(());
        }
        let wrong = |problem: &str| Error::invalid(place, problem.to_string());
        let graph = &self.frames.get(at.0).ok_or_else(|| wrong("a graph is gone"))?.graph;
        let node = graph.producer(at.1).ok_or_else(|| wrong("a value has no maker"))?.clone();
        let operands: Option<Vec<Tensor>> = node.inputs.iter().map(|id| self.known((at.0, *id))).collect();
        let operands = operands.ok_or_else(|| wrong("an operand is not known"))?;
        let types: Vec<TensorType> = operands.iter().map(Tensor::ty).collect();
        let kept = self.evaluator.keeps(&node.op);
        self.budget.evaluate(&node.op, &types, kept, || place.to_string())?;
        let results = self.evaluator.evaluate(&node.op, &operands).map_err(|e| wrong(&e))?;
        for (id, tensor) in node.outputs.iter().zip(results) {
            self.fixed.insert((at.0, *id), tensor);
        }
        Ok(())
    }

    /// A graph that computes one value.
    fn stage(&self, ancestry: &Ancestry, at: Place) -> Answer<Graph> {
        let wrong = |e: olivine_ir::Error| Error::invalid("stage", e.to_string());
        let mut stage = Graph::new(format!("{}, shapes", self.model.name()));
        let mut ids: HashMap<Place, ValueId> = HashMap::new();
        for (at, name) in &ancestry.inputs {
            let ty = self.frames[at.0].graph.ty(at.1).map_err(wrong)?;
            ids.insert(*at, stage.input(name, ty.dtype, ty.shape).map_err(wrong)?);
        }
        for at in &ancestry.nodes {
            let Some(node) = self.frames[at.0].graph.producer(at.1).cloned() else { continue };
            if ids.contains_key(at) {
                continue;
            }
            let mut operands = Vec::with_capacity(node.inputs.len());
            for id in &node.inputs {
                operands.push(self.stage_operand(&mut stage, &mut ids, (at.0, *id)).map_err(wrong)?);
            }
            let results = stage.add_named(node.name.clone(), node.op.clone(), &operands).map_err(wrong)?;
            ids.extend(node.outputs.iter().map(|id| (at.0, *id)).zip(results));
        }
        let value = self.stage_operand(&mut stage, &mut ids, at).map_err(wrong)?;
        stage.output("value", value).map_err(wrong)?;
        Ok(stage)
    }

    fn stage_operand(
        &self,
        stage: &mut Graph,
        ids: &mut HashMap<Place, ValueId>,
        at: Place,
    ) -> Result<ValueId, olivine_ir::Error> {
        let mut place = at;
        while !ids.contains_key(&place)
            && !self.fixed.contains_key(&place)
            && let Some(outer) = self.outer(place)
        {
            place = outer;
        }
        if let Some(id) = ids.get(&place) {
            return Ok(*id);
        }
        let value = self.frames[place.0].graph.value(place.1)?;
        let id = match &value.def {
            Def::Param { name } => stage.param(name, value.ty.dtype, value.ty.shape)?,
            _ => match self.known(place) {
                Some(tensor) => stage.constant(tensor),
                None => {
                    let problem = "a stage needs a value that is not known".to_string();
                    return Err(olivine_ir::Error::Invalid { place: "stage".into(), problem });
                }
            },
        };
        ids.insert(place, id);
        Ok(id)
    }
}

/// What an input counts for: one that cannot join the bindings makes everything too much.
fn weight(ty: &TensorType) -> usize {
    let few = if matches!(ty.dtype, DType::I64 | DType::I32 | DType::U32) { FEW.0 } else { FEW.1 };
    if ty.shape.numel() > few { LITTLE + 1 } else { ty.shape.numel() }
}

/// Elements that a node makes; one with graphs inside is never little.
fn cost(graph: &Graph, node: &Node) -> usize {
    let sizes = node.outputs.iter().filter_map(|id| graph.ty(*id).ok()).map(|ty| ty.shape.numel());
    let made = sizes.fold(0, usize::saturating_add);
    if matches!(node.op, Op::Loop(_) | Op::Scan(_)) { LITTLE + 1 } else { made }
}
