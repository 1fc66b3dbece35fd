//! Passes operands of `~`, `+` and `*`, and slices, through a filter that counts what they are about to build.
//!
//! ```text
//!   {{ a ~ b + c[1:] }}   becomes   {{ a|_text ~ b|_text + c[1:]|_value }}
//! ```
//!
//! minijinja joins values without asking anybody, so that a text could double with every step of a template. What has no effect on values is
//! all that is added: filters bind tighter than these operators.

use std::ops::Range;

/// The filter of operands whose text is joined.
pub(super) const TEXT: &str = "_text";
/// The filter of other operands.
pub(super) const VALUE: &str = "_value";
/// Operators of a chain from which on its operands count several times: each of them copies what is before it.
const LONG_CHAIN: usize = 16;

/// A template whose operands are counted, and the bytes of the longest text between its tags.
pub(super) fn counted(source: &str) -> (String, usize) {
    let mut insertions: Vec<(usize, String)> = Vec::new();
    let (mut at, mut longest) = (0, 0);
    while let Some(start) = tag(source, at) {
        longest = longest.max(start - at);
        if source[start..].starts_with("{#") {
            at = source[start..].find("#}").map_or(source.len(), |length| start + length + 2);
            continue;
        }
        let (tokens, end) = tokens(source, start);
        at = end;
        match tokens.as_slice() {
            [Token { range, .. }] if &source[range.clone()] == "raw" => {
                at = raw_end(source, at);
                longest = longest.max(at - end);
            }
            tokens => operands(source, tokens, &mut insertions),
        }
    }
    longest = longest.max(source.len() - at);
    insertions.sort();
    let mut result = String::with_capacity(source.len() + insertions.len() * 8);
    let (mut done, mut last) = (0, None);
    // Of two at one place, that of texts counts more.
    for (place, filter) in insertions {
        if last == Some(place) {
            continue;
        }
        last = Some(place);
        result.push_str(&source[done..place]);
        result.push_str(&filter);
        done = place;
    }
    result.push_str(&source[done..]);
    (result, longest)
}

/// Where the next tag or comment begins.
fn tag(source: &str, at: usize) -> Option<usize> {
    let mut from = at;
    loop {
        let start = from + source[from..].find('{')?;
        if matches!(source.as_bytes().get(start + 1), Some(b'{' | b'%' | b'#')) {
            return Some(start);
        }
        from = start + 1;
    }
}

/// Where the tag begins that ends raw text.
fn raw_end(source: &str, at: usize) -> usize {
    let mut from = at;
    while let Some(start) = source[from..].find("{%").map(|start| from + start) {
        let tag = source[start + 2..].trim_start_matches(['-', '+']).trim_start();
        if tag.starts_with("endraw") {
            return start;
        }
        from = start + 2;
    }
    source.len()
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    Name,
    /// A string or a number.
    Literal,
    Open,
    Close,
    /// `~`, `+` or `*`.
    Joins,
    Dot,
    Pipe,
    Colon,
    Other,
}

#[derive(Clone, Debug)]
struct Token {
    kind: Kind,
    range: Range<usize>,
    /// Brackets around it; a bracket counts itself.
    depth: usize,
}

/// The tokens of a tag, and where it ends.
fn tokens(source: &str, start: usize) -> (Vec<Token>, usize) {
    let bytes = source.as_bytes();
    let ends: &[u8] = if bytes[start + 1] == b'{' { b"}}" } else { b"%}" };
    let (mut tokens, mut depth) = (Vec::new(), 0);
    let mut at = start + 2;
    // `{%-` and `{%+` are about white space.
    at += usize::from(matches!(bytes.get(at), Some(b'-' | b'+')));
    while let Some(&byte) = bytes.get(at) {
        let rest = &bytes[at..];
        if depth == 0 && rest.starts_with(ends) {
            return (tokens, at + 2);
        }
        if depth == 0 && matches!(byte, b'-' | b'+') && rest[1..].starts_with(ends) {
            return (tokens, at + 3);
        }
        let while_ = |is: &dyn Fn(u8) -> bool| rest.iter().take_while(|byte| is(**byte)).count();
        let is_name = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte >= 128;
        let (kind, length) = match byte {
            byte if byte.is_ascii_whitespace() => {
                at += 1;
                continue;
            }
            b'\'' | b'"' => {
                let mut length = 1;
                while rest.get(length).is_some_and(|next| *next != byte) {
                    length += 1 + usize::from(rest[length] == b'\\');
                }
                (Kind::Literal, length + 1)
            }
            b'0'..=b'9' => {
                let mut length = while_(&is_name);
                // A fraction; `1.x` is an attribute.
                if rest.get(length) == Some(&b'.') && rest.get(length + 1).is_some_and(u8::is_ascii_digit) {
                    length += 1;
                    length += rest[length..].iter().take_while(|byte| is_name(**byte)).count();
                }
                if matches!(rest[length - 1], b'e' | b'E') && matches!(rest.get(length), Some(b'-' | b'+')) {
                    length += 1;
                    length += rest[length..].iter().take_while(|byte| is_name(**byte)).count();
                }
                (Kind::Literal, length)
            }
            byte if is_name(byte) => (Kind::Name, while_(&is_name)),
            b'(' | b'[' | b'{' => {
                depth += 1;
                (Kind::Open, 1)
            }
            b')' | b']' | b'}' => (Kind::Close, 1),
            b'*' if rest.starts_with(b"**") => (Kind::Other, 2),
            b'~' | b'+' | b'*' => (Kind::Joins, 1),
            b'.' => (Kind::Dot, 1),
            b'|' => (Kind::Pipe, 1),
            b':' => (Kind::Colon, 1),
            _ => (Kind::Other, 1),
        };
        let end = (at + length).min(source.len());
        tokens.push(Token { kind, range: at..end, depth });
        if kind == Kind::Close {
            depth = depth.saturating_sub(1);
        }
        at = end;
    }
    (tokens, source.len())
}

/// Names that are no operands.
const KEYWORDS: [&str; 8] = ["and", "or", "not", "in", "is", "if", "else", "elif"];

/// Lists where the filters of a tag's operands go.
fn operands(source: &str, tokens: &[Token], insertions: &mut Vec<(usize, String)>) {
    // For each bracket the one that closes it, and for each token the operators that follow in its chain.
    let mut closes = vec![tokens.len(); tokens.len()];
    let mut follow = vec![0; tokens.len()];
    let mut open: Vec<(usize, usize)> = Vec::new();
    let mut chain = 0;
    for (i, token) in tokens.iter().enumerate().rev() {
        match token.kind {
            Kind::Close => open.push((i, std::mem::take(&mut chain))),
            Kind::Open => {
                let Some((close, outer)) = open.pop() else { continue };
                (closes[i], chain) = (close, outer);
            }
            Kind::Joins => chain += 1,
            Kind::Other if source[token.range.clone()].starts_with(',') => chain = 0,
            _ => {}
        }
        follow[i] = chain;
    }
    let text = |token: &Token| &source[token.range.clone()];
    let is_operand = |i: usize| match tokens[i].kind {
        Kind::Literal | Kind::Close => true,
        Kind::Name => i > 0 && tokens[i - 1].kind == Kind::Dot || !KEYWORDS.contains(&text(&tokens[i])),
        _ => false,
    };
    let mut put = |i: usize, filter: &str| {
        let times = if follow[i] < LONG_CHAIN { String::new() } else { format!("({})", follow[i]) };
        insertions.push((tokens[i].range.end, format!("|{filter}{times}")));
    };
    for (i, token) in tokens.iter().enumerate() {
        match token.kind {
            Kind::Joins if i > 0 && is_operand(i - 1) => {
                let filter = if text(token) == "~" { TEXT } else { VALUE };
                put(i - 1, filter);
                if let Some(end) = operand_end(tokens, &closes, i + 1, &text) {
                    put(end, filter);
                }
            }
            // A slice copies.
            Kind::Open if text(token) == "[" && i > 0 && is_operand(i - 1) && closes[i] < tokens.len() => {
                let slices = |token: &Token| token.kind == Kind::Colon;
                let mut inside = tokens[i + 1..closes[i]].iter().filter(|inner| inner.depth == token.depth);
                if inside.any(slices) {
                    put(postfix_end(tokens, &closes, closes[i], &text), VALUE);
                }
            }
            _ => {}
        }
    }
}

/// The last token of the operand that begins at a token.
fn operand_end<'s>(
    tokens: &[Token],
    closes: &[usize],
    mut i: usize,
    text: &impl Fn(&Token) -> &'s str,
) -> Option<usize> {
    while tokens.get(i).is_some_and(|token| matches!(text(token), "-" | "+" | "not")) {
        i += 1;
    }
    let last = match tokens.get(i)?.kind {
        Kind::Name | Kind::Literal => i,
        Kind::Open if closes[i] < tokens.len() => closes[i],
        _ => return None,
    };
    Some(postfix_end(tokens, closes, last, text))
}

/// The last token of attributes, subscripts, calls and filters after a token.
fn postfix_end<'s>(
    tokens: &[Token],
    closes: &[usize],
    mut last: usize,
    text: &impl Fn(&Token) -> &'s str,
) -> usize {
    while let Some(next) = tokens.get(last + 1) {
        let named = tokens.get(last + 2).is_some_and(|name| matches!(name.kind, Kind::Name | Kind::Literal));
        match next.kind {
            Kind::Dot | Kind::Pipe if named => last += 2,
            Kind::Open if text(next) != "{" && closes[last + 1] < tokens.len() => last = closes[last + 1],
            _ => break,
        }
    }
    last
}

#[cfg(test)]
mod tests {
    use super::counted;

    #[test]
    fn operands_and_slices_have_filters_and_nothing_else_has() {
        for (source, want) in [
            ("{{ a ~ b }}", "{{ a|_text ~ b|_text }}"),
            ("{{a+b*c}}", "{{a|_value+b|_value*c|_value}}"),
            (
                "{{ a.b('x', 1)[2]|trim|join(',') ~ -c.d }}",
                "{{ a.b('x', 1)[2]|trim|join(',')|_text ~ -c.d|_text }}",
            ),
            (
                "{%- set x = (a ~ '}}') + \"it's\" -%}",
                "{%- set x = (a|_text ~ '}}'|_text)|_value + \"it's\"|_value -%}",
            ),
            (
                "{{ m[1:] }}{{ m[a:b].c|f }}{{ {'a': [1]}['a'] }}",
                "{{ m[1:]|_value }}{{ m[a:b].c|f|_value }}{{ {'a': [1]}['a'] }}",
            ),
            (
                "{%+ if +x -%}{{ 2 ** 3 // 1.5e+3 }}{% endif +%}",
                "{%+ if +x -%}{{ 2 ** 3 // 1.5e+3 }}{% endif +%}",
            ),
            (
                "{{ f(*a, **b) }}{# a ~ b #}{% raw %}{{ a ~ b }}{% endraw %}~",
                "{{ f(*a, **b) }}{# a ~ b #}{% raw %}{{ a ~ b }}{% endraw %}~",
            ),
            ("{{ a if b else c ~ not d }}", "{{ a if b else c|_text ~ not d|_text }}"),
            ("{{ a ~ b", "{{ a|_text ~ b|_text"),
            ("{{ 'a\\'~' ~ b is string }}", "{{ 'a\\'~'|_text ~ b|_text is string }}"),
            ("{{ a + b ~ c }}", "{{ a|_value + b|_text ~ c|_text }}"),
            ("{ {{ '", "{ {{ '"),
            ("{{ ) ~ ", "{{ )|_text ~ "),
        ] {
            assert_eq!(counted(source).0, want);
        }
        let chain = "{{ a".to_string() + &" ~ b".repeat(20) + " }}";
        assert!(
            counted(&chain).0.starts_with("{{ a|_text(20) ~ b|_text(19) ~ b|_text(18)"),
            "{}",
            counted(&chain).0
        );
        assert_eq!(counted("abc{{ x }}de{# #}f").1, 3);
    }
}
