//! Running sums, products and maxima along any axis.
//!
//! A cluster scans a row tile by tile and carries the total on; columns are scanned in segments side by side. Where
//! there are few and long lines, the totals of their parts are folded first, and every part begins with those before.

use olivine_ir::op::{Cumulative, CumulativeKind, ReduceKind};
use olivine_ir::{Dim, product};
use olivine_kernel::{Access, Buf, Val, Var};

use super::reduce::{self, Block, Fold, Folded, Kind, Split, States};
use super::rows::{BUSY, Clusters, GROUP, stored};
use crate::kernels;
use crate::launch::{Launch, bytes, number};
use crate::site::{Operand, Site, Target, linear_group};

kernels! { |op, site|
    Cumulative => cumulative(op, site),
}

/// Lowers a running accumulation.
pub(crate) fn cumulative(op: &Cumulative, site: &mut Site<'_>) -> Result<(), String> {
    let (x, y) = (site.operands[0].clone(), site.targets[0].clone());
    let dtype = x.ty.dtype;
    reduce::admit(dtype, site)?;
    let dims = x.sizes();
    if dims.numel() == 0 {
        return Ok(());
    }
    let n = dims.get(op.axis).copied().ok_or_else(|| format!("there is no axis {}", op.axis))?;
    let inner = product(&dims[op.axis + 1..]);
    let outer = product(&dims[..op.axis]);
    let lines = outer * inner;
    let kind = match op.kind {
        CumulativeKind::Sum => ReduceKind::Sum,
        CumulativeKind::Prod => ReduceKind::Prod,
        CumulativeKind::Max => ReduceKind::Max,
    };
    let fold = Kind { kind, dtype };
    let folded = Folded::packed(&[outer, n, inner], &[1]);
    // A part goes on where the one before ends, round by round: many short ones keep more loads under way.
    let busy = if inner == 1 { 4 * BUSY } else { BUSY };
    let split = folded.split_among(busy, super::rows::vector(dtype), site.group_size(GROUP));
    let totals = match split.is_whole {
        true => None,
        false => Some(reduce::parts(&fold, &x, &folded, split, site)?),
    };
    let scan = Scan { op, fold, x, y, lines, n, inner, split, totals };
    if inner == 1 { scan.rows(site) } else { scan.columns(site) }
}

struct Scan<'a> {
    op: &'a Cumulative,
    fold: Kind,
    x: Operand,
    y: Target,
    lines: Dim,
    n: Dim,
    inner: Dim,
    split: Split,
    /// What each part comes to, where lines are split: by line and part along rows, by part and line along columns.
    totals: Option<States>,
}

/// The part of a line that an invocation works on; positions count from where the scan begins.
struct Piece<'k> {
    start: Val<'k>,
    end: Val<'k>,
    reverse: bool,
}

impl<'k> Piece<'k> {
    fn len(&self) -> Val<'k> {
        self.end - self.start
    }

    /// Where a run of `lanes` elements that begins at a position of the scan begins in the line.
    fn run(&self, position: Val<'k>, lanes: u32) -> Val<'k> {
        if self.reverse { self.end - position - lanes } else { self.start + position }
    }
}

impl Scan<'_> {
    fn join<'k>(&self, a: Val<'k>, b: Val<'k>) -> Val<'k> {
        self.fold.join(&[a], &[b])[0]
    }

    fn cost(&self) -> (Dim, Dim) {
        (self.lines * self.n, bytes(&self.x.ty) + bytes(&self.y.ty))
    }

    /// Declares what is common: the line and the part of a unit of work, and the totals before it as a range of parts.
    fn piece<'k>(&self, l: &Launch<'k>, part: Val<'k>) -> Piece<'k> {
        let n = l.size("n", self.n);
        let reverse = self.op.reverse;
        if self.totals.is_none() {
            return Piece { start: l.k().u32(0), end: n, reverse };
        }
        let chunk = l.size("chunk", self.split.chunk);
        let start = n.min(part * chunk);
        Piece { start, end: start + chunk.min(n - start), reverse }
    }

    /// The parts that come before one in the order of the scan.
    fn before<'k>(&self, part: Val<'k>, parts: Val<'k>) -> (Val<'k>, Val<'k>) {
        if self.op.reverse { (part + 1, parts) } else { (part.builder().u32(0), part) }
    }

    fn rows(&self, site: &mut Site<'_>) -> Result<(), String> {
        let tile = Tile::new(self, site.group_size(GROUP));
        let (group, width) = (tile.group, tile.width);
        let k = site.builder(&format!("{}_rows", self.op.kind.name()), group);
        let l = Launch::new(&k);
        let (source, sink) = (l.read("x", &self.x), l.write("y", &self.y));
        let rows = l.size("rows", self.lines);
        let me = k.local_index();
        let (work, lane) = match group / width {
            1 => (linear_group(&k), me),
            per_group => (linear_group(&k) * per_group + me / width, me % width),
        };
        let identity = self.fold.identity(&k)[0];
        let clusters = Clusters::new(&k, width);
        let join = |a, b| self.join(a, b);
        let (row, part, carry) = match &self.totals {
            None => (work, k.u32(0), k.var(identity)),
            Some(totals) => {
                let totals = totals.bind(&l, Access::Read)[0];
                let parts = l.size("parts", self.split.parts);
                // Backwards: what was folded last may still be in the device's caches.
                let all = rows * parts;
                let live = work.lt(all);
                let work = live.select(all - 1u32 - work, work);
                let row = work / parts;
                let part = work - row * parts;
                let (first, end) = self.before(part, parts);
                let own = k.var(identity);
                k.for_(first + lane, live.select(end, first), k.u32(width), |p| {
                    own.set(self.join(own.get(), totals.load(row * parts + p)));
                });
                (row, part, k.var(clusters.join_one(own.get(), join)))
            }
        };
        let piece = self.piece(&l, part);
        let live = row.lt(rows);
        let base = row.min(rows - 1) * l.size("length", self.n);
        let rounds = (piece.len() + (tile.len() - 1)) / tile.len();
        // Parts of lines have many rounds: the next one's loads are under way while one is scanned.
        let ahead: Option<Vec<Vec<Var<'_>>>> = self.totals.as_ref().map(|_| {
            let first = tile.runs(source, base, &piece, &tile.begins(lane, k.u32(0)), identity);
            first.into_iter().map(|run| run.into_iter().map(|v| k.var(v)).collect()).collect()
        });
        k.for_(k.u32(0), rounds, k.u32(1), |round| {
            let begins = tile.begins(lane, round);
            let mut runs: Vec<Vec<Val<'_>>> = match &ahead {
                None => tile.runs(source, base, &piece, &begins, identity),
                Some(held) => {
                    let now = held.iter().map(|run| run.iter().map(|v| v.get()).collect()).collect();
                    let next = tile.begins(lane, round + 1);
                    let next = tile.runs(source, base, &piece, &next, identity);
                    for (held, next) in held.iter().zip(next) {
                        held.iter().zip(next).for_each(|(var, value)| var.set(value));
                    }
                    now
                }
            };
            for run in &mut runs {
                for i in 1..run.len() {
                    run[i] = self.join(run[i - 1], run[i]);
                }
            }
            let sums: Vec<Val<'_>> = runs.iter().map(|run| run[run.len() - 1]).collect();
            let (before, all) = clusters.scan_many(&sums, identity, join);
            for ((at, run), (before, all)) in begins.iter().zip(&runs).zip(before.into_iter().zip(all)) {
                let begin = self.join(carry.get(), before);
                carry.set(self.join(carry.get(), all));
                let inclusive = run.iter().map(|v| self.join(begin, *v));
                let results: Vec<Val<'_>> = match self.op.exclusive {
                    true => [begin].into_iter().chain(inclusive).take(run.len()).collect(),
                    false => inclusive.collect(),
                };
                tile.store(sink, base, &piece, *at, live, results);
            }
        });
        let groups = (self.lines * self.split.parts).div_ceil(group / width);
        let bound = l.done();
        site.dispatch(k, bound, groups, self.cost())
    }

    fn columns(&self, site: &mut Site<'_>) -> Result<(), String> {
        let longest = self.split.chunk.min(self.n);
        let tile = Block::new(self.lines, longest, 1, site.group_size(GROUP));
        let (across, down) = (tile.across, tile.down);
        let k = site.builder(&format!("{}_columns", self.op.kind.name()), tile.group());
        let l = Launch::new(&k);
        let (source, sink) = (l.read("x", &self.x), l.write("y", &self.y));
        let (columns, inner) = (l.size("columns", self.lines), l.size("inner", self.inner));
        let me = k.local_index();
        let (x, y) = (me % across, me / across);
        let work = linear_group(&k);
        let blocks = self.lines.div_ceil(tile.columns());
        let (block, part) = match self.split.is_whole {
            true => (work, k.u32(0)),
            false => {
                let blocks = l.size("blocks", blocks);
                (work % blocks, work / blocks)
            }
        };
        let column = block * across + x;
        let parts = l.size("parts", self.split.parts);
        let live = column.lt(columns) & part.lt(parts);
        let piece = self.piece(&l, part);
        let outer = column / inner;
        let base = outer * (inner * l.size("length", self.n)) + (column - outer * inner);
        // Columns past the last have nothing in them.
        let len = live.select(piece.len(), k.u32(0));
        let segment = (len + (down - 1)) / down;
        let first = len.min(y * segment);
        let end = first + segment.min(len - first);
        let line = Line { scan: self, source, base, inner, piece: &piece };

        let identity = self.fold.identity(&k)[0];
        let carry = k.var(identity);
        let memory = k.shared(stored(identity.scalar()), 1, tile.group());
        if let Some(totals) = &self.totals {
            let totals = totals.bind(&l, Access::Read)[0];
            let (from, to) = self.before(part, parts);
            let own = k.var(identity);
            k.for_(from + y, live.select(to, from), k.u32(down), |p| {
                own.set(self.join(own.get(), totals.load(p * columns + column)));
            });
            memory.store(me, own.get());
            k.barrier();
            k.for_(k.u32(0), k.u32(down), k.u32(1), |j| {
                carry.set(self.join(carry.get(), memory.load(j * across + x)));
            });
            k.barrier();
        }
        if down > 1 {
            let own = k.var(identity);
            line.each(first, end, |_, v| own.set(self.join(own.get(), v)));
            memory.store(me, own.get());
            k.barrier();
            k.for_(k.u32(0), y, k.u32(1), |j| {
                carry.set(self.join(carry.get(), memory.load(j * across + x)));
            });
        }
        line.each(first, end, |index, v| {
            let before = carry.get();
            let after = self.join(before, v);
            carry.set(after);
            sink.store(index, if self.op.exclusive { before } else { after });
        });
        let bound = l.done();
        site.dispatch(k, bound, blocks * self.split.parts, self.cost())
    }
}

/// Elements that an invocation has from one place.
const RUN: u32 = 4;

/// Runs of an invocation at a time at most.
const RUNS: u32 = 4;

/// How a row is given to a cluster: its invocations have runs side by side, and that several times over, so that one
/// exchange serves many elements.
struct Tile {
    group: u32,
    /// Invocations of a row.
    width: u32,
    /// Runs of an invocation.
    runs: u32,
    /// Elements of a load.
    lanes: u32,
}

impl Tile {
    fn new(scan: &Scan<'_>, group: u32) -> Self {
        let n = scan.n;
        let vector = super::rows::vector(scan.x.ty.dtype) as u32;
        let lanes = if n.is_multiple_of(RUN) { vector } else { 1 };
        // Doubles fill registers twice as fast.
        let most = if scan.x.ty.dtype.size() > 4 { RUNS / 2 } else { RUNS };
        let runs = n.div_ceil(RUN);
        // A power of two, at most as many.
        let each = [4, 2].into_iter().find(|each| *each <= most && runs >= 32 * *each).unwrap_or(1);
        let width = match scan.totals {
            Some(_) => group,
            None => number(runs.div_ceil(each).next_power_of_two().min(group)) as u32,
        };
        Tile { group, width, runs: each, lanes }
    }

    /// Elements of a round.
    fn len(&self) -> u32 {
        self.width * self.runs * RUN
    }

    /// Where the runs of an invocation begin in a round.
    fn begins<'k>(&self, lane: Val<'k>, round: Val<'k>) -> Vec<Val<'k>> {
        (0..self.runs).map(|i| round * self.len() + (lane + i * self.width) * RUN).collect()
    }

    /// The runs that begin there.
    fn runs<'k>(
        &self,
        source: Buf<'k>,
        base: Val<'k>,
        piece: &Piece<'k>,
        begins: &[Val<'k>],
        identity: Val<'k>,
    ) -> Vec<Vec<Val<'k>>> {
        begins.iter().map(|at| self.load(source, base, piece, *at, identity)).collect()
    }

    /// A run in the order of the scan; the identity stands for what is past the end.
    fn load<'k>(
        &self,
        source: Buf<'k>,
        base: Val<'k>,
        piece: &Piece<'k>,
        at: Val<'k>,
        identity: Val<'k>,
    ) -> Vec<Val<'k>> {
        let k = at.builder();
        let mut run = Vec::with_capacity(RUN as usize);
        for i in (0..RUN).step_by(self.lanes as usize) {
            // Loads past the end repeat the first, so that none waits for a branch.
            let inside = (at + i).lt(piece.len());
            let at = inside.select(at + i, k.u32(0));
            let mut values = source.load_vec(base + piece.run(at, self.lanes), self.lanes as u8);
            if piece.reverse {
                values.reverse();
            }
            run.extend(values.into_iter().map(|v| inside.select(v, identity)));
        }
        run
    }

    fn store<'k>(
        &self,
        sink: Buf<'k>,
        base: Val<'k>,
        piece: &Piece<'k>,
        at: Val<'k>,
        live: Val<'k>,
        mut results: Vec<Val<'k>>,
    ) {
        let k = at.builder();
        for (i, values) in (0..RUN).step_by(self.lanes as usize).zip(results.chunks_mut(self.lanes as usize))
        {
            if piece.reverse {
                values.reverse();
            }
            k.if_(live & (at + i).lt(piece.len()), || {
                sink.store_vec(base + piece.run(at + i, self.lanes), values);
            });
        }
    }
}

/// A column's elements.
struct Line<'a, 'k> {
    scan: &'a Scan<'a>,
    source: Buf<'k>,
    base: Val<'k>,
    inner: Val<'k>,
    piece: &'a Piece<'k>,
}

impl<'k> Line<'_, 'k> {
    /// Visits positions in order, several loaded at a time.
    fn each(&self, first: Val<'k>, end: Val<'k>, visit: impl Fn(Val<'k>, Val<'k>)) {
        const AHEAD: u32 = 4;
        let k = first.builder();
        let at = |position: Val<'k>| self.base + self.piece.run(position, 1) * self.inner;
        let mut rest = first;
        if self.scan.n >= AHEAD {
            let whole = (end - first) / AHEAD;
            k.for_(k.u32(0), whole, k.u32(1), |i| {
                let indices: Vec<Val<'k>> = (0..AHEAD).map(|u| at(first + i * AHEAD + u)).collect();
                let values: Vec<Val<'k>> = indices.iter().map(|index| self.source.load(*index)).collect();
                indices.into_iter().zip(values).for_each(|(index, v)| visit(index, v));
            });
            rest = first + whole * AHEAD;
        }
        k.for_(rest, end, k.u32(1), |position| {
            let index = at(position);
            visit(index, self.source.load(index));
        });
    }
}
