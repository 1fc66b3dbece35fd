//! A set of byte strings, walked byte by byte.

/// No node, or no token.
pub(crate) const NONE: u32 = u32::MAX;

#[derive(Clone, Copy, Debug)]
struct Node {
    first: u32,
    count: u16,
    value: u32,
}

/// Keys with a number each. The children of a node are adjacent and sorted.
#[derive(Clone, Debug)]
pub(crate) struct Trie {
    nodes: Vec<Node>,
    labels: Vec<u8>,
    roots: Box<[u32; 256]>,
}

impl Trie {
    /// Of equal keys the last counts; empty keys do not.
    pub(crate) fn new<'a>(keys: impl IntoIterator<Item = (&'a [u8], u32)>) -> Trie {
        let mut keys: Vec<(&[u8], u32)> = keys.into_iter().filter(|(key, _)| !key.is_empty()).collect();
        keys.sort_by(|a, b| a.0.cmp(b.0));
        let mut trie = Trie {
            nodes: vec![Node { first: 0, count: 0, value: NONE }],
            labels: vec![0],
            roots: Box::new([NONE; 256]),
        };
        // Nodes whose children are not there yet: the keys below them, and how many bytes are above.
        let mut open = std::collections::VecDeque::from([(0usize, 0usize, keys.len(), 0usize)]);
        while let Some((node, mut low, high, depth)) = open.pop_front() {
            while low < high && keys[low].0.len() == depth {
                trie.nodes[node].value = keys[low].1;
                low += 1;
            }
            trie.nodes[node].first = trie.nodes.len() as u32;
            while low < high {
                let label = keys[low].0[depth];
                let end = low + keys[low..high].partition_point(|(key, _)| key[depth] == label);
                open.push_back((trie.nodes.len(), low, end, depth + 1));
                trie.nodes[node].count += 1;
                trie.nodes.push(Node { first: 0, count: 0, value: NONE });
                trie.labels.push(label);
                low = end;
            }
        }
        let root = trie.nodes[0];
        for child in root.first..root.first + u32::from(root.count) {
            trie.roots[usize::from(trie.labels[child as usize])] = child;
        }
        trie
    }

    pub(crate) const ROOT: u32 = 0;

    /// The node after `byte`, or [`NONE`].
    #[inline]
    pub(crate) fn step(&self, node: u32, byte: u8) -> u32 {
        if node == Trie::ROOT {
            return self.roots[usize::from(byte)];
        }
        let node = &self.nodes[node as usize];
        let (first, count) = (node.first as usize, usize::from(node.count));
        match self.labels[first..first + count].binary_search(&byte) {
            Ok(i) => (first + i) as u32,
            Err(_) => NONE,
        }
    }

    /// The node after all of `bytes`, or [`NONE`].
    pub(crate) fn walk(&self, node: u32, bytes: &[u8]) -> u32 {
        bytes.iter().fold(node, |node, &byte| if node == NONE { NONE } else { self.step(node, byte) })
    }

    /// The number of the key that ends at a node, or [`NONE`].
    #[inline]
    pub(crate) fn value(&self, node: u32) -> u32 {
        self.nodes[node as usize].value
    }

    /// The children of a node: labels and nodes.
    pub(crate) fn children(&self, node: u32) -> impl Iterator<Item = (u8, u32)> {
        let Node { first, count, .. } = self.nodes[node as usize];
        (first..first + u32::from(count)).map(|child| (self.labels[child as usize], child))
    }

    /// The longest key that `bytes` begin with below `node`: its length and number.
    pub(crate) fn longest(&self, mut node: u32, bytes: &[u8]) -> Option<(usize, u32)> {
        let mut best = None;
        for (i, &byte) in bytes.iter().enumerate() {
            node = self.step(node, byte);
            if node == NONE {
                break;
            }
            if self.value(node) != NONE {
                best = Some((i + 1, self.value(node)));
            }
        }
        best
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_key_is_found() {
        let keys: [(&[u8], u32); 5] = [(b"ab", 1), (b"abcd", 2), (b"b", 3), (b"", 4), (b"ab", 5)];
        let trie = Trie::new(keys);
        assert_eq!(trie.longest(Trie::ROOT, b"abcx"), Some((2, 5)));
        assert_eq!(trie.longest(Trie::ROOT, b"abcde"), Some((4, 2)));
        assert_eq!(trie.longest(Trie::ROOT, b"x"), None);
        assert_eq!(trie.children(trie.step(Trie::ROOT, b'a')).count(), 1);
    }
}
