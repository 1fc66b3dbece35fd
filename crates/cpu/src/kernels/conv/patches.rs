//! Patches: what one kernel position sees, laid out by output position.

use super::geometry::Geometry;

/// Writes the inputs that kernel position `tap` sees at outputs `start..start + row.len()`; padding is zero.
pub(crate) fn patch_row<T: bytemuck::Pod>(
    geometry: &Geometry,
    plane: &[T],
    tap: usize,
    start: usize,
    row: &mut [T],
) {
    let [az, ay, ax] = &geometry.axes;
    let [tz, ty, tx] = geometry.tap(tap);
    let width = ax.output;
    let (mut line, mut from) = (start / width, start % width);
    let mut rest = row;
    while !rest.is_empty() {
        let count = (width - from).min(rest.len());
        let (head, tail) = rest.split_at_mut(count);
        let z = tz.reach(line / ay.output, az.stride);
        let y = ty.reach(line % ay.output, ay.stride);
        match (z, y) {
            (Some(z), Some(y)) => {
                let source = &plane[(z * ay.input + y) * ax.input..][..ax.input];
                let first = tx.first.clamp(from, from + count);
                let end = tx.end.clamp(first, from + count);
                head[..first - from].fill(T::zeroed());
                head[end - from..].fill(T::zeroed());
                let seen = &mut head[first - from..end - from];
                if !seen.is_empty() {
                    let source = &source[tx.at(first, ax.stride)..];
                    copy_strided(source, ax.stride, seen);
                }
            }
            _ => head.fill(T::zeroed()),
        }
        rest = tail;
        line += 1;
        from = 0;
    }
}

/// Fills `to` with every `stride`-th element of `from`, which has enough of them.
#[inline(always)]
pub(crate) fn copy_strided<T: Copy>(from: &[T], stride: usize, to: &mut [T]) {
    match stride {
        1 => to.copy_from_slice(&from[..to.len()]),
        2 => {
            // Pairs compile to shuffles; the last element may have no neighbour.
            let (pairs, odd) = from.as_chunks::<2>();
            to.iter_mut().zip(pairs).for_each(|(t, f)| *t = f[0]);
            if let (Some(t), [f]) = (to.get_mut(pairs.len()), odd) {
                *t = *f;
            }
        }
        _ => to.iter_mut().zip(from.chunks(stride)).for_each(|(t, f)| *t = f[0]),
    }
}
