//! The dispatch contract: its checks, and modules that follow it, run as they are.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

mod common;

use common::{MIXTURE, error, mixture, noise, reference};
use olivine_array::{Buffer, Context};
use olivine_chain::contract::{Contract, check_contract, spirv_module};
use olivine_chain::{DType, Density};

fn contract(dtype: DType) -> Contract {
    Contract { steps: 32, n_obs: 200, d: 8, dtype, step_size: 0.01 }
}

#[test]
fn arguments_that_follow_the_contract_pass_and_others_are_refused() {
    for (dtype, size) in [(DType::F32, 4), (DType::F64, 8)] {
        let wanted = contract(dtype);
        let mut push = wanted.push();
        assert_eq!(push.len(), if dtype == DType::F64 { 24 } else { 20 });
        let (q, extras) = (8 * size, 208 * size);
        let found = check_contract(32, q, q, extras, &push).unwrap();
        assert_eq!((found.steps, found.n_obs, found.d, found.dtype), (32, 200, 8, dtype));
        assert!((found.step_size - 0.01).abs() < 1e-9);
        assert_eq!(found.result_bytes(), [32 * 8 * size, 32 * 8 * size, 32 * 8 * size, 32 * size]);
        let refused = |k, q, p, extras, push: &[u8], word: &str| {
            let error = check_contract(k, q, p, extras, push).unwrap_err().to_string();
            assert!(error.contains(word), "{error}");
        };
        refused(31, q, q, extras, &push, "k is 31");
        refused(32, q - 1, q, extras, &push, "position");
        refused(32, q, q - size, extras, &push, "momentum");
        refused(32, q, q, extras - size, &push, "extras");
        refused(32, q, q, extras + 1, &push, "extras");
        refused(32, q, q, extras, &push[..19], "push constants of 19");
        refused(32, q, q, extras, &[0; 129], "push constants of 129");
        refused(32, q, q, extras, &[], "push constants of 0");
        if dtype == DType::F64 {
            refused(32, q, q, extras, &push[..20], "f64 step size");
        }
        push.resize(128, 7);
        assert!(check_contract(32, q, q, extras, &push).is_ok());
        push[8..12].fill(0);
        refused(32, 0, 0, extras, &push, "without coordinates");
        push[..12].fill(0xff);
        refused(u32::MAX, u64::from(u32::MAX) * size, u64::from(u32::MAX) * size, 0, &push, "extras");
    }
}

#[test]
fn densities_that_need_more_than_observations_have_no_module() {
    for (text, word) in
        [("column x; sum_obs(x * q[0])", "column `x`"), ("sum_obs(sum_coord((y - q)^2))", "every coordinate")]
    {
        let density: Density = text.parse().unwrap();
        let error = spirv_module(&density, DType::F32).unwrap_err().to_string();
        assert!(error.contains(word), "{error}");
    }
    let density: Density = MIXTURE.parse().unwrap();
    assert!(spirv_module(&density, DType::I32).is_err());
    let bytes = spirv_module(&density, DType::F64).unwrap();
    assert_eq!(bytes[..4], 0x0723_0203u32.to_le_bytes());
}

/// Runs a module on buffers, as a caller who dispatches it does.
fn run(density: &Density, contract: Contract, inputs: [Vec<f64>; 3]) -> Vec<Vec<f64>> {
    let wide = contract.dtype == DType::F64;
    let bytes = |x: &Vec<f64>| -> Vec<u8> {
        match wide {
            true => x.iter().flat_map(|x| x.to_le_bytes()).collect(),
            false => x.iter().flat_map(|x| (*x as f32).to_le_bytes()).collect(),
        }
    };
    let context =
        Context::new("vulkan".parse().unwrap()).expect("a device; `apt-get install mesa-vulkan-drivers`");
    let module = context.module(&spirv_module(density, contract.dtype).unwrap()).unwrap();
    let mut buffers: Vec<Buffer> = inputs.iter().map(|x| context.upload(&bytes(x)).unwrap()).collect();
    let lengths = [0, 1, 2].map(|i: usize| buffers[i].byte_size() as u64);
    assert_eq!(
        check_contract(contract.steps, lengths[0], lengths[1], lengths[2], &contract.push()).unwrap().d,
        contract.d
    );
    buffers.extend(contract.result_bytes().map(|n| context.alloc(n as usize).unwrap()));
    let all: Vec<&Buffer> = buffers.iter().collect();
    context.dispatch_spv(&all, &contract.push(), [1, 1, 1], &module).unwrap();
    let numbers = |bytes: Vec<u8>| -> Vec<f64> {
        match wide {
            true => bytes.chunks(8).map(|b| f64::from_le_bytes(b.try_into().unwrap())).collect(),
            false => bytes.chunks(4).map(|b| f64::from(f32::from_le_bytes(b.try_into().unwrap()))).collect(),
        }
    };
    buffers[3..].iter().map(|b| numbers(b.download().unwrap())).collect()
}

const DTYPES: [(DType, f64); 2] = [(DType::F32, 1e-5), (DType::F64, 1e-13)];

#[test]
fn a_module_computes_the_chain_of_its_density() {
    let model = mixture(200);
    let (q, p) = model.start();
    let leapfrog = model.leapfrog(0.01, 32);
    let wanted = reference(&model.by_hand, &leapfrog, &q, &p);
    let mut extras: Vec<f64> = noise(1, 200).iter().map(|x| 3.0 * x).collect();
    extras.extend(&leapfrog.inverse_mass);
    for (dtype, bound) in DTYPES {
        let out = run(&model.density(), contract(dtype), [q.clone(), p.clone(), extras.clone()]);
        for (ours, theirs) in out.iter().zip([&wanted.q, &wanted.p, &wanted.gradient, &wanted.density]) {
            let error = error(ours, theirs);
            assert!(error <= bound, "{dtype}: {error:e}");
        }
    }
}

#[test]
fn a_module_takes_any_number_of_coordinates() {
    let density: Density = "sum_coord(-0.5 * q^2)".parse().unwrap();
    for (dtype, bound) in DTYPES {
        for d in [1, 257, 4096] {
            let contract = Contract { steps: 3, n_obs: 0, d: d as u32, dtype, step_size: 0.1 };
            let out = run(&density, contract, [noise(2, d), vec![0.5; d], vec![1.0; d]]);
            assert_eq!(out[0].len(), 3 * d);
            let last = &out[0][2 * d..];
            assert!(out[2][2 * d..].iter().zip(last).all(|(g, q)| *g == -q));
            let logp: f64 = last.iter().map(|q| -0.5 * q * q).sum();
            assert!((out[3][2] - logp).abs() <= bound * logp.abs().max(1.0));
        }
    }
}
