//! Models with a matrix of state to a head: Mamba-2 and the gated delta net. A task takes a head of a batch; its state
//! is `[key, value]`, and loops run along the values.

use half::{bf16, f16};
use olivine_ir::DType;
use olivine_ir::op::{GatedDeltaNet, Mamba2};

use super::{Part, Real, Step, lay, wide};
use crate::kernel::kernels;
use crate::operand::{Number, Operand, Target};
use crate::scratch;
use crate::{parallel, simd};

kernels! { |op, x, out, call|
    Mamba2 => mamba2(op, x, out),
    GatedDeltaNet => gated_delta_net(op, x, out),
}

/// Scans; see [`Mamba2`].
pub(crate) fn mamba2(op: &Mamba2, x: &[Operand<'_>], out: &mut [Target<'_>]) {
    match x[0].ty.dtype {
        DType::F16 => of_mamba::<f16>(op, x, out),
        DType::BF16 => of_mamba::<bf16>(op, x, out),
        DType::F64 => of_mamba::<f64>(op, x, out),
        _ => of_mamba::<f32>(op, x, out),
    }
}

/// Scans; see [`GatedDeltaNet`].
pub(crate) fn gated_delta_net(op: &GatedDeltaNet, x: &[Operand<'_>], out: &mut [Target<'_>]) {
    match x[2].ty.dtype {
        DType::F16 => of_net::<f16>(op, x, out),
        DType::BF16 => of_net::<bf16>(op, x, out),
        DType::F64 => of_net::<f64>(op, x, out),
        _ => of_net::<f32>(op, x, out),
    }
}

/// Sizes: heads, heads of keys, sequence, elements of a key and of a value.
#[derive(Clone, Copy)]
struct Sizes {
    batch: usize,
    length: usize,
    heads: usize,
    key_heads: usize,
    dk: usize,
    dv: usize,
}

/// How a step changes the state.
#[derive(Clone, Copy)]
enum Change<'a, A> {
    /// By dt·x, under the decay e^(dt·A); y gets D·x besides.
    Mamba { dt: &'a [A], a: &'a [A], skip: Option<&'a [A]> },
    /// By β·(v − Sᵀk), under the decay e^g; the result is scaled.
    Delta { g: &'a [A], beta: &'a [A], scale: A },
}

struct Task<'a, A> {
    change: Change<'a, A>,
    sizes: Sizes,
    queries: &'a [A],
    keys: &'a [A],
    values: &'a [A],
    state: Vec<A>,
    batch: usize,
    head: usize,
}

impl<A: Step> simd::Kernel for Task<'_, A> {
    type Output = Part<A>;

    #[inline(always)]
    fn run<const FMA: bool>(self) -> Part<A> {
        let Sizes { length, heads, key_heads, dk, dv, .. } = self.sizes;
        let mut state = self.state;
        let (mut rows, mut change) = (scratch::zeroed::<A>(length * dv), scratch::zeroed::<A>(dv));
        let key_head = self.head * key_heads / heads;
        for t in 0..length {
            let row = self.batch * length + t;
            let step = row * heads + self.head;
            let key = &self.keys[(row * key_heads + key_head) * dk..][..dk];
            let query = &self.queries[(row * key_heads + key_head) * dk..][..dk];
            let value = &self.values[step * dv..][..dv];
            let out = &mut rows[t * dv..][..dv];
            let mut decay = A::ONE;
            match self.change {
                Change::Mamba { dt, a, .. } => {
                    decay = (dt[step] * a[self.head]).exp::<FMA>();
                    change.iter_mut().zip(value).for_each(|(c, v)| *c = dt[step] * *v);
                }
                Change::Delta { g, beta, .. } => {
                    let decay = g[step].exp::<FMA>();
                    change.fill(A::ZERO);
                    for (line, k) in state.chunks_exact_mut(dv.max(1)).zip(key) {
                        for (s, seen) in line.iter_mut().zip(&mut change) {
                            *s *= decay;
                            *seen += *s * *k;
                        }
                    }
                    change.iter_mut().zip(value).for_each(|(c, v)| *c = (*v - *c) * beta[step]);
                }
            }
            for ((line, k), q) in state.chunks_exact_mut(dv.max(1)).zip(key).zip(query) {
                for ((s, c), o) in line.iter_mut().zip(&change).zip(out.iter_mut()) {
                    *s = *s * decay + *k * *c;
                    *o += *s * *q;
                }
            }
            match self.change {
                Change::Mamba { skip: Some(skip), .. } => {
                    out.iter_mut().zip(value).for_each(|(o, x)| *o += skip[self.head] * *x);
                }
                Change::Mamba { skip: None, .. } => {}
                Change::Delta { scale, .. } => out.iter_mut().for_each(|o| *o *= scale),
            }
        }
        Part { rows, state }
    }
}

fn of_mamba<T: Real<Acc: Step>>(op: &Mamba2, x: &[Operand<'_>], out: &mut [Target<'_>]) {
    let (skip, state) = op.optional_operands();
    let all: Vec<_> = x.iter().map(wide::<T>).collect();
    let (values, keys) = (x[0].shape(), x[3].shape());
    let sizes = Sizes {
        batch: values[0],
        length: values[1],
        heads: values[2],
        key_heads: keys[2],
        dk: keys[3],
        dv: values[3],
    };
    let change = Change::Mamba { dt: &all[1], a: &all[2], skip: skip.map(|i| &*all[i]) };
    let state = state.map(|i| &*all[i]);
    // The state of the operation has the layout [value, key].
    let place = |k: usize, v: usize| v * sizes.dk + k;
    run::<T>(sizes, change, [&all[4], &all[3], &all[0]], state, &place, out);
}

fn of_net<T: Real<Acc: Step>>(op: &GatedDeltaNet, x: &[Operand<'_>], out: &mut [Target<'_>]) {
    let all: Vec<_> = x.iter().map(wide::<T>).collect();
    let (keys, values) = (x[0].shape(), x[2].shape());
    let sizes = Sizes {
        batch: values[0],
        length: values[1],
        heads: values[2],
        key_heads: keys[2],
        dk: keys[3],
        dv: values[3],
    };
    let scale = Number::from_f64(op.scale_for(sizes.dk));
    let change = Change::Delta { g: &all[3], beta: &all[4], scale };
    let state = all.get(5).map(|s| &**s);
    let place = |k: usize, v: usize| k * sizes.dv + v;
    run::<T>(sizes, change, [&all[0], &all[1], &all[2]], state, &place, out);
}

/// Runs every head; `place` finds a cell of a head's state at the graph's surface.
fn run<T: Real<Acc: Step>>(
    sizes: Sizes,
    change: Change<'_, T::Acc>,
    [queries, keys, values]: [&[T::Acc]; 3],
    state: Option<&[T::Acc]>,
    place: &(dyn Fn(usize, usize) -> usize + Sync),
    out: &mut [Target<'_>],
) {
    let [target, state_out] = out else { return };
    let Sizes { batch, length, heads, dk, dv, .. } = sizes;
    let cells = dk * dv;
    let mut parts: Vec<Part<T::Acc>> =
        (0..batch * heads).map(|_| Part { rows: Vec::new(), state: Vec::new() }).collect();
    parallel::parts(&mut parts, 1, &|i, part| {
        let own = |cell: usize| state.map_or(T::Acc::ZERO, |s| s[i * cells + place(cell / dv, cell % dv)]);
        let state = (0..cells).map(own).collect();
        let (batch, head) = (i / heads, i % heads);
        part[0] = simd::run(Task { change, sizes, queries, keys, values, state, batch, head });
    });
    lay::<T>(&parts, heads, length, heads * dv, target);
    parallel::chunks(state_out.elements::<T::Acc>(), cells, &|i, out| {
        for (cell, s) in parts[i].state.iter().enumerate() {
            out[place(cell / dv, cell % dv)] = *s;
        }
    });
}
