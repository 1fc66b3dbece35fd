//! The causal convolution: an invocation takes a channel at a few neighbouring steps, whose inputs overlap.

use std::collections::HashMap;

use olivine_ir::op::CausalConv1d;
use olivine_kernel::{Buf, Val, Var};

use crate::kernels;
use crate::launch::{Launch, bytes};
use crate::math;
use crate::rows::{GROUP, wide};
use crate::site::{Site, linear_group};

kernels! { |op, site|
    CausalConv1d => causal_conv1d(op, site),
}

/// Steps of an invocation.
const RUN: u32 = 4;
/// Taps up to which each is written out, every input loaded once.
const FEW: usize = 8;

/// Inputs in the order of time, those of the state first.
struct Inputs<'k> {
    x: Buf<'k>,
    state: Option<Buf<'k>>,
    past: Val<'k>,
    length: Val<'k>,
    channels: Val<'k>,
    zero: Val<'k>,
}

impl<'k> Inputs<'k> {
    /// A channel's input at a time counted from the oldest of the state; past the last it is anything.
    fn at(&self, batch: Val<'k>, time: Val<'k>, d: Val<'k>) -> Val<'k> {
        let (k, past) = (time.builder(), time.lt(self.past));
        let old = || match self.state {
            Some(state) => state.load((batch * self.past + time) * self.channels + d),
            None => self.zero,
        };
        let new = || {
            let t = (time - self.past).min(self.length - 1);
            self.x.load((batch * self.length + t) * self.channels + d)
        };
        k.if_value(past, old, new)
    }
}

/// Lowers a causal convolution.
pub(crate) fn causal_conv1d(op: &CausalConv1d, site: &mut Site<'_>) -> Result<(), String> {
    let (bias, state) = op.optional_operands();
    let operand = |i: usize| site.operands.get(i).cloned().ok_or_else(|| format!("operand {i} is missing"));
    let (x, weight) = (operand(0)?, operand(1)?);
    let (bias, state) = (bias.map(operand).transpose()?, state.map(operand).transpose()?);
    let [out, state_out] = site.targets.as_slice() else { return Err("has two results".into()) };
    let (out, state_out) = (out.clone(), state_out.clone());
    let (&[batch, length, channels], &[_, taps]) = (x.dims(), weight.dims()) else {
        return Err("x has rank 3 and the weight rank 2".into());
    };
    let scalar = wide(x.ty.dtype);
    if !site.caps.target.has(scalar) {
        return Err(format!("the device has no {scalar}"));
    }
    if batch * channels == 0 {
        return Ok(());
    }
    if length == 0 {
        return if taps > 1 { super::carry::pass(state.as_ref(), &state_out, site) } else { Ok(()) };
    }
    // A kernel with no past reads no state, which has no bytes then.
    let state = state.filter(|_| taps > 1);
    let group = site.group_size(GROUP);
    let runs = length.div_ceil(RUN as usize);
    let work = batch * runs * channels;
    let k = site.builder("causal_conv1d", group);
    let l = Launch::new(&k);
    let source = l.read("x", &x);
    let weights = l.read("weight", &weight);
    let biases = bias.as_ref().map(|b| l.read("bias", b));
    let carried = state.as_ref().map(|s| l.read("state", s));
    let sink = l.write("y", &out);
    let (count, runs) = (l.size("work", work), l.size("runs", runs));
    let taps_ = if taps <= FEW { k.u32(taps as u32) } else { l.size("taps", taps) };
    let inputs = Inputs {
        x: source,
        state: carried,
        past: taps_ - 1,
        length: l.size("length", length),
        channels: l.size("channels", channels),
        zero: k.number(scalar, 0.0),
    };
    let number = linear_group(&k) * group + k.local_index();
    k.if_(number.lt(count), || {
        let (rest, d) = (number / inputs.channels, number % inputs.channels);
        let (batch, first) = (rest / runs, rest % runs * RUN);
        let begin = biases.map_or(inputs.zero, |b| b.load(d));
        let sums: Vec<Var<'_>> = (0..RUN).map(|_| k.var(begin)).collect();
        let tap = |j| weights.load(d * taps_ + j);
        if taps <= FEW {
            let mut loaded: HashMap<u32, Val<'_>> = HashMap::new();
            for j in 0..taps as u32 {
                let weight = tap(k.u32(j));
                for (i, sum) in (0..RUN).zip(&sums) {
                    let input = *loaded.entry(i + j).or_insert_with(|| inputs.at(batch, first + (i + j), d));
                    sum.set(weight.fma(input, sum.get()));
                }
            }
        } else {
            k.for_(k.u32(0), taps_, k.u32(1), |j| {
                let weight = tap(j);
                for (i, sum) in (0..RUN).zip(&sums) {
                    sum.set(weight.fma(inputs.at(batch, first + i + j, d), sum.get()));
                }
            });
        }
        for (i, sum) in (0..RUN).zip(&sums) {
            let t = first + i;
            k.if_(t.lt(inputs.length), || {
                let sum = if op.silu { math::silu(sum.get()) } else { sum.get() };
                sink.store((batch * inputs.length + t) * inputs.channels + d, sum);
            });
        }
    });
    let bound = l.done();
    let numel = (batch * length * channels) as u64;
    let cost = (2 * taps as u64 * numel, bytes(&x.ty) + bytes(&out.ty));
    site.dispatch(k, bound, (work as u64).div_ceil(u64::from(group)), cost)?;
    if taps == 1 {
        return Ok(());
    }

    let cells = batch * (taps - 1) * channels;
    let k = site.builder("causal_conv1d_state", group);
    let l = Launch::new(&k);
    let source = l.read("x", &x);
    let carried = state.as_ref().map(|s| l.read("state", s));
    let sink = l.write("state_out", &state_out);
    let inputs = Inputs {
        x: source,
        state: carried,
        past: l.size("past", taps - 1),
        length: l.size("length", length),
        channels: l.size("channels", channels),
        zero: k.number(scalar, 0.0),
    };
    let count = l.size("cells", cells);
    let number = linear_group(&k) * group + k.local_index();
    k.if_(number.lt(count), || {
        let (rest, d) = (number / inputs.channels, number % inputs.channels);
        let (batch, time) = (rest / inputs.past, rest % inputs.past);
        sink.store(number, inputs.at(batch, inputs.length + time, d));
    });
    let bound = l.done();
    site.dispatch(k, bound, (cells as u64).div_ceil(u64::from(group)), (0, 2 * bytes(&state_out.ty)))
}
