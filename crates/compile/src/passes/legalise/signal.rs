//! Signals: frames are windows read through strides, filters are constants, and transforms are what is left.

use std::f64::consts::{LN_2, LN_10};

use olivine_ir::half::{bf16, f16};
use olivine_ir::op::{
    Binary, Dft, FftKind, FftNorm, LogMel, MelFilterBank, MelScale, PadMode, ReduceKind, Stft,
};
use olivine_ir::{DType, Data, Dim, Error, Graph, Shape, Tensor, ValueId, memory, round_to_odd};

use super::{cast, reshape, rewrites, transpose, working_dtype};

rewrites! { |g, op, to|
    Dft [x] => dft(g, op, *x, to),
    Stft [x, window @ ..] => stft(g, op, *x, window.first().copied(), to),
    MelFilterBank [] => mel_filter_bank(g, op, to),
    LogMel [x, window, filters] => log_mel(g, op, *x, *window, *filters, to),
}

fn dft(g: &mut Graph, op: &Dft, x: ValueId, to: Shape) -> Result<ValueId, Error> {
    let shape = g.ty(x)?.shape;
    let last = shape.rank() - 1;
    let axis = op.axis as isize;
    if shape.size(last) == 2 {
        return match (op.inverse, op.onesided) {
            (true, true) => {
                let y = g.fft_of(FftKind::Irfft, x, axis, op.n, FftNorm::Backward)?;
                reshape(g, y, &to)
            }
            (true, false) => g.fft_of(FftKind::Ifft, x, axis, op.n, FftNorm::Backward),
            (false, onesided) => {
                let y = g.fft_of(FftKind::Fft, x, axis, op.n, FftNorm::Backward)?;
                if onesided { g.narrow(y, axis, 0, to.size(op.axis)) } else { Ok(y) }
            }
        };
    }
    if op.onesided {
        let x = reshape(g, x, &shape.sizes()[..last])?;
        return g.fft_of(FftKind::Rfft, x, axis, op.n, FftNorm::Backward);
    }
    let mut pads = vec![(0, 0); shape.rank()];
    pads[last] = (0, 1);
    let x = g.pad(x, &pads, PadMode::Constant, 0.0)?;
    let kind = if op.inverse { FftKind::Ifft } else { FftKind::Fft };
    g.fft_of(kind, x, axis, op.n, FftNorm::Backward)
}

fn stft(g: &mut Graph, op: &Stft, x: ValueId, window: Option<ValueId>, to: Shape) -> Result<ValueId, Error> {
    let ty = g.ty(x)?;
    // The product with the window would otherwise be rounded to the narrow dtype before the transform.
    let work = if window.is_some() { working_dtype(ty.dtype) } else { ty.dtype };
    let (batch, length) = (ty.shape.size(0), ty.shape.size(1));
    let complex = ty.shape.rank() == 3 && ty.shape.size(2) == 2;
    let x = if complex { x } else { reshape(g, x, &[batch, length])? };
    let x = if op.center {
        let half = (op.frame_length / 2) as i64;
        let mut pads = vec![(0, 0); if complex { 3 } else { 2 }];
        pads[1] = (half, half);
        g.pad(x, &pads, PadMode::Reflect, 0.0)?
    } else {
        x
    };
    let frames = g.unfold(x, 1, op.frame_length, op.frame_step)?;
    let frames = if complex { transpose(g, frames, &[0, 1, 3, 2])? } else { frames };
    let frames = cast(g, frames, work)?;
    let frames = match window {
        None => frames,
        Some(window) => {
            let window = cast(g, window, work)?;
            let along = if complex { vec![op.frame_length, 1] } else { vec![op.frame_length] };
            let window = reshape(g, window, &along)?;
            g.mul(frames, window)?
        }
    };
    let y = match (complex, op.onesided) {
        (false, true) => g.rfft(frames, 2)?,
        (true, true) => {
            let y = g.fft(frames, 2)?;
            g.narrow(y, 2, 0, to.size(2))?
        }
        (true, false) => g.fft(frames, 2)?,
        (false, false) => {
            let frames = reshape(g, frames, &[batch, to.size(1), op.frame_length.into(), Dim::ONE])?;
            let frames = g.pad(frames, &[(0, 0), (0, 0), (0, 0), (0, 1)], PadMode::Constant, 0.0)?;
            g.fft(frames, 2)?
        }
    };
    cast(g, y, ty.dtype)
}

/// In f32 for narrow dtypes: energies of f16 samples overflow f16.
fn log_mel(
    g: &mut Graph,
    op: &LogMel,
    x: ValueId,
    window: ValueId,
    filters: ValueId,
    to: Shape,
) -> Result<ValueId, Error> {
    let dtype = g.ty(x)?.dtype;
    let work = working_dtype(dtype);
    let (x, window, filters) = (cast(g, x, work)?, cast(g, window, work)?, cast(g, filters, work)?);
    let (batch, frames) = (to.size(0), to.size(2));
    let stft_op =
        Stft { frame_length: op.frame_length, frame_step: op.frame_step, onesided: true, center: true };
    let bins = op.frame_length / 2 + 1;
    let spectrum =
        stft(g, &stft_op, x, Some(window), Shape::of_sizes(&[batch, frames + 1, bins.into(), 2.into()])?)?;
    let spectrum = g.narrow(spectrum, 1, 0, frames)?;
    let mut squares = Vec::new();
    for part in 0..2 {
        let numbers = g.narrow(spectrum, 3, part, 1)?;
        let numbers = reshape(g, numbers, &[batch, frames, bins.into()])?;
        squares.push(g.mul(numbers, numbers)?);
    }
    let energy = g.add(squares[0], squares[1])?;
    let mel = g.matmul(energy, filters)?;
    let mel = g.binary_scalar(Binary::Max, mel, 1e-10)?;
    let log = g.log2(mel)?;
    let log = g.binary_scalar(Binary::Mul, log, LN_2 / LN_10)?;
    let largest = g.reduce(ReduceKind::Max, log, &[1, 2], true)?;
    let least = g.binary_scalar(Binary::Sub, largest, 8.0)?;
    let log = g.max(log, least)?;
    let log = g.binary_scalar(Binary::Add, log, 4.0)?;
    let log = g.binary_scalar(Binary::Div, log, 4.0)?;
    let log = cast(g, log, dtype)?;
    g.transpose(log, &[0, 2, 1])
}

fn mel_filter_bank(g: &mut Graph, op: &MelFilterBank, to: Shape) -> Result<ValueId, Error> {
    let numbers = match op.scale {
        MelScale::Onnx => bins_as_onnx(op)?,
        MelScale::Htk | MelScale::Slaney => triangles(op)?,
    };
    let data = match op.dtype {
        DType::F64 => Data::F64(numbers),
        DType::F16 => Data::F16(memory::collected(numbers.iter().map(|x| f16::from_f32(round_to_odd(*x))))?),
        DType::BF16 => {
            Data::BF16(memory::collected(numbers.iter().map(|x| bf16::from_f32(round_to_odd(*x))))?)
        }
        _ => Data::F32(memory::collected(numbers.iter().map(|x| *x as f32))?),
    };
    Ok(g.constant(Tensor::from_data(to, data)?))
}

const HTK_HZ: f64 = 700.0;
const HTK_MELS: f64 = 2595.0;

/// Where Slaney's scale turns from linear to logarithmic, and its steps.
const SLANEY_KNEE_HZ: f64 = 1000.0;
const SLANEY_STEP_HZ: f64 = 200.0 / 3.0;
const SLANEY_STEPS_PER_OCTAVE_OF_6_4: f64 = 27.0;

fn to_mel(slaney: bool, hz: f64) -> f64 {
    if !slaney {
        return HTK_MELS * (1.0 + hz / HTK_HZ).log10();
    }
    let knee = SLANEY_KNEE_HZ / SLANEY_STEP_HZ;
    if hz < SLANEY_KNEE_HZ {
        hz / SLANEY_STEP_HZ
    } else {
        knee + (hz / SLANEY_KNEE_HZ).ln() / (6.4f64.ln() / SLANEY_STEPS_PER_OCTAVE_OF_6_4)
    }
}

fn to_hz(slaney: bool, mel: f64) -> f64 {
    if !slaney {
        return HTK_HZ * (10f64.powf(mel / HTK_MELS) - 1.0);
    }
    let knee = SLANEY_KNEE_HZ / SLANEY_STEP_HZ;
    if mel < knee {
        mel * SLANEY_STEP_HZ
    } else {
        SLANEY_KNEE_HZ * ((mel - knee) * (6.4f64.ln() / SLANEY_STEPS_PER_OCTAVE_OF_6_4)).exp()
    }
}

/// ONNX's filters: edges lie on bins, and the step between them is that of two more bands than there are.
fn bins_as_onnx(op: &MelFilterBank) -> Result<Vec<f64>, Error> {
    let (bins, bands) = (op.dft_length / 2 + 1, op.bands);
    let (low, high) = (to_mel(false, op.lower_hz), to_mel(false, op.upper_hz));
    let step = (high - low) / (bands + 2) as f64;
    let edge = |i: usize| {
        let hz = to_hz(false, i as f64 * step + low);
        ((op.dft_length as f64 + 1.0) * hz / op.sample_rate).floor() as usize
    };
    let mut out: Vec<f64> = memory::zeroed(bins.saturating_mul(bands))?;
    for band in 0..bands {
        let (lower, centre, upper) = (edge(band), edge(band + 1), edge(band + 2));
        let mut set = |bin: usize, x: f64| {
            if bin < bins {
                out[bin * bands + band] = x;
            }
        };
        if lower == centre {
            set(centre, 1.0);
        }
        for bin in lower..=centre.min(bins) {
            if lower < centre {
                set(bin, (bin - lower) as f64 / (centre - lower) as f64);
            }
        }
        for bin in centre..upper.min(bins) {
            set(bin, (upper - bin) as f64 / (upper - centre) as f64);
        }
    }
    Ok(out)
}

/// Triangles over the bins' exact frequencies.
fn triangles(op: &MelFilterBank) -> Result<Vec<f64>, Error> {
    let slaney = op.scale == MelScale::Slaney;
    let (bins, bands) = (op.dft_length / 2 + 1, op.bands);
    let (low, high) = (to_mel(slaney, op.lower_hz), to_mel(slaney, op.upper_hz));
    let edge = |i: usize| to_hz(slaney, low + (high - low) * i as f64 / (bands + 1) as f64);
    let mut out: Vec<f64> = memory::zeroed(bins.saturating_mul(bands))?;
    for band in 0..bands {
        let (lower, centre, upper) = (edge(band), edge(band + 1), edge(band + 2));
        let area = if op.equal_area { 2.0 / (upper - lower) } else { 1.0 };
        for bin in 0..bins {
            let hz = bin as f64 * op.sample_rate / op.dft_length as f64;
            let height = ((hz - lower) / (centre - lower)).min((upper - hz) / (upper - centre));
            out[bin * bands + band] = height.max(0.0) * area;
        }
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bank(scale: MelScale) -> MelFilterBank {
        MelFilterBank {
            dtype: DType::F32,
            bands: 8,
            dft_length: 16,
            sample_rate: 8192.0,
            lower_hz: 0.0,
            upper_hz: 4096.0,
            scale,
            equal_area: false,
        }
    }

    #[test]
    fn onnx_filters_are_those_of_its_own_example() {
        // The first rows of the example in ONNX's documentation of MelWeightMatrix.
        let m = bins_as_onnx(&bank(MelScale::Onnx)).unwrap();
        assert_eq!(m[..8], [1.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]);
        assert_eq!(m[8..16], [0.0, 0.0, 1.0, 1.0, 0.0, 0.0, 0.0, 0.0]);
        assert_eq!(m[16..24], [0.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0]);
        assert_eq!(m[64..], [0.0; 8]);
    }

    #[test]
    fn slaney_is_linear_below_a_kilohertz_and_continuous_at_it() {
        assert!((to_mel(true, 500.0) - 7.5).abs() < 1e-12);
        assert!((to_mel(true, 1000.0) - 15.0).abs() < 1e-12);
        assert!((to_mel(true, 6400.0) - 42.0).abs() < 1e-12);
        for scale in [false, true] {
            for hz in [0.0, 100.0, 999.9, 1000.0, 4321.0] {
                assert!((to_hz(scale, to_mel(scale, hz)) - hz).abs() < 1e-9);
            }
        }
    }

    #[test]
    fn filters_of_equal_area_have_heights_of_two_over_their_width() {
        let op = MelFilterBank { bands: 2, dft_length: 8192, equal_area: true, ..bank(MelScale::Htk) };
        let m = triangles(&op).unwrap();
        let tops: Vec<f64> =
            (0..2).map(|b| m.iter().skip(b).step_by(2).copied().fold(0.0, f64::max)).collect();
        let sums: Vec<f64> = (0..2).map(|b| m.iter().skip(b).step_by(2).sum::<f64>()).collect();
        assert!(tops[0] > tops[1] && sums.iter().all(|s| (s - 1.0).abs() < 1e-3), "{tops:?} {sums:?}");
    }
}
