//! The words of the text form, with where they stand.

use crate::Error;

/// A word.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Token {
    Number(f64),
    Name(String),
    /// An operator or a bracket.
    Sign(&'static str),
    End,
}

/// A word and where it stands.
#[derive(Clone, Debug)]
pub(super) struct Spanned {
    pub(super) token: Token,
    pub(super) line: usize,
    pub(super) column: usize,
}

impl Spanned {
    pub(super) fn error<T>(&self, problem: impl Into<String>) -> Result<T, Error> {
        Err(Error::Parse { line: self.line, column: self.column, problem: problem.into() })
    }
}

/// Longer ones first, so that `<=` is not read as `<`.
const SIGNS: [&str; 19] =
    ["<=", ">=", "==", "!=", "<", ">", "+", "-", "*", "/", "^", "(", ")", "[", "]", ",", ";", "=", "."];

/// Splits a text; the last token is [`Token::End`].
pub(super) fn tokens(text: &str) -> Result<Vec<Spanned>, Error> {
    let mut found = Vec::new();
    let (mut line, mut column) = (1, 1);
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let at = |token| Spanned { token, line, column };
        let length = match first {
            '\n' => {
                (line, column) = (line + 1, 1);
                rest = &rest[1..];
                continue;
            }
            '#' => rest.find('\n').unwrap_or(rest.len()),
            c if c.is_whitespace() => c.len_utf8(),
            c if c.is_ascii_digit() || (c == '.' && rest[1..].starts_with(|c: char| c.is_ascii_digit())) => {
                let length = number_length(rest);
                let Ok(number) = rest[..length].parse() else {
                    return at(Token::End).error(format!("`{}` is no number", &rest[..length]));
                };
                found.push(at(Token::Number(number)));
                length
            }
            c if c.is_ascii_alphabetic() || c == '_' => {
                let end = |c: char| !(c.is_ascii_alphanumeric() || c == '_');
                let length = rest.find(end).unwrap_or(rest.len());
                found.push(at(Token::Name(rest[..length].into())));
                length
            }
            c => match SIGNS.iter().find(|s| rest.starts_with(**s)) {
                Some(sign) => {
                    found.push(at(Token::Sign(sign)));
                    sign.len()
                }
                None => return at(Token::End).error(format!("`{c}` is not part of the language")),
            },
        };
        column += rest[..length].chars().count();
        rest = &rest[length..];
    }
    found.push(Spanned { token: Token::End, line, column });
    Ok(found)
}

/// Digits, a point, digits and an exponent.
fn number_length(text: &str) -> usize {
    let bytes = text.as_bytes();
    let digits = |mut i: usize| {
        while bytes.get(i).is_some_and(u8::is_ascii_digit) {
            i += 1;
        }
        i
    };
    let mut end = digits(0);
    if bytes.get(end) == Some(&b'.') {
        end = digits(end + 1);
    }
    if matches!(bytes.get(end), Some(b'e' | b'E')) {
        let sign = usize::from(matches!(bytes.get(end + 1), Some(b'+' | b'-')));
        let after = digits(end + 1 + sign);
        if after > end + 1 + sign {
            end = after;
        }
    }
    end
}
