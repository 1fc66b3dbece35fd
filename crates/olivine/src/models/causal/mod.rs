//! Language models that predict the next token, from GGUF files and Hugging Face folders.
//!
//! ```text
//!   architecture.rs  what differs between architectures, as data
//!   config.rs        sizes and numbers of one model; from_gguf.rs and from_json.rs read them
//!   source.rs        its tensors, by their names in GGUF; folder.rs translates, fused_experts.rs reads gpt-oss's experts
//!   build.rs         the graph, with or without caches
//!   cache.rs         what key-value caches are made of
//!   layer.rs         one layer of it: attention and feed-forward blocks
//!   recurrent.rs     layers whose memory is a state of fixed size: Mamba-2, the gated delta net
//! ```

mod architecture;
mod build;
mod cache;
mod config;
mod folder;
mod from_gguf;
mod from_json;
mod fused_experts;
mod layer;
mod recurrent;
mod source;

use std::fmt;
use std::path::Path;

use olivine_gguf::Gguf;
use olivine_ir::{Graph, Tensor, ValueId};

use crate::Error;
use build::Build;
pub use cache::CacheType;
use config::{Config, Mixer};
use folder::Folder;
use source::Source;

/// A language model: an open file or folder, and what its metadata say.
///
/// Architectures are `llama` (Mistral, SmolLM and TinyLlama among them), `qwen2`, `qwen3`, `qwen3moe`, `phi3`, `gemma2`, `gemma3`,
/// `gpt-oss`, `mamba2` and `qwen3next`.
pub struct CausalLm {
    source: Source,
    config: Config,
}

impl fmt::Debug for CausalLm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CausalLm").finish_non_exhaustive()
    }
}

/// Positions of a page of a key-value cache.
pub const PAGE: usize = 32;

/// How the graph of a language model is built.
#[derive(Clone, Copy, Debug, Default)]
pub struct DecoderOptions {
    /// The elements of key-value caches; without them the graph sees whole sequences.
    pub cache: Option<CacheType>,
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
/// a sequence does not have; and for each layer with attention `keys.<i>` and `values.<i>`, `[pool, PAGE, kv_heads, dim]`. Positions in
/// no page are not written. With [`DecoderOptions::picked`] there is `picked`, i64 `[rows]`: which of all tokens in row-major order logits
/// are wanted of.
///
/// Layers without attention have states of fixed size, [`DecoderGraph::recurrent`], and the graph one more input: `slots`, i32
/// `[batch, 1]`: where a sequence's states are in their pools. Those of -1 are not written. A sequence whose first position of a run is
/// 0 begins with zeros, whatever its slot holds.
#[derive(Debug)]
pub struct DecoderGraph {
    /// The graph, without outputs but the caches: `keys.<i>.next` and `values.<i>.next`.
    pub graph: Graph,
    /// The weights; packed ones stay in the mapped file.
    pub params: Vec<(String, Tensor)>,
    /// f32 `[batch, sequence, vocabulary]`, or `[rows, vocabulary]` of the tokens that are picked.
    pub logits: ValueId,
    /// The caches: inputs, and the outputs that replace them.
    pub states: Vec<(String, String)>,
    /// The states of layers without attention.
    pub recurrent: Vec<RecurrentState>,
    /// How many tokens there are.
    pub vocabulary: usize,
}

/// States of fixed size in a pool, f32 `[slots, 1, dims…]`.
#[derive(Clone, Debug)]
pub struct RecurrentState {
    /// The input that has them before a run.
    pub input: String,
    /// The output that replaces it.
    pub output: String,
    /// The sizes of one sequence's state.
    pub dims: [usize; 2],
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

    /// The model of a GGUF file's bytes.
    pub fn from_gguf(bytes: Vec<u8>) -> Result<Self, Error> {
        CausalLm::of_gguf(Gguf::from_bytes(bytes)?)
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

    /// Heads and dims of the rows of the cache of each layer with attention: keys, then values.
    pub fn cache_rows(&self) -> Vec<([usize; 2], [usize; 2])> {
        let Config { kv_heads, key_dim, value_dim, .. } = self.config;
        let attends = |mixer: &&Mixer| matches!(mixer, Mixer::Attention { .. });
        let layers = self.config.mixers.iter().filter(attends).count();
        vec![([kv_heads, key_dim], [kv_heads, value_dim]); layers]
    }

    /// Positions that any layer attends to, back from a token's own, if all layers have a window.
    pub fn window(&self) -> Option<usize> {
        let window = |mixer: &Mixer| match mixer {
            Mixer::Attention { window } => *window,
            Mixer::Recurrent(_) => None,
        };
        let windows: Option<Vec<usize>> = self.config.mixers.iter().map(window).collect();
        windows?.into_iter().max()
    }

    /// Whether there are states of fixed size, which hold all positions so far: they cannot be shared by sequences that only
    /// begin alike, nor cut to fewer positions.
    pub fn is_recurrent(&self) -> bool {
        self.config.recurrent.is_some()
    }

    /// Builds the graph.
    pub fn decoder(&self, options: &DecoderOptions) -> Result<DecoderGraph, Error> {
        options.cache.unwrap_or_default().check(&self.config, &self.source)?;
        Build::new(&self.source, &self.config, *options).decoder()
    }

    /// The graph from tokens to the logits of every position, with its weights.
    pub fn whole(&self) -> Result<(Graph, Vec<(String, Tensor)>), Error> {
        let mut built = self.decoder(&DecoderOptions::default())?;
        built.graph.output("logits", built.logits)?;
        Ok((built.graph, built.params))
    }
}
