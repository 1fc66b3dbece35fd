//! The syntax of regular expressions.

use super::set::{Item, Set};
use crate::unicode;

/// How a repeat gives characters back.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Greed {
    Greedy,
    Lazy,
    Possessive,
}

/// A condition without characters.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Anchor {
    LineStart,
    LineEnd,
    TextStart,
    TextEnd,
    WordBoundary,
    NotWordBoundary,
}

#[derive(Clone, Debug)]
pub(super) enum Node {
    Empty,
    Set(Set),
    Cat(Vec<Node>),
    Alt(Vec<Node>),
    Repeat { body: Box<Node>, min: u32, max: Option<u32>, greed: Greed },
    Look { body: Box<Node>, negated: bool },
    Anchor(Anchor),
}

const DEEPEST: usize = 32;
/// Bytes of the longest pattern; those of models have some thousand.
const LONGEST: usize = 1 << 16;
/// Quantifiers of one atom, as in `a{2}{3}`.
const MOST_QUANTIFIERS: usize = 4;
/// Items of a class, with other cases of its letters.
const MOST_ITEMS: usize = 1 << 16;

struct Parser<'a> {
    rest: std::iter::Peekable<std::str::Chars<'a>>,
    depth: usize,
    fold: bool,
}

pub(super) fn parse(pattern: &str) -> Result<Node, String> {
    if pattern.len() > LONGEST {
        return Err(format!("it has {} bytes, more than {LONGEST}", pattern.len()));
    }
    let mut parser = Parser { rest: pattern.chars().peekable(), depth: 0, fold: false };
    let node = parser.alternatives()?;
    match parser.rest.next() {
        None => Ok(node),
        Some(c) => Err(format!("`{c}` is not expected")),
    }
}

impl Parser<'_> {
    fn take(&mut self, c: char) -> bool {
        self.rest.next_if_eq(&c).is_some()
    }

    fn need(&mut self, c: char) -> Result<(), String> {
        if self.take(c) { Ok(()) } else { Err(format!("`{c}` is missing")) }
    }

    fn alternatives(&mut self) -> Result<Node, String> {
        self.depth += 1;
        if self.depth > DEEPEST {
            return Err(format!("groups nest deeper than {DEEPEST}"));
        }
        let mut nodes = vec![self.sequence()?];
        while self.take('|') {
            nodes.push(self.sequence()?);
        }
        self.depth -= 1;
        Ok(if nodes.len() == 1 { nodes.remove(0) } else { Node::Alt(nodes) })
    }

    fn sequence(&mut self) -> Result<Node, String> {
        let mut nodes = Vec::new();
        while let Some(&c) = self.rest.peek() {
            if c == '|' || c == ')' {
                break;
            }
            let atom = self.atom()?;
            nodes.push(self.quantified(atom)?);
        }
        Ok(match nodes.len() {
            0 => Node::Empty,
            1 => nodes.remove(0),
            _ => Node::Cat(nodes),
        })
    }

    fn quantified(&mut self, mut node: Node) -> Result<Node, String> {
        let mut quantifiers = 0;
        loop {
            let (min, max, braces) = match self.rest.peek() {
                Some('*') => (0, None, false),
                Some('+') => (1, None, false),
                Some('?') => (0, Some(1), false),
                Some('{') => {
                    self.rest.next();
                    let (min, max) = self.bounds()?;
                    (min, max, true)
                }
                _ => return Ok(node),
            };
            if !braces {
                self.rest.next();
            }
            quantifiers += 1;
            if quantifiers > MOST_QUANTIFIERS {
                return Err(format!("more than {MOST_QUANTIFIERS} quantifiers follow each other"));
            }
            if matches!(node, Node::Look { .. } | Node::Anchor(_)) {
                return Err("a lookahead or anchor cannot be repeated".into());
            }
            let greed = if self.take('?') {
                Greed::Lazy
            } else if !braces && self.take('+') {
                Greed::Possessive
            } else {
                Greed::Greedy
            };
            node = Node::Repeat { body: Box::new(node), min, max, greed };
        }
    }

    fn bounds(&mut self) -> Result<(u32, Option<u32>), String> {
        let min = self.number()?;
        let max = if self.take(',') {
            if self.rest.peek() == Some(&'}') { None } else { Some(self.number()?) }
        } else {
            Some(min)
        };
        self.need('}')?;
        if max.is_some_and(|max| max < min) {
            return Err(format!("{{{min},{max:?}}} counts down"));
        }
        Ok((min, max))
    }

    fn number(&mut self) -> Result<u32, String> {
        let mut digits = String::new();
        while let Some(c) = self.rest.next_if(char::is_ascii_digit) {
            digits.push(c);
        }
        match digits.parse() {
            Ok(n) if n <= 1000 => Ok(n),
            _ => Err(format!("`{digits}` is not a count up to 1000")),
        }
    }

    fn atom(&mut self) -> Result<Node, String> {
        let Some(c) = self.rest.next() else { return Err("it ends too early".into()) };
        Ok(match c {
            '(' => return self.group(),
            '[' => Node::Set(self.set()?),
            '.' => Node::Set(Set::of(Item::Range('\n', '\n'), true)),
            '^' => Node::Anchor(Anchor::LineStart),
            '$' => Node::Anchor(Anchor::LineEnd),
            '\\' => return self.escape(),
            '*' | '+' | '?' => return Err(format!("`{c}` repeats nothing")),
            c => self.literal(c),
        })
    }

    fn literal(&self, c: char) -> Node {
        let mut set = Set::of(Item::Range(c, c), false);
        if self.fold {
            set.items.extend(other_cases(c).map(|c| Item::Range(c, c)));
        }
        Node::Set(set)
    }

    fn group(&mut self) -> Result<Node, String> {
        let fold = self.fold;
        let mut look = None;
        if self.take('?') {
            match self.rest.next() {
                Some(':') => (),
                Some('=') => look = Some(false),
                Some('!') => look = Some(true),
                Some('i') => {
                    self.fold = true;
                    if self.take(')') {
                        // `(?i)` holds for the rest of the enclosing group.
                        return Ok(Node::Empty);
                    }
                    self.need(':')?;
                }
                Some(c) => return Err(format!("groups `(?{c}` are not supported")),
                None => return Err("a group is not closed".into()),
            }
        }
        let body = self.alternatives()?;
        self.need(')')?;
        self.fold = fold;
        Ok(match look {
            Some(negated) => Node::Look { body: Box::new(body), negated },
            None => body,
        })
    }

    fn escape(&mut self) -> Result<Node, String> {
        let anchor = match self.rest.peek() {
            Some('b') => Some(Anchor::WordBoundary),
            Some('B') => Some(Anchor::NotWordBoundary),
            Some('A') => Some(Anchor::TextStart),
            Some('z') => Some(Anchor::TextEnd),
            _ => None,
        };
        if let Some(anchor) = anchor {
            self.rest.next();
            return Ok(Node::Anchor(anchor));
        }
        Ok(match self.escaped_item()? {
            Item::Range(low, high) if low == high => self.literal(low),
            Item::Set(set) => Node::Set(set),
            item => Node::Set(Set::of(item, false)),
        })
    }

    /// What stands after a backslash, in a class or outside.
    fn escaped_item(&mut self) -> Result<Item, String> {
        let Some(c) = self.rest.next() else { return Err("it ends with a backslash".into()) };
        let negated = |item| Item::Set(Set::of(item, true));
        Ok(match c {
            's' => Item::Space,
            'S' => negated(Item::Space),
            'd' => Item::Categories(unicode::ND),
            'D' => negated(Item::Categories(unicode::ND)),
            'w' => Item::Word,
            'W' => negated(Item::Word),
            'p' => self.property()?,
            'P' => negated(self.property()?),
            'r' => one('\r'),
            'n' => one('\n'),
            't' => one('\t'),
            'f' => one('\u{C}'),
            'v' => one('\u{B}'),
            'x' => one(self.code(2)?),
            'u' => one(self.code(4)?),
            c if c.is_ascii_alphanumeric() => return Err(format!("`\\{c}` is not supported")),
            c => one(c),
        })
    }

    fn code(&mut self, digits: usize) -> Result<char, String> {
        let mut hex = String::new();
        if self.take('{') {
            while let Some(c) = self.rest.next_if(char::is_ascii_hexdigit) {
                hex.push(c);
            }
            self.need('}')?;
        } else {
            for _ in 0..digits {
                hex.extend(self.rest.next_if(char::is_ascii_hexdigit));
            }
        }
        let code = u32::from_str_radix(&hex, 16).ok().and_then(char::from_u32);
        code.ok_or_else(|| format!("`{hex}` is not the code of a character"))
    }

    fn property(&mut self) -> Result<Item, String> {
        let mut name = String::new();
        if self.take('{') {
            while let Some(c) = self.rest.next_if(|&c| c != '}') {
                name.push(c);
            }
            self.need('}')?;
        } else {
            name.extend(self.rest.next());
        }
        let (name, negated) = match name.strip_prefix('^') {
            Some(rest) => (rest, true),
            None => (name.as_str(), false),
        };
        let item = if let Some(set) = unicode::categories(name) {
            Item::Categories(set)
        } else if let Some(ranges) = unicode::script(name) {
            Item::Set(Set {
                items: ranges.iter().map(|&(a, b)| Item::Range(a, b)).collect(),
                ..Set::default()
            })
        } else {
            return Err(format!("`\\p{{{name}}}` is not supported"));
        };
        Ok(if negated { Item::Set(Set::of(item, true)) } else { item })
    }

    /// A class after its `[`.
    fn set(&mut self) -> Result<Set, String> {
        self.depth += 1;
        if self.depth > DEEPEST {
            return Err(format!("classes nest deeper than {DEEPEST}"));
        }
        let mut set = Set { negated: self.take('^'), ..Set::default() };
        let mut first = true;
        loop {
            let Some(c) = self.rest.next() else { return Err("a class is not closed".into()) };
            let item = match c {
                ']' if !first => break,
                '[' => Item::Set(self.set()?),
                '&' if self.take('&') => {
                    let rest = self.intersected()?;
                    set.and = Some(Box::new(rest));
                    break;
                }
                '\\' => self.escaped_item()?,
                c => one(c),
            };
            first = false;
            set.items.push(self.ranged(item)?);
        }
        if self.fold {
            let cased: Vec<Item> = set.items.iter().flat_map(folded).take(MOST_ITEMS).collect();
            set.items.extend(cased);
        }
        if set.items.len() >= MOST_ITEMS {
            return Err(format!("a class has {MOST_ITEMS} items or more"));
        }
        self.depth -= 1;
        Ok(set)
    }

    /// The rest of a class after `&&`, which includes its `]`.
    fn intersected(&mut self) -> Result<Set, String> {
        self.depth += 1;
        if self.depth > DEEPEST {
            return Err(format!("classes intersect deeper than {DEEPEST}"));
        }
        let mut set = Set::default();
        loop {
            let Some(c) = self.rest.next() else { return Err("a class is not closed".into()) };
            let item = match c {
                ']' => break,
                '[' => Item::Set(self.set()?),
                '&' if self.take('&') => {
                    set.and = Some(Box::new(self.intersected()?));
                    break;
                }
                '\\' => self.escaped_item()?,
                c => one(c),
            };
            set.items.push(self.ranged(item)?);
        }
        self.depth -= 1;
        Ok(set)
    }

    fn ranged(&mut self, item: Item) -> Result<Item, String> {
        let Item::Range(low, _) = item else { return Ok(item) };
        let mut ahead = self.rest.clone();
        if ahead.next() != Some('-') || matches!(ahead.next(), None | Some(']' | '[')) {
            return Ok(item);
        }
        self.rest.next();
        let high = match self.rest.next() {
            Some('\\') => self.escaped_item()?,
            Some(c) => one(c),
            None => return Err("a class is not closed".into()),
        };
        match high {
            Item::Range(high, _) if low <= high => Ok(Item::Range(low, high)),
            _ => Err(format!("the range from `{low}` counts down or ends in a class")),
        }
    }
}

fn one(c: char) -> Item {
    Item::Range(c, c)
}

fn folded(item: &Item) -> Vec<Item> {
    match *item {
        Item::Range(low, high) if u32::from(high) - u32::from(low) < 256 => {
            (low..=high).flat_map(other_cases).map(one).collect()
        }
        _ => Vec::new(),
    }
}

/// Characters that differ from `c` in case alone.
fn other_cases(c: char) -> impl Iterator<Item = char> {
    let single = |mut cases: Box<dyn Iterator<Item = char>>| match (cases.next(), cases.next()) {
        (Some(other), None) if other != c => Some(other),
        _ => None,
    };
    // Long s and the Kelvin sign fold to ASCII letters.
    let rare = match c {
        's' | 'S' => Some('ſ'),
        'k' | 'K' => Some('\u{212A}'),
        _ => None,
    };
    let cases = [single(Box::new(c.to_lowercase())), single(Box::new(c.to_uppercase())), rare];
    cases.into_iter().flatten()
}
