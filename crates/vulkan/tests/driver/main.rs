//! The driver's contract, under the validation layer, which must stay silent.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "what fails here fails the test")]

mod absent;
mod killed;
mod memory;
mod pipelines;
mod runs;
mod support;
