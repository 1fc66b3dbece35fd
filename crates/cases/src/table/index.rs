//! Reading and writing at computed positions: negative indices, duplicates, and what is out of range.

use olivine_ir::DType::{self, BF16, Bool, F16, F32, F64, I32, I64, U8};
use olivine_ir::Tensor;
use olivine_ir::op::ScatterMode;

use super::NUMBERS;
use crate::bound::Bound::{Bits, Exact};
use crate::case::Table;
use crate::fill::Fill::{Anything, Chance, Index};
use crate::fill::{normal, whole};

const SIZES: &[DType] = &[F32, F16, F64, U8, I64];

pub(super) fn rows(t: &mut Table) {
    gathers(t);
    scatters(t);
    one_hot(t);
    nonzero(t);
}

fn gathers(t: &mut Table) {
    let indices: [(&str, &[usize]); 5] =
        [("scalar", &[]), ("vector", &[4]), ("matrix", &[3, 2]), ("one", &[1]), ("none", &[0])];
    for (name, shape) in indices {
        for axis in [0isize, 1, 2] {
            t.case(&format!("gather/{name}-axis-{axis}"), SIZES, Anything, Bits, move |g| {
                let x = g.x([5, 6, 7])?;
                let i = g.index(shape, [5, 6, 7][axis as usize])?;
                g.gather(x, i, axis)
            });
        }
    }
    t.case("gather/embedding", &[F32, F16, BF16], normal(), Bits, |g| {
        let (table, ids) = (g.w([100, 24])?, g.of(I32, [2, 9], Index(100, false))?);
        g.gather(table, ids, 0)
    });
    t.case("gather/outside-clamps", &[F32, I32], normal(), Bits, |g| {
        let x = g.x([5, 3])?;
        let i = g.ints(I64, [6], &[0, 5, 99, -5, -6, -99])?;
        g.gather(x, i, 0)
    });
    t.case("gather/constant", &[F32], normal(), Bits, |g| {
        let x = g.x([5, 3])?;
        let i = g.constant(Tensor::new([3], vec![4i64, -5, 0])?);
        g.gather(x, i, 0)
    });
    for axis in [0isize, 1, 2] {
        t.case(&format!("gather_elements/axis-{axis}"), SIZES, Anything, Bits, move |g| {
            let mut shape = [3usize, 2, 4];
            shape[axis as usize] = 9;
            let x = g.x([5, 6, 7])?;
            let i = g.index(shape, [5, 6, 7][axis as usize])?;
            g.gather_elements(x, i, axis)
        });
    }
    t.case("gather_elements/outside-clamps", &[F32], normal(), Bits, |g| {
        let x = g.x([4, 3])?;
        let i = g.ints(I32, [2, 3], &[7, -9, 1, 0, -4, 4])?;
        g.gather_elements(x, i, 0)
    });
    let tuples: [(&str, &[usize], usize); 6] = [
        ("pairs", &[4, 2], 0),
        ("full", &[4, 3], 0),
        ("single", &[3, 1], 0),
        ("empty-tuple", &[2, 0], 0),
        ("batch", &[5, 3, 2], 1),
        ("batch-2", &[5, 6, 2, 1], 2),
    ];
    for (name, shape, batch) in tuples {
        t.case(&format!("gather_nd/{name}"), SIZES, Anything, Bits, move |g| {
            let x = g.x([5, 6, 7])?;
            let i = g.index(shape, 5)?;
            g.gather_nd(x, i, batch)
        });
    }
}

fn scatters(t: &mut Table) {
    for mode in ScatterMode::ALL {
        let mode = *mode;
        let name = mode.name();
        for axis in [0isize, 1, 2] {
            // Nine writes into at most seven places: duplicates are certain.
            t.case(&format!("scatter_elements/{name}-axis-{axis}"), NUMBERS, whole(-3, 3), Exact, move |g| {
                let mut shape = [3usize, 2, 4];
                shape[axis as usize] = 9;
                let x = g.x([5, 6, 7])?;
                let (i, u) = (g.index(shape, [5, 6, 7][axis as usize])?, g.x(shape)?);
                g.scatter_elements(x, i, u, axis, mode)
            });
        }
        t.case(&format!("scatter_elements/{name}-outside"), &[F32, I32], whole(-3, 3), Exact, move |g| {
            let x = g.x([4, 3])?;
            let (i, u) = (g.ints(I32, [3, 3], &[0, 4, -5, 3, 99, -1, 2, -4, -99])?, g.x([3, 3])?);
            g.scatter_elements(x, i, u, 0, mode)
        });
        let tuples: [(&str, &[usize], &[usize]); 4] = [
            ("pairs", &[30, 2], &[30, 7]),
            ("full", &[4, 10, 3], &[4, 10]),
            ("slices", &[9, 1], &[9, 6, 7]),
            ("none", &[0, 2], &[0, 7]),
        ];
        for (what, indices, updates) in tuples {
            t.case(&format!("scatter_nd/{name}-{what}"), &[F32, F16, I32], whole(-2, 2), Exact, move |g| {
                let x = g.x([5, 6, 7])?;
                let (i, u) = (g.index(indices, 5)?, g.x(updates)?);
                g.scatter_nd(x, i, u, mode)
            });
        }
        t.case(&format!("scatter_nd/{name}-outside"), &[F32], whole(-3, 3), Exact, move |g| {
            let x = g.x([4, 3])?;
            let (i, u) = (g.ints(I64, [5, 1], &[3, -1, 4, -5, 0])?, g.x([5, 3])?);
            g.scatter_nd(x, i, u, mode)
        });
    }
    t.case("scatter_elements/bool", &[Bool], Chance(0.5), Exact, |g| {
        let x = g.x([4, 3])?;
        let (i, u) = (g.index([2, 3], 4)?, g.x([2, 3])?);
        g.scatter_elements(x, i, u, 0, ScatterMode::Replace)
    });
}

fn one_hot(t: &mut Table) {
    for axis in [0usize, 1, 2] {
        t.case(&format!("one_hot/axis-{axis}"), &[F32, F16, I32, U8], normal(), Exact, move |g| {
            let i = g.index([3, 4], 6)?;
            let v = g.like([2], whole(-5, 5))?;
            g.one_hot(i, v, 6, axis)
        });
    }
    t.case("one_hot/outside", &[F32, Bool], Chance(1.0), Exact, |g| {
        let i = g.ints(I64, [6], &[0, 5, 6, -6, -7, 99])?;
        let v = g.numbers([2], &[0.0, 1.0])?;
        g.one_hot(i, v, 6, 1)
    });
    t.case("one_hot/scalar", &[F32], normal(), Exact, |g| {
        let i = g.ints(I32, [], &[2])?;
        let v = g.x([2])?;
        g.one_hot(i, v, 4, 0)
    });
}

fn nonzero(t: &mut Table) {
    let shapes: [(&str, &[usize]); 6] = [
        ("matrix", &[5, 7]),
        ("vector", &[40]),
        ("rank-4", &[2, 3, 2, 4]),
        ("scalar", &[]),
        ("empty", &[0, 3]),
        ("long", &[3, 2000]),
    ];
    for (name, shape) in shapes {
        t.case(&format!("nonzero/{name}"), &[F32, I32, Bool], Chance(0.4), Exact, move |g| {
            let x = g.x(shape)?;
            g.nonzero(x)
        });
    }
    t.case("nonzero/none", &[F32, F16], Chance(0.0), Exact, |g| {
        let x = g.x([3, 4])?;
        g.nonzero(x)
    });
}
