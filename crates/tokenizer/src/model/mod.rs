//! The models: how a piece of text becomes tokens.

mod bpe;
mod merge;
mod spm;
mod unigram;
mod wordpiece;

pub(crate) use bpe::{Bpe, Symbols};
pub(crate) use spm::Spm;
pub(crate) use unigram::Unigram;
pub(crate) use wordpiece::WordPiece;

use crate::trie::{NONE, Trie};
use crate::vocab::Vocab;

/// What turns pieces into ids.
#[derive(Debug)]
pub(crate) enum Model {
    Bpe(Bpe),
    Spm(Spm),
    Unigram(Unigram),
    WordPiece(WordPiece),
    /// Whole pieces are tokens.
    WordLevel {
        unk: Option<u32>,
    },
    /// The longest token first, byte by byte.
    Longest {
        tokens: Trie,
        unk: Option<u32>,
    },
}

impl Model {
    /// Whether every byte of a text is part of a token.
    pub(crate) fn keeps_bytes(&self) -> bool {
        match self {
            Model::Bpe(Bpe { symbols: Symbols::Bytes(bytes), .. }) => bytes.iter().all(|&id| id != NONE),
            Model::Spm(spm) => spm.has_all_bytes(),
            _ => false,
        }
    }

    /// Appends the tokens of a piece.
    pub(crate) fn encode(&self, vocab: &Vocab, piece: &str, ids: &mut Vec<u32>) {
        match self {
            Model::Bpe(bpe) => bpe.encode(vocab, piece, ids),
            Model::Spm(spm) => spm.encode(vocab, piece, ids),
            Model::Unigram(unigram) => unigram.encode(vocab, piece, ids),
            Model::WordPiece(words) => words.encode(piece, ids),
            Model::WordLevel { unk } => ids.extend(vocab.id(piece.as_bytes()).or(*unk)),
            Model::Longest { tokens, unk } => {
                let mut rest = piece.as_bytes();
                while !rest.is_empty() {
                    let (length, id) = tokens.longest(Trie::ROOT, rest).unwrap_or((1, unk.unwrap_or(NONE)));
                    ids.extend((id != NONE).then_some(id));
                    rest = &rest[length..];
                }
            }
        }
    }
}
