//! Fusion at lowering: what depends on the device and on the kernels that were chosen. What every backend fuses is done
//! before, by the passes of `olivine-compile`.
//!
//! ```text
//!   compiled graph ── groups: nodes that one dispatch computes
//!                  │  └─ packed: matmuls of few rows, and the norm before them
//!                  └─ split_k: sums that the reader of a matmul computes
//!   both are listed in Program::fusions
//! ```

mod groups;
mod packed;
mod split_k;

pub(super) use groups::FusedGroups;
pub(super) use split_k::{Deferral, partials_readers};
