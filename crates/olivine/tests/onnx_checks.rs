//! With open sizes every operator of a model is checked against the device when it is compiled: inside loops, after them,
//! and where none of the sizes that are tried fit.
#![forbid(unsafe_code)]
#![allow(clippy::panic, clippy::unwrap_used, reason = "a failed expectation is a failed test")]

#[allow(dead_code, reason = "a part is enough here")]
#[path = "../../onnx/tests/wire/mod.rs"]
mod wire;

use olivine::internals::OptionsExt as _;
use olivine::prelude::*;
use wire::{BOOL, F32, I64, Message, floats, graph_attribute, int_attribute, ints, node, value};

/// ONNX's number of doubles, which browsers do not compute.
const F64: i64 = 11;

/// Where the square root of doubles is.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Doubles {
    Nowhere,
    InLoop,
    AfterLoop,
}

/// `to` = sqrt(`from`), of doubles or not.
fn root(from: &str, to: &str, doubles: bool) -> Vec<Message> {
    let cast =
        |from: &str, to: &str, element| node("Cast", &[from], &[to]).inside(5, &int_attribute("to", element));
    let (wide, rooted) = (format!("{to}_wide"), format!("{to}_root"));
    let element = if doubles { F64 } else { F32 };
    vec![cast(from, &wide, element), node("Sqrt", &[&wide], &[&rooted]), cast(&rooted, to, F32)]
}

/// A loop that doubles the length of x until its sum is 100, and collects the roots of sums; y is the root of what it ends with,
/// reshaped to `shape` where one is given.
fn model(doubles: Doubles, shape: Option<&[i64]>) -> Model {
    let sum =
        |from: &str, to: &str| node("ReduceSum", &[from], &[to]).inside(5, &int_attribute("keepdims", 0));
    let mut inside = vec![
        node("Concat", &["v", "v"], &["longer"]).inside(5, &int_attribute("axis", 0)),
        sum("longer", "sum"),
        node("Less", &["sum", "limit"], &["again"]),
    ];
    inside.extend(root("sum", "row", doubles == Doubles::InLoop));
    let body = wire::Graph {
        nodes: inside,
        inputs: vec![value("i", I64, &[]), value("c", BOOL, &[]), value("v", F32, &["k"])],
        outputs: vec![value("again", BOOL, &[]), value("longer", F32, &["k2"]), value("row", F32, &[])],
        ..wire::Graph::default()
    };
    let body = graph_attribute("body", &body.message());
    let mut nodes = vec![node("Loop", &["", "", "x"], &["last", "rows"]).inside(5, &body)];
    let mut initializers = vec![floats("limit", &[], &[100.0])];
    let source = match shape {
        Some(shape) => {
            initializers.push(ints("shape", &[shape.len() as i64], shape));
            nodes.push(node("Reshape", &["last", "shape"], &["shaped"]));
            "shaped"
        }
        None => "last",
    };
    nodes.extend(root(source, "y", doubles == Doubles::AfterLoop));
    let graph = wire::Graph {
        nodes,
        inputs: vec![value("x", F32, &["n"])],
        outputs: vec![value("y", F32, &["m"]), value("rows", F32, &["iterations"])],
        values: vec![value("shaped", F32, &["5", "n"])],
        initializers,
    };
    Model::from_onnx(graph.model()).unwrap()
}

fn browser() -> Session {
    Session::with_options(Device::Wgpu, SessionOptions::new().browser_dialect(true)).unwrap()
}

fn refusal(session: &Session, model: &Model) -> String {
    session.compile(model).map(drop).unwrap_err().to_string()
}

#[test]
fn operators_inside_a_loop_and_after_it_are_checked() {
    let session = browser();
    for doubles in [Doubles::InLoop, Doubles::AfterLoop] {
        let refused = refusal(&session, &model(doubles, None));
        assert!(refused.contains("cannot run") && refused.contains("f64"), "{doubles:?}: {refused}");
    }
    let run = session.compile(&model(Doubles::Nowhere, None)).unwrap();
    let out = run.run([("x", &Tensor::from([16.0f32, 16.0]))]).unwrap();
    assert_eq!(out["rows"], Tensor::from([8.0f32, 128.0f32.sqrt()]));
    assert_eq!(out["y"], Tensor::from([4.0f32; 8]));
}

#[test]
fn operators_are_checked_where_no_size_fits() {
    let session = browser();
    // 5 × 7 elements are what no size that is tried comes to.
    let shape: &[i64] = &[5, 7];
    for doubles in [Doubles::InLoop, Doubles::AfterLoop] {
        let refused = refusal(&session, &model(doubles, Some(shape)));
        assert!(refused.contains("cannot run") && refused.contains("f64"), "{doubles:?}: {refused}");
    }
    session.compile(&model(Doubles::Nowhere, Some(shape))).unwrap();
}

/// y = root(x) reshaped to 5 × 7, z = the root of that, and what follows.
fn reshaped(before: bool, after: bool, declared: bool) -> Model {
    let mut nodes = root("x", "y", before);
    nodes.push(node("Reshape", &["y", "shape"], &["shaped"]));
    nodes.extend(root("shaped", "z", after));
    let graph = wire::Graph {
        nodes,
        inputs: vec![value("x", F32, &["n"])],
        outputs: vec![value("z", F32, &["5", "7"])],
        values: if declared { vec![value("shaped", F32, &["5", "7"])] } else { Vec::new() },
        initializers: vec![ints("shape", &[2], &[5, 7])],
    };
    Model::from_onnx(graph.model()).unwrap()
}

#[test]
fn operators_before_and_after_a_node_that_does_not_fit_are_checked() {
    let session = browser();
    for (before, after, declared) in [(true, false, true), (true, false, false), (false, true, true)] {
        let refused = refusal(&session, &reshaped(before, after, declared));
        assert!(refused.contains("cannot run") && refused.contains("f64"), "{before} {after}: {refused}");
    }
    let run = session.compile(&reshaped(false, false, false)).unwrap();
    let x = Tensor::from([16.0f32; 35]);
    assert_eq!(run.run([("x", &x)]).unwrap()["z"].to_f64(), [2.0; 35]);
}
