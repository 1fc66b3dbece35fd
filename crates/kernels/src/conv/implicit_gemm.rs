//! Convolutions as matmuls of filters with gathered pixels: by cooperative matrices, by tiles in workgroup memory,
//! or directly where a group has few filters.

use olivine_ir::Dim;
use std::rc::Rc;

use olivine_kernel::{Val, Var};
use olivine_program::{DeviceCaps, DeviceKind};

use crate::conv::coop;
use crate::conv::taps::{Class, Taps};
use crate::launch::{Launch, bytes};
use crate::math;
use crate::matmul::choice::{LARGE, MEDIUM, SMALL, Tile};
use crate::matmul::epilogue::{BatchOffset, Destination, Epilogue, accumulator_elem};
use crate::matmul::problem::{Axis, Layout, Problem};
use crate::matmul::tiled::panel::{IndexMode, TileOperand, TileSpan};
use crate::matmul::tiled::{TileWork, declare_strides, multiply, swizzle};
use crate::matmul::{multiply_add, split_k};
use crate::site::{Memory, Operand, Site, choose_by_class, class_of, linear_group};

/// A tile for up to 64 filters and many pixels.
pub(crate) const BROAD: Tile = Tile { m: 64, n: 128, k: 16, rows: 8, columns: 8, unroll: 16 };
/// A tile for up to 16 filters.
pub(crate) const SMALL_M: Tile = Tile { m: 16, n: 128, k: 16, rows: 4, columns: 8, unroll: 16 };

/// Filters of a group up to which an invocation may sum all of them for its pixels.
const FEW: usize = 4;
/// Neighbouring pixels of an invocation that does so.
const RUN: usize = 4;
/// Taps whose loads are in flight at once there.
const UNDER_WAY: u32 = 4;

/// How a convolution is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Choice {
    /// There is no result.
    Empty,
    /// Sums have no terms.
    Zeros,
    /// Tiles in workgroup memory; K in `splits` parts.
    Tiled {
        /// The tile.
        tile: Tile,
        /// Parts of K.
        splits: usize,
    },
    /// Every invocation sums all filters of a group for a run of pixels.
    Direct,
}

/// Sizes of a convolution.
#[derive(Clone, Debug)]
pub(crate) struct Shape {
    /// Filters of a group.
    pub(crate) m: usize,
    /// Columns of every class.
    pub(crate) columns: Vec<usize>,
    /// The most indices along K of a class.
    pub(crate) k: usize,
    pub(crate) groups: usize,
}

/// Invocations that keep a device busy.
fn busy(caps: &DeviceCaps) -> usize {
    match caps.kind {
        DeviceKind::Cpu => 1 << 10,
        DeviceKind::Integrated => 1 << 13,
        _ => 1 << 15,
    }
}

/// Chooses what should take the least time: the work, what tiles add to it at the edges included, over the rate of
/// the kernel when the device is busy, over how busy it is.
pub(crate) fn choose(shape: &Shape, scalar: u32, caps: &DeviceCaps) -> Choice {
    let columns: usize = shape.columns.iter().sum();
    if shape.m * columns * shape.groups == 0 {
        return Choice::Empty;
    }
    if shape.k == 0 {
        return Choice::Zeros;
    }
    let busy = busy(caps);
    let time = |work: usize, rate: f64, invocations: usize| {
        work as f64 / rate / (invocations as f64 / busy as f64).min(1.0)
    };
    // A part should be worth its own sum.
    let least = if caps.kind == DeviceKind::Cpu { 256 } else { 128 };
    let short = caps.wants_short_kernels_for((shape.m * columns * shape.groups).saturating_mul(shape.k));
    let of_tile = |(tile, rate): (Tile, f64)| {
        let tile = if scalar > 4 { tile.wide() } else { tile };
        let tile = if short { tile.rolled() } else { tile };
        let across: usize = shape.columns.iter().map(|n| n.div_ceil(tile.n as usize)).sum();
        let groups = shape.m.div_ceil(tile.m as usize) * across * shape.groups;
        let invocations = groups * tile.group() as usize;
        let wanted = (busy / invocations).min(shape.k / least).clamp(1, 64);
        // No part may be empty: a tile loads before it asks.
        let chunk = shape.k.div_ceil(wanted).next_multiple_of(tile.k as usize);
        let splits = shape.k.div_ceil(chunk);
        let work = groups * (tile.m * tile.n) as usize;
        let rate = if splits > 1 { rate * 0.9 } else { rate };
        (time(work, rate, invocations * splits), Choice::Tiled { tile, splits })
    };
    // Rates are relative to the large tile's. 64-bit sums of 64 results would not stay in registers, and half a
    // narrow tile's index along K is less than one element for each invocation.
    let tiles = [(LARGE, 1.0), (BROAD, 0.9), (MEDIUM, 0.75), (SMALL, 0.45), (SMALL_M, 0.35)];
    let fits = |tile: &Tile| {
        let long = short && [LARGE, BROAD, SMALL_M].contains(tile);
        let tile = if scalar > 4 { tile.wide() } else { *tile };
        !long
            && tile.fits(caps, scalar)
            && (scalar <= 4 || ![LARGE, BROAD, SMALL_M].contains(&Tile { k: 16, unroll: 16, ..tile }))
    };
    let mut candidates: Vec<(f64, Choice)> =
        tiles.into_iter().filter(|(tile, _)| fits(tile)).map(of_tile).collect();
    if shape.m <= FEW {
        let runs = columns.div_ceil(RUN) * shape.groups;
        let rate = 0.04 * (1 + shape.m) as f64;
        candidates.push((time(runs * RUN * shape.m, rate, runs), Choice::Direct));
    }
    let best = candidates.into_iter().min_by(|a, b| a.0.total_cmp(&b.0));
    best.map_or(Choice::Direct, |(_, choice)| choice)
}

/// Lowers a convolution given as a matmul with taps; `extras` are its further operands as they broadcast to the
/// target.
pub(crate) fn convolve(problem: &Problem<'_>, extras: &[Operand], site: &mut Site<'_>) -> Result<(), String> {
    let Some(taps) = &problem.taps else { return Err("a convolution needs taps".into()) };
    let elem = accumulator_elem(math::elem(problem.dtype()));
    if !site.caps.target.has(elem.scalar()) {
        return Err(format!("the device has no {elem}"));
    }
    let k_number = if problem.b.operand.sizes().numel() == 0 { 0 } else { problem.k_number() };
    let (m, groups) = (problem.rows(), problem.batch_count());
    if k_number > 0
        && let Some(choice) = coop::choose(problem, taps, site.caps)
    {
        return coop::lower(problem, taps, &choice, extras, site);
    }
    let caps = site.caps;
    let choose_for =
        |columns: Vec<usize>| choose(&Shape { m, columns, k: k_number, groups }, elem.size(), caps);
    let choice = match taps.classes.as_slice() {
        [class] => choose_by_class(taps.columns(class), |columns| choose_for(vec![columns])),
        // Strides that divide the result leave as many pixels in every class.
        [first, others @ ..] if others.iter().all(|other| is_alike(taps, first, other)) => {
            choose_by_class(taps.columns(first), |columns| choose_for(vec![columns; taps.classes.len()]))
        }
        classes => choose_for(classes.iter().map(|c| class_of(taps.columns(c))).collect()),
    };
    let (tile, splits) = match choice {
        Choice::Empty => return Ok(()),
        Choice::Zeros => {
            let none = site.scratch(16);
            return split_k::emit(problem, none, 0, extras, site);
        }
        Choice::Tiled { tile, splits } => (tile, splits),
        Choice::Direct => {
            let table = taps.store(site)?;
            return direct(problem, taps, table, site);
        }
    };
    let table = taps.store(site)?;
    let size = problem.target.ty.shape.sizes().numel() * elem.size();
    let parts = (splits > 1).then(|| site.scratch(size * splits));
    let destination = parts.map_or(Destination::Target, Destination::Partials);
    tiles(problem, taps, table, (tile, splits), &destination, site)?;
    match parts {
        Some(parts) => split_k::emit(problem, parts, splits, extras, site),
        None => Ok(()),
    }
}

/// Whether two classes have as many columns, for all sizes.
fn is_alike(taps: &Taps, a: &Class, b: &Class) -> bool {
    taps.columns(a).structural() == taps.columns(b).structural()
}

/// Operations, and bytes that must move at least.
fn cost(problem: &Problem<'_>, taps: &Taps) -> (Dim, Dim) {
    let terms: Dim = taps.classes.iter().map(|c| taps.columns(c) * c.taps.len()).sum();
    let flops = 2 * problem.m * problem.batches() * terms;
    let operands = [&problem.a.operand, &problem.b.operand].into_iter();
    let read = operands.chain(problem.extras.iter().map(|e| &e.operand)).map(|o| bytes(&o.ty)).sum::<Dim>();
    (flops, read + bytes(&problem.target.ty))
}

/// The part of a number that counts below `count`, and the rest; nothing is divided by a count of one.
fn peel<'k>(number: Val<'k>, count: Option<Val<'k>>) -> (Val<'k>, Val<'k>) {
    match count {
        Some(count) => {
            let rest = number / count;
            (number - rest * count, rest)
        }
        None => (number.builder().u32(0), number),
    }
}

/// Emits a convolution by tiles, the K in `splits` parts.
fn tiles(
    problem: &Problem<'_>,
    taps: &Taps,
    table: Memory,
    (tile, splits): (Tile, usize),
    destination: &Destination,
    site: &mut Site<'_>,
) -> Result<(), String> {
    let (n, k_offset) = taps.most();
    let (down, across) = (problem.rows().div_ceil(tile.m as usize), n.div_ceil(tile.n));
    let (batches, classes) = (problem.batch_count(), taps.classes.len());
    let groups = across * (down * batches * classes * splits);
    let chunk = k_offset.div_ceil(splits).next_multiple_of(tile.k as usize);
    let whole = |k_size: usize| k_size > 0 && k_size.is_multiple_of(tile.k as usize);
    let tail = (classes > 1 && splits > 1) || !taps.classes.iter().all(|c| whole(c.taps.len()));

    let k = site.builder("conv_tiled", tile.group());
    let l = Launch::new(&k);
    let (a, b) = (l.read("a", &problem.a.operand), l.read("b", &problem.b.operand));
    let m = l.size("m", problem.rows());
    let (down, across) = (l.size("down", down), l.size("across", across));
    let total = l.size("groups", groups);
    let count = |name: &str, count: usize| (count > 1).then(|| l.size(name, count));
    let (batches, classes) = (count("batches", batches), count("classes", classes));
    let parts = (splits > 1)
        .then(|| (l.size("chunk", chunk), l.size("part", problem.target.ty.shape.sizes().numel())));
    let row = l.stride("row", problem.out.0);
    let taps = Rc::new(taps.declare(&l, table));
    let epilogue = Epilogue::declare(&l, problem, destination, m);
    let walker = problem.batch.declare(&l, &problem.offsets());
    let a_layout = problem.layout_of_a();
    let (a_outer, a_k_stride) = declare_strides(&l, "a", &problem.a, a_layout);
    let b_layout = Layout { along: if problem.b.outer < 4 { Axis::Outer } else { Axis::K }, lanes: 1 };

    let id = linear_group(&k);
    k.if_(id.lt(total), || {
        let (within, rest) = peel(id, Some(down * across));
        let (row_tile, column_tile) = swizzle(within, down, across);
        let (batch, rest) = peel(rest, batches);
        let (number, part) = peel(rest, classes);
        let class = taps.class(number, true);
        let k_size = class.k_size;
        let group = batch * m * row;
        let (start, end, out) = match parts {
            Some((chunk, size)) => (part * chunk, (part * chunk + chunk).min(k_size), part * size + group),
            None => (k.u32(0), k_size, group),
        };
        let at = walker.at(batch);
        let source = |buffer, layout, outer, k_stride, base, reach| TileOperand {
            buffer,
            layout,
            outer,
            k_stride,
            base,
            k_size,
            tail,
            reach,
        };
        let weights = if problem.a.k_stride == 1 {
            IndexMode::Strides
        } else {
            IndexMode::Weights(Rc::clone(&taps), class.clone())
        };
        let (zero, gathered) = (k.u32(0), IndexMode::Taps(Rc::clone(&taps), class.clone()));
        let first = column_tile * tile.n;
        let work = TileWork {
            a: source(a, a_layout, a_outer, a_k_stride, at[0], weights),
            b: source(b, b_layout, zero, zero, at[1], gathered),
            rows: TileSpan { first: row_tile * tile.m, end: m, order: None },
            columns: TileSpan { first, end: class.columns, order: None },
            start,
            end,
            base: BatchOffset { out, extras: at[2..].to_vec() },
        };
        k.if_(first.lt(class.columns), || multiply(&k, tile, work, &epilogue.over(taps, class)));
    });
    let bound = l.done();
    let Some(taps) = &problem.taps else { return Ok(()) };
    site.dispatch(k, bound, groups, cost(problem, taps))
}

/// Emits a convolution of few filters to a group: an invocation sums all of them for a run of pixels.
fn direct(problem: &Problem<'_>, taps: &Taps, table: Memory, site: &mut Site<'_>) -> Result<(), String> {
    let (n, _) = taps.most();
    let (batches, classes) = (problem.batch_count(), taps.classes.len());
    let runs = n.div_ceil(RUN);
    let items = runs * (batches * classes);

    let group = site.group_size(128);
    let k = site.builder("conv_direct", group);
    let l = Launch::new(&k);
    let (a, b) = (l.read("a", &problem.a.operand), l.read("b", &problem.b.operand));
    let (runs, total) = (l.size("runs", runs), l.size("items", items));
    let count = |name: &str, count: usize| (count > 1).then(|| l.size(name, count));
    let (batches, classes) = (count("batches", batches), count("classes", classes));
    let row = l.stride("row", problem.out.0);
    let outer = l.stride("a_outer", problem.a.outer);
    let declared = Rc::new(taps.declare(&l, table));
    let epilogue = Epilogue::declare(&l, problem, &Destination::Target, runs);
    let walker = problem.batch.declare(&l, &problem.offsets());

    let id = linear_group(&k) * group + k.local_index();
    k.if_(id.lt(total), || {
        let (run, rest) = peel(id, Some(runs));
        let (batch, rest) = peel(rest, batches);
        let (number, _) = peel(rest, classes);
        let class = declared.class(number, false);
        let first = run * RUN;
        let at = walker.at(batch);
        let last = class.columns.max(1u32) - 1u32;
        let columns: Vec<Val<'_>> = (0..RUN).map(|i| (first + i).min(last)).collect();
        let offsets_of = declared.offsets_of(&class, at[1], &columns);
        let zero = k.number(accumulator_elem(a.elem()).scalar(), 0.0);
        let sums: Vec<Var<'_>> = (0..problem.rows() * RUN).map(|_| k.var(zero)).collect();
        let round = |k_size: &[Val<'_>]| {
            let mut running: Vec<Val<'_>> = sums.iter().map(|s| s.get()).collect();
            let loaded: Vec<(Vec<Val<'_>>, Vec<Val<'_>>)> = k_size
                .iter()
                .map(|k_offset| {
                    let entry = declared.entry(&class, *k_offset);
                    let pixels = offsets_of.iter().map(|pixel| {
                        let index = pixel.index + entry.offset;
                        match declared.inside(&pixel.bounds, &entry.bounds) {
                            Some(inside) => {
                                let value = b.load(inside.select(index, k.u32(0)));
                                inside.select(value, zero)
                            }
                            None => b.load(index),
                        }
                    });
                    let pixels = pixels.collect();
                    let weight = at[0] + declared.weight(&class, *k_offset);
                    (pixels, (0..problem.rows()).map(|r| a.load(weight + outer * r)).collect())
                })
                .collect();
            for (pixels, weights) in &loaded {
                for (sums, weight) in running.chunks_mut(RUN).zip(weights) {
                    sums.iter_mut().zip(pixels).for_each(|(sum, x)| *sum = multiply_add(*weight, *x, *sum));
                }
            }
            sums.iter().zip(running).for_each(|(var, value)| var.set(value));
        };
        let whole = class.k_size / UNDER_WAY * UNDER_WAY;
        k.for_(k.u32(0), whole, k.u32(UNDER_WAY), |k_offset| {
            let k_size: Vec<Val<'_>> = (0..UNDER_WAY).map(|i| k_offset + i).collect();
            round(&k_size);
        });
        k.for_(whole, class.k_size, k.u32(1), |k_offset| round(&[k_offset]));
        let base = BatchOffset { out: batch * problem.rows() * row, extras: at[2..].to_vec() };
        let epilogue = epilogue.over(declared, class);
        let offsets_of = epilogue.offsets_of(first, RUN);
        for (r, sums) in sums.chunks(RUN).enumerate() {
            let values: Vec<Val<'_>> = sums.iter().map(|s| s.get()).collect();
            epilogue.store_at(&base, k.u32(r as u32), &offsets_of, &values);
        }
    });
    let bound = l.done();
    site.dispatch(k, bound, items.div_ceil(group), cost(problem, taps))
}
