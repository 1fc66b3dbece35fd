//! The graph of a decoding step: tokens and caches to the next token of every sequence.

#[cfg(test)]
mod tests;

use olivine::internals::models::{CausalLm, DecoderGraph, DecoderOptions, RecurrentState};
use olivine::ir::op::{HeadLayout, ReduceKind, Sampling, ScatterMode};
use olivine::ir::{DType, Graph, Shape, Tensor, ValueId};
use olivine::{CompileOptions, Executable, Session};

use crate::{EngineOptions, Error, recurrent};

/// The state that has the last token of every slot, i64 `[slots, 1, 1, 1]`, and the output that replaces it.
pub(crate) const CHOSEN: &str = "chosen";
const CHOSEN_NEXT: &str = "chosen.next";

/// A compiled step.
pub(crate) struct Step {
    pub(crate) executable: Executable,
    pub(crate) vocabulary: usize,
    /// How many of the likeliest tokens it returns with each token.
    pub(crate) top: usize,
    /// The inputs that are caches.
    pub(crate) caches: Vec<String>,
    /// States of layers without attention.
    pub(crate) recurrent: Vec<RecurrentState>,
}

/// Compiles the step for sequences of so many positions.
pub(crate) fn compile(
    model: &CausalLm,
    session: &Session,
    context: usize,
    options: &EngineOptions,
) -> Result<Step, Error> {
    let decoder = DecoderOptions { cache: Some(options.cache), picked: true, context: Some(context) };
    let mut built = model.decoder(&decoder)?;
    let next = head(&mut built.graph, built.logits, built.vocabulary)?;
    let g = &mut built.graph;
    g.output("next", next)?;
    let all = g.log_softmax(built.logits, -1)?;
    let index = g.reshape(next, &[-1, 1])?;
    let chosen = g.gather_elements(all, index, 1)?;
    let chosen = g.reshape(chosen, &[-1])?;
    g.output("logprob", chosen)?;
    chosen_tokens(g, next)?;
    let top = options.top_logprobs.min(built.vocabulary);
    if top == 0 {
        return load(built, session, if options.logprobs { &["next", "logprob"] } else { &["next"] });
    }
    let (values, tokens) = g.top_k(all, top, -1, true)?;
    g.output("top_logprobs", values)?;
    g.output("top_tokens", tokens)?;
    let step = load(built, session, &["next", "logprob", "top_logprobs", "top_tokens"])?;
    Ok(Step { top, ..step })
}

/// Puts the tokens of a run's rows in a state with a place for every slot, so that the next run can begin with them before the host
/// has read them. Those of -1 are not put anywhere.
fn chosen_tokens(g: &mut Graph, next: ValueId) -> Result<(), Error> {
    let open = |names: [&str; 4]| names.map(|name| (!name.is_empty()).then(|| name.to_string())).to_vec();
    let chosen =
        g.input_with_dims(CHOSEN, DType::I64, Shape::new(&[1, 1, 1, 1])?, open(["chosen", "", "", ""]))?;
    let dims = vec![Some("rows".to_string()), None];
    let places = g.input_with_dims("places", DType::I32, Shape::new(&[1, 1])?, dims)?;
    let tokens = g.cast(next, DType::I64)?;
    let tokens = g.reshape(tokens, &[-1, 1, 1, 1])?;
    let first = g.constant(Tensor::scalar(0i64));
    // A slot is a page of one position.
    let after = g.kv_append_pages(HeadLayout::Bshd, chosen, tokens, first, places)?;
    Ok(g.output(CHOSEN_NEXT, after)?)
}

/// Compiles a graph with its caches as state and brings its weights to the device.
pub(crate) fn load(built: DecoderGraph, session: &Session, outputs: &[&str]) -> Result<Step, Error> {
    let has_chosen = built.graph.inputs().any(|(name, _)| name == CHOSEN);
    let chosen = has_chosen.then(|| (CHOSEN.to_string(), CHOSEN_NEXT.to_string()));
    let states: Vec<(String, String)> =
        built.states.iter().cloned().chain(recurrent::pairs(&built.recurrent)).chain(chosen).collect();
    let wanted: Vec<&str> =
        states.iter().map(|(_, output)| output.as_str()).chain(outputs.iter().copied()).collect();
    let options = CompileOptions::new().states(states.clone()).outputs(wanted);
    let executable = session.compile_with(&built.graph, &options)?;
    executable.set_params(built.params)?;
    let caches = built.states.into_iter().map(|(input, _)| input).collect();
    Ok(Step { executable, vocabulary: built.vocabulary, top: 0, caches, recurrent: built.recurrent })
}

/// From logits `[rows, vocabulary]` to a token of each row: penalties, biases, the tokens that may come, then a draw.
///
/// What no row of a run asks for has the size 0 there, and with it a plan without that step: recent tokens, biases, masks of tokens, and
/// draws, without which every row takes its likeliest token. That is the plan that is compiled first.
fn head(g: &mut Graph, logits: ValueId, vocabulary: usize) -> Result<ValueId, Error> {
    let mut per_row = |name: &str, dtype: DType, sizes: &[(&str, usize)]| {
        let dims = [("rows", 1)].iter().chain(sizes);
        let (names, sizes): (Vec<Option<String>>, Vec<usize>) =
            dims.map(|(name, size)| (Some(name.to_string()), *size)).unzip();
        g.input_with_dims(name, dtype, Shape::new(&sizes)?, names)
    };
    let recent = per_row("recent", DType::I64, &[("recent", 0)])?;
    let [repetition, frequency, presence] =
        ["repetition", "frequency", "presence"].map(|name| per_row(name, DType::F32, &[]));
    let ids = per_row("bias_tokens", DType::I64, &[("biases", 0)])?;
    let bias = per_row("biases", DType::F32, &[("biases", 0)])?;
    let [temperature, top_p, min_p] =
        ["temperature", "top_p", "min_p"].map(|name| per_row(name, DType::F32, &[]));
    let top_k = per_row("top_k", DType::I32, &[])?;
    let draws = vec![Some("draws".to_string()), None];
    let draws = g.input_with_dims("draws", DType::U32, Shape::new(&[0, 4])?, draws)?;
    let masks = vec![Some("masks".to_string()), Some("rows".to_string()), None];
    let masks = g.input_with_dims("allowed", DType::Bool, Shape::new(&[0, 1, vocabulary])?, masks)?;
    let logits = g.penalties(logits, recent, Some(repetition?), Some(frequency?), Some(presence?))?;
    let logits = g.scatter_elements(logits, ids, bias, 1, ScatterMode::Add)?;
    let allowed = g.reduce(ReduceKind::All, masks, &[0], false)?;
    let lowest = g.constant(Tensor::scalar(f32::NEG_INFINITY));
    let logits = g.select(allowed, logits, lowest)?;
    let how = Sampling {
        temperature: Some(temperature?),
        top_k: Some(top_k),
        top_p: Some(top_p?),
        min_p: Some(min_p?),
        seed: 0,
        draws: Some(draws),
    };
    Ok(g.sample(logits, how)?)
}
