//! Absurd sizes, NaNs and indices out of range: errors or defined answers, never a crash.
#![forbid(unsafe_code)]
#![allow(clippy::panic, clippy::unwrap_used, reason = "a failed expectation is a failed test")]

use olivine::prelude::*;

fn session() -> Session {
    Session::new(Device::Cpu).unwrap()
}

#[test]
fn a_graph_that_needs_terabytes_is_refused_with_the_number_of_bytes() {
    let mut g = Graph::new("huge");
    let x = g.input("x", DType::F32, [1 << 20, 1]).unwrap();
    let y = g.input("y", DType::F32, [1, 1 << 24]).unwrap();
    // The outer sum is 2^44 elements; the product of two such keeps both alive.
    let sum = g.add(x, y).unwrap();
    let other = g.mul(x, y).unwrap();
    let sorted = g.sort(sum, -1, false).unwrap();
    let out = g.sub(sorted, other).unwrap();
    g.output("out", out).unwrap();
    let error = session().compile(&g).map(drop).unwrap_err();
    assert!(
        matches!(&error, Error::Cpu(olivine::internals::cpu::Error::TooLarge { needed, .. }) if *needed >= 1 << 46),
        "{error:?}"
    );
}

#[test]
fn sizes_whose_product_overflows_make_no_graph() {
    let mut g = Graph::new("overflow");
    assert!(g.input("x", DType::F32, [usize::MAX, usize::MAX]).is_err());
    assert!(g.input("x", DType::F32, [1 << 40, 1 << 40]).is_err());
    let a = g.input("a", DType::F32, [1 << 30, 1]).unwrap();
    let b = g.input("b", DType::F32, [1, 1 << 30]).unwrap();
    let error = g.add(a, b).unwrap_err();
    assert!(error.to_string().contains("add"), "{error}");
    assert!(g.matmul(a, b).is_err());
    assert!(g.tile(a, &[1 << 30, 1 << 30]).is_err());
    assert!(g.expand(a, [1 << 30, 1 << 30]).is_err());
}

#[test]
fn a_free_size_that_is_too_large_is_refused_when_it_comes() {
    let mut g = Graph::new("outer");
    let dims = |name: &str| vec![Some(name.to_string())];
    let a = g.input_with_dims("a", DType::U8, [4], dims("n")).unwrap();
    let b = g.input_with_dims("b", DType::U8, [4], dims("m")).unwrap();
    let column = g.reshape(a, &[-1, 1]).unwrap();
    let outer = g.add(column, b).unwrap();
    let sum = g.cast(outer, DType::F64).unwrap();
    g.output("y", sum).unwrap();
    let outer = session().compile(&g).unwrap();
    // 2^22 bytes twice are little; their outer sum in f64 is 2^47 bytes.
    let long = Tensor::zeros(DType::U8, [1 << 22]).unwrap();
    let error = outer.run([("a", &long), ("b", &long)]).unwrap_err();
    assert!(matches!(error, Error::Cpu(olivine::internals::cpu::Error::TooLarge { .. })), "{error:?}");
    let short = Tensor::zeros(DType::U8, [2]).unwrap();
    outer.run([("a", &short), ("b", &short)]).unwrap();
}

#[test]
fn nan_and_infinite_inputs_pass_through_every_kind_of_kernel() {
    let mut g = Graph::new("nan");
    let x = g.input("x", DType::F32, [4, 4]).unwrap();
    let w = g.param("w", DType::F32, [4, 4]).unwrap();
    let product = g.matmul(x, w).unwrap();
    let soft = g.softmax(product, -1).unwrap();
    let sorted = g.sort(x, -1, false).unwrap();
    let best = g.argmax(x, -1, false).unwrap();
    let whole = g.cast(x, DType::I32).unwrap();
    for (name, id) in [("soft", soft), ("sorted", sorted), ("best", best), ("whole", whole)] {
        g.output(name, id).unwrap();
    }
    let executable = session().compile(&g).unwrap();
    executable.set_param("w", Tensor::new([4, 4], vec![1f32; 16]).unwrap()).unwrap();
    let mut elements = vec![1f32; 16];
    elements[0] = f32::NAN;
    elements[5] = f32::INFINITY;
    elements[10] = f32::NEG_INFINITY;
    let x = Tensor::new([4, 4], elements).unwrap();
    let out = executable.run([("x", &x)]).unwrap();
    let soft = out.get("soft").unwrap().as_slice::<f32>().unwrap();
    assert!(soft[..4].iter().all(|y| y.is_nan()), "{soft:?}");
    assert_eq!(soft[12..], [0.25; 4]);
    assert_eq!(out.get("best").unwrap().as_slice::<i64>().unwrap(), [0, 1, 0, 0]);
    let whole = out.get("whole").unwrap().as_slice::<i32>().unwrap();
    assert_eq!((whole[0], whole[5], whole[10]), (0, i32::MAX, i32::MIN));
}

#[test]
fn an_index_out_of_range_is_clamped_or_in_checked_mode_an_error_that_names_it() {
    let mut g = Graph::new("rows");
    let table = g.input("table", DType::F32, [3, 2]).unwrap();
    let ids = g.input("ids", DType::I64, [2]).unwrap();
    let rows = g.gather(table, ids, 0).unwrap();
    g.output("rows", rows).unwrap();
    let table = Tensor::new([3, 2], vec![0f32, 1.0, 2.0, 3.0, 4.0, 5.0]).unwrap();
    let ids = Tensor::new([2], vec![1i64, 7]).unwrap();

    let out = session().compile(&g).unwrap().run([("table", &table), ("ids", &ids)]).unwrap();
    assert_eq!(out.get("rows").unwrap().as_slice::<f32>().unwrap(), [2.0, 3.0, 4.0, 5.0]);

    let options = SessionOptions::new().checked(true);
    let checked = Session::with_options(Device::Cpu, options).unwrap().compile(&g).unwrap();
    let error = checked.run([("table", &table), ("ids", &ids)]).unwrap_err();
    assert!(
        matches!(
            &error,
            Error::Cpu(olivine::internals::cpu::Error::IndexOutOfRange {
                op: "gather",
                position: 1,
                value: 7,
                size: 3,
                ..
            })
        ),
        "{error:?}"
    );
    let good = Tensor::new([2], vec![-1i64, 0]).unwrap();
    let out = checked.run([("table", &table), ("ids", &good)]).unwrap();
    assert_eq!(out.get("rows").unwrap().as_slice::<f32>().unwrap(), [4.0, 5.0, 0.0, 1.0]);
}

#[test]
fn a_text_that_is_not_a_graph_is_an_error_with_its_place() {
    for text in ["", "graph", "graph \"x\" {\n  %0 = input\n}", "graph \"x\" {\n  output \"y\" = %0\n}"] {
        let error = text.parse::<Graph>().unwrap_err();
        assert!(!error.to_string().is_empty());
    }
}

#[test]
fn a_graph_without_outputs_or_inputs_runs() {
    let empty = session().compile(&Graph::new("empty")).unwrap();
    let none: [(&str, &Tensor); 0] = [];
    assert!(empty.run(none).unwrap().into_tensors().is_empty());

    let mut g = Graph::new("constant");
    let c = g.constant(Tensor::new([2], vec![1f32, 2.0]).unwrap());
    let y = g.add(c, c).unwrap();
    g.output("y", y).unwrap();
    let out = session().compile(&g).unwrap().run(none).unwrap();
    assert_eq!(out.get("y").unwrap().as_slice::<f32>().unwrap(), [2.0, 4.0]);
}
