//! What every chunk adds to a state by itself: Σ key_t·(dt·x)_tᵀ, decayed to the chunk's end.

use olivine_kernel::{Access, Val};

use super::decay::Exponents;
use super::heads::{GROUP, Heads, Sizes};
use super::tile_matmul::{ContiguousAxis, PanelSource, ThreadTile, Tile};
use crate::launch::Launch;
use crate::site::{Memory, Site, linear_group};

/// Keys by values of a workgroup.
const TILE: Tile = Tile::new(64, 64, GROUP, 8);

/// Emits the chunks' own states, `[batch, head, chunk, key, value]`.
pub(super) fn emit(p: &Heads, exponents: Memory, site: &mut Site<'_>) -> Result<Memory, String> {
    let pairs = p.batch * p.heads * p.chunks();
    let memory = site.scratch((pairs * p.dk * p.dv) as u64 * u64::from(p.elem.size()));
    let (down, across) = (p.dk.div_ceil(TILE.m as usize), p.dv.div_ceil(TILE.n as usize));
    let groups = pairs * down * across;

    let k = site.builder("state_of_chunks", GROUP);
    let l = Launch::new(&k);
    write(&l, p, exponents, memory, (groups, down, across));
    let bound = l.done();
    site.dispatch(k, bound, groups as u64, p.cost(1))?;
    Ok(memory)
}

fn write<'k>(
    l: &Launch<'k>,
    p: &Heads,
    exponents: Memory,
    memory: Memory,
    (groups, down, across): (usize, usize, usize),
) {
    let k = l.k();
    let (keys, values, steps) =
        (l.read("keys", &p.keys), l.read("values", &p.values), l.read("steps", &p.steps));
    let exponents = Exponents::read(l, p.elem, exponents);
    let out = l.bind("states", p.elem, Access::Write, memory);
    let sizes = Sizes::declare(l, p);
    let (count, chunks) = (l.size("groups", groups), l.size("chunks", p.chunks()));
    let (down, across) = (l.size("down", down), l.size("across", across));
    let place = ThreadTile::new(k, TILE);
    let (left, right) = (place.left_panel(p.elem), place.right_panel(p.elem));
    let weights = k.shared(p.elem, 1, p.chunk);

    let number = linear_group(k);
    k.if_(number.lt(count), || {
        let (rest, column_tile) = (number / across, number % across);
        let (whole, row_tile) = (rest / down, rest % down);
        let (pair, chunk) = (whole / chunks, whole % chunks);
        let head = sizes.head(pair);
        let first = chunk * p.chunk;
        let row = whole * p.chunk;
        let zero = k.number(p.scalar, 0.0);
        let me = k.local_index();
        k.if_(me.lt(p.chunk), || {
            let inside = (first + me).lt(sizes.length);
            let end = exponents.at(row + (p.chunk - 1));
            let step = steps.load(head.step((first + me).min(sizes.length - 1)));
            weights.store(me, inside.select(end.since(exponents.at(row + me)) * step, zero));
        });
        k.barrier();
        let (first_key, first_value) = (row_tile * TILE.m, column_tile * TILE.n);
        let inside = |t: Val<'k>| t.lt(p.chunk) & (first + t).lt(sizes.length);
        let key = |d, t| {
            let (d, known) = (first_key + d, inside(t) & (first_key + d).lt(sizes.dk));
            let loaded = keys.load(head.key((first + t).min(sizes.length - 1)) + d.min(sizes.dk - 1));
            known.select(loaded * weights.load(t.min(p.chunk - 1)), zero)
        };
        let value = |v, t| {
            let (v, known) = (first_value + v, inside(t) & (first_value + v).lt(sizes.dv));
            let loaded = values.load(head.value((first + t).min(sizes.length - 1)) + v.min(sizes.dv - 1));
            known.select(loaded, zero)
        };
        let sums = place.sums(zero);
        place.multiply(
            &sums,
            k.u32(p.chunk),
            &PanelSource::Staged { panel: left, along: ContiguousAxis::Outer, load: &key },
            &PanelSource::Staged { panel: right, along: ContiguousAxis::Outer, load: &value },
        );
        let columns = place.columns();
        for (row, sums) in place.rows().into_iter().zip(sums.chunks(columns.len())) {
            let d = first_key + row;
            for (column, sum) in columns.iter().zip(sums) {
                let v = first_value + *column;
                k.if_(d.lt(sizes.dk) & v.lt(sizes.dv), || {
                    out.store((whole * sizes.dk + d) * sizes.dv + v, sum.get());
                });
            }
        }
    });
}
