//! Normalisation of text before it is split.

use unicode_normalization::UnicodeNormalization;

use crate::charsmap::Charsmap;
use crate::regex::{Matcher, Program};
use crate::trie::Trie;
use crate::unicode::{self, BYTE_CHARS};

/// What is searched for.
#[derive(Debug)]
pub(crate) enum Pattern {
    Text(String),
    Regex(Program),
}

impl Pattern {
    /// All matches, which do not overlap.
    pub(crate) fn matches(&self, text: &str, mut each: impl FnMut(usize, usize)) {
        match self {
            Pattern::Text(wanted) if wanted.is_empty() => (),
            Pattern::Text(wanted) => {
                text.match_indices(wanted.as_str()).for_each(|(at, found)| each(at, at + found.len()))
            }
            Pattern::Regex(program) => {
                let mut matcher = Matcher::new(program, text);
                let mut from = 0;
                while let Some((start, end)) = matcher.find(from) {
                    each(start, end);
                    from = if end > start {
                        end
                    } else {
                        end + text[end..].chars().next().map_or(1, char::len_utf8)
                    };
                }
            }
        }
    }
}

/// A step of normalisation.
#[derive(Debug)]
pub(crate) enum Normalizer {
    Sequence(Vec<Normalizer>),
    Nfc,
    Nfd,
    Nfkc,
    Nfkd,
    Lowercase,
    StripAccents,
    Strip {
        left: bool,
        right: bool,
    },
    Replace {
        pattern: Pattern,
        content: String,
    },
    Prepend(String),
    Bert {
        clean: bool,
        ideographs: bool,
        accents: bool,
        lowercase: bool,
    },
    ByteLevel,
    Nmt,
    Charsmap(Charsmap),
    /// As llama.cpp prepares text for Unigram models.
    Sentence {
        charsmap: Option<Charsmap>,
        user_defined: Trie,
        prepend: bool,
        merge: bool,
    },
}

impl Normalizer {
    pub(crate) fn apply(&self, text: String) -> String {
        match self {
            Normalizer::Sequence(steps) => steps.iter().fold(text, |text, step| step.apply(text)),
            Normalizer::Nfc if text.is_ascii() => text,
            Normalizer::Nfc => text.nfc().collect(),
            Normalizer::Nfd => text.nfd().collect(),
            Normalizer::Nfkc => text.nfkc().collect(),
            Normalizer::Nfkd => text.nfkd().collect(),
            Normalizer::Lowercase => lowercase(&text),
            Normalizer::StripAccents => {
                text.chars().filter(|&c| unicode::category(c) & unicode::MARK == 0).collect()
            }
            Normalizer::Strip { left, right } => {
                let text = if *left { text.trim_start() } else { &text };
                (if *right { text.trim_end() } else { text }).to_string()
            }
            Normalizer::Replace { pattern, content } => replace(pattern, content, text),
            Normalizer::Prepend(_) if text.is_empty() => text,
            Normalizer::Prepend(prefix) => format!("{prefix}{text}"),
            Normalizer::Bert { clean, ideographs, accents, lowercase } => {
                bert(text, *clean, *ideographs, *accents, *lowercase)
            }
            Normalizer::ByteLevel => text.bytes().map(|byte| BYTE_CHARS[usize::from(byte)]).collect(),
            Normalizer::Nmt => nmt(&text),
            Normalizer::Charsmap(map) => map.by_graphemes(&text),
            Normalizer::Sentence { charsmap, user_defined, prepend, merge } => {
                sentence(&text, charsmap.as_ref(), user_defined, *prepend, *merge)
            }
        }
    }
}

fn lowercase(text: &str) -> String {
    text.chars().flat_map(char::to_lowercase).collect()
}

fn replace(pattern: &Pattern, content: &str, text: String) -> String {
    if let Pattern::Text(wanted) = pattern {
        return if wanted.is_empty() { text } else { text.replace(wanted.as_str(), content) };
    }
    let mut result = String::with_capacity(text.len());
    let mut done = 0;
    pattern.matches(&text, |start, end| {
        result.push_str(&text[done..start]);
        result.push_str(content);
        done = end;
    });
    result.push_str(&text[done..]);
    result
}

fn bert(mut text: String, clean: bool, ideographs: bool, accents: bool, lower: bool) -> String {
    use unicode::{CC, CF, CO};
    if clean {
        let control =
            |c: char| !matches!(c, '\t' | '\n' | '\r') && unicode::category(c) & (CC | CF | CO) != 0;
        let kept = text.chars().filter(|&c| c != '\0' && c != '\u{FFFD}' && !control(c));
        text = kept.map(|c| if c.is_whitespace() { ' ' } else { c }).collect();
    }
    if ideographs && text.chars().any(unicode::is_ideograph) {
        let mut spaced = String::with_capacity(text.len() * 2);
        for c in text.chars() {
            if unicode::is_ideograph(c) {
                spaced.extend([' ', c, ' ']);
            } else {
                spaced.push(c);
            }
        }
        text = spaced;
    }
    if accents && !text.is_ascii() {
        text = text.nfd().filter(|&c| unicode::category(c) & unicode::MN == 0).collect();
    }
    if lower { lowercase(&text) } else { text }
}

fn nmt(text: &str) -> String {
    let dropped = |c: char| matches!(u32::from(c), 1..=8 | 0xB | 0xE..=0x1F | 0x7F | 0x8F | 0x9F);
    let space = |c: char| {
        matches!(
            u32::from(c),
            9 | 0xA | 0xC | 0xD | 0x1680 | 0x200B..=0x200F | 0x2028 | 0x2029 | 0x2581 | 0xFEFF | 0xFFFD
        )
    };
    text.chars().filter(|&c| !dropped(c)).map(|c| if space(c) { ' ' } else { c }).collect()
}

/// Replaces by the charsmap, writes spaces as `▁`, and merges or prepends them.
fn sentence(
    text: &str,
    charsmap: Option<&Charsmap>,
    user_defined: &Trie,
    prepend: bool,
    merge: bool,
) -> String {
    let mut result = String::with_capacity(text.len() + 8);
    let (mut prepended, mut inside_word) = (false, false);
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let single = &rest[..first.len_utf8()];
        let (part, length) = match user_defined.longest(Trie::ROOT, rest.as_bytes()) {
            Some((length, _)) if rest.is_char_boundary(length) => (&rest[..length], length),
            _ => charsmap.and_then(|map| map.longest(rest)).unwrap_or((single, single.len())),
        };
        for c in part.chars() {
            if c == ' ' {
                inside_word = false;
                if !merge {
                    result.push('▁');
                }
            } else {
                if !inside_word && (merge || prepend && !prepended) {
                    result.push('▁');
                    prepended = true;
                }
                inside_word = true;
                result.push(c);
            }
        }
        rest = &rest[length..];
    }
    result
}
