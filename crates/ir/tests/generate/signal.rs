//! Fourier transforms and what is made of them.

use olivine_ir::op::{Dft, Fft, FftKind, FftNorm, LogMel, MelFilterBank, MelScale, Stft};

use super::{Made, Rng, ty};

pub(crate) const MAKERS: &[fn(&mut Rng) -> Made] = &[fft, dft, stft, mel_filter_bank, log_mel];

fn fft(rng: &mut Rng) -> Made {
    let kind = rng.pick(FftKind::ALL);
    let mut dims = [rng.shape(0, 3), vec![rng.within(2, 9)], rng.shape(0, 2)].concat();
    let axis = rng.below(dims.len());
    if kind.reads_complex() {
        dims.push(2);
    }
    // A length, unless the axis has one.
    let n = Some(rng.within(1, 12)).filter(|_| dims[axis] < 2 || rng.chance(50));
    let norm = rng.pick(FftNorm::ALL);
    (Fft { kind, axis, n, norm }.into(), vec![ty(rng.float(), &dims)])
}

fn dft(rng: &mut Rng) -> Made {
    let complex = rng.chance(50);
    let dims = [rng.shape(0, 3), vec![rng.within(2, 9), if complex { 2 } else { 1 }]].concat();
    let axis = dims.len() - 2;
    let n = Some(rng.within(1, 12)).filter(|_| rng.chance(50));
    let inverse = rng.chance(50);
    let onesided = rng.chance(50) && (complex || !inverse);
    (Dft { axis, n, inverse, onesided }.into(), vec![ty(rng.float(), &dims)])
}

fn stft(rng: &mut Rng) -> Made {
    let (frame_length, frame_step) = (rng.within(1, 8), rng.within(1, 5));
    let dtype = rng.float();
    let mut dims = vec![rng.size(), rng.within(9, 30)];
    dims.extend(rng.pick(&[None, Some(1), Some(2)]));
    let mut types = vec![ty(dtype, &dims)];
    if rng.chance(50) {
        types.push(ty(dtype, &[frame_length]));
    }
    let (onesided, center) = (rng.chance(50), rng.chance(50));
    (Stft { frame_length, frame_step, onesided, center }.into(), types)
}

fn mel_filter_bank(rng: &mut Rng) -> Made {
    let scale = rng.pick(MelScale::ALL);
    let bank = MelFilterBank {
        dtype: rng.float(),
        bands: rng.size(),
        dft_length: rng.within(1, 64),
        sample_rate: 16000.0,
        lower_hz: rng.below(500) as f64,
        upper_hz: 8000.0,
        scale,
        equal_area: scale != MelScale::Onnx && rng.chance(50),
    };
    (bank.into(), vec![])
}

fn log_mel(rng: &mut Rng) -> Made {
    let (frame_length, frame_step) = (rng.within(1, 8), rng.within(1, 5));
    let dtype = rng.float();
    let types = vec![
        ty(dtype, &[rng.size(), rng.within(9, 30)]),
        ty(dtype, &[frame_length]),
        ty(dtype, &[frame_length / 2 + 1, rng.size()]),
    ];
    (LogMel { frame_length, frame_step }.into(), types)
}
