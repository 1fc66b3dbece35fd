//! f16 and bf16 on the CPU: results are rounded once, at the end, unless the model or the session asks for more.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

use olivine::internals::OptionsExt as _;
use olivine::prelude::*;
use olivine_cases::oracle::{self, Between, Value};
use olivine_cases::{Fill, Rng, SessionBackend, round_to, run_table, table, ulp};
use olivine_ir::op::{Binary, ReduceKind, ScalarOp, Unary};
use olivine_ir::{Error as GraphError, IntoShape, TensorType, ValueId};

const NARROW: [DType; 2] = [DType::F16, DType::BF16];

fn cpu(round_every_op: bool) -> Session {
    Session::with_options(Device::Cpu, SessionOptions::new().round_every_op(round_every_op)).unwrap()
}

/// A graph of one input `x` and one output `y`.
fn graph(
    ty: TensorType,
    build: impl FnOnce(&mut Graph, ValueId) -> Result<ValueId, GraphError>,
) -> Result<Graph, GraphError> {
    let mut g = Graph::new("g");
    let x = g.input("x", ty.dtype, ty.shape)?;
    let y = build(&mut g, x)?;
    g.output("y", y)?;
    Ok(g)
}

fn run(session: &Session, graph: &Graph, x: &Tensor) -> Vec<f64> {
    session.compile(graph).unwrap().run([("x", x)]).unwrap().get("y").unwrap().to_f64()
}

/// Numbers of a dtype.
fn tensor(dtype: DType, numbers: &[f64]) -> Tensor {
    let ty = TensorType::new(dtype, [numbers.len()].into_shape().unwrap());
    Fill::These(numbers.to_vec()).tensor(ty, &mut Rng::new(0)).unwrap()
}

/// One output of a graph of the CPU against the oracle's, which does not round: at most a rounding and a bit away.
fn rounds_once(what: &str, graph: &Graph, x: &Tensor, slack: f64) {
    let want = oracle::run(graph, &[("x".into(), Value::of(x))], Between::Unrounded).unwrap();
    let want = want[0].to_f64();
    let got = run(&cpu(false), graph, x);
    let dtype = x.dtype();
    for (i, (got, want)) in got.iter().zip(&want).enumerate() {
        let rounded = round_to(dtype, *want);
        let same = (got.is_nan() && want.is_nan()) || *got == rounded;
        let error = (got - want).abs();
        assert!(
            same || error <= (0.5 + slack) * ulp(dtype, *want),
            "{what} of {dtype} at {i}: got {got}, want {want}, {} units",
            error / ulp(dtype, *want)
        );
    }
}

#[test]
fn a_chain_around_every_function_rounds_once() {
    let mut rng = Rng::new(7);
    for dtype in NARROW {
        let ty = TensorType::new(dtype, [301].into_shape().unwrap());
        let x = Fill::Uniform(0.05, 0.95).tensor(ty, &mut rng).unwrap();
        for op in Unary::ALL {
            if ScalarOp::Unary(*op).result_dtype(&[dtype]) != Ok(dtype) {
                continue;
            }
            let g = graph(ty, |g, x| {
                let x = g.binary_scalar(Binary::Mul, x, 0.8)?;
                let x = g.binary_scalar(Binary::Add, x, if *op == Unary::Acosh { 1.5 } else { 0.1 })?;
                let y = g.add1(ScalarOp::Unary(*op), &[x])?;
                let y = g.binary_scalar(Binary::Add, y, 3.0)?;
                let y = g.mul(y, x)?;
                g.binary_scalar(Binary::Div, y, 7.0)
            });
            rounds_once(op.name(), &g.unwrap(), &x, 0.02);
        }
    }
}

#[test]
fn layers_round_once() {
    let mut rng = Rng::new(9);
    for dtype in NARROW {
        let ty = TensorType::new(dtype, [12, 40].into_shape().unwrap());
        let x = Fill::Normal(0.0, 1.0).tensor(ty, &mut rng).unwrap();
        let mut constant = |g: &mut Graph, shape: &[usize]| {
            let ty = TensorType::new(dtype, shape.into_shape().unwrap());
            g.constant(Fill::Normal(0.0, 0.2).tensor(ty, &mut rng).unwrap())
        };
        let g = graph(ty, |g, x| {
            let (w, v, scale) = (constant(g, &[40, 64]), constant(g, &[64, 40]), constant(g, &[40]));
            let h = g.matmul(x, w)?;
            let h = g.gelu(h)?;
            let h = g.matmul(h, v)?;
            let sum = g.add(h, x)?;
            let n = g.layer_norm(sum, scale, None, 1e-5)?;
            let scores = g.matmul_nt(n, n)?;
            let weights = g.softmax(scores, -1)?;
            let y = g.matmul(weights, n)?;
            let mean = g.reduce(ReduceKind::Mean, y, &[1], true)?;
            let y = g.sub(y, mean)?;
            g.binary_scalar(Binary::Add, y, 1.0)
        });
        rounds_once("layers", &g.unwrap(), &x, 0.02);
    }
}

#[test]
fn numbers_beyond_f16_inside_a_chain_do_not_become_infinite() {
    let x = tensor(DType::F16, &[300.0, -60000.0, 3e-4, 0.0]);
    let length = graph(x.ty(), |g, x| {
        let square = g.mul(x, x)?;
        let sum = g.reduce(ReduceKind::Sum, square, &[0], true)?;
        let length = g.sqrt(sum)?;
        g.div(x, length)
    })
    .unwrap();
    let wide = run(&cpu(false), &length, &x);
    assert!((wide[1] + 1.0).abs() < 1e-3 && (wide[0] - 0.005).abs() < 1e-5, "{wide:?}");
    // Where every operation rounds, the sum of squares is infinite.
    assert_eq!(run(&cpu(true), &length, &x), [0.0, -0.0, 0.0, 0.0]);
    let output = graph(x.ty(), |g, x| g.mul(x, x)).unwrap();
    assert_eq!(run(&cpu(false), &output, &x)[1], f64::INFINITY, "what leaves the graph is f16");
}

#[test]
fn a_quotient_of_numbers_below_f16_is_not_nan() {
    // The phase of a spectrum: parts that f16 would round to 0 / 0.
    let x = tensor(DType::F16, &[1e-4, -2e-4, 5e-5, 1.0]);
    let g = graph(x.ty(), |g, x| {
        let square = g.mul(x, x)?;
        let length = g.sqrt(square)?;
        let (tiny, small) = (g.mul(square, length)?, g.mul(square, x)?);
        g.div(small, tiny)
    })
    .unwrap();
    let wide = run(&cpu(false), &g, &x);
    assert_eq!(wide, [1.0, -1.0, 1.0, 1.0]);
    assert!(run(&cpu(true), &g, &x)[0].is_nan());
}

#[test]
fn casts_that_a_model_asks_for_round() {
    let x = tensor(DType::F32, &[1.0 / 3.0, 1e5, 1e-9, 2049.0]);
    for dtype in NARROW {
        let round_trip = graph(x.ty(), |g, x| {
            let narrow = g.cast(x, dtype)?;
            let wide = g.cast(narrow, DType::F32)?;
            g.mul(wide, wide)
        })
        .unwrap();
        let rounded: Vec<f64> = x.to_f64().iter().map(|x| round_to(dtype, *x)).collect();
        let want: Vec<f64> = rounded.iter().map(|x| f64::from((*x as f32) * (*x as f32))).collect();
        assert_eq!(run(&cpu(false), &round_trip, &x), want);
    }
    // An integer is made of the rounded number: 2047 + 2 is not one of f16.
    let x = tensor(DType::F16, &[2047.0, 0.5]);
    let whole = graph(x.ty(), |g, x| {
        let sum = g.binary_scalar(Binary::Add, x, 2.0)?;
        g.cast(sum, DType::I32)
    })
    .unwrap();
    assert_eq!(run(&cpu(false), &whole, &x), [2048.0, 2.0]);
}

#[test]
fn cases_of_narrow_floats_pass_where_every_operation_rounds() {
    let options = SessionOptions::new().round_every_op(true);
    let backend = SessionBackend::new("cpu, rounding", Device::Cpu, options).unwrap();
    let cases: Vec<_> = table().into_iter().filter(|case| NARROW.contains(&case.dtype)).collect();
    let report = run_table(&backend, &cases, "", 2);
    assert!(report.results.len() > 100);
    assert_eq!(report.passed(), report.results.len(), "{report}");
}
