//! The order in which a reduction visits memory: along it where an axis is contiguous, on all threads.

use std::ops::Range;

use crate::operand::Operand;
use crate::parallel;
use crate::scratch;

/// The inner loops of a reduction, called through a pointer: the walk is compiled once per accumulator, not per kind.
pub(super) trait Folder: Sync {
    type Acc;
    fn identity(&self) -> Self::Acc;
    fn join(&self, a: Self::Acc, b: Self::Acc) -> Self::Acc;
    /// Folds `len` elements from `start` on.
    fn run(&self, start: isize, len: usize, stride: isize) -> Self::Acc;
    /// Folds one element more into each accumulator.
    fn side(&self, start: isize, stride: isize, accs: &mut [Self::Acc]);
    /// As [`Folder::side`] from each of several positions in turn; accumulators are loaded and stored once for them all.
    fn sides(&self, starts: [isize; SIDES], stride: isize, accs: &mut [Self::Acc]);
}

/// Elements that [`Folder::sides`] folds into each accumulator.
pub(super) const SIDES: usize = 4;

/// One axis, or several that are crossed in one step.
#[derive(Clone, Copy, Debug)]
struct Axis {
    size: usize,
    stride: isize,
    reduced: bool,
}

/// An operand's axes in order, those of one kind merged where memory allows.
pub(super) struct Walk {
    kept: Vec<Axis>,
    /// Reduced axes without the inner one.
    reduced: Vec<Axis>,
    /// The last axis.
    inner: Axis,
    offset: isize,
}

/// Columns accumulated side by side.
const COLUMNS: usize = 512;

/// Elements below which one thread does it all.
const SERIAL: usize = 1 << 15;

impl Walk {
    pub(super) fn new(x: &Operand<'_>, axes: &[usize]) -> Self {
        let mut merged: Vec<Axis> = Vec::new();
        for (i, (&size, &stride)) in x.shape().iter().zip(x.strides()).enumerate() {
            let axis = Axis { size, stride, reduced: axes.contains(&i) };
            match merged.last_mut() {
                _ if size == 1 => {}
                Some(last) if last.reduced == axis.reduced && last.stride == stride * size as isize => {
                    *last = Axis { size: last.size * size, ..axis };
                }
                _ => merged.push(axis),
            }
        }
        let inner = merged.pop().unwrap_or(Axis { size: 1, stride: 1, reduced: true });
        let (reduced, kept) = merged.into_iter().partition(|a| a.reduced);
        Walk { kept, reduced, inner, offset: x.offset as isize }
    }

    /// The accumulators of all results, in row-major order of the kept positions; `count` elements go into each.
    pub(super) fn fold<A: Copy + Send + Sync>(
        &self,
        folder: &dyn Folder<Acc = A>,
        results: usize,
        count: usize,
    ) -> Vec<A> {
        if results == 0 || count == 0 {
            scratch::filled(folder.identity(), results)
        } else if self.inner.reduced {
            self.along_rows(folder, results, count)
        } else {
            self.along_columns(folder, results)
        }
    }

    /// The inner axis is reduced: every result folds runs of memory.
    fn along_rows<A: Copy + Send + Sync>(
        &self,
        folder: &dyn Folder<Acc = A>,
        results: usize,
        count: usize,
    ) -> Vec<A> {
        let threads = parallel::threads();
        if results * count <= SERIAL || threads == 1 {
            return (0..results).map(|i| self.fold_row(folder, i, 0..count)).collect();
        }
        if results >= 4 * threads {
            let least = (SERIAL / count).max(1);
            let mut out = scratch::filled(folder.identity(), results);
            parallel::parts(&mut out, least, &|part, out| {
                for (i, acc) in out.iter_mut().enumerate() {
                    *acc = self.fold_row(folder, part * least + i, 0..count);
                }
            });
            return out;
        }
        let parts = (count / SERIAL).clamp(1, 8 * threads);
        let part = |i: usize| (i % parts * count / parts)..((i % parts + 1) * count / parts);
        let folded = parallel::map(results * parts, &|i| self.fold_row(folder, i / parts, part(i)));
        folded.chunks(parts).map(|p| p.iter().fold(folder.identity(), |a, b| folder.join(a, *b))).collect()
    }

    /// Folds a part of the elements of one result, counted over all reduced axes.
    fn fold_row<A>(&self, folder: &dyn Folder<Acc = A>, result: usize, part: Range<usize>) -> A {
        let base = self.offset + position(&self.kept, result);
        let (size, stride) = (self.inner.size, self.inner.stride);
        let mut acc = folder.identity();
        let mut at = part.start;
        while at < part.end {
            let (turn, first) = (at / size, at % size);
            let run = (size - first).min(part.end - at);
            let start = base + position(&self.reduced, turn) + first as isize * stride;
            acc = folder.join(acc, folder.run(start, run, stride));
            at += run;
        }
        acc
    }

    /// The inner axis is kept: neighbouring results fold contiguous elements.
    fn along_columns<A: Copy + Send + Sync>(&self, folder: &dyn Folder<Acc = A>, results: usize) -> Vec<A> {
        let turns: usize = self.reduced.iter().map(|a| a.size).product();
        let mut out = scratch::filled(folder.identity(), results);
        let blocks = self.inner.size.div_ceil(COLUMNS);
        let mut targets: Vec<(usize, &mut [A])> = scratch::with_room(results / self.inner.size * blocks);
        targets.extend(out.chunks_mut(self.inner.size).flat_map(|row| row.chunks_mut(COLUMNS)).enumerate());
        let threads = parallel::threads();
        let fill =
            |b: usize, accs: &mut [A]| self.fold_block(folder, (b / blocks, b % blocks), 0..turns, accs);
        if results * turns <= SERIAL || threads == 1 {
            targets.into_iter().for_each(|(b, accs)| fill(b, accs));
        } else if targets.len() >= 2 * threads {
            parallel::parts(&mut targets, 1, &|_, part| part.iter_mut().for_each(|(b, accs)| fill(*b, accs)));
        } else {
            // Too few blocks for all threads: each is folded in several parts, which are joined in order.
            let parts = (results * turns / SERIAL).clamp(1, 8 * threads).div_ceil(targets.len()).min(turns);
            let partial = |task: usize| {
                let (b, p) = (task / parts, task % parts);
                let mut accs = scratch::filled(folder.identity(), targets[b].1.len());
                let range = p * turns / parts..(p + 1) * turns / parts;
                self.fold_block(folder, (b / blocks, b % blocks), range, &mut accs);
                accs
            };
            let folded = parallel::map(targets.len() * parts, &partial);
            for ((_, accs), parts) in targets.iter_mut().zip(folded.chunks(parts)) {
                for part in parts {
                    accs.iter_mut().zip(part).for_each(|(a, b)| *a = folder.join(*a, *b));
                }
            }
        }
        out
    }

    /// Folds some turns into the accumulators of one block of columns.
    fn fold_block<A>(
        &self,
        folder: &dyn Folder<Acc = A>,
        (row, block): (usize, usize),
        turns: Range<usize>,
        accs: &mut [A],
    ) {
        let stride = self.inner.stride;
        let base = self.offset + position(&self.kept, row) + (block * COLUMNS) as isize * stride;
        let start = |turn: usize| base + position(&self.reduced, turn);
        let mut turn = turns.start;
        while turns.end - turn >= SIDES {
            folder.sides(std::array::from_fn(|i| start(turn + i)), stride, accs);
            turn += SIDES;
        }
        (turn..turns.end).for_each(|turn| folder.side(start(turn), stride, accs));
    }
}

/// The offset of the i-th position over some axes, in row-major order.
fn position(axes: &[Axis], mut i: usize) -> isize {
    let mut offset = 0;
    for axis in axes.iter().rev() {
        offset += (i % axis.size) as isize * axis.stride;
        i /= axis.size;
    }
    offset
}
