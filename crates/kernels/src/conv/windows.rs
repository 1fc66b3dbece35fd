//! The taps of convolutions and of their transposes.

use olivine_ir::op::Window;

use super::taps::{Bounds, Class, MOST_BITS, Tap, TapAxis, Taps};
use crate::conv::ConvOperands;

/// The farthest that a window may reach: coordinates are 32-bit numbers that wrap.
const FARTHEST: usize = i32::MAX as usize;

/// Distances between neighbours of packed axes.
fn steps(sizes: &[usize]) -> Vec<usize> {
    let mut steps = vec![1; sizes.len()];
    for i in (1..sizes.len()).rev() {
        steps[i - 1] = steps[i] * sizes[i];
    }
    steps
}

/// Every combination of one item of each list, the last list fastest.
fn combinations<T: Copy>(lists: &[Vec<T>]) -> Vec<Vec<T>> {
    lists.iter().fold(vec![Vec::new()], |so_far, list| {
        let extend = |head: &Vec<T>| {
            let head = head.clone();
            list.iter().map(move |item| head.iter().copied().chain([*item]).collect()).collect::<Vec<_>>()
        };
        so_far.iter().flat_map(extend).collect()
    })
}

/// Pads distances of up to three axes.
fn three(deltas: &[i64]) -> [i64; 3] {
    let mut all = [0; 3];
    all.iter_mut().zip(deltas).for_each(|(to, d)| *to = *d);
    all
}

/// What is left of a distance on an axis that takes it only once.
fn if_several(count: usize, distance: usize) -> usize {
    if count <= 1 { 1 } else { distance }
}

/// The taps of a convolution: one class, whose indices along K run over channels and then over the kernel, as filters
/// lie.
pub(crate) fn of_conv(window: &Window, parts: &ConvOperands<'_>) -> Result<Taps, String> {
    let (sizes, kernel, out) = parts.spatial();
    let (step, out_step) = (steps(sizes), steps(out));
    let mut axes = Vec::with_capacity(sizes.len());
    for i in 0..sizes.len() {
        let stride = if_several(out[i], window.strides[i]);
        let dilation = if_several(kernel[i], window.dilations[i]);
        let lead = window.pads[i].0;
        let reach = out[i].saturating_sub(1).saturating_mul(stride);
        let reach = reach.saturating_add((kernel[i] - 1).saturating_mul(dilation));
        if reach.max(lead) > FARTHEST {
            return Err(format!("windows reach {} elements far on axis {i}", reach.max(lead)));
        }
        axes.push(TapAxis {
            size: sizes[i],
            step: step[i],
            stride,
            lead,
            kernel: kernel[i],
            dilation,
            padded: lead > 0 || reach >= sizes[i],
            out: out_step[i],
        });
    }
    let bounds = match kernel.iter().sum() {
        _ if axes.iter().all(|a| !a.padded) => Bounds::Inside,
        1..=MOST_BITS => Bounds::Bits,
        _ => Bounds::Coordinates,
    };
    // A word tells of all axes at once, so that one kernel serves whichever of them are padded.
    axes.iter_mut().for_each(|a| a.padded |= bounds == Bounds::Bits);
    let plane: usize = sizes.iter().product();
    let mut of_kernel = Vec::new();
    for tap in combinations(&kernel.iter().map(|k| (0..*k).collect()).collect::<Vec<_>>()) {
        let (mut offset, mut word, mut first) = (0, 0, 0);
        let mut deltas = Vec::with_capacity(tap.len());
        for (t, axis) in tap.iter().zip(&axes) {
            let delta = (t * axis.dilation) as i64;
            deltas.push(delta);
            offset += delta * axis.step as i64;
            if axis.padded {
                word |= 1u32.checked_shl((first + t) as u32).unwrap_or(0);
                first += axis.kernel;
            }
        }
        of_kernel.push(Tap { offset, delta: three(&deltas), bits: word, weight: 0 });
    }
    let taps = (0..parts.channels)
        .flat_map(|c| of_kernel.iter().map(move |t| Tap { offset: t.offset + (c * plane) as i64, ..*t }));
    let class = Class { dims: out.to_vec(), out: 0, taps: taps.collect() };
    Ok(Taps { bounds, ..gathered(parts, axes, vec![class], false) })
}

/// The taps of a transposed convolution: a class for every residue of the strides. A result at `q·stride + r` takes
/// the inputs at `q + (r + lead − tap·dilation) / stride` for the taps that divide.
pub(crate) fn of_transpose(window: &Window, parts: &ConvOperands<'_>) -> Result<Taps, String> {
    let (sizes, kernel, out) = parts.spatial();
    let (step, out_step) = (steps(sizes), steps(out));
    let far = |i: usize| {
        let span = (kernel[i] - 1).saturating_mul(window.dilations[i]);
        sizes[i].saturating_mul(window.strides[i]).saturating_add(span).max(window.pads[i].0)
    };
    if let Some(axis) = (0..sizes.len()).find(|i| far(*i) > FARTHEST) {
        return Err(format!("windows reach {} elements far on axis {axis}", far(axis)));
    }
    let axes: Vec<TapAxis> = (0..sizes.len())
        .map(|i| TapAxis {
            size: sizes[i],
            step: step[i],
            stride: 1,
            lead: 0,
            kernel: kernel[i],
            dilation: 1,
            padded: true,
            out: window.strides[i] * out_step[i],
        })
        .collect();
    let (plane, area): (usize, usize) = (sizes.iter().product(), kernel.iter().product());
    let kernel_step = steps(kernel);
    let residues: Vec<Vec<usize>> =
        out.iter().zip(&window.strides).map(|(o, s)| (0..*(s.min(o))).collect()).collect();
    let mut classes = Vec::new();
    for residue in combinations(&residues) {
        let reached: Vec<Vec<(usize, i64)>> = (0..sizes.len())
            .map(|i| {
                let stride = window.strides[i] as i64;
                let at = (residue[i] + window.pads[i].0) as i64;
                let reach = |tap: usize| {
                    let from = at - (tap * window.dilations[i]) as i64;
                    (from.rem_euclid(stride) == 0).then(|| (tap, from.div_euclid(stride)))
                };
                (0..kernel[i]).filter_map(reach).collect()
            })
            .collect();
        let of_kernel: Vec<Tap> = combinations(&reached)
            .into_iter()
            .map(|taps| {
                let deltas: Vec<i64> = taps.iter().map(|(_, delta)| *delta).collect();
                Tap {
                    offset: deltas.iter().zip(&step).map(|(d, s)| d * *s as i64).sum(),
                    delta: three(&deltas),
                    bits: 0,
                    weight: taps.iter().zip(&kernel_step).map(|((t, _), s)| t * s).sum(),
                }
            })
            .collect();
        let taps = (0..parts.channels).flat_map(|c| {
            of_kernel.iter().map(move |t| Tap {
                offset: t.offset + (c * plane) as i64,
                weight: t.weight + c * parts.m * area,
                ..*t
            })
        });
        classes.push(Class {
            dims: (0..out.len()).map(|i| (out[i] - residue[i]).div_ceil(window.strides[i])).collect(),
            out: residue.iter().zip(&out_step).map(|(r, s)| r * s).sum(),
            taps: taps.collect(),
        });
    }
    Ok(gathered(parts, axes, classes, true))
}

/// Taps with bounds by coordinates.
fn gathered(parts: &ConvOperands<'_>, axes: Vec<TapAxis>, classes: Vec<Class>, by_weight: bool) -> Taps {
    let (sizes, _, out) = parts.spatial();
    let channels = parts.groups * parts.channels;
    Taps {
        axes,
        bounds: Bounds::Coordinates,
        images: parts.images(),
        image: (
            channels * sizes.iter().product::<usize>(),
            parts.groups * parts.m * out.iter().product::<usize>(),
        ),
        classes,
        by_weight,
        extra_images: parts.strides.iter().map(|s| s[0]).collect(),
        extra_pixels: parts.over_pixels(),
    }
}
