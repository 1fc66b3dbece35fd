//! Operators whose results' sizes, or whose iterations, come out only when they are computed.

use std::collections::HashMap;

use olivine_ir::{Data, Tensor};
use prost::Message;

use super::tests_driver as driver;
use crate::Model;
use crate::proto::attribute_proto::AttributeType;
use crate::proto::{
    AttributeProto, GraphProto, ModelProto, NodeProto, OperatorSetIdProto, TypeProto, ValueInfoProto,
    type_proto,
};

pub(super) fn node(op: &str, inputs: &[&str], outputs: &[&str], attribute: Vec<AttributeProto>) -> NodeProto {
    NodeProto {
        op_type: Some(op.into()),
        input: inputs.iter().map(|s| s.to_string()).collect(),
        output: outputs.iter().map(|s| s.to_string()).collect(),
        attribute,
        ..NodeProto::default()
    }
}

pub(super) fn attribute(name: &str, r#type: AttributeType) -> AttributeProto {
    AttributeProto { name: Some(name.into()), r#type: Some(r#type as i32), ..AttributeProto::default() }
}

pub(super) fn int(name: &str, value: i64) -> AttributeProto {
    AttributeProto { i: Some(value), ..attribute(name, AttributeType::Int) }
}

pub(super) fn text(name: &str, value: &'static str) -> AttributeProto {
    AttributeProto { s: Some(value.as_bytes().into()), ..attribute(name, AttributeType::String) }
}

pub(super) fn float(value: f32) -> Vec<AttributeProto> {
    vec![AttributeProto { f: Some(value), ..attribute("value_float", AttributeType::Float) }]
}

/// A graph inside a node.
pub(super) fn body(inputs: &[&str], nodes: Vec<NodeProto>, outputs: &[&str]) -> Vec<AttributeProto> {
    vec![graph("body", inputs, nodes, outputs)]
}

pub(super) fn graph(name: &str, inputs: &[&str], nodes: Vec<NodeProto>, outputs: &[&str]) -> AttributeProto {
    let infos = |names: &[&str]| names.iter().map(|name| info(name, None)).collect();
    let graph =
        GraphProto { node: nodes, input: infos(inputs), output: infos(outputs), ..GraphProto::default() };
    AttributeProto { g: Some(graph), ..attribute(name, AttributeType::Graph) }
}

pub(super) fn info(name: &str, element: Option<i32>) -> ValueInfoProto {
    let tensor = |elem_type| type_proto::Tensor { elem_type: Some(elem_type), shape: None };
    let ty = element
        .map(|e| TypeProto { value: Some(type_proto::Value::TensorType(tensor(e))), ..TypeProto::default() });
    ValueInfoProto { name: Some(name.into()), r#type: ty, ..ValueInfoProto::default() }
}

/// Tensors by name.
pub(super) type Values = HashMap<String, Tensor>;

/// What a model of these nodes makes of its inputs, and how many stages and loops ran before its last graph.
pub(super) fn run(
    nodes: Vec<NodeProto>,
    inputs: &[(&str, Tensor)],
    outputs: &[&str],
) -> (Vec<Vec<Tensor>>, usize) {
    let (results, counts) = run_with(nodes, inputs, outputs, None);
    (results, counts.known)
}

/// What it took to run a model.
#[derive(Default)]
pub(super) struct Counts {
    /// Stages and loops before the last graph.
    pub(super) known: usize,
    /// Graphs of loops' iterations that ran.
    pub(super) iterations: usize,
    /// The most nodes of a graph, with those of graphs inside.
    pub(super) nodes: usize,
    /// Operations of the last graph.
    pub(super) last: Vec<&'static str>,
}

/// As [`run`], for a device that records so many iterations of a loop at a time.
pub(super) fn run_with(
    nodes: Vec<NodeProto>,
    inputs: &[(&str, Tensor)],
    outputs: &[&str],
    batch: Option<usize>,
) -> (Vec<Vec<Tensor>>, Counts) {
    let number = |tensor: &Tensor| match tensor.data() {
        Data::F32(_) => 1,
        Data::I64(_) => 7,
        Data::Bool(_) => 9,
        other => panic!("no tests with {:?}", other.dtype()),
    };
    let graph = GraphProto {
        node: nodes,
        input: inputs.iter().map(|(name, tensor)| info(name, Some(number(tensor)))).collect(),
        output: outputs.iter().map(|name| info(name, None)).collect(),
        ..GraphProto::default()
    };
    let opset = OperatorSetIdProto { version: Some(24), ..OperatorSetIdProto::default() };
    let proto = ModelProto {
        ir_version: Some(10),
        opset_import: vec![opset],
        graph: Some(graph),
        ..ModelProto::default()
    };
    let model = Model::from_bytes(proto.encode_to_vec()).expect("a model");
    let mut values: Values = inputs.iter().map(|(name, tensor)| (name.to_string(), tensor.clone())).collect();
    let mut counts = Counts::default();
    let whole = driver::follow(&model, None, batch, &mut values, &mut counts);
    counts.known = whole.known;
    counts.last = whole.graph.nodes().iter().map(|n| n.op.name()).collect();
    let made = driver::outputs(&whole.graph, &values, &mut counts);
    let results = whole.outputs.iter().map(|(_, part)| driver::tensors(part, &made)).collect();
    (results, counts)
}

pub(super) fn floats(dims: &[usize], values: &[f32]) -> Tensor {
    Tensor::new(dims, values.to_vec()).expect("as many elements as the shape has")
}

pub(super) fn ints(dims: &[usize], values: &[i64]) -> Tensor {
    Tensor::new(dims, values.to_vec()).expect("as many elements as the shape has")
}

#[test]
fn suppression_takes_boxes_by_score_and_leaves_out_what_overlaps() {
    let boxes = floats(
        &[1, 4, 4],
        &[0.0, 0.0, 1.0, 1.0, 0.0, 0.1, 1.0, 1.1, 0.0, 10.0, 1.0, 11.0, 1.0, 11.1, 0.0, 10.1],
    );
    let scores = floats(&[1, 2, 4], &[0.9, 0.95, 0.5, 0.6, 0.1, 0.1, 0.8, 0.1]);
    let suppress = node("NonMaxSuppression", &["b", "s", "m", "o", "t"], &["y"], vec![]);
    let inputs = [
        ("b", boxes),
        ("s", scores),
        ("m", ints(&[1], &[i64::MAX])),
        ("o", floats(&[1], &[0.5])),
        ("t", floats(&[1], &[0.2])),
    ];
    let (results, stages) = run(vec![suppress], &inputs, &["y"]);
    assert_eq!(results[0][0], ints(&[3, 3], &[0, 0, 1, 0, 0, 3, 0, 1, 2]));
    assert_eq!(stages, 1);
}

#[test]
fn distinct_rows_come_in_the_order_asked_for() {
    let x = floats(&[5, 2], &[2.0, 1.0, 0.0, 3.0, 2.0, 1.0, 0.0, 1.0, 0.0, 3.0]);
    let outputs = ["y", "first", "inverse", "counts"];
    for (sorted, y, first, inverse, counts) in [
        (1, [0.0, 1.0, 0.0, 3.0, 2.0, 1.0], [3, 1, 0], [2, 1, 2, 0, 1], [1, 2, 2]),
        (0, [2.0, 1.0, 0.0, 3.0, 0.0, 1.0], [0, 1, 3], [0, 1, 0, 2, 1], [2, 2, 1]),
    ] {
        let unique = node("Unique", &["x"], &outputs, vec![int("axis", 0), int("sorted", sorted)]);
        let (results, stages) = run(vec![unique], &[("x", x.clone())], &outputs);
        assert_eq!(results[0][0], floats(&[3, 2], &y));
        assert_eq!(results[1][0], ints(&[3], &first));
        assert_eq!(results[2][0], ints(&[5], &inverse));
        assert_eq!(results[3][0], ints(&[3], &counts));
        assert_eq!(stages, 1);
    }
}

#[test]
fn a_condition_alone_ends_a_loop_and_its_rows_are_as_many_as_its_iterations() {
    let trip = vec![
        node("Constant", &[], &["half"], float(0.5)),
        node("Constant", &[], &["limit"], float(1.0)),
        node("Mul", &["v", "half"], &["w"], vec![]),
        node("ReduceSum", &["w"], &["s"], vec![int("keepdims", 0)]),
        node("Greater", &["s", "limit"], &["more"], vec![]),
    ];
    let attributes = body(&["i", "c", "v"], trip, &["more", "w", "s"]);
    let model = vec![node("Loop", &["", "", "x"], &["y", "rows"], attributes)];
    let (results, stages) = run(model, &[("x", floats(&[10], &[1.6; 10]))], &["y", "rows"]);
    assert_eq!(results[0][0], floats(&[10], &[0.1; 10]));
    assert_eq!(results[1][0], floats(&[4], &[8.0, 4.0, 2.0, 1.0]));
    assert_eq!(stages, 1);
}

#[test]
fn a_loop_whose_values_grow_is_seen_through_in_few_stages() {
    let trip = vec![
        node("Constant", &[], &["limit"], float(300.5)),
        node("Concat", &["v", "x"], &["w"], vec![int("axis", 0)]),
        node("ReduceSum", &["w"], &["s"], vec![int("keepdims", 0)]),
        node("Less", &["s", "limit"], &["more"], vec![]),
    ];
    let attributes = body(&["i", "c", "v"], trip, &["more", "w", "s"]);
    let model = vec![node("Loop", &["", "", "x"], &["y", "rows"], attributes)];
    let (results, stages) = run(model, &[("x", floats(&[10], &[1.0; 10]))], &["y", "rows"]);
    assert_eq!(results[0][0], floats(&[310], &[1.0; 310]));
    let sums: Vec<f32> = (2..=31).map(|i| i as f32 * 10.0).collect();
    assert_eq!(results[1][0], floats(&[30], &sums));
    assert!(stages <= 6, "{stages} stages");
}

#[test]
fn a_branch_that_a_loop_takes_of_a_sudden_is_taken() {
    // Past a sum of 100 what is joined is larger by one; the branches' results have different shapes.
    let one = AttributeProto { floats: vec![1.0], ..attribute("value_floats", AttributeType::Floats) };
    let branches = vec![
        graph("then_branch", &[], vec![node("Constant", &[], &["f"], vec![one])], &["f"]),
        graph("else_branch", &[], vec![node("Constant", &[], &["f"], float(0.0))], &["f"]),
    ];
    let trip = vec![
        node("Constant", &[], &["some"], float(100.0)),
        node("Constant", &[], &["limit"], float(300.5)),
        node("ReduceSum", &["v"], &["s"], vec![int("keepdims", 0)]),
        node("Greater", &["s", "some"], &["past"], vec![]),
        node("If", &["past"], &["more_of_it"], branches),
        node("Add", &["x", "more_of_it"], &["u"], vec![]),
        node("Concat", &["v", "u"], &["w"], vec![int("axis", 0)]),
        node("Less", &["s", "limit"], &["more"], vec![]),
    ];
    let attributes = body(&["i", "c", "v"], trip, &["more", "w"]);
    let model = vec![node("Loop", &["", "", "x"], &["y"], attributes)];
    let (results, stages) = run(model, &[("x", floats(&[10], &[1.0; 10]))], &["y"]);
    let mut expected = vec![1.0f32; 10];
    loop {
        let sum: f32 = expected.iter().sum();
        expected.extend([if sum > 100.0 { 2.0 } else { 1.0 }; 10]);
        if sum >= 300.5 {
            break;
        }
    }
    assert_eq!(results[0][0], floats(&[expected.len()], &expected));
    assert!(stages <= 8, "{stages} stages");
}

#[test]
fn a_sequence_grows_and_shrinks_by_position() {
    let nodes = vec![
        node("SequenceConstruct", &["a", "b"], &["s"], vec![]),
        node("SequenceInsert", &["s", "c", "p"], &["t"], vec![]),
        node("SequenceErase", &["t"], &["y"], vec![]),
    ];
    let (a, b, c) = (floats(&[1], &[1.0]), floats(&[2], &[2.0, 3.0]), floats(&[1], &[4.0]));
    let inputs = [("a", a.clone()), ("b", b), ("c", c.clone()), ("p", ints(&[], &[-1]))];
    let (results, _) = run(nodes, &inputs, &["y"]);
    assert_eq!(results[0], [a, c]);
}

#[test]
fn padding_goes_round_as_often_as_it_is_asked_to() {
    let x = floats(&[3], &[1.0, 2.0, 3.0]);
    for (mode, expected) in [
        ("wrap", [3.0, 1.0, 2.0, 3.0, 1.0, 2.0, 3.0, 1.0, 2.0, 3.0]),
        ("reflect", [1.0, 2.0, 3.0, 2.0, 1.0, 2.0, 3.0, 2.0, 1.0, 2.0]),
        ("edge", [1.0, 1.0, 1.0, 1.0, 1.0, 2.0, 3.0, 3.0, 3.0, 3.0]),
    ] {
        let pad = node("Pad", &["x", "p"], &["y"], vec![text("mode", mode)]);
        let (results, _) = run(vec![pad], &[("x", x.clone()), ("p", ints(&[2], &[4, 3]))], &["y"]);
        assert_eq!(results[0][0], floats(&[10], &expected), "{mode}");
    }
}

#[test]
fn a_cache_is_written_round_its_end() {
    let scatter = node("TensorScatter", &["x", "u", "w"], &["y"], vec![text("mode", "circular")]);
    let inputs = [
        ("x", floats(&[1, 3, 1], &[1.0, 2.0, 3.0])),
        ("u", floats(&[1, 2, 1], &[7.0, 8.0])),
        ("w", ints(&[1], &[5])),
    ];
    let (results, _) = run(vec![scatter], &inputs, &["y"]);
    assert_eq!(results[0][0], floats(&[1, 3, 1], &[8.0, 2.0, 7.0]));
}

#[test]
fn a_periodic_window_of_one_number_begins_as_longer_ones_do() {
    for (op, first) in [("HannWindow", 0.0), ("HammingWindow", 4.0 / 46.0), ("BlackmanWindow", 0.0)] {
        let (results, _) = run(vec![node(op, &["n"], &["y"], Vec::new())], &[("n", ints(&[], &[1]))], &["y"]);
        let got = results[0][0].to_f64();
        assert!(got.len() == 1 && (got[0] - first).abs() < 1e-7, "{op}: {got:?}");
    }
}
