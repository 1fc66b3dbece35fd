//! Pools over one to three axes: padding, dilation, overhanging windows, positions.

use olivine_ir::DType::{BF16, F16, F32, F64, I8, I16, I32, I64, U8, U32};
use olivine_ir::op::{GlobalPool, Pool, PoolKind, Window};

use super::{FLOATS, NUMBERS, PAIR};
use crate::bound::Bound::{Exact, Near};
use crate::bound::sum_of;
use crate::case::Table;
use crate::fill::Fill::{Anything, Mixed};
use crate::fill::{normal, these, whole};

/// One window: x, kernel, strides, pads, dilations.
struct Row(
    &'static str,
    &'static [usize],
    &'static [usize],
    &'static [usize],
    &'static [(usize, usize)],
    &'static [usize],
);

/// Powers differ in a wide float; a narrow one shows where it is rounded.
const LP: &[olivine_ir::DType] = &[F32, BF16];

const ROWS: [Row; 16] = [
    Row("1d", &[2, 3, 11], &[3], &[1], &[(0, 0)], &[1]),
    Row("1d-uneven", &[2, 3, 11], &[4], &[3], &[(1, 2)], &[1]),
    Row("2x2", &[2, 3, 8, 6], &[2, 2], &[2, 2], &[(0, 0), (0, 0)], &[1, 1]),
    Row("2x2-uneven", &[1, 2, 7, 5], &[2, 2], &[2, 2], &[(0, 0), (0, 0)], &[1, 1]),
    Row("3x3", &[1, 4, 9, 9], &[3, 3], &[2, 2], &[(1, 1), (1, 1)], &[1, 1]),
    Row("3x3-stride-3", &[1, 2, 10, 8], &[3, 3], &[3, 3], &[(1, 0), (0, 1)], &[1, 1]),
    Row("asymmetric", &[1, 2, 7, 9], &[3, 4], &[1, 3], &[(0, 2), (3, 1)], &[1, 1]),
    Row("dilated", &[1, 2, 11, 12], &[3, 2], &[1, 2], &[(2, 1), (0, 2)], &[2, 3]),
    Row("5x5-same", &[1, 2, 6, 6], &[5, 5], &[1, 1], &[(2, 2), (2, 2)], &[1, 1]),
    Row("large-stride", &[1, 2, 9, 9], &[2, 2], &[4, 5], &[(1, 1), (1, 1)], &[1, 1]),
    Row("3d", &[1, 2, 5, 6, 7], &[2, 3, 2], &[2, 2, 1], &[(0, 0), (1, 1), (0, 1)], &[1, 1, 1]),
    Row("large-window", &[2, 3, 20, 18], &[13, 11], &[3, 4], &[(6, 6), (5, 2)], &[1, 1]),
    Row("nothing-seen", &[1, 2, 1, 3], &[2, 2], &[1, 1], &[(1, 1), (1, 1)], &[2, 2]),
    Row("3d-dilated", &[1, 2, 7, 5, 9], &[3, 2, 2], &[2, 1, 3], &[(1, 0), (0, 1), (2, 2)], &[2, 1, 3]),
    Row("wider-than-padded", &[1, 2, 2, 6], &[3, 2], &[3, 2], &[(2, 2), (0, 0)], &[3, 1]),
    Row("no-batch", &[0, 2, 5, 5], &[2, 2], &[1, 1], &[(0, 0), (0, 0)], &[1, 1]),
];

fn pool(row: &Row, kind: PoolKind, ceil: bool) -> Pool {
    let window = Window { strides: row.3.to_vec(), pads: row.4.to_vec(), dilations: row.5.to_vec() };
    Pool { kind, kernel: row.2.to_vec(), window, ceil, count_include_pad: false, p: 2, indices: false }
}

pub(super) fn rows(t: &mut Table) {
    windows(t);
    special(t);
    many(t);
    few(t);
    global(t);
    adaptive(t);
}

fn windows(t: &mut Table) {
    for row in &ROWS {
        let x = row.1;
        // A window that is wider than the padded axis is only there where it may hang over the end.
        let without = pool(row, PoolKind::Max, false);
        let fits = |i| without.window.count(i, x[2 + i], row.2[i], false).is_ok();
        let rounding = if (0..row.2.len()).all(fits) { &[false, true][..] } else { &[true] };
        for ceil in rounding.iter().copied() {
            let name = format!("{}{}", row.0, if ceil { "-ceil" } else { "" });
            let area: usize = row.2.iter().product();
            let max = pool(row, PoolKind::Max, ceil);
            let with_positions = Pool { indices: true, ..max.clone() };
            t.case(&format!("max/{name}"), &[F32, F16, BF16, F64, I8], normal(), Exact, move |g| {
                let x = g.x(x)?;
                g.add1(max.clone(), &[x])
            });
            t.case(&format!("max-positions/{name}"), &[F32, BF16, I32], whole(0, 5), Exact, move |g| {
                let x = g.x(x)?;
                g.add_op(with_positions.clone(), &[x])
            });
            for include in [false, true] {
                let tail = if include { "-padded" } else { "" };
                let average = Pool { count_include_pad: include, ..pool(row, PoolKind::Average, ceil) };
                t.case(&format!("average/{name}{tail}"), FLOATS, normal(), sum_of(area), move |g| {
                    let x = g.x(x)?;
                    g.add1(average.clone(), &[x])
                });
            }
            for p in [1usize, 2, 3] {
                let lp = Pool { p, ..pool(row, PoolKind::Lp, ceil) };
                t.case(&format!("lp-{p}/{name}"), LP, normal(), Near(40.0, 0.0), move |g| {
                    let x = g.x(x)?;
                    g.add1(lp.clone(), &[x])
                });
            }
        }
    }
}

/// NaN, infinities and every dtype.
fn special(t: &mut Table) {
    let row = &ROWS[4];
    for (what, number) in [("nan", f64::NAN), ("minus-infinity", f64::NEG_INFINITY)] {
        let op = Pool { indices: true, ..pool(row, PoolKind::Max, false) };
        t.case(&format!("max/{what}"), FLOATS, Mixed(number, 0.3), Exact, move |g| {
            let x = g.x([1, 4, 9, 9])?;
            g.add_op(op.clone(), &[x])
        });
    }
    for kind in PoolKind::ALL {
        let op = pool(row, *kind, false);
        t.case(
            &format!("{}/infinite", kind.name()),
            PAIR,
            Mixed(f64::INFINITY, 0.1),
            Near(40.0, 9.0),
            move |g| {
                let x = g.x([1, 4, 9, 9])?;
                g.add1(op.clone(), &[x])
            },
        );
        let op = pool(row, *kind, false);
        t.case(
            &format!("{}/some-nan", kind.name()),
            FLOATS,
            Mixed(f64::NAN, 0.1),
            Near(40.0, 9.0),
            move |g| {
                let x = g.x([1, 4, 9, 9])?;
                g.add1(op.clone(), &[x])
            },
        );
    }
    let everything = Pool { indices: true, ..pool(row, PoolKind::Max, true) };
    t.case("max/anything", NUMBERS, Anything, Exact, move |g| {
        let x = g.x([1, 4, 9, 9])?;
        g.add_op(everything.clone(), &[x])
    });
    let zeros = Pool { indices: true, ..pool(row, PoolKind::Max, false) };
    t.case("max/both-zeros", FLOATS, these(&[-0.0, 0.0, -1.0]), Exact, move |g| {
        let x = g.x([1, 4, 9, 9])?;
        g.add_op(zeros.clone(), &[x])
    });
    let negative = pool(row, PoolKind::Max, false);
    t.case("max/all-negative", &[F32, I32], whole(-9, -1), Exact, move |g| {
        let x = g.x([1, 4, 9, 9])?;
        g.add1(negative.clone(), &[x])
    });
    let unsigned = pool(row, PoolKind::Max, false);
    t.case("max/unsigned", &[U8, U32, I16, I64], Anything, Exact, move |g| {
        let x = g.x([1, 4, 9, 9])?;
        g.add1(unsigned.clone(), &[x])
    });
    let every = Pool { count_include_pad: true, ..pool(row, PoolKind::Average, false) };
    t.case("average/every-dtype", FLOATS, normal(), sum_of(9), move |g| {
        let x = g.x([1, 4, 9, 9])?;
        g.add1(every.clone(), &[x])
    });
}

/// Enough windows that small ones are worth a kernel of their own.
fn many(t: &mut Table) {
    const MANY: [Row; 5] = [
        Row("2x2", &[1, 3, 210, 212], &[2, 2], &[2, 2], &[(0, 0), (0, 0)], &[1, 1]),
        Row("3x3", &[2, 5, 113, 117], &[3, 3], &[2, 2], &[(1, 1), (1, 1)], &[1, 1]),
        Row("3x3-stride-1", &[1, 2, 130, 131], &[3, 3], &[1, 1], &[(0, 2), (2, 1)], &[1, 1]),
        Row("1d", &[1, 2, 33000], &[3], &[2], &[(1, 0)], &[1]),
        Row("dilated", &[1, 1, 199, 180], &[2, 3], &[1, 1], &[(1, 1), (2, 2)], &[2, 3]),
    ];
    for row in &MANY {
        let x = row.1;
        let max = pool(row, PoolKind::Max, true);
        t.case(&format!("max/many-{}", row.0), &[F32, F16, I8], Mixed(f64::NAN, 0.01), Exact, move |g| {
            let x = g.x(x)?;
            g.add1(max.clone(), &[x])
        });
        for include in [false, true] {
            let tail = if include { "-padded" } else { "" };
            let average = Pool { count_include_pad: include, ..pool(row, PoolKind::Average, true) };
            t.case(&format!("average/many-{}{tail}", row.0), &[F32, BF16], normal(), sum_of(9), move |g| {
                let x = g.x(x)?;
                g.add1(average.clone(), &[x])
            });
        }
        let lp = pool(row, PoolKind::Lp, false);
        t.case(&format!("lp-2/many-{}", row.0), &[F32], normal(), Near(40.0, 0.0), move |g| {
            let x = g.x(x)?;
            g.add1(lp.clone(), &[x])
        });
    }
    let wide = pool(&MANY[1], PoolKind::Max, false);
    t.case("max/many-wide", &[F64, I64], normal(), Exact, move |g| {
        let x = g.x([2, 5, 113, 117])?;
        g.add1(wide.clone(), &[x])
    });
}

/// Few windows of many elements.
fn few(t: &mut Table) {
    let rows = [
        Row("nearly-all", &[1, 3, 40, 37], &[39, 36], &[1, 1], &[(0, 0), (0, 0)], &[1, 1]),
        Row("all", &[2, 3, 33, 31], &[33, 31], &[1, 1], &[(0, 0), (0, 0)], &[1, 1]),
        Row("halves", &[1, 2, 6, 40, 65], &[3, 20, 33], &[3, 20, 32], &[(0, 0), (1, 0), (0, 1)], &[1, 1, 1]),
        Row("apart", &[1, 2, 65, 64], &[17, 16], &[5, 9], &[(3, 3), (0, 9)], &[3, 2]),
    ];
    for row in rows {
        let (x, area) = (row.1, row.2.iter().product());
        let max = Pool { indices: true, ..pool(&row, PoolKind::Max, true) };
        t.case(&format!("max-positions/few-{}", row.0), &[F32, F16, I64], whole(-50, 50), Exact, move |g| {
            let x = g.x(x)?;
            g.add_op(max.clone(), &[x])
        });
        let max = pool(&row, PoolKind::Max, true);
        t.case(&format!("max/few-{}", row.0), &[F32, BF16, F64, U8], Anything, Exact, move |g| {
            let x = g.x(x)?;
            g.add1(max.clone(), &[x])
        });
        let average = pool(&row, PoolKind::Average, true);
        t.case(&format!("average/few-{}", row.0), FLOATS, normal(), sum_of(area), move |g| {
            let x = g.x(x)?;
            g.add1(average.clone(), &[x])
        });
        let lp = Pool { p: 3, ..pool(&row, PoolKind::Lp, false) };
        t.case(&format!("lp-3/few-{}", row.0), &[F32], normal(), Near(60.0, 0.0), move |g| {
            let x = g.x(x)?;
            g.add1(lp.clone(), &[x])
        });
    }
}

fn global(t: &mut Table) {
    let shapes: [(&str, &[usize]); 4] =
        [("2d", &[2, 3, 7, 7]), ("1d", &[2, 3, 19]), ("3d", &[1, 3, 4, 5, 6]), ("one", &[2, 3, 1, 1])];
    for (name, x) in shapes {
        let n: usize = x[2..].iter().product();
        for kind in [PoolKind::Average, PoolKind::Max] {
            t.case(&format!("global-{}/{name}", kind.name()), FLOATS, normal(), sum_of(n), move |g| {
                let x = g.x(x)?;
                g.global_pool(kind, x)
            });
        }
        t.case(&format!("global-lp/{name}"), PAIR, normal(), Near(40.0, 0.0), move |g| {
            let x = g.x(x)?;
            g.add1(GlobalPool { kind: PoolKind::Lp, p: 3 }, &[x])
        });
    }
}

fn adaptive(t: &mut Table) {
    let rows: [(&str, &[usize], &[usize]); 11] = [
        ("even", &[2, 3, 8, 6], &[4, 3]),
        ("uneven", &[1, 2, 7, 10], &[3, 4]),
        ("to-one", &[1, 2, 7, 5], &[1, 1]),
        ("same", &[1, 2, 5, 4], &[5, 4]),
        ("larger", &[1, 2, 3, 4], &[5, 7]),
        ("1d", &[2, 3, 11], &[4]),
        ("3d", &[1, 2, 5, 6, 7], &[2, 3, 4]),
        ("large-windows", &[1, 2, 65, 70], &[3, 4]),
        ("reduced", &[1, 2, 64, 96], &[2, 3]),
        ("many", &[1, 3, 224, 220], &[112, 110]),
        ("no-batch", &[0, 2, 7, 5], &[3, 2]),
    ];
    for (name, x, output) in rows {
        for kind in [PoolKind::Average, PoolKind::Max] {
            t.case(&format!("adaptive-{}/{name}", kind.name()), FLOATS, normal(), sum_of(400), move |g| {
                let x = g.x(x)?;
                g.adaptive_pool(kind, x, output)
            });
        }
    }
}
