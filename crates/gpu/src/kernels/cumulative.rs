//! Running sums, products and maxima along any axis.
//!
//! A cluster scans a row tile by tile and carries the total on; columns are scanned in segments side by side. Where
//! there are few and long lines, the totals of their parts are folded first, and every part begins with those before.

use olivine_ir::op::{Cumulative, CumulativeKind, ReduceKind};
use olivine_kernel::{Access, Buf, Val};

use super::reduce::{self, Block, Fold, Folded, Kind, Split, States};
use super::rows::{Clusters, GROUP, stored};
use crate::lower::launch::{Launch, bytes};
use crate::lower::site::{Operand, Site, Target, linear_group};

/// Lowers a running accumulation.
pub(crate) fn cumulative(op: &Cumulative, site: &mut Site<'_>) -> Result<(), String> {
    let (x, y) = (site.operands[0].clone(), site.targets[0].clone());
    let dtype = x.ty.dtype;
    reduce::admit(dtype, site)?;
    if x.ty.shape.numel() == 0 {
        return Ok(());
    }
    let dims = x.dims();
    let n = dims.get(op.axis).copied().ok_or_else(|| format!("there is no axis {}", op.axis))?;
    let inner: usize = dims[op.axis + 1..].iter().product();
    let lines = x.ty.shape.numel() / n;
    let kind = match op.kind {
        CumulativeKind::Sum => ReduceKind::Sum,
        CumulativeKind::Prod => ReduceKind::Prod,
        CumulativeKind::Max => ReduceKind::Max,
    };
    let fold = Kind { kind, dtype };
    let folded = Folded::packed(&[lines / inner, n, inner], &[1]);
    let split = folded.split(super::rows::vector(dtype), site.group_size(GROUP));
    let totals = match split.parts {
        1 => None,
        _ => Some(reduce::parts(&fold, &x, &folded, split, site)?),
    };
    let scan = Scan { op, fold, x, y, lines, n, inner, split, totals };
    if inner == 1 { scan.rows(site) } else { scan.columns(site) }
}

struct Scan<'a> {
    op: &'a Cumulative,
    fold: Kind,
    x: Operand,
    y: Target,
    lines: usize,
    n: usize,
    inner: usize,
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

    fn cost(&self) -> (u64, u64) {
        ((self.lines * self.n) as u64, bytes(&self.x.ty) + bytes(&self.y.ty))
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
        const HELD: usize = 4;
        let group = site.group_size(GROUP);
        let width = match self.totals {
            Some(_) => group,
            None => self.n.div_ceil(HELD).next_power_of_two().min(group as usize) as u32,
        };
        let vector = super::rows::vector(self.x.ty.dtype);
        let lanes = if self.n.is_multiple_of(HELD) { vector } else { 1 };
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
                let row = work / parts;
                let part = work - row * parts;
                let (first, end) = self.before(part, parts);
                let own = k.var(identity);
                let live = row.lt(rows);
                k.for_(first + lane, live.select(end, first), k.u32(width), |p| {
                    own.set(self.join(own.get(), totals.load(row * parts + p)));
                });
                (row, part, k.var(clusters.join_one(own.get(), join)))
            }
        };
        let piece = self.piece(&l, part);
        let live = row.lt(rows);
        let base = row.min(rows - 1) * l.size("length", self.n);
        let tile = width * HELD as u32;
        let rounds = (piece.len() + (tile - 1)) / tile;
        k.for_(k.u32(0), rounds, k.u32(1), |round| {
            let first = round * tile + lane * HELD;
            let runs: Vec<Val<'_>> = (0..HELD).step_by(lanes).map(|i| first + i).collect();
            let mut held = Vec::with_capacity(HELD);
            for at in &runs {
                // Loads past the end repeat the last run, so that none waits for a branch.
                let inside = at.lt(piece.len());
                let at = inside.select(*at, k.u32(0));
                let mut values = source.load_vec(base + piece.run(at, lanes as u32), lanes as u8);
                if piece.reverse {
                    values.reverse();
                }
                held.extend(values.into_iter().map(|v| inside.select(v, identity)));
            }
            let mut sums = held.clone();
            for i in 1..HELD {
                sums[i] = self.join(sums[i - 1], sums[i]);
            }
            let (before, all) = clusters.scan(sums[HELD - 1], identity, join);
            let begin = self.join(carry.get(), before);
            carry.set(self.join(carry.get(), all));
            let result = |i: usize| match (self.op.exclusive, i) {
                (true, 0) => begin,
                (true, _) => self.join(begin, sums[i - 1]),
                (false, _) => self.join(begin, sums[i]),
            };
            for (run, at) in runs.iter().enumerate() {
                k.if_(live & at.lt(piece.len()), || {
                    let mut values: Vec<Val<'_>> = (0..lanes).map(|i| result(run * lanes + i)).collect();
                    if piece.reverse {
                        values.reverse();
                    }
                    sink.store_vec(base + piece.run(*at, lanes as u32), &values);
                });
            }
        });
        let groups = (self.lines * self.split.parts).div_ceil((group / width) as usize);
        let bound = l.done();
        site.dispatch(k, bound, groups as u64, self.cost())
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
        let (block, part) = match self.split.parts {
            1 => (work, k.u32(0)),
            _ => {
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
        site.dispatch(k, bound, (blocks * self.split.parts) as u64, self.cost())
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
        if self.scan.n >= AHEAD as usize {
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
