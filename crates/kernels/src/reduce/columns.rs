//! Folds across memory: neighbouring invocations own neighbouring columns, and several share each of them.

use olivine_ir::Dim;
use olivine_kernel::{Builder, Val, Var};

use super::shape::Block;
use super::{Fold, Folded, LoadedElements, ReduceInput, ReduceOutput, Split, cost, declare_count};
use crate::launch::Launch;
use crate::rows::{State, get, put, shared, tree};
use crate::site::{Site, linear_group};

/// Emits a step along columns. Partial states are ordered by part and column.
pub(super) fn dispatch(
    fold: &dyn Fold,
    source: &ReduceInput,
    folded: &Folded,
    to: &ReduceOutput,
    split: Split,
    site: &mut Site<'_>,
) -> Result<(), String> {
    let (access, room) = (source.access(), super::room(site));
    let lanes = folded.column_lanes(access.lanes);
    let tile = if split.is_whole {
        folded.block(access, room)
    } else {
        Block::new(folded.results(), folded.count(), lanes, room.group)
    };
    let k = site.builder(&format!("{}_columns", fold.name()), tile.group());
    let l = Launch::new(&k);
    let from = source.bind(&l);
    let sink = to.bind(&l);
    let columns = l.size("columns", folded.results());
    let n = l.size("n", folded.count());
    let count = declare_count(&l, folded);
    let free = folded.free.declare(&l, &[folded.offset, Dim::ZERO]);
    let reduced = folded.reduced.declare(&l, &[0]);

    let me = k.local_index();
    let (x, y) = (me % tile.across, me / tile.across);
    let blocks = folded.results().div_ceil(tile.columns());
    let work = linear_group(&k);
    let (block, part, start, end) = if split.is_whole {
        (work, k.u32(0), k.u32(0), n)
    } else {
        let (blocks, chunk) = (l.size("blocks", blocks), l.size("chunk", split.chunk));
        let part = work / blocks;
        // Workgroups past the last part have nothing to fold.
        let start = n.min(part * chunk);
        (work - part * blocks, part, start, start + chunk.min(n - start))
    };
    let column = (block * tile.across + x) * lanes;
    let parts = if split.is_whole { k.u32(1) } else { l.size("parts", split.parts) };
    let live = column.lt(columns) & part.lt(parts);
    let end = live.select(end, start);
    let places = free.at(column);

    let acc: Vec<Vec<Var<'_>>> =
        (0..lanes).map(|_| fold.identity(&k).into_iter().map(|v| k.var(v)).collect()).collect();
    let (down, step) = (tile.down, tile.step() as u32);
    let load = |at| from.load(places[0] + reduced.at(at)[0], lanes);
    let round = |first| (0..tile.unroll as u32).map(|u| first + u * down).collect::<Vec<Val<'_>>>();
    let rounds = (end - start) / step;
    k.for_(k.u32(0), rounds, k.u32(1), |i| {
        let positions = round(start + y + i * step);
        let loaded = positions.iter().map(|at| load(*at)).collect();
        add(fold, &acc, &positions, loaded, None);
    });
    if !(split.is_whole && folded.count().is_multiple_of(tile.step())) {
        let positions = round(start + y + rounds * step);
        // Loads past the end read the first row instead.
        k.if_(positions[0].lt(end), || {
            let inside: Vec<Val<'_>> = positions.iter().map(|at| at.lt(end)).collect();
            let here = positions.iter().zip(&inside).map(|(at, inside)| inside.select(*at, start));
            let loaded = here.map(load).collect();
            add(fold, &acc, &positions, loaded, Some(&inside));
        });
    }

    let own: Vec<State<'_>> = acc.iter().map(|of| of.iter().map(|v| v.get()).collect()).collect();
    let states = gather(&k, fold, &tile, own);
    k.if_(live & y.eq(0), || {
        for (lane, state) in states.iter().enumerate() {
            let index = match (split.is_whole, folded.free.steps_by(1, 1)) {
                (true, true) => places[1] + lane,
                (true, _) => free.at(column + lane)[1],
                _ => part * columns + column + lane,
            };
            sink.store(fold, index, state, count);
        }
    });
    let bound = l.done();
    site.dispatch(k, bound, blocks * split.parts, cost(source, folded, to, split))
}

/// Adds loaded rows of elements to the accumulators of every lane; of masked ones those inside.
fn add<'k>(
    fold: &dyn Fold,
    acc: &[Vec<Var<'k>>],
    positions: &[Val<'k>],
    loaded: Vec<LoadedElements<'k>>,
    inside: Option<&[Val<'k>]>,
) {
    for (lane, acc) in acc.iter().enumerate() {
        let mut elements = Vec::new();
        let mut states: Vec<State<'k>> = Vec::new();
        for (at, loaded) in positions.iter().zip(&loaded) {
            match loaded {
                LoadedElements::Elements(xs) if inside.is_none() => elements.push((xs[lane], *at)),
                LoadedElements::Elements(xs) => states.push(fold.batch(&[(xs[lane], *at)])),
                LoadedElements::State(state) => states.push(state.clone()),
            }
        }
        if let Some(inside) = inside {
            let nothing: State<'k> = fold.identity(positions[0].builder());
            for (state, inside) in states.iter_mut().zip(inside) {
                state.iter_mut().zip(&nothing).for_each(|(s, none)| *s = inside.select(*s, *none));
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
    let (across, me) = (tile.across, k.local_index());
    let mut states = states;
    // Sharers in one subgroup first.
    let within = k.target().subgroup.filter(|s| tile.group().is_multiple_of(*s)).unwrap_or(1);
    let mut joined = 1;
    while across * joined < within && joined < tile.down {
        for state in &mut states {
            let other: State<'k> = state.iter().map(|v| v.shuffle_xor(across * joined)).collect();
            *state = fold.join(state, &other);
        }
        joined *= 2;
    }
    let left = tile.down / joined;
    let Some(first) = states.first().filter(|_| left > 1) else { return states };
    let (x, part) = (me % across, me / across / joined);
    let columns = left * across;
    let memory = shared(k, first, columns * tile.lanes as u32);
    let of = |lane: usize, at: Val<'k>| at + lane as u32 * columns;
    let slot = part * across + x;
    let store = || {
        for (lane, state) in states.iter().enumerate() {
            put(&memory, of(lane, slot), state);
        }
    };
    if joined == 1 {
        store()
    } else {
        k.if_((me / across % joined).eq(0), store)
    }
    k.barrier();
    // All invocations share the joins out, a column's lane to each.
    let mut half = left / 2;
    while half > 0 {
        let items = half * across * tile.lanes as u32;
        for first in (0..items).step_by(tile.group() as usize) {
            let item = me + first;
            let work = || {
                let (lane, at) = (item / (half * across), item % (half * across));
                let at = lane * columns + at;
                put(&memory, at, &fold.join(&get(&memory, at), &get(&memory, at + half * across)));
            };
            if items >= tile.group() { work() } else { k.if_(item.lt(items), work) }
        }
        k.barrier();
        half /= 2;
    }
    (0..tile.lanes).map(|lane| get(&memory, of(lane, x))).collect()
}
