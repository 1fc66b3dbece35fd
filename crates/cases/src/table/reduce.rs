//! Reductions over every position of axes, softmax, and positions of extremes.

use olivine_ir::DType::{BF16, Bool, F16, F32, F64, I32, I64, U8};
use olivine_ir::op::{ArgReduce, ArgReduceKind, Reduce, ReduceKind};

use super::{FLOATS, INTS, NUMBERS, PAIR};
use crate::bound::Bound::{self, Exact, Near, Sum, Ulp};
use crate::bound::sum_of;
use crate::case::Table;
use crate::fill::Fill::{Anything, Chance, Mixed, Normal, Special};
use crate::fill::{Fill, normal, these, uniform, whole};

pub(super) fn rows(t: &mut Table) {
    axes(t);
    kinds(t);
    empty(t);
    softmax(t);
    extremes(t);
}

/// Sums and maxima over every position of axes, exactly.
fn axes(t: &mut Table) {
    let sets: [(&str, &[usize], &[usize]); 14] = [
        ("first", &[5, 4, 9], &[0]),
        ("middle", &[5, 4, 9], &[1]),
        ("last", &[5, 4, 9], &[2]),
        ("first-two", &[5, 4, 9], &[0, 1]),
        ("last-two", &[5, 4, 9], &[1, 2]),
        ("outer-two", &[5, 4, 9], &[2, 0]),
        ("all", &[5, 4, 9], &[0, 1, 2]),
        ("none", &[5, 4, 9], &[]),
        ("rank-0", &[], &[]),
        ("vector", &[67], &[0]),
        ("alternate-rank-8", &[2, 3, 1, 2, 2, 3, 2, 2], &[1, 3, 5, 7]),
        ("spatial", &[2, 3, 7, 7], &[2, 3]),
        ("long-last", &[3, 1025], &[1]),
        ("long-first", &[1025, 3], &[0]),
    ];
    for (name, x, axes) in sets {
        for keepdims in [false, true] {
            let tail = if keepdims { "-kept" } else { "" };
            for kind in [ReduceKind::Sum, ReduceKind::Max] {
                t.case(
                    &format!("{}/{name}{tail}", kind.name()),
                    &[F32, F16, I32],
                    whole(-9, 9),
                    Exact,
                    move |g| {
                        let x = g.x(x)?;
                        g.add1(Reduce { kind, axes: axes.to_vec(), keepdims }, &[x])
                    },
                );
            }
        }
        t.case(&format!("reduce_mean/{name}"), PAIR, normal(), sum_of(64), move |g| {
            let x = g.x(x)?;
            g.add1(Reduce { kind: ReduceKind::Mean, axes: axes.to_vec(), keepdims: false }, &[x])
        });
    }
}

fn one(t: &mut Table, what: &str, kind: ReduceKind, dtypes: &[olivine_ir::DType], fill: Fill, bound: Bound) {
    for (place, axis) in [("first", 0isize), ("middle", 1), ("last", 2)] {
        t.case(&format!("{}/{what}-{place}", kind.name()), dtypes, fill.clone(), bound, move |g| {
            let x = g.x([5, 11, 13])?;
            g.reduce(kind, x, &[axis], false)
        });
    }
}

fn kinds(t: &mut Table) {
    use ReduceKind as K;
    one(t, "normal", K::Sum, FLOATS, normal(), sum_of(13));
    one(t, "normal", K::Mean, FLOATS, normal(), sum_of(13));
    one(t, "normal", K::Max, FLOATS, normal(), Exact);
    one(t, "normal", K::Min, FLOATS, normal(), Exact);
    one(t, "near-one", K::Prod, FLOATS, uniform(0.5, 1.5), Near(24.0, 0.0));
    one(t, "normal", K::L1, FLOATS, normal(), sum_of(13));
    one(t, "normal", K::L2, FLOATS, normal(), Near(16.0, 0.0));
    one(t, "normal", K::SumSquare, FLOATS, normal(), Near(16.0, 0.0));
    one(t, "positive", K::LogSum, FLOATS, uniform(0.1, 3.0), Near(16.0, 8.0));
    one(t, "normal", K::LogSumExp, FLOATS, normal(), Near(16.0, 16.0));
    one(t, "huge", K::LogSumExp, &[F32, F64], uniform(900.0, 1000.0), Near(16.0, 16.0));
    one(t, "some-minus-infinity", K::LogSumExp, PAIR, Mixed(f64::NEG_INFINITY, 0.3), Near(16.0, 16.0));
    one(t, "all-minus-infinity", K::LogSumExp, PAIR, these(&[f64::NEG_INFINITY]), Exact);
    one(t, "some-infinity", K::LogSumExp, &[F32], Mixed(f64::INFINITY, 0.05), Near(16.0, 16.0));
    for kind in [K::Max, K::Min] {
        one(t, "nan", kind, FLOATS, Mixed(f64::NAN, 0.05), Exact);
        one(t, "minus-infinity", kind, PAIR, these(&[f64::NEG_INFINITY, f64::NEG_INFINITY, -3.0]), Exact);
        one(t, "special", kind, PAIR, Special, Exact);
        one(t, "ints", kind, INTS, Anything, Exact);
    }
    for kind in [K::Sum, K::Prod, K::L1, K::SumSquare] {
        one(t, "ints", kind, INTS, Anything, Exact);
        one(t, "nan", kind, &[F32], Mixed(f64::NAN, 0.02), Near(32.0, 32.0));
    }
    one(t, "overflow", K::SumSquare, &[F32], Normal(0.0, 1e25), Near(16.0, 0.0));
    one(t, "half-overflow", K::Sum, &[F16], uniform(5000.0, 9000.0), Sum(16.0));
    for p in [0.02, 0.98] {
        let name = format!("bool-{p}");
        one(t, &name, K::Any, &[Bool], Chance(p), Exact);
        one(t, &name, K::All, &[Bool], Chance(p), Exact);
    }
    t.case("reduce_sum/half-accumulates-in-f32", &[F16, BF16], uniform(0.0, 1.0), sum_of(3001), |g| {
        let x = g.x([2, 3001])?;
        g.reduce(K::Sum, x, &[-1], false)
    });
    t.case("reduce_mean/cancelling", &[F32], Normal(0.0, 1e4), sum_of(999), |g| {
        let x = g.x([999, 2])?;
        g.reduce(K::Mean, x, &[0], true)
    });
    t.case("reduce_sum/transposed", FLOATS, normal(), sum_of(9), |g| {
        let x = g.x([5, 9, 4])?;
        let x = g.transpose(x, &[2, 0, 1])?;
        g.reduce(K::Sum, x, &[-1], false)
    });
}

fn empty(t: &mut Table) {
    for kind in ReduceKind::ALL {
        let kind = *kind;
        let dtypes: &[olivine_ir::DType] = match kind {
            ReduceKind::Any | ReduceKind::All => &[Bool],
            ReduceKind::Mean | ReduceKind::L2 | ReduceKind::LogSum | ReduceKind::LogSumExp => &[F32],
            _ => &[F32, I32, U8],
        };
        t.case(&format!("{}/empty-axis", kind.name()), dtypes, Chance(0.5), Exact, move |g| {
            let x = g.x([3, 0, 2])?;
            g.reduce(kind, x, &[1], false)
        });
        t.case(&format!("{}/empty-result", kind.name()), dtypes, Chance(0.5), Exact, move |g| {
            let x = g.x([0, 4])?;
            g.reduce(kind, x, &[1], true)
        });
    }
}

fn softmax(t: &mut Table) {
    let places: [(&str, &[usize], isize); 8] = [
        ("last-axis", &[4, 33], -1),
        ("first-axis", &[17, 5], 0),
        ("middle-axis", &[3, 9, 5], 1),
        ("rank-8", &[2, 1, 2, 3, 1, 2, 1, 4], 3),
        ("vector", &[65], 0),
        ("single", &[7, 1], -1),
        ("long", &[2, 5001], -1),
        ("no-rows", &[0, 5], 1),
    ];
    let inputs = [
        ("", normal()),
        ("-huge", uniform(-3e4, 3e4)),
        ("-some-minus-infinity", Mixed(f64::NEG_INFINITY, 0.3)),
    ];
    for (name, x, axis) in places {
        for (tail, fill) in inputs.clone() {
            t.case(&format!("softmax/{name}{tail}"), FLOATS, fill.clone(), Near(24.0, 0.01), move |g| {
                let x = g.x(x)?;
                g.softmax(x, axis)
            });
            t.case(&format!("log_softmax/{name}{tail}"), PAIR, fill, Near(24.0, 24.0), move |g| {
                let x = g.x(x)?;
                g.log_softmax(x, axis)
            });
        }
    }
    t.case("softmax/row-of-minus-infinity", FLOATS, these(&[f64::NEG_INFINITY]), Ulp(4.0), |g| {
        let x = g.x([2, 7])?;
        g.softmax(x, 1)
    });
    t.case("softmax/infinity-and-nan", &[F32], Mixed(f64::INFINITY, 0.1), Ulp(4.0), |g| {
        let x = g.x([9, 9])?;
        g.softmax(x, 1)
    });
    t.case("softmax/nan", &[F32], Mixed(f64::NAN, 0.05), Near(24.0, 0.1), |g| {
        let x = g.x([9, 9])?;
        g.softmax(x, 0)
    });
}

fn extremes(t: &mut Table) {
    for kind in [ArgReduceKind::Max, ArgReduceKind::Min] {
        for (place, axis) in [("first", 0usize), ("middle", 1), ("last", 2)] {
            for last in [false, true] {
                let name = format!("{}/{place}{}", kind.name(), if last { "-last" } else { "" });
                let keepdims = axis == 1;
                t.case(&format!("{name}-ties"), NUMBERS, whole(0, 4), Exact, move |g| {
                    let x = g.x([5, 6, 9])?;
                    g.add1(ArgReduce { kind, axis, keepdims, last }, &[x])
                });
                t.case(&format!("{name}-nan"), PAIR, Mixed(f64::NAN, 0.1), Exact, move |g| {
                    let x = g.x([5, 6, 9])?;
                    g.add1(ArgReduce { kind, axis, keepdims, last }, &[x])
                });
            }
        }
        t.case(&format!("{}/extremes", kind.name()), INTS, Anything, Exact, move |g| {
            let x = g.x([4, 31])?;
            g.add1(ArgReduce { kind, axis: 1, keepdims: false, last: false }, &[x])
        });
        t.case(
            &format!("{}/minus-infinity", kind.name()),
            PAIR,
            these(&[f64::NEG_INFINITY]),
            Exact,
            move |g| {
                let x = g.x([3, 5])?;
                g.add1(ArgReduce { kind, axis: 1, keepdims: true, last: true }, &[x])
            },
        );
    }
    t.case("argmax/long", &[F32, I64], normal(), Exact, |g| {
        let x = g.x([2, 32_001])?;
        g.argmax(x, -1, false)
    });
}
