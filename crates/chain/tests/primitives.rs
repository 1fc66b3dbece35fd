//! Gradients of every primitive against finite differences, and every primitive on GPUs against the CPU.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

mod common;

use common::{devices, errors, noise, open};
use olivine_chain::{
    Axis, Builder, Chain, Comparison, DType, Data, DataKind, Density, Function, Leapfrog, Operator, Reduction,
};

/// The gradient against central differences of the density.
fn differences(name: &str, density: &Density, data: &Data, q: &[f64]) {
    let (_, gradient) = density.evaluate(data, q).unwrap();
    for c in 0..q.len() {
        let h = 1e-5 * q[c].abs().max(0.1);
        let at = |x: f64| {
            let mut q = q.to_vec();
            q[c] = x;
            density.evaluate(data, &q).unwrap().0
        };
        // Of fourth order.
        let near = (at(q[c] + h) - at(q[c] - h)) / (2.0 * h);
        let far = (at(q[c] + 2.0 * h) - at(q[c] - 2.0 * h)) / (4.0 * h);
        let wanted = (4.0 * near - far) / 3.0;
        let error = (gradient[c] - wanted).abs();
        assert!(error <= 1e-7 * wanted.abs().max(1.0), "{name} by {c}: {} not {wanted}", gradient[c]);
    }
}

/// Arguments inside the function's domain, away from kinks.
fn arguments(f: Function) -> Vec<f64> {
    match f {
        Function::Sqrt | Function::Log => vec![0.1, 0.9, 3.0, 40.0],
        Function::Lgamma | Function::Digamma => vec![0.05, 0.4, 0.6, 1.0, 2.5, 8.9, 9.1, 60.0, -0.4, -2.3],
        Function::Log1p => vec![-0.5, 0.01, 3.0],
        Function::Reciprocal => vec![-2.0, 0.3, 5.0],
        _ => vec![-2.5, -0.3, 0.2, 1.7],
    }
}

#[test]
fn every_function_has_the_derivative_of_its_differences() {
    for f in Function::ALL {
        let b = Builder::new();
        let density = b.density(b.position().at(0).apply(*f)).unwrap();
        if *f == Function::Trigamma {
            let error = density.evaluate(&Data::default(), &[1.0]).unwrap_err().to_string();
            assert!(error.contains("trigamma"), "{error}");
            continue;
        }
        for x in arguments(*f) {
            if *f == Function::Detach {
                assert_eq!(density.evaluate(&Data::default(), &[x]).unwrap(), (x, vec![0.0]));
                continue;
            }
            differences(f.name(), &density, &Data::default(), &[x]);
        }
    }
}

#[test]
fn every_operator_has_the_derivatives_of_its_differences() {
    for op in Operator::ALL {
        let b = Builder::new();
        let q = b.position();
        let density = b.density(q.at(0).with(*op, q.at(1))).unwrap();
        for pair in [[0.5, 2.0], [2.0, 0.5], [3.0, 1.5], [0.2, 7.0]] {
            differences(op.name(), &density, &Data::default(), &pair);
        }
        // The same expression twice, and with numbers.
        let x = q.at(0).with(*op, 1.7).with(*op, q.at(0) + 4.0);
        let density = b.density(x * x).unwrap();
        differences(op.name(), &density, &Data::default(), &[0.8, 0.0]);
    }
}

#[test]
fn every_comparison_selects() {
    for op in Comparison::ALL {
        let b = Builder::new();
        let q = b.position();
        let chosen = q.at(0).compare(*op, q.at(1)).select(q.at(0).square(), q.at(1).exp());
        let density = b.density(chosen + q.at(0).compare(*op, 0.25) * q.at(1)).unwrap();
        for pair in [[0.5, 2.0], [2.0, 0.5]] {
            differences(op.name(), &density, &Data::default(), &pair);
        }
    }
}

#[test]
fn every_reduction_and_every_kind_of_data_has_derivatives() {
    for how in Reduction::ALL {
        for axis in [Axis::Obs, Axis::Coord] {
            let b = Builder::new();
            let (q, y) = (b.position(), b.obs());
            let both = (y * q + q.square() * 0.3).sin();
            let inner = match axis {
                Axis::Obs => both.reduce(*how, Axis::Obs).reduce(Reduction::Sum, Axis::Coord),
                Axis::Coord => both.reduce(*how, Axis::Coord).reduce(Reduction::Sum, Axis::Obs),
            };
            let outer = ((y * q.at(1)).reduce(*how, Axis::Obs) + (q * 1.5).reduce(*how, Axis::Coord)).exp();
            let density = b.density(inner * outer).unwrap();
            let data = Data::new(vec![0.3, -0.8, 1.1, 0.45]);
            differences(&format!("{how:?} {axis:?}"), &density, &data, &[0.4, -0.7, 0.2]);
        }
    }
    let given = DataKind::ALL.map(|kind| match kind {
        DataKind::Scalar => ("scalar a;", "a * q[0]"),
        DataKind::Column => ("column a;", "sum_obs(a * exp(q[0] * y))"),
        DataKind::Vector => ("vector a;", "sum_coord(exp(a * q)) * a[1]"),
        DataKind::Matrix => ("matrix a;", "sum_obs(tanh(sum_coord(a * q^2)) * y)"),
        DataKind::Index => ("index a; vector v;", "sum_obs(sin(q[a]) * v[a] * y + q[a])"),
    });
    for (declared, expr) in given {
        let density: Density =
            format!("{declared} {expr} + n_obs * dim * q[1] + sum_coord(coord * q)").parse().unwrap();
        let (n_obs, d) = (4, 3);
        let mut data = Data::new(noise(9, n_obs));
        for piece in density.data() {
            data = match piece.kind {
                DataKind::Scalar => data.with(&piece.name, vec![0.7]),
                DataKind::Column => data.with(&piece.name, noise(1, n_obs)),
                DataKind::Vector => data.with(&piece.name, noise(2, d)),
                DataKind::Matrix => data.with(&piece.name, noise(3, n_obs * d)),
                DataKind::Index => data.with_index(&piece.name, vec![2, 0, 2, 1]),
            };
        }
        differences(expr, &density, &data, &[0.4, -0.7, 0.2]);
    }
}

/// A density with every primitive, each at coordinates and at observations.
fn everything() -> (Density, Data, Vec<f64>) {
    let b = Builder::new();
    let (q, y) = (b.position(), b.obs());
    let mut total = b.number(0.0);
    let mut start = Vec::new();
    for f in Function::ALL.iter().filter(|f| **f != Function::Trigamma) {
        let x = q.at(start.len() as u32);
        // All different, so that a maximum is in one place.
        start.push(arguments(*f)[1] + 0.003 * start.len() as f64);
        total = total + x.apply(*f) + (x + y * 0.01).apply(*f).sum_obs();
    }
    for op in Operator::ALL {
        let (x, z) = (q.at(start.len() as u32), q.at(start.len() as u32 + 1));
        start.extend([1.3 + 0.003 * start.len() as f64, 0.6 + 0.003 * start.len() as f64]);
        total = total + x.with(*op, z) + x.with(*op, z + y * 0.01).sum_obs();
    }
    for op in Comparison::ALL {
        let chosen = (y * q.at(0)).compare(*op, 0.1).select(y * q.at(1), q.at(0));
        total = total + chosen.sum_obs() + y.compare(*op, 0.2).sum_obs() * q.at(2);
    }
    for how in Reduction::ALL {
        total = total + (q * y).sin().reduce(*how, Axis::Coord).sum_obs();
        total = total + (q * y * 0.1).exp().reduce(*how, Axis::Obs).sum_coord();
        total = total + (y * q.at(1)).reduce(*how, Axis::Obs) + q.reduce(*how, Axis::Coord);
    }
    (b.density(total).unwrap(), Data::new(noise(5, 40)), start)
}

#[test]
fn every_primitive_is_the_same_on_every_device() {
    let (density, data, q) = everything();
    let d = q.len();
    let leapfrog = Leapfrog { step_size: 1e-4, inverse_mass: vec![1.0; d], steps: 2 };
    let wanted = Chain::compile(&open("cpu"), &density, DType::F64).unwrap();
    let wanted = wanted.bind(&data, d).unwrap().run(&leapfrog, &q, &vec![0.1; d]).unwrap();
    assert!(wanted.density.iter().all(|x| x.is_finite()), "{:?}", wanted.density);
    for (session, dtype) in devices() {
        let chain = Chain::compile(&session, &density, dtype).unwrap().bind(&data, d).unwrap();
        let run = chain.run(&leapfrog, &q, &vec![0.1; d]).unwrap();
        let error = errors(&run, &wanted);
        let bound = if dtype == DType::F64 { 1e-13 } else { 1e-5 };
        assert!(error <= bound, "{dtype} on {}: {error:e}", session.device());
    }
}

#[test]
fn the_logarithm_of_the_gamma_function_has_known_values() {
    let at = |text: &str, x: f64| text.parse::<Density>().unwrap().evaluate(&Data::default(), &[x]).unwrap();
    let close = |a: f64, b: f64| assert!((a - b).abs() <= 4e-15 * b.abs().max(1.0), "{a} {b}");
    for (x, wanted) in [
        (0.5, 0.572_364_942_924_700_1),
        (1.0, 0.0),
        (2.0, 0.0),
        (10.0, 12.801_827_480_081_469),
        (100.0, 359.134_205_369_575_4),
        (-1.5, 0.860_047_015_376_481),
    ] {
        close(at("lgamma(q[0])", x).0, wanted);
    }
    for (x, digamma, trigamma) in [
        (1.0, -0.577_215_664_901_532_9, std::f64::consts::PI.powi(2) / 6.0),
        (0.25, -4.227_453_533_376_265, 17.197_329_154_507_11),
        (-0.5, 0.036_489_973_978_576_52, 8.934_802_200_544_68),
    ] {
        let (value, slope) = at("digamma(q[0])", x);
        close(value, digamma);
        close(slope[0], trigamma);
        close(at("lgamma(q[0])", x).1[0], digamma);
    }
    assert_eq!(at("lgamma(q[0])", 0.0).0, f64::INFINITY);
    assert_eq!(at("lgamma(q[0])", f64::INFINITY).0, f64::INFINITY);
    assert!(at("lgamma(q[0])", f64::NAN).0.is_nan() && at("digamma(q[0])", -3.0).0.is_nan());
}
