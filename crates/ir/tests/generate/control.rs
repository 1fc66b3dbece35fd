//! Operations with graphs inside.

use olivine_ir::op::{If, Loop, Scan};
use olivine_ir::{DType, Error, Graph, Op, SubGraph, TensorType, ValueId};

use super::{Made, Rng, ty};

pub(crate) const MAKERS: &[fn(&mut Rng) -> Made] = &[branches, repeated, scanned];

/// A type, seldom empty.
fn some_type(rng: &mut Rng) -> TensorType {
    let dims = rng.shape(0, 3);
    ty(rng.dtype(), &dims)
}

fn types(rng: &mut Rng, most: usize) -> Vec<TensorType> {
    (0..rng.below(most + 1)).map(|_| some_type(rng)).collect()
}

/// A graph with inputs and outputs of given types; each output is an input, a constant or a node's result.
fn inner(rng: &mut Rng, inputs: &[TensorType], outputs: &[TensorType]) -> Result<SubGraph, Error> {
    let mut g = Graph::new(rng.name());
    for (i, t) in inputs.iter().enumerate() {
        g.input(&format!("{}{i}", rng.name()), t.dtype, t.shape)?;
    }
    for (i, t) in outputs.iter().enumerate() {
        let fits: Vec<ValueId> = g.ids().filter(|id| g.ty(*id) == Ok(*t)).collect();
        let x = if fits.is_empty() { g.constant(super::tensor(rng, *t)?) } else { rng.pick(&fits) };
        let y = if t.dtype != DType::Bool && rng.chance(50) { g.add(x, x)? } else { x };
        g.output(&format!("{}{i}", rng.name()), y)?;
    }
    if rng.chance(20) {
        let (op, types) = branches(rng);
        let operands = types.into_iter().map(|t| Ok(g.constant(super::tensor(rng, t)?)));
        let operands = operands.collect::<Result<Vec<ValueId>, Error>>()?;
        g.add_op(op, &operands)?;
    }
    SubGraph::new(g)
}

#[allow(clippy::panic, reason = "a defect of the generator, not of what it tests")]
fn sound(graph: Result<SubGraph, Error>) -> SubGraph {
    graph.unwrap_or_else(|e| panic!("the generator made an invalid inner graph: {e}"))
}

fn one(rng: &mut Rng, dtype: DType) -> TensorType {
    let rank = rng.below(3);
    ty(dtype, &[1, 1][..rank])
}

fn branches(rng: &mut Rng) -> Made {
    let captures = types(rng, 2);
    let mut outputs = types(rng, 2);
    outputs.push(some_type(rng));
    let op = If {
        then_branch: sound(inner(rng, &captures, &outputs)),
        else_branch: sound(inner(rng, &captures, &outputs)),
    };
    (Op::If(op), [vec![one(rng, DType::Bool)], captures].concat())
}

fn repeated(rng: &mut Rng) -> Made {
    let (carried, captures) = (types(rng, 2), types(rng, 1));
    let max_iterations = rng.chance(70).then(|| rng.below(5));
    let rows = if max_iterations.is_some() { types(rng, 2) } else { Vec::new() };
    let inputs = [vec![ty(DType::I64, &[])], carried.clone(), captures.clone()].concat();
    let outputs = [vec![one(rng, DType::Bool)], carried.clone(), rows].concat();
    let op = Loop { carried: carried.len(), max_iterations, body: sound(inner(rng, &inputs, &outputs)) };
    let operands = [vec![one(rng, DType::I64), one(rng, DType::Bool)], carried, captures].concat();
    (Op::Loop(op), operands)
}

fn scanned(rng: &mut Rng) -> Made {
    let (states, captures) = (types(rng, 2), types(rng, 1));
    let slices: Vec<TensorType> = [types(rng, 1), vec![some_type(rng)]].concat();
    let mut rows = types(rng, 1);
    rows.push(some_type(rng));
    let trips = rng.size();
    let axes: Vec<usize> = slices.iter().map(|t| rng.below(t.shape.rank() + 1)).collect();
    let sliced = slices.iter().zip(&axes).map(|(t, axis)| {
        let mut dims = t.shape.to_vec();
        dims.insert(*axis, trips);
        ty(t.dtype, &dims)
    });
    let operands = [states.clone(), sliced.collect(), captures.clone()].concat();
    let inputs = [states.clone(), slices, captures].concat();
    let outputs = [states.clone(), rows.clone()].concat();
    let given = rng.chance(50);
    let op = Scan {
        states: states.len(),
        reverse: if rng.chance(50) { axes.iter().map(|_| rng.chance(50)).collect() } else { Vec::new() },
        axes,
        out_axes: rows.iter().filter(|_| given).map(|t| rng.below(t.shape.rank() + 1)).collect(),
        out_reverse: rows.iter().filter(|_| given).map(|_| rng.chance(50)).collect(),
        body: sound(inner(rng, &inputs, &outputs)),
    };
    (Op::Scan(op), operands)
}
