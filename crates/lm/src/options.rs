//! How an engine decodes.

use olivine::CacheType;

/// The most that [`EngineOptions::top_logprobs`] may be.
pub const MOST_TOP_LOGPROBS: usize = 20;

/// What sequences that begin alike share of their caches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Share {
    /// Nothing: every prompt is computed.
    Nothing,
    /// Whole chunks of prompts. Results are the same bits as without sharing.
    #[default]
    Chunks,
    /// Whole pages, those of generated tokens too, as a chat wants it. Results then depend in their last digits on what was there.
    Pages,
}

/// How an engine decodes.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct EngineOptions {
    /// Sequences that are decoded at once.
    pub slots: usize,
    /// Positions of a sequence at most; the model's own if not given, and never more.
    pub context: Option<usize>,
    /// Tokens of a prompt that a step computes at most.
    pub chunk: usize,
    /// The elements of key-value caches.
    pub cache: CacheType,
    /// Positions of all caches together, which are allocated at once. If not given, caches grow as sequences need it.
    pub cache_tokens: Option<usize>,
    /// What sequences that begin alike share.
    pub share: Share,
    /// Tokens at most that are drafted for sequences which take the likeliest, by what followed the same tokens before, and verified in
    /// one run; 0 for none. Tokens then differ from those without drafts only where two are as likely up to rounding.
    pub draft: usize,
    /// Whether events have the log-probabilities of their tokens.
    pub logprobs: bool,
    /// Whether a step is submitted before the tokens of the step before are read, so that the device never waits for the host: tokens
    /// come a step later, and a sequence that a token ends has been computed for a step more. Sequences with constraints or penalties, and
    /// drafts, are always computed with the tokens read. If not given, on GPUs alone: the CPU does not compute while the host does.
    pub ahead: Option<bool>,
    /// How many of the likeliest tokens requests may ask for with each token, [`MOST_TOP_LOGPROBS`] at most; with
    /// [`EngineOptions::logprobs`] only.
    pub top_logprobs: usize,
}

impl Default for EngineOptions {
    fn default() -> Self {
        EngineOptions {
            slots: 1,
            context: None,
            chunk: 512,
            cache: CacheType::F32,
            cache_tokens: None,
            share: Share::default(),
            draft: 0,
            logprobs: false,
            ahead: None,
            top_logprobs: 0,
        }
    }
}

impl EngineOptions {
    /// Sets [`EngineOptions::slots`].
    pub fn slots(self, slots: usize) -> Self {
        EngineOptions { slots, ..self }
    }

    /// Sets [`EngineOptions::context`].
    pub fn context(self, context: impl Into<Option<usize>>) -> Self {
        EngineOptions { context: context.into(), ..self }
    }

    /// Sets [`EngineOptions::chunk`].
    pub fn chunk(self, chunk: usize) -> Self {
        EngineOptions { chunk, ..self }
    }

    /// Sets [`EngineOptions::cache`].
    pub fn cache(self, cache: CacheType) -> Self {
        EngineOptions { cache, ..self }
    }

    /// Sets [`EngineOptions::cache_tokens`].
    pub fn cache_tokens(self, tokens: impl Into<Option<usize>>) -> Self {
        EngineOptions { cache_tokens: tokens.into(), ..self }
    }

    /// Sets [`EngineOptions::share`].
    pub fn share(self, share: Share) -> Self {
        EngineOptions { share, ..self }
    }

    /// Sets [`EngineOptions::draft`].
    pub fn draft(self, draft: usize) -> Self {
        EngineOptions { draft, ..self }
    }

    /// Sets [`EngineOptions::logprobs`].
    pub fn logprobs(self, logprobs: bool) -> Self {
        EngineOptions { logprobs, ..self }
    }

    /// Sets [`EngineOptions::ahead`].
    pub fn ahead(self, ahead: impl Into<Option<bool>>) -> Self {
        EngineOptions { ahead: ahead.into(), ..self }
    }

    /// Sets [`EngineOptions::top_logprobs`].
    pub fn top_logprobs(self, top_logprobs: usize) -> Self {
        EngineOptions { top_logprobs, ..self }
    }
}
