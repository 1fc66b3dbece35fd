//! Reductions, softmax, norms, positions and scans over lines of every length, few and many, innermost and not: what
//! decides how a backend gives them to its threads.

use std::sync::Arc;

use olivine_ir::op::{ArgReduce, ArgReduceKind, CumulativeKind, ReduceKind};
use olivine_ir::{DType, Error, ValueId};

use crate::bound::{Bound, sum_of};
use crate::case::{Build, Case};
use crate::fill::{Fill, normal, whole};

/// Shapes and the axis of their lines.
const LINES: [(&[usize], usize); 20] = [
    (&[3, 1], 1),
    (&[1, 40], 0),
    (&[70, 31], 1),
    (&[3, 33], 1),
    (&[2, 33, 4], 1),
    (&[31, 3], 0),
    (&[3, 1000], 1),
    (&[2, 1000, 5], 1),
    (&[3, 4096], 1),
    (&[2, 4099], 1),
    (&[500, 40], 0),
    (&[4096, 40], 0),
    (&[65537], 0),
    (&[3, 65537], 1),
    (&[65537, 3], 0),
    (&[2, 40_000, 4], 1),
    (&[2, 131_072], 1),
    (&[2000, 3], 1),
    (&[2000, 16], 1),
    (&[3, 2000], 0),
];

/// Shapes, reduced axes, and the order of axes that the reduction sees.
const VIEWS: [(&[usize], &[isize], &[usize]); 8] = [
    (&[9, 40, 33], &[0, 2], &[0, 1, 2]),
    (&[9, 40, 32], &[1], &[2, 0, 1]),
    (&[64, 9, 32], &[0, 1], &[1, 2, 0]),
    (&[5, 6, 7, 8, 9], &[1, 3], &[4, 0, 3, 1, 2]),
    (&[300, 70], &[0, 1], &[1, 0]),
    (&[300, 70], &[1], &[1, 0]),
    (&[70, 3000], &[0], &[1, 0]),
    (&[17, 65, 64], &[-1], &[0, 2, 1]),
];

type Make = Arc<dyn Fn(&mut Build) -> Result<ValueId, Error> + Send + Sync>;

/// Cases of f32 whose inputs have at most so many elements; `rows/softmax/..` and the like by name.
pub fn row_cases(most: usize) -> Vec<Case> {
    let mut cases = Vec::new();
    let mut add = |name: String, fill: Fill, bound: Bound, make: Make| {
        cases.push(Case::new("rows", format!("rows/{name}"), DType::F32, fill, bound, move |g| make(g)));
    };
    let small = |dims: &[usize]| dims.iter().product::<usize>() <= most;
    for (dims, axis) in LINES.into_iter().filter(|(dims, _)| small(dims)) {
        let along = axis as isize;
        let reduced = |kind: ReduceKind| -> Make {
            Arc::new(move |g| {
                let x = g.x(dims)?;
                g.reduce(kind, x, &[along], false)
            })
        };
        let place = format!("{dims:?}/{axis}");
        for kind in [ReduceKind::Sum, ReduceKind::Max] {
            add(format!("{}/{place}", kind.name()), whole(-4, 5), Bound::Exact, reduced(kind));
        }
        let bound = sum_of(dims[axis]);
        add(format!("reduce_mean/{place}"), normal(), bound, reduced(ReduceKind::Mean));
        let bound = Bound::Near(24.0, 24.0);
        add(format!("reduce_logsumexp/{place}"), normal(), bound, reduced(ReduceKind::LogSumExp));
        for (name, log, bound) in
            [("softmax", false, Bound::Near(32.0, 0.01)), ("log_softmax", true, Bound::Near(32.0, 32.0))]
        {
            let make: Make = Arc::new(move |g| {
                let x = g.x(dims)?;
                if log { g.log_softmax(x, along) } else { g.softmax(x, along) }
            });
            add(format!("{name}/{place}"), normal(), bound, make);
        }
        for (kind, last) in [(ArgReduceKind::Max, false), (ArgReduceKind::Min, true)] {
            let make: Make = Arc::new(move |g| {
                let x = g.x(dims)?;
                g.add1(ArgReduce { kind, axis, keepdims: false, last }, &[x])
            });
            add(format!("{}/{place}", kind.name()), whole(-90, 90), Bound::Exact, make);
        }
        for (kind, exclusive, reverse) in [
            (CumulativeKind::Sum, false, false),
            (CumulativeKind::Sum, true, true),
            (CumulativeKind::Max, false, true),
        ] {
            let make: Make = Arc::new(move |g| {
                let x = g.x(dims)?;
                g.cumulative(kind, x, along, exclusive, reverse)
            });
            let name = format!("{}/{place}-{exclusive}-{reverse}", kind.name());
            add(name, whole(-9, 9), Bound::Exact, make);
        }
        let (rows, n) = (dims[0], dims[1..].iter().product::<usize>());
        for rms in [false, true] {
            let make: Make = Arc::new(move |g| {
                let (x, gamma) = (g.x([rows, n])?, g.w([n])?);
                if rms {
                    return g.rms_norm(x, gamma, None, 1e-5);
                }
                let beta = g.w([n])?;
                g.layer_norm(x, gamma, Some(beta), 1e-5)
            });
            let name = if rms { "rms_norm" } else { "layer_norm" };
            add(format!("{name}/{rows}x{n}"), Fill::Normal(2.0, 1.0), Bound::Scaled(32.0), make);
        }
    }
    for (dims, axes, order) in VIEWS.into_iter().filter(|(dims, ..)| small(dims)) {
        let make: Make = Arc::new(move |g| {
            let x = g.x(dims)?;
            let x = g.transpose(x, order)?;
            g.reduce(ReduceKind::Sum, x, axes, false)
        });
        add(format!("reduce_sum/{dims:?}/{axes:?}/{order:?}"), whole(-4, 4), Bound::Exact, make);
    }
    for (n, groups, positions) in [(1, 1, 9000), (2, 2, 5000), (3, 4, 33), (2, 8, 16)] {
        if small(&[n, 8, positions]) {
            let make: Make = Arc::new(move |g| {
                let (x, gamma, beta) = (g.x([n, 8, positions])?, g.w([8])?, g.w([8])?);
                g.group_norm(x, gamma, beta, groups, 1e-5)
            });
            let name = format!("group_norm/{n}x8x{positions}/{groups}");
            add(name, Fill::Normal(3.0, 2.0), Bound::Scaled(32.0), make);
        }
    }
    cases
}
