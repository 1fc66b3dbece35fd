//! Tokenizers and chat templates of language models, from GGUF metadata or from Hugging Face's files.
//!
//! ```text
//!   Tokenizer::from_gguf(metadata) ──┐
//!   Tokenizer::from_json(text) ──────┴─► Tokenizer ── encode ──► ids ── decode, stream ──► text
//!
//!   text ─ added tokens ─ normalizer ─ splitters ─ model (BPE, SPM, Unigram, WordPiece) ─ ids
//!
//!   ChatTemplate::from_gguf, new ── render(messages) ──► prompt
//!   JsonGrammar::new(tokenizer) ── mask(state) ──► tokens that continue valid JSON, or what a JsonSchema allows
//! ```
//!
//! Encoding takes time close to linear in the text, whatever the text is: expressions are matched by an engine of this crate that
//! remembers failures, and merges are taken from a heap. Nothing that a file says is believed before it is checked.
//!
//! ```
//! use olivine_tokenizer::Tokenizer;
//! let tokenizer = Tokenizer::from_json(
//!     r#"{"model": {"type": "BPE", "vocab": {"l": 0, "o": 1, "lo": 2}, "merges": ["l o"]}, "decoder": {"type": "Fuse"}}"#,
//! )?;
//! assert_eq!(tokenizer.encode("lol", false, false)?, [2, 0]);
//! assert_eq!(tokenizer.decode(&[2, 0])?, "lol");
//! # Ok::<(), olivine_tokenizer::Error>(())
//! ```
#![forbid(unsafe_code)]

mod added;
mod charsmap;
mod decode;
mod error;
mod file;
mod folder;
mod gguf;
mod grammar;
mod hash;
mod json;
mod model;
mod normalize;
mod pre;
mod regex;
mod schema;
mod special;
mod split;
mod template;
mod tokenizer;
mod trie;
mod unicode;
mod vocab;

pub use decode::TokenStream;
pub use error::Error;
pub use grammar::{JsonGrammar, JsonState};
pub use json::Json;
pub use schema::{JsonSchema, SchemaState};
pub use special::SpecialTokens;
pub use template::{ChatOptions, ChatTemplate, Message};
pub use tokenizer::{LONGEST_TEXT, Tokenizer};
pub use vocab::TokenKind;

/// The guide, whose example is compiled as a doc test.
#[doc = include_str!("../../../docs/guides/tokenizers.md")]
#[cfg(doctest)]
struct Guide;
