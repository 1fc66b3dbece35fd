//! WordPiece: the longest token first, and the whole word unknown if some of it is none.

use crate::trie::{NONE, Trie};

/// A WordPiece model.
#[derive(Debug)]
pub(crate) struct WordPiece {
    tokens: Trie,
    /// Where words begin, and where their later tokens do.
    start: u32,
    inside: u32,
    unk: Option<u32>,
    /// Longer words are unknown.
    longest: usize,
}

impl WordPiece {
    /// `start` and `inside` are what the vocabulary writes before the first and the later tokens of a word.
    pub(crate) fn new<'a>(
        tokens: impl IntoIterator<Item = (&'a [u8], u32)>,
        start: &str,
        inside: &str,
        unk: Option<u32>,
        longest: usize,
    ) -> WordPiece {
        let tokens = Trie::new(tokens);
        let (start, inside) =
            (tokens.walk(Trie::ROOT, start.as_bytes()), tokens.walk(Trie::ROOT, inside.as_bytes()));
        WordPiece { tokens, start, inside, unk, longest }
    }

    pub(super) fn encode(&self, word: &str, ids: &mut Vec<u32>) {
        if word.is_empty() {
            return;
        }
        let first = ids.len();
        let mut rest = word.as_bytes();
        let mut node = self.start;
        if word.len() > self.longest && word.chars().count() > self.longest {
            ids.extend(self.unk);
            return;
        }
        while !rest.is_empty() {
            let found = if node == NONE { None } else { self.tokens.longest(node, rest) };
            let Some((length, id)) = found else {
                ids.truncate(first);
                ids.extend(self.unk);
                return;
            };
            ids.push(id);
            rest = &rest[length..];
            node = self.inside;
        }
    }
}
