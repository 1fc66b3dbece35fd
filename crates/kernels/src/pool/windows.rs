//! The bounds of windows on every axis: computed by kernels, or read from a table where windows are of many lengths.

use olivine_ir::op::{AdaptivePool, Pool};
use olivine_ir::{Dim, Tensor};
use olivine_kernel::{Access, Buf, Elem, Scalar, Val};

use crate::launch::{Launch, number};
use crate::site::{Memory, Site};

/// Words of a table entry.
const ENTRY: u32 = 4;

/// One axis of a plane.
#[derive(Clone, Debug)]
pub(super) struct Axis {
    pub(super) input: Dim,
    pub(super) output: Dim,
    /// Kernel positions; the longest window of an adaptive pool.
    pub(super) kernel: usize,
    pub(super) stride: usize,
    pub(super) dilation: usize,
    /// Padding before the first element, and after the last.
    pub(super) before: usize,
    after: usize,
    /// Whether an average counts the padding.
    counts_padding: bool,
    /// Elements of every window, where they follow no rule that kernels know.
    windows: Vec<Reach>,
}

/// What a window of an adaptive pool reaches on one axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Reach {
    /// The first element.
    first: usize,
    /// Elements.
    taps: usize,
}

impl Axis {
    /// An axis that windows do not see.
    fn absent() -> Self {
        Axis {
            input: Dim::ONE,
            output: Dim::ONE,
            kernel: 1,
            stride: 1,
            dilation: 1,
            before: 0,
            after: 0,
            counts_padding: false,
            windows: Vec::new(),
        }
    }

    fn of_pool(op: &Pool, axis: usize, input: Dim, output: Dim) -> Result<Self, String> {
        let (before, after) = op.window.pads[axis];
        // Kernels count positions, padding and all, in 31 bits; a step past all of them is as good as any.
        let padded = input + before + after;
        if padded > i32::MAX / 2 {
            return Err(format!("axis {axis} with its padding is longer than 2^30"));
        }
        let short = |step: usize| step.min(1 << 30);
        Ok(Axis {
            input,
            output,
            kernel: op.kernel[axis],
            stride: short(op.window.strides[axis]),
            dilation: short(op.window.dilations[axis]),
            before,
            after,
            counts_padding: op.count_include_pad,
            windows: Vec::new(),
        })
    }

    fn of_adaptive(input: usize, output: usize) -> Self {
        let reach = |o: usize| {
            let first = o as u128 * input as u128 / output as u128;
            let end = ((o as u128 + 1) * input as u128).div_ceil(output as u128);
            Reach { first: first as usize, taps: (end - first) as usize }
        };
        let windows: Vec<Reach> = (0..output).map(reach).collect();
        let kernel = windows.iter().map(|w| w.taps).max().unwrap_or(1);
        let stride = (input / output.max(1)).max(1);
        Axis { input: input.into(), output: output.into(), kernel, stride, windows, ..Axis::absent() }
    }

    /// Whether every window reaches an element and, going on to the nearest one where it leaves the operand, sees none
    /// that it does not reach anyway. Pools have no windows of padding alone, so that neighbours are all it takes.
    pub(super) fn clamps(&self) -> bool {
        self.dilation == 1
    }
}

/// The windows of a plane: three axes, absent leading ones of size 1.
#[derive(Clone, Debug)]
pub(super) struct Windows {
    pub(super) axes: [Axis; 3],
}

impl Windows {
    pub(super) fn of_pool(op: &Pool, input: &[Dim], output: &[Dim]) -> Result<Self, String> {
        Windows::new(input.len(), |i| Axis::of_pool(op, i, input[i], output[i]))
    }

    /// Of an adaptive pool, whose windows are in a table: the axes' sizes are numbers.
    pub(super) fn of_adaptive(op: &AdaptivePool, input: &[Dim]) -> Result<Self, String> {
        Windows::new(input.len(), |i| Ok(Axis::of_adaptive(number(input[i]), op.output[i])))
    }

    fn new(spatial: usize, axis: impl Fn(usize) -> Result<Axis, String>) -> Result<Self, String> {
        let lead = 3 - spatial.min(3);
        let of = |i: usize| i.checked_sub(lead).map_or_else(|| Ok(Axis::absent()), &axis);
        Ok(Windows { axes: [of(0)?, of(1)?, of(2)?] })
    }

    /// Elements of the largest window.
    pub(super) fn area(&self) -> Dim {
        self.axes.iter().map(|a| a.input.min(a.kernel)).product()
    }

    /// The table of windows that follow no rule: all of the first axis, then the second and the third.
    pub(super) fn table(&self, site: &mut Site<'_>) -> Result<Option<Memory>, String> {
        if self.axes.iter().all(|axis| axis.windows.is_empty()) {
            return Ok(None);
        }
        let mut words = Vec::new();
        for axis in &self.axes {
            match axis.windows.is_empty() {
                true => words.extend([0, 1, 1, 0]),
                false => axis.windows.iter().for_each(|w| {
                    words.extend([w.first as u32, w.taps as u32, w.taps as u32, 0]);
                }),
            }
        }
        let table = Tensor::new([words.len()], words).map_err(|e| e.to_string())?;
        Ok(Some(site.constant(table)))
    }

    /// Declares what bounds of windows are computed from.
    pub(super) fn declare<'k>(&self, l: &Launch<'k>, table: Option<Memory>) -> Bounds<'k> {
        let table = table.map(|table| l.bind("windows", Elem::U32, Access::Read, table));
        let mut offset = Dim::ZERO;
        let axes = [0, 1, 2].map(|a| {
            let axis = &self.axes[a];
            let first = offset;
            offset += axis.output;
            AxisBounds {
                input: l.size("input", axis.input),
                output: l.size("output", axis.output),
                stride: l.size("stride", axis.stride),
                dilation: if axis.dilation == 1 { None } else { Some(l.size("dilation", axis.dilation)) },
                kernel: l.size("kernel", axis.kernel.min(1 << 30)),
                before: l.size("before", axis.before),
                after: if axis.counts_padding { Some(l.size("after", axis.after)) } else { None },
                offset: table.map(|_| l.size("offset", first)),
                is_absent: axis.windows.is_empty() && axis.kernel == 1 && axis.input.as_constant() == Some(1),
            }
        });
        Bounds { table, axes }
    }
}

/// Declared axes.
pub(super) struct Bounds<'k> {
    table: Option<Buf<'k>>,
    pub(super) axes: [AxisBounds<'k>; 3],
}

/// A declared axis.
pub(super) struct AxisBounds<'k> {
    pub(super) input: Val<'k>,
    pub(super) output: Val<'k>,
    stride: Val<'k>,
    dilation: Option<Val<'k>>,
    kernel: Val<'k>,
    pub(super) before: Val<'k>,
    /// Padding after the last element, where averages count it.
    after: Option<Val<'k>>,
    offset: Option<Val<'k>>,
    is_absent: bool,
}

impl<'k> AxisBounds<'k> {
    /// A step along a window in elements.
    pub(super) fn step(&self, taps: Val<'k>) -> Val<'k> {
        self.dilation.map_or(taps, |dilation| taps * dilation)
    }
}

impl<'k> Bounds<'k> {
    /// A window's first element, its elements and what an average divides by, on one axis.
    pub(super) fn of(&self, axis: usize, at: Val<'k>) -> [Val<'k>; 3] {
        let k = at.builder();
        let a = &self.axes[axis];
        if let (Some(table), Some(offset)) = (self.table, a.offset) {
            let words = table.load_vec((offset + at) * ENTRY, ENTRY as u8);
            return [words[0], words[1], words[2]];
        }
        if a.is_absent {
            return [k.u32(0), k.u32(1), k.u32(1)];
        }
        let signed = |v: Val<'k>| v.bitcast(Scalar::I32);
        let unsigned = |v: Val<'k>| v.max(0).bitcast(Scalar::U32);
        // Steps of a window up to a distance, which may be negative.
        let steps = |distance: Val<'k>| match a.dilation {
            None => unsigned(distance),
            Some(dilation) => (unsigned(distance) + (dilation - 1u32)) / dilation,
        };
        let start = signed(at * a.stride) - signed(a.before);
        let low = steps(k.i32(0) - start);
        let high = steps(signed(a.input) - start).min(a.kernel);
        let some = high.gt(low);
        let taps = some.select(high - low, k.u32(0));
        let first = (start + signed(a.step(low))).bitcast(Scalar::U32);
        let count = match a.after {
            Some(after) => steps(signed(a.input + after) - start).min(a.kernel),
            None => taps,
        };
        [some.select(first, k.u32(0)), taps, count]
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic, reason = "a failed expectation is a failed test")]
mod tests {
    use olivine_ir::op::{PoolKind, Window};
    use olivine_ir::{DType, Shape, TensorType, ValueId};

    use super::*;
    use crate::matmul::coop::tests::{card, run};
    use crate::site::{Operand, Target};

    /// A pool of a line, by the interpreter.
    fn pooled(op: &Pool, x: &[f32], outputs: usize) -> Vec<f32> {
        let caps = card();
        let of = |len: usize| TensorType::new(DType::F32, Shape::new(&[1, 1, len]).unwrap());
        let (ty, to) = (of(x.len()), of(outputs));
        let memory = |id: u32| Memory::Value(ValueId::new(id));
        let strides = ty.shape.stride_sizes();
        let operand = Operand { ty, strides, offset: Dim::ZERO, memory: memory(0), stored: false };
        let mut site = Site::new(&caps, vec![operand], vec![Target { ty: to, memory: memory(1) }]);
        super::super::pool(op, &mut site).unwrap();
        let bytes = x.iter().flat_map(|x| x.to_le_bytes()).collect();
        let found = run(&site, [bytes, vec![0xff; 4 * outputs]]);
        found[&memory(1)].chunks(4).map(|word| f32::from_le_bytes(word.try_into().unwrap())).collect()
    }

    #[test]
    fn windows_hold_what_lies_inside_and_count_what_lies_in_the_padding() {
        let op = |kind, count_include_pad| Pool {
            kind,
            kernel: vec![3],
            window: Window { strides: vec![2], pads: vec![(2, 1)], dilations: vec![2] },
            ceil: true,
            count_include_pad,
            p: 1,
            indices: false,
        };
        // Taps of the three windows: -2 0 2, 0 2 4 and 2 4 6, of elements 0 to 4 and padding to 5.
        let x = [1.0, 10.0, 5.0, 20.0, 12.0];
        assert_eq!(pooled(&op(PoolKind::Lp, false), &x, 3), [6.0, 18.0, 17.0]);
        assert_eq!(pooled(&op(PoolKind::Max, false), &x, 3), [5.0, 12.0, 12.0]);
        assert_eq!(pooled(&op(PoolKind::Average, false), &x, 3), [3.0, 6.0, 8.5]);
        assert_eq!(pooled(&op(PoolKind::Average, true), &x, 3), [2.0, 6.0, 8.5]);
        let axis = Axis::of_pool(&op(PoolKind::Max, false), 0, 5.into(), 3.into()).unwrap();
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
