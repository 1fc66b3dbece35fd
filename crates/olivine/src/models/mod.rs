//! Models built in Rust: with seeded weights, for demonstrations and benchmarks, or with those of a file or folder.

mod bert;
mod decoder;
mod encoder;
mod llama;
mod seeded;

pub use bert::Bert;
pub use decoder::Decoder;
pub use encoder::Encoder;
pub use llama::Llama;
pub use seeded::{seeded_input, seeded_params};
