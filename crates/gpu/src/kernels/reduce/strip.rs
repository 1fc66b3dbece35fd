//! Folds along memory: a cluster of invocations strides over each row.

use olivine_kernel::{Val, Var};

use super::shape::Strip;
use super::{BoundSource, Fold, Folded, Loaded, Outlet, Source, Split, cost, declare_count};
use crate::kernels::rows::{Clusters, GROUP, State, tree};
use crate::lower::launch::Launch;
use crate::lower::site::{Site, linear_group};
use crate::lower::walk::Walker;

/// Emits a step along rows. Split states lie by row and part.
pub(super) fn dispatch(
    fold: &dyn Fold,
    source: &Source,
    folded: &Folded,
    to: &Outlet,
    split: Split,
    site: &mut Site<'_>,
) -> Result<(), String> {
    let (lanes, ragged) = folded.row_lanes(source.vector());
    let tile = Strip::new(folded.count(), lanes, site.group_size(GROUP));
    let k = site.builder(&format!("{}_rows", fold.name()), tile.group);
    let l = Launch::new(&k);
    let from = source.bind(&l);
    let sink = to.bind(&l);
    let rows = l.size("rows", folded.results());
    let n = l.size("n", folded.count());
    let count = declare_count(&l, folded);
    let kept = folded.kept.declare(&l, &[folded.offset, 0]);
    let reduced = folded.reduced.declare(&l, &[0]);

    let me = k.local_index();
    let (work, lane) = match tile.group / tile.width {
        1 => (linear_group(&k), me),
        rows => (linear_group(&k) * rows + me / tile.width, me % tile.width),
    };
    let (row, start, end) = if split.parts == 1 {
        (work, k.u32(0), n)
    } else {
        let (parts, chunk) = (l.size("parts", split.parts), l.size("chunk", split.chunk));
        let row = work / parts;
        let start = (work - row * parts) * chunk;
        (row, start, start + chunk.min(n - start))
    };
    // Clusters past the last row fold nothing, but take part in every exchange.
    let live = row.lt(rows);
    let end = live.select(end, start);
    let places = kept.at(row);
    let rows_of = Row { fold, from: &from, walker: &reduced, base: places[0] };
    let state = rows_of.fold(&tile, ragged, lane, start, end);
    let state = Clusters::new(&k, tile.width).join(state, |a, b| fold.join(a, b));
    k.if_(live & lane.eq(0), || {
        let index = if split.parts > 1 { work } else { places[1] };
        sink.store(fold, index, &state, count);
    });
    let groups = (folded.results() * split.parts).div_ceil((tile.group / tile.width) as usize);
    let bound = l.done();
    site.dispatch(k, bound, groups as u64, cost(source, folded, to, split))
}

/// A row of the source, seen by one invocation of its cluster.
struct Row<'a, 'k> {
    fold: &'a dyn Fold,
    from: &'a BoundSource<'k>,
    walker: &'a Walker<'k>,
    base: Val<'k>,
}

impl<'k> Row<'_, 'k> {
    /// The state of this invocation's elements between two positions.
    fn fold(&self, tile: &Strip, ragged: bool, lane: Val<'k>, start: Val<'k>, end: Val<'k>) -> State<'k> {
        let k = start.builder();
        let acc: Vec<Var<'k>> = self.fold.identity(k).into_iter().map(|v| k.var(v)).collect();
        let (width, lanes) = (tile.width, tile.lanes as u32);
        let stride = width * lanes;
        let first = start + lane * lanes;
        let mut rest = first;
        if tile.unroll > 1 {
            let step = tile.step() as u32;
            let blocks = (end - start) / step;
            k.for_(k.u32(0), blocks, k.u32(1), |block| {
                let at = first + block * step;
                let positions: Vec<Val<'k>> = (0..tile.unroll as u32).map(|u| at + u * stride).collect();
                self.add(&acc, &positions, tile.lanes);
            });
            rest = first + blocks * step;
        }
        let vectors_end = if ragged { end - end % lanes } else { end };
        k.for_(rest, vectors_end, k.u32(stride), |at| self.add(&acc, &[at], tile.lanes));
        if ragged {
            let at = vectors_end + lane;
            k.if_(at.lt(end), || self.add(&acc, &[at], 1));
            // A cluster may have fewer invocations than a vector has lanes.
            for more in (width..lanes).step_by(width as usize) {
                k.if_((at + more).lt(end), || self.add(&acc, &[at + more], 1));
            }
        }
        acc.iter().map(|v| v.get()).collect()
    }

    /// Adds the elements at some positions, all of them loaded first.
    fn add(&self, acc: &[Var<'k>], positions: &[Val<'k>], lanes: usize) {
        let loaded: Vec<Loaded<'k>> = positions
            .iter()
            .map(|at| {
                let index = self.base + self.walker.at(*at)[0];
                self.from.load(index, lanes)
            })
            .collect();
        let mut elements = Vec::new();
        let mut states: Vec<State<'k>> = Vec::new();
        for (at, loaded) in positions.iter().zip(loaded) {
            match loaded {
                Loaded::Elements(xs) => {
                    elements.extend(xs.into_iter().enumerate().map(|(i, x)| (x, *at + i)));
                }
                Loaded::State(state) => states.push(state),
            }
        }
        if !elements.is_empty() {
            states.push(self.fold.batch(&elements));
        }
        let all = tree(states, |a, b| self.fold.join(a, b));
        let before: State<'k> = acc.iter().map(|v| v.get()).collect();
        for (var, value) in acc.iter().zip(self.fold.join(&before, &all)) {
            var.set(value);
        }
    }
}
