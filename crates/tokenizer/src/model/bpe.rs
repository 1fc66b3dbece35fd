//! Byte-pair encoding.

use super::merge::{Merges, merge, pair};
use crate::hash::Map;
use crate::trie::NONE;
use crate::unicode::BYTE_CHARS;
use crate::vocab::Vocab;

/// What merging begins with.
#[derive(Debug)]
pub(crate) enum Symbols {
    /// Bytes of the text; the vocabulary writes them in the byte alphabet.
    Bytes(Box<[u32; 256]>),
    /// Characters, or the bytes of those that are no token.
    Chars { ids: Map<char, u32>, bytes: Option<Box<[u32; 256]>> },
}

/// A BPE model.
#[derive(Debug)]
pub(crate) struct Bpe {
    pub(crate) symbols: Symbols,
    pub(crate) merges: Merges,
    pub(crate) unk: Option<u32>,
    pub(crate) fuse_unk: bool,
    /// A piece that is a token is not merged.
    pub(crate) ignore_merges: bool,
    /// Before all characters of a word but the first.
    pub(crate) prefix: String,
    /// After the last character of a word.
    pub(crate) suffix: String,
}

impl Bpe {
    /// Merges of pairs of tokens, in the order of their ranks; says which of them is not one of the vocabulary's tokens.
    pub(crate) fn merges<'a>(
        vocab: &Vocab,
        pairs: impl Iterator<Item = (&'a str, &'a str)>,
        prefix: &str,
    ) -> Result<Merges, String> {
        let id = |text: &str, rank: usize| {
            vocab
                .id(text.as_bytes())
                .ok_or_else(|| format!("merge {rank}: `{}` is not a token", crate::error::shortened(text)))
        };
        let mut merges = Merges::default();
        for (rank, (left, right)) in pairs.enumerate() {
            let joined = format!("{left}{}", right.strip_prefix(prefix).unwrap_or(right));
            let (left, right, new) = (id(left, rank)?, id(right, rank)?, id(&joined, rank)?);
            merges.entry(pair(left, right)).or_insert((rank as u32, new));
        }
        Ok(merges)
    }

    /// The tokens of single bytes, written in the byte alphabet.
    pub(crate) fn byte_symbols(vocab: &Vocab) -> Box<[u32; 256]> {
        let mut buffer = [0; 4];
        Box::new(std::array::from_fn(|byte| {
            vocab.id(BYTE_CHARS[byte].encode_utf8(&mut buffer).as_bytes()).unwrap_or(NONE)
        }))
    }

    /// The tokens of single characters.
    pub(crate) fn char_symbols(vocab: &Vocab) -> Map<char, u32> {
        let single = |(id, text): (u32, &str)| {
            let mut chars = text.chars();
            chars.next().filter(|_| chars.next().is_none()).map(|c| (c, id))
        };
        vocab.texts().filter_map(single).collect()
    }

    pub(super) fn encode(&self, vocab: &Vocab, piece: &str, ids: &mut Vec<u32>) {
        if self.ignore_merges
            && let Some(id) = self.whole(vocab, piece)
        {
            ids.push(id);
            return;
        }
        let mut symbols = Vec::with_capacity(piece.len());
        match &self.symbols {
            Symbols::Bytes(tokens) => {
                for byte in piece.bytes() {
                    self.add(tokens[usize::from(byte)], &mut symbols);
                }
            }
            Symbols::Chars { ids, bytes } if self.prefix.is_empty() && self.suffix.is_empty() => {
                for c in piece.chars() {
                    self.add_char(ids.get(&c).copied(), c, bytes.as_deref(), &mut symbols);
                }
            }
            Symbols::Chars { bytes, .. } => {
                let mut text = String::new();
                let last = piece.char_indices().next_back().map(|(at, _)| at);
                for (at, c) in piece.char_indices() {
                    text.clear();
                    text.push_str(if at > 0 { &self.prefix } else { "" });
                    text.push(c);
                    text.push_str(if Some(at) == last { &self.suffix } else { "" });
                    self.add_char(vocab.id(text.as_bytes()), c, bytes.as_deref(), &mut symbols);
                }
            }
        }
        merge(&self.merges, &mut symbols);
        ids.append(&mut symbols);
    }

    fn whole(&self, vocab: &Vocab, piece: &str) -> Option<u32> {
        match self.symbols {
            Symbols::Bytes(_) => {
                let text: String = piece.bytes().map(|byte| BYTE_CHARS[usize::from(byte)]).collect();
                vocab.id(text.as_bytes())
            }
            Symbols::Chars { .. } => vocab.id(piece.as_bytes()),
        }
    }

    fn add_char(&self, id: Option<u32>, c: char, bytes: Option<&[u32; 256]>, symbols: &mut Vec<u32>) {
        if let Some(id) = id {
            symbols.push(id);
            return;
        }
        let mut buffer = [0; 4];
        let encoded = c.encode_utf8(&mut buffer).as_bytes();
        match bytes {
            Some(tokens) if encoded.iter().all(|&byte| tokens[usize::from(byte)] != NONE) => {
                symbols.extend(encoded.iter().map(|&byte| tokens[usize::from(byte)]));
            }
            _ => self.add(NONE, symbols),
        }
    }

    /// A symbol, or what stands for an unknown one.
    fn add(&self, id: u32, symbols: &mut Vec<u32>) {
        if id != NONE {
            symbols.push(id);
        } else if let Some(unk) = self.unk
            && !(self.fuse_unk && symbols.last() == Some(&unk))
        {
            symbols.push(unk);
        }
    }
}
