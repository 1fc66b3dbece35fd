//! Values written as Python writes them.

use minijinja::value::{Kwargs, ValueKind};
use minijinja::{Error, ErrorKind, Value};

use super::LONGEST_PROMPT;

/// `str(value)`.
pub(super) fn text(value: &Value) -> Result<String, Error> {
    match value.kind() {
        ValueKind::Undefined => Ok(String::new()),
        ValueKind::String => Ok(value.to_string()),
        _ => {
            let mut out = String::new();
            repr(value, &mut out, 0)?;
            Ok(out)
        }
    }
}

/// A value that is in another many times is short to build and long to write.
fn check(out: &str) -> Result<(), Error> {
    match out.len() > LONGEST_PROMPT {
        true => Err(Error::new(ErrorKind::InvalidOperation, "a value is too long to write")),
        false => Ok(()),
    }
}

const DEEPEST: usize = 64;

/// `repr(value)`.
fn repr(value: &Value, out: &mut String, depth: usize) -> Result<(), Error> {
    check(out)?;
    if depth > DEEPEST {
        out.push('…');
        return Ok(());
    }
    match value.kind() {
        ValueKind::None => out.push_str("None"),
        ValueKind::Bool => out.push_str(if value.is_true() { "True" } else { "False" }),
        ValueKind::Number => out.push_str(&number(value)),
        ValueKind::String => quoted(value.as_str().unwrap_or_default(), out),
        ValueKind::Seq | ValueKind::Iterable => {
            out.push('[');
            for (i, item) in value.try_iter().into_iter().flatten().enumerate() {
                out.push_str(if i > 0 { ", " } else { "" });
                repr(&item, out, depth + 1)?;
            }
            out.push(']');
        }
        ValueKind::Map => {
            out.push('{');
            for (i, key) in value.try_iter().into_iter().flatten().enumerate() {
                out.push_str(if i > 0 { ", " } else { "" });
                repr(&key, out, depth + 1)?;
                out.push_str(": ");
                repr(&value.get_item(&key).unwrap_or_default(), out, depth + 1)?;
            }
            out.push('}');
        }
        _ => out.push_str(&value.to_string()),
    }
    Ok(())
}

fn quoted(text: &str, out: &mut String) {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    out.push(quote);
    for c in text.chars() {
        match c {
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if c == quote => out.extend(['\\', c]),
            c if c < ' ' || c == '\u{7F}' => out.push_str(&format!("\\x{:02x}", u32::from(c))),
            c => out.push(c),
        }
    }
    out.push(quote);
}

/// Integers as they are, floats with a fraction or an exponent.
fn number(value: &Value) -> String {
    if value.is_integer() {
        return value.to_string();
    }
    let Ok(x) = f64::try_from(value.clone()) else { return value.to_string() };
    if !x.is_finite() {
        return if x.is_nan() {
            "nan".into()
        } else if x > 0.0 {
            "inf".into()
        } else {
            "-inf".into()
        };
    }
    let scientific = format!("{x:e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if x != 0.0 && !(-4..16).contains(&exponent) {
        let sign = if exponent < 0 { '-' } else { '+' };
        return format!("{digits}e{sign}{:02}", exponent.abs());
    }
    let plain = format!("{x}");
    if plain.contains('.') { plain } else { plain + ".0" }
}

/// The filter `tojson` of `transformers`: `json.dumps` without escapes for HTML.
pub(super) fn json(value: &Value, rest: &[Value], options: &Kwargs) -> Result<String, Error> {
    let indent: Option<usize> = match rest.first() {
        Some(indent) => Some(usize::try_from(indent.clone())?),
        None => options.get("indent")?,
    };
    let sorted: Option<bool> = options.get("sort_keys")?;
    let ascii: Option<bool> = options.get("ensure_ascii")?;
    let separators: Option<Vec<String>> = options.get("separators")?;
    options.assert_all_used()?;
    let (comma, colon) = match separators.as_deref() {
        Some([comma, colon]) => (comma.clone(), colon.clone()),
        _ => (if indent.is_some() { ",".to_string() } else { ", ".to_string() }, ": ".to_string()),
    };
    let style = Style {
        indent: indent.map(|n| n.min(16)),
        sorted: sorted == Some(true),
        ascii: ascii == Some(true),
        comma,
        colon,
    };
    let mut out = String::new();
    style.dump(value, &mut out, 0)?;
    Ok(out)
}

struct Style {
    indent: Option<usize>,
    sorted: bool,
    ascii: bool,
    comma: String,
    colon: String,
}

impl Style {
    fn dump(&self, value: &Value, out: &mut String, depth: usize) -> Result<(), Error> {
        check(out)?;
        if depth > DEEPEST {
            out.push_str("null");
            return Ok(());
        }
        match value.kind() {
            ValueKind::Bool => out.push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number => out.push_str(&number(value)),
            ValueKind::String => self.string(value.as_str().unwrap_or_default(), out),
            ValueKind::Seq | ValueKind::Iterable => {
                let items: Vec<Value> = value.try_iter().into_iter().flatten().collect();
                self.list(('[', ']'), &items, out, depth, |item, out| self.dump(item, out, depth + 1))?;
            }
            ValueKind::Map => {
                let mut keys: Vec<Value> = value.try_iter().into_iter().flatten().collect();
                if self.sorted {
                    keys.sort();
                }
                self.list(('{', '}'), &keys, out, depth, |key, out| {
                    self.string(&text(key)?, out);
                    out.push_str(&self.colon);
                    self.dump(&value.get_item(key).unwrap_or_default(), out, depth + 1)
                })?;
            }
            _ => out.push_str("null"),
        }
        Ok(())
    }

    fn list(
        &self,
        (open, close): (char, char),
        items: &[Value],
        out: &mut String,
        depth: usize,
        each: impl Fn(&Value, &mut String) -> Result<(), Error>,
    ) -> Result<(), Error> {
        out.push(open);
        let line = |out: &mut String, depth: usize| {
            if let Some(indent) = self.indent {
                out.push('\n');
                out.extend(std::iter::repeat_n(' ', indent * depth));
            }
        };
        for (i, item) in items.iter().enumerate() {
            out.push_str(if i > 0 { &self.comma } else { "" });
            line(out, depth + 1);
            each(item, out)?;
        }
        if !items.is_empty() {
            line(out, depth);
        }
        out.push(close);
        Ok(())
    }

    fn string(&self, text: &str, out: &mut String) {
        out.push('"');
        for c in text.chars() {
            match c {
                '"' => out.push_str("\\\""),
                '\\' => out.push_str("\\\\"),
                '\n' => out.push_str("\\n"),
                '\r' => out.push_str("\\r"),
                '\t' => out.push_str("\\t"),
                '\u{8}' => out.push_str("\\b"),
                '\u{C}' => out.push_str("\\f"),
                c if c < ' ' => out.push_str(&format!("\\u{:04x}", u32::from(c))),
                c if self.ascii && !c.is_ascii() => {
                    let mut units = [0; 2];
                    for unit in c.encode_utf16(&mut units) {
                        out.push_str(&format!("\\u{unit:04x}"));
                    }
                }
                c => out.push(c),
            }
        }
        out.push('"');
    }
}
