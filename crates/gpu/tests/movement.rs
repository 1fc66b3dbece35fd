//! What moves, indexes and orders elements, by the kernel interpreter: devices with and without 64-bit registers,
//! nothing folded before, and shapes that reach every path.

mod common;

use common::Interpreter;
use olivine_cases::Bound::{Bits, Exact};
use olivine_cases::Fill::{Anything, Chance};
use olivine_cases::{Case, Table, normal, run_table, table, whole};
use olivine_ir::DType::{self, BF16, Bool, F16, F32, F64, I8, I32, I64, U8};
use olivine_ir::op::{PadMode, ScatterMode, TriPart};

const SIZES: &[DType] = &[F32, F16, I64, U8];

fn pass(backend: &Interpreter, cases: &[Case]) {
    let report = run_table(backend, cases, "", 2);
    let wrong: Vec<String> = report.failures().map(|r| format!("{}: {}", r.name, r.outcome)).collect();
    assert!(!report.results.is_empty());
    assert!(wrong.is_empty(), "{} of {}:\n{}", wrong.len(), report.results.len(), wrong.join("\n"));
}

/// The table's own cases that need no 64-bit arithmetic.
fn cases(from: usize) -> Vec<Case> {
    let ours = |c: &Case| {
        let ordered = ["top_k", "sort"].iter().any(|op| c.name.contains(op)) && !c.name.contains("long");
        let wide = c.name.contains("/f64") || c.name.contains("/i64");
        let computes = c.name.contains("scatter") && !c.name.contains("replace");
        (["movement", "index"].contains(&c.family) || ordered) && !(wide && computes)
    };
    table().into_iter().filter(ours).skip(from).step_by(2).collect()
}

#[test]
fn the_plainest_device_moves_everything() {
    pass(&Interpreter::plain(), &cases(0));
}

#[test]
fn a_rich_device_moves_everything() {
    pass(&Interpreter::rich(32), &cases(1));
}

/// Shapes that fill tiles and vectors, and leave rests.
fn turned() -> Vec<Case> {
    let mut t = Table::new("movement");
    let shapes: [(&str, &[usize], &[usize]); 5] = [
        ("whole-tiles", &[64, 96], &[1, 0]),
        ("even", &[2, 34, 70], &[0, 2, 1]),
        ("odd", &[33, 3, 41], &[2, 1, 0]),
        ("vectors-one-way", &[36, 35], &[1, 0]),
        ("batches", &[3, 40, 2, 12], &[2, 3, 0, 1]),
    ];
    for (name, x, perm) in shapes {
        t.case(&format!("turned/{name}"), SIZES, Anything, Bits, move |g| {
            let x = g.x(x)?;
            g.transpose(x, perm)
        });
    }
    t.case("turned/of-slice", SIZES, Anything, Bits, |g| {
        let x = g.x([40, 50])?;
        let x = g.slice(x, 1, 3, 47, 1)?;
        let x = g.slice(x, 0, 38, 2, -2)?;
        g.transpose(x, &[1, 0])
    });
    t.cases
}

/// Joins of many operands, strided ones among them.
fn joined() -> Vec<Case> {
    let mut t = Table::new("movement");
    t.case("joined/many", SIZES, Anything, Bits, |g| {
        let mut parts = Vec::new();
        for i in 0..19 {
            parts.push(g.x([3, i % 4, 5])?);
        }
        g.concat(&parts, 1)
    });
    t.case("joined/aligned", SIZES, Anything, Bits, |g| {
        let (x, y) = (g.x([6, 16])?, g.x([6, 32])?);
        g.concat(&[x, y, x], 1)
    });
    t.case("joined/turned", SIZES, Anything, Bits, |g| {
        let (x, y) = (g.x([20, 12])?, g.x([12, 9])?);
        let x = g.transpose(x, &[1, 0])?;
        g.concat(&[y, x], 1)
    });
    t.case("joined/spread", SIZES, Anything, Bits, |g| {
        let (x, y) = (g.x([4, 1])?, g.x([4, 8])?);
        let x = g.expand(x, [4, 12])?;
        g.concat(&[x, y], 1)
    });
    t.cases
}

/// Made tensors that no pass folds here, and paddings by words and vectors.
fn made() -> Vec<Case> {
    let mut t = Table::new("movement");
    t.case("made/range", &[F32, F16, BF16, I8, U8, I32, I64], normal(), Exact, |g| {
        let d = g.dtype();
        g.range(d, -3.0, 7.0, 37)
    });
    t.case("made/range-past-32-bits", &[I64, I32], normal(), Exact, |g| {
        let d = g.dtype();
        g.range(d, 4_294_967_290.0, -3_000_000_001.0, 70)
    });
    for mode in [PadMode::Constant, PadMode::Edge, PadMode::Wrap, PadMode::Reflect] {
        t.case(&format!("made/pad-vectors-{}", mode.name()), SIZES, Anything, Exact, move |g| {
            let x = g.x([3, 4, 16])?;
            g.pad(x, &[(0, 0), (2, -1), (8, 4)], mode, 3.0)
        });
        t.case(&format!("made/pad-rows-{}", mode.name()), SIZES, Anything, Exact, move |g| {
            let x = g.x([3, 4, 8])?;
            g.pad(x, &[(1, 2), (0, 0), (0, 0)], mode, -1.0)
        });
    }
    t.case("made/pad-cut-away", &[F32, U8], normal(), Exact, |g| {
        let x = g.x([3])?;
        g.pad(x, &[(-9, 11)], PadMode::Constant, 2.0)
    });
    t.case("made/trilu-wide", SIZES, Anything, Exact, |g| {
        let x = g.x([3, 7, 9])?;
        g.trilu(x, TriPart::Upper, -2)
    });
    t.case("made/nonzero-blocks", &[F16, Bool], Chance(0.3), Exact, |g| {
        let x = g.x([3, 4001])?;
        g.nonzero(x)
    });
    t.cases
}

/// Indices and updates by lanes, ranges, words and vectors; rows longer than a block.
fn placed() -> Vec<Case> {
    let mut t = Table::new("index");
    t.case("placed/rows-of-words", SIZES, Anything, Bits, |g| {
        let (x, i) = (g.x([9, 16])?, g.index([3, 5], 9)?);
        g.gather(x, i, 0)
    });
    t.case("placed/far-outside", &[F32, U8], whole(-9, 9), Bits, |g| {
        let x = g.x([5, 3])?;
        let far = [1i64 << 32, -(1 << 32), (1 << 32) + 1, -(1 << 32) - 1, i64::MAX, i64::MIN, 4, -5];
        let i = g.ints(I64, [8], &far)?;
        g.gather(x, i, 0)
    });
    t.case("placed/far-outside-writes", &[F32, U8], whole(-9, 9), Bits, |g| {
        let (x, u) = (g.x([5, 3])?, g.x([4, 3])?);
        let i = g.ints(I64, [4, 1], &[1 << 32, -(1 << 32), (1 << 32) + 1, -5])?;
        g.scatter_nd(x, i, u, ScatterMode::Replace)
    });
    t.case("placed/replaced-rows-of-words", SIZES, Anything, Bits, |g| {
        let (x, i, u) = (g.x([7, 16])?, g.index([12, 1], 7)?, g.x([12, 16])?);
        g.scatter_nd(x, i, u, ScatterMode::Replace)
    });
    t.case("placed/ranges", &[F32, F16], whole(-3, 3), Exact, |g| {
        let (x, i, u) = (g.x([70_000])?, g.index([40], 70_000)?, g.x([40])?);
        g.scatter_add(x, i, u, 0)
    });
    t.case("placed/long-sort", &[F32, I64, F64], whole(-999, 999), Exact, |g| {
        let x = g.x([2, 4500])?;
        g.sort(x, 1, false)
    });
    t.case("placed/long-argsort", &[F16], whole(-99, 99), Exact, |g| {
        let x = g.x([4200, 2])?;
        g.argsort(x, 0, true)
    });
    t.case("placed/long-top-k", &[F32, I64], whole(-99, 99), Exact, |g| {
        let x = g.x([2, 9000])?;
        g.top_k(x, 300, 1, true)
    });
    t.cases
}

#[test]
fn tiles_vectors_and_rests_arrive() {
    for device in [Interpreter::plain(), Interpreter::rich(32)] {
        pass(&device, &turned());
        pass(&device, &joined());
    }
}

#[test]
fn made_tensors_agree_with_the_oracle() {
    for device in [Interpreter::plain(), Interpreter::rich(32)] {
        pass(&device, &made());
    }
}

#[test]
fn lanes_ranges_and_long_rows_agree_with_the_oracle() {
    for device in [Interpreter::plain(), Interpreter::rich(32)] {
        pass(&device, &placed());
    }
}
