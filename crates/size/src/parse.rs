//! Reads the text form of sizes.

use crate::expr::print::{WORDS, is_name_byte};
use crate::{Dim, Error, Scope};

/// Longer texts are refused. All that prints is shorter.
const MAX_BYTES: usize = 1 << 19;
/// Deeper parentheses are refused: each level is a call. All that prints is less deep.
const MAX_DEPTH: usize = 400;

pub(crate) fn parse(text: &str, scope: &Scope) -> Result<Dim, Error> {
    let mut parser = Parser { text, at: 0, depth: 0, scope };
    if text.len() > MAX_BYTES {
        return Err(parser.error(format!("the text is longer than {MAX_BYTES} bytes")));
    }
    let dim = parser.sum()?;
    parser.skip_space();
    if parser.at < text.len() {
        return Err(parser.unexpected("the end"));
    }
    dim.check()
}

struct Parser<'a> {
    text: &'a str,
    at: usize,
    depth: usize,
    scope: &'a Scope,
}

impl<'a> Parser<'a> {
    /// `product + product - product`
    fn sum(&mut self) -> Result<Dim, Error> {
        if self.depth == MAX_DEPTH {
            return Err(self.error(format!("more than {MAX_DEPTH} levels of parentheses")));
        }
        self.depth += 1;
        let mut sum = self.product()?;
        loop {
            if self.take("+") {
                sum += self.product()?;
            } else if self.take("-") {
                sum -= self.product()?;
            } else {
                break;
            }
        }
        self.depth -= 1;
        Ok(sum)
    }

    /// `factor * factor mod factor`, from left to right
    fn product(&mut self) -> Result<Dim, Error> {
        let mut product = self.factor()?;
        loop {
            if self.take("*") {
                product *= self.factor()?;
            } else if self.take_word("mod") {
                product = product.rem_floor(self.factor()?);
            } else {
                return Ok(product);
            }
        }
    }

    /// Minus signs, then a number, a name, a function or a sum in parentheses
    fn factor(&mut self) -> Result<Dim, Error> {
        let mut negative = false;
        while self.take("-") {
            negative = !negative;
        }
        self.skip_space();
        if self.rest().starts_with(|c: char| c.is_ascii_digit()) {
            return self.number(negative);
        }
        let dim = self.atom()?;
        Ok(if negative { -dim } else { dim })
    }

    fn number(&mut self, negative: bool) -> Result<Dim, Error> {
        let rest = self.rest();
        let digits = &rest[..rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len())];
        let sign = if negative { "-" } else { "" };
        let number = format!("{sign}{digits}").parse::<i64>();
        let number = number.map_err(|_| self.error("a number does not fit in 64 bits".to_owned()))?;
        self.at += digits.len();
        Ok(Dim::constant(number))
    }

    fn atom(&mut self) -> Result<Dim, Error> {
        if self.take("(") {
            let sum = self.sum()?;
            self.expect(")")?;
            return Ok(sum);
        }
        if self.take("\"") {
            let name = self.quoted()?;
            return self.size(&name);
        }
        let word = self.word();
        if word.is_empty() {
            return Err(self.unexpected("a size"));
        }
        if !WORDS.contains(&word) {
            return self.size(word);
        }
        let start = self.at;
        self.at += word.len();
        match word {
            "floor" | "ceil" => {
                self.expect("(")?;
                let dividend = self.sum()?;
                self.expect("/")?;
                let divisor = self.sum()?;
                self.expect(")")?;
                Ok(if word == "floor" { dividend.div_floor(divisor) } else { dividend.div_ceil(divisor) })
            }
            "min" => self.list(|a, b| a.min(b)),
            "max" => self.list(|a, b| a.max(b)),
            "abs" => self.list_of_one().map(Dim::abs),
            "next_power_of_two" => self.list_of_one().map(Dim::next_power_of_two),
            _ => {
                self.at = start;
                Err(self.unexpected("a size"))
            }
        }
    }

    fn list(&mut self, join: impl Fn(Dim, Dim) -> Dim) -> Result<Dim, Error> {
        self.expect("(")?;
        let mut joined = self.sum()?;
        while self.take(",") {
            joined = join(joined, self.sum()?);
        }
        self.expect(")")?;
        Ok(joined)
    }

    fn list_of_one(&mut self) -> Result<Dim, Error> {
        self.expect("(")?;
        let only = self.sum()?;
        self.expect(")")?;
        Ok(only)
    }

    /// The size of this name, which starts here if it is not in quotes.
    fn size(&mut self, name: &str) -> Result<Dim, Error> {
        let dim = self
            .scope
            .get(name)
            .ok_or_else(|| self.error(format!("there is no size `{}`", start_of(name))))?;
        if self.rest().starts_with(name) && self.word() == name {
            self.at += name.len();
        }
        Ok(dim)
    }

    fn quoted(&mut self) -> Result<String, Error> {
        let mut name = String::new();
        let mut chars = self.rest().char_indices();
        while let Some((at, c)) = chars.next() {
            match c {
                '"' => {
                    self.at += at + 1;
                    return Ok(name);
                }
                '\\' => name.extend(chars.next().map(|(_, c)| c)),
                _ => name.push(c),
            }
        }
        Err(self.error("a quoted name has no end".to_owned()))
    }

    fn rest(&self) -> &'a str {
        self.text.get(self.at..).unwrap_or_default()
    }

    fn skip_space(&mut self) {
        let rest = self.rest();
        self.at += rest.len() - rest.trim_start().len();
    }

    /// The letters, digits, dots and underscores from here on.
    fn word(&self) -> &'a str {
        let rest = self.rest();
        &rest[..rest.bytes().position(|byte| !is_name_byte(byte)).unwrap_or(rest.len())]
    }

    fn take(&mut self, symbol: &str) -> bool {
        self.skip_space();
        let found = self.rest().starts_with(symbol);
        self.at += if found { symbol.len() } else { 0 };
        found
    }

    fn take_word(&mut self, word: &str) -> bool {
        self.skip_space();
        let found = self.word() == word;
        self.at += if found { word.len() } else { 0 };
        found
    }

    fn expect(&mut self, symbol: &str) -> Result<(), Error> {
        if self.take(symbol) { Ok(()) } else { Err(self.unexpected(&format!("`{symbol}`"))) }
    }

    fn unexpected(&self, expected: &str) -> Error {
        match self.rest().chars().next() {
            Some(found) => self.error(format!("expected {expected}, found `{}`", found.escape_debug())),
            None => self.error(format!("expected {expected}, found the end")),
        }
    }

    fn error(&self, reason: String) -> Error {
        Error::Parse { at: self.at, reason }
    }
}

fn start_of(name: &str) -> String {
    name.chars().take(32).flat_map(char::escape_debug).collect()
}
