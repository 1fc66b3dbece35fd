//! Convolution by tiles that read their operands in their own layout, without im2col.

use std::ops::Range;
use std::sync::OnceLock;

use super::Problem;
use super::depthwise::{self, Channels, Depthwise};
use super::filters::{self, FilterTile, PANELS, POSITIONS};
use super::in_place::{self, InPlace, LINES, Rows};
use super::plan::{Band, BandInput, Keep, Plan, farthest};
use super::planes::Planes;
use super::real::Real;
use super::scratch::with_scratch;
use super::tile::{EpilogueOp, TILE, Tile, compute, rows};
use super::transpose_block::{Block, rows_of};
use super::vector::{ConvVector, Job, lanes};
use super::weights::Panels;
use crate::kernels::gemm::Grid;
use crate::parallel;
use crate::scratch;
use crate::simd::Vectors;

/// The epilogue of a convolution: what happens to sums before they are stored.
pub(crate) struct ConvEpilogue<'a, T> {
    /// First `sum · scale + shift`, per filter; as long as all groups' panels.
    pub(crate) scale: Vec<T>,
    pub(crate) shift: Vec<T>,
    /// Then these.
    pub(crate) ops: Vec<EpilogueOp<T>>,
    /// Then this on a tile in the nearest cache: its elements, as many to write to, its width and its first filter.
    pub(crate) tile: Option<&'a TileEpilogue<'a, T>>,
    /// Then this on every run of the result: its first flat position, and its elements.
    pub(crate) run: Option<RunEpilogue<'a, T>>,
}

impl<T: Real> ConvEpilogue<'_, T> {
    /// Scale and shift of every filter, and nothing more.
    pub(crate) fn new(
        problem: &Problem<'_, T>,
        panels: &Panels<'_, T>,
        of: impl Fn(usize) -> (T, T),
    ) -> Self {
        let (filters, padded) = (problem.filters(), panels.count * panels.width);
        let (mut scale, mut shift) =
            (scratch::zeroed::<T>(problem.groups * padded), scratch::zeroed::<T>(problem.groups * padded));
        for group in 0..problem.groups {
            for f in 0..filters {
                (scale[group * padded + f], shift[group * padded + f]) = of(group * filters + f);
            }
        }
        ConvEpilogue { scale, shift, ops: Vec::new(), tile: None, run: None }
    }
}

/// See [`ConvEpilogue::run`].
pub(crate) type RunEpilogue<'a, T> = &'a (dyn Fn(usize, &mut [T]) + Sync);

/// See [`ConvEpilogue::tile`].
pub(crate) type TileEpilogue<'a, T> = dyn Fn(&mut [T], &mut [T], usize, usize) + Sync + 'a;

/// Tasks a thread gets when there is much to do, so that unequal ones even out.
const TASKS: usize = 4;
/// Weights that stay in the second-level cache beside a band.
const CACHED_WEIGHTS: usize = 64 << 10;
/// Multiply-adds worth a task of their own.
const TASK_WORK: usize = 1 << 20;

/// Convolves any problem; `known` is its cache from call to call.
pub(crate) fn convolve<T: Real>(
    problem: &Problem<'_, T>,
    panels: &Panels<'_, T>,
    epilogue: &ConvEpilogue<'_, T>,
    known: &OnceLock<Plan>,
    out: &mut [T],
) {
    if out.is_empty() {
        return;
    }
    let (set, count) = lanes::<T>();
    let known = known.get_or_init(|| Plan::new(problem, count));
    let fresh = if known.serves(count) { None } else { Some(Plan::new(problem, count)) };
    let plan = fresh.as_ref().unwrap_or(known);
    let groups = match plan.source {
        BandInput::Depthwise(_) => problem.groups.div_ceil(count),
        _ => problem.groups,
    };
    let units = problem.images * groups;
    let grid = Grid::new(out);
    let context = Context { problem, panels, epilogue, plan, grid: &grid, whole: &[] };
    let BandInput::Whole(planes) = &plan.source else {
        return context.run(set, 0..units);
    };
    with_scratch(plan.scratch, |scratch: &mut [T]| {
        for unit in 0..units {
            let channels = &mut scratch[..problem.channels * planes.channel];
            parallel::chunks(channels, planes.channel, &|channel, to| {
                let unit = (unit / problem.groups, unit % problem.groups);
                T::dispatch(set, FillWhole { context, planes, unit, channel, to });
            });
            Context { whole: scratch, ..context }.run(set, unit..unit + 1);
        }
    });
}

/// Copies one channel of a whole operand.
struct FillWhole<'a, T: Real> {
    context: Context<'a, T>,
    planes: &'a Planes,
    /// Image and group.
    unit: (usize, usize),
    channel: usize,
    to: &'a mut [T],
}

impl<T: Real> Job<T> for FillWhole<'_, T> {
    #[inline(always)]
    unsafe fn run<L: ConvVector<Elem = T>>(self) {
        let Context { problem, plan, .. } = self.context;
        let source = problem.plane(self.unit.0, self.unit.1, self.channel);
        let all = (&plan.bands[0], problem.geometry.axes[1].output);
        // Safety: the instruction set is the caller's promise.
        unsafe { self.planes.fill_channel::<L>(problem, source, all, false, self.to) };
    }
}

/// What all tasks read, and the result they write.
#[derive(Clone, Copy)]
struct Context<'a, T: Real> {
    problem: &'a Problem<'a, T>,
    panels: &'a Panels<'a, T>,
    epilogue: &'a ConvEpilogue<'a, T>,
    plan: &'a Plan,
    grid: &'a Grid<'a, T>,
    /// The operand of [`BandInput::Whole`].
    whole: &'a [T],
}

/// Tasks for one thread, each a band of one image and group for a part of the filters.
struct Share<'a, T: Real> {
    context: Context<'a, T>,
    tasks: Range<usize>,
    scratch: &'a mut [T],
}

/// One task.
#[derive(Clone, Copy)]
struct Task<'a> {
    band: &'a Band,
    image: usize,
    group: usize,
    /// First panel, and the one after the last.
    panels: (usize, usize),
}

impl<T: Real> Job<T> for Share<'_, T> {
    #[inline(always)]
    unsafe fn run<L: ConvVector<Elem = T>>(self) {
        let Context { problem, plan, panels, .. } = self.context;
        let count = plan.bands.len();
        let mut filled = None;
        let farthest = farthest(&plan.offsets);
        let mut tiles = ([T::ZERO; TILE], [T::ZERO; TILE]);
        if let BandInput::Depthwise(layout) = &plan.source {
            let blocks = problem.groups.div_ceil(L::N);
            for task in self.tasks {
                let (band, unit) = (&plan.bands[task % count], task / count);
                let (image, group) = (unit / blocks, unit % blocks * L::N);
                let task = Task { band, image, group, panels: (0, 1) };
                // Safety: the instruction set is the caller's promise.
                unsafe { self.context.work_depthwise::<L>(task, layout, self.scratch, &mut tiles.1) };
            }
            return;
        }
        for task in self.tasks {
            let (part, place) = (task % plan.parts, task / plan.parts);
            let (band, unit) = (&plan.bands[place % count], place / count);
            let (image, group) = (unit / problem.groups, unit % problem.groups);
            if filled != Some(place) {
                let again = filled.is_some_and(|f: usize| f % count == place % count);
                // Safety: the instruction set is the caller's promise.
                unsafe { plan.fill::<L>(problem, (image, group), band, again, self.scratch) };
                filled = Some(place);
            }
            let x: &[T] = match &plan.source {
                BandInput::InPlace(lines) => {
                    let task = Task { band, image, group, panels: (0, 1) };
                    // Safety: the instruction set is the caller's promise.
                    unsafe { self.context.work_in_place::<L>(task, lines, &mut tiles.1) };
                    continue;
                }
                BandInput::Direct => {
                    let channels = problem.channels * problem.geometry.input_len();
                    &problem.x[unit * channels..][..channels][band.start.min(channels)..]
                }
                BandInput::Whole(planes) => &self.context.whole[band.y * planes.pitch..],
                BandInput::Depthwise(_) | BandInput::Planes(_) | BandInput::Patches { .. } => self.scratch,
            };
            let panels = (part * panels.count / plan.parts, (part + 1) * panels.count / plan.parts);
            let seen = match band.blocks.last() {
                Some(last) if !plan.by_filters => last.at + last.vectors * L::N,
                _ => {
                    let (width, pitch) = plan.line(band);
                    (band.lines - 1) * pitch + width
                }
            };
            assert!(plan.offsets.is_empty() || farthest + seen <= x.len(), "a band's operands are whole");
            // Safety: the instruction set is the caller's promise; operands are whole as asserted.
            unsafe { self.context.work::<L>(Task { band, image, group, panels }, x, &mut tiles) };
        }
    }
}

impl<T: Real> Context<'_, T> {
    /// Computes all bands of some units, each an image and a group (or a block of groups), on all threads.
    fn run(self, set: Vectors, units: Range<usize>) {
        let Context { problem, plan, .. } = self;
        let of_unit = plan.bands.len() * plan.parts;
        let (first, tasks) = (units.start * of_unit, units.len() * of_unit);
        let shares = if plan.threads == 1 {
            1
        } else {
            (problem.work() / TASK_WORK).clamp(plan.threads, plan.threads * TASKS).min(tasks)
        };
        let scratch = if matches!(plan.source, BandInput::Whole(_)) { 0 } else { plan.scratch };
        parallel::tasks(shares, &|share| {
            let tasks = first + share * tasks / shares..first + (share + 1) * tasks / shares;
            with_scratch(scratch, |scratch: &mut [T]| {
                T::dispatch(set, Share { context: self, tasks, scratch });
            });
        });
    }

    /// Computes a task; `x` is what its band sees, `tiles` is room to work.
    ///
    /// # Safety
    /// The processor has the instruction set of `L`; every offset plus every position of the band is in `x`.
    #[inline(always)]
    unsafe fn work<L: ConvVector<Elem = T>>(
        &self,
        task: Task<'_>,
        x: &[T],
        tiles: &mut ([T; TILE], [T; TILE]),
    ) {
        let Context { problem, panels, epilogue, plan, grid, .. } = *self;
        let (filters, positions) = (problem.filters(), problem.geometry.output_len());
        let row = |f: usize| {
            ((task.image * problem.groups + task.group) * filters + f) * positions + task.band.start
        };
        let (tile, spare) = tiles;
        if plan.by_filters {
            // Safety: the caller's promise.
            return unsafe { self.work_filters::<L>(task, x, spare) };
        }
        for block in &task.band.blocks {
            let keeps = &task.band.keeps[block.keep..][..block.vectors];
            let width = block.vectors * L::N;
            // Vectors of results side by side go straight to their place.
            let straight = epilogue.tile.is_none() && keeps.iter().all(|k| k.count as usize == L::N);
            for panel in task.panels.0..task.panels.1 {
                let weights = panels.panel(task.group, panel);
                let (first, end) = (panel * panels.width, filters.min((panel + 1) * panels.width));
                let mut f = first;
                while f < end {
                    let (rows, left) = (rows::<L>(end - f, block.vectors), end - f);
                    let place = task.group * panels.count * panels.width + f;
                    let straight = straight && rows <= left;
                    let (out, out_pitch) = if straight {
                        // Safety: tasks differ in image, group, band or filters, and these runs are this task's alone.
                        let last = unsafe { grid.run(row(f + rows - 1) + keeps[0].to, width) };
                        (last.as_mut_ptr().wrapping_sub((rows - 1) * positions), positions)
                    } else {
                        (tile.as_mut_ptr(), width)
                    };
                    let sums = Tile {
                        x: x.as_ptr().wrapping_add(block.at),
                        offsets: &plan.offsets,
                        w: weights.get(f - first..).unwrap_or(&[]),
                        pitch: panels.width,
                        scale: &epilogue.scale[place..],
                        shift: &epilogue.shift[place..],
                        ops: &epilogue.ops,
                        filter: place,
                        out,
                        out_pitch,
                    };
                    // Safety: the instruction set is the caller's promise; operands are in x. A tile has room for any
                    // rows, and those of the grid that are before one inside it are inside it too.
                    unsafe { compute::<L>(&sums, rows, block.vectors) };
                    f += rows;
                    if straight {
                        continue;
                    }
                    let (tile, filter) = (&mut tile[..rows * width], task.group * filters + f - rows);
                    if let Some(finish) = epilogue.tile {
                        finish(tile, &mut spare[..rows * width], width, filter);
                    }
                    for r in 0..rows.min(left) {
                        // Safety: as above.
                        let run = unsafe { grid.run(row(f - rows + r), task.band.len) };
                        // Safety: the instruction set is the caller's promise.
                        unsafe { keep::<L>(&tile[r * width..][..width], keeps, run) };
                    }
                }
            }
        }
        self.finish_runs(task);
    }

    /// [`Context::work`] with filters in lanes.
    ///
    /// # Safety
    /// As there.
    #[inline(always)]
    unsafe fn work_filters<L: ConvVector<Elem = T>>(&self, task: Task<'_>, x: &[T], spare: &mut [T; TILE]) {
        let Context { problem, panels, epilogue, plan, grid, .. } = *self;
        let (filters, positions) = (problem.filters(), problem.geometry.output_len());
        let (width, pitch) = plan.line(task.band);
        // Lines without gaps are one.
        let (lines, width) = if pitch == width { (1, task.band.len) } else { (task.band.lines, width) };
        let (count, _) = filters::positions(width, plan.offsets.len());
        let tiles = width.div_ceil(count);
        let places = rows_of(positions);
        let mut sums = [T::ZERO; POSITIONS * PANELS * 16];
        let first = (task.image * problem.groups + task.group) * filters;
        // Weights that stay in the second-level cache serve all positions before others are read.
        let group = (CACHED_WEIGHTS / (plan.offsets.len() * PANELS * L::N).max(1)).max(1) * PANELS;
        for group in (task.panels.0..task.panels.1).step_by(group).map(|g| g..(g + group).min(task.panels.1))
        {
            for tile in 0..lines * tiles {
                // The last ones go with some before them again.
                let (line, column) = (tile / tiles, (tile % tiles * count).min(width - count));
                for panel in group.clone().step_by(PANELS) {
                    let seen = PANELS.min(group.end - panel);
                    let place = (task.group * panels.count + panel) * panels.width;
                    let tile = FilterTile {
                        x: x.as_ptr().wrapping_add(line * pitch + column),
                        offsets: &plan.offsets,
                        w: [panels.panel(task.group, panel), panels.panel(task.group, panel + seen - 1)],
                        scale: &epilogue.scale[place..],
                        shift: &epilogue.shift[place..],
                        ops: &epilogue.ops,
                        filter: place,
                        out: sums.as_mut_ptr(),
                    };
                    // Safety: the instruction set is the caller's promise; operands are inside x; the sums have room.
                    unsafe { filters::compute::<L>(&tile, count, seen) };
                    for p in 0..seen {
                        let f = (panel + p) * panels.width;
                        let columns = L::N.min(filters - f);
                        let from = sums[p * L::N..].as_ptr();
                        let block = Block { from, pitch: PANELS * L::N, rows: count, columns };
                        let start = (first + f) * positions + task.band.start + line * width + column;
                        let base = grid.corner(start, columns, count, positions);
                        // Safety: as above; the rectangle is this task's alone.
                        unsafe { block.transpose_to::<L>(count, base, &places) };
                    }
                }
            }
        }
        if epilogue.tile.is_some() {
            for f in task.panels.0 * panels.width..filters.min(task.panels.1 * panels.width) {
                // Safety: tasks differ in image, group, band or filters, and this run is this task's alone.
                let run = unsafe { grid.run((first + f) * positions + task.band.start, task.band.len) };
                self.finish_tiles(task.group * filters + f, run, spare);
            }
        }
        self.finish_runs(task);
    }

    /// Computes a task of a single filter from the operand as it is; `spare` is room to work.
    ///
    /// # Safety
    /// The processor has the instruction set of `L`.
    #[inline(always)]
    unsafe fn work_in_place<L: ConvVector<Elem = T>>(
        &self,
        task: Task<'_>,
        lines: &InPlace,
        spare: &mut [T; TILE],
    ) {
        let Context { problem, panels, epilogue, grid, .. } = *self;
        let [_, ay, ax] = &problem.geometry.axes;
        let Task { band, image, group, .. } = task;
        let (width, channel) = (ax.output, problem.geometry.input_len());
        let start = (image * problem.groups + group) * problem.geometry.output_len() + band.start;
        // Safety: tasks differ in image, group, band or filters, and this run is this task's alone.
        let out = unsafe { grid.run(start, band.len) };
        let x = &problem.x[(image * problem.groups + group) * problem.channels * channel..]
            [..problem.channels * channel];
        let shares = band.lines >= LINES && in_place::shares_rows(ay, ax);
        for block in &lines.blocks {
            let tile = Rows {
                x: x.as_ptr(),
                channel,
                channels: problem.channels,
                lines: band.lines,
                top: (band.y * ay.stride) as isize - ay.before as isize,
                height: ay.input as isize,
                pitch: ax.input as isize,
                left: (block.column * ax.stride) as isize - ax.before as isize,
                stride: ay.stride,
                kernel: (ay.taps.len(), ax.taps.len()),
                dilation: (ay.dilation, ax.dilation),
                masks: lines.masks(block),
                w: panels.panel(group, 0),
                scale: epilogue.scale[group],
                shift: epilogue.shift[group],
                ops: &epilogue.ops,
                filter: group,
                out: out[block.column..][..(band.lines - 1) * width + block.count].as_mut_ptr(),
                out_pitch: width,
                count: block.count,
            };
            // Safety: the instruction set is the caller's promise; x is whole as sliced, masks are those of the block,
            // and the lines of results are inside the run as sliced.
            unsafe {
                if shares {
                    in_place::compute_lines::<L>(&tile, block.vectors);
                } else {
                    in_place::compute_line::<L>(&tile, block.vectors, ax.stride);
                }
            }
        }
        self.finish_tiles(group, out, spare);
        self.finish_runs(task);
    }

    /// Computes a task of as many channels as there are lanes, from `task.group` on.
    ///
    /// # Safety
    /// The processor has the instruction set of `L`.
    #[inline(always)]
    unsafe fn work_depthwise<L: ConvVector<Elem = T>>(
        &self,
        task: Task<'_>,
        layout: &Depthwise,
        scratch: &mut [T],
        spare: &mut [T; TILE],
    ) {
        let Context { problem, panels, epilogue, grid, .. } = *self;
        let [_, ay, ax] = &problem.geometry.axes;
        let (plane, positions) = (problem.geometry.input_len(), problem.geometry.output_len());
        let count = L::N.min(problem.groups - task.group);
        let first = task.image * problem.groups + task.group;
        // Safety: tasks differ in image, groups or band, and these runs are this task's alone.
        let run = |c: usize| unsafe { grid.run((first + c) * positions + task.band.start, task.band.len) };
        // All channels' runs are inside the grid as the last one is.
        let out = run(count - 1).as_mut_ptr().wrapping_sub((count - 1) * positions);
        let band = Channels {
            x: &problem.x[first * plane..][..count * plane],
            plane,
            w: panels.groups(task.group, count),
            count,
            y: task.band.y,
            lines: task.band.lines,
            axes: (ay, ax),
            scale: &epilogue.scale[task.group..][..count],
            shift: &epilogue.shift[task.group..][..count],
            ops: &epilogue.ops,
            filter: task.group,
            out,
            out_pitch: positions,
        };
        // Safety: the instruction set is the caller's promise; every channel has its run.
        unsafe { depthwise::compute::<L>(layout, &band, scratch) };
        for c in 0..count {
            self.finish_tiles(task.group + c, run(c), spare);
            self.finish_runs(Task { group: task.group + c, ..task });
        }
    }

    /// What follows on tiles, for results of one filter.
    fn finish_tiles(&self, filter: usize, run: &mut [T], spare: &mut [T; TILE]) {
        let Some(finish) = self.epilogue.tile else { return };
        for tile in run.chunks_mut(TILE) {
            let len = tile.len();
            finish(tile, &mut spare[..len], len, filter);
        }
    }

    /// What follows on the runs of a task.
    fn finish_runs(&self, task: Task<'_>) {
        let Context { problem, panels, epilogue, grid, .. } = *self;
        let Some(finish) = epilogue.run else { return };
        let (filters, positions) = (problem.filters(), problem.geometry.output_len());
        for f in task.panels.0 * panels.width..filters.min(task.panels.1 * panels.width) {
            let filter = (task.image * problem.groups + task.group) * filters + f;
            let start = filter * positions + task.band.start;
            // Safety: tasks differ in image, group, band or filters, and this run is this task's alone.
            finish(start, unsafe { grid.run(start, task.band.len) });
        }
    }
}

/// Writes the lanes that are results.
///
/// # Safety
/// The processor has the instruction set of `L`.
#[inline(always)]
unsafe fn keep<L: ConvVector>(values: &[L::Elem], keeps: &[Keep], run: &mut [L::Elem]) {
    assert!(values.len() >= keeps.len() * L::N, "every vector is there");
    for (v, keep) in keeps.iter().enumerate() {
        let to = &mut run[keep.to..][..keep.count as usize];
        // Safety: a vector is read, and as many elements are written as lanes are in use, all in bounds.
        unsafe {
            let values = L::load(values.as_ptr().add(v * L::N));
            if to.len() == L::N {
                values.store(to.as_mut_ptr());
            } else {
                values.compress(keep.lanes, to.len(), to.as_mut_ptr());
            }
        }
    }
}
