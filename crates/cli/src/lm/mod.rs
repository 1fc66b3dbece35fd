//! Commands on language models.
//!
//! ```text
//!   text.rs        text to tokens and back
//!   generate.rs    continues a prompt
//!   chat.rs        a conversation
//!   perplexity.rs  how well a model predicts a text
//!   bench.rs       prefill, decode, time to the first token
//!   serve.rs       a server by OpenAI's API
//! ```

pub(crate) mod bench;
pub(crate) mod chat;
pub(crate) mod generate;
pub(crate) mod perplexity;
#[cfg(feature = "serve")]
pub(crate) mod serve;
pub(crate) mod text;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::{Args, ValueEnum};
use olivine::Session;
use olivine_lm::{CacheType, Engine, EngineOptions, Event, Finish, LanguageModel, Request, Sampling, Share};

use crate::answer::Failure;

/// The model.
#[derive(Args)]
pub(crate) struct ModelArgs {
    /// The model: a GGUF file, or a folder with config.json and safetensors.
    #[arg(value_name = "MODEL")]
    path: PathBuf,
}

/// How it is decoded.
#[derive(Args)]
pub(crate) struct EngineArgs {
    /// Positions of a sequence at most; the model's own if not given.
    #[arg(long, value_name = "N")]
    context: Option<usize>,
    /// Tokens of a prompt that are computed at once.
    #[arg(long, value_name = "N", default_value_t = 512)]
    chunk: usize,
    /// The element type of key-value caches; if not given, f16 where matmuls are, on GPUs with f16 unless --precision is exact, and
    /// f32 elsewhere.
    #[arg(long, value_enum)]
    cache_type: Option<CacheName>,
    /// Positions of all caches together, allocated at once; without it they grow.
    #[arg(long, value_name = "N")]
    cache_tokens: Option<usize>,
    /// Draft up to N tokens by what followed the same tokens before, and verify them at once; 0 for none.
    #[arg(long, value_name = "N", default_value_t = 0)]
    draft: usize,
}

#[derive(Clone, Copy, ValueEnum)]
pub(crate) enum CacheName {
    F32,
    F16,
    Bf16,
    #[value(name = "q8_0")]
    Q8_0,
}

impl From<CacheName> for CacheType {
    fn from(name: CacheName) -> CacheType {
        match name {
            CacheName::F32 => CacheType::F32,
            CacheName::F16 => CacheType::F16,
            CacheName::Bf16 => CacheType::BF16,
            CacheName::Q8_0 => CacheType::Q8_0,
        }
    }
}

impl ModelArgs {
    pub(crate) fn load(&self) -> Result<LanguageModel, Failure> {
        let named = |e: Failure| e.context(format!("cannot load `{}`", self.path.display()));
        LanguageModel::load(&self.path).map_err(|e| named(e.into()))
    }
}

impl EngineArgs {
    /// Options for so many sequences at once.
    pub(crate) fn options(&self, session: &Session, slots: usize) -> EngineOptions {
        let cache = match self.cache_type {
            Some(name) => name.into(),
            None if session.multiplies_f16() => CacheType::F16,
            None => CacheType::F32,
        };
        EngineOptions::default()
            .slots(slots)
            .context(self.context)
            .chunk(self.chunk)
            .cache(cache)
            .cache_tokens(self.cache_tokens)
            .draft(self.draft)
    }

    /// A compiled model for so many sequences at once.
    pub(crate) fn engine(
        &self,
        model: &LanguageModel,
        session: &Session,
        slots: usize,
        share: Share,
    ) -> Result<Engine, Failure> {
        Ok(model.engine(session, &self.options(session, slots).share(share))?)
    }
}

/// How tokens are chosen.
#[derive(Args)]
pub(crate) struct SamplingArgs {
    /// Divides the logits; 0 takes the likeliest token.
    #[arg(long, value_name = "T", default_value_t = 0.0)]
    temperature: f32,
    /// Draw from the K likeliest tokens; 0 for all.
    #[arg(long, value_name = "K", default_value_t = 0)]
    top_k: u32,
    /// Draw from the fewest tokens whose probabilities reach P.
    #[arg(long, value_name = "P", default_value_t = 1.0)]
    top_p: f32,
    /// Draw from tokens at least P times as probable as the likeliest.
    #[arg(long, value_name = "P", default_value_t = 0.0)]
    min_p: f32,
    /// Makes tokens that came before less likely; 1 does nothing.
    #[arg(long, value_name = "X", default_value_t = 1.0)]
    repeat_penalty: f32,
    /// Subtracted from a token's logit for every time it came before.
    #[arg(long, value_name = "X", default_value_t = 0.0)]
    frequency_penalty: f32,
    /// Subtracted from the logits of tokens that came before.
    #[arg(long, value_name = "X", default_value_t = 0.0)]
    presence_penalty: f32,
    /// How many tokens before count for penalties; 0 for all.
    #[arg(long, value_name = "N", default_value_t = 64)]
    repeat_last: usize,
    /// Adds to the logit of a token: ID=X. May be given several times.
    #[arg(long, value_name = "ID=X", value_parser = bias)]
    logit_bias: Vec<(i64, f32)>,
    /// The seed of draws.
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,
}

fn bias(text: &str) -> Result<(i64, f32), String> {
    let parsed =
        text.split_once('=').and_then(|(id, x)| Some((id.trim().parse().ok()?, x.trim().parse().ok()?)));
    parsed.ok_or_else(|| "expected a token's number and what to add, such as 50256=-5".into())
}

impl SamplingArgs {
    pub(crate) fn sampling(&self) -> Sampling {
        Sampling {
            temperature: self.temperature,
            top_k: i32::try_from(self.top_k).unwrap_or(i32::MAX),
            top_p: self.top_p,
            min_p: self.min_p,
            repetition: self.repeat_penalty,
            frequency: self.frequency_penalty,
            presence: self.presence_penalty,
            last_tokens: self.repeat_last,
            bias: self.logit_bias.clone(),
            seed: self.seed,
        }
    }
}

/// What a request gave, and how long it took.
pub(crate) struct Generated {
    pub(crate) tokens: Vec<i64>,
    pub(crate) finish: Finish,
    /// To the first token.
    pub(crate) first: Duration,
    /// From the first token to the last.
    pub(crate) rest: Duration,
}

impl Generated {
    /// Tokens a second after the first.
    pub(crate) fn rate(&self) -> f64 {
        self.tokens.len().saturating_sub(1) as f64 / self.rest.as_secs_f64()
    }
}

/// Runs one request to its end; `each` sees every token when it comes.
pub(crate) fn complete(
    engine: &mut Engine,
    request: Request,
    mut each: impl FnMut(i64) -> Result<(), Failure>,
) -> Result<Generated, Failure> {
    let begun = Instant::now();
    let id = engine.add(request)?;
    let (mut tokens, mut first, mut last) = (Vec::new(), begun.elapsed(), begun.elapsed());
    loop {
        for event in engine.step()? {
            match event {
                Event::Token { id: of, token, .. } if of == id => {
                    last = begun.elapsed();
                    if tokens.is_empty() {
                        first = last;
                    }
                    tokens.push(token);
                    each(token)?;
                }
                Event::End { id: of, finish } if of == id => {
                    return Ok(Generated { tokens, finish, first, rest: last.saturating_sub(first) });
                }
                _ => {}
            }
        }
    }
}

/// Why a sequence ended, in a word.
pub(crate) fn reason(finish: Finish) -> &'static str {
    match finish {
        Finish::Stop(_) => "stop",
        Finish::Length => "length",
        Finish::Context => "context",
        Finish::Constraint => "constraint",
    }
}

/// Token ids that are given as a list.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ids(pub(crate) Vec<i64>);

impl std::str::FromStr for Ids {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let separators = |c: char| c == ',' || c.is_whitespace();
        let ids: Result<Vec<i64>, _> =
            text.split(separators).filter(|id| !id.is_empty()).map(str::parse).collect();
        ids.map(Ids).map_err(|_| "expected token numbers with commas between them".into())
    }
}
