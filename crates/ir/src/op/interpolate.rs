//! Sampling an image at computed places: whole grids of them, and regions.

use crate::graph::{Graph, ValueId};
use crate::op::{Rule, arity, float, index, indices_within, of_shape, op, same_dtype, shape};
use crate::{Error, Tensor, TensorType, words};

words! {
    /// How a value between samples is made.
    pub enum GridMode {
        /// Linear in every axis.
        Linear = "linear",
        /// The nearest sample; halves go to the even one.
        Nearest = "nearest",
        /// Cubic convolution with a = −0.75 in both axes of an image.
        Cubic = "cubic",
    }
}

words! {
    /// What is outside the samples.
    pub enum GridPadding {
        /// Zeros.
        Zeros = "zeros",
        /// The nearest sample.
        Border = "border",
        /// The samples mirrored at the edges.
        Reflection = "reflection",
    }
}

op! {
    /// x `[N, C, H, W]` or `[N, C, D, H, W]` read at the places of a grid `[N, .., 2]` or `[N, .., 3]`, whose axes
    /// between become the result's, as ONNX GridSample. The last axis of the grid is (x, y) or (x, y, z), of which −1
    /// and 1 are the ends of x's last, last but one and last but two axes. Operands: x, grid; their dtypes may differ.
    pub struct GridSample = "grid_sample" {
        /// Interpolation.
        pub mode: GridMode,
        /// What is outside.
        pub padding: GridPadding,
        /// Whether −1 and 1 are the centres of the first and last sample; otherwise they are the outer edges of them.
        pub align_corners: bool,
    }
}

impl Rule for GridSample {
    fn infer(&self, operands: &[TensorType]) -> Result<Vec<TensorType>, String> {
        arity(operands, 2..=2)?;
        operands.iter().try_for_each(float)?;
        let (x, grid) = (&operands[0].shape, &operands[1].shape);
        if !(4..=5).contains(&x.rank()) {
            return Err(format!("x must be [N, C, H, W] or [N, C, D, H, W], got {x}"));
        }
        let spatial = x.rank() - 2;
        let (from, to) = (x.sizes(), grid.sizes());
        if grid.rank() != x.rank() || to[0] != from[0] || to[spatial + 1] != spatial {
            let (images, rank) = (from[0], x.rank());
            return Err(format!(
                "a grid for {x} has shape [{images}, .., {spatial}] and rank {rank}, got {grid}"
            ));
        }
        if self.mode == GridMode::Cubic && spatial != 2 {
            return Err(format!("cubic sampling is of images [N, C, H, W], got {x}"));
        }
        let out = shape(&[&from[..2], &to[1..=spatial]].concat())?;
        if from[2..].iter().any(|size| *size == 0) && !out.has_zero() {
            return Err(format!("nothing to read: {x} has no elements"));
        }
        Ok(vec![TensorType::new(operands[0].dtype, out)])
    }
}

words! {
    /// What a region's bin keeps of its samples.
    pub enum RoiMode {
        /// Their mean.
        Average = "average",
        /// The largest weighted neighbour of any of them, as ONNX.
        Max = "max",
    }
}

words! {
    /// Where a region's coordinates are among pixels.
    pub enum RoiCoordinates {
        /// Pixel i is centred at i + ½.
        HalfPixel = "half_pixel",
        /// Pixel i is centred at i, and regions are at least one pixel wide and high.
        OutputHalfPixel = "output_half_pixel",
    }
}

op! {
    /// Regions of x `[N, C, H, W]`, each divided into bins that are sampled bilinearly, as ONNX RoiAlign:
    /// `[R, C, height, width]`. Operands: x, regions `[R, 4]` of (x1, y1, x2, y2), batch indices `[R]`.
    pub struct RoiAlign = "roi_align" {
        /// What a bin keeps.
        pub mode: RoiMode,
        /// Bins along y.
        pub height: usize,
        /// Bins along x.
        pub width: usize,
        /// Samples of a bin along each axis; 0 takes as many as the bin is pixels long, rounded up.
        pub sampling_ratio: usize,
        /// What regions are multiplied by.
        pub scale: f64,
        /// Coordinates.
        pub coordinates: RoiCoordinates,
    }
}

/// Samples of a bin along an axis at most.
const MOST_SAMPLES: usize = 1 << 12;

impl Rule for RoiAlign {
    fn infer(&self, operands: &[TensorType]) -> Result<Vec<TensorType>, String> {
        arity(operands, 3..=3)?;
        float(&operands[0])?;
        same_dtype(&operands[..2])?;
        index(&operands[2])?;
        let (x, regions) = (&operands[0].shape, &operands[1].shape);
        if x.rank() != 4 {
            return Err(format!("x must be [N, C, H, W], got {x}"));
        }
        let (from, of_regions) = (x.sizes(), regions.sizes());
        if regions.rank() != 2 || of_regions[1] != 4 {
            return Err(format!("regions must have shape [R, 4], got {regions}"));
        }
        of_shape("batch indices", &operands[2], &[of_regions[0]])?;
        if !(self.scale.is_finite() && self.scale > 0.0) {
            return Err(format!("the scale must be positive, got {}", self.scale));
        }
        if self.sampling_ratio > MOST_SAMPLES {
            return Err(format!("{} samples along an axis, at most {MOST_SAMPLES}", self.sampling_ratio));
        }
        let out = shape(&[of_regions[0], from[1], self.height.into(), self.width.into()])?;
        if x.has_zero() && !out.has_zero() {
            return Err(format!("nothing to read: {x} has no elements"));
        }
        Ok(vec![TensorType::new(operands[0].dtype, out)])
    }

    fn check_constants(&self, operands: &[TensorType], values: &[Option<&Tensor>]) -> Result<(), String> {
        indices_within(values[2], operands[0].shape[0])
    }
}

impl Graph {
    /// x read at the places of a grid; see [`GridSample`].
    pub fn grid_sample(
        &mut self,
        x: ValueId,
        grid: ValueId,
        mode: GridMode,
        padding: GridPadding,
        align_corners: bool,
    ) -> Result<ValueId, Error> {
        self.add1(GridSample { mode, padding, align_corners }, &[x, grid])
    }

    /// Regions of an image; see [`RoiAlign`].
    pub fn roi_align(
        &mut self,
        op: RoiAlign,
        x: ValueId,
        regions: ValueId,
        batch_indices: ValueId,
    ) -> Result<ValueId, Error> {
        self.add1(op, &[x, regions, batch_indices])
    }
}
