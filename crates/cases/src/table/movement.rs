//! Operations that move elements and compute nothing: every bit must arrive.

use olivine_ir::DType::{self, BF16, Bool, F16, F32, F64, I8, I32, I64, U8};
use olivine_ir::op::{DepthMode, PadMode, Slice, TriPart, View};
use olivine_ir::{Shape, Tensor};

use super::{FLOATS, NUMBERS};
use crate::bound::Bound::{Bits, Exact};
use crate::case::Table;
use crate::fill::Fill::{Anything, Chance};
use crate::fill::{normal, whole};

/// One dtype of each size, and bool's own storage.
const SIZES: &[DType] = &[F32, F16, F64, U8, I32, I64];

pub(super) fn rows(t: &mut Table) {
    reshapes(t);
    transposes(t);
    slices(t);
    joins(t);
    repeats(t);
    pads(t);
    made(t);
    blocks(t);
}

fn reshapes(t: &mut Table) {
    let rows: [(&str, &[usize], &[i64]); 9] = [
        ("flat", &[3, 4, 5], &[-1]),
        ("inferred", &[3, 4, 5], &[5, -1, 2]),
        ("copied", &[3, 4, 5], &[0, 0, -1]),
        ("copied-last", &[3, 4, 5], &[12, -1]),
        ("to-scalar", &[1, 1], &[]),
        ("from-scalar", &[], &[1, 1, 1]),
        ("rank-8", &[2, 3, 4], &[2, 1, 3, 1, 2, 1, 2, 1]),
        ("zero", &[0, 4], &[0, 2, 2]),
        ("same", &[3, 4], &[3, 4]),
    ];
    for (name, x, dims) in rows {
        t.case(&format!("reshape/{name}"), &[F32, I64], Anything, Bits, move |g| {
            let x = g.x(x)?;
            g.reshape(x, dims)
        });
    }
    t.case("reshape/after-transpose", SIZES, Anything, Bits, |g| {
        let x = g.x([3, 4, 5])?;
        let x = g.transpose(x, &[2, 0, 1])?;
        g.reshape(x, &[6, 10])
    });
    let expands: [(&str, &[usize], &[usize]); 6] = [
        ("leading", &[5], &[3, 4, 5]),
        ("middle", &[3, 1, 5], &[3, 4, 5]),
        ("both-ways", &[3, 1], &[1, 4]),
        ("scalar", &[], &[2, 3]),
        ("keeps-own", &[3, 5], &[1]),
        ("zero", &[1, 3], &[0, 3]),
    ];
    for (name, x, shape) in expands {
        t.case(&format!("expand/{name}"), &[F32, I8, Bool], Chance(0.5), Bits, move |g| {
            let x = g.x(x)?;
            g.expand(x, shape)
        });
    }
}

fn transposes(t: &mut Table) {
    let rows: [(&str, &[usize], &[usize]); 12] = [
        ("matrix", &[5, 7], &[1, 0]),
        ("matrix-large", &[65, 129], &[1, 0]),
        ("rotate", &[3, 4, 5], &[1, 2, 0]),
        ("rotate-back", &[3, 4, 5], &[2, 0, 1]),
        ("swap-first", &[3, 4, 5], &[1, 0, 2]),
        ("reverse", &[3, 4, 5], &[2, 1, 0]),
        ("heads", &[2, 9, 4, 8], &[0, 2, 1, 3]),
        ("channels-last", &[2, 3, 7, 7], &[0, 2, 3, 1]),
        ("identity", &[3, 4], &[0, 1]),
        ("rank-8", &[2, 1, 3, 2, 2, 1, 2, 3], &[7, 0, 6, 1, 5, 2, 4, 3]),
        ("rank-1", &[9], &[0]),
        ("zero", &[0, 3, 2], &[2, 0, 1]),
    ];
    for (name, x, perm) in rows {
        t.case(&format!("transpose/{name}"), SIZES, Anything, Bits, move |g| {
            let x = g.x(x)?;
            g.transpose(x, perm)
        });
    }
    t.case("transpose/twice", &[F32], normal(), Bits, |g| {
        let x = g.x([3, 4, 5])?;
        let x = g.transpose(x, &[1, 2, 0])?;
        g.transpose(x, &[1, 2, 0])
    });
}

fn slices(t: &mut Table) {
    let rows: [(&str, isize, i64, i64, i64); 14] = [
        ("plain", 1, 2, 7, 1),
        ("first-axis", 0, 1, 3, 1),
        ("last-axis", 2, 0, 2, 1),
        ("step", 1, 0, 9, 2),
        ("step-uneven", 1, 1, 9, 3),
        ("negative-bounds", 1, -4, -1, 1),
        ("backwards", 1, 8, i64::MIN, -1),
        ("backwards-step", 1, -1, 0, -3),
        ("clamped-end", 1, 3, i64::MAX, 1),
        ("clamped-start", 1, -99, 4, 1),
        ("backwards-clamped", 1, 99, 2, -2),
        ("nothing", 1, 5, 5, 1),
        ("wrong-way", 1, 6, 2, 1),
        ("huge-step", 1, 0, 9, 100),
    ];
    for (name, axis, start, end, step) in rows {
        t.case(&format!("slice/{name}"), &[F32, F16, U8], Anything, Bits, move |g| {
            let x = g.x([4, 9, 5])?;
            g.slice(x, axis, start, end, step)
        });
    }
    t.case("slice/several-axes", SIZES, Anything, Bits, |g| {
        let x = g.x([6, 7, 8])?;
        let op = Slice {
            axes: vec![2, 0],
            starts: vec![7.into(), 1.into()],
            ends: vec![0.into(), 5.into()],
            steps: vec![-2, 1],
        };
        g.add1(op, &[x])
    });
    t.case("slice/of-transpose", &[F32], normal(), Bits, |g| {
        let x = g.x([6, 7])?;
        let x = g.transpose(x, &[1, 0])?;
        let x = g.slice(x, 0, 5, 0, -2)?;
        g.slice(x, 1, 1, 6, 2)
    });
    t.case("slice/of-empty", &[F32], normal(), Bits, |g| {
        let x = g.x([0, 4])?;
        g.slice(x, 0, 0, 3, 1)
    });
    t.case("narrow/middle", SIZES, Anything, Bits, |g| {
        let x = g.x([4, 9, 5])?;
        g.narrow(x, 1, 3, 4)
    });
    t.case("view/overlapping", &[F32, I32], normal(), Bits, |g| {
        let x = g.x([4, 6])?;
        let shape = Shape::new(&[3, 5])?;
        g.add1(View { shape, strides: vec![6.into(), (-1).into()], offset: 5.into() }, &[x])
    });
}

fn joins(t: &mut Table) {
    for (name, axis) in [("first", 0isize), ("middle", 1), ("last", -1)] {
        t.case(&format!("concat/{name}"), SIZES, Anything, Bits, move |g| {
            let dims = |n: usize| {
                let mut d = [3, 4, 5];
                d[if axis < 0 { 2 } else { axis as usize }] = n;
                d
            };
            let (a, b, c) = (g.x(dims(2))?, g.x(dims(7))?, g.x(dims(1))?);
            g.concat(&[a, b, c], axis)
        });
    }
    t.case("concat/with-empty", &[F32, Bool], Chance(0.5), Bits, |g| {
        let (a, b, c) = (g.x([3, 0])?, g.x([3, 2])?, g.x([3, 0])?);
        g.concat(&[a, b, c], 1)
    });
    t.case("concat/same-operand", &[F32], normal(), Bits, |g| {
        let a = g.x([3, 2])?;
        g.concat(&[a, a, a], 0)
    });
    t.case("concat/one", &[F32], normal(), Bits, |g| {
        let a = g.x([3, 2])?;
        g.concat(&[a], 1)
    });
    t.case("concat/of-views", FLOATS, normal(), Bits, |g| {
        let (a, b) = (g.x([5, 3])?, g.x([3, 8])?);
        let a = g.transpose(a, &[1, 0])?;
        let b = g.slice(b, 1, 7, 2, -2)?;
        g.concat(&[a, b], 1)
    });
    for (name, axis) in [("first", 0usize), ("middle", 1), ("last", 2)] {
        for (place, start) in [("front", 0usize), ("inside", 2), ("back", 4)] {
            t.case(&format!("slice_scatter/{name}-{place}"), SIZES, Anything, Bits, move |g| {
                let mut dims = [7, 7, 7];
                dims[axis] = 3;
                let (x, part) = (g.x([7, 7, 7])?, g.x(dims)?);
                g.slice_scatter(x, part, axis as isize, start)
            });
        }
    }
    t.case("slice_scatter/all", &[F32], normal(), Bits, |g| {
        let (x, part) = (g.x([3, 4])?, g.x([3, 4])?);
        g.slice_scatter(x, part, 0, 0usize)
    });
    t.case("slice_scatter/nothing", &[F32, U8], Anything, Bits, |g| {
        let (x, part) = (g.x([3, 4])?, g.x([3, 0])?);
        g.slice_scatter(x, part, 1, 4usize)
    });
    t.case("slice_scatter/empty", &[F32], normal(), Bits, |g| {
        let (x, part) = (g.x([0, 4])?, g.x([0, 2])?);
        g.slice_scatter(x, part, 1, 1usize)
    });
    t.case("slice_scatter/rank-1", &[F32, Bool], Chance(0.5), Bits, |g| {
        let (x, part) = (g.x([9])?, g.x([4])?);
        g.slice_scatter(x, part, 0, 5usize)
    });
    t.case("slice_scatter/of-views", FLOATS, normal(), Bits, |g| {
        let (x, part) = (g.x([8, 5])?, g.x([5, 8])?);
        let x = g.transpose(x, &[1, 0])?;
        let part = g.slice(part, 1, 7, 2, -2)?;
        g.slice_scatter(x, part, 1, 3usize)
    });
    t.case("slice_scatter/chain", &[F32, F16, U8], Anything, Bits, |g| {
        let (x, a, b) = (g.x([2, 6, 3])?, g.x([2, 2, 3])?, g.x([2, 3, 3])?);
        let once = g.slice_scatter(x, a, 1, 0usize)?;
        let twice = g.slice_scatter(once, b, 1, 1usize)?;
        g.concat(&[twice, x], 1)
    });
    for (name, axis) in [("first", 0isize), ("middle", 1), ("last", 2)] {
        t.case(&format!("split/{name}"), SIZES, Anything, Bits, move |g| {
            let x = g.x([6, 6, 6])?;
            g.split(x, axis, &[1, 3, 0, 2])
        });
    }
    for axis in [0usize, 1, 2] {
        t.case(&format!("stack/axis-{axis}"), SIZES, Anything, Bits, move |g| {
            let (a, b, c) = (g.x([3, 4])?, g.x([3, 4])?, g.x([3, 4])?);
            g.stack(&[a, b, c], axis)
        });
    }
    t.case("stack/scalars", &[F32], normal(), Bits, |g| {
        let (a, b) = (g.x([])?, g.x([])?);
        g.stack(&[a, b], 0)
    });
}

fn repeats(t: &mut Table) {
    let tiles: [(&str, &[usize]); 5] = [
        ("every", &[2, 3, 2]),
        ("middle", &[1, 4, 1]),
        ("none", &[1, 1, 1]),
        ("zero", &[1, 0, 1]),
        ("last", &[1, 1, 3]),
    ];
    for (name, repeats) in tiles {
        t.case(&format!("tile/{name}"), &[F32, U8, Bool], Chance(0.5), Bits, move |g| {
            let x = g.x([2, 3, 4])?;
            g.tile(x, repeats)
        });
    }
    for axis in [0isize, 1, 2] {
        t.case(&format!("repeat/axis-{axis}"), SIZES, Anything, Bits, move |g| {
            let x = g.x([2, 3, 4])?;
            g.repeat(x, axis, 3)
        });
        for shift in [1i64, -2, 0, 7, -103] {
            t.case(&format!("roll/axis-{axis}-by-{shift}"), &[F32, F16], normal(), Bits, move |g| {
                let x = g.x([3, 5, 4])?;
                g.roll(x, axis, shift)
            });
        }
    }
    t.case("roll/empty", &[F32], normal(), Bits, |g| {
        let x = g.x([0, 3])?;
        g.roll(x, 0, 2)
    });
    t.case("repeat/zero", &[F32], normal(), Bits, |g| {
        let x = g.x([2, 3])?;
        g.repeat(x, 1, 0)
    });
    for (name, axes) in
        [("first", &[0isize] as &'static [isize]), ("outer", &[0, 2]), ("all", &[0, 1, 2]), ("none", &[])]
    {
        t.case(&format!("reverse/{name}"), SIZES, Anything, Bits, move |g| {
            let x = g.x([3, 4, 5])?;
            g.reverse(x, axes)
        });
    }
}

fn pads(t: &mut Table) {
    for mode in PadMode::ALL {
        let mode = *mode;
        let amounts: [(&str, [(i64, i64); 3]); 6] = [
            ("last", [(0, 0), (0, 0), (2, 3)]),
            ("middle", [(0, 0), (3, 1), (0, 0)]),
            ("every", [(1, 2), (2, 1), (3, 3)]),
            ("cut", [(0, 0), (-1, -2), (-1, 0)]),
            ("cut-and-add", [(0, 1), (-1, 2), (2, -1)]),
            ("none", [(0, 0), (0, 0), (0, 0)]),
        ];
        for (name, pads) in amounts {
            t.case(
                &format!("pad/{}-{name}", mode.name()),
                &[F32, F16, I32],
                whole(-50, 50),
                Exact,
                move |g| {
                    let x = g.x([3, 4, 5])?;
                    g.pad(x, &pads, mode, 1.5)
                },
            );
        }
    }
    t.case("pad/constant-value", NUMBERS, Anything, Exact, |g| {
        let x = g.x([3, 4])?;
        g.pad(x, &[(1, 0), (0, 2)], PadMode::Constant, 7.0)
    });
    t.case("pad/minus-infinity", FLOATS, normal(), Exact, |g| {
        let x = g.x([3, 4])?;
        g.pad(x, &[(1, 1), (1, 1)], PadMode::Constant, f64::NEG_INFINITY)
    });
    t.case("pad/bool", &[Bool], Chance(0.5), Exact, |g| {
        let x = g.x([3, 4])?;
        g.pad(x, &[(1, 1), (0, 1)], PadMode::Constant, 1.0)
    });
    t.case("pad/empty", &[F32], normal(), Exact, |g| {
        let x = g.x([0, 2])?;
        g.pad(x, &[(2, 1), (1, 0)], PadMode::Constant, 3.0)
    });
}

fn made(t: &mut Table) {
    for part in [TriPart::Upper, TriPart::Lower] {
        for diagonal in [0i64, 1, -2, 9, -9] {
            let dtypes = if diagonal == 0 { SIZES } else { &[F32, BF16] };
            t.case(&format!("trilu/{}-{diagonal}", part.name()), dtypes, Anything, Exact, move |g| {
                let x = g.x([2, 4, 6])?;
                g.trilu(x, part, diagonal)
            });
        }
    }
    t.case("trilu/bool", &[Bool], Chance(0.9), Exact, |g| {
        let x = g.x([5, 5])?;
        g.trilu(x, TriPart::Lower, 0)
    });
    t.case("range/whole", NUMBERS, normal(), Exact, |g| {
        let d = g.dtype();
        g.range(d, 3.0, 2.0, 40)
    });
    t.case("range/fraction", FLOATS, normal(), Exact, |g| {
        let d = g.dtype();
        g.range(d, -1.0, 0.1, 33)
    });
    // More than a table: computed on the device.
    t.case("range/long", FLOATS, normal(), Exact, |g| {
        let d = g.dtype();
        g.range(d, -3.0, 0.000_7, 2_051)
    });
    t.case("range/empty", &[F32, I64], normal(), Exact, |g| {
        let d = g.dtype();
        g.range(d, 1.0, 1.0, 0)
    });
    t.case("fill/scalar", NUMBERS, Anything, Bits, |g| {
        let x = g.x([])?;
        g.fill(x, [4, 1, 3])
    });
    t.case("constant/output", &[F32, F16, I32], normal(), Bits, |g| {
        let c = g.numbers([2, 3], &[1.0, -2.0, 3.0])?;
        let s = g.constant(Tensor::scalar(7.0f32));
        Ok(vec![c, s])
    });
    t.case("input/output", SIZES, Anything, Bits, |g| {
        let x = g.x([3, 4])?;
        let y = g.x([2])?;
        Ok(vec![y, x])
    });
}

fn blocks(t: &mut Table) {
    for mode in [DepthMode::Dcr, DepthMode::Crd] {
        for block in [1usize, 2, 3] {
            t.case(
                &format!("depth_to_space/{}-{block}", mode.name()),
                &[F32, U8],
                Anything,
                Bits,
                move |g| {
                    let x = g.x([2, 2 * block * block, 3, 4])?;
                    g.depth_to_space(x, block, mode)
                },
            );
        }
    }
    for block in [1usize, 2, 3] {
        t.case(&format!("space_to_depth/{block}"), &[F32, F16], normal(), Bits, move |g| {
            let x = g.x([2, 3, 2 * block, 4 * block])?;
            g.space_to_depth(x, block)
        });
    }
    for (name, axis, size, step) in [
        ("overlap", 1isize, 4usize, 2usize),
        ("gaps", 1, 2, 3),
        ("first", 0, 2, 1),
        ("last", -1, 5, 1),
        ("whole", 1, 11, 4),
    ] {
        t.case(&format!("unfold/{name}"), SIZES, Anything, Bits, move |g| {
            let x = g.x([3, 11, 5])?;
            g.unfold(x, axis, size, step)
        });
    }
}
