//! Spectra and windows.

use olivine_ir::op::{MelFilterBank, MelScale, Stft, WindowKind};
use olivine_ir::{DType, ValueId};

use super::Entry;
use super::arity::{Since, Takes};
use super::compose::{cast, reshaped, size};
use crate::ElementType;
use crate::element::element_type;
use crate::import::{Answer, NodeContext, Value};

pub(super) const OPERATORS: &[Entry] = &[
    ("BlackmanWindow", Takes(1, 1), |n| window(n, WindowKind::Blackman)),
    ("DFT", Since(&[(17, 2, 1), (20, 3, 1)]), dft),
    ("HammingWindow", Takes(1, 1), |n| window(n, WindowKind::HammingExact)),
    ("HannWindow", Takes(1, 1), |n| window(n, WindowKind::Hann)),
    ("MelWeightMatrix", Takes(5, 1), mel_weight_matrix),
    ("STFT", Takes(4, 1), stft),
];

/// Numbers that a window has at most: they are computed while the graph is built.
const MAX_WINDOW: usize = 1 << 22;

/// The element type that an attribute names, and the dtype that holds it.
fn named_type(n: &NodeContext<'_, '_>, attribute: &str) -> Answer<(ElementType, DType)> {
    let number = n.int_or(attribute, 1)?;
    let element = i32::try_from(number).ok().and_then(element_type);
    let held = element.and_then(|e| Some((e, e.dtype()?)));
    held.ok_or_else(|| n.wrong(format!("{attribute} {number} is no type of numbers")))
}

fn window(n: &mut NodeContext<'_, '_>, kind: WindowKind) -> Answer<Vec<Value>> {
    let length = n.fixed_int(0)?;
    let length = size(n, "its size", length)?;
    if length > MAX_WINDOW {
        return Err(n.wrong(format!("a window of {length} numbers is above {MAX_WINDOW}")));
    }
    let (element, dtype) = named_type(n, "output_datatype")?;
    let periodic = n.flag("periodic", true)?;
    let computed = if dtype.is_float() { dtype } else { DType::F32 };
    let y = if periodic && length == 1 {
        // The formula at its first number, as that of every longer window; graphs have 1 there, as PyTorch does.
        n.build(|g| {
            let two = g.window(kind, 2, true, computed)?;
            g.narrow(two, 0, 0, 1)
        })?
    } else {
        n.build(|g| g.window(kind, length, periodic, computed))?
    };
    let y = cast(n, y, dtype)?;
    Ok(vec![n.result(y, element)])
}

fn mel_weight_matrix(n: &mut NodeContext<'_, '_>) -> Answer<Vec<Value>> {
    let (bands, length) = (n.fixed_int(0)?, n.fixed_int(1)?);
    let (element, dtype) = named_type(n, "output_datatype")?;
    let mut number = |i: usize| -> Answer<f64> {
        let tensor = n.fixed(i)?;
        match tensor.to_f64().as_slice() {
            [one] => Ok(*one),
            all => Err(n.wrong(format!("input {i} should be one number, there are {}", all.len()))),
        }
    };
    let (sample_rate, lower_hz, upper_hz) = (number(2)?, number(3)?, number(4)?);
    let bank = MelFilterBank {
        dtype: if dtype.is_float() { dtype } else { DType::F32 },
        bands: size(n, "num_mel_bins", bands)?,
        dft_length: size(n, "dft_length", length)?,
        sample_rate,
        lower_hz,
        upper_hz,
        scale: MelScale::Onnx,
        equal_area: false,
    };
    let y = n.build(|g| g.mel_filter_bank(bank))?;
    let y = cast(n, y, dtype)?;
    Ok(vec![n.result(y, element)])
}

fn dft(n: &mut NodeContext<'_, '_>) -> Answer<Vec<Value>> {
    let x = n.tensor(0)?;
    let rank = n.shape(x)?.rank();
    let length = match n.has(1) {
        true => {
            let length = n.fixed_int(1)?;
            Some(size(n, "dft_length", length)?)
        }
        false => None,
    };
    let axis = if n.opset() < 20 {
        n.int_or("axis", 1)?
    } else if n.has(2) {
        n.fixed_int(2)?
    } else {
        -2
    };
    let axis = n.axis(axis, rank)?;
    let (inverse, onesided) = (n.flag("inverse", false)?, n.flag("onesided", false)?);
    let y = n.build(|g| g.dft(x, axis as isize, length, inverse, onesided))?;
    n.like_first(y)
}

fn stft(n: &mut NodeContext<'_, '_>) -> Answer<Vec<Value>> {
    let (x, step) = (n.tensor(0)?, n.fixed_int(1)?);
    let window: Option<ValueId> = n.optional(2)?;
    let frame_length = match (n.has(3), window) {
        (true, _) => {
            let length = n.fixed_int(3)?;
            size(n, "frame_length", length)?
        }
        (false, Some(window)) => n.shape(window)?.numel(),
        (false, None) => return Err(n.wrong("it has neither a window nor a frame_length")),
    };
    let dtype = n.dtype(x)?;
    let window = match window {
        Some(window) => Some(cast(n, window, dtype)?),
        None => None,
    };
    let shape = n.shape(x)?;
    let x = match shape.dims() {
        [batch, length, 1] => reshaped(n, x, &[*batch, *length])?,
        _ => x,
    };
    let op = Stft {
        frame_length,
        frame_step: size(n, "frame_step", step)?,
        onesided: n.flag("onesided", true)?,
        center: false,
    };
    let y = n.build(|g| g.stft(x, window, op))?;
    n.like_first(y)
}
