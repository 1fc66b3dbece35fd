//! Programs for the matcher.

use super::parse::{Anchor, Greed, Node};
use super::set::Class;

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
/// Characters that a lookahead may read.
const FARTHEST: u64 = 16;

pub(super) fn compile(node: &Node) -> Result<Program, String> {
    let mut program = Program { steps: Vec::new(), classes: Vec::new(), looks: Vec::new(), slots: 0 };
    program.add(node)?;
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

    fn class(&mut self, class: Class) -> usize {
        self.classes.push(class);
        self.classes.len() - 1
    }

    fn add(&mut self, node: &Node) -> Result<(), String> {
        match node {
            Node::Empty => (),
            Node::Set(set) => {
                let class = self.class(Class::new(set.clone()));
                self.push(Step::Class(class))?;
            }
            Node::Cat(nodes) => nodes.iter().try_for_each(|node| self.add(node))?,
            Node::Alt(nodes) => self.alternatives(nodes)?,
            Node::Repeat { body, min, max, greed } => self.repeat(body, *min, *max, *greed)?,
            Node::Look { body, negated } => {
                if reach(body).is_none_or(|reach| reach > FARTHEST) {
                    return Err(format!("a lookahead reads more than {FARTHEST} characters"));
                }
                self.looks.push(compile(body)?);
                self.push(Step::Look { program: self.looks.len() - 1, negated: *negated })?;
            }
            Node::Anchor(anchor) => {
                self.push(Step::Anchor(*anchor))?;
            }
        }
        Ok(())
    }

    fn alternatives(&mut self, nodes: &[Node]) -> Result<(), String> {
        let mut ends = Vec::new();
        let (last, others) = nodes.split_last().ok_or("an alternation is empty")?;
        for node in others {
            let split = self.split()?;
            self.add(node)?;
            ends.push(self.push(Step::Jump(0))?);
            self.set_split(split, split + 1, self.steps.len());
        }
        self.add(last)?;
        let after = self.steps.len();
        for end in ends {
            self.steps[end] = Step::Jump(after);
        }
        Ok(())
    }

    fn repeat(&mut self, body: &Node, min: u32, max: Option<u32>, greed: Greed) -> Result<(), String> {
        if let Node::Set(set) = body {
            let class = self.class(Class::new(set.clone()));
            let slot = self.slot();
            self.push(Step::Run { class, min, max: max.unwrap_or(u32::MAX), greed, slot })?;
            return Ok(());
        }
        if greed == Greed::Possessive {
            return Err("a possessive quantifier after a group is not supported".into());
        }
        for _ in 0..min {
            self.add(body)?;
        }
        let order = |first, second| if greed == Greed::Lazy { (second, first) } else { (first, second) };
        match max {
            None => {
                if nullable(body) {
                    return Err("what repeats without bound may be empty".into());
                }
                let split = self.split()?;
                self.add(body)?;
                self.push(Step::Jump(split))?;
                let (first, second) = order(split + 1, self.steps.len());
                self.set_split(split, first, second);
            }
            Some(max) => {
                let mut splits = Vec::new();
                for _ in min..max {
                    splits.push(self.split()?);
                    self.add(body)?;
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
