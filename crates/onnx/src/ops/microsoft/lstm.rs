//! DynamicQuantizeLSTM of com.microsoft: an LSTM whose weights are integers.
//!
//! The input is quantised and so are the weights; the hidden state, which the operator would quantise anew at every step
//! to have integer matmuls, stays as it is.

use olivine_ir::ValueId;
use olivine_ir::op::{Direction, GateFunction, Recurrent, RecurrentKind, RecurrentLayer};

use crate::ElementType;
use crate::import::{Answer, NodeContext, Value};
use crate::ops::Entry;
use crate::ops::arity::Takes;
use crate::ops::cast::convert;
use crate::ops::elementwise::reshaped;

pub(super) const OPERATORS: &[Entry] = &[("DynamicQuantizeLSTM", Takes(12, 3), lstm)];

fn lstm(n: &mut NodeContext<'_, '_>) -> Answer<Vec<Value>> {
    let x = n.tensor(0)?;
    let x = n.build(|g| {
        let done = g.dynamic_quantize_linear(x)?;
        g.dequantize_linear(done.values, done.scale, done.zero, 0, 0)
    })?;
    let (w, r) = (weights(n, 1, 8)?, weights(n, 2, 10)?);
    let layer = RecurrentLayer {
        w,
        r,
        bias: n.optional(3)?,
        initial_h: n.optional(5)?,
        initial_c: n.optional(6)?,
        peepholes: n.optional(7)?,
    };
    let lengths = n.optional(4)?;
    let spec = spec(n)?;
    let results = n.build(|g| g.recurrent(spec, x, &layer, lengths))?;
    Ok(results.into_iter().map(|id| n.result(id, ElementType::F32)).collect())
}

/// Input `at`, integers `[directions, in, 4·hidden]`, as f32 with the last two axes swapped; its scales, one a direction
/// or one a column, are input `scale`, and its zero points the one after.
fn weights(n: &mut NodeContext<'_, '_>, at: usize, scale: usize) -> Answer<ValueId> {
    let (w, element) = (n.tensor(at)?, n.element(at)?);
    let sizes = n.shape(w)?;
    let [directions, _, columns] = sizes.dims() else {
        return Err(n.wrong(format!("input {at} should have three axes, it is {sizes}")));
    };
    let over = |n: &mut NodeContext<'_, '_>, x: ValueId| {
        let shape = n.shape(x)?;
        match shape.numel() {
            one if one == *directions => reshaped(n, x, &[*directions, 1, 1]),
            each if each == directions * columns => reshaped(n, x, &[*directions, 1, *columns]),
            _ => Err(n.wrong(format!("scales or zero points {shape} do not lie over {sizes}"))),
        }
    };
    let scales = n.tensor(scale)?;
    let scales = over(n, scales)?;
    let zero = match n.optional(scale + 1)? {
        Some(zero) if n.element(scale + 1)? == element => Some(over(n, zero)?),
        Some(_) => return Err(n.wrong(format!("input {at} and its zero points differ in type"))),
        None => None,
    };
    n.build(|g| {
        let mut w = convert(g, w, element, ElementType::F32)?;
        if let Some(zero) = zero {
            let zero = convert(g, zero, element, ElementType::F32)?;
            w = g.sub(w, zero)?;
        }
        let w = g.mul(w, scales)?;
        g.transpose(w, &[0, 2, 1])
    })
}

/// The layer that the attributes describe.
fn spec(n: &NodeContext<'_, '_>) -> Answer<Recurrent> {
    let direction = match n.string_or("direction", "forward")?.as_str() {
        "forward" => Direction::Forward,
        "reverse" => Direction::Reverse,
        "bidirectional" => Direction::Bidirectional,
        other => return Err(n.wrong(format!("direction `{other}` is unknown"))),
    };
    let mut spec = Recurrent::new(RecurrentKind::Lstm, direction);
    spec.clip = n.float("clip")?.map(f64::from);
    spec.input_forget = n.flag("input_forget", false)?;
    for name in ["activation_alpha", "activation_beta"] {
        if n.floats(name)?.is_some_and(|v| !v.is_empty()) {
            return Err(n.wrong(format!("attribute `{name}` cannot be imported")));
        }
    }
    let Some(names) = n.strings("activations")?.filter(|names| !names.is_empty()) else { return Ok(spec) };
    if names.len() != spec.functions.len() {
        return Err(n.wrong(format!("{} activations should be {}", names.len(), spec.functions.len())));
    }
    for (function, name) in spec.functions.iter_mut().zip(names) {
        *function = match name.to_lowercase().as_str() {
            "tanh" => GateFunction::Tanh,
            "sigmoid" => GateFunction::Sigmoid,
            "relu" => GateFunction::Relu,
            "hardsigmoid" => GateFunction::HardSigmoid,
            "softsign" => GateFunction::Softsign,
            "softplus" => GateFunction::Softplus,
            other => return Err(n.wrong(format!("activation `{other}` cannot be imported"))),
        };
    }
    Ok(spec)
}
