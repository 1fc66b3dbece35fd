//! The tokenizer: its parts in the order in which text passes through them.

use std::hash::Hasher;

use crate::Error;
use crate::added::{Finder, Part};
use crate::decode::{DecodeStep, TokenStream, token_bytes};
use crate::hash::FoldHasher;
use crate::model::Model;
use crate::normalize::{Growth, Normalizer};
use crate::special::SpecialTokens;
use crate::split::{Pieces, Splitter};
use crate::vocab::{TokenKind, Vocab};

/// Bytes of the longest text that is encoded at once.
pub const LONGEST_TEXT: usize = 1 << 30;

/// Text to tokens and back.
#[derive(Debug)]
pub struct Tokenizer {
    pub(crate) vocab: Vocab,
    /// Tokens that are found in the text as it is, and in normalised text.
    pub(crate) raw: Finder,
    pub(crate) normalized: Finder,
    pub(crate) normalizer: Option<Normalizer>,
    pub(crate) splitters: Vec<Splitter>,
    pub(crate) model: Model,
    /// Tokens before and after the text.
    pub(crate) before: Vec<u32>,
    pub(crate) after: Vec<u32>,
    pub(crate) decoder: Vec<DecodeStep>,
    /// Added tokens do not pass through the decoder.
    pub(crate) raw_added: bool,
    /// A space at the end of all text is not part of it.
    pub(crate) trim_end: bool,
    pub(crate) special: SpecialTokens,
    pub(crate) bytes: TokenBytes,
}

/// The bytes of all tokens, one after the other.
#[derive(Debug, Default)]
pub(crate) struct TokenBytes {
    bytes: Vec<u8>,
    ends: Vec<u32>,
}

impl Tokenizer {
    /// The tokens of a text. `add_special` puts the model's own tokens, such as BOS, around them; `parse_special` takes
    /// control tokens that are written in the text for what they are, which only trusted text should.
    pub fn encode(&self, text: &str, add_special: bool, parse_special: bool) -> Result<Vec<u32>, Error> {
        if text.len() > LONGEST_TEXT {
            return Err(Error::TextTooLong { bytes: text.len(), limit: LONGEST_TEXT });
        }
        let mut ids = Vec::with_capacity(text.len() / 3 + 4);
        if add_special {
            ids.extend_from_slice(&self.before);
        }
        let mut cache = WordCache::new(text.len());
        let mut parts = Vec::new();
        self.raw.split(text, parse_special, &mut parts);
        for part in parts {
            match part {
                Part::Token(id) => ids.push(id),
                Part::Text(start, end) => {
                    self.encode_part(&text[start..end], start == 0, parse_special, &mut cache, &mut ids)?;
                }
            }
        }
        if add_special {
            ids.extend_from_slice(&self.after);
        }
        Ok(ids)
    }

    fn encode_part(
        &self,
        text: &str,
        at_start: bool,
        parse_special: bool,
        cache: &mut WordCache,
        ids: &mut Vec<u32>,
    ) -> Result<(), Error> {
        let growth = Growth::of(text.len());
        let text = match &self.normalizer {
            Some(normalizer) => normalizer.apply(text.to_string())?,
            None => text.to_string(),
        };
        let mut parts = Vec::new();
        self.normalized.split(&text, parse_special, &mut parts);
        for part in parts {
            match part {
                Part::Token(id) => ids.push(id),
                Part::Text(start, end) => {
                    let at_start = at_start && start == 0;
                    let piece = text[start..end].to_string();
                    let mut pieces = Pieces { bounds: vec![(0, piece.len())], text: piece, at_start };
                    for splitter in &self.splitters {
                        splitter.apply(&mut pieces)?;
                        growth.check(pieces.text.len())?;
                    }
                    for &(start, end) in &pieces.bounds {
                        cache.encode(&pieces.text[start..end], ids, |piece, ids| {
                            self.model.encode(&self.vocab, piece, ids)
                        });
                    }
                }
            }
        }
        Ok(())
    }

    /// How many tokens a text of so many bytes has at least: 0 if the tokenizer may drop or merge parts of it.
    pub fn fewest_tokens(&self, bytes: usize) -> usize {
        let keeps = self.normalizer.as_ref().is_none_or(Normalizer::keeps_bytes)
            && self.splitters.iter().all(Splitter::keeps_bytes)
            && self.model.keeps_bytes()
            && !self.raw.trims()
            && !self.normalized.trims();
        if keeps { bytes / self.vocab.longest().max(1) } else { 0 }
    }

    /// The text of tokens, without control tokens.
    pub fn decode(&self, ids: &[u32]) -> Result<String, Error> {
        self.decode_with(self.stream(), ids)
    }

    /// The text of tokens, with control tokens as they are written.
    pub fn decode_with_special(&self, ids: &[u32]) -> Result<String, Error> {
        self.decode_with(self.stream().keep_special(), ids)
    }

    fn decode_with(&self, mut stream: TokenStream<'_>, ids: &[u32]) -> Result<String, Error> {
        let mut text = String::new();
        for &id in ids {
            text.push_str(&stream.push(id)?);
        }
        text.push_str(&stream.finish());
        if self.trim_end && text.ends_with(' ') {
            text.pop();
        }
        Ok(text)
    }

    /// Text from tokens as they come.
    pub fn stream(&self) -> TokenStream<'_> {
        TokenStream::new(self)
    }

    /// How many tokens there are.
    pub fn vocab_size(&self) -> usize {
        self.vocab.len()
    }

    /// The bytes that a token adds to text, where it is not the first.
    pub fn token_bytes(&self, id: u32) -> Result<&[u8], Error> {
        self.bytes.get(id).ok_or(Error::UnknownId { id, size: self.vocab.len() })
    }

    /// A token as the vocabulary writes it.
    pub fn token_text(&self, id: u32) -> Result<&str, Error> {
        self.vocab.text(id).ok_or(Error::UnknownId { id, size: self.vocab.len() })
    }

    /// The token that the vocabulary writes like this.
    pub fn token_id(&self, text: &str) -> Option<u32> {
        self.vocab.id(text.as_bytes())
    }

    /// What a token is for.
    pub fn kind(&self, id: u32) -> Result<TokenKind, Error> {
        self.vocab.kinds.get(id as usize).copied().ok_or(Error::UnknownId { id, size: self.vocab.len() })
    }

    /// Whether a token is not part of text: control tokens and the unknown one.
    pub fn is_special(&self, id: u32) -> bool {
        matches!(self.kind(id), Ok(TokenKind::Control | TokenKind::Unknown))
    }

    /// Whether a model that generates this token has finished.
    pub fn is_end(&self, id: u32) -> bool {
        self.special.end.binary_search(&id).is_ok()
    }

    /// The tokens with a meaning of their own.
    pub fn special(&self) -> &SpecialTokens {
        &self.special
    }

    /// The bytes of a token.
    pub(crate) fn piece(&self, id: u32, text: &str, first: bool) -> Result<Vec<u8>, Error> {
        let added =
            matches!(self.kind(id), Ok(TokenKind::Control | TokenKind::Unknown | TokenKind::UserDefined));
        if added && self.raw_added {
            Ok(text.as_bytes().to_vec())
        } else {
            token_bytes(&self.decoder, text, first)
        }
    }

    /// Computes the bytes of all tokens, which is the last step of making a tokenizer.
    pub(crate) fn finished(mut self) -> Result<Tokenizer, Error> {
        let mut table = TokenBytes::default();
        for (id, text) in self.vocab.texts() {
            table.bytes.extend(self.piece(id, text, false)?);
            let end = u32::try_from(table.bytes.len());
            let limit = u32::MAX as usize;
            table.ends.push(end.map_err(|_| Error::TextGrows { bytes: text.len(), limit })?);
        }
        self.bytes = table;
        Ok(self)
    }
}

impl TokenBytes {
    fn get(&self, id: u32) -> Option<&[u8]> {
        let end = *self.ends.get(id as usize)?;
        let start = if id == 0 { 0 } else { *self.ends.get(id as usize - 1)? };
        self.bytes.get(start as usize..end as usize)
    }
}

/// Tokens of words that were met before. Each word has one place, so that no text makes lookups slow.
struct WordCache {
    slots: Vec<(Vec<u8>, Vec<u32>)>,
}

const SLOTS: usize = 1 << 12;
const LONGEST_WORD: usize = 48;
/// Shorter texts do not repeat enough words.
const SHORTEST_TEXT: usize = 1 << 12;

impl WordCache {
    fn new(length: usize) -> WordCache {
        WordCache { slots: if length < SHORTEST_TEXT { Vec::new() } else { vec![Default::default(); SLOTS] } }
    }

    fn encode(&mut self, word: &str, ids: &mut Vec<u32>, encode: impl FnOnce(&str, &mut Vec<u32>)) {
        if self.slots.is_empty() || word.len() > LONGEST_WORD {
            return encode(word, ids);
        }
        let mut hasher = FoldHasher::default();
        hasher.write(word.as_bytes());
        let (key, tokens) = &mut self.slots[(hasher.finish() >> 20) as usize % SLOTS];
        if key != word.as_bytes() || key.is_empty() {
            key.clear();
            key.extend_from_slice(word.as_bytes());
            tokens.clear();
            encode(word, tokens);
        }
        ids.extend_from_slice(tokens);
    }
}
