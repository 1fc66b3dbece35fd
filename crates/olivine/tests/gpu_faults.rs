//! GPUs under strain: many threads, too little memory, what a device cannot do. Errors with names and numbers, and
//! everything works on afterwards.
#![forbid(unsafe_code)]
#![allow(clippy::panic, clippy::unwrap_used, reason = "a failed expectation is a failed test")]

use olivine::internals::OptionsExt as _;
use olivine::internals::SessionExt as _;
use olivine::internals::gpu;
use olivine::prelude::*;
use olivine::{Backend, PipelineCache};

const MIB: usize = 1 << 20;

fn open(device: Device, options: SessionOptions) -> Session {
    let options = options.pipeline_cache(PipelineCache::Off);
    Session::with_options(device, options).unwrap_or_else(|e| {
        panic!("{e}\ninstall: apt-get install mesa-vulkan-drivers libvulkan1 vulkan-validationlayers")
    })
}

fn refused(session: &Session, graph: &Graph) -> Error {
    match session.compile(graph) {
        Err(problem) => problem,
        Ok(_) => panic!("`{}` was not refused", graph.name()),
    }
}

/// x and y, both f32 of `n`, through steps that the bits of `which` choose.
fn chain(which: usize, n: usize) -> Graph {
    let mut g = Graph::new("chain");
    let x = g.input("x", DType::F32, [n]).unwrap();
    let mut y = x;
    for bit in 0..6 {
        y = if which >> bit & 1 == 0 { g.add(y, x).unwrap() } else { g.neg(y).unwrap() };
    }
    g.output("y", y).unwrap();
    g
}

fn chained(which: usize, x: f32) -> f32 {
    (0..6).fold(x, |y, bit| if which >> bit & 1 == 0 { y + x } else { -y })
}

fn sixty_four_threads(session: &Session) {
    let start = std::sync::Barrier::new(64);
    std::thread::scope(|scope| {
        for which in 0..64 {
            let start = &start;
            scope.spawn(move || {
                let n = 100 + which * 17;
                let graph = chain(which, n);
                start.wait();
                for round in 0..3 {
                    let executable = session.compile(&graph).unwrap();
                    for run in 0..4 {
                        let x: Vec<f32> = (0..n).map(|i| (i + round + run) as f32).collect();
                        let x = Tensor::new([n], x).unwrap();
                        let out = executable.run([("x", &x)]).unwrap();
                        let got = out.get("y").unwrap().as_slice::<f32>().unwrap();
                        for (i, y) in got.iter().enumerate() {
                            assert_eq!(*y, chained(which, (i + round + run) as f32), "thread {which}");
                        }
                    }
                }
            });
        }
    });
}

#[test]
fn sixty_four_threads_compile_and_run_at_once_on_vulkan() {
    // Without the validation layer: Debian 12's (1.3.239) corrupts its own memory when several threads record.
    sixty_four_threads(&open(Device::Vulkan, SessionOptions::default()));
}

#[test]
fn sixty_four_threads_compile_and_run_at_once_on_wgpu() {
    sixty_four_threads(&open(Device::Wgpu, SessionOptions::default()));
}

#[test]
fn sixty_four_threads_share_one_executable_and_its_new_shapes() {
    for device in [Device::Vulkan, Device::Wgpu] {
        let session = open(device, SessionOptions::default());
        let mut g = Graph::new("free");
        let x = g.input_with_dims("x", DType::F32, [1], vec![Some("n".into())]).unwrap();
        let y = g.add(x, x).unwrap();
        g.output("y", y).unwrap();
        let executable = session.compile(&g).unwrap();
        std::thread::scope(|scope| {
            for t in 0..64 {
                let executable = &executable;
                scope.spawn(move || {
                    for n in [t % 7 + 1, t + 1] {
                        let x = Tensor::new([n], (0..n).map(|i| (i * t) as f32).collect()).unwrap();
                        let out = executable.run([("x", &x)]).unwrap();
                        let want: Vec<f32> = (0..n).map(|i| 2.0 * (i * t) as f32).collect();
                        assert_eq!(out.get("y").unwrap().as_slice::<f32>().unwrap(), want);
                    }
                });
            }
        });
    }
}

fn limited(bytes: usize) -> Session {
    open(Device::Vulkan, SessionOptions::new().memory_limit(bytes as u64))
}

/// sum = x + y + z, each f32 of `mib` MiB.
fn sum(mib: usize) -> Graph {
    let mut g = Graph::new("sum");
    let n = mib * MIB / 4;
    let [x, y, z] = ["x", "y", "z"].map(|name| g.input(name, DType::F32, [n]).unwrap());
    let two = g.add(x, y).unwrap();
    let three = g.add(two, z).unwrap();
    g.output("sum", three).unwrap();
    g
}

#[test]
fn a_graph_larger_than_the_device_is_refused_with_what_and_how_much() {
    let session = limited(256 * MIB);
    let problem = refused(&session, &sum(80));
    let Error::Gpu(gpu::Error::TooLarge { what, needed, available, .. }) = &problem else {
        panic!("{problem}");
    };
    assert_eq!((*needed, *available), (320 << 20, 256 << 20), "three inputs and an output");
    assert!(what.contains("the graph") && what.contains('`'), "{problem}");
    let problem = refused(&session, &sum(300));
    let Error::Gpu(gpu::Error::TooLarge { what, needed, available, .. }) = &problem else {
        panic!("{problem}");
    };
    assert_eq!((what.as_str(), *needed, *available), ("input `x`", 300 << 20, 256 << 20));
    assert_eq!(session.memory_taken(), Some(0), "nothing was taken to find out");
    assert!(session.compile(&sum(60)).is_ok());
}

#[test]
fn intermediate_results_that_do_not_fit_name_their_node() {
    let options = SessionOptions::new().memory_limit(256 << 20).no_fusion(true);
    let session = open(Device::Vulkan, options);
    let mut g = Graph::new("broad");
    let x = g.input("x", DType::F32, [1, 8192]).unwrap();
    let y = g.input("y", DType::F32, [16384, 1]).unwrap();
    let broad = g.add(x, y).unwrap();
    let narrow = g.cast(broad, DType::U8).unwrap();
    g.output("narrow", narrow).unwrap();
    let problem = refused(&session, &g);
    let Error::Gpu(gpu::Error::TooLarge { what, needed, .. }) = &problem else { panic!("{problem}") };
    assert!(what.contains("add `") && what.contains(&(512u64 << 20).to_string()), "{problem}");
    assert!(*needed >= 512 << 20);
}

#[test]
fn a_buffer_above_a_binding_is_refused_with_node_and_numbers() {
    let session = open(Device::Wgpu, SessionOptions::default());
    let explained = session.explain(&sum(1)).unwrap();
    assert!(session.program(&explained).unwrap().is_some());
    // No device binds 8 GiB.
    let problem = refused(&session, &sum(8192));
    let text = problem.to_string();
    match &problem {
        Error::Gpu(gpu::Error::Unsupported { nodes, .. }) => {
            assert!(nodes[0].contains('`') && nodes[0].contains("the device binds"), "{text}");
        }
        Error::Gpu(gpu::Error::TooLarge { what, .. }) => assert_eq!(what, "input `x`"),
        _ => panic!("{problem}"),
    }
    assert!(text.contains(&(8192 * MIB).to_string()), "{text}");
}

#[test]
fn running_out_of_memory_in_the_middle_frees_everything_and_the_session_works_on() {
    let session = limited(256 * MIB);
    let held = session.upload(&Tensor::zeros(DType::F32, [25 * MIB]).unwrap()).unwrap();
    let before = session.memory_taken();
    let big = session.compile(&sum(40)).unwrap();
    let x = Tensor::zeros(DType::F32, [10 * MIB]).unwrap();
    for _ in 0..3 {
        let problem = big.run([("x", &x), ("y", &x), ("z", &x)]).unwrap_err();
        let Error::Gpu(gpu::Error::OutOfMemory { what, bytes, available }) = &problem else {
            panic!("{problem}");
        };
        assert!(what.contains("put `") && *bytes == 40 << 20 && available.is_some(), "{problem}");
        assert_eq!(session.memory_taken(), before, "what was taken until then is given back");
    }
    let small = session.compile(&sum(10)).unwrap();
    let x = Tensor::new([10 * MIB / 4], vec![3f32; 10 * MIB / 4]).unwrap();
    let out = small.run([("x", &x), ("y", &x), ("z", &x)]).unwrap();
    assert!(out.get("sum").unwrap().as_slice::<f32>().unwrap().iter().all(|v| *v == 9.0));
    drop((small, held));
    let x = Tensor::new([10 * MIB], vec![2f32; 10 * MIB]).unwrap();
    let out = big.run([("x", &x), ("y", &x), ("z", &x)]).unwrap();
    assert!(out.get("sum").unwrap().as_slice::<f32>().unwrap().iter().all(|v| *v == 6.0), "now it fits");
    drop(big);
    assert_eq!(session.memory_taken(), Some(0));
}

#[test]
fn params_that_do_not_fit_are_an_error_and_can_be_loaded_when_there_is_room() {
    let session = limited(256 * MIB);
    let mut g = Graph::new("weights");
    let x = g.input("x", DType::F32, [1]).unwrap();
    let n = 20 * MIB;
    let (a, b) = (g.param("a", DType::F32, [n]).unwrap(), g.param("b", DType::F32, [n]).unwrap());
    let y = g.add(x, a).unwrap();
    let y = g.mul(y, b).unwrap();
    let y = g.cast(y, DType::U8).unwrap();
    g.output("y", y).unwrap();
    let model = session.compile(&g).unwrap();
    for name in ["a", "b"] {
        model.set_param(name, Tensor::new([n], vec![2f32; n]).unwrap()).unwrap();
    }
    let held = session.upload(&Tensor::zeros(DType::U8, [120 * MIB]).unwrap()).unwrap();
    let problem = model.load().unwrap_err();
    let Error::Gpu(gpu::Error::OutOfMemory { what, .. }) = &problem else { panic!("{problem}") };
    assert_eq!(what, "param `b`");
    drop(held);
    model.load().unwrap();
    let out = model.run([("x", &Tensor::new([1], vec![1f32]).unwrap())]).unwrap();
    assert!(out.get("y").unwrap().as_slice::<u8>().unwrap().iter().all(|v| *v == 6));
    drop(model);
    assert_eq!(session.memory_taken(), Some(0));
}

#[test]
fn tensors_that_were_dropped_do_not_keep_device_memory() {
    let session = limited(256 * MIB);
    let executable = session.compile(&sum(20)).unwrap();
    // Recordings made for a tensor must not hold it when nobody else does: twenty of them are 400 MiB.
    for i in 0..20 {
        let x = Tensor::new([5 * MIB], vec![i as f32; 5 * MIB]).unwrap();
        let there = session.upload(&x).unwrap();
        let out = executable.run([("x", &there), ("y", &there), ("z", &there)]).unwrap();
        assert!(out.get("sum").unwrap().as_slice::<f32>().unwrap().iter().all(|v| *v == 3.0 * i as f32));
    }
}

#[test]
fn every_node_of_an_unsupported_type_is_named_at_once() {
    let options = SessionOptions::new().browser_dialect(true).no_fusion(true);
    let session = open(Device::Wgpu, options);
    let mut g = Graph::new("wide");
    let a = g.input("a", DType::F64, [8]).unwrap();
    let b = g.input("b", DType::I64, [8]).unwrap();
    let c = g.input("c", DType::F32, [8]).unwrap();
    let nodes = [g.mul(a, a).unwrap(), g.add(b, b).unwrap(), g.mul(c, c).unwrap(), g.neg(a).unwrap()];
    for (i, node) in nodes.iter().enumerate() {
        g.output(&format!("y{i}"), *node).unwrap();
    }
    let problem = refused(&session, &g);
    let Error::Gpu(gpu::Error::Unsupported { nodes, .. }) = &problem else { panic!("{problem}") };
    let found: Vec<(&str, bool)> = nodes
        .iter()
        .map(|n| (n.split_whitespace().next().unwrap(), n.contains("the device has no")))
        .collect();
    assert_eq!(found, [("mul", true), ("neg", true)], "{problem}");
    assert!(problem.to_string().contains("f64"), "{problem}");
    assert_eq!(session.device().backend(), Backend::Wgpu);
}

#[test]
fn a_new_session_works_beside_and_after_others() {
    for device in [Device::Vulkan, Device::Wgpu] {
        let first = open(device.clone(), SessionOptions::default());
        for _ in 0..5 {
            let session = open(device.clone(), SessionOptions::default());
            let executable = session.compile(&chain(5, 10)).unwrap();
            let x = Tensor::new([10], vec![2f32; 10]).unwrap();
            let out = executable.run([("x", &x)]).unwrap();
            drop(session);
            assert_eq!(out.get("y").unwrap().as_slice::<f32>().unwrap(), [chained(5, 2.0); 10]);
        }
        assert!(first.compile(&chain(1, 10)).is_ok());
    }
}
