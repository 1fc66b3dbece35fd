//! Recurrent layers: one matmul of all steps' inputs with the weights of all gates and directions, then the
//! recurrence that is left.
//!
//! Biases join the matmul where they may, which is once, at load, where they are params. State is carried in f32 where
//! the dtype is narrower, and so are the matmuls.

use olivine_ir::op::{Recurrence, Recurrent};
use olivine_ir::{DType, Dim, Error, Graph, Shape, Tensor, ValueId};

use super::{Composite, cast, reshape, transpose};

impl Composite for Recurrent {
    fn decompose(&self, g: &mut Graph, x: &[ValueId], _: Shape) -> Result<Vec<ValueId>, Error> {
        layer(g, self, x)
    }
}

/// The results of a layer: y, then the final states.
fn layer(g: &mut Graph, op: &Recurrent, x: &[ValueId]) -> Result<Vec<ValueId>, Error> {
    let [input, w, r, ..] = x else {
        return Err(Error::Invalid { location: op.kind.name().into(), problem: "too few operands".into() });
    };
    let at = op.optional_operands();
    let given = |i: Option<usize>| i.and_then(|i| x.get(i)).copied();
    let (dims, dtype) = (g.ty(*input)?.shape.sizes(), g.ty(*input)?.dtype);
    let hidden = g.ty(*r)?.shape[2];
    let (dirs, gates) = (op.direction.count(), op.kind.gates());
    let (sequence, batch) = if op.batch_first { (dims[1], dims[0]) } else { (dims[0], dims[1]) };
    let state = [dirs.into(), batch, hidden.into()];
    let wide = Recurrence::state_dtype(dtype);

    let mut initial = Vec::new();
    for id in [given(at.initial_h), given(at.initial_c)] {
        let by_direction =
            |g: &mut Graph, id| if op.batch_first { transpose(g, id, &[1, 0, 2]) } else { Ok(id) };
        initial.push(id.map(|id| by_direction(g, id)).transpose()?);
    }
    if sequence == 0 || batch == 0 || hidden == 0 {
        return without_steps(g, op, *input, [sequence, batch, hidden.into()], &initial);
    }

    let columns = dirs * gates * hidden;
    let rows = reshape(g, *input, &[sequence * batch, dims[2]])?;
    let weights = reshape(g, *w, &[columns.into(), dims[2]])?;
    let matmul = g.matmul_nt(rows, weights)?;
    let mut projections = cast(g, matmul, wide)?;
    let mut held_back = None;
    if let Some(bias) = given(at.bias) {
        let (joined, rest) = biases(g, op, bias, hidden, wide)?;
        projections = g.add(projections, joined)?;
        held_back = rest;
    }
    let projections = reshape(g, projections, &[dims[0], dims[1], columns.into()])?;

    let mut operands = vec![projections, *r];
    let wide_of = |g: &mut Graph, id: Option<ValueId>| id.map(|id| cast(g, id, wide)).transpose();
    operands.extend(held_back);
    operands.extend(given(at.lengths));
    operands.extend(wide_of(g, initial[0])?);
    operands.extend(wide_of(g, initial[1])?);
    operands.extend(wide_of(g, given(at.peepholes))?);
    let mut results = g.add_op(Recurrence { of: op.clone() }, &operands)?;
    if let Some(y) = results.first_mut().filter(|_| !op.batch_first) {
        *y = if dirs == 1 {
            reshape(g, *y, &[sequence, dirs.into(), batch, hidden.into()])?
        } else {
            transpose(g, *y, &[0, 2, 1, 3])?
        };
    }
    for id in results.iter_mut().skip(1) {
        *id = final_state(g, op, *id, state, dtype)?;
    }
    Ok(results)
}

/// A state of the recurrence as the layer gives it.
fn final_state(
    g: &mut Graph,
    op: &Recurrent,
    id: ValueId,
    [dirs, batch, hidden]: [Dim; 3],
    dtype: DType,
) -> Result<ValueId, Error> {
    let narrow = cast(g, id, dtype)?;
    match (op.batch_first, op.direction.count()) {
        (false, _) => Ok(narrow),
        (true, 1) => reshape(g, narrow, &[batch, dirs, hidden]),
        (true, _) => transpose(g, narrow, &[1, 0, 2]),
    }
}

/// Results where no step is made: an empty y or one without elements, and the initial states.
fn without_steps(
    g: &mut Graph,
    op: &Recurrent,
    x: ValueId,
    [sequence, batch, hidden]: [Dim; 3],
    initial: &[Option<ValueId>],
) -> Result<Vec<ValueId>, Error> {
    let (dirs, dtype) = (Dim::from(op.direction.count()), g.ty(x)?.dtype);
    let dims = if op.batch_first { [batch, sequence, dirs, hidden] } else { [sequence, dirs, batch, hidden] };
    let zero = g.constant(Tensor::scalar_of(dtype, 0.0));
    let mut results = vec![g.expand(zero, Shape::of_sizes(&dims)?)?];
    for state in initial.iter().take(op.kind.states()) {
        let id = match state {
            Some(id) => *id,
            None => g.expand(zero, Shape::of_sizes(&[dirs, batch, hidden])?)?,
        };
        results.push(final_state(g, op, id, [dirs, batch, hidden], dtype)?);
    }
    Ok(results)
}

/// The sum of both biases for every column of the projections, and what the reset gate of a gru must see alone.
fn biases(
    g: &mut Graph,
    op: &Recurrent,
    bias: ValueId,
    hidden: usize,
    wide: DType,
) -> Result<(ValueId, Option<ValueId>), Error> {
    let (dirs, gates) = (op.direction.count(), op.kind.gates());
    let rows = gates * hidden;
    let bias = cast(g, bias, wide)?;
    let (of_w, of_r) = (g.narrow(bias, 1, 0, rows)?, g.narrow(bias, 1, rows, rows)?);
    if !op.reset_after {
        let sum = g.add(of_w, of_r)?;
        return Ok((reshape(g, sum, &[dirs * rows])?, None));
    }
    let front = rows - hidden;
    let (w_gates, w_last) = (g.narrow(of_w, 1, 0, front)?, g.narrow(of_w, 1, front, hidden)?);
    let (r_gates, r_last) = (g.narrow(of_r, 1, 0, front)?, g.narrow(of_r, 1, front, hidden)?);
    let gates = g.add(w_gates, r_gates)?;
    let joined = g.concat(&[gates, w_last], 1)?;
    Ok((reshape(g, joined, &[dirs * rows])?, Some(r_last)))
}
