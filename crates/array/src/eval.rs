//! Evaluation: operations that wait become one graph, which runs.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use olivine::Input;

use crate::flight::Flight;
use crate::node::{Node, Value, Work};
use crate::outline::{Outline, input_name};
use crate::{Context, Error};

/// Submits one graph that computes nodes; those that are computed already are left alone. What they need and is not
/// computed is computed in the same graph.
pub(crate) fn evaluate(context: &Context, nodes: &[Arc<Node>]) -> Result<(), Error> {
    let wanted: Vec<&Arc<Node>> = nodes.iter().filter(|node| node.is_lazy()).collect();
    if wanted.is_empty() {
        return Ok(());
    }
    let order = in_order(&wanted);
    let results = materialised(&order, &wanted);
    let outline = Outline::new(&order, &results)?;
    let flight = context.with_memory(|| launch(context, &outline))?;
    let mut output = 0;
    for node in &results {
        let mut values = Vec::with_capacity(node.types().len());
        for _ in node.types() {
            values.push(if context.outputs_at_once() {
                Value::Device(flight.take(output)?, Some(flight.clone()))
            } else {
                Value::Flying(flight.clone(), output)
            });
            output += 1;
        }
        node.settle(values);
    }
    context.launched(flight);
    Ok(())
}

/// How many operations wait up to a node, itself included.
pub(crate) fn count_waiting(node: &Arc<Node>) -> usize {
    in_order(&[node]).len()
}

/// All nodes that wait and are needed for others, each after its operands. It keeps a stack of its own: chains may be long.
fn in_order(wanted: &[&Arc<Node>]) -> Vec<(Arc<Node>, Arc<Work>)> {
    let mut order = Vec::new();
    let mut met: HashSet<*const Node> = HashSet::new();
    let mut stack: Vec<(Arc<Node>, Arc<Work>, usize)> = Vec::new();
    for node in wanted {
        visit(node, &mut met, &mut stack);
        while let Some((node, work, next)) = stack.pop() {
            match work.inputs.get(next) {
                Some((operand, _)) => {
                    let operand = operand.clone();
                    stack.push((node, work, next + 1));
                    visit(&operand, &mut met, &mut stack);
                }
                None => order.push((node, work)),
            }
        }
    }
    order
}

fn visit(node: &Arc<Node>, met: &mut HashSet<*const Node>, stack: &mut Vec<(Arc<Node>, Arc<Work>, usize)>) {
    if met.insert(Arc::as_ptr(node))
        && let Some(work) = node.work()
    {
        stack.push((node.clone(), work, 0));
    }
}

/// The nodes whose results are kept: those that are wanted, and those that an earlier evaluation computed on its way and
/// this one needs for something new. Nothing is computed more than twice, and what is kept depends on nothing but the
/// operations, so that the same program has the same graphs each time.
fn materialised(order: &[(Arc<Node>, Arc<Work>)], wanted: &[&Arc<Node>]) -> Vec<Arc<Node>> {
    let passed: HashMap<*const Node, bool> =
        order.iter().map(|(node, _)| (Arc::as_ptr(node), node.pass())).collect();
    let was_passed = |node: &Arc<Node>| passed.get(&Arc::as_ptr(node)).copied().unwrap_or(false);
    let mut kept: Vec<Arc<Node>> = Vec::new();
    let mut known: HashSet<*const Node> = HashSet::new();
    let mut keep = |node: &Arc<Node>| {
        if known.insert(Arc::as_ptr(node)) {
            kept.push(node.clone());
        }
    };
    for (node, work) in order {
        if !was_passed(node) {
            work.inputs.iter().map(|(operand, _)| operand).filter(|o| was_passed(o)).for_each(&mut keep);
        }
    }
    wanted.iter().for_each(|node| keep(node));
    kept
}

/// Runs the graph of an outline on what its inputs hold.
fn launch(context: &Context, outline: &Outline<'_>) -> Result<Arc<Flight>, Error> {
    let executable = context.executable(outline)?;
    let mut values = Vec::with_capacity(outline.inputs().len());
    for (node, result) in outline.inputs() {
        if context.outputs_at_once() {
            node.bring(*result, |tensor| Ok(context.session().upload(tensor)?))?;
        }
        values.push(match node.tensor(*result)? {
            Some(tensor) => Value::Device(tensor, None),
            None => node.value(*result).ok_or_else(|| Error::bad("an operand was not computed"))?,
        });
    }
    let names: Vec<String> = (0..values.len()).map(input_name).collect();
    let mut inputs: Vec<(&str, Input<'_>)> = Vec::with_capacity(values.len());
    for (name, value) in names.iter().zip(&values) {
        match value {
            Value::Host(tensor) => inputs.push((name.as_str(), tensor.into())),
            Value::Device(tensor, _) => inputs.push((name.as_str(), tensor.into())),
            Value::Flying(..) => {}
        }
    }
    let run = executable.submit_resident(inputs)?;
    Ok(Arc::new(Flight::new(run, context.outputs_at_once())?))
}
