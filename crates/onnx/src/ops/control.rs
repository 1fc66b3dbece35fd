//! If and Loop: in place where what they do is known, as graphs inside the graph where it is not.

use olivine_ir::op::{Compare, Loop, ScalarOp, Unary};
use olivine_ir::{DType, Def, Error as GraphError, Graph, Shape, SubGraph, Tensor, TensorType, ValueId};

use super::Entry;
use super::dynamic::counted;
use crate::element::Element;
use crate::import::{Answer, Captured, Held, NodeContext, Stop, Value};
use crate::tensor::shape_of;

pub(super) const OPERATORS: &[Entry] = &[("If", if_), ("Loop", loop_)];

/// Trips that are written out one after another at most.
pub(super) const MAX_WRITTEN_OUT: usize = 4096;

fn if_(n: &mut NodeContext<'_, '_>) -> Answer<Vec<Value>> {
    let (then_graph, else_graph) = (n.graph_attribute("then_branch")?, n.graph_attribute("else_branch")?);
    let node = n.node;
    if n.walk.is_decided(n.held(0)?) {
        let branch = if condition(n, 0)? { then_graph } else { else_graph };
        return n.walk.inline(branch, Vec::new(), node);
    }
    let branches =
        n.walk.body(then_graph, &[], node).and_then(|t| Ok((t, n.walk.body(else_graph, &[], node)?)));
    match branches {
        Ok((then_branch, else_branch)) if then_branch.outputs == else_branch.outputs => {
            let going = n.tensor(0)?;
            let outputs = then_branch.outputs.clone();
            let (then_branch, else_branch, captures) = n.built(same_inputs(then_branch, else_branch))?;
            let results = n.build(|g| g.if_(going, then_branch, else_branch, &captures))?;
            Ok(results.into_iter().zip(outputs).map(|(id, (element, _))| n.result(id, element)).collect())
        }
        // Branches of other types, or of more than tensors: which one it is has to be known.
        Ok(_) | Err(Stop::PerTrip) => {
            let branch = if condition(n, 0)? { then_graph } else { else_graph };
            n.walk.inline(branch, Vec::new(), node)
        }
        Err(Stop::Error(error)) => {
            // A branch that cannot be imported matters only if it is taken.
            let branch = if condition(n, 0)? { then_graph } else { else_graph };
            n.walk.inline(branch, Vec::new(), node).map_err(|stop| match stop {
                Stop::Error(_) => Stop::Error(error),
                other => other,
            })
        }
        Err(stop) => Err(stop),
    }
}

/// A condition that decides what the graph is.
fn condition(n: &mut NodeContext<'_, '_>, input: usize) -> Answer<bool> {
    let (held, node) = (n.held(input)?, n.node);
    if let Some(guess) = n.walk.guess(node, held) {
        return Ok(guess);
    }
    let tensor = n.fixed(input)?;
    match tensor.to_f64().as_slice() {
        [one] => {
            n.walk.remember(node, *one != 0.0);
            Ok(*one != 0.0)
        }
        _ => Err(n.wrong(format!("its condition has {} elements", tensor.shape().numel()))),
    }
}

fn loop_(n: &mut NodeContext<'_, '_>) -> Answer<Vec<Value>> {
    let body = n.graph_attribute("body")?;
    let carried: Vec<Value> = (2..n.input_count()).map(|i| n.value(i)).collect::<Answer<_>>()?;
    let most = if n.has(0) { Some(n.fixed_int(0)?.max(0) as usize) } else { None };
    let begins = !n.has(1) || !n.walk.is_decided(n.held(1)?) || condition(n, 1)?;
    let rows = body.output.len().checked_sub(carried.len() + 1);
    let rows = rows.ok_or_else(|| n.wrong("its body has fewer outputs than it carries values"))?;
    if begins && most != Some(0) {
        match as_loop(n, &carried, most, rows) {
            Ok(Some(results)) => return Ok(results),
            Ok(None) | Err(Stop::PerTrip) => {}
            Err(stop) => return Err(stop),
        }
    }
    written_out(n, carried, if begins { most } else { Some(0) }, rows)
}

/// A loop of the graph, if every trip has the same types.
fn as_loop(
    n: &mut NodeContext<'_, '_>,
    carried: &[Value],
    most: Option<usize>,
    rows: usize,
) -> Answer<Option<Vec<Value>>> {
    let (body, node) = (n.graph_attribute("body")?, n.node);
    let scalar = |dtype| TensorType::new(dtype, Shape::SCALAR);
    let mut inputs = vec![(Element::I64, scalar(DType::I64)), (Element::Bool, scalar(DType::Bool))];
    let mut begun = Vec::new();
    for value in carried {
        let Value::Tensor(held) = value else { return Ok(None) };
        let id = n.walk.local(*held)?;
        inputs.push((held.element, n.ty(id)?));
        begun.push(id);
    }
    let built = match n.walk.body(body, &inputs, node) {
        // What is wrong with the types of the first trip for all trips may be right for one after another.
        Err(Stop::Error(_)) => return Ok(None),
        built => built?,
    };
    let Some((going, outputs)) = built.outputs.split_first() else { return Ok(None) };
    let invariant = outputs.iter().zip(&inputs[2..]).all(|(next, first)| next == first);
    if going.1.dtype != DType::Bool || going.1.shape.numel() != 1 || !invariant {
        return Ok(None);
    }
    let always = goes_on_always(&built.graph);
    let begins = if n.has(1) { n.walk.is_decided(n.held(1)?) } else { true };
    let (inner, outputs) = (n.built(without_input(built.graph, 1))?, outputs.to_vec());
    let start = if n.has(1) { n.tensor(1)? } else { n.constant(Tensor::scalar(true)) };
    let run = Run { start, begun, captures: built.captures };
    let (most, exact) = match most {
        most if always && most.is_none_or(|most| most > MOST_TRIPS) => {
            return Err(n.wrong("it never ends: it has no most trips and no condition"));
        }
        Some(most) if always || most <= FEW_TRIPS => (most, always && begins),
        _ => (bound(n, &run, &inner, most.unwrap_or(usize::MAX), rows > 0)?, rows > 0),
    };
    let mut results = run.add(n, inner, most)?;
    let count = results.pop();
    if rows > 0
        && !exact
        && let Some(count) = count
    {
        // Rows of trips that were not made are cut off: how many were is a matter of the run.
        let made = counted(n, count)?;
        for id in results.iter_mut().skip(run.begun.len()) {
            let all = *id;
            *id = n.build(|g| g.narrow(all, 0, 0, made))?;
        }
    }
    Ok(Some(results.into_iter().zip(outputs).map(|(id, (element, _))| n.result(id, element)).collect()))
}

/// What a loop begins with.
struct Run {
    start: ValueId,
    begun: Vec<ValueId>,
    captures: Vec<ValueId>,
}

impl Run {
    /// Adds the loop, with no more than so many trips.
    fn add(&self, n: &mut NodeContext<'_, '_>, body: Graph, most: usize) -> Answer<Vec<ValueId>> {
        let trips = n.constant(Tensor::scalar(i64::try_from(most).unwrap_or(i64::MAX)));
        let body = n.built(SubGraph::new(body))?;
        let op = Loop { carried: self.begun.len(), max_trips: Some(most), body };
        let operands = [&[trips, self.start], self.begun.as_slice(), self.captures.as_slice()].concat();
        n.build(|g| g.add_op(op, &operands))
    }
}

/// Trips that a loop may make without a thought to how many it will.
const FEW_TRIPS: usize = 1 << 12;

/// Trips that a loop may make at most: one that goes on is taken for one that never ends.
const MOST_TRIPS: usize = 1 << 22;

/// How often a loop goes round that only its condition ends: some bound, or where there are rows the number itself.
/// Graphs need a bound of their loops' trips; it is found by running the loop alone, further every time.
fn bound(n: &mut NodeContext<'_, '_>, run: &Run, body: &Graph, most: usize, rows: bool) -> Answer<usize> {
    let keep = 1 + run.begun.len();
    let mut tried = FEW_TRIPS / 16;
    while tried < most.min(MOST_TRIPS) {
        let alone = Graph::new(body.name());
        let alone = n.built(copied_inputs(body, alone).and_then(|(g, i)| copied(body, g, &i, keep)))?;
        let mut results = run.add(n, alone, tried)?;
        let count = results.pop().ok_or_else(|| n.wrong("its trips are not counted"))?;
        let end = n.constant(Tensor::scalar(tried as i64));
        if rows {
            let made = counted(n, count)?;
            if made < tried {
                return Ok(made);
            }
        } else {
            let ended = n.add(ScalarOp::Compare(Compare::Lt), &[count, end])?;
            let held = Held { frame: n.walk.depth(), id: ended, element: Element::Bool };
            let place = n.place();
            if n.walk.fixed(held, &place)?.to_f64().first().is_some_and(|v| *v != 0.0) {
                return Ok(tried);
            }
        }
        tried = tried.saturating_mul(16);
    }
    if most <= MOST_TRIPS { Ok(most) } else { Err(n.wrong("it does not come to an end")) }
}

/// Whether a body says to go on whatever happens.
fn goes_on_always(body: &Graph) -> bool {
    let Some(first) = body.outputs().first() else { return false };
    let mut id = first.value;
    // Through what copies it.
    while let Some(node) = body.producer(id) {
        match (node.op.name(), node.inputs.as_slice()) {
            ("reshape" | "cast", [x]) => id = *x,
            _ => return false,
        }
    }
    match body.value(id).map(|v| &v.def) {
        Ok(Def::Const(tensor)) => tensor.to_f64().iter().all(|v| *v != 0.0),
        // ONNX gives the condition to the body: handed back, it is as it was.
        Ok(Def::Input { name, .. }) => name == "input_1",
        _ => false,
    }
}

/// A loop as far as it is written out.
#[derive(Clone)]
struct Trips {
    made: usize,
    /// Whether to go on.
    going: Value,
    carried: Vec<Value>,
    stacks: Vec<Vec<Held>>,
}

impl Trips {
    /// Writes out one more.
    fn next(&mut self, n: &mut NodeContext<'_, '_>) -> Answer<()> {
        if self.made == MAX_WRITTEN_OUT {
            return Err(n.wrong(format!(
                "its shapes change from trip to trip, and there are over {MAX_WRITTEN_OUT}"
            )));
        }
        let (body, node) = (n.graph_attribute("body")?, n.node);
        let number = n.constant(Tensor::scalar(self.made as i64));
        let mut arguments = vec![n.result(number, Element::I64), self.going.clone()];
        arguments.append(&mut self.carried);
        let mut results = n.walk.inline(body, arguments, node)?.into_iter();
        self.going = results.next().ok_or_else(|| n.wrong("its body has no outputs"))?;
        let all: Vec<Value> = results.collect();
        let kept = all.len().saturating_sub(self.stacks.len());
        for (stack, row) in self.stacks.iter_mut().zip(&all[kept..]) {
            let Value::Tensor(held) = row else { return Err(n.wrong("a row that it collects is no tensor")) };
            stack.push(*held);
        }
        self.carried = all[..kept].to_vec();
        self.made += 1;
        Ok(())
    }

    /// Writes out one more as it may turn out, and what was guessed for it.
    fn guessed(&mut self, n: &mut NodeContext<'_, '_>) -> Answer<Vec<(Held, bool)>> {
        let outer = n.walk.begin_guessing();
        let made = self.next(n);
        let guesses = n.walk.end_guessing(outer);
        made.map(|()| guesses)
    }

    fn condition(&self, n: &NodeContext<'_, '_>) -> Answer<Held> {
        if let Value::Tensor(held) = self.going {
            Ok(held)
        } else {
            Err(n.wrong("its condition is no tensor"))
        }
    }

    /// Goes on to where the loop ends, or as far as it can be seen: some trips more are written out with the branches
    /// taken that were taken last, and the device says of all their conditions at once how far that is what happens.
    /// The answer is whether the loop goes on from there.
    fn skip(&mut self, n: &mut NodeContext<'_, '_>, most: Option<usize>) -> Answer<bool> {
        let mut ways = vec![self.clone()];
        // What must hold, in order, and how much of it for each way; the next after that is its own condition.
        let mut checks = vec![(self.condition(n)?, true)];
        let mut needs = vec![0];
        let left = most.map_or(MOST_AHEAD, |most| most - self.made);
        let ahead = self.made.max(LEAST_AHEAD).min(left).min(MOST_AHEAD);
        while ways.len() < ahead {
            let mut way = ways[ways.len() - 1].clone();
            // A trip that the loop may never make need not be one that it could.
            let Ok(guesses) = way.guessed(n) else { break };
            let Ok(condition) = way.condition(n) else { break };
            checks.extend(guesses);
            needs.push(checks.len());
            checks.push((condition, true));
            ways.push(way);
        }
        let mut bits = Vec::with_capacity(checks.len());
        for (held, expected) in checks {
            let id = n.walk.local(held)?;
            bits.push(n.build(|g| {
                let bit = g.reshape(id, &[1])?;
                if expected { Ok(bit) } else { g.add1(ScalarOp::Unary(Unary::Not), &[bit]) }
            })?);
        }
        let id = n.build(|g| g.concat(&bits, 0))?;
        let place = n.place();
        let known = n.walk.fixed(Held { frame: n.walk.depth(), id, element: Element::Bool }, &place)?;
        let holds = known.to_f64().iter().take_while(|v| **v != 0.0).count();
        let last = needs.iter().rposition(|need| *need <= holds).unwrap_or(0);
        *self = ways.swap_remove(last);
        Ok(holds > needs[last])
    }
}

/// Trips that are written out before it is known whether they are made: as many as were made, within these.
const LEAST_AHEAD: usize = 4;
const MOST_AHEAD: usize = 512;

/// A loop's trips one after another.
fn written_out(
    n: &mut NodeContext<'_, '_>,
    carried: Vec<Value>,
    most: Option<usize>,
    rows: usize,
) -> Answer<Vec<Value>> {
    let going = if n.has(1) { n.value(1)? } else { truth(n, true) };
    let mut trips = Trips { made: 0, going, carried, stacks: vec![Vec::new(); rows] };
    while most.is_none_or(|most| trips.made < most) {
        let held = trips.condition(n)?;
        if n.walk.is_decided(held) {
            let place = n.place();
            if n.walk.fixed(held, &place)?.to_f64().first().is_none_or(|v| *v == 0.0) {
                break;
            }
            let mut way = trips.clone();
            let guesses = way.guessed(n);
            match guesses {
                Ok(guesses) if guesses.is_empty() => {
                    trips = way;
                    continue;
                }
                Ok(_) => {}
                // It asks for what it needs, or says what is wrong.
                Err(_) => {
                    trips.next(n)?;
                    continue;
                }
            }
        }
        let before = trips.made;
        if !trips.skip(n, most)? {
            break;
        }
        if trips.made == before {
            trips.next(n)?;
        }
    }
    let body = n.graph_attribute("body")?;
    let mut results = trips.carried;
    for (i, stack) in trips.stacks.into_iter().enumerate() {
        let row = match stack.first() {
            Some(first) => {
                let element = first.element;
                let ids = stack.into_iter().map(|h| n.walk.local(h)).collect::<Answer<Vec<_>>>()?;
                let id = n.build(|g| g.stack(&ids, 0))?;
                n.result(id, element)
            }
            None => no_rows(n, body.output.get(body.output.len() - rows + i))?,
        };
        results.push(row);
    }
    Ok(results)
}

/// Rows of a loop that makes no trip: their type is the declared one.
fn no_rows(n: &mut NodeContext<'_, '_>, declared: Option<&crate::proto::ValueInfoProto>) -> Answer<Value> {
    let kind = declared.map(crate::model::port).map(|p| p.kind);
    let Some(crate::model::Kind::Tensor { element, dims }) = kind else {
        return Err(n.wrong("it makes no trip, and the type of its rows is not declared"));
    };
    let mut sizes = vec![0i64];
    for dim in dims.unwrap_or_default() {
        sizes.push(if let crate::model::Dim::Fixed(size) = dim { size as i64 } else { 0 });
    }
    let shape = shape_of(&sizes).map_err(|e| n.wrong(e))?;
    let dtype = element.dtype().ok_or_else(|| n.wrong(format!("no graph holds {element}")))?;
    let empty = Tensor::zeros(dtype, shape);
    let empty = n.built(empty)?;
    let id = n.constant(empty);
    Ok(n.result(id, element))
}

fn truth(n: &mut NodeContext<'_, '_>, value: bool) -> Value {
    let id = n.constant(Tensor::scalar(value));
    n.result(id, Element::Bool)
}

/// Two branches that take the same captures.
fn same_inputs(a: Captured, b: Captured) -> Result<(Graph, Graph, Vec<ValueId>), GraphError> {
    let mut all = a.captures.clone();
    all.extend(b.captures.iter().filter(|id| !a.captures.contains(id)));
    let types = |captured: &Captured| -> Result<Vec<(ValueId, TensorType)>, GraphError> {
        let ids = captured.graph.inputs().map(|(_, id)| captured.graph.ty(id));
        captured.captures.iter().copied().zip(ids).map(|(outer, ty)| Ok((outer, ty?))).collect()
    };
    let known = [types(&a)?, types(&b)?].concat();
    let with_all = |captured: Captured| -> Result<Graph, GraphError> {
        let mut graph = Graph::new(captured.graph.name());
        let mut given = Vec::with_capacity(all.len());
        for (i, outer) in all.iter().enumerate() {
            let Some((_, ty)) = known.iter().find(|(id, _)| id == outer) else { continue };
            given.push((*outer, graph.input(&format!("capture_{i}"), ty.dtype, ty.shape)?));
        }
        let place = |outer: &ValueId| given.iter().find(|(id, _)| id == outer).map(|(_, inner)| *inner);
        let inputs: Vec<Option<ValueId>> = captured.captures.iter().map(place).collect();
        copied(&captured.graph, graph, &inputs, usize::MAX)
    };
    Ok((with_all(a)?, with_all(b)?, all.clone()))
}

/// A body without one of its inputs, which is true: ONNX hands the condition to a loop's body.
fn without_input(body: Graph, index: usize) -> Result<Graph, GraphError> {
    let mut graph = Graph::new(body.name());
    let mut inputs = Vec::new();
    for (i, (name, id)) in body.inputs().enumerate() {
        let ty = body.ty(id)?;
        inputs.push(Some(if i == index {
            graph.constant(Tensor::scalar(true))
        } else {
            graph.input(name, ty.dtype, ty.shape)?
        }));
    }
    copied(&body, graph, &inputs, usize::MAX)
}

/// Inputs of one graph declared in another.
fn copied_inputs(from: &Graph, mut to: Graph) -> Result<(Graph, Vec<Option<ValueId>>), GraphError> {
    let mut inputs = Vec::new();
    for (name, id) in from.inputs() {
        let ty = from.ty(id)?;
        inputs.push(Some(to.input(name, ty.dtype, ty.shape)?));
    }
    Ok((to, inputs))
}

/// A graph with the first of its outputs copied into another, which has its inputs already.
fn copied(
    from: &Graph,
    mut to: Graph,
    inputs: &[Option<ValueId>],
    outputs: usize,
) -> Result<Graph, GraphError> {
    let lost = || GraphError::Invalid { place: "copy".into(), problem: "a value has no maker".into() };
    let mut ids: Vec<Option<ValueId>> = vec![None; from.values().len()];
    for ((_, id), new) in from.inputs().zip(inputs) {
        ids[id.index()] = *new;
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
    for output in from.outputs().iter().take(outputs) {
        to.output(&output.name, ids[output.value.index()].ok_or_else(lost)?)?;
    }
    Ok(to)
}
