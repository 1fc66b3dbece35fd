//! Chains on every device against a host leapfrog, and what integrators must keep.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

mod common;

use common::{
    Model, coordinates, devices, error, errors, hierarchical, logistic, mixture, nested, noise, open,
    reference,
};
use olivine::internals::OptionsExt as _;
use olivine::{PipelineCache, Session, SessionOptions};
use olivine_chain::{Chain, DType, Data, Density, Leapfrog};

fn bound(dtype: DType) -> f64 {
    if dtype == DType::F64 { 1e-13 } else { 1e-5 }
}

fn check(model: &Model, step_size: f64, steps: usize) {
    let (q, p) = model.start();
    let leapfrog = model.leapfrog(step_size, steps);
    let wanted = reference(&model.by_hand, &leapfrog, &q, &p);
    for (session, dtype) in devices() {
        let chain = Chain::compile(&session, &model.density(), dtype).unwrap();
        let run = chain.bind(&model.data, model.d).unwrap().run(&leapfrog, &q, &p).unwrap();
        let error = errors(&run, &wanted);
        assert!(error <= bound(dtype), "{} of {dtype} on {}: {error:e}", model.name, session.device());
    }
}

#[test]
fn a_mixture_follows_a_host_leapfrog() {
    check(&mixture(200), 0.01, 50);
}

#[test]
fn a_regression_follows_a_host_leapfrog() {
    check(&logistic(150, 5), 0.02, 50);
    check(&logistic(20, 70), 0.02, 50);
}

#[test]
fn groups_that_are_gathered_follow_a_host_leapfrog() {
    check(&hierarchical(100, 9), 0.02, 50);
}

#[test]
fn a_density_of_two_passes_follows_a_host_leapfrog() {
    check(&nested(100), 0.02, 50);
}

#[test]
fn many_observations_are_shared_by_workgroups() {
    check(&mixture(2000), 0.002, 6);
    check(&logistic(1500, 3), 0.002, 6);
    check(&hierarchical(1500, 40), 0.005, 6);
    check(&nested(1500), 0.005, 6);
}

#[test]
fn many_coordinates_are_shared_by_threads() {
    check(&coordinates(257), 0.05, 8);
    check(&coordinates(4096), 0.02, 3);
    check(&logistic(7, 300), 0.01, 5);
}

#[test]
fn a_standard_normal_gives_known_numbers() {
    let density: Density = "sum_coord(-0.5 * q^2 - 0.5 * log(2 * pi))".parse().unwrap();
    let leapfrog = Leapfrog { step_size: 0.05, inverse_mass: vec![1.0], steps: 1 };
    for (session, dtype) in devices() {
        let chain = Chain::compile(&session, &density, dtype).unwrap().bind(&Data::default(), 1).unwrap();
        let run = chain.run(&leapfrog, &[0.3], &[1.0]).unwrap();
        let (q, logp) = if dtype == DType::F64 { (1e-15, 1e-12) } else { (3e-8, 1e-7) };
        assert!((run.q[0] - 0.349_625).abs() <= q, "{}", run.q[0]);
        assert!((run.density[0] - -0.980_057_353_517).abs() <= logp, "{}", run.density[0]);
        assert_eq!(run.gradient[0], -run.q[0]);
    }
}

#[test]
fn a_chain_is_reversible() {
    let model = mixture(60);
    let (q, p) = model.start();
    let leapfrog = model.leapfrog(0.02, 30);
    for (session, dtype) in devices() {
        let chain = Chain::compile(&session, &model.density(), dtype).unwrap().bind(&model.data, 8).unwrap();
        let there = chain.run(&leapfrog, &q, &p).unwrap();
        let (end, last) = (&there.q[29 * 8..], &there.p[29 * 8..]);
        let back = chain.run(&leapfrog, end, &last.iter().map(|p| -p).collect::<Vec<_>>()).unwrap();
        let tolerance = if dtype == DType::F64 { 1e-12 } else { 1e-4 };
        assert!(error(&back.q[29 * 8..], &q) <= tolerance, "{dtype} on {}", session.device());
    }
}

#[test]
fn the_error_of_the_energy_falls_with_the_square_of_the_step() {
    let model = mixture(60);
    let (q, p) = model.start();
    let session = open("vulkan");
    let chain = Chain::compile(&session, &model.density(), DType::F64).unwrap().bind(&model.data, 8).unwrap();
    let energy = |value: f64, p: &[f64], masses: &[f64]| {
        p.iter().zip(masses).map(|(p, m)| 0.5 * p * p * m).sum::<f64>() - value
    };
    let errors = [0.02, 0.01, 0.005].map(|step_size| {
        let leapfrog = model.leapfrog(step_size, (0.4 / step_size) as usize);
        let run = chain.run(&leapfrog, &q, &p).unwrap();
        let first = energy((model.by_hand)(&q).0, &p, &leapfrog.inverse_mass);
        let last = energy(*run.density.last().unwrap(), &run.p[run.p.len() - 8..], &leapfrog.inverse_mass);
        (last - first).abs()
    });
    for pair in errors.windows(2) {
        let ratio = pair[0] / pair[1];
        assert!((3.4..4.6).contains(&ratio), "{errors:?}");
    }
}

#[test]
fn a_shorter_chain_is_a_prefix_bit_for_bit() {
    for model in [mixture(50), mixture(900), logistic(800, 3)] {
        let (q, p) = model.start();
        for (session, dtype) in devices() {
            let chain = Chain::compile(&session, &model.density(), dtype).unwrap();
            let chain = chain.bind(&model.data, model.d).unwrap();
            let long = chain.run(&model.leapfrog(0.01, 9), &q, &p).unwrap();
            let short = chain.run(&model.leapfrog(0.01, 4), &q, &p).unwrap();
            assert_eq!(short.q, long.q[..4 * model.d], "{} {dtype} {}", model.name, session.device());
            assert_eq!(short.p, long.p[..4 * model.d]);
            assert_eq!(short.gradient, long.gradient[..4 * model.d]);
            assert_eq!(short.density, long.density[..4]);
        }
    }
}

#[test]
fn chains_of_a_batch_are_what_they_are_alone() {
    for model in [mixture(100), hierarchical(90, 12)] {
        let (chains, d) = (5, model.d);
        let (q, p) = (noise(61, chains * d), noise(62, chains * d));
        let leapfrog = model.leapfrog(0.01, 7);
        for (session, dtype) in devices() {
            let chain =
                Chain::compile(&session, &model.density(), dtype).unwrap().bind(&model.data, d).unwrap();
            let all = chain.run_batch(&leapfrog, &q, &p).unwrap();
            assert_eq!((all.chains, all.q.len()), (chains, chains * 7 * d));
            for i in 0..chains {
                let part = i * d..(i + 1) * d;
                let one = chain.run(&leapfrog, &q[part.clone()], &p[part]).unwrap();
                let rows = i * 7 * d..(i + 1) * 7 * d;
                assert_eq!(one.q, all.q[rows.clone()], "{} {dtype} {}", model.name, session.device());
                assert_eq!(one.gradient, all.gradient[rows]);
                assert_eq!(one.density, all.density[i * 7..(i + 1) * 7]);
            }
        }
    }
}

#[test]
fn densities_that_are_not_finite_pass_through() {
    for (text, q, expected) in [
        ("log(q[0])", -1.0, f64::NAN),
        ("sum_coord(1 / (q - q))", 2.0, f64::INFINITY),
        ("-exp(q[0])", 800.0, f64::NEG_INFINITY),
    ] {
        let density: Density = text.parse().unwrap();
        let leapfrog = Leapfrog { step_size: 0.1, inverse_mass: vec![0.0], steps: 3 };
        for (session, dtype) in devices() {
            let chain = Chain::compile(&session, &density, dtype).unwrap().bind(&Data::default(), 1).unwrap();
            let run = chain.run(&leapfrog, &[q], &[0.0]).unwrap();
            let first = run.density[0];
            // 0 · ∞ moves the position to NaN: its density is NaN, or what it was.
            let fits = first.is_nan() || first == expected;
            assert!(fits && !first.is_finite(), "{text} {dtype} on {}: {first}", session.device());
        }
    }
}

#[test]
fn a_device_without_f64_refuses_it_in_words() {
    let options = SessionOptions::new().pipeline_cache(PipelineCache::Off).browser_dialect(true);
    let session = Session::with_options("wgpu".parse().unwrap(), options).unwrap();
    let density: Density = "-0.5 * q[0]^2".parse().unwrap();
    let error = Chain::compile(&session, &density, DType::F64).err().unwrap().to_string();
    assert!(error.contains("cannot compute in f64"), "{error}");
    assert!(Chain::compile(&session, &density, DType::F32).is_ok());
    assert!(Chain::compile(&open("cpu"), &density, DType::I32).is_err());
}

#[test]
fn data_that_does_not_fit_is_refused_by_name() {
    let density: Density =
        "index g; vector v; matrix X; sum_obs(y * q[g] * v[2] * sum_coord(X * q))".parse().unwrap();
    let chain = Chain::compile(&open("cpu"), &density, DType::F64).unwrap();
    let data = || {
        Data::new(vec![1.0; 4])
            .with("v", vec![1.0; 3])
            .with("X", vec![1.0; 12])
            .with_index("g", vec![0, 1, 2, 2])
    };
    assert!(chain.bind(&data(), 3).is_ok());
    for (data, d, word) in [
        (data(), 0, "coordinates"),
        (data(), 2, "indexed at 2"),
        (data().with("v", vec![1.0; 4]), 3, "`v` has 4"),
        (data().with("X", vec![1.0; 11]), 3, "`X` has 11"),
        (data().with_index("g", vec![0; 3]), 3, "`g` has 3"),
        (data().with_index("g", vec![0, 1, 3, 0]), 3, "is 3 at observation 2"),
        (data().with("w", vec![]), 3, "no data named `w`"),
        (Data::new(vec![1.0; 4]), 3, "not given"),
    ] {
        let error = chain.bind(&data, d).err().unwrap().to_string();
        assert!(error.contains(word), "{error}");
    }
    let bound = chain.bind(&data(), 3).unwrap();
    let leapfrog = Leapfrog { step_size: 0.1, inverse_mass: vec![1.0; 3], steps: 2 };
    assert!(bound.run(&leapfrog, &[0.0; 2], &[0.0; 2]).is_err());
    assert!(bound.run_batch(&leapfrog, &[0.0; 6], &[0.0; 3]).is_err());
    let masses = Leapfrog { inverse_mass: vec![1.0; 2], ..leapfrog.clone() };
    assert!(bound.run(&masses, &[0.0; 3], &[0.0; 3]).is_err());
    assert!(bound.run(&Leapfrog { steps: 0, ..leapfrog }, &[0.0; 3], &[0.0; 3]).unwrap().q.is_empty());
}
