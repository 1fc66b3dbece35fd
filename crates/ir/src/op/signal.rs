//! Signals: short-time transforms, mel filters, Whisper's features; and the windows they use.

use crate::graph::{Graph, ValueId};
use crate::op::{Rule, arity, float, of_shape, op, same_dtype, shape};
use crate::{DType, Data, Dim, Error, Tensor, TensorType, memory, round_to_odd, words};

op! {
    /// Transforms of overlapping frames of a signal: `[batch, frames, bins, 2]`, as ONNX's STFT lays it out.
    ///
    /// Operands: the signal, `[batch, length]` or `[batch, length, 1]` if real and `[batch, length, 2]` if complex; and,
    /// optionally, a window of `frame_length` numbers that every frame is multiplied with.
    pub struct Stft = "stft" {
        /// Samples of a frame; the length of each transform.
        pub frame_length: usize,
        /// Samples from one frame to the next.
        pub frame_step: usize,
        /// Only the first frame_length/2 + 1 results of each.
        pub onesided: bool,
        /// Mirrors frame_length/2 samples before and after the signal, so that frames are centred, as torch does.
        pub center: bool,
    }
}

/// Frames that fit in a signal.
fn frames(length: Dim, frame_length: usize, frame_step: usize, center: bool) -> Result<Dim, String> {
    if frame_length == 0 || frame_step == 0 {
        return Err(format!("frames of {frame_length} samples every {frame_step}"));
    }
    let half = if center { frame_length / 2 } else { 0 };
    if center && length <= half {
        return Err(format!("a mirror of {half} samples needs a longer signal than {length}"));
    }
    let rest = length + 2 * half - frame_length;
    if rest < 0 {
        return Err(format!("a frame of {frame_length} samples is longer than the signal of {length}"));
    }
    (rest.div_floor(frame_step) + 1).check().map_err(|e| e.to_string())
}

impl Rule for Stft {
    fn infer(&self, operands: &[TensorType]) -> Result<Vec<TensorType>, String> {
        arity(operands, 1..=2)?;
        float(&operands[0])?;
        same_dtype(operands)?;
        let (batch, length) = match &operands[0].shape.sizes()[..] {
            [batch, length] => (*batch, *length),
            [batch, length, parts] if *parts == 1 || *parts == 2 => (*batch, *length),
            _ => return Err("the signal must be [batch, length], or that with a last axis of 1 or 2".into()),
        };
        if let Some(window) = operands.get(1) {
            of_shape("the window", window, &[self.frame_length])?;
        }
        let frames = frames(length, self.frame_length, self.frame_step, self.center)?;
        let bins = if self.onesided { self.frame_length / 2 + 1 } else { self.frame_length };
        Ok(vec![TensorType::new(operands[0].dtype, shape(&[batch, frames, bins.into(), 2.into()])?)])
    }
}

words! {
    /// How hertz become mels, and how triangles are drawn on the bins.
    pub enum MelScale {
        /// ONNX's MelWeightMatrix: 2595·log10(1 + f/700), edges rounded down to bins.
        Onnx = "onnx",
        /// The same scale with triangles over exact frequencies, as torchaudio and librosa draw them.
        Htk = "htk",
        /// Linear below 1 kHz and logarithmic above, over exact frequencies: librosa's default, and Whisper's.
        Slaney = "slaney",
    }
}

op! {
    /// Triangular filters from the bins of a one-sided transform to mel bands: `[dft_length/2 + 1, bands]`.
    pub struct MelFilterBank = "mel_filter_bank" {
        /// Element type.
        pub dtype: DType,
        /// Mel bands.
        pub bands: usize,
        /// Length of the transform whose bins are filtered.
        pub dft_length: usize,
        /// Samples per second.
        pub sample_rate: f64,
        /// Where the first band begins, in hertz.
        pub lower_hz: f64,
        /// Where the last band ends, in hertz.
        pub upper_hz: f64,
        /// The scale.
        pub scale: MelScale,
        /// Divides each filter by half its width in hertz, so that all pass the same energy; not for `onnx`.
        pub equal_area: bool,
    }
}

impl Rule for MelFilterBank {
    fn infer(&self, operands: &[TensorType]) -> Result<Vec<TensorType>, String> {
        arity(operands, 0..=0)?;
        if !self.dtype.is_float() {
            return Err(format!("needs a float dtype, got {}", self.dtype));
        }
        if self.dft_length == 0 {
            return Err("the transform's length must be at least 1".into());
        }
        let (rate, low, high) = (self.sample_rate, self.lower_hz, self.upper_hz);
        if !(rate.is_finite() && high.is_finite() && rate > 0.0 && low >= 0.0 && low < high) {
            return Err(format!("bands from {low} to {high} Hz at {rate} samples a second"));
        }
        if self.equal_area && self.scale == MelScale::Onnx {
            return Err("filters of equal area exist on the scales htk and slaney alone".into());
        }
        Ok(vec![TensorType::new(self.dtype, shape(&[self.dft_length / 2 + 1, self.bands])?)])
    }
}

op! {
    /// Whisper's features of a signal `[batch, length]`: `[batch, bands, frames]`.
    ///
    /// Operands: the signal, a window of `frame_length` numbers, and filters `[frame_length/2 + 1, bands]`. The energies
    /// of centred frames (the last is left out) pass the filters; their logarithms to base 10, not below −10, are raised
    /// to at least the utterance's largest less 8, and become (x + 4)/4.
    pub struct LogMel = "log_mel" {
        /// Samples of a frame.
        pub frame_length: usize,
        /// Samples from one frame to the next.
        pub frame_step: usize,
    }
}

impl Rule for LogMel {
    fn infer(&self, operands: &[TensorType]) -> Result<Vec<TensorType>, String> {
        arity(operands, 3..=3)?;
        float(&operands[0])?;
        same_dtype(operands)?;
        let of_signal = operands[0].shape.sizes();
        let [batch, length] = of_signal[..] else {
            return Err("the signal must be [batch, length]".into());
        };
        of_shape("the window", &operands[1], &[self.frame_length])?;
        let bands = match operands[2].shape.dims() {
            [bins, bands] if *bins == self.frame_length / 2 + 1 => *bands,
            _ => return Err(format!("the filters must be [{}, bands]", self.frame_length / 2 + 1)),
        };
        let frames = frames(length, self.frame_length, self.frame_step, true)? - 1;
        Ok(vec![TensorType::new(operands[0].dtype, shape(&[batch, bands.into(), frames])?)])
    }
}

words! {
    /// The shape of a window.
    pub enum WindowKind {
        /// ½ − ½·cos.
        Hann = "hann",
        /// 0.54 − 0.46·cos, as torch and NumPy have it.
        Hamming = "hamming",
        /// 25/46 − 21/46·cos, as ONNX has it.
        HammingExact = "hamming_exact",
        /// 0.42 − ½·cos + 0.08·cos of the double angle.
        Blackman = "blackman",
    }
}

impl WindowKind {
    /// The window's numbers; a periodic one leaves out the last of a symmetric one that is longer by one.
    pub fn numbers(self, length: usize, periodic: bool) -> Result<Vec<f64>, Error> {
        let turns = if periodic { length } else { length.saturating_sub(1) };
        let (a0, a1, a2) = match self {
            WindowKind::Hann => (0.5, 0.5, 0.0),
            WindowKind::Hamming => (0.54, 0.46, 0.0),
            WindowKind::HammingExact => (25.0 / 46.0, 21.0 / 46.0, 0.0),
            WindowKind::Blackman => (0.42, 0.5, 0.08),
        };
        if length == 1 {
            return Ok(vec![1.0]);
        }
        let cos = |i: usize| (std::f64::consts::TAU * (i % turns.max(1)) as f64 / turns as f64).cos();
        memory::collected((0..length).map(|i| a0 - a1 * cos(i) + a2 * cos(2 * i)))
    }
}

/// Numbers as a tensor of a float dtype, each rounded once.
fn floats(dtype: DType, numbers: &[f64]) -> Result<Data, Error> {
    use half::{bf16, f16};
    Ok(match dtype {
        DType::F64 => Data::F64(memory::copied(numbers)?),
        DType::F32 => Data::F32(memory::collected(numbers.iter().map(|x| *x as f32))?),
        DType::F16 => Data::F16(memory::collected(numbers.iter().map(|x| f16::from_f32(round_to_odd(*x))))?),
        DType::BF16 => {
            Data::BF16(memory::collected(numbers.iter().map(|x| bf16::from_f32(round_to_odd(*x))))?)
        }
        other => return Err(Error::BadData { problem: format!("needs a float dtype, got {other}") }),
    })
}

impl Graph {
    /// A window as a constant.
    pub fn window(
        &mut self,
        kind: WindowKind,
        length: usize,
        periodic: bool,
        dtype: DType,
    ) -> Result<ValueId, Error> {
        let data = floats(dtype, &kind.numbers(length, periodic)?)?;
        Ok(self.constant(Tensor::from_data([length], data)?))
    }

    /// Transforms of overlapping frames; see [`Stft`].
    pub fn stft(&mut self, x: ValueId, window: Option<ValueId>, stft: Stft) -> Result<ValueId, Error> {
        let operands: Vec<ValueId> = [x].into_iter().chain(window).collect();
        self.add1(stft, &operands)
    }

    /// Mel filters; see [`MelFilterBank`].
    pub fn mel_filter_bank(&mut self, bank: MelFilterBank) -> Result<ValueId, Error> {
        self.add1(bank, &[])
    }

    /// Whisper's features with a window and filters of one's own; see [`LogMel`].
    pub fn log_mel(
        &mut self,
        x: ValueId,
        window: ValueId,
        filters: ValueId,
        frame_length: usize,
        frame_step: usize,
    ) -> Result<ValueId, Error> {
        self.add1(LogMel { frame_length, frame_step }, &[x, window, filters])
    }

    /// Whisper's features of 16 kHz signals `[batch, length]`: frames of 25 ms every 10 ms, 80 or 128 bands.
    pub fn whisper_features(&mut self, x: ValueId, bands: usize) -> Result<ValueId, Error> {
        let dtype = self.ty(x)?.dtype;
        let window = self.window(WindowKind::Hann, 400, true, dtype)?;
        let filters = self.mel_filter_bank(MelFilterBank {
            dtype,
            bands,
            dft_length: 400,
            sample_rate: 16000.0,
            lower_hz: 0.0,
            upper_hz: 8000.0,
            scale: MelScale::Slaney,
            equal_area: true,
        })?;
        self.log_mel(x, window, filters, 400, 160)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stft(center: bool) -> Stft {
        Stft { frame_length: 400, frame_step: 160, onesided: true, center }
    }

    #[test]
    fn frames_are_counted_as_onnx_and_torch_count_them() -> Result<(), Error> {
        let mut g = Graph::new("g");
        let x = g.input("x", DType::F32, [2, 16000])?;
        let window = g.window(WindowKind::Hann, 400, true, DType::F32)?;
        let plain = g.stft(x, Some(window), stft(false))?;
        assert_eq!(g.ty(plain)?.shape.dims(), [2, 98, 201, 2]);
        let centred = g.stft(x, None, stft(true))?;
        assert_eq!(g.ty(centred)?.shape.dims(), [2, 101, 201, 2]);
        let features = g.whisper_features(x, 80)?;
        assert_eq!(g.ty(features)?.shape.dims(), [2, 80, 100]);
        Ok(())
    }

    #[test]
    fn frames_that_do_not_fit_are_refused() -> Result<(), Error> {
        let mut g = Graph::new("g");
        let x = g.input("x", DType::F32, [2, 200])?;
        assert!(g.stft(x, None, stft(false)).is_err());
        assert!(g.stft(x, None, stft(true)).is_err());
        assert!(g.stft(x, None, Stft { frame_step: 0, ..stft(true) }).is_err());
        let window = g.window(WindowKind::Hann, 99, true, DType::F32)?;
        assert!(g.stft(x, Some(window), Stft { frame_length: 100, ..stft(false) }).is_err());
        Ok(())
    }

    #[test]
    fn windows_are_symmetric_or_periodic() {
        let near = |a: &[f64], b: &[f64]| a.iter().zip(b).all(|(a, b)| (a - b).abs() < 1e-15);
        assert!(near(&WindowKind::Hann.numbers(4, true).unwrap(), &[0.0, 0.5, 1.0, 0.5]));
        assert!(near(&WindowKind::Hann.numbers(5, false).unwrap(), &[0.0, 0.5, 1.0, 0.5, 0.0]));
        assert!(near(&WindowKind::Hamming.numbers(3, false).unwrap(), &[0.08, 1.0, 0.08]));
        assert!(near(&WindowKind::Blackman.numbers(3, false).unwrap(), &[0.0, 1.0, 0.0]));
        assert_eq!(WindowKind::Hann.numbers(1, false), Ok(vec![1.0]));
        assert_eq!(WindowKind::Hann.numbers(0, true), Ok(Vec::new()));
    }
}
