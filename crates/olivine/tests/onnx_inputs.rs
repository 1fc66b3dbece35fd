//! Inputs with defaults and outputs listed in unusual ways, as a run meets them.
#![forbid(unsafe_code)]
#![allow(clippy::panic, clippy::unwrap_used, reason = "a failed expectation is a failed test")]

#[allow(dead_code, reason = "a part is enough here")]
#[path = "../../onnx/tests/wire/mod.rs"]
mod wire;

use olivine::prelude::*;
use wire::{F32, I64, floats, ints, node, value};

/// y = reshape(x, s)·w, where the initializers s and w are inputs as well; y is listed twice, and x and w are outputs.
fn model() -> Model {
    let graph = wire::Graph {
        nodes: vec![node("Reshape", &["x", "s"], &["a"]), node("Mul", &["a", "w"], &["y"])],
        initializers: vec![ints("s", &[2], &[4, 1]), floats("w", &[1], &[2.0])],
        inputs: vec![value("x", F32, &["2", "2"]), value("s", I64, &["2"]), value("w", F32, &["k"])],
        outputs: ["y", "x", "w", "y"].map(|name| value(name, F32, &["a", "b"])).to_vec(),
        ..wire::Graph::default()
    };
    Model::from_onnx(graph.model()).unwrap()
}

#[test]
fn a_run_may_override_initializers_that_are_inputs_and_the_next_has_them_again() {
    let executable = Session::new(Device::Cpu).unwrap().compile(&model()).unwrap();
    let x = Tensor::new([2, 2], vec![1f32, 2.0, 3.0, 4.0]).unwrap();
    let sizes = Tensor::new([2], vec![1i64, 4]).unwrap();
    let w = Tensor::new([4], vec![1f32, 0.0, -1.0, 10.0]).unwrap();
    for _ in 0..2 {
        let plain = executable.run([("x", &x)]).unwrap();
        let y = plain.get("y").unwrap();
        assert_eq!(
            (y.shape().dims(), y.as_slice::<f32>().unwrap()),
            (&[4, 1][..], &[2.0, 4.0, 6.0, 8.0][..])
        );
        assert_eq!(plain.get("w").unwrap().as_slice::<f32>().unwrap(), [2.0]);
        let other = executable.run([("x", &x), ("s", &sizes), ("w", &w)]).unwrap();
        let y = other.get("y").unwrap();
        assert_eq!(
            (y.shape().dims(), y.as_slice::<f32>().unwrap()),
            (&[1, 4][..], &[1.0, 0.0, -3.0, 40.0][..])
        );
        assert_eq!(other.get("w").unwrap().as_slice::<f32>().unwrap(), w.as_slice::<f32>().unwrap());
        assert_eq!(other.get("x").unwrap().as_slice::<f32>().unwrap(), x.as_slice::<f32>().unwrap());
    }
    assert_eq!(executable.compiled(), 2, "once with the defaults and once without");
}

#[test]
fn names_that_are_neither_inputs_nor_defaults_are_refused() {
    let executable = Session::new(Device::Cpu).unwrap().compile(&model()).unwrap();
    let x = Tensor::new([2, 2], vec![0f32; 4]).unwrap();
    let text = executable.run([("x", &x), ("a", &x)]).unwrap_err().to_string();
    assert!(text.contains("`a`"), "{text}");
    let text = executable.run([("w", &x)]).unwrap_err().to_string();
    assert!(text.contains("`x`") && text.contains("missing"), "{text}");
}

#[test]
fn weights_are_exchanged_for_others_of_their_type() {
    let twice = |_: &str, _: ElementType, tensor: &Tensor| {
        let values = tensor.as_slice::<f32>().ok()?;
        Tensor::new([values.len()], values.iter().map(|v| 2.0 * v).collect()).ok()
    };
    let changed = model().with_weights(twice).unwrap();
    let executable = Session::new(Device::Cpu).unwrap().compile(&changed).unwrap();
    let x = Tensor::new([2, 2], vec![1f32; 4]).unwrap();
    let outputs = executable.run([("x", &x)]).unwrap();
    assert_eq!(outputs.get("y").unwrap().as_slice::<f32>().unwrap(), [4.0; 4]);
    let wrong = model().with_weights(|_, _, _| Tensor::new([3], vec![1f32; 3]).ok());
    assert!(wrong.is_err_and(|e| e.to_string().contains("cannot take its place")));
}
