//! The delta rule from chunk to chunk. Columns of a state do not meet, so a workgroup keeps a few columns of a head in
//! its memory and walks over the chunks: changes d = U − W·S, then S ← decay·S + Σ key_t·d_tᵀ.

use olivine_kernel::{Access, Val};

use super::decay::Exponents;
use super::heads::{COMFORT, GROUP, Heads, Sizes};
use super::tile_matmul::{ContiguousAxis, PanelSource, ThreadTile, Tile};
use crate::launch::{Launch, bytes};
use crate::site::{Memory, Site, linear_group};

/// Columns of a state that a workgroup keeps, and indices along K of its panels, best first.
const SHAPES: [(u32, u32); 7] = [(16, 32), (16, 16), (16, 8), (8, 16), (8, 8), (4, 8), (4, 4)];

/// The best shape within the device's workgroup memory.
fn choose(p: &Heads, site: &Site<'_>) -> Option<Tile> {
    let shared = site.caps.target.shared_bytes;
    let tile = |(columns, k_step): &(u32, u32)| Tile::new(p.chunk, *columns, GROUP, *k_step);
    let find = |budget: u32| SHAPES.iter().map(tile).find(|t| shared_bytes(p, t) <= budget);
    find(shared.min(COMFORT)).or_else(|| find(shared))
}

/// Keys of the state in memory: whole tiles of them.
fn keys(p: &Heads) -> u32 {
    (p.dk as u32).next_multiple_of(p.chunk)
}

fn shared_bytes(p: &Heads, t: &Tile) -> u32 {
    let row = t.right_pitch() * t.column_lanes();
    let numbers = keys(p).saturating_add(p.chunk).saturating_mul(row).saturating_add(t.left_numbers());
    numbers.saturating_mul(p.elem.size())
}

/// Whether the device has the memory for some shape.
pub(super) fn fits(p: &Heads, site: &Site<'_>) -> bool {
    choose(p, site).is_some()
}

/// Emits the walk over chunks, which leaves the changes where U was and the state after the last; gives the states that
/// chunks begin with, `[batch, head, chunk, key, value]`.
pub(super) fn emit(
    p: &Heads,
    exponents: Memory,
    solved: Memory,
    site: &mut Site<'_>,
) -> Result<Memory, String> {
    let tile = choose(p, site).ok_or("a state's columns do not fit workgroup memory")?;
    let states = (p.batch * p.heads * p.chunks()) as u64 * (p.dk * p.dv) as u64 * u64::from(p.elem.size());
    let memory = site.scratch(states);
    let blocks = p.dv.div_ceil(tile.n as usize);
    let groups = p.batch * p.heads * blocks;

    let k = site.builder("delta_sweep", GROUP);
    let l = Launch::new(&k);
    write(&l, p, tile, (exponents, solved, memory));
    let bound = l.done();
    let (flops, moved) = p.cost(2);
    site.dispatch(k, bound, groups as u64, (flops, moved + states + bytes(&p.state_out.ty)))?;
    Ok(memory)
}

fn write<'k>(l: &Launch<'k>, p: &Heads, tile: Tile, (exponents, solved, starts): (Memory, Memory, Memory)) {
    let k = l.k();
    let blocks = p.dv.div_ceil(tile.n as usize);
    let groups = p.batch * p.heads * blocks;
    let keys_in = l.read("keys", &p.keys);
    let exponents = Exponents::read(l, p.elem, exponents);
    let solved = l.bind("solved", p.elem, Access::ReadWrite, solved);
    let starts = l.bind("starts", p.elem, Access::Write, starts);
    let given = p.state.as_ref().map(|s| l.read("state", s));
    let state_out = l.write("state_out", &p.state_out);
    let sizes = Sizes::declare(l, p);
    let (count, chunks) = (l.size("groups", groups), l.size("chunks", p.chunks()));
    let (blocks, width) = (l.size("blocks", blocks), l.size("width", p.dk + p.dv));
    let place = ThreadTile::new(k, tile);
    let panel = place.left_panel(p.elem);
    let state = place.right_memory(p.elem, keys(p));
    let changes = place.right_memory(p.elem, p.chunk);

    let number = linear_group(k);
    k.if_(number.lt(count), || {
        let (pair, first_value) = (number / blocks, number % blocks * tile.n);
        let head = sizes.head(pair);
        let zero = k.number(p.scalar, 0.0);
        let columns: Vec<Val<'k>> = place.columns().into_iter().map(|c| first_value + c).collect();
        let rows = place.rows();
        // Every invocation meets the same cells of the state again and again: its rows of each tile of keys.
        let each_row = |body: &dyn Fn(Val<'k>)| {
            k.for_(k.u32(0), k.u32(keys(p)), k.u32(p.chunk), |at| {
                rows.iter().for_each(|row| body(at + *row));
            });
        };
        let cell = |d: Val<'k>, v: Val<'k>| (pair * sizes.dk + d) * sizes.dv + v;
        each_row(&|d| {
            let numbers: Vec<Val<'k>> = columns
                .iter()
                .map(|v| {
                    given.map_or(zero, |s| {
                        let loaded = s.load(cell(d.min(sizes.dk - 1), v.min(sizes.dv - 1)));
                        (d.lt(sizes.dk) & v.lt(sizes.dv)).select(loaded, zero)
                    })
                })
                .collect();
            place.put_right(state, d, &numbers);
        });
        k.for_(k.u32(0), chunks, k.u32(1), |chunk| {
            let first = chunk * p.chunk;
            let whole = pair * chunks + chunk;
            let row = whole * p.chunk;
            let end = exponents.at(row + (p.chunk - 1));
            each_row(&|d| {
                for (v, number) in columns.iter().zip(place.get_right(state, d)) {
                    k.if_(d.lt(sizes.dk) & v.lt(sizes.dv), || {
                        starts.store((whole * sizes.dk + d) * sizes.dv + *v, number);
                    });
                }
            });
            let w = |t, d: Val<'k>| {
                let loaded = solved.load((row + t) * width + sizes.dv + d.min(sizes.dk - 1));
                d.lt(sizes.dk).select(loaded, zero)
            };
            // What does not depend on the matmul is loaded before it.
            let place_of = |t: Val<'k>, v: Val<'k>| (row + t) * width + v.min(sizes.dv - 1);
            let solutions: Vec<Val<'k>> = rows
                .iter()
                .flat_map(|t| columns.iter().map(|v| solved.load(place_of(*t, *v))).collect::<Vec<_>>())
                .collect();
            let weights: Vec<Val<'k>> = rows.iter().map(|t| end.since(exponents.at(row + *t))).collect();
            let sums = place.sums(zero);
            place.multiply(
                &sums,
                sizes.dk,
                &PanelSource::Staged { panel, along: ContiguousAxis::K, load: &w },
                &PanelSource::Resident(state),
            );
            let lines = sums.chunks(columns.len()).zip(solutions.chunks(columns.len()));
            for ((t, weight), (sums, solutions)) in rows.iter().zip(&weights).zip(lines) {
                let mut line = Vec::with_capacity(columns.len());
                for ((v, sum), solution) in columns.iter().zip(sums).zip(solutions) {
                    let inside = v.lt(sizes.dv);
                    let change = *solution - sum.get();
                    k.if_(inside, || solved.store(place_of(*t, *v), change));
                    line.push(inside.select(change * *weight, zero));
                }
                place.put_right(changes, *t, &line);
            }
            let total = end.decay();
            k.for_(k.u32(0), k.u32(keys(p)), k.u32(p.chunk), |at| {
                let key = |d, t: Val<'k>| {
                    let (d, t_) = (at + d, (first + t).min(sizes.length - 1));
                    let loaded = keys_in.load(head.key(t_) + d.min(sizes.dk - 1));
                    (t.lt(p.chunk) & (first + t).lt(sizes.length) & d.lt(sizes.dk)).select(loaded, zero)
                };
                let sums = place.sums(zero);
                place.multiply(
                    &sums,
                    k.u32(p.chunk),
                    &PanelSource::Staged { panel, along: ContiguousAxis::Outer, load: &key },
                    &PanelSource::Resident(changes),
                );
                for (row, sums) in rows.iter().zip(sums.chunks(columns.len())) {
                    let before = place.get_right(state, at + *row);
                    let after: Vec<Val<'k>> =
                        before.iter().zip(sums).map(|(s, sum)| s.fma(total, sum.get())).collect();
                    place.put_right(state, at + *row, &after);
                }
            });
        });
        each_row(&|d| {
            for (v, number) in columns.iter().zip(place.get_right(state, d)) {
                k.if_(d.lt(sizes.dk) & v.lt(sizes.dv), || state_out.store(cell(d, *v), number));
            }
        });
    });
}
