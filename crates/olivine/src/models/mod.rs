//! Models built in Rust with seeded weights, for demonstrations and benchmarks.

mod encoder;
mod seeded;

pub use encoder::Encoder;
pub use seeded::{seeded_input, seeded_params};
