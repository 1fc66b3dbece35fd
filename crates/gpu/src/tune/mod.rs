//! Tuning records of a device: shipped with this version, and the user's own file.
//!
//! ```text
//!   family ── class of shapes, default, candidates ──► Site::tuned ──► the record's pick, or the default
//!                                                          └── Decision, kept in the program
//!   shipped defaults + the user's file ── Tuning ── Record
//! ```

mod defaults;
mod file;
mod text;

pub use defaults::shipped as shipped_record;
pub use file::{Tuning, tuning_file};
