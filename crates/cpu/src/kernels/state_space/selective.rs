//! Mamba's scan: a task takes a block of channels of one batch and keeps its states channel by channel in vectors.

use half::{bf16, f16};
use olivine_ir::DType;
use olivine_ir::op::SelectiveScan;

use super::{Part, Real, Step, lay, wide};
use crate::kernel::kernels;
use crate::operand::{Operand, Target};
use crate::scratch;
use crate::{parallel, simd};

kernels! { |op, x, out, call|
    SelectiveScan => selective_scan(op, x, out),
}

/// Channels of a task.
const BLOCK: usize = 64;

/// Scans; see [`SelectiveScan`].
pub(crate) fn selective_scan(op: &SelectiveScan, x: &[Operand<'_>], out: &mut [Target<'_>]) {
    match x[0].ty.dtype {
        DType::F16 => scan::<f16>(op, x, out),
        DType::BF16 => scan::<bf16>(op, x, out),
        DType::F64 => scan::<f64>(op, x, out),
        _ => scan::<f32>(op, x, out),
    }
}

fn scan<T: Real<Acc: Step>>(op: &SelectiveScan, x: &[Operand<'_>], out: &mut [Target<'_>]) {
    let [target, state_out] = out else { return };
    let (dims, states) = (x[0].shape(), x[2].shape()[1]);
    let (batch, length, channels) = (dims[0], dims[1], dims[2]);
    let at = op.optional_operands();
    let all: Vec<_> = x.iter().map(wide::<T>).collect();
    let optional = |at: Option<usize>| at.map(|i| &*all[i]);
    let blocks = channels.div_ceil(BLOCK);
    let mut parts: Vec<Part<T::Acc>> =
        (0..batch * blocks).map(|_| Part { rows: Vec::new(), state: Vec::new() }).collect();
    parallel::parts(&mut parts, 1, &|i, part| {
        let task = Task {
            softplus: op.softplus,
            x: &all[0],
            delta: &all[1],
            a: &all[2],
            b: &all[3],
            c: &all[4],
            skip: optional(at.skip),
            gate: optional(at.gate),
            bias: optional(at.delta_bias),
            state: optional(at.state),
            batch: i / blocks,
            first: i % blocks * BLOCK,
            sizes: [length, channels, states],
        };
        part[0] = simd::run(task);
    });
    lay::<T>(&parts, blocks, length, channels, target);
    let state = state_out.elements::<T::Acc>();
    for (i, part) in parts.iter().enumerate() {
        let (batch, first) = (i / blocks, i % blocks * BLOCK);
        for d in 0..BLOCK.min(channels - first) {
            for n in 0..states {
                state[(batch * channels + first + d) * states + n] = part.state[n * BLOCK + d];
            }
        }
    }
}

struct Task<'a, A> {
    softplus: bool,
    x: &'a [A],
    delta: &'a [A],
    a: &'a [A],
    b: &'a [A],
    c: &'a [A],
    skip: Option<&'a [A]>,
    gate: Option<&'a [A]>,
    bias: Option<&'a [A]>,
    state: Option<&'a [A]>,
    batch: usize,
    first: usize,
    /// Length, channels, states of a channel.
    sizes: [usize; 3],
}

impl<A: Step> simd::Kernel for Task<'_, A> {
    type Output = Part<A>;

    #[inline(always)]
    fn run<const FMA: bool>(self) -> Part<A> {
        let [length, channels, states] = self.sizes;
        let count = BLOCK.min(channels - self.first);
        // Both have the layout [state, channel]; channels past the last stay zeros.
        let (mut a, mut h) = (scratch::zeroed::<A>(states * BLOCK), scratch::zeroed::<A>(states * BLOCK));
        for d in 0..count {
            for n in 0..states {
                a[n * BLOCK + d] = self.a[(self.first + d) * states + n];
                if let Some(state) = self.state {
                    h[n * BLOCK + d] = state[(self.batch * channels + self.first + d) * states + n];
                }
            }
        }
        let mut rows = scratch::zeroed::<A>(length * BLOCK);
        let (mut step, mut input) = ([A::ZERO; BLOCK], [A::ZERO; BLOCK]);
        for t in 0..length {
            let row = self.batch * length + t;
            let here = row * channels + self.first;
            step[..count].copy_from_slice(&self.delta[here..here + count]);
            input[..count].copy_from_slice(&self.x[here..here + count]);
            if let Some(bias) = self.bias {
                step.iter_mut().zip(&bias[self.first..]).for_each(|(s, b)| *s += *b);
            }
            if self.softplus {
                step.iter_mut().for_each(|s| *s = s.softplus::<FMA>());
            }
            let sums = &mut rows[t * BLOCK..][..BLOCK];
            let keys = self.b[row * states..][..states].iter().zip(&self.c[row * states..][..states]);
            let lines = a.chunks_exact(BLOCK).zip(h.chunks_exact_mut(BLOCK));
            for ((a, h), (b, c)) in lines.zip(keys) {
                for d in 0..BLOCK {
                    h[d] = (step[d] * a[d]).exp::<FMA>() * h[d] + step[d] * input[d] * *b;
                    sums[d] += *c * h[d];
                }
            }
            if let Some(skip) = self.skip {
                sums.iter_mut().zip(&skip[self.first..]).zip(&input).for_each(|((s, d), x)| *s += *d * *x);
            }
            if let Some(gate) = self.gate {
                sums.iter_mut().zip(&gate[here..here + count]).for_each(|(s, z)| *s *= z.silu::<FMA>());
            }
        }
        Part { rows, state: h }
    }
}
