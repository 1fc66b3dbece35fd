//! Windows over up to three spatial axes, as plain numbers: which outputs each kernel position reaches.

use olivine_ir::op::Window;

/// One kernel position on one axis: outputs `first..end` read the input at `output · stride + shift`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tap {
    pub(crate) first: usize,
    pub(crate) end: usize,
    /// Wraps below zero; the sum with a reached output's start does not.
    shift: usize,
}

/// One spatial axis.
#[derive(Clone, Debug)]
pub(crate) struct Axis {
    pub(crate) input: usize,
    pub(crate) output: usize,
    pub(crate) stride: usize,
    pub(crate) dilation: usize,
    pub(crate) before: usize,
    pub(crate) after: usize,
    /// One per kernel position.
    pub(crate) taps: Vec<Tap>,
}

/// Three spatial axes; absent leading ones have size 1.
#[derive(Clone, Debug)]
pub(crate) struct Geometry {
    pub(crate) axes: [Axis; 3],
}

impl Tap {
    /// The input position an output in `first..end` reads.
    #[inline(always)]
    pub(crate) fn at(&self, output: usize, stride: usize) -> usize {
        output.wrapping_mul(stride).wrapping_add(self.shift)
    }

    /// The input position if the output reads one here.
    #[inline(always)]
    pub(crate) fn reach(&self, output: usize, stride: usize) -> Option<usize> {
        (self.first <= output && output < self.end).then(|| self.at(output, stride))
    }
}

impl Axis {
    pub(crate) fn new(
        input: usize,
        output: usize,
        kernel: usize,
        stride: usize,
        dilation: usize,
        pad: (usize, usize),
    ) -> Self {
        // Sizes may be anything a shape admits, so the ends are found in wide arithmetic, once.
        let wide = |n: usize| n as i128;
        let taps = (0..kernel)
            .map(|k| {
                let shift = wide(k) * wide(dilation) - wide(pad.0);
                let first = (-shift).max(0) + wide(stride) - 1;
                let end = (wide(input) - shift).max(0) + wide(stride) - 1;
                let clip = |n: i128| (n / wide(stride)).min(wide(output)) as usize;
                Tap {
                    first: clip(first),
                    end: clip(end).max(clip(first)),
                    shift: k.wrapping_mul(dilation).wrapping_sub(pad.0),
                }
            })
            .collect();
        Axis { input, output, stride, dilation, before: pad.0, after: pad.1, taps }
    }

    /// How many kernel positions of a window fall on the input.
    pub(crate) fn valid(&self, output: usize) -> usize {
        self.taps.iter().filter(|t| t.first <= output && output < t.end).count()
    }

    /// How many kernel positions of a window fall on the input or its padding.
    pub(crate) fn padded(&self, output: usize) -> usize {
        let extent = self.input as u128 + self.before as u128 + self.after as u128;
        let start = output as u128 * self.stride as u128;
        (0..self.taps.len()).filter(|&k| start + (k as u128) * (self.dilation as u128) < extent).count()
    }
}

impl Geometry {
    /// The geometry of windows of `kernel` over `input` with `output` positions; one entry per spatial axis.
    pub(crate) fn new(window: &Window, input: &[usize], kernel: &[usize], output: &[usize]) -> Self {
        let lead = 3 - input.len().min(3);
        let axes = [0usize, 1, 2].map(|axis| match axis.checked_sub(lead) {
            Some(i) => Axis::new(
                input[i],
                output[i],
                kernel[i],
                window.strides[i],
                window.dilations[i],
                window.pads[i],
            ),
            None => Axis::new(1, 1, 1, 1, 1, (0, 0)),
        });
        Geometry { axes }
    }

    /// The same windows with all axes as one, where every output reads the input at its own position.
    pub(crate) fn flattened(self) -> Self {
        if !self.is_pointwise() {
            return self;
        }
        let all = self.input_len();
        Geometry {
            axes: [
                Axis::new(1, 1, 1, 1, 1, (0, 0)),
                Axis::new(1, 1, 1, 1, 1, (0, 0)),
                Axis::new(all, all, 1, 1, 1, (0, 0)),
            ],
        }
    }

    /// Input positions per channel.
    pub(crate) fn input_len(&self) -> usize {
        self.axes.iter().map(|a| a.input).product()
    }

    /// Output positions per channel.
    pub(crate) fn output_len(&self) -> usize {
        self.axes.iter().map(|a| a.output).product()
    }

    /// Kernel positions per channel.
    pub(crate) fn kernel_len(&self) -> usize {
        self.axes.iter().map(|a| a.taps.len()).product()
    }

    /// True when every output reads exactly the input at its own position.
    pub(crate) fn is_pointwise(&self) -> bool {
        self.axes.iter().all(|a| a.taps.len() == 1 && a.stride == 1 && a.before == 0 && a.input == a.output)
    }

    /// The three taps of a flat kernel position.
    pub(crate) fn tap(&self, flat: usize) -> [&Tap; 3] {
        let [z, y, x] = &self.axes;
        let (ny, nx) = (y.taps.len(), x.taps.len());
        [&z.taps[flat / (ny * nx)], &y.taps[flat / nx % ny], &x.taps[flat % nx]]
    }
}
