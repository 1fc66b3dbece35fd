//! Results written into tensors that the caller already has, and inputs that are only lent.
#![forbid(unsafe_code)]
#![allow(clippy::panic, clippy::unwrap_used, reason = "a failed expectation is a failed test")]

use olivine::Error;
use olivine::ir::Data;
use olivine::prelude::*;

fn session() -> Session {
    Session::new(Device::Cpu).unwrap()
}

/// y = x + x, z = x · x.
fn two_outputs() -> Executable {
    let mut g = Graph::new("two");
    let x = g.input("x", DType::F32, [3]).unwrap();
    let y = g.add(x, x).unwrap();
    let z = g.mul(x, x).unwrap();
    g.output("y", y).unwrap();
    g.output("z", z).unwrap();
    session().compile(&g).unwrap()
}

fn zeros() -> Tensor {
    Tensor::zeros(DType::F32, [3]).unwrap()
}

#[test]
fn results_land_in_the_tensors_given_by_name_in_any_order() {
    let x = Tensor::new([3], vec![1f32, 2.0, 3.0]).unwrap();
    let (mut y, mut z) = (zeros(), zeros());
    two_outputs().run_into([("x", &x)], &mut [("z", &mut z), ("y", &mut y)]).unwrap();
    assert_eq!(y.as_slice::<f32>().unwrap(), [2.0, 4.0, 6.0]);
    assert_eq!(z.as_slice::<f32>().unwrap(), [1.0, 4.0, 9.0]);
}

#[test]
fn results_are_written_to_the_same_memory_every_time() {
    let x = Tensor::new([3], vec![1f32, 2.0, 3.0]).unwrap();
    let (mut y, mut z) = (zeros(), zeros());
    let place = y.as_slice::<f32>().unwrap().as_ptr();
    let two = two_outputs();
    for _ in 0..3 {
        two.run_into([("x", &x)], &mut [("y", &mut y), ("z", &mut z)]).unwrap();
        assert_eq!(y.as_slice::<f32>().unwrap().as_ptr(), place);
    }
}

#[test]
fn wrong_targets_are_refused_and_nothing_is_written() {
    let x = Tensor::new([3], vec![1f32, 2.0, 3.0]).unwrap();
    let two = two_outputs();
    let (mut y, mut z, mut other) = (zeros(), zeros(), zeros());

    let error = two.run_into([("x", &x)], &mut [("y", &mut y)]).unwrap_err();
    assert!(matches!(&error, Error::Missing { kind: "output", name, .. } if name == "z"), "{error:?}");

    let error = two.run_into([("x", &x)], &mut [("y", &mut y), ("zz", &mut z)]).unwrap_err();
    assert!(
        matches!(&error, Error::UnknownName { kind: "output", nearest: Some(n), .. } if n == "z"),
        "{error:?}"
    );

    let mut targets = [("y", &mut y), ("z", &mut z), ("y", &mut other)];
    let error = two.run_into([("x", &x)], &mut targets).unwrap_err();
    assert!(matches!(&error, Error::GivenTwice { kind: "output", name } if name == "y"), "{error:?}");

    for mut wrong in [Tensor::zeros(DType::F32, [4]).unwrap(), Tensor::zeros(DType::F64, [3]).unwrap()] {
        let error = two.run_into([("x", &x)], &mut [("y", &mut wrong), ("z", &mut z)]).unwrap_err();
        assert!(matches!(&error, Error::WrongType { kind: "output", name, .. } if name == "y"), "{error:?}");
    }
    assert_eq!((y, z, other), (zeros(), zeros(), zeros()));
}

#[test]
fn every_dtype_passes_in_and_out_unchanged() {
    for dtype in DType::ALL {
        let mut g = Graph::new("there and back");
        let x = g.input("x", dtype, [2, 3]).unwrap();
        let turned = g.transpose(x, &[1, 0]).unwrap();
        g.output("same", x).unwrap();
        g.output("turned", turned).unwrap();
        let executable = session().compile(&g).unwrap();
        let bytes: Vec<u8> = match dtype {
            DType::Bool => vec![1, 0, 1, 1, 0, 0],
            _ => (0..6 * dtype.size()).map(|i| (i * 7 % 120) as u8).collect(),
        };
        let x = Tensor::from_data([2, 3], Data::from_bytes(dtype, &bytes).unwrap()).unwrap();
        let mut same = Tensor::zeros(dtype, [2, 3]).unwrap();
        let mut turned = Tensor::zeros(dtype, [3, 2]).unwrap();
        executable.run_into([("x", &x)], &mut [("same", &mut same), ("turned", &mut turned)]).unwrap();
        assert_eq!(same, x, "{dtype}");
        let size = dtype.size();
        let want: Vec<u8> =
            [0, 3, 1, 4, 2, 5].iter().flat_map(|i| bytes[i * size..(i + 1) * size].to_vec()).collect();
        assert_eq!(turned.data().as_bytes(), want, "{dtype}");
        let out = executable.run([("x", &x)]).unwrap();
        assert_eq!(out.get("turned").unwrap(), &turned, "{dtype}");
    }
}

#[test]
fn bools_come_out_of_comparisons() {
    let mut g = Graph::new("compare");
    let x = g.input("x", DType::I32, [4]).unwrap();
    let y = g.input("y", DType::I32, [4]).unwrap();
    let less = g.lt(x, y).unwrap();
    g.output("less", less).unwrap();
    let executable = session().compile(&g).unwrap();
    let x = Tensor::new([4], vec![1i32, 2, 3, 4]).unwrap();
    let y = Tensor::new([4], vec![4i32, 2, 4, 0]).unwrap();
    let mut less = Tensor::new([4], vec![true; 4]).unwrap();
    executable.run_into([("x", &x), ("y", &y)], &mut [("less", &mut less)]).unwrap();
    assert_eq!(less.as_slice::<bool>().unwrap(), [true, false, true, false]);
}

#[test]
fn borrowed_elements_are_read_where_they_lie() {
    let elements = [1f32, 2.0, 3.0];
    let view = TensorView::new([3], &elements).unwrap();
    assert_eq!(view.bytes().as_ptr(), elements.as_ptr().cast());
    let out = two_outputs().run([("x", view)]).unwrap();
    assert_eq!(out.get("y").unwrap().as_slice::<f32>().unwrap(), [2.0, 4.0, 6.0]);
    assert_eq!(elements, [1.0, 2.0, 3.0], "a run must not write to its inputs");
}

#[test]
fn a_param_is_shared_and_not_copied() {
    let mut g = Graph::new("scaled");
    let x = g.input("x", DType::F32, [2]).unwrap();
    let w = g.param("w", DType::F32, [2]).unwrap();
    let y = g.mul(x, w).unwrap();
    g.output("y", y).unwrap();
    g.output("w", w).unwrap();
    let scaled = session().compile(&g).unwrap();
    let mut weight = Tensor::new([2], vec![2f32, 3.0]).unwrap();
    scaled.set_param("w", weight.clone()).unwrap();
    // The caller's own writes make a copy of theirs; the model keeps what it was given.
    weight.as_mut_slice::<f32>().unwrap()[0] = 9.0;
    let x = Tensor::new([2], vec![1f32, 1.0]).unwrap();
    let out = scaled.run([("x", &x)]).unwrap();
    assert_eq!(out.get("y").unwrap().as_slice::<f32>().unwrap(), [2.0, 3.0]);
    assert_eq!(out.get("w").unwrap().as_slice::<f32>().unwrap(), [2.0, 3.0]);
}

#[test]
fn one_value_may_be_several_outputs() {
    let mut g = Graph::new("twins");
    let x = g.input("x", DType::F32, [3]).unwrap();
    let y = g.add(x, x).unwrap();
    g.output("first", y).unwrap();
    g.output("second", y).unwrap();
    g.output("x", x).unwrap();
    let twins = session().compile(&g).unwrap();
    let x = Tensor::new([3], vec![1f32, 2.0, 3.0]).unwrap();
    let out = twins.run([("x", &x)]).unwrap();
    assert_eq!(out.get("first").unwrap(), out.get("second").unwrap());
    assert_eq!(out.get("first").unwrap().as_slice::<f32>().unwrap(), [2.0, 4.0, 6.0]);
    assert_eq!(out.get("x").unwrap(), &x);
}
