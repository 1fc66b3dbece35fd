//! Names of values and nodes: numbers, and for values the graph that gave them out.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::atomic::{AtomicU32, Ordering};

/// Names a value of one graph, which refuses the values of others. Two ids are equal if they have the same number.
#[derive(Clone, Copy)]
pub struct ValueId {
    pub(crate) number: u32,
    pub(crate) graph: Identity,
}

/// Which graph gave an id out: a number of its own for every graph that [`Graph::new`](crate::Graph::new) makes. Copies of
/// a graph for other shapes keep the numbering of its values, so they have no identity and take all ids.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Identity(u32);

impl Identity {
    /// Of no graph.
    const NONE: Identity = Identity(0);

    pub(crate) fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(1);
        // After 2^32 graphs numbers come again; 0 is left out.
        Identity(NEXT.fetch_add(1, Ordering::Relaxed).max(1))
    }

    /// Whether a graph takes an id of another identity.
    pub(crate) fn takes(self, other: Identity) -> bool {
        self == other || self == Identity::NONE || other == Identity::NONE
    }
}

/// Names a node of one graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NodeId(pub u32);

impl ValueId {
    /// The value of a number in any graph; ids that a graph gives out name its own values alone.
    pub const fn new(number: u32) -> Self {
        ValueId { number, graph: Identity::NONE }
    }

    /// Position in [`Graph::values`](crate::Graph::values).
    pub fn index(self) -> usize {
        self.number as usize
    }
}

impl fmt::Debug for ValueId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ValueId").field(&self.number).finish()
    }
}

impl fmt::Display for ValueId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "%{}", self.number)
    }
}

impl PartialEq for ValueId {
    fn eq(&self, other: &Self) -> bool {
        self.number == other.number
    }
}

impl Eq for ValueId {}

impl Hash for ValueId {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.number.hash(state);
    }
}

impl PartialOrd for ValueId {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for ValueId {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.number.cmp(&other.number)
    }
}

impl NodeId {
    /// Position in [`Graph::nodes`](crate::Graph::nodes).
    pub fn index(self) -> usize {
        self.0 as usize
    }
}
