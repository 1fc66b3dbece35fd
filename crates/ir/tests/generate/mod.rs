//! Random valid graphs that hold every operation; shared by the tests and by the `fuzz` example.
#![allow(dead_code, reason = "each user takes a part")]

mod control;
mod elementwise;
mod generation;
mod heavy;
mod movement;
mod rng;
mod signal;
mod state_space;

use olivine_ir::{DType, Data, Error, Graph, Op, Shape, Tensor, TensorType, ValueId};

pub(crate) use rng::Rng;

/// An operation and operand types that it accepts.
pub(crate) type Made = (Op, Vec<TensorType>);

/// One maker per attribute struct.
pub(crate) fn makers() -> Vec<fn(&mut Rng) -> Made> {
    [
        elementwise::MAKERS,
        heavy::MAKERS,
        movement::MAKERS,
        generation::MAKERS,
        control::MAKERS,
        signal::MAKERS,
        state_space::MAKERS,
    ]
    .concat()
}

/// Any operation with operands that it accepts.
pub(crate) fn op(rng: &mut Rng) -> Made {
    let makers = makers();
    makers[rng.below(makers.len())](rng)
}

/// A type of sizes that are known to be small.
pub(crate) fn ty(dtype: DType, dims: &[usize]) -> TensorType {
    TensorType::new(dtype, Shape::new(dims).unwrap_or_default())
}

/// A graph of a few nodes.
pub(crate) fn graph(rng: &mut Rng) -> Result<Graph, Error> {
    let mut g = Graph::new(rng.name());
    for _ in 0..=rng.below(5) {
        let made = op(rng);
        add(&mut g, rng, made)?;
    }
    let ids: Vec<ValueId> = g.ids().collect();
    for i in 0..rng.below(3) {
        let name = format!("{}{i}", rng.name());
        g.output(&name, rng.pick(&ids))?;
    }
    Ok(g)
}

/// Adds one operation on values made or found for it.
pub(crate) fn add(g: &mut Graph, rng: &mut Rng, (op, types): Made) -> Result<Vec<ValueId>, Error> {
    let operands = types.into_iter().map(|t| value(g, rng, t)).collect::<Result<Vec<_>, _>>()?;
    if rng.chance(50) { g.add_op(op, &operands) } else { g.add_named(rng.name(), op, &operands) }
}

/// A value of a type: one that is there, or a new input, param or constant.
fn value(g: &mut Graph, rng: &mut Rng, ty: TensorType) -> Result<ValueId, Error> {
    let there: Vec<ValueId> = g.ids().filter(|id| g.ty(*id) == Ok(ty)).collect();
    if !there.is_empty() && rng.chance(60) {
        return Ok(rng.pick(&there));
    }
    let name = format!("{}{}", rng.name(), g.values().len());
    Ok(match rng.below(3) {
        0 if ty.packed.is_none() => {
            // The size is part of the name, so that axes of one name agree.
            let dims =
                ty.shape.iter().map(|d| rng.chance(30).then(|| format!("{}{d}", rng.pick(&["n", "ü ", ""]))));
            let dims = dims.collect();
            g.input_with_dims(&name, ty.dtype, ty.shape, dims)?
        }
        1 => g.param_of(&name, ty)?,
        _ => g.constant(tensor(rng, ty)?),
    })
}

/// Random bits; zeros for index dtypes, which are in range for every indexed axis that is not empty.
pub(crate) fn tensor(rng: &mut Rng, ty: TensorType) -> Result<Tensor, Error> {
    let wild = !ty.dtype.is_index() && rng.chance(80);
    let bytes: Vec<u8> = (0..ty.bytes())
        .map(|_| match ty.dtype {
            _ if !wild => 0,
            DType::Bool => rng.below(2) as u8,
            _ => rng.next() as u8,
        })
        .collect();
    let tensor = Tensor::from_data(ty.shape, Data::from_bytes(ty.dtype, &bytes)?)?;
    match ty.packed {
        Some(format) => tensor.into_packed(format),
        None => Ok(tensor),
    }
}
