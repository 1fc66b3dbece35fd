//! Language models: many sequences decoded at once, with key-value caches and sampling on the device.
//!
//! ```text
//!   LanguageModel ── engine(session, options) ── Engine ── add(request) ── step() ── events: tokens, ends
//!        │                                         │
//!        │                                         ├─ graph.rs    tokens and caches to the next token, one executable
//!        │                                         ├─ flight.rs   runs whose tokens are not read yet
//!        │                                         ├─ caches.rs   pools of pages on the device, which grow
//!        │                                         ├─ recurrent.rs  states of layers without attention
//!        │                                         ├─ pages.rs    which sequence has which page, and what is shared
//!        │                                         ├─ sequence.rs a request on its way
//!        │                                         ├─ batch.rs    the inputs of a run
//!        │                                         ├─ constraint.rs  tokens that may come next
//!        │                                         └─ draft.rs    tokens that are likely to come
//!        └── scorer(session) ── log-probabilities of given tokens, perplexity
//! ```
//!
//! ```no_run
//! use olivine::prelude::*;
//! use olivine_lm::{EngineOptions, LanguageModel, Request};
//!
//! let model = LanguageModel::load("smollm2.gguf")?;
//! let mut engine = model.engine(&Session::new(Device::auto()?)?, &EngineOptions::default())?;
//! engine.add(Request::new(vec![1, 4093, 253], 32))?;
//! while !engine.is_idle() {
//!     for event in engine.step()? {
//!         println!("{event:?}");
//!     }
//! }
//! # Ok::<(), olivine_lm::Error>(())
//! ```
#![forbid(unsafe_code)]

mod batch;
mod caches;
mod constraint;
mod draft;
mod engine;
mod error;
mod flight;
mod graph;
mod options;
mod pages;
mod recurrent;
mod request;
mod score;
mod sequence;
mod text;

use std::path::{Path, PathBuf};

use olivine::Session;
use olivine::internals::models::CausalLm;

pub use constraint::{Constraint, JsonConstraints, TokenMask};
pub use engine::{Counts, Engine, Event, RequestId};
pub use error::Error;
pub use olivine::CacheType;
pub use options::{EngineOptions, MOST_TOP_LOGPROBS, Share};
pub use request::{Finish, Request, Sampling};
pub use score::{Perplexity, Scorer};

/// A language model of a GGUF file or a Hugging Face folder; nothing of it is compiled yet.
pub struct LanguageModel {
    pub(crate) model: CausalLm,
    pub(crate) path: PathBuf,
}

impl LanguageModel {
    /// Opens a GGUF file, or a folder with `config.json` and safetensors.
    pub fn load(path: impl AsRef<Path>) -> Result<Self, Error> {
        let path = path.as_ref().to_path_buf();
        Ok(LanguageModel { model: CausalLm::load(&path)?, path })
    }

    /// The model of a GGUF file's bytes.
    pub fn from_gguf(bytes: Vec<u8>) -> Result<Self, Error> {
        Ok(LanguageModel { model: CausalLm::from_gguf(bytes)?, path: PathBuf::new() })
    }

    /// Positions that the model was trained for.
    pub fn context(&self) -> usize {
        self.model.context()
    }

    /// The description of the model, with its file if it is one.
    pub fn inner(&self) -> &CausalLm {
        &self.model
    }

    /// Compiles the model for decoding on a session's device.
    pub fn engine(&self, session: &Session, options: &EngineOptions) -> Result<Engine, Error> {
        Engine::new(&self.model, session, options)
    }

    /// Compiles the model for scoring given tokens.
    pub fn scorer(&self, session: &Session) -> Result<Scorer, Error> {
        self.scorer_with_cache(session, CacheType::F32)
    }

    /// The same with keys and values as such caches have them.
    pub fn scorer_with_cache(&self, session: &Session, cache: CacheType) -> Result<Scorer, Error> {
        Scorer::new(&self.model, session, cache)
    }
}

/// The guide, whose example is compiled as a doc test.
#[doc = include_str!("../../../docs/guides/language-models.md")]
#[cfg(doctest)]
struct Guide;
