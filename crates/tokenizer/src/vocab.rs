//! The vocabulary: tokens, their texts and kinds.

use crate::hash::Map;
use crate::trie::NONE;

/// What a token is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TokenKind {
    /// Text.
    Normal,
    /// The token of what the vocabulary lacks.
    Unknown,
    /// Begins, ends or structures text; not part of it.
    Control,
    /// Text that is always one token.
    UserDefined,
    /// Not used.
    Unused,
    /// One byte.
    Byte,
}

/// Tokens by id and by text.
#[derive(Debug, Default)]
pub(crate) struct Vocab {
    texts: Vec<Box<str>>,
    pub(crate) kinds: Vec<TokenKind>,
    ids: Map<Box<[u8]>, u32>,
    longest: usize,
}

impl Vocab {
    /// Adds a token with the next id; the id of one that has the same text is an error.
    pub(crate) fn push(&mut self, text: &str, kind: TokenKind) -> Result<u32, u32> {
        let id = self.texts.len() as u32;
        self.longest = self.longest.max(text.len());
        self.texts.push(text.into());
        self.kinds.push(kind);
        match self.ids.insert(text.as_bytes().into(), id) {
            Some(other) => Err(other),
            None => Ok(id),
        }
    }

    /// Adds an id that no text becomes.
    pub(crate) fn push_gap(&mut self) {
        self.texts.push("".into());
        self.kinds.push(TokenKind::Unused);
    }

    pub(crate) fn len(&self) -> usize {
        self.texts.len()
    }

    #[inline]
    pub(crate) fn id(&self, text: &[u8]) -> Option<u32> {
        self.ids.get(text).copied()
    }

    pub(crate) fn text(&self, id: u32) -> Option<&str> {
        self.texts.get(id as usize).map(|text| &**text)
    }

    /// Bytes of the longest token.
    pub(crate) fn longest(&self) -> usize {
        self.longest
    }

    pub(crate) fn texts(&self) -> impl Iterator<Item = (u32, &str)> {
        self.texts.iter().enumerate().map(|(id, text)| (id as u32, &**text))
    }

    /// The tokens `<0x00>` to `<0xFF>`, or [`NONE`] for those that are missing.
    pub(crate) fn byte_tokens(&self) -> Box<[u32; 256]> {
        Box::new(std::array::from_fn(|byte| self.id(format!("<0x{byte:02X}>").as_bytes()).unwrap_or(NONE)))
    }
}

/// The byte that a token such as `<0x0A>` stands for.
pub(crate) fn byte_of_token(text: &str) -> Option<u8> {
    let hex = text.strip_prefix("<0x")?.strip_suffix('>')?;
    if hex.len() == 2 { u8::from_str_radix(hex, 16).ok() } else { None }
}
