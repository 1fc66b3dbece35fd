//! Splits a text into tokens.

use std::borrow::Cow;

use crate::Error;

/// A piece of the text form.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Token<'a> {
    /// A name without quotes.
    Word(&'a str),
    /// A number as written; also `-inf`.
    Number(&'a str),
    /// A quoted string, escapes resolved.
    Text(Cow<'a, str>),
    /// `%5`.
    Id(u32),
    /// One of `{ } [ ] ( ) = : ,`.
    Mark(char),
    /// The end of the text.
    End,
}

impl Token<'_> {
    /// The token in an error message; long ones are cut.
    pub(super) fn describe(&self) -> String {
        match self {
            Token::Word(w) | Token::Number(w) => format!("`{}`", cut(w)),
            Token::Text(t) => crate::attr::quoted(&cut(t)),
            Token::Id(id) => format!("`%{id}`"),
            Token::Mark(c) => format!("`{c}`"),
            Token::End => "the end of the text".into(),
        }
    }
}

/// At most 40 characters of a text that may be megabytes.
fn cut(text: &str) -> String {
    match text.char_indices().nth(40) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_string(),
    }
}

/// Walks over a text.
pub(super) struct Lexer<'a> {
    text: &'a str,
    at: usize,
}

impl<'a> Lexer<'a> {
    pub(super) fn new(text: &'a str) -> Self {
        Lexer { text, at: 0 }
    }

    fn rest(&self) -> &'a str {
        self.text.get(self.at..).unwrap_or_default()
    }

    /// An error at a byte offset, told as line and column.
    pub(super) fn error(&self, at: usize, problem: impl Into<String>) -> Error {
        let before = self.text.get(..at).unwrap_or(self.text);
        let line_start = before.rfind('\n').map_or(0, |i| i + 1);
        Error::Parse {
            line: before.bytes().filter(|b| *b == b'\n').count() + 1,
            column: before[line_start..].chars().count() + 1,
            problem: problem.into(),
        }
    }

    /// The next token and the byte offset where it begins.
    pub(super) fn next(&mut self) -> Result<(usize, Token<'a>), Error> {
        self.skip_space();
        let (at, rest) = (self.at, self.rest());
        let Some(first) = rest.chars().next() else { return Ok((at, Token::End)) };
        let token = match first {
            '{' | '}' | '[' | ']' | '(' | ')' | '=' | ':' | ',' => {
                self.at += 1;
                Token::Mark(first)
            }
            '%' => self.id()?,
            '"' => Token::Text(self.quoted()?),
            c if c.is_ascii_digit() || c == '-' => Token::Number(self.number()?),
            c if c.is_ascii_alphabetic() || c == '_' => Token::Word(self.take(is_word)),
            c => return Err(self.error(at, format!("unexpected character {c:?}"))),
        };
        Ok((at, token))
    }

    fn skip_space(&mut self) {
        loop {
            let rest = self.rest();
            let trimmed = rest.trim_start();
            self.at += rest.len() - trimmed.len();
            if !(trimmed.starts_with('#') || trimmed.starts_with("//")) {
                return;
            }
            self.at += trimmed.find('\n').unwrap_or(trimmed.len());
        }
    }

    /// Takes the ASCII characters that fit.
    fn take(&mut self, fits: impl Fn(u8) -> bool) -> &'a str {
        let rest = self.rest();
        let end = rest.bytes().position(|b| !fits(b)).unwrap_or(rest.len());
        self.at += end;
        &rest[..end]
    }

    fn id(&mut self) -> Result<Token<'a>, Error> {
        let at = self.at;
        self.at += 1;
        let digits = self.take(|b| b.is_ascii_digit());
        match digits.parse() {
            Ok(id) => Ok(Token::Id(id)),
            Err(_) => Err(self.error(at, format!("`%{}` is not a value's number", cut(digits)))),
        }
    }

    fn number(&mut self) -> Result<&'a str, Error> {
        let (at, rest) = (self.at, self.rest());
        self.at += usize::from(rest.starts_with('-'));
        if self.rest().starts_with("inf") {
            self.at += 3;
        } else {
            self.take(|b| b.is_ascii_digit());
            if self.rest().starts_with('.') {
                self.at += 1;
                self.take(|b| b.is_ascii_digit());
            }
            if self.rest().starts_with(['e', 'E']) {
                self.at += 1;
                self.at += usize::from(self.rest().starts_with(['+', '-']));
                self.take(|b| b.is_ascii_digit());
            }
        }
        let number = &rest[..self.at - at];
        let glued = self.rest().starts_with(|c: char| c.is_alphanumeric() || c == '_' || c == '.');
        if glued || number.parse::<f64>().is_err() {
            return Err(self.error(at, format!("`{}` is not a number", cut(number))));
        }
        Ok(number)
    }

    fn quoted(&mut self) -> Result<Cow<'a, str>, Error> {
        let start = self.at;
        self.at += 1;
        let body = self.rest();
        let mut out: Option<String> = None;
        let mut chars = body.char_indices();
        while let Some((i, c)) = chars.next() {
            match c {
                '"' => {
                    self.at += i + 1;
                    return Ok(out.map_or(Cow::Borrowed(&body[..i]), Cow::Owned));
                }
                '\\' => {
                    let resolved = out.get_or_insert_with(|| body[..i].to_string());
                    match chars.next() {
                        Some((_, q @ ('"' | '\\'))) => resolved.push(q),
                        Some((_, 'n')) => resolved.push('\n'),
                        Some((_, 't')) => resolved.push('\t'),
                        Some((_, 'r')) => resolved.push('\r'),
                        Some((_, 'u')) => match code_point(&mut chars) {
                            Some(c) => resolved.push(c),
                            None => {
                                return Err(self.error(self.at + i, "expected \\u{hex} with up to 6 digits"));
                            }
                        },
                        _ => return Err(self.error(self.at + i, "unknown escape in a string")),
                    }
                }
                c => {
                    if let Some(resolved) = &mut out {
                        resolved.push(c);
                    }
                }
            }
        }
        Err(self.error(start, "the string has no closing quote"))
    }
}

fn is_word(b: u8) -> bool {
    b.is_ascii_alphanumeric() || b == b'_'
}

/// True for a name that can stand without quotes.
pub(super) fn is_plain_word(text: &str) -> bool {
    text.bytes().all(is_word) && text.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
}

/// The character of `{1f600}`.
fn code_point(chars: &mut std::str::CharIndices<'_>) -> Option<char> {
    if chars.next()?.1 != '{' {
        return None;
    }
    let mut code = 0u32;
    for digits in 0..=6 {
        match chars.next()?.1 {
            '}' if digits > 0 => return char::from_u32(code),
            c if digits < 6 => code = code << 4 | c.to_digit(16)?,
            _ => return None,
        }
    }
    None
}
