//! What lowering joins, for reports; every backend lists it in the same way.

/// Nodes of a compiled graph that lowering computes together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fusion {
    /// The rule that joined them.
    pub rule: &'static str,
    /// Their names, in the order of the graph; the kernels of the last compute it.
    pub nodes: Vec<String>,
}
