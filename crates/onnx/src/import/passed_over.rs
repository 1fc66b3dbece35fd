//! Imports that pass over nodes which do not fit the sizes of the inputs.
//!
//! The sizes of such an import are a guess, so a node that does not fit says nothing about the model. What the node reads
//! becomes an output, so that all before it is in the graph; its results become inputs of their declared types, so that
//! what follows is too.

use super::names::positional_inputs;
use super::walk::Walk;
use super::{Answer, Bound, Part, Stop, TensorRef, Value};
use crate::error::Error;
use crate::model::port;
use crate::proto::NodeProto;
use crate::tensor::shape_of;
use crate::{Dim, Kind};

/// What an import has passed over so far.
#[derive(Default)]
pub(super) struct PassedOver {
    /// Operands of the nodes.
    operands: Vec<TensorRef>,
    /// How many inputs were added for results.
    added: usize,
}

/// The names of inputs that stand for results begin so.
const RESULT: &str = "passed over: ";

impl<'m> Walk<'m> {
    /// Imports a node, or passes over it.
    pub(super) fn import_or_pass_over(&mut self, node: &'m NodeProto) -> Answer<()> {
        let (frames, scopes) = (self.frames.len(), self.scopes.len());
        let imported = self.import_node(node);
        // Graphs inside nodes are imported as they are: the node is passed over as a whole.
        if self.bindings.pass_over.is_none() || frames > 1 {
            return imported;
        }
        match imported {
            Err(Stop::Inputs(names)) if !names.iter().any(|name| name.starts_with(RESULT)) => {
                Err(Stop::Inputs(names))
            }
            Err(Stop::Error(_) | Stop::Inputs(_) | Stop::PerIteration) => {
                self.frames.truncate(frames);
                self.scopes.truncate(scopes);
                self.pass_over(node)
            }
            imported => imported,
        }
    }

    /// A value that may be missing because its node was passed over.
    pub(super) fn or_nothing(&self, value: Option<Value>, missing: impl FnOnce() -> Error) -> Answer<Value> {
        match value {
            Some(value) => Ok(value),
            None if self.bindings.pass_over.is_some() && self.frames.len() == 1 => Ok(Value::Nothing),
            None => Err(missing().into()),
        }
    }

    fn pass_over(&mut self, node: &'m NodeProto) -> Answer<()> {
        for name in node.input.iter().filter(|name| !name.is_empty()) {
            // Integers are mostly sizes, which no device computes.
            if let Some(Value::Tensor(held)) = self.resolve(name)?
                && held.frame == 0
                && held.element.dtype().is_some_and(|dtype| dtype.is_float())
            {
                self.passed_over.operands.push(held);
            }
        }
        let model = self.model;
        for (i, name) in node.output.iter().enumerate().filter(|(_, name)| !name.is_empty()) {
            let output = || model.graph.output.iter().find(|output| output.name() == name);
            let declared = match self.scopes.len() {
                1 => model.declared.get(name).cloned().or_else(|| Some(port(output()?).kind)),
                _ => None,
            };
            if let Some(value) = declared.map(|kind| self.of_declared(&kind, i)).transpose()?.flatten() {
                self.bind(name, value);
            }
        }
        self.look_inside(node)
    }

    /// Imports the graphs inside a node that was passed over: a loop's as its first iteration, an `if`'s both.
    fn look_inside(&mut self, node: &'m NodeProto) -> Answer<()> {
        for graph in node.attribute.iter().flat_map(|attribute| attribute.g.iter().chain(&attribute.graphs)) {
            let is_loop = node.op_type() == "Loop";
            let count = if is_loop { node.input.len().max(2) } else { graph.input.len() };
            let mut arguments = Vec::new();
            for (i, input) in positional_inputs(graph, count).into_iter().enumerate() {
                let outer = match node.input.get(i).filter(|name| is_loop && i >= 2 && !name.is_empty()) {
                    Some(name) => self.resolve(name)?,
                    None => None,
                };
                let value = match outer {
                    Some(value) => Some(value),
                    None => self.of_declared(&port(input).kind, i)?,
                };
                arguments.push(value.unwrap_or(Value::Nothing));
            }
            let (frames, scopes) = (self.frames.len(), self.scopes.len());
            match self.inline(graph, arguments, node) {
                Ok(_) => {}
                Err(Stop::Error(_) | Stop::PerIteration) => {
                    self.frames.truncate(frames);
                    self.scopes.truncate(scopes);
                }
                Err(stop) => return Err(stop),
            }
        }
        Ok(())
    }

    /// A new input of a declared type; `None` where the type does not say how many axes there are.
    fn of_declared(&mut self, kind: &Kind, at: usize) -> Answer<Option<Value>> {
        let Kind::Tensor { element, dims: Some(dims) } = kind else { return Ok(None) };
        let (Some(dtype), Some(size)) = (element.dtype(), self.bindings.pass_over) else { return Ok(None) };
        let sizes: Vec<i64> = dims
            .iter()
            .map(|dim| match dim {
                Dim::Fixed(fixed) => *fixed as i64,
                Dim::Named(name) => self.size_of_inputs(name).unwrap_or(size) as i64,
                Dim::Free => size as i64,
            })
            .collect();
        let Ok(shape) = shape_of(&sizes) else { return Ok(None) };
        self.passed_over.added += 1;
        let name = format!("{RESULT}{}.{at}", self.passed_over.added);
        let Ok(id) = self.frames[0].graph.input(&name, dtype, shape) else { return Ok(None) };
        Ok(Some(Value::Tensor(TensorRef { frame: 0, id, element: *element })))
    }

    /// The size that an input of the run has where its declaration has a name.
    fn size_of_inputs(&self, name: &str) -> Option<usize> {
        self.model.inputs().iter().find_map(|port| {
            let Kind::Tensor { dims: Some(dims), .. } = &port.kind else { return None };
            let axis = dims.iter().position(|dim| matches!(dim, Dim::Named(given) if given == name))?;
            let (_, bound) = self.bindings.inputs.iter().find(|(input, _)| *input == port.name)?;
            let Bound::Tensor { ty, .. } = bound else { return None };
            ty.shape.dims().get(axis).copied()
        })
    }

    /// The outputs, with what the nodes that were passed over read.
    pub(super) fn with_passed_over(
        &mut self,
        mut outputs: Vec<(String, Part)>,
    ) -> Answer<Vec<(String, Part)>> {
        for (i, held) in std::mem::take(&mut self.passed_over.operands).into_iter().enumerate() {
            let computed = self.frames[0].graph.producer(held.id).is_some();
            if !computed || self.fixed.contains_key(&(0, held.id)) {
                continue;
            }
            let name = format!("{RESULT}operand {i}");
            let part = self.add_output(&name, &Value::Tensor(held), "a node that was passed over")?;
            outputs.push((name, part));
        }
        Ok(outputs)
    }
}
