//! Models of `ai.onnx.ml`; expected numbers are ONNX Runtime's.

use olivine_ir::{DType, Tensor};
use prost::Message;

use super::tests::{attribute, info, int, node, run, text};
use crate::proto::attribute_proto::AttributeType;
use crate::proto::{AttributeProto, GraphProto, ModelProto, NodeProto, OperatorSetIdProto};
use crate::{Bindings, Bound, Model};

fn ints(name: &str, values: &[i64]) -> AttributeProto {
    AttributeProto { ints: values.to_vec(), ..attribute(name, AttributeType::Ints) }
}

fn floats(name: &str, values: &[f32]) -> AttributeProto {
    AttributeProto { floats: values.to_vec(), ..attribute(name, AttributeType::Floats) }
}

fn texts(name: &str, values: &[&'static str]) -> AttributeProto {
    let strings = values.iter().map(|v| v.as_bytes().into()).collect();
    AttributeProto { strings, ..attribute(name, AttributeType::Strings) }
}

fn ml(op: &str, outputs: &[&str], attributes: Vec<AttributeProto>) -> Vec<NodeProto> {
    vec![NodeProto { domain: Some("ai.onnx.ml".into()), ..node(op, &["x"], outputs, attributes) }]
}

fn rows(dims: &[usize], values: &[f32]) -> Tensor {
    Tensor::new(dims, values.to_vec()).expect("as many elements as the shape has")
}

/// A classifier's labels and scores.
fn classify(op: &str, attributes: Vec<AttributeProto>, x: Tensor) -> (Vec<i64>, Vec<f64>) {
    let (results, _) = run(ml(op, &["label", "scores"], attributes), &[("x", x)], &["label", "scores"]);
    let labels = results[0][0].as_slice::<i64>().expect("labels of i64").to_vec();
    (labels, results[1][0].to_f64())
}

fn near(found: &[f64], expected: &[f64]) {
    assert_eq!(found.len(), expected.len(), "{found:?}");
    let far = |(a, b): (&f64, &f64)| (a - b).abs() > 2e-3;
    assert!(!found.iter().zip(expected).any(far), "{found:?} should be {expected:?}");
}

/// Two trees of one comparison of feature 0 with zero, whose leaves vote for class 0.
fn stumps(on_true: f32, on_false: f32, transform: &'static str) -> Vec<AttributeProto> {
    vec![
        ints("nodes_treeids", &[0, 0, 0, 1, 1, 1]),
        ints("nodes_nodeids", &[0, 1, 2, 0, 1, 2]),
        ints("nodes_featureids", &[0; 6]),
        floats("nodes_values", &[0.0; 6]),
        texts("nodes_modes", &["BRANCH_LEQ", "LEAF", "LEAF", "BRANCH_LEQ", "LEAF", "LEAF"]),
        ints("nodes_truenodeids", &[1, 0, 0, 1, 0, 0]),
        ints("nodes_falsenodeids", &[2, 0, 0, 2, 0, 0]),
        ints("class_treeids", &[0, 0, 1, 1]),
        ints("class_nodeids", &[1, 2, 1, 2]),
        ints("class_ids", &[0; 4]),
        floats("class_weights", &[on_true, on_false, on_true, on_false]),
        ints("classlabels_int64s", &[5, 7]),
        text("post_transform", transform),
    ]
}

#[test]
fn votes_for_one_of_two_classes_are_a_probability_unless_some_are_below_zero() {
    let x = || rows(&[2, 1], &[-1.0, 1.0]);
    let (labels, scores) = classify("TreeEnsembleClassifier", stumps(0.1, 0.4, "NONE"), x());
    assert_eq!(labels, [5, 7]);
    near(&scores, &[0.8, 0.2, 0.2, 0.8]);
    let (labels, scores) = classify("TreeEnsembleClassifier", stumps(-0.1, 0.3, "LOGISTIC"), x());
    assert_eq!(labels, [5, 7]);
    near(&scores, &[0.55, 0.45, 0.354, 0.646]);
}

/// A machine of three vectors for two classes.
fn machine() -> Vec<AttributeProto> {
    vec![
        ints("classlabels_ints", &[5, 7]),
        ints("vectors_per_class", &[1, 2]),
        floats("support_vectors", &[1.0, 0.2, -0.5, 0.3, 0.2, 0.1]),
        floats("coefficients", &[0.5, -0.4, 0.3]),
        floats("rho", &[0.1]),
        text("kernel_type", "RBF"),
        floats("kernel_params", &[0.5, 0.0, 3.0]),
    ]
}

#[test]
fn support_vectors_decide_and_their_decisions_become_probabilities() {
    let x = || rows(&[3, 2], &[-1.0, 0.5, 1.0, 0.2, 0.3, 0.3]);
    let (labels, scores) = classify("SVMClassifier", machine(), x());
    assert_eq!(labels, [7, 5, 5]);
    near(&scores, &[0.047, -0.047, -0.688, 0.688, -0.492, 0.492]);
    let likely = [machine(), vec![floats("prob_a", &[-1.5]), floats("prob_b", &[0.1])]].concat();
    let (labels, scores) = classify("SVMClassifier", likely, x());
    assert_eq!(labels, [7, 5, 5]);
    near(&scores, &[0.458, 0.542, 0.717, 0.283, 0.652, 0.348]);
}

#[test]
fn a_probit_is_the_inverse_of_the_normal_distribution() {
    let attributes =
        vec![floats("coefficients", &[1.0]), text("post_transform", "PROBIT"), int("targets", 1)];
    let x = rows(&[4, 1], &[0.5, 0.2, 0.975, 1.5]);
    let (results, _) = run(ml("LinearRegressor", &["y"], attributes), &[("x", x)], &["y"]);
    let y = results[0][0].to_f64();
    near(&y[..3], &[0.0, -0.842, 1.959]);
    assert!(y[3].is_nan());
}

/// Why a classifier is refused.
fn refusal(op: &str, attributes: Vec<AttributeProto>, x: &Tensor) -> String {
    assert_eq!(x.dtype(), DType::F32);
    let graph = GraphProto {
        node: ml(op, &["label", "scores"], attributes),
        input: vec![info("x", Some(1))],
        output: vec![info("label", None), info("scores", None)],
        ..GraphProto::default()
    };
    let opset = OperatorSetIdProto { version: Some(24), ..OperatorSetIdProto::default() };
    let opset_import = vec![opset];
    let proto =
        ModelProto { ir_version: Some(10), opset_import, graph: Some(graph), ..ModelProto::default() };
    let model = Model::from_bytes(proto.encode_to_vec()).expect("a model");
    let inputs = vec![("x".into(), Bound::Tensor { ty: x.ty(), value: None })];
    let bindings = Bindings { inputs, ..Bindings::default() };
    let refused = model.specialise(&bindings, &olivine_cpu::CpuEvaluator).err();
    refused.expect("a model that is refused").to_string()
}

#[test]
fn lists_of_unequal_lengths_and_strings_are_refused_by_name() {
    let x = rows(&[2, 1], &[-1.0, 1.0]);
    let mut short = stumps(0.1, 0.4, "NONE");
    short[3] = floats("nodes_values", &[0.0; 5]);
    let why = refusal("TreeEnsembleClassifier", short, &x);
    assert!(why.contains("`nodes_values` has 5 elements where `nodes_treeids` has 6"), "{why}");
    let mut circle = stumps(0.1, 0.4, "NONE");
    circle[5] = ints("nodes_truenodeids", &[0, 0, 0, 1, 0, 0]);
    let why = refusal("TreeEnsembleClassifier", circle, &x);
    assert!(why.contains("do not end"), "{why}");
    let mut named = stumps(0.1, 0.4, "NONE");
    named[11] = texts("classlabels_strings", &["no", "yes"]);
    let why = refusal("TreeEnsembleClassifier", named, &x);
    assert!(why.contains("only integer labels"), "{why}");
}
