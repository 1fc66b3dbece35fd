//! Recurrent layers, one sequence, one step and one unit at a time.

use olivine_ir::TensorType;
use olivine_ir::op::{GateFunction, Recurrence, Recurrent, RecurrentKind};

use super::Value;
use super::meanings;

meanings! { |op, x, call|
    Recurrent => layer(op, x, call.results),
    Recurrence => recurrence(op, x, call.results),
}

fn function(f: GateFunction, x: f64) -> f64 {
    match f {
        GateFunction::Tanh => x.tanh(),
        GateFunction::Sigmoid => 1.0 / (1.0 + (-x).exp()),
        GateFunction::Relu if x.is_nan() => x,
        GateFunction::Relu => x.max(0.0),
        GateFunction::HardSigmoid => (0.2 * x + 0.5).clamp(0.0, 1.0),
        GateFunction::Softsign => x / (1.0 + x.abs()),
        GateFunction::Softplus => x.max(0.0) + (-x.abs()).exp().ln_1p(),
    }
}

/// Everything about one direction of one layer: rows of the weights by gate and unit, products with the input by step.
struct Cell<'a> {
    of: &'a Recurrent,
    functions: &'a [GateFunction],
    hidden: usize,
    r: &'a [f64],
    /// r's bias of the gru's candidate, added before the reset gate acts.
    reset_bias: Vec<f64>,
    peepholes: Option<&'a [f64]>,
}

impl Cell<'_> {
    fn apply(&self, which: usize, x: f64) -> f64 {
        let x = match self.of.clip {
            Some(c) if x.is_finite() || x.is_infinite() => x.clamp(-c, c),
            _ => x,
        };
        function(self.functions[which], x)
    }

    /// A gate's row of r times a state.
    fn row(&self, gate: usize, unit: usize, h: &[f64]) -> f64 {
        let row = &self.r[(gate * self.hidden + unit) * self.hidden..][..self.hidden];
        row.iter().zip(h).map(|(r, h)| r * h).sum()
    }

    /// One step: `x` holds a gate's product with the input, biases included, for every gate and unit.
    fn step(&self, x: &[f64], h: &[f64], c: &[f64]) -> (Vec<f64>, Vec<f64>) {
        let n = self.hidden;
        let at = |gate: usize, unit: usize| x[gate * n + unit];
        let mut next = (vec![0.0; n], vec![0.0; n]);
        match self.of.kind {
            RecurrentKind::Rnn => {
                for u in 0..n {
                    next.0[u] = self.apply(0, at(0, u) + self.row(0, u, h));
                }
            }
            RecurrentKind::Gru => {
                let reset: Vec<f64> = (0..n).map(|u| self.apply(0, at(1, u) + self.row(1, u, h))).collect();
                let held: Vec<f64> = reset.iter().zip(h).map(|(r, h)| r * h).collect();
                for u in 0..n {
                    let z = self.apply(0, at(0, u) + self.row(0, u, h));
                    let inner = if self.of.reset_after {
                        reset[u] * (self.row(2, u, h) + self.reset_bias[u])
                    } else {
                        self.row(2, u, &held)
                    };
                    next.0[u] = (1.0 - z) * self.apply(1, at(2, u) + inner) + z * h[u];
                }
            }
            RecurrentKind::Lstm => {
                let peep = |which: usize, unit: usize| self.peepholes.map_or(0.0, |p| p[which * n + unit]);
                for u in 0..n {
                    let i = self.apply(0, at(0, u) + self.row(0, u, h) + peep(0, u) * c[u]);
                    let f = if self.of.input_forget {
                        1.0 - i
                    } else {
                        self.apply(0, at(2, u) + self.row(2, u, h) + peep(2, u) * c[u])
                    };
                    let new = f * c[u] + i * self.apply(1, at(3, u) + self.row(3, u, h));
                    let o = self.apply(0, at(1, u) + self.row(1, u, h) + peep(1, u) * new);
                    next.0[u] = o * self.apply(2, new);
                    next.1[u] = new;
                }
            }
        }
        next
    }
}

/// Where elements stand, by step, direction, batch entry and unit.
struct Offsets {
    sequence: usize,
    batch: usize,
    dirs: usize,
    hidden: usize,
    /// Whether y is `[batch, seq, dirs, hidden]`.
    batch_first: bool,
    /// Whether y is `[seq, dirs, batch, hidden]` otherwise, or `[seq, batch, dirs, hidden]`.
    dirs_before_batch: bool,
    /// Whether states are `[batch, dirs, hidden]`.
    state_by_batch: bool,
}

impl Offsets {
    fn y(&self, t: usize, d: usize, b: usize) -> usize {
        let row = match (self.batch_first, self.dirs_before_batch) {
            (true, _) => (b * self.sequence + t) * self.dirs + d,
            (false, true) => (t * self.dirs + d) * self.batch + b,
            (false, false) => (t * self.batch + b) * self.dirs + d,
        };
        row * self.hidden
    }

    fn state(&self, d: usize, b: usize) -> usize {
        (if self.state_by_batch { b * self.dirs + d } else { d * self.batch + b }) * self.hidden
    }
}

/// Runs all sequences; `input` gives the products with x for a step, direction and batch entry.
#[allow(clippy::too_many_arguments, reason = "a layer has as many parts")]
fn run(
    cells: &[Cell<'_>],
    offsets: &Offsets,
    lengths: Option<&[i64]>,
    initial_h: Option<&[f64]>,
    initial_c: Option<&[f64]>,
    input: &dyn Fn(usize, usize, usize) -> Vec<f64>,
    results: &[TensorType],
) -> Vec<Value> {
    let n = offsets.hidden;
    let mut out: Vec<Vec<f64>> = results.iter().map(|t| vec![0.0; t.shape.numel()]).collect();
    for (d, cell) in cells.iter().enumerate() {
        for b in 0..offsets.batch {
            let length =
                lengths.map_or(offsets.sequence, |l| l[b].clamp(0, offsets.sequence as i64) as usize);
            let at = offsets.state(d, b);
            let begin = |state: Option<&[f64]>| state.map_or(vec![0.0; n], |s| s[at..at + n].to_vec());
            let (mut h, mut c) = (begin(initial_h), begin(initial_c));
            for step in 0..length {
                let t = if cell.of.direction.is_reverse(d) { length - 1 - step } else { step };
                (h, c) = cell.step(&input(t, d, b), &h, &c);
                out[0][offsets.y(t, d, b)..][..n].copy_from_slice(&h);
            }
            for (state, out) in [h, c].iter().zip(&mut out[1..]) {
                out[at..at + n].copy_from_slice(state);
            }
        }
    }
    results.iter().zip(out).map(|(ty, data)| Value::floats(*ty, data)).collect()
}

pub(super) fn layer(op: &Recurrent, x: &[Value], results: &[TensorType]) -> Result<Vec<Value>, String> {
    let at = op.optional_operands();
    let (input, w, r) = (x[0].as_floats()?, x[1].as_floats()?, x[2].as_floats()?);
    let floats = |i: Option<usize>| i.map(|i| x[i].as_floats()).transpose();
    let (bias, h0, c0) = (floats(at.bias)?, floats(at.initial_h)?, floats(at.initial_c)?);
    let peepholes = floats(at.peepholes)?;
    let lengths = at.lengths.map(|i| x[i].as_ints()).transpose()?;
    let (dims, hidden) = (x[0].shape(), x[2].shape()[2]);
    let (width, dirs) = (dims[2], op.direction.count());
    let (sequence, batch) = if op.batch_first { (dims[1], dims[0]) } else { (dims[0], dims[1]) };
    let rows = op.kind.gates() * hidden;
    let cells: Vec<Cell<'_>> = (0..dirs)
        .map(|d| Cell {
            of: op,
            functions: op.functions_of(d),
            hidden,
            r: &r[d * rows * hidden..(d + 1) * rows * hidden],
            reset_bias: bias
                .map_or(vec![0.0; hidden], |b| b[(2 * d + 2) * rows - hidden..][..hidden].to_vec()),
            peepholes: peepholes.map(|p| &p[d * 3 * hidden..(d + 1) * 3 * hidden]),
        })
        .collect();
    let project = |t: usize, d: usize, b: usize| -> Vec<f64> {
        let step = if op.batch_first { b * sequence + t } else { t * batch + b };
        let x = &input[step * width..][..width];
        let row = |j: usize| {
            let product: f64 = w[(d * rows + j) * width..][..width].iter().zip(x).map(|(w, x)| w * x).sum();
            // The reset gate acts on r's bias of the candidate, so it is not added here.
            let held_back = op.reset_after && j >= rows - hidden;
            let r_bias = |b: &[f64]| if held_back { 0.0 } else { b[(2 * d + 1) * rows + j] };
            product + bias.map_or(0.0, |b| b[2 * d * rows + j] + r_bias(b))
        };
        (0..rows).map(row).collect()
    };
    let offsets = Offsets {
        sequence,
        batch,
        dirs,
        hidden,
        batch_first: op.batch_first,
        dirs_before_batch: true,
        state_by_batch: op.batch_first,
    };
    Ok(run(&cells, &offsets, lengths, h0, c0, &project, results))
}

pub(super) fn recurrence(op: &Recurrence, x: &[Value], results: &[TensorType]) -> Result<Vec<Value>, String> {
    let (of, at) = (&op.of, op.optional_operands());
    let (input, r) = (x[0].as_floats()?, x[1].as_floats()?);
    let floats = |i: Option<usize>| i.map(|i| x[i].as_floats()).transpose();
    let (bias, h0, c0) = (floats(at.bias)?, floats(at.initial_h)?, floats(at.initial_c)?);
    let peepholes = floats(at.peepholes)?;
    let lengths = at.lengths.map(|i| x[i].as_ints()).transpose()?;
    let (dims, hidden) = (x[0].shape(), x[1].shape()[2]);
    let dirs = of.direction.count();
    let (sequence, batch) = if of.batch_first { (dims[1], dims[0]) } else { (dims[0], dims[1]) };
    let rows = of.kind.gates() * hidden;
    let cells: Vec<Cell<'_>> = (0..dirs)
        .map(|d| Cell {
            of,
            functions: of.functions_of(d),
            hidden,
            r: &r[d * rows * hidden..(d + 1) * rows * hidden],
            reset_bias: bias.map_or(vec![0.0; hidden], |b| b[d * hidden..(d + 1) * hidden].to_vec()),
            peepholes: peepholes.map(|p| &p[d * 3 * hidden..(d + 1) * 3 * hidden]),
        })
        .collect();
    let project = |t: usize, d: usize, b: usize| -> Vec<f64> {
        let step = if of.batch_first { b * sequence + t } else { t * batch + b };
        input[(step * dirs + d) * rows..][..rows].to_vec()
    };
    let offsets = Offsets {
        sequence,
        batch,
        dirs,
        hidden,
        batch_first: of.batch_first,
        dirs_before_batch: false,
        state_by_batch: false,
    };
    Ok(run(&cells, &offsets, lengths, h0, c0, &project, results))
}
