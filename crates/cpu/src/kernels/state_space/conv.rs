//! The causal convolution of every channel with taps of its own.

use half::{bf16, f16};
use olivine_ir::DType;
use olivine_ir::op::CausalConv1d;

use super::{GRAIN, Real, Step, wide};
use crate::kernel::kernels;
use crate::operand::{Number, Operand, Target};
use crate::scratch;
use crate::{parallel, simd};

kernels! { |op, x, out, call|
    CausalConv1d => causal_conv1d(op, x, out),
}

/// Convolves; see [`CausalConv1d`].
pub(crate) fn causal_conv1d(op: &CausalConv1d, x: &[Operand<'_>], out: &mut [Target<'_>]) {
    match x[0].ty.dtype {
        DType::F16 => conv::<f16>(op, x, out),
        DType::BF16 => conv::<bf16>(op, x, out),
        DType::F64 => conv::<f64>(op, x, out),
        _ => conv::<f32>(op, x, out),
    }
}

fn conv<T: Real<Acc: Step>>(op: &CausalConv1d, x: &[Operand<'_>], out: &mut [Target<'_>]) {
    let [target, state_out] = out else { return };
    let (dims, width) = (x[0].shape(), x[1].shape()[1]);
    let (length, channels, past) = (dims[1], dims[2], width - 1);
    let (bias, state) = op.optional_operands();
    let (input, before) = (x[0].slice::<T>(), state.map(|i| x[i].slice::<T>()));
    // The inputs of all channels at a time counted from the oldest of the state; none where there is no state.
    let at = |batch: usize, t: usize| match (t.checked_sub(past), before) {
        (Some(t), _) => Some(&input[(batch * length + t) * channels..][..channels]),
        (None, Some(before)) => Some(&before[(batch * past + t) * channels..][..channels]),
        (None, None) => None,
    };
    let weight = wide::<T>(&x[1]);
    // Taps have the layout [tap, channel], so that loops run along channels.
    let mut taps = scratch::zeroed::<T::Acc>(weight.len());
    for (d, of) in weight.chunks_exact(width).enumerate() {
        of.iter().enumerate().for_each(|(j, w)| taps[j * channels + d] = *w);
    }
    let bias = bias.map(|i| wide::<T>(&x[i]));
    if !target.ty.shape.has_zero() {
        let rows = GRAIN.div_ceil(channels);
        parallel::chunks(target.elements::<T>(), rows * channels, &|task, out| {
            let (mut sums, mut line) =
                (scratch::zeroed::<T::Acc>(channels), scratch::zeroed::<T::Acc>(channels));
            for (i, out) in out.chunks_mut(channels).enumerate() {
                let (batch, t) = ((task * rows + i) / length, (task * rows + i) % length);
                match &bias {
                    Some(bias) => sums.copy_from_slice(bias),
                    None => sums.fill(T::Acc::ZERO),
                }
                for (j, taps) in taps.chunks_exact(channels).enumerate() {
                    let Some(src) = at(batch, t + j) else { continue };
                    T::widen(src, &mut line);
                    sums.iter_mut().zip(taps).zip(&line).for_each(|((s, w), x)| *s += *w * *x);
                }
                if op.silu {
                    simd::run(Silu(&mut sums));
                }
                T::narrow(&sums, out);
            }
        });
    }
    if state_out.ty.shape.has_zero() {
        return;
    }
    parallel::chunks(state_out.elements::<T>(), past * channels, &|batch, out| {
        for (t, out) in out.chunks_mut(channels).enumerate() {
            match at(batch, length + t) {
                Some(src) => out.copy_from_slice(src),
                None => out.fill(T::ZERO),
            }
        }
    });
}

struct Silu<'a, A>(&'a mut [A]);

impl<A: Step> simd::Kernel for Silu<'_, A> {
    type Output = ();

    #[inline(always)]
    fn run<const FMA: bool>(self) {
        self.0.iter_mut().for_each(|x| *x = x.silu::<FMA>());
    }
}
