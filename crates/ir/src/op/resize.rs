//! Resizing by interpolation, as ONNX Resize.

use crate::graph::{Graph, ValueId};
use crate::op::{Rule, arity, float, op, shape};
use crate::{Dim, Error, TensorType, words};

words! {
    /// How values between samples are made.
    pub enum ResizeMode {
        /// The nearest sample.
        Nearest = "nearest",
        /// Linear in every resized axis.
        Linear = "linear",
        /// Cubic convolution in every resized axis.
        Cubic = "cubic",
    }
}

words! {
    /// Where a result position is in the operand.
    pub enum CoordinateMode {
        /// (i + ½) / scale − ½.
        HalfPixel = "half_pixel",
        /// Half-pixel, corrected for a fractional result size.
        HalfPixelSymmetric = "half_pixel_symmetric",
        /// Half-pixel, but 0 when the result has one position.
        PytorchHalfPixel = "pytorch_half_pixel",
        /// First and last positions coincide.
        AlignCorners = "align_corners",
        /// i / scale.
        Asymmetric = "asymmetric",
    }
}

words! {
    /// Which sample is nearest.
    pub enum NearestMode {
        /// Halves go down.
        RoundPreferFloor = "round_prefer_floor",
        /// Halves go up.
        RoundPreferCeil = "round_prefer_ceil",
        /// The one before.
        Floor = "floor",
        /// The one after.
        Ceil = "ceil",
    }
}

op! {
    /// x resized to given sizes; positions outside read the edge.
    pub struct Resize = "resize" {
        /// Sizes of the result, all axes.
        pub sizes: Vec<Dim>,
        /// Result size over operand size per axis, where the model gave it; otherwise it follows from the sizes.
        pub scales: Option<Vec<f64>>,
        /// Interpolation.
        pub mode: ResizeMode,
        /// Coordinates.
        pub coordinates: CoordinateMode,
        /// Rounding, for `nearest`.
        pub nearest: NearestMode,
        /// The a of cubic convolution, usually −0.75.
        pub cubic: f64,
        /// Whether weights of samples outside are zeroed and the rest scaled up to sum to one.
        pub exclude_outside: bool,
        /// Whether downsampling widens the filter.
        pub antialias: bool,
    }
}

impl Rule for Resize {
    fn infer(&self, operands: &[TensorType]) -> Result<Vec<TensorType>, String> {
        arity(operands, 1..=1)?;
        let x = &operands[0].shape;
        if self.mode != ResizeMode::Nearest {
            float(&operands[0])?;
        }
        if self.sizes.len() != x.rank() || self.scales.as_ref().is_some_and(|s| s.len() != x.rank()) {
            return Err(format!("sizes and scales need {} entries each", x.rank()));
        }
        if self.scales.iter().flatten().any(|s| !(s.is_finite() && *s > 0.0)) {
            return Err("scales must be positive".into());
        }
        let out = shape(&self.sizes)?;
        if x.has_zero() && !out.has_zero() {
            return Err(format!("nothing to read: {x} has no elements"));
        }
        Ok(vec![TensorType::new(operands[0].dtype, out)])
    }
}

impl Graph {
    /// Resizes with half-pixel coordinates, rounding halves down; build a [`Resize`] for the other modes.
    pub fn resize<T: Copy + Into<Dim>>(
        &mut self,
        x: ValueId,
        sizes: &[T],
        mode: ResizeMode,
    ) -> Result<ValueId, Error> {
        let op = Resize {
            sizes: sizes.iter().map(|size| (*size).into()).collect(),
            scales: None,
            mode,
            coordinates: CoordinateMode::HalfPixel,
            nearest: NearestMode::RoundPreferFloor,
            cubic: -0.75,
            exclude_outside: false,
            antialias: false,
        };
        self.add1(op, &[x])
    }
}
