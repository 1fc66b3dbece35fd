//! The models that are broken: small ones written here, and those of a folder.

use std::path::Path;

use crate::hostile;
use crate::mutate::Seed;
use crate::wire::{
    BOOL, F32, Graph, I64, Message, external, floats, function, graph_attribute, int_attribute, ints,
    ints_attribute, model, node, tensor, tensor_attribute, value,
};

/// Larger files are left out: a case should be quick.
const LARGEST: u64 = 1 << 15;

/// The models that cases start from.
pub(crate) struct Corpus {
    /// Models that are read from memory.
    pub(crate) models: Vec<Seed>,
    /// Models with weights in other files, which are read from a file.
    pub(crate) external: Vec<Seed>,
}

/// All models, parsed once.
pub(crate) fn build(suite: Option<&Path>) -> Result<Corpus, String> {
    let mut all = own();
    // Bytes without a folder cannot have weights in other files: one such model is enough.
    all.push(with_weights_in(hostile::LOCATIONS[0]));
    if let Some(folder) = suite {
        let before = all.len();
        collect(folder, &mut all).map_err(|e| format!("cannot read `{}`: {e}", folder.display()))?;
        if all.len() == before {
            return Err(format!("there is no model.onnx below `{}`", folder.display()));
        }
    }
    let external = hostile::LOCATIONS.iter().map(|location| Seed::new(with_weights_in(location)));
    Ok(Corpus { external: external.collect(), models: all.into_iter().map(Seed::new).collect() })
}

fn collect(folder: &Path, all: &mut Vec<Vec<u8>>) -> std::io::Result<()> {
    let mut entries: Vec<_> = std::fs::read_dir(folder)?.collect::<Result<_, _>>()?;
    // In one order, so that a case's number names the case.
    entries.sort_by_key(std::fs::DirEntry::path);
    for entry in entries {
        let path = entry.path();
        if path.is_dir() {
            collect(&path, all)?;
        } else if path.file_name().is_some_and(|n| n == "model.onnx") && entry.metadata()?.len() <= LARGEST {
            all.push(std::fs::read(path)?);
        }
    }
    Ok(())
}

fn x_to_y(nodes: &[Message]) -> Graph {
    Graph {
        nodes: nodes.to_vec(),
        inputs: vec![value("x", F32, &["n", "2"])],
        outputs: vec![value("y", F32, &["n", "2"])],
        ..Graph::default()
    }
}

/// A model whose weight is in another file.
fn with_weights_in(location: &str) -> Vec<u8> {
    let entries = [("location", location), ("offset", "0"), ("length", "8")];
    let initializers = vec![external("w", F32, &[2], &entries)];
    Graph { initializers, ..x_to_y(&[node("Add", &["x", "w"], &["y"])]) }.model()
}

fn own() -> Vec<Vec<u8>> {
    let mut all = vec![
        Graph {
            initializers: vec![floats("w", &[2], &[1.0, 2.0])],
            ..x_to_y(&[node("Add", &["x", "w"], &["y"])])
        }
        .model(),
        shapes(),
        sizes_as_inputs(),
        values_and_types(),
        functions(),
        choice(),
        looped(),
        scanned(),
        sequences(),
        large_weight(),
        counted(),
        defaults(),
    ];
    all.push(many_elements());
    all
}

/// Shape, arithmetic on it, and Reshape.
fn shapes() -> Vec<u8> {
    let nodes = [
        node("Shape", &["x"], &["s"]),
        node("Constant", &[], &["c"]).inside(5, &tensor_attribute("value", &ints("", &[2], &[1, 1]))),
        node("Mul", &["s", "c"], &["t"]),
        node("Reshape", &["x", "t"], &["y"]),
    ];
    x_to_y(&nodes).model()
}

/// A shape that an input decides.
fn sizes_as_inputs() -> Vec<u8> {
    let mut graph = x_to_y(&[node("Reshape", &["x", "s"], &["a"]), node("Relu", &["a"], &["y"])]);
    graph.inputs.push(value("s", I64, &["2"]));
    graph.outputs = vec![value("y", F32, &["a", "b"])];
    graph.model()
}

fn values_and_types() -> Vec<u8> {
    let nodes = [
        node("Greater", &["x", "w"], &["m"]),
        node("Where", &["m", "x", "w"], &["a"]),
        node("Transpose", &["a"], &["b"]).inside(5, &ints_attribute("perm", &[1, 0])),
        node("Flatten", &["b"], &["c"]).inside(5, &int_attribute("axis", 1)),
        node("Identity", &["c"], &["y"]),
    ];
    Graph {
        initializers: vec![floats("w", &[1, 2], &[0.5, -0.5])],
        values: vec![value("m", BOOL, &["n", "2"]), value("a", F32, &["n", "2"])],
        outputs: vec![value("y", F32, &["2", "n"])],
        ..x_to_y(&nodes)
    }
    .model()
}

/// Functions that call each other, with an attribute handed through.
fn functions() -> Vec<u8> {
    let alpha = Message::new().text(1, "alpha").int(20, 1).text(21, "slope");
    let leaky = node("LeakyRelu", &["a"], &["b"]).inside(5, &alpha);
    let inner = function("inner", &["a"], &["b"], &[leaky]).text(6, "slope");
    let call = node("local:inner", &["a"], &["b"])
        .inside(5, &Message::new().text(1, "slope").float(2, 0.5).int(20, 1));
    let outer = function("outer", &["a"], &["c"], &[call, node("Neg", &["b"], &["c"])]);
    let graph = x_to_y(&[node("local:outer", &["x"], &["t"]), node("local:outer", &["t"], &["y"])]);
    model(&graph.message()).inside(25, &inner).inside(25, &outer).0
}

fn branch(op: &str) -> Message {
    Graph {
        nodes: vec![node(op, &["x"], &["r"])],
        outputs: vec![value("r", F32, &["n", "2"])],
        ..Graph::default()
    }
    .message()
}

/// If, on an input.
fn choice() -> Vec<u8> {
    let chosen = node("If", &["c"], &["y"])
        .inside(5, &graph_attribute("then_branch", &branch("Relu")))
        .inside(5, &graph_attribute("else_branch", &branch("Neg")));
    let mut graph = x_to_y(&[chosen]);
    graph.inputs.push(value("c", BOOL, &[]));
    graph.model()
}

/// Loop, with a carried value and rows.
fn looped() -> Vec<u8> {
    let body = Graph {
        nodes: vec![
            node("Identity", &["c"], &["go"]),
            node("Add", &["v", "one"], &["w"]),
            node("Neg", &["w"], &["r"]),
        ],
        initializers: vec![floats("one", &[1], &[1.0])],
        inputs: vec![value("i", I64, &[]), value("c", BOOL, &[]), value("v", F32, &["n", "2"])],
        outputs: vec![value("go", BOOL, &[]), value("w", F32, &["n", "2"]), value("r", F32, &["n", "2"])],
        ..Graph::default()
    };
    let node =
        node("Loop", &["m", "go", "x"], &["y", "rows"]).inside(5, &graph_attribute("body", &body.message()));
    let mut graph = x_to_y(&[node]);
    graph.initializers = vec![ints("m", &[], &[3]), tensor("go", BOOL, &[], &[1])];
    graph.outputs.push(value("rows", F32, &["k", "n", "2"]));
    graph.model()
}

fn scanned() -> Vec<u8> {
    let body = Graph {
        nodes: vec![node("Add", &["s", "e"], &["t"]), node("Relu", &["t"], &["r"])],
        inputs: vec![value("s", F32, &["2"]), value("e", F32, &["2"])],
        outputs: vec![value("t", F32, &["2"]), value("r", F32, &["2"])],
        ..Graph::default()
    };
    let node = node("Scan", &["start", "x"], &["end", "y"])
        .inside(5, &int_attribute("num_scan_inputs", 1))
        .inside(5, &ints_attribute("scan_input_axes", &[0]))
        .inside(5, &graph_attribute("body", &body.message()));
    let mut graph = x_to_y(&[node]);
    graph.initializers = vec![floats("start", &[2], &[0.0, 0.0])];
    graph.model()
}

/// Initializers that are inputs as well, one of them a shape, and an output that is listed twice.
fn defaults() -> Vec<u8> {
    let mut graph = x_to_y(&[node("Reshape", &["x", "s"], &["a"]), node("Add", &["a", "w"], &["y"])]);
    graph.initializers = vec![ints("s", &[2], &[-1, 2]), floats("w", &[2], &[1.0, 2.0])];
    graph.inputs.extend([value("s", I64, &["2"]), value("w", F32, &["2"])]);
    graph.outputs.extend([value("y", F32, &["n", "2"]), value("w", F32, &["2"])]);
    graph.model()
}

/// Sequences and optional values among the inputs.
fn sequences() -> Vec<u8> {
    let tensor = Message::new().inside(1, &Message::new().int(1, F32).inside(2, &Message::new()));
    let sequence = Message::new().inside(4, &Message::new().inside(1, &tensor));
    let optional = Message::new().inside(9, &Message::new().inside(1, &sequence));
    let mut graph = x_to_y(&[node("Relu", &["x"], &["y"])]);
    graph.inputs.push(Message::new().text(1, "many").inside(2, &sequence));
    graph.inputs.push(Message::new().text(1, "perhaps").inside(2, &optional));
    graph.outputs.push(Message::new().text(1, "many").inside(2, &sequence));
    graph.model()
}

/// A weight large enough to be a param.
fn large_weight() -> Vec<u8> {
    let weight = floats("w", &[1024, 2], &[0.25; 2048]);
    Graph { initializers: vec![weight], ..x_to_y(&[node("Add", &["x", "w"], &["y"])]) }.model()
}

/// A loop whose shapes change from iteration to iteration, so that it is unrolled.
fn counted() -> Vec<u8> {
    let body = Graph {
        nodes: vec![
            node("Identity", &["c"], &["go"]),
            node("Add", &["i", "one"], &["j"]),
            node("Reshape", &["v", "shape"], &["w"]),
            node("Add", &["j", "j"], &["k"]),
        ],
        initializers: vec![ints("one", &[], &[1]), ints("shape", &[2], &[-1, 1])],
        inputs: vec![value("i", I64, &[]), value("c", BOOL, &[]), value("v", F32, &["a", "b"])],
        outputs: vec![value("go", BOOL, &[]), value("w", F32, &["a", "b"]), value("k", I64, &[])],
        ..Graph::default()
    };
    let node =
        node("Loop", &["m", "", "x"], &["y", "k"]).inside(5, &graph_attribute("body", &body.message()));
    let mut graph = x_to_y(&[node]);
    graph.initializers = vec![ints("m", &[], &[2])];
    graph.outputs.push(value("k", I64, &["t"]));
    graph.model()
}

/// Tensors of every element type, in raw bytes.
fn many_elements() -> Vec<u8> {
    let tensors: Vec<Message> = (1..=26)
        .map(|element| tensor(&format!("w{element}"), element, &[2], &[1, 2, 3, 4, 5, 6, 7, 8]))
        .collect();
    // Types whose size does not fit are left out here; the mutations bring them back.
    let fits = [1, 6, 12];
    let kept = tensors.iter().zip(1..).filter(|(_, e)| fits.contains(e)).map(|(t, _)| t.clone()).collect();
    Graph { initializers: kept, ..x_to_y(&[node("Add", &["x", "w1"], &["y"])]) }.model()
}
