//! LinearAttention: a state of fixed size in the place of keys and values.

use olivine_ir::op::{Binary, GatedDeltaNet, Scan};
use olivine_ir::{DType, Error as GraphError, Graph, SubGraph, ValueId};

use super::{count, divided, reshaped};
use crate::import::{Answer, NodeContext, Value};

/// How a step updates the state.
#[derive(Clone, Copy)]
struct Rule {
    /// The state decays first.
    gated: bool,
    /// What the state holds for a key is subtracted from the value.
    delta: bool,
}

impl Rule {
    /// As a node's attribute says; inputs that the rule does not have are refused.
    fn of(n: &NodeContext<'_, '_>) -> Answer<Self> {
        let name = n.string_or("update_rule", "gated_delta")?;
        let (gated, delta) = match name.as_str() {
            "linear" => (false, false),
            "gated" => (true, false),
            "delta" => (false, true),
            "gated_delta" => (true, true),
            _ => return Err(n.wrong(format!("update_rule `{name}` is unknown"))),
        };
        for (what, input, needed) in [("decay", 4, gated), ("beta", 5, delta)] {
            if n.has(input) != needed {
                let problem = if needed { "needs" } else { "does not take" };
                return Err(n.wrong(format!("update_rule `{name}` {problem} the input {what}")));
            }
        }
        Ok(Rule { gated, delta })
    }
}

/// Sizes of a node's inputs.
#[derive(Clone, Copy)]
struct Sizes {
    batch: usize,
    steps: usize,
    /// Heads of keys and values, each with a state.
    heads: usize,
    /// Heads of queries that share a state.
    group: usize,
    key: usize,
    value: usize,
}

/// A node's inputs: q `[batch, steps, heads·group, key]`, k and v with one head a state; decay `[batch, steps, heads]` or
/// `[.., key]`, beta `[batch, steps, heads]`.
struct Inputs {
    q: ValueId,
    k: ValueId,
    v: ValueId,
    decay: Option<ValueId>,
    beta: Option<ValueId>,
    /// In f32.
    state: Option<ValueId>,
    /// The factor on the output, if given.
    scale: Option<f64>,
}

pub(super) fn linear_attention(n: &mut NodeContext<'_, '_>) -> Answer<Vec<Value>> {
    let rule = Rule::of(n)?;
    let (heads, q_heads) = (count(n, "kv_num_heads")?, count(n, "q_num_heads")?);
    let group = divided(n, q_heads, heads, "groups of heads")?;
    let (q, k, v) = (heads_apart(n, 0, q_heads)?, heads_apart(n, 1, heads)?, heads_apart(n, 2, heads)?);
    let (q_shape, v_shape) = (n.shape(q)?, n.shape(v)?);
    let (batch, steps, key, value) = (q_shape[0], q_shape[1], q_shape[3], v_shape[3]);
    let sizes = Sizes { batch, steps, heads, group, key, value };
    let (element, dtype) = (n.element(0)?, n.dtype(q)?);
    let mut state_type = (element, dtype);
    let mut state = None;
    if let Some(past) = n.optional(3)? {
        state_type = (n.element(3)?, n.dtype(past)?);
        of_sizes(n, "past_state", past, &[batch, heads, key, value])?;
        state = Some(n.build(|g| g.cast(past, DType::F32))?);
    }
    of_sizes(n, "key", k, &[batch, steps, heads, key])?;
    of_sizes(n, "value", v, &[batch, steps, heads, value])?;
    if key == 0 {
        return Err(n.wrong("its keys have no elements"));
    }
    let (decay, beta) = (decay(n, sizes)?, beta(n, sizes)?);
    let scale = n.float("scale")?.map(f64::from).filter(|s| *s != 0.0);
    let per_head = match decay {
        Some(decay) => n.shape(decay)?.rank() == 3,
        None => true,
    };
    let inputs = Inputs { q, k, v, decay, beta, state, scale };
    let (y, last) = if batch == 0 || steps == 0 {
        inputs.nothing(n, sizes)?
    } else if rule.delta && per_head {
        inputs.as_delta_net(n, sizes)?
    } else {
        inputs.as_scan(n, sizes, rule)?
    };
    let y = reshaped(n, y, &[batch, steps, q_heads * value])?;
    let y = n.build(|g| g.cast(y, dtype))?;
    let last = n.build(|g| g.cast(last, state_type.1))?;
    Ok(vec![n.result(y, element), n.result(last, state_type.0)])
}

/// Input `i`, `[batch, steps, heads·size]`, as `[batch, steps, heads, size]`.
fn heads_apart(n: &mut NodeContext<'_, '_>, i: usize, heads: usize) -> Answer<ValueId> {
    let x = n.tensor(i)?;
    let shape = n.shape(x)?;
    let &[batch, steps, hidden] = shape.dims() else {
        return Err(n.wrong(format!("input {i} should be batch, sequence, heads, it is {shape}")));
    };
    let size = divided(n, hidden, heads, "heads")?;
    reshaped(n, x, &[batch, steps, heads, size])
}

fn of_sizes(n: &mut NodeContext<'_, '_>, what: &str, x: ValueId, sizes: &[usize]) -> Answer<()> {
    let shape = n.shape(x)?;
    if shape.dims() == sizes { Ok(()) } else { Err(n.wrong(format!("{what} is {shape}, not {sizes:?}"))) }
}

/// The decay, one for a head or one for each element of a key.
fn decay(n: &mut NodeContext<'_, '_>, sizes: Sizes) -> Answer<Option<ValueId>> {
    let Some(decay) = n.optional(4)? else { return Ok(None) };
    let Sizes { batch, steps, heads, key, .. } = sizes;
    if n.shape(decay)?.last() == Some(&heads) {
        of_sizes(n, "decay", decay, &[batch, steps, heads])?;
        return Ok(Some(decay));
    }
    of_sizes(n, "decay", decay, &[batch, steps, heads * key])?;
    reshaped(n, decay, &[batch, steps, heads, key]).map(Some)
}

fn beta(n: &mut NodeContext<'_, '_>, sizes: Sizes) -> Answer<Option<ValueId>> {
    let Some(beta) = n.optional(5)? else { return Ok(None) };
    let Sizes { batch, steps, heads, .. } = sizes;
    if n.shape(beta)?.last() != Some(&heads) {
        of_sizes(n, "beta", beta, &[batch, steps, 1])?;
    }
    n.build(|g| g.expand(beta, [batch, steps, heads])).map(Some)
}

impl Inputs {
    /// No step at all.
    fn nothing(&self, n: &mut NodeContext<'_, '_>, sizes: Sizes) -> Answer<(ValueId, ValueId)> {
        let Sizes { batch, steps, heads, group, value, .. } = sizes;
        let zero = n.scalar(DType::F32, 0.0);
        let y = n.build(|g| g.fill(zero, [batch, steps, heads * group, value]))?;
        Ok((y, self.first_state(n, sizes)?))
    }

    fn first_state(&self, n: &mut NodeContext<'_, '_>, sizes: Sizes) -> Answer<ValueId> {
        let Some(state) = self.state else {
            let zero = n.scalar(DType::F32, 0.0);
            return n.build(|g| g.fill(zero, [sizes.batch, sizes.heads, sizes.key, sizes.value]));
        };
        Ok(state)
    }

    /// The delta rule with one decay for a head, as the graph has it; every query head gets a state of its own.
    fn as_delta_net(&self, n: &mut NodeContext<'_, '_>, sizes: Sizes) -> Answer<(ValueId, ValueId)> {
        let Sizes { batch, steps, heads, group, key, value } = sizes;
        let dtype = n.dtype(self.v)?;
        let zero = n.scalar(dtype, 0.0);
        let Inputs { q, k, v, decay, beta, state, scale } = *self;
        let beta = beta.ok_or_else(|| n.wrong("the delta rule needs beta"))?;
        let last = n.build(|g| {
            let decay = match decay {
                Some(decay) => decay,
                None => g.fill(zero, [batch, steps, heads])?,
            };
            let each = |g: &mut Graph, x: ValueId, axis: isize| {
                if group == 1 { Ok(x) } else { g.repeat(x, axis, group) }
            };
            let state = match state {
                Some(state) => Some(each(g, state, 1)?),
                None => None,
            };
            let operands = [q, each(g, k, 2)?, each(g, v, 2)?, each(g, decay, 2)?, each(g, beta, 2)?];
            let spec = GatedDeltaNet { scale, normalise: None, state: state.is_some() };
            g.gated_delta_net(spec, operands, state)
        })?;
        let (y, last) = last;
        if group == 1 {
            return Ok((y, last));
        }
        // The states of a group are equal.
        let last = reshaped(n, last, &[batch, heads, group, key, value])?;
        let last = n.build(|g| g.narrow(last, 2, 0, 1))?;
        Ok((y, reshaped(n, last, &[batch, heads, key, value])?))
    }

    /// One step after another, in f32.
    fn as_scan(&self, n: &mut NodeContext<'_, '_>, sizes: Sizes, rule: Rule) -> Answer<(ValueId, ValueId)> {
        let Sizes { batch, steps, heads, group, key, value } = sizes;
        let scale = self.scale.unwrap_or(1.0 / (key as f64).sqrt());
        let first = self.first_state(n, sizes)?;
        let mut operands = vec![first];
        // Keys are columns and values are rows, so that a step needs no other layout.
        let mut slices = vec![
            (self.q, vec![heads, group, key]),
            (self.k, vec![heads, key, 1]),
            (self.v, vec![heads, 1, value]),
        ];
        if let Some(decay) = self.decay {
            let per_head = n.shape(decay)?.rank() == 3;
            slices.push((decay, vec![heads, if per_head { 1 } else { key }, 1]));
        }
        slices.extend(self.beta.map(|beta| (beta, vec![heads, 1, 1])));
        for (x, dims) in slices {
            let wide = n.build(|g| g.cast(x, DType::F32))?;
            operands.push(reshaped(n, wide, &[&[batch, steps], dims.as_slice()].concat())?);
        }
        let axes = vec![1; operands.len() - 1];
        let results = n.build(|g| {
            operands[1] = g.binary_scalar(Binary::Mul, operands[1], scale)?;
            if rule.gated {
                operands[4] = g.exp(operands[4])?;
            }
            let mut body = Graph::new("linear attention");
            let mut inner = Vec::with_capacity(operands.len());
            for (i, id) in operands.iter().enumerate() {
                let mut dims = g.ty(*id)?.shape.to_vec();
                if i > 0 {
                    dims.remove(1);
                }
                inner.push(body.input(&format!("input_{i}"), DType::F32, dims.as_slice())?);
            }
            step(&mut body, &inner, rule)?;
            let body = SubGraph::new(body)?;
            let op = Scan {
                states: 1,
                axes,
                reverse: Vec::new(),
                out_axes: vec![1],
                out_reverse: Vec::new(),
                body,
            };
            g.add_op(op, &operands)
        })?;
        match results.as_slice() {
            [last, y] => Ok((*y, *last)),
            _ => Err(n.wrong("a scan of one state has two results")),
        }
    }
}

/// One step: the next state and the output.
fn step(g: &mut Graph, inputs: &[ValueId], rule: Rule) -> Result<(), GraphError> {
    let &[state, q, k, v, ..] = inputs else {
        return Err(GraphError::Invalid { location: g.name().into(), problem: "a step lacks inputs".into() });
    };
    let mut extra = inputs[4..].iter().copied();
    let (mut state, mut v) = (state, v);
    if rule.gated
        && let Some(decay) = extra.next()
    {
        state = g.mul(state, decay)?;
    }
    if rule.delta
        && let Some(beta) = extra.next()
    {
        let row = g.swap_last_axes(k)?;
        let held = g.matmul(row, state)?;
        let new = g.sub(v, held)?;
        v = g.mul(new, beta)?;
    }
    let outer = g.mul(k, v)?;
    let state = g.add(state, outer)?;
    let y = g.matmul(q, state)?;
    g.output("state", state)?;
    g.output("y", y)
}
