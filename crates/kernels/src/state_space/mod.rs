//! Sequence models with a carried state: long sequences by chunks, short ones step by step.
//!
//! ```text
//!   selective_scan    selective ── carry
//!   mamba2            decay ── local ── carry ── outputs
//!   gated_delta_net   decay ── delta ── sweep ── outputs
//!   both, few steps   recurrent
//! ```

mod carry;
mod conv;
mod decay;
mod delta;
mod heads;
mod local;
mod outputs;
mod recurrent;
mod selective;
mod sweep;
mod tile_matmul;
