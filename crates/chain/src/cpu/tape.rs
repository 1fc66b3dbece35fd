//! Straight-line programs over blocks of numbers.

use std::collections::{BTreeMap, HashMap};

use super::block::{self, BLOCK, Block};
use super::real::Real;
use crate::data::Layout;
use crate::expr::{Axes, Axis, Comparison, DataKind, Function, Id, Node, Operator, Reduction, Vector};
use crate::plan::{Plan, is_coord_sum};

/// Where a block is loaded from.
#[derive(Clone, Copy, Debug)]
pub(super) enum Source {
    Position,
    Coord,
    /// Numbers from an element of the data on, by observation or by coordinate.
    Numbers(usize),
    /// The position or numbers at an element of the data, by an index's element.
    Gather(Option<usize>, usize),
    /// A row of a matrix.
    Matrix(usize),
    ObsStore(usize),
    CoordStore(usize),
    CoordSum(usize),
}

#[derive(Clone, Debug)]
enum Op {
    Load(Source),
    Unary(Function, usize),
    Binary(Operator, usize, usize),
    Compare(Comparison, usize, usize),
    Select(usize, usize, usize),
    /// A reduction over the coordinates for each observation.
    Inner(Reduction, Box<Body>),
}

#[derive(Clone, Debug)]
struct Instr {
    op: Op,
    out: usize,
}

/// A program over one axis.
#[derive(Clone, Debug)]
pub(super) struct Tape {
    /// Its registers, among those of all tapes.
    file: usize,
    registers: usize,
    /// Registers that hold a scalar, set before the tape runs.
    splats: Vec<(usize, Id)>,
    instrs: Vec<Instr>,
    outputs: HashMap<Id, usize>,
}

/// A program over the coordinates for one observation: the terms of a reduction.
#[derive(Clone, Debug)]
pub(super) struct Body {
    tape: Tape,
    root: usize,
    /// Registers that hold a value of the observation, and which.
    outer: Vec<(Id, usize)>,
    /// The same values' registers in the tape over the observations.
    from: Vec<usize>,
}

/// What tapes read beside their registers.
pub(super) struct Env<'a, T> {
    pub(super) numbers: &'a [T],
    pub(super) indices: &'a [u32],
    pub(super) q: &'a [T],
    pub(super) coord_stores: &'a [Vec<T>],
    pub(super) coord_sums: &'a [Vec<T>],
    pub(super) d: usize,
}

/// What is being computed: a block of an axis, and for bodies the observation.
#[derive(Clone, Copy)]
pub(super) struct Span {
    pub(super) start: usize,
    pub(super) len: usize,
    pub(super) row: usize,
    /// The first observation of the stores at hand.
    pub(super) base: usize,
}

/// Registers of all tapes.
pub(super) type Files<T> = Vec<Vec<Block<T>>>;

/// Numbers registers and files while tapes are written.
pub(super) struct Writer<'p> {
    pub(super) plan: &'p Plan,
    pub(super) layout: &'p Layout,
    /// Registers of each tape so far.
    pub(super) files: Vec<usize>,
}

impl Writer<'_> {
    /// A tape that computes `nodes`, and makes `outputs` readable.
    pub(super) fn tape(&mut self, nodes: &[Id], outputs: &[Id]) -> Tape {
        let mut draft = Draft::default();
        for id in nodes {
            let op = match self.plan.graph.node(*id).clone() {
                Node::Reduce(how, Axis::Coord, x) => {
                    let mut body = self.body(x);
                    body.from = body.outer.iter().map(|(id, _)| self.operand(&mut draft, *id)).collect();
                    Op::Inner(how, Box::new(body))
                }
                node => self.elementwise(&mut draft, &node),
            };
            draft.define(*id, op);
        }
        let outputs: Vec<(Id, usize)> =
            outputs.iter().map(|id| (*id, self.operand(&mut draft, *id))).collect();
        self.finish(draft, outputs)
    }

    /// The terms of a reduction of values with both axes, over the coordinates.
    pub(super) fn body(&mut self, root: Id) -> Body {
        let mut draft = Draft { of_coords: true, ..Draft::default() };
        for id in self.plan.body(root) {
            let op = match self.plan.graph.node(id).clone() {
                Node::Data(i) => Op::Load(Source::Matrix(self.layout.offset(i as usize))),
                node => self.elementwise(&mut draft, &node),
            };
            draft.define(id, op);
        }
        let outer: Vec<(Id, usize)> = draft.outer.iter().map(|(id, reg)| (*id, *reg)).collect();
        let root = (root, draft.known[&root]);
        let pinned: Vec<(Id, usize)> = outer.iter().copied().chain([root]).collect();
        let tape = self.finish(draft, pinned);
        let outer = outer.iter().map(|(id, _)| (*id, tape.outputs[id])).collect();
        Body { root: tape.outputs[&root.0], tape, outer, from: Vec::new() }
    }

    fn elementwise(&mut self, draft: &mut Draft, node: &Node) -> Op {
        let mut reg = |id: &Id| self.operand(draft, *id);
        match node {
            Node::Unary(f, x) => Op::Unary(*f, reg(x)),
            Node::Binary(op, a, b) => Op::Binary(*op, reg(a), reg(b)),
            Node::Compare(op, a, b) => Op::Compare(*op, reg(a), reg(b)),
            Node::Select(c, a, b) => Op::Select(reg(c), reg(a), reg(b)),
            // Leaves are loaded where they are operands.
            _ => Op::Load(Source::Coord),
        }
    }

    fn operand(&mut self, draft: &mut Draft, id: Id) -> usize {
        if let Some(reg) = draft.known.get(&id) {
            return *reg;
        }
        let axes = self.plan.graph.axes(id);
        if axes == Axes::NONE {
            let reg = draft.fresh();
            draft.splats.push((reg, id));
            draft.known.insert(id, reg);
            return reg;
        }
        if axes == Axes::OBS && draft.of_coords {
            let reg = draft.fresh();
            draft.outer.insert(id, reg);
            draft.known.insert(id, reg);
            return reg;
        }
        let source = self.source(id);
        draft.define(id, Op::Load(source))
    }

    fn source(&self, id: Id) -> Source {
        let plan = self.plan;
        let position = |all: Vec<Id>| all.iter().position(|x| *x == id).unwrap_or(usize::MAX);
        if plan.is_stored(id) {
            return match plan.graph.axes(id) {
                Axes::OBS => Source::ObsStore(position(plan.stores(Axis::Obs))),
                _ => Source::CoordStore(position(plan.stores(Axis::Coord))),
            };
        }
        let offset = |i: &u32| self.layout.offset(*i as usize);
        match plan.graph.node(id) {
            Node::Obs => Source::Numbers(0),
            Node::Data(i) if plan.graph.data()[*i as usize].kind != DataKind::Index => {
                Source::Numbers(offset(i))
            }
            Node::Position => Source::Position,
            Node::Gather(Vector::Position, index) => Source::Gather(None, offset(index)),
            Node::Gather(Vector::Data(i), index) => Source::Gather(Some(offset(i)), offset(index)),
            _ if is_coord_sum(&plan.graph, id) => Source::CoordSum(position(plan.coord_sums())),
            _ => Source::Coord,
        }
    }

    /// Numbers registers anew so that those whose value is not needed any more are used again.
    fn finish(&mut self, draft: Draft, outputs: Vec<(Id, usize)>) -> Tape {
        let Draft { mut instrs, splats, count, .. } = draft;
        let mut last: Vec<usize> = vec![0; count];
        for (i, instr) in instrs.iter().enumerate() {
            reads(&instr.op).into_iter().for_each(|reg| last[reg] = i);
            last[instr.out] = last[instr.out].max(i);
        }
        let pinned = splats.iter().map(|(reg, _)| *reg).chain(outputs.iter().map(|(_, reg)| *reg));
        pinned.for_each(|reg| last[reg] = usize::MAX);
        let mut place: Vec<Option<usize>> = vec![None; count];
        let mut registers = 0;
        // Before the first instruction: scalars, and values of the observation.
        let mut written = vec![false; count];
        instrs.iter().for_each(|i| written[i.out] = true);
        for reg in (0..count).filter(|reg| !written[*reg]) {
            place[reg] = Some(registers);
            registers += 1;
        }
        let mut free: Vec<usize> = Vec::new();
        for (i, instr) in instrs.iter_mut().enumerate() {
            let read = reads(&instr.op);
            let out = free.pop().unwrap_or_else(|| {
                registers += 1;
                registers - 1
            });
            place[instr.out] = Some(out);
            let mut ended: Vec<usize> = read.iter().copied().filter(|reg| last[*reg] == i).collect();
            ended.sort_unstable();
            ended.dedup();
            if last[instr.out] == i {
                ended.push(instr.out);
            }
            rename(&mut instr.op, |reg| place[reg].unwrap_or(0));
            instr.out = out;
            free.extend(ended.iter().filter_map(|reg| place[*reg]));
        }
        let at = |reg: usize| place[reg].unwrap_or(0);
        self.files.push(registers);
        Tape {
            file: self.files.len() - 1,
            registers,
            splats: splats.iter().map(|(reg, id)| (at(*reg), *id)).collect(),
            outputs: outputs.iter().map(|(id, reg)| (*id, at(*reg))).collect(),
            instrs,
        }
    }
}

#[derive(Default)]
struct Draft {
    instrs: Vec<Instr>,
    known: HashMap<Id, usize>,
    splats: Vec<(usize, Id)>,
    /// Values of the observation that a body reads.
    outer: BTreeMap<Id, usize>,
    of_coords: bool,
    count: usize,
}

impl Draft {
    fn fresh(&mut self) -> usize {
        self.count += 1;
        self.count - 1
    }

    fn define(&mut self, id: Id, op: Op) -> usize {
        let out = self.fresh();
        self.instrs.push(Instr { op, out });
        self.known.insert(id, out);
        out
    }
}

fn reads(op: &Op) -> Vec<usize> {
    match op {
        Op::Load(_) => Vec::new(),
        Op::Unary(_, x) => vec![*x],
        Op::Binary(_, a, b) | Op::Compare(_, a, b) => vec![*a, *b],
        Op::Select(c, a, b) => vec![*c, *a, *b],
        Op::Inner(_, body) => body.from.clone(),
    }
}

fn rename(op: &mut Op, to: impl Fn(usize) -> usize) {
    let regs: Vec<&mut usize> = match op {
        Op::Load(_) => Vec::new(),
        Op::Unary(_, x) => vec![x],
        Op::Binary(_, a, b) | Op::Compare(_, a, b) => vec![a, b],
        Op::Select(c, a, b) => vec![c, a, b],
        Op::Inner(_, body) => body.from.iter_mut().collect(),
    };
    regs.into_iter().for_each(|reg| *reg = to(*reg));
}

impl Tape {
    /// The register of an output.
    pub(super) fn output(&self, id: Id) -> usize {
        self.outputs[&id]
    }

    pub(super) fn file(&self) -> usize {
        self.file
    }

    /// Sets the registers that hold scalars, of this tape and of those inside.
    pub(super) fn splat<T: Real>(&self, files: &mut Files<T>, scalars: &[T]) {
        for (reg, id) in &self.splats {
            files[self.file][*reg].fill(scalars[id.index()]);
        }
        for instr in &self.instrs {
            if let Op::Inner(_, body) = &instr.op {
                body.splat(files, scalars);
            }
        }
    }

    /// Runs over a block; numbers past its length are of no meaning.
    pub(super) fn run<T: Real>(&self, files: &mut Files<T>, env: &Env<'_, T>, stores: &[Vec<T>], span: Span) {
        let mut regs = std::mem::take(&mut files[self.file]);
        debug_assert_eq!(regs.len(), self.registers);
        for Instr { op, out } in &self.instrs {
            match op {
                Op::Load(source) => load(*source, &mut regs[*out], env, stores, span),
                Op::Unary(f, x) => with(&mut regs, *out, [*x, *x], |o, x, _| block::unary(*f, o, x)),
                Op::Binary(op, a, b) => {
                    with(&mut regs, *out, [*a, *b], |o, a, b| block::binary(*op, o, a, b));
                }
                Op::Compare(op, a, b) => {
                    with(&mut regs, *out, [*a, *b], |o, a, b| block::compare(*op, o, a, b));
                }
                Op::Select(c, a, b) => {
                    let condition = regs[*c];
                    with(&mut regs, *out, [*a, *b], |o, a, b| block::select(o, &condition, a, b));
                }
                Op::Inner(how, body) => {
                    let mut result = [T::default(); BLOCK];
                    for i in 0..span.len {
                        let mut total = if *how == Reduction::Sum { 0.0 } else { f64::NEG_INFINITY };
                        body.run(files, env, stores, &regs, i, span, |terms, _, len| match how {
                            Reduction::Sum => total += block::sum(terms, len),
                            Reduction::Max => total = block::max(total, terms, len),
                        });
                        result[i] = T::from_f64(total);
                    }
                    regs[*out] = result;
                }
            }
        }
        files[self.file] = regs;
    }
}

/// Calls an operation with its result's register, which is never one of those that it reads, and with these.
fn with<T>(
    regs: &mut [Block<T>],
    out: usize,
    [a, b]: [usize; 2],
    op: impl FnOnce(&mut Block<T>, &Block<T>, &Block<T>),
) {
    if a == b {
        if let Ok([out, x]) = regs.get_disjoint_mut([out, a]) {
            op(out, x, x);
        }
    } else if let Ok([out, a, b]) = regs.get_disjoint_mut([out, a, b]) {
        op(out, a, b);
    }
}

impl Body {
    /// The values of the observation that it reads.
    pub(super) fn outer(&self) -> impl Iterator<Item = Id> {
        self.outer.iter().map(|(id, _)| *id)
    }

    /// Says in which registers of another tape these values are.
    pub(super) fn read_from(&mut self, tape: &Tape) {
        self.from = self.outer.iter().map(|(id, _)| tape.output(*id)).collect();
    }

    pub(super) fn splat<T: Real>(&self, files: &mut Files<T>, scalars: &[T]) {
        self.tape.splat(files, scalars);
    }

    /// Computes the terms of the `i`-th observation of a block, and calls `take` with each block of them.
    pub(super) fn run<T: Real>(
        &self,
        files: &mut Files<T>,
        env: &Env<'_, T>,
        stores: &[Vec<T>],
        outer: &[Block<T>],
        i: usize,
        span: Span,
        mut take: impl FnMut(&Block<T>, usize, usize),
    ) {
        for ((_, to), from) in self.outer.iter().zip(&self.from) {
            files[self.tape.file][*to].fill(outer[*from][i]);
        }
        for start in (0..env.d).step_by(BLOCK) {
            let len = BLOCK.min(env.d - start);
            self.tape.run(files, env, stores, Span { start, len, row: span.start + i, base: span.base });
            take(&files[self.tape.file][self.root], start, len);
        }
    }
}

fn load<T: Real>(source: Source, out: &mut Block<T>, env: &Env<'_, T>, stores: &[Vec<T>], span: Span) {
    let Span { start, len, row, base } = span;
    let slice = match source {
        Source::Position => &env.q[start..start + len],
        Source::Numbers(at) => &env.numbers[at + start..at + start + len],
        Source::Matrix(at) => &env.numbers[at + row * env.d + start..][..len],
        Source::ObsStore(k) => &stores[k][start - base..][..len],
        Source::CoordStore(k) => &env.coord_stores[k][start..start + len],
        Source::CoordSum(k) => &env.coord_sums[k][start..start + len],
        Source::Gather(vector, index) => {
            for i in 0..len {
                let at = env.indices[index + start + i] as usize;
                out[i] = match vector {
                    None => env.q[at],
                    Some(vector) => env.numbers[vector + at],
                };
            }
            return;
        }
        Source::Coord => {
            (0..len).for_each(|i| out[i] = T::from_f64((start + i) as f64));
            return;
        }
    };
    out[..len].copy_from_slice(slice);
}
