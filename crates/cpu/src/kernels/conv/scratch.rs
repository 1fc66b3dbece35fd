//! Working memory that a thread keeps between calls.

use std::cell::Cell;

/// A cache line, so that working memory begins on one.
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C, align(64))]
struct Line([u8; 64]);

thread_local! {
    static LINES: Cell<Vec<Line>> = const { Cell::new(Vec::new()) };
}

/// More than this is given back after use.
const KEEP: usize = 8 << 20;

/// Runs `work` with `len` elements of this thread's working memory; what they hold at first is arbitrary.
pub(crate) fn with_scratch<T: bytemuck::Pod, R>(len: usize, work: impl FnOnce(&mut [T]) -> R) -> R {
    let mut lines = LINES.take();
    let need = (len * size_of::<T>()).div_ceil(size_of::<Line>());
    if lines.len() < need {
        lines = crate::scratch::zeroed(need);
    }
    let result = work(&mut bytemuck::cast_slice_mut(&mut lines[..need])[..len]);
    if lines.len() * size_of::<Line>() <= KEEP {
        LINES.set(lines);
    }
    result
}
