//! Random numbers to the last bit, and tokens drawn from logits.

use olivine_ir::DType::{BF16, F16, F32, F64, I32, I64, U32};
use olivine_ir::op::{RngNormal, RngUniform, Sampling};
use olivine_ir::{Error, Tensor, ValueId};

use super::FLOATS;
use crate::bound::Bound::{Bits, Exact, Near};
use crate::case::{Build, Table};
use crate::fill::Fill::Special;
use crate::fill::{normal, these, whole};

pub(super) fn rows(t: &mut Table) {
    numbers(t);
    sample(t);
    penalties(t);
}

fn numbers(t: &mut Table) {
    t.case("rng_uniform/unit", FLOATS, normal(), Bits, |g| {
        let dtype = g.dtype();
        g.rng_uniform(dtype, [3, 67], (0.0, 1.0), 42)
    });
    t.case("rng_normal/unit", FLOATS, normal(), Bits, |g| {
        let dtype = g.dtype();
        g.rng_normal(dtype, [5, 41], (0.0, 1.0), 42)
    });
    for n in [1usize, 2, 3, 5, 31, 1000, 65_537] {
        t.case(&format!("rng_uniform/{n}"), &[F32], normal(), Bits, move |g| {
            g.rng_uniform(F32, [n], (-3.7, 11.3), 0x1234_5678_9abc_def0)
        });
        t.case(&format!("rng_normal/{n}"), &[F32], normal(), Bits, move |g| {
            g.rng_normal(F32, [n], (1.5, 0.3), u64::MAX)
        });
    }
    t.case("rng_normal/shifted", &[F16, BF16], normal(), Bits, |g| {
        let dtype = g.dtype();
        g.rng_normal(dtype, [33, 7], (-0.25, 3.0), 9)
    });
    t.case("rng_uniform/empty", &[F32], normal(), Bits, |g| g.rng_uniform(F32, [3, 0], (0.0, 1.0), 1));
    t.case("rng_uniform/scalar", &[F32], normal(), Bits, |g| g.rng_uniform(F32, [], (2.0, 2.0), 1));
    for run in [1, 0xffff_ffff, 0x1_0000_0000, u64::MAX] {
        t.case(&format!("rng_uniform/run-{run:x}"), &[F32], normal(), Bits, move |g| {
            g.at_run(run)?;
            g.rng_uniform(F32, [19], (0.0, 1.0), 7)
        });
        t.case(&format!("rng_normal/run-{run:x}"), &[F32], normal(), Bits, move |g| {
            g.at_run(run)?;
            g.rng_normal(F32, [19], (0.0, 1.0), 7)
        });
    }
    t.case("rng/streams", &[F32], normal(), Bits, |g| {
        let a = g.rng_uniform(F32, [9], (0.0, 1.0), 7)?;
        let b = g.rng_uniform(F32, [9], (0.0, 1.0), 7)?;
        let c = g.rng_normal(F32, [9], (0.0, 1.0), 7)?;
        Ok(vec![a, b, c])
    });
    t.case("rng/chosen-stream", &[F32], normal(), Bits, |g| {
        let (counter, shape) = (g.run_counter()?, olivine_ir::Shape::new(&[11])?);
        let (seed, stream) = (3, 0xffff_ffff);
        let op = RngUniform { dtype: F32, shape, low: 0.0, high: 1.0, seed, stream };
        let u = g.add1(op, &[counter])?;
        let z =
            g.add1(RngNormal { dtype: F32, shape, mean: 0.0, scale: 1.0, seed, stream: 1 }, &[counter])?;
        Ok(vec![u, z])
    });
    t.case("rng_normal/folded", &[F32], normal(), Bits, |g| {
        let counter = g.constant(Tensor::new([2], vec![5u32, 0])?);
        let shape = olivine_ir::Shape::new(&[40])?;
        g.add1(RngNormal { dtype: F32, shape, mean: 0.0, scale: 1.0, seed: 1, stream: 0 }, &[counter])
    });
    t.case("rng_normal/noise-added", &[F32], normal(), Near(1.0, 1.0), |g| {
        let x = g.x([4, 50])?;
        let noise = g.rng_normal(F32, [4, 50], (0.0, 0.5), 77)?;
        g.add(x, noise)
    });
}

/// f32 scalars of one row's filters.
fn how(g: &mut Build, temperature: f32, top_k: i32, top_p: f32, min_p: f32) -> Result<Sampling, Error> {
    Ok(Sampling {
        temperature: Some(number(g, f64::from(temperature))?),
        top_k: Some(g.ints(I32, [], &[i64::from(top_k)])?),
        top_p: Some(number(g, f64::from(top_p))?),
        min_p: Some(number(g, f64::from(min_p))?),
        seed: 0xfeed,
        draws: None,
    })
}

fn sample(t: &mut Table) {
    let all = &[F32, F16, BF16];
    t.case("sample/plain", all, normal(), Exact, |g| {
        let x = g.x([16, 50])?;
        g.sample(x, Sampling::new(1))
    });
    // Rows 0 and 2 have one key and number and so draw alike from logits that are alike.
    t.case("sample/keys-of-rows", all, normal(), Exact, |g| {
        let x = g.x([4, 900])?;
        let words = [1, 2, 3, 4, 0xffff_fff0, 7, 0, 0, 1, 2, 3, 4, 1, 2, 4, 4];
        let draws = Some(g.ints(U32, [4, 4], &words)?);
        g.sample(x, Sampling { draws, ..Sampling::new(9) })
    });
    // Without draws each row takes its largest logit, the first of equal ones.
    for v in [1usize, 33, 900, 4096, 65_537, 151_936] {
        t.case(&format!("sample/largest-{v}"), all, whole(-3, 3), Exact, move |g| {
            let x = g.x([3, v])?;
            let how = how(g, 0.8, 50, 0.9, 0.01)?;
            let draws = Some(g.ints(U32, [0, 4], &[])?);
            g.sample(x, Sampling { draws, ..how })
        });
    }
    let filters: [(&str, f32, i32, f32, f32); 19] = [
        ("greedy", 0.0, 0, 1.0, 0.0),
        ("negative-temperature", -1.0, 40, 0.9, 0.0),
        ("nan-temperature", f32::NAN, 0, 1.0, 0.0),
        ("tiny-temperature", 1e-20, 0, 1.0, 0.0),
        ("cold", 0.3, 0, 1.0, 0.0),
        ("hot", 3.0, 0, 1.0, 0.0),
        ("boundless-temperature", f32::INFINITY, 0, 1.0, 0.0),
        ("top_k-1", 1.0, 1, 1.0, 0.0),
        ("top_k-7", 1.5, 7, 1.0, 0.0),
        ("top_k-all", 1.5, 5000, 1.0, 0.0),
        ("top_p-0", 1.0, 0, 0.0, 0.0),
        ("top_p-0.5", 1.0, 0, 0.5, 0.0),
        ("top_p-0.95", 2.0, 0, 0.95, 0.0),
        ("top_p-nan", 1.0, 0, f32::NAN, 0.0),
        ("min_p-0.1", 2.0, 0, 1.0, 0.1),
        ("min_p-2", 2.0, 0, 1.0, 2.0),
        ("min_p-nan", 2.0, 0, 1.0, f32::NAN),
        ("top_p-negative", 1.0, 0, -1.0, -1.0),
        ("all", 1.7, 20, 0.9, 0.02),
    ];
    for (what, temperature, top_k, top_p, min_p) in filters {
        t.case(&format!("sample/{what}"), &[F32], normal(), Exact, move |g| {
            let x = g.x([24, 300])?;
            let how = how(g, temperature, top_k, top_p, min_p)?;
            g.sample(x, how)
        });
        t.case(&format!("sample/ties-{what}"), &[F16], whole(0, 2), Exact, move |g| {
            let x = g.x([8, 700])?;
            let how = how(g, temperature, top_k, top_p, min_p)?;
            g.sample(x, how)
        });
    }
    for v in [1usize, 2, 31, 33, 1000, 4096, 65_537, 151_936] {
        t.case(&format!("sample/{v}-tokens"), &[F32], normal(), Exact, move |g| {
            let x = g.x([3, v])?;
            let how = how(g, 0.8, 50, 0.9, 0.01)?;
            g.sample(x, how)
        });
        t.case(&format!("sample/{v}-tokens-top_p"), &[BF16], normal(), Exact, move |g| {
            let x = g.x([2, v])?;
            let how = how(g, 2.5, 0, 0.8, 0.0)?;
            g.sample(x, how)
        });
    }
    t.case("sample/special", all, Special, Exact, |g| {
        let x = g.x([20, 37])?;
        let how = how(g, 1.0, 0, 0.999, 0.0)?;
        g.sample(x, how)
    });
    t.case(
        "sample/masked",
        all,
        these(&[f64::NEG_INFINITY, 1.0, f64::NEG_INFINITY, 1.5, f64::NAN]),
        Exact,
        |g| {
            let x = g.x([9, 65])?;
            g.sample(x, Sampling::new(4))
        },
    );
    t.case("sample/nothing-left", all, these(&[f64::NEG_INFINITY, f64::NAN]), Exact, |g| {
        let x = g.x([9, 66])?;
        g.sample(x, Sampling::new(4))
    });
    t.case("sample/small-differences", &[F32], crate::fill::Fill::Exponents(-149, -100), Exact, |g| {
        let x = g.x([9, 66])?;
        let how = how(g, 1e-25, 9, 1.0, 0.0)?;
        g.sample(x, how)
    });
    t.case("sample/one-row", all, normal(), Exact, |g| {
        let x = g.x([515])?;
        g.sample(x, Sampling::new(5))
    });
    t.case("sample/no-rows", &[F32], normal(), Exact, |g| {
        let x = g.x([0, 515])?;
        g.sample(x, Sampling::new(5))
    });
    t.case("sample/run-9", &[F32], normal(), Exact, |g| {
        g.at_run(9)?;
        let x = g.x([30, 44])?;
        let (a, b) = (g.sample(x, Sampling::new(5))?, g.sample(x, Sampling::new(5))?);
        Ok(vec![a, b])
    });
    t.case("sample/per-row", &[F32], normal(), Exact, |g| {
        let x = g.x([6, 900])?;
        let how = Sampling {
            temperature: Some(g.of(F32, [6], these(&[0.0, 0.5, 1.0, 2.0, 5.0, 1.0]))?),
            top_k: Some(g.ints(I32, [6], &[0, 5, -1, 100, 2000, 1])?),
            top_p: Some(g.of(F32, [6], these(&[1.0, 0.9, 0.3, 1.5, 0.99, 0.5]))?),
            min_p: Some(g.of(F32, [6], these(&[0.0, 0.2, 0.0, -1.0, 0.05, 0.0]))?),
            seed: 3,
            draws: None,
        };
        g.sample(x, how)
    });
}

/// A scalar that a run gives.
fn number(g: &mut Build, x: f64) -> Result<ValueId, Error> {
    g.of(F32, [], these(&[x]))
}

fn penalties(t: &mut Table) {
    for index in [I32, I64] {
        t.case(&format!("penalties/all-{index}"), FLOATS, normal(), Near(4.0, 4.0), move |g| {
            let x = g.x([3, 40])?;
            let tokens = g.ints(index, [3, 7], &[3, 39, 3, -1, 0, 7, 3, 9, -1, 9, -5, 11])?;
            let (r, f, p) = (number(g, 1.3)?, number(g, 0.25)?, number(g, 0.5)?);
            g.penalties(x, tokens, Some(r), Some(f), Some(p))
        });
    }
    t.case("penalties/per-row", &[F32], normal(), Near(4.0, 4.0), |g| {
        let x = g.x([2, 30])?;
        let tokens = g.of(I32, [2, 9], crate::fill::Fill::Index(30, true))?;
        let r = g.of(F32, [2], these(&[1.2, 1.0]))?;
        let f = g.of(F32, [2], these(&[0.0, 0.7]))?;
        g.penalties(x, tokens, Some(r), Some(f), None)
    });
    t.case("penalties/one-row", &[F32], normal(), Near(4.0, 4.0), |g| {
        let x = g.x([30])?;
        let tokens = g.ints(I64, [4], &[1, 2, 1, 29])?;
        let p = number(g, 2.0)?;
        g.penalties(x, tokens, None, None, Some(p))
    });
    t.case("penalties/no-tokens", &[F32], normal(), Exact, |g| {
        let x = g.x([2, 30])?;
        let tokens = g.ints(I64, [2, 0], &[])?;
        let p = number(g, 2.0)?;
        g.penalties(x, tokens, None, None, Some(p))
    });
    t.case("penalties/then-sample", &[F32], whole(-3, 3), Exact, |g| {
        let x = g.x([4, 64])?;
        let tokens = g.of(I32, [4, 20], crate::fill::Fill::Index(64, false))?;
        let (r, f) = (number(g, 2.0)?, number(g, 0.5)?);
        let x: ValueId = g.penalties(x, tokens, Some(r), Some(f), None)?;
        g.sample(x, Sampling::new(11))
    });
    t.case("penalties/f64", &[F64], normal(), Near(4.0, 4.0), |g| {
        let x = g.x([2, 30])?;
        let tokens = g.ints(I64, [2, 3], &[1, 2, 1, 29, 5, 5])?;
        let r = number(g, 1.5)?;
        g.penalties(x, tokens, Some(r), None, None)
    });
}
