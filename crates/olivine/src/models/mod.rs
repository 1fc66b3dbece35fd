//! Models built in Rust with seeded weights, for demonstrations and benchmarks.

mod decoder;
mod encoder;
mod seeded;

pub use decoder::Decoder;
pub use encoder::Encoder;
pub use seeded::{seeded_input, seeded_params};
