//! Runs imported graphs node by node, stages and loops among them, as a caller of this crate does.

use std::collections::HashMap;

use olivine_cpu::CpuEvaluator;
use olivine_ir::{Def, Evaluate, Graph, Shape, Tensor, ValueId};

use super::tests::{Counts, Values};
use crate::{
    Argument, ArgumentSource, Bindings, Bound, Known, LoopCall, LoopResults, Made, Model, Outcome, Part,
    Specialised,
};

/// The last graph of a model or of a loop's iterations, and how much was known by then.
pub(super) struct Whole {
    pub(super) graph: Graph,
    pub(super) outputs: Vec<(String, Part)>,
    elements: HashMap<String, crate::ElementType>,
    pub(super) known: usize,
}

/// Runs stages and loops until the last graph is there.
pub(super) fn follow(
    model: &Model,
    of: Option<(&LoopCall, &[Made])>,
    batch: Option<usize>,
    values: &mut Values,
    counts: &mut Counts,
) -> Whole {
    let mut bindings = Bindings { batch, ..Bindings::default() };
    if of.is_none() {
        let bound = |tensor: &Tensor| Bound::Tensor { ty: tensor.ty(), value: None };
        bindings.inputs =
            model.inputs().into_iter().map(|p| (p.name.clone(), bound(&values[&p.name]))).collect();
    }
    loop {
        let outcome = match of {
            None => model.specialise(&bindings, &CpuEvaluator),
            Some((call, state)) => model.iterations(call, state, &bindings, &CpuEvaluator),
        };
        match outcome.expect("a graph") {
            Outcome::NeedsInputs(names) => {
                for (name, bound) in bindings.inputs.iter_mut().filter(|(name, _)| names.contains(name)) {
                    if let Bound::Tensor { value, .. } = bound {
                        *value = Some(values[name].clone());
                    }
                }
            }
            Outcome::Stage(stage) => {
                let mut made = outputs(&stage.graph, values, counts);
                bindings.known.push(Known::Value(made.remove("value").expect("a value")));
                bindings.stage_values.extend(stage.stage_values);
                values.extend(made);
            }
            Outcome::Loop(call) => {
                if let Some(stage) = &call.arguments {
                    let made = outputs(&stage.graph, values, counts);
                    values.extend(made);
                    bindings.stage_values.extend(&stage.stage_values);
                }
                let results = run_loop(model, &call, batch, values, counts);
                bindings.known.push(Known::Loop(results));
            }
            Outcome::Whole(Specialised { graph, outputs, elements }) => {
                let known = bindings.known.len();
                return Whole { graph, outputs, elements: elements.into_iter().collect(), known };
            }
        }
    }
}

/// A graph's outputs, node by node.
pub(super) fn outputs(graph: &Graph, values: &Values, counts: &mut Counts) -> Values {
    graph.verify().expect("a graph that verifies");
    counts.nodes = counts.nodes.max(nodes_of(graph));
    let mut known: HashMap<ValueId, Tensor> = HashMap::new();
    for (id, value) in graph.ids().zip(graph.values()) {
        if let Def::Const(tensor) = &value.def {
            known.insert(id, tensor.clone());
        }
    }
    for (name, id) in graph.inputs() {
        known.insert(id, values.get(name).unwrap_or_else(|| panic!("input `{name}` was not given")).clone());
    }
    for node in graph.nodes() {
        let operands: Vec<Tensor> = node.inputs.iter().map(|id| known[id].clone()).collect();
        let results = CpuEvaluator.evaluate(&node.op, &operands).expect("an operation that computes");
        known.extend(node.outputs.iter().copied().zip(results));
    }
    graph.outputs().iter().map(|o| (o.name.clone(), known[&o.value].clone())).collect()
}

fn nodes_of(graph: &Graph) -> usize {
    graph.nodes().iter().map(|n| 1 + n.op.bodies().iter().map(|b| nodes_of(b.graph())).sum::<usize>()).sum()
}

/// The tensors of an output.
pub(super) fn tensors(part: &Part, made: &Values) -> Vec<Tensor> {
    match part {
        Part::Tensor(name) => vec![made[name].clone()],
        Part::Sequence(parts) => parts.iter().flat_map(|part| tensors(part, made)).collect(),
        Part::Nothing => Vec::new(),
    }
}

/// Names for the tensors of a value, and what they are.
fn spread(name: &str, made: &Made, tensors: &mut impl Iterator<Item = Tensor>, values: &mut Values) {
    match made {
        Made::Tensor(..) => {
            values.insert(name.to_string(), tensors.next().expect("a tensor"));
        }
        Made::Sequence(items, _) => {
            for (i, item) in items.iter().enumerate() {
                spread(&format!("{name}[{i}]"), item, tensors, values);
            }
        }
        Made::Nothing => {}
    }
}

fn begin(model: &Model, argument: &Argument, values: &Values) -> Vec<Tensor> {
    match argument {
        Argument::Nothing => Vec::new(),
        Argument::Sequence(items, _) => items.iter().flat_map(|a| begin(model, a, values)).collect(),
        Argument::Tensor { source, .. } => vec![match source {
            ArgumentSource::Run(name) => values[name].clone(),
            ArgumentSource::Const(tensor) => tensor.clone(),
            ArgumentSource::Weight(name) => model.weight(name).expect("a weight"),
        }],
    }
}

/// What a part of a graph's outputs is; a sequence that is empty is one of what it was before.
fn kind(part: &Part, whole: &Whole, made: &Values, old: &Made) -> Made {
    match part {
        Part::Tensor(name) => Made::Tensor(made[name].ty(), whole.elements[name]),
        Part::Sequence(parts) => {
            let element = if let Made::Sequence(_, element) = old { *element } else { None };
            Made::Sequence(parts.iter().map(|p| kind(p, whole, made, &Made::Nothing)).collect(), element)
        }
        Part::Nothing => Made::Nothing,
    }
}

fn run_loop(
    model: &Model,
    call: &LoopCall,
    batch: Option<usize>,
    values: &mut Values,
    counts: &mut Counts,
) -> LoopResults {
    let scalar = |argument: &Option<Argument>| argument.as_ref().map(|a| begin(model, a, values)[0].clone());
    let most = scalar(&call.most).map_or(i64::MAX, |t| t.as_slice::<i64>().expect("an i64")[0]);
    let mut going = scalar(&call.begin).is_none_or(|t| t.to_f64()[0] != 0.0);
    let mut state: Vec<Made> = call.carried.iter().map(Argument::made).collect();
    let mut carried: Vec<Vec<Tensor>> = call.carried.iter().map(|a| begin(model, a, values)).collect();
    let mut rows: Vec<(Vec<usize>, Vec<f32>, Option<crate::ElementType>)> =
        vec![Default::default(); call.rows];
    let mut made = 0;
    while going && made < most {
        let mut inside = values.clone();
        inside.insert(call.iteration_name(), Tensor::scalar(made));
        inside.insert(call.limit_name(), Tensor::scalar(most - made));
        for (k, (kind, tensors)) in state.iter().zip(&carried).enumerate() {
            spread(&call.carried_name(k), kind, &mut tensors.iter().cloned(), &mut inside);
        }
        let whole = follow(model, Some((call, &state)), batch, &mut inside, counts);
        let out = outputs(&whole.graph, &inside, counts);
        counts.iterations += 1;
        going = out["going"].to_f64()[0] != 0.0;
        let several = out.get("count").map(|t| t.to_f64()[0] as usize);
        let mut parts = whole.outputs.iter().filter(|(name, _)| name != "going" && name != "count");
        for (k, (_, part)) in parts.by_ref().take(state.len()).enumerate() {
            state[k] = kind(part, &whole, &out, &state[k]);
            carried[k] = tensors(part, &out);
        }
        for ((name, _), (dims, numbers, element)) in parts.zip(&mut rows) {
            let row = &out[name];
            *dims = row.shape().dims()[usize::from(several.is_some())..].to_vec();
            *element = whole.elements.get(name).copied();
            let one = dims.iter().product::<usize>();
            numbers.extend(row.to_f64().iter().take(several.unwrap_or(1) * one).map(|v| *v as f32));
        }
        made += several.unwrap_or(1) as i64;
    }
    let mut names = (0..).map(|i| format!("{}.{i}", call.results));
    for ((kind, tensors), name) in state.iter().zip(&carried).zip(&mut names) {
        spread(&name, kind, &mut tensors.iter().cloned(), values);
    }
    let stacked = |(dims, numbers, element): (Vec<usize>, Vec<f32>, Option<crate::ElementType>),
                   name: String| {
        let shape = Shape::new(&[&[made as usize], dims.as_slice()].concat()).expect("a shape");
        let tensor = Tensor::new(shape, numbers).expect("as many as the shape has");
        let kind = Made::Tensor(tensor.ty(), element.expect("an element type"));
        (name, tensor, kind)
    };
    let rows = (made > 0).then(|| {
        let mut kinds = Vec::new();
        for (name, tensor, kind) in rows.into_iter().zip(names).map(|(row, name)| stacked(row, name)) {
            values.insert(name, tensor);
            kinds.push(kind);
        }
        kinds
    });
    LoopResults { carried: state, rows }
}
