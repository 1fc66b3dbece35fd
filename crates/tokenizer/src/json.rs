//! JSON that keeps the order of keys, as chat templates print it.

use crate::Error;

/// A JSON value.
#[derive(Clone, Debug, PartialEq)]
pub enum Json {
    /// `null`.
    Null,
    /// `true` or `false`.
    Bool(bool),
    /// A number without fraction or exponent that fits.
    Int(i64),
    /// Any other number.
    Float(f64),
    /// A string.
    String(String),
    /// An array.
    Array(Vec<Json>),
    /// An object, in the order of its text.
    Object(Vec<(String, Json)>),
}

const DEEPEST: usize = 128;

impl Json {
    /// Parses a text.
    pub fn parse(text: &str) -> Result<Json, Error> {
        let mut parser = Parser { text, at: 0 };
        let value = parser.value(0)?;
        parser.space();
        if parser.at < text.len() { parser.wrong("more follows the value") } else { Ok(value) }
    }

    /// The value of a key of an object.
    pub fn get(&self, key: &str) -> Option<&Json> {
        match self {
            Json::Object(entries) => {
                entries.iter().rev().find(|(name, _)| name == key).map(|(_, value)| value)
            }
            _ => None,
        }
    }

    /// The text of a string.
    pub fn as_str(&self) -> Option<&str> {
        match self {
            Json::String(text) => Some(text),
            _ => None,
        }
    }

    /// `true` or `false`.
    pub fn as_bool(&self) -> Option<bool> {
        match self {
            Json::Bool(value) => Some(*value),
            _ => None,
        }
    }

    /// A number of 32 bits that is not negative.
    pub fn as_u32(&self) -> Option<u32> {
        match self {
            Json::Int(value) => u32::try_from(*value).ok(),
            _ => None,
        }
    }

    /// Any number.
    pub fn as_f64(&self) -> Option<f64> {
        match self {
            Json::Int(value) => Some(*value as f64),
            Json::Float(value) => Some(*value),
            _ => None,
        }
    }

    /// The elements of an array.
    pub fn as_array(&self) -> Option<&[Json]> {
        match self {
            Json::Array(values) => Some(values),
            _ => None,
        }
    }
}

impl From<&str> for Json {
    fn from(text: &str) -> Json {
        Json::String(text.to_string())
    }
}

impl From<String> for Json {
    fn from(text: String) -> Json {
        Json::String(text)
    }
}

struct Parser<'a> {
    text: &'a str,
    at: usize,
}

impl Parser<'_> {
    fn wrong<T>(&self, problem: &str) -> Result<T, Error> {
        Err(Error::Json { at: self.at, problem: problem.to_string() })
    }

    fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    fn space(&mut self) {
        while matches!(self.peek(), Some(b' ' | b'\t' | b'\n' | b'\r')) {
            self.at += 1;
        }
    }

    fn take(&mut self, byte: u8) -> bool {
        let found = self.peek() == Some(byte);
        self.at += usize::from(found);
        found
    }

    fn value(&mut self, depth: usize) -> Result<Json, Error> {
        if depth > DEEPEST {
            return self.wrong("values nest too deeply");
        }
        self.space();
        match self.peek() {
            Some(b'{') => self.object(depth),
            Some(b'[') => self.array(depth),
            Some(b'"') => Ok(Json::String(self.string()?)),
            Some(b'-' | b'0'..=b'9') => self.number(),
            _ => {
                for (word, value) in
                    [("null", Json::Null), ("true", Json::Bool(true)), ("false", Json::Bool(false))]
                {
                    if self.text[self.at..].starts_with(word) {
                        self.at += word.len();
                        return Ok(value);
                    }
                }
                self.wrong("a value is expected")
            }
        }
    }

    fn object(&mut self, depth: usize) -> Result<Json, Error> {
        self.at += 1;
        let mut entries = Vec::new();
        self.space();
        if self.take(b'}') {
            return Ok(Json::Object(entries));
        }
        loop {
            self.space();
            if self.peek() != Some(b'"') {
                return self.wrong("a key is expected");
            }
            let key = self.string()?;
            self.space();
            if !self.take(b':') {
                return self.wrong("`:` is expected");
            }
            entries.push((key, self.value(depth + 1)?));
            self.space();
            if self.take(b'}') {
                return Ok(Json::Object(entries));
            }
            if !self.take(b',') {
                return self.wrong("`,` or `}` is expected");
            }
        }
    }

    fn array(&mut self, depth: usize) -> Result<Json, Error> {
        self.at += 1;
        let mut values = Vec::new();
        self.space();
        if self.take(b']') {
            return Ok(Json::Array(values));
        }
        loop {
            values.push(self.value(depth + 1)?);
            self.space();
            if self.take(b']') {
                return Ok(Json::Array(values));
            }
            if !self.take(b',') {
                return self.wrong("`,` or `]` is expected");
            }
        }
    }

    fn string(&mut self) -> Result<String, Error> {
        self.at += 1;
        let mut result = String::new();
        loop {
            let start = self.at;
            while self.peek().is_some_and(|byte| byte != b'"' && byte != b'\\' && byte >= 0x20) {
                self.at += 1;
            }
            // Quotes, backslashes and control characters are never inside a character of UTF-8.
            result.push_str(&self.text[start..self.at]);
            match self.peek() {
                Some(b'"') => {
                    self.at += 1;
                    return Ok(result);
                }
                Some(b'\\') => {
                    self.at += 1;
                    result.push(self.escape()?);
                }
                Some(_) => return self.wrong("a control character is not escaped"),
                None => return self.wrong("a string is not closed"),
            }
        }
    }

    fn escape(&mut self) -> Result<char, Error> {
        let byte = self.peek();
        self.at += 1;
        Ok(match byte {
            Some(b'"') => '"',
            Some(b'\\') => '\\',
            Some(b'/') => '/',
            Some(b'b') => '\u{8}',
            Some(b'f') => '\u{C}',
            Some(b'n') => '\n',
            Some(b'r') => '\r',
            Some(b't') => '\t',
            Some(b'u') => {
                let high = self.hex()?;
                if (0xD800..0xDC00).contains(&high) && self.text[self.at..].starts_with("\\u") {
                    let back = self.at;
                    self.at += 2;
                    let low = self.hex()?;
                    if (0xDC00..0xE000).contains(&low) {
                        let code = 0x10000 + ((high - 0xD800) << 10) + (low - 0xDC00);
                        return Ok(char::from_u32(code).unwrap_or('\u{FFFD}'));
                    }
                    self.at = back;
                }
                char::from_u32(high).unwrap_or('\u{FFFD}')
            }
            _ => {
                self.at -= 1;
                return self.wrong("an escape is not valid");
            }
        })
    }

    fn hex(&mut self) -> Result<u32, Error> {
        let digits = self.text.get(self.at..self.at + 4).filter(|d| d.bytes().all(|b| b.is_ascii_hexdigit()));
        match digits.and_then(|digits| u32::from_str_radix(digits, 16).ok()) {
            Some(code) => {
                self.at += 4;
                Ok(code)
            }
            None => self.wrong("four hexadecimal digits are expected"),
        }
    }

    fn number(&mut self) -> Result<Json, Error> {
        let start = self.at;
        self.take(b'-');
        let mut whole = true;
        while let Some(byte) = self.peek() {
            match byte {
                b'0'..=b'9' => (),
                b'.' | b'e' | b'E' | b'+' | b'-' => whole = false,
                _ => break,
            }
            self.at += 1;
        }
        let digits = &self.text[start..self.at];
        let whole_part = digits.trim_start_matches('-').split(['.', 'e', 'E']).next().unwrap_or_default();
        let fraction = digits.split_once('.').map(|(_, rest)| rest);
        if whole_part.is_empty()
            || whole_part.len() > 1 && whole_part.starts_with('0')
            || fraction.is_some_and(|rest| !rest.starts_with(|c: char| c.is_ascii_digit()))
        {
            return self.wrong("a number is not valid");
        }
        if let Some(value) = whole.then(|| digits.parse().ok()).flatten() {
            return Ok(Json::Int(value));
        }
        match digits.parse::<f64>() {
            Ok(value) if value.is_finite() => Ok(Json::Float(value)),
            _ => self.wrong("a number is not valid"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_keep_their_order_and_escapes() {
        let value =
            Json::parse(r#" {"b": [1, -2.5, "a\u00e9\ud83d\ude00\n"], "a": null, "c": {"x": true}} "#)
                .unwrap();
        let Json::Object(entries) = &value else { panic!("{value:?}") };
        assert_eq!(entries.iter().map(|(key, _)| key.as_str()).collect::<Vec<_>>(), ["b", "a", "c"]);
        assert_eq!(value.get("b").unwrap().as_array().unwrap()[2].as_str(), Some("aé😀\n"));
    }

    #[test]
    fn invalid_text_is_an_error_with_its_place() {
        for text in
            ["", "{", "[1,]", "{\"a\" 1}", "\"a", "\"\\x\"", "\"\\ud8", "nul", "1.e", "1 2", "\"\u{1}\""]
        {
            assert!(matches!(Json::parse(text), Err(Error::Json { .. })), "{text}");
        }
        assert!(Json::parse(&"[".repeat(1_000_000)).is_err());
    }
}
