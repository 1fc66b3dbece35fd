//! Fourier transforms by their sum (long ones by recursion over the primes of their length), and what is made of them.

use std::f64::consts::TAU;

use olivine_ir::TensorType;
use olivine_ir::op::{Dft, Fft, FftKind, FftNorm, LogMel, MelFilterBank, MelScale, Stft};

use super::Value;
use super::value::around;
use super::{meanings, one};

meanings! { |op, x, call|
    Fft => one(fft(op, x, call.ty())),
    Dft => one(dft(op, x, call.ty())),
    Stft => one(stft(op, x, call.ty())),
    MelFilterBank => one(mel_filter_bank(op, call.ty())),
    LogMel => one(log_mel(op, x, call.ty())),
}

type Complex = (f64, f64);

fn plus(a: Complex, b: Complex) -> Complex {
    (a.0 + b.0, a.1 + b.1)
}

fn times(a: Complex, b: Complex) -> Complex {
    (a.0 * b.0 - a.1 * b.1, a.0 * b.1 + a.1 * b.0)
}

/// e^(sign·2πi·k/n), the phase reduced before it becomes a float.
fn unit(sign: f64, k: usize, n: usize) -> Complex {
    let angle = sign * TAU * ((k % n) as f64 / n as f64);
    (angle.cos(), angle.sin())
}

/// The sum as it is written.
fn sum(x: &[Complex], sign: f64) -> Vec<Complex> {
    let n = x.len();
    let units: Vec<Complex> = (0..n).map(|k| unit(sign, k, n)).collect();
    let term = |k: usize| x.iter().enumerate().map(move |(j, v)| (j * k % n, *v));
    (0..n).map(|k| term(k).fold((0.0, 0.0), |sum, (at, v)| plus(sum, times(v, units[at])))).collect()
}

/// The unscaled transform: the sum where it is short, else joined from every p-th number for a prime p.
fn transform(x: &[Complex], sign: f64) -> Vec<Complex> {
    let n = x.len();
    if n <= 60 {
        return sum(x, sign);
    }
    let p = (2..).find(|p| n.is_multiple_of(*p) || p * p > n).filter(|p| n.is_multiple_of(*p)).unwrap_or(n);
    if p == n {
        return if n < 2000 { sum(x, sign) } else { by_convolution(x, sign) };
    }
    let m = n / p;
    let parts: Vec<Vec<Complex>> =
        (0..p).map(|q| transform(&x.iter().skip(q).step_by(p).copied().collect::<Vec<_>>(), sign)).collect();
    let units: Vec<Complex> = (0..n).map(|k| unit(sign, k, n)).collect();
    let join = |k: usize| {
        let term = |sum, (q, part): (usize, &Vec<Complex>)| plus(sum, times(part[k % m], units[q * k % n]));
        parts.iter().enumerate().fold((0.0, 0.0), term)
    };
    (0..n).map(join).collect()
}

/// jk = (j² + k² − (k − j)²)/2 makes the sum a convolution, whose length is free.
fn by_convolution(x: &[Complex], sign: f64) -> Vec<Complex> {
    let n = x.len();
    let m = (2 * n).next_power_of_two();
    let square = |j: usize| unit(sign, (j as u128 * j as u128 % (2 * n as u128)) as usize, 2 * n);
    let mut a = vec![(0.0, 0.0); m];
    let mut b = a.clone();
    for (j, v) in x.iter().enumerate() {
        let (c, s) = square(j);
        a[j] = times(*v, (c, s));
        b[j] = (c, -s);
        b[(m - j) % m] = (c, -s);
    }
    let product: Vec<Complex> =
        transform(&a, sign).into_iter().zip(transform(&b, sign)).map(|(a, b)| times(a, b)).collect();
    let back = transform(&product, -sign);
    (0..n).map(|k| times((back[k].0 / m as f64, back[k].1 / m as f64), square(k))).collect()
}

/// The scale of a transform.
fn scale_of(norm: FftNorm, inverse: bool, n: usize) -> f64 {
    match norm {
        FftNorm::Ortho => (n as f64).sqrt().recip(),
        FftNorm::Backward if inverse => (n as f64).recip(),
        FftNorm::Forward if !inverse => (n as f64).recip(),
        _ => 1.0,
    }
}

/// One line of a transform of length n; what is missing is zero, what is too much is dropped.
fn line(kind: FftKind, norm: FftNorm, n: usize, x: &[Complex]) -> Vec<Complex> {
    let at = |j: usize| x.get(j).copied().unwrap_or((0.0, 0.0));
    let full: Vec<Complex> = match kind {
        FftKind::Irfft => (0..n)
            .map(|k| match k {
                0 => (at(0).0, 0.0),
                k if 2 * k == n => (at(k).0, 0.0),
                k if 2 * k < n => at(k),
                k => (at(n - k).0, -at(n - k).1),
            })
            .collect(),
        _ => (0..n).map(at).collect(),
    };
    let inverse = matches!(kind, FftKind::Ifft | FftKind::Irfft);
    let mut y = transform(&full, if inverse { 1.0 } else { -1.0 });
    if kind == FftKind::Rfft {
        y.truncate(n / 2 + 1);
    }
    let scale = scale_of(norm, inverse, n);
    y.into_iter().map(|(re, im)| (re * scale, im * scale)).collect()
}

pub(super) fn fft(op: &Fft, x: &[Value], ty: TensorType) -> Result<Value, String> {
    let (complex_in, complex_out) = (op.kind != FftKind::Rfft, op.kind != FftKind::Irfft);
    let n = op.length(x[0].shape())?;
    let dims = x[0].shape();
    let places = if complex_in { &dims[..dims.rank() - 1] } else { &dims[..] };
    let v = x[0].as_floats()?;
    let read = |at: usize| if complex_in { (v[2 * at], v[2 * at + 1]) } else { (v[at], 0.0) };
    let (outer, size, inner) = around(places, op.axis);
    let bins = ty.shape[op.axis];
    let mut out = vec![(0.0, 0.0); outer * bins * inner];
    for o in 0..outer {
        for i in 0..inner {
            let from: Vec<Complex> = (0..size).map(|j| read((o * size + j) * inner + i)).collect();
            for (k, y) in line(op.kind, op.norm, n, &from).into_iter().enumerate() {
                out[(o * bins + k) * inner + i] = y;
            }
        }
    }
    let numbers = if complex_out {
        out.into_iter().flat_map(|(re, im)| [re, im]).collect()
    } else {
        out.into_iter().map(|(re, _)| re).collect()
    };
    Ok(Value::floats(ty, numbers))
}

pub(super) fn dft(op: &Dft, x: &[Value], ty: TensorType) -> Result<Value, String> {
    let dims = x[0].shape();
    let parts = dims[dims.rank() - 1];
    let v = x[0].as_floats()?;
    let (outer, size, inner) = around(&dims[..dims.rank() - 1], op.axis);
    let (bins, parts_out) = (ty.shape[op.axis], ty.shape[ty.shape.rank() - 1]);
    let (kind, n) = match (op.inverse, op.onesided) {
        (true, true) => (FftKind::Irfft, op.n.unwrap_or(2 * size - 2)),
        (true, false) => (FftKind::Ifft, op.n.unwrap_or(size)),
        (false, _) => (FftKind::Fft, op.n.unwrap_or(size)),
    };
    let mut out = vec![0.0; outer * bins * inner * parts_out];
    for o in 0..outer {
        for i in 0..inner {
            let from = |j: usize| {
                let at = ((o * size + j) * inner + i) * parts;
                (v[at], if parts == 2 { v[at + 1] } else { 0.0 })
            };
            let y = line(kind, FftNorm::Backward, n, &(0..size).map(from).collect::<Vec<_>>());
            for (k, (re, im)) in y.into_iter().take(bins).enumerate() {
                let at = ((o * bins + k) * inner + i) * parts_out;
                out[at] = re;
                if parts_out == 2 {
                    out[at + 1] = im;
                }
            }
        }
    }
    Ok(Value::floats(ty, out))
}

/// The spectra of all frames of one signal.
fn frames(op: &Stft, signal: &[Complex], window: Option<&[f64]>, count: usize, bins: usize) -> Vec<Complex> {
    let half = if op.center { op.frame_length as i64 / 2 } else { 0 };
    let last = signal.len() as i64 - 1;
    let mirrored = |at: i64| {
        let at = at.abs();
        signal[(if at > last { 2 * last - at } else { at }) as usize]
    };
    let mut out = Vec::with_capacity(count * bins);
    for frame in 0..count {
        let samples: Vec<Complex> = (0..op.frame_length)
            .map(|j| {
                let (re, im) = mirrored((frame * op.frame_step + j) as i64 - half);
                let w = window.map_or(1.0, |w| w[j]);
                (re * w, im * w)
            })
            .collect();
        out.extend(transform(&samples, -1.0).into_iter().take(bins));
    }
    out
}

pub(super) fn stft(op: &Stft, x: &[Value], ty: TensorType) -> Result<Value, String> {
    let v = x[0].as_floats()?;
    let window = x.get(1).map(Value::as_floats).transpose()?;
    let dims = x[0].shape();
    let (length, complex) = (dims[1], dims.rank() == 3 && dims[2] == 2);
    let mut out = Vec::new();
    for batch in 0..dims[0] {
        let signal: Vec<Complex> = (batch * length..(batch + 1) * length)
            .map(|at| if complex { (v[2 * at], v[2 * at + 1]) } else { (v[at], 0.0) })
            .collect();
        let spectra = frames(op, &signal, window, ty.shape[1], ty.shape[2]);
        out.extend(spectra.into_iter().flat_map(|(re, im)| [re, im]));
    }
    Ok(Value::floats(ty, out))
}

pub(super) fn log_mel(op: &LogMel, x: &[Value], ty: TensorType) -> Result<Value, String> {
    let (v, window, filters) = (x[0].as_floats()?, x[1].as_floats()?, x[2].as_floats()?);
    let length = x[0].shape()[1];
    let (bands, count, bins) = (ty.shape[1], ty.shape[2], op.frame_length / 2 + 1);
    let stft =
        Stft { frame_length: op.frame_length, frame_step: op.frame_step, onesided: true, center: true };
    let mut out = Vec::new();
    for batch in 0..ty.shape[0] {
        let signal: Vec<Complex> = v[batch * length..][..length].iter().map(|x| (*x, 0.0)).collect();
        let spectra = frames(&stft, &signal, Some(window), count, bins);
        let mut logs = Vec::with_capacity(bands * count);
        for band in 0..bands {
            for frame in 0..count {
                let energy = |bin: usize| {
                    let (re, im) = spectra[frame * bins + bin];
                    (re * re + im * im) * filters[bin * bands + band]
                };
                logs.push((0..bins).map(energy).sum::<f64>().max(1e-10).log10());
            }
        }
        let most = logs.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        out.extend(logs.into_iter().map(|x| (x.max(most - 8.0) + 4.0) / 4.0));
    }
    Ok(Value::floats(ty, out))
}

pub(super) fn mel_filter_bank(op: &MelFilterBank, ty: TensorType) -> Result<Value, String> {
    let (bins, bands) = (ty.shape[0], ty.shape[1]);
    let htk = |hz: f64| 2595.0 * (1.0 + hz / 700.0).log10();
    let unhtk = |mel: f64| 700.0 * (10f64.powf(mel / 2595.0) - 1.0);
    let octave = 27.0 / 6.4f64.ln();
    let slaney = |hz: f64| if hz < 1000.0 { 3.0 * hz / 200.0 } else { 15.0 + octave * (hz / 1000.0).ln() };
    let unslaney = |mel: f64| {
        if mel < 15.0 { 200.0 * mel / 3.0 } else { 1000.0 * ((mel - 15.0) / octave).exp() }
    };
    let edges: Vec<f64> = (0..bands + 2)
        .map(|i| match op.scale {
            MelScale::Onnx => {
                let (low, high) = (htk(op.lower_hz), htk(op.upper_hz));
                let hz = unhtk(i as f64 * ((high - low) / (bands + 2) as f64) + low);
                ((op.dft_length + 1) as f64 * hz / op.sample_rate).floor()
            }
            MelScale::Htk => {
                let (low, high) = (htk(op.lower_hz), htk(op.upper_hz));
                unhtk(low + i as f64 * (high - low) / (bands + 1) as f64)
            }
            MelScale::Slaney => {
                let (low, high) = (slaney(op.lower_hz), slaney(op.upper_hz));
                unslaney(low + i as f64 * (high - low) / (bands + 1) as f64)
            }
        })
        .collect();
    let mut out = vec![0.0; bins * bands];
    for bin in 0..bins {
        for band in 0..bands {
            let [low, top, high] = [edges[band], edges[band + 1], edges[band + 2]];
            out[bin * bands + band] = if op.scale == MelScale::Onnx {
                let at = bin as f64;
                match () {
                    () if at >= top && at < high => (high - at) / (high - top),
                    () if at == top => 1.0,
                    () if at >= low && at < top => (at - low) / (top - low),
                    () => 0.0,
                }
            } else {
                let hz = bin as f64 * op.sample_rate / op.dft_length as f64;
                let height = if hz < top { (hz - low) / (top - low) } else { (high - hz) / (high - top) };
                height.max(0.0) * if op.equal_area { 2.0 / (high - low) } else { 1.0 }
            };
        }
    }
    Ok(Value::floats(ty, out))
}
