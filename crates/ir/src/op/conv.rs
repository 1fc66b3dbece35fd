//! Convolutions over one to three spatial axes, channels second.

use crate::attr::{Attr, AttrField, Attrs};
use crate::graph::{Graph, ValueId};
use crate::op::contraction::epilogue_type;
use crate::op::fused::Region;
use crate::op::{Rule, arity, float, number, of_shape, op, product, same_dtype, shape};
use crate::{Dim, Error, MAX_RANK, TensorType};

/// How a window moves over spatial axes; each list has one entry per axis.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Window {
    /// Distance between windows.
    pub strides: Vec<usize>,
    /// Padding before and after.
    pub pads: Vec<(usize, usize)>,
    /// Distance between elements of a window.
    pub dilations: Vec<usize>,
}

impl Window {
    /// Stride 1, no padding, no dilation.
    pub fn unit(spatial: usize) -> Self {
        Window { strides: vec![1; spatial], pads: vec![(0, 0); spatial], dilations: vec![1; spatial] }
    }

    /// The same stride and symmetric padding on every axis.
    pub fn same(spatial: usize, stride: usize, pad: usize) -> Self {
        Window {
            strides: vec![stride; spatial],
            pads: vec![(pad, pad); spatial],
            dilations: vec![1; spatial],
        }
    }

    /// Lists of one length with positive strides and dilations.
    pub(crate) fn check(&self, spatial: usize) -> Result<(), String> {
        if self.strides.len() != spatial || self.pads.len() != spatial || self.dilations.len() != spatial {
            return Err(format!("strides, pads and dilations need {spatial} entries each"));
        }
        if self.strides.contains(&0) || self.dilations.contains(&0) {
            return Err("strides and dilations must be at least 1".into());
        }
        Ok(())
    }

    /// Elements a kernel of `size` spans on an axis.
    pub fn span(&self, axis: usize, size: usize) -> Result<usize, String> {
        let dilation = *self.dilations.get(axis).ok_or_else(|| format!("no dilation for axis {axis}"))?;
        let Some(gaps) = size.checked_sub(1) else {
            return Err("kernel sizes must be at least 1".into());
        };
        product(&[gaps, dilation])?
            .checked_add(1)
            .ok_or_else(|| format!("a kernel of {size} by {dilation} overflows"))
    }

    /// Number of windows on an axis; with `ceil` a last window may hang over the end, if it begins inside.
    pub fn count(&self, axis: usize, input: usize, kernel: usize, ceil: bool) -> Result<usize, String> {
        let count = self.count_over(axis, input.into(), kernel, ceil)?;
        let count = count.value().map_err(|e| e.to_string())?;
        usize::try_from(count).map_err(|_| format!("{count} windows"))
    }

    /// As [`Window::count`], over a size that may be an expression.
    #[track_caller]
    pub fn count_over(&self, axis: usize, input: Dim, kernel: usize, ceil: bool) -> Result<Dim, String> {
        let span = self.span(axis, kernel)?;
        let (Some(&(before, after)), Some(&stride @ 1..)) = (self.pads.get(axis), self.strides.get(axis))
        else {
            return Err(format!("no padding or stride for axis {axis}"));
        };
        let padded = (input + before + after).check().map_err(|_| "padding overflows")?;
        let room = padded - span;
        // The only window may be the one that hangs over the end.
        let least = if ceil { 1 - i64::try_from(stride).unwrap_or(i64::MAX) } else { 0 };
        if room < least || room.fault().is_some() {
            return Err(format!("a window of {span} does not fit {input} with padding {before} and {after}"));
        }
        // No overflow: a window spans at least one element, so `room` is below the largest number.
        if !ceil {
            return Ok(room.div_floor(stride) + 1);
        }
        let last = room.div_ceil(stride);
        let begins_inside = last * stride < input + before;
        Ok(if begins_inside { last + 1 } else { last })
    }
}

impl AttrField for Window {
    fn write(&self) -> Attr {
        Attr::Record(vec![
            ("strides".into(), self.strides.write()),
            ("pads".into(), self.pads.write()),
            ("dilations".into(), self.dilations.write()),
        ])
    }
    fn read(attr: &Attr) -> Result<Self, String> {
        let Attr::Record(fields) = attr else { return Err(format!("expected a window, found `{attr}`")) };
        let all = Attrs(fields.clone());
        all.only(&["strides", "pads", "dilations"])?;
        Ok(Window { strides: all.get("strides")?, pads: all.get("pads")?, dilations: all.get("dilations")? })
    }
}

/// The checks convolutions share; gives the number of spatial axes.
fn spatial_axes(operands: &[TensorType], window: &Window) -> Result<usize, String> {
    let rank = operands[0].shape.rank();
    if !(3..=5).contains(&rank) || operands[1].shape.rank() != rank {
        return Err("x and w must both have rank 3, 4 or 5".into());
    }
    window.check(rank - 2)?;
    Ok(rank - 2)
}

/// The result's sizes of a convolution of the first operand with the second, or why they do not fit.
pub(crate) fn conv_dims(operands: &[TensorType], window: &Window, groups: usize) -> Result<Vec<Dim>, String> {
    let spatial = spatial_axes(operands, window)?;
    let (x, w) = (operands[0].shape.sizes(), &operands[1].shape);
    if groups == 0 || !x[1].is_multiple_of(groups) || !w[0].is_multiple_of(groups) {
        return Err(format!("{groups} groups do not divide {} and {} channels", x[1], w[0]));
    }
    let each = x[1].div_floor(groups);
    if each != w[1] {
        return Err(format!("w must take {each} channels per group, takes {}", w[1]));
    }
    let mut dims = vec![x[0], w[0].into()];
    for i in 0..spatial {
        dims.push(window.count_over(i, x[2 + i], w[2 + i], false)?);
    }
    Ok(dims)
}

op! {
    /// Cross-correlation of x `[N, C, ..]` with w `[M, C/groups, ..]`; a third operand `[M]` is the bias.
    ///
    /// With an epilogue, its input 0 is the (biased) result and its other inputs are the further operands, broadcast.
    pub struct Conv = "conv" {
        /// How the kernel moves.
        pub window: Window,
        /// Channels fall into this many groups.
        pub groups: usize,
        /// Whether a bias is given.
        pub bias: bool,
        /// What happens to the result before it is stored.
        pub epilogue: Option<Region>,
    }
}

impl Rule for Conv {
    fn infer(&self, operands: &[TensorType]) -> Result<Vec<TensorType>, String> {
        let own = 2 + usize::from(self.bias);
        arity(operands, own..=usize::MAX)?;
        same_dtype(&operands[..own])?;
        float(&operands[0])?;
        let dims = conv_dims(operands, &self.window, self.groups)?;
        if self.bias {
            of_shape("the bias", &operands[2], &[operands[1].shape[0]])?;
        }
        epilogue_type(&self.epilogue, operands[0].dtype, shape(&dims)?, &operands[own..])
    }
}

op! {
    /// The transpose of [`Conv`]: x `[N, C, ..]`, w `[C, M/groups, ..]`, optional bias `[M]`.
    pub struct ConvTranspose = "conv_transpose" {
        /// The window of the convolution that is transposed.
        pub window: Window,
        /// Channels fall into this many groups.
        pub groups: usize,
        /// Added to one side of each result axis; below stride or dilation.
        pub output_padding: Vec<usize>,
        /// Whether a bias is given.
        pub bias: bool,
    }
}

impl Rule for ConvTranspose {
    fn infer(&self, operands: &[TensorType]) -> Result<Vec<TensorType>, String> {
        let own = 2 + usize::from(self.bias);
        arity(operands, own..=own)?;
        same_dtype(operands)?;
        float(&operands[0])?;
        let spatial = spatial_axes(operands, &self.window)?;
        let (x, w) = (operands[0].shape.sizes(), &operands[1].shape);
        if self.groups == 0 || !x[1].is_multiple_of(self.groups) || w[0] != x[1] {
            return Err(format!(
                "w must take {} channels in {} equal groups, takes {}",
                x[1], self.groups, w[0]
            ));
        }
        let channels = product(&[w[1], self.groups])?;
        if self.bias {
            of_shape("the bias", &operands[2], &[channels])?;
        }
        if self.output_padding.len() != spatial {
            return Err(format!("output_padding needs {spatial} entries"));
        }
        let mut dims = vec![x[0], channels.into()];
        for i in 0..spatial {
            if self.output_padding[i] >= self.window.strides[i].max(self.window.dilations[i]) {
                return Err(format!(
                    "output_padding {} must be below stride or dilation",
                    self.output_padding[i]
                ));
            }
            let span = self.window.span(i, w[2 + i])?;
            let full = match x[2 + i] == 0 {
                true => Dim::ZERO,
                false => (x[2 + i] - 1) * self.window.strides[i] + span,
            };
            let (before, after) = self.window.pads[i];
            let size = full + self.output_padding[i] - before - after;
            if size.check().map_err(|e| e.to_string())? < 0 {
                return Err(format!("padding leaves nothing of axis {i}"));
            }
            dims.push(size);
        }
        Ok(vec![TensorType::new(operands[0].dtype, shape(&dims)?)])
    }
}

op! {
    /// The windows of x `[N, C, ..]` as columns: `[N, C·kernel, windows]`; padding reads zero.
    pub struct Im2Col = "im2col" {
        /// Kernel sizes.
        pub kernel: Vec<usize>,
        /// How the kernel moves.
        pub window: Window,
    }
}

impl Rule for Im2Col {
    fn infer(&self, operands: &[TensorType]) -> Result<Vec<TensorType>, String> {
        arity(operands, 1..=1)?;
        let x = &operands[0].shape;
        let spatial = self.kernel.len();
        if !(1..=3).contains(&spatial) || x.rank() != spatial + 2 {
            return Err(format!("a kernel of {spatial} axes does not fit {x}"));
        }
        self.window.check(spatial)?;
        let counts = (0..spatial)
            .map(|i| self.window.count(i, x[2 + i], self.kernel[i], false))
            .collect::<Result<Vec<_>, _>>()?;
        let column = product(&[x[1], product(&self.kernel)?])?;
        Ok(vec![TensorType::new(operands[0].dtype, shape(&[x[0], column, product(&counts)?])?)])
    }

    fn moves_elements(&self) -> bool {
        true
    }
}

op! {
    /// Columns `[N, C·kernel, windows]`, as [`Im2Col`] returns them, added up as an image `[N, C, ..]`: an element is the
    /// sum of what all windows that reach it hold for it. Padding is dropped, integers wrap.
    pub struct Col2Im = "col2im" {
        /// Sizes of the image.
        pub image: Vec<usize>,
        /// Kernel sizes.
        pub kernel: Vec<usize>,
        /// How the kernel moves over the image.
        pub window: Window,
    }
}

impl Col2Im {
    /// The number of windows on every axis.
    pub fn counts(&self) -> Result<Vec<usize>, String> {
        let axes = self.image.iter().zip(&self.kernel).enumerate();
        axes.map(|(i, (size, kernel))| self.window.count(i, *size, *kernel, false)).collect()
    }
}

impl Rule for Col2Im {
    fn infer(&self, operands: &[TensorType]) -> Result<Vec<TensorType>, String> {
        arity(operands, 1..=1)?;
        number(&operands[0])?;
        let (x, spatial) = (&operands[0].shape, self.image.len());
        if !(1..=MAX_RANK - 2).contains(&spatial) || self.kernel.len() != spatial {
            return Err(format!("a kernel of {:?} does not fit an image of {:?}", self.kernel, self.image));
        }
        self.window.check(spatial)?;
        let (taps, windows) = (product(&self.kernel)?, product(&self.counts()?)?);
        if x.rank() != 3 || !x[1].is_multiple_of(taps) || x[2] != windows {
            return Err(format!("needs columns of shape [N, C·{taps}, {windows}], got {x}"));
        }
        let dims = [&[x[0], x[1] / taps][..], &self.image].concat();
        Ok(vec![TensorType::new(operands[0].dtype, shape(&dims)?)])
    }
}

impl Graph {
    /// Convolution; see [`Conv`].
    pub fn conv(
        &mut self,
        x: ValueId,
        w: ValueId,
        bias: Option<ValueId>,
        window: Window,
        groups: usize,
    ) -> Result<ValueId, Error> {
        let operands: Vec<ValueId> = [x, w].into_iter().chain(bias).collect();
        self.add1(Conv { window, groups, bias: bias.is_some(), epilogue: None }, &operands)
    }

    /// Transposed convolution; see [`ConvTranspose`].
    pub fn conv_transpose(
        &mut self,
        x: ValueId,
        w: ValueId,
        bias: Option<ValueId>,
        window: Window,
        groups: usize,
        output_padding: &[usize],
    ) -> Result<ValueId, Error> {
        let operands: Vec<ValueId> = [x, w].into_iter().chain(bias).collect();
        let op =
            ConvTranspose { window, groups, output_padding: output_padding.to_vec(), bias: bias.is_some() };
        self.add1(op, &operands)
    }

    /// Windows as columns; see [`Im2Col`].
    pub fn im2col(&mut self, x: ValueId, kernel: &[usize], window: Window) -> Result<ValueId, Error> {
        self.add1(Im2Col { kernel: kernel.to_vec(), window }, &[x])
    }

    /// Columns added up as an image; see [`Col2Im`].
    pub fn col2im(
        &mut self,
        x: ValueId,
        image: &[usize],
        kernel: &[usize],
        window: Window,
    ) -> Result<ValueId, Error> {
        self.add1(Col2Im { image: image.to_vec(), kernel: kernel.to_vec(), window }, &[x])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{DType, Op, Shape};

    #[test]
    fn columns_become_the_image_that_they_were_cut_from_and_nothing_else() {
        let result = |dtype, dims: &[usize], op: &Col2Im| {
            let x = TensorType::new(dtype, Shape::new(dims).map_err(|e| e.to_string())?);
            Op::from(op.clone()).infer(&[x]).map(|types| types[0].to_string())
        };
        let op = Col2Im { image: vec![5, 6], kernel: vec![2, 3], window: Window::same(2, 2, 1) };
        assert_eq!(result(DType::U8, &[2, 18, 9], &op), Ok("u8[2, 3, 5, 6]".into()));
        assert_eq!(result(DType::F16, &[0, 0, 9], &op), Ok("f16[0, 0, 5, 6]".into()));
        for (dims, got) in
            [(&[2, 18, 8][..], "[2, 18, 8]"), (&[2, 17, 9], "[2, 17, 9]"), (&[18, 9], "[18, 9]")]
        {
            let refused = format!("needs columns of shape [N, C·6, 9], got {got}");
            assert_eq!(result(DType::F32, dims, &op), Err(refused));
        }
        assert_eq!(result(DType::Bool, &[2, 18, 9], &op), Err("needs a number dtype, got bool".into()));
        let short = Col2Im { kernel: vec![2], ..op.clone() };
        let refused = "a kernel of [2] does not fit an image of [5, 6]".to_string();
        assert_eq!(result(DType::F32, &[2, 18, 9], &short), Err(refused));
        let wide = Col2Im { kernel: vec![9, 3], ..op };
        let refused = "a window of 9 does not fit 5 with padding 1 and 1".to_string();
        assert_eq!(result(DType::F32, &[2, 18, 9], &wide), Err(refused));
        let many = Col2Im { image: vec![2; 7], kernel: vec![1; 7], window: Window::unit(7) };
        assert!(result(DType::F32, &[1, 1, 128], &many).is_err());
    }
}
