//! Looking inside: values of nodes by name, on every device, of graphs and of model files.
#![forbid(unsafe_code)]
#![allow(clippy::panic, clippy::unwrap_used, reason = "a failed expectation is a failed test")]

#[allow(dead_code, reason = "a part is enough here")]
#[path = "../../onnx/tests/wire/mod.rs"]
mod wire;

use olivine::ir::op::{Binary, ReduceKind, ScalarOp};
use olivine::prelude::*;
use wire::{F32, floats, node, value};

const DEVICES: [Device; 3] = [Device::Cpu, Device::Vulkan, Device::Wgpu];

/// y = relu(x·w + x) / 2, all of which is one kernel.
fn graph() -> Graph {
    let mut g = Graph::new("inside");
    let x = g.input_with_dims("x", DType::F32, [2], vec![Some("n".into())]).unwrap();
    let w = g.param("w", DType::F32, [1]).unwrap();
    let product = g.add_named("scaled", ScalarOp::Binary(Binary::Mul), &[x, w]).unwrap()[0];
    let sum = g.add_named("sum", ScalarOp::Binary(Binary::Add), &[product, x]).unwrap()[0];
    let positive = g.relu(sum).unwrap();
    let y = g.binary_scalar(Binary::Div, positive, 2.0).unwrap();
    g.output("y", y).unwrap();
    g
}

#[test]
fn every_value_of_a_graph_is_returned_by_its_name() {
    for device in DEVICES {
        let session = Session::new(device.clone()).unwrap();
        let executable = session.compile(&graph()).unwrap();
        executable.set_param("w", Tensor::from([-3.0f32])).unwrap();
        let x = Tensor::from([1.0f32, -2.0, 4.0]);
        let names = executable.values();
        assert_eq!(names.len(), 4, "{names:?}");
        let out = executable.run_watching([("x", &x)], names.clone()).unwrap();
        assert_eq!(out.len(), 5, "the output and every value");
        assert_eq!(out["scaled"], Tensor::from([-3.0f32, 6.0, -12.0]), "{device}");
        assert_eq!(out["sum"], Tensor::from([-2.0f32, 4.0, -8.0]), "{device}");
        assert_eq!(out[names[2].as_str()], Tensor::from([0.0f32, 4.0, 0.0]), "{device}");
        assert_eq!(out["y"], executable.run([("x", &x)]).unwrap()["y"], "{device}");
        let unknown = executable.run_watching([("x", &x)], ["scale"]).unwrap_err().to_string();
        assert!(unknown.contains("`scale`") && unknown.contains("did you mean `scaled`"), "{unknown}");
    }
}

#[test]
fn every_value_of_a_model_is_returned_by_its_name() {
    let graph = wire::Graph {
        nodes: vec![
            node("Mul", &["x", "w"], &["scaled"]),
            node("Relu", &["scaled"], &["positive"]),
            node("Neg", &["positive"], &["y"]),
        ],
        initializers: vec![floats("w", &[1], &[2.0])],
        inputs: vec![value("x", F32, &["n"])],
        outputs: vec![value("y", F32, &["n"])],
        ..wire::Graph::default()
    };
    let model = Model::from_onnx(graph.model()).unwrap();
    for device in DEVICES {
        let executable = Session::new(device.clone()).unwrap().compile(&model).unwrap();
        let x = Tensor::from([1.0f32, -2.0]);
        let out = executable.run_watching([("x", &x)], executable.values()).unwrap();
        assert_eq!(out["scaled"], Tensor::from([2.0f32, -4.0]), "{device}");
        assert_eq!(out["positive"], Tensor::from([2.0f32, 0.0]), "{device}");
        assert_eq!(out["y"].to_f64(), [-2.0, 0.0], "{device}");
        assert_eq!(executable.run([("x", &x)]).unwrap().len(), 1, "{device}");
        assert!(matches!(executable.run_watching([("x", &x)], ["scale"]), Err(Error::UnknownName { .. })));
    }
}

#[test]
fn a_model_computes_the_outputs_it_was_compiled_for_and_what_is_watched() {
    let graph = wire::Graph {
        nodes: vec![
            node("Relu", &["x"], &["positive"]),
            node("Neg", &["positive"], &["y"]),
            node("Abs", &["x"], &["z"]),
        ],
        inputs: vec![value("x", F32, &["n"])],
        outputs: vec![value("y", F32, &["n"]), value("z", F32, &["n"])],
        ..wire::Graph::default()
    };
    let model = Model::from_onnx(graph.model()).unwrap();
    for device in DEVICES {
        let session = Session::new(device.clone()).unwrap();
        let executable = session.compile_with(&model, &CompileOptions::new().outputs(["z"])).unwrap();
        let x = Tensor::from([1.0f32, -2.0]);
        let out = executable.run_watching([("x", &x)], ["positive"]).unwrap();
        let names: Vec<&str> = out.iter().map(|(name, _)| name).collect();
        assert_eq!(names, ["z", "positive"], "{device}");
        assert_eq!(out["positive"], Tensor::from([1.0f32, 0.0]), "{device}");
    }
}

/// The sum of rows appended to a cache of fixed size.
fn cache() -> Graph {
    let mut g = Graph::new("cache");
    let x = g.input("x", DType::F32, [1, 1, 1, 2]).unwrap();
    let position = g.input("position", DType::I64, []).unwrap();
    let cache = g.input("cache", DType::F32, [1, 4, 1, 2]).unwrap();
    let next = g.kv_append(HeadLayout::Bshd, cache, x, position).unwrap();
    let twice = g.add_named("twice", ScalarOp::Binary(Binary::Add), &[next, next]).unwrap()[0];
    let y = g.reduce(ReduceKind::Sum, twice, &[1], false).unwrap();
    g.output("y", y).unwrap();
    g.output("next", next).unwrap();
    g
}

#[test]
fn values_of_a_run_on_a_state_are_returned_and_the_state_moves_on() {
    for device in DEVICES {
        let session = Session::new(device.clone()).unwrap();
        let options = CompileOptions::new().state("cache", "next");
        let executable = session.compile_with(&cache(), &options).unwrap();
        let mut state = executable.new_state().unwrap();
        let row = |v: f32| Tensor::from([v, -v]).reshaped([1, 1, 1, 2]).unwrap();
        for step in 0..3i64 {
            let (x, position) = (row(step as f32 + 1.0), Tensor::scalar(step));
            let inputs = [("x", &x), ("position", &position)];
            // Every second step is watched.
            let out = match step % 2 {
                0 => executable.run_watching_with_state(&mut state, inputs, executable.values()).unwrap(),
                _ => executable.run_with_state(&mut state, inputs).unwrap(),
            };
            let sum = (1..=step + 1).sum::<i64>() as f64;
            assert_eq!(out["y"].to_f64(), [2.0 * sum, -2.0 * sum], "{device} {step}");
            if step % 2 == 0 {
                let twice = out["twice"].to_f64();
                assert_eq!(twice[2 * step as usize], 2.0 * (step as f64 + 1.0), "{device} {step}");
            }
            assert!(out.get("next").is_err(), "a state is no result");
        }
        let cache = state.get("cache").unwrap().to_tensor().unwrap();
        assert_eq!(cache.to_f64(), [1.0, -1.0, 2.0, -2.0, 3.0, -3.0, 0.0, 0.0], "{device}");
    }
}

#[test]
fn values_of_a_model_with_a_growing_state_are_returned() {
    let graph = wire::Graph {
        nodes: vec![
            node("Concat", &["past", "x"], &["present"]).inside(5, &wire::int_attribute("axis", 0)),
            node("Neg", &["present"], &["negative"]),
            node("ReduceSum", &["negative"], &["sum"]).inside(5, &wire::int_attribute("keepdims", 0)),
        ],
        inputs: vec![value("past", F32, &["rows", "2"]), value("x", F32, &["1", "2"])],
        outputs: vec![value("present", F32, &["after", "2"]), value("sum", F32, &[])],
        ..wire::Graph::default()
    };
    let model = Model::from_onnx(graph.model()).unwrap();
    for device in DEVICES {
        let session = Session::new(device.clone()).unwrap();
        let options = CompileOptions::new().state("past", "present").outputs(["sum"]);
        let executable = session.compile_with(&model, &options).unwrap();
        let empty = Tensor::zeros(DType::F32, [0, 2]).unwrap();
        let mut state = executable.state_from([("past", &empty)]).unwrap();
        let x = Tensor::from([[1.0f32, 2.0]]);
        for step in 1..=4 {
            let watched = step % 2 == 0;
            let out = match watched {
                true => executable.run_watching_with_state(&mut state, [("x", &x)], ["negative"]).unwrap(),
                false => executable.run_with_state(&mut state, [("x", &x)]).unwrap(),
            };
            assert_eq!(out["sum"].to_f64(), [-3.0 * f64::from(step)], "{device} {step}");
            assert_eq!(out.len(), if watched { 2 } else { 1 }, "{device} {step}");
            if watched {
                assert_eq!(out["negative"].shape().dims(), [step as usize, 2], "{device}");
            }
        }
    }
}

#[test]
fn sessions_models_executables_and_runs_have_a_short_debug_form() {
    let session = Session::new(Device::Cpu).unwrap();
    assert_eq!(format!("{session:?}"), "Session { device: cpu, .. }");
    let executable = session.compile(&graph()).unwrap();
    let shown = format!("{executable:?}");
    assert!(shown.contains("device: cpu") && shown.contains("x: f32[n]"), "{shown}");
    executable.set_param("w", Tensor::from([1.0f32])).unwrap();
    let x = Tensor::from([1.0f32, 2.0]);
    assert_eq!(format!("{:?}", executable.submit([("x", &x)]).unwrap()), "Pending { outputs: [\"y\"], .. }");
    let wrong = session.compile_with(&graph(), &CompileOptions::new().dim("m", 1)).unwrap_err();
    assert!(matches!(wrong, Error::UnknownName { .. }));
}

#[test]
fn a_device_tensor_is_overwritten_copied_and_read_in_part() {
    for device in DEVICES {
        let session = Session::new(device.clone()).unwrap();
        for n in [1usize, 3, 1000] {
            let first = Tensor::new([n], (0..n).map(|i| i as f32).collect()).unwrap();
            let mut tensor = session.upload(&first).unwrap();
            let before = tensor.clone();
            let apart = tensor.copy().unwrap();
            tensor.write_elements(n - 1, &Tensor::from([-7.0f32])).unwrap();
            let mut expected = first.clone();
            expected.as_mut_slice::<f32>().unwrap()[n - 1] = -7.0;
            assert_eq!(tensor.to_tensor().unwrap(), expected, "{device} {n}");
            tensor.write(&first).unwrap();
            tensor.write_elements(0, &Tensor::from([9.0f32])).unwrap();
            assert_eq!(tensor.to_tensor().unwrap().to_f64()[0], 9.0, "{device} {n}");
            assert_eq!(before.to_tensor().unwrap(), first, "{device} {n}: a clone keeps its elements");
            assert_eq!(apart.to_tensor().unwrap(), first, "{device} {n}: a copy is apart");
            let refused = [
                tensor.write(&Tensor::zeros(DType::F32, [n + 1]).unwrap()),
                tensor.write_elements(n, &Tensor::from([1.0f32])),
                tensor.write_elements(usize::MAX, &Tensor::from([1.0f32])),
                tensor.write_elements(0, &Tensor::from([1i32])),
            ];
            assert!(refused.iter().all(Result::is_err), "{device} {n}: {refused:?}");
        }
        let mut flags = session.upload(&Tensor::from([true, false, true])).unwrap();
        flags.write_elements(1, &Tensor::from([true, false])).unwrap();
        assert_eq!(flags.copy().unwrap().to_tensor().unwrap(), Tensor::from([true, true, false]), "{device}");
        let mut none = session.upload(&Tensor::zeros(DType::I64, [0, 4]).unwrap()).unwrap();
        none.write(&Tensor::zeros(DType::I64, [0, 4]).unwrap()).unwrap();
        assert_eq!(none.copy().unwrap().to_tensor().unwrap().shape().dims(), [0, 4]);
    }
}

#[test]
fn overwriting_waits_for_the_runs_that_read() {
    for device in DEVICES {
        let session = Session::new(device.clone()).unwrap();
        let mut g = Graph::new("sum");
        let x = g.input("x", DType::F32, [1 << 16]).unwrap();
        let mut y = x;
        for _ in 0..8 {
            y = g.cumulative(olivine::ir::op::CumulativeKind::Max, y, 0, false, false).unwrap();
        }
        g.output("y", y).unwrap();
        let executable = session.compile(&g).unwrap();
        let filled = |value: f32| Tensor::new([1 << 16], vec![value; 1 << 16]).unwrap();
        let mut x = session.upload(&filled(1.0)).unwrap();
        for round in 0..5 {
            let pending: Vec<_> = (0..4).map(|_| executable.submit([("x", &x)]).unwrap()).collect();
            x.write(&filled(round as f32 + 2.0)).unwrap();
            for run in pending {
                let out = run.wait().unwrap();
                assert_eq!(out["y"], filled(round as f32 + 1.0), "{device}");
            }
        }
    }
}
