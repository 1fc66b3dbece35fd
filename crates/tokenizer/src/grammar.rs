//! Masks of the tokens with which text stays a prefix of valid JSON.
//!
//! The automaton reads bytes; its stack holds the open arrays and objects. A mask is found by walking the trie of all tokens, and
//! kept: it depends on the automaton's mode and on as much of the stack as one token can close.

use std::sync::Arc;

use crate::hash::Map;
use crate::schema::{JsonSchema, SchemaState, Work};
use crate::trie::{NONE, Trie};
use crate::{Error, TokenKind, Tokenizer};

/// What may come next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Mode {
    /// An object, and nothing else.
    Object {
        spaces: u8,
    },
    /// A value; in an array that has just begun also its end.
    Value {
        first: bool,
        spaces: u8,
    },
    /// A key; in an object that has just begun also its end.
    Key {
        first: bool,
        spaces: u8,
    },
    Colon {
        spaces: u8,
    },
    /// A comma, or the end of what is open.
    After {
        spaces: u8,
    },
    /// Inside a string, with the bytes of a character that are missing and the bounds of the next.
    String {
        key: bool,
        missing: u8,
        low: u8,
        high: u8,
    },
    Escape {
        key: bool,
    },
    Hex {
        key: bool,
        left: u8,
    },
    Literal {
        word: u8,
        at: u8,
    },
    Minus,
    Zero,
    Integer,
    Point,
    Fraction,
    Exponent,
    ExponentSign,
    ExponentDigits,
}

const WORDS: [&[u8]; 3] = [b"true", b"false", b"null"];
/// White space in a row that a model may write; without a bound it could write nothing else.
pub(crate) const MOST_SPACES: u8 = 20;
/// Arrays and objects inside each other.
const DEEPEST: usize = 128;

/// What finding a mask may cost ([`Work`]); past it a text is read in one way only. Common schemas take a tenth of it.
const MOST_WORK: usize = 1 << 22;

/// Longer tokens are never allowed.
const LONGEST_TOKEN: usize = 256;

/// A place in a JSON text.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct JsonState {
    mode: Mode,
    /// The open containers; `true` for objects.
    open: Vec<bool>,
}

/// What a byte has done to the stack.
enum Change {
    Nothing,
    Opened,
    Closed(bool),
}

impl JsonState {
    /// Before the first byte of a value.
    pub(crate) fn start() -> Self {
        JsonState { mode: Mode::Value { first: false, spaces: 0 }, open: Vec::new() }
    }

    /// After the quote of a string.
    pub(crate) fn string() -> Self {
        let mode = Mode::String { key: false, missing: 0, low: 0x80, high: 0xBF };
        JsonState { mode, open: Vec::new() }
    }

    /// Whether the next byte begins a character of a string, or ends it.
    pub(crate) fn begins_character(&self) -> bool {
        matches!(self.mode, Mode::String { missing: 0, .. })
    }

    /// Whether the value has ended, and is no number that may go on.
    pub(crate) fn is_closed(&self) -> bool {
        self.open.is_empty() && matches!(self.mode, Mode::After { .. })
    }

    /// Takes a byte, or returns false and changes nothing.
    pub(crate) fn read(&mut self, byte: u8) -> bool {
        self.step(byte).is_some()
    }

    /// Whether the text is a complete value.
    pub fn is_complete(&self) -> bool {
        self.open.is_empty()
            && matches!(
                self.mode,
                Mode::After { .. } | Mode::Zero | Mode::Integer | Mode::Fraction | Mode::ExponentDigits
            )
    }

    /// Takes a byte, or returns `None` and changes nothing.
    fn step(&mut self, byte: u8) -> Option<Change> {
        let space = matches!(byte, b' ' | b'\t' | b'\n' | b'\r');
        let plain = |key| Mode::String { key, missing: 0, low: 0x80, high: 0xBF };
        let next = match self.mode {
            Mode::Object { spaces } if space && spaces < MOST_SPACES => Mode::Object { spaces: spaces + 1 },
            Mode::Object { .. } if byte == b'{' => return self.enter(true),
            Mode::Value { first, spaces } if space && spaces < MOST_SPACES => {
                Mode::Value { first, spaces: spaces + 1 }
            }
            Mode::Value { first, .. } => match byte {
                b'{' => return self.enter(true),
                b'[' => return self.enter(false),
                b']' if first => return self.leave(false),
                b'"' => plain(false),
                b'-' => Mode::Minus,
                b'0' => Mode::Zero,
                b'1'..=b'9' => Mode::Integer,
                b't' => Mode::Literal { word: 0, at: 1 },
                b'f' => Mode::Literal { word: 1, at: 1 },
                b'n' => Mode::Literal { word: 2, at: 1 },
                _ => return None,
            },
            Mode::Key { first, spaces } if space && spaces < MOST_SPACES => {
                Mode::Key { first, spaces: spaces + 1 }
            }
            Mode::Key { first, .. } => match byte {
                b'"' => plain(true),
                b'}' if first => return self.leave(true),
                _ => return None,
            },
            Mode::Colon { spaces } if space && spaces < MOST_SPACES => Mode::Colon { spaces: spaces + 1 },
            Mode::Colon { .. } if byte == b':' => Mode::Value { first: false, spaces: 0 },
            Mode::After { spaces } if space && spaces < MOST_SPACES => Mode::After { spaces: spaces + 1 },
            Mode::After { .. } => return self.after(byte),
            Mode::String { key, missing: 0, .. } => match byte {
                b'"' if key => Mode::Colon { spaces: 0 },
                b'"' => Mode::After { spaces: 0 },
                b'\\' => Mode::Escape { key },
                0x20..=0x7F => plain(key),
                0xC2..=0xDF => Mode::String { key, missing: 1, low: 0x80, high: 0xBF },
                0xE0 => Mode::String { key, missing: 2, low: 0xA0, high: 0xBF },
                0xED => Mode::String { key, missing: 2, low: 0x80, high: 0x9F },
                0xE1..=0xEF => Mode::String { key, missing: 2, low: 0x80, high: 0xBF },
                0xF0 => Mode::String { key, missing: 3, low: 0x90, high: 0xBF },
                0xF4 => Mode::String { key, missing: 3, low: 0x80, high: 0x8F },
                0xF1..=0xF3 => Mode::String { key, missing: 3, low: 0x80, high: 0xBF },
                _ => return None,
            },
            Mode::String { key, missing, low, high } if (low..=high).contains(&byte) => {
                Mode::String { key, missing: missing - 1, low: 0x80, high: 0xBF }
            }
            Mode::Escape { key } => match byte {
                b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't' => plain(key),
                b'u' => Mode::Hex { key, left: 4 },
                _ => return None,
            },
            Mode::Hex { key, left } if byte.is_ascii_hexdigit() => {
                if left == 1 {
                    plain(key)
                } else {
                    Mode::Hex { key, left: left - 1 }
                }
            }
            Mode::Literal { word, at } => {
                let word_bytes = WORDS[usize::from(word)];
                if word_bytes[usize::from(at)] != byte {
                    return None;
                }
                let end = usize::from(at) + 1 == word_bytes.len();
                if end { Mode::After { spaces: 0 } } else { Mode::Literal { word, at: at + 1 } }
            }
            Mode::Minus => match byte {
                b'0' => Mode::Zero,
                b'1'..=b'9' => Mode::Integer,
                _ => return None,
            },
            Mode::Integer if byte.is_ascii_digit() => Mode::Integer,
            Mode::Zero | Mode::Integer if byte == b'.' => Mode::Point,
            Mode::Point | Mode::Fraction if byte.is_ascii_digit() => Mode::Fraction,
            Mode::Zero | Mode::Integer | Mode::Fraction if matches!(byte, b'e' | b'E') => Mode::Exponent,
            Mode::Exponent if matches!(byte, b'+' | b'-') => Mode::ExponentSign,
            Mode::Exponent | Mode::ExponentSign | Mode::ExponentDigits if byte.is_ascii_digit() => {
                Mode::ExponentDigits
            }
            Mode::Zero | Mode::Integer | Mode::Fraction | Mode::ExponentDigits if space => {
                Mode::After { spaces: 1 }
            }
            Mode::Zero | Mode::Integer | Mode::Fraction | Mode::ExponentDigits => return self.after(byte),
            _ => return None,
        };
        self.mode = next;
        Some(Change::Nothing)
    }

    fn enter(&mut self, object: bool) -> Option<Change> {
        if self.open.len() >= DEEPEST {
            return None;
        }
        self.open.push(object);
        self.mode = if object {
            Mode::Key { first: true, spaces: 0 }
        } else {
            Mode::Value { first: true, spaces: 0 }
        };
        Some(Change::Opened)
    }

    fn leave(&mut self, object: bool) -> Option<Change> {
        if self.open.last() != Some(&object) {
            return None;
        }
        self.open.pop();
        self.mode = Mode::After { spaces: 0 };
        Some(Change::Closed(object))
    }

    fn after(&mut self, byte: u8) -> Option<Change> {
        match (byte, self.open.last()) {
            (b'}', _) => self.leave(true),
            (b']', _) => self.leave(false),
            (b',', Some(true)) => {
                self.mode = Mode::Key { first: false, spaces: 0 };
                Some(Change::Nothing)
            }
            (b',', Some(false)) => {
                self.mode = Mode::Value { first: false, spaces: 0 };
                Some(Change::Nothing)
            }
            _ => None,
        }
    }

    fn undo(&mut self, mode: Mode, change: Change) {
        self.mode = mode;
        match change {
            Change::Nothing => (),
            Change::Opened => {
                self.open.pop();
            }
            Change::Closed(object) => self.open.push(object),
        }
    }
}

/// The tokens of a vocabulary, for masks of valid JSON.
#[derive(Debug)]
pub struct JsonGrammar {
    trie: Trie,
    /// Tokens with the bytes of another, which the trie has.
    twins: Map<u32, Vec<u32>>,
    bytes: Vec<Box<[u8]>>,
    ends: Vec<u32>,
    /// Containers that matter to one token: those that it can close and the next. `None` if a key of `masks` cannot hold them.
    sees: Option<usize>,
    /// Containers that one token can open.
    opens: usize,
    masks: Map<(Mode, usize, u64), Arc<[u64]>>,
}

impl JsonGrammar {
    /// Collects the tokens that are text.
    pub fn new(tokenizer: &Tokenizer) -> Result<JsonGrammar, Error> {
        let mut bytes: Vec<Box<[u8]>> = Vec::with_capacity(tokenizer.vocab_size());
        for id in 0..tokenizer.vocab_size() as u32 {
            let text =
                matches!(tokenizer.kind(id)?, TokenKind::Normal | TokenKind::Byte | TokenKind::UserDefined);
            let written = tokenizer.token_bytes(id)?;
            bytes.push(if text && written.len() <= LONGEST_TOKEN { written.into() } else { Box::default() });
        }
        let trie = Trie::new(bytes.iter().enumerate().map(|(id, bytes)| (&**bytes, id as u32)));
        let mut twins: Map<u32, Vec<u32>> = Map::default();
        for (id, bytes) in bytes.iter().enumerate().filter(|(_, bytes)| !bytes.is_empty()) {
            let node = trie.walk(Trie::ROOT, bytes);
            if node != NONE && trie.value(node) != id as u32 {
                twins.entry(trie.value(node)).or_default().push(id as u32);
            }
        }
        let most = |a: u8, b: u8| {
            let count = |bytes: &[u8]| bytes.iter().filter(|&&byte| byte == a || byte == b).count();
            bytes.iter().map(|bytes| count(bytes)).max().unwrap_or(0)
        };
        let (sees, opens) = (most(b']', b'}') + 1, most(b'[', b'{'));
        let ends = tokenizer.special().end.clone();
        Ok(JsonGrammar {
            trie,
            twins,
            bytes,
            ends,
            sees: (sees <= 64).then_some(sees),
            opens,
            masks: Map::default(),
        })
    }

    /// Before the first byte of a value.
    pub fn start(&self) -> JsonState {
        JsonState::start()
    }

    /// Before the first byte of a value that follows a schema.
    pub fn start_schema(&self, schema: Arc<JsonSchema>) -> SchemaState {
        SchemaState::new(schema)
    }

    /// As [`JsonGrammar::mask`], for a value that follows a schema.
    pub fn schema_mask(&self, state: &SchemaState) -> Arc<[u64]> {
        state.mask(|| {
            let mut words = vec![0u64; self.bytes.len().div_ceil(64)];
            self.walk_schema(Trie::ROOT, state, &mut words, &mut Work::new(MOST_WORK));
            if state.is_complete() {
                self.ends.iter().for_each(|&id| set(&mut words, id));
            }
            words.into()
        })
    }

    fn walk_schema(&self, node: u32, state: &SchemaState, words: &mut [u64], work: &mut Work) {
        // Tokens of one byte are always tried, so that some way goes on.
        if work.is_exhausted() && node != Trie::ROOT {
            return;
        }
        for (byte, child) in self.trie.children(node) {
            let Some(next) = state.step_within(byte, work) else { continue };
            let id = self.trie.value(child);
            if id != NONE {
                set(words, id);
                self.twins.get(&id).into_iter().flatten().for_each(|&id| set(words, id));
            }
            self.walk_schema(child, &next, words, work);
        }
    }

    /// As [`JsonGrammar::accept`], for a value that follows a schema.
    pub fn schema_accept(&self, state: &mut SchemaState, id: u32) -> Result<(), Error> {
        if state.is_complete() && self.ends.contains(&id) {
            return Ok(());
        }
        let bytes = self.bytes.get(id as usize).ok_or(Error::UnknownId { id, size: self.bytes.len() })?;
        // A token of the mask is read in no fewer ways than when the mask was found.
        let mut work = Work::new(MOST_WORK);
        let read = |state: SchemaState, byte: &u8| state.step_within(*byte, &mut work);
        match bytes.iter().try_fold(state.clone(), read).filter(|_| !bytes.is_empty()) {
            Some(next) => *state = next,
            None => {
                let problem = format!("token {id} does not continue a value that follows the schema");
                return Err(Error::Grammar { problem });
            }
        }
        Ok(())
    }

    /// Before the first byte of a value that has to be an object.
    pub fn start_object(&self) -> JsonState {
        JsonState { mode: Mode::Object { spaces: 0 }, open: Vec::new() }
    }

    /// The tokens that may follow: bit `id % 64` of word `id / 64`. Tokens that end generation may follow a complete value.
    pub fn mask(&mut self, state: &JsonState) -> Arc<[u64]> {
        let key = self.sees.map(|sees| {
            let top =
                state.open.iter().rev().take(sees).fold(0u64, |bits, &object| bits << 1 | u64::from(object));
            // Near the deepest nesting it matters how deep the text is.
            let depth = if state.open.len() + self.opens >= DEEPEST {
                state.open.len()
            } else {
                state.open.len().min(sees)
            };
            (state.mode, depth, top)
        });
        if let Some(mask) = key.and_then(|key| self.masks.get(&key)) {
            return mask.clone();
        }
        let mut words = vec![0u64; self.bytes.len().div_ceil(64)];
        self.walk(Trie::ROOT, &mut state.clone(), &mut words);
        if state.is_complete() {
            self.ends.iter().for_each(|&id| set(&mut words, id));
        }
        let mask: Arc<[u64]> = words.into();
        if let Some(key) = key {
            // A few hundred masks are met in practice.
            if self.masks.len() > 4096 {
                self.masks.clear();
            }
            self.masks.insert(key, mask.clone());
        }
        mask
    }

    fn walk(&self, node: u32, state: &mut JsonState, words: &mut [u64]) {
        for (byte, child) in self.trie.children(node) {
            let before = state.mode;
            let Some(change) = state.step(byte) else { continue };
            let id = self.trie.value(child);
            if id != NONE {
                set(words, id);
                self.twins.get(&id).into_iter().flatten().for_each(|&id| set(words, id));
            }
            self.walk(child, state, words);
            state.undo(before, change);
        }
    }

    /// Goes on with a token; one that the mask lacks is an error, and the state stays.
    pub fn accept(&self, state: &mut JsonState, id: u32) -> Result<(), Error> {
        if state.is_complete() && self.ends.contains(&id) {
            return Ok(());
        }
        let bytes = self.bytes.get(id as usize).ok_or(Error::UnknownId { id, size: self.bytes.len() })?;
        let mut next = state.clone();
        if bytes.is_empty() || !bytes.iter().all(|&byte| next.step(byte).is_some()) {
            return Err(Error::Grammar { problem: format!("token {id} does not continue valid JSON") });
        }
        *state = next;
        Ok(())
    }
}

fn set(words: &mut [u64], id: u32) {
    if let Some(word) = words.get_mut(id as usize / 64) {
        *word |= 1 << (id % 64);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state() -> JsonState {
        JsonState { mode: Mode::Value { first: false, spaces: 0 }, open: Vec::new() }
    }

    fn accepts(text: &[u8]) -> bool {
        let mut state = state();
        text.iter().all(|&byte| state.step(byte).is_some()) && state.is_complete()
    }

    #[test]
    fn the_automaton_accepts_what_a_parser_accepts() {
        let good = [
            r#"{}"#,
            "[]",
            " [1, -2.5e+3, 0, \"é\\u00e9\\n\"] ",
            r#"{"a": {"b": [true, false, null]}, "c": "😀"}"#,
            "3",
            "-0.5E2",
        ];
        for text in good {
            assert!(accepts(text.as_bytes()) && crate::Json::parse(text).is_ok(), "{text}");
        }
        for text in [
            "", "{", "[1,]", "{,}", "01", "1.", "-", "tru", "\"\\x\"", "{1: 2}", "[}", "1 2", "\"\n\"",
            "{\"a\"}",
        ] {
            assert!(!accepts(text.as_bytes()) && crate::Json::parse(text).is_err(), "{text}");
        }
        assert!(!accepts(b"\"\xC3\"") && !accepts(b"\"\xED\xA0\x80\"") && !accepts(&b"[".repeat(200)));
    }

    #[test]
    fn masks_agree_with_every_token_and_are_kept() {
        let tokens = [
            "{", "}", "[", "]", "]}", "}]", "\"", "a", "1", ",", ":", " ", "tr", "ue", "\":", "],", "-", "é",
            "\\", "\\n", "</s>",
        ];
        let entries: Vec<String> =
            tokens.iter().enumerate().map(|(id, t)| format!("{}: {id}", quoted(t))).collect();
        let json = format!(
            r#"{{"added_tokens": [{{"id": 20, "content": "</s>", "special": true}}], "model": {{"type": "WordLevel", "vocab": {{{}}}}},
            "decoder": {{"type": "Fuse"}}}}"#,
            entries.join(", ")
        );
        let tokenizer = Tokenizer::from_json(&json).unwrap();
        let mut grammar = JsonGrammar::new(&tokenizer).unwrap();
        let mut seed = 1u64;
        for _ in 0..200 {
            let mut at = grammar.start();
            for _ in 0..30 {
                let mask = grammar.mask(&at);
                let allowed: Vec<u32> = (0..21).filter(|&id| mask[0] >> id & 1 == 1).collect();
                let tried: Vec<u32> =
                    (0..21).filter(|&id| grammar.accept(&mut at.clone(), id).is_ok()).collect();
                assert_eq!(allowed, tried, "{at:?}");
                seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                let Some(&id) = allowed.get((seed >> 33) as usize % allowed.len().max(1)) else {
                    panic!("{at:?}")
                };
                grammar.accept(&mut at, id).unwrap();
            }
        }
        // Of all tokens, an object begins with its brace or a space.
        let mask = grammar.mask(&grammar.start_object());
        assert_eq!((0..21).filter(|&id| mask[0] >> id & 1 == 1).collect::<Vec<u32>>(), [0, 11]);
        assert!(grammar.masks.len() > 10);
        assert!(grammar.accept(&mut grammar.start(), 1).is_err());
    }

    #[test]
    fn masks_of_costly_schemas_end_and_hold_what_is_allowed() {
        let words = (0..20_000).map(|i| format!("w{i:b}\\u0000x"));
        let entries: Vec<String> = ["\"", "{", "}", ":", "a"]
            .map(quoted)
            .into_iter()
            .chain(words.map(|word| format!("\"{word}\"")))
            .enumerate()
            .map(|(id, word)| format!("{word}: {id}"))
            .collect();
        let json = format!(
            r#"{{"model": {{"type": "WordLevel", "vocab": {{{}}}}}, "decoder": {{"type": "Fuse"}}}}"#,
            entries.join(", ").replace("\\u0000", "")
        );
        let tokenizer = Tokenizer::from_json(&json).unwrap();
        let grammar = JsonGrammar::new(&tokenizer).unwrap();
        // Strings of so many lengths are as many ways to read each.
        let lengths: Vec<String> = (0..1000)
            .map(|most| format!("{{\"type\": \"string\", \"maxLength\": {}}}", 5000 + most))
            .collect();
        let schema = format!(r#"{{"anyOf": [{}]}}"#, lengths.join(","));
        let mut state = grammar.start_schema(Arc::new(JsonSchema::parse(&schema).unwrap()));
        let begun = std::time::Instant::now();
        for _ in 0..3 {
            let mask = grammar.schema_mask(&state);
            let allowed = (0..20_005).filter(|id| mask[*id as usize / 64] >> (id % 64) & 1 == 1);
            let allowed: Vec<u32> = allowed.collect();
            assert!(!allowed.is_empty());
            grammar.schema_accept(&mut state, *allowed.last().unwrap()).unwrap();
        }
        assert!(begun.elapsed().as_secs() < 20, "{:?}", begun.elapsed());
    }

    /// What the masks of a text's places cost, and how many tokens each allows.
    fn work_along(grammar: &JsonGrammar, schema: &str, text: &str) -> Vec<(usize, usize)> {
        let mut state = grammar.start_schema(Arc::new(JsonSchema::parse(schema).unwrap()));
        let mut found = Vec::new();
        for byte in text.bytes() {
            let (mut words, mut work) = (vec![0u64; grammar.bytes.len().div_ceil(64)], Work::new(MOST_WORK));
            grammar.walk_schema(Trie::ROOT, &state, &mut words, &mut work);
            let allowed = words.iter().map(|word| word.count_ones() as usize).sum();
            found.push((work.done, allowed));
            state = state.step(byte).unwrap();
        }
        found
    }

    #[test]
    fn alternatives_that_are_tried_in_vain_are_counted_and_bounded() {
        // All texts of few characters, of which many begin values.
        let alphabet = ["[", "]", "{", "1", "7", ",", "\\\"", "t", " ", "k"];
        let mut texts = vec![String::new()];
        for _ in 0..4 {
            let longer = texts.iter().flat_map(|text| alphabet.map(|c| format!("{text}{c}")));
            let longer: Vec<String> = longer.collect();
            texts.extend(longer);
            texts.sort();
            texts.dedup();
        }
        let entries = texts.iter().filter(|text| !text.is_empty()).enumerate();
        let entries: Vec<String> = entries.map(|(id, text)| format!("\"{text}\": {id}")).collect();
        let json = format!(
            r#"{{"model": {{"type": "WordLevel", "vocab": {{{}}}}}, "decoder": {{"type": "Fuse"}}}}"#,
            entries.join(", ")
        );
        let grammar = JsonGrammar::new(&Tokenizer::from_json(&json).unwrap()).unwrap();
        let many = |of: &dyn Fn(usize) -> String| (0..9000).map(of).collect::<Vec<_>>().join(",");
        let word = |i: usize| format!("{{\"const\": \"k{i}\"}}");
        let number = |i: usize| format!("{{\"const\": {}}}", i % 7);
        let length = |i: usize| format!("{{\"type\": \"string\", \"minLength\": {i}}}");
        let integer = |_: usize| "{\"type\": \"integer\"}".to_string();
        let array = |_: usize| "{\"type\": \"array\", \"items\": false}".to_string();
        for (what, values) in [
            ("words", many(&word)),
            ("numbers", many(&number)),
            ("lengths", many(&length)),
            ("integers", many(&integer)),
            ("arrays", many(&array)),
        ] {
            let ways: Vec<String> = (0..160)
                .map(|i| {
                    format!(r##"{{"type": "array", "items": {{"$ref": "#/$defs/a"}}, "minItems": {i}}}"##)
                })
                .collect();
            let schema =
                format!(r##"{{"anyOf": [{}], "$defs": {{"a": {{"anyOf": [{values}]}}}}}}"##, ways.join(","));
            let begin = match what {
                "words" => "[\"k1",
                "lengths" => "[\"kk",
                "arrays" => "[[ ]",
                _ => "[1,1",
            };
            for (at, (work, allowed)) in work_along(&grammar, &schema, begin).into_iter().enumerate() {
                assert!(work < 4 * MOST_WORK, "{what} at {at}: {work}");
                assert!(allowed > 0, "{what} at {at}");
            }
        }
    }

    fn quoted(text: &str) -> String {
        format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""))
    }
}
