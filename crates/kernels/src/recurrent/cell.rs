//! The gates of one unit and batch entry, in f32 or f64.

use olivine_ir::DType;
use olivine_ir::op::{Activation, GateFunction, ScalarOp, Unary};
use olivine_kernel::{Builder, Val};

use crate::math::{self, Typed};

/// The functions of a layer's gates.
pub(super) struct Functions<'k> {
    /// Those of each direction; one list where both have the same.
    lists: Vec<Vec<GateFunction>>,
    /// Whether this invocation works for the second direction.
    second: Val<'k>,
    clip: Option<Val<'k>>,
    dtype: DType,
}

impl<'k> Functions<'k> {
    pub(super) fn new(
        mut lists: Vec<Vec<GateFunction>>,
        second: Val<'k>,
        clip: Option<Val<'k>>,
        dtype: DType,
    ) -> Self {
        lists.dedup();
        Functions { lists, second, clip, dtype }
    }

    /// The function of the gates (0), of the candidate (1) or of the cell (2).
    pub(super) fn apply(&self, k: &'k Builder, which: usize, x: Val<'k>) -> Val<'k> {
        let x = match self.clip {
            Some(most) => math::min_nan(math::max_nan(x, -most), most),
            None => x,
        };
        let of = |list: &[GateFunction]| match list.get(which) {
            Some(f) => self.function(*f, x),
            None => {
                k.fail(format!("a cell has no function {which}"));
                x
            }
        };
        match self.lists.as_slice() {
            [first, second] if first.get(which) != second.get(which) => {
                k.if_value(self.second, || of(second), || of(first))
            }
            [first, ..] => of(first),
            [] => of(&[]),
        }
    }

    fn function(&self, f: GateFunction, x: Val<'k>) -> Val<'k> {
        let op = match f {
            GateFunction::Tanh => ScalarOp::Unary(Unary::Tanh),
            GateFunction::Sigmoid => ScalarOp::Unary(Unary::Sigmoid),
            GateFunction::Relu => ScalarOp::Unary(Unary::Relu),
            GateFunction::HardSigmoid => {
                ScalarOp::Activation(Activation::HardSigmoid { alpha: 0.2, beta: 0.5 })
            }
            GateFunction::Softsign => ScalarOp::Unary(Unary::Softsign),
            GateFunction::Softplus => ScalarOp::Unary(Unary::Softplus),
        };
        math::scalar_op(&op, &[Typed { val: x, dtype: self.dtype }], self.dtype).val
    }
}

/// h' of an rnn.
pub(super) fn rnn<'k>(k: &'k Builder, f: &Functions<'k>, sum: Val<'k>) -> Val<'k> {
    f.apply(k, 0, sum)
}

/// (1 − z)·new + z·h.
pub(super) fn mix<'k>(z: Val<'k>, new: Val<'k>, h: Val<'k>) -> Val<'k> {
    (z.like(1.0) - z) * new + z * h
}

/// h' of a gru whose reset gate acts after the product: `x` are the projections, `s` the products with h.
pub(super) fn gru<'k>(
    k: &'k Builder,
    f: &Functions<'k>,
    x: &[Val<'k>],
    s: &[Val<'k>],
    bias: Option<Val<'k>>,
    h: Val<'k>,
) -> Val<'k> {
    let (z, r) = (f.apply(k, 0, x[0] + s[0]), f.apply(k, 0, x[1] + s[1]));
    let inner = bias.map_or(s[2], |b| s[2] + b);
    mix(z, f.apply(k, 1, x[2] + r * inner), h)
}

/// h' and c' of an lstm; `sums` are those of i, o, f (unless it is 1 − i) and the candidate, `peepholes` of i, o, f.
pub(super) fn lstm<'k>(
    k: &'k Builder,
    f: &Functions<'k>,
    sums: &[Val<'k>],
    peepholes: Option<[Val<'k>; 3]>,
    c: Val<'k>,
) -> (Val<'k>, Val<'k>) {
    let peep = |which: usize, sum: Val<'k>, c: Val<'k>| peepholes.map_or(sum, |p| p[which].fma(c, sum));
    let i = f.apply(k, 0, peep(0, sums[0], c));
    let (forget, candidate) = match sums {
        [_, _, forget, candidate] => (f.apply(k, 0, peep(2, *forget, c)), *candidate),
        _ => (i.like(1.0) - i, sums[2]),
    };
    let new = forget * c + i * f.apply(k, 1, candidate);
    let o = f.apply(k, 0, peep(1, sums[1], new));
    (o * f.apply(k, 2, new), new)
}
