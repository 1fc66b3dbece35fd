//! Folds along memory: a cluster of invocations strides over each row.

use olivine_ir::Dim;
use olivine_kernel::{Builder, Val, Var};

use super::shape::Strip;
use super::{
    DeclaredInput, Fold, Folded, LoadedElements, ReduceInput, ReduceOutput, Split, cost, declare_count,
};
use crate::launch::Launch;
use crate::rows::{Clusters, GROUP, State, tree};
use crate::site::{Site, linear_group};
use crate::walk::Walker;

/// Emits a step along rows. Partial states are ordered by row and part.
pub(super) fn dispatch(
    fold: &dyn Fold,
    source: &ReduceInput,
    folded: &Folded,
    to: &ReduceOutput,
    split: Split,
    site: &mut Site<'_>,
) -> Result<(), String> {
    let (lanes, ragged) = folded.row_lanes(source.access().lanes);
    let mut tile = Strip::new(folded.results(), folded.count(), lanes, site.group_size(GROUP));
    // Several rows' states at once are for shuffles.
    if site.caps.target.subgroup.is_none_or(|s| s < tile.width) || !split.is_whole {
        tile.rows = 1;
    }
    let k = site.builder(&format!("{}_rows", fold.name()), tile.group);
    let l = Launch::new(&k);
    let from = source.bind(&l);
    let sink = to.bind(&l);
    let rows = l.size("rows", folded.results());
    let n = l.size("n", folded.count());
    let count = declare_count(&l, folded);
    let free = folded.free.declare(&l, &[folded.offset, Dim::ZERO]);
    let reduced = folded.reduced.declare(&l, &[0]);
    let parts = (!split.is_whole).then(|| (l.size("parts", split.parts), l.size("chunk", split.chunk)));

    let me = k.local_index();
    let (cluster, lane) = match tile.clusters() {
        1 => (k.u32(0), me),
        _ => (me / tile.width, me % tile.width),
    };
    let first = linear_group(&k) * (tile.clusters() * tile.rows) + cluster;
    let works: Vec<Work<'_>> = (0..tile.rows)
        .map(|i| {
            let number = first + i * tile.clusters();
            let (row, start, end) = match parts {
                None => (number, k.u32(0), n),
                Some((parts, chunk)) => {
                    let row = number / parts;
                    let start = (number - row * parts) * chunk;
                    (row, start, start + chunk.min(n - start))
                }
            };
            // Clusters past the last row fold that once more, and take part in every exchange.
            let places = free.at(row.min(rows - 1u32));
            let index = if parts.is_some() { number } else { places[1] };
            Work { live: row.lt(rows), base: places[0], start, end, index }
        })
        .collect();
    let reader = Reader { k: &k, fold, from: &from, walker: &reduced, tile: &tile, ragged };
    let one_round = split.is_whole && !ragged && folded.count() <= tile.step();
    let states: Vec<State<'_>> = match (folded.count() == 0, one_round) {
        (true, _) => works.iter().map(|_| fold.identity(&k)).collect(),
        (_, true) => reader.at_once(&works, lane),
        (_, false) => works.iter().map(|work| reader.fold(work, lane)).collect(),
    };
    let each = states.first().map_or(1, Vec::len);
    let joined = Clusters::once(&k, tile.width).join(states.concat(), |a, b| {
        a.chunks(each).zip(b.chunks(each)).flat_map(|(a, b)| fold.join(a, b)).collect()
    });
    for (work, state) in works.iter().zip(joined.chunks(each)) {
        k.if_(work.live & lane.eq(0), || sink.store(fold, work.index, state, count));
    }
    let groups = (folded.results() * split.parts).div_ceil(tile.clusters() * tile.rows);
    let bound = l.done();
    site.dispatch(k, bound, groups, cost(source, folded, to, split))
}

/// A row, or a part of one, that a cluster folds.
struct Work<'k> {
    live: Val<'k>,
    base: Val<'k>,
    start: Val<'k>,
    end: Val<'k>,
    /// Where its state goes.
    index: Val<'k>,
}

/// How an invocation reads its elements of a row.
struct Reader<'a, 'k> {
    k: &'k Builder,
    fold: &'a dyn Fold,
    from: &'a DeclaredInput<'k>,
    walker: &'a Walker<'k>,
    tile: &'a Strip,
    /// Whether a row's last elements fill no vector.
    ragged: bool,
}

impl<'k> Reader<'_, 'k> {
    /// Positions of a round, from an invocation's first on.
    fn round(&self, first: Val<'k>) -> Vec<Val<'k>> {
        let stride = self.tile.width * self.tile.lanes as u32;
        (0..self.tile.unroll as u32).map(|u| first + u * stride).collect()
    }

    fn load(&self, base: Val<'k>, at: Val<'k>, lanes: usize) -> LoadedElements<'k> {
        self.from.load(base + self.walker.at(at)[0], lanes)
    }

    /// The states of rows that are not longer than a round, all of them loaded before any is folded.
    fn at_once(&self, works: &[Work<'k>], lane: Val<'k>) -> Vec<State<'k>> {
        let loaded: Vec<Vec<Masked<'k>>> =
            works.iter().map(|w| self.masked(w, lane * self.tile.lanes as u32)).collect();
        loaded.into_iter().map(|of_row| self.join_masked(of_row)).collect()
    }

    /// Loads of a round that may reach past the end: they read the row's first vector instead.
    fn masked(&self, work: &Work<'k>, first: Val<'k>) -> Vec<Masked<'k>> {
        let load = |at: Val<'k>| {
            let inside = at.lt(work.end);
            let here = inside.select(at, work.start);
            Masked { at, inside, loaded: self.load(work.base, here, self.tile.lanes) }
        };
        self.round(first).into_iter().map(load).collect()
    }

    fn join_masked(&self, round: Vec<Masked<'k>>) -> State<'k> {
        let identity = self.fold.identity(self.k);
        let states = round.into_iter().map(|Masked { at, inside, loaded }| {
            let state = self.lifted(&[at], vec![loaded]);
            state.iter().zip(&identity).map(|(s, none)| inside.select(*s, *none)).collect()
        });
        tree(states.collect(), |a, b| self.fold.join(a, b))
    }

    /// The state of what several loads gave; there is at least one.
    fn lifted(&self, positions: &[Val<'k>], loaded: Vec<LoadedElements<'k>>) -> State<'k> {
        let mut elements = Vec::new();
        let mut states: Vec<State<'k>> = Vec::new();
        for (at, loaded) in positions.iter().zip(loaded) {
            match loaded {
                LoadedElements::Elements(xs) => {
                    elements.extend(xs.into_iter().enumerate().map(|(i, x)| (x, *at + i)));
                }
                LoadedElements::State(state) => states.push(state),
            }
        }
        if !elements.is_empty() {
            states.push(self.fold.batch(&elements));
        }
        tree(states, |a, b| self.fold.join(a, b))
    }

    /// The state of this invocation's elements of a row of any length.
    fn fold(&self, work: &Work<'k>, lane: Val<'k>) -> State<'k> {
        let (k, tile) = (self.k, self.tile);
        let acc: Vec<Var<'k>> = self.fold.identity(k).into_iter().map(|v| k.var(v)).collect();
        let add = |state: State<'k>| {
            let before: State<'k> = acc.iter().map(|v| v.get()).collect();
            for (var, value) in acc.iter().zip(self.fold.join(&before, &state)) {
                var.set(value);
            }
        };
        let (width, lanes, step) = (tile.width, tile.lanes as u32, tile.step() as u32);
        let first = work.start + lane * lanes;
        let rounds = (work.end - work.start) / step;
        k.for_(k.u32(0), rounds, k.u32(1), |round| {
            let positions = self.round(first + round * step);
            let loaded = positions.iter().map(|at| self.load(work.base, *at, tile.lanes)).collect();
            add(self.lifted(&positions, loaded));
        });
        let rest = first + rounds * step;
        if !self.ragged {
            k.if_(rest.lt(work.end), || add(self.join_masked(self.masked(work, rest))));
            return acc.iter().map(|v| v.get()).collect();
        }
        let vectors_end = work.end - work.end % lanes;
        k.for_(rest, vectors_end, k.u32(width * lanes), |at| {
            add(self.lifted(&[at], vec![self.load(work.base, at, tile.lanes)]));
        });
        let single = |at: Val<'k>| {
            k.if_(at.lt(work.end), || add(self.lifted(&[at], vec![self.load(work.base, at, 1)])));
        };
        let at = vectors_end + lane;
        single(at);
        // A cluster may have fewer invocations than a vector has lanes.
        (width..lanes).step_by(width as usize).for_each(|more| single(at + more));
        acc.iter().map(|v| v.get()).collect()
    }
}

/// A load that counts only where its position is inside the row.
struct Masked<'k> {
    at: Val<'k>,
    inside: Val<'k>,
    loaded: LoadedElements<'k>,
}
