//! What a compiled model says to wrong names, types and sizes.
#![forbid(unsafe_code)]
#![allow(clippy::panic, clippy::unwrap_used, reason = "a failed expectation is a failed test")]

use olivine::Error;
use olivine::prelude::*;

/// y = relu(x · w) + bias, with both of x's leading sizes fixed.
fn dense() -> Executable {
    let mut g = Graph::new("dense");
    let x = g.input("x", DType::F32, [2, 3]).unwrap();
    let bias = g.input("bias", DType::F32, [4]).unwrap();
    let w = g.param("w", DType::F32, [3, 4]).unwrap();
    let y = g.matmul(x, w).unwrap();
    let y = g.relu(y).unwrap();
    let y = g.add(y, bias).unwrap();
    g.output("y", y).unwrap();
    Session::new(Device::Cpu).unwrap().compile(&g).unwrap()
}

fn floats(shape: &[usize], value: f32) -> Tensor {
    Tensor::new(shape, vec![value; shape.iter().product()]).unwrap()
}

fn loaded() -> Executable {
    let dense = dense();
    dense.set_param("w", floats(&[3, 4], 1.0)).unwrap();
    dense
}

#[test]
fn an_unknown_input_is_refused_with_the_nearest_name() {
    let x = floats(&[2, 3], 1.0);
    let b = floats(&[4], 0.0);
    let error = loaded().run([("x", &x), ("bais", &b)]).unwrap_err();
    assert!(
        matches!(&error, Error::UnknownName { kind: "input", name, nearest: Some(n) } if name == "bais" && n == "bias"),
        "{error:?}"
    );
    assert!(error.to_string().contains("did you mean `bias`?"), "{error}");
}

#[test]
fn a_missing_input_is_named_with_its_type() {
    let x = floats(&[2, 3], 1.0);
    let error = loaded().run([("x", &x)]).unwrap_err();
    assert!(matches!(&error, Error::Missing { kind: "input", name, .. } if name == "bias"), "{error:?}");
    assert!(error.to_string().contains("f32[4]"), "{error}");
}

#[test]
fn an_input_given_twice_is_refused() {
    let (x, b) = (floats(&[2, 3], 1.0), floats(&[4], 0.0));
    let error = loaded().run([("x", &x), ("bias", &b), ("x", &x)]).unwrap_err();
    assert!(matches!(&error, Error::GivenTwice { kind: "input", name } if name == "x"), "{error:?}");
}

#[test]
fn an_input_of_another_dtype_shape_or_rank_is_refused_with_both_types() {
    let b = floats(&[4], 0.0);
    let wrong = [
        Tensor::new([2, 3], vec![1.0f64; 6]).unwrap(),
        floats(&[3, 2], 1.0),
        floats(&[2, 3, 1], 1.0),
        floats(&[6], 1.0),
        floats(&[0, 3], 1.0),
    ];
    for x in &wrong {
        let error = loaded().run([("x", x), ("bias", &b)]).unwrap_err();
        assert!(matches!(&error, Error::WrongType { kind: "input", name, .. } if name == "x"), "{error:?}");
        let text = error.to_string();
        assert!(text.contains("f32[2, 3]") && text.contains(&x.ty().to_string()), "{text}");
    }
}

#[test]
fn elements_that_do_not_fill_their_shape_make_no_tensor_and_no_view() {
    assert!(Tensor::new([2, 3], vec![0f32; 5]).is_err());
    assert!(TensorView::new([2, 3], &[0f32; 7]).is_err());
    assert!(Tensor::new([usize::MAX, 2], vec![0f32; 5]).is_err());
}

#[test]
fn an_unknown_param_is_refused_with_the_nearest_name() {
    let error = dense().set_param("W", floats(&[3, 4], 1.0)).unwrap_err();
    assert!(
        matches!(&error, Error::UnknownName { kind: "param", nearest: Some(n), .. } if n == "w"),
        "{error:?}"
    );
}

#[test]
fn a_param_of_another_type_is_refused() {
    for tensor in [floats(&[4, 3], 1.0), Tensor::new([3, 4], vec![1i32; 12]).unwrap()] {
        let error = dense().set_param("w", tensor).unwrap_err();
        assert!(matches!(&error, Error::WrongType { kind: "param", name, .. } if name == "w"), "{error:?}");
    }
}

#[test]
fn a_run_without_its_params_names_all_of_them() {
    let mut g = Graph::new("two");
    let x = g.input("x", DType::F32, [2]).unwrap();
    let a = g.param("first.weight", DType::F32, [2]).unwrap();
    let b = g.param("second.weight", DType::F32, [2]).unwrap();
    let y = g.mul(x, a).unwrap();
    let y = g.add(y, b).unwrap();
    g.output("y", y).unwrap();
    let two = Session::new(Device::Cpu).unwrap().compile(&g).unwrap();
    let x = floats(&[2], 1.0);
    for error in [two.run([("x", &x)]).unwrap_err(), two.load().unwrap_err()] {
        let text = error.to_string();
        assert!(text.contains("first.weight") && text.contains("second.weight"), "{text}");
    }
    two.set_param("first.weight", floats(&[2], 2.0)).unwrap();
    let text = two.run([("x", &x)]).unwrap_err().to_string();
    assert!(!text.contains("first.weight") && text.contains("second.weight"), "{text}");
}

#[test]
fn a_replaced_param_counts_from_the_next_run() {
    let dense = loaded();
    let (x, b) = (floats(&[2, 3], 1.0), floats(&[4], 0.5));
    let run = || dense.run([("x", &x), ("bias", &b)]).unwrap().get("y").unwrap().clone();
    assert_eq!(run().as_slice::<f32>().unwrap(), [3.5; 8]);
    dense.set_param("w", floats(&[3, 4], 2.0)).unwrap();
    assert_eq!(run().as_slice::<f32>().unwrap(), [6.5; 8]);
}

#[test]
fn an_unknown_output_is_refused_with_the_nearest_name() {
    let (x, b) = (floats(&[2, 3], 1.0), floats(&[4], 0.0));
    let out = loaded().run([("x", &x), ("bias", &b)]).unwrap();
    let error = out.get("Y").unwrap_err();
    assert!(
        matches!(&error, Error::UnknownName { kind: "output", nearest: Some(n), .. } if n == "y"),
        "{error:?}"
    );
    assert_eq!(out.iter().map(|(name, _)| name).collect::<Vec<_>>(), ["y"]);
}

#[test]
fn results_asked_for_as_another_element_type_are_refused() {
    let (x, b) = (floats(&[2, 3], 1.0), floats(&[4], 0.0));
    let out = loaded().run([("x", &x), ("bias", &b)]).unwrap();
    assert!(out.get("y").unwrap().as_slice::<i32>().is_err());
}
