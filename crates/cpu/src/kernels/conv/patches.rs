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
                    if ax.stride == 1 {
                        seen.copy_from_slice(&source[..seen.len()]);
                    } else {
                        for (d, s) in seen.iter_mut().zip(source.iter().step_by(ax.stride)) {
                            *d = *s;
                        }
                    }
                }
            }
            _ => head.fill(T::zeroed()),
        }
        rest = tail;
        line += 1;
        from = 0;
    }
}
