//! The delta rule within a chunk: what its steps change, as a function of the state it begins with.
//!
//! With γ the decay since the chunk began, d_t = β_t·(v_t − γ_t·Sᵀk_t − Σ_{j<t} γ_t/γ_j·(k_j·k_t)·d_j): a unit lower
//! triangular system (I + L)·d = β·v − (β·γ·k)·S. Solving it for both right-hand sides gives U and W with d = U − W·S.

use olivine_kernel::{Access, Val, Var};

use super::decay::Exponents;
use super::heads::{GROUP, Heads, Sizes};
use super::tile_matmul::{ContiguousAxis, PanelSource, ThreadTile, Tile};
use crate::launch::Launch;
use crate::site::{Memory, Operand, Site, linear_group};

/// Rows of the system that are solved in registers at a time.
const BLOCK: u32 = 16;

fn tile(p: &Heads) -> Tile {
    Tile::new(p.chunk, p.chunk, GROUP, 8)
}

/// Bytes of workgroup memory.
pub(super) fn shared_bytes(p: &Heads) -> u32 {
    let t = tile(p);
    let system = p.chunk * t.left_pitch() * 4;
    (system + t.left_numbers() + t.right_numbers() + 2 * p.chunk) * p.elem.size()
}

/// Emits U and W of every chunk side by side, `[batch, head, padded step, value then key]`.
pub(super) fn emit(
    p: &Heads,
    betas: &Operand,
    exponents: Memory,
    site: &mut Site<'_>,
) -> Result<Memory, String> {
    let groups = p.batch * p.heads * p.chunks();
    let width = p.dk + p.dv;
    let numbers = groups as u64 * u64::from(p.chunk) * width as u64;
    let memory = site.scratch(numbers * u64::from(p.elem.size()));

    let k = site.builder("delta_solve", GROUP);
    let l = Launch::new(&k);
    write(&l, p, betas, exponents, memory);
    let bound = l.done();
    let flops = numbers * u64::from(p.chunk) + groups as u64 * u64::from(p.chunk).pow(2) * 2 * p.dk as u64;
    let (_, moved) = p.cost(0);
    site.dispatch(k, bound, groups as u64, (flops, moved + numbers * u64::from(p.elem.size())))?;
    Ok(memory)
}

fn write<'k>(l: &Launch<'k>, p: &Heads, betas: &Operand, exponents: Memory, memory: Memory) {
    let k = l.k();
    let groups = p.batch * p.heads * p.chunks();
    let (keys, values, betas) =
        (l.read("keys", &p.keys), l.read("values", &p.values), l.read("betas", betas));
    let exponents = Exponents::read(l, p.elem, exponents);
    let out = l.bind("solved", p.elem, Access::ReadWrite, memory);
    let sizes = Sizes::declare(l, p);
    let (count, chunks) = (l.size("groups", groups), l.size("chunks", p.chunks()));
    let width = l.size("width", p.dk + p.dv);
    let place = ThreadTile::new(k, tile(p));
    let pitch = place.tile.left_pitch();
    let (left, right) = (place.left_panel(p.elem), place.right_panel(p.elem));
    let system = place.left_memory(p.elem, p.chunk);
    // β, and β times the decay since the chunk began.
    let factors = k.shared(p.elem, 2, p.chunk);

    let whole = linear_group(k);
    k.if_(whole.lt(count), || {
        let head = sizes.head(whole / chunks);
        let first = whole % chunks * p.chunk;
        let row = whole * p.chunk;
        let zero = k.number(p.scalar, 0.0);
        let me = k.local_index();
        k.if_(me.lt(p.chunk), || {
            let inside = (first + me).lt(sizes.length);
            let beta = betas.load(head.step((first + me).min(sizes.length - 1)));
            let beta = inside.select(beta, zero);
            factors.store_vec(me, &[beta, beta * exponents.at(row + me).decay()]);
        });
        let key = |t, d: Val<'k>| {
            let loaded = keys.load(head.key((first + t).min(sizes.length - 1)) + d.min(sizes.dk - 1));
            ((first + t).lt(sizes.length) & d.lt(sizes.dk)).select(loaded, zero)
        };
        let sums = place.sums(zero);
        place.multiply(
            &sums,
            sizes.dk,
            &PanelSource::Staged { panel: left, along: ContiguousAxis::K, load: &key },
            &PanelSource::Staged { panel: right, along: ContiguousAxis::K, load: &key },
        );
        let columns = place.columns();
        let earlier: Vec<_> = columns.iter().map(|j| exponents.at(row + *j)).collect();
        let mut numbers = Vec::with_capacity(sums.len());
        for (i, sums) in place.rows().into_iter().zip(sums.chunks(columns.len())) {
            let (beta, now) = (factors.load_vec(i)[0], exponents.at(row + i));
            for ((j, earlier), sum) in columns.iter().zip(&earlier).zip(sums) {
                let entry = sum.get() * now.since(*earlier) * beta;
                numbers.push(j.lt(i).select(entry, zero));
            }
        }
        place.put_left(system, &numbers, pitch);
        k.barrier();

        // From here every invocation has columns of its own.
        k.for_(me, width, k.u32(GROUP), |column| {
            let cell = |t: Val<'k>| (row + t) * width + column;
            let of_value = column.lt(sizes.dv);
            k.for_(k.u32(0), k.u32(p.chunk), k.u32(BLOCK), |base| {
                let unknowns: Vec<Var<'k>> = (0..BLOCK).map(|_| k.var(zero)).collect();
                let step = |i: u32| (first + base + i).min(sizes.length - 1);
                let side = |lane: usize, load: &dyn Fn(u32) -> Val<'k>| {
                    for (i, unknown) in (0..BLOCK).zip(&unknowns) {
                        // A step past the last has no β, but may read another's infinities.
                        let inside = (first + base + i).lt(sizes.length);
                        let known = inside.select(load(i) * factors.load_vec(base + i)[lane], zero);
                        unknown.set(known);
                    }
                };
                k.if_else(
                    of_value,
                    || side(0, &|i| values.load(head.value(step(i)) + column)),
                    || side(1, &|i| keys.load(head.key(step(i)) + (column - sizes.dv))),
                );
                // What the blocks before have solved.
                k.for_(k.u32(0), base, k.u32(1), |j| {
                    let solved = out.load(cell(j));
                    for (group, four) in unknowns.chunks(4).enumerate() {
                        let entries = system.load_vec(j * pitch + base / 4 + group);
                        for (unknown, entry) in four.iter().zip(entries) {
                            unknown.set((-entry).fma(solved, unknown.get()));
                        }
                    }
                });
                let mut x: Vec<Val<'k>> = unknowns.iter().map(|u| u.get()).collect();
                for j in 0..BLOCK as usize {
                    for group in j / 4..BLOCK as usize / 4 {
                        let entries = system.load_vec((base + j) * pitch + base / 4 + group);
                        for (lane, entry) in entries.into_iter().enumerate() {
                            let i = group * 4 + lane;
                            if i > j {
                                x[i] = (-entry).fma(x[j], x[i]);
                            }
                        }
                    }
                    out.store(cell(base + j), x[j]);
                }
            });
        });
    });
}
