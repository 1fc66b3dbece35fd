//! Normalisations; statistics are computed in at least f32, without cancellation, with the biased variance.

use crate::graph::{Graph, ValueId};
use crate::op::fused::Region;
use crate::op::{Rule, arity, axis_in, float, of_shape, op, same_dtype};
use crate::{Error, TensorType};

op! {
    /// `(x − mean) / √(var + eps) · gamma + beta` over trailing axes; operands: x, gamma\[, beta\].
    ///
    /// With a prologue, x is the region of operand 0 and of the operands after the norm's own ones.
    /// `emit_input` adds a second result: the normalised row's input, for the residual stream.
    pub struct LayerNorm = "layer_norm" {
        /// First axis of the normalised block.
        pub axis: usize,
        /// Added to the variance.
        pub eps: f64,
        /// Whether beta is given.
        pub bias: bool,
        /// What makes x out of the operands.
        pub prologue: Option<Region>,
        /// Whether x itself is a second result.
        pub emit_input: bool,
    }
}

op! {
    /// `x / √(mean(x²) + eps) · gamma [+ beta]` over trailing axes; operands and fields as [`LayerNorm`].
    pub struct RmsNorm = "rms_norm" {
        /// First axis of the normalised block.
        pub axis: usize,
        /// Added to the mean square.
        pub eps: f64,
        /// Whether beta is given.
        pub bias: bool,
        /// What makes x out of the operands.
        pub prologue: Option<Region>,
        /// Whether x itself is a second result.
        pub emit_input: bool,
    }
}

fn row_norm(
    operands: &[TensorType],
    axis: usize,
    bias: bool,
    prologue: &Option<Region>,
    emit_input: bool,
) -> Result<Vec<TensorType>, String> {
    let own = 2 + usize::from(bias);
    arity(operands, own..=if prologue.is_some() { usize::MAX } else { own })?;
    let mut x = operands[0];
    if let Some(region) = prologue {
        let extra = &operands[own..];
        for t in extra {
            if t.shape.broadcast(&x.shape) != Some(x.shape) {
                return Err(format!("region operand {t} does not broadcast to {}", x.shape));
            }
        }
        x.dtype = region.region_dtype(x.dtype, extra)?;
    }
    float(&x)?;
    axis_in(axis, &x.shape)?;
    let sizes = x.shape.sizes();
    let block = &sizes[axis..];
    for (what, t) in ["gamma", "beta"].iter().zip(&operands[1..own]) {
        of_shape(what, t, block)?;
        if t.dtype != x.dtype {
            return Err(format!("{what} must be {}, got {}", x.dtype, t.dtype));
        }
    }
    Ok(if emit_input { vec![x, x] } else { vec![x] })
}

impl Rule for LayerNorm {
    fn infer(&self, operands: &[TensorType]) -> Result<Vec<TensorType>, String> {
        row_norm(operands, self.axis, self.bias, &self.prologue, self.emit_input)
    }
}

impl Rule for RmsNorm {
    fn infer(&self, operands: &[TensorType]) -> Result<Vec<TensorType>, String> {
        row_norm(operands, self.axis, self.bias, &self.prologue, self.emit_input)
    }
}

/// The checks of norms over an `[N, C, ..]` tensor with per-channel operands.
fn channel_norm(operands: &[TensorType], per_channel: &[&str]) -> Result<Vec<TensorType>, String> {
    arity(operands, 1 + per_channel.len()..=1 + per_channel.len())?;
    same_dtype(operands)?;
    float(&operands[0])?;
    let x = &operands[0].shape;
    if x.rank() < 2 {
        return Err(format!("x must be [N, C, ..], got {x}"));
    }
    for (what, t) in per_channel.iter().zip(&operands[1..]) {
        of_shape(what, t, &[x.size(1)])?;
    }
    Ok(vec![operands[0]])
}

op! {
    /// Norm over groups of channels and all positions of `[N, C, ..]`; operands: x, gamma `[C]`, beta `[C]`.
    pub struct GroupNorm = "group_norm" {
        /// Number of groups; divides C.
        pub groups: usize,
        /// Added to the variance.
        pub eps: f64,
    }
}

impl Rule for GroupNorm {
    fn infer(&self, operands: &[TensorType]) -> Result<Vec<TensorType>, String> {
        let out = channel_norm(operands, &["gamma", "beta"])?;
        let channels = operands[0].shape.size(1);
        if self.groups == 0 || !channels.is_multiple_of(self.groups) {
            return Err(format!("{} groups do not divide {channels} channels", self.groups));
        }
        Ok(out)
    }
}

op! {
    /// Norm over the positions of each channel of `[N, C, ..]`; operands: x, gamma `[C]`, beta `[C]`.
    pub struct InstanceNorm = "instance_norm" {
        /// Added to the variance.
        pub eps: f64,
    }
}

impl Rule for InstanceNorm {
    fn infer(&self, operands: &[TensorType]) -> Result<Vec<TensorType>, String> {
        channel_norm(operands, &["gamma", "beta"])
    }
}

op! {
    /// Inference-time batch norm of `[N, C, ..]`; operands: x, gamma, beta, mean, variance, each `[C]`.
    pub struct BatchNorm = "batch_norm" {
        /// Added to the variance.
        pub eps: f64,
    }
}

impl Rule for BatchNorm {
    fn infer(&self, operands: &[TensorType]) -> Result<Vec<TensorType>, String> {
        channel_norm(operands, &["gamma", "beta", "mean", "variance"])
    }
}

op! {
    /// Layer norm over C at each position of `[N, C, H, W]`; operands: x, gamma `[C]`, beta `[C]`.
    pub struct LayerNorm2d = "layer_norm2d" {
        /// Added to the variance.
        pub eps: f64,
    }
}

impl Rule for LayerNorm2d {
    fn infer(&self, operands: &[TensorType]) -> Result<Vec<TensorType>, String> {
        match operands.first() {
            Some(x) if x.shape.rank() != 4 => Err(format!("x must be [N, C, H, W], got {}", x.shape)),
            _ => channel_norm(operands, &["gamma", "beta"]),
        }
    }
}

op! {
    /// Layer norm over the last axis without weights, then `·(1 + scale) + shift`; operands: x `[.., S, C]`,
    /// scale and shift broadcast to x.
    pub struct AdaLayerNorm = "ada_layer_norm" {
        /// Added to the variance.
        pub eps: f64,
    }
}

impl Rule for AdaLayerNorm {
    fn infer(&self, operands: &[TensorType]) -> Result<Vec<TensorType>, String> {
        arity(operands, 3..=3)?;
        same_dtype(operands)?;
        float(&operands[0])?;
        axis_in(0, &operands[0].shape)?;
        let x = operands[0].shape;
        for (what, t) in ["scale", "shift"].iter().zip(&operands[1..]) {
            if t.shape.broadcast(&x) != Some(x) {
                return Err(format!("{what} {} does not broadcast to {x}", t.shape));
            }
        }
        Ok(vec![operands[0]])
    }
}

op! {
    /// `x / max(‖x‖₂, eps)` along one axis.
    pub struct L2Norm = "l2_norm" {
        /// The axis.
        pub axis: usize,
        /// Smallest divisor.
        pub eps: f64,
    }
}

impl Rule for L2Norm {
    fn infer(&self, operands: &[TensorType]) -> Result<Vec<TensorType>, String> {
        arity(operands, 1..=1)?;
        float(&operands[0])?;
        axis_in(self.axis, &operands[0].shape)?;
        Ok(vec![operands[0]])
    }
}

impl Graph {
    /// Layer norm over the last axis; see [`LayerNorm`].
    pub fn layer_norm(
        &mut self,
        x: ValueId,
        gamma: ValueId,
        beta: Option<ValueId>,
        eps: f64,
    ) -> Result<ValueId, Error> {
        let axis = self.trailing_axis("layer_norm", x, gamma)?;
        let op = LayerNorm { axis, eps, bias: beta.is_some(), prologue: None, emit_input: false };
        let operands: Vec<ValueId> = [x, gamma].into_iter().chain(beta).collect();
        self.add1(op, &operands)
    }

    /// RMS norm over gamma's axes; see [`RmsNorm`].
    pub fn rms_norm(
        &mut self,
        x: ValueId,
        gamma: ValueId,
        beta: Option<ValueId>,
        eps: f64,
    ) -> Result<ValueId, Error> {
        let axis = self.trailing_axis("rms_norm", x, gamma)?;
        let op = RmsNorm { axis, eps, bias: beta.is_some(), prologue: None, emit_input: false };
        let operands: Vec<ValueId> = [x, gamma].into_iter().chain(beta).collect();
        self.add1(op, &operands)
    }

    /// The first of x's trailing axes that gamma covers.
    fn trailing_axis(&self, op: &str, x: ValueId, gamma: ValueId) -> Result<usize, Error> {
        let covered = self.ty(gamma)?.shape.rank();
        self.axis_of(op, x, -(covered.max(1) as isize))
    }

    /// Group norm; see [`GroupNorm`].
    pub fn group_norm(
        &mut self,
        x: ValueId,
        gamma: ValueId,
        beta: ValueId,
        groups: usize,
        eps: f64,
    ) -> Result<ValueId, Error> {
        self.add1(GroupNorm { groups, eps }, &[x, gamma, beta])
    }

    /// Instance norm; see [`InstanceNorm`].
    pub fn instance_norm(
        &mut self,
        x: ValueId,
        gamma: ValueId,
        beta: ValueId,
        eps: f64,
    ) -> Result<ValueId, Error> {
        self.add1(InstanceNorm { eps }, &[x, gamma, beta])
    }

    /// Inference batch norm; see [`BatchNorm`]. `stats` are mean and variance.
    pub fn batch_norm(
        &mut self,
        x: ValueId,
        gamma: ValueId,
        beta: ValueId,
        stats: [ValueId; 2],
        eps: f64,
    ) -> Result<ValueId, Error> {
        self.add1(BatchNorm { eps }, &[x, gamma, beta, stats[0], stats[1]])
    }

    /// Layer norm over channels of NCHW; see [`LayerNorm2d`].
    pub fn layer_norm2d(
        &mut self,
        x: ValueId,
        gamma: ValueId,
        beta: ValueId,
        eps: f64,
    ) -> Result<ValueId, Error> {
        self.add1(LayerNorm2d { eps }, &[x, gamma, beta])
    }

    /// Adaptive layer norm; see [`AdaLayerNorm`].
    pub fn ada_layer_norm(
        &mut self,
        x: ValueId,
        scale: ValueId,
        shift: ValueId,
        eps: f64,
    ) -> Result<ValueId, Error> {
        self.add1(AdaLayerNorm { eps }, &[x, scale, shift])
    }

    /// Unit length along an axis; see [`L2Norm`].
    pub fn l2_norm(&mut self, x: ValueId, axis: isize, eps: f64) -> Result<ValueId, Error> {
        let axis = self.axis_of("l2_norm", x, axis)?;
        self.add1(L2Norm { axis, eps }, &[x])
    }
}
