//! The text form of densities, read by recursive descent with bounded depth.
//!
//! ```text
//!   text    = { kind name { "," name } ";" | "let" name "=" expr ";" } expr
//!   kind    = "scalar" | "column" | "vector" | "matrix" | "index"
//!   expr    = sum [ ( "<" | "<=" | ">" | ">=" | "==" | "!=" ) sum ]
//!   sum     = product { ( "+" | "-" ) product }          product = unary { ( "*" | "/" ) unary }
//!   unary   = "-" unary | power                          power   = primary [ "^" unary ]
//!   primary   = number | name | name "[" ( integer | name ) "]" | function "(" expr { "," expr } ")" | "(" expr ")"
//! ```

use std::collections::HashMap;

use super::token::{Spanned, Token, tokens};
use super::{Axis, Comparison, DataKind, Density, Function, Graph, Id, Node, Operator, Reduction};
use crate::Error;

/// Brackets and signs inside each other.
const MAX_DEPTH: usize = 200;
/// Bytes of a text.
const MAX_TEXT: usize = 1 << 22;

const CONSTANTS: [&str; 10] = ["q", "y", "coord", "n_obs", "dim", "pi", "inf", "nan", "let", "select"];
const REDUCTIONS: [(&str, Reduction, Axis); 4] = [
    ("sum_obs", Reduction::Sum, Axis::Obs),
    ("sum_coord", Reduction::Sum, Axis::Coord),
    ("max_obs", Reduction::Max, Axis::Obs),
    ("max_coord", Reduction::Max, Axis::Coord),
];

/// Whether a name can be given to data.
pub(super) fn check_name(name: &str) -> Result<(), Error> {
    let word = name.starts_with(|c: char| c.is_ascii_alphabetic())
        && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
        && name.len() <= 64;
    let taken = CONSTANTS.contains(&name)
        || name == "logsumexp"
        || REDUCTIONS.iter().any(|(n, ..)| *n == name)
        || DataKind::ALL.iter().any(|k| k.name() == name)
        || Function::from_name(name).is_some()
        || Operator::from_name(name).is_some()
        || Comparison::from_name(name).is_some();
    match (word, taken) {
        (false, _) => Err(Error::Expression(format!(
            "`{name}` is no name: letters, digits and `_`, a letter first, 64 characters at most"
        ))),
        (_, true) => Err(Error::Expression(format!("`{name}` is a word of the language"))),
        _ => Ok(()),
    }
}

/// Reads a density.
pub(super) fn parse(text: &str) -> Result<Density, Error> {
    if text.len() > MAX_TEXT {
        return Err(Error::TooLarge { what: "bytes of text", limit: MAX_TEXT });
    }
    let mut parser =
        Parser { tokens: tokens(text)?, at: 0, depth: 0, graph: Graph::default(), names: HashMap::new() };
    parser.declarations()?;
    let root = parser.expr()?;
    if parser.peek().token != Token::End {
        return parser.unexpected("an operator or the end");
    }
    Density::new(parser.graph, root)
}

struct Parser {
    tokens: Vec<Spanned>,
    at: usize,
    depth: usize,
    graph: Graph,
    /// What `let` has named.
    names: HashMap<String, Id>,
}

impl Parser {
    fn peek(&self) -> &Spanned {
        // The last token is the end, and nothing goes past it.
        &self.tokens[self.at.min(self.tokens.len() - 1)]
    }

    fn next(&mut self) -> Spanned {
        let token = self.peek().clone();
        self.at += 1;
        token
    }

    fn takes(&mut self, sign: &str) -> bool {
        let found = matches!(self.peek().token, Token::Sign(s) if s == sign);
        self.at += usize::from(found);
        found
    }

    fn expect(&mut self, sign: &str) -> Result<(), Error> {
        if self.takes(sign) { Ok(()) } else { self.unexpected(&format!("`{sign}`")) }
    }

    fn unexpected<T>(&self, wanted: &str) -> Result<T, Error> {
        let found = match &self.peek().token {
            Token::Number(x) => format!("`{x}`"),
            Token::Name(name) => format!("`{name}`"),
            Token::Sign(sign) => format!("`{sign}`"),
            Token::End => "the text ends".into(),
        };
        self.peek().error(format!("expected {wanted}, but {found}"))
    }

    fn name(&mut self) -> Result<(String, Spanned), Error> {
        match self.peek().token.clone() {
            Token::Name(name) => Ok((name, self.next())),
            _ => self.unexpected("a name"),
        }
    }

    fn declarations(&mut self) -> Result<(), Error> {
        while let Token::Name(word) = self.peek().token.clone() {
            if word == "let" {
                self.next();
                let (name, at) = self.name()?;
                self.free(&name, &at)?;
                self.expect("=")?;
                let value = self.expr()?;
                self.expect(";")?;
                self.names.insert(name, value);
                continue;
            }
            let Some(kind) = DataKind::ALL.into_iter().find(|k| k.name() == word) else { break };
            self.next();
            loop {
                let (name, at) = self.name()?;
                self.free(&name, &at)?;
                self.graph.declare(&name, kind).or_else(|e| at.error(e.to_string()))?;
                if !self.takes(",") {
                    break;
                }
            }
            self.expect(";")?;
        }
        Ok(())
    }

    /// Whether a name is free. Those of the printer begin with `_`.
    fn free(&self, name: &str, at: &Spanned) -> Result<(), Error> {
        let printed = name.strip_prefix('_').is_some_and(|rest| rest.parse::<u32>().is_ok());
        if !printed && let Err(e) = check_name(name) {
            return at.error(e.to_string());
        }
        if self.names.contains_key(name) || self.graph.data().iter().any(|d| d.name == name) {
            return at.error(format!("`{name}` is taken"));
        }
        Ok(())
    }

    fn deeper(&mut self, read: impl FnOnce(&mut Self) -> Result<Id, Error>) -> Result<Id, Error> {
        if self.depth >= MAX_DEPTH {
            let limit =
                format!("more than {MAX_DEPTH} brackets and signs inside each other: name parts with `let`");
            return self.peek().error(limit);
        }
        self.depth += 1;
        let result = read(self);
        self.depth -= 1;
        result
    }

    fn expr(&mut self) -> Result<Id, Error> {
        self.deeper(|p| {
            let a = p.sum()?;
            let comparison = match p.peek().token {
                Token::Sign("<") => Comparison::Lt,
                Token::Sign("<=") => Comparison::Le,
                Token::Sign(">") => Comparison::Gt,
                Token::Sign(">=") => Comparison::Ge,
                Token::Sign("==") => Comparison::Eq,
                Token::Sign("!=") => Comparison::Ne,
                _ => return Ok(a),
            };
            p.next();
            let b = p.sum()?;
            p.graph.add(Node::Compare(comparison, a, b))
        })
    }

    fn sum(&mut self) -> Result<Id, Error> {
        let mut a = self.product()?;
        loop {
            let op = match self.peek().token {
                Token::Sign("+") => Operator::Add,
                Token::Sign("-") => Operator::Sub,
                _ => return Ok(a),
            };
            self.next();
            let b = self.product()?;
            a = self.graph.binary(op, a, b)?;
        }
    }

    fn product(&mut self) -> Result<Id, Error> {
        let mut a = self.unary()?;
        loop {
            let op = match self.peek().token {
                Token::Sign("*") => Operator::Mul,
                Token::Sign("/") => Operator::Div,
                _ => return Ok(a),
            };
            self.next();
            let b = self.unary()?;
            a = self.graph.binary(op, a, b)?;
        }
    }

    fn unary(&mut self) -> Result<Id, Error> {
        self.deeper(|p| {
            if p.takes("-") {
                let x = p.unary()?;
                return p.graph.unary(Function::Neg, x);
            }
            let base = p.primary()?;
            if p.takes("^") {
                let exponent = p.unary()?;
                return p.graph.binary(Operator::Pow, base, exponent);
            }
            Ok(base)
        })
    }

    fn primary(&mut self) -> Result<Id, Error> {
        let at = self.peek().clone();
        match at.token.clone() {
            Token::Number(x) => {
                self.next();
                self.graph.constant(x)
            }
            Token::Sign("(") => {
                self.next();
                let x = self.expr()?;
                self.expect(")")?;
                Ok(x)
            }
            Token::Name(name) => {
                self.next();
                if self.takes("(") {
                    return self.call(&name, &at);
                }
                let x = self.named(&name, &at)?;
                if self.takes("[") {
                    let indexed = self.index(x, &at)?;
                    self.expect("]")?;
                    return Ok(indexed);
                }
                Ok(x)
            }
            _ => self.unexpected("an expression"),
        }
    }

    fn index(&mut self, x: Id, at: &Spanned) -> Result<Id, Error> {
        let index = self.peek().clone();
        let found = match index.token.clone() {
            Token::Number(i) if i.fract() == 0.0 && (0.0..16_777_216.0).contains(&i) => {
                self.graph.at(x, i as u32)
            }
            Token::Name(name) => {
                let column =
                    self.graph.data().iter().position(|d| d.name == name && d.kind == DataKind::Index);
                let Some(column) = column else {
                    return index.error(format!("`{name}` is not declared as `index`"));
                };
                self.graph.gather(x, column as u32)
            }
            _ => return self.unexpected("an index: a whole number or the name of index data"),
        };
        self.next();
        found.or_else(|e| at.error(e.to_string()))
    }

    fn named(&mut self, name: &str, at: &Spanned) -> Result<Id, Error> {
        if let Some(id) = self.names.get(name) {
            return Ok(*id);
        }
        let node = match name {
            "q" => Node::Position,
            "y" => Node::Obs,
            "coord" => Node::Coord,
            "n_obs" => Node::Count(Axis::Obs),
            "dim" => Node::Count(Axis::Coord),
            "pi" => Node::Const(std::f64::consts::PI.to_bits()),
            "inf" => Node::Const(f64::INFINITY.to_bits()),
            "nan" => Node::Const(f64::NAN.to_bits()),
            _ => match self.graph.data().iter().position(|d| d.name == name) {
                Some(i) if self.graph.data()[i].kind == DataKind::Index => {
                    return at.error(format!("`{name}` is an index: use it as `q[{name}]`"));
                }
                Some(i) => Node::Data(i as u32),
                None => return at.error(format!("`{name}` is not known: declare data as `column {name};`")),
            },
        };
        self.graph.add(node)
    }

    fn call(&mut self, name: &str, at: &Spanned) -> Result<Id, Error> {
        let mut args = vec![self.expr()?];
        while self.takes(",") {
            args.push(self.expr()?);
        }
        self.expect(")")?;
        let reduction = REDUCTIONS.iter().find(|(n, ..)| *n == name);
        match (args.as_slice(), reduction) {
            ([x], Some((_, how, axis))) => return self.graph.reduce(*how, *axis, *x),
            (args, None) if name == "logsumexp" => return self.graph.logsumexp(args),
            ([c, a, b], None) if name == "select" => return self.graph.add(Node::Select(*c, *a, *b)),
            ([x], None) => {
                if let Some(f) = Function::from_name(name) {
                    return self.graph.unary(f, *x);
                }
            }
            ([a, b], None) => {
                if let Some(op) = Operator::from_name(name) {
                    return self.graph.binary(op, *a, *b);
                }
                if let Some(op) = Comparison::from_name(name) {
                    return self.graph.add(Node::Compare(op, *a, *b));
                }
            }
            _ => {}
        }
        let plural = if args.len() == 1 { "argument" } else { "arguments" };
        at.error(format!("there is no function `{name}` of {} {plural}", args.len()))
    }
}
