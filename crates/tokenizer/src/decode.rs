//! From tokens back to text.

use crate::normalize::Growth;
use crate::unicode;
use crate::vocab::byte_of_token;
use crate::{Error, Tokenizer};

/// How the text of a token becomes bytes.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum DecodeStep {
    /// Characters of the byte alphabet; a token with others stays as it is.
    ByteLevel,
    Replace(String, String),
    /// `<0x0A>` is a byte.
    ByteFallback,
    /// A leading character of the whole text goes, up to this often.
    StripStart(char, usize),
    /// A character stands for a space, which goes at the start.
    Metaspace {
        replacement: char,
        strip: bool,
    },
    WordPiece {
        prefix: String,
        cleanup: bool,
    },
    /// The end of a word, which becomes a space.
    Suffix(String),
    /// A space before all tokens but the first.
    Join,
    /// Bytes are written with escapes, as RWKV does.
    Escaped,
}

/// The bytes of a token.
pub(crate) fn token_bytes(steps: &[DecodeStep], text: &str, first: bool) -> Result<Vec<u8>, Error> {
    let growth = Growth::of_token(text.len());
    let mut text = text.to_string();
    for step in steps {
        growth.check(text.len())?;
        match step {
            DecodeStep::ByteLevel => {
                if let Some(bytes) = unicode::bytes_of_chars(&text) {
                    return Ok(bytes);
                }
            }
            DecodeStep::ByteFallback => {
                if let Some(byte) = byte_of_token(&text) {
                    return Ok(vec![byte]);
                }
            }
            DecodeStep::Escaped => return Ok(crate::gguf::unescaped(&text)),
            DecodeStep::Replace(from, to) => text = growth.replace(&text, from, to)?,
            DecodeStep::StripStart(c, most) if first => {
                let kept: usize = text.chars().take(*most).take_while(|x| x == c).map(char::len_utf8).sum();
                text.drain(..kept);
            }
            DecodeStep::StripStart(..) => (),
            DecodeStep::Metaspace { replacement, strip } => {
                if first && *strip && text.starts_with(*replacement) {
                    text.drain(..replacement.len_utf8());
                }
                text = text.replace(*replacement, " ");
            }
            DecodeStep::WordPiece { prefix, cleanup } => {
                if !first {
                    text = match text.strip_prefix(prefix.as_str()) {
                        Some(rest) if !prefix.is_empty() => rest.to_string(),
                        _ => format!(" {text}"),
                    };
                }
                if *cleanup {
                    text = cleaned(&text);
                }
            }
            DecodeStep::Suffix(suffix) => text = growth.replace(&text, suffix, " ")?,
            DecodeStep::Join => {
                if !first {
                    text.insert(0, ' ');
                }
            }
        }
    }
    growth.check(text.len())?;
    Ok(text.into_bytes())
}

/// English without the spaces that splitting at punctuation has put in.
fn cleaned(text: &str) -> String {
    let pairs =
        [(" .", "."), (" ?", "?"), (" !", "!"), (" ,", ","), (" ' ", "'"), (" n't", "n't"), (" 'm", "'m")];
    let more = [(" do not", " don't"), (" 's", "'s"), (" 've", "'ve"), (" 're", "'re")];
    pairs.iter().chain(&more).fold(text.to_string(), |text, (from, to)| text.replace(from, to))
}

/// Text from tokens as they come.
///
/// Characters whose bytes are spread over several tokens appear when they are complete; bytes that are not UTF-8 become U+FFFD.
#[derive(Debug)]
pub struct TokenStream<'a> {
    tokenizer: &'a Tokenizer,
    pending: Vec<u8>,
    first: bool,
    keep_special: bool,
}

impl<'a> TokenStream<'a> {
    pub(crate) fn new(tokenizer: &'a Tokenizer) -> TokenStream<'a> {
        TokenStream { tokenizer, pending: Vec::new(), first: true, keep_special: false }
    }

    /// Control tokens appear as they are written.
    pub fn keep_special(mut self) -> Self {
        self.keep_special = true;
        self
    }

    /// The text goes on after other text: a leading space is kept.
    pub fn continued(mut self) -> Self {
        self.first = false;
        self
    }

    /// The text that is complete with this token, which may be empty.
    pub fn push(&mut self, id: u32) -> Result<String, Error> {
        let Some(text) = self.tokenizer.vocab.text(id) else {
            return Err(Error::UnknownId { id, size: self.tokenizer.vocab.len() });
        };
        if !self.keep_special && self.tokenizer.is_special(id) {
            return Ok(String::new());
        }
        if self.first {
            self.pending.extend(self.tokenizer.piece(id, text, true)?);
        } else {
            self.pending.extend_from_slice(self.tokenizer.token_bytes(id)?);
        }
        self.first = false;
        Ok(self.complete())
    }

    /// The text of bytes that wait for others; the stream begins anew.
    pub fn finish(&mut self) -> String {
        self.first = true;
        String::from_utf8_lossy(&std::mem::take(&mut self.pending)).into_owned()
    }

    fn complete(&mut self) -> String {
        let mut text = String::new();
        let mut done = 0;
        for chunk in self.pending.utf8_chunks() {
            text.push_str(chunk.valid());
            done += chunk.valid().len();
            let invalid = chunk.invalid();
            if invalid.is_empty() {
                break;
            }
            if done + invalid.len() == self.pending.len() && begins_character(invalid) {
                break;
            }
            text.push('\u{FFFD}');
            done += invalid.len();
        }
        self.pending.drain(..done);
        text
    }
}

/// Whether bytes that are not a character can become one.
fn begins_character(bytes: &[u8]) -> bool {
    std::str::from_utf8(bytes).is_err_and(|e| e.valid_up_to() == 0 && e.error_len().is_none())
}
