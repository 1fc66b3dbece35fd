//! Chains on the CPU: the plan as tapes, which run over blocks of observations and of coordinates.
//!
//! ```text
//!   Plan ─ Program: a Tape for each loop ─ Evaluator: density and gradient ─ leapfrog
//! ```

mod block;
mod evaluate;
mod leapfrog;
mod program;
mod real;
pub(crate) mod special;
mod tape;

pub(crate) use leapfrog::{Chains, Start, evaluate, run};
pub(crate) use program::Program;
pub(crate) use real::Real;
