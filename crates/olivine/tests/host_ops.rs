//! Operations that run on the host although the device is a GPU: results, names, states and sizes.
#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, reason = "a failed expectation is a failed test")]

use olivine::internals::{SessionExt as _, Site};
use olivine::prelude::*;

/// The processor, and the GPUs that there are, software ones too.
fn sessions() -> Vec<Session> {
    let all = ["cpu", "vulkan", "wgpu"].iter().map(|name| name.parse::<Device>().unwrap());
    let sessions: Vec<Session> = all.filter_map(|device| Session::new(device).ok()).collect();
    assert!(!sessions.is_empty());
    sessions
}

fn is_gpu(session: &Session) -> bool {
    session.device() != &Device::Cpu
}

/// Two layers with a softmax after each, and a branch beside them; `batch` is open.
fn layers() -> Graph {
    let mut g = Graph::new("layers");
    let x = g.input_with_dims("x", DType::F32, [2, 8], vec![Some("batch".into()), None]).unwrap();
    let [a, b] = ["a", "b"].map(|name| g.param(name, DType::F32, [8, 8]).unwrap());
    let first = g.matmul(x, a).unwrap();
    let first = g.softmax(first, -1).unwrap();
    let beside = g.relu(x).unwrap();
    let sum = g.add(first, beside).unwrap();
    let second = g.matmul(sum, b).unwrap();
    let second = g.softmax(second, -1).unwrap();
    g.output("sum", sum).unwrap();
    g.output("y", second).unwrap();
    g.output("x", x).unwrap();
    g
}

fn numbers(shape: [usize; 2], seed: usize) -> Tensor {
    let count = shape[0] * shape[1];
    let number = |i: usize| ((i * 37 + seed * 11) % 23) as f32 / 7.0 - 1.5;
    Tensor::new(shape, (0..count).map(number).collect::<Vec<f32>>()).unwrap()
}

fn compiled(session: &Session, options: &CompileOptions) -> Executable {
    let executable = session.compile_with(&layers(), options).unwrap();
    executable.set_param("a", numbers([8, 8], 1)).unwrap();
    executable.set_param("b", numbers([8, 8], 2)).unwrap();
    executable
}

#[track_caller]
fn assert_near(a: &Tensor, b: &Tensor) {
    assert_eq!(a.shape(), b.shape());
    let (a, b) = (a.as_slice::<f32>().unwrap(), b.as_slice::<f32>().unwrap());
    assert!(a.iter().zip(b).all(|(a, b)| (a - b).abs() < 1e-4), "{a:?} {b:?}");
}

#[test]
fn results_are_those_without_and_every_size_runs() {
    for session in sessions() {
        let node = layers().nodes()[1].name.clone();
        for names in [vec!["softmax".to_string()], vec![node], vec!["matmul".into(), "add".into()]] {
            let plain = compiled(&session, &CompileOptions::new());
            let on_host = compiled(&session, &CompileOptions::new().host_ops(names.clone()));
            on_host.load().unwrap();
            for batch in [2, 1, 5, 64, 2] {
                let x = numbers([batch, 8], batch);
                let (expected, got) = (plain.run([("x", &x)]).unwrap(), on_host.run([("x", &x)]).unwrap());
                for name in ["sum", "y", "x"] {
                    assert_near(got.get(name).unwrap(), expected.get(name).unwrap());
                }
                let pending = on_host.submit([("x", &x)]).unwrap().wait().unwrap();
                assert_near(pending.get("y").unwrap(), expected.get("y").unwrap());
                let device = session.upload(&x).unwrap();
                let resident = on_host.run_resident([("x", &device)]).unwrap();
                for (name, tensor) in &resident {
                    assert_near(&tensor.to_tensor().unwrap(), expected.get(name).unwrap());
                }
            }
            assert!(on_host.compiled() <= plain.compiled() + 1, "sizes share a plan");
            // Other weights are seen by the host too.
            for executable in [&plain, &on_host] {
                executable.set_param("a", numbers([8, 8], 9)).unwrap();
            }
            let x = numbers([3, 8], 1);
            let (expected, got) = (plain.run([("x", &x)]).unwrap(), on_host.run([("x", &x)]).unwrap());
            assert_near(got.get("y").unwrap(), expected.get("y").unwrap());
        }
    }
}

#[test]
fn profiles_predictions_and_lowered_calls_name_the_host_and_the_copies() {
    for session in sessions() {
        let options = CompileOptions::new().host_ops(["softmax"]);
        let executable = compiled(&session, &options);
        let x = numbers([4, 8], 1);
        let profiled = executable.profile([("x", &x)]).unwrap();
        let count = |part: &str| profiled.iter().filter(|step| step.kernel.contains(part)).count();
        let gpu = is_gpu(&session);
        let expected = if gpu { (2, 2, 1) } else { (0, 0, 0) };
        assert_eq!((count("on the host"), count("to the host"), count("to the device")), expected);
        let lowered = session.lowered_with_host_ops(&layers(), &["softmax".into()]).unwrap();
        let at = |site: Site| lowered.steps.iter().filter(|step| step.site == site).count();
        assert_eq!((at(Site::Host), at(Site::ToHost), at(Site::ToDevice)), expected);
        if gpu {
            assert_eq!(lowered.submissions, 2);
            assert_eq!(lowered.steps.len(), profiled.len());
            let mut began = std::time::Duration::ZERO;
            for step in &profiled {
                assert!(step.start >= began, "steps are in order");
                began = step.start;
            }
        }
    }
}

#[test]
fn predictions_count_the_host_and_another_submission() {
    for session in sessions().iter().filter(|session| is_gpu(session)) {
        let plain = session.predict(&layers(), &CompileOptions::new()).unwrap();
        let options = CompileOptions::new().host_ops(["softmax"]);
        let in_parts = session.predict(&layers(), &options).unwrap();
        assert!(in_parts.run > plain.run, "{in_parts:?} {plain:?}");
        assert!(in_parts.steps.iter().any(|step| step.kernel == "softmax on the host"));
        let x = numbers([2, 8], 1);
        let executable = compiled(session, &options);
        let predicted = executable.predict([("x", &x)]).unwrap();
        assert_eq!(predicted.steps.len(), in_parts.steps.len());
    }
}

#[test]
fn names_that_a_model_does_not_have_are_an_error_that_lists_what_it_has() {
    for session in sessions() {
        for name in ["softmaxx", "", "Softmax", "conv"] {
            let options = CompileOptions::new().host_ops([name]);
            let error = session.compile_with(&layers(), &options).map(drop).unwrap_err().to_string();
            for part in [&format!("`{name}`"), "matmul", "softmax", "relu", "add"] {
                assert!(error.contains(part), "{error}");
            }
        }
        let close = format!("{}x", layers().nodes()[1].name);
        let error = session.compile_with(&layers(), &CompileOptions::new().host_ops([close])).map(drop);
        assert!(error.unwrap_err().to_string().contains(&layers().nodes()[1].name));
    }
}

/// A running mean: the state is halved, softened and added to; `rows` grow.
fn stateful() -> Graph {
    let mut g = Graph::new("stateful");
    let x = g.input("x", DType::F32, [2, 4]).unwrap();
    let past = g.input("past", DType::F32, [2, 4]).unwrap();
    let rows = g.input_with_dims("rows", DType::F32, [1, 4], vec![Some("rows".into()), None]).unwrap();
    let soft = g.softmax(past, -1).unwrap();
    let next = g.add(soft, x).unwrap();
    let grown = g.concat(&[rows, x], 0).unwrap();
    let most = g.softmax(grown, -1).unwrap();
    g.output("next", next).unwrap();
    g.output("grown", grown).unwrap();
    g.output("most", most).unwrap();
    g
}

#[test]
fn states_stay_and_grow_from_run_to_run() {
    for session in sessions() {
        let options = || CompileOptions::new().state("past", "next").state("rows", "grown");
        let plain = session.compile_with(&stateful(), &options()).unwrap();
        let on_host = session.compile_with(&stateful(), &options().host_ops(["softmax"])).unwrap();
        let first = |executable: &Executable| {
            executable.state_from([("past", &numbers([2, 4], 3)), ("rows", &numbers([1, 4], 4))]).unwrap()
        };
        let (mut a, mut b) = (first(&plain), first(&on_host));
        for run in 0..6 {
            let x = numbers([2, 4], run);
            let expected = plain.run_with_state(&mut a, [("x", &x)]).unwrap();
            let got = on_host.run_with_state(&mut b, [("x", &x)]).unwrap();
            assert_near(got.get("most").unwrap(), expected.get("most").unwrap());
            assert_eq!(got.get("most").unwrap().shape().dims(), [1 + 2 * (run + 1), 4]);
        }
    }
}

#[test]
fn a_graph_whose_every_operation_is_on_the_host_runs() {
    for session in sessions() {
        let names = ["softmax", "matmul", "relu", "add"];
        let executable = compiled(&session, &CompileOptions::new().host_ops(names));
        let plain = compiled(&session, &CompileOptions::new());
        let x = numbers([3, 8], 5);
        let (expected, got) = (plain.run([("x", &x)]).unwrap(), executable.run([("x", &x)]).unwrap());
        assert_near(got.get("y").unwrap(), expected.get("y").unwrap());
    }
}
