//! What is made of weights once, at load.
#![allow(clippy::unwrap_used, reason = "a failed expectation is a failed test")]

mod common;

use common::Interpreter;
use olivine_cases::Backend;
use olivine_gpu::Content;
use olivine_ir::op::Window;
use olivine_ir::{DType, Graph, Tensor};

/// Two convolutions by the same four filters of six; those are a param, or an input where `given` says so.
fn filtered(given: bool) -> Graph {
    let mut g = Graph::new("filtered");
    let x = g.input("x", DType::F32, [1, 2, 5, 5]).unwrap();
    let all = match given {
        true => g.input("w", DType::F32, [6, 2, 3, 3]).unwrap(),
        false => g.param("w", DType::F32, [6, 2, 3, 3]).unwrap(),
    };
    let w = g.slice(all, 0, 1, 5, 1).unwrap();
    let y = g.conv(x, w, None, Window::unit(2), 1).unwrap();
    let z = g.conv(x, w, None, Window::same(2, 1, 1), 1).unwrap();
    g.output("y", y).unwrap();
    g.output("z", z).unwrap();
    g
}

#[test]
fn a_weight_inside_another_is_copied_once_at_load_and_an_input_in_every_run() {
    let device = Interpreter::rich(32);
    let stored = device.lower(&filtered(false)).unwrap();
    let given = device.lower(&filtered(true)).unwrap();
    assert_eq!((stored.load.len(), given.load.len()), (1, 0));
    assert!(stored.run.len() < given.run.len());
    let keys: Vec<_> =
        stored.buffers.iter().filter(|b| matches!(b.content, Content::Packed { .. })).collect();
    assert_eq!(keys.len(), 1);
    assert!(matches!(&keys[0].content, Content::Packed { key: Some(key) } if key.contains("\"w\"")));

    let tensor = |dims: &[usize]| {
        let count: usize = dims.iter().product();
        let numbers: Vec<f32> = (0..count).map(|i| ((i * 7) % 13) as f32 - 6.0).collect();
        Tensor::new(dims, numbers).unwrap()
    };
    let (x, w) = (("x".to_string(), tensor(&[1, 2, 5, 5])), ("w".to_string(), tensor(&[6, 2, 3, 3])));
    let by_param = device.run(&filtered(false), std::slice::from_ref(&x), std::slice::from_ref(&w)).unwrap();
    let by_input = device.run(&filtered(true), &[x, w], &[]).unwrap();
    for (p, i) in by_param.iter().zip(&by_input) {
        assert_eq!(p.data().as_bytes(), i.data().as_bytes());
    }
}
