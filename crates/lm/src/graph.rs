//! The graph of a decoding step: tokens and caches to the next token of every sequence.

use olivine::internals::models::{CausalLm, DecoderGraph, DecoderOptions};
use olivine::ir::op::{Sampling, ScatterMode};
use olivine::ir::{DType, Graph, Shape, Tensor, ValueId};
use olivine::{CompileOptions, Executable, Session};

use crate::Error;

/// A compiled step.
pub(crate) struct Step {
    pub(crate) executable: Executable,
    pub(crate) vocabulary: usize,
    /// The inputs that are caches.
    pub(crate) caches: Vec<String>,
}

/// Compiles the step with caches of a dtype.
pub(crate) fn compile(
    model: &CausalLm,
    session: &Session,
    dtype: DType,
    context: usize,
    logprobs: bool,
) -> Result<Step, Error> {
    let options = DecoderOptions { cache: Some(dtype), picked: true, context: Some(context) };
    let mut built = model.decoder(&options)?;
    let next = head(&mut built.graph, built.logits, built.vocabulary)?;
    let g = &mut built.graph;
    g.output("next", next)?;
    let all = g.log_softmax(built.logits, -1)?;
    let index = g.reshape(next, &[-1, 1])?;
    let chosen = g.gather_elements(all, index, 1)?;
    let chosen = g.reshape(chosen, &[-1])?;
    g.output("logprob", chosen)?;
    load(built, session, if logprobs { &["next", "logprob"] } else { &["next"] })
}

/// Compiles a graph with its caches as state and brings its weights to the device.
pub(crate) fn load(built: DecoderGraph, session: &Session, outputs: &[&str]) -> Result<Step, Error> {
    let wanted = built.states.iter().map(|(_, output)| output.as_str()).chain(outputs.iter().copied());
    let options = CompileOptions::new().states(built.states.clone()).outputs(wanted);
    let executable = session.compile_with(&built.graph, &options)?;
    executable.set_params(built.params)?;
    let caches = built.states.into_iter().map(|(input, _)| input).collect();
    Ok(Step { executable, vocabulary: built.vocabulary, caches })
}

/// From logits `[rows, vocabulary]` to a token of each row: penalties, biases, the tokens that may come, then a draw.
fn head(g: &mut Graph, logits: ValueId, vocabulary: usize) -> Result<ValueId, Error> {
    let mut per_row = |name: &str, dtype: DType, sizes: &[(&str, usize)]| {
        let dims = [("rows", 1)].iter().chain(sizes);
        let (names, sizes): (Vec<Option<String>>, Vec<usize>) =
            dims.map(|(name, size)| ((!name.is_empty()).then(|| name.to_string()), *size)).unzip();
        g.input_with_dims(name, dtype, Shape::new(&sizes)?, names)
    };
    let recent = per_row("recent", DType::I64, &[("recent", 2)])?;
    let [repetition, frequency, presence] =
        ["repetition", "frequency", "presence"].map(|name| per_row(name, DType::F32, &[]));
    let ids = per_row("bias_tokens", DType::I64, &[("biases", 2)])?;
    let bias = per_row("biases", DType::F32, &[("biases", 2)])?;
    let [temperature, top_p, min_p] =
        ["temperature", "top_p", "min_p"].map(|name| per_row(name, DType::F32, &[]));
    let top_k = per_row("top_k", DType::I32, &[])?;
    let draws = per_row("draws", DType::U32, &[("", 4)])?;
    // One flag for all of a row, or one each: the size 1 has a plan of its own.
    let allowed = per_row("allowed", DType::Bool, &[("allowed", vocabulary)])?;
    let logits = g.penalties(logits, recent, Some(repetition?), Some(frequency?), Some(presence?))?;
    let logits = g.scatter_elements(logits, ids, bias, 1, ScatterMode::Add)?;
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
