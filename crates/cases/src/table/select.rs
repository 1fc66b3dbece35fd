//! Casts between all dtypes, and functions of three numbers.

use olivine_ir::DType::{self, BF16, Bool, F16, F32, F64, I32};

use super::{FLOATS, INTS, NUMBERS};
use crate::bound::Bound::{Bits, Exact, Ulp};
use crate::case::Table;
use crate::fill::Fill::{Anything, Chance, Pairs, Special, WholeRange};
use crate::fill::{normal, whole};
use crate::range::{pairs_len, whole_range_len};

pub(super) fn casts(t: &mut Table) {
    for to in DType::ALL {
        for from in DType::ALL {
            let fill = if from == Bool { Chance(0.5) } else { Anything };
            t.case(&format!("to-{to}/from"), &[from], fill, Exact, move |g| {
                let x = g.x([331])?;
                g.cast(x, to)
            });
        }
        t.case(&format!("wide-to-{to}/from"), FLOATS, WholeRange, Exact, move |g| {
            let x = g.x([whole_range_len(g.dtype())])?;
            g.cast(x, to)
        });
    }
    t.case("narrow-and-back", &[F32, F64], normal(), Exact, |g| {
        let x = g.x([40, 9])?;
        let y = g.cast(x, F16)?;
        g.cast(y, F32)
    });
    t.case("bf16-and-back", &[F32, F64], normal(), Exact, |g| {
        let x = g.x([40, 9])?;
        let y = g.cast(x, BF16)?;
        let d = g.dtype();
        g.cast(y, d)
    });
}

/// A name and three shapes that broadcast together.
type Three = (&'static str, &'static [usize], &'static [usize], &'static [usize]);

pub(super) fn rows(t: &mut Table) {
    let shapes: [Three; 8] = [
        ("plain", &[4, 33], &[4, 33], &[4, 33]),
        ("middle", &[4, 1, 3], &[1, 5, 1], &[4, 5, 3]),
        ("scalars", &[4, 5], &[], &[]),
        ("scalar-condition", &[], &[3, 7], &[7]),
        ("mask", &[2, 1, 1, 9], &[2, 3, 9, 9], &[]),
        ("rank-8", &[1, 2, 1, 2, 1, 2, 1, 2], &[2, 1, 2, 1, 2, 1, 2, 1], &[2]),
        ("rank-0", &[], &[], &[]),
        ("zero", &[3, 0], &[1, 1], &[3, 1]),
    ];
    for (name, c, a, b) in shapes {
        t.case(&format!("where/{name}"), &[F32, F16, I32], normal(), Bits, move |g| {
            let c = g.of(Bool, c, Chance(0.5))?;
            let (x, y) = (g.x(a)?, g.x(b)?);
            g.select(c, x, y)
        });
        t.case(&format!("fma/{name}"), &[F32, F64, I32], normal(), Exact, move |g| {
            let (x, y, z) = (g.x(c)?, g.x(a)?, g.x(b)?);
            g.fma(x, y, z)
        });
        t.case(&format!("clamp/{name}"), &[F32, F16, I32], whole(-9, 9), Exact, move |g| {
            let (x, low, high) = (g.x(c)?, g.like(a, whole(-5, 0))?, g.like(b, whole(1, 4))?);
            g.add1(olivine_ir::op::ScalarOp::Clamp, &[x, low, high])
        });
    }
    t.case("where/special", FLOATS, Special, Bits, |g| {
        let c = g.of(Bool, [300], Chance(0.5))?;
        let (x, y) = (g.x([300])?, g.x([300])?);
        g.select(c, x, y)
    });
    t.case("where/every", INTS, Anything, Exact, |g| {
        let c = g.of(Bool, [9, 1, 5], Chance(0.5))?;
        let (x, y) = (g.x([9, 4, 5])?, g.x([4, 1])?);
        g.select(c, x, y)
    });
    t.case("where/every", &[Bool], Chance(0.5), Exact, |g| {
        let (c, x, y) = (g.x([9, 1, 5])?, g.x([9, 4, 5])?, g.x([4, 1])?);
        g.select(c, x, y)
    });
    t.case("fma/corners", &[F32, F16, BF16], Pairs(false), Exact, |g| {
        let n = pairs_len(g.dtype());
        let (x, y, z) = (g.x([n])?, g.like([n], Pairs(true))?, g.like([n], Special)?);
        g.fma(x, y, z)
    });
    t.case("fma/narrow", &[F16, BF16], normal(), Ulp(1.0), |g| {
        let (x, y, z) = (g.x([501])?, g.x([501])?, g.x([501])?);
        g.fma(x, y, z)
    });
    // What the fma recovers is the rounding of the square.
    t.rounded("fma/cancelling", &[F32, F64], normal(), Exact, |g| {
        let x = g.x([2001])?;
        let square = g.mul(x, x)?;
        let minus = g.neg(square)?;
        g.fma(x, x, minus)
    });
    t.case("fma/every", INTS, Anything, Exact, |g| {
        let (x, y, z) = (g.x([301])?, g.x([301])?, g.x([301])?);
        g.fma(x, y, z)
    });
    t.case("clamp/special", FLOATS, Special, Exact, |g| {
        let x = g.x([300])?;
        g.clamp(x, -1.0, 2.0)
    });
    t.case("clamp/numbers", NUMBERS, whole(-20, 99), Exact, |g| {
        let x = g.x([17, 3])?;
        g.clamp(x, 2.0, 50.0)
    });
}
