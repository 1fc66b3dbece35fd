//! What a chain does inside: passes, dispatches, kernels of every kind of device.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

mod common;

use std::io::Write as _;
use std::process::{Command, Stdio};

use common::{
    MIXTURE, coordinates, error, errors, hierarchical, logistic, mixture, nested, noise, open, reference,
};
use olivine::internals::OptionsExt as _;
use olivine::internals::gpu::Mask;
use olivine::internals::kernel::interpret::{Device, interpret};
use olivine::{PipelineCache, Session, SessionOptions};
use olivine_chain::contract::{Contract, kernel, spirv_module};
use olivine_chain::{Chain, DType, Data, Density, Leapfrog, MAX_STEPS};

fn passes(text: &str) -> usize {
    Chain::compile(&open("cpu"), &text.parse().unwrap(), DType::F64).unwrap().passes()
}

#[test]
fn a_density_and_all_partials_take_one_pass_even_inside_a_function() {
    for text in [
        MIXTURE,
        "sum_obs(-0.5 * ((y - q[0]) / exp(q[1]))^2 - q[1])",
        "-log(1 + sum_obs((y - q[0])^2 * q[1]))",
        "matrix X; sum_obs(y * sum_coord(X * q) - softplus(sum_coord(X * q))) - 0.5 * sum_coord(q^2)",
        "index g; -log(sum_obs((y - q[g])^2)) - 0.5 * sum_coord(q^2)",
        "let s = log(sum_coord(exp(q))); sum_obs((y - s)^2)",
    ] {
        assert_eq!(passes(text), 1, "{text}");
    }
    assert_eq!(passes("sum_coord(q^2)"), 0);
}

#[test]
fn terms_that_need_a_sum_take_a_second_pass() {
    assert_eq!(passes("sum_obs((y - q[0] * sum_obs(y * q[0]))^2)"), 2);
    assert_eq!(passes("max_obs(y * q[0]) + log(sum_obs(exp(y * q[0] - max_obs(y * q[0]))))"), 2);
}

#[test]
fn a_chain_that_is_cut_into_dispatches_is_the_same_bit_for_bit() {
    let session = open("vulkan");
    for model in [mixture(50), nested(40), logistic(30, 4), hierarchical(30, 5), coordinates(9)] {
        let (q, p) = model.start();
        let run = |budget: Option<u64>| {
            let chain = Chain::compile(&session, &model.density(), DType::F32).unwrap();
            let chain = budget.into_iter().fold(chain, Chain::with_budget);
            chain.bind(&model.data, model.d).unwrap().run(&model.leapfrog(0.01, 11), &q, &p).unwrap()
        };
        let whole = run(None);
        assert_eq!(run(Some(0)), whole, "{}", model.name);
        assert_eq!(run(Some(10_000)), whole, "{}", model.name);
        assert!(whole.density.iter().all(|x| x.is_finite()));
    }
}

#[test]
fn too_many_steps_are_refused() {
    let density: Density = "-0.5 * q[0]^2".parse().unwrap();
    let chain =
        Chain::compile(&open("cpu"), &density, DType::F64).unwrap().bind(&Data::default(), 1).unwrap();
    let leapfrog = Leapfrog { step_size: 0.1, inverse_mass: vec![1.0], steps: MAX_STEPS + 1 };
    assert!(chain.run(&leapfrog, &[0.0], &[0.0]).unwrap_err().to_string().contains("at most"));
}

#[test]
fn devices_without_subgroups_and_shading_languages_give_the_same() {
    let options = || SessionOptions::new().pipeline_cache(PipelineCache::Off);
    let without = Mask { subgroups: true, ..Mask::default() };
    let sessions = [
        ("vulkan", options().without(without), DType::F64),
        ("wgpu", options().wgsl(true), DType::F32),
        ("wgpu", options().browser_dialect(true), DType::F32),
    ];
    for (device, options, dtype) in sessions {
        let session = Session::with_options(device.parse().unwrap(), options).unwrap();
        for model in [mixture(70), mixture(700), logistic(30, 70), logistic(600, 3), hierarchical(600, 5)] {
            let (q, p) = model.start();
            let leapfrog = model.leapfrog(0.005, 4);
            let wanted = reference(&model.by_hand, &leapfrog, &q, &p);
            let chain = Chain::compile(&session, &model.density(), dtype).unwrap();
            let run = chain.bind(&model.data, model.d).unwrap().run(&leapfrog, &q, &p).unwrap();
            let bound = if dtype == DType::F64 { 1e-13 } else { 1e-5 };
            let error = errors(&run, &wanted);
            assert!(error <= bound, "{} on {device}: {error:e}", model.name);
        }
    }
}

#[test]
fn checked_sessions_find_no_access_outside() {
    let options = SessionOptions::new().pipeline_cache(PipelineCache::Off).checked(true);
    let session = Session::with_options("vulkan".parse().unwrap(), options).unwrap();
    for model in [mixture(700), logistic(20, 40), hierarchical(600, 5), nested(300), coordinates(257)] {
        let (q, p) = model.start();
        let chain = Chain::compile(&session, &model.density(), DType::F32).unwrap();
        chain.bind(&model.data, model.d).unwrap().run(&model.leapfrog(0.01, 3), &q, &p).unwrap();
    }
}

#[test]
fn the_module_of_f64_computes_the_chain_of_its_density() {
    let model = mixture(20);
    let (q, p) = model.start();
    let leapfrog = model.leapfrog(0.01, 5);
    let wanted = reference(&model.by_hand, &leapfrog, &q, &p);
    let contract = Contract { steps: 5, n_obs: 20, d: 8, dtype: DType::F64, step_size: 0.01 };
    let bytes = |x: &[f64]| x.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>();
    let mut extras: Vec<f64> = noise(1, 20).iter().map(|x| 3.0 * x).collect();
    extras.extend(&leapfrog.inverse_mass);
    let mut buffers = vec![bytes(&q), bytes(&p), bytes(&extras)];
    buffers.extend(contract.result_bytes().map(|n| vec![0u8; n as usize]));
    let params: Vec<u32> =
        contract.push().chunks(4).map(|b| u32::from_le_bytes(b.try_into().unwrap())).collect();
    let kernel = kernel(&model.density(), DType::F64).unwrap();
    interpret(&kernel, 1, [2, 1, 1], &mut buffers, &params, Device::EXACT).unwrap();
    for (bytes, theirs) in buffers[3..].iter().zip([&wanted.q, &wanted.p, &wanted.gradient, &wanted.density])
    {
        let ours: Vec<f64> = bytes.chunks(8).map(|b| f64::from_le_bytes(b.try_into().unwrap())).collect();
        let error = error(&ours, theirs);
        assert!(error <= 1e-13, "{error:e}");
    }
}

#[test]
fn modules_are_valid() {
    for text in [MIXTURE, "sum_coord(lgamma(q)) + sum_obs(erf(y * q[0])) + max_obs(y * q[1])"] {
        for dtype in [DType::F32, DType::F64] {
            let bytes = spirv_module(&text.parse().unwrap(), dtype).unwrap();
            let mut child = Command::new("spirv-val")
                .args(["--target-env", "vulkan1.1", "-"])
                .stdin(Stdio::piped())
                .stderr(Stdio::piped())
                .spawn()
                .unwrap_or_else(|e| panic!("spirv-val: {e}; it comes with `apt install spirv-tools`"));
            child.stdin.take().unwrap().write_all(&bytes).unwrap();
            let output = child.wait_with_output().unwrap();
            assert!(output.status.success(), "{dtype}: {}", String::from_utf8_lossy(&output.stderr));
        }
    }
}
