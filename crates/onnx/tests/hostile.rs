//! Files that mean harm or were damaged: an error says what is wrong and where, soon and without much memory.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may panic")]

#[allow(dead_code, reason = "a part is enough here")]
mod wire;

use std::time::{Duration, Instant};

use olivine_cpu::CpuEvaluator;
use olivine_ir::{DType, Shape, TensorType};
use olivine_onnx::{Bindings, Bound, Links, LoadOptions, Model, Outcome};
use wire::{
    BOOL, F32, Graph, I64, Message, external, floats, function, graph_attribute, int_attribute, ints,
    ints_attribute, model, node, string_attribute, tensor, tensor_attribute, value,
};

/// No import of the small files here may take longer; debug builds on a busy machine included.
const LONGEST: Duration = Duration::from_secs(20);

fn x(dims: &[usize]) -> Bindings {
    let ty = TensorType::new(DType::F32, Shape::new(dims).unwrap());
    Bindings { inputs: vec![("x".into(), Bound::Tensor { ty, value: None })], ..Bindings::default() }
}

/// Reads a model and imports it for an input `x` of two elements.
fn import(bytes: Vec<u8>) -> Result<Outcome, String> {
    let start = Instant::now();
    let outcome = Model::from_bytes(bytes)
        .and_then(|model| model.specialise(&x(&[2]), &CpuEvaluator))
        .map_err(|e| e.to_string());
    assert!(start.elapsed() < LONGEST, "it took {:?}", start.elapsed());
    outcome
}

/// The error that a model meets with; it holds all of `words`.
fn refused(bytes: Vec<u8>, words: &[&str]) {
    let error = import(bytes).map(|outcome| format!("{outcome:?}")).expect_err("it was imported");
    for word in words {
        assert!(error.contains(word), "`{word}` is not in `{error}`");
    }
}

/// x, of two elements, through some nodes to y.
fn through(nodes: &[Message]) -> Graph {
    Graph {
        nodes: nodes.to_vec(),
        inputs: vec![value("x", F32, &["2"])],
        outputs: vec![value("y", F32, &["2"])],
        ..Graph::default()
    }
}

#[test]
fn what_is_no_protobuf_is_no_model() {
    refused(b"PK\x03\x04 an archive of something".to_vec(), &["not an ONNX model"]);
    refused(b"GGUF\x03\0\0\0".to_vec(), &["not an ONNX model"]);
    refused(vec![0xff; 4096], &["not an ONNX model"]);
    refused(Vec::new(), &["not an ONNX model", "no graph"]);
}

#[test]
fn every_truncation_of_a_model_is_an_error_or_another_model() {
    let graph = Graph {
        initializers: vec![floats("w", &[2], &[1.0, 2.0])],
        ..through(&[node("Add", &["x", "w"], &["t"]), node("Relu", &["t"], &["y"])])
    };
    let whole = graph.model();
    assert!(matches!(import(whole.clone()), Ok(Outcome::Whole(_))));
    for length in 0..whole.len() {
        if let Err(error) = import(whole[..length].to_vec()) {
            assert!(!error.is_empty());
        }
    }
}

#[test]
fn declared_lengths_beyond_the_file_are_refused_without_being_allocated() {
    let mut bytes = model(&Message::new()).0;
    // The graph again, said to be of 2^62 bytes.
    bytes.extend([7 << 3 | 2, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x3f, 0, 0]);
    refused(bytes, &["not an ONNX model"]);
}

#[test]
fn sizes_that_do_not_fit_a_tensor_are_refused() {
    for (dims, word) in [
        (vec![-1], "not all from 0 on"),
        (vec![i64::MAX, i64::MAX], "w"),
        (vec![1 << 62, 4], "w"),
        (vec![1 << 40], "bytes"),
        (vec![2; 9], "w"),
        (vec![0, i64::MAX, i64::MAX], "w"),
    ] {
        let graph = Graph {
            initializers: vec![tensor("w", F32, &dims, &[0; 8])],
            ..through(&[node("Add", &["x", "w"], &["y"])])
        };
        refused(graph.model(), &["`w`", word]);
    }
}

#[test]
fn initializers_with_too_few_or_too_many_bytes_are_refused() {
    for bytes in [0, 4, 7, 9, 12] {
        let graph = Graph {
            initializers: vec![tensor("w", F32, &[2], &vec![0; bytes])],
            ..through(&[node("Add", &["x", "w"], &["y"])])
        };
        refused(graph.model(), &["`w`", "2 elements of f32 take 8 bytes"]);
    }
    // In the typed field: three floats where two belong.
    let typed = Message::new().int(1, 2).int(2, F32).text(8, "w").float(4, 1.0).float(4, 1.0).float(4, 1.0);
    let graph = Graph { initializers: vec![typed], ..through(&[node("Add", &["x", "w"], &["y"])]) };
    refused(graph.model(), &["`w`", "holds 2 elements, there are 3"]);
}

#[test]
fn unknown_and_unholdable_element_types_are_refused() {
    for (element, word) in [(0, "unknown"), (999, "unknown"), (8, "cannot be held"), (14, "cannot be held")] {
        let graph = Graph {
            initializers: vec![tensor("w", element, &[1], &[0; 4])],
            ..through(&[node("Add", &["x", "w"], &["y"])])
        };
        refused(graph.model(), &["`w`", word]);
    }
}

#[test]
fn sparse_initializers_without_places_are_refused_by_name() {
    let sparse = Message::new().inside(1, &floats("thin", &[1], &[1.0])).int(3, 4);
    let graph = through(&[node("Relu", &["x"], &["y"])]).message().inside(15, &sparse);
    refused(model(&graph).0, &["`thin`", "sparse", "indices"]);
}

#[test]
fn sparse_tensors_do_not_grow_beyond_measure() {
    // 40 tensors of 2^26 elements, one of them given.
    let mut graph = through(&[node("Relu", &["x"], &["y"])]).message();
    for i in 0..40 {
        let values = floats(&format!("thin{i}"), &[1], &[1.0]);
        let sparse = Message::new().inside(1, &values).inside(2, &ints("", &[1], &[5])).int(3, 1 << 26);
        graph = graph.inside(15, &sparse);
    }
    refused(model(&graph).0, &["sparse", "`thin2`", "elements"]);
}

#[test]
fn cycles_are_found_in_the_graph_and_inside_nodes() {
    let nodes = [node("Add", &["x", "b"], &["a"]), node("Relu", &["a"], &["b"]), node("Neg", &["b"], &["y"])];
    refused(through(&nodes).model(), &["cycle"]);
    refused(through(&[node("Add", &["x", "y"], &["y"])]).model(), &["cycle", "`y`"]);
    let branch = Graph {
        nodes: vec![node("Add", &["x", "t"], &["t"])],
        outputs: vec![value("t", F32, &["2"])],
        ..Graph::default()
    };
    let both = graph_attribute("then_branch", &branch.message());
    let other = graph_attribute("else_branch", &branch.message());
    let choice = node("If", &["c"], &["y"]).inside(5, &both).inside(5, &other);
    let graph = Graph { initializers: vec![tensor("c", BOOL, &[], &[1])], ..through(&[choice]) };
    refused(graph.model(), &["cycle"]);
}

#[test]
fn names_that_nothing_makes_are_told_with_their_node() {
    refused(through(&[node("Add", &["x", "lost"], &["y"])]).model(), &["`lost`", "(Add)"]);
    refused(through(&[node("Relu", &["x"], &["z"])]).model(), &["output `y`", "nothing makes it"]);
    let taken = Graph { inputs: vec![value("z", F32, &["2"])], ..through(&[node("Relu", &["z"], &["y"])]) };
    refused(taken.model(), &["input `z`"]);
}

#[test]
fn names_that_are_given_twice_are_refused() {
    let relu = node("Relu", &["x"], &["y"]);
    refused(through(&[relu.clone(), node("Neg", &["x"], &["y"])]).model(), &["`y` is made twice"]);
    refused(through(&[node("Neg", &["x"], &["x"]), relu.clone()]).model(), &["`x` is made twice"]);
    let w = floats("w", &[2], &[1.0, 2.0]);
    let graph = Graph { initializers: vec![w.clone(), w.clone()], ..through(std::slice::from_ref(&relu)) };
    refused(graph.model(), &["initializer `w`", "twice"]);
    let graph = Graph { initializers: vec![w], ..through(&[node("Neg", &["x"], &["w"]), relu.clone()]) };
    refused(graph.model(), &["`w` is an initializer"]);
    let x = value("x", F32, &["2"]);
    let graph = Graph { inputs: vec![x.clone(), x], ..through(std::slice::from_ref(&relu)) };
    refused(graph.model(), &["input `x`", "twice"]);
    let same = function("f", &["a"], &["b"], &[node("Relu", &["a"], &["b"])]);
    let bytes = model(&through(&[relu]).message()).inside(25, &same).inside(25, &same).0;
    refused(bytes, &["function `f`", "twice"]);
}

#[test]
fn types_that_contradict_each_other_are_refused() {
    let relu = node("Relu", &["x"], &["y"]);
    let graph = Graph { outputs: vec![value("y", I64, &["2"])], ..through(std::slice::from_ref(&relu)) };
    refused(graph.model(), &["output `y`", "declared to be of i64"]);
    let two = [node("Relu", &["x"], &["t"]), node("Relu", &["t"], &["y"])];
    let graph = Graph { values: vec![value("t", I64, &["2"])], ..through(&two) };
    refused(graph.model(), &["`t`", "declared to be of i64"]);
    let graph = Graph { inputs: vec![value("x", I64, &["2"])], ..through(std::slice::from_ref(&relu)) };
    refused(graph.model(), &["input `x`", "i64"]);
    let graph = Graph { inputs: vec![value("x", F32, &["3"])], ..through(std::slice::from_ref(&relu)) };
    refused(graph.model(), &["input `x`", "[3]"]);
    let graph = Graph { inputs: vec![value("x", F32, &["n", "2"])], ..through(std::slice::from_ref(&relu)) };
    refused(graph.model(), &["input `x`", "[n, 2]"]);
    let mixed = Graph {
        initializers: vec![ints("w", &[2], &[1, 2])],
        ..through(&[node("Add", &["x", "w"], &["y"])])
    };
    refused(mixed.model(), &["(Add)", "f32", "i64"]);
    let graph = Graph {
        inputs: vec![value("x", F32, &["2"]), value("w", F32, &["3"])],
        initializers: vec![floats("w", &[2], &[1.0, 2.0])],
        ..through(&[node("Add", &["x", "w"], &["y"])])
    };
    refused(graph.model(), &["initializer `w`", "f32[3]"]);
}

#[test]
fn all_operators_that_cannot_be_imported_are_told_at_once() {
    let nodes = [
        node("Frobnicate", &["x"], &["a"]),
        node("local:Twist", &["a"], &["b"]),
        node("Frobnicate", &["b"], &["y"]),
    ];
    let words = ["Frobnicate: 2 nodes, first node `a`", "local.Twist: 1 node, first node `b`"];
    refused(through(&nodes).model(), &words);
}

#[test]
fn a_function_that_calls_itself_is_refused() {
    let own = function("f", &["a"], &["b"], &[node("local:f", &["a"], &["b"])]);
    let graph = through(&[node("local:f", &["x"], &["y"])]);
    refused(model(&graph.message()).inside(25, &own).0, &["(local.f)", "deeper than"]);
}

#[test]
fn functions_that_double_their_calls_end_soon() {
    // Each calls the next four times: 4^12 nodes in 12 functions.
    let mut bytes = model(&through(&[node("local:f0", &["x"], &["y"])]).message());
    for i in 0..12 {
        let next = if i == 11 { "Relu".to_string() } else { format!("local:f{}", i + 1) };
        let calls = [
            node(&next, &["a"], &["b"]),
            node(&next, &["b"], &["c"]),
            node(&next, &["c"], &["d"]),
            node(&next, &["d"], &["e"]),
        ];
        bytes = bytes.inside(25, &function(&format!("f{i}"), &["a"], &["e"], &calls));
    }
    refused(bytes.0, &["written out the model has over"]);
}

#[test]
fn graphs_inside_graphs_nest_only_so_deep() {
    let mut inner = Graph {
        nodes: vec![node("Relu", &["x"], &["t"])],
        outputs: vec![value("t", F32, &["2"])],
        ..Graph::default()
    };
    for _ in 0..20 {
        let branch = |name| graph_attribute(name, &inner.message());
        let choice = node("If", &["c"], &["t"]).inside(5, &branch("then_branch"));
        inner.nodes = vec![choice.inside(5, &graph_attribute("else_branch", &Graph::default().message()))];
    }
    let graph = Graph {
        initializers: vec![tensor("c", BOOL, &[], &[1])],
        outputs: vec![value("t", F32, &["2"])],
        ..through(&inner.nodes)
    };
    refused(graph.model(), &["nest deeper than 16"]);
}

#[test]
fn messages_inside_messages_do_not_end_the_stack() {
    // A type of sequences of sequences and so on.
    let mut ty = Message::new();
    for _ in 0..100 {
        ty = Message::new().inside(4, &Message::new().inside(1, &ty));
    }
    let input = Message::new().text(1, "x").inside(2, &ty);
    let graph = Graph { inputs: vec![input], ..through(&[node("Relu", &["x"], &["y"])]) };
    refused(graph.model(), &["not an ONNX model", "recursion"]);
}

#[test]
fn constants_that_would_be_large_are_not_computed_by_the_import() {
    // 2^40 elements from 16 bytes, summed up and used as a size.
    let constant = node("Constant", &[], &["n"])
        .inside(5, &tensor_attribute("value", &ints("", &[2], &[1 << 20, 1 << 20])));
    let nodes = [
        constant,
        node("Expand", &["one", "n"], &["large"]),
        node("Mul", &["large", "large"], &["larger"]),
        node("Shape", &["larger"], &["s"]),
        node("Reshape", &["x", "s"], &["y"]),
    ];
    let graph = Graph { initializers: vec![floats("one", &[1], &[1.0])], ..through(&nodes) };
    // Whether or not the operators of the moment are there, nothing is allocated and an error comes at once.
    assert!(import(graph.model()).is_err());
}

#[test]
fn loops_without_end_do_not_hold_up_the_import() {
    let body = Graph {
        nodes: vec![node("Not", &["stop"], &["go"]), node("Add", &["v", "v"], &["w"])],
        initializers: vec![tensor("stop", BOOL, &[], &[0])],
        inputs: vec![value("i", I64, &[]), value("c", BOOL, &[]), value("v", F32, &["2"])],
        outputs: vec![value("go", BOOL, &[]), value("w", F32, &["2"])],
        ..Graph::default()
    };
    for trips in [i64::MAX, 1 << 40, -5] {
        let looped =
            node("Loop", &["m", "", "start"], &["z"]).inside(5, &graph_attribute("body", &body.message()));
        let graph = Graph {
            initializers: vec![ints("m", &[], &[trips]), floats("start", &[2], &[1.0, 2.0])],
            ..through(&[looped, node("Add", &["x", "z"], &["y"])])
        };
        // Trips that the device would make are its own; here it only matters that the answer comes.
        let _ = import(graph.model());
    }
}

#[test]
fn opset_versions_from_before_the_first_are_refused() {
    let graph = through(&[node("Relu", &["x"], &["y"])]).message();
    for version in [0, -3, i64::MIN] {
        let bytes = Message::new().int(1, 8).inside(8, &Message::new().int(2, version)).inside(7, &graph);
        refused(bytes.0, &["not an ONNX model", "version"]);
    }
}

/// Sizes that inputs declare and that an importer would make a list of.
#[test]
fn declared_sizes_of_any_number_take_no_memory() {
    const MANY: usize = 1 << 40;
    let many = MANY.to_string();
    let wide = |name: &str| {
        let ty = TensorType::new(DType::I64, Shape::new(&[MANY]).unwrap());
        (name.to_string(), Bound::Tensor { ty, value: None })
    };
    let body = Graph {
        nodes: vec![node("Relu", &["e"], &["r"])],
        inputs: vec![value("e", F32, &[])],
        outputs: vec![value("r", F32, &[])],
        ..Graph::default()
    };
    let scan = node("Scan", &["", "x"], &["y"])
        .inside(5, &int_attribute("num_scan_inputs", 1))
        .inside(5, &graph_attribute("body", &body.message()));
    let mut batch = through(&[scan]);
    batch.inputs = vec![value("x", F32, &[&many, "1"])];
    let mut slice = through(&[node("Slice", &["x", "starts", "ends"], &["y"])]);
    slice.inputs.extend(["starts", "ends"].map(|name| value(name, I64, &[&many])));

    let of = |opset: i64, graph: &Graph| {
        let opset = Message::new().int(2, opset);
        Model::from_bytes(Message::new().int(1, 8).inside(8, &opset).inside(7, &graph.message()).0).unwrap()
    };
    let refused = of(8, &batch).specialise(&x(&[MANY, 1]), &CpuEvaluator).map_err(|e| e.to_string());
    assert!(refused.as_ref().is_err_and(|e| e.contains("a batch of")), "{refused:?}");
    let mut limits = x(&[2]);
    limits.inputs.extend(["starts", "ends"].map(wide));
    let refused = of(17, &slice).specialise(&limits, &CpuEvaluator).map_err(|e| e.to_string());
    assert!(refused.as_ref().is_err_and(|e| e.contains("limits for 1 axes")), "{refused:?}");
}

/// Numbers at the ends of their range in every list of numbers that moves a window.
#[test]
fn windows_of_any_numbers_are_imported_or_refused() {
    let ends = [i64::MIN, i64::MIN + 1, -(1 << 40), -1, 0, 1, 1 << 40, i64::MAX - 1, i64::MAX];
    let operators: [(&str, &[&str]); 8] = [
        ("Conv", &["x", "w"]),
        ("ConvTranspose", &["x", "w"]),
        ("ConvInteger", &["x", "w"]),
        ("MaxPool", &["x"]),
        ("AveragePool", &["x"]),
        ("LpPool", &["x"]),
        ("MaxUnpool", &["x", "i"]),
        ("DeformConv", &["x", "w", "o"]),
    ];
    let lists = [
        ("strides", 2),
        ("dilations", 2),
        ("pads", 4),
        ("output_padding", 2),
        ("output_shape", 2),
        ("output_shape", 4),
        ("kernel_shape", 2),
    ];
    let mut tried = 0;
    for (op, inputs) in operators {
        for (name, len) in lists {
            for first in ends {
                for last in [first, 1] {
                    for auto in ["NOTSET", "SAME_UPPER", "VALID"] {
                        let mut numbers = vec![last; len];
                        numbers[0] = first;
                        let mut window = node(op, inputs, &["y"]).inside(5, &ints_attribute(name, &numbers));
                        if name != "kernel_shape" {
                            window = window.inside(5, &ints_attribute("kernel_shape", &[1, 1]));
                        }
                        window = window.inside(5, &string_attribute("auto_pad", auto));
                        for rows in [0, 3] {
                            let mut graph = through(&[window.clone()]);
                            graph.inputs = vec![value("x", F32, &["1", "1", "r", "2"])];
                            graph.initializers = vec![
                                floats("w", &[1, 1, 1, 1], &[1.0]),
                                floats("o", &[1, 2, 3, 2], &[0.0; 12]),
                                ints("i", &[1, 1, 3, 2], &[0; 6]),
                            ];
                            let model = Model::from_bytes(graph.model()).unwrap();
                            let _: Result<_, _> = model.specialise(&x(&[1, 1, rows, 2]), &CpuEvaluator);
                            tried += 1;
                        }
                    }
                }
            }
        }
    }
    assert_eq!(tried, 8 * 7 * 9 * 2 * 3 * 2);
}

#[test]
fn attributes_of_another_type_are_refused_by_name() {
    let relu = node("LeakyRelu", &["x"], &["y"]).inside(5, &int_attribute("alpha", 3));
    refused(through(&[relu]).model(), &["(LeakyRelu)", "`alpha`", "Int"]);
}

#[test]
fn too_many_inputs_of_a_function_are_refused() {
    let f = function("f", &["a"], &["b"], &[node("Relu", &["a"], &["b"])]);
    let graph = through(&[node("local:f", &["x", "x"], &["y"])]);
    refused(model(&graph.message()).inside(25, &f).0, &["(local.f)", "takes 1"]);
}

/// A folder of its own for a test, gone at the end.
struct Folder(std::path::PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("olivine-onnx-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(path.join("model")).unwrap();
        Folder(path)
    }

    /// A model in `model/` whose weight lies at a location.
    fn load(&self, entries: &[(&str, &str)]) -> Result<Model, String> {
        self.load_at("model", entries, Links::default())
    }

    /// A model in a folder whose weight lies at a location, with links as given.
    fn load_at(&self, at: &str, entries: &[(&str, &str)], links: Links) -> Result<Model, String> {
        let graph = Graph {
            initializers: vec![external("w", F32, &[2], entries)],
            ..through(&[node("Add", &["x", "w"], &["y"])])
        };
        let path = self.0.join(at).join("m.onnx");
        std::fs::write(&path, graph.model()).unwrap();
        Model::load_with(&path, &LoadOptions::new().links(links)).map_err(|e| e.to_string())
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[test]
fn external_data_come_from_the_models_folder_alone() {
    let folder = Folder::new("outside");
    std::fs::write(folder.0.join("secret"), [0u8; 8]).unwrap();
    std::fs::write(folder.0.join("model/w"), [0u8; 8]).unwrap();
    assert!(folder.load(&[("location", "w")]).is_ok());
    assert!(folder.load(&[("location", "./w")]).is_ok());
    let absolute = folder.0.join("secret").display().to_string();
    for location in ["../secret", "a/../../secret", "../model/w", &absolute, "/dev/zero", ""] {
        let error = folder.load(&[("location", location)]).err().unwrap();
        assert!(error.contains("outside") || error.contains("plain file"), "{location}: {error}");
    }
    let error = folder.load(&[("location", "nothing")]).err().unwrap();
    assert!(error.contains("nothing"), "{error}");
    let error = folder.load(&[]).err().unwrap();
    assert!(error.contains("without a location"), "{error}");
}

#[cfg(unix)]
#[test]
fn links_that_lead_out_of_the_folder_are_refused() {
    let folder = Folder::new("links");
    std::fs::write(folder.0.join("secret"), [0u8; 8]).unwrap();
    std::os::unix::fs::symlink("../secret", folder.0.join("model/w")).unwrap();
    std::os::unix::fs::symlink("..", folder.0.join("model/up")).unwrap();
    for location in ["w", "up/secret"] {
        let error = folder.load(&[("location", location)]).err().unwrap();
        assert!(error.contains("outside"), "{error}");
    }
}

/// A download cache as Hugging Face lays it out, with a model whose weight is a link.
#[cfg(unix)]
fn hugging_face(name: &str, link: &str) -> Folder {
    let folder = Folder::new(name);
    let snapshot = folder.0.join("hub/models--org--name/snapshots/abc/onnx");
    std::fs::create_dir_all(&snapshot).unwrap();
    std::fs::create_dir_all(folder.0.join("hub/models--org--name/blobs")).unwrap();
    std::fs::write(folder.0.join("hub/models--org--name/blobs/0123"), [0u8; 8]).unwrap();
    std::fs::write(folder.0.join("hub/models--org--name/notes"), [0u8; 8]).unwrap();
    std::fs::create_dir_all(folder.0.join("hub/models--other--name/blobs")).unwrap();
    std::fs::write(folder.0.join("hub/models--other--name/blobs/4567"), [0u8; 8]).unwrap();
    std::fs::write(folder.0.join("secret"), [0u8; 8]).unwrap();
    std::os::unix::fs::symlink(link, snapshot.join("w")).unwrap();
    folder
}

#[cfg(unix)]
#[test]
fn links_of_a_download_cache_lead_to_its_blobs_and_no_further() {
    let at = "hub/models--org--name/snapshots/abc/onnx";
    let load = |folder: &Folder, links| folder.load_at(at, &[("location", "w")], links);
    let folder = hugging_face("cache", "../../../blobs/0123");
    assert_eq!(load(&folder, Links::Cache).err(), None);
    assert_eq!(load(&folder, Links::Anywhere).err(), None);
    assert!(load(&folder, Links::Folder).err().unwrap().contains("--links anywhere"));
    // The model file itself is a link as well, and the folder may be reached by another.
    let snapshot = folder.0.join(at);
    std::fs::rename(snapshot.join("m.onnx"), folder.0.join("hub/models--org--name/blobs/89ab")).unwrap();
    std::os::unix::fs::symlink("../../../blobs/89ab", snapshot.join("m.onnx")).unwrap();
    assert!(Model::load(snapshot.join("m.onnx")).is_ok());
    std::os::unix::fs::symlink(&snapshot, folder.0.join("shortcut")).unwrap();
    assert!(Model::load(folder.0.join("shortcut/m.onnx")).is_ok());
    drop(folder);
    let outside = ["../../../../../secret", "../../../../models--other--name/blobs/4567", "../../../notes"];
    for (i, link) in outside.into_iter().enumerate() {
        let folder = hugging_face(&format!("cache-{i}"), link);
        assert!(load(&folder, Links::Cache).err().unwrap().contains("outside"), "{link}");
        assert_eq!(load(&folder, Links::Anywhere).err(), None, "{link}");
    }
    // A blob that is a link itself leads no further, and folders without blobs are no cache.
    let folder = hugging_face("cache-blob", "../../../blobs/far");
    let blobs = folder.0.join("hub/models--org--name/blobs");
    std::os::unix::fs::symlink("../../../secret", blobs.join("far")).unwrap();
    assert!(load(&folder, Links::Cache).err().unwrap().contains("outside"));
    std::fs::remove_file(blobs.join("far")).unwrap();
    std::fs::write(blobs.join("far"), [0u8; 8]).unwrap();
    assert_eq!(load(&folder, Links::Cache).err(), None);
    std::fs::rename(&blobs, blobs.with_file_name("elsewhere")).unwrap();
    std::os::unix::fs::symlink("elsewhere", &blobs).unwrap();
    assert!(load(&folder, Links::Cache).err().unwrap().contains("outside"), "blobs is a link");
}

#[cfg(unix)]
#[test]
fn pipes_and_devices_are_refused_and_nothing_waits_for_them() {
    let folder = Folder::new("pipes");
    let pipe = folder.0.join("model/w");
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    std::os::unix::fs::symlink("/dev/zero", folder.0.join("model/endless")).unwrap();
    let (send, receive) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let entries = [("location", "w"), ("length", "8")];
        send.send(folder.load_at("model", &entries, Links::Anywhere).err()).unwrap();
        let entries = [("location", "endless"), ("length", "8")];
        send.send(folder.load_at("model", &entries, Links::Anywhere).err()).unwrap();
        send.send(Model::load(&pipe).err().map(|e| e.to_string())).unwrap();
    });
    for _ in 0..3 {
        let error = receive.recv_timeout(Duration::from_secs(20)).expect("it must not hang");
        assert!(error.as_ref().is_some_and(|e| e.contains("not a plain file")), "{error:?}");
    }
}

#[test]
fn files_of_other_formats_are_named_with_what_to_do() {
    let safetensors = [&2u64.to_le_bytes(), b"{}".as_slice()].concat();
    for (bytes, words) in [
        (safetensors.as_slice(), ["a safetensors file", "export the model to ONNX"]),
        (b"GGUF\x03\0\0\0\0\0\0\0", ["a GGUF file", "ONNX"]),
        (b"PK\x03\x04\x14\0\0\0\x08\x08", ["a ZIP archive", "torch.onnx.export"]),
        (b"\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19.", ["a Python pickle", "torch.onnx.export"]),
        (b"\x1c\0\0\0TFL3\x14\0 \0", ["TensorFlow Lite", "tf2onnx"]),
        (b"\x89HDF\r\n\x1a\n\0\0", ["HDF5", "tf2onnx"]),
        (b"version https://git-lfs.github.com/spec/v1\noid", ["git-lfs pointer", "git lfs pull"]),
        (b"<!doctype html>\n<title>404</title>", ["a web page", "download"]),
        (b"{\"error\": \"not found\"}", ["JSON", "binary"]),
        (b"", ["empty", "not an ONNX model"]),
    ] {
        refused(bytes.to_vec(), &words);
    }
}

#[test]
fn external_parts_beyond_their_file_are_refused() {
    let folder = Folder::new("parts");
    std::fs::write(folder.0.join("model/w"), [0u8; 16]).unwrap();
    let max = usize::MAX.to_string();
    let cases: [&[(&str, &str)]; 6] = [
        &[("location", "w"), ("offset", "16"), ("length", "8")],
        &[("location", "w"), ("offset", &max), ("length", "8")],
        &[("location", "w"), ("offset", "8"), ("length", &max)],
        &[("location", "w"), ("offset", "-1"), ("length", "8")],
        &[("location", "w"), ("offset", "0"), ("length", "4")],
        &[("location", "w")],
    ];
    for entries in cases {
        let error = folder.load(entries).err().unwrap();
        assert!(error.contains("`w`"), "{entries:?}: {error}");
    }
    assert!(folder.load(&[("location", "w"), ("offset", "8"), ("length", "8")]).is_ok());
}

#[test]
fn a_model_from_memory_has_no_external_data() {
    let graph = Graph {
        initializers: vec![external("w", F32, &[2], &[("location", "w")])],
        ..through(&[node("Add", &["x", "w"], &["y"])])
    };
    refused(graph.model(), &["`w`", "from memory"]);
}

#[test]
fn what_is_no_plain_file_is_refused() {
    for path in ["/", "/dev/null"] {
        let error = Model::load(path).err().map(|e| e.to_string()).unwrap();
        assert!(error.contains("plain file"), "{error}");
    }
}
