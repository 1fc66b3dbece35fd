//! With which bytes the values of a node can begin.

use super::{Node, NodeId};

/// A set of bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Bytes([u64; 4]);

impl Bytes {
    const ALL: Bytes = Bytes([u64::MAX; 4]);

    fn of(bytes: &[u8]) -> Self {
        let mut set = Bytes::default();
        bytes.iter().for_each(|byte| set.0[usize::from(byte >> 6)] |= 1 << (byte & 63));
        set
    }

    fn with(self, other: Bytes) -> Self {
        Bytes(std::array::from_fn(|i| self.0[i] | other.0[i]))
    }

    /// Whether a byte is in the set.
    pub(crate) fn has(&self, byte: u8) -> bool {
        self.0[usize::from(byte >> 6)] >> (byte & 63) & 1 == 1
    }
}

/// The set of each node. Alternatives have those of all they consist of, which may be themselves.
pub(super) fn first_bytes(nodes: &[Node]) -> Vec<Bytes> {
    let own = |node: &Node| match node {
        Node::Any => Bytes::ALL,
        Node::String { .. } => Bytes::of(b"\""),
        Node::Number { .. } => Bytes::of(b"-0123456789"),
        Node::Texts(texts) => {
            let firsts: Vec<u8> = texts.iter().filter_map(|text| text.first().copied()).collect();
            Bytes::of(&firsts)
        }
        Node::Array { .. } => Bytes::of(b"["),
        Node::Object(_) => Bytes::of(b"{"),
        Node::Either(_) => Bytes::default(),
    };
    let mut sets: Vec<Bytes> = nodes.iter().map(own).collect();
    let mut parents: Vec<Vec<NodeId>> = vec![Vec::new(); nodes.len()];
    for (parent, node) in nodes.iter().enumerate() {
        if let Node::Either(parts) = node {
            parts.iter().for_each(|part| parents[*part].push(parent));
        }
    }
    // A set grows a few times at most: there are no more than a handful of different ones.
    let mut changed: Vec<NodeId> = (0..nodes.len()).collect();
    while let Some(node) = changed.pop() {
        for parent in &parents[node] {
            let grown = sets[*parent].with(sets[node]);
            if grown != sets[*parent] {
                sets[*parent] = grown;
                changed.push(*parent);
            }
        }
    }
    sets
}
