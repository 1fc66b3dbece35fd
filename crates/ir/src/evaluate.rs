//! The seam between those who know what is constant and those who can compute it.

use crate::{Op, Tensor};

/// Computes an operation on constant operands, so that neither the compiler's folding nor an importer's shapes need a
/// backend of their own.
pub trait Evaluate: Sync {
    /// The results of `op` on `operands`.
    fn evaluate(&self, op: &Op, operands: &[Tensor]) -> Result<Vec<Tensor>, String>;

    /// Whether operations like this one are kept prepared, so that the next on operands of the same types is quick.
    fn keeps(&self, _op: &Op) -> bool {
        false
    }
}
