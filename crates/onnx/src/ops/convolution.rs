//! Convolutions and their transposes.

use olivine_ir::op::{Binary, CausalConv1d, PadMode, Window};
use olivine_ir::{Dim, ValueId};

use super::Entry;
use super::arity::Takes;
use super::compose::{binary, reshaped, size, sizes};
use crate::import::{Answer, NodeContext, Value};

pub(super) const OPERATORS: &[Entry] = &[
    ("CausalConvWithState", Takes(4, 2), causal_conv),
    ("Conv", Takes(3, 1), conv),
    ("ConvTranspose", Takes(3, 1), conv_transpose),
];

/// Padding at one end of an axis at most: backends keep a table of a window's elements, which may be as many.
const MAX_PAD: u64 = 1 << 20;

/// The attribute `auto_pad`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AutoPad {
    /// What `pads` says.
    NotSet,
    /// As many windows as steps; an odd element of padding at the end.
    SameUpper,
    /// The same with the odd element at the beginning.
    SameLower,
    /// No padding.
    Valid,
}

/// How a window moves, as a node's attributes say it.
pub(super) struct Moves {
    pub(super) strides: Vec<usize>,
    pub(super) dilations: Vec<usize>,
    /// `pads` as it stands, for [`AutoPad::NotSet`] alone.
    pub(super) pads: Vec<(i64, i64)>,
    pub(super) auto: AutoPad,
}

/// Reads the attributes of a window over some spatial axes.
pub(super) fn moves(n: &NodeContext<'_, '_>, spatial: usize) -> Answer<Moves> {
    let each = |name: &str| -> Answer<Vec<usize>> {
        let Some(list) = n.ints(name)? else { return Ok(vec![1; spatial]) };
        let list = sizes(n, name, &list)?;
        if list.len() != spatial || list.contains(&0) {
            return Err(n.wrong(format!("{name} {list:?} do not fit {spatial} axes")));
        }
        Ok(list)
    };
    let auto = match n.string_or("auto_pad", "NOTSET")?.as_str() {
        "NOTSET" | "" => AutoPad::NotSet,
        "SAME_UPPER" => AutoPad::SameUpper,
        "SAME_LOWER" => AutoPad::SameLower,
        "VALID" => AutoPad::Valid,
        other => return Err(n.wrong(format!("auto_pad `{other}` is unknown"))),
    };
    let pads = match n.ints("pads")? {
        Some(list) if auto == AutoPad::NotSet => {
            if list.len() != 2 * spatial {
                return Err(n.wrong(format!("pads {list:?} do not fit {spatial} axes")));
            }
            if list.iter().any(|p| p.unsigned_abs() > MAX_PAD) {
                return Err(n.wrong(format!("pads {list:?} are above {MAX_PAD}")));
            }
            (0..spatial).map(|i| (list[i], list[spatial + i])).collect()
        }
        _ => vec![(0, 0); spatial],
    };
    Ok(Moves { strides: each("strides")?, dilations: each("dilations")?, pads, auto })
}

/// Padding in two parts; the second is the larger for [`AutoPad::SameUpper`], else the first.
fn split_padding(total: i128, auto: AutoPad) -> (i128, i128) {
    let first = if auto == AutoPad::SameUpper { total / 2 } else { (total + 1) / 2 };
    (first, total - first)
}

impl Moves {
    /// Padding on every axis for inputs and kernels of these sizes; negative amounts cut. So do automatic
    /// ones of pools, by ONNX's formula, where steps are longer than windows; convolutions read those inputs
    /// from the beginning.
    pub(super) fn padding(
        &self,
        n: &NodeContext<'_, '_>,
        input: &[Dim],
        kernel: &[usize],
        pools: bool,
    ) -> Answer<Vec<(i64, i64)>> {
        if !matches!(self.auto, AutoPad::SameUpper | AutoPad::SameLower) {
            return Ok(self.pads.clone());
        }
        let mut pads = Vec::with_capacity(input.len());
        for (i, (size, kernel)) in input.iter().zip(kernel).enumerate() {
            let span = span(n, *kernel, self.dilations[i])?;
            let windows = size.div_ceil(self.strides[i]);
            let covered = (windows - 1).max(0) * self.strides[i] + span;
            // The same for all sizes with one remainder by the stride.
            let total = (covered - *size).specialize_signed();
            let total = total.map_err(|e| n.wrong(e.to_string()))?;
            let (first, last) = split_padding(if pools { total } else { total.max(0) }.into(), self.auto);
            pads.push((first as i64, last as i64));
        }
        Ok(pads)
    }

    /// The window, where no padding is negative.
    pub(super) fn window(&self, n: &NodeContext<'_, '_>, pads: &[(i64, i64)]) -> Answer<Window> {
        if pads.iter().any(|(a, b)| a.unsigned_abs().max(b.unsigned_abs()) > MAX_PAD) {
            return Err(n.wrong(format!("pads {pads:?} are above {MAX_PAD}")));
        }
        let pads = pads.iter().map(|(a, b)| Ok((size(n, "a pad", *a)?, size(n, "a pad", *b)?)));
        Ok(Window {
            strides: self.strides.clone(),
            pads: pads.collect::<Answer<_>>()?,
            dilations: self.dilations.clone(),
        })
    }
}

/// Elements that a kernel spans.
fn span(n: &NodeContext<'_, '_>, kernel: usize, dilation: usize) -> Answer<i64> {
    let gaps = kernel.saturating_sub(1).checked_mul(dilation).and_then(|s| i64::try_from(s).ok());
    gaps.filter(|s| *s < 1 << 40).map(|s| s + 1).ok_or_else(|| n.wrong("its kernel is too large"))
}

/// Sizes of x's and w's spatial axes.
pub(super) fn spatial_sizes(
    n: &mut NodeContext<'_, '_>,
    x: ValueId,
    w: ValueId,
) -> Answer<(Vec<Dim>, Vec<usize>)> {
    let (xs, ws) = (n.shape(x)?, n.shape(w)?);
    if xs.rank() < 3 || ws.rank() != xs.rank() {
        return Err(n.wrong(format!("x of {xs} and w of {ws} are not of one rank from 3 on")));
    }
    let kernel = ws[2..].to_vec();
    if let Some(declared) = n.ints("kernel_shape")? {
        let declared = sizes(n, "kernel_shape", &declared)?;
        if declared != kernel {
            return Err(n.wrong(format!("kernel_shape {declared:?} differs from that of w, {ws}")));
        }
    }
    Ok((xs.sizes()[2..].to_vec(), kernel))
}

fn conv(n: &mut NodeContext<'_, '_>) -> Answer<Vec<Value>> {
    let (mut x, w, bias) = (n.tensor(0)?, n.tensor(1)?, n.optional(2)?);
    let (input, kernel) = spatial_sizes(n, x, w)?;
    let moves = moves(n, input.len())?;
    let group = n.int_or("group", 1)?;
    let group = size(n, "group", group)?;
    let mut pads = moves.padding(n, &input, &kernel, false)?;
    x = without_negative(n, x, &mut pads)?;
    let window = moves.window(n, &pads)?;
    let y = n.build(|g| g.conv(x, w, bias, window, group))?;
    n.like_first(y)
}

/// x of `[N, C, ..]` cut by what of its padding is negative, which becomes zero.
pub(super) fn without_negative(
    n: &mut NodeContext<'_, '_>,
    x: ValueId,
    pads: &mut [(i64, i64)],
) -> Answer<ValueId> {
    if pads.iter().all(|(a, b)| *a >= 0 && *b >= 0) {
        return Ok(x);
    }
    let cuts: Vec<(i64, i64)> =
        [(0, 0); 2].into_iter().chain(pads.iter().map(|(a, b)| ((*a).min(0), (*b).min(0)))).collect();
    pads.iter_mut().for_each(|(a, b)| (*a, *b) = ((*a).max(0), (*b).max(0)));
    n.build(|g| g.pad(x, &cuts, PadMode::Constant, 0.0))
}

fn conv_transpose(n: &mut NodeContext<'_, '_>) -> Answer<Vec<Value>> {
    let (x, w, bias) = (n.tensor(0)?, n.tensor(1)?, n.optional(2)?);
    let (input, kernel) = spatial_sizes(n, x, w)?;
    let spatial = input.len();
    let moves = moves(n, spatial)?;
    let same = matches!(moves.auto, AutoPad::SameUpper | AutoPad::SameLower);
    let group = n.int_or("group", 1)?;
    let group = size(n, "group", group)?;
    let extra = match n.ints("output_padding")? {
        Some(list) => sizes(n, "output_padding", &list)?,
        None => vec![0; spatial],
    };
    let asked = n.ints("output_shape")?;
    // Some exporters write batch and channels before the spatial sizes.
    let asked = asked.map(|list| list[list.len().saturating_sub(spatial)..].to_vec());
    if extra.len() != spatial || asked.as_ref().is_some_and(|a| a.len() != spatial) {
        return Err(n.wrong(format!("output_padding or output_shape do not fit {spatial} axes")));
    }
    // What is cut off the full transpose at either end; a negative number adds zeros.
    let mut cuts = Vec::with_capacity(spatial);
    for i in 0..spatial {
        let span = span(n, kernel[i], moves.dilations[i])?;
        // Attributes may be any numbers: what they come to is added up in wide ones.
        let extra = i128::from(extra[i] as u64);
        let (first, last) = if same || asked.is_some() {
            let size = input[i].specialize().map_err(|e| n.wrong(e.to_string()))?;
            let spread = (size as i64 - 1).max(0).checked_mul(moves.strides[i] as i64);
            let full =
                spread.and_then(|s| s.checked_add(span)).ok_or_else(|| n.wrong("its result is too large"))?;
            let wanted = match &asked {
                Some(list) => i128::from(list[i]),
                None => size as i128 * moves.strides[i] as i128,
            };
            let (start, _) = split_padding((i128::from(full) + extra - wanted).max(0), moves.auto);
            (start, i128::from(full) - start - wanted)
        } else {
            (moves.pads[i].0.into(), i128::from(moves.pads[i].1) - extra)
        };
        let fitting = |cut: i128| i64::try_from(cut).ok().filter(|cut| cut.unsigned_abs() < 1 << 40);
        let cut = fitting(first).zip(fitting(last));
        cuts.push(cut.ok_or_else(|| n.wrong(format!("its padding of {first} and {last} is too large")))?);
    }
    if cuts.iter().all(|(a, b)| *a >= 0 && *b >= 0) {
        let window = moves.window(n, &cuts)?;
        let y = n.build(|g| g.conv_transpose(x, w, bias, window, group, &vec![0; spatial]))?;
        return n.like_first(y);
    }
    let window = moves.window(n, &vec![(0, 0); spatial])?;
    let full = n.build(|g| g.conv_transpose(x, w, None, window, group, &vec![0; spatial]))?;
    let pads: Vec<(i64, i64)> = [(0, 0); 2].into_iter().chain(cuts.iter().map(|(a, b)| (-a, -b))).collect();
    let mut y = n.build(|g| g.pad(full, &pads, PadMode::Constant, 0.0))?;
    if let Some(bias) = bias {
        let bias = per_channel(n, bias, spatial)?;
        y = binary(n, Binary::Add, y, bias)?;
    }
    n.like_first(y)
}

/// A convolution of every channel over its past, of which a state holds what came before.
fn causal_conv(n: &mut NodeContext<'_, '_>) -> Answer<Vec<Value>> {
    let (x, w, bias, state) = (n.tensor(0)?, n.tensor(1)?, n.optional(2)?, n.optional(3)?);
    let shape = n.shape(w)?;
    let &[channels, 1, taps] = shape.dims() else {
        return Err(n.wrong(format!("its weights are [channels, 1, taps], not {shape}")));
    };
    let silu = match n.string_or("activation", "none")?.as_str() {
        "none" => false,
        "silu" | "swish" => true,
        other => return Err(n.wrong(format!("activation `{other}` is unknown"))),
    };
    if n.shape(x)?.rank() != 3 {
        return Err(n.wrong("its input is not of rank 3"));
    }
    // The graph's channels come last.
    let w = reshaped(n, w, &[channels, taps])?;
    let x = n.build(|g| g.swap_last_axes(x))?;
    let state = match state {
        Some(state) => Some(n.build(|g| g.swap_last_axes(state))?),
        None => None,
    };
    let spec = CausalConv1d { bias: bias.is_some(), silu, state: state.is_some() };
    let extra: Vec<ValueId> = bias.into_iter().chain(state).collect();
    let (y, state) = n.build(|g| g.causal_conv1d(spec, x, w, &extra))?;
    let (y, state) = (n.build(|g| g.swap_last_axes(y))?, n.build(|g| g.swap_last_axes(state))?);
    let element = n.element(0)?;
    Ok(vec![n.result(y, element), n.result(state, element)])
}

/// One number a channel, to go with `[N, C, ..]` of so many spatial axes.
pub(super) fn per_channel(n: &mut NodeContext<'_, '_>, x: ValueId, spatial: usize) -> Answer<ValueId> {
    let mut dims = vec![n.shape(x)?.numel()];
    dims.resize(1 + spatial, 1);
    reshaped(n, x, &dims)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn odd_padding_goes_to_the_end_that_the_attribute_names() {
        assert_eq!(split_padding(3, AutoPad::SameUpper), (1, 2));
        assert_eq!(split_padding(3, AutoPad::SameLower), (2, 1));
        assert_eq!(split_padding(4, AutoPad::NotSet), (2, 2));
        assert_eq!(split_padding(-2, AutoPad::SameUpper), (-1, -1));
    }
}
