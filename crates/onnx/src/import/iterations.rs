//! Graphs of the iterations of a loop that the caller runs.

use std::collections::HashMap;

use olivine_ir::op::{Loop, ReduceKind};
use olivine_ir::{DType, Def, Error as GraphError, Graph, Shape, SubGraph, Tensor, TensorType, ValueId};

use super::fixed::{ancestors, computed};
use super::loops::{Argument, ArgumentSource, LoopCall, Made, unchanged};
use super::names::positional_inputs;
use super::walk::{BodyInput, Captured, Scope, Walk};
use super::{Answer, Part, Stop, TensorRef, Value};
use crate::ElementType;
use crate::error::Error;
use crate::model::location;
use crate::proto::{GraphProto, NodeProto};

/// Bytes of rows that one graph of iterations collects, about.
const ROW_BYTES: usize = 1 << 20;

/// Iterations of a graph that collects rows, at least and at most.
const ROWS: (usize, usize) = (16, 1 << 12);

impl<'m> Walk<'m> {
    /// A capture as a value of the main graph; one name of a run, or one weight, is declared once.
    fn captured(&mut self, argument: &Argument) -> Answer<Value> {
        let wrong = |e: GraphError| Error::invalid("loop", e.to_string());
        Ok(match argument {
            Argument::Nothing => Value::Nothing,
            Argument::Sequence(items, element) => {
                let items = items.iter().map(|item| self.captured(item)).collect::<Answer<_>>()?;
                Value::Sequence(items, *element)
            }
            Argument::Tensor { source, ty, element } => {
                let graph = &mut self.frames[0].graph;
                let declared = match source {
                    ArgumentSource::Run(name) => graph.inputs().find(|(n, _)| n == name).map(|(_, id)| id),
                    ArgumentSource::Weight(name) => graph.params().find(|(n, _)| n == name).map(|(_, id)| id),
                    ArgumentSource::Const(_) => None,
                };
                let id = match (declared, source) {
                    (Some(id), _) => id,
                    (None, ArgumentSource::Run(name)) => {
                        graph.input(name, ty.dtype, ty.shape).map_err(wrong)?
                    }
                    (None, ArgumentSource::Weight(name)) => graph.param_of(name, *ty).map_err(wrong)?,
                    (None, ArgumentSource::Const(tensor)) => graph.constant(tensor.clone()),
                };
                Value::Tensor(TensorRef { frame: 0, id, element: *element })
            }
        })
    }

    /// Imports iterations of a loop. The answer is the graph's outputs: `going`, whether the loop goes on; the carried
    /// values, `carried0` and so on; and the rows, `row0` and so on. A graph of several iterations has `count` as well, how
    /// many it made, and its rows are stacked.
    pub(super) fn iterations(&mut self, call: &'m LoopCall, state: &[Made]) -> Answer<Vec<(String, Part)>> {
        let lost = || Error::invalid("loop", "its node is not one of the model's");
        let node = self.model.node_at(call.node).ok_or_else(lost)?;
        let body = node.attribute.iter().find(|a| a.name() == "body").and_then(|a| a.g.as_ref());
        let body = body.ok_or_else(lost)?;
        self.open_scopes(call)?;
        let number = |walk: &mut Self, name: String| {
            let made = Made::Tensor(TensorType::new(DType::I64, Shape::SCALAR), ElementType::I64);
            walk.made(&made, &name)
        };
        let (iteration, limit) = (number(self, call.iteration_name())?, number(self, call.limit_name())?);
        let (mut carried, mut next) = (Vec::new(), 0);
        let count = node.input.len().saturating_sub(2);
        let (same, inputs) = (unchanged(body, count), positional_inputs(body, 2 + count));
        for (k, same) in same.iter().enumerate() {
            if *same {
                let value = self.resolve(inputs[2 + k].name())?.ok_or_else(lost)?;
                carried.push(value);
            } else {
                let made = state.get(next).ok_or_else(lost)?;
                carried.push(self.made(made, &call.carried_name(next))?);
                next += 1;
            }
        }
        let going = self.graph().constant(Tensor::scalar(true));
        let going = Value::Tensor(TensorRef { frame: 0, id: going, element: ElementType::Bool });
        match self.repeated(node, body, [&iteration, &limit, &going], &carried, &same) {
            Ok(Some(outputs)) => return Ok(outputs),
            // One at a time may be possible where several at once are not.
            Ok(None) | Err(Stop::PerIteration | Stop::Error(_)) => {}
            Err(stop) => return Err(stop),
        }
        let arguments = [vec![iteration, going], carried].concat();
        let results = self.inline(body, arguments, node)?;
        let mut outputs = Vec::new();
        let count = same.len();
        let (mut values, mut rows) = (0, 0);
        for (i, value) in results.iter().enumerate() {
            let name = match i {
                0 => "going".to_string(),
                i if i <= count && same[i - 1] => continue,
                i if i <= count => {
                    values += 1;
                    format!("carried{}", values - 1)
                }
                _ => {
                    rows += 1;
                    format!("row{}", rows - 1)
                }
            };
            let part = self.add_output(&name, value, &location(node))?;
            outputs.push((name, part));
        }
        Ok(outputs)
    }

    /// The scopes that a loop's body sees.
    fn open_scopes(&mut self, call: &'m LoopCall) -> Answer<()> {
        let lost = || Error::invalid("loop", "its function is not one of the model's");
        let model = self.model;
        let opsets = &model.proto.opset_import;
        self.scopes.push(Scope { opaque: true, opsets, ..Scope::default() });
        if let Some(key) = &call.function {
            let function = model.functions.get(key).ok_or_else(lost)?;
            let mut attributes = HashMap::new();
            for (name, address) in &call.attributes {
                attributes.insert(name.as_str(), model.attribute_at(*address).ok_or_else(lost)?);
            }
            let opsets = function.opset_import.as_slice();
            let function = Some(function);
            self.scopes.push(Scope { opaque: true, function, opsets, attributes, ..Scope::default() });
        }
        for (name, argument) in &call.captures {
            let value = self.captured(argument)?;
            self.bind(name, value);
        }
        Ok(())
    }

    /// Several iterations as a loop of the graph, if all have the same types.
    fn repeated(
        &mut self,
        node: &'m NodeProto,
        body: &'m GraphProto,
        [iteration, limit, going]: [&Value; 3],
        carried: &[Value],
        same: &[bool],
    ) -> Answer<Option<Vec<(String, Part)>>> {
        let wrong = |e: GraphError| Error::invalid(location(node), e.to_string());
        let (Value::Tensor(iteration), Value::Tensor(limit)) = (iteration, limit) else { return Ok(None) };
        let scalar = TensorType::new(DType::I64, Shape::SCALAR);
        let mut inputs = vec![
            BodyInput::New { element: ElementType::I64, ty: scalar, first: Some(iteration.id) },
            BodyInput::Outer(going.clone()),
        ];
        let (mut begun, mut types) = (Vec::new(), Vec::new());
        for (value, same) in carried.iter().zip(same) {
            inputs.push(match value {
                value if *same => BodyInput::Outer(value.clone()),
                Value::Tensor(held) => {
                    let ty = self.graph().ty(held.id).map_err(wrong)?;
                    begun.push(held.id);
                    types.push((held.element, ty));
                    BodyInput::New { element: held.element, ty, first: Some(held.id) }
                }
                _ => return Ok(None),
            });
        }
        let Captured { graph, outputs, captures, assumed } = self.body(body, &inputs, same, node)?;
        let Some((cond, rest)) = outputs.split_first() else { return Ok(None) };
        let invariant =
            rest.len() >= types.len() && rest.iter().zip(&types).all(|(next, first)| next == first);
        if cond.1.dtype != DType::Bool || cond.1.shape.numel() != 1 || !invariant {
            return Ok(None);
        }
        let rows = &rest[types.len()..];
        let bytes = rows.iter().map(|(_, ty)| ty.bytes()).fold(0, usize::saturating_add);
        let by_rows = (!rows.is_empty()).then(|| (ROW_BYTES / bytes.max(1)).clamp(ROWS.0, ROWS.1));
        let max_iterations = match (by_rows, self.bindings.batch) {
            (Some(rows), Some(batch)) => Some(rows.min(batch)),
            (rows, batch) => rows.or(batch),
        };
        let body = Iterations { graph: &graph, carried: types.len(), cond: cond.1, assumed: &assumed };
        let body = body.build().and_then(SubGraph::new).map_err(wrong)?;
        let flag = Tensor::zeros(DType::Bool, cond.1.shape).map_err(wrong)?;
        let main = self.graph();
        let begin = main.constant(Tensor::scalar(true));
        let flag = main.constant(flag);
        let operands = [&[limit.id, begin, flag], begun.as_slice(), &captures, &[iteration.id]].concat();
        let op = Loop { carried: 1 + begun.len(), max_iterations, body };
        let results = main.add_op(op, &operands).map_err(wrong)?;
        let mut named = vec!["going".to_string()];
        named.extend((0..begun.len()).map(|k| format!("carried{k}")));
        named.extend((0..rows.len()).map(|r| format!("row{r}")));
        named.push("count".into());
        let elements = outputs.iter().map(|(element, _)| *element).chain([ElementType::I64]);
        let mut given = Vec::new();
        for ((id, element), name) in results.into_iter().zip(elements).zip(named) {
            let value = Value::Tensor(TensorRef { frame: 0, id, element });
            let part = self.add_output(&name, &value, &location(node))?;
            given.push((name, part));
        }
        Ok(Some(given))
    }
}

/// The body of a loop of the graph, made from that of a loop of ONNX.
struct Iterations<'a> {
    /// Takes the iteration's number, carried values and captures; makes the condition, carried values and rows.
    graph: &'a Graph,
    carried: usize,
    cond: TensorType,
    /// Values that decide shapes, and what they have to be.
    assumed: &'a [(ValueId, Tensor)],
}

impl Iterations<'_> {
    /// Takes a number, the last condition, carried values, captures and the number of the first iteration. It goes on
    /// while the condition holds and the next iteration's shapes are those of this one.
    fn build(&self) -> Result<Graph, GraphError> {
        let from = self.graph;
        let mut graph = Graph::new(from.name());
        let step = graph.input("iteration", DType::I64, Shape::SCALAR)?;
        graph.input("going", DType::Bool, self.cond.shape)?;
        let mut inputs = Vec::new();
        for (name, id) in from.inputs().skip(1) {
            let ty = from.ty(id)?;
            inputs.push(graph.input(name, ty.dtype, ty.shape)?);
        }
        let base = graph.input("first", DType::I64, Shape::SCALAR)?;
        let number = graph.add(step, base)?;
        inputs.insert(0, number);
        let made = copied(from, &mut graph, &inputs)?;
        let [cond, made @ ..] = made.as_slice() else {
            return Err(GraphError::Invalid { location: "loop".into(), problem: "no condition".into() });
        };
        let mut going = graph.reshape(*cond, &[])?;
        if !self.assumed.is_empty() {
            let one = graph.constant(Tensor::scalar(1i64));
            let mut next = inputs.clone();
            next[0] = graph.add(number, one)?;
            next[1..=self.carried].copy_from_slice(&made[..self.carried]);
            let given = from.inputs().map(|(_, id)| id).zip(next).collect();
            let ids: Vec<ValueId> = self.assumed.iter().map(|(id, _)| *id).collect();
            let holds = self.holds(&mut graph, &ids, given)?;
            going = graph.and(going, holds)?;
        }
        graph.output("0", going)?;
        for (i, value) in std::iter::once(cond).chain(made).enumerate() {
            graph.output(&(i + 1).to_string(), *value)?;
        }
        Ok(graph)
    }

    /// Whether the values that decide shapes are what they have to be for the iteration that is given.
    fn holds(
        &self,
        graph: &mut Graph,
        ids: &[ValueId],
        given: HashMap<ValueId, ValueId>,
    ) -> Result<ValueId, GraphError> {
        let nodes = ancestors(self.graph, ids);
        let values = computed(self.graph, &nodes, graph, given, ids)?;
        let values = values.ok_or_else(|| GraphError::Invalid {
            location: "loop".into(),
            problem: "a value that decides a shape has no operands".into(),
        })?;
        let mut bits = Vec::new();
        for ((_, expected), value) in self.assumed.iter().zip(values) {
            let expected = graph.constant(expected.clone());
            let differs = if graph.ty(value)?.dtype == DType::Bool {
                graph.xor(value, expected)?
            } else {
                graph.ne(value, expected)?
            };
            let flat = graph.reshape(differs, &[-1])?;
            bits.push(graph.reduce(ReduceKind::Any, flat, &[0], true)?);
        }
        let all = graph.concat(&bits, 0)?;
        let any = graph.reduce(ReduceKind::Any, all, &[0], false)?;
        graph.not(any)
    }
}

/// A graph copied into another, in which `inputs` stand for its inputs; the answer is its outputs there.
pub(crate) fn copied(from: &Graph, to: &mut Graph, inputs: &[ValueId]) -> Result<Vec<ValueId>, GraphError> {
    let lost = || GraphError::Invalid { location: "copy".into(), problem: "a value has no maker".into() };
    let mut ids: Vec<Option<ValueId>> = vec![None; from.values().len()];
    for ((_, id), new) in from.inputs().zip(inputs) {
        ids[id.index()] = Some(*new);
    }
    for (id, value) in from.ids().zip(from.values()) {
        if let Def::Const(tensor) = &value.def {
            ids[id.index()] = Some(to.constant(tensor.clone()));
        }
    }
    for node in from.nodes() {
        let operands: Option<Vec<ValueId>> = node.inputs.iter().map(|id| ids[id.index()]).collect();
        let results = to.add_named(node.name.clone(), node.op.clone(), &operands.ok_or_else(lost)?)?;
        for (old, new) in node.outputs.iter().zip(results) {
            ids[old.index()] = Some(new);
        }
    }
    from.outputs().iter().map(|o| ids[o.value.index()].ok_or_else(lost)).collect()
}
