//! Matmuls by cooperative matrices: operands of 16 bits, or of 32 where memory is typed ([`form::MatrixForm`]); sums in
//! the matrices of subgroups.

pub(crate) mod block_store;
pub(crate) mod blocks;
pub(crate) mod form;
pub(crate) mod operands;
pub(crate) mod packed;
pub(crate) mod staging;
pub(crate) mod store;
#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic, reason = "a failed expectation is a failed test")]
pub(crate) mod tests;

use std::cell::RefCell;

use olivine_kernel::{Builder, Elem, MatrixType, MatrixUse, Shared, Val, Var};

use crate::launch::Launch;
use crate::math;
use crate::matmul::coop::blocks::CoopTile;
use crate::matmul::coop::form::MatrixForm;
use crate::matmul::coop::operands::{DeclaredOperand, KLoop, OperandLoader, PreparedOperand, SubgroupSpan};
use crate::matmul::coop::store::{AccumulatorStore, StorePrecision, f16_slots, stages_as_f16};
use crate::matmul::epilogue::{BatchOffset, Destination, Epilogue, LoadedInputs};
use crate::matmul::problem::Problem;
use crate::matmul::tiled::panel::TileSpan;
use crate::matmul::tiled::{TileCoord, tile_coord_by};
use crate::site::{Site, linear_group};

/// M, N and K of a matrix of [`MatrixForm::CARD`].
pub(crate) const SIDE: u32 = 16;
/// Lanes of a subgroup of [`MatrixForm::CARD`].
pub(crate) const LANES: u32 = 32;

/// The type of matrices of [`MatrixForm::CARD`].
pub(crate) fn matrix(elem: Elem, role: MatrixUse) -> MatrixType {
    MatrixType { elem, rows: SIDE, columns: SIDE, role }
}

/// Emits a matmul by cooperative matrices, K in `splits` parts.
pub(crate) fn emit(
    problem: &Problem<'_>,
    blocks: CoopTile,
    splits: usize,
    destination: &Destination,
    site: &mut Site<'_>,
) -> Result<(), String> {
    let batches = problem.batches();
    let tiles = problem.m.div_ceil(blocks.m) * problem.n.div_ceil(blocks.n);
    let groups = tiles * batches * splits;
    let chunk = problem.k.div_ceil(splits).next_multiple_of(blocks.k_step);
    let (a_sizes, b_sizes) = ((problem.m, problem.k), (problem.n, problem.k));
    let a_given = PreparedOperand::new(blocks.ways.0, &problem.a, a_sizes, MatrixUse::A, site)?;
    let b_given = PreparedOperand::of_b(blocks.ways.1, problem, b_sizes, site)?;

    let k = site.builder("matmul_coop", blocks.group());
    let l = Launch::new(&k);
    let jumps = &problem.batch.strides;
    let a = DeclaredOperand::declare(&l, "a", &a_given, &problem.a, a_sizes, &jumps[0]);
    let b = DeclaredOperand::declare(&l, "b", &b_given, &problem.b, b_sizes, &jumps[1]);
    let (m, n, all) = (l.size("m", problem.m), l.size("n", problem.n), l.size("k", problem.k));
    let total = l.size("groups", groups);
    let parts = (splits > 1).then(|| (l.size("chunk", chunk), l.size("batches", batches)));
    let epilogue = Epilogue::declare(&l, problem, destination, n);
    let walker = problem.batch.declare(&l, &problem.offsets());
    let tail = !problem.k.is_multiple_of(blocks.k_step);

    let id = linear_group(&k);
    k.if_(id.lt(total), || {
        let TileCoord { first, rest, batch, start, end } =
            tile_coord_by(id, (m, n, all), (blocks.m, blocks.n), blocks.band, parts);
        let at = walker.at(batch);
        let parts = blocks.m / blocks.rows * (blocks.n / blocks.columns);
        let (slice, subgroup) = (k.subgroup_id() / parts, k.subgroup_id() % parts);
        let across = blocks.n / blocks.columns;
        let span = |first, end| TileSpan { first, end, order: None };
        let (rows, columns) = (blocks.rows, blocks.columns);
        let down = SubgroupSpan {
            span: span(first.0, m),
            mine: subgroup / across * rows,
            block: blocks.m,
            part: rows,
        };
        let wide = SubgroupSpan {
            span: span(first.1, n),
            mine: subgroup % across * columns,
            block: blocks.n,
            part: columns,
        };
        let (step, form) = (blocks.k_step, blocks.form);
        let own = step / blocks.slices;
        let from = slice * own;
        let past = if tail { (end + (step - 1)) / step * step } else { end };
        let k_loop = KLoop { start, end, past, all, step, from, own, ahead: blocks.ahead, tail, form };
        let elem = math::elem(problem.dtype());
        let a = OperandLoader::new(&k, &a, form.matrix(elem, MatrixUse::A), &down, &k_loop, at[0]);
        let b = OperandLoader::new(&k, &b, form.matrix(elem, MatrixUse::B), &wide, &k_loop, at[1]);
        let side = form.side;
        let measures = (rows / side, columns / side);
        let base = BatchOffset { out: rest * m * n, extras: at[2..].to_vec() };
        let panels = [&a, &b].iter().map(|feed| feed.slots()).sum();
        let halves = epilogue.accepts_rounded()
            && blocks.slices == 1
            && stages_as_f16(problem.dtype(), panels, parts, k.target());
        let epilogue = epilogue.of_rounded(halves);
        let (memory, slots, grain) = if halves {
            let slots = f16_slots(parts);
            (k.shared(Elem::U32, 2, slots), slots, StorePrecision::F16)
        } else {
            let (memory, slots) = store_memory(&k, form, [&a, &b], parts * blocks.slices);
            (memory, slots, StorePrecision::F32)
        };
        let out = AccumulatorStore {
            k: &k,
            form,
            memory,
            slots,
            grain,
            subgroup,
            slice,
            subgroups: parts,
            slices: blocks.slices,
        };
        let at_once = out.at_once().min(1 << measures.1.trailing_zeros());
        let places = (0..measures.0).flat_map(|i| {
            let row = first.0 + down.mine + i * side;
            (0..measures.1).step_by(at_once as usize).map(move |j| (row, first.1 + wide.mine + j * side))
        });
        let block_epilogue = BlockEpilogue {
            out: &out,
            epilogue: &epilogue,
            base: &base,
            end: m,
            places: places.collect(),
            at_once,
        };
        // Small blocks have registers for what comes with their sums, and little else to hide its latency.
        let early = if rows * columns <= SMALL { block_epilogue.all_beside() } else { Vec::new() };
        let sums = if blocks.carry {
            multiply_pipelined(&k, (&a, &b), measures, &k_loop, elem)
        } else {
            multiply(&k, (&a, &b), measures, &k_loop)
        };
        // The panels are free from here on.
        k.barrier();
        block_epilogue.store(&sums, measures.1 as usize, early);
    });
    let bound = l.done();
    site.dispatch(k, bound, groups, problem.cost())
}

/// The accumulators of a subgroup, a grid of matrices in registers.
struct Accumulators<'k> {
    wide: u32,
    kept: Vec<Var<'k>>,
    now: Vec<Val<'k>>,
}

impl<'k> Accumulators<'k> {
    fn new(k: &'k Builder, form: MatrixForm, (down, wide): (u32, u32)) -> Self {
        let zero = k.f32(0.0).splat(form.matrix(Elem::F32, MatrixUse::Accumulator));
        Accumulators { wide, kept: (0..down * wide).map(|_| k.var(zero)).collect(), now: Vec::new() }
    }

    fn take(&mut self) {
        self.now = self.kept.iter().map(|s| s.get()).collect();
    }

    fn keep(&mut self) {
        self.kept.iter().zip(self.now.drain(..)).for_each(|(var, value)| var.set(value));
    }

    /// Multiplies a column of matrices by the j-th matrix of B and accumulates.
    fn add(&mut self, x: &[Val<'k>], y: Val<'k>, j: u32) {
        for (i, x) in x.iter().enumerate() {
            let sum = &mut self.now[i * self.wide as usize + j as usize];
            *sum = x.matrix_mul_add(y, *sum);
        }
    }

    fn add_all(&mut self, x: &[Val<'k>], y: &[Val<'k>]) {
        (0u32..).zip(y).for_each(|(j, y)| self.add(x, *y, j));
    }
}

/// Multiplies a block; each step's matrices when they have come. The whole workgroup must call it.
pub(crate) fn multiply<'k>(
    k: &'k Builder,
    (a, b): (&OperandLoader<'k>, &OperandLoader<'k>),
    measures: (u32, u32),
    k_loop: &KLoop<'k>,
) -> Vec<Val<'k>> {
    let panels = || [a, b].into_iter().filter_map(OperandLoader::words);
    let sums = RefCell::new(Accumulators::new(k, k_loop.form, measures));
    k.for_(k_loop.start, k_loop.end, k.u32(k_loop.step), |at| {
        if panels().next().is_some() {
            k.barrier();
            panels().for_each(|p| p.put(at));
            k.barrier();
            panels().for_each(|p| p.fetch(k_loop.next(at, k_loop.step)));
        }
        let mut sums = sums.borrow_mut();
        sums.take();
        for k_offset in (0..k_loop.own).step_by(k_loop.form.side as usize) {
            let x = a.all(k_loop, at, k_offset);
            // One by one, so that few are in registers.
            match b {
                OperandLoader::Panel { .. } => {
                    let y = (0..measures.1).filter_map(|j| Some((j, b.panel_matrix(j, k_offset)?)));
                    y.for_each(|(j, y)| sums.add(&x, y, j));
                }
                OperandLoader::Packed(_) => sums.add_all(&x, &b.all(k_loop, at, k_offset)),
            }
        }
        sums.keep();
    });
    sums.into_inner().kept.iter().map(|s| s.get()).collect()
}

/// Multiplies a block; the last matrices of each step while the next step's come. The whole workgroup must come here
/// together.
fn multiply_pipelined<'k>(
    k: &'k Builder,
    (a, b): (&OperandLoader<'k>, &OperandLoader<'k>),
    measures: (u32, u32),
    k_loop: &KLoop<'k>,
    elem: Elem,
) -> Vec<Val<'k>> {
    let panels = || [a, b].into_iter().filter_map(OperandLoader::words);
    let none = |role, count: u32| -> Vec<Var<'k>> {
        let zero = k.f32(0.0).splat(k_loop.form.matrix(elem, role));
        (0..count).map(|_| k.var(zero)).collect()
    };
    let (x_late, y_late) = (none(MatrixUse::A, measures.0), none(MatrixUse::B, measures.1));
    let get = |vars: &[Var<'k>]| -> Vec<Val<'k>> { vars.iter().map(|v| v.get()).collect() };
    let set = |vars: &[Var<'k>], to: Vec<Val<'k>>| vars.iter().zip(to).for_each(|(var, x)| var.set(x));
    let sums = RefCell::new(Accumulators::new(k, k_loop.form, measures));
    k.for_(k_loop.start, k_loop.end, k.u32(k_loop.step), |at| {
        // All have read the step before: they came to the barrier below.
        panels().for_each(|p| p.put(at));
        k.barrier();
        panels().for_each(|p| p.fetch(k_loop.next(at, k_loop.step)));
        let mut sums = sums.borrow_mut();
        sums.take();
        let (mut x, mut y) = (get(&x_late), get(&y_late));
        for k_offset in (0..k_loop.own).step_by(k_loop.form.side as usize) {
            let next = (a.all(k_loop, at, k_offset), b.all(k_loop, at, k_offset));
            if k_offset + k_loop.form.side == k_loop.own {
                k.barrier();
            }
            sums.add_all(&x, &y);
            (x, y) = next;
        }
        set(&x_late, x);
        set(&y_late, y);
        sums.keep();
    });
    let mut sums = sums.into_inner();
    sums.take();
    sums.add_all(&get(&x_late), &get(&y_late));
    sums.now
}

/// Elements of a subgroup's part up to which what comes with the sums is loaded before them.
const SMALL: u32 = 1024;

/// Where a subgroup's sums leave the kernel.
struct BlockEpilogue<'x, 'k> {
    out: &'x AccumulatorStore<'k>,
    epilogue: &'x Epilogue<'k, 'x>,
    base: &'x BatchOffset<'k>,
    /// One past the last row.
    end: Val<'k>,
    /// Where the matrices begin that leave together.
    places: Vec<(Val<'k>, Val<'k>)>,
    /// How many do.
    at_once: u32,
}

impl<'k> BlockEpilogue<'_, 'k> {
    /// What the epilogue takes besides the sums at the i-th position; nothing where it is to be loaded with them.
    fn beside(&self, i: usize) -> Vec<LoadedInputs<'k>> {
        // Of a long way to memory there is one copy for all rows.
        let preload = self.epilogue.preload().filter(|alike| *alike || !self.epilogue.is_heavy());
        let (Some((row, column)), Some(alike)) = (self.places.get(i), preload) else { return Vec::new() };
        let load_inputs =
            |row: Val<'k>, column: Val<'k>| self.epilogue.load_inputs(self.base, row, column, 4);
        self.out.beside(self.at_once, (*row, self.end), *column, alike, load_inputs)
    }

    fn all_beside(&self) -> Vec<Vec<LoadedInputs<'k>>> {
        (0..self.places.len()).map(|i| self.beside(i)).collect()
    }

    /// Stores the sums, so many matrices wide. What comes from memory besides, unless it was loaded early, comes while
    /// the ones before are stored.
    fn store(&self, sums: &[Val<'k>], wide: usize, early: Vec<Vec<LoadedInputs<'k>>>) {
        let mut early = early.into_iter();
        let mut load = |i: usize| early.next().unwrap_or_else(|| self.beside(i));
        let mut next = load(0);
        let runs = sums.chunks(wide).flat_map(|line| line.chunks(self.at_once as usize));
        for (i, (some, (row, column))) in runs.zip(&self.places).enumerate() {
            let now = std::mem::replace(&mut next, load(i + 1));
            let way = (self.epilogue.is_heavy(), now.as_slice());
            let (epilogue, base) = (self.epilogue, self.base);
            self.out.store_with(
                some,
                (*row, self.end),
                *column,
                way,
                |row, column, sums, loaded| match loaded {
                    Some(loaded) => epilogue.store_with_inputs(base, row, column, sums, loaded),
                    None => epilogue.store(base, row, column, sums),
                },
            );
        }
    }
}

/// Memory for accumulators that are stored, once nobody reads the panels any more: a panel's, or some of its own; and
/// its slots. The whole workgroup must call it.
pub(crate) fn store_memory<'k>(
    k: &'k Builder,
    form: MatrixForm,
    feeds: [&OperandLoader<'k>; 2],
    subgroups: u32,
) -> (Shared<'k>, u32) {
    let least = form.min_store_slots(subgroups);
    let panel = |feed: &&OperandLoader<'k>| match feed {
        OperandLoader::Panel { memory, slots, .. } if *slots >= least && !form.is_typed => {
            Some((*memory, *slots))
        }
        _ => None,
    };
    let own = form.store_slots(subgroups);
    let panel = feeds.iter().filter_map(panel).max_by_key(|(_, slots)| *slots);
    panel.unwrap_or_else(|| (form.store_memory(k, own), own))
}
