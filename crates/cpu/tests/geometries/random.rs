//! Geometries by chance, with sizes around those at which kernels cut their work, and elements to go with them.

use olivine_ir::op::Window;
use olivine_ir::{DType, Tensor};

/// A linear congruential generator.
pub(crate) struct Rng(u64);

impl Rng {
    pub(crate) fn new(seed: u64) -> Self {
        Rng(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    pub(crate) fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % n
    }

    pub(crate) fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())]
    }
}

/// A convolution's sizes.
#[derive(Clone, Debug)]
pub(crate) struct Geometry {
    pub(crate) images: usize,
    pub(crate) groups: usize,
    /// Input channels and filters per group.
    pub(crate) channels: usize,
    pub(crate) filters: usize,
    pub(crate) input: Vec<usize>,
    pub(crate) kernel: Vec<usize>,
    pub(crate) window: Window,
}

/// Sizes around vectors, tiles and bands.
const WIDE: &[usize] = &[
    1, 2, 3, 5, 7, 8, 9, 15, 16, 17, 23, 31, 32, 33, 47, 48, 49, 63, 64, 65, 95, 96, 97, 127, 129, 191, 192,
    193, 194, 255, 257, 300, 383, 385, 500, 600, 1023, 1025,
];
const FEW: &[usize] = &[1, 1, 2, 3, 4, 5, 6, 9, 17];
const MANY_CHANNELS: &[usize] = &[48, 64, 127, 128, 191, 192, 193, 256, 300, 384, 512];
const CHANNELS: &[usize] = &[1, 1, 2, 3, 4, 5, 8, 13, 16, 33, 64, 130, 256, 512];
const FILTERS: &[usize] = &[1, 1, 2, 3, 4, 5, 7, 8, 9, 12, 16, 17, 24, 33, 50];
const FAR: &[usize] = &[40, 190, 200, 256, 260, 500, 1000, 2100, 8200];

/// Elements and multiply-adds of a geometry at most, and of one in eight.
const ELEMENTS: usize = 1 << 16;
const WORK: usize = 100_000;
const MUCH_WORK: usize = 1_200_000;

impl Geometry {
    /// A valid geometry of little work.
    pub(crate) fn random(rng: &mut Rng) -> Geometry {
        let most = if rng.below(8) == 0 { MUCH_WORK } else { WORK };
        loop {
            let mut g = Geometry::any(rng);
            if !g.fits() {
                continue;
            }
            // Less of everything until the direct loops are quick, the interesting sizes last.
            while g.work() > most || g.elements() > ELEMENTS {
                if g.images > 1 {
                    g.images = 1;
                } else if g.filters > 2 {
                    g.filters = g.filters.div_ceil(2);
                } else if g.groups > 2 {
                    g.groups = g.groups.div_ceil(2);
                } else if g.channels > 1 {
                    g.channels = g.channels * 2 / 3;
                } else {
                    break;
                }
            }
            if g.work() <= most && g.elements() <= ELEMENTS {
                return g;
            }
        }
    }

    /// Sizes that may not fit each other.
    fn any(rng: &mut Rng) -> Geometry {
        let spatial = rng.pick(&[1, 1, 2, 2, 2, 2, 3]);
        let kind = rng.below(6);
        let wide = rng.below(spatial + 1);
        let mut g = Geometry {
            images: rng.pick(&[1, 1, 1, 2, 3]),
            groups: 1,
            channels: rng.pick(CHANNELS),
            filters: rng.pick(FILTERS),
            input: Vec::new(),
            kernel: Vec::new(),
            window: Window::unit(spatial),
        };
        for axis in 0..spatial {
            // Mostly the last axis is the long one.
            let long = if wide == spatial { axis + 1 == spatial } else { axis == wide };
            g.input.push(if long { rng.pick(WIDE) + rng.below(3) } else { rng.pick(FEW) });
            g.kernel.push(rng.pick(&[1, 1, 2, 3, 3, 3, 4, 5, 7, 9]));
            if kind == 0 {
                continue;
            }
            g.window.strides[axis] = rng.pick(&[1, 1, 1, 1, 1, 2, 2, 2, 3, 4, 7, 40]);
            g.window.dilations[axis] = rng.pick(&[1, 1, 1, 1, 1, 2, 2, 3, 9, 70]);
            let reach = (g.kernel[axis] - 1) * g.window.dilations[axis];
            let mut pad = || match rng.below(16) {
                0..6 => 0,
                6..10 => reach / 2,
                10 => reach,
                11 => reach + 1,
                12..15 => rng.below(4),
                _ => rng.pick(FAR) + rng.below(5),
            };
            g.window.pads[axis] = (pad(), pad());
        }
        match kind {
            // Pointwise, with channels enough for narrow bands.
            0 => {
                g.kernel = vec![1; spatial];
                g.channels = if rng.below(4) == 0 { rng.pick(CHANNELS) } else { rng.pick(MANY_CHANNELS) };
            }
            // Depthwise.
            1 => {
                g.groups = rng.pick(&[1, 2, 3, 8, 33, 64]);
                (g.channels, g.filters) = (1, rng.pick(&[1, 1, 1, 2, 3]));
            }
            2 => g.groups = rng.pick(&[2, 3, 4]),
            // Many channels of few positions.
            3 => {
                g.channels = rng.pick(MANY_CHANNELS);
                g.input.iter_mut().for_each(|n| *n = 1 + *n % 6);
            }
            _ => {}
        }
        g
    }

    fn counts(&self) -> Option<Vec<usize>> {
        (0..self.input.len())
            .map(|i| self.window.count(i, self.input[i], self.kernel[i], false).ok())
            .collect()
    }

    /// Whether there is a window on every axis.
    pub(crate) fn fits(&self) -> bool {
        self.counts().is_some()
    }

    /// Windows per axis.
    pub(crate) fn output(&self) -> Vec<usize> {
        self.counts().unwrap_or_default()
    }

    /// Elements after the last window on every axis.
    pub(crate) fn rest(&self) -> Vec<usize> {
        let rest = |i: usize| {
            let (before, after) = self.window.pads[i];
            let span = self.window.span(i, self.kernel[i]).unwrap_or(1);
            (self.input[i] + before + after - span) % self.window.strides[i]
        };
        (0..self.input.len()).map(rest).collect()
    }

    pub(crate) fn x(&self) -> Vec<usize> {
        [&[self.images, self.groups * self.channels], &self.input[..]].concat()
    }

    pub(crate) fn w(&self) -> Vec<usize> {
        [&[self.groups * self.filters, self.channels], &self.kernel[..]].concat()
    }

    /// Multiply-adds.
    fn work(&self) -> usize {
        let w: usize = self.w().iter().product();
        w * self.images * self.output().iter().product::<usize>()
    }

    /// Elements of the largest tensor.
    fn elements(&self) -> usize {
        let x: usize = self.x().iter().product();
        x.max(self.images * self.groups * self.filters * self.output().iter().product::<usize>())
    }
}

/// Small whole numbers.
pub(crate) fn tensor(dims: &[usize], dtype: DType, seed: u64) -> Tensor {
    let mut rng = Rng::new(seed);
    let values: Vec<f64> = (0..dims.iter().product()).map(|_| rng.below(9) as f64 - 4.0).collect();
    // Unsigned ones are moved up.
    let up = if dtype == DType::U8 { 4.0 } else { 0.0 };
    typed(dims, dtype, &values.iter().map(|v| v + up).collect::<Vec<_>>())
}

/// A tensor of given numbers.
pub(crate) fn typed(dims: &[usize], dtype: DType, values: &[f64]) -> Tensor {
    let done = match dtype {
        DType::F32 => Tensor::new(dims, values.iter().map(|&v| v as f32).collect()),
        DType::F64 => Tensor::new(dims, values.to_vec()),
        DType::F16 => Tensor::new(dims, values.iter().map(|&v| half::f16::from_f64(v)).collect()),
        DType::BF16 => Tensor::new(dims, values.iter().map(|&v| half::bf16::from_f64(v)).collect()),
        DType::U8 => Tensor::new(dims, values.iter().map(|&v| v as u8).collect()),
        DType::I8 => Tensor::new(dims, values.iter().map(|&v| v as i8).collect()),
        DType::I32 => Tensor::new(dims, values.iter().map(|&v| v as i32).collect()),
        other => panic!("{other} is not in these tests"),
    };
    done.unwrap()
}
