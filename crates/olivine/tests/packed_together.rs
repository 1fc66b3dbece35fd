//! What decoding a token joins, on devices that are here: matmuls of one x by packed weights with the norm before them, and ranges of
//! keys that the last workgroup combines.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a failed expectation is a failed test")]

use olivine::internals::OptionsExt as _;
use olivine::ir::op::{Attention, HeadLayout};
use olivine::ir::{BlockFormat, DType, Graph, Tensor, TensorType};
use olivine::{Device, PipelineCache, Session, SessionOptions};
use olivine_cases::{Case, SessionBackend, run_table, table};

/// Every `step`-th case from one on.
fn cases(from: usize, step: usize) -> Vec<Case> {
    let named = |case: &Case| {
        ["together", "normed", "attention/decode"].iter().any(|part| case.name.contains(part))
            && !case.name.ends_with("/f64")
    };
    table().into_iter().filter(named).skip(from).step_by(step).collect()
}

fn pass(name: &str, device: Device, options: SessionOptions, cases: &[Case]) {
    let options = options.pipeline_cache(PipelineCache::Off);
    let backend = SessionBackend::new(name, device, options).unwrap_or_else(|e| panic!("{e}"));
    let report = run_table(&backend, cases, "", 1);
    assert!(report.results.len() > 20);
    let mut wrong: Vec<String> = report.failures().map(|r| format!("{}: {}", r.name, r.outcome)).collect();
    wrong.extend(backend.session().validation_messages());
    assert!(wrong.is_empty(), "{} of {}:\n{}", wrong.len(), report.results.len(), wrong.join("\n"));
}

#[test]
fn joined_dispatches_have_the_oracles_values_on_vulkan() {
    pass("vulkan", Device::Vulkan, SessionOptions::new().validation(true), &cases(0, 2));
}

#[test]
fn joined_dispatches_have_the_oracles_values_on_other_devices() {
    pass("vulkan checked", Device::Vulkan, SessionOptions::new().checked(true), &cases(1, 8));
    pass("wgpu", Device::Wgpu, SessionOptions::new(), &cases(3, 4));
    pass("the browser's dialect", Device::Wgpu, SessionOptions::new().browser_dialect(true), &cases(5, 8));
}

/// The devices that this machine has, the CPU first.
fn sessions() -> Vec<Session> {
    let names = ["cpu", "vulkan", "wgpu"];
    let devices = names.iter().filter_map(|name| name.parse::<Device>().ok());
    devices.filter(|d| olivine::is_available(d.clone())).map(|d| Session::new(d).unwrap()).collect()
}

fn waves(count: usize, step: f32) -> Vec<f32> {
    (0..count).map(|i| (i as f32 * step).sin()).collect()
}

#[test]
fn ranges_of_keys_are_combined_alike_in_every_run() {
    const KEYS: usize = 5000;
    let mut g = Graph::new("g");
    let q = g.input("q", DType::F32, [1, 2, 1, 64]).unwrap();
    let k = g.input("k", DType::F32, [1, 1, KEYS, 64]).unwrap();
    let v = g.input("v", DType::F32, [1, 1, KEYS, 64]).unwrap();
    let y = g.attention(Attention::new(HeadLayout::Bhsd), q, k, v, &[]).unwrap();
    g.output("y", y).unwrap();
    let tensors = [([1, 2, 1, 64], 0.7), ([1, 1, KEYS, 64], 0.3), ([1, 1, KEYS, 64], 0.9)]
        .map(|(shape, step)| Tensor::new(shape, waves(shape.iter().product(), step)).unwrap());
    let inputs = [("q", &tensors[0]), ("k", &tensors[1]), ("v", &tensors[2])];
    let mut wanted: Option<Vec<f32>> = None;
    for session in sessions() {
        let executable = session.compile(&g).unwrap();
        let run = || executable.run(inputs).unwrap()["y"].as_slice::<f32>().unwrap().to_vec();
        let first = run();
        // Runs one after another, and several in flight.
        for _ in 0..3 {
            assert_eq!(run(), first);
        }
        std::thread::scope(|scope| {
            let all: Vec<_> =
                (0..4).map(|_| scope.spawn(|| (0..4).map(|_| run()).collect::<Vec<_>>())).collect();
            for found in all.into_iter().flat_map(|thread| thread.join().unwrap()) {
                assert_eq!(found, first, "{}", session.device_name());
            }
        });
        let wanted = wanted.get_or_insert_with(|| first.clone());
        let far = first.iter().zip(wanted.iter()).any(|(a, b)| (a - b).abs() > 1e-5);
        assert!(!far, "{}: {first:?}, not {wanted:?}", session.device_name());
    }
}

#[test]
fn a_norm_of_what_is_not_finite_very_large_or_very_small_gives_what_it_gives_alone() {
    const K: usize = 512;
    const N: usize = 9;
    let format = BlockFormat::Q4_K;
    let graph = |returns_norm: bool| {
        let mut g = Graph::new("g");
        let x = g.input("x", DType::F32, [2, K]).unwrap();
        let gamma = g.constant(Tensor::new([K], vec![1.0f32; K]).unwrap());
        let w = g.param_of("w", TensorType::packed(format, [N, K]).unwrap()).unwrap();
        let normed = g.rms_norm(x, gamma, None, 1e-5).unwrap();
        let y = g.dequant_matmul(normed, w).unwrap();
        g.output("y", y).unwrap();
        if returns_norm {
            g.output("normed", normed).unwrap();
        }
        g
    };
    let weight = olivine_quant::encode(format, &[1.0; N * K], None).unwrap();
    for session in sessions() {
        let [joined, alone] = [false, true].map(|returns_norm| {
            let executable = session.compile(&graph(returns_norm)).unwrap();
            let w = Tensor::packed(format, [N, K], weight.clone()).unwrap();
            executable.set_params([("w".to_string(), w)]).unwrap();
            executable
        });
        for odd in [f32::NAN, f32::INFINITY, 1e18, 1e-25, 0.0, -0.0] {
            let mut x = [vec![odd; K], waves(K, 0.1)].concat();
            (x[3], x[77]) = (1e-30, -odd);
            let x = Tensor::new([2, K], x).unwrap();
            let [found, wanted] = [&joined, &alone]
                .map(|e| e.run([("x", &x)]).unwrap()["y"].as_slice::<f32>().unwrap().to_vec());
            let largest = |row: &[f32]| row.iter().fold(1e-30f32, |most, y| most.max(y.abs()));
            for (found, wanted) in found.chunks(N).zip(wanted.chunks(N)) {
                let near = |(a, b): (&f32, &f32)| match b.is_finite() {
                    true => (a - b).abs() <= 1e-5 * largest(wanted),
                    false => !a.is_finite(),
                };
                let alike = found.iter().zip(wanted).all(near);
                assert!(alike, "{} {odd}: {found:?}, not {wanted:?}", session.device_name());
            }
        }
    }
}
