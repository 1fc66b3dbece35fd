//! The verifier refuses every way in which parts can fail to be a graph, and says where.
#![allow(clippy::panic, clippy::unwrap_used, reason = "a failed expectation is a failed test")]

use std::time::{Duration, Instant};

use olivine_ir::op::{Gather, Reshape, ScalarOp, Unary};
use olivine_ir::{DType, Def, Error, Graph, Node, NodeId, Output, Shape, Tensor, TensorType, Value, ValueId};

fn two_nodes() -> Graph {
    let mut g = Graph::new("g");
    let x = g.input_with_dims("x", DType::F32, [2, 3], vec![Some("n".into()), None]).unwrap();
    let y = g.relu(x).unwrap();
    let (best, at) = g.top_k(y, 1, -1, true).unwrap();
    g.output("best", best).unwrap();
    g.output("at", at).unwrap();
    g
}

/// The verdict on a graph whose parts were changed.
fn verdict(change: impl FnOnce(&mut Vec<Value>, &mut Vec<Node>, &mut Vec<Output>)) -> String {
    let g = two_nodes();
    let (mut values, mut nodes) = (g.values().to_vec(), g.nodes().to_vec());
    let mut outputs = g.outputs().to_vec();
    change(&mut values, &mut nodes, &mut outputs);
    match Graph::from_parts("g", values, nodes, outputs).verify() {
        Ok(()) => "fine".into(),
        Err(e) => e.to_string(),
    }
}

fn f32s(dims: &[usize]) -> TensorType {
    TensorType::new(DType::F32, Shape::new(dims).unwrap())
}

#[test]
fn a_built_graph_verifies_and_equals_its_parts() {
    let g = two_nodes();
    g.verify().unwrap();
    let parts = Graph::from_parts("g", g.values().to_vec(), g.nodes().to_vec(), g.outputs().to_vec());
    assert_eq!(parts, g);
    assert_eq!(parts.inputs().collect::<Vec<_>>(), g.inputs().collect::<Vec<_>>());
    assert_eq!(verdict(|_, _, _| ()), "fine");
}

#[test]
fn ids_out_of_range_are_refused() {
    assert_eq!(
        verdict(|_, n, _| n[1].inputs[0] = ValueId::new(99)),
        "invalid graph at top_k `top_k_1`: %99 is used before it is defined"
    );
    assert_eq!(
        verdict(|_, n, _| n[0].outputs[0] = ValueId::new(u32::MAX)),
        "invalid graph at %1: it is not result 0 of relu `relu_0`"
    );
    assert_eq!(
        verdict(|_, _, o| o[0].value = ValueId::new(4)),
        "invalid graph at output `best`: %4 does not exist"
    );
    assert_eq!(
        verdict(|v, _, _| v[1].def = Def::Node { node: NodeId(7), result: 0 }),
        "invalid graph at %1: its node 7 does not exist"
    );
}

#[test]
fn uses_before_definitions_are_refused() {
    assert_eq!(
        verdict(|_, n, _| n[0].inputs[0] = ValueId::new(1)),
        "invalid graph at relu `relu_0`: %1 is used before it is defined"
    );
    assert_eq!(
        verdict(|_, n, _| n[0].inputs[0] = ValueId::new(2)),
        "invalid graph at relu `relu_0`: %2 is used before it is defined"
    );
}

#[test]
fn values_and_nodes_must_agree_on_who_makes_what() {
    assert_eq!(
        verdict(|_, n, _| n[1].outputs.swap(0, 1)),
        "invalid graph at %2: it is not result 0 of top_k `top_k_1`"
    );
    assert_eq!(
        verdict(|v, _, _| v[1].def = Def::Param { name: "p".into() }),
        "invalid graph at relu `relu_0`: its result %1 is defined elsewhere"
    );
    assert_eq!(
        verdict(|v, _, _| v[3].def = Def::Param { name: "p".into() }),
        "invalid graph at top_k `top_k_1`: its result %3 is defined elsewhere"
    );
    assert_eq!(
        verdict(|_, n, _| n.push(Node { outputs: vec![], ..n[0].clone() })),
        "invalid graph at relu `relu_0`: it has no results"
    );
    assert_eq!(
        verdict(|_, n, _| n.push(n[0].clone())),
        "invalid graph at relu `relu_0`: its result %1 stands before an earlier node's"
    );
    let swapped = verdict(|v, n, _| {
        n.swap(0, 1);
        v[1].def = Def::Node { node: NodeId(1), result: 0 };
        v[2].def = Def::Node { node: NodeId(0), result: 0 };
        v[3].def = Def::Node { node: NodeId(0), result: 1 };
    });
    assert_eq!(swapped, "invalid graph at relu `relu_0`: its result %1 stands before an earlier node's");
}

#[test]
fn recorded_types_must_be_the_inferred_ones() {
    assert_eq!(
        verdict(|v, _, _| v[1].ty = f32s(&[3, 2])),
        "invalid graph at relu `relu_0`: %1 is recorded as f32[3, 2], but is f32[2, 3]"
    );
    assert_eq!(
        verdict(|_, n, _| n[1].op = ScalarOp::Unary(Unary::Abs).into()),
        "invalid graph at abs `top_k_1`: it gives 1 results, 2 are recorded"
    );
    assert_eq!(
        verdict(|_, n, _| n[0].op = Reshape { dims: vec![5.into()] }.into()),
        "reshape `relu_0`: 6 elements do not fit [5] with 5; operands: f32[2, 3]"
    );
    assert_eq!(
        verdict(|_, n, _| n[0].inputs.clear()),
        "relu `relu_0`: takes 1 operands, got 0; operands: none"
    );
    assert_eq!(
        verdict(|v, _, _| v.push(Value { ty: f32s(&[1]), def: Def::Const(Tensor::scalar(1.0f32)) })),
        "invalid graph at %4: the constant is f32[], the value f32[1]"
    );
}

#[test]
fn constant_indices_are_checked_again() {
    let mut g = Graph::new("g");
    let x = g.input("x", DType::F32, [3]).unwrap();
    let i = g.constant(Tensor::scalar(2i64));
    g.add_op(Gather { axis: 0 }, &[x, i]).unwrap();
    let mut values = g.values().to_vec();
    values[1].def = Def::Const(Tensor::scalar(3i64));
    let broken = Graph::from_parts("g", values, g.nodes().to_vec(), vec![]);
    assert_eq!(
        broken.verify().unwrap_err().to_string(),
        "gather `gather_0`: index 3 at position 0 is out of range for size 3; operands: f32[3], i64[]"
    );
}

#[test]
fn names_are_distinct_and_free_sizes_agree() {
    let input = |name: &str, dims: Vec<Option<String>>| Value {
        ty: f32s(&[4]),
        def: Def::Input { name: name.into(), dims },
    };
    let param = Value { ty: f32s(&[4]), def: Def::Param { name: "w".into() } };
    assert_eq!(verdict(|v, _, _| v.push(input("x", vec![None]))), "input `x` is declared twice");
    assert_eq!(verdict(|v, _, _| v.extend([param.clone(), param.clone()])), "param `w` is declared twice");
    assert_eq!(verdict(|_, _, o| o[1].name = "best".into()), "output `best` is declared twice");
    assert_eq!(
        verdict(|v, _, _| v.push(input("z", vec![]))),
        "invalid graph at input `z`: 0 axis names for f32[4]"
    );
    assert_eq!(
        verdict(|v, _, _| v.push(input("z", vec![Some("n".into())]))),
        "invalid graph at input `z`: size `n` is 4 here and 2 elsewhere"
    );
}

#[test]
fn the_builder_refuses_what_the_verifier_would() {
    let mut g = two_nodes();
    let n = || vec![Some("n".to_string())];
    assert!(matches!(g.input_with_dims("z", DType::F32, [4], n()), Err(Error::Invalid { .. })));
    assert!(g.input_with_dims("z", DType::F32, [2], n()).is_ok());
    assert!(g.input_with_dims("twice", DType::F32, [5, 6], vec![Some("m".into()); 2]).is_err());
    assert!(g.input("x", DType::F32, [1]).is_err());
    g.verify().unwrap();
}

#[test]
fn verifying_after_every_pass_and_declaring_many_params_stay_cheap() {
    let mut g = Graph::new("deep");
    let start = Instant::now();
    let params: Vec<ValueId> =
        (0..20_000).map(|i| g.param(&format!("layer{i}/weight"), DType::F32, [64]).unwrap()).collect();
    let mut x = g.input("x", DType::F32, [8, 64]).unwrap();
    for i in 0..5_000 {
        x = g.add(x, params[i]).unwrap();
    }
    g.output("y", x).unwrap();
    let built = start.elapsed();
    let start = Instant::now();
    g.verify().unwrap();
    let verified = start.elapsed();
    // Ten times the size of a large model, and loose enough for a machine that is busy with other things.
    assert!(built < Duration::from_secs(2), "building took {built:?}");
    assert!(verified < Duration::from_millis(500), "verifying took {verified:?}");
}
