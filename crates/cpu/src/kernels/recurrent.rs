//! Recurrences step by step: a matmul of the state with the weights of all gates, then the gates of every batch entry.
//!
//! ```text
//!   h[batch, hidden] · Rᵀ[hidden, gates·hidden] ─ + projections of the step ─ gates ─ h, c ─ a row of y
//! ```

use std::borrow::Cow;

use half::{bf16, f16};
use olivine_ir::DType;
use olivine_ir::op::{GateFunction, Recurrence, RecurrentKind, RecurrentSizes, Unary};

use super::attention::{Acc, Real};
use super::gemm::{Matrix, gemm};
use crate::kernel::kernels;
use crate::operand::{Number, Operand, Target};
use crate::parallel;
use crate::scratch;
use crate::simd::{self, math};

kernels! { |op, x, out, call|
    Recurrence => recurrence(op, x, out),
}

/// Units whose gates one task computes at least.
const GRAIN: usize = 1 << 12;

/// A float that gates are computed in.
pub(crate) trait Gate: Acc {
    /// A gate's function.
    fn gate<const FMA: bool>(self, f: GateFunction) -> Self;
}

impl Gate for f32 {
    #[inline(always)]
    fn gate<const FMA: bool>(self, f: GateFunction) -> f32 {
        match f {
            GateFunction::Tanh => math::tanh::<FMA>(self),
            GateFunction::Sigmoid => math::sigmoid::<FMA>(self),
            GateFunction::Relu => math::relu::<FMA>(self),
            GateFunction::HardSigmoid => math::hard_sigmoid(self, 0.2, 0.5),
            GateFunction::Softsign => math::softsign::<FMA>(self),
            GateFunction::Softplus => math::softplus::<FMA>(self),
        }
    }
}

impl Gate for f64 {
    #[inline(always)]
    fn gate<const FMA: bool>(self, f: GateFunction) -> f64 {
        match f {
            GateFunction::Tanh => self.tanh(),
            GateFunction::Sigmoid => math::unary_f64(Unary::Sigmoid, self),
            GateFunction::Relu => math::unary_f64(Unary::Relu, self),
            GateFunction::HardSigmoid => (0.2 * self + 0.5).larger(0.0).smaller(1.0),
            GateFunction::Softsign => math::unary_f64(Unary::Softsign, self),
            GateFunction::Softplus => math::unary_f64(Unary::Softplus, self),
        }
    }
}

/// A function on a row, in place; what it is given is clipped first.
struct Apply<'a, A> {
    f: GateFunction,
    clip: Option<A>,
    row: &'a mut [A],
}

impl<A: Gate> simd::Kernel for Apply<'_, A> {
    type Output = ();

    #[inline(always)]
    fn run<const FMA: bool>(self) {
        if let Some(most) = self.clip {
            let least = A::ZERO - most;
            for x in self.row.iter_mut() {
                *x = if *x > most { most } else { *x };
                *x = if *x < least { least } else { *x };
            }
        }
        macro_rules! each {
            ($($f:ident),*) => {
                match self.f {
                    $(GateFunction::$f => self.row.iter_mut().for_each(|x| *x = x.gate::<FMA>(GateFunction::$f)),)*
                }
            };
        }
        each!(Tanh, Sigmoid, Relu, HardSigmoid, Softsign, Softplus)
    }
}

/// Computes y and the final states.
pub(crate) fn recurrence(op: &Recurrence, x: &[Operand<'_>], out: &mut [Target<'_>]) {
    match x[1].ty.dtype {
        DType::F16 => run::<f16>(op, x, out),
        DType::BF16 => run::<bf16>(op, x, out),
        DType::F64 => run::<f64>(op, x, out),
        _ => run::<f32>(op, x, out),
    }
}

/// The parts of a layer that stay the same from step to step.
struct Layer<'a, A: Gate> {
    op: &'a Recurrence,
    sizes: RecurrentSizes,
    projections: &'a [A],
    r: Cow<'a, [A]>,
    bias: Option<&'a [A]>,
    peepholes: Option<&'a [A]>,
    lengths: Option<Vec<usize>>,
}

fn run<T: Real>(op: &Recurrence, x: &[Operand<'_>], out: &mut [Target<'_>])
where
    T::Acc: Gate,
{
    let Ok(sizes) = op.sizes(&x[0].ty, &x[1].ty) else { return };
    let at = op.optional_operands();
    let floats = |i: Option<usize>| i.map(|i| x[i].slice::<T::Acc>());
    let r = x[1].slice::<T>();
    let layer = Layer {
        op,
        sizes,
        projections: x[0].slice(),
        r: match T::as_acc(r) {
            Some(r) => Cow::Borrowed(r),
            None => {
                let mut wide = scratch::zeroed::<T::Acc>(r.len());
                T::widen(r, &mut wide);
                Cow::Owned(wide)
            }
        },
        bias: floats(at.bias),
        peepholes: floats(at.peepholes),
        lengths: at.lengths.map(|i| lengths(&x[i], sizes.sequence)),
    };
    let RecurrentSizes { sequence, batch, hidden } = sizes;
    let dirs = op.of.direction.count();
    let begin = |state: Option<&[T::Acc]>| {
        state.map_or_else(|| scratch::zeroed(dirs * batch * hidden), scratch::copied)
    };
    let (mut h, mut c) = (begin(floats(at.initial_h)), begin(floats(at.initial_c)));
    let mut sums = scratch::zeroed::<T::Acc>(batch * layer.rows());
    let each = batch * hidden;
    let y = out[0].elements::<T>();
    for step in 0..sequence {
        for d in 0..dirs {
            let of = d * each..(d + 1) * each;
            layer.step(d, step, &mut h[of.clone()], &mut c[of.clone()], &mut sums);
            for b in 0..batch {
                let to = (layer.row_of(layer.time(d, step, b), b) * dirs + d) * hidden;
                let row = &mut y[to..to + hidden];
                if step < layer.length(b) {
                    T::narrow(&h[of.start + b * hidden..][..hidden], row);
                } else {
                    row.fill(T::ZERO);
                }
            }
        }
    }
    for (target, state) in out[1..].iter_mut().zip([&h, &c]) {
        target.elements::<T::Acc>().copy_from_slice(state);
    }
}

/// How many steps of each batch entry count.
fn lengths(x: &Operand<'_>, sequence: usize) -> Vec<usize> {
    let within = |length: i64| length.clamp(0, sequence as i64) as usize;
    match x.ty.dtype {
        DType::I32 => x.slice::<i32>().iter().map(|l| within(i64::from(*l))).collect(),
        _ => x.slice::<i64>().iter().map(|l| within(*l)).collect(),
    }
}

impl<A: Gate> Layer<'_, A> {
    fn rows(&self) -> usize {
        self.op.of.kind.gates() * self.sizes.hidden
    }

    fn length(&self, b: usize) -> usize {
        self.lengths.as_ref().map_or(self.sizes.sequence, |l| l[b])
    }

    /// The position in the sequence that a direction has come to; steps past the length go on as they are counted.
    fn time(&self, d: usize, step: usize, b: usize) -> usize {
        let length = self.length(b);
        if self.op.of.direction.is_reverse(d) && step < length { length - 1 - step } else { step }
    }

    /// The row of a position and a batch entry in projections and y.
    fn row_of(&self, time: usize, b: usize) -> usize {
        let RecurrentSizes { sequence, batch, .. } = self.sizes;
        if self.op.of.batch_first { b * sequence + time } else { time * batch + b }
    }

    /// Adds `x · Rᵀ` for some of a direction's gates to those columns of `sums`, which it overwrites.
    fn multiply(&self, d: usize, gates: std::ops::Range<usize>, x: &[A], sums: &mut [A]) {
        let RecurrentSizes { batch, hidden, .. } = self.sizes;
        let columns = gates.len() * hidden;
        let offset = (d * self.op.of.kind.gates() + gates.start) * hidden * hidden;
        let rt = Matrix { data: &self.r, offset, row_stride: 1, column_stride: hidden as isize };
        let sums = &mut sums[..batch * columns];
        gemm((batch, columns, hidden), Matrix::packed(x, hidden), rt, sums, 0, None);
    }

    /// One step of one direction: h and c of every batch entry whose sequence is not over.
    fn step(&self, d: usize, step: usize, h: &mut [A], c: &mut [A], sums: &mut [A]) {
        let hidden = self.sizes.hidden;
        let gates = self.op.of.kind.gates();
        let before = self.op.of.kind == RecurrentKind::Gru && !self.op.of.reset_after;
        let width = if before { gates - 1 } else { gates } * hidden;
        self.multiply(d, 0..width / hidden, h, sums);
        if before {
            // The candidate's matmul waits for the reset gate: z stays, r·h takes r's place.
            let mut held = scratch::zeroed::<A>(h.len());
            let mut update = scratch::zeroed::<A>(h.len());
            self.each(&mut update, &mut held, &|b, z, held| {
                let (x, s) = (self.projected(d, step, b), &sums[b * width..(b + 1) * width]);
                add(z, &x[..hidden], &s[..hidden]);
                add(held, &x[hidden..2 * hidden], &s[hidden..]);
                self.apply(d, 0, z);
                self.apply(d, 0, held);
                held.iter_mut().zip(&h[b * hidden..]).for_each(|(r, h)| *r *= *h);
            });
            self.multiply(d, 2..3, &held, sums);
            self.each(h, &mut [], &|b, h, _| {
                if step >= self.length(b) {
                    return;
                }
                let mut new = scratch::zeroed::<A>(hidden);
                let x = &self.projected(d, step, b)[2 * hidden..];
                add(&mut new, x, &sums[b * hidden..(b + 1) * hidden]);
                self.apply(d, 1, &mut new);
                mix(h, &update[b * hidden..], &new);
            });
            return;
        }
        let sums = &*sums;
        self.each(h, c, &|b, h, c| {
            if step >= self.length(b) {
                return;
            }
            let (x, s) = (self.projected(d, step, b), &sums[b * width..(b + 1) * width]);
            match self.op.of.kind {
                RecurrentKind::Rnn => {
                    add(h, x, s);
                    self.apply(d, 0, h);
                }
                RecurrentKind::Gru => self.gru(d, x, s, h),
                RecurrentKind::Lstm => self.lstm(d, x, s, h, c),
            }
        });
    }

    /// A gru whose reset gate acts after the matmul.
    fn gru(&self, d: usize, x: &[A], s: &[A], h: &mut [A]) {
        let n = self.sizes.hidden;
        let mut gates = scratch::zeroed::<A>(3 * n);
        add(&mut gates[..2 * n], &x[..2 * n], &s[..2 * n]);
        let (front, new) = gates.split_at_mut(2 * n);
        self.apply(d, 0, front);
        for (i, new) in new.iter_mut().enumerate() {
            let bias = self.bias.map_or(A::ZERO, |b| b[d * n + i]);
            *new = x[2 * n + i] + front[n + i] * (s[2 * n + i] + bias);
        }
        self.apply(d, 1, new);
        mix(h, front, new);
    }

    fn lstm(&self, d: usize, x: &[A], s: &[A], h: &mut [A], c: &mut [A]) {
        let n = self.sizes.hidden;
        let mut gates = scratch::zeroed::<A>(4 * n);
        add(&mut gates, x, s);
        let (front, new) = gates.split_at_mut(3 * n);
        // Where no gate depends on another or on c, one loop does them all.
        let together = self.peepholes.is_none() && !self.op.of.input_forget;
        if together {
            self.apply(d, 0, front);
        }
        let (i, rest) = front.split_at_mut(n);
        let (o, f) = rest.split_at_mut(n);
        let peep = |which: usize, gate: &mut [A], c: &[A]| {
            let Some(p) = self.peepholes else { return };
            let p = &p[(3 * d + which) * n..][..n];
            gate.iter_mut().zip(p).zip(c).for_each(|((g, p), c)| *g += *p * *c);
        };
        if !together {
            peep(0, i, c);
            peep(2, f, c);
            self.apply(d, 0, i);
            if self.op.of.input_forget {
                f.iter_mut().zip(&*i).for_each(|(f, i)| *f = A::ONE - *i);
            } else {
                self.apply(d, 0, f);
            }
        }
        self.apply(d, 1, new);
        for (((c, f), i), new) in c.iter_mut().zip(&*f).zip(&*i).zip(&*new) {
            *c = *f * *c + *i * *new;
        }
        if !together {
            peep(1, o, c);
            self.apply(d, 0, o);
        }
        h.copy_from_slice(c);
        self.apply(d, 2, h);
        h.iter_mut().zip(&*o).for_each(|(h, o)| *h *= *o);
    }

    /// The projections of the gates of one batch entry at the position a direction has come to.
    fn projected(&self, d: usize, step: usize, b: usize) -> &[A] {
        let rows = self.rows();
        let at = self.row_of(self.time(d, step, b), b) * self.op.of.direction.count() + d;
        &self.projections[at * rows..(at + 1) * rows]
    }

    /// A direction's function on a row.
    fn apply(&self, d: usize, which: usize, row: &mut [A]) {
        let Some(f) = self.op.of.functions_of(d).get(which) else { return };
        simd::run(Apply { f: *f, clip: self.op.of.clip.map(A::from_f64), row });
    }

    /// Calls `task` with every batch entry and its rows of two states.
    fn each(&self, first: &mut [A], second: &mut [A], task: parallel::Task2<'_, A, A>) {
        let hidden = self.sizes.hidden;
        let of_second = if second.is_empty() { 0 } else { hidden };
        if first.len() <= GRAIN {
            for (b, row) in first.chunks_mut(hidden).enumerate() {
                let other = if of_second == 0 { &mut [] } else { &mut second[b * hidden..(b + 1) * hidden] };
                task(b, row, other);
            }
            return;
        }
        let entries = GRAIN.div_ceil(hidden);
        let size = entries * hidden;
        parallel::chunks2((first, size), (second, of_second * entries), &|i, first, second| {
            for (j, row) in first.chunks_mut(hidden).enumerate() {
                let other = if of_second == 0 { &mut [] } else { &mut second[j * hidden..(j + 1) * hidden] };
                task(i * entries + j, row, other);
            }
        });
    }
}

/// `out = x + s`.
fn add<A: Gate>(out: &mut [A], x: &[A], s: &[A]) {
    #[derive(Clone, Copy)]
    struct Plus;
    impl<A: Gate> simd::Fn2<A, A> for Plus {
        #[inline(always)]
        fn call<const FMA: bool>(self, a: A, b: A) -> A {
            a + b
        }
    }
    simd::map2(Plus, x, s, out);
}

/// `h = (1 − z)·new + z·h`.
fn mix<A: Gate>(h: &mut [A], z: &[A], new: &[A]) {
    h.iter_mut().zip(z).zip(new).for_each(|((h, z), new)| *h = (A::ONE - *z) * *new + *z * *h);
}
