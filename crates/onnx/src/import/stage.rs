//! Graphs that compute some of a model's values, and what they leave for the graphs after them.
//!
//! An import that stops is begun again when more is known, and makes the same values in the same order as far as it came
//! before. What a stage has computed is therefore known by its value's id, and later graphs begin from there.

use std::collections::{HashMap, HashSet};

use olivine_ir::{Def, Graph, NodeId, ValueId};

use super::fixed::{Ancestry, GraphValue};
use super::names::needed;
use super::stored::with_read_params;
use super::walk::Walk;
use super::{Answer, Part, Specialised, Stage, Value};
use crate::error::Error;

impl Walk<'_> {
    /// The name of a value that a stage leaves.
    pub(super) fn stage_value_name(&self, id: ValueId) -> String {
        format!("stage{}.%{}", self.level, id.index())
    }

    /// The main graph with these outputs.
    pub(super) fn finish(mut self, outputs: Vec<(String, Part)>) -> Answer<Specialised> {
        let elements = std::mem::take(&mut self.elements);
        self.frames.truncate(1);
        let from_inputs = self.taken == 0;
        if from_inputs {
            let live: Vec<ValueId> = self.frames[0].graph.outputs().iter().map(|o| o.value).collect();
            self.pin_live_constants(&live);
        } else {
            self.sizes.keys().for_each(|at| self.pin(*at));
        }
        let graph = if from_inputs {
            let graph = self.frames.pop().map(|f| f.graph).unwrap_or_default();
            with_read_params(graph).map_err(|e| Error::invalid("import", e.to_string()))?
        } else {
            let outputs = self.frames[0].graph.outputs();
            let wanted: Vec<(GraphValue, String)> =
                outputs.iter().map(|o| ((0, o.value), o.name.clone())).collect();
            let places: Vec<GraphValue> = wanted.iter().map(|(at, _)| *at).collect();
            self.graph_of(self.model.name().to_string(), &self.ancestry(&places, false)?, &wanted)?
        };
        Ok(Specialised { graph, outputs, elements })
    }

    /// A stage that computes one value, which decides a shape.
    pub(super) fn stage_for(&self, ancestry: &Ancestry, at: GraphValue) -> Answer<Stage> {
        self.stage(ancestry, &[(at, "value".into())], &HashSet::new())
    }

    /// A stage that computes some values, and keeps those of them that are asked for and those that are used later.
    pub(super) fn stage(
        &self,
        ancestry: &Ancestry,
        wanted: &[(GraphValue, String)],
        asked: &HashSet<ValueId>,
    ) -> Answer<Stage> {
        let given: HashSet<GraphValue> = wanted.iter().map(|(at, _)| *at).collect();
        let mut stage_values = self.used_later(ancestry);
        stage_values.retain(|id| !given.contains(&(0, *id)) || asked.contains(id));
        stage_values
            .extend(asked.iter().filter(|id| !stage_values.contains(id)).copied().collect::<Vec<_>>());
        stage_values.sort_by_key(|id| id.index());
        let mut all = wanted.to_vec();
        all.extend(stage_values.iter().map(|id| ((0, *id), self.stage_value_name(*id))));
        let graph = self.graph_of(format!("{}, shapes", self.model.name()), ancestry, &all)?;
        Ok(Stage { graph, stage_values })
    }

    /// What a stage makes of the main graph's values that nodes after it may need: what it has a name for, what nodes
    /// outside it read, and what nobody reads yet.
    fn used_later(&self, ancestry: &Ancestry) -> Vec<ValueId> {
        let graph = &self.frames[0].graph;
        let node_of = |id: ValueId| match graph.value(id).map(|v| &v.def) {
            Ok(Def::Node { node, .. }) => Some(*node),
            _ => None,
        };
        let inside: HashSet<NodeId> = ancestry
            .nodes
            .iter()
            .filter(|(frame, _)| *frame == 0)
            .filter_map(|(_, id)| node_of(*id))
            .collect();
        let mut used: HashSet<ValueId> = self.named_later();
        let mut read: HashSet<ValueId> = HashSet::new();
        for node in graph.nodes() {
            let outside =
                node.outputs.first().and_then(|id| node_of(*id)).is_none_or(|n| !inside.contains(&n));
            read.extend(&node.inputs);
            if outside {
                used.extend(&node.inputs);
            }
        }
        let mut later = Vec::new();
        for node in &inside {
            let Some(node) = graph.nodes().get(node.index()) else { continue };
            let open = |id: &&ValueId| used.contains(id) || !read.contains(id);
            later.extend(node.outputs.iter().filter(open).filter(|id| !self.fixed.contains_key(&(0, **id))));
        }
        later
    }

    /// Values of the main graph with names that nodes still to be imported use.
    fn named_later(&self) -> HashSet<ValueId> {
        let mut names: HashSet<&str> = HashSet::new();
        for scope in &self.scopes {
            let left = scope.order.get(scope.at..).unwrap_or_default();
            left.iter().filter_map(|i| scope.nodes.get(*i)).for_each(|node| needed(node, &mut names));
            names.extend(&scope.outputs);
        }
        names.extend(self.watched.iter().map(|(name, _)| name.as_str()));
        let mut found = HashSet::new();
        let mut open: Vec<&Value> = Vec::new();
        for scope in &self.scopes {
            open.extend(scope.names.iter().filter(|(name, _)| names.contains(name.as_str())).map(|(_, v)| v));
        }
        while let Some(value) = open.pop() {
            match value {
                Value::Tensor(held) if held.frame == 0 => {
                    found.insert(held.id);
                }
                Value::Sequence(items, _) => open.extend(items),
                Value::Tensor(_) | Value::Nothing => {}
            }
        }
        found
    }

    /// A graph that computes values, under these names.
    fn graph_of(&self, name: String, ancestry: &Ancestry, wanted: &[(GraphValue, String)]) -> Answer<Graph> {
        let wrong = |e: olivine_ir::Error| Error::invalid("stage", e.to_string());
        // What a stage computes with is numbers.
        self.sizes.keys().for_each(|at| self.pin(*at));
        let mut stage = Graph::new(name);
        let mut ids: HashMap<GraphValue, ValueId> = HashMap::new();
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
        for (at, name) in wanted {
            let value = self.stage_operand(&mut stage, &mut ids, *at).map_err(wrong)?;
            stage.output(name, value).map_err(wrong)?;
        }
        Ok(stage)
    }

    fn stage_operand(
        &self,
        stage: &mut Graph,
        ids: &mut HashMap<GraphValue, ValueId>,
        at: GraphValue,
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
            Def::Param { name } => stage.param_of(name, value.ty)?,
            _ => match self.known(place) {
                Some(tensor) => stage.constant(tensor),
                None => {
                    let problem = "a stage needs a value that is not known".to_string();
                    return Err(olivine_ir::Error::Invalid { location: "stage".into(), problem });
                }
            },
        };
        ids.insert(place, id);
        Ok(id)
    }
}
