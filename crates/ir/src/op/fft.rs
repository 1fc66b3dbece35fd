//! Discrete Fourier transforms along one axis. A complex tensor is a real one whose last axis is `(re, im)`.

use crate::graph::{Graph, ValueId};
use crate::op::{Rule, arity, axis_in, float, kind_op, op, shape};
use crate::{Error, Shape, TensorType, words};

words! {
    /// Which transform.
    pub enum FftKind {
        /// Complex to complex: `X[k] = Σ x[j]·e^(−2πi·jk/n)`.
        Fft = "fft",
        /// Complex to complex with the other sign: `x[j] = Σ X[k]·e^(2πi·jk/n)`.
        Ifft = "ifft",
        /// Real to the first n/2 + 1 of the complex results; the others are their conjugates.
        Rfft = "rfft",
        /// The first n/2 + 1 of a spectrum of a real signal to that signal. The imaginary parts of the first and, for
        /// even n, of the last are taken as zero.
        Irfft = "irfft",
    }
}

impl FftKind {
    /// Whether the operand's last axis is `(re, im)`.
    pub fn reads_complex(self) -> bool {
        self != FftKind::Rfft
    }

    /// Whether the result's last axis is `(re, im)`.
    pub fn writes_complex(self) -> bool {
        self != FftKind::Irfft
    }

    /// Whether the exponent's sign is positive.
    pub fn is_inverse(self) -> bool {
        matches!(self, FftKind::Ifft | FftKind::Irfft)
    }
}

words! {
    /// Where the factor 1/n of a transform and its inverse stands.
    pub enum FftNorm {
        /// In the inverse.
        Backward = "backward",
        /// Its square root in both.
        Ortho = "ortho",
        /// In the forward transform.
        Forward = "forward",
    }
}

impl FftNorm {
    /// The factor of a transform of length n.
    pub fn scale(self, inverse: bool, n: usize) -> f64 {
        match (self, inverse) {
            (FftNorm::Backward, true) | (FftNorm::Forward, false) => 1.0 / n as f64,
            (FftNorm::Backward, false) | (FftNorm::Forward, true) => 1.0,
            (FftNorm::Ortho, _) => 1.0 / (n as f64).sqrt(),
        }
    }
}

kind_op! {
    /// A discrete Fourier transform of any length along one axis.
    pub struct Fft by FftKind {
        /// The axis; never the one of `(re, im)`.
        pub axis: usize,
        /// The length of the transform: the axis is cropped or padded with zeros at its end. Its size (for `irfft`
        /// twice one less than its size) unless given.
        pub n: Option<usize>,
        /// Where the factor 1/n stands.
        pub norm: FftNorm,
    }
}

impl Fft {
    /// The length of the transform of an operand of these sizes; an error where there is none.
    pub fn length(&self, x: &Shape) -> Result<usize, String> {
        axis_in(self.axis, x)?;
        let size = x.size(self.axis).specialize().map_err(|e| e.to_string())?;
        let n = match (self.n, self.kind) {
            (Some(n), _) => n,
            (None, FftKind::Irfft) => size.saturating_sub(1).saturating_mul(2),
            (None, _) => size,
        };
        if n == 0 {
            return Err(format!("a transform of length 0: axis {} has size {size}", self.axis));
        }
        Ok(n)
    }
}

/// That the last axis is `(re, im)` and `axis` is another.
fn complex(x: &Shape, axis: usize) -> Result<(), String> {
    if x.rank() == 0 || x.size(x.rank() - 1) != 2 {
        return Err(format!("the last axis must be (re, im) of size 2, got {x}"));
    }
    if axis.saturating_add(1) >= x.rank() {
        return Err(format!("axis {axis} is not before the axis of (re, im) of {x}"));
    }
    Ok(())
}

impl Rule for Fft {
    fn infer(&self, operands: &[TensorType]) -> Result<Vec<TensorType>, String> {
        arity(operands, 1..=1)?;
        float(&operands[0])?;
        let x = operands[0].shape;
        if self.kind.reads_complex() {
            complex(&x, self.axis)?;
        }
        let n = self.length(&x)?;
        let mut dims = x.sizes().to_vec();
        match self.kind {
            FftKind::Fft | FftKind::Ifft => dims[self.axis] = n.into(),
            FftKind::Rfft => {
                dims[self.axis] = (n / 2 + 1).into();
                dims.push(2.into());
            }
            FftKind::Irfft => {
                dims[self.axis] = n.into();
                dims.pop();
            }
        }
        Ok(vec![TensorType::new(operands[0].dtype, shape(&dims)?)])
    }
}

op! {
    /// ONNX's DFT: the operand's last axis is `(re, im)`, or has size 1 for a real signal. The inverse is divided by n.
    pub struct Dft = "dft" {
        /// The axis.
        pub axis: usize,
        /// The length; the axis' size unless given.
        pub n: Option<usize>,
        /// The inverse transform.
        pub inverse: bool,
        /// Only the first n/2 + 1 results; for the inverse, these are given, and a real signal (a last axis of size 1)
        /// comes out.
        pub onesided: bool,
    }
}

impl Rule for Dft {
    fn infer(&self, operands: &[TensorType]) -> Result<Vec<TensorType>, String> {
        arity(operands, 1..=1)?;
        float(&operands[0])?;
        let x = operands[0].shape;
        let real = x.rank() > 0 && x.size(x.rank() - 1) == 1;
        if !real {
            complex(&x, self.axis)?;
        } else if self.axis.saturating_add(1) >= x.rank() {
            return Err(format!("axis {} is not before the last axis of {x}", self.axis));
        }
        let back_to_real = self.inverse && self.onesided;
        if real && back_to_real {
            return Err("the one-sided inverse needs a complex operand, got a last axis of size 1".into());
        }
        let kind = if back_to_real { FftKind::Irfft } else { FftKind::Fft };
        let n = Fft { kind, axis: self.axis, n: self.n, norm: FftNorm::Backward }.length(&x)?;
        let mut dims = x.sizes().to_vec();
        dims[self.axis] = if self.onesided && !self.inverse { n / 2 + 1 } else { n }.into();
        dims[x.rank() - 1] = if back_to_real { 1 } else { 2 }.into();
        Ok(vec![TensorType::new(operands[0].dtype, shape(&dims)?)])
    }
}

impl Graph {
    /// A Fourier transform along an axis, counted among the operand's without `(re, im)` when negative; see [`Fft`].
    pub fn fft_of(
        &mut self,
        kind: FftKind,
        x: ValueId,
        axis: isize,
        n: Option<usize>,
        norm: FftNorm,
    ) -> Result<ValueId, Error> {
        let from_back = if axis < 0 && kind.reads_complex() { axis - 1 } else { axis };
        let axis = self.axis_of(kind.name(), x, from_back)?;
        self.add1(Fft { kind, axis, n, norm }, &[x])
    }

    /// The transform of complex numbers along an axis; −1 is the last before `(re, im)`.
    pub fn fft(&mut self, x: ValueId, axis: isize) -> Result<ValueId, Error> {
        self.fft_of(FftKind::Fft, x, axis, None, FftNorm::Backward)
    }

    /// The inverse of [`Graph::fft`].
    pub fn ifft(&mut self, x: ValueId, axis: isize) -> Result<ValueId, Error> {
        self.fft_of(FftKind::Ifft, x, axis, None, FftNorm::Backward)
    }

    /// The transform of real numbers along an axis: the first n/2 + 1 results.
    pub fn rfft(&mut self, x: ValueId, axis: isize) -> Result<ValueId, Error> {
        self.fft_of(FftKind::Rfft, x, axis, None, FftNorm::Backward)
    }

    /// The inverse of [`Graph::rfft`] for a signal of length n, or 2·(size − 1).
    pub fn irfft(&mut self, x: ValueId, axis: isize, n: Option<usize>) -> Result<ValueId, Error> {
        self.fft_of(FftKind::Irfft, x, axis, n, FftNorm::Backward)
    }

    /// ONNX's DFT along an axis counted among all of the operand's; see [`Dft`].
    pub fn dft(
        &mut self,
        x: ValueId,
        axis: isize,
        n: Option<usize>,
        inverse: bool,
        onesided: bool,
    ) -> Result<ValueId, Error> {
        let axis = self.axis_of("dft", x, axis)?;
        self.add1(Dft { axis, n, inverse, onesided }, &[x])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::DType;

    fn ty(dims: &[usize]) -> Result<TensorType, String> {
        Ok(TensorType::new(DType::F32, shape(dims)?))
    }

    fn dims(op: impl Into<crate::Op>, x: &[usize]) -> Result<Vec<usize>, String> {
        Ok(op.into().infer(&[ty(x)?])?[0].shape.to_vec())
    }

    fn fft(kind: FftKind, axis: usize, n: Option<usize>) -> Fft {
        Fft { kind, axis, n, norm: FftNorm::Backward }
    }

    #[test]
    fn lengths_follow_the_axis_or_the_attribute() -> Result<(), String> {
        assert_eq!(dims(fft(FftKind::Fft, 1, None), &[3, 5, 2])?, [3, 5, 2]);
        assert_eq!(dims(fft(FftKind::Ifft, 0, Some(9)), &[3, 5, 2])?, [9, 5, 2]);
        assert_eq!(dims(fft(FftKind::Rfft, 0, None), &[7, 3])?, [4, 3, 2]);
        assert_eq!(dims(fft(FftKind::Irfft, 0, None), &[4, 3, 2])?, [6, 3]);
        assert_eq!(dims(fft(FftKind::Irfft, 0, Some(7)), &[4, 3, 2])?, [7, 3]);
        assert_eq!(dims(fft(FftKind::Fft, 1, None), &[0, 5, 2])?, [0, 5, 2]);
        Ok(())
    }

    #[test]
    fn what_has_no_transform_is_refused() {
        for (op, x) in [
            (fft(FftKind::Fft, 1, None), &[3, 2][..]),
            (fft(FftKind::Fft, 0, None), &[3, 4]),
            (fft(FftKind::Fft, 0, None), &[0, 2]),
            (fft(FftKind::Rfft, 0, Some(0)), &[4]),
            (fft(FftKind::Irfft, 0, None), &[1, 2]),
            (fft(FftKind::Rfft, 7, None), &[1, 1, 1, 1, 1, 1, 1, 4]),
            (fft(FftKind::Irfft, 0, Some(usize::MAX)), &[1, 2]),
        ] {
            assert!(dims(op.clone(), x).is_err(), "{op:?} of {x:?}");
        }
    }

    #[test]
    fn dft_has_the_shapes_of_onnx() -> Result<(), String> {
        let dft = |n, inverse, onesided| Dft { axis: 1, n, inverse, onesided };
        assert_eq!(dims(dft(None, false, false), &[1, 10, 1])?, [1, 10, 2]);
        assert_eq!(dims(dft(None, false, true), &[1, 10, 1])?, [1, 6, 2]);
        assert_eq!(dims(dft(Some(16), true, false), &[1, 10, 2])?, [1, 16, 2]);
        assert_eq!(dims(dft(None, true, true), &[1, 6, 2])?, [1, 10, 1]);
        assert!(dims(dft(None, true, true), &[1, 6, 1]).is_err());
        assert!(dims(dft(None, false, false), &[1, 6, 3]).is_err());
        Ok(())
    }
}
