//! Patterns from text.

use super::{Expr, Pattern};

/// More names of one kind than this make a rule unreadable, and the matcher holds no more.
pub(super) const MAX_NAMES: usize = 8;

impl Pattern {
    /// Reads a pattern; the error says what was expected and where.
    pub(crate) fn parse(text: &str) -> Result<Pattern, String> {
        let mut p = Parser { text, at: 0, values: Vec::new(), numbers: Vec::new() };
        let root = p.sum()?;
        p.skip_spaces();
        if p.at < text.len() {
            return Err(p.wrong("an operator or the end"));
        }
        if p.values.len() > MAX_NAMES || p.numbers.len() > MAX_NAMES {
            return Err(format!("`{text}` has more than {MAX_NAMES} names of one kind"));
        }
        Ok(Pattern { root, values: p.values, numbers: p.numbers })
    }
}

struct Parser<'a> {
    text: &'a str,
    at: usize,
    values: Vec<String>,
    numbers: Vec<String>,
}

impl<'a> Parser<'a> {
    fn rest(&self) -> &'a str {
        self.text.get(self.at..).unwrap_or("")
    }

    fn skip_spaces(&mut self) {
        self.at += self.rest().len() - self.rest().trim_start().len();
    }

    fn wrong(&self, expected: &str) -> String {
        format!("`{}`: expected {expected} at column {}", self.text, self.at + 1)
    }

    fn eat(&mut self, c: char) -> bool {
        self.skip_spaces();
        let found = self.rest().starts_with(c);
        if found {
            self.at += c.len_utf8();
        }
        found
    }

    fn expect(&mut self, c: char) -> Result<(), String> {
        if self.eat(c) { Ok(()) } else { Err(self.wrong(&format!("`{c}`"))) }
    }

    /// The characters that satisfy `accept`, possibly none.
    fn take(&mut self, accept: impl Fn(char) -> bool) -> &'a str {
        let rest = self.rest();
        let length = rest.find(|c| !accept(c)).unwrap_or(rest.len());
        self.at += length;
        &rest[..length]
    }

    fn sum(&mut self) -> Result<Expr, String> {
        let mut terms = vec![self.product()?];
        loop {
            if self.eat('+') {
                terms.push(self.product()?);
            } else if self.eat('-') {
                terms.push(self.product()?.negated());
            } else {
                return Ok(if terms.len() == 1 { terms.swap_remove(0) } else { Expr::Sum(terms) });
            }
        }
    }

    fn product(&mut self) -> Result<Expr, String> {
        let mut factors = vec![self.factor()?];
        loop {
            if self.eat('*') {
                factors.push(self.factor()?);
            } else if self.eat('/') {
                factors.push(self.factor()?.inverted());
            } else {
                break;
            }
        }
        // `1 / e` is an inverse; the one adds nothing.
        if factors.len() > 1 {
            factors.retain(|f| *f != Expr::Number(1.0));
        }
        Ok(if factors.len() == 1 { factors.swap_remove(0) } else { Expr::Product(factors) })
    }

    fn factor(&mut self) -> Result<Expr, String> {
        if self.eat('-') {
            return Ok(self.factor()?.negated());
        }
        if self.eat('(') {
            let inner = self.sum()?;
            self.expect(')')?;
            return Ok(inner);
        }
        self.skip_spaces();
        match self.rest().chars().next() {
            Some(c) if c.is_ascii_digit() => Ok(Expr::Number(self.number()?)),
            Some(c) if c.is_ascii_alphabetic() => self.name(),
            _ => Err(self.wrong("a number, a name or `(`")),
        }
    }

    fn number(&mut self) -> Result<f64, String> {
        let start = self.at;
        self.take(|c| c.is_ascii_digit() || c == '.');
        if self.rest().starts_with(['e', 'E']) {
            self.at += 1;
            if self.rest().starts_with(['-', '+']) {
                self.at += 1;
            }
            self.take(|c| c.is_ascii_digit());
        }
        self.text[start..self.at].parse().map_err(|_| self.wrong("a number"))
    }

    fn name(&mut self) -> Result<Expr, String> {
        let name = self.take(|c| c.is_ascii_alphanumeric() || c == '_').to_string();
        let mut attrs = Vec::new();
        if self.eat('[') {
            loop {
                self.skip_spaces();
                let attr = self.take(|c| c.is_ascii_alphanumeric() || c == '_').to_string();
                self.expect('=')?;
                let sign = if self.eat('-') { -1.0 } else { 1.0 };
                self.skip_spaces();
                attrs.push((attr, sign * self.number()?));
                if !self.eat(',') {
                    break;
                }
            }
            self.expect(']')?;
        }
        if self.eat('(') {
            let mut args = vec![self.sum()?];
            while self.eat(',') {
                args.push(self.sum()?);
            }
            self.expect(')')?;
            return Ok(Expr::Call { name, attrs, args });
        }
        if !attrs.is_empty() {
            return Err(self.wrong("`(`"));
        }
        let upper = name.starts_with(|c: char| c.is_ascii_uppercase());
        let names = if upper { &mut self.numbers } else { &mut self.values };
        let index = names.iter().position(|n| *n == name).unwrap_or_else(|| {
            names.push(name);
            names.len() - 1
        });
        Ok(if upper { Expr::Capture(index) } else { Expr::Value(index) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operators_bind_as_in_arithmetic_and_differences_become_sums() -> Result<(), String> {
        assert_eq!(Pattern::parse("a + b * c")?, Pattern::parse("a + (b * c)")?);
        assert_eq!(Pattern::parse("x / 2")?, Pattern::parse("x * 0.5")?);
        assert_eq!(Pattern::parse("x - 3")?, Pattern::parse("x + -3")?);
        assert_eq!(Pattern::parse("x / sqrt(y)")?, Pattern::parse("x * rsqrt(y)")?);
        assert_eq!(Pattern::parse("1 / (1 + x)")?.root, Pattern::parse("1 + x")?.root.inverted());
        Ok(())
    }

    #[test]
    fn names_are_numbered_in_order_and_kinds_kept_apart() -> Result<(), String> {
        let p = Pattern::parse("x * G + softmax[axis=-1](y1, x)")?;
        assert_eq!((p.values, p.numbers), (vec!["x".into(), "y1".into()], vec!["G".to_string()]));
        Ok(())
    }

    #[test]
    fn what_is_wrong_is_said_with_its_column() {
        let problem = |text| Pattern::parse(text).err().unwrap_or_default();
        assert!(problem("x * (1 + y").contains("expected `)` at column 11"));
        assert!(problem("x +").contains("expected a number"));
        assert!(problem("x y").contains("the end"));
        assert!(problem("a+b+c+d+e+f+g+h+i").contains("more than 8"));
    }
}
