//! Pre-tokenizers: text split into pieces that are encoded on their own.

use crate::Error;
use crate::normalize::Pattern;
use crate::regex::Program;
use crate::unicode::{self, BYTE_CHARS};

/// A text and the pieces of it.
pub(crate) struct Pieces {
    pub(crate) text: String,
    pub(crate) bounds: Vec<(usize, usize)>,
    /// Whether the first piece is at the start of the user's text.
    pub(crate) at_start: bool,
}

/// What becomes of matches.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Behavior {
    Removed,
    Isolated,
    MergedWithPrevious,
    MergedWithNext,
    Contiguous,
}

/// When a space is put before text.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Prepend {
    First,
    Never,
    Always,
}

/// Digits in groups of three, counted from the right. As regular expressions these would need quadratic time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Groups {
    /// Runs of `\p{N}`.
    Numbers,
    /// `\d{1,3}(?=(?:\d{3})*\b)`.
    BeforeBoundary,
    /// `(?=(\d{3})+(?!\d))`, which is empty.
    Between,
}

/// A step of splitting.
#[derive(Debug)]
pub(crate) enum Splitter {
    Pattern {
        pattern: Pattern,
        behavior: Behavior,
        invert: bool,
    },
    Groups(Groups),
    /// Prepends a space, splits as GPT-2 does, and writes bytes as characters.
    ByteLevel {
        space: bool,
        regex: Option<Program>,
        write: bool,
    },
    Metaspace {
        replacement: char,
        prepend: Prepend,
        split: bool,
    },
    /// Words and runs of other characters.
    Whitespace,
    WhitespaceSplit,
    Bert,
    Punctuation(Behavior),
    Digits {
        individual: bool,
    },
    Delimiter(char),
    FixedLength(usize),
}

pub(crate) const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";

impl Splitter {
    /// Whether no text becomes shorter.
    pub(crate) fn keeps_bytes(&self) -> bool {
        match self {
            Splitter::Pattern { behavior, .. } | Splitter::Punctuation(behavior) => {
                *behavior != Behavior::Removed
            }
            Splitter::Groups(_)
            | Splitter::ByteLevel { .. }
            | Splitter::Metaspace { .. }
            | Splitter::Digits { .. }
            | Splitter::FixedLength(_) => true,
            Splitter::Whitespace | Splitter::WhitespaceSplit | Splitter::Bert | Splitter::Delimiter(_) => {
                false
            }
        }
    }

    /// Splits the pieces further; an error if an expression is searched for too long.
    pub(crate) fn apply(&self, pieces: &mut Pieces) -> Result<(), Error> {
        let mut given_up = None;
        match self {
            Splitter::Pattern { pattern, behavior, invert } => {
                pieces.split(*behavior, |text, found| {
                    let mut done = 0;
                    let all = pattern.matches(text, |start, end| {
                        if start > done {
                            found.push((start, *invert));
                        }
                        found.push((end, !*invert));
                        done = end;
                    });
                    if !all {
                        given_up = Some(text.len());
                    }
                    if done < text.len() {
                        found.push((text.len(), *invert));
                    }
                });
            }
            Splitter::Groups(groups) => {
                pieces.split(Behavior::Isolated, |text, found| groups.split(text, found))
            }
            Splitter::ByteLevel { space, regex, write } => {
                if *space {
                    pieces.rewrite(|piece, _, out| {
                        if !piece.starts_with(' ') {
                            out.push(' ');
                        }
                        out.push_str(piece);
                    });
                }
                if let Some(regex) = regex {
                    pieces.split(Behavior::Isolated, |text, found| {
                        if !isolate(regex, text, found) {
                            given_up = Some(text.len());
                        }
                    });
                }
                if *write {
                    pieces.rewrite(|piece, _, out| {
                        out.extend(piece.bytes().map(|byte| BYTE_CHARS[usize::from(byte)]))
                    });
                }
            }
            Splitter::Metaspace { replacement, prepend, split } => {
                pieces.rewrite(|piece, at_start, out| {
                    let begins = piece.starts_with(' ') || piece.starts_with(*replacement);
                    if !begins && (*prepend == Prepend::Always || *prepend == Prepend::First && at_start) {
                        out.push(*replacement);
                    }
                    out.extend(piece.chars().map(|c| if c == ' ' { *replacement } else { c }));
                });
                if *split {
                    let replacement = *replacement;
                    pieces.split_chars(Behavior::MergedWithNext, |c| c == replacement);
                }
            }
            Splitter::Whitespace => pieces.words(),
            Splitter::WhitespaceSplit => pieces.split_chars(Behavior::Removed, char::is_whitespace),
            Splitter::Bert => {
                pieces.split_chars(Behavior::Removed, char::is_whitespace);
                pieces.split_chars(Behavior::Isolated, unicode::is_punctuation);
            }
            Splitter::Punctuation(behavior) => pieces.split_chars(*behavior, unicode::is_punctuation),
            Splitter::Digits { individual } => {
                let behavior = if *individual { Behavior::Isolated } else { Behavior::Contiguous };
                pieces.split_chars(behavior, char::is_numeric);
            }
            Splitter::Delimiter(delimiter) => pieces.split_chars(Behavior::Removed, |c| c == *delimiter),
            Splitter::FixedLength(length) => pieces.split(Behavior::Isolated, |text, found| {
                let cuts = text.char_indices().skip(*length).step_by((*length).max(1));
                found.extend(cuts.map(|(at, _)| (at, true)));
                found.push((text.len(), true));
            }),
        }
        given_up.map_or(Ok(()), |bytes| Err(Error::SearchTooLong { bytes }))
    }
}

/// The ends of matches and of what is between them. Returns whether these are all.
fn isolate(regex: &Program, text: &str, found: &mut Vec<(usize, bool)>) -> bool {
    let mut matcher = crate::regex::Matcher::new(regex, text);
    let mut done = 0;
    while done < text.len()
        && let Some((start, end)) = matcher.find(done)
    {
        if end == start {
            break;
        }
        if start > done {
            found.push((start, false));
        }
        found.push((end, true));
        done = end;
    }
    if done < text.len() {
        found.push((text.len(), false));
    }
    !matcher.gave_up()
}

/// What does not match is one part, up to `end`.
fn extend_gap(found: &mut Vec<(usize, bool)>, end: usize) {
    match found.last_mut() {
        Some((last, false)) => *last = end,
        _ => found.push((end, false)),
    }
}

impl Groups {
    fn split(self, text: &str, found: &mut Vec<(usize, bool)>) {
        let digit = |c: char| match self {
            Groups::Numbers => unicode::category(c) & unicode::NUMBER != 0,
            _ => c.is_ascii_digit() || !c.is_ascii() && unicode::category(c) & unicode::ND != 0,
        };
        let mut rest = text;
        let mut run: Vec<usize> = Vec::new();
        while !rest.is_empty() {
            let base = text.len() - rest.len();
            let start = rest.find(digit).unwrap_or(rest.len());
            if start > 0 && self != Groups::Between {
                extend_gap(found, base + start);
            }
            run.clear();
            run.extend(
                rest[start..]
                    .char_indices()
                    .take_while(|&(_, c)| digit(c))
                    .map(|(at, c)| base + start + at + c.len_utf8()),
            );
            let end = run.last().copied().unwrap_or(base + start);
            rest = &text[end..];
            let bound = !rest.chars().next().is_some_and(unicode::is_word);
            let n = run.len();
            let cuts =
                run.iter().enumerate().filter(|(i, _)| (n - 1 - i).is_multiple_of(3)).map(|(_, &at)| at);
            match self {
                Groups::BeforeBoundary if !bound => extend_gap(found, end),
                Groups::Between => {
                    // Empty matches cut before groups; what precedes the run stays with its remainder.
                    if n > 0 && n.is_multiple_of(3) && base + start > 0 {
                        found.push((base + start, true));
                    }
                    found.extend(cuts.filter(|&at| at != end).map(|at| (at, true)));
                }
                _ => found.extend(cuts.map(|at| (at, true))),
            }
        }
        if self == Groups::Between && found.last().is_none_or(|&(at, _)| at < text.len()) {
            found.push((text.len(), true));
        }
    }
}

impl Pieces {
    /// Splits each piece. `find` lists the ends of the parts of a piece, and which of them are matches.
    fn split(&mut self, behavior: Behavior, mut find: impl FnMut(&str, &mut Vec<(usize, bool)>)) {
        let mut bounds = Vec::with_capacity(self.bounds.len());
        let mut found = Vec::new();
        for &(from, to) in &self.bounds {
            found.clear();
            find(&self.text[from..to], &mut found);
            let first = bounds.len();
            let mut start = from;
            let mut previous = false;
            for &(end, matched) in &found {
                let end = from + end;
                let joined = match behavior {
                    Behavior::MergedWithPrevious => matched && !previous,
                    Behavior::MergedWithNext => !matched && previous,
                    Behavior::Contiguous => matched == previous,
                    Behavior::Removed | Behavior::Isolated => false,
                };
                let joined = joined && bounds.len() > first;
                match bounds.last_mut() {
                    Some((_, last)) if joined => *last = end,
                    _ if behavior == Behavior::Removed && matched => (),
                    _ => bounds.push((start, end)),
                }
                previous = matched;
                start = end;
            }
        }
        bounds.retain(|(start, end)| start < end);
        self.bounds = bounds;
    }

    fn split_chars(&mut self, behavior: Behavior, is_match: impl Fn(char) -> bool) {
        self.split(behavior, |text, found| {
            let mut plain = false;
            for (at, c) in text.char_indices() {
                if is_match(c) {
                    if plain {
                        found.push((at, false));
                    }
                    found.push((at + c.len_utf8(), true));
                    plain = false;
                } else {
                    plain = true;
                }
            }
            if plain {
                found.push((text.len(), false));
            }
        });
    }

    /// Runs of word characters and of characters that are neither word nor space.
    fn words(&mut self) {
        let class = |c: char| if c.is_whitespace() { 0 } else { 1 + u8::from(unicode::is_word(c)) };
        self.split(Behavior::Removed, |text, found| {
            let mut last = None;
            for (at, c) in text.char_indices() {
                if let Some(before) = last
                    && before != class(c)
                {
                    found.push((at, before == 0));
                }
                last = Some(class(c));
            }
            found.extend(last.map(|last| (text.len(), last == 0)));
        });
    }

    /// Writes each piece anew.
    fn rewrite(&mut self, write: impl Fn(&str, bool, &mut String)) {
        let mut text = String::with_capacity(self.text.len() + self.bounds.len());
        for (i, bounds) in self.bounds.iter_mut().enumerate() {
            let start = text.len();
            write(&self.text[bounds.0..bounds.1], i == 0 && self.at_start, &mut text);
            *bounds = (start, text.len());
        }
        self.text = text;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn split(splitter: &Splitter, text: &str) -> Vec<String> {
        let mut pieces = Pieces { text: text.into(), bounds: vec![(0, text.len())], at_start: true };
        splitter.apply(&mut pieces).unwrap();
        pieces.bounds.iter().map(|&(start, end)| pieces.text[start..end].to_string()).collect()
    }

    #[test]
    fn behaviors_place_the_matches() {
        let with = |behavior| split(&Splitter::Punctuation(behavior), "a--b-");
        assert_eq!(with(Behavior::Removed), ["a", "b"]);
        assert_eq!(with(Behavior::Isolated), ["a", "-", "-", "b", "-"]);
        assert_eq!(with(Behavior::MergedWithPrevious), ["a-", "-", "b-"]);
        assert_eq!(with(Behavior::MergedWithNext), ["a", "-", "-b", "-"]);
        assert_eq!(with(Behavior::Contiguous), ["a", "--", "b", "-"]);
    }

    #[test]
    fn digits_group_from_the_right() {
        assert_eq!(split(&Splitter::Groups(Groups::Numbers), "a1234567b"), ["a", "1", "234", "567", "b"]);
        assert_eq!(
            split(&Splitter::Groups(Groups::BeforeBoundary), "x 1234 5678b"),
            ["x ", "1", "234", " 5678b"]
        );
        // Superscripts of Latin-1 are word characters, circled numbers are not.
        assert_eq!(split(&Splitter::Groups(Groups::BeforeBoundary), "(23²=="), ["(23²=="]);
        assert_eq!(split(&Splitter::Groups(Groups::BeforeBoundary), "12①"), ["12", "①"]);
        assert_eq!(split(&Splitter::Groups(Groups::Between), "1234567"), ["1", "234", "567"]);
        assert_eq!(split(&Splitter::Groups(Groups::Between), "123456"), ["123", "456"]);
        assert_eq!(split(&Splitter::Groups(Groups::Between), "a12 b"), ["a12 b"]);
    }

    #[test]
    fn metaspace_marks_and_splits_words() {
        let metaspace = Splitter::Metaspace { replacement: '▁', prepend: Prepend::First, split: true };
        assert_eq!(split(&metaspace, "Hey  you"), ["▁Hey", "▁", "▁you"]);
    }
}
