//! `Model::load` decides by content, whatever the file is called.
#![forbid(unsafe_code)]
#![allow(clippy::panic, clippy::unwrap_used, reason = "a failed expectation is a failed test")]

#[allow(dead_code, reason = "a part is enough here")]
#[path = "../../onnx/tests/wire/mod.rs"]
mod wire;

use std::path::PathBuf;

use olivine::prelude::*;
use wire::{F32, node, value};

/// A folder of a test's own, which goes with it.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("olivine-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Folder(path)
    }

    fn file(&self, name: &str, bytes: &[u8]) -> PathBuf {
        let path = self.0.join(name);
        std::fs::write(&path, bytes).unwrap();
        path
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn refused(path: impl AsRef<std::path::Path>) -> String {
    Model::load(path).map(drop).unwrap_err().to_string()
}

#[test]
fn onnx_and_text_form_are_told_apart_by_their_bytes() {
    let folder = Folder::new("content");
    let onnx = wire::Graph {
        nodes: vec![node("Neg", &["x"], &["y"])],
        inputs: vec![value("x", F32, &["2"])],
        outputs: vec![value("y", F32, &["2"])],
        ..wire::Graph::default()
    };
    let mut g = Graph::new("negate");
    let x = g.input("x", DType::F32, [2]).unwrap();
    let y = g.neg(x).unwrap();
    g.output("y", y).unwrap();
    let session = Session::new(Device::Cpu).unwrap();
    for path in [folder.file("a.txt", &onnx.model()), folder.file("b.onnx", g.to_string().as_bytes())] {
        let model = Model::load(&path).unwrap();
        assert_eq!(model.inputs()[0].kind.to_string(), "f32[2]");
        assert_eq!(model.outputs()[0].name, "y");
        let x = Tensor::from([1.0f32, -2.0]);
        let out = session.compile(&model).unwrap().run([("x", &x)]).unwrap();
        assert_eq!(out.at(0).unwrap(), &Tensor::from([-1.0f32, 2.0]));
    }
}

#[test]
fn other_files_are_refused_with_what_they_are() {
    let folder = Folder::new("other");
    let safetensors = [&2u64.to_le_bytes()[..], b"{}"].concat();
    for (name, bytes, word) in [
        ("weights.safetensors", safetensors.as_slice(), "safetensors"),
        ("model.gguf", b"GGUF\x03\0\0\0", "GGUF"),
        ("page.onnx", b"<!doctype html><html>", "web page"),
        ("broken.graph", b"graph \"x\" {", "graph"),
        ("empty", b"", ""),
    ] {
        let text = refused(folder.file(name, bytes));
        assert!(text.contains(word) && !text.is_empty(), "{name}: {text}");
    }
    assert!(refused(folder.0.join("nothing")).contains("nothing"));
    assert!(refused(&folder.0).contains("config.json"), "a folder without a config");
    folder.file("config.json", b"{\"model_type\": \"llama\"}");
    let text = refused(&folder.0);
    assert!(text.contains("hidden_size"), "a configuration without sizes: {text}");
    folder.file("config.json", b"{\"model_type\": \"clip\"}");
    let text = refused(&folder.0);
    assert!(text.contains("clip"), "{text}");
    let text = refused(folder.0.join("weights.safetensors"));
    assert!(text.contains("clip"), "the folder of a safetensors file: {text}");
}

#[test]
fn a_folder_of_safetensors_is_a_model_with_its_weights() {
    let folder = Folder::new("bert");
    let (hidden, words) = (8usize, 16usize);
    let mut tensors: Vec<(String, Tensor)> = Vec::new();
    let mut add = |name: &str, shape: &[usize]| {
        let count = shape.iter().product::<usize>();
        let elements = (0..count).map(|i| ((i * 7 + name.len()) % 13) as f32 / 13.0 - 0.4).collect();
        tensors.push((name.to_string(), Tensor::new::<f32>(shape, elements).unwrap()));
    };
    for (name, rows) in [("word", words), ("position", 8), ("token_type", 2)] {
        add(&format!("embeddings.{name}_embeddings.weight"), &[rows, hidden]);
    }
    let layer = "encoder.layer.0";
    for norm in [
        "embeddings.LayerNorm".into(),
        format!("{layer}.attention.output.LayerNorm"),
        format!("{layer}.output.LayerNorm"),
    ] {
        add(&format!("{norm}.weight"), &[hidden]);
        add(&format!("{norm}.bias"), &[hidden]);
    }
    for part in
        ["attention.self.query", "attention.self.key", "attention.self.value", "attention.output.dense"]
    {
        add(&format!("{layer}.{part}.weight"), &[hidden, hidden]);
        add(&format!("{layer}.{part}.bias"), &[hidden]);
    }
    add(&format!("{layer}.intermediate.dense.weight"), &[16, hidden]);
    add(&format!("{layer}.intermediate.dense.bias"), &[16]);
    add(&format!("{layer}.output.dense.weight"), &[hidden, 16]);
    add(&format!("{layer}.output.dense.bias"), &[hidden]);
    olivine_safetensors::save(folder.0.join("model.safetensors"), &tensors).unwrap();
    folder.file(
        "config.json",
        br#"{"model_type": "bert", "num_hidden_layers": 1, "hidden_size": 8, "num_attention_heads": 2, "hidden_act": "gelu"}"#,
    );

    let session = Session::new(Device::Cpu).unwrap();
    let ids = Tensor::from([[3i64, 1, 4]]);
    let (mask, kinds) = (Tensor::from([[1i64, 1, 1]]), Tensor::from([[0i64, 0, 0]]));
    let given = [("input_ids", &ids), ("attention_mask", &mask), ("token_type_ids", &kinds)];
    let results = [folder.0.clone(), folder.0.join("model.safetensors")].map(|path| {
        let model = Model::load(path).unwrap();
        assert_eq!(model.inputs()[0].kind.to_string(), "i64[batch, sequence]");
        session.compile(&model).unwrap().run(given).unwrap()["sentence_embedding"].clone()
    });
    assert_eq!(results[0], results[1]);
    let length: f64 = results[0].to_f64().iter().map(|x| x * x).sum();
    assert!((length - 1.0).abs() < 1e-5, "{length}");

    // Other weights give other results, and the first model keeps its own.
    let model = Model::load(&folder.0).unwrap();
    let other = model.with_weights(|name, _, old| {
        let zeros = Tensor::zeros(old.dtype(), *old.shape()).ok();
        zeros.filter(|_| name == "embeddings.word_embeddings.weight")
    });
    let run =
        |model: &Model| session.compile(model).unwrap().run(given).unwrap()["sentence_embedding"].clone();
    assert_ne!(run(&other.unwrap()), results[0]);

    // A configuration that names more rows than a table has: an index beyond them would read the last one.
    let config = |more: &str| {
        let sizes =
            r#""num_hidden_layers": 1, "hidden_size": 8, "num_attention_heads": 2, "hidden_act": "gelu""#;
        folder.file("config.json", format!(r#"{{"model_type": "bert", {sizes}, {more}}}"#).as_bytes());
        Model::load(&folder.0)
    };
    for (key, rows) in [("vocab_size", words), ("max_position_embeddings", 8), ("type_vocab_size", 2)] {
        assert!(config(&format!(r#""{key}": {rows}"#)).is_ok(), "{key}");
        let error = config(&format!(r#""{key}": {}"#, rows + 1)).err().unwrap().to_string();
        assert!(error.contains(key) && error.contains(&format!("{rows} rows")), "{error}");
        assert!(config(&format!(r#""{key}": "many""#)).is_err(), "{key}");
    }
    assert_eq!(run(&model), results[0]);
}
