//! Models built in Rust: with seeded weights, for demonstrations and benchmarks, or with those of a file or folder.

mod bert;
mod causal;
mod decoder;
mod encoder;
mod seeded;

pub use bert::Bert;
pub use causal::{CausalLm, DecoderGraph, DecoderOptions, PAGE};
pub use decoder::Decoder;
pub use encoder::Encoder;
pub use seeded::{seeded_input, seeded_params};
