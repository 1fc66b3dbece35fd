//! What is served: a language model with its text, or an encoder for embeddings.

use std::path::Path;

use olivine::Session;
use olivine_lm::{Engine, EngineOptions, LanguageModel};
use olivine_tokenizer::{ChatTemplate, Tokenizer};

use crate::Error;
use crate::embed::Encoder;

/// A model that is loaded and compiled for a device.
pub struct ServedModel {
    pub(crate) kind: Kind,
    /// The name by which requests know it, if no other is given.
    pub(crate) name: String,
}

pub(crate) enum Kind {
    Language(Box<Language>),
    Encoder(Box<Encoder>),
}

/// A language model and its text.
pub(crate) struct Language {
    pub(crate) engine: Engine,
    pub(crate) tokenizer: Tokenizer,
    /// The chat template, or why there is none.
    pub(crate) template: Result<ChatTemplate, String>,
    pub(crate) slots: usize,
    pub(crate) logprobs: bool,
}

impl ServedModel {
    /// Loads a language model from a GGUF file or a folder, or a BERT encoder from either, and compiles it.
    ///
    /// `options` are for language models. Its [`EngineOptions::logprobs`] decides whether requests may ask for them.
    pub fn load(path: impl AsRef<Path>, session: &Session, options: &EngineOptions) -> Result<Self, Error> {
        let path = path.as_ref();
        let name = name_of(path);
        if let Some(encoder) = Encoder::load(path, session)? {
            return Ok(ServedModel { kind: Kind::Encoder(Box::new(encoder)), name });
        }
        let model = LanguageModel::load(path)?;
        let tokenizer = model.tokenizer()?;
        let template = model.chat_template(&tokenizer).map_err(|error| error.to_string());
        let engine = model.engine(session, options)?;
        let (slots, logprobs) = (options.slots, options.logprobs);
        let language = Language { engine, tokenizer, template, slots, logprobs };
        Ok(ServedModel { kind: Kind::Language(Box::new(language)), name })
    }

    /// Replaces the chat template of a language model by another, in Jinja.
    pub fn with_chat_template(mut self, source: &str) -> Result<Self, Error> {
        if let Kind::Language(language) = &mut self.kind {
            language.template = Ok(ChatTemplate::for_tokenizer(source, &language.tokenizer)?);
        }
        Ok(self)
    }

    /// The name of the file or the folder.
    pub fn name(&self) -> &str {
        &self.name
    }
}

/// A file's name without `.gguf`, or a folder's name. Where the file is just `model.gguf`, its folder says more.
fn name_of(path: &Path) -> String {
    let full = path.canonicalize().unwrap_or_else(|_| path.to_path_buf());
    let name = full.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    match name.strip_suffix(".gguf") {
        Some("model") => full.parent().map_or("model".into(), name_of),
        Some(stem) if !stem.is_empty() => stem.to_string(),
        _ if name.is_empty() => "model".into(),
        _ => name,
    }
}
