//! Resizing over interpolations, coordinate modes and rounding modes.

use olivine_ir::DType::{BF16, Bool, F16, F32, F64, I16, I32, I64, U8};
use olivine_ir::op::{CoordinateMode, NearestMode, Resize, ResizeMode};

use super::{FLOATS, PAIR};
use crate::bound::Bound::{Bits, Close, Scaled};
use crate::case::Table;
use crate::fill::Fill::Anything;
use crate::fill::normal;

fn op(sizes: &[usize], mode: ResizeMode, coordinates: CoordinateMode) -> Resize {
    Resize {
        sizes: sizes.iter().map(|size| (*size).into()).collect(),
        scales: None,
        mode,
        coordinates,
        nearest: NearestMode::RoundPreferFloor,
        cubic: -0.75,
        exclude_outside: false,
        antialias: false,
    }
}

fn row(t: &mut Table, what: &str, dtypes: &[olivine_ir::DType], x: &'static [usize], op: Resize) {
    let bound = if op.mode == ResizeMode::Nearest { Bits } else { Scaled(32.0) };
    t.case(what, dtypes, normal(), bound, move |g| {
        let x = g.x(x)?;
        g.add1(op.clone(), &[x])
    });
}

pub(super) fn rows(t: &mut Table) {
    nearest(t);
    smooth(t);
    filters(t);
    many(t);
    scales(t);
}

fn nearest(t: &mut Table) {
    for coordinates in CoordinateMode::ALL {
        for nearest in NearestMode::ALL {
            let name = format!("nearest/{}-{}", coordinates.name(), nearest.name());
            let base = |sizes: &[usize]| Resize {
                nearest: *nearest,
                ..op(sizes, ResizeMode::Nearest, *coordinates)
            };
            row(t, &format!("{name}-up"), PAIR, &[1, 2, 4, 3], base(&[1, 2, 8, 12]));
            row(t, &format!("{name}-down"), &[F32], &[1, 2, 8, 12], base(&[1, 2, 4, 3]));
        }
    }
    let twice = op(&[1, 3, 10, 8], ResizeMode::Nearest, CoordinateMode::Asymmetric);
    let twice = Resize { nearest: NearestMode::Floor, ..twice };
    t.case("nearest/twice", &[F32, BF16, F64, U8, I16, I32, I64, Bool], Anything, Bits, move |g| {
        let x = g.x([1, 3, 5, 4])?;
        g.add1(twice.clone(), &[x])
    });
    row(
        t,
        "nearest/every-axis",
        PAIR,
        &[2, 2, 2, 2],
        op(&[4, 4, 4, 4], ResizeMode::Nearest, CoordinateMode::HalfPixel),
    );
    row(
        t,
        "nearest/empty",
        &[F32],
        &[0, 2, 2],
        op(&[0, 4, 4], ResizeMode::Nearest, CoordinateMode::HalfPixel),
    );
}

fn smooth(t: &mut Table) {
    let sizes: [(&str, &[usize], &[usize]); 7] = [
        ("up", &[1, 2, 4, 5], &[1, 2, 8, 15]),
        ("up-uneven", &[1, 2, 4, 5], &[1, 2, 7, 9]),
        ("down", &[1, 2, 12, 9], &[1, 2, 4, 3]),
        ("down-uneven", &[2, 1, 11, 9], &[2, 1, 5, 4]),
        ("to-one", &[1, 1, 5, 6], &[1, 1, 1, 1]),
        ("from-one", &[1, 2, 1, 1], &[1, 2, 3, 4]),
        ("1d", &[2, 3, 7], &[2, 3, 20]),
    ];
    for coordinates in CoordinateMode::ALL {
        for mode in [ResizeMode::Linear, ResizeMode::Cubic] {
            for (name, x, out) in sizes {
                let what = format!("{}/{}-{name}", mode.name(), coordinates.name());
                row(t, &what, &[F32, F16, BF16], x, op(out, mode, *coordinates));
            }
        }
    }
    for mode in [ResizeMode::Linear, ResizeMode::Cubic] {
        let name = mode.name();
        row(
            t,
            &format!("{name}/every-dtype"),
            FLOATS,
            &[1, 2, 4, 5],
            op(&[1, 2, 6, 7], mode, CoordinateMode::HalfPixel),
        );
        row(
            t,
            &format!("{name}/3d"),
            PAIR,
            &[1, 1, 3, 4, 5],
            op(&[1, 1, 5, 6, 4], mode, CoordinateMode::HalfPixel),
        );
        row(
            t,
            &format!("{name}/same"),
            PAIR,
            &[1, 2, 4, 5],
            op(&[1, 2, 4, 5], mode, CoordinateMode::HalfPixel),
        );
        // A scale that the sizes do not divide exactly.
        for coordinates in CoordinateMode::ALL {
            let scaled =
                Resize { scales: Some(vec![1.0, 1.0, 1.75, 0.6]), ..op(&[1, 2, 7, 5], mode, *coordinates) };
            row(t, &format!("{name}/scales-{}", coordinates.name()), &[F32], &[1, 2, 4, 9], scaled);
        }
    }
}

/// Enough results that invocations compute several rows, in every layout of kept and resized axes.
fn many(t: &mut Table) {
    let shapes: [(&str, &[usize], &[usize]); 5] = [
        ("twice", &[1, 2, 97, 99], &[1, 2, 194, 198]),
        ("channels-last", &[1, 67, 65, 4], &[1, 134, 130, 4]),
        ("channels-between", &[1, 66, 5, 65], &[1, 133, 5, 130]),
        ("down", &[1, 2, 300, 601], &[1, 2, 222, 150]),
        ("1d", &[1, 40000], &[1, 66001]),
    ];
    for (name, x, out) in shapes {
        let coordinates = CoordinateMode::HalfPixel;
        let narrow = &[F32, F16, U8];
        let base = op(out, ResizeMode::Nearest, coordinates);
        row(t, &format!("nearest/many-{name}"), narrow, x, base);
        row(t, &format!("linear/many-{name}"), PAIR, x, op(out, ResizeMode::Linear, coordinates));
        row(
            t,
            &format!("cubic/many-{name}"),
            &[F32],
            x,
            op(out, ResizeMode::Cubic, CoordinateMode::AlignCorners),
        );
        let antialias = Resize { antialias: true, ..op(out, ResizeMode::Linear, coordinates) };
        row(t, &format!("linear/many-antialias-{name}"), &[F32], x, antialias);
    }
    let volume = op(&[1, 1, 42, 40, 41], ResizeMode::Linear, CoordinateMode::HalfPixel);
    row(t, "linear/many-3d", FLOATS, &[1, 1, 21, 27, 30], volume);
    let far = op(&[1, 1, 3, 4], ResizeMode::Linear, CoordinateMode::HalfPixel);
    let far = Resize { antialias: true, ..far };
    row(t, "linear/far-down-antialias", FLOATS, &[1, 1, 90, 77], far);
    let rank = op(&[2, 2, 3, 1, 2, 2, 4, 3], ResizeMode::Linear, CoordinateMode::Asymmetric);
    row(t, "linear/rank-8", PAIR, &[2, 1, 3, 1, 2, 1, 2, 2], rank);
    let rank = op(&[2, 2, 3, 1, 2, 2, 4, 3], ResizeMode::Nearest, CoordinateMode::Asymmetric);
    row(t, "nearest/rank-8", PAIR, &[2, 1, 3, 1, 2, 1, 2, 2], rank);
    for mode in ResizeMode::ALL {
        row(t, &format!("{}/rank-0", mode.name()), &[F32], &[], op(&[], *mode, CoordinateMode::HalfPixel));
    }
}

/// Scales that the sizes do not follow from, in every mode and every float.
fn scales(t: &mut Table) {
    let cases: [(&str, f64, usize); 4] =
        [("up", 2.6, 26), ("down", 0.37, 3), ("third", 1.0 / 3.0, 3), ("tenths", 0.7, 7)];
    for coordinates in CoordinateMode::ALL {
        for mode in ResizeMode::ALL {
            for (name, scale, size) in cases {
                let scaled = Resize { scales: Some(vec![1.0, scale]), ..op(&[3, size], *mode, *coordinates) };
                let what = format!("{}/scaled-{name}-{}", mode.name(), coordinates.name());
                row(t, &what, FLOATS, &[3, 10], scaled);
            }
        }
    }
}

fn filters(t: &mut Table) {
    for mode in [ResizeMode::Linear, ResizeMode::Cubic] {
        let name = mode.name();
        for (what, out) in [("down", [1usize, 2, 4, 5]), ("up", [1, 2, 17, 30]), ("mixed", [1, 2, 3, 21])] {
            let base = op(&out, mode, CoordinateMode::HalfPixel);
            let antialias = Resize { antialias: true, ..base.clone() };
            let exclude = Resize { exclude_outside: true, ..base.clone() };
            let both = Resize { antialias: true, exclude_outside: true, ..base };
            row(t, &format!("{name}/antialias-{what}"), PAIR, &[1, 2, 11, 13], antialias);
            row(t, &format!("{name}/exclude-outside-{what}"), PAIR, &[1, 2, 11, 13], exclude);
            row(t, &format!("{name}/both-{what}"), PAIR, &[1, 2, 11, 13], both);
        }
    }
    let sharper = Resize { cubic: -0.5, ..op(&[1, 1, 9, 11], ResizeMode::Cubic, CoordinateMode::HalfPixel) };
    row(t, "cubic/coefficient-half", PAIR, &[1, 1, 4, 5], sharper);
    let constant = op(&[1, 1, 9, 11], ResizeMode::Cubic, CoordinateMode::AlignCorners);
    t.case("cubic/constant", &[F32], crate::fill::these(&[3.5]), Close { rel: 1e-6, abs: 0.0 }, move |g| {
        let x = g.x([1, 1, 4, 5])?;
        g.add1(constant.clone(), &[x])
    });
}
