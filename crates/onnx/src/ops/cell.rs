//! Recurrent cells of any functions, one step at a time inside a scan.

use olivine_ir::op::{Activation, Binary, GateFunction, Recurrent, RecurrentKind, RecurrentLayer, Scan};
use olivine_ir::{DType, Error, Graph, SubGraph, Tensor, ValueId};

use super::compose::{cast, reshaped, wide};
use crate::import::{Answer, NodeContext};

/// A function of a gate or of a cell.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Function {
    /// One without numbers.
    Gate(GateFunction),
    /// alpha·x + beta.
    Affine { alpha: f64, beta: f64 },
    /// x, or alpha·x below zero.
    LeakyRelu { alpha: f64 },
    /// x from alpha on, else zero.
    ThresholdedRelu { alpha: f64 },
    /// alpha·tanh(beta·x).
    ScaledTanh { alpha: f64, beta: f64 },
    /// alpha·x + beta held within 0 and 1.
    HardSigmoid { alpha: f64, beta: f64 },
    /// x, or alpha·(eˣ − 1) below zero.
    Elu { alpha: f64 },
}

impl Function {
    /// The function as one of the graph's recurrent layers, if it is.
    pub(super) fn plain(self) -> Option<GateFunction> {
        let usual = |alpha: f64, beta: f64| (alpha as f32, beta as f32) == (0.2, 0.5);
        match self {
            Function::Gate(function) => Some(function),
            Function::HardSigmoid { alpha, beta } if usual(alpha, beta) => Some(GateFunction::HardSigmoid),
            _ => None,
        }
    }

    fn of(self, g: &mut Graph, x: ValueId) -> Result<ValueId, Error> {
        match self {
            Function::Gate(GateFunction::Tanh) => g.tanh(x),
            Function::Gate(GateFunction::Sigmoid) => g.sigmoid(x),
            Function::Gate(GateFunction::Relu) => g.relu(x),
            Function::Gate(GateFunction::Softsign) => g.softsign(x),
            Function::Gate(GateFunction::Softplus) => g.softplus(x),
            Function::Gate(GateFunction::HardSigmoid) => {
                g.activation(Activation::HardSigmoid { alpha: 0.2, beta: 0.5 }, x)
            }
            Function::Affine { alpha, beta } => {
                let scaled = g.binary_scalar(Binary::Mul, x, alpha)?;
                g.binary_scalar(Binary::Add, scaled, beta)
            }
            Function::LeakyRelu { alpha } => g.activation(Activation::LeakyRelu { alpha }, x),
            Function::ThresholdedRelu { alpha } => {
                let dtype = g.ty(x)?.dtype;
                let limit = g.constant(Tensor::scalar_of(dtype, alpha));
                let zero = g.constant(Tensor::scalar_of(dtype, 0.0));
                let stays = g.ge(x, limit)?;
                g.select(stays, x, zero)
            }
            Function::ScaledTanh { alpha, beta } => {
                let inner = g.binary_scalar(Binary::Mul, x, beta)?;
                let outer = g.tanh(inner)?;
                g.binary_scalar(Binary::Mul, outer, alpha)
            }
            Function::HardSigmoid { alpha, beta } => g.activation(Activation::HardSigmoid { alpha, beta }, x),
            Function::Elu { alpha } => g.activation(Activation::Elu { alpha }, x),
        }
    }
}

/// Sizes of a layer.
#[derive(Clone, Copy)]
struct Sizes {
    sequence: usize,
    batch: usize,
    input: usize,
    hidden: usize,
}

/// A recurrent layer with these functions: results as those of [`Recurrent`], in at least f32.
pub(super) fn scanned(
    n: &mut NodeContext<'_, '_>,
    spec: &Recurrent,
    functions: &[Function],
    x: ValueId,
    layer: &RecurrentLayer,
    lengths: Option<ValueId>,
) -> Answer<Vec<ValueId>> {
    let dtype = wide(n.dtype(x)?);
    // Sequence before batch and directions before batch, whatever the model has.
    let turned = |n: &mut NodeContext<'_, '_>, id: ValueId| -> Answer<ValueId> {
        if spec.batch_first { n.build(|g| g.transpose(id, &[1, 0, 2])) } else { Ok(id) }
    };
    let (xs, rs) = (n.shape(x)?, n.shape(layer.r)?);
    if xs.rank() != 3 || rs.rank() != 3 {
        return Err(n.wrong(format!("x of {xs} and R of {rs} should have rank 3")));
    }
    let x = turned(n, x)?;
    let x = cast(n, x, dtype)?;
    let shape = n.shape(x)?;
    let sizes = Sizes { sequence: shape[0], batch: shape[1], input: shape[2], hidden: rs[2] };
    let lengths = match lengths {
        Some(lengths) => Some(cast(n, lengths, DType::I64)?),
        None => None,
    };
    let each = spec.kind.functions().len();
    let mut all: Vec<Vec<ValueId>> = Vec::new();
    for direction in 0..spec.direction.count() {
        let mut states = Vec::new();
        for initial in [layer.initial_h, layer.initial_c].into_iter().take(spec.kind.states()) {
            states.push(match initial {
                Some(initial) => {
                    let initial = turned(n, initial)?;
                    let initial = n.build(|g| g.narrow(initial, 0, direction, 1))?;
                    let initial = reshaped(n, initial, &[sizes.batch, sizes.hidden])?;
                    cast(n, initial, dtype)?
                }
                None => {
                    let zero = n.scalar(dtype, 0.0);
                    n.build(|g| g.fill(zero, [sizes.batch, sizes.hidden]))?
                }
            });
        }
        let functions = functions.get(direction * each..).unwrap_or(&[]);
        all.push(one_direction(n, spec, functions, x, layer, &states, lengths, sizes, direction)?);
    }
    let mut results = Vec::new();
    for i in 0..=spec.kind.states() {
        let parts: Vec<ValueId> = all.iter().filter_map(|r| r.get(i).copied()).collect();
        // Rows [seq, batch, hidden] become [seq, dirs, batch, hidden]; states [batch, hidden] take directions
        // first.
        let joined = n.build(|g| g.stack(&parts, usize::from(i == 0)))?;
        results.push(match (spec.batch_first, i) {
            (false, _) => joined,
            (true, 0) => n.build(|g| g.transpose(joined, &[2, 0, 1, 3]))?,
            (true, _) => n.build(|g| g.transpose(joined, &[1, 0, 2]))?,
        });
    }
    Ok(results)
}

/// One direction: rows, the final h and the final c.
#[allow(clippy::too_many_arguments, reason = "the layer's parts")]
fn one_direction(
    n: &mut NodeContext<'_, '_>,
    spec: &Recurrent,
    functions: &[Function],
    x: ValueId,
    layer: &RecurrentLayer,
    states: &[ValueId],
    lengths: Option<ValueId>,
    sizes: Sizes,
    direction: usize,
) -> Answer<Vec<ValueId>> {
    let Sizes { sequence, batch, input, hidden } = sizes;
    let (dtype, rows) = (n.dtype(x)?, spec.kind.gates() * hidden);
    let part = |n: &mut NodeContext<'_, '_>, id: ValueId, dims: &[usize]| -> Answer<ValueId> {
        let one = n.build(|g| g.narrow(id, 0, direction, 1))?;
        let one = reshaped(n, one, dims)?;
        cast(n, one, dtype)
    };
    let w = part(n, layer.w, &[rows, input])?;
    let r = part(n, layer.r, &[rows, hidden])?;
    let r = n.build(|g| g.swap_last_axes(r))?;
    let flat = reshaped(n, x, &[sequence * batch, input])?;
    let mut projected = n.build(|g| g.matmul_nt(flat, w))?;
    let mut captures = vec![r];
    if let Some(bias) = layer.bias {
        let bias = part(n, bias, &[2, rows])?;
        // A candidate that is reset after its matmul has the bias of the matmul inside the reset.
        let outer = if spec.reset_after { 2 * hidden } else { rows };
        projected = n.build(|g| {
            let of_w = g.narrow(bias, 0, 0, 1)?;
            let of_r = g.narrow(bias, 0, 1, 1)?;
            let joining = g.narrow(of_r, 1, 0, outer)?;
            let joining = g.pad(
                joining,
                &[(0, 0), (0, (rows - outer) as i64)],
                olivine_ir::op::PadMode::Constant,
                0.0,
            )?;
            let all = g.add(of_w, joining)?;
            if spec.reset_after {
                captures.push(g.narrow(of_r, 1, outer, hidden)?);
            }
            g.add(projected, all)
        })?;
    } else if spec.reset_after {
        let zero = n.scalar(dtype, 0.0);
        captures.push(n.build(|g| g.fill(zero, [1, hidden]))?);
    }
    if let Some(peepholes) = layer.peepholes {
        captures.push(part(n, peepholes, &[3, hidden])?);
    }
    let projected = reshaped(n, projected, &[sequence, batch, rows])?;
    let steps = n.build(|g| g.range(DType::I64, 0.0, 1.0, sequence))?;
    if let Some(lengths) = lengths {
        captures.push(reshaped(n, lengths, &[batch, 1])?);
    }
    let operands: Vec<ValueId> =
        states.iter().copied().chain([projected, steps]).chain(captures.iter().copied()).collect();
    let body = body(n, spec, functions, &operands, hidden, layer.peepholes.is_some(), lengths.is_some())?;
    let backwards = spec.direction.is_reverse(direction);
    let op = Scan {
        states: states.len(),
        axes: vec![0, 0],
        reverse: vec![backwards; 2],
        out_axes: vec![0],
        out_reverse: vec![backwards],
        body: n.built(SubGraph::new(body))?,
    };
    let mut results = n.build(|g| g.add_op(op, &operands))?;
    results.rotate_right(1);
    Ok(results)
}

/// The graph of one step, for these operands of the scan.
fn body(
    n: &mut NodeContext<'_, '_>,
    spec: &Recurrent,
    functions: &[Function],
    operands: &[ValueId],
    hidden: usize,
    peepholes: bool,
    lengths: bool,
) -> Answer<Graph> {
    let count = spec.kind.states();
    let mut g = Graph::new("cell");
    let mut inputs = Vec::with_capacity(operands.len());
    for (i, id) in operands.iter().enumerate() {
        let ty = n.ty(*id)?;
        // The projections and the number of the step come one step at a time.
        let sliced = usize::from(i == count || i == count + 1);
        let input = g.input(&format!("input_{i}"), ty.dtype, &ty.shape[sliced..]);
        inputs.push(n.built(input)?);
    }
    let mut rest = inputs.split_off(count + 2).into_iter();
    let states = inputs[..count].to_vec();
    let (projected, step) = (inputs[count], inputs[count + 1]);
    let built = (|| {
        let r = rest.next().unwrap_or(projected);
        let inner_bias = if spec.reset_after { rest.next() } else { None };
        let peepholes = if peepholes { rest.next() } else { None };
        let lengths = if lengths { rest.next() } else { None };
        let cell = Cell { spec, functions, hidden, r, inner_bias, peepholes };
        let new = match spec.kind {
            RecurrentKind::Rnn => cell.rnn(&mut g, projected, &states)?,
            RecurrentKind::Gru => cell.gru(&mut g, projected, &states)?,
            RecurrentKind::Lstm => cell.lstm(&mut g, projected, &states)?,
        };
        let mut row = new[0];
        let mut kept = new.clone();
        if let Some(lengths) = lengths {
            // Steps past a sequence's end change no state, and their outputs are zeros.
            let dtype = g.ty(row)?.dtype;
            let valid = g.lt(step, lengths)?;
            let zero = g.constant(Tensor::scalar_of(dtype, 0.0));
            row = g.select(valid, new[0], zero)?;
            for (state, old) in kept.iter_mut().zip(&states) {
                *state = g.select(valid, *state, *old)?;
            }
        }
        for (i, id) in kept.into_iter().chain([row]).enumerate() {
            g.output(&i.to_string(), id)?;
        }
        Ok(())
    })();
    n.built(built)?;
    Ok(g)
}

/// What a step is computed of.
struct Cell<'a> {
    spec: &'a Recurrent,
    functions: &'a [Function],
    hidden: usize,
    /// `[hidden, gates·hidden]`.
    r: ValueId,
    /// A gru's bias inside the reset, `[1, hidden]`.
    inner_bias: Option<ValueId>,
    /// An lstm's, `[3, hidden]`.
    peepholes: Option<ValueId>,
}

impl Cell<'_> {
    /// Function `i` of a clipped operand.
    fn function(&self, g: &mut Graph, i: usize, x: ValueId) -> Result<ValueId, Error> {
        let x = match self.spec.clip {
            Some(clip) => g.clamp(x, -clip, clip)?,
            None => x,
        };
        self.functions.get(i).copied().unwrap_or(Function::Gate(GateFunction::Tanh)).of(g, x)
    }

    /// The columns of gate `i`.
    fn gate(&self, g: &mut Graph, x: ValueId, i: usize) -> Result<ValueId, Error> {
        g.narrow(x, 1, i * self.hidden, self.hidden)
    }

    fn rnn(&self, g: &mut Graph, projected: ValueId, states: &[ValueId]) -> Result<Vec<ValueId>, Error> {
        let back = g.matmul(states[0], self.r)?;
        let sum = g.add(projected, back)?;
        Ok(vec![self.function(g, 0, sum)?])
    }

    fn gru(&self, g: &mut Graph, projected: ValueId, states: &[ValueId]) -> Result<Vec<ValueId>, Error> {
        let h = states[0];
        let back = g.matmul(h, self.r)?;
        let mut gates = Vec::with_capacity(2);
        for i in 0..2 {
            let (from_x, from_h) = (self.gate(g, projected, i)?, self.gate(g, back, i)?);
            let sum = g.add(from_x, from_h)?;
            gates.push(self.function(g, 0, sum)?);
        }
        let (update, reset) = (gates[0], gates[1]);
        let from_h = match self.inner_bias {
            Some(bias) => {
                let product = self.gate(g, back, 2)?;
                let product = g.add(product, bias)?;
                g.mul(reset, product)?
            }
            None => {
                let kept = g.mul(reset, h)?;
                let r = g.narrow(self.r, 1, 2 * self.hidden, self.hidden)?;
                g.matmul(kept, r)?
            }
        };
        let from_x = self.gate(g, projected, 2)?;
        let sum = g.add(from_x, from_h)?;
        let candidate = self.function(g, 1, sum)?;
        // (1 − z)·n + z·h.
        let kept = g.mul(update, h)?;
        let taken = g.mul(update, candidate)?;
        let taken = g.sub(candidate, taken)?;
        Ok(vec![g.add(taken, kept)?])
    }

    fn lstm(&self, g: &mut Graph, projected: ValueId, states: &[ValueId]) -> Result<Vec<ValueId>, Error> {
        let (h, c) = (states[0], states[1]);
        let back = g.matmul(h, self.r)?;
        let sums = g.add(projected, back)?;
        let seen = |g: &mut Graph, sum: ValueId, c: ValueId, i: usize| match self.peepholes {
            Some(p) => {
                let weights = g.narrow(p, 0, i, 1)?;
                let seen = g.mul(weights, c)?;
                g.add(sum, seen)
            }
            None => Ok(sum),
        };
        let sum = self.gate(g, sums, 0)?;
        let sum = seen(g, sum, c, 0)?;
        let input = self.function(g, 0, sum)?;
        let forget = if self.spec.input_forget {
            let less = g.neg(input)?;
            g.binary_scalar(Binary::Add, less, 1.0)?
        } else {
            let sum = self.gate(g, sums, 2)?;
            let sum = seen(g, sum, c, 2)?;
            self.function(g, 0, sum)?
        };
        let sum = self.gate(g, sums, 3)?;
        let candidate = self.function(g, 1, sum)?;
        let (kept, taken) = (g.mul(forget, c)?, g.mul(input, candidate)?);
        let c = g.add(kept, taken)?;
        let sum = self.gate(g, sums, 1)?;
        let sum = seen(g, sum, c, 1)?;
        let output = self.function(g, 0, sum)?;
        let shown = self.function(g, 2, c)?;
        Ok(vec![g.mul(output, shown)?, c])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_with_the_usual_numbers_are_those_of_the_layers() {
        let alpha = f64::from(0.2f32);
        assert_eq!(Function::HardSigmoid { alpha, beta: 0.5 }.plain(), Some(GateFunction::HardSigmoid));
        assert_eq!(Function::HardSigmoid { alpha: 0.3, beta: 0.5 }.plain(), None);
        assert_eq!(Function::Gate(GateFunction::Relu).plain(), Some(GateFunction::Relu));
        assert_eq!(Function::Elu { alpha: 1.0 }.plain(), None);
    }
}
