//! Reads a graph from text.

use super::lex::{Lexer, Token};
use super::literal::Literal;
use super::{base64, print};
use crate::attr::{Attr, Attrs};
use crate::error::{hint, nearest};
use crate::graph::{Graph, ValueId};
use crate::op::Registry;
use crate::{BlockFormat, DType, Data, Element, Error, Op, Shape, Tensor, TensorType, with_dtype};
use crate::{MAX_NESTING, SubGraph};

/// Attribute lists and records may nest this deep; no operation needs more than a handful.
const MAX_DEPTH: usize = 32;

/// A result on the left of `=`: its number, where it stands, and its type if given.
struct Declared {
    id: u32,
    at: usize,
    ty: Option<TensorType>,
}

/// Axis names beside sizes.
type Dims = Vec<Option<String>>;

/// Reads one graph, always one token ahead.
pub(super) struct Parser<'a> {
    lexer: Lexer<'a>,
    token: Token<'a>,
    at: usize,
    graph: Graph,
    /// How many graphs are open around the one being read.
    nesting: usize,
    registry: &'a Registry,
}

impl<'a> Parser<'a> {
    pub(super) fn new(text: &'a str, registry: &'a Registry) -> Result<Self, Error> {
        let mut lexer = Lexer::new(text);
        let (at, token) = lexer.next()?;
        Ok(Parser { lexer, token, at, graph: Graph::default(), nesting: 0, registry })
    }

    /// One graph and nothing after it.
    pub(super) fn whole(mut self) -> Result<Graph, Error> {
        self.keyword("graph")?;
        let graph = self.graph()?;
        match self.token {
            Token::End => Ok(graph),
            _ => Err(self.expected("the end of the text")),
        }
    }

    /// An operation with its attributes and nothing after it.
    pub(super) fn whole_op(mut self) -> Result<Op, Error> {
        let at = self.at;
        let Token::Word(word) = self.token else { return Err(self.expected("an operation")) };
        self.advance()?;
        let op = self.op(word, at)?;
        match self.token {
            Token::End => Ok(op),
            _ => Err(self.expected("the end of the text")),
        }
    }

    /// An operation by its name and the attributes that come next.
    fn op(&mut self, word: &str, at: usize) -> Result<Op, Error> {
        let attrs = if self.token == Token::Mark('{') { Attrs(self.record(0)?) } else { Attrs::default() };
        let op = match word {
            "custom" => self.registry.read(&attrs).map(Op::Custom),
            _ => Op::read(word, &attrs),
        };
        op.map_err(|e| self.lexer.error(at, e))
    }

    /// `"name" { definitions and outputs }`, after `graph`.
    fn graph(&mut self) -> Result<Graph, Error> {
        let name = self.text("the graph's name")?;
        let outer = std::mem::replace(&mut self.graph, Graph::new(name));
        self.mark('{')?;
        loop {
            match self.token {
                Token::Id(_) => self.definition()?,
                Token::Word("output") => self.output()?,
                Token::Mark('}') => break,
                _ => return Err(self.expected("a definition, an output or `}`")),
            }
        }
        self.advance()?;
        Ok(std::mem::replace(&mut self.graph, outer))
    }

    /// A graph as an attribute, after `graph`.
    fn inner_graph(&mut self, at: usize) -> Result<Attr, Error> {
        if self.nesting >= MAX_NESTING {
            return Err(self.lexer.error(at, format!("graphs nest deeper than {MAX_NESTING}")));
        }
        self.nesting += 1;
        let graph = self.graph()?;
        self.nesting -= 1;
        SubGraph::new(graph).map(Attr::Graph).map_err(|e| self.lexer.error(at, e.to_string()))
    }

    fn output(&mut self) -> Result<(), Error> {
        let at = self.at;
        self.advance()?;
        let name = self.text("the output's name")?;
        self.mark('=')?;
        let value = self.operand()?;
        self.graph.output(&name, value).map_err(|e| self.lexer.error(at, e.to_string()))
    }

    /// `%0 = input …`, `%0 = param …`, `%0 = const …` or `%0: type, %1: type = op(…) {…} "name"`.
    fn definition(&mut self) -> Result<(), Error> {
        let mut results = Vec::new();
        loop {
            let Token::Id(id) = self.token else { return Err(self.expected("a value such as `%0`")) };
            let at = self.at;
            self.check_number(id, results.len())?;
            self.advance()?;
            let ty = if self.take(':')? { Some(self.tensor_type()?) } else { None };
            results.push(Declared { id, at, ty });
            if !self.take(',')? {
                break;
            }
        }
        self.mark('=')?;
        let at = self.at;
        let Token::Word(word) = self.token else {
            return Err(self.expected("`input`, `param`, `const` or an operation"));
        };
        self.advance()?;
        if !matches!(word, "input" | "param" | "const") {
            return self.node(word, at, &results);
        }
        if let [Declared { ty: None, .. }] = results.as_slice() {
            self.leaf(word, at)
        } else {
            Err(self.lexer.error(at, format!("`{word}` defines one value and gives its type on the right")))
        }
    }

    /// Values must be numbered in order, so that the text keeps the graph's own numbers.
    fn check_number(&self, id: u32, before: usize) -> Result<(), Error> {
        let next = self.graph.values().len() + before;
        match (id as usize).cmp(&next) {
            std::cmp::Ordering::Equal => Ok(()),
            std::cmp::Ordering::Less => Err(self.lexer.error(self.at, format!("%{id} is already defined"))),
            std::cmp::Ordering::Greater => Err(self
                .lexer
                .error(self.at, format!("values are numbered in order: expected %{next}, found %{id}"))),
        }
    }

    fn leaf(&mut self, word: &str, at: usize) -> Result<(), Error> {
        if word == "const" {
            let ty = self.tensor_type()?;
            let tensor = self.elements(ty)?;
            self.graph.constant(tensor);
            return Ok(());
        }
        let name = self.text("a name in quotes")?;
        self.mark(':')?;
        let declared = if word == "input" {
            let (ty, dims) = self.type_with_dims()?;
            self.graph.input_of(&name, ty, dims)
        } else {
            let ty = self.tensor_type()?;
            self.graph.param_of(&name, ty)
        };
        declared.map(|_| ()).map_err(|e| self.lexer.error(at, e.to_string()))
    }

    fn node(&mut self, word: &str, at: usize, results: &[Declared]) -> Result<(), Error> {
        self.mark('(')?;
        let mut operands = Vec::new();
        while !self.take(')')? {
            if !operands.is_empty() {
                self.mark(',')?;
            }
            operands.push(self.operand()?);
        }
        let op = self.op(word, at)?;
        let added = if let Token::Text(name) = &self.token {
            let name = name.to_string();
            self.advance()?;
            self.graph.add_named(name, op, &operands)
        } else {
            self.graph.add_op(op, &operands)
        };
        let added = added.map_err(|e| self.lexer.error(at, e.to_string()))?;
        if added.len() != results.len() {
            let problem = format!("{word} gives {} results, {} are named", added.len(), results.len());
            return Err(self.lexer.error(at, problem));
        }
        for (declared, id) in results.iter().zip(added) {
            let inferred = self.graph.ty(id)?;
            if let Some(ty) = declared.ty.filter(|ty| *ty != inferred) {
                let problem = format!("%{} is written as {ty}, but {word} gives {inferred}", declared.id);
                return Err(self.lexer.error(declared.at, problem));
            }
        }
        Ok(())
    }

    /// A value that is defined above.
    fn operand(&mut self) -> Result<ValueId, Error> {
        let Token::Id(id) = self.token else { return Err(self.expected("a value such as `%0`")) };
        if id as usize >= self.graph.values().len() {
            return Err(self.lexer.error(self.at, format!("%{id} is used before it is defined")));
        }
        self.advance()?;
        Ok(ValueId::new(id))
    }

    fn tensor_type(&mut self) -> Result<TensorType, Error> {
        let at = self.at;
        let (ty, dims) = self.type_with_dims()?;
        if dims.iter().any(Option::is_some) {
            return Err(self.lexer.error(at, "only an input's sizes have names"));
        }
        Ok(ty)
    }

    /// `f32[1, seq=128]`.
    fn type_with_dims(&mut self) -> Result<(TensorType, Dims), Error> {
        let at = self.at;
        let Token::Word(word) = self.token else { return Err(self.expected("a type such as f32[2, 3]")) };
        let (dtype, format) = (word.parse::<DType>().ok(), word.parse::<BlockFormat>().ok());
        if dtype.is_none() && format.is_none() {
            let formats = BlockFormat::ALL.iter().map(|format| format.name());
            let hint = hint(&nearest(word, DType::ALL.map(DType::name).into_iter().chain(formats)));
            return Err(self.lexer.error(at, format!("unknown dtype {}{hint}", self.token.describe())));
        }
        self.advance()?;
        self.mark('[')?;
        let (mut sizes, mut dims): (Vec<usize>, Dims) = Default::default();
        while !self.take(']')? {
            if !sizes.is_empty() {
                self.mark(',')?;
            }
            dims.push(self.dim_name()?);
            let Token::Number(number) = self.token else { return Err(self.expected("a size")) };
            sizes.push(number.parse().map_err(|_| self.expected("a size"))?);
            self.advance()?;
        }
        let ty = match (dtype, format) {
            (Some(dtype), _) => Shape::new(&sizes).map(|shape| TensorType::new(dtype, shape)),
            (None, Some(format)) => TensorType::packed(format, &sizes),
            (None, None) => return Err(self.expected("a type such as f32[2, 3]")),
        };
        Ok((ty.map_err(|e| self.lexer.error(at, e.to_string()))?, dims))
    }

    /// `seq=`, if it stands here.
    fn dim_name(&mut self) -> Result<Option<String>, Error> {
        let name = match &self.token {
            Token::Word(w) => w.to_string(),
            Token::Text(t) => t.to_string(),
            _ => return Ok(None),
        };
        self.advance()?;
        self.mark('=')?;
        Ok(Some(name))
    }

    /// A number, `[numbers]` or `base64 "…"`; nothing is allocated before the text is seen to hold it.
    fn elements(&mut self, ty: TensorType) -> Result<Tensor, Error> {
        let at = self.at;
        let data = match self.token {
            Token::Word("base64") => {
                self.advance()?;
                self.bytes(ty)?
            }
            _ => with_dtype!(ty.dtype, T => T::wrap(self.numbers::<T>(ty)?)),
        };
        let tensor = Tensor::from_data(ty.shape, data);
        let tensor = match ty.packed {
            Some(format) => tensor.and_then(|tensor| tensor.into_packed(format)),
            None => tensor,
        };
        tensor.map_err(|e| self.lexer.error(at, e.to_string()))
    }

    fn numbers<T: Literal>(&mut self, ty: TensorType) -> Result<Vec<T>, Error> {
        if ty.shape.rank() == 0 {
            return Ok(vec![self.number()?]);
        }
        let (at, count) = (self.at, ty.shape.numel());
        self.mark('[')?;
        let mut out = Vec::new();
        while !self.take(']')? {
            if !out.is_empty() {
                self.mark(',')?;
            }
            if out.len() == count {
                return Err(self
                    .lexer
                    .error(self.at, format!("{ty} holds {count} elements, more are given")));
            }
            out.push(self.number()?);
        }
        if out.len() != count {
            return Err(self
                .lexer
                .error(at, format!("{ty} holds {count} elements, {} are given", out.len())));
        }
        Ok(out)
    }

    fn number<T: Literal>(&mut self) -> Result<T, Error> {
        let (Token::Number(text) | Token::Word(text)) = self.token else {
            return Err(self.expected(&format!("a number of {}", T::DTYPE)));
        };
        // `nan` would leave the bits to chance, and Rust also reads words such as `infinity`.
        let number = if matches!(self.token, Token::Number(_)) || matches!(text, "inf" | "true" | "false") {
            T::parse(text)
        } else {
            None
        };
        let number = number.ok_or_else(|| self.expected(&format!("a number of {}", T::DTYPE)))?;
        self.advance()?;
        Ok(number)
    }

    fn bytes(&mut self, ty: TensorType) -> Result<Data, Error> {
        let Token::Text(text) = &self.token else { return Err(self.expected("bytes in quotes")) };
        let wanted = base64::encoded_len(ty.bytes());
        if text.len() != wanted {
            let problem = format!("{ty} takes {wanted} characters of base64, found {}", text.len());
            return Err(self.lexer.error(self.at, problem));
        }
        let bad = |problem: &str| self.lexer.error(self.at, problem);
        let mut bytes = base64::decode(text).ok_or_else(|| bad("not base64"))?;
        if bytes.len() != ty.bytes() {
            return Err(bad(&format!("{ty} takes {} bytes, found {}", ty.bytes(), bytes.len())));
        }
        print::little_endian(&mut bytes, ty.dtype.size());
        let data = Data::from_bytes(ty.dtype, &bytes).map_err(|e| bad(&e.to_string()))?;
        self.advance()?;
        Ok(data)
    }

    /// `{name=value, …}`.
    fn record(&mut self, depth: usize) -> Result<Vec<(String, Attr)>, Error> {
        self.mark('{')?;
        let mut fields = Vec::new();
        while !self.take('}')? {
            if !fields.is_empty() {
                self.mark(',')?;
            }
            let Token::Word(name) = self.token else { return Err(self.expected("an attribute's name")) };
            self.advance()?;
            self.mark('=')?;
            fields.push((name.to_string(), self.attr(depth + 1)?));
        }
        Ok(fields)
    }

    fn attr(&mut self, depth: usize) -> Result<Attr, Error> {
        if depth > MAX_DEPTH {
            return Err(self.lexer.error(self.at, format!("attributes nest deeper than {MAX_DEPTH}")));
        }
        let attr = match &self.token {
            Token::Mark('{') => return self.record(depth).map(Attr::Record),
            Token::Mark('[') => return self.list(depth).map(Attr::List),
            Token::Number(number) => self.attr_number(number)?,
            Token::Text(text) => Attr::Text(text.to_string()),
            Token::Word("true") => Attr::Bool(true),
            Token::Word("false") => Attr::Bool(false),
            Token::Word("none") => Attr::None,
            Token::Word("inf") => Attr::Float(f64::INFINITY),
            Token::Word("nan") => Attr::Float(f64::NAN),
            Token::Word("graph") => {
                let at = self.at;
                self.advance()?;
                let graph = matches!(self.token, Token::Text(_));
                return if graph { self.inner_graph(at) } else { Ok(Attr::Word("graph".into())) };
            }
            Token::Word(word) => Attr::Word(word.to_string()),
            _ => return Err(self.expected("an attribute's value")),
        };
        self.advance()?;
        Ok(attr)
    }

    fn list(&mut self, depth: usize) -> Result<Vec<Attr>, Error> {
        self.mark('[')?;
        let mut items = Vec::new();
        while !self.take(']')? {
            if !items.is_empty() {
                self.mark(',')?;
            }
            items.push(self.attr(depth + 1)?);
        }
        Ok(items)
    }

    fn attr_number(&self, number: &str) -> Result<Attr, Error> {
        let read = if number.contains(['.', 'e', 'E', 'i']) {
            f64::parse(number).map(Attr::Float)
        } else {
            number.parse().ok().map(Attr::Int)
        };
        read.ok_or_else(|| self.lexer.error(self.at, format!("{} is out of range", self.token.describe())))
    }

    fn advance(&mut self) -> Result<(), Error> {
        (self.at, self.token) = self.lexer.next()?;
        Ok(())
    }

    /// Takes a mark if it is next.
    fn take(&mut self, mark: char) -> Result<bool, Error> {
        let found = self.token == Token::Mark(mark);
        if found {
            self.advance()?;
        }
        Ok(found)
    }

    fn mark(&mut self, mark: char) -> Result<(), Error> {
        if self.take(mark)? { Ok(()) } else { Err(self.expected(&format!("`{mark}`"))) }
    }

    fn keyword(&mut self, word: &str) -> Result<(), Error> {
        if self.token != Token::Word(word) {
            return Err(self.expected(&format!("`{word}`")));
        }
        self.advance()
    }

    fn text(&mut self, what: &str) -> Result<String, Error> {
        let Token::Text(text) = &self.token else { return Err(self.expected(what)) };
        let text = text.to_string();
        self.advance()?;
        Ok(text)
    }

    fn expected(&self, what: &str) -> Error {
        self.lexer.error(self.at, format!("expected {what}, found {}", self.token.describe()))
    }
}
