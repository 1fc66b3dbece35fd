//! Log-probabilities of given tokens, and the perplexity of a text.

use olivine::CacheType;
use olivine::internals::models::{CausalLm, DecoderOptions, PAGE};
use olivine::ir::{DType, Shape, Tensor};
use olivine::{Input, Session};

use crate::caches::Caches;
use crate::graph::{self, Step};
use crate::request::check_tokens;
use crate::{Error, recurrent};

/// Positions of one run.
const CHUNK: usize = 128;

/// A model that scores given tokens.
pub struct Scorer {
    step: Step,
    rows: Vec<([usize; 2], [usize; 2])>,
    cache: CacheType,
    context: usize,
}

/// How well a model predicts a text.
#[derive(Clone, Copy, Debug)]
pub struct Perplexity {
    /// Tokens that were scored.
    pub tokens: usize,
    /// The mean of their negative log-probabilities.
    pub mean: f64,
    /// The standard error of the mean.
    pub error: f64,
}

impl Perplexity {
    /// e to the mean.
    pub fn value(&self) -> f64 {
        self.mean.exp()
    }
}

impl Scorer {
    pub(crate) fn new(model: &CausalLm, session: &Session, cache: CacheType) -> Result<Self, Error> {
        let options = DecoderOptions { cache: Some(cache), picked: false, context: None };
        let mut built = model.decoder(&options)?;
        let g = &mut built.graph;
        let dims = ["batch", "sequence", ""].map(|name| (!name.is_empty()).then(|| name.to_string()));
        let targets = g.input_with_dims("targets", DType::I64, Shape::new(&[1, 8, 1])?, dims.to_vec())?;
        let logprobs = g.log_softmax(built.logits, -1)?;
        let chosen = g.gather_elements(logprobs, targets, 2)?;
        let chosen = g.reshape(chosen, &[0, 0])?;
        g.output("logprobs", chosen)?;
        let step = graph::load(built, session, &["logprobs"])?;
        Ok(Scorer { step, rows: model.cache_rows(), cache, context: model.context() })
    }

    /// The log-probability of every token after the first, given those before it.
    pub fn logprobs(&self, tokens: &[i64]) -> Result<Vec<f64>, Error> {
        let context = self.context;
        if tokens.len() > context {
            return Err(Error::PromptTooLong { tokens: tokens.len(), context });
        }
        check_tokens(tokens.iter().copied(), self.step.vocabulary)?;
        let count = tokens.len().div_ceil(PAGE).max(1);
        let mut caches = Caches::new(&self.step, &self.rows, self.cache, (count, true), 1)?;
        let pages = Tensor::new([1, count], (0..count as i32).collect())?;
        let mut all = Vec::with_capacity(tokens.len());
        let mut start = 0;
        while start + 1 < tokens.len() {
            let count = CHUNK.min(tokens.len() - 1 - start);
            let row = |from: usize| Tensor::new([1, count], tokens[from..from + count].to_vec());
            let positions = Tensor::new([1, count], (start..start + count).map(|p| p as i64).collect())?;
            let targets = row(start + 1)?.reshaped([1, count, 1])?;
            let (starts, lengths) = (Tensor::from([start as i64]), Tensor::from([(start + count) as i64]));
            let inputs = [
                ("tokens", &row(start)?),
                ("positions", &positions),
                ("starts", &starts),
                ("lengths", &lengths),
                ("pages", &pages),
                ("targets", &targets),
            ];
            let slots = recurrent::slot_input(std::iter::once(Some(0)))?;
            let slots = (!self.step.recurrent.is_empty()).then_some(("slots", &slots));
            let inputs = inputs.into_iter().chain(slots).map(|(name, tensor)| (name, Input::from(tensor)));
            let out = self.step.executable.run_with_state(caches.state(), inputs)?;
            all.extend(out.get("logprobs")?.as_slice::<f32>()?.iter().map(|x| f64::from(*x)));
            start += count;
        }
        Ok(all)
    }

    /// The perplexity of a text in windows of so many tokens, of which the second half is scored, as llama.cpp does it.
    /// `first` begins every window in place of its first token, as a model with a token for that expects.
    pub fn perplexity(&self, tokens: &[i64], window: usize, first: Option<i64>) -> Result<Perplexity, Error> {
        if window < 4 || window > self.context {
            return Err(Error::Invalid { what: "a window", value: format!("{window} tokens") });
        }
        if tokens.len() < window {
            let value = format!("{} tokens, which is less than a window of {window}", tokens.len());
            return Err(Error::Invalid { what: "a text", value });
        }
        let (mut count, mut sum, mut squares) = (0usize, 0.0, 0.0);
        for part in tokens.chunks_exact(window) {
            let mut part = part.to_vec();
            if let Some(first) = first {
                part[0] = first;
            }
            for logprob in self.logprobs(&part)?.into_iter().skip(window / 2) {
                (count, sum, squares) = (count + 1, sum - logprob, squares + logprob * logprob);
            }
        }
        let mean = sum / count as f64;
        let variance = (squares / count as f64 - mean * mean).max(0.0);
        Ok(Perplexity { tokens: count, mean, error: (variance / (count.max(2) - 1) as f64).sqrt() })
    }
}
