//! States that grow: an output that is its input with more behind it, appended in memory with room instead of copied.
//!
//! ```text
//!   past [b, s, d] ─┐                         cache [b, capacity, d] ─┐
//!         new rows ─┴─ concat ─ present                     new rows ─┴─ slice_scatter at s ─┬─ cache
//!                                                                                            └─ slice 0..s+n ─ readers
//! ```
//!
//! The cache keeps its memory from run to run, so that a run writes the new rows alone.

use olivine_ir::op::{Slice, SliceScatter};
use olivine_ir::{DType, Def, Dim, Error, Graph, Node, NodeId, Op, ValueId};

use crate::rewrite::Rewriter;

/// A state that grows.
#[derive(Clone, Debug)]
pub struct Growing {
    /// Position of the input.
    pub input: usize,
    /// Position of the output.
    pub output: usize,
    /// The axis that it grows along.
    pub axis: usize,
    /// Its size before a run.
    pub before: Dim,
    /// Its size after it.
    pub after: Dim,
    node: NodeId,
}

/// The states that grow among pairs of an input and an output, by name.
///
/// A state grows if its output is a concat that begins with its input along an axis of open size. What else reads the
/// input must come after the concat, where the rows can be read from its result.
pub fn growing_states(graph: &Graph, states: &[(String, String)]) -> Vec<Growing> {
    states.iter().filter_map(|(input, output)| growing_state(graph, input, output)).collect()
}

fn growing_state(graph: &Graph, input: &str, output: &str) -> Option<Growing> {
    let (at, (_, past)) = graph.inputs().enumerate().find(|(_, (name, _))| *name == input)?;
    let to = graph.outputs().iter().position(|o| o.name == output)?;
    let present = graph.outputs()[to].value;
    let Def::Node { node, .. } = graph.values()[present.index()].def else { return None };
    let made = &graph.nodes()[node.index()];
    let Op::Concat(concat) = &made.op else { return None };
    let ty = graph.values()[past.index()].ty;
    let first = made.inputs.first() == Some(&past) && !made.inputs[1..].contains(&past);
    let reads = |n: &Node| n.inputs.contains(&past);
    let early = graph.nodes()[..node.index()].iter().any(reads);
    let given_back = graph.outputs().iter().any(|o| o.value == past);
    let before = ty.shape.size(concat.axis);
    // Bools are no plain bytes in every engine.
    let fits = first && made.inputs.len() > 1 && !early && !given_back && ty.dtype != DType::Bool;
    (fits && before.as_symbol().is_some()).then(|| Growing {
        input: at,
        output: to,
        axis: concat.axis,
        before,
        after: graph.values()[present.index()].ty.shape.size(concat.axis),
        node,
    })
}

/// The graph with caches of given capacities in place of the states' inputs and outputs. A capacity must be larger than
/// the state after the run.
pub fn append_in_place(graph: &Graph, states: &[Growing], capacities: &[Dim]) -> Result<Graph, Error> {
    let inputs: Vec<ValueId> = graph.inputs().map(|(_, id)| id).collect();
    let capacity_of = |id: ValueId| {
        let at = states.iter().position(|state| inputs.get(state.input) == Some(&id))?;
        Some((states[at].axis, *capacities.get(at)?))
    };
    let mut out = Rewriter::with_capacities(graph, capacity_of)?;
    let mut caches = vec![None; graph.outputs().len()];
    for (i, node) in graph.nodes().iter().enumerate() {
        out.new.set_scope_of(&node.name);
        let Some(state) = states.iter().find(|state| state.node.index() == i) else {
            out.copy(node)?;
            continue;
        };
        let (past, axis) = (inputs[state.input], state.axis);
        let rows = node.inputs[1..].iter().map(|id| out.get(*id)).collect::<Result<Vec<_>, _>>()?;
        let rows = match rows.as_slice() {
            [rows] => *rows,
            several => out.new.concat(several, axis as isize)?,
        };
        let cache = out.get(past)?;
        let op: Op = SliceScatter { axis, start: state.before }.into();
        let added = out.new.add_named(node.name.clone(), op, &[cache, rows])?;
        let Some(cache) = added.first().copied() else { continue };
        caches[state.output] = Some(cache);
        let until =
            |end: Dim| Slice { axes: vec![axis], starts: vec![Dim::ZERO], ends: vec![end], steps: vec![1] };
        let present = out.new.add1(until(state.after), &[cache])?;
        out.bind(node.outputs[0], present);
        if graph.nodes()[i + 1..].iter().any(|n| n.inputs.contains(&past)) {
            let before = out.new.add1(until(state.before), &[cache])?;
            out.bind(past, before);
        }
    }
    out.finish_with(|output| caches[output])
}

#[cfg(test)]
mod tests {
    use olivine_ir::Shape;

    use super::*;

    fn decoder(reads_past_first: bool) -> Result<Graph, Error> {
        let mut g = Graph::new("decoder");
        let open = |name: &str| Some(name.to_string());
        let past = g.input_with_dims("past", DType::F32, [2, 3, 4], vec![None, open("s"), None])?;
        let x = g.input_with_dims("x", DType::F32, [2, 1, 4], vec![None, open("n"), None])?;
        if reads_past_first {
            let y = g.relu(past)?;
            g.output("early", y)?;
        }
        let present = g.concat(&[past, x], 1)?;
        let y = g.exp(present)?;
        g.output("present", present)?;
        g.output("y", y)?;
        let late = g.neg(past)?;
        g.output("late", late)?;
        let sizes = [("past", Shape::new(&[2, 3, 4])?), ("x", Shape::new(&[2, 1, 4])?)];
        g.specialise_symbolic(&sizes)
    }

    fn pairs() -> Vec<(String, String)> {
        vec![("past".into(), "present".into())]
    }

    #[test]
    fn a_concat_onto_a_state_writes_the_new_rows_alone() -> Result<(), Box<dyn std::error::Error>> {
        let g = decoder(false)?;
        let states = growing_states(&g, &pairs());
        assert_eq!(states.len(), 1);
        assert_eq!((states[0].before.to_string(), states[0].after.to_string()), ("s".into(), "n + s".into()));
        let capacity = olivine_ir::open_symbol("s.capacity")?.with_value(64)?;
        let appended = append_in_place(&g, &states, &[capacity])?;
        appended.verify()?;
        let ops: Vec<&str> = appended.nodes().iter().map(|n| n.op.name()).collect();
        assert_eq!(ops, ["slice_scatter", "slice", "slice", "exp", "neg"]);
        let present = appended.output_named("present")?;
        assert_eq!(appended.ty(present)?.to_string(), "f32[2, s.capacity, 4]");
        assert_eq!(appended.ty(appended.output_named("y")?)?.to_string(), "f32[2, n + s, 4]");
        assert_eq!(appended.ty(appended.output_named("late")?)?.to_string(), "f32[2, s, 4]");
        Ok(())
    }

    #[test]
    fn a_state_that_is_read_before_it_grows_is_left_alone() -> Result<(), Error> {
        assert!(growing_states(&decoder(true)?, &pairs()).is_empty());
        Ok(())
    }

    #[test]
    fn a_state_of_fixed_size_does_not_grow() -> Result<(), Error> {
        let mut g = Graph::new("g");
        let past = g.input("past", DType::F32, [2, 3])?;
        let x = g.input("x", DType::F32, [2, 1])?;
        let present = g.concat(&[past, x], 1)?;
        g.output("present", present)?;
        assert!(growing_states(&g, &pairs()).is_empty());
        Ok(())
    }
}
