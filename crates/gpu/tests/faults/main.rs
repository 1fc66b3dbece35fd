//! What runs and lowering do when a device fails or is too small, on a device that does what a test tells it.
#![forbid(unsafe_code)]
#![allow(clippy::panic, clippy::unwrap_used, reason = "a failed expectation is a failed test")]

mod limits;
mod matrices;
mod mock;
mod runs;
