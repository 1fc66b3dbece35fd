//! Language models that predict the next token, from GGUF files and Hugging Face folders.
//!
//! ```text
//!   architecture.rs  what differs between architectures, as data
//!   config.rs        sizes and numbers of one model, from its metadata
//!   source.rs        its tensors, by their names in GGUF
//!   build.rs         the graph, with or without key-value caches
//!   layer.rs         one layer of it
//! ```

mod architecture;
mod build;
mod config;
mod layer;
mod source;

use std::path::Path;

use olivine_gguf::Gguf;
use olivine_ir::{DType, Graph, Tensor, ValueId};

use crate::Error;
use build::Build;
use config::Config;
use source::{Folder, Source};

/// A language model: an open file or folder, and what its metadata say.
///
/// Architectures are `llama` (Mistral, SmolLM and TinyLlama among them), `qwen2`, `qwen3`, `qwen3moe`, `phi3`, `gemma2`, `gemma3`
/// and `gpt-oss`.
pub struct CausalLm {
    source: Source,
    config: Config,
}

/// Positions of a page of a key-value cache.
pub const PAGE: usize = 32;

/// How the graph of a language model is built.
#[derive(Clone, Copy, Debug, Default)]
pub struct DecoderOptions {
    /// The dtype of key-value caches; without them the graph sees whole sequences.
    pub cache: Option<DType>,
    /// Whether logits are wanted for some positions alone, which an input names.
    pub picked: bool,
    /// Positions that sequences may have, where frequencies depend on that.
    pub context: Option<usize>,
}

/// The graph of a language model, to which a head and outputs can be added.
///
/// Input `tokens`, i64 `[batch, sequence]`. With caches there are more: `positions`, i64 `[batch, sequence]`; `starts`, i64 `[batch]`:
/// the position that a sequence's first token goes to, from which on its cache is written; `lengths`, i64 `[batch]`: how many
/// positions of it count; `pages`, i32 `[batch, table]`: where they are in the pools, [`PAGE`] positions in each, and -1 for pages that
/// a sequence does not have; and for each layer `keys.<i>` and `values.<i>`, `[pool, PAGE, kv_heads, dim]`. Positions in no page are not
/// written. With [`DecoderOptions::picked`] there is `picked`, i64 `[rows]`: which of all tokens in row-major order logits are wanted of.
pub struct DecoderGraph {
    /// The graph, without outputs but the caches: `keys.<i>.next` and `values.<i>.next`.
    pub graph: Graph,
    /// The weights; packed ones stay in the mapped file.
    pub params: Vec<(String, Tensor)>,
    /// f32 `[batch, sequence, vocabulary]`, or `[rows, vocabulary]` of the tokens that are picked.
    pub logits: ValueId,
    /// The caches: inputs, and the outputs that replace them.
    pub states: Vec<(String, String)>,
    /// How many tokens there are.
    pub vocabulary: usize,
}

impl CausalLm {
    /// Opens a GGUF file (all parts of a model in several) or a folder with `config.json` and safetensors.
    pub fn load(path: impl AsRef<Path>) -> Result<Self, Error> {
        let path = path.as_ref();
        if path.is_dir() {
            let none = || Error::NotAModel {
                path: path.to_path_buf(),
                problem: "it is an encoder, which predicts no tokens".into(),
                advice: None,
            };
            return CausalLm::of_folder(path)?.ok_or_else(none);
        }
        CausalLm::of_gguf(Gguf::open(path)?)
    }

    /// The model of an open GGUF file.
    pub fn of_gguf(file: Gguf) -> Result<Self, Error> {
        CausalLm::of(Source::Gguf(file))
    }

    /// The model of a folder; `None` if it is an encoder.
    pub(crate) fn of_folder(path: &Path) -> Result<Option<Self>, Error> {
        Folder::open(path)?.map(|folder| CausalLm::of(Source::Folder(folder))).transpose()
    }

    fn of(source: Source) -> Result<Self, Error> {
        let config = source.config()?;
        Ok(CausalLm { source, config })
    }

    /// The file, of a model that is one.
    pub fn gguf(&self) -> Option<&Gguf> {
        match &self.source {
            Source::Gguf(file) => Some(file),
            Source::Folder(_) => None,
        }
    }

    /// Positions that the model was trained for.
    pub fn context(&self) -> usize {
        self.config.context
    }

    /// Heads and dims of the rows of each layer's cache: keys, then values.
    pub fn cache_rows(&self) -> Vec<([usize; 2], [usize; 2])> {
        let Config { kv_heads, key_dim, value_dim, .. } = self.config;
        vec![([kv_heads, key_dim], [kv_heads, value_dim]); self.config.layers()]
    }

    /// Builds the graph.
    pub fn decoder(&self, options: &DecoderOptions) -> Result<DecoderGraph, Error> {
        Build::new(&self.source, &self.config, *options).decoder()
    }

    /// The graph from tokens to the logits of every position, with its weights.
    pub fn whole(&self) -> Result<(Graph, Vec<(String, Tensor)>), Error> {
        let mut built = self.decoder(&DecoderOptions::default())?;
        built.graph.output("logits", built.logits)?;
        Ok((built.graph, built.params))
    }
}
