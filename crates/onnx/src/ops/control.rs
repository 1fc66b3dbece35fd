//! If and Loop: in place where what they do is known, as graphs inside the graph where it is not; loops whose shapes or
//! rows only their data decide are the caller's to run.

use olivine_ir::op::Loop;
use olivine_ir::{DType, Def, Error as GraphError, Graph, Shape, SubGraph, Tensor, TensorType, ValueId};

use super::Entry;
use super::arity::{ANY, Takes};
use crate::ElementType;
use crate::import::{Answer, BodyInput, Captured, NodeContext, Stop, Value, copied, unchanged};

pub(super) const OPERATORS: &[Entry] = &[("If", Takes(1, ANY), if_), ("Loop", Takes(ANY, ANY), loop_)];

/// Iterations that a graph inside the graph may hold of a loop that its data end, where a device records all of them.
const MOST_RECORDED: usize = 1 << 12;

/// Iterations of a loop that nothing but its bound ends: one of more is taken for one that never ends.
const MOST_ITERATIONS: usize = 1 << 22;

fn if_(n: &mut NodeContext<'_, '_>) -> Answer<Vec<Value>> {
    let (then_graph, else_graph) = (n.graph_attribute("then_branch")?, n.graph_attribute("else_branch")?);
    let node = n.node;
    if n.walk.is_decided(n.tensor_ref(0)?) {
        let branch = if condition(n, 0)? { then_graph } else { else_graph };
        return n.walk.inline(branch, Vec::new(), node);
    }
    let branches = n
        .walk
        .body(then_graph, &[], &[], node)
        .and_then(|t| Ok((t, n.walk.body(else_graph, &[], &[], node)?)));
    let repeats = n.walk.is_repeated();
    let branches = branches.map(|(a, b)| (joint_outputs(&a.outputs, &b.outputs, repeats), a, b));
    match branches {
        Ok((Some(outputs), then_branch, else_branch)) => {
            let going = n.tensor(0)?;
            let (then_branch, else_branch, captures) =
                n.built(same_inputs(then_branch, else_branch, &outputs))?;
            let results = n.build(|g| g.if_(going, then_branch, else_branch, &captures))?;
            Ok(results.into_iter().zip(outputs).map(|(id, (element, _))| n.result(id, element)).collect())
        }
        // Branches of other types, or of more than tensors: which one it is has to be known.
        Ok(_) | Err(Stop::PerIteration) => {
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
    let tensor = n.fixed(input)?;
    match tensor.to_f64().as_slice() {
        [one] => Ok(*one != 0.0),
        _ => Err(n.wrong(format!("its condition has {} elements", tensor.shape().numel()))),
    }
}

fn loop_(n: &mut NodeContext<'_, '_>) -> Answer<Vec<Value>> {
    let (body, node) = (n.graph_attribute("body")?, n.node);
    let carried: Vec<Value> = (2..n.input_count()).map(|i| n.value(i)).collect::<Answer<_>>()?;
    let rows = body.output.len().checked_sub(carried.len() + 1);
    let rows = rows.ok_or_else(|| n.wrong("its body has fewer outputs than it carries values"))?;
    let bound = match n.has(0) {
        false => Bound::None,
        true if n.walk.is_decided(n.tensor_ref(0)?) => Bound::Known(n.fixed_int(0)?.max(0) as usize),
        true => Bound::AtRun,
    };
    let begins = match n.has(1) {
        false => Some(true),
        true if n.walk.is_decided(n.tensor_ref(1)?) => Some(condition(n, 1)?),
        true => None,
    };
    if begins == Some(false) || matches!(bound, Bound::Known(0)) {
        let mut results = carried;
        for declared in body.output.iter().skip(body.output.len() - rows) {
            results.push(n.walk.no_rows(node, declared)?);
        }
        return Ok(results);
    }
    match in_graph(n, &carried, bound, begins == Some(true), rows) {
        Ok(Some(results)) => return Ok(results),
        Ok(None) | Err(Stop::PerIteration) => {}
        Err(stop) => return Err(stop),
    }
    let mut limits = [None, None];
    for (i, limit) in limits.iter_mut().enumerate().filter(|(i, _)| n.has(*i)) {
        *limit = Some(n.value(i)?);
    }
    n.walk.run_by_caller(node, body, limits, &carried)
}

/// What is known of the most iterations of a loop.
#[derive(Clone, Copy, PartialEq)]
enum Bound {
    None,
    Known(usize),
    /// It is computed when the model runs.
    AtRun,
}

/// A loop of the graph, if every iteration has the same types and the graph can hold all of them.
fn in_graph(
    n: &mut NodeContext<'_, '_>,
    carried: &[Value],
    bound: Bound,
    begins: bool,
    rows: usize,
) -> Answer<Option<Vec<Value>>> {
    let (body, node) = (n.graph_attribute("body")?, n.node);
    let same = unchanged(body, carried.len());
    let scalar = TensorType::new(DType::I64, Shape::SCALAR);
    let always = n.constant(Tensor::scalar(true));
    let mut inputs = vec![
        BodyInput::New { element: ElementType::I64, ty: scalar, first: None },
        BodyInput::Outer(n.result(always, ElementType::Bool)),
    ];
    let (mut begun, mut types) = (Vec::new(), Vec::new());
    for (value, same) in carried.iter().zip(&same) {
        inputs.push(match value {
            value if *same => BodyInput::Outer(value.clone()),
            Value::Tensor(held) => {
                let id = n.walk.local(*held)?;
                let (element, ty) = (held.element, n.ty(id)?);
                begun.push(id);
                types.push((element, ty));
                BodyInput::New { element, ty, first: None }
            }
            _ => return Ok(None),
        });
    }
    let built = match n.walk.body(body, &inputs, &same, node) {
        // What is wrong with the types of the first iteration for all of them may be right for one after another.
        Err(Stop::Error(_)) => return Ok(None),
        built => built?,
    };
    let Some((going, outputs)) = built.outputs.split_first() else { return Ok(None) };
    let invariant = outputs.iter().zip(&types).all(|(next, first)| next == first);
    if going.1.dtype != DType::Bool || going.1.shape.numel() != 1 || !invariant {
        return Ok(None);
    }
    let goes_on = goes_on_always(&built.graph);
    if goes_on && (bound == Bound::None || matches!(bound, Bound::Known(most) if most > MOST_ITERATIONS)) {
        return Err(n.wrong("it never ends: it has no bound of its iterations and no condition"));
    }
    let max_iterations = match (bound, n.walk.batch()) {
        (Bound::Known(most), _) if goes_on && begins => Some(most),
        // How many rows there are is for the caller to find out.
        _ if rows > 0 => return Ok(None),
        (Bound::Known(most), None) => Some(most),
        (Bound::Known(most), Some(batch)) if most <= batch => Some(most),
        (Bound::Known(most), Some(_)) if n.walk.depth() > 0 && most <= MOST_RECORDED => Some(most),
        (_, None) => None,
        (_, Some(_)) => return Ok(None),
    };
    let outputs = outputs.to_vec();
    let iterations = match bound {
        Bound::AtRun => n.tensor(0)?,
        Bound::Known(most) => n.constant(Tensor::scalar(i64::try_from(most).unwrap_or(i64::MAX))),
        Bound::None => n.constant(Tensor::scalar(i64::MAX)),
    };
    let start = if n.has(1) { n.tensor(1)? } else { always };
    let body = n.built(SubGraph::new(built.graph))?;
    let operands = [&[iterations, start], begun.as_slice(), built.captures.as_slice()].concat();
    let results = n.build(|g| g.add_op(Loop { carried: begun.len(), max_iterations, body }, &operands))?;
    let mut results = results.into_iter().zip(outputs).map(|(id, (element, _))| n.result(id, element));
    let mut all = Vec::with_capacity(carried.len() + rows);
    for (value, same) in carried.iter().zip(same) {
        all.extend(if same { Some(value.clone()) } else { results.next() });
    }
    all.extend(results);
    Ok(Some(all))
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
        _ => false,
    }
}

/// The types that both branches' outputs have. In iterations of a loop one element is one element, however many axes of
/// size 1 it has: which branch it comes from may change from one to the next, and the result has the more axes.
fn joint_outputs(
    a: &[(ElementType, TensorType)],
    b: &[(ElementType, TensorType)],
    repeats: bool,
) -> Option<Vec<(ElementType, TensorType)>> {
    let joint = |(a, b): (&(ElementType, TensorType), &(ElementType, TensorType))| {
        let one = a.0 == b.0 && a.1.shape.numel() == 1 && b.1.shape.numel() == 1;
        match a == b {
            true => Some(*a),
            false if repeats && one => Some(if a.1.shape.rank() > b.1.shape.rank() { *a } else { *b }),
            false => None,
        }
    };
    if a.len() == b.len() { a.iter().zip(b).map(joint).collect() } else { None }
}

/// Two branches that take the same captures, with outputs of these types.
fn same_inputs(
    a: Captured,
    b: Captured,
    types: &[(ElementType, TensorType)],
) -> Result<(Graph, Graph, Vec<ValueId>), GraphError> {
    let mut all = a.captures.clone();
    all.extend(b.captures.iter().filter(|id| !a.captures.contains(id)));
    let given_types = |captured: &Captured| -> Result<Vec<(ValueId, TensorType)>, GraphError> {
        let ids = captured.graph.inputs().map(|(_, id)| captured.graph.ty(id));
        captured.captures.iter().copied().zip(ids).map(|(outer, ty)| Ok((outer, ty?))).collect()
    };
    let known = [given_types(&a)?, given_types(&b)?].concat();
    let with_all = |captured: Captured| -> Result<Graph, GraphError> {
        let mut graph = Graph::new(captured.graph.name());
        let mut given = Vec::with_capacity(all.len());
        for (i, outer) in all.iter().enumerate() {
            let Some((_, ty)) = known.iter().find(|(id, _)| id == outer) else { continue };
            given.push((*outer, graph.input(&format!("capture_{i}"), ty.dtype, ty.shape)?));
        }
        let place = |outer: &ValueId| given.iter().find(|(id, _)| id == outer).map(|(_, inner)| *inner);
        let inputs: Vec<ValueId> = captured.captures.iter().filter_map(place).collect();
        let outputs = copied(&captured.graph, &mut graph, &inputs)?;
        for ((output, mut id), (_, ty)) in captured.graph.outputs().iter().zip(outputs).zip(types) {
            if graph.ty(id)?.shape != ty.shape {
                let dims: Vec<i64> = ty.shape.iter().map(|size| *size as i64).collect();
                id = graph.reshape(id, &dims)?;
            }
            graph.output(&output.name, id)?;
        }
        Ok(graph)
    };
    Ok((with_all(a)?, with_all(b)?, all.clone()))
}
