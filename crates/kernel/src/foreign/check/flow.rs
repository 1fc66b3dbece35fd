//! Blocks of a function: where they branch to, that control flow is structured, and that values are defined before use.

use std::collections::{HashMap, HashSet};

use rspirv::dr::{Function, Instruction, Operand};
use rspirv::spirv::Op;

use super::{Problem, id, label};

/// Constructs may nest this deep; the walk is recursive.
const MAX_NESTING: usize = 96;

/// The control flow of a function, by the positions of its blocks.
pub(super) struct Flow {
    labels: Vec<u32>,
    predecessors: Vec<Vec<usize>>,
    /// The nearest dominator of every block that can be reached; the first block's is itself.
    dominator: Vec<Option<usize>>,
}

/// How a block merges and where it goes.
struct Exit {
    merge: Option<Merge>,
    targets: Vec<usize>,
    is_switch: bool,
}

#[derive(Clone, Copy)]
enum Merge {
    Selection(usize),
    Loop(usize, usize),
}

/// Where branches inside a construct may leave to.
#[derive(Clone, Default)]
struct Outside {
    /// The merge block of the selection around.
    merge: Option<usize>,
    /// Merge blocks of the loop and of the switch around.
    breaks: Vec<usize>,
    /// Where the loop around begins again, within its continue construct.
    back: Option<usize>,
    /// The continue target of the loop around, or its header from within the continue construct.
    next: Option<usize>,
}

impl Outside {
    fn has(&self, block: usize) -> bool {
        self.merge == Some(block) || self.next == Some(block) || self.breaks.contains(&block)
    }
}

impl Flow {
    pub(super) fn new(function: &Function) -> Result<Self, Problem> {
        let labels = function.blocks.iter().map(label).collect::<Result<Vec<u32>, _>>()?;
        let index: HashMap<u32, usize> = labels.iter().enumerate().map(|(i, l)| (*l, i)).collect();
        let exits = function
            .blocks
            .iter()
            .map(|block| exit(&block.instructions, &index))
            .collect::<Result<Vec<Exit>, Problem>>()?;
        let mut predecessors = vec![Vec::new(); labels.len()];
        for (i, exit) in exits.iter().enumerate() {
            let distinct: HashSet<usize> = exit.targets.iter().copied().collect();
            for target in distinct {
                if target == 0 {
                    return Err("a branch to the first block".into());
                }
                predecessors[target].push(i);
            }
        }
        let dominator = dominators(&exits, &predecessors);
        for (block, dominator) in dominator.iter().enumerate() {
            if block > 0 && dominator.is_some_and(|d| d >= block) {
                return Err(format!("block %{} stands before what leads to it", labels[block]));
            }
        }
        back_edges(&exits, &labels, &dominator)?;
        for (block, dominator) in function.blocks.iter().zip(&dominator) {
            if dominator.is_none() && block.instructions.len() > 1 {
                return Err("a block that nothing leads to does something".into());
            }
        }
        let mut walk = Walk { exits: &exits, labels: &labels, seen: HashSet::new(), merged: HashSet::new() };
        walk.from(0, &Outside::default(), 0)?;
        for (block, dominator) in dominator.iter().enumerate() {
            if dominator.is_some() && !walk.seen.contains(&block) {
                return Err(format!("block %{} is outside of structured control flow", labels[block]));
            }
        }
        if walk.seen.len() != labels.len() {
            return Err("a block that nothing leads to".into());
        }
        Ok(Flow { labels, predecessors, dominator })
    }

    /// The labels of the blocks that branch to one, sorted.
    pub(super) fn predecessors(&self, block: u32) -> Vec<u32> {
        let at = self.labels.iter().position(|label| *label == block);
        let before = at.map(|at| self.predecessors[at].as_slice()).unwrap_or_default();
        let mut labels: Vec<u32> = before.iter().map(|i| self.labels[*i]).collect();
        labels.sort_unstable();
        labels
    }

    /// Whether all ways to `b` go through `a`.
    fn dominates(&self, a: usize, b: usize) -> bool {
        let mut at = b;
        while at > a {
            match self.dominator[at] {
                Some(up) if up < at => at = up,
                _ => return false,
            }
        }
        at == a
    }

    /// Checks that what instructions of blocks define is defined on every way to its uses.
    pub(super) fn dominated(&self, function: &Function) -> Result<(), Problem> {
        let mut defined: HashMap<u32, (usize, usize)> = HashMap::new();
        for (b, block) in function.blocks.iter().enumerate() {
            for (i, instruction) in block.instructions.iter().enumerate() {
                instruction.result_id.into_iter().for_each(|id| {
                    defined.insert(id, (b, i));
                });
            }
        }
        let early = |used: u32| Err(format!("%{used} is used where it may not be defined"));
        for (b, block) in function.blocks.iter().enumerate() {
            if self.dominator[b].is_none() {
                continue;
            }
            for (i, instruction) in block.instructions.iter().enumerate() {
                if instruction.class.opcode == Op::Phi {
                    for [value, parent] in instruction.operands.as_chunks::<2>().0 {
                        let (Operand::IdRef(value), Operand::IdRef(parent)) = (value, parent) else {
                            continue;
                        };
                        let parent = self.labels.iter().position(|label| label == parent);
                        if let (Some((at, _)), Some(parent)) = (defined.get(value), parent)
                            && self.dominator[parent].is_some()
                            && !self.dominates(*at, parent)
                        {
                            return early(*value);
                        }
                    }
                    continue;
                }
                for operand in &instruction.operands {
                    let (Operand::IdRef(used) | Operand::IdScope(used) | Operand::IdMemorySemantics(used)) =
                        operand
                    else {
                        continue;
                    };
                    match defined.get(used) {
                        Some((at, before)) if *at == b && *before >= i => return early(*used),
                        Some((at, _)) if *at != b && !self.dominates(*at, b) => return early(*used),
                        _ => {}
                    }
                }
            }
        }
        Ok(())
    }
}

/// Reads how a block ends.
fn exit(instructions: &[Instruction], index: &HashMap<u32, usize>) -> Result<Exit, Problem> {
    let Some((last, before)) = instructions.split_last() else { return Err("a block without an end".into()) };
    let block = |i: &Instruction, at: usize| {
        let label = id(i, at)?;
        index.get(&label).copied().ok_or_else(|| format!("%{label} is no block of the function"))
    };
    // Hints to unroll or flatten, one or the other.
    let hinted = |i: &Instruction, at: usize| match i.operands.get(at..) {
        Some([Operand::SelectionControl(hint)]) => hint.bits() < 3,
        Some([Operand::LoopControl(hint)]) => hint.bits() < 3,
        _ => false,
    };
    let merge = match before.last() {
        Some(i) if i.class.opcode == Op::SelectionMerge && hinted(i, 1) => {
            Some(Merge::Selection(block(i, 0)?))
        }
        Some(i) if i.class.opcode == Op::LoopMerge && hinted(i, 2) => {
            Some(Merge::Loop(block(i, 0)?, block(i, 1)?))
        }
        Some(i) if matches!(i.class.opcode, Op::SelectionMerge | Op::LoopMerge) => {
            return Err("a merge with hints that are not known".into());
        }
        _ => None,
    };
    let mut is_switch = false;
    let targets = match last.class.opcode {
        Op::Branch => vec![block(last, 0)?],
        Op::BranchConditional => vec![block(last, 1)?, block(last, 2)?],
        Op::Switch => {
            is_switch = true;
            let mut targets = vec![block(last, 1)?];
            let mut literals = HashSet::new();
            for pair in last.operands.get(2..).unwrap_or_default().chunks(2) {
                let [Operand::LiteralBit32(literal), Operand::IdRef(label)] = pair else {
                    return Err("a switch that is not of numbers and blocks".into());
                };
                if !literals.insert(*literal) {
                    return Err("a switch with one number twice".into());
                }
                targets.push(*index.get(label).ok_or("a case that is no block of the function")?);
            }
            targets
        }
        _ => Vec::new(),
    };
    let fits = match merge {
        Some(Merge::Selection(_)) => matches!(last.class.opcode, Op::BranchConditional | Op::Switch),
        Some(Merge::Loop(merge, next)) => {
            merge != next && matches!(last.class.opcode, Op::Branch | Op::BranchConditional)
        }
        None => true,
    };
    if fits { Ok(Exit { merge, targets, is_switch }) } else { Err("a merge before another end".into()) }
}

/// A walk through constructs, each block once.
struct Walk<'a> {
    exits: &'a [Exit],
    labels: &'a [u32],
    seen: HashSet<usize>,
    /// Blocks that a construct merges at.
    merged: HashSet<usize>,
}

impl Walk<'_> {
    /// Walks from a block until control leaves to the outside.
    fn from(&mut self, start: usize, outside: &Outside, depth: usize) -> Result<(), Problem> {
        if depth > MAX_NESTING {
            return Err("constructs nest too deep".into());
        }
        let mut next = Some(start);
        while let Some(block) = next {
            if !self.seen.insert(block) {
                return Err(format!("block %{} is entered from two constructs", self.labels[block]));
            }
            let exit = &self.exits[block];
            if let Some(header) = outside.back {
                // All ways through a continue construct lead to the branch back.
                let leaves = exit.targets.is_empty() || exit.targets.iter().any(|t| self.leaves(*t, outside));
                if matches!(exit.merge, Some(Merge::Loop(..))) || (leaves && !exit.targets.contains(&header))
                {
                    return Err(format!("block %{} leaves a continue construct", self.labels[block]));
                }
            }
            next = match exit.merge {
                Some(Merge::Loop(merge, target)) => {
                    self.merge_at(merge)?;
                    self.merge_at(target)?;
                    self.of_loop(block, merge, target, depth)?;
                    Some(merge)
                }
                Some(Merge::Selection(merge)) => {
                    self.merge_at(merge)?;
                    let mut inside = outside.clone();
                    if exit.is_switch {
                        inside.merge = None;
                        inside.breaks.push(merge);
                    } else {
                        inside.merge = Some(merge);
                    }
                    let mut entered = HashSet::new();
                    for target in exit.targets.iter().copied() {
                        let leaves = outside.has(target) || target == merge;
                        if entered.insert(target) && !leaves {
                            self.from(target, &inside, depth + 1)?;
                        }
                    }
                    Some(merge)
                }
                None => {
                    let distinct: HashSet<usize> = exit.targets.iter().copied().collect();
                    let mut on = distinct.into_iter().filter(|target| !outside.has(*target));
                    let (first, second) = (on.next(), on.next());
                    if second.is_some() {
                        return Err(format!("block %{} branches without a merge", self.labels[block]));
                    }
                    first
                }
            };
        }
        Ok(())
    }

    fn of_loop(&mut self, header: usize, merge: usize, target: usize, depth: usize) -> Result<(), Problem> {
        let inside = |next| Outside { breaks: vec![merge], next: Some(next), ..Outside::default() };
        let (body, mut back) = (inside(target), inside(header));
        // A loop whose body is its header continues at itself.
        let single = target == header;
        let mut entered = HashSet::new();
        for start in self.exits[header].targets.iter().copied() {
            let leaves = if single { back.has(start) } else { body.has(start) };
            if entered.insert(start) && !leaves {
                self.from(start, if single { &back } else { &body }, depth + 1)?;
            }
        }
        if entered.len() > 1 && entered.iter().filter(|start| !body.has(**start)).count() > 1 {
            return Err(format!("loop %{} begins with two ways", self.labels[header]));
        }
        if !single {
            back.back = Some(header);
            self.from(target, &back, depth + 1)?;
        }
        Ok(())
    }

    /// Whether a block is the merge block of a loop around.
    fn leaves(&self, block: usize, outside: &Outside) -> bool {
        let is_loop = |e: &Exit| matches!(e.merge, Some(Merge::Loop(merge, _)) if merge == block);
        outside.breaks.contains(&block) && self.exits.iter().any(is_loop)
    }

    /// Notes a merge block or continue target, each of which belongs to one construct.
    fn merge_at(&mut self, block: usize) -> Result<(), Problem> {
        if block == 0 || !self.merged.insert(block) {
            return Err(format!("two constructs merge at %{}", self.labels[block]));
        }
        Ok(())
    }
}

/// Branches go to blocks further down, or once from inside a loop to its header.
fn back_edges(exits: &[Exit], labels: &[u32], dominator: &[Option<usize>]) -> Result<(), Problem> {
    let mut returned = HashSet::new();
    for (from, exit) in exits.iter().enumerate() {
        let distinct: HashSet<usize> = exit.targets.iter().copied().collect();
        for to in distinct.into_iter().filter(|to| *to <= from) {
            let mut up = from;
            while up > to {
                match dominator[up] {
                    Some(next) if next < up => up = next,
                    // What nothing leads to is inside of what stands around it.
                    _ => up = to,
                }
            }
            let header = matches!(exits[to].merge, Some(Merge::Loop(..)));
            if !header || up != to || !returned.insert(to) {
                return Err(format!("a branch back to %{}, which is no loop of its own", labels[to]));
            }
        }
    }
    Ok(())
}

/// Nearest dominators, by repeated intersection along reverse postorder.
fn dominators(exits: &[Exit], predecessors: &[Vec<usize>]) -> Vec<Option<usize>> {
    let mut order = Vec::with_capacity(exits.len());
    let mut seen = vec![false; exits.len()];
    let mut stack = vec![(0, 0)];
    seen[0] = true;
    while let Some((block, next)) = stack.pop() {
        // Merge blocks and continue targets count as reached where control may come back from them.
        match exits[block].targets.get(next) {
            Some(target) => {
                stack.push((block, next + 1));
                if !std::mem::replace(&mut seen[*target], true) {
                    stack.push((*target, 0));
                }
            }
            None => order.push(block),
        }
    }
    order.reverse();
    let mut rank = vec![usize::MAX; exits.len()];
    order.iter().enumerate().for_each(|(i, block)| rank[*block] = i);
    let mut dominator: Vec<Option<usize>> = vec![None; exits.len()];
    dominator[0] = Some(0);
    let mut changed = true;
    while changed {
        changed = false;
        for block in order.iter().copied().skip(1) {
            let mut new: Option<usize> = None;
            for before in predecessors[block].iter().copied().filter(|b| dominator[*b].is_some()) {
                new = Some(match new {
                    None => before,
                    Some(other) => common(&dominator, &rank, before, other),
                });
            }
            if new.is_some() && dominator[block] != new {
                dominator[block] = new;
                changed = true;
            }
        }
    }
    dominator
}

fn common(dominator: &[Option<usize>], rank: &[usize], mut a: usize, mut b: usize) -> usize {
    while a != b {
        while rank[a] > rank[b] {
            a = dominator[a].unwrap_or(0);
        }
        while rank[b] > rank[a] {
            b = dominator[b].unwrap_or(0);
        }
    }
    a
}
