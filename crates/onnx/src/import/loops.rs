//! Loops that the caller runs: those whose shapes, or whose number of rows, only their data decide.
//!
//! An import that comes to such a loop stops with a [`LoopCall`]. The caller computes its arguments, asks for graphs of
//! its iterations ([`crate::Model::iterations`]) once its carried values are known, runs them until the loop ends and hands
//! over the results' types. A graph holds as many iterations as have the same shapes: the loop inside it ends where a
//! value that decides a shape is about to change. Only where the carried values themselves change their types is it a
//! graph of one iteration.

use std::collections::HashMap;

use olivine_ir::{Def, Error as GraphError, Tensor, TensorType, ValueId};

use super::names::{free_names, positional_inputs};
use super::walk::{Scope, Walk};
use super::{Answer, Known, Stage, Stop, TensorRef, Value};
use crate::ElementType;
use crate::error::Error;
use crate::model::{FunctionKey, function_key, location, port};
use crate::proto::{GraphProto, NodeProto, ValueInfoProto};
use crate::tensor::shape_of;
use crate::{Dim, Kind};

/// A loop for the caller to run.
#[derive(Debug)]
pub struct LoopCall {
    /// A graph that has to run first, for what the loop begins with.
    pub arguments: Option<Stage>,
    /// The most iterations, an i64 of one element, if there is a bound.
    pub most: Option<Argument>,
    /// Whether to begin, a bool of one element; if not given, yes.
    pub begin: Option<Argument>,
    /// What the first iteration takes; values that no iteration changes are not among them.
    pub carried: Vec<Argument>,
    /// How many values of its iterations are collected.
    pub rows: usize,
    /// The loop's results are inputs of later graphs: `NAME.0`, `NAME.1` and so on, carried values first.
    pub results: String,
    pub(super) captures: Vec<(String, Argument)>,
    pub(super) node: usize,
    pub(super) level: usize,
    pub(super) function: Option<FunctionKey>,
    pub(super) attributes: Vec<(String, usize)>,
}

/// A value that a loop is given.
#[derive(Clone, Debug)]
pub enum Argument {
    /// A tensor.
    Tensor {
        /// Where it is.
        source: ArgumentSource,
        /// Its type in graphs.
        ty: TensorType,
        /// Its elements.
        element: ElementType,
    },
    /// A sequence, with the type of its tensors where that is known.
    Sequence(Vec<Argument>, Option<ElementType>),
    /// An optional value that is not there.
    Nothing,
}

/// Where a loop's argument is.
#[derive(Clone, Debug)]
pub enum ArgumentSource {
    /// An input of the run, or what an earlier stage or loop left, by name.
    Run(String),
    /// Known now.
    Const(Tensor),
    /// A weight of the model, by name.
    Weight(String),
}

/// What a value turned out to be.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Made {
    /// A tensor.
    Tensor(TensorType, ElementType),
    /// A sequence, with the type of its tensors where that is known.
    Sequence(Vec<Made>, Option<ElementType>),
    /// An optional value that is not there.
    Nothing,
}

/// What a loop ended with.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct LoopResults {
    /// The carried values, as in [`LoopCall::carried`].
    pub carried: Vec<Made>,
    /// The rows that were collected, stacked; `None` if there was no iteration.
    pub rows: Option<Vec<Made>>,
}

impl LoopCall {
    /// The input of an iteration's graph that is the number of its first iteration, an i64 scalar.
    pub fn iteration_name(&self) -> String {
        format!("loop{}.iteration", self.level)
    }

    /// The input of an iteration's graph that is the most iterations it may make, an i64 scalar.
    pub fn limit_name(&self) -> String {
        format!("loop{}.limit", self.level)
    }

    /// The input of an iteration's graph that is carried value `k`; element `i` of a sequence has `[i]` after it.
    pub fn carried_name(&self, k: usize) -> String {
        format!("loop{}.carried{k}", self.level)
    }

    pub(super) fn level(&self) -> usize {
        self.level
    }
}

impl Argument {
    /// What it is.
    pub fn made(&self) -> Made {
        match self {
            Argument::Tensor { ty, element, .. } => Made::Tensor(*ty, *element),
            Argument::Sequence(items, element) => {
                Made::Sequence(items.iter().map(Argument::made).collect(), *element)
            }
            Argument::Nothing => Made::Nothing,
        }
    }
}

/// Nodes that only rename a value, one after another, that are looked through.
const MAX_RENAMES: usize = 64;

/// For every carried value of a loop whether its body hands it back as it was.
pub(crate) fn unchanged(body: &GraphProto, carried: usize) -> Vec<bool> {
    let is_rename = |n: &&NodeProto| n.op_type() == "Identity" && matches!(n.domain(), "" | "ai.onnx");
    let renames = body.node.iter().filter(is_rename);
    let sources: HashMap<&str, &str> =
        renames.filter_map(|n| Some((n.output.first()?.as_str(), n.input.first()?.as_str()))).collect();
    let inputs = positional_inputs(body, 2 + carried);
    let same = |k: usize| {
        let (Some(input), Some(output)) = (inputs.get(2 + k), body.output.get(1 + k)) else {
            return false;
        };
        let mut name = output.name();
        for _ in 0..MAX_RENAMES {
            match sources.get(name) {
                Some(source) => name = source,
                None => break,
            }
        }
        name == input.name()
    };
    (0..carried).map(same).collect()
}

impl<'m> Walk<'m> {
    /// The results of a loop that the caller runs.
    pub(crate) fn run_by_caller(
        &mut self,
        node: &'m NodeProto,
        body: &'m GraphProto,
        [most, begin]: [Option<Value>; 2],
        carried: &[Value],
    ) -> Answer<Vec<Value>> {
        if self.depth() > 0 {
            return Err(Stop::PerIteration);
        }
        let same = unchanged(body, carried.len());
        let changing: Vec<Value> =
            carried.iter().zip(&same).filter(|(_, same)| !**same).map(|(v, _)| v.clone()).collect();
        let rows = body.output.len().saturating_sub(1 + carried.len());
        let results = format!("loop{}.{}", self.level, self.taken);
        let Some(known) = self.bindings.known.get(self.taken) else {
            return Err(Stop::Loop(Box::new(self.loop_call(
                node,
                body,
                [most, begin],
                carried,
                &same,
                results,
            )?)));
        };
        let Known::Loop(made) = known else {
            return Err(Error::invalid(location(node), "a value is given for a loop's results").into());
        };
        if made.carried.len() != changing.len() || made.rows.as_ref().is_some_and(|r| r.len() != rows) {
            return Err(Error::invalid(location(node), "other results are given than the loop has").into());
        }
        self.taken += 1;
        let mut names = (0..).map(|i| format!("{results}.{i}"));
        let mut ended = Vec::new();
        for (made, name) in made.carried.iter().zip(&mut names) {
            ended.push(self.made(made, &name)?);
        }
        let mut ended = ended.into_iter();
        let mut all = Vec::with_capacity(carried.len() + rows);
        for (value, same) in carried.iter().zip(same) {
            all.push(if same { value.clone() } else { ended.next().unwrap_or(Value::Nothing) });
        }
        for (i, output) in body.output.iter().skip(1 + carried.len()).enumerate() {
            all.push(match made.rows.as_ref().and_then(|rows| rows.get(i)) {
                Some(made) => self.made(made, &names.next().unwrap_or_default())?,
                None => self.no_rows(node, output)?,
            });
        }
        Ok(all)
    }

    /// Rows of a loop without iterations: their type is the declared one.
    pub(crate) fn no_rows(&mut self, node: &NodeProto, declared: &ValueInfoProto) -> Answer<Value> {
        let wrong = |problem: String| Error::invalid(location(node), problem);
        let Kind::Tensor { element, dims } = port(declared).kind else {
            let problem = "it has no iterations, and the type of its rows is not declared".to_string();
            return Err(wrong(problem).into());
        };
        let mut sizes = vec![0i64];
        for dim in dims.unwrap_or_default() {
            sizes.push(if let Dim::Fixed(size) = dim { size as i64 } else { 0 });
        }
        let shape = shape_of(&sizes).map_err(wrong)?;
        let dtype = element.dtype().ok_or_else(|| wrong(format!("no graph holds {element}")))?;
        let empty = Tensor::zeros(dtype, shape).map_err(|e| wrong(e.to_string()))?;
        let (frame, id) = (self.depth(), self.graph().constant(empty));
        Ok(Value::Tensor(TensorRef { frame, id, element }))
    }

    fn loop_call(
        &mut self,
        node: &'m NodeProto,
        body: &'m GraphProto,
        [most, begin]: [Option<Value>; 2],
        carried: &[Value],
        same: &[bool],
        results: String,
    ) -> Answer<LoopCall> {
        let mut missing = Vec::new();
        let mut first = Vec::new();
        let mut captures = Vec::new();
        let inputs = positional_inputs(body, 2 + carried.len());
        for (k, (value, same)) in carried.iter().zip(same).enumerate() {
            let argument = self.argument_of(value, &mut missing)?;
            if *same {
                captures.push((inputs[2 + k].name().to_string(), argument));
            } else {
                first.push(argument);
            }
        }
        let mut names: Vec<&str> = free_names(body).into_iter().collect();
        names.sort_unstable();
        for name in names {
            if let Some(value) = self.resolve(name)? {
                captures.push((name.to_string(), self.argument_of(&value, &mut missing)?));
            }
        }
        let mut optional =
            |value: Option<Value>| value.map(|v| self.argument_of(&v, &mut missing)).transpose();
        let (most, begin) = (optional(most)?, optional(begin)?);
        let arguments = if missing.is_empty() {
            None
        } else {
            let places: Vec<_> = missing.iter().map(|id| (0, *id)).collect();
            Some(self.stage(&self.ancestry(&places, false)?, &[], &missing.into_iter().collect())?)
        };
        let inside = self.scopes.iter().rev().find(|s| s.opaque);
        let function =
            inside.and_then(|s| s.function).map(|f| function_key(f.domain(), f.name(), f.overload()));
        let addresses = |s: &Scope<'m>| -> Vec<(String, usize)> {
            s.attributes.iter().map(|(name, a)| (name.to_string(), std::ptr::from_ref(*a).addr())).collect()
        };
        let attributes = inside.map(addresses).unwrap_or_default();
        let (rows, level) = (body.output.len().saturating_sub(1 + carried.len()), self.level + 1);
        let node = std::ptr::from_ref(node).addr();
        let carried = first;
        Ok(LoopCall {
            arguments,
            most,
            begin,
            carried,
            rows,
            results,
            captures,
            node,
            level,
            function,
            attributes,
        })
    }

    /// A value of the main graph as an argument; one that has to be computed joins `missing`.
    fn argument_of(&self, value: &Value, missing: &mut Vec<ValueId>) -> Answer<Argument> {
        let wrong = |e: GraphError| Error::invalid("loop", e.to_string());
        Ok(match value {
            Value::Nothing => Argument::Nothing,
            Value::Sequence(items, element) => {
                let items = items.iter().map(|v| self.argument_of(v, missing)).collect::<Answer<_>>()?;
                Argument::Sequence(items, *element)
            }
            Value::Tensor(TensorRef { frame, id, element }) => {
                let value = self.frames[*frame].graph.value(*id).map_err(wrong)?;
                let source = match &value.def {
                    Def::Const(tensor) => ArgumentSource::Const(tensor.clone()),
                    Def::Param { name } => ArgumentSource::Weight(name.clone()),
                    Def::Input { name, .. } => ArgumentSource::Run(name.clone()),
                    Def::Node { .. } => match self.fixed.get(&(*frame, *id)) {
                        Some(tensor) => ArgumentSource::Const(tensor.clone()),
                        None => {
                            if !self.stage_values.contains(id) && !missing.contains(id) {
                                missing.push(*id);
                            }
                            ArgumentSource::Run(self.stage_value_name(*id))
                        }
                    },
                };
                Argument::Tensor { source, ty: value.ty, element: *element }
            }
        })
    }

    /// Declares what came of a value as inputs of the main graph.
    pub(super) fn made(&mut self, made: &Made, name: &str) -> Answer<Value> {
        Ok(match made {
            Made::Nothing => Value::Nothing,
            Made::Sequence(items, element) => {
                let items =
                    items.iter().enumerate().map(|(i, item)| self.made(item, &format!("{name}[{i}]")));
                Value::Sequence(items.collect::<Answer<_>>()?, *element)
            }
            Made::Tensor(ty, element) => {
                let id = self.frames[0].graph.input(name, ty.dtype, ty.shape);
                let id = id.map_err(|e| Error::invalid("loop", e.to_string()))?;
                Value::Tensor(TensorRef { frame: 0, id, element: *element })
            }
        })
    }
}
