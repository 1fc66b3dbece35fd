//! SentencePiece's compiled normalisation: a double-array trie of replacements.

use unicode_segmentation::UnicodeSegmentation;

use crate::Error;
use crate::normalize::Growth;

/// Bytes of the longest key, and of the longest replacement; those of models have a few dozen.
const LONGEST_KEY: usize = 256;
const LONGEST_REPLACEMENT: usize = 4096;

/// The trie and the replacements, which end with a zero byte.
#[derive(Debug)]
pub(crate) struct Charsmap {
    units: Vec<u32>,
    replacements: Vec<u8>,
}

impl Charsmap {
    /// Reads the blob of a model; says what is wrong with it.
    pub(crate) fn new(blob: &[u8]) -> Result<Charsmap, String> {
        let (size, rest) = blob.split_first_chunk::<4>().ok_or("it has less than four bytes")?;
        let size = u32::from_le_bytes(*size) as usize;
        if size > rest.len() || !size.is_multiple_of(4) {
            return Err(format!("its trie of {size} bytes does not fit in {} bytes", rest.len()));
        }
        let (units, replacements) = rest.split_at(size);
        let units = units.as_chunks::<4>().0.iter().map(|unit| u32::from_le_bytes(*unit)).collect();
        if std::str::from_utf8(replacements).is_err() {
            return Err("its replacements are not UTF-8".into());
        }
        Ok(Charsmap { units, replacements: replacements.to_vec() })
    }

    /// Lengths and values of the keys that `bytes` begin with, the shortest first.
    fn prefixes(&self, bytes: &[u8]) -> impl Iterator<Item = (usize, usize)> {
        let unit = |at: u32| self.units.get(at as usize).copied();
        let base = |unit: u32| (unit >> 10) << ((unit & 1 << 9) >> 6);
        let mut at = unit(0).map(base);
        bytes
            .iter()
            .take(LONGEST_KEY)
            .enumerate()
            .map_while(move |(i, &byte)| {
                let here = at? ^ u32::from(byte);
                let node =
                    unit(here).filter(|node| byte != 0 && node & (1 << 31 | 0xFF) == u32::from(byte))?;
                let next = here ^ base(node);
                at = Some(next);
                let leaf = (node >> 8 & 1 == 1)
                    .then(|| unit(next).map(|leaf| (i + 1, (leaf & !(1 << 31)) as usize)));
                Some(leaf.flatten())
            })
            .flatten()
    }

    fn replacement(&self, at: usize) -> Option<&str> {
        let rest = self.replacements.get(at..)?;
        let end = rest.iter().take(LONGEST_REPLACEMENT).position(|&byte| byte == 0)?;
        std::str::from_utf8(&rest[..end]).ok()
    }

    /// SentencePiece's rule: the longest key at each place is replaced. Returns the replacement and the bytes it stands for.
    pub(crate) fn longest(&self, text: &str) -> Option<(&str, usize)> {
        let (length, value) = self.prefixes(text.as_bytes()).last()?;
        text.is_char_boundary(length).then_some(())?;
        Some((self.replacement(value)?, length))
    }

    /// The rule of `tokenizers`: short grapheme clusters as a whole, otherwise character by character.
    pub(crate) fn by_graphemes(&self, text: &str, growth: Growth) -> Result<String, Error> {
        let whole = |chunk: &str| {
            self.prefixes(chunk.as_bytes()).next().and_then(|(_, value)| self.replacement(value))
        };
        let mut result = String::with_capacity(text.len());
        for grapheme in text.graphemes(true) {
            growth.check(result.len())?;
            if grapheme.len() < 6
                && let Some(replacement) = whole(grapheme)
            {
                result.push_str(replacement);
                continue;
            }
            for (at, c) in grapheme.char_indices() {
                let chunk = &grapheme[at..at + c.len_utf8()];
                result.push_str(whole(chunk).unwrap_or(chunk));
            }
        }
        Ok(result)
    }
}
