//! Resizing. The positions of samples are computed on the host, in f64, and are tables for the kernels: an axis' samples for
//! every position, and their weights. Where sizes are open, the host computes the tables again for each.
//!
//! An invocation computes a column of neighbouring rows, so that it looks up its columns' samples once; neighbouring
//! invocations have neighbouring columns.

mod nearest;
mod smooth;

use olivine_ir::op::{Resize, ResizeMode};
use olivine_ir::{Dim, Tensor};
use olivine_kernel::Val;
use olivine_numerics::resample::{ResizedAxis, given_scale, is_one};
use olivine_program::HostTable;

use super::elementwise::whole_copy;
use crate::kernels;
use crate::launch::Launch;
use crate::site::Site;

kernels! { |op, site|
    Resize => resize(op, site),
}

/// Rows of an invocation at most.
const ROWS: usize = 4;

/// Results from which on invocations compute several rows; fewer are spread over more of them.
const MANY: usize = 1 << 16;

/// Lowers a resize.
pub(crate) fn resize(op: &Resize, site: &mut Site<'_>) -> Result<(), String> {
    let (operand, target) = (site.operands[0].clone(), site.targets[0].clone());
    if target.ty.shape.has_zero() {
        return Ok(());
    }
    let (from, to) = (operand.sizes(), target.ty.shape.sizes());
    if (0..from.len()).all(|axis| is_unchanged(op, axis, from[axis], to[axis])) {
        return whole_copy(&operand, &target, site);
    }
    match op.mode {
        ResizeMode::Nearest => nearest::emit(op, site),
        ResizeMode::Linear | ResizeMode::Cubic => smooth::emit(op, site),
    }
}

/// Whether an axis passes through untouched.
#[track_caller]
fn is_unchanged(op: &Resize, axis: usize, input: Dim, output: Dim) -> bool {
    given_scale(op, axis).is_none_or(is_one) && input == output
}

/// A table of `bytes` bytes that `compute` makes of some axes, by their numbers, with sizes from `from` to `to`.
fn table_of_axes(
    op: &Resize,
    axes: Vec<usize>,
    (from, to): (&[Dim], &[Dim]),
    bytes: Dim,
    compute: impl Fn(&Resize, &[ResizedAxis]) -> Result<Tensor, String> + Send + Sync + 'static,
) -> Result<HostTable, String> {
    let (op, sizes) = (op.clone(), axes.iter().flat_map(|axis| [from[*axis], to[*axis]]).collect());
    HostTable::of_sizes(sizes, bytes, move |sizes| {
        let pairs = axes.iter().zip(sizes.as_chunks::<2>().0);
        let axis = |(axis, [input, output]): (&usize, &[usize; 2])| ResizedAxis {
            input: *input,
            output: *output,
            given: given_scale(&op, *axis),
        };
        compute(&op, &pairs.map(axis).collect::<Vec<_>>())
    })
}

/// One axis, or several contiguous ones that are not resized.
#[derive(Clone, Debug)]
struct Axis<T> {
    input: Dim,
    output: Dim,
    /// Its table where it is resized.
    table: Option<T>,
}

/// Axes with kept neighbours merged; there is at least one.
fn axes<T>(
    sizes: impl Iterator<Item = (Dim, Dim)>,
    mut table: impl FnMut(usize) -> Option<T>,
) -> Vec<Axis<T>> {
    let mut axes: Vec<Axis<T>> = Vec::new();
    for (i, (input, output)) in sizes.enumerate() {
        let table = table(i);
        match axes.last_mut() {
            Some(last) if last.table.is_none() && table.is_none() => {
                last.input *= input;
                last.output *= output;
            }
            _ => axes.push(Axis { input, output, table }),
        }
    }
    axes
}

/// How results fall to invocations: `lanes` columns of `rows` rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Block {
    lanes: usize,
    rows: usize,
}

/// Declared sizes, outermost axis first.
struct Grid<'k> {
    block: Block,
    inputs: Vec<Val<'k>>,
    outputs: Vec<Val<'k>>,
    /// Column vectors of a row, and blocks of rows.
    columns: Val<'k>,
    blocks: Val<'k>,
}

/// Where an invocation stands: a coordinate on every axis but the last two, its first row, its first column.
struct ResizeCoord<'k> {
    outer: Vec<Val<'k>>,
    row: Val<'k>,
    column: Val<'k>,
    /// The outer coordinates as one.
    above: Val<'k>,
}

/// Rows and columns of a result; rows are 1 where there is but one axis.
fn last_two<T>(axes: &[Axis<T>]) -> (Dim, Dim) {
    let size = |back: usize| axes.len().checked_sub(back).map_or(Dim::ONE, |i| axes[i].output);
    (size(2), size(1))
}

/// Invocations for all results.
fn items<T>(axes: &[Axis<T>], block: Block) -> Dim {
    let (rows, columns) = last_two(axes);
    let outer: Dim = axes[..axes.len().saturating_sub(2)].iter().map(|a| a.output).product();
    outer * rows.div_ceil(block.rows) * columns.div_ceil(block.lanes)
}

impl<'k> Grid<'k> {
    fn declare<T>(l: &Launch<'k>, axes: &[Axis<T>], block: Block) -> Self {
        let (rows, columns) = last_two(axes);
        Grid {
            block,
            inputs: axes.iter().map(|a| l.size("input", a.input)).collect(),
            outputs: axes.iter().map(|a| l.size("output", a.output)).collect(),
            columns: l.size("columns", columns.div_ceil(block.lanes)),
            blocks: l.size("blocks", rows.div_ceil(block.rows)),
        }
    }

    fn place(&self, work: Val<'k>) -> ResizeCoord<'k> {
        let line = work / self.columns;
        let column = (work - line * self.columns) * self.block.lanes;
        let above = line / self.blocks;
        let row = (line - above * self.blocks) * self.block.rows;
        let count = self.outputs.len().saturating_sub(2);
        let mut outer = vec![above; count];
        let mut rest = above;
        for (coordinate, size) in outer.iter_mut().zip(&self.outputs).skip(1).rev() {
            let over = rest / *size;
            *coordinate = rest - over * *size;
            rest = over;
        }
        if let Some(first) = outer.first_mut() {
            *first = rest;
        }
        ResizeCoord { outer, row, column, above }
    }

    /// A row of a place and whether it is one; past the last it is the last.
    fn row(&self, place: &ResizeCoord<'k>, i: usize) -> (Val<'k>, Val<'k>) {
        let row = place.row + i;
        match self.outputs.len().checked_sub(2) {
            Some(axis) if self.block.rows > 1 => {
                let rows = self.outputs[axis];
                (row.min(rows - 1u32), row.lt(rows))
            }
            _ => (row, row.builder().bool(true)),
        }
    }

    /// Where a row's results begin.
    fn target(&self, place: &ResizeCoord<'k>, row: Val<'k>) -> Val<'k> {
        let line = match self.outputs.len().checked_sub(2) {
            Some(axis) => place.above * self.outputs[axis] + row,
            None => row,
        };
        let columns = self.outputs.last().map_or(row, |n| *n);
        line * columns + place.column
    }

    /// The coordinate of a place on an axis, for one of its rows.
    fn coordinate(&self, place: &ResizeCoord<'k>, row: Val<'k>, axis: usize) -> Val<'k> {
        match self.outputs.len() - axis {
            1 => place.column,
            2 => row,
            _ => place.outer[axis],
        }
    }
}
