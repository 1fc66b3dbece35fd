//! Functions of two numbers, comparisons, and every way two shapes broadcast.

use olivine_ir::DType::{self, BF16, Bool, F16, F32, F64, I8, I16, I32, I64, U8};
use olivine_ir::op::{Binary, Compare, ScalarOp};

use super::{FLOATS, INTS, NUMBERS};
use crate::bound::Bound::{self, Exact, Ulp};
use crate::case::Table;
use crate::fill::Fill::{self, Anything, Chance, Special};
use crate::fill::{normal, these, uniform, whole};
use crate::range::pairs_len;

pub(super) fn rows(t: &mut Table) {
    floats(t);
    integers(t);
    corners(t);
    comparisons(t);
    broadcasts(t);
}

fn pair(t: &mut Table, what: &str, op: ScalarOp, dtypes: &[DType], fills: [Fill; 2], bound: Bound) {
    let [a, b] = fills;
    t.case(what, dtypes, a, bound, move |g| {
        let x = g.x([7, 61])?;
        let y = g.like([7, 61], b.clone())?;
        g.add1(op, &[x, y])
    });
}

fn floats(t: &mut Table) {
    let any = || uniform(-9.0, 9.0);
    let rows = [
        (Binary::Add, any(), any(), Exact),
        (Binary::Sub, any(), any(), Exact),
        (Binary::Mul, any(), any(), Exact),
        (Binary::Div, any(), any(), Exact),
        (Binary::Pow, uniform(0.01, 9.0), uniform(-4.0, 4.0), Ulp(4.0)),
        (Binary::Max, any(), any(), Exact),
        (Binary::Min, any(), any(), Exact),
        (Binary::Rem, any(), any(), Exact),
        (Binary::Mod, any(), any(), Exact),
        (Binary::Atan2, any(), any(), Ulp(4.0)),
    ];
    for (op, a, b, bound) in rows {
        let scalar = ScalarOp::Binary(op);
        pair(t, op.name(), scalar, FLOATS, [a, b], bound);
        pair(t, &format!("{}/special", op.name()), scalar, &[F32, F16, BF16, F64], [Special, Special], bound);
    }
    pair(t, "pow/negative-base", ScalarOp::Binary(Binary::Pow), FLOATS, [any(), whole(-3, 4)], Ulp(4.0));
    pair(
        t,
        "pow/square-and-root",
        ScalarOp::Binary(Binary::Pow),
        FLOATS,
        [uniform(0.0, 9.0), these(&[2.0, 0.5, 1.0, 0.0, -1.0, 3.0])],
        Ulp(4.0),
    );
    pair(t, "mod/whole", ScalarOp::Binary(Binary::Mod), FLOATS, [whole(-9, 9), whole(-4, 4)], Exact);
    pair(t, "rem/whole", ScalarOp::Binary(Binary::Rem), FLOATS, [whole(-9, 9), whole(-4, 4)], Exact);
    for op in [Binary::Add, Binary::Mul, Binary::Div] {
        let wide = Fill::Exponents(-126, 127);
        pair(
            t,
            &format!("{}/finite-range", op.name()),
            ScalarOp::Binary(op),
            &[F32],
            [wide.clone(), wide],
            Exact,
        );
    }
}

fn integers(t: &mut Table) {
    use Binary as B;
    for op in [B::Add, B::Sub, B::Mul, B::Div, B::Max, B::Min, B::Rem, B::Mod, B::And, B::Or, B::Xor] {
        pair(t, op.name(), ScalarOp::Binary(op), INTS, [Anything, Anything], Exact);
    }
    for op in [B::And, B::Or, B::Xor] {
        pair(t, op.name(), ScalarOp::Binary(op), &[Bool], [Chance(0.5), Chance(0.5)], Exact);
    }
    for op in [B::Shl, B::Shr] {
        pair(t, op.name(), ScalarOp::Binary(op), INTS, [Anything, whole(0, 70)], Exact);
    }
    pair(t, "pow", ScalarOp::Binary(B::Pow), INTS, [whole(-9, 9), whole(0, 20)], Exact);
    let units = these(&[1.0, -1.0, 2.0, -2.0, 3.0]);
    pair(t, "pow/negative", ScalarOp::Binary(B::Pow), &[I8, I16, I32, I64], [units, whole(-4, 4)], Exact);
    for (dtype, least) in [(I8, -128.0), (I16, -32768.0), (I32, -2147483648.0), (I64, -9223372036854775808.0)]
    {
        let a = these(&[least, least, least, 7.0, -7.0, 7.0, -7.0, 0.0, least]);
        let b = these(&[-1.0, 0.0, 1.0, 0.0, 2.0, -2.0, -3.0, -5.0, least]);
        for op in [B::Div, B::Rem, B::Mod, B::Mul, B::Sub] {
            let name = format!("{}/edges", op.name());
            pair(t, &name, ScalarOp::Binary(op), &[dtype], [a.clone(), b.clone()], Exact);
        }
    }
    pair(t, "mod/small", ScalarOp::Binary(B::Mod), INTS, [whole(-9, 9), whole(-4, 4)], Exact);
    pair(t, "div/small", ScalarOp::Binary(B::Div), INTS, [whole(-9, 9), whole(-4, 4)], Exact);
    pair(t, "shr/arithmetic", ScalarOp::Binary(B::Shr), &[I8, U8], [Anything, whole(0, 9)], Exact);
}

/// Every corner of a dtype with every other.
fn corners(t: &mut Table) {
    use Binary as B;
    let mut case = |op: ScalarOp, name: &str, dtypes: &[DType], bound: Bound| {
        t.case(&format!("{name}/corners"), dtypes, Fill::Pairs(false), bound, move |g| {
            let n = pairs_len(g.dtype());
            let (x, y) = (g.x([n])?, g.like([n], Fill::Pairs(true))?);
            g.add1(op, &[x, y])
        });
    };
    for op in [B::Add, B::Sub, B::Mul, B::Div, B::Max, B::Min, B::Rem, B::Mod] {
        case(ScalarOp::Binary(op), op.name(), FLOATS, Exact);
        case(ScalarOp::Binary(op), op.name(), INTS, Exact);
    }
    for op in [B::Pow, B::Atan2] {
        case(ScalarOp::Binary(op), op.name(), FLOATS, Ulp(4.0));
    }
    for op in [B::Pow, B::And, B::Or, B::Xor, B::Shl, B::Shr] {
        case(ScalarOp::Binary(op), op.name(), INTS, Exact);
    }
    for op in Compare::ALL {
        case(ScalarOp::Compare(*op), op.name(), NUMBERS, Exact);
    }
    for op in [B::Pow, B::Atan2, B::Div, B::Rem, B::Mod, B::Mul, B::Add] {
        let bound = if matches!(op, B::Pow | B::Atan2) { Ulp(4.0) } else { Exact };
        let (name, wide) = (format!("{}/whole-range", op.name()), Fill::Exponents(-1000, 1000));
        t.case(&name, FLOATS, Fill::WholeRange, bound, move |g| {
            let n = 16_385;
            // A power with any exponent is 0, 1 or infinite.
            let other = if op == B::Pow { Fill::Exponents(-12, 7) } else { wide.clone() };
            let (x, y) = (g.x([n])?, g.like([n], other)?);
            g.add1(ScalarOp::Binary(op), &[x, y])
        });
    }
}

fn comparisons(t: &mut Table) {
    for op in Compare::ALL {
        pair(t, op.name(), ScalarOp::Compare(*op), NUMBERS, [whole(-3, 3), whole(-3, 3)], Exact);
        pair(
            t,
            &format!("{}/special", op.name()),
            ScalarOp::Compare(*op),
            &[F32, F16, F64],
            [Special, Special],
            Exact,
        );
        pair(
            t,
            &format!("{}/extremes", op.name()),
            ScalarOp::Compare(*op),
            INTS,
            [Anything, Anything],
            Exact,
        );
    }
    for op in [Compare::Eq, Compare::Ne] {
        pair(t, op.name(), ScalarOp::Compare(op), &[Bool], [Chance(0.5), Chance(0.5)], Exact);
    }
}

/// Pairs of shapes; subtraction, because its operands cannot be swapped.
fn broadcasts(t: &mut Table) {
    let shapes: [(&str, &[usize], &[usize]); 20] = [
        ("scalar-left", &[], &[3, 5]),
        ("scalar-right", &[3, 5], &[]),
        ("scalars", &[], &[]),
        ("row", &[6, 33], &[33]),
        ("column", &[6, 33], &[6, 1]),
        ("outer", &[6, 1], &[1, 33]),
        ("middle", &[4, 1, 17], &[4, 5, 17]),
        ("middle-right", &[4, 5, 17], &[4, 1, 17]),
        ("channel", &[2, 8, 5, 7], &[8, 1, 1]),
        ("alternate", &[7, 1, 5, 1], &[1, 6, 1, 3]),
        ("alternate-odd", &[1, 6, 1, 3], &[7, 1, 5, 1]),
        ("leading", &[1, 1, 9], &[4, 3, 9]),
        ("rank-gap", &[9], &[2, 1, 4, 9]),
        ("rank-7", &[2, 1, 3, 1, 2, 1, 5], &[1, 2, 1, 3, 1, 2, 1]),
        ("rank-8", &[2, 1, 2, 3, 1, 2, 1, 4], &[1, 3, 2, 1, 2, 1, 2, 4]),
        ("ones", &[1, 1, 1], &[1]),
        ("zero", &[0, 4], &[4]),
        ("zero-against-one", &[3, 0, 2], &[3, 1, 2]),
        ("zero-by-broadcast", &[0], &[5, 1]),
        ("wide", &[3, 1, 1000], &[1, 4, 1000]),
    ];
    for (name, a, b) in shapes {
        t.case(&format!("sub/broadcast-{name}"), &[F32, F16, I32], whole(-99, 99), Exact, move |g| {
            let (x, y) = (g.x(a)?, g.x(b)?);
            g.sub(x, y)
        });
        t.case(&format!("lt/broadcast-{name}"), &[F32], normal(), Exact, move |g| {
            let (x, y) = (g.x(a)?, g.x(b)?);
            g.lt(x, y)
        });
    }
    t.case("sub/same-operand", FLOATS, normal(), Exact, |g| {
        let x = g.x([5, 9])?;
        g.sub(x, x)
    });
    t.case("div/by-constant", FLOATS, normal(), Exact, |g| {
        let x = g.x([5, 9])?;
        g.binary_scalar(Binary::Div, x, 3.0)
    });
}
