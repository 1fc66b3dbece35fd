//! Softmax along an axis that is not the last: neighbouring columns together, a row of each block at a time.

use super::TASK;
use super::wide::{Narrow, Wide};
use crate::parallel;
use crate::scratch;

/// Columns of a block.
const COLUMNS: usize = 256;

/// Where a block of columns begins, its maxima and its sums.
type Block<'a, W> = (usize, &'a mut [W], &'a mut [f64]);

/// Softmax, or its logarithm, over the middle axis of `[outer, n, inner]`.
pub(super) fn softmax<T: Narrow>(x: &[T], out: &mut [T], n: usize, inner: usize, log: bool) {
    if out.is_empty() {
        return;
    }
    let outer = out.len() / (n * inner);
    let blocks = inner.div_ceil(COLUMNS);
    // Maxima and sums of every column first: the result is then written row by row, by any thread.
    let mut max = scratch::filled(T::Wide::LOWEST, outer * inner);
    let mut sum = scratch::zeroed::<f64>(outer * inner);
    let mut tasks: Vec<Block<'_, T::Wide>> = scratch::with_room(outer * blocks);
    for (o, (max, sum)) in max.chunks_mut(inner).zip(sum.chunks_mut(inner)).enumerate() {
        for (b, (max, sum)) in max.chunks_mut(COLUMNS).zip(sum.chunks_mut(COLUMNS)).enumerate() {
            tasks.push((o * n * inner + b * COLUMNS, max, sum));
        }
    }
    parallel::parts(&mut tasks, (TASK / (n * COLUMNS.min(inner))).max(1), &|_, tasks| {
        let mut buffer = Vec::new();
        for (first, max, sum) in tasks {
            for j in 0..n {
                let at = *first + j * inner;
                T::Wide::raise(max, T::wide(&x[at..at + max.len()], &mut buffer));
            }
            for j in 0..n {
                let at = *first + j * inner;
                T::Wide::add_weights(sum, T::wide(&x[at..at + max.len()], &mut buffer), max);
            }
        }
    });
    parallel::grouped(out, inner, (TASK / inner).max(1), &|row, out| {
        let columns = row / n * inner;
        let (max, sum) = (&max[columns..columns + inner], &sum[columns..columns + inner]);
        let (mut from, mut to) = (Vec::new(), Vec::new());
        let x = T::wide(&x[row * inner..(row + 1) * inner], &mut from);
        T::write(out, &mut to, false, |out| T::Wide::weights(x, max, sum, log, out));
    });
}
