//! Runs PTX on the host: the part of the language that olivine-kernel prints, for tests.
//!
//! ```text
//!   text ── parse ── Module: instructions, registers, workgroup memory
//!                      │
//!                      └── run: threads one by one up to where a warp or the workgroup meets; then that, by all at once
//!            decode  mnemonics        number  arithmetic        memory  buffers, workgroup memory       warp  shuffles, mma
//!            warpgroup  what runs beside the threads: copies, and the multiplies of Hopper
//! ```
//!
//! It is strict: an instruction, modifier or operand that it does not know is an error, and so are accesses outside of
//! buffers, accesses that are not aligned, and threads that wait for each other for ever. Threads run one after another, not
//! in step, so that a kernel with too few barriers computes something else.
#![forbid(unsafe_code)]

mod decode;
mod exec;
mod memory;
mod number;
mod parse;
mod run;
mod warp;
mod warpgroup;

pub use parse::Module;
pub use run::Order;

/// Threads of a warp.
pub(crate) const WARP: usize = 32;
