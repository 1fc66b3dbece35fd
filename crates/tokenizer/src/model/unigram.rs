//! Unigram language models: the segmentation with the best sum of scores.

use crate::trie::{NONE, Trie};
use crate::vocab::Vocab;

/// A Unigram model.
#[derive(Debug)]
pub(crate) struct Unigram {
    tokens: Trie,
    scores: Vec<f64>,
    unk: u32,
    unk_score: f64,
    bytes: Option<Box<[u32; 256]>>,
}

/// The best way to a position.
#[derive(Clone, Copy)]
struct Best {
    score: f64,
    start: u32,
    id: u32,
}

/// An unknown character costs this much more than the least likely token.
const PENALTY: f64 = 10.0;

impl Unigram {
    /// `listed` are the tokens that text may become, `lowest` the least score that counts.
    pub(crate) fn new<'a>(
        listed: impl IntoIterator<Item = (&'a [u8], u32)>,
        scores: Vec<f64>,
        lowest: f64,
        unk: u32,
        bytes: Option<Box<[u32; 256]>>,
    ) -> Unigram {
        Unigram { tokens: Trie::new(listed), scores, unk, unk_score: lowest - PENALTY, bytes }
    }

    pub(super) fn encode(&self, vocab: &Vocab, text: &str, ids: &mut Vec<u32>) {
        if text.is_empty() || text.len() >= NONE as usize {
            return;
        }
        if self.unk as usize >= vocab.len() {
            return;
        }
        let bytes = text.as_bytes();
        let mut best = vec![Best { score: f64::NEG_INFINITY, start: NONE, id: self.unk }; bytes.len() + 1];
        best[0].score = 0.0;
        for (start, c) in text.char_indices() {
            let here = best[start].score;
            let mut offer = |end: usize, id: u32, score: f64| {
                if best[end].start == NONE || here + score > best[end].score {
                    best[end] = Best { score: here + score, start: start as u32, id };
                }
            };
            let mut single = false;
            let mut node = Trie::ROOT;
            for (i, &byte) in bytes[start..].iter().enumerate() {
                node = self.tokens.step(node, byte);
                if node == NONE {
                    break;
                }
                let id = self.tokens.value(node);
                if id != NONE {
                    single |= i + 1 == c.len_utf8();
                    offer(start + i + 1, id, self.scores.get(id as usize).copied().unwrap_or(0.0));
                }
            }
            if !single {
                offer(start + c.len_utf8(), self.unk, self.unk_score);
            }
        }
        let first = ids.len();
        let mut end = bytes.len();
        // Adjacent unknown characters are one unknown token.
        let mut unknown_end = None;
        while end > 0 {
            let Best { start, id, .. } = best[end];
            let start = start as usize;
            if id == self.unk {
                unknown_end.get_or_insert(end);
            } else {
                self.unknown(unknown_end.take().map(|to| &bytes[end..to]), ids);
                ids.push(id);
            }
            if start >= end {
                break;
            }
            end = start;
        }
        self.unknown(unknown_end.map(|to| &bytes[..to]), ids);
        ids[first..].reverse();
    }

    /// Appends, in reverse, what stands for unknown text.
    fn unknown(&self, text: Option<&[u8]>, ids: &mut Vec<u32>) {
        let Some(text) = text else { return };
        match &self.bytes {
            Some(tokens) if text.iter().all(|&byte| tokens[usize::from(byte)] != NONE) => {
                ids.extend(text.iter().rev().map(|&byte| tokens[usize::from(byte)]));
            }
            _ => ids.push(self.unk),
        }
    }
}
