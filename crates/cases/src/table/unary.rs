//! Functions of one number: each over its range, at the edges of the dtype, and over odd shapes.

use olivine_ir::DType::{BF16, Bool, F16, F32, I32};
use olivine_ir::op::{Activation, ScalarOp, Unary};

use super::{FLOATS, INTS, PAIR};
use crate::bound::Bound::{self, Bits, Exact, Near, Ulp};
use crate::case::Table;
use crate::fill::Fill::{Anything, Chance, Exponents, Finite, PositiveExponents, Special, WholeRange};
use crate::fill::{normal, these, uniform};
use crate::range::whole_range_len;

/// For sums that cancel where the function leaves zero.
const CANCELLING: Bound = Near(2.0, 2.0);

pub(super) fn rows(t: &mut Table) {
    ranges(t);
    edges(t);
    whole_ranges(t);
    activations(t);
    integers(t);
    shapes(t);
}

/// Each function where it is ordinarily used.
fn ranges(t: &mut Table) {
    let rows = [
        (Unary::Neg, normal(), Exact),
        (Unary::Abs, normal(), Exact),
        (Unary::Sign, normal(), Exact),
        (Unary::Reciprocal, normal(), Exact),
        (Unary::Square, normal(), Exact),
        (Unary::Sqrt, uniform(0.0, 100.0), Exact),
        (Unary::Rsqrt, uniform(0.001, 100.0), Ulp(2.0)),
        (Unary::Exp, uniform(-10.0, 10.0), Ulp(4.0)),
        (Unary::Expm1, uniform(-2.0, 2.0), Ulp(4.0)),
        (Unary::Log, uniform(0.001, 100.0), Ulp(4.0)),
        (Unary::Log1p, uniform(-0.9, 3.0), Ulp(4.0)),
        (Unary::Log2, uniform(0.001, 100.0), Ulp(4.0)),
        (Unary::Sin, uniform(-30.0, 30.0), Ulp(4.0)),
        (Unary::Cos, uniform(-30.0, 30.0), Ulp(4.0)),
        (Unary::Tan, uniform(-1.5, 1.5), Ulp(4.0)),
        (Unary::Asin, uniform(-1.0, 1.0), Ulp(4.0)),
        (Unary::Acos, uniform(-1.0, 0.99), Ulp(4.0)),
        (Unary::Atan, uniform(-9.0, 9.0), Ulp(4.0)),
        (Unary::Sinh, uniform(-4.0, 4.0), Ulp(4.0)),
        (Unary::Cosh, uniform(-4.0, 4.0), Ulp(4.0)),
        (Unary::Tanh, uniform(-6.0, 6.0), Ulp(4.0)),
        (Unary::Asinh, uniform(-9.0, 9.0), Ulp(4.0)),
        (Unary::Acosh, uniform(1.1, 90.0), Ulp(4.0)),
        (Unary::Atanh, uniform(-0.99, 0.99), Ulp(4.0)),
        (Unary::Erf, uniform(-4.0, 4.0), Ulp(4.0)),
        (Unary::Ceil, uniform(-9.0, 9.0), Exact),
        (Unary::Floor, uniform(-9.0, 9.0), Exact),
        (Unary::Round, these(&[0.5, 1.5, 2.5, -0.5, -1.5, 2.4999, 0.49999997, 7.0, -3.7, 8388609.0]), Exact),
        (Unary::Trunc, uniform(-9.0, 9.0), Exact),
        (Unary::Relu, normal(), Exact),
        (Unary::Sigmoid, uniform(-12.0, 12.0), Ulp(4.0)),
        (Unary::Silu, uniform(-12.0, 12.0), Ulp(4.0)),
        (Unary::Gelu, uniform(-5.0, 5.0), Ulp(4.0)),
        (Unary::GeluTanh, uniform(-5.0, 5.0), Ulp(4.0)),
        (Unary::Softplus, uniform(-12.0, 30.0), Ulp(4.0)),
        (Unary::Softsign, uniform(-9.0, 9.0), Ulp(2.0)),
        (Unary::Selu, uniform(-6.0, 3.0), Ulp(4.0)),
        (Unary::Mish, uniform(-12.0, 12.0), Ulp(4.0)),
        (Unary::HardSwish, uniform(-5.0, 5.0), Ulp(4.0)),
        (Unary::LogSigmoid, uniform(-30.0, 12.0), Ulp(4.0)),
    ];
    for (op, fill, bound) in rows {
        let name = format!("{}/range", op.name());
        t.case(&name, FLOATS, fill, bound, move |g| {
            let x = g.x([3, 341])?;
            g.add1(ScalarOp::Unary(op), &[x])
        });
    }
}

/// NaN, infinities, zeros, subnormals and the whole finite range.
fn edges(t: &mut Table) {
    use Unary as U;
    let exact = [
        U::Neg,
        U::Abs,
        U::Sign,
        U::Reciprocal,
        U::Square,
        U::Sqrt,
        U::Ceil,
        U::Floor,
        U::Round,
        U::Trunc,
        U::Relu,
        U::IsNan,
        U::IsInf,
    ];
    let close =
        [U::Rsqrt, U::Exp, U::Expm1, U::Log, U::Log1p, U::Log2, U::Tanh, U::Erf, U::Softplus, U::LogSigmoid];
    let wider = [U::Asin, U::Atan, U::Sinh, U::Cosh, U::Asinh, U::Atanh];
    // x·f(x) at −∞ is 0·∞: IEEE says NaN, the limit says 0, and the contract does not choose.
    let finite = [U::Silu, U::Gelu, U::Softsign, U::GeluTanh, U::Mish, U::HardSwish];
    let all = exact.iter().map(|u| (*u, Special, Exact));
    let all = all.chain(close.iter().map(|u| (*u, Special, Ulp(4.0))));
    let all = all.chain(wider.iter().map(|u| (*u, Special, Ulp(4.0))));
    let all = all.chain([(U::Selu, Special, Ulp(4.0)), (U::Sigmoid, Special, Ulp(4.0))]);
    let all = all.chain(finite.iter().map(|u| (*u, Finite, Ulp(4.0))));
    for (op, fill, bound) in all {
        t.case(&format!("{}/special", op.name()), &[F32, F16, BF16], fill, bound, move |g| {
            let x = g.x([517])?;
            g.add1(ScalarOp::Unary(op), &[x])
        });
    }
    for op in [U::Sin, U::Cos, U::Tan] {
        let list =
            [0.0, -0.0, f64::INFINITY, f64::NEG_INFINITY, f64::NAN, 1e-40, -1e-30, 3e-5, 100.0, 1234.5];
        t.case(&format!("{}/special", op.name()), &[F32], these(&list), Ulp(4.0), move |g| {
            let x = g.x([20])?;
            g.add1(ScalarOp::Unary(op), &[x])
        });
    }
    let both =
        [U::Exp, U::Tanh, U::Erf, U::Softplus, U::Expm1, U::Asinh, U::Atan, U::Gelu, U::Sigmoid, U::Silu];
    for op in both {
        t.case(&format!("{}/finite-range", op.name()), &[F32], Exponents(-126, 127), Ulp(4.0), move |g| {
            let x = g.x([4001])?;
            g.add1(ScalarOp::Unary(op), &[x])
        });
    }
    for op in [U::Log, U::Log1p, U::Log2, U::Rsqrt, U::Sqrt] {
        let bound = if op == U::Sqrt { Exact } else { Ulp(4.0) };
        t.case(
            &format!("{}/finite-range", op.name()),
            &[F32],
            PositiveExponents(-126, 127),
            bound,
            move |g| {
                let x = g.x([4001])?;
                g.add1(ScalarOp::Unary(op), &[x])
            },
        );
    }
    let halves = these(&[0.5, 1.5, 2.5, 3.5, -0.5, -1.5, -2.5, 0.49, 0.51, 1022.5, 1023.5]);
    t.case("round/half-to-even", FLOATS, halves, Exact, |g| {
        let x = g.x([22])?;
        g.round(x)
    });
    t.case("gelu/tail", PAIR, uniform(-12.5, -2.0), Ulp(4.0), |g| {
        let x = g.x([2000])?;
        g.gelu(x)
    });
    t.case("exp/underflow-and-overflow", &[F32], uniform(-104.0, 90.0), Ulp(4.0), |g| {
        let x = g.x([4001])?;
        g.exp(x)
    });
    t.case("log/near-one", &[F32], uniform(0.98, 1.02), Ulp(4.0), |g| {
        let x = g.x([2000])?;
        g.log(x)
    });
}

/// Every function over all magnitudes, out of its domain too.
fn whole_ranges(t: &mut Table) {
    use Unary as U;
    let exact = [U::Reciprocal, U::Square, U::Sqrt, U::Relu, U::IsNan, U::IsInf];
    // The sign of a zero counts.
    let bits = [U::Neg, U::Abs, U::Sign, U::Ceil, U::Floor, U::Round, U::Trunc];
    let close = [U::Rsqrt, U::Exp, U::Expm1, U::Log, U::Log1p, U::Log2, U::Tanh, U::Erf, U::Gelu];
    let wider = [U::Sin, U::Cos, U::Tan, U::Asin, U::Acos, U::Atan, U::Sinh, U::Cosh, U::Asinh, U::Acosh];
    let gates = [U::Atanh, U::Sigmoid, U::Silu, U::GeluTanh, U::Softplus, U::LogSigmoid, U::Softsign];
    let rest = [U::Selu, U::Mish, U::HardSwish];
    let all = exact.iter().map(|u| (*u, Exact)).chain(bits.iter().map(|u| (*u, Bits)));
    let four = close.iter().chain(&wider).chain(&gates).chain(&rest);
    for (op, bound) in all.chain(four.map(|u| (*u, Ulp(4.0)))) {
        t.case(&format!("{}/whole-range", op.name()), FLOATS, WholeRange, bound, move |g| {
            let x = g.x([whole_range_len(g.dtype())])?;
            g.add1(ScalarOp::Unary(op), &[x])
        });
    }
    let activations = [
        ("leaky_relu", Activation::LeakyRelu { alpha: 0.01 }, Ulp(4.0)),
        ("elu", Activation::Elu { alpha: 1.0 }, Ulp(4.0)),
        ("celu", Activation::Celu { alpha: 1.3 }, Ulp(4.0)),
        ("hard_sigmoid", Activation::HardSigmoid { alpha: 0.2, beta: 0.5 }, CANCELLING),
        ("hardshrink", Activation::Hardshrink { lambd: 0.5 }, Bits),
    ];
    for (name, activation, bound) in activations {
        t.case(&format!("{name}-whole-range"), FLOATS, WholeRange, bound, move |g| {
            let x = g.x([whole_range_len(g.dtype())])?;
            g.activation(activation, x)
        });
    }
}

fn activations(t: &mut Table) {
    let rows = [
        ("leaky_relu", Activation::LeakyRelu { alpha: 0.01 }, Ulp(4.0)),
        ("leaky_relu-steep", Activation::LeakyRelu { alpha: 1.5 }, Ulp(4.0)),
        ("elu", Activation::Elu { alpha: 1.0 }, Ulp(4.0)),
        ("elu-half", Activation::Elu { alpha: 0.5 }, Ulp(4.0)),
        ("celu", Activation::Celu { alpha: 1.3 }, Ulp(4.0)),
        ("hard_sigmoid", Activation::HardSigmoid { alpha: 0.2, beta: 0.5 }, CANCELLING),
        ("hard_sigmoid-sixth", Activation::HardSigmoid { alpha: 1.0 / 6.0, beta: 0.5 }, CANCELLING),
        ("hardshrink", Activation::Hardshrink { lambd: 0.5 }, Bits),
        ("hardshrink-wide", Activation::Hardshrink { lambd: 3.0 }, Bits),
        ("hardshrink-none", Activation::Hardshrink { lambd: -1.0 }, Bits),
    ];
    for (name, activation, bound) in rows {
        t.case(name, FLOATS, uniform(-6.0, 6.0), bound, move |g| {
            let x = g.x([5, 77])?;
            g.activation(activation, x)
        });
        t.case(&format!("{name}-special"), PAIR, Special, bound, move |g| {
            let x = g.x([311])?;
            g.activation(activation, x)
        });
    }
}

fn integers(t: &mut Table) {
    for op in [Unary::Neg, Unary::Abs, Unary::Sign, Unary::Square, Unary::Relu, Unary::Not] {
        t.case(op.name(), INTS, Anything, Exact, move |g| {
            let x = g.x([7, 43])?;
            g.add1(ScalarOp::Unary(op), &[x])
        });
    }
    t.case("not", &[Bool], Chance(0.5), Exact, |g| {
        let x = g.x([7, 43])?;
        g.not(x)
    });
}

fn shapes(t: &mut Table) {
    t.case("exp/rank-0", FLOATS, normal(), Ulp(4.0), |g| {
        let x = g.x([])?;
        g.exp(x)
    });
    t.case("exp/rank-8", &[F32], normal(), Ulp(4.0), |g| {
        let x = g.x([2, 1, 3, 1, 2, 2, 1, 5])?;
        g.exp(x)
    });
    t.case("tanh/zero-size", PAIR, normal(), Ulp(4.0), |g| {
        let x = g.x([3, 0, 5])?;
        g.tanh(x)
    });
    t.case("neg/zero-size", &[I32], Anything, Exact, |g| {
        let x = g.x([0])?;
        g.neg(x)
    });
    for n in [1usize, 2, 7, 8, 15, 16, 17, 31, 33, 1023, 65_537] {
        t.case(&format!("gelu/length-{n}"), &[F32], normal(), Ulp(4.0), move |g| {
            let x = g.x([n])?;
            g.gelu(x)
        });
    }
}
