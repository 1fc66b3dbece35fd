//! Interpolation: weighted sums of samples along the resized axes.
//!
//! Axes with few samples to a position are resized together. A filter that downsampling made long has a pass of its
//! own, through scratch of the type that sums are made in.

use olivine_ir::op::Resize;
use olivine_ir::{DType, Dim, Tensor};
use olivine_kernel::{Access, Buf, Builder, Elem, Val};
use olivine_numerics::resample::{Filter, ResizedAxis, fixed_taps, given_scale};

use super::{Axis, Block, Grid, MANY, ROWS, ResizeCoord};
use super::{axes, is_unchanged, items, last_two, table_of_axes};
use crate::launch::{Launch, number};
use crate::math;
use crate::reduce::admit;
use crate::rows::{GROUP, stored, wide};
use crate::site::{Memory, Site, linear_group};

/// Samples of one position that are unrolled.
const SHORT: usize = 4;

/// Samples that one invocation sums without a loop, over all its results.
const TOGETHER: usize = 16;

/// Where a pass reads or writes.
#[derive(Clone, Copy)]
struct End {
    memory: Memory,
    elem: Elem,
}

pub(super) fn emit(op: &Resize, site: &mut Site<'_>) -> Result<(), String> {
    let (operand, target) = (site.operands[0].clone(), site.targets[0].clone());
    let dtype = operand.ty.dtype;
    admit(dtype, site)?;
    let (from, target_sizes) = (operand.sizes().to_vec(), target.ty.shape.sizes());
    let resized = (0..from.len()).filter(|a| !is_unchanged(op, *a, from[*a], target_sizes[*a]));
    let filter = |a: usize| Ok((a, taps_of(op, a, from[a], target_sizes[a])?));
    let filters = resized.map(filter).collect::<Result<Vec<(usize, usize)>, String>>()?;

    let mut sizes = from;
    let mut read = End { memory: operand.memory, elem: math::elem(dtype) };
    let passes = passes(filters);
    let count = passes.len();
    for (i, pass) in passes.into_iter().enumerate() {
        let mut to = sizes.clone();
        pass.iter().for_each(|(axis, _)| to[*axis] = target_sizes[*axis]);
        let numel: Dim = to.iter().product();
        if numel.fault().is_some() || numel > u32::MAX {
            return Err(format!("{to:?} between two axes is more than kernels can count"));
        }
        let write = if i + 1 == count {
            End { memory: target.memory, elem: math::elem(dtype) }
        } else {
            let elem = stored(wide(dtype));
            End { memory: site.scratch(numel * elem.size()), elem }
        };
        run(op, pass, (&sizes, &to), dtype, (read, write), site)?;
        (sizes, read) = (to, write);
    }
    Ok(())
}

/// Samples of a position of an axis. How far downsampling stretches a filter depends on sizes, which are numbers then.
fn taps_of(op: &Resize, axis: usize, input: Dim, output: Dim) -> Result<usize, String> {
    if let Some(taps) = fixed_taps(op) {
        return Ok(taps);
    }
    let axis = ResizedAxis { input: number(input), output: number(output), given: given_scale(op, axis) };
    Ok(Filter::new(op, &axis).map_err(|e| e.to_string())?.taps)
}

/// Axes with their filters' samples that are resized together, the first axes first.
fn passes(filters: Vec<(usize, usize)>) -> Vec<Vec<(usize, usize)>> {
    let mut passes: Vec<Vec<(usize, usize)>> = Vec::new();
    let mut room = 0;
    // From the last axis on, so that the pass that writes the most does the most.
    for (axis, taps) in filters.into_iter().rev() {
        match passes.last_mut() {
            Some(pass) if taps <= SHORT && taps <= room => {
                room /= taps;
                pass.push((axis, taps));
            }
            _ => {
                room = if taps <= SHORT { TOGETHER / taps } else { 0 };
                passes.push(vec![(axis, taps)]);
            }
        }
    }
    passes.reverse();
    passes
}

/// A filter's place in the tables of a pass.
#[derive(Clone, Copy)]
struct Taps {
    taps: usize,
    offset: Dim,
}

/// The samples of all axes of a pass, one axis after another.
fn indices(op: &Resize, axes: &[ResizedAxis]) -> Result<Tensor, String> {
    let mut indices: Vec<u32> = Vec::new();
    for axis in axes {
        let filter = Filter::new(op, axis).map_err(|e| e.to_string())?;
        indices.extend(filter.indices.iter().map(|i| *i as u32));
        indices.resize(indices.len().next_multiple_of(SHORT), 0);
    }
    Tensor::new([indices.len()], indices).map_err(|e| e.to_string())
}

/// Their weights.
fn weights(op: &Resize, axes: &[ResizedAxis], dtype: DType) -> Result<Tensor, String> {
    let mut weights: Vec<f64> = Vec::new();
    for axis in axes {
        weights.extend(Filter::new(op, axis).map_err(|e| e.to_string())?.weights);
        weights.resize(weights.len().next_multiple_of(SHORT), 0.0);
    }
    let count = weights.len();
    let weights = match dtype {
        DType::F64 => Tensor::new([count], weights),
        _ => Tensor::new([count], weights.iter().map(|w| *w as f32).collect()),
    };
    weights.map_err(|e| e.to_string())
}

fn run(
    op: &Resize,
    pass: Vec<(usize, usize)>,
    (from, to): (&[Dim], &[Dim]),
    dtype: DType,
    (read, write): (End, End),
    site: &mut Site<'_>,
) -> Result<(), String> {
    let (mut words, mut resized) = (Dim::ZERO, Vec::new());
    let axes: Vec<Axis<Taps>> = axes(from.iter().copied().zip(to.iter().copied()), |axis| {
        let (_, taps) = *pass.iter().find(|(a, _)| *a == axis)?;
        let offset = words;
        words += (to[axis] * taps).next_multiple_of(SHORT);
        resized.push(axis);
        Some(Taps { taps, offset })
    });
    let bytes = words * stored(wide(dtype)).size();
    let weights =
        table_of_axes(op, resized.clone(), (from, to), bytes, move |op, axes| weights(op, axes, dtype))?;
    let indices = site.table(table_of_axes(op, resized, (from, to), words * 4, indices)?);
    let weights = site.table(weights);

    let n: Dim = to.iter().product();
    let block = block(&axes, write.elem, n);
    let items = items(&axes, block);
    let group = site.group_size(GROUP);
    let k = site.builder("resize", group);
    let l = Launch::new(&k);
    let x = l.bind("x", read.elem, Access::Read, read.memory);
    let tables = Tables {
        k: &k,
        indices: l.bind("samples", Elem::U32, Access::Read, indices),
        weights: l.bind("weights", stored(wide(dtype)), Access::Read, weights),
    };
    let y = l.bind("y", write.elem, Access::Write, write.memory);
    let grid = Grid::declare(&l, &axes, block);
    let filters: Vec<Option<Declared<'_>>> = axes
        .iter()
        .map(|a| {
            let Taps { taps, offset } = a.table?;
            // How many samples a long filter has is data; short ones are unrolled.
            let long = (taps > SHORT).then(|| l.size("taps", taps));
            Some(Declared { taps, long, offset: l.size("offset", offset) })
        })
        .collect();
    let total = l.size("n", items);

    let work = linear_group(&k) * group + k.local_index();
    k.if_(work.lt(total), || {
        let place = grid.place(work);
        let pass = Pass { x, tables, grid: &grid, filters: &filters, place: &place };
        // The columns' samples serve all rows.
        let across: Vec<Vec<Sample<'_>>> = match filters.last() {
            Some(Some(filter)) if filter.long.is_none() => {
                (0..block.lanes).map(|lane| tables.short(filter, place.column + lane)).collect()
            }
            _ => Vec::new(),
        };
        for r in 0..block.rows {
            let (row, real) = grid.row(&place, r);
            let values = pass.sum(0, k.u32(0), row, &across);
            k.if_(real, || y.store_vec(grid.target(&place, row), &values));
        }
    });

    let taps: usize = axes.iter().filter_map(|a| a.table).map(|t| t.taps).product();
    let moved = from.iter().product::<Dim>() * read.elem.size() + n * write.elem.size();
    let bound = l.done();
    let flops = 2 * n * taps;
    site.dispatch(k, bound, items.div_ceil(group), (flops, moved))
}

/// What an invocation computes: whole words where results are narrow, vectors where columns are kept, and as many rows
/// as their samples leave room for.
fn block(axes: &[Axis<Taps>], elem: Elem, n: Dim) -> Block {
    let (rows, columns) = last_two(axes);
    let last = axes.last().and_then(|a| a.table);
    let wanted = match last {
        None if elem.size() > 4 => 2,
        None => 4,
        Some(t) if t.taps > SHORT => 1,
        Some(_) => (4 / elem.size()).max(1) as usize,
    };
    let lanes = [4, 2].into_iter().find(|l| *l <= wanted && columns.is_multiple_of(*l)).unwrap_or(1);
    let long = axes.iter().filter_map(|a| a.table).any(|t| t.taps > SHORT);
    let taps: usize = axes.iter().filter_map(|a| a.table).map(|t| t.taps).product();
    let room = if long { 1 } else { TOGETHER / taps.max(1) / if last.is_some() { lanes } else { 1 } };
    let most = if n >= MANY { room.min(ROWS) } else { 1 };
    Block { lanes, rows: [4, 2].into_iter().find(|r| *r <= most && rows >= *r).unwrap_or(1) }
}

/// A filter as run-time numbers.
struct Declared<'k> {
    taps: usize,
    long: Option<Val<'k>>,
    offset: Val<'k>,
}

/// A sample's place on its axis, and its weight.
#[derive(Clone, Copy)]
struct Sample<'k> {
    at: Val<'k>,
    weight: Val<'k>,
}

#[derive(Clone, Copy)]
struct Tables<'k> {
    k: &'k Builder,
    indices: Buf<'k>,
    weights: Buf<'k>,
}

impl<'k> Tables<'k> {
    /// The samples of a position, all at once where they are an aligned vector.
    fn short(&self, filter: &Declared<'k>, position: Val<'k>) -> Vec<Sample<'k>> {
        let first = filter.offset + position * filter.taps;
        let read = |buffer: Buf<'k>| match filter.taps {
            // Vectors of 8-byte numbers have at most two lanes.
            n @ (1 | 2) => buffer.load_vec(first, n as u8),
            4 if buffer.elem().size() <= 4 => buffer.load_vec(first, 4),
            n => (0..n).map(|i| buffer.load(first + i)).collect(),
        };
        let (indices, weights) = (read(self.indices), read(self.weights));
        indices.into_iter().zip(weights).map(|(at, weight)| Sample { at, weight }).collect()
    }

    /// A weighted sum over a long filter.
    fn long(
        &self,
        filter: &Declared<'k>,
        taps: Val<'k>,
        position: Val<'k>,
        term: impl Fn(Val<'k>) -> Vec<Val<'k>>,
    ) -> Vec<Val<'k>> {
        let k = self.k;
        let first = filter.offset + position * taps;
        let lanes = std::cell::RefCell::new(Vec::new());
        let round = |i: Val<'k>| {
            let weight = self.weights.load(first + i);
            term(self.indices.load(first + i)).into_iter().map(move |x| (x, weight)).collect::<Vec<_>>()
        };
        let (zero, one) = (k.u32(0), k.u32(1));
        // The first sample apart: it says how many lanes there are.
        lanes.borrow_mut().extend(round(zero).into_iter().map(|(x, w)| k.var(x * w)));
        k.for_(one, taps, one, |i| {
            for (sum, (x, w)) in lanes.borrow().iter().zip(round(i)) {
                sum.set(x.fma(w, sum.get()));
            }
        });
        lanes.into_inner().iter().map(|v| v.get()).collect()
    }
}

/// One invocation's pass.
struct Pass<'a, 'k> {
    x: Buf<'k>,
    tables: Tables<'k>,
    grid: &'a Grid<'k>,
    filters: &'a [Option<Declared<'k>>],
    place: &'a ResizeCoord<'k>,
}

impl<'k> Pass<'_, 'k> {
    /// The sums, for every column, over axes from `axis` on; `above` is where the axes before lead.
    fn sum(&self, axis: usize, above: Val<'k>, row: Val<'k>, across: &[Vec<Sample<'k>>]) -> Vec<Val<'k>> {
        let start = above * self.grid.inputs[axis];
        let position = self.grid.coordinate(self.place, row, axis);
        let is_last = axis + 1 == self.grid.inputs.len();
        let next = |at: Val<'k>| {
            if is_last { vec![self.x.load(start + at)] } else { self.sum(axis + 1, start + at, row, across) }
        };
        match &self.filters[axis] {
            None if is_last => self.x.load_vec(start + position, self.grid.block.lanes as u8),
            None => next(position),
            Some(filter) => match filter.long {
                Some(taps) => self.tables.long(filter, taps, position, next),
                None if is_last => across
                    .iter()
                    .map(|samples| {
                        let values = samples.iter().map(|s| vec![self.x.load(start + s.at)]).collect();
                        weighted(samples, values)[0]
                    })
                    .collect(),
                None => {
                    let samples = self.tables.short(filter, position);
                    let values = samples.iter().map(|s| next(s.at)).collect();
                    weighted(&samples, values)
                }
            },
        }
    }
}

/// Σ weight · value for every lane; there is at least one sample.
fn weighted<'k>(samples: &[Sample<'k>], values: Vec<Vec<Val<'k>>>) -> Vec<Val<'k>> {
    let mut terms = samples.iter().zip(values);
    let Some((first, values)) = terms.next() else { return Vec::new() };
    let sum: Vec<Val<'k>> = values.into_iter().map(|x| x * first.weight).collect();
    terms.fold(sum, |sum, (sample, values)| {
        sum.into_iter().zip(values).map(|(sum, x)| x.fma(sample.weight, sum)).collect()
    })
}
