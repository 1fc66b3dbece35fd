//! Recurrent layers: the graph's own where it has the functions, a scan of the cell where it has not.

use olivine_ir::op::{Direction, GateFunction, Recurrent, RecurrentKind, RecurrentLayer};

use super::Entry;
use super::arity::Takes;
use super::cell::{Function, scanned};
use super::compose::cast;
use crate::import::{Answer, NodeContext, Value};

pub(super) const OPERATORS: &[Entry] = &[
    ("GRU", Takes(6, 2), |n| layer(n, RecurrentKind::Gru)),
    ("LSTM", Takes(8, 3), |n| layer(n, RecurrentKind::Lstm)),
    ("RNN", Takes(6, 2), |n| layer(n, RecurrentKind::Rnn)),
];

fn layer(n: &mut NodeContext<'_, '_>, kind: RecurrentKind) -> Answer<Vec<Value>> {
    let direction = n.string_or("direction", "forward")?.to_lowercase();
    let direction = Direction::from_name(&direction)
        .ok_or_else(|| n.wrong(format!("direction `{direction}` is unknown")))?;
    let functions = functions(n, kind, direction)?;
    let clip = n.float("clip")?.map(f64::from).filter(|c| *c > 0.0);
    let x = n.tensor(0)?;
    let dtype = n.dtype(x)?;
    let lstm = kind == RecurrentKind::Lstm;
    let layer = RecurrentLayer {
        w: n.tensor(1)?,
        r: n.tensor(2)?,
        bias: n.optional(3)?,
        initial_h: n.optional(5)?,
        initial_c: if lstm { n.optional(6)? } else { None },
        peepholes: if lstm { n.optional(7)? } else { None },
    };
    if let Some(hidden) = n.int("hidden_size")? {
        let given = n.shape(layer.r)?;
        if given.last().copied() != usize::try_from(hidden).ok() {
            return Err(n.wrong(format!("hidden_size {hidden} does not fit R of {given}")));
        }
    }
    let lengths = n.optional(4)?;
    let plain: Option<Vec<GateFunction>> = functions.iter().map(|f| f.plain()).collect();
    let spec = Recurrent {
        batch_first: n.flag("layout", false)?,
        functions: plain.clone().unwrap_or_default(),
        clip,
        reset_after: kind == RecurrentKind::Gru && n.flag("linear_before_reset", false)?,
        input_forget: lstm && n.flag("input_forget", false)?,
        ..Recurrent::new(kind, direction)
    };
    let results = match plain {
        Some(_) => n.build(|g| g.recurrent(spec, x, &layer, lengths))?,
        None => scanned(n, &spec, &functions, x, &layer, lengths)?,
    };
    let element = n.element(0)?;
    let mut values = Vec::with_capacity(results.len());
    for id in results {
        let id = cast(n, id, dtype)?;
        values.push(n.result(id, element));
    }
    Ok(values)
}

/// The functions of every direction, with the numbers that are given for them.
fn functions(n: &NodeContext<'_, '_>, kind: RecurrentKind, direction: Direction) -> Answer<Vec<Function>> {
    let usual = kind.functions().repeat(direction.count());
    let Some(names) = n.strings("activations")? else {
        return Ok(usual.into_iter().map(Function::Gate).collect());
    };
    if names.len() != usual.len() {
        return Err(n.wrong(format!("{} activations where {} are needed", names.len(), usual.len())));
    }
    // Numbers go, in order, to those functions that have any.
    let mut alphas = n.floats("activation_alpha")?.unwrap_or_default().into_iter();
    let mut betas = n.floats("activation_beta")?.unwrap_or_default().into_iter();
    let mut found = Vec::with_capacity(usual.len());
    for name in &names {
        let mut alpha = |default: f64| alphas.next().map_or(default, f64::from);
        let mut beta = |default: f64| betas.next().map_or(default, f64::from);
        found.push(match name.to_lowercase().as_str() {
            "tanh" => Function::Gate(GateFunction::Tanh),
            "sigmoid" => Function::Gate(GateFunction::Sigmoid),
            "relu" => Function::Gate(GateFunction::Relu),
            "softsign" => Function::Gate(GateFunction::Softsign),
            "softplus" => Function::Gate(GateFunction::Softplus),
            "affine" => Function::Affine { alpha: alpha(1.0), beta: beta(0.0) },
            "leakyrelu" => Function::LeakyRelu { alpha: alpha(0.01) },
            "thresholdedrelu" => Function::ThresholdedRelu { alpha: alpha(1.0) },
            "scaledtanh" => Function::ScaledTanh { alpha: alpha(1.0), beta: beta(1.0) },
            "hardsigmoid" => Function::HardSigmoid { alpha: alpha(0.2), beta: beta(0.5) },
            "elu" => Function::Elu { alpha: alpha(1.0) },
            _ => return Err(n.wrong(format!("activation `{name}` is unknown"))),
        });
    }
    Ok(found)
}
