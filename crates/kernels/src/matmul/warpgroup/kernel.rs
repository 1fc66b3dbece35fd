//! The kernel: one thread copies blocks of B into a ring, two warpgroups multiply and finish their sums.

use olivine_kernel::{Access, AsyncBarrier, Buf, Builder, Elem, Scalar, Shared, Val, Var};

use super::pack::{self, FRAGMENTS, Packed};
use super::{BAND, BATCH, GROUP, K_BLOCK, MULTIPLIERS, PathOfA, REGISTERS, SLOT, SLOTS, STEP, TILE};
use crate::launch::Launch;
use crate::math;
use crate::matmul::epilogue::{BatchOffset, Destination, Epilogue, LoadedInputs};
use crate::matmul::problem::Problem;
use crate::matmul::tiled::{TileCoord, tile_coord_by};
use crate::site::Site;
use crate::walk::Walker;

/// K-steps ahead of the copies at which B is asked for in the cache of all cores.
const PREFETCH: u32 = 8;

/// Emits a matmul by warpgroups.
pub(crate) fn emit(problem: &Problem<'_>, path: PathOfA, site: &mut Site<'_>) -> Result<(), String> {
    let packed_b = pack::pack_b(problem, site)?;
    let packed_a = match path {
        PathOfA::Rows => None,
        PathOfA::Packed => Some(pack::pack_a(problem, site)?),
    };
    let k_steps = pack::k_steps(problem);
    let tiles = problem.m.div_ceil(TILE[0]) * problem.n.div_ceil(TILE[1]) * problem.batches();
    let groups = tiles.min(site.caps.processor_count());

    let k = site.builder("matmul_warpgroup", GROUP);
    let l = Launch::new(&k);
    let a = LeftOperand::declare(&l, problem, packed_a.as_ref());
    let b = l.bind("b", Elem::U32, Access::Read, packed_b.memory);
    let (m, n) = (l.size("m", problem.m), l.size("n", problem.n));
    let tiles = l.size("tiles", tiles);
    let k_steps = l.size("k_steps", k_steps);
    let epilogue = Epilogue::declare(&l, problem, &Destination::Target, n).streaming();
    let walker = problem.batch.declare(&l, &problem.offsets());
    let barriers = || k.shared(Elem::U64, 1, SLOTS);
    let ring =
        Ring { k: &k, slots: k.shared(Elem::U32, 4, SLOTS * SLOT / 16), full: barriers(), empty: barriers() };
    let work = Work { k: &k, elem: math::elem(problem.dtype()), m, n, tiles, k_steps, ring, walker: &walker };

    ring.init();
    k.roles(vec![
        (MULTIPLIERS, REGISTERS[0], Box::new(|| work.multiply(&a, &epilogue))),
        (GROUP / 32 - MULTIPLIERS, REGISTERS[1], Box::new(|| work.copy(b, packed_b.batched))),
    ]);
    let bound = l.done();
    site.dispatch(k, bound, groups, problem.cost())
}

fn wide(x: Val<'_>) -> Val<'_> {
    x.convert(Scalar::U64)
}

/// Slots of workgroup memory that a thread fills and warpgroups empty, with two barriers to a slot.
#[derive(Clone, Copy)]
struct Ring<'k> {
    k: &'k Builder,
    slots: Shared<'k>,
    full: Shared<'k>,
    empty: Shared<'k>,
}

impl<'k> Ring<'k> {
    fn init(&self) {
        let k = self.k;
        k.if_(k.local_index().eq(0u32), || {
            for slot in 0..SLOTS {
                k.init_barrier(k.async_barrier(self.full, k.u32(slot)), 1);
                // One arrival of every subgroup that multiplies.
                k.init_barrier(k.async_barrier(self.empty, k.u32(slot)), MULTIPLIERS);
            }
        });
        k.barrier();
    }

    fn full(&self, slot: Val<'k>) -> AsyncBarrier {
        self.k.async_barrier(self.full, slot)
    }

    fn empty(&self, slot: Val<'k>) -> AsyncBarrier {
        self.k.async_barrier(self.empty, slot)
    }
}

/// A role's position in the ring: a slot, and the parity of its phase.
struct Position<'k> {
    k: &'k Builder,
    slot: Var<'k>,
    parity: Var<'k>,
}

impl<'k> Position<'k> {
    fn new(k: &'k Builder, parity: u32) -> Self {
        Position { k, slot: k.var(k.u32(0)), parity: k.var(k.u32(parity)) }
    }

    fn advance(&self) {
        let next = self.slot.get() + 1u32;
        let wraps = next.eq(SLOTS);
        self.slot.set(wraps.select(self.k.u32(0), next));
        self.parity.set(self.parity.get() ^ wraps.select(self.k.u32(1), self.k.u32(0)));
    }
}

/// A, as lanes load it.
struct LeftOperand<'k> {
    k: &'k Builder,
    words: Buf<'k>,
    layout: LeftLayout<'k>,
}

enum LeftLayout<'k> {
    /// Rows, so many elements apart.
    Rows { outer: Val<'k> },
    /// Fragments: blocks of 64 rows, and whether every batch has its own.
    Packed { blocks: Val<'k>, batched: bool },
}

impl<'k> LeftOperand<'k> {
    fn declare(l: &Launch<'k>, problem: &Problem<'_>, packed: Option<&Packed>) -> Self {
        let memory = packed.map_or(problem.a.operand.memory, |packed| packed.memory);
        let words = l.bind("a", Elem::U32, Access::Read, memory).streaming();
        let layout = match packed {
            None => LeftLayout::Rows { outer: l.stride("a_outer", problem.a.outer) },
            Some(packed) => LeftLayout::Packed {
                blocks: l.size("a_blocks", pack::row_blocks(problem.m)),
                batched: packed.batched,
            },
        };
        LeftOperand { k: l.k(), words, layout }
    }

    /// Where a lane's words of a tile begin: of both of its rows, or of its fragments.
    fn starts(&self, work: &Work<'k, '_>, tile: &TileCoord<'k>) -> Vec<Val<'k>> {
        let k = self.k;
        let (lane, warp) = (k.lane(), k.subgroup_id());
        match self.layout {
            LeftLayout::Rows { outer } => {
                let base = work.walker.at(tile.batch)[0];
                let row = tile.first.0 + warp * 16u32 + lane / 4u32;
                // Rows past the last are computed and not stored.
                let start =
                    |row: Val<'k>| (base + row.min(work.m - 1u32) * outer) / 2u32 + lane % 4u32 * 4u32;
                [row, row + 8u32].map(|row| wide(start(row))).to_vec()
            }
            LeftLayout::Packed { blocks, batched } => {
                let first = tile.first.0 / 64u32 + warp / 4u32;
                let block = if batched { tile.batch * blocks + first } else { first };
                let lane = warp % 4u32 * 32u32 + lane;
                let steps = wide(block) * wide(work.k_steps);
                vec![steps * wide(k.u32(FRAGMENTS / 4)) + wide(lane * 4u32)]
            }
        }
    }

    /// Words from one block of K to the next.
    fn pitch(&self) -> u32 {
        match self.layout {
            LeftLayout::Rows { .. } => K_BLOCK / 2,
            LeftLayout::Packed { .. } => 2 * BATCH * (FRAGMENTS / 4),
        }
    }

    /// Loads one of the two buffers of a block that begins at `starts`: variables of every k-step in turn.
    fn load(&self, starts: &[Val<'k>], second: bool, buffers: &[Var<'k>]) {
        let half = buffers.len() / 2;
        let buffers = if second { &buffers[half..] } else { &buffers[..half] };
        let skip = if second { self.pitch() / 2 } else { 0 };
        let at = |start: Val<'k>, words: u32| start + wide(self.k.u32(skip + words));
        match starts {
            [start] => {
                for (step, fragment) in (0..).zip(buffers.chunks(4)) {
                    let words = self.words.load_vec(at(*start, step * (FRAGMENTS / 4)), 4);
                    fragment.iter().zip(words).for_each(|(var, word)| var.set(word));
                }
            }
            rows => {
                // Two k-steps of a row are 16 bytes of each lane.
                for (pair, fragments) in (0..).zip(buffers.chunks(8)) {
                    for (row, start) in rows.iter().enumerate() {
                        let words = self.words.load_vec(at(*start, pair * STEP), 4);
                        for (i, word) in words.into_iter().enumerate() {
                            // Word 2s + h is of k-step s: of both rows in half 0 of it, then of both in half 1.
                            fragments[4 * (i / 2) + 2 * (i % 2) + row].set(word);
                        }
                    }
                }
            }
        }
    }
}

/// What both roles know.
struct Work<'k, 'w> {
    k: &'k Builder,
    elem: Elem,
    m: Val<'k>,
    n: Val<'k>,
    tiles: Val<'k>,
    k_steps: Val<'k>,
    ring: Ring<'k>,
    walker: &'w Walker<'k>,
}

impl<'k> Work<'k, '_> {
    fn tile(&self, number: Val<'k>) -> TileCoord<'k> {
        tile_coord_by(number, (self.m, self.n, self.k_steps), (TILE[0], TILE[1]), BAND, None)
    }

    /// One thread copies the blocks of B, tile after tile, as slots become free.
    fn copy(&self, b: Buf<'k>, batched: bool) {
        let (k, ring) = (self.k, self.ring);
        k.if_(k.local_index().eq(MULTIPLIERS * 32), || {
            // Of a fresh barrier, the phase of parity 1 counts as complete: all slots are free.
            let position = Position::new(k, 1);
            k.for_(k.group_id(0), self.tiles, k.group_count(0), |number| {
                let tile = self.tile(number);
                let (row, column) = (tile.first.0 / TILE[0], tile.first.1 / TILE[1]);
                let across = (self.n + (TILE[1] - 1)) / TILE[1];
                let column = if batched { tile.batch * across + column } else { column };
                let first = wide(column) * wide(self.k_steps);
                k.for_(k.u32(0), self.k_steps, k.u32(1), |step| {
                    let slot = position.slot.get();
                    k.await_phase(ring.empty(slot), position.parity.get());
                    let from = (first + wide(step)) * wide(k.u32(SLOT / 4));
                    k.arrive(ring.full(slot), SLOT);
                    k.copy_async((ring.slots, slot * (SLOT / 16)), (b, from), SLOT, ring.full(slot));
                    // Of the workgroups that walk a column together, one asks for each block.
                    let mine = ((step + row) % BAND).eq(0u32);
                    k.if_(mine & (step + PREFETCH).lt(self.k_steps), || {
                        k.prefetch(b, from + wide(k.u32(PREFETCH * (SLOT / 4))), SLOT);
                    });
                    position.advance();
                });
            });
        });
    }

    /// The warpgroups multiply what has come and finish every tile's sums.
    fn multiply(&self, a: &LeftOperand<'k>, epilogue: &Epilogue<'k, '_>) {
        let (k, ring) = (self.k, self.ring);
        let position = Position::new(k, 0);
        let buffers: Vec<Var<'k>> = (0..2 * BATCH * 4).map(|_| k.var(k.u32(0))).collect();
        let sums: Vec<Var<'k>> = (0..TILE[1] / 2).map(|_| k.var(k.f32(0.0))).collect();
        let held = k.var(k.u32(0));
        let leads = k.lane().eq(0u32);
        // Each block of K loads its second buffer and the next block's first; the last one that of the next tile.
        let at: Vec<Var<'k>> =
            a.starts(self, &self.tile(k.group_id(0))).into_iter().map(|start| k.var(start)).collect();
        let now = || at.iter().map(|start| start.get()).collect::<Vec<_>>();
        a.load(&now(), false, &buffers);
        k.for_(k.group_id(0), self.tiles, k.group_count(0), |number| {
            let next = number + k.group_count(0);
            let next = a.starts(self, &self.tile(next.lt(self.tiles).select(next, number)));
            let blocks = self.k_steps / (2 * BATCH);
            k.for_(k.u32(0), blocks, k.u32(1), |block| {
                let is_last = (block + 1u32).eq(blocks);
                let here = now();
                let pitch = wide(k.u32(a.pitch()));
                let following: Vec<Val<'k>> =
                    here.iter().zip(&next).map(|(at, next)| is_last.select(*next, *at + pitch)).collect();
                for step in 0..2 * BATCH {
                    let slot = position.slot.get();
                    k.await_phase(ring.full(slot), position.parity.get());
                    let left = std::array::from_fn(|i| buffers[4 * step as usize + i]);
                    let right = k.warpgroup_operand(ring.slots, slot * (SLOT / 16), [128, 256]);
                    let adds = if step == 0 { block.gt(0u32) } else { k.bool(true) };
                    k.warpgroup_fence();
                    k.warpgroup_multiply([self.elem; 2], &sums, left, right, adds);
                    k.warpgroup_commit();
                    k.warpgroup_wait(1);
                    // The step before is complete: its slot is free, and so are its words of A.
                    let releases = if step == 0 { leads & block.gt(0u32) } else { leads };
                    k.if_(releases, || k.arrive(ring.empty(held.get()), 0));
                    if step == 0 {
                        a.load(&here, true, &buffers);
                    }
                    if step == BATCH {
                        a.load(&following, false, &buffers);
                    }
                    held.set(slot);
                    position.advance();
                }
                at.iter().zip(&following).for_each(|(at, next)| at.set(*next));
            });
            k.warpgroup_wait(0);
            k.if_(leads, || k.arrive(ring.empty(held.get()), 0));
            self.finish(&self.tile(number), &sums, epilogue);
            // Stores are for some lanes only; multiplies are for all of them together.
            k.subgroup_barrier();
        });
    }

    /// Passes a tile's sums to the epilogue: of each 16 columns a lane has four neighbouring ones, in two rows.
    fn finish(&self, tile: &TileCoord<'k>, sums: &[Var<'k>], epilogue: &Epilogue<'k, '_>) {
        let k = self.k;
        let (lane, warp) = (k.lane(), k.subgroup_id());
        let row = tile.first.0 + warp * 16u32 + lane / 4u32;
        let at = self.walker.at(tile.batch);
        let part = Part {
            k,
            epilogue,
            base: BatchOffset { out: tile.rest * self.m * self.n, extras: at[2..].to_vec() },
            rows: [row, row + 8u32],
            m: self.m,
        };
        let column = tile.first.1 + lane % 4u32 * 4u32;
        // Of a long epilogue there are few copies; single elements take more registers for their addresses.
        let together = if epilogue.is_heavy() || epilogue.lanes() < 4 { 2 } else { 4 };
        let each = 8 * together;
        if !epilogue.is_heavy() {
            for (i, some) in (0u32..).zip(sums.chunks(each)) {
                part.store(column + i * (16 * together as u32), some);
            }
            return;
        }
        let picked: Vec<Var<'k>> = (0..each).map(|_| k.var(k.f32(0.0))).collect();
        k.for_(k.u32(0), k.u32((sums.len() / each) as u32), k.u32(1), |i| {
            for (number, some) in (0u32..).zip(sums.chunks(each)) {
                k.if_(i.eq(number), || picked.iter().zip(some).for_each(|(to, sum)| to.set(sum.get())));
            }
            part.store(column + i * (16 * together as u32), &picked);
        });
    }
}

/// A lane's part of a tile on its way out.
struct Part<'k, 'e> {
    k: &'k Builder,
    epilogue: &'e Epilogue<'k, 'e>,
    base: BatchOffset<'k>,
    rows: [Val<'k>; 2],
    m: Val<'k>,
}

impl<'k> Part<'k, '_> {
    /// Stores the sums of some times 16 columns; the lane's first column is `column`. What the epilogue takes besides is
    /// loaded for all of them at once.
    fn store(&self, column: Val<'k>, sums: &[Var<'k>]) {
        let columns: Vec<Val<'k>> = (0..sums.len() as u32 / 8).map(|i| column + i * 16).collect();
        let load = |row: Val<'k>| -> Vec<LoadedInputs<'k>> {
            let row = row.min(self.m - 1u32);
            columns.iter().map(|column| self.epilogue.load_inputs(&self.base, row, *column, 4)).collect()
        };
        let loaded: Vec<Vec<LoadedInputs<'k>>> = match self.epilogue.preload() {
            None => Vec::new(),
            Some(true) => vec![load(self.rows[0])],
            Some(false) => self.rows.map(load).into(),
        };
        for (half, row) in self.rows.into_iter().enumerate() {
            let loaded = loaded.get(half).or(loaded.first());
            self.k.if_(row.lt(self.m), || {
                for (i, (column, sums)) in columns.iter().zip(sums.chunks(8)).enumerate() {
                    // Two columns of each of two accumulator blocks.
                    let sums = [0, 1, 4, 5].map(|j| sums[2 * half + j].get());
                    match loaded.and_then(|loaded| loaded.get(i)) {
                        Some(loaded) => {
                            self.epilogue.store_with_inputs(&self.base, row, *column, &sums, loaded)
                        }
                        None => self.epilogue.store(&self.base, row, *column, &sums),
                    }
                }
            });
        }
    }
}
