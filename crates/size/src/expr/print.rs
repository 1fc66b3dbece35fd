//! The text form of expressions, which [`Dim::parse`](crate::Dim::parse) reads.
//!
//! The order of terms and operands is that of their text, not of their ids: ids depend on which thread came first.

use super::poly::Poly;
use super::store::node;
use super::{Expr, ExprId, Node};
use crate::arithmetic::Op;
use crate::guards::Relation;

/// Words of the text form; symbols with these names are printed in quotes.
pub(crate) const WORDS: [&str; 7] = ["floor", "ceil", "mod", "min", "max", "abs", "next_power_of_two"];

/// How tightly the outermost operation of a text binds.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Binding {
    Sum,
    Mod,
    Product,
    Atom,
}

/// The text of an expression.
pub(crate) fn text(expr: Expr) -> String {
    match expr {
        Expr::Const(value) => value.to_string(),
        Expr::Id(id) => printed(id).0,
    }
}

/// A term of a sum with its text.
struct Term {
    /// Products first, then by text.
    order: (usize, String),
    binding: Binding,
    coefficient: i128,
}

/// The terms in the order in which they print. Each is printed once: twice at each level would be 2^depth times.
fn in_order(terms: &[(ExprId, i64)]) -> Vec<Term> {
    let mut terms: Vec<Term> = terms.iter().map(|&(id, coefficient)| term(id, coefficient)).collect();
    terms.sort_by(|a, b| a.order.cmp(&b.order));
    terms
}

fn term(id: ExprId, coefficient: i64) -> Term {
    let degree = match node(id) {
        Node::Product(factors) => factors.len(),
        _ => 1,
    };
    let (text, binding) = printed(id);
    Term { order: (usize::MAX - degree, text), binding, coefficient: coefficient.into() }
}

/// A comparison of a sum without a constant, such as `a - b >= 3`, with its negative terms on the right: `a >= b + 3`.
///
/// The first term in print order is always on the left.
pub(crate) fn comparison_text(expr: ExprId, relation: Relation, value: i64) -> String {
    let mut terms = match node(expr) {
        Node::Sum { constant: 0, terms } => in_order(terms),
        _ => vec![term(expr, 1)],
    };
    let flipped = terms.first().is_some_and(|first| first.coefficient < 0);
    let sign = if flipped { -1 } else { 1 };
    let relation = if flipped { relation.flipped() } else { relation };
    let right = terms.extract_if(.., |term| (term.coefficient < 0) != flipped).collect::<Vec<_>>();
    let scaled = |terms: Vec<Term>, by: i128| {
        terms.into_iter().map(|term| Term { coefficient: term.coefficient * by, ..term }).collect::<Vec<_>>()
    };
    let left = join(0, &scaled(terms, sign)).0;
    let right = join(i128::from(value) * sign, &scaled(right, -sign)).0;
    format!("{left} {relation} {right}")
}

fn printed(id: ExprId) -> (String, Binding) {
    match node(id) {
        Node::Const(value) => (value.to_string(), if *value < 0 { Binding::Sum } else { Binding::Atom }),
        Node::Symbol { name, .. } => (name_text(name), Binding::Atom),
        Node::Sum { constant, terms } => sum(*constant, terms),
        Node::Product(factors) => {
            let mut texts: Vec<_> = factors
                .iter()
                .map(|&factor| (factor_order(factor), above(Binding::Product, printed(factor))))
                .collect();
            texts.sort();
            let texts: Vec<String> = texts.into_iter().map(|(_, text)| text).collect();
            (texts.join("*"), Binding::Product)
        }
        &Node::Floor(a, b) => (quotient(a, b), Binding::Atom),
        &Node::Ceil(a, b) => (fraction("ceil", printed(a), printed(b)), Binding::Atom),
        &Node::Rem(a, b) => {
            let operand = |id| above(Binding::Atom, printed(id));
            (format!("{} mod {}", operand(a), operand(b)), Binding::Mod)
        }
        Node::Min(operands) => (call("min", operands), Binding::Atom),
        Node::Max(operands) => (call("max", operands), Binding::Atom),
        &Node::Abs(a) => (format!("abs({})", absolute(a)), Binding::Atom),
        &Node::NextPowerOfTwo(a) => (format!("next_power_of_two({})", printed(a).0), Binding::Atom),
        &Node::Failed { op, a, b, .. } => (failed(op, a, b), Binding::Sum),
        Node::Unknown => ("?".to_owned(), Binding::Atom),
    }
}

/// Sums come first, those with the most terms before others: read in this order, they are not expanded either.
fn factor_order(factor: ExprId) -> (bool, usize) {
    match node(factor) {
        Node::Sum { terms, .. } => {
            let has_unexpanded = Poly::of(Expr::Id(factor)).has_unexpanded();
            (!has_unexpanded, usize::MAX - 1 - terms.len())
        }
        _ => (true, usize::MAX),
    }
}

/// The text, in parentheses where it binds less tightly.
fn above(least: Binding, (text, binding): (String, Binding)) -> String {
    if binding < least { format!("({text})") } else { text }
}

fn sum(constant: i64, terms: &[(ExprId, i64)]) -> (String, Binding) {
    join(constant.into(), &in_order(terms))
}

/// A sum begins with something positive if there is any: `b - a`, `7 - a`.
fn join(constant: i128, terms: &[Term]) -> (String, Binding) {
    let first = terms.iter().position(|term| term.coefficient > 0);
    let leads = first.is_none() && constant > 0 && !terms.is_empty();
    let mut text = if leads { constant.to_string() } else { String::new() };
    let others = terms.iter().enumerate().filter(|&(at, _)| Some(at) != first).map(|(_, term)| term);
    for Term { order: (_, term), binding, coefficient } in
        first.and_then(|at| terms.get(at)).into_iter().chain(others)
    {
        match (text.is_empty(), *coefficient < 0) {
            (true, true) => text.push('-'),
            (true, false) => {}
            (false, true) => text.push_str(" - "),
            (false, false) => text.push_str(" + "),
        }
        let least = if *coefficient == 1 { Binding::Mod } else { Binding::Product };
        if coefficient.unsigned_abs() != 1 {
            text.push_str(&coefficient.unsigned_abs().to_string());
            text.push('*');
        }
        text.push_str(&above(least, (term.clone(), *binding)));
    }
    match constant {
        _ if text.is_empty() => text = constant.to_string(),
        0 => {}
        _ if leads => {}
        1.. => text.push_str(&format!(" + {constant}")),
        _ => text.push_str(&format!(" - {}", constant.unsigned_abs())),
    }
    let binding = match terms {
        [] if constant >= 0 => Binding::Atom,
        [one] if constant == 0 && one.coefficient == 1 => one.binding,
        [one] if constant == 0 && one.coefficient > 1 => Binding::Product,
        _ => Binding::Sum,
    };
    (text, binding)
}

/// `floor((x + n - 1) / n)` reads better as what it was: `ceil(x / n)`.
fn quotient(a: ExprId, b: ExprId) -> String {
    if let (Node::Sum { constant, terms }, &Node::Const(n)) = (node(a), node(b))
        && n > 1
        && *constant == n - 1
    {
        return fraction("ceil", sum(0, terms), printed(b));
    }
    fraction("floor", printed(a), printed(b))
}

fn fraction(name: &str, a: (String, Binding), b: (String, Binding)) -> String {
    format!("{name}({} / {})", above(Binding::Product, a), above(Binding::Atom, b))
}

/// The first term prints without a minus: the absolute value is the same.
fn absolute(a: ExprId) -> String {
    let Node::Sum { constant, terms } = node(a) else {
        return printed(a).0;
    };
    let mut terms = in_order(terms);
    let sign = if terms.first().is_some_and(|first| first.coefficient < 0) { -1 } else { 1 };
    for term in &mut terms {
        term.coefficient *= sign;
    }
    join(i128::from(*constant) * sign, &terms).0
}

fn call(name: &str, operands: &[ExprId]) -> String {
    let is_number = |id: ExprId| matches!(node(id), Node::Const(_));
    let mut texts: Vec<_> = operands.iter().map(|&id| (is_number(id), printed(id).0)).collect();
    texts.sort();
    let texts: Vec<String> = texts.into_iter().map(|(_, text)| text).collect();
    format!("{name}({})", texts.join(", "))
}

fn failed(op: Op, a: ExprId, b: ExprId) -> String {
    let (left, right) = (printed(a), printed(b));
    match op {
        Op::Add => format!("{} + {}", left.0, above(Binding::Mod, right)),
        Op::Sub => format!("{} - {}", left.0, above(Binding::Mod, right)),
        Op::Mul => format!("{}*{}", above(Binding::Product, left), above(Binding::Product, right)),
        Op::DivFloor => fraction("floor", left, right),
        Op::DivCeil => fraction("ceil", left, right),
        Op::Rem => format!("{} mod {}", above(Binding::Atom, left), above(Binding::Atom, right)),
        Op::Min => format!("min({}, {})", left.0, right.0),
        Op::Max => format!("max({}, {})", left.0, right.0),
        Op::Abs => format!("abs({})", left.0),
        Op::NextPowerOfTwo => format!("next_power_of_two({})", left.0),
    }
}

/// The name of a symbol, in quotes where it would not read as a name.
fn name_text(name: &str) -> String {
    let plain = name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
        && name.bytes().all(is_name_byte)
        && !WORDS.contains(&name);
    if plain {
        return name.to_owned();
    }
    let mut text = String::from("\"");
    for c in name.chars() {
        if c == '"' || c == '\\' {
            text.push('\\');
        }
        text.push(c);
    }
    text.push('"');
    text
}

/// True for the bytes of a name that needs no quotes.
pub(crate) fn is_name_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'.'
}
