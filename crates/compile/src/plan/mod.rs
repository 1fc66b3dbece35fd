//! The memory planner: buffers with lifetimes get offsets in one arena.
//!
//! ```text
//!   graph ─ liveness, views, reuse in place (graph.rs) ─ lifetimes ─ offsets (place.rs) ─ MemoryPlan
//! ```

mod graph;
mod layout;
mod place;
mod sweep;

pub use graph::{MemoryPlan, OutputLocation, PlanOptions, Slot, plan_graph, plan_graph_with};
pub use olivine_ir::size::ArenaLayout;
pub use place::{lower_bound, place};

/// Every slot begins at a multiple of this: a cache line, and the widest vector.
pub const ALIGNMENT: usize = 64;

/// A buffer to place: live from step `first` to step `last`, both included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lifetime {
    /// Bytes.
    pub size: usize,
    /// First step at which it must exist.
    pub first: usize,
    /// Last step at which it is read or written; one before `first` counts as `first`.
    pub last: usize,
}

impl Lifetime {
    /// True when both exist at some step.
    pub fn overlaps(&self, other: &Lifetime) -> bool {
        self.first <= other.last.max(other.first) && other.first <= self.last.max(self.first)
    }
}

/// The offset of every buffer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placement {
    /// Offset of each buffer, a multiple of the alignment; 0 for empty ones.
    pub offsets: Vec<usize>,
    /// Bytes of the arena, a multiple of the alignment.
    pub peak: usize,
}

/// Why no plan could be made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The buffers alive at one time do not fit an address space.
    #[error("the buffers alive at step {step} need more bytes than an address can count")]
    TooLarge {
        /// A step at which this is so.
        step: usize,
    },
    /// The schedule belongs to another graph.
    #[error("the schedule names {flags} nodes, the graph has {nodes}")]
    Schedule {
        /// Entries of the schedule.
        flags: usize,
        /// Nodes of the graph.
        nodes: usize,
    },
}
