//! Programs for the matcher.

use super::parse::{Anchor, Greed, Node};
use super::set::{Class, Set};

/// A step of a program. `slot` numbers the steps at which threads can meet again.
#[derive(Clone, Debug)]
pub(super) enum Step {
    Class(usize),
    /// A class repeated.
    Run {
        class: usize,
        min: u32,
        max: u32,
        greed: Greed,
        slot: usize,
    },
    /// Goes on at `first`, and at `second` if that fails.
    Split {
        first: usize,
        second: usize,
        slot: usize,
    },
    Jump(usize),
    Look {
        program: usize,
        negated: bool,
    },
    Anchor(Anchor),
    Match,
}

/// A compiled expression.
#[derive(Clone, Debug)]
pub(crate) struct Program {
    pub(super) steps: Vec<Step>,
    pub(super) classes: Vec<Class>,
    pub(super) looks: Vec<Program>,
    pub(super) slots: usize,
}

const MOST_STEPS: usize = 4096;
/// Nodes and items of classes that are compiled, as often as they repeat.
const MOST_WORK: usize = 1 << 19;
/// Characters that a lookahead may read.
const FARTHEST: u64 = 16;

pub(super) fn compile(node: &Node) -> Result<Program, String> {
    compile_within(node, &mut 0)
}

/// Compiles with what is left of the work.
fn compile_within(node: &Node, work: &mut usize) -> Result<Program, String> {
    let mut program = Program { steps: Vec::new(), classes: Vec::new(), looks: Vec::new(), slots: 0 };
    program.add(node, work)?;
    program.push(Step::Match)?;
    Ok(program)
}

impl Program {
    fn push(&mut self, step: Step) -> Result<usize, String> {
        if self.steps.len() >= MOST_STEPS {
            return Err(format!("it needs more than {MOST_STEPS} steps"));
        }
        self.steps.push(step);
        Ok(self.steps.len() - 1)
    }

    fn slot(&mut self) -> usize {
        self.slots += 1;
        self.slots - 1
    }

    fn split(&mut self) -> Result<usize, String> {
        let slot = self.slot();
        self.push(Step::Split { first: 0, second: 0, slot })
    }

    fn set_split(&mut self, at: usize, to: usize, else_to: usize) {
        if let Some(Step::Split { first, second, .. }) = self.steps.get_mut(at) {
            (*first, *second) = (to, else_to);
        }
    }

    fn class(&mut self, set: &Set, work: &mut usize) -> Result<usize, String> {
        charge(work, set.size())?;
        self.classes.push(Class::new(set.clone()));
        Ok(self.classes.len() - 1)
    }

    fn add(&mut self, node: &Node, work: &mut usize) -> Result<(), String> {
        charge(work, 1)?;
        match node {
            Node::Empty => (),
            Node::Set(set) => {
                let class = self.class(set, work)?;
                self.push(Step::Class(class))?;
            }
            Node::Cat(nodes) => nodes.iter().try_for_each(|node| self.add(node, work))?,
            Node::Alt(nodes) => self.alternatives(nodes, work)?,
            Node::Repeat { body, min, max, greed } => self.repeat(body, (*min, *max), *greed, work)?,
            Node::Look { body, negated } => {
                if reach(body).is_none_or(|reach| reach > FARTHEST) {
                    return Err(format!("a lookahead reads more than {FARTHEST} characters"));
                }
                self.looks.push(compile_within(body, work)?);
                self.push(Step::Look { program: self.looks.len() - 1, negated: *negated })?;
            }
            Node::Anchor(anchor) => {
                self.push(Step::Anchor(*anchor))?;
            }
        }
        Ok(())
    }

    fn alternatives(&mut self, nodes: &[Node], work: &mut usize) -> Result<(), String> {
        let mut ends = Vec::new();
        let (last, others) = nodes.split_last().ok_or("an alternation is empty")?;
        for node in others {
            let split = self.split()?;
            self.add(node, work)?;
            ends.push(self.push(Step::Jump(0))?);
            self.set_split(split, split + 1, self.steps.len());
        }
        self.add(last, work)?;
        let after = self.steps.len();
        for end in ends {
            self.steps[end] = Step::Jump(after);
        }
        Ok(())
    }

    fn repeat(
        &mut self,
        body: &Node,
        (min, max): (u32, Option<u32>),
        greed: Greed,
        work: &mut usize,
    ) -> Result<(), String> {
        if let Node::Set(set) = body {
            let class = self.class(set, work)?;
            let slot = self.slot();
            self.push(Step::Run { class, min, max: max.unwrap_or(u32::MAX), greed, slot })?;
            return Ok(());
        }
        if greed == Greed::Possessive {
            return Err("a possessive quantifier after a group is not supported".into());
        }
        if max.is_some() && is_empty(body) {
            return Ok(());
        }
        for _ in 0..min {
            self.add(body, work)?;
        }
        let order = |first, second| if greed == Greed::Lazy { (second, first) } else { (first, second) };
        match max {
            None => {
                if nullable(body) {
                    return Err("what repeats without bound may be empty".into());
                }
                let split = self.split()?;
                self.add(body, work)?;
                self.push(Step::Jump(split))?;
                let (first, second) = order(split + 1, self.steps.len());
                self.set_split(split, first, second);
            }
            Some(max) => {
                let mut splits = Vec::new();
                for _ in min..max {
                    splits.push(self.split()?);
                    self.add(body, work)?;
                }
                let after = self.steps.len();
                for split in splits {
                    let (first, second) = order(split + 1, after);
                    self.set_split(split, first, second);
                }
            }
        }
        Ok(())
    }
}

/// Takes from the work that compiling may do.
fn charge(work: &mut usize, more: usize) -> Result<(), String> {
    *work += more;
    match *work > MOST_WORK {
        true => Err("it repeats too much".into()),
        false => Ok(()),
    }
}

/// Whether a node has no steps.
fn is_empty(node: &Node) -> bool {
    match node {
        Node::Empty => true,
        Node::Cat(nodes) => nodes.iter().all(is_empty),
        Node::Repeat { body, max, .. } => *max == Some(0) || (max.is_some() && is_empty(body)),
        _ => false,
    }
}

fn nullable(node: &Node) -> bool {
    match node {
        Node::Set(_) => false,
        Node::Cat(nodes) => nodes.iter().all(nullable),
        Node::Alt(nodes) => nodes.iter().any(nullable),
        Node::Repeat { body, min, .. } => *min == 0 || nullable(body),
        Node::Empty | Node::Look { .. } | Node::Anchor(_) => true,
    }
}

/// How many characters a node can read; `None` without a bound.
fn reach(node: &Node) -> Option<u64> {
    match node {
        Node::Set(_) => Some(1),
        Node::Cat(nodes) => nodes.iter().map(reach).sum(),
        Node::Alt(nodes) => nodes.iter().map(reach).try_fold(0, |most, reach| Some(most.max(reach?))),
        Node::Repeat { body, max, .. } => Some(reach(body)?.checked_mul((*max)?.into())?),
        Node::Look { body, .. } => reach(body),
        Node::Empty | Node::Anchor(_) => Some(1),
    }
}
