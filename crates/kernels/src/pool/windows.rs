//! The bounds of windows, computed on the host once for every result position of an axis.

use olivine_ir::Tensor;
use olivine_ir::op::{AdaptivePool, Pool};
use olivine_kernel::{Buf, Val};

/// Words of a table entry.
const ENTRY: u32 = 4;

/// One axis of a plane.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Axis {
    pub(super) input: usize,
    pub(super) output: usize,
    /// Kernel positions; the longest window of an adaptive pool.
    pub(super) kernel: usize,
    pub(super) stride: usize,
    pub(super) dilation: usize,
    /// Padding before the first element.
    pub(super) before: usize,
    windows: Vec<Reach>,
}

/// What a window reaches on one axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Reach {
    /// The first element.
    first: usize,
    /// Elements; they are `dilation` apart.
    taps: usize,
    /// Positions that an average divides by.
    count: usize,
}

impl Axis {
    /// An axis that windows do not see.
    fn absent() -> Self {
        let windows = vec![Reach { first: 0, taps: 1, count: 1 }];
        Axis { input: 1, output: 1, kernel: 1, stride: 1, dilation: 1, before: 0, windows }
    }

    fn of_pool(op: &Pool, axis: usize, input: usize, output: usize) -> Self {
        let (kernel, stride, dilation) =
            (op.kernel[axis], op.window.strides[axis], op.window.dilations[axis]);
        let (before, after) = op.window.pads[axis];
        // Sizes may be anything a shape admits, so positions are found in wide arithmetic.
        let wide = |n: usize| n as i128;
        let up = |n: i128| (n.max(0) + wide(dilation) - 1) / wide(dilation);
        let reach = |o: usize| {
            let start = wide(o) * wide(stride) - wide(before);
            let (low, high) = (up(-start), up(wide(input) - start).min(wide(kernel)));
            let taps = (high - low).max(0);
            let padded = up(wide(input) + wide(after) - start).min(wide(kernel));
            Reach {
                first: if taps == 0 { 0 } else { (start + low * wide(dilation)) as usize },
                taps: taps as usize,
                count: if op.count_include_pad { padded } else { taps } as usize,
            }
        };
        Axis { input, output, kernel, stride, dilation, before, windows: (0..output).map(reach).collect() }
    }

    fn of_adaptive(input: usize, output: usize) -> Self {
        let reach = |o: usize| {
            let first = o as u128 * input as u128 / output as u128;
            let end = ((o as u128 + 1) * input as u128).div_ceil(output as u128);
            let taps = (end - first) as usize;
            Reach { first: first as usize, taps, count: taps }
        };
        let windows: Vec<Reach> = (0..output).map(reach).collect();
        let kernel = windows.iter().map(|w| w.taps).max().unwrap_or(1);
        let stride = (input / output.max(1)).max(1);
        Axis { input, output, kernel, stride, dilation: 1, before: 0, windows }
    }

    /// Whether every window reaches an element and, going on to the nearest one where it leaves the operand, sees none
    /// that it does not reach anyway.
    pub(super) fn clamps(&self) -> bool {
        self.dilation == 1 && self.windows.iter().all(|w| w.taps > 0)
    }
}

/// The windows of a plane: three axes, absent leading ones of size 1.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Windows {
    pub(super) axes: [Axis; 3],
}

impl Windows {
    pub(super) fn of_pool(op: &Pool, input: &[usize], output: &[usize]) -> Self {
        Windows::new(input.len(), |i| Axis::of_pool(op, i, input[i], output[i]))
    }

    pub(super) fn of_adaptive(op: &AdaptivePool, input: &[usize]) -> Self {
        Windows::new(input.len(), |i| Axis::of_adaptive(input[i], op.output[i]))
    }

    fn new(spatial: usize, axis: impl Fn(usize) -> Axis) -> Self {
        let lead = 3 - spatial.min(3);
        Windows { axes: [0, 1, 2].map(|i: usize| i.checked_sub(lead).map_or_else(Axis::absent, &axis)) }
    }

    /// Elements of the largest window.
    pub(super) fn area(&self) -> usize {
        self.axes.iter().fold(1, |n, a| n.saturating_mul(a.kernel.min(a.input)))
    }

    /// The table that kernels read with [`entry`]: all of the first axis, then the second and the third.
    pub(super) fn table(&self) -> Result<Tensor, String> {
        let mut words = Vec::new();
        for reach in self.axes.iter().flat_map(|a| &a.windows) {
            words.extend([reach.first as u32, reach.taps as u32, reach.count as u32, 0]);
        }
        Tensor::new([words.len()], words).map_err(|e| e.to_string())
    }

    /// Where an axis begins in the table.
    pub(super) fn offset(&self, axis: usize) -> usize {
        self.axes[..axis].iter().map(|a| a.output).sum()
    }
}

/// A window's first element, its elements and what an average divides by, on one axis.
pub(super) fn entry<'k>(table: Buf<'k>, at: Val<'k>) -> [Val<'k>; 3] {
    let words = table.load_vec(at * ENTRY, ENTRY as u8);
    [words[0], words[1], words[2]]
}

#[cfg(test)]
mod tests {
    use super::*;
    use olivine_ir::op::{PoolKind, Window};

    #[test]
    fn windows_hold_what_lies_inside_and_count_what_lies_in_the_padding() {
        let op = Pool {
            kind: PoolKind::Average,
            kernel: vec![3],
            window: Window { strides: vec![2], pads: vec![(2, 1)], dilations: vec![2] },
            ceil: true,
            count_include_pad: true,
            p: 2,
            indices: false,
        };
        // Taps of the three windows: -2 0 2, 0 2 4 and 2 4 6, of elements 0 to 4 and padding to 5.
        let axis = Axis::of_pool(&op, 0, 5, 3);
        let reach = |first, taps, count| Reach { first, taps, count };
        assert_eq!(axis.windows, [reach(0, 2, 3), reach(0, 3, 3), reach(2, 2, 2)]);
        assert!(!axis.clamps());
    }

    #[test]
    fn adaptive_windows_overlap_where_sizes_do_not_divide() {
        let axis = Axis::of_adaptive(5, 3);
        let spans: Vec<(usize, usize)> = axis.windows.iter().map(|w| (w.first, w.taps)).collect();
        assert_eq!(spans, [(0, 2), (1, 3), (3, 2)]);
        assert_eq!((axis.kernel, axis.clamps()), (3, true));
    }
}
