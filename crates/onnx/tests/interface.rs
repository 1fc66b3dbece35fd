//! The inputs and outputs of a model: defaults that a caller overrides, and names that are listed in unusual ways.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may panic")]

#[allow(dead_code, reason = "a part is enough here")]
mod wire;

use olivine_cpu::CpuEvaluator;
use olivine_ir::{DType, Shape, Tensor, TensorType};
use olivine_onnx::{Bindings, Bound, Model, Outcome, Specialised};
use wire::{
    BOOL, F32, Graph, I64, Message, floats, function, graph_attribute, int_attribute, ints, model, node,
    tensor, value,
};

const STRING: i64 = 8;

fn bound(tensor: &Tensor) -> Bound {
    Bound::Tensor { ty: tensor.ty(), value: Some(tensor.clone()) }
}

fn specialised(model: &Model, inputs: &[(&str, Bound)]) -> Specialised {
    let inputs = inputs.iter().map(|(name, bound)| (name.to_string(), bound.clone())).collect();
    let outcome = model.specialise(&Bindings { inputs, ..Bindings::default() }, &CpuEvaluator).unwrap();
    let Outcome::Whole(whole) = outcome else { panic!("{outcome:?}") };
    whole
}

fn x() -> Bound {
    bound(&Tensor::new([2, 2], vec![1f32, 2.0, 3.0, 4.0]).unwrap())
}

/// x of four elements, reshaped by the initializer `s` and scaled by the initializer `w`, both inputs as well.
fn with_defaults(ir_version: i64) -> Model {
    let graph = Graph {
        nodes: vec![node("Reshape", &["x", "s"], &["a"]), node("Mul", &["a", "w"], &["y"])],
        initializers: vec![ints("s", &[2], &[4, 1]), floats("w", &[1], &[2.0])],
        inputs: vec![value("x", F32, &["2", "2"]), value("s", I64, &["2"]), value("w", F32, &["k"])],
        outputs: vec![value("y", F32, &["a", "b"])],
        ..Graph::default()
    };
    let opset = Message::new().int(2, 17);
    let file = Message::new().int(1, ir_version).inside(8, &opset).inside(7, &graph.message());
    Model::from_bytes(file.0).unwrap()
}

#[test]
fn an_initializer_that_is_an_input_is_a_constant_until_it_is_overridden() {
    let model = with_defaults(8);
    let names = |ports: Vec<olivine_onnx::Port>| ports.into_iter().map(|p| p.name).collect::<Vec<_>>();
    assert_eq!(names(model.inputs()), ["x"]);
    assert_eq!(names(model.overridable_initializers()), ["s", "w"]);
    let default = specialised(&model, &[("x", x())]);
    assert_eq!(default.graph.inputs().count(), 1, "what is not overridden is no input of the graph");
    let y = |whole: &Specialised| {
        let id = whole.graph.output_named("y").unwrap();
        whole.graph.ty(id).unwrap().shape
    };
    assert_eq!(y(&default), Shape::new(&[4, 1]).unwrap());
    let sizes = Tensor::new([2], vec![1i64, 4]).unwrap();
    let w = Tensor::new([4], vec![1f32; 4]).unwrap();
    let other = specialised(&model, &[("x", x()), ("s", bound(&sizes)), ("w", bound(&w))]);
    assert_eq!(y(&other), Shape::new(&[1, 4]).unwrap());
    let inputs: Vec<&str> = other.graph.inputs().map(|(name, _)| name).collect();
    assert!(inputs.contains(&"w"), "{inputs:?}");
}

#[test]
fn an_overridden_initializer_that_decides_a_shape_is_asked_for_by_value() {
    let model = with_defaults(8);
    let ty = TensorType::new(DType::I64, Shape::new(&[2]).unwrap());
    let inputs = vec![("x".into(), x()), ("s".into(), Bound::Tensor { ty, value: None })];
    let outcome = model.specialise(&Bindings { inputs, ..Bindings::default() }, &CpuEvaluator).unwrap();
    assert!(matches!(&outcome, Outcome::NeedsInputs(names) if names == &["s"]), "{outcome:?}");
}

#[test]
fn an_override_must_be_what_the_input_declares() {
    let model = with_defaults(8);
    let wrong = Tensor::new([3], vec![1i64; 3]).unwrap();
    let inputs = vec![("x".into(), x()), ("s".into(), bound(&wrong))];
    let error = model.specialise(&Bindings { inputs, ..Bindings::default() }, &CpuEvaluator).unwrap_err();
    assert!(error.to_string().contains("`s`") && error.to_string().contains("[3]"), "{error}");
}

#[test]
fn before_ir_version_4_initializers_are_constants() {
    assert!(with_defaults(3).overridable_initializers().is_empty());
}

#[test]
fn outputs_may_be_listed_twice_and_be_inputs_or_initializers() {
    let large = floats("large", &[1, 1025], &[0.5; 1025]);
    let graph = Graph {
        nodes: vec![node("Relu", &["x"], &["y"])],
        initializers: vec![floats("w", &[2], &[1.0, 2.0]), large],
        inputs: vec![value("x", F32, &["2", "2"])],
        outputs: ["y", "x", "w", "large", "y", "x"].map(|name| value(name, F32, &["a", "b"])).to_vec(),
        ..Graph::default()
    };
    let whole = specialised(&Model::from_bytes(graph.model()).unwrap(), &[("x", x())]);
    let names: Vec<&str> = whole.outputs.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["y", "x", "w", "large", "y", "x"]);
    assert_eq!(whole.outputs[0].1, whole.outputs[4].1);
    let of_graph: Vec<&str> = whole.graph.outputs().iter().map(|o| o.name.as_str()).collect();
    assert_eq!(of_graph, ["y", "x", "w", "large"]);
}

#[test]
fn functions_and_branches_may_return_a_value_twice() {
    let twice = function("twice", &["a"], &["b", "b", "a"], &[node("Neg", &["a"], &["b"])]);
    let branch = |op: &str| {
        let outputs = vec![value("r", F32, &["2", "2"]), value("r", F32, &["2", "2"])];
        Graph { nodes: vec![node(op, &["p"], &["r"])], outputs, ..Graph::default() }.message()
    };
    let choose = node("If", &["c"], &["u", "v"])
        .inside(5, &graph_attribute("then_branch", &branch("Abs")))
        .inside(5, &graph_attribute("else_branch", &branch("Neg")));
    let graph = Graph {
        nodes: vec![
            node("local:twice", &["x"], &["p", "q", "r"]),
            node("ReduceMax", &["z"], &["m"]).inside(5, &int_attribute("keepdims", 0)),
            node("Greater", &["m", "zero"], &["c"]),
            choose,
        ],
        initializers: vec![floats("zero", &[], &[0.0])],
        // Too many elements to be asked for by value: the choice is made by the graph.
        inputs: vec![value("x", F32, &["2", "2"]), value("z", F32, &["16"])],
        outputs: ["p", "q", "r", "u", "v"].map(|name| value(name, F32, &["2", "2"])).to_vec(),
        ..Graph::default()
    };
    let file = model(&graph.message()).inside(25, &twice);
    let z = bound(&Tensor::new([16], vec![1f32; 16]).unwrap());
    let whole = specialised(&Model::from_bytes(file.0).unwrap(), &[("x", x()), ("z", z)]);
    assert_eq!(whole.outputs.len(), 5);
    assert_eq!(
        whole.graph.output_named("p").unwrap(),
        whole.graph.output_named("q").unwrap(),
        "one value under two names"
    );
}

/// A Loop whose body lists its initializer among its inputs, as files of the first IR versions do.
#[test]
fn a_body_may_list_its_initializers_among_its_inputs() {
    let body = Graph {
        nodes: vec![node("Identity", &["c"], &["go"]), node("Add", &["v", "one"], &["w"])],
        initializers: vec![floats("one", &[1], &[1.0])],
        inputs: vec![
            value("one", F32, &["1"]),
            value("i", I64, &[]),
            value("c", BOOL, &[]),
            value("v", F32, &["2", "2"]),
        ],
        outputs: vec![value("go", BOOL, &[]), value("w", F32, &["2", "2"])],
        ..Graph::default()
    };
    let graph = Graph {
        nodes: vec![
            node("Loop", &["m", "go", "x"], &["y"]).inside(5, &graph_attribute("body", &body.message())),
        ],
        initializers: vec![ints("m", &[], &[3]), tensor("go", BOOL, &[], &[1])],
        inputs: vec![value("x", F32, &["2", "2"])],
        outputs: vec![value("y", F32, &["2", "2"])],
        ..Graph::default()
    };
    let whole = specialised(&Model::from_bytes(graph.model()).unwrap(), &[("x", x())]);
    assert_eq!(whole.outputs.len(), 1);
}

#[test]
fn what_nothing_reads_may_be_of_a_type_that_no_device_holds() {
    let strings = |used: bool| {
        let label = Message::new().int(1, 1).int(2, STRING).text(8, "labels").bytes(6, b"cat");
        let mut nodes = vec![node("Relu", &["x"], &["y"]), node("Neg", &["x"], &[""])];
        if used {
            nodes.push(node("Identity", &["labels"], &["l"]));
        }
        let graph = Graph {
            nodes,
            initializers: vec![label],
            inputs: vec![value("x", F32, &["2", "2"])],
            outputs: vec![value("y", F32, &["2", "2"])],
            ..Graph::default()
        };
        Model::from_bytes(graph.model())
    };
    assert!(strings(true).err().unwrap().to_string().contains("labels"));
    assert_eq!(specialised(&strings(false).unwrap(), &[("x", x())]).outputs.len(), 1);
}
