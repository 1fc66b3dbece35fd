//! Tokens that are found in text before anything else is done to it.

use crate::Error;
use crate::trie::Trie;
use crate::unicode::is_word;

/// A token that is matched as it is written.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Added {
    pub(crate) id: u32,
    pub(crate) content: String,
    /// Only between characters that are not of a word.
    pub(crate) single_word: bool,
    /// Takes the spaces before it, and after it.
    pub(crate) lstrip: bool,
    pub(crate) rstrip: bool,
    /// Matched in normalised text.
    pub(crate) normalized: bool,
    /// Not matched in text that is not trusted.
    pub(crate) special: bool,
}

/// Part of a text: a token, or what is still to be encoded.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Part {
    Token(u32),
    Text(usize, usize),
}

/// Finds added tokens.
#[derive(Debug)]
pub(crate) struct Finder {
    tokens: Vec<Added>,
    trie: Trie,
}

impl Finder {
    /// `written` is how a token is written in the text that is searched.
    pub(crate) fn new(
        tokens: Vec<Added>,
        written: impl Fn(&Added) -> Result<String, Error>,
    ) -> Result<Finder, Error> {
        let texts: Vec<String> = tokens.iter().map(written).collect::<Result<_, _>>()?;
        // Of tokens that are written alike, the first counts.
        let trie = Trie::new(texts.iter().enumerate().rev().map(|(i, text)| (text.as_bytes(), i as u32)));
        Ok(Finder { tokens, trie })
    }

    /// Whether a token takes spaces around it.
    pub(crate) fn trims(&self) -> bool {
        self.tokens.iter().any(|token| token.lstrip || token.rstrip)
    }

    /// Splits a text at the leftmost, longest tokens.
    pub(crate) fn split(&self, text: &str, parse_special: bool, parts: &mut Vec<Part>) {
        let bytes = text.as_bytes();
        let (mut done, mut at) = (0, 0);
        while at < bytes.len() {
            if self.tokens.is_empty() {
                break;
            }
            let found = self.trie.longest(Trie::ROOT, &bytes[at..]);
            let Some((length, token)) =
                found.and_then(|(length, i)| Some((length, self.tokens.get(i as usize)?)))
            else {
                at += 1;
                continue;
            };
            let (mut start, mut end) = (at, at + length);
            at = end;
            if token.special && !parse_special || !text.is_char_boundary(start) || !text.is_char_boundary(end)
            {
                continue;
            }
            let in_word = text[..start].chars().next_back().is_some_and(is_word)
                || text[end..].chars().next().is_some_and(is_word);
            if token.single_word && in_word {
                continue;
            }
            if token.lstrip {
                start = text[..start].trim_end().len().max(done);
            }
            if token.rstrip {
                end += text[end..].len() - text[end..].trim_start().len();
            }
            if start > done {
                parts.push(Part::Text(done, start));
            }
            parts.push(Part::Token(token.id));
            (done, at) = (end, end);
        }
        if done < bytes.len() {
            parts.push(Part::Text(done, bytes.len()));
        }
    }
}
