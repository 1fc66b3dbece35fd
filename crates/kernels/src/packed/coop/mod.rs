//! Up to a few dozen rows by a packed weight on cooperative matrices, near the speed at which the weight is read.
//!
//! Rows of the weight are those of the left matrices, rows of x the columns of the right ones. Where it is known which
//! elements of a matrix a lane holds, a lane decodes them in its own registers:
//!
//! ```text
//!   weight ── four lanes have a row, each a run of its elements ── decode ── left matrices ─┐
//!                                                                                          ├─ sums of a subgroup
//!   x ── pack: rounded, as lanes hold it, once for all matmuls ── right matrices ──────────┘
//! ```
//!
//! The order of elements along K does not matter to a sum. The i-th four elements of four neighbouring runs are the
//! i-th matrix along K, and x is packed in that order. Nothing goes through workgroup memory and no subgroup waits for
//! another until the end, where the sums of those that divide K meet. The loads of the next runs are in flight while
//! some are multiplied.

mod cut;
mod kernel;
mod pack;

pub(crate) use cut::{CoopCut, PREFERRED_ROWS, candidates, choose, matrix_elem, rows};
pub(crate) use kernel::emit;

/// Rows and columns of a matrix, and its size along K.
const SIDE: u32 = 16;
/// Lanes of a subgroup.
const LANES: u32 = 32;
/// Lanes that have a row of a left matrix.
const QUAD: u32 = 4;
/// Elements of a row of a left matrix that a lane has.
const EACH: u32 = SIDE / QUAD;
/// Words of a matrix of 16 bits in a lane.
const WORDS: u32 = SIDE * SIDE / 2 / LANES;
