//! Convolutions: which kernel one gets.
//!
//! ```text
//!   conv ─┬─ 1x1 ─────────────── matmul of the matmul family, images as batches
//!         ├─ depthwise ───────── patches of the result in registers
//!         └─ else ──┐
//!   conv_transpose ─┴─ taps ──── matmul with gathered pixels, of the matmul family
//!   im2col ───────────────────── a copy
//! ```

mod coop;
mod depthwise;
mod im2col;
pub(crate) mod implicit_gemm;
pub(crate) mod taps;
#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic, reason = "a failed expectation is a failed test")]
mod tests;
mod windows;

use crate::launch::number;
use olivine_ir::op::{Conv, ConvTranspose, Region, Window};
use olivine_ir::{Dim, Shape, Sizes, TensorType, product};

use crate::kernels;
use crate::matmul::{self, EpilogueOperand, MatrixOperand, Problem};
use crate::site::{Operand, Site, Target};
use crate::walk::Walk;
use taps::Taps;

kernels! { |op, site|
    Conv => conv(op, site),
    ConvTranspose => conv_transpose(op, site),
}

/// A convolution's operands brought to one form.
struct ConvOperands<'a> {
    x: Operand,
    w: Operand,
    /// Operands of the epilogue, then the bias `[M, 1, ..]`; all broadcast to the target.
    extras: Vec<Operand>,
    /// Their strides over the target.
    strides: Vec<Vec<Dim>>,
    bias: bool,
    region: Option<&'a Region>,
    target: Target,
    groups: usize,
    /// Filters and input channels of a group.
    m: usize,
    channels: usize,
}

impl<'a> ConvOperands<'a> {
    fn new(site: &Site<'_>, groups: usize, bias: bool, region: Option<&'a Region>) -> Result<Self, String> {
        let [x, w, rest @ ..] = site.operands.as_slice() else {
            return Err("a convolution needs two operands".into());
        };
        let target = site.targets.first().ok_or("a convolution needs a target")?.clone();
        let dims = target.ty.shape.sizes();
        let mut extras = rest.to_vec();
        if bias {
            let Some(last) = extras.first().cloned() else { return Err("a bias is missing".into()) };
            let mut shape = vec![Dim::ONE; dims.len() - 1];
            shape[0] = dims[1];
            let shape = Shape::of_sizes(&shape).map_err(|e| e.to_string())?;
            let mut strides = vec![Dim::ZERO; dims.len() - 1];
            strides[0] = Dim::ONE;
            extras.remove(0);
            extras.push(Operand { ty: TensorType::new(last.ty.dtype, shape), strides, ..last });
        }
        let over = |o: &Operand| {
            let over = o.broadcast_to(&dims);
            over.ok_or_else(|| format!("{} does not broadcast to {}", o.ty, target.ty.shape))
        };
        let strides = extras.iter().map(over).collect::<Result<Vec<_>, _>>()?;
        // Channels, filters and windows are what kernels are written for.
        let (m, channels) = (number(dims[1]) / groups.max(1), number(x.sizes()[1]) / groups.max(1));
        let (x, w) = (x.clone(), w.clone());
        Ok(ConvOperands { x, w, extras, strides, bias, region, target, groups, m, channels })
    }

    /// Spatial sizes of the input, the kernel and the result.
    fn spatial(&self) -> (Vec<Dim>, Vec<usize>, Vec<Dim>) {
        let after_two = |sizes: Sizes| sizes[2..].to_vec();
        let kernel = after_two(self.w.sizes()).into_iter().map(number).collect();
        (after_two(self.x.sizes()), kernel, after_two(self.target.ty.shape.sizes()))
    }

    fn images(&self) -> Dim {
        self.x.sizes()[0]
    }

    /// The layout of further operands over the pixels of an image.
    fn over_pixels(&self) -> Walk {
        let strides: Vec<Vec<Dim>> = self.strides.iter().map(|s| s[2..].to_vec()).collect();
        Walk::new(&self.spatial().2, &strides)
    }

    /// Further operands over rows and columns of a matmul, whose columns are pixels.
    fn epilogue_inputs(&self, pixels: &Walk) -> Vec<EpilogueOperand> {
        let input = |(i, operand): (usize, &Operand)| EpilogueOperand {
            operand: operand.clone(),
            row: self.strides[i][1],
            column: pixels.inner(i),
        };
        self.extras.iter().enumerate().map(input).collect()
    }

    /// The matmul of filters with gathered pixels; `a` is the stride between filters of a group and between groups.
    fn gathered(self, taps: Taps, a: (usize, usize), k_stride: i64) -> (Problem<'a>, Vec<Operand>) {
        let (sizes, _, out) = self.spatial();
        let (plane, out_plane) = (product(&sizes), product(&out));
        let stride = taps.axes.last().map_or(1, |a| a.stride);
        let mut strides = vec![vec![a.1.into()], vec![plane * self.channels]];
        strides.extend(self.strides.iter().map(|s| vec![s[1] * self.m]));
        let (n, k) = taps.most();
        let problem = Problem {
            m: self.m.into(),
            n,
            k: k.into(),
            a: MatrixOperand { outer: a.0.into(), k_stride: k_stride.into(), operand: self.w.clone() },
            b: MatrixOperand { outer: stride.into(), k_stride: Dim::ZERO, operand: self.x.clone() },
            batch: Walk::new(&[self.groups], &strides),
            extras: self.epilogue_inputs(&taps.extra_pixels),
            region: self.region,
            target: self.target,
            out: (out_plane, Dim::ONE),
            experts: None,
            bias: self.bias,
            result: self.w.ty.dtype,
            pairs: false,
            taps: Some(taps),
            packed: None,
        };
        (problem, self.extras)
    }
}

/// Pixels of an image from which on images are better matmuls of their own than columns of one.
const WIDE: usize = 128;

/// Lowers a convolution.
pub(crate) fn conv(op: &Conv, site: &mut Site<'_>) -> Result<(), String> {
    let parts = ConvOperands::new(site, op.groups, op.bias, op.epilogue.as_ref())?;
    let window = &op.window;
    let unit = window.strides.iter().all(|s| *s == 1) && window.pads.iter().all(|p| *p == (0, 0));
    if unit
        && parts.spatial().1.iter().all(|k| *k == 1)
        && let Some(problem) = pointwise(&parts)
    {
        return matmul::lower(problem, &parts.extras, site);
    }
    if depthwise::suits(window, &parts) {
        return depthwise::depthwise(window, &parts, site);
    }
    let (problem, extras) = by_taps(window, parts)?;
    implicit_gemm::convolve(&problem, &extras, site)
}

/// A convolution as a matmul with gathered pixels.
fn by_taps<'a>(window: &Window, parts: ConvOperands<'a>) -> Result<(Problem<'a>, Vec<Operand>), String> {
    let taps = windows::of_conv(window, &parts)?;
    let k_offset = parts.channels * parts.spatial().1.iter().product::<usize>();
    let filters = parts.m * k_offset;
    Ok(parts.gathered(taps, (k_offset, filters), 1))
}

/// A convolution of one group as a matmul, whatever kernel it would get.
#[cfg(test)]
pub(crate) fn as_matmul<'a>(op: &'a Conv, site: &Site<'_>) -> Result<(Problem<'a>, Vec<Operand>), String> {
    by_taps(&op.window, ConvOperands::new(site, op.groups, op.bias, op.epilogue.as_ref())?)
}

/// A convolution of single elements as a matmul, if that is a good one.
fn pointwise<'a>(parts: &ConvOperands<'a>) -> Option<Problem<'a>> {
    let (m, channels, groups, images) = (parts.m, parts.channels, parts.groups, parts.images());
    let pixels = product(&parts.spatial().2);
    let over = parts.over_pixels();
    if over.dims.len() > 1 {
        return None;
    }
    let open_stride = |size: Dim, stride: Dim| if size == 1 { Dim::ZERO } else { stride };
    let stride = |size: usize, stride: usize| open_stride(size.into(), stride.into());
    let a =
        MatrixOperand { outer: stride(m, channels), k_stride: stride(channels, 1), operand: parts.w.clone() };
    let problem =
        |n: Dim, b: MatrixOperand, batch: Walk, extras: Vec<EpilogueOperand>, out: (Dim, Dim)| Problem {
            m: m.into(),
            n,
            k: channels.into(),
            a,
            b,
            batch,
            extras,
            region: parts.region,
            target: parts.target.clone(),
            out,
            experts: None,
            bias: parts.bias,
            result: parts.w.ty.dtype,
            pairs: false,
            taps: None,
            packed: None,
        };
    let x = parts.x.clone();
    if groups == 1 && pixels == 1 {
        let b = MatrixOperand {
            outer: open_stride(images, channels.into()),
            k_stride: stride(channels, 1),
            operand: x,
        };
        let input = |(operand, over): (&Operand, &Vec<Dim>)| EpilogueOperand {
            operand: operand.clone(),
            row: over[1],
            column: over[0],
        };
        let extras: Vec<EpilogueOperand> = parts.extras.iter().zip(&parts.strides).map(input).collect();
        let batch = Walk::new::<Dim, Dim>(&[], &vec![Vec::new(); 2 + extras.len()]);
        return Some(problem(images, b, batch, extras, (Dim::ONE, m.into())));
    }
    if pixels < WIDE && images > 1 {
        return None;
    }
    let b = MatrixOperand {
        outer: open_stride(pixels, Dim::ONE),
        k_stride: open_stride(channels.into(), pixels),
        operand: x,
    };
    let plane = pixels * channels;
    let mut strides = vec![vec![Dim::ZERO, (m * channels).into()], vec![plane * groups, plane]];
    strides.extend(parts.strides.iter().map(|s| vec![s[0], s[1] * m]));
    let mut batch = Walk::new(&[images, groups.into()], &strides);
    batch.drop_single();
    Some(problem(pixels, b, batch, parts.epilogue_inputs(&over), (pixels, Dim::ONE)))
}

/// Lowers a transposed convolution: every result is the sum of the inputs that reach it.
pub(crate) fn conv_transpose(op: &ConvTranspose, site: &mut Site<'_>) -> Result<(), String> {
    let parts = ConvOperands::new(site, op.groups, op.bias, None)?;
    let taps = windows::of_transpose(&op.window, &parts)?;
    let kernel: usize = parts.spatial().1.iter().product();
    let weights = parts.channels * parts.m * kernel;
    let (problem, extras) = parts.gathered(taps, (kernel, weights), 0);
    implicit_gemm::convolve(&problem, &extras, site)
}
