//! Folds across memory: neighbouring invocations own neighbouring columns, and several share each of them.

use olivine_kernel::{Builder, Val, Var};

use super::shape::Block;
use super::{Fold, Folded, Loaded, Outlet, Source, Split, cost, declare_count};
use crate::kernels::rows::{GROUP, State, get, put, shared, tree};
use crate::lower::launch::Launch;
use crate::lower::site::{Site, linear_group};

/// Emits a step along columns. Split states lie by part and column.
pub(super) fn dispatch(
    fold: &dyn Fold,
    source: &Source,
    folded: &Folded,
    to: &Outlet,
    split: Split,
    site: &mut Site<'_>,
) -> Result<(), String> {
    let lanes = folded.column_lanes(source.vector());
    let tile = Block::new(folded.results(), folded.count(), lanes, site.group_size(GROUP));
    let k = site.builder(&format!("{}_columns", fold.name()), tile.group());
    let l = Launch::new(&k);
    let from = source.bind(&l);
    let sink = to.bind(&l);
    let columns = l.size("columns", folded.results());
    let n = l.size("n", folded.count());
    let count = declare_count(&l, folded);
    let kept = folded.kept.declare(&l, &[folded.offset, 0]);
    let reduced = folded.reduced.declare(&l, &[0]);

    let me = k.local_index();
    let (x, y) = (me % tile.across, me / tile.across);
    let blocks = folded.results().div_ceil(tile.columns());
    let work = linear_group(&k);
    let (block, part, start, end) = if split.parts == 1 {
        (work, k.u32(0), k.u32(0), n)
    } else {
        let (blocks, chunk) = (l.size("blocks", blocks), l.size("chunk", split.chunk));
        let part = work / blocks;
        // Workgroups past the last part have nothing to fold.
        let start = n.min(part * chunk);
        (work - part * blocks, part, start, start + chunk.min(n - start))
    };
    let column = (block * tile.across + x) * lanes;
    let parts = if split.parts == 1 { k.u32(1) } else { l.size("parts", split.parts) };
    let live = column.lt(columns) & part.lt(parts);
    let end = live.select(end, start);
    let places = kept.at(column);

    let acc: Vec<Vec<Var<'_>>> =
        (0..lanes).map(|_| fold.identity(&k).into_iter().map(|v| k.var(v)).collect()).collect();
    let (down, step) = (tile.down, tile.step() as u32);
    let mut rest = start + y;
    if tile.unroll > 1 {
        let whole = (end - start) / step;
        k.for_(k.u32(0), whole, k.u32(1), |i| {
            let at = start + y + i * step;
            let positions: Vec<Val<'_>> = (0..tile.unroll as u32).map(|u| at + u * down).collect();
            let loaded =
                positions.iter().map(|at| from.load(places[0] + reduced.at(*at)[0], lanes)).collect();
            add(fold, &acc, &positions, loaded);
        });
        rest = start + y + whole * step;
    }
    k.for_(rest, end, k.u32(down), |at| {
        add(fold, &acc, &[at], vec![from.load(places[0] + reduced.at(at)[0], lanes)]);
    });

    let own: Vec<State<'_>> = acc.iter().map(|of| of.iter().map(|v| v.get()).collect()).collect();
    let states = gather(&k, fold, &tile, own);
    k.if_(live & y.eq(0), || {
        for (lane, state) in states.iter().enumerate() {
            let index = match (split.parts, folded.kept.inner(1)) {
                (1, 1) => places[1] + lane,
                (1, _) => kept.at(column + lane)[1],
                _ => part * columns + column + lane,
            };
            sink.store(fold, index, state, count);
        }
    });
    let bound = l.done();
    site.dispatch(k, bound, (blocks * split.parts) as u64, cost(source, folded, to, split))
}

/// Adds loaded rows of elements to the accumulators of every lane.
fn add<'k>(fold: &dyn Fold, acc: &[Vec<Var<'k>>], positions: &[Val<'k>], loaded: Vec<Loaded<'k>>) {
    for (lane, acc) in acc.iter().enumerate() {
        let mut elements = Vec::new();
        let mut states: Vec<State<'k>> = Vec::new();
        for (at, loaded) in positions.iter().zip(&loaded) {
            match loaded {
                Loaded::Elements(xs) => elements.push((xs[lane], *at)),
                Loaded::State(state) => states.push(state.clone()),
            }
        }
        if !elements.is_empty() {
            states.push(fold.batch(&elements));
        }
        let all = tree(states, |a, b| fold.join(a, b));
        let before: State<'k> = acc.iter().map(|v| v.get()).collect();
        for (var, value) in acc.iter().zip(fold.join(&before, &all)) {
            var.set(value);
        }
    }
}

/// Joins what the sharers of each column hold; the first of them gets the result.
fn gather<'k>(k: &'k Builder, fold: &dyn Fold, tile: &Block, states: Vec<State<'k>>) -> Vec<State<'k>> {
    if tile.down == 1 {
        return states;
    }
    let (me, group) = (k.local_index(), tile.group());
    let (x, y) = (me % tile.across, me / tile.across);
    let Some(first) = states.first() else { return states };
    let memory = shared(k, first, group * tile.lanes as u32);
    let of = |lane: usize, at: Val<'k>| at + lane as u32 * group;
    for (lane, state) in states.iter().enumerate() {
        put(&memory, of(lane, me), state);
    }
    k.barrier();
    let mut half = tile.down / 2;
    while half > 0 {
        k.if_(y.lt(half), || {
            for lane in 0..tile.lanes {
                let at = of(lane, me);
                put(&memory, at, &fold.join(&get(&memory, at), &get(&memory, at + half * tile.across)));
            }
        });
        k.barrier();
        half /= 2;
    }
    (0..tile.lanes).map(|lane| get(&memory, of(lane, x))).collect()
}
