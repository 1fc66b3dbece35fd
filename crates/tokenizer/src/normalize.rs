//! Normalisation of text before it is split.

use unicode_normalization::UnicodeNormalization;

use crate::Error;
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
    /// All matches, which do not overlap. Returns whether these are all: a search that takes too long is given up.
    pub(crate) fn matches(&self, text: &str, mut each: impl FnMut(usize, usize)) -> bool {
        match self {
            Pattern::Text(wanted) if wanted.is_empty() => true,
            Pattern::Text(wanted) => {
                text.match_indices(wanted.as_str()).for_each(|(at, found)| each(at, at + found.len()));
                true
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
                !matcher.gave_up()
            }
        }
    }
}

/// How long a text may become on its way through a tokenizer's steps.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Growth {
    bytes: usize,
    limit: usize,
}

impl Growth {
    /// Of a text of so many bytes. Steps of models make a few times as many of them.
    pub(crate) fn of(bytes: usize) -> Self {
        Growth { bytes, limit: bytes.saturating_mul(32).saturating_add(1 << 16) }
    }

    /// Of a token of so many bytes.
    pub(crate) fn of_token(bytes: usize) -> Self {
        Growth { bytes, limit: bytes.saturating_mul(16).saturating_add(64) }
    }

    pub(crate) fn check(self, bytes: usize) -> Result<(), Error> {
        match bytes > self.limit {
            true => Err(Error::TextGrows { bytes: self.bytes, limit: self.limit }),
            false => Ok(()),
        }
    }

    /// `text` with all matches of `wanted` replaced.
    pub(crate) fn replace(self, text: &str, wanted: &str, content: &str) -> Result<String, Error> {
        let count = text.matches(wanted).count();
        let longer = content.len().saturating_sub(wanted.len());
        self.check(text.len().saturating_add(count.saturating_mul(longer)))?;
        Ok(text.replace(wanted, content))
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
    /// Normalises a text; if it becomes much longer, that is an error.
    pub(crate) fn apply(&self, text: String) -> Result<String, Error> {
        let growth = Growth::of(text.len());
        self.apply_within(text, growth)
    }

    /// Whether no text becomes shorter.
    pub(crate) fn keeps_bytes(&self) -> bool {
        match self {
            Normalizer::Sequence(steps) => steps.iter().all(Normalizer::keeps_bytes),
            Normalizer::Replace { pattern: Pattern::Text(wanted), content } => content.len() >= wanted.len(),
            Normalizer::Prepend(_) | Normalizer::ByteLevel => true,
            _ => false,
        }
    }

    fn apply_within(&self, text: String, growth: Growth) -> Result<String, Error> {
        let text = match self {
            Normalizer::Sequence(steps) => {
                steps.iter().try_fold(text, |text, step| step.apply_within(text, growth))?
            }
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
            Normalizer::Replace { pattern, content } => replace(pattern, content, text, growth)?,
            Normalizer::Prepend(_) if text.is_empty() => text,
            Normalizer::Prepend(prefix) => format!("{prefix}{text}"),
            Normalizer::Bert { clean, ideographs, accents, lowercase } => {
                bert(text, *clean, *ideographs, *accents, *lowercase)
            }
            Normalizer::ByteLevel => text.bytes().map(|byte| BYTE_CHARS[usize::from(byte)]).collect(),
            Normalizer::Nmt => nmt(&text),
            Normalizer::Charsmap(map) => map.by_graphemes(&text, growth)?,
            Normalizer::Sentence { charsmap, user_defined, prepend, merge } => {
                sentence(&text, charsmap.as_ref(), user_defined, (*prepend, *merge), growth)?
            }
        };
        growth.check(text.len())?;
        Ok(text)
    }
}

fn lowercase(text: &str) -> String {
    text.chars().flat_map(char::to_lowercase).collect()
}

fn replace(pattern: &Pattern, content: &str, text: String, growth: Growth) -> Result<String, Error> {
    if let Pattern::Text(wanted) = pattern {
        return if wanted.is_empty() { Ok(text) } else { growth.replace(&text, wanted, content) };
    }
    let mut result = String::with_capacity(text.len());
    let mut done = 0;
    let all = pattern.matches(&text, |start, end| {
        if growth.check(result.len()).is_ok() {
            result.push_str(&text[done..start]);
            result.push_str(content);
            done = end;
        }
    });
    growth.check(result.len())?;
    if !all {
        return Err(Error::SearchTooLong { bytes: text.len() });
    }
    result.push_str(&text[done..]);
    Ok(result)
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
    (prepend, merge): (bool, bool),
    growth: Growth,
) -> Result<String, Error> {
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
        growth.check(result.len())?;
    }
    Ok(result)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Tokenizer;

    fn tokenizer(parts: &str) -> Result<Tokenizer, Error> {
        Tokenizer::from_json(&format!(
            r#"{{"model": {{"type": "WordLevel", "vocab": {{"aaaa": 0, "b": 1}}, "unk_token": "b"}}, {parts}}}"#
        ))
    }

    fn repeated(name: &str, list: &str, step: &str, count: usize) -> String {
        format!(r#""{name}": {{"type": "Sequence", "{list}": [{}]}}"#, vec![step; count].join(","))
    }

    fn grows<T: std::fmt::Debug>(result: Result<T, Error>) -> bool {
        matches!(result, Err(Error::TextGrows { .. }))
    }

    #[test]
    fn steps_that_make_text_longer_and_longer_are_errors() {
        let double = r#"{"type": "Replace", "pattern": {"String": "a"}, "content": "aa"}"#;
        let regex = r#"{"type": "Replace", "pattern": {"Regex": "a"}, "content": "aa"}"#;
        let huge = format!(
            r#"{{"type": "Replace", "pattern": {{"String": "a"}}, "content": "{}"}}"#,
            "x".repeat(1 << 20)
        );
        let level = r#"{"type": "ByteLevel", "add_prefix_space": false, "use_regex": false}"#;
        let text = "a é".repeat(1000);
        for (what, parts) in [
            ("replace", repeated("normalizer", "normalizers", double, 60)),
            ("regex", repeated("normalizer", "normalizers", regex, 60)),
            ("huge", format!(r#""normalizer": {huge}"#)),
            ("bytes", repeated("normalizer", "normalizers", r#"{"type": "ByteLevel"}"#, 60)),
            ("pieces", repeated("pre_tokenizer", "pretokenizers", level, 60)),
        ] {
            let tokenizer = tokenizer(&parts).unwrap_or_else(|e| panic!("{what}: {e}"));
            assert!(grows(tokenizer.encode(&text, false, false)), "{what}");
            assert!(tokenizer.encode("b", false, false).is_ok(), "{what}");
        }
        let added = r#""added_tokens": [{"id": 2, "content": "aaaaa", "normalized": true}], "#;
        let parts = added.to_string() + &repeated("normalizer", "normalizers", double, 60);
        assert!(grows(tokenizer(&parts)));
        let wide = r#"{"type": "Replace", "pattern": {"String": ""}, "content": "xyz"}"#;
        let suffix = r#"{"type": "BPEDecoder", "suffix": ""}"#;
        for step in [double, wide, suffix] {
            assert!(grows(tokenizer(&repeated("decoder", "decoders", step, 60))), "{step}");
        }
        for (name, list, step) in [
            ("normalizer", "normalizers", double),
            ("pre_tokenizer", "pretokenizers", level),
            ("decoder", "decoders", double),
        ] {
            let error = tokenizer(&repeated(name, list, step, 1000)).unwrap_err().to_string();
            assert!(error.contains("256 steps"), "{error}");
        }
    }

    /// A charsmap whose trie has a cycle: every run of `a` is a key.
    fn endless() -> Charsmap {
        // The root's base is 0x100, so that `a` leads to unit 0x161, whose own base leads back to itself.
        let mut units = vec![0u32; 0x200];
        units[0] = 0x100 << 10;
        units[0x161] = 0x61 | 0x61 << 10 | 1 << 8;
        units[0x100] = 1 << 31;
        let mut blob = ((units.len() * 4) as u32).to_le_bytes().to_vec();
        units.iter().for_each(|unit| blob.extend(unit.to_le_bytes()));
        blob.extend(b"yy\0");
        Charsmap::new(&blob).unwrap()
    }

    #[test]
    fn keys_of_a_charsmap_are_bounded() {
        let map = endless();
        let text = "a".repeat(1 << 20);
        let (_, length) = map.longest(&text).unwrap();
        assert!(length <= 256, "{length}");
        let begun = std::time::Instant::now();
        let user_defined = Trie::new(std::iter::empty::<(&[u8], u32)>());
        let sentence =
            Normalizer::Sentence { charsmap: Some(map), user_defined, prepend: true, merge: false };
        sentence.apply(text).unwrap();
        assert!(begun.elapsed().as_secs() < 20, "{:?}", begun.elapsed());
    }
}
