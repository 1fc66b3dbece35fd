//! Layers whose memory is a state of fixed size: Mamba-2 and the gated delta net.

use olivine_ir::op::{CausalConv1d, GatedDeltaNet, Mamba2};
use olivine_ir::{DType, Shape, Tensor, ValueId};

use super::RecurrentState;
use super::build::{Build, Positions, StateInputs};
use super::config::{LAYOUT, Recurrent};
use crate::Error;

/// What is added to a sum of squares under the root where queries and keys of the gated delta net are normalised.
const UNIT_EPS: f64 = 1e-6;

/// A size as reshapes take it.
fn size(n: usize) -> i64 {
    n as i64
}

impl Build<'_> {
    fn recurrent_sizes(&self, layer: usize) -> Result<Recurrent, Error> {
        let missing = || self.source.bad(&format!("blk.{layer}"), "the metadata have no sizes of its state");
        self.config.recurrent.ok_or_else(missing)
    }

    /// Mamba-2: a gate, a short convolution, the scan, and a norm of the gated result.
    pub(super) fn mamba2(&mut self, x: ValueId, at: &Positions, layer: usize) -> Result<ValueId, Error> {
        let sizes = self.recurrent_sizes(layer)?;
        let Recurrent { heads, dim, groups, state, .. } = sizes;
        let (inner, convolved) = (sizes.inner(), sizes.convolved());
        let name = |part: &str| format!("blk.{layer}.ssm_{part}");
        let all = self.linear(x, &name("in"), Some(self.config.hidden), Some(inner + convolved + heads))?;
        let parts = self.graph.split(all, -1, &[inner, convolved, heads])?;
        let (gate, steps) = (parts[0], parts[2]);
        let mixed = self.convolution(parts[1], at, layer, &sizes)?;
        let parts = self.graph.split(mixed, -1, &[inner, groups * state, groups * state])?;
        let values = self.graph.reshape(parts[0], &[0, 0, size(heads), size(dim)])?;
        let keys = self.graph.reshape(parts[1], &[0, 0, size(groups), size(state)])?;
        let queries = self.graph.reshape(parts[2], &[0, 0, size(groups), size(state)])?;
        let mut steps = self.time_steps(steps, layer, heads)?;
        if let Some([low, high]) = sizes.step_limits {
            steps = self.graph.clamp(steps, low, high)?;
        }
        let decay = self.flat(&name("a"), heads)?;
        let skip = self.flat(&name("d"), heads)?;
        let before = self.recurrent_state(at, &format!("state.{layer}"), &[heads, dim, state])?;
        let spec = Mamba2 { skip: true, state: before.is_some() };
        let extra: Vec<ValueId> = [skip].into_iter().chain(before.as_ref().map(|(id, _)| *id)).collect();
        let (y, after) = self.graph.mamba2(spec, [values, steps, decay, keys, queries], &extra)?;
        self.replace_state(before, after)?;
        let y = self.graph.reshape(y, &[0, 0, size(inner)])?;
        let open = self.graph.silu(gate)?;
        let y = self.graph.mul(y, open)?;
        let y = self.grouped_norm(y, &name("norm.weight"), inner, groups)?;
        self.linear(y, &name("out"), Some(inner), Some(self.config.hidden))
    }

    /// The gated delta net: a short convolution of queries, keys and values, the delta rule, and a norm times a gate.
    pub(super) fn gated_delta(&mut self, x: ValueId, at: &Positions, layer: usize) -> Result<ValueId, Error> {
        let sizes = self.recurrent_sizes(layer)?;
        let Recurrent { heads, dim, groups, state, .. } = sizes;
        let (inner, keys) = (sizes.inner(), groups * state);
        let name = |part: &str| format!("blk.{layer}.ssm_{part}");
        let (mixed, gate) = self.delta_inputs(x, layer, &sizes)?;
        let mixed = self.convolution(mixed, at, layer, &sizes)?;
        let parts = self.graph.split(mixed, -1, &[keys, keys, inner])?;
        let mut split =
            |x: ValueId, heads: usize, dim: usize| self.graph.reshape(x, &[0, 0, size(heads), size(dim)]);
        let (q, k) = (split(parts[0], groups, state)?, split(parts[1], groups, state)?);
        let v = split(parts[2], heads, dim)?;
        let gate = split(gate, heads, dim)?;
        // For each group the strengths of its heads, then their time steps.
        let per = heads / groups;
        let both = self.linear(x, &name("ba"), Some(self.config.hidden), Some(2 * heads))?;
        let both = self.graph.reshape(both, &[0, 0, size(groups), size(2 * per)])?;
        let both = self.graph.split(both, -1, &[per, per])?;
        let strengths = self.graph.reshape(both[0], &[0, 0, size(heads)])?;
        let strengths = self.graph.sigmoid(strengths)?;
        let steps = self.graph.reshape(both[1], &[0, 0, size(heads)])?;
        let steps = self.time_steps(steps, layer, heads)?;
        let decay = self.flat(&name("a"), heads)?;
        let decay = self.graph.mul(steps, decay)?;
        let before = self.recurrent_state(at, &format!("state.{layer}"), &[heads, state, dim])?;
        let spec =
            GatedDeltaNet { normalise: Some(UNIT_EPS), state: before.is_some(), ..GatedDeltaNet::new() };
        let carried = before.as_ref().map(|(id, _)| *id);
        let (y, after) = self.graph.gated_delta_net(spec, [q, k, v, decay, strengths], carried)?;
        self.replace_state(before, after)?;
        let y = self.norm(y, &name("norm"), dim)?;
        let open = self.graph.silu(gate)?;
        let y = self.graph.mul(y, open)?;
        let y = self.graph.reshape(y, &[0, 0, size(inner)])?;
        self.linear(y, &name("out"), Some(inner), Some(self.config.hidden))
    }

    /// Queries, keys and values side by side, and the gate: by two matrices, or by one with the parts of each group together.
    fn delta_inputs(
        &mut self,
        x: ValueId,
        layer: usize,
        sizes: &Recurrent,
    ) -> Result<(ValueId, ValueId), Error> {
        let hidden = Some(self.config.hidden);
        let Recurrent { groups, state, .. } = *sizes;
        let inner = sizes.inner();
        let (qkv, whole) = (format!("blk.{layer}.attn_qkv"), format!("blk.{layer}.ssm_in"));
        if self.has(&format!("{qkv}.weight")) {
            let mixed = self.linear(x, &qkv, hidden, Some(sizes.convolved()))?;
            let gate = self.linear(x, &format!("blk.{layer}.attn_gate"), hidden, Some(inner))?;
            return Ok((mixed, gate));
        }
        if !self.has(&format!("{whole}.weight")) {
            let problem = format!("it is missing, and so is `{qkv}.weight`");
            return Err(self.source.bad(&format!("{whole}.weight"), problem));
        }
        let all = self.linear(x, &whole, hidden, Some(sizes.convolved() + inner))?;
        let per = inner / groups;
        let all = self.graph.reshape(all, &[0, 0, size(groups), size(2 * state + 2 * per)])?;
        let parts = self.graph.split(all, -1, &[state, state, per, per])?;
        let widths = [groups * state, groups * state, inner, inner];
        let flat: Vec<ValueId> = parts
            .into_iter()
            .zip(widths)
            .map(|(part, width)| self.graph.reshape(part, &[0, 0, size(width)]))
            .collect::<Result<_, _>>()?;
        Ok((self.graph.concat(&flat[..3], -1)?, flat[3]))
    }

    /// The short convolution and silu after it.
    fn convolution(
        &mut self,
        x: ValueId,
        at: &Positions,
        layer: usize,
        sizes: &Recurrent,
    ) -> Result<ValueId, Error> {
        let (channels, taps) = (sizes.convolved(), sizes.kernel);
        let name = |part: &str| format!("blk.{layer}.ssm_conv1d.{part}");
        let weight = self.floats(&name("weight"), &[channels, taps])?;
        let bias = match self.has(&name("bias")) {
            true => Some(self.vector(&name("bias"), channels)?),
            false => None,
        };
        // A convolution of one tap has no past.
        let before = match taps {
            1 => None,
            _ => self.recurrent_state(at, &format!("convolution.{layer}"), &[taps - 1, channels])?,
        };
        let spec = CausalConv1d { bias: bias.is_some(), silu: true, state: before.is_some() };
        let carried = before.as_ref().map(|(id, _)| *id);
        let extra: Vec<ValueId> = bias.into_iter().chain(carried).collect();
        let (y, after) = self.graph.causal_conv1d(spec, x, weight, &extra)?;
        self.replace_state(before, after)?;
        Ok(y)
    }

    /// Time steps of heads, which are positive.
    fn time_steps(&mut self, x: ValueId, layer: usize, heads: usize) -> Result<ValueId, Error> {
        let bias = self.vector(&format!("blk.{layer}.ssm_dt.bias"), heads)?;
        let biased = self.graph.add(x, bias)?;
        Ok(self.graph.softplus(biased)?)
    }

    /// A norm of each group. GGUF has a row of weights for each; a folder has one row, and its norm is of all groups
    /// together, as transformers has it.
    fn grouped_norm(
        &mut self,
        x: ValueId,
        name: &str,
        inner: usize,
        groups: usize,
    ) -> Result<ValueId, Error> {
        let gamma = self.source.floats(name)?;
        let rows = if gamma.shape().rank() == 2 { groups } else { 1 };
        let gamma = self.flat(name, inner)?;
        let g = &mut self.graph;
        if rows == 1 {
            return Ok(g.rms_norm(x, gamma, None, self.config.eps)?);
        }
        let width = inner / rows;
        let split = g.reshape(x, &[0, 0, size(rows), size(width)])?;
        let ones = g.constant(Tensor::new([width], vec![1f32; width])?);
        let y = g.rms_norm(split, ones, None, self.config.eps)?;
        let y = g.reshape(y, &[0, 0, size(inner)])?;
        Ok(g.mul(y, gamma)?)
    }

    /// Small weights in f32 of any shape with so many elements, as a vector.
    fn flat(&mut self, name: &str, count: usize) -> Result<ValueId, Error> {
        let value = self.source.floats(name)?;
        if value.shape().numel() != count {
            let problem = format!("it is {}, and the metadata ask for {count} elements", value.shape());
            return Err(self.source.bad(name, problem));
        }
        self.add(name, value.reshaped([count])?)
    }

    /// The states before a run of sequences, zeros of those that begin, and where those after it go; `None` without caches.
    fn recurrent_state(
        &mut self,
        at: &Positions,
        name: &str,
        dims: &[usize],
    ) -> Result<Option<(ValueId, Pool)>, Error> {
        let Some(places) = at.states else { return Ok(None) };
        // All but the first size in one.
        let rows = [dims[0], dims[1..].iter().product()];
        let names = vec![Some("slots".to_string()), None, None, None];
        let shape = Shape::new(&[4, 1, rows[0], rows[1]])?;
        let pool = self.graph.input_with_dims(name, DType::F32, shape, names)?;
        let output = format!("{name}.next");
        self.recurrent.push(RecurrentState { input: name.to_string(), output: output.clone(), dims: rows });
        let g = &mut self.graph;
        let which = g.reshape(places.slots, &[-1])?;
        let state = g.gather(pool, which, 0)?;
        let sizes: Vec<i64> = dims.iter().map(|n| size(*n)).collect();
        let state = g.reshape(state, &[&[0], &sizes[..]].concat())?;
        let continues = g.reshape(places.continues, &[&[-1], &vec![1; dims.len()][..]].concat())?;
        let zero = g.constant(Tensor::scalar(0f32));
        let state = g.select(continues, state, zero)?;
        Ok(Some((state, Pool { pool, rows, output, places })))
    }

    /// Makes states those that the next run begins with.
    fn replace_state(&mut self, before: Option<(ValueId, Pool)>, after: ValueId) -> Result<(), Error> {
        let Some((_, Pool { pool, rows, output, places })) = before else { return Ok(()) };
        let after = self.graph.reshape(after, &[0, 1, size(rows[0]), size(rows[1])])?;
        // A state is a page of one position.
        let next = self.graph.kv_append_pages(LAYOUT, pool, after, places.zeros, places.slots)?;
        Ok(self.graph.output(&output, next)?)
    }
}

/// Where the states of a layer are.
struct Pool {
    pool: ValueId,
    rows: [usize; 2],
    output: String,
    places: StateInputs,
}
