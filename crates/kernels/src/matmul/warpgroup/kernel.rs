//! The kernel: one thread copies blocks of B into a ring, two warpgroups multiply and finish their sums.

use olivine_ir::Dim;
use olivine_kernel::{Access, Buf, Builder, Elem, Reduction, Scalar, Val, Var};

use super::finish::{Correction, Scales, TileEnd, ZeroOperands, ZeroPoints};
use super::left::LeftOperand;
use super::outliers;
use super::pack::{self, Matrices, Packed, add_bytes};
use super::{BAND, Form, GROUP, MULTIPLIERS, PathOfA, REGISTERS, SLOT, SLOTS, TILE_ROWS};
use crate::launch::Launch;
use crate::matmul::choice::LARGE;
use crate::matmul::epilogue::{Destination, Epilogue};
use crate::matmul::problem::Problem;
use crate::matmul::tiled;
use crate::matmul::tiled::{TileCoord, tile_coord_by};
use crate::matmul::vector_load::MatrixRole;
use crate::ring::{Position, Ring};
use crate::site::Site;
use crate::walk::{Walk, Walker};

/// K-steps ahead of the copies at which B is asked for in the cache of all cores.
const PREFETCH: u32 = 8;

/// Emits a matmul by warpgroups.
pub(crate) fn emit(problem: &Problem<'_>, path: PathOfA, site: &mut Site<'_>) -> Result<(), String> {
    emit_with(problem, path, None, site)
}

/// Emits a matmul of 8-bit integers with their zero points.
pub(crate) fn emit_int8(
    problem: &Problem<'_>,
    path: PathOfA,
    zeros: &ZeroOperands<'_>,
    site: &mut Site<'_>,
) -> Result<(), String> {
    emit_with(problem, path, Some(zeros), site)
}

fn emit_with(
    problem: &Problem<'_>,
    path: PathOfA,
    zeros: Option<&ZeroOperands<'_>>,
    site: &mut Site<'_>,
) -> Result<(), String> {
    let form = Form::expect(problem)?;
    let is_split = form.parts > 1;
    let packed_b = match is_split {
        true => pack::pack_parts(form, MatrixRole::B, problem, site)?,
        false => pack::pack_b(form, problem, zeros.is_some_and(ZeroOperands::want_column_sums), site)?,
    };
    let packed_a = match path {
        _ if is_split => Some(pack::pack_parts(form, MatrixRole::A, problem, site)?),
        PathOfA::Rows => None,
        PathOfA::Packed => Some(pack::pack_a(form, problem, site)?),
    };
    let outliers = match &packed_a {
        Some(packed_a) if is_split => Some(outliers::find(problem, packed_a, &packed_b, site)?),
        _ => None,
    };
    let k_steps = pack::k_steps(form, problem);
    // Sums of rows take registers, which the buffers of rows leave none.
    let form = match packed_a {
        None if zeros.is_some_and(ZeroOperands::want_row_sums) => Form { batch: form.batch / 2, ..form },
        _ => form,
    };
    let tiles = problem.m.div_ceil(TILE_ROWS) * problem.n.div_ceil(form.columns) * problem.batches();
    let groups = tiles.min(site.caps.processor_count());

    let k = site.builder("matmul_warpgroup", GROUP);
    let l = Launch::new(&k);
    let a = LeftOperand::declare(&l, form, problem, packed_a.as_ref());
    let b = l.bind("b", Elem::U32, Access::Read, packed_b.memory);
    let (m, n) = (l.size("m", problem.m), l.size("n", problem.n));
    let tiles = l.size("tiles", tiles);
    let k_steps = l.size("k_steps", k_steps);
    let epilogue = Epilogue::declare(&l, problem, &Destination::Target, n).streaming();
    let correction = match (zeros, &packed_a, outliers) {
        (Some(zeros), ..) => Correction::ZeroPoints(ZeroPoints::declare(&l, zeros, problem, &packed_b)),
        (None, Some(a), Some(outliers)) => Correction::Scales(Scales::declare(&l, [a, &packed_b], outliers)),
        _ => Correction::None,
    };
    let walker = walk(problem, [packed_a.as_ref(), Some(&packed_b)]).declare(&l, &offsets(problem, is_split));
    let ring = Ring::declare(&k, SLOTS, SLOT);
    let work = Work { k: &k, form, m, n, tiles, k_steps, ring, walker: &walker };
    let end = TileEnd { k: &k, work: &work, epilogue, correction };

    ring.init(MULTIPLIERS);
    k.roles(vec![
        (MULTIPLIERS, REGISTERS[0], Box::new(|| work.multiply(&a, &end))),
        (GROUP / 32 - MULTIPLIERS, REGISTERS[1], Box::new(|| work.copy(b, &packed_b.matrices))),
    ]);
    let bound = l.done();
    site.dispatch(k, bound, groups, problem.cost())?;
    match outliers {
        None => Ok(()),
        Some(outliers) => tiled::emit_where(problem, LARGE, 1, &Destination::Target, Some(outliers), site),
    }
}

/// The walk over batches: of operands, or of the numbers of their packed matrices.
pub(super) fn walk(problem: &Problem<'_>, packed: [Option<&Packed>; 2]) -> Walk {
    let mut walk = problem.batch.clone();
    for (strides, packed) in walk.strides.iter_mut().zip(packed) {
        if let Some(Packed { matrices: Matrices::Numbered(numbers), .. }) = packed {
            *strides = numbers.iter().map(|number| Dim::from(*number)).collect();
        }
    }
    walk
}

/// Where the walk begins: numbers of matrices at 0.
fn offsets(problem: &Problem<'_>, are_numbered: bool) -> Vec<Dim> {
    let mut offsets = problem.offsets();
    if are_numbered {
        offsets[..2].fill(Dim::ZERO);
    }
    offsets
}

pub(super) fn wide(x: Val<'_>) -> Val<'_> {
    x.convert(Scalar::U64)
}

/// What both roles know.
pub(super) struct Work<'k, 'w> {
    k: &'k Builder,
    pub(super) form: Form,
    pub(super) m: Val<'k>,
    pub(super) n: Val<'k>,
    tiles: Val<'k>,
    pub(super) k_steps: Val<'k>,
    ring: Ring<'k>,
    pub(super) walker: &'w Walker<'k>,
}

impl<'k> Work<'k, '_> {
    fn tile(&self, number: Val<'k>) -> TileCoord<'k> {
        tile_coord_by(number, (self.m, self.n, self.k_steps), (TILE_ROWS, self.form.columns), BAND, None)
    }

    /// The number of a batch's packed matrix of A (0) or B (1); `None` where all batches have the same.
    pub(super) fn matrix(&self, matrices: &Matrices, side: usize, batch: Val<'k>) -> Option<Val<'k>> {
        match matrices {
            Matrices::One => None,
            Matrices::Each => Some(batch),
            Matrices::Numbered(_) => Some(self.walker.at(batch)[side]),
        }
    }

    /// One thread copies the blocks of B, tile after tile, as slots become free.
    fn copy(&self, b: Buf<'k>, matrices: &Matrices) {
        let (k, ring) = (self.k, self.ring);
        k.if_(k.local_index().eq(MULTIPLIERS * 32), || {
            let position = Position::of_writer(ring);
            k.for_(k.group_id(0), self.tiles, k.group_count(0), |number| {
                let tile = self.tile(number);
                let columns = self.form.columns;
                let (row, column) = (tile.first.0 / TILE_ROWS, tile.first.1 / columns);
                let across = (self.n + (columns - 1)) / columns;
                let matrix = self.matrix(matrices, 1, tile.batch);
                let column = matrix.map_or(column, |matrix| matrix * across + column);
                let first = wide(column) * wide(self.k_steps);
                k.for_(k.u32(0), self.k_steps, k.u32(1), |step| {
                    let slot = position.slot.get();
                    k.await_phase(ring.empty(slot), position.parity.get());
                    let from = (first + wide(step)) * wide(k.u32(SLOT / 4));
                    k.arrive(ring.full(slot), SLOT);
                    k.copy_async((ring.memory, slot * (SLOT / 16)), (b, from), SLOT, ring.full(slot));
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
    fn multiply(&self, a: &LeftOperand<'k>, end: &TileEnd<'k, '_>) {
        if self.form.parts > 1 {
            return self.multiply_parts(a, end);
        }
        let (k, ring, batch) = (self.k, self.ring, self.form.batch);
        let position = Position::of_reader(ring);
        let buffers: Vec<Var<'k>> = (0..2 * batch * 4).map(|_| k.var(k.u32(0))).collect();
        let zero = || if self.form.is_integer() { k.i32(0) } else { k.f32(0.0) };
        let sums: Vec<Var<'k>> = (0..self.form.columns / 2).map(|_| k.var(zero())).collect();
        let row_sums: Vec<Var<'k>> =
            (0..if end.correction.wants_row_sums() { 2 } else { 0 }).map(|_| k.var(k.i32(0))).collect();
        let held = k.var(k.u32(0));
        let leads = k.lane().eq(0u32);
        // Each block of K loads its second buffer and the next block's first; the last one that of the next tile.
        let at: Vec<Var<'k>> =
            a.starts(self, &self.tile(k.group_id(0))).into_iter().map(|start| k.var(start)).collect();
        let now = || at.iter().map(|start| start.get()).collect::<Vec<_>>();
        a.load(&now(), || k.u32(0), false, &buffers);
        k.for_(k.group_id(0), self.tiles, k.group_count(0), |number| {
            let next = number + k.group_count(0);
            let next = a.starts(self, &self.tile(next.lt(self.tiles).select(next, number)));
            let blocks = self.k_steps / (2 * batch);
            row_sums.iter().for_each(|sum| sum.set(k.i32(0)));
            k.for_(k.u32(0), blocks, k.u32(1), |block| {
                let is_last = (block + 1u32).eq(blocks);
                let here = now();
                let pitch = wide(k.u32(a.advance()));
                let following: Vec<Val<'k>> =
                    here.iter().zip(&next).map(|(at, next)| is_last.select(*next, *at + pitch)).collect();
                for step in 0..2 * batch {
                    let slot = position.slot.get();
                    k.await_phase(ring.full(slot), position.parity.get());
                    let left: [Var<'k>; 4] = std::array::from_fn(|i| buffers[4 * step as usize + i]);
                    // Of both rows in turn, before the multiply has the words.
                    if let [upper, lower] = row_sums[..] {
                        let (ones, signed) = (a.ones(block, step), self.form.elems[0] == Elem::I8);
                        for (word, sum) in left.iter().zip([upper, lower, upper, lower]) {
                            sum.set(add_bytes(word.get(), ones, sum.get(), signed));
                        }
                    }
                    let right = k.warpgroup_operand(ring.memory, slot * (SLOT / 16), [128, 256]);
                    let adds = if step == 0 { block.gt(0u32) } else { k.bool(true) };
                    k.warpgroup_fence();
                    k.warpgroup_multiply(self.form.elems, &sums, left, right, adds);
                    k.warpgroup_commit();
                    k.warpgroup_wait(1);
                    // The step before is complete: its slot is free, and so are its words of A.
                    let releases = if step == 0 { leads & block.gt(0u32) } else { leads };
                    k.if_(releases, || k.arrive(ring.empty(held.get()), 0));
                    if step == 0 {
                        a.load(&here, || block, true, &buffers);
                    }
                    if step == batch {
                        a.load(&following, || is_last.select(k.u32(0), block + 1u32), false, &buffers);
                    }
                    held.set(slot);
                    position.advance();
                }
                at.iter().zip(&following).for_each(|(at, next)| at.set(*next));
            });
            k.warpgroup_wait(0);
            k.if_(leads, || k.arrive(ring.empty(held.get()), 0));
            let row_sums: Vec<Val<'k>> =
                row_sums.iter().map(|sum| k.cluster_reduce(4, sum.get(), Reduction::Add)).collect();
            end.finish(&self.tile(number), &sums, &row_sums);
            // Stores are for some lanes only; multiplies are for all of them together.
            k.subgroup_barrier();
        });
    }

    /// The same of two f16 parts: low·high + high·low + high·high of every k-step. The sums are begun anew with every two
    /// k-steps and added to f32 registers, because the tensor cores truncate when they add: the error stays below that of a
    /// kernel that adds term by term.
    fn multiply_parts(&self, a: &LeftOperand<'k>, end: &TileEnd<'k, '_>) {
        const TOGETHER: u32 = 2;
        let (k, ring, batch) = (self.k, self.ring, self.form.batch);
        let position = Position::of_reader(ring);
        let buffers: Vec<Var<'k>> = (0..2 * batch * 8).map(|_| k.var(k.u32(0))).collect();
        let zeros = || (0..self.form.columns / 2).map(|_| k.var(k.f32(0.0))).collect::<Vec<_>>();
        let (fresh, sums): (Vec<Var<'k>>, Vec<Var<'k>>) = (zeros(), zeros());
        let leads = k.lane().eq(0u32);
        let at: Vec<Var<'k>> =
            a.starts(self, &self.tile(k.group_id(0))).into_iter().map(|start| k.var(start)).collect();
        let now = || at.iter().map(|start| start.get()).collect::<Vec<_>>();
        a.load(&now(), || k.u32(0), false, &buffers);
        k.for_(k.group_id(0), self.tiles, k.group_count(0), |number| {
            let next = number + k.group_count(0);
            let next = a.starts(self, &self.tile(next.lt(self.tiles).select(next, number)));
            sums.iter().for_each(|sum| sum.set(k.f32(0.0)));
            let blocks = self.k_steps / (2 * batch);
            k.for_(k.u32(0), blocks, k.u32(1), |block| {
                let is_last = (block + 1u32).eq(blocks);
                let here = now();
                let pitch = wide(k.u32(a.advance()));
                let following: Vec<Val<'k>> =
                    here.iter().zip(&next).map(|(at, next)| is_last.select(*next, *at + pitch)).collect();
                for first in (0..2 * batch).step_by(TOGETHER as usize) {
                    let mut slots = Vec::with_capacity(TOGETHER as usize);
                    for step in first..first + TOGETHER {
                        let slot = position.slot.get();
                        k.await_phase(ring.full(slot), position.parity.get());
                        let words = &buffers[8 * step as usize..][..8];
                        let [high, low] = [0, 4].map(|part| std::array::from_fn(|i| words[part + i]));
                        // The low part of B, then the high one.
                        let [b_low, b_high] = [0, SLOT / 2 / 16].map(|part| {
                            k.warpgroup_operand(ring.memory, slot * (SLOT / 16) + part, [128, 256])
                        });
                        let elems = self.form.elems;
                        k.warpgroup_fence();
                        k.warpgroup_multiply(elems, &fresh, high, b_low, k.bool(step > first));
                        k.warpgroup_multiply(elems, &fresh, low, b_high, k.bool(true));
                        k.warpgroup_multiply(elems, &fresh, high, b_high, k.bool(true));
                        k.warpgroup_commit();
                        slots.push(slot);
                        position.advance();
                    }
                    // The other buffer's steps are complete.
                    if first == 0 {
                        a.load(&here, || block, true, &buffers);
                    }
                    if first == batch {
                        a.load(&following, || is_last.select(k.u32(0), block + 1u32), false, &buffers);
                    }
                    k.warpgroup_wait(0);
                    k.if_(leads, || slots.iter().for_each(|slot| k.arrive(ring.empty(*slot), 0)));
                    sums.iter().zip(&fresh).for_each(|(sum, fresh)| sum.set(sum.get() + fresh.get()));
                }
                at.iter().zip(&following).for_each(|(at, next)| at.set(*next));
            });
            end.finish(&self.tile(number), &sums, &[]);
            // Stores are for some lanes only; multiplies are for all of them together.
            k.subgroup_barrier();
        });
    }
}
