//! Models built in Rust: with seeded weights, for demonstrations and benchmarks, or with those of a file or folder.

mod bert;
mod bert_gguf;
mod causal;
mod decoder;
mod encoder;
mod seeded;

pub use bert::Bert;
pub use bert_gguf::{BertSizes, Pooling};
pub use causal::{CacheType, CausalLm, DecoderGraph, DecoderOptions, PAGE, RecurrentState};
pub use decoder::Decoder;
pub use encoder::Encoder;
pub use seeded::{seeded_input, seeded_params};
