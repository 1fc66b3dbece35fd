//! A few large tensors: lengths past 16 bits, tens of millions of elements.

use olivine_ir::DType::{F16, F32, I32, I64, U8};
use olivine_ir::op::{CumulativeKind, ReduceKind};

use crate::bound::Bound::{Bits, Exact, Near};
use crate::bound::sum_of;
use crate::case::Table;
use crate::fill::{Fill, normal, whole};

const MANY: usize = 20_000_000;
const MILLION: usize = 1 << 20;

/// Lengths around what a subgroup, a workgroup and 16 bits hold.
const LENGTHS: [usize; 6] = [1, 31, 33, 1000, 4096, 65_537];

pub(super) fn rows(t: &mut Table) {
    lengths(t);
    classes(t);
    t.case("sort-1M", &[F32], normal(), Exact, |g| {
        let x = g.x([MILLION])?;
        g.sort(x, 0, false)
    });
    t.case("top_k-1M", &[F32], normal(), Exact, |g| {
        let x = g.x([MILLION])?;
        g.top_k(x, 50, 0, true)
    });
    t.case("add-20M", &[F32], Fill::Whole(-1000, 1000), Exact, |g| {
        let x = g.x([MANY])?;
        g.add(x, x)
    });
    t.case("gelu-4M", &[F32], normal(), Near(16.0, 0.01), |g| {
        let x = g.x([(4 << 20) + 2005])?;
        g.gelu(x)
    });
    t.case("sum-20M", &[F32], normal(), sum_of(MANY), |g| {
        let x = g.x([MANY])?;
        g.reduce(ReduceKind::Sum, x, &[0], false)
    });
    for n in [65_535usize, 65_536, 65_537] {
        t.case(&format!("add-{n}"), &[F32, F16, I32], whole(-99, 99), Exact, move |g| {
            let (x, y) = (g.x([n])?, g.x([n])?);
            g.add(x, y)
        });
        t.case(&format!("sum-{n}"), &[F32], whole(-9, 9), Exact, move |g| {
            let x = g.x([n])?;
            g.reduce(ReduceKind::Sum, x, &[0], false)
        });
        t.case(&format!("rows-{n}"), &[F32], whole(-9, 9), Exact, move |g| {
            let x = g.x([n, 3])?;
            g.reduce(ReduceKind::Max, x, &[1], false)
        });
    }
    t.case("columns-65537", &[F32], whole(-9, 9), Exact, |g| {
        let x = g.x([3, 65_537])?;
        g.reduce(ReduceKind::Sum, x, &[0], false)
    });
    t.case("cumsum-65537", &[F32, I64], whole(-9, 9), Exact, |g| {
        let x = g.x([65_537])?;
        g.cumulative(CumulativeKind::Sum, x, 0, false, false)
    });
    t.case("matmul-rows-65537", &[F32], whole(-8, 8), Exact, |g| {
        let (x, w) = (g.x([65_537, 4])?, g.w([4, 3])?);
        let w = g.round(w)?;
        g.matmul(x, w)
    });
    t.case("transpose-1025x1030", &[F32], normal(), Bits, |g| {
        let x = g.x([1025, 1030])?;
        g.transpose(x, &[1, 0])
    });
    t.case("gather-65537", &[F32], normal(), Bits, |g| {
        let (x, i) = (g.x([1000, 5])?, g.index([65_537], 1000)?);
        g.gather(x, i, 0)
    });
    t.case("matmul-1000-cubed-thin", &[F32], whole(-8, 8), Exact, |g| {
        let (x, y) = (g.x([130, 1000])?, g.x([1000, 70])?);
        g.matmul(x, y)
    });
}

/// Folds, scans and softmax over rows and columns of every length.
fn lengths(t: &mut Table) {
    for n in LENGTHS {
        for (place, dims, axis) in [("row", [2, n], 1isize), ("column", [n, 3], 0)] {
            t.case(&format!("mean-{place}-{n}"), &[F32], normal(), sum_of(n), move |g| {
                let x = g.x(dims)?;
                g.reduce(ReduceKind::Mean, x, &[axis], false)
            });
            t.case(&format!("max-{place}-{n}"), &[F32], normal(), Exact, move |g| {
                let x = g.x(dims)?;
                g.reduce(ReduceKind::Max, x, &[axis], false)
            });
            t.case(&format!("softmax-{place}-{n}"), &[F32], normal(), Near(24.0, 0.01), move |g| {
                let x = g.x(dims)?;
                g.softmax(x, axis)
            });
            for (tail, exclusive, reverse) in [("", false, false), ("-exclusive-reverse", true, true)] {
                t.case(&format!("cumsum-{place}-{n}{tail}"), &[F32], whole(-9, 9), Exact, move |g| {
                    let x = g.x(dims)?;
                    g.cumulative(CumulativeKind::Sum, x, axis, exclusive, reverse)
                });
            }
        }
    }
}

/// Shapes that have kernels of their own where there is enough of them: very many short rows, columns folded whole,
/// narrow elements turned, few planes interleaved.
fn classes(t: &mut Table) {
    const ROWS: usize = 131_075;
    t.case("softmax-131075x3", &[F32], normal(), Near(24.0, 0.01), |g| {
        let x = g.x([ROWS, 3])?;
        g.softmax(x, 1)
    });
    t.case("layer_norm-131075x3", &[F32], whole(-9, 9), Near(64.0, 0.1), |g| {
        let (x, gamma) = (g.x([ROWS, 3])?, g.w([3])?);
        g.layer_norm(x, gamma, None, 0.5)
    });
    t.case("sum-131075x3", &[F32], whole(-9, 9), Exact, |g| {
        let x = g.x([ROWS, 3])?;
        g.reduce(ReduceKind::Sum, x, &[1], false)
    });
    for columns in [3844, 3845] {
        t.case(&format!("sum-columns-1030x{columns}"), &[F32], whole(-9, 9), Exact, move |g| {
            let x = g.x([1030, columns])?;
            g.reduce(ReduceKind::Sum, x, &[0], false)
        });
    }
    for (m, n) in [(136, 72), (132, 260), (70, 140), (300, 3), (5, 1030), (2, 257)] {
        t.case(&format!("transpose-{m}x{n}"), &[F32, F16, U8, I64], whole(0, 99), Bits, move |g| {
            let x = g.x([m, n])?;
            g.transpose(x, &[1, 0])
        });
    }
    for (name, dims, order) in [
        ("channels-last", [2, 3, 17, 20], [0, 2, 3, 1]),
        ("channels-first", [2, 17, 20, 3], [0, 3, 1, 2]),
        ("heads-last", [2, 12, 20, 64], [0, 1, 3, 2]),
    ] {
        t.case(&format!("transpose-{name}"), &[F32, F16, U8], whole(0, 99), Bits, move |g| {
            let x = g.x(dims)?;
            g.transpose(x, &order)
        });
    }
}
