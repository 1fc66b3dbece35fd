//! Many expressions as one list of instructions, evaluated for new sizes without allocation.

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::ops::Range;

use crate::arithmetic::{div_ceil, div_floor, next_power_of_two, rem};
use crate::expr::print::text;
use crate::expr::store::{node, range};
use crate::expr::{Expr, ExprId, Node, reachable, symbols};
use crate::{Bindings, Dim, Error, Fault, Symbol};

/// Where a [`Table`] puts the value of one expression.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Slot(u32);

impl Slot {
    /// The index in the vector that [`Table::evaluate`] fills.
    #[inline]
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// Expressions that are evaluated together. Each subexpression is one instruction, however often it is used.
///
/// Instruction `i` writes value `i` and reads values before it. Results that do not fit in 64 bits are errors; the
/// terms of a sum are added in 128 bits, so that only the sum itself must fit.
#[derive(Clone, Debug, Default)]
pub struct Table {
    instructions: Vec<Instruction>,
    /// Operands of products, minima and maxima.
    operands: Vec<u32>,
    /// Operands and coefficients of sums.
    terms: Vec<(u32, i64)>,
    /// What each instruction computes, for errors.
    expressions: Vec<Expr>,
    slots: HashMap<Expr, u32>,
    /// The sizes that could be negative.
    sizes: BTreeSet<u32>,
}

#[derive(Clone, Copy, Debug)]
enum Instruction {
    Const(i64),
    Symbol(Symbol),
    /// A sum of one term, which most sums are.
    Scale {
        a: u32,
        coefficient: i64,
        constant: i64,
    },
    Sum {
        constant: i64,
        start: u32,
        end: u32,
    },
    Multiply(u32, u32),
    Product {
        start: u32,
        end: u32,
    },
    Floor(u32, u32),
    Ceil(u32, u32),
    Rem(u32, u32),
    Min {
        start: u32,
        end: u32,
    },
    Max {
        start: u32,
        end: u32,
    },
    Abs(u32),
    NextPowerOfTwo(u32),
    /// An expression without a value; nothing adds one.
    Invalid,
}

/// What went wrong, and at which instruction.
pub(crate) struct Problem {
    at: usize,
    kind: ProblemKind,
}

enum ProblemKind {
    Fault(Fault),
    Unbound(Symbol),
    Negative(i64),
}

impl From<Fault> for ProblemKind {
    fn from(fault: Fault) -> ProblemKind {
        ProblemKind::Fault(fault)
    }
}

impl Table {
    /// No expressions.
    pub fn new() -> Table {
        Table::default()
    }

    /// Adds a size: its value must not be negative.
    pub fn add(&mut self, dim: Dim) -> Result<Slot, Error> {
        let slot = self.add_signed(dim)?;
        if range(dim.expr()).min < 0 {
            self.sizes.insert(slot.0);
        }
        Ok(slot)
    }

    /// Adds a number that may be negative.
    pub fn add_signed(&mut self, dim: Dim) -> Result<Slot, Error> {
        match dim.check()?.expr() {
            Expr::Id(id) => Ok(self.add_expression(id)),
            constant @ Expr::Const(value) => Ok(self.push(constant, |_| Instruction::Const(value))),
        }
    }

    pub(crate) fn add_expression(&mut self, id: ExprId) -> Slot {
        let new = reachable([id], |id| self.slots.contains_key(&key(id)));
        for id in new {
            self.push(key(id), |table| table.instruction(id));
        }
        Slot(self.slot_of(id))
    }

    /// How many values there are, which is how many instructions there are.
    pub fn len(&self) -> usize {
        self.instructions.len()
    }

    /// True when nothing was added.
    pub fn is_empty(&self) -> bool {
        self.instructions.is_empty()
    }

    /// The symbols that must have values.
    pub fn symbols(&self) -> impl Iterator<Item = Symbol> + '_ {
        self.instructions.iter().filter_map(|instruction| match instruction {
            &Instruction::Symbol(symbol) => Some(symbol),
            _ => None,
        })
    }

    /// Computes all values; `values[slot.index()]` is that of a slot. Allocates only where `values` is too short.
    pub fn evaluate(&self, bindings: &Bindings, values: &mut Vec<i64>) -> Result<(), Error> {
        self.prepare(values);
        let result = self.run(0..self.len(), bindings, values).and_then(|()| self.check_sizes(values));
        result.map_err(|problem| self.error(problem, bindings))
    }

    /// The position of the first of some slots that has no value for such sizes, or a negative one that must not be: where
    /// [`Table::evaluate`] fails, whose number that is.
    #[cold]
    pub fn first_without_value(&self, slots: &[Slot], bindings: &Bindings) -> Option<usize> {
        let mut values = vec![0; self.len()];
        let mut failed = vec![false; self.len()];
        for (at, &instruction) in self.instructions.iter().enumerate() {
            if self.operands_of(instruction).into_iter().any(|operand| failed[operand as usize]) {
                failed[at] = true;
                continue;
            }
            match self.step(instruction, bindings, &values) {
                Ok(value) => {
                    values[at] = value;
                    failed[at] = value < 0 && self.sizes.contains(&(at as u32));
                }
                Err(_) => failed[at] = true,
            }
        }
        slots.iter().position(|slot| failed.get(slot.index()) == Some(&true))
    }

    fn operands_of(&self, instruction: Instruction) -> Vec<u32> {
        match instruction {
            Instruction::Const(_) | Instruction::Symbol(_) | Instruction::Invalid => Vec::new(),
            Instruction::Scale { a, .. } | Instruction::Abs(a) | Instruction::NextPowerOfTwo(a) => vec![a],
            Instruction::Sum { start, end, .. } => {
                let terms = self.terms.get(start as usize..end as usize).unwrap_or_default();
                terms.iter().map(|&(term, _)| term).collect()
            }
            Instruction::Multiply(a, b)
            | Instruction::Floor(a, b)
            | Instruction::Ceil(a, b)
            | Instruction::Rem(a, b) => vec![a, b],
            Instruction::Product { start, end }
            | Instruction::Min { start, end }
            | Instruction::Max { start, end } => {
                self.operands.get(start as usize..end as usize).unwrap_or_default().to_vec()
            }
        }
    }

    /// Gives the vector its length.
    pub(crate) fn prepare(&self, values: &mut Vec<i64>) {
        if values.len() != self.len() {
            values.resize(self.len(), 0);
        }
    }

    /// Runs some instructions; those before must have run.
    pub(crate) fn run(
        &self,
        part: Range<usize>,
        bindings: &Bindings,
        values: &mut [i64],
    ) -> Result<(), Problem> {
        for at in part {
            match self.step(self.instructions[at], bindings, values) {
                Ok(value) => values[at] = value,
                Err(kind) => return Err(Problem { at, kind }),
            }
        }
        Ok(())
    }

    #[inline(always)]
    fn step(
        &self,
        instruction: Instruction,
        bindings: &Bindings,
        values: &[i64],
    ) -> Result<i64, ProblemKind> {
        let at = |slot: u32| values[slot as usize];
        let overflow = ProblemKind::Fault(Fault::Overflow);
        Ok(match instruction {
            Instruction::Const(value) => value,
            Instruction::Symbol(symbol) => bindings.get(symbol).ok_or(ProblemKind::Unbound(symbol))?,
            Instruction::Scale { a, coefficient, constant } => {
                let scaled = i128::from(at(a)) * i128::from(coefficient) + i128::from(constant);
                i64::try_from(scaled).map_err(|_| overflow)?
            }
            Instruction::Sum { constant, start, end } => {
                let mut sum = i128::from(constant);
                for &(term, coefficient) in &self.terms[start as usize..end as usize] {
                    let scaled = i128::from(at(term)) * i128::from(coefficient);
                    sum = sum.checked_add(scaled).ok_or(Fault::Overflow)?;
                }
                i64::try_from(sum).map_err(|_| overflow)?
            }
            Instruction::Multiply(a, b) => at(a).checked_mul(at(b)).ok_or(overflow)?,
            Instruction::Product { start, end } => {
                let mut product = 1i64;
                for &factor in &self.operands[start as usize..end as usize] {
                    product = product.checked_mul(at(factor)).ok_or(Fault::Overflow)?;
                }
                product
            }
            Instruction::Floor(a, b) => div_floor(at(a), at(b))?,
            Instruction::Ceil(a, b) => div_ceil(at(a), at(b))?,
            Instruction::Rem(a, b) => rem(at(a), at(b))?,
            Instruction::Min { start, end } => {
                let operands = &self.operands[start as usize..end as usize];
                operands.iter().map(|&slot| at(slot)).fold(i64::MAX, i64::min)
            }
            Instruction::Max { start, end } => {
                let operands = &self.operands[start as usize..end as usize];
                operands.iter().map(|&slot| at(slot)).fold(i64::MIN, i64::max)
            }
            Instruction::Abs(a) => at(a).checked_abs().ok_or(overflow)?,
            Instruction::NextPowerOfTwo(a) => next_power_of_two(at(a))?,
            Instruction::Invalid => return Err(ProblemKind::Fault(Fault::TooComplex)),
        })
    }

    fn check_sizes(&self, values: &[i64]) -> Result<(), Problem> {
        for &slot in &self.sizes {
            let (at, value) = (slot as usize, values[slot as usize]);
            if value < 0 {
                return Err(Problem { at, kind: ProblemKind::Negative(value) });
            }
        }
        Ok(())
    }

    /// The error that names the expression and the values of its symbols.
    #[cold]
    pub(crate) fn error(&self, Problem { at, kind }: Problem, bindings: &Bindings) -> Error {
        let expr = self.expressions.get(at).copied().unwrap_or(Expr::Const(0));
        let names = match expr {
            Expr::Id(id) => symbols(id),
            Expr::Const(_) => Vec::new(),
        };
        let values = names.into_iter().filter_map(|symbol| Some((symbol, bindings.get(symbol)?))).collect();
        let (expression, values) = (text(expr), Bindings::from_checked(values).to_string());
        match kind {
            ProblemKind::Unbound(symbol) => Error::Unbound { name: symbol.name().to_owned() },
            ProblemKind::Fault(fault) => Error::Arithmetic { expression, values, fault },
            ProblemKind::Negative(value) => Error::Negative { expression, value, values },
        }
    }

    fn push(&mut self, expr: Expr, instruction: impl FnOnce(&mut Table) -> Instruction) -> Slot {
        if let Some(&slot) = self.slots.get(&expr) {
            return Slot(slot);
        }
        let instruction = instruction(self);
        let slot = self.instructions.len() as u32;
        self.instructions.push(instruction);
        self.expressions.push(expr);
        self.slots.insert(expr, slot);
        Slot(slot)
    }

    /// The slot of an expression that was added.
    fn slot_of(&self, id: ExprId) -> u32 {
        self.slots.get(&key(id)).copied().unwrap_or(0)
    }

    fn instruction(&mut self, id: ExprId) -> Instruction {
        let slot = |id: ExprId| self.slot_of(id);
        match node(id) {
            &Node::Const(value) => Instruction::Const(value),
            Node::Symbol { .. } => Symbol::of(id).map_or(Instruction::Invalid, Instruction::Symbol),
            Node::Sum { constant, terms } => {
                if let &[(term, coefficient)] = &**terms {
                    return Instruction::Scale { a: slot(term), coefficient, constant: *constant };
                }
                let terms: Vec<_> =
                    terms.iter().map(|&(term, coefficient)| (slot(term), coefficient)).collect();
                let start = self.terms.len() as u32;
                self.terms.extend(terms);
                Instruction::Sum { constant: *constant, start, end: self.terms.len() as u32 }
            }
            Node::Product(factors) => {
                if let &[a, b] = &**factors {
                    return Instruction::Multiply(slot(a), slot(b));
                }
                let (start, end) = self.push_operands(factors);
                Instruction::Product { start, end }
            }
            &Node::Floor(a, b) => Instruction::Floor(slot(a), slot(b)),
            &Node::Ceil(a, b) => Instruction::Ceil(slot(a), slot(b)),
            &Node::Rem(a, b) => Instruction::Rem(slot(a), slot(b)),
            Node::Min(operands) => {
                let (start, end) = self.push_operands(operands);
                Instruction::Min { start, end }
            }
            Node::Max(operands) => {
                let (start, end) = self.push_operands(operands);
                Instruction::Max { start, end }
            }
            &Node::Abs(a) => Instruction::Abs(slot(a)),
            &Node::NextPowerOfTwo(a) => Instruction::NextPowerOfTwo(slot(a)),
            Node::Failed { .. } | Node::Unknown => Instruction::Invalid,
        }
    }

    fn push_operands(&mut self, operands: &[ExprId]) -> (u32, u32) {
        let slots: Vec<u32> = operands.iter().map(|&operand| self.slot_of(operand)).collect();
        let start = self.operands.len() as u32;
        self.operands.extend(slots);
        (start, self.operands.len() as u32)
    }
}

/// A number is one slot, whether it is a constant size or an operand.
fn key(id: ExprId) -> Expr {
    match node(id) {
        &Node::Const(value) => Expr::Const(value),
        _ => Expr::Id(id),
    }
}

/// One instruction a line: `%4 = floor(%2 / %3)`.
impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, &instruction) in self.instructions.iter().enumerate() {
            writeln!(f, "%{at} = {}", self.instruction_text(instruction))?;
        }
        Ok(())
    }
}

impl Table {
    fn instruction_text(&self, instruction: Instruction) -> String {
        let list = |start: u32, end: u32, separator: &str| {
            let operands = self.operands.get(start as usize..end as usize).unwrap_or_default();
            operands.iter().map(|slot| format!("%{slot}")).collect::<Vec<_>>().join(separator)
        };
        let term = |(slot, coefficient): (u32, i64)| match coefficient {
            1 => format!("%{slot}"),
            _ => format!("{coefficient}*%{slot}"),
        };
        let with_constant = |mut texts: Vec<String>, constant: i64| {
            if constant != 0 {
                texts.push(constant.to_string());
            }
            texts.join(" + ")
        };
        match instruction {
            Instruction::Const(value) => value.to_string(),
            Instruction::Symbol(symbol) => symbol.to_string(),
            Instruction::Scale { a, coefficient, constant } => {
                with_constant(vec![term((a, coefficient))], constant)
            }
            Instruction::Sum { constant, start, end } => {
                let terms = self.terms.get(start as usize..end as usize).unwrap_or_default();
                with_constant(terms.iter().copied().map(term).collect(), constant)
            }
            Instruction::Multiply(a, b) => format!("%{a}*%{b}"),
            Instruction::Product { start, end } => list(start, end, "*"),
            Instruction::Floor(a, b) => format!("floor(%{a} / %{b})"),
            Instruction::Ceil(a, b) => format!("ceil(%{a} / %{b})"),
            Instruction::Rem(a, b) => format!("%{a} mod %{b}"),
            Instruction::Min { start, end } => format!("min({})", list(start, end, ", ")),
            Instruction::Max { start, end } => format!("max({})", list(start, end, ", ")),
            Instruction::Abs(a) => format!("abs(%{a})"),
            Instruction::NextPowerOfTwo(a) => format!("next_power_of_two(%{a})"),
            Instruction::Invalid => "?".to_owned(),
        }
    }
}
