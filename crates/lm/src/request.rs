//! What is asked of an engine.

use crate::{Constraint, Error};

/// How tokens are chosen. The default takes the likeliest.
#[derive(Clone, Debug, PartialEq)]
pub struct Sampling {
    /// Divides the logits; 0 takes the likeliest token.
    pub temperature: f32,
    /// Only the k likeliest; 0 for all.
    pub top_k: i32,
    /// Only the fewest whose probabilities reach p; 1 for all.
    pub top_p: f32,
    /// Only those at least so many times as probable as the likeliest; 0 for all.
    pub min_p: f32,
    /// Divides positive logits of tokens that came before and multiplies others; 1 does nothing.
    pub repetition: f32,
    /// Subtracted from a token's logit for every time it came before.
    pub frequency: f32,
    /// Subtracted from the logits of tokens that came before.
    pub presence: f32,
    /// How many tokens before count for penalties; 0 for all.
    pub last_tokens: usize,
    /// Added to the logits of tokens.
    pub bias: Vec<(i64, f32)>,
    /// Draws with one seed are the same, whoever shares the batch.
    pub seed: u64,
}

impl Default for Sampling {
    fn default() -> Self {
        Sampling {
            temperature: 0.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            repetition: 1.0,
            frequency: 0.0,
            presence: 0.0,
            last_tokens: 64,
            bias: Vec::new(),
            seed: 0,
        }
    }
}

impl Sampling {
    /// Whether tokens before matter.
    pub(crate) fn penalises(&self) -> bool {
        self.repetition != 1.0 || self.frequency != 0.0 || self.presence != 0.0
    }

    /// Whether the likeliest token is taken, whatever came before.
    pub(crate) fn is_greedy(&self) -> bool {
        self.temperature == 0.0 && !self.penalises()
    }

    fn check(&self, vocabulary: usize) -> Result<(), Error> {
        let numbers = [
            ("temperature", self.temperature, self.temperature >= 0.0),
            ("top_p", self.top_p, (0.0..=1.0).contains(&self.top_p)),
            ("min_p", self.min_p, (0.0..=1.0).contains(&self.min_p)),
            ("repetition penalty", self.repetition, self.repetition > 0.0 && self.repetition.is_finite()),
            ("frequency penalty", self.frequency, self.frequency.is_finite()),
            ("presence penalty", self.presence, self.presence.is_finite()),
        ];
        if let Some((what, value, _)) = numbers.into_iter().find(|(_, _, fits)| !fits) {
            return Err(Error::Invalid { what, value: value.to_string() });
        }
        if let Some((_, bias)) = self.bias.iter().find(|(_, bias)| bias.is_nan()) {
            return Err(Error::Invalid { what: "a logit's bias", value: bias.to_string() });
        }
        check_tokens(self.bias.iter().map(|(token, _)| *token), vocabulary)
    }
}

/// Tokens to continue.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Request {
    /// The tokens before.
    pub prompt: Vec<i64>,
    /// How many to generate at most.
    pub max_tokens: usize,
    /// Tokens that end the sequence.
    pub stop: Vec<i64>,
    /// How they are chosen.
    pub sampling: Sampling,
    /// Which may be chosen, if not all.
    pub constraint: Option<Constraint>,
    /// How many of the likeliest tokens come with each token, up to [`EngineOptions::top_logprobs`](crate::EngineOptions).
    pub top_logprobs: usize,
}

impl Request {
    /// The likeliest continuation of a prompt.
    pub fn new(prompt: Vec<i64>, max_tokens: usize) -> Self {
        let (stop, sampling) = (Vec::new(), Sampling::default());
        Request { prompt, max_tokens, stop, sampling, constraint: None, top_logprobs: 0 }
    }

    /// Sets the tokens that end the sequence.
    pub fn stop(self, stop: impl IntoIterator<Item = i64>) -> Self {
        Request { stop: stop.into_iter().collect(), ..self }
    }

    /// Sets how tokens are chosen.
    pub fn sampling(self, sampling: Sampling) -> Self {
        Request { sampling, ..self }
    }

    /// Sets which tokens may be chosen.
    pub fn constraint(self, constraint: Constraint) -> Self {
        Request { constraint: Some(constraint), ..self }
    }

    /// Sets how many of the likeliest tokens come with each token.
    pub fn top_logprobs(self, top_logprobs: usize) -> Self {
        Request { top_logprobs, ..self }
    }

    pub(crate) fn check(&self, context: usize, vocabulary: usize, most_top: usize) -> Result<(), Error> {
        if self.top_logprobs > most_top {
            let value = format!("{}; the engine has {most_top}", self.top_logprobs);
            return Err(Error::Invalid { what: "the number of likeliest tokens", value });
        }
        if self.prompt.is_empty() {
            return Err(Error::EmptyPrompt);
        }
        if self.prompt.len() >= context {
            return Err(Error::PromptTooLong { tokens: self.prompt.len(), context });
        }
        check_tokens(self.prompt.iter().copied(), vocabulary)?;
        self.sampling.check(vocabulary)
    }
}

/// Refuses tokens that a model does not have.
pub(crate) fn check_tokens(tokens: impl Iterator<Item = i64>, vocabulary: usize) -> Result<(), Error> {
    for (position, token) in tokens.enumerate() {
        if !usize::try_from(token).is_ok_and(|token| token < vocabulary) {
            return Err(Error::UnknownToken { token, position, vocabulary });
        }
    }
    Ok(())
}

/// Why a sequence ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finish {
    /// A token that ends it, which is not among its tokens.
    Stop(i64),
    /// As many tokens as were asked for.
    Length,
    /// The context is full, or memory is too short for the caches to hold more of the sequence; without any token of its own, for its prompt.
    Context,
    /// The constraint allows no further token.
    Constraint,
}
