//! Convolution by tiles that read their operands where they lie: no product is laid out for its own sake.

use std::ops::Range;
use std::sync::OnceLock;

use super::Problem;
use super::lanes::{Job, Lanes, copy_run, lanes};
use super::lines::{self, LINES, Lines};
use super::plan::{Band, Keep, Plan, Source, VECTORS, farthest};
use super::planes::ByLines;
use super::real::Real;
use super::scratch::with_scratch;
use super::tile::{Curve, TILE, Tile, compute, rows};
use super::weights::Panels;
use crate::kernels::product::Grid;
use crate::parallel;
use crate::scratch;

/// What happens to sums on their way into the result.
pub(crate) struct Ending<'a, T> {
    /// First `sum · scale + shift`, per filter; as long as all groups' panels.
    pub(crate) scale: Vec<T>,
    pub(crate) shift: Vec<T>,
    /// Then these.
    pub(crate) curves: Vec<Curve<T>>,
    /// Then this on a tile in the nearest cache: its elements, as many to write to, its width and its first filter.
    pub(crate) tile: Option<&'a TileEnding<'a, T>>,
    /// Then this on every run of the result: its first flat position, and its elements.
    pub(crate) run: Option<RunEnding<'a, T>>,
}

impl<T: Real> Ending<'_, T> {
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
        Ending { scale, shift, curves: Vec::new(), tile: None, run: None }
    }
}

/// See [`Ending::run`].
pub(crate) type RunEnding<'a, T> = &'a (dyn Fn(usize, &mut [T]) + Sync);

/// See [`Ending::tile`].
pub(crate) type TileEnding<'a, T> = dyn Fn(&mut [T], &mut [T], usize, usize) + Sync + 'a;

/// Tasks a thread gets when there is much to do, so that unequal ones even out.
const TASKS: usize = 4;
/// Multiply-adds worth a task of their own.
const TASK_WORK: usize = 1 << 20;

/// Convolves any problem; `known` is kept for it from call to call.
pub(crate) fn convolve<T: Real>(
    problem: &Problem<'_, T>,
    panels: &Panels<'_, T>,
    ending: &Ending<'_, T>,
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
    let tasks = problem.images * problem.groups * plan.bands.len() * plan.parts;
    let grid = Grid::new(out);
    let shares = if plan.threads == 1 {
        1
    } else {
        (problem.work() / TASK_WORK).clamp(plan.threads, plan.threads * TASKS).min(tasks)
    };
    let context = Context { problem, panels, ending, plan, grid: &grid };
    parallel::tasks(shares, &|share| {
        let tasks = share * tasks / shares..(share + 1) * tasks / shares;
        with_scratch(plan.scratch, |scratch: &mut [T]| T::dispatch(set, Share { context, tasks, scratch }));
    });
}

/// What all tasks read, and the result they write.
#[derive(Clone, Copy)]
struct Context<'a, T: Real> {
    problem: &'a Problem<'a, T>,
    panels: &'a Panels<'a, T>,
    ending: &'a Ending<'a, T>,
    plan: &'a Plan,
    grid: &'a Grid<'a, T>,
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
    unsafe fn run<L: Lanes<Elem = T>>(self) {
        let Context { problem, plan, panels, .. } = self.context;
        let count = plan.bands.len();
        let mut filled = None;
        let farthest = farthest(&plan.offsets);
        let mut tiles = ([T::ZERO; TILE], [T::ZERO; TILE]);
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
            let x: &[T] = match plan.source {
                Source::Direct => {
                    let channels = problem.channels * problem.geometry.input_len();
                    &problem.x[unit * channels..][..channels][band.start.min(channels)..]
                }
                _ => self.scratch,
            };
            let panels = (part * panels.count / plan.parts, (part + 1) * panels.count / plan.parts);
            let seen = band.blocks.last().map_or(0, |b| b.at + b.vectors * L::N);
            let seen = match &plan.by_lines {
                Some(b) => seen.max((band.lines - 1) * b.pitch + b.width.next_multiple_of(L::N)),
                None => seen,
            };
            assert!(plan.offsets.is_empty() || farthest + seen <= x.len(), "a band's operands are whole");
            // Safety: the instruction set is the caller's promise; operands are whole as asserted.
            unsafe { self.context.work::<L>(Task { band, image, group, panels }, x, &mut tiles) };
        }
    }
}

impl<T: Real> Context<'_, T> {
    /// Computes a task; `x` is what its band sees, `tiles` is room to work.
    ///
    /// # Safety
    /// The processor has the instruction set of `L`; every offset plus every position of the band lies in `x`.
    #[inline(always)]
    unsafe fn work<L: Lanes<Elem = T>>(&self, task: Task<'_>, x: &[T], tiles: &mut ([T; TILE], [T; TILE])) {
        let Context { problem, panels, ending, plan, grid } = *self;
        let (filters, positions) = (problem.filters(), problem.geometry.output_len());
        let row = |f: usize| {
            ((task.image * problem.groups + task.group) * filters + f) * positions + task.band.start
        };
        let (tile, spare) = tiles;
        if let Some(by_lines) = &plan.by_lines {
            // Safety: the caller's promise.
            unsafe { self.work_by_lines::<L>(task, by_lines, x, tile, spare) };
            return self.finish_runs(task);
        }
        for block in &task.band.blocks {
            let keeps = &task.band.keeps[block.keep..][..block.vectors];
            let width = block.vectors * L::N;
            // Vectors of results side by side go straight to their place.
            let straight = ending.tile.is_none() && keeps.iter().all(|k| k.count as usize == L::N);
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
                        scale: &ending.scale[place..],
                        shift: &ending.shift[place..],
                        curves: &ending.curves,
                        filter: place,
                        out,
                        out_pitch,
                    };
                    // Safety: the instruction set is the caller's promise; operands lie in x. A tile has room for any
                    // rows, and those of the grid that lie before one inside it lie inside it too.
                    unsafe { compute::<L>(&sums, rows, block.vectors) };
                    f += rows;
                    if straight {
                        continue;
                    }
                    let (tile, filter) = (&mut tile[..rows * width], task.group * filters + f - rows);
                    if let Some(finish) = ending.tile {
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

    /// [`Context::work`] of a single filter, several lines at a time.
    ///
    /// # Safety
    /// As there.
    #[inline(always)]
    unsafe fn work_by_lines<L: Lanes<Elem = T>>(
        &self,
        task: Task<'_>,
        by_lines: &ByLines,
        x: &[T],
        tile: &mut [T; TILE],
        spare: &mut [T; TILE],
    ) {
        let Context { problem, panels, ending, grid, .. } = *self;
        let (all, width) = (task.band.lines, by_lines.width);
        let start =
            (task.image * problem.groups + task.group) * problem.geometry.output_len() + task.band.start;
        // Safety: tasks differ in image, group, band or filters, and this run is this task's alone.
        let out = unsafe { grid.run(start, task.band.len) };
        let mut line = 0;
        while line < all {
            let lines = match all - line {
                5 => 3,
                1 if all > 1 => 2,
                left => left.min(LINES),
            };
            // A last line alone goes with the one before again.
            let first = if line + lines > all { all - lines } else { line };
            let mut column = 0;
            while column < width {
                let vectors = (width - column).div_ceil(L::N).min(VECTORS);
                let wide = vectors * L::N;
                let sums = Lines {
                    x: x.as_ptr().wrapping_add(first * by_lines.pitch + column),
                    pitch: by_lines.pitch,
                    channel: by_lines.channel,
                    channels: problem.channels,
                    columns: &by_lines.columns,
                    rows: problem.geometry.axes[1].taps.len(),
                    w: panels.panel(task.group, 0),
                    scale: ending.scale[task.group],
                    shift: ending.shift[task.group],
                    curves: &ending.curves,
                    filter: task.group,
                    out: tile.as_mut_ptr(),
                };
                // Safety: the instruction set and x are the caller's promise: no vector of a line lies farther than
                // those of the blocks, rounded up to whole vectors. A tile has room for any lines.
                unsafe { lines::compute::<L>(&sums, lines, vectors) };
                let tile = &mut tile[..lines * wide];
                if let Some(finish) = ending.tile {
                    finish(tile, &mut spare[..lines * wide], lines * wide, task.group);
                }
                let count = wide.min(width - column);
                for r in 0..lines {
                    let to = &mut out[(first + r) * width + column..][..count];
                    // Safety: the instruction set is the caller's promise.
                    unsafe { copy_run::<L>(&tile[r * wide..][..count], to) };
                }
                column += wide;
            }
            line += lines;
        }
    }

    /// What follows on the runs of a task.
    fn finish_runs(&self, task: Task<'_>) {
        let Context { problem, panels, ending, grid, .. } = *self;
        let Some(finish) = ending.run else { return };
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
unsafe fn keep<L: Lanes>(values: &[L::Elem], keeps: &[Keep], run: &mut [L::Elem]) {
    assert!(values.len() >= keeps.len() * L::N, "every vector is there");
    for (v, keep) in keeps.iter().enumerate() {
        let to = &mut run[keep.to..][..keep.count as usize];
        // Safety: a vector is read, and as many elements are written as lanes are kept, all in bounds.
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
