//! Attributes as data, so that every operation prints and parses by one mechanism.

use std::fmt;

use crate::error::{hint, nearest};
use crate::{DType, Dim, Error, Shape, SubGraph};

/// An attribute's value in the text form.
#[derive(Clone, Debug)]
pub enum Attr {
    /// `true` or `false`.
    Bool(bool),
    /// A whole number; wide enough for every `i64` and every `usize`.
    Int(i128),
    /// A number with a point or exponent, `inf`, `-inf` or `nan`.
    Float(f64),
    /// A bare word: a dtype, a mode.
    Word(String),
    /// A quoted string.
    Text(String),
    /// `[a, b, …]`.
    List(Vec<Attr>),
    /// `{name=value, …}`.
    Record(Vec<(String, Attr)>),
    /// `graph "name" { … }`: a graph inside the operation.
    Graph(SubGraph),
    /// `none`.
    None,
}

/// Floats compare as [`same_float`] says.
impl PartialEq for Attr {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Attr::Bool(a), Attr::Bool(b)) => a == b,
            (Attr::Int(a), Attr::Int(b)) => a == b,
            (Attr::Float(a), Attr::Float(b)) => same_float(*a, *b),
            (Attr::Word(a), Attr::Word(b)) | (Attr::Text(a), Attr::Text(b)) => a == b,
            (Attr::List(a), Attr::List(b)) => a == b,
            (Attr::Record(a), Attr::Record(b)) => a == b,
            (Attr::Graph(a), Attr::Graph(b)) => a == b,
            (Attr::None, Attr::None) => true,
            _ => false,
        }
    }
}

/// How attributes compare: NaN is NaN, and 0.0 is not −0.0, so that equal operations compute the same.
pub fn same_float(a: f64, b: f64) -> bool {
    a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan())
}

impl fmt::Display for Attr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Attr::Bool(b) => write!(f, "{b}"),
            Attr::Int(i) => write!(f, "{i}"),
            // `{:?}` of a float is the shortest text that parses back to the same bits.
            Attr::Float(x) if x.is_nan() => f.write_str("nan"),
            Attr::Float(x) => write!(f, "{x:?}"),
            Attr::Word(w) => f.write_str(w),
            Attr::Text(t) => write!(f, "{}", quoted(t)),
            Attr::List(items) => {
                f.write_str("[")?;
                for (i, item) in items.iter().enumerate() {
                    write!(f, "{}{item}", if i > 0 { ", " } else { "" })?;
                }
                f.write_str("]")
            }
            Attr::Record(fields) => write_record(f, fields),
            Attr::Graph(graph) => f.write_str(&inner_text(&graph.graph().to_string())),
            Attr::None => f.write_str("none"),
        }
    }
}

/// A graph's text as it stands inside another graph's node.
pub(crate) fn inner_text(text: &str) -> String {
    text.trim_end().replace('\n', "\n  ")
}

fn write_record(f: &mut fmt::Formatter<'_>, fields: &[(String, Attr)]) -> fmt::Result {
    f.write_str("{")?;
    for (i, (name, value)) in fields.iter().enumerate() {
        write!(f, "{}{name}={value}", if i > 0 { ", " } else { "" })?;
    }
    f.write_str("}")
}

/// A string in quotes with `"`, `\` and control characters escaped.
pub fn quoted(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            c if c.is_control() => out.push_str(&format!("\\u{{{:x}}}", c as u32)),
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

/// A type that can be an attribute.
pub trait AttrField: Sized {
    /// The value as data.
    fn write(&self) -> Attr;
    /// The value from data; the error says what was expected.
    fn read(attr: &Attr) -> Result<Self, String>;
    /// Whether two values mean the same; see [`same_float`].
    fn same(&self, other: &Self) -> bool {
        self.write() == other.write()
    }
    /// What a missing attribute means; `None` if it must be given.
    fn missing() -> Option<Self> {
        None
    }
    /// Replaces every size of the value, which may be an expression.
    fn map_sizes(&mut self, size: &mut MapSize<'_>) -> Result<(), Error> {
        let _ = size;
        Ok(())
    }
    /// Whether a size of the value is an expression.
    fn has_open_sizes(&self) -> bool {
        false
    }
}

/// What replaces a size.
pub type MapSize<'a> = dyn FnMut(Dim) -> Result<Dim, Error> + 'a;

fn expected<T>(what: &str, got: &Attr) -> Result<T, String> {
    Err(format!("expected {what}, found `{got}`"))
}

impl AttrField for bool {
    fn write(&self) -> Attr {
        Attr::Bool(*self)
    }
    fn read(attr: &Attr) -> Result<Self, String> {
        if let Attr::Bool(b) = attr { Ok(*b) } else { expected("true or false", attr) }
    }
}

impl AttrField for i64 {
    fn write(&self) -> Attr {
        Attr::Int(i128::from(*self))
    }
    fn read(attr: &Attr) -> Result<Self, String> {
        match attr {
            Attr::Int(i) => i64::try_from(*i).or_else(|_| expected("a whole number of 64 bits", attr)),
            _ => expected("a whole number", attr),
        }
    }
}

impl AttrField for usize {
    fn write(&self) -> Attr {
        Attr::Int(*self as i128)
    }
    fn read(attr: &Attr) -> Result<Self, String> {
        match attr {
            Attr::Int(i) => usize::try_from(*i).or_else(|_| expected("a whole number from 0 up", attr)),
            _ => expected("a whole number from 0 up", attr),
        }
    }
}

impl AttrField for u64 {
    fn write(&self) -> Attr {
        Attr::Int(i128::from(*self))
    }
    fn read(attr: &Attr) -> Result<Self, String> {
        match attr {
            Attr::Int(i) => u64::try_from(*i).or_else(|_| expected("a whole number from 0 up", attr)),
            _ => expected("a whole number from 0 up", attr),
        }
    }
}

impl AttrField for f64 {
    fn write(&self) -> Attr {
        Attr::Float(*self)
    }
    fn read(attr: &Attr) -> Result<Self, String> {
        match attr {
            Attr::Float(x) => Ok(*x),
            Attr::Int(i) => Ok(*i as f64),
            _ => expected("a number", attr),
        }
    }
}

impl AttrField for String {
    fn write(&self) -> Attr {
        Attr::Text(self.clone())
    }
    fn read(attr: &Attr) -> Result<Self, String> {
        if let Attr::Text(t) = attr { Ok(t.clone()) } else { expected("a quoted string", attr) }
    }
}

impl AttrField for DType {
    fn write(&self) -> Attr {
        Attr::Word(self.name().into())
    }
    fn read(attr: &Attr) -> Result<Self, String> {
        if let Attr::Word(w) = attr { w.parse() } else { expected("a dtype", attr) }
    }
}

/// An expression is written as text and cannot be read back: only a compile knows its symbols.
impl AttrField for Dim {
    fn write(&self) -> Attr {
        match self.as_constant() {
            Some(value) => value.write(),
            None => Attr::Text(self.to_string()),
        }
    }
    fn read(attr: &Attr) -> Result<Self, String> {
        i64::read(attr).map(Dim::from)
    }
    /// Sizes that are equal for all values of the symbols; no question is asked.
    fn same(&self, other: &Self) -> bool {
        self.structural() == other.structural()
    }
    fn map_sizes(&mut self, size: &mut MapSize<'_>) -> Result<(), Error> {
        *self = size(*self)?;
        Ok(())
    }
    fn has_open_sizes(&self) -> bool {
        !self.is_constant()
    }
}

impl AttrField for Shape {
    fn write(&self) -> Attr {
        Attr::List(self.sizes().iter().map(Dim::write).collect())
    }
    fn read(attr: &Attr) -> Result<Self, String> {
        Shape::new(&Vec::<usize>::read(attr)?).map_err(|e| e.to_string())
    }
    fn map_sizes(&mut self, size: &mut MapSize<'_>) -> Result<(), Error> {
        let sizes = self.sizes().iter().map(|dim| size(*dim)).collect::<Result<Vec<_>, _>>()?;
        *self = Shape::of_sizes(&sizes)?;
        Ok(())
    }
    fn has_open_sizes(&self) -> bool {
        self.is_symbolic()
    }
}

impl<T: AttrField> AttrField for Vec<T> {
    fn write(&self) -> Attr {
        Attr::List(self.iter().map(T::write).collect())
    }
    fn read(attr: &Attr) -> Result<Self, String> {
        if let Attr::List(items) = attr {
            items.iter().map(T::read).collect()
        } else {
            expected("a list", attr)
        }
    }
    fn same(&self, other: &Self) -> bool {
        self.len() == other.len() && self.iter().zip(other).all(|(a, b)| a.same(b))
    }
    fn map_sizes(&mut self, size: &mut MapSize<'_>) -> Result<(), Error> {
        self.iter_mut().try_for_each(|item| item.map_sizes(size))
    }
    fn has_open_sizes(&self) -> bool {
        self.iter().any(T::has_open_sizes)
    }
}

impl<T: AttrField> AttrField for Option<T> {
    fn write(&self) -> Attr {
        self.as_ref().map_or(Attr::None, T::write)
    }
    fn read(attr: &Attr) -> Result<Self, String> {
        if *attr == Attr::None { Ok(None) } else { T::read(attr).map(Some) }
    }
    fn same(&self, other: &Self) -> bool {
        match (self, other) {
            (Some(a), Some(b)) => a.same(b),
            (a, b) => a.is_none() && b.is_none(),
        }
    }
    fn missing() -> Option<Self> {
        Some(None)
    }
    fn map_sizes(&mut self, size: &mut MapSize<'_>) -> Result<(), Error> {
        self.as_mut().map_or(Ok(()), |value| value.map_sizes(size))
    }
    fn has_open_sizes(&self) -> bool {
        self.as_ref().is_some_and(T::has_open_sizes)
    }
}

impl<A: AttrField, B: AttrField> AttrField for (A, B) {
    fn write(&self) -> Attr {
        Attr::List(vec![self.0.write(), self.1.write()])
    }
    fn read(attr: &Attr) -> Result<Self, String> {
        match attr {
            Attr::List(items) if items.len() == 2 => Ok((A::read(&items[0])?, B::read(&items[1])?)),
            _ => expected("a pair", attr),
        }
    }
    fn map_sizes(&mut self, size: &mut MapSize<'_>) -> Result<(), Error> {
        self.0.map_sizes(size)?;
        self.1.map_sizes(size)
    }
    fn has_open_sizes(&self) -> bool {
        self.0.has_open_sizes() || self.1.has_open_sizes()
    }
}

/// The named attributes of one operation, as parsed.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Attrs(pub Vec<(String, Attr)>);

impl Attrs {
    /// Reads one attribute, or its meaning when missing.
    pub fn get<T: AttrField>(&self, name: &str) -> Result<T, String> {
        match self.0.iter().find(|(n, _)| n == name) {
            Some((_, attr)) => T::read(attr).map_err(|e| format!("attribute `{name}`: {e}")),
            None => T::missing().ok_or_else(|| format!("attribute `{name}` is missing")),
        }
    }

    /// Refuses attributes outside `known` and names given twice.
    pub fn only(&self, known: &[&str]) -> Result<(), String> {
        for (i, (name, _)) in self.0.iter().enumerate() {
            if !known.contains(&name.as_str()) {
                return Err(format!(
                    "unknown attribute `{name}`{}",
                    hint(&nearest(name, known.iter().copied()))
                ));
            }
            if self.0[..i].iter().any(|(n, _)| n == name) {
                return Err(format!("attribute `{name}` is given twice"));
            }
        }
        Ok(())
    }
}

impl fmt::Display for Attrs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_record(f, &self.0)
    }
}

/// An enumeration of words: `Mode::Reflect` prints as `reflect`.
#[macro_export]
macro_rules! words {
    ($(#[$doc:meta])* $vis:vis enum $name:ident { $($(#[$vdoc:meta])* $variant:ident = $word:literal),* $(,)? }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        $vis enum $name { $($(#[$vdoc])* $variant),* }

        impl $name {
            /// Every variant, in declaration order.
            pub const ALL: &'static [$name] = &[$($name::$variant),*];

            /// The word of the text form.
            pub const fn name(self) -> &'static str {
                match self { $($name::$variant => $word),* }
            }

            /// The variant with this word.
            pub fn from_name(word: &str) -> Option<Self> {
                match word { $($word => Some($name::$variant),)* _ => None }
            }
        }

        impl $crate::attr::AttrField for $name {
            fn write(&self) -> $crate::attr::Attr {
                $crate::attr::Attr::Word(self.name().into())
            }
            fn read(attr: &$crate::attr::Attr) -> Result<Self, String> {
                match attr {
                    $crate::attr::Attr::Word(w) => $name::from_name(w),
                    _ => None,
                }
                .ok_or_else(|| format!(
                    "expected one of {}, found `{attr}`",
                    $name::ALL.iter().map(|v| v.name()).collect::<Vec<_>>().join(", ")
                ))
            }
        }
    };
}
