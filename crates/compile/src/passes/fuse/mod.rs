//! The fusion passes, in order: many small nodes become few large ones.
//!
//! ```text
//!   pads       a pad with zeros before a convolution becomes its padding
//!   idioms     spelled-out activations, norms and softmax become one op
//!   attention  softmax(q·kᵀ)·v becomes Attention
//!   qkv        matmuls that share their left operand become one, sliced
//!   gates      two matmuls that meet elementwise become one, their columns in turn
//!   epilogue   elementwise ops after a matmul become its epilogue
//!   regions    elementwise ops that are left run together
//!   prologue   an elementwise op before a norm rides on it
//! ```
//!
//! They need a legalised graph in which reshape, transpose, slice and expand are still operations of their own.

mod attention;
mod edit;
mod epilogue;
mod gates;
mod idioms;
mod pads;
mod prologue;
mod qkv;
mod region;
mod regions;
#[cfg(test)]
mod tests;

use crate::Pass;

/// All fusion passes in the order they run.
pub(crate) fn passes() -> Vec<Box<dyn Pass>> {
    vec![
        Box::new(pads::FoldPads),
        Box::new(idioms::Idioms),
        Box::new(attention::FuseAttention),
        Box::new(qkv::JoinMatmuls),
        Box::new(gates::JoinGates),
        Box::new(epilogue::FuseEpilogues),
        Box::new(regions::FuseRegions),
        Box::new(prologue::FusePrologues),
    ]
}
