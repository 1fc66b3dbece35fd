//! The taps of convolutions and of their transposes.

use olivine_ir::op::Window;
use olivine_ir::{Dim, product};

use super::taps::{Bounds, Class, MOST_BITS, Tap, TapAxis, TapForm, Taps};
use crate::conv::ConvOperands;
use crate::launch::number;

/// The farthest that a window may reach: coordinates are 32-bit numbers that wrap.
const FARTHEST: usize = i32::MAX as usize;

/// Distances between neighbours of packed axes.
fn steps(sizes: &[Dim]) -> Vec<Dim> {
    let mut steps = vec![Dim::ONE; sizes.len()];
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
#[track_caller]
fn if_several(count: Dim, distance: usize) -> usize {
    if count <= 1 { 1 } else { distance }
}

/// The taps of a convolution: one class, whose indices along K run over channels and then over the kernel, as filters
/// lie.
pub(crate) fn of_conv(window: &Window, parts: &ConvOperands<'_>) -> Result<Taps, String> {
    let (sizes, kernel, out) = parts.spatial();
    let (step, out_step) = (steps(&sizes), steps(&out));
    let mut axes = Vec::with_capacity(sizes.len());
    for i in 0..sizes.len() {
        let stride = if_several(out[i], window.strides[i]);
        let dilation = if kernel[i] <= 1 { 1 } else { window.dilations[i] };
        let lead = window.pads[i].0;
        let reach = (out[i] - 1).max(0) * stride + (kernel[i] - 1).saturating_mul(dilation);
        let reach = reach.check().map_err(|e| e.to_string())?;
        if lead > FARTHEST || reach > FARTHEST {
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
    // Distances serve all sizes of an image; a volume has more of them than a table's entry.
    let form = if sizes.len() <= 2 { TapForm::Distances } else { TapForm::Offsets };
    let mut of_kernel = Vec::new();
    for tap in combinations(&kernel.iter().map(|k| (0..*k).collect()).collect::<Vec<_>>()) {
        let (mut word, mut first) = (0, 0);
        let mut deltas = Vec::with_capacity(tap.len());
        for (t, axis) in tap.iter().zip(&axes) {
            deltas.push((t * axis.dilation) as i64);
            if axis.padded {
                word |= 1u32.checked_shl((first + t) as u32).unwrap_or(0);
                first += axis.kernel;
            }
        }
        of_kernel.push(Tap { channel: 0, delta: three(&deltas), bits: word, weight: 0 });
    }
    let of_channel = |c: usize, t: &Tap| Tap { channel: c, ..*t };
    let taps = (0..parts.channels).flat_map(|c| of_kernel.iter().map(move |t| of_channel(c, t)));
    let class = Class { dims: out, out: Dim::ZERO, taps: taps.collect() };
    Ok(Taps { bounds, form, ..gathered(parts, axes, vec![class], false) })
}

/// The taps of a transposed convolution: a class for every residue of the strides. A result at `q·stride + r` takes
/// the inputs at `q + (r + lead − tap·dilation) / stride` for the taps that divide.
pub(crate) fn of_transpose(window: &Window, parts: &ConvOperands<'_>) -> Result<Taps, String> {
    let (sizes, kernel, out) = parts.spatial();
    let (step, out_step) = (steps(&sizes), steps(&out));
    for i in 0..sizes.len() {
        let (span, lead) = ((kernel[i] - 1).saturating_mul(window.dilations[i]), window.pads[i].0);
        let reach = (sizes[i] * window.strides[i] + span).check().map_err(|e| e.to_string())?;
        if lead > FARTHEST || reach > FARTHEST {
            return Err(format!("windows reach {} elements far on axis {i}", reach.max(lead)));
        }
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
            out: out_step[i] * window.strides[i],
        })
        .collect();
    let area: usize = kernel.iter().product();
    let kernel_step: Vec<usize> = (0..kernel.len()).map(|i| kernel[i + 1..].iter().product()).collect();
    let all = |(out, stride): (&Dim, &usize)| if *out >= *stride { *stride } else { number(*out) };
    let residues: Vec<Vec<usize>> =
        out.iter().zip(&window.strides).map(|pair| (0..all(pair)).collect()).collect();
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
                    channel: 0,
                    delta: three(&deltas),
                    bits: 0,
                    weight: taps.iter().zip(&kernel_step).map(|((t, _), s)| t * s).sum(),
                }
            })
            .collect();
        let taps = (0..parts.channels).flat_map(|c| {
            of_kernel.iter().map(move |t| Tap { channel: c, weight: t.weight + c * parts.m * area, ..*t })
        });
        classes.push(Class {
            dims: (0..out.len()).map(|i| (out[i] - residue[i]).div_ceil(window.strides[i])).collect(),
            out: residue.iter().zip(&out_step).map(|(r, s)| *s * *r).sum(),
            taps: taps.collect(),
        });
    }
    Ok(gathered(parts, axes, classes, true))
}

/// Taps with bounds by coordinates.
fn gathered(parts: &ConvOperands<'_>, axes: Vec<TapAxis>, classes: Vec<Class>, by_weight: bool) -> Taps {
    let (sizes, _, out) = parts.spatial();
    let channels = parts.groups * parts.channels;
    let plane = product(&sizes);
    Taps {
        axes,
        bounds: Bounds::Coordinates,
        form: TapForm::Offsets,
        images: parts.images(),
        plane,
        offset_steps: (plane, steps(&sizes)),
        image: (plane * channels, product(&out) * (parts.groups * parts.m)),
        classes,
        by_weight,
        extra_images: parts.strides.iter().map(|s| s[0]).collect(),
        extra_pixels: parts.over_pixels(),
    }
}
