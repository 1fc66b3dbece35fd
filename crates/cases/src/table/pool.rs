//! Pools over one to three axes: padding, dilation, overhanging windows, positions.

use olivine_ir::DType::{F16, F32, I8, I32, U8};
use olivine_ir::op::{GlobalPool, Pool, PoolKind, Window};

use super::{FLOATS, PAIR};
use crate::bound::Bound::{Exact, Near};
use crate::bound::sum_of;
use crate::case::Table;
use crate::fill::Fill::{Anything, Mixed};
use crate::fill::{normal, whole};

/// One window: x, kernel, strides, pads, dilations.
struct Row(
    &'static str,
    &'static [usize],
    &'static [usize],
    &'static [usize],
    &'static [(usize, usize)],
    &'static [usize],
);

const ROWS: [Row; 12] = [
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
    Row("no-batch", &[0, 2, 5, 5], &[2, 2], &[1, 1], &[(0, 0), (0, 0)], &[1, 1]),
];

fn pool(row: &Row, kind: PoolKind, ceil: bool) -> Pool {
    let window = Window { strides: row.3.to_vec(), pads: row.4.to_vec(), dilations: row.5.to_vec() };
    Pool { kind, kernel: row.2.to_vec(), window, ceil, count_include_pad: false, p: 2, indices: false }
}

pub(super) fn rows(t: &mut Table) {
    windows(t);
    global(t);
    adaptive(t);
}

fn windows(t: &mut Table) {
    for row in &ROWS {
        let x = row.1;
        for ceil in [false, true] {
            let name = format!("{}{}", row.0, if ceil { "-ceil" } else { "" });
            let area: usize = row.2.iter().product();
            let max = pool(row, PoolKind::Max, ceil);
            let with_positions = Pool { indices: true, ..max.clone() };
            t.case(&format!("max/{name}"), &[F32, F16, I8], normal(), Exact, move |g| {
                let x = g.x(x)?;
                g.add1(max.clone(), &[x])
            });
            t.case(&format!("max-positions/{name}"), &[F32, I32], whole(0, 5), Exact, move |g| {
                let x = g.x(x)?;
                g.add_op(with_positions.clone(), &[x])
            });
            for include in [false, true] {
                let tail = if include { "-padded" } else { "" };
                let average = Pool { count_include_pad: include, ..pool(row, PoolKind::Average, ceil) };
                t.case(&format!("average/{name}{tail}"), PAIR, normal(), sum_of(area), move |g| {
                    let x = g.x(x)?;
                    g.add1(average.clone(), &[x])
                });
            }
            for p in [1usize, 2, 3] {
                let lp = Pool { p, ..pool(row, PoolKind::Lp, ceil) };
                t.case(&format!("lp-{p}/{name}"), &[F32], normal(), Near(40.0, 0.0), move |g| {
                    let x = g.x(x)?;
                    g.add1(lp.clone(), &[x])
                });
            }
        }
    }
    let row = &ROWS[4];
    for (what, number) in [("nan", f64::NAN), ("minus-infinity", f64::NEG_INFINITY)] {
        let op = Pool { indices: true, ..pool(row, PoolKind::Max, false) };
        t.case(&format!("max/{what}"), PAIR, Mixed(number, 0.3), Exact, move |g| {
            let x = g.x([1, 4, 9, 9])?;
            g.add_op(op.clone(), &[x])
        });
    }
    let negative = pool(row, PoolKind::Max, false);
    t.case("max/all-negative", &[F32, I32], whole(-9, -1), Exact, move |g| {
        let x = g.x([1, 4, 9, 9])?;
        g.add1(negative.clone(), &[x])
    });
    let unsigned = pool(row, PoolKind::Max, false);
    t.case("max/unsigned", &[U8], Anything, Exact, move |g| {
        let x = g.x([1, 4, 9, 9])?;
        g.add1(unsigned.clone(), &[x])
    });
    let every = Pool { count_include_pad: true, ..pool(row, PoolKind::Average, false) };
    t.case("average/every-dtype", FLOATS, normal(), sum_of(9), move |g| {
        let x = g.x([1, 4, 9, 9])?;
        g.add1(every.clone(), &[x])
    });
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
    let rows: [(&str, &[usize], &[usize]); 7] = [
        ("even", &[2, 3, 8, 6], &[4, 3]),
        ("uneven", &[1, 2, 7, 10], &[3, 4]),
        ("to-one", &[1, 2, 7, 5], &[1, 1]),
        ("same", &[1, 2, 5, 4], &[5, 4]),
        ("larger", &[1, 2, 3, 4], &[5, 7]),
        ("1d", &[2, 3, 11], &[4]),
        ("3d", &[1, 2, 5, 6, 7], &[2, 3, 4]),
    ];
    for (name, x, output) in rows {
        for kind in [PoolKind::Average, PoolKind::Max] {
            t.case(&format!("adaptive-{}/{name}", kind.name()), PAIR, normal(), sum_of(16), move |g| {
                let x = g.x(x)?;
                g.adaptive_pool(kind, x, output)
            });
        }
    }
}
