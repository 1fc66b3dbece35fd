//! Direct loops over windows: every kernel position, every output, in f64.

use olivine_ir::op::{Pool, PoolKind, Window};

use crate::random::Geometry;

/// For each of three axes and each kernel position there: the outputs that read an input, and which one.
pub(crate) struct Direct {
    input: [usize; 3],
    output: [usize; 3],
    reads: [Vec<Vec<(usize, usize)>>; 3],
}

/// Three sizes, absent leading ones being 1.
fn three(sizes: &[usize]) -> [usize; 3] {
    let mut all = [1; 3];
    all[3 - sizes.len()..].copy_from_slice(sizes);
    all
}

impl Direct {
    pub(crate) fn new(window: &Window, input: &[usize], kernel: &[usize], output: &[usize]) -> Self {
        let lead = 3 - input.len();
        let (input, kernel, output) = (three(input), three(kernel), three(output));
        let reads = [0, 1, 2].map(|axis| {
            let Some(i) = usize::checked_sub(axis, lead) else { return vec![vec![(0, 0)]] };
            let read = |k: usize, o: usize| {
                let padded = o as i128 * window.strides[i] as i128 + k as i128 * window.dilations[i] as i128;
                let at = usize::try_from(padded - window.pads[i].0 as i128).ok()?;
                (at < input[axis]).then_some((o, at))
            };
            (0..kernel[axis]).map(|k| (0..output[axis]).filter_map(|o| read(k, o)).collect()).collect()
        });
        Direct { input, output, reads }
    }

    /// Calls `f` with kernel position, output and input, each flat, wherever a window sees an element.
    fn visit(&self, mut f: impl FnMut(usize, usize, usize)) {
        let [rz, ry, rx] = &self.reads;
        let (input, output) = (self.input, self.output);
        for (kz, z) in rz.iter().enumerate() {
            for (ky, y) in ry.iter().enumerate() {
                for (kx, x) in rx.iter().enumerate() {
                    let k = (kz * ry.len() + ky) * rx.len() + kx;
                    for (oz, iz) in z {
                        for (oy, iy) in y {
                            let (to, from) = (oz * output[1] + oy, iz * input[1] + iy);
                            for (ox, ix) in x {
                                f(k, to * output[2] + ox, from * input[2] + ix);
                            }
                        }
                    }
                }
            }
        }
    }

    fn sizes(&self) -> (usize, usize, usize) {
        let kernel = self.reads.iter().map(Vec::len).product();
        (self.input.iter().product(), self.output.iter().product(), kernel)
    }

    pub(crate) fn convolve(&self, g: &Geometry, x: &[f64], w: &[f64], bias: Option<&[f64]>) -> Vec<f64> {
        let (input, output, kernel) = self.sizes();
        let mut result = Vec::with_capacity(g.images * g.groups * g.filters * output);
        for n in 0..g.images {
            for m in 0..g.groups * g.filters {
                let mut plane = vec![bias.map_or(0.0, |b| b[m]); output];
                for c in 0..g.channels {
                    let x = &x[((n * g.groups + m / g.filters) * g.channels + c) * input..];
                    let w = &w[(m * g.channels + c) * kernel..];
                    self.visit(|k, o, i| plane[o] += w[k] * x[i]);
                }
                result.extend(plane);
            }
        }
        result
    }

    /// The transposed convolution: what the geometry reads is written.
    pub(crate) fn spread(&self, g: &Geometry, x: &[f64], w: &[f64]) -> Vec<f64> {
        let (input, output, kernel) = self.sizes();
        let mut result = vec![0.0; g.images * g.groups * g.channels * input];
        for (number, plane) in result.chunks_mut(input).enumerate() {
            let (image_group, c) = (number / g.channels, number % g.channels);
            for f in 0..g.filters {
                let x = &x[(image_group * g.filters + f) * output..];
                let m = image_group % g.groups * g.filters + f;
                let w = &w[(m * g.channels + c) * kernel..];
                self.visit(|k, o, i| plane[i] += w[k] * x[o]);
            }
        }
        result
    }

    /// A pool and the positions of its maxima.
    pub(crate) fn pool(&self, op: &Pool, x: &[f64]) -> (Vec<f64>, Vec<f64>) {
        let (input, output, kernel) = self.sizes();
        let (mut values, mut positions) = (Vec::new(), Vec::new());
        for (number, plane) in x.chunks(input).enumerate() {
            let mut best = vec![(f64::NEG_INFINITY, -1.0); output];
            let mut sums = vec![(0.0, 0usize); output];
            self.visit(|_, o, i| {
                if plane[i] > best[o].0 {
                    best[o] = (plane[i], (number * input + i) as f64);
                }
                let v = if op.kind == PoolKind::Lp { plane[i].abs() } else { plane[i] };
                sums[o] = (sums[o].0 + v, sums[o].1 + 1);
            });
            match op.kind {
                PoolKind::Max => values.extend(best.iter().map(|b| b.0)),
                PoolKind::Lp => values.extend(sums.iter().map(|s| s.0)),
                PoolKind::Average => values.extend(sums.iter().map(|(sum, seen)| {
                    let count = if op.count_include_pad { kernel } else { *seen };
                    if count == 0 { 0.0 } else { sum / count as f64 }
                })),
            }
            positions.extend(best.iter().map(|b| b.1));
        }
        (values, positions)
    }

    /// The windows as columns.
    pub(crate) fn columns(&self, x: &[f64]) -> Vec<f64> {
        let (input, output, kernel) = self.sizes();
        let mut result = Vec::new();
        for plane in x.chunks(input) {
            let mut columns = vec![0.0; kernel * output];
            self.visit(|k, o, i| columns[k * output + o] = plane[i]);
            result.extend(columns);
        }
        result
    }
}
