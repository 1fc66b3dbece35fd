//! Built-in models: the numbers that other languages must be able to make too, and the graph's shape.
#![forbid(unsafe_code)]
#![allow(clippy::panic, clippy::unwrap_used, reason = "a failed expectation is a failed test")]

use olivine::internals::models::{Encoder, seeded_input, seeded_params};
use olivine::prelude::*;

fn small() -> Encoder {
    Encoder { layers: 1, hidden: 4, heads: 2, feed_forward: 8, batch: 2, sequence: 3, dtype: DType::F32 }
}

/// Computed by bench/bert_vs_onnxruntime.py.
#[test]
fn seeded_numbers_are_those_of_the_python_script() {
    let x = seeded_input("x", Shape::new(&[4]).unwrap(), 0).unwrap();
    assert_eq!(x.as_slice::<f32>().unwrap(), [0.33245313, -0.12584233, -0.2746886, 0.6622436]);
}

#[test]
fn another_seed_gives_other_numbers_and_the_same_seed_the_same() {
    let input = |seed| seeded_input("x", Shape::new(&[100]).unwrap(), seed).unwrap();
    assert_eq!(input(5), input(5));
    assert_ne!(input(5), input(6));
    assert!(input(7).as_slice::<f32>().unwrap().iter().all(|x| (-1.0..1.0).contains(x)));
}

#[test]
fn weights_are_scaled_by_their_kind() {
    let params = seeded_params(&small().graph().unwrap(), 0).unwrap();
    let get = |name: &str| params.iter().find(|(n, _)| n == name).map(|(_, t)| t.to_f64()).unwrap();
    assert!(get("layer0.query.weight").iter().all(|w| w.abs() <= 0.5), "within 1/√4");
    assert!(get("layer0.up.bias").iter().all(|b| b.abs() <= 0.02));
    assert!(get("layer0.norm1.gamma").iter().all(|g| (g - 1.0).abs() <= 0.02));
}

#[test]
fn an_encoder_keeps_its_inputs_shape_for_any_batch_and_sequence() {
    let graph = small().graph().unwrap();
    let executable = Session::new(Device::Cpu).unwrap().compile(&graph).unwrap();
    executable.set_params(seeded_params(&graph, 0).unwrap()).unwrap();
    for (batch, sequence) in [(2, 3), (1, 1), (3, 17), (0, 5)] {
        let shape = Shape::new(&[batch, sequence, 4]).unwrap();
        let x = seeded_input("x", shape, 1).unwrap();
        let out = executable.run([("x", &x)]).unwrap();
        let y = out.get("y").unwrap();
        assert_eq!(y.shape(), &shape);
        // The last step is a norm with weights near one: every row has mean 0 and variance 1, nearly.
        for row in y.to_f64().chunks(4) {
            let mean = row.iter().sum::<f64>() / 4.0;
            let variance = row.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / 4.0;
            assert!(mean.abs() < 0.1 && (variance - 1.0).abs() < 0.2, "{row:?}");
        }
    }
}

#[test]
fn flops_count_the_matmuls_alone() {
    let e = small();
    let tokens = 6.0;
    let products = 2.0 * tokens * (4.0 * 16.0 + 2.0 * 32.0);
    let attention = 2.0 * 2.0 * tokens * 3.0 * 4.0;
    assert_eq!(e.flops(), products + attention);
}

#[test]
fn an_encoder_in_f16_computes_nearly_what_one_in_f32_does() {
    let output = |dtype: DType| {
        let graph = Encoder { dtype, ..small() }.graph().unwrap();
        let executable = Session::new(Device::Cpu).unwrap().compile(&graph).unwrap();
        let converted = |tensor: Tensor| {
            let mut g = Graph::new("cast");
            let x = g.input("x", DType::F32, *tensor.shape()).unwrap();
            let y = g.cast(x, dtype).unwrap();
            g.output("y", y).unwrap();
            let cast = Session::new(Device::Cpu).unwrap().compile(&g).unwrap();
            cast.run([("x", &tensor)]).unwrap().get("y").unwrap().clone()
        };
        let params = seeded_params(&small().graph().unwrap(), 0).unwrap();
        executable.set_params(params.into_iter().map(|(name, tensor)| (name, converted(tensor)))).unwrap();
        let x = converted(seeded_input("x", Shape::new(&[2, 3, 4]).unwrap(), 1).unwrap());
        executable.run([("x", &x)]).unwrap().get("y").unwrap().to_f64()
    };
    let (f32, f16) = (output(DType::F32), output(DType::F16));
    assert!(f32.iter().zip(&f16).all(|(a, b)| (a - b).abs() < 0.02), "{f32:?} {f16:?}");
    assert_ne!(f32, f16);
}
