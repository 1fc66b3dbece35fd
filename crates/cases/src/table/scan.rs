//! Scans and orders along every axis, with ties and NaN.

use olivine_ir::DType::{self, BF16, F16, F32, F64, I16, I32, I64, U8};
use olivine_ir::op::CumulativeKind as K;

use super::{FLOATS, INTS, NUMBERS, PAIR};
use crate::bound::Bound::{Exact, Near};
use crate::bound::sum_of;
use crate::case::Table;
use crate::fill::Fill::{Anything, Mixed, Special};
use crate::fill::{normal, uniform, whole};

pub(super) fn rows(t: &mut Table) {
    cumulative(t);
    top_k(t);
    orders(t);
}

fn cumulative(t: &mut Table) {
    let places: [(&str, &[usize], isize); 4] =
        [("first", &[7, 4, 5], 0), ("middle", &[4, 9, 3], 1), ("last", &[3, 4, 17], 2), ("vector", &[66], 0)];
    for (place, x, axis) in places {
        for (tail, exclusive, reverse) in [
            ("", false, false),
            ("-exclusive", true, false),
            ("-reverse", false, true),
            ("-both", true, true),
        ] {
            t.case(&format!("cumsum/{place}{tail}"), &[F32, I32], whole(-9, 9), Exact, move |g| {
                let x = g.x(x)?;
                g.cumulative(K::Sum, x, axis, exclusive, reverse)
            });
            t.case(&format!("cumprod/{place}{tail}"), PAIR, uniform(0.7, 1.3), Near(32.0, 0.0), move |g| {
                let x = g.x(x)?;
                g.cumulative(K::Prod, x, axis, exclusive, reverse)
            });
            t.case(&format!("cummax/{place}{tail}"), &[F32, I64], Anything, Exact, move |g| {
                let x = g.x(x)?;
                g.cumulative(K::Max, x, axis, exclusive, reverse)
            });
        }
    }
    t.case("cumsum/normal", FLOATS, normal(), sum_of(1000), |g| {
        let x = g.x([2, 1000])?;
        g.cumulative(K::Sum, x, 1, false, false)
    });
    for kind in [K::Sum, K::Prod, K::Max] {
        t.case(&format!("{}/ints", kind.name()), INTS, Anything, Exact, move |g| {
            let x = g.x([3, 40])?;
            g.cumulative(kind, x, 1, false, false)
        });
        t.case(&format!("{}/nan", kind.name()), PAIR, Mixed(f64::NAN, 0.05), Near(64.0, 64.0), move |g| {
            let x = g.x([5, 20])?;
            g.cumulative(kind, x, 1, false, false)
        });
        t.case(&format!("{}/empty", kind.name()), &[F32, U8], normal(), Exact, move |g| {
            let x = g.x([3, 0, 2])?;
            g.cumulative(kind, x, 1, true, false)
        });
    }
}

fn top_k(t: &mut Table) {
    for largest in [true, false] {
        let way = if largest { "largest" } else { "smallest" };
        let places: [(&str, &[usize], isize, usize); 7] = [
            ("last", &[4, 33], 1, 5),
            ("first", &[17, 3], 0, 4),
            ("middle", &[3, 12, 5], 1, 3),
            ("whole", &[3, 9], 1, 9),
            ("one", &[3, 100], 1, 1),
            ("none", &[3, 9], 1, 0),
            ("long", &[2, 5000], 1, 40),
        ];
        for (place, x, axis, k) in places {
            t.case(&format!("top_k/{place}-{way}"), PAIR, normal(), Exact, move |g| {
                let x = g.x(x)?;
                g.top_k(x, k, axis, largest)
            });
        }
        // Rows in several parts, and more results than a workgroup sorts.
        for (size, k) in [(65_537, 50), (40_000, 5000), (12_288, 1)] {
            t.case(&format!("top_k/{k}-of-{size}-{way}"), &[F32], normal(), Exact, move |g| {
                let x = g.x([2, size])?;
                g.top_k(x, k, 1, largest)
            });
        }
        // Ties that only positions settle.
        let ties: &[DType] = if largest { &[BF16, I64] } else { &[F32, U8] };
        t.case(&format!("top_k/long-ties-{way}"), ties, whole(0, 2), Exact, move |g| {
            let x = g.x([2, 20_000])?;
            g.top_k(x, 700, 1, largest)
        });
        t.case(&format!("top_k/long-nan-{way}"), &[F32, F64], Mixed(f64::NAN, 0.1), Exact, move |g| {
            let x = g.x([10_000, 2])?;
            g.top_k(x, 1100, 0, largest)
        });
        t.case(&format!("top_k/ties-{way}"), NUMBERS, whole(0, 3), Exact, move |g| {
            let x = g.x([4, 30])?;
            g.top_k(x, 11, 1, largest)
        });
        t.case(&format!("top_k/nan-{way}"), &[F32, F64], Mixed(f64::NAN, 0.1), Exact, move |g| {
            let x = g.x([6, 30])?;
            g.top_k(x, 9, 1, largest)
        });
    }
}

fn orders(t: &mut Table) {
    for descending in [false, true] {
        let way = if descending { "descending" } else { "ascending" };
        for (place, axis) in [("first", 0isize), ("middle", 1), ("last", 2)] {
            t.case(&format!("sort/{place}-{way}"), NUMBERS, Anything, Exact, move |g| {
                let x = g.x([7, 6, 9])?;
                g.sort(x, axis, descending)
            });
            t.case(&format!("argsort/{place}-{way}"), &[F32, F16, I32, U8], whole(0, 4), Exact, move |g| {
                let x = g.x([7, 6, 9])?;
                g.argsort(x, axis, descending)
            });
        }
        t.case(&format!("argsort/special-{way}"), &[F32, F16, F64], Special, Exact, move |g| {
            let x = g.x([5, 40])?;
            g.argsort(x, 1, descending)
        });
        // Every kind of key once: each costs several kernels.
        let (sorted, listed): ([&[DType]; 2], [&[DType]; 2]) = match descending {
            false => ([&[F32, F64], &[U8, I64]], [&[F32], &[I64]]),
            true => ([&[F16], &[I16]], [&[F64], &[U8]]),
        };
        for (fill, sorted, listed) in [(Special, sorted[0], listed[0]), (Anything, sorted[1], listed[1])] {
            t.case(&format!("sort/long-{way}"), sorted, fill.clone(), Exact, move |g| {
                let x = g.x([2, 6000])?;
                g.sort(x, 1, descending)
            });
            t.case(&format!("argsort/long-{way}"), listed, fill, Exact, move |g| {
                let x = g.x([4099, 2])?;
                g.argsort(x, 0, descending)
            });
        }
        let sizes: &[usize] = if descending { &[65_537] } else { &[1, 31, 33, 1000, 4096, 65_537] };
        for size in sizes.iter().copied() {
            t.case(&format!("sort/{size}-{way}"), &[F32], normal(), Exact, move |g| {
                let x = g.x([3, size])?;
                g.sort(x, 1, descending)
            });
        }
        t.case(&format!("sort/single-{way}"), &[F32], normal(), Exact, move |g| {
            let x = g.x([5, 1])?;
            g.sort(x, 1, descending)
        });
        t.case(&format!("argsort/empty-{way}"), &[F32], normal(), Exact, move |g| {
            let x = g.x([5, 0])?;
            g.argsort(x, 1, descending)
        });
    }
}
