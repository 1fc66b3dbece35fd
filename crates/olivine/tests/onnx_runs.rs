//! A model from a file runs in every way that a graph does, with the same results.
#![forbid(unsafe_code)]
#![allow(clippy::panic, clippy::unwrap_used, reason = "a failed expectation is a failed test")]

#[allow(dead_code, reason = "a part is enough here")]
#[path = "../../onnx/tests/wire/mod.rs"]
mod wire;

use olivine::prelude::*;
use wire::{F32, I64, floats, node, value};

/// y = x·w and n = the positions of y's elements that are not 0, whose number a first graph must find.
fn model() -> Model {
    let graph = wire::Graph {
        nodes: vec![
            node("Mul", &["x", "w"], &["y"]),
            node("NonZero", &["y"], &["n"]),
            node("Transpose", &["n"], &["t"]),
        ],
        initializers: vec![floats("w", &[3], &[2.0, 0.0, -1.0])],
        inputs: vec![value("x", F32, &["rows", "3"])],
        outputs: vec![value("y", F32, &["rows", "3"]), value("t", I64, &["count", "2"])],
        ..wire::Graph::default()
    };
    Model::from_onnx(graph.model()).unwrap()
}

#[test]
fn all_ways_of_running_a_model_give_the_same() {
    let (model, x) = (model(), Tensor::from([[1.0f32, 2.0, 3.0], [0.0, 5.0, 6.0]]));
    for device in [Device::Cpu, Device::Vulkan, Device::Wgpu] {
        if !is_available(device.clone()) {
            continue;
        }
        let session = Session::new(device.clone()).unwrap();
        let executable = session.compile(&model).unwrap();
        let expected = executable.run([("x", &x)]).unwrap();
        assert_eq!(expected["y"], Tensor::from([[2.0f32, 0.0, -3.0], [0.0, 0.0, -6.0]]), "{device}");
        assert_eq!(expected["t"], Tensor::from([[0i64, 0], [0, 2], [1, 2]]), "{device}");
        assert_eq!(expected.at(1).unwrap(), &expected["t"]);

        let mut y = Tensor::zeros(DType::F32, [2, 3]).unwrap();
        let mut t = Tensor::zeros(DType::I64, [3, 2]).unwrap();
        executable.run_into([("x", &x)], &mut [("t", &mut t), ("y", &mut y)]).unwrap();
        assert_eq!((&y, &t), (&expected["y"], &expected["t"]), "{device}");

        let runs: Vec<_> = (0..3).map(|_| executable.submit([("x", &x)]).unwrap()).collect();
        for run in runs {
            let mut out = run.wait().unwrap();
            assert_eq!(out.take("t").unwrap(), expected["t"], "{device}");
            assert_eq!(out.len(), 1);
            assert!(out.take("t").unwrap_err().to_string().contains("`t`"));
        }

        let kept = session.upload(&x).unwrap();
        let on_device = executable.run_resident([("x", &kept)]).unwrap();
        let read: Vec<_> = on_device.iter().map(|(n, t)| (n, t.to_tensor().unwrap())).collect();
        assert_eq!(read, [("y", expected["y"].clone()), ("t", expected["t"].clone())], "{device}");
        // A result is the next run's input where it is.
        let again = executable.run(inputs! { "x" => &on_device[0] }).unwrap();
        assert_eq!(again["y"], Tensor::from([[4.0f32, 0.0, 3.0], [0.0, 0.0, 6.0]]), "{device}");
        assert!(!executable.profile([("x", &x)]).unwrap().is_empty(), "{device}");
    }
}
