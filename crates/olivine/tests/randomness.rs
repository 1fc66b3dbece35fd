//! Random numbers: the same bits on every backend, new ones at every run, and the old ones again when asked.
#![forbid(unsafe_code)]
#![allow(clippy::panic, clippy::unwrap_used, reason = "a failed expectation is a failed test")]

use olivine::PipelineCache;
use olivine::internals::OptionsExt as _;
use olivine::ir::op::{RUN_COUNTER, Sampling};
use olivine::prelude::*;

const DEVICES: [(Device, bool); 4] =
    [(Device::Cpu, false), (Device::Vulkan, false), (Device::Wgpu, false), (Device::Wgpu, true)];

fn open(device: Device, browser_dialect: bool) -> Session {
    let options = SessionOptions::new().browser_dialect(browser_dialect).pipeline_cache(PipelineCache::Off);
    Session::with_options(device, options).unwrap_or_else(|e| {
        panic!("{e}\ninstall: apt-get install mesa-vulkan-drivers libvulkan1 vulkan-validationlayers")
    })
}

/// Uniform and normal numbers, and tokens drawn from the input's rows.
fn model() -> Graph {
    let mut g = Graph::new("random");
    let logits = g.input("logits", DType::F32, [4, 1000]).unwrap();
    let u = g.rng_uniform(DType::F32, [37], (-1.0, 1.0), 5).unwrap();
    let z = g.rng_normal(DType::F32, [37], (0.0, 1.0), 5).unwrap();
    let tokens = g.sample(logits, Sampling::new(5)).unwrap();
    for (name, id) in [("u", u), ("z", z), ("tokens", tokens)] {
        g.output(name, id).unwrap();
    }
    g
}

fn logits() -> Tensor {
    Tensor::new([4, 1000], (0..4000).map(|i| (i * 7919 % 613) as f32 * 0.01).collect()).unwrap()
}

/// All outputs as bits.
fn bits<'a>(outputs: impl IntoIterator<Item = &'a Tensor>) -> Vec<Vec<u8>> {
    outputs.into_iter().map(|t| t.data().as_bytes().to_vec()).collect()
}

/// What run number `run` draws, on the CPU.
fn expected(runs: u64) -> Vec<Vec<Vec<u8>>> {
    let executable = open(Device::Cpu, false).compile(&model()).unwrap();
    let x = logits();
    let run = |_| bits(executable.run([("logits", &x)]).unwrap().iter().map(|(_, t)| t));
    (0..runs).map(run).collect()
}

#[test]
fn every_backend_draws_the_same_and_every_run_draws_anew() {
    let want = expected(5);
    for i in 1..want.len() {
        for output in 0..3 {
            assert_ne!(want[0][output], want[i][output], "run {i} repeats output {output}");
        }
    }
    assert_ne!(want[0][0], want[0][1]);
    let x = logits();
    for (device, browser) in DEVICES {
        println!("{device}, browser {browser}");
        let executable = open(device, browser).compile(&model()).unwrap();
        assert_eq!(executable.run_counter(), 0);
        let run = executable.run([("logits", &x)]).unwrap();
        assert_eq!(bits(run.iter().map(|(_, t)| t)), want[0]);

        // Runs in flight have numbers of their own, in the order in which they were begun.
        let second = executable.submit([("logits", &x)]).unwrap();
        let third = executable.submit([("logits", &x)]).unwrap();
        let third = third.wait().unwrap();
        assert_eq!(bits(third.iter().map(|(_, t)| t)), want[2]);
        assert_eq!(bits(second.wait().unwrap().iter().map(|(_, t)| t)), want[1]);

        let resident = executable.run_resident([("logits", &x)]).unwrap();
        let fourth: Vec<Tensor> = resident.iter().map(|(_, t)| t.to_tensor().unwrap()).collect();
        assert_eq!(bits(&fourth), want[3]);
        assert_eq!(executable.run_counter(), 4);

        executable.set_run_counter(1);
        let again = executable.run([("logits", &x)]).unwrap();
        assert_eq!(bits(again.iter().map(|(_, t)| t)), want[1]);
        assert_eq!(executable.run_counter(), 2);
    }
}

#[test]
fn a_caller_may_give_the_number_of_a_run_itself() {
    let want = expected(4);
    let (x, three) = (logits(), Tensor::new([2], vec![3u32, 0]).unwrap());
    for (device, browser) in DEVICES {
        let executable = open(device, browser).compile(&model()).unwrap();
        let run = executable.run([("logits", &x), (RUN_COUNTER, &three)]).unwrap();
        assert_eq!(bits(run.iter().map(|(_, t)| t)), want[3]);
        assert_eq!(executable.run_counter(), 0);
    }
}

#[test]
fn a_run_that_was_refused_takes_no_number() {
    let executable = open(Device::Cpu, false).compile(&model()).unwrap();
    assert!(executable.run(Vec::<(&str, &Tensor)>::new()).is_err());
    assert_eq!(executable.run_counter(), 0);
}
