//! The types rows are computed in, and how storage types get there.

use bytemuck::Pod;
use half::{bf16, f16};

use crate::simd::{self, half as narrow};

/// Mean and scale of a row: `(x − shift)·scale + offset` has mean 0 and variance 1.
///
/// The shift is the mean rounded to the row's type, so that differences from it are exact where they matter; the offset
/// brings in what the rounding lost.
#[derive(Clone, Copy, Debug)]
pub(super) struct Moments<W> {
    pub(super) shift: W,
    pub(super) scale: W,
    pub(super) offset: W,
}

/// f32 or f64.
pub(super) trait Wide: Pod + Default + Send + Sync {
    fn softmax(x: &[Self], out: &mut [Self]);
    fn log_softmax(x: &[Self], out: &mut [Self]);
    /// Softmax of rows of `row` elements, at most [`super::SHORT`], or its logarithm.
    fn short_softmax(x: &[Self], out: &mut [Self], row: usize, log: bool);
    fn layer_norm(x: &[Self], gamma: &[Self], beta: Option<&[Self]>, eps: f64, out: &mut [Self]);
    fn rms_norm(x: &[Self], gamma: &[Self], beta: Option<&[Self]>, eps: f64, out: &mut [Self]);
    fn moments(x: &[Self], eps: f64) -> Moments<Self>;
    /// The normalised row times gamma plus beta.
    fn affine(x: &[Self], moments: Moments<Self>, gamma: Self, beta: Self, out: &mut [Self]);
    /// `max[i] = max(max[i], x[i])`, NaN ignored.
    fn raise(max: &mut [Self], x: &[Self]);
    /// `sum[i] += e^(x[i] − max[i])`; in f64, for long columns.
    fn add_weights(sum: &mut [f64], x: &[Self], max: &[Self]);
    /// `out[i] = e^(x[i] − max[i]) / sum[i]`, or its logarithm.
    fn weights(x: &[Self], max: &[Self], sum: &[f64], log: bool, out: &mut [Self]);
    const LOWEST: Self;
}

/// A stored float: f32 and f64 are their own wide type, f16 and bf16 go through f32.
pub(super) trait Narrow: Pod + Default + Send + Sync {
    type Wide: Wide;
    /// The row in the wide type; the buffer is used if that needs a copy.
    fn wide<'a>(x: &'a [Self], buffer: &'a mut Vec<Self::Wide>) -> &'a [Self::Wide];
    /// Lets `f` write a row, through the buffer if it needs narrowing or bypasses the caches.
    fn write(out: &mut [Self], buffer: &mut Vec<Self::Wide>, stream: bool, f: impl FnOnce(&mut [Self::Wide]));
}

/// Lends two row buffers.
pub(super) fn with_buffers<W>(f: impl FnOnce(&mut Vec<W>, &mut Vec<W>)) {
    f(&mut Vec::new(), &mut Vec::new());
}

macro_rules! own_wide {
    ($($t:ty),*) => {$(
        impl Narrow for $t {
            type Wide = $t;
            fn wide<'a>(x: &'a [$t], _: &'a mut Vec<$t>) -> &'a [$t] {
                x
            }
            fn write(out: &mut [$t], buffer: &mut Vec<$t>, stream: bool, f: impl FnOnce(&mut [$t])) {
                if stream {
                    buffer.resize(out.len(), 0.0);
                    f(buffer);
                    simd::stream_copy(bytemuck::cast_slice(buffer), bytemuck::cast_slice_mut(out));
                } else {
                    f(out);
                }
            }
        }
    )*};
}
own_wide!(f32, f64);

macro_rules! half_wide {
    ($($t:ty, $widen:path, $narrow:path);*) => {$(
        impl Narrow for $t {
            type Wide = f32;
            fn wide<'a>(x: &'a [$t], buffer: &'a mut Vec<f32>) -> &'a [f32] {
                buffer.resize(x.len(), 0.0);
                $widen(x, buffer);
                buffer
            }
            fn write(out: &mut [$t], buffer: &mut Vec<f32>, _: bool, f: impl FnOnce(&mut [f32])) {
                buffer.resize(out.len(), 0.0);
                f(buffer);
                $narrow(buffer, out);
            }
        }
    )*};
}
half_wide!(f16, narrow::widen_f16, narrow::narrow_f16; bf16, narrow::widen_bf16, narrow::narrow_bf16);
