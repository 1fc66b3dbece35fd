//! Models whose metadata or tensors lie: an error that names a key or a tensor, never a panic, and nothing large is allocated.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test says what it expects")]

mod common;

use std::path::Path;

use common::TempModel;
use common::recorded::Recorded;
use olivine::prelude::*;
use olivine_gguf::{Gguf, TensorKind, Value, Writer};
use olivine_lm::{CacheType, EngineOptions, LanguageModel};
use serde_json::{Value as Json, json};

/// Loads and builds a model; an error must name one of the names.
fn refused(what: &str, loaded: Result<Model, Error>, names: &[String]) -> bool {
    let Err(error) = loaded else { return false };
    let message = error.to_string();
    assert!(names.iter().any(|name| message.contains(name.as_str())), "{what}: {message}");
    true
}

/// A file with an entry of the metadata or a tensor changed.
fn changed(
    file: &Gguf,
    entry: impl Fn(&str, &Value) -> Option<Value>,
    tensor: impl Fn(&str, TensorKind, &[usize]) -> Option<(TensorKind, Vec<usize>)>,
) -> Vec<u8> {
    let mut writer = Writer::new();
    for (key, value) in file.metadata().iter() {
        if let Some(value) = entry(key, value) {
            writer.metadata(key, value).unwrap();
        }
    }
    for one in file.tensors() {
        let Some((kind, shape)) = tensor(&one.name, one.kind, &one.shape) else { continue };
        let same = kind == one.kind && shape == one.shape;
        let bytes = if same { file.bytes(one).to_vec() } else { vec![0; kind.bytes_of(&shape).unwrap()] };
        writer.tensor(&one.name, kind, &shape, bytes).unwrap();
    }
    writer.to_bytes().unwrap()
}

fn gguf_names(file: &Gguf) -> Vec<String> {
    let keys = file.metadata().iter().map(|(key, _)| key.to_string());
    keys.chain(file.tensors().iter().map(|tensor| tensor.name.clone())).collect()
}

#[test]
fn gguf_metadata_that_lie_are_errors_that_name_a_key_or_a_tensor() {
    for architecture in ["llama", "qwen3moe", "gpt-oss"] {
        let model = TempModel::new(architecture, "lying-keys");
        let file = Gguf::open(model.path()).unwrap();
        let mut names = gguf_names(&file);
        // Layers that are not there.
        names.push("blk.".into());
        let keys: Vec<(String, Value)> =
            file.metadata().iter().map(|(key, value)| (key.to_string(), value.clone())).collect();
        for (key, value) in &keys {
            let mut lies =
                vec![None, Some(Value::from("text")), Some(Value::I64(-1)), Some(Value::F32(f32::NAN))];
            let number = value.as_u64().unwrap_or(3);
            lies.extend(
                [0, number + 1, 2 * number, number / 2, 1 << 20, u64::MAX].map(|x| Some(Value::U64(x))),
            );
            let shaping = [
                "block_count",
                "embedding_length",
                "head_count",
                "head_count_kv",
                "key_length",
                "value_length",
            ];
            for lie in &lies {
                let own = |at: &str, value: &Value| if at == key { lie.clone() } else { Some(value.clone()) };
                let bytes = changed(&file, own, |_, kind, shape| Some((kind, shape.to_vec())));
                let what = format!("{architecture}, {key} is {lie:?}");
                let found = refused(&what, Model::from_gguf(bytes), &names);
                let shapes = shaping.iter().any(|end| key.ends_with(end)) || key == "general.architecture";
                // Those with a default may be missing.
                assert!(found || !shapes || lie.is_none(), "{what}: it was loaded");
            }
        }
    }
}

#[test]
fn gguf_tensors_that_lie_are_errors_that_name_them() {
    for architecture in ["qwen2", "qwen3moe", "phi3", "gpt-oss", "gemma3"] {
        let model = TempModel::new(architecture, "lying-tensors");
        let file = Gguf::open(model.path()).unwrap();
        let of_layer = |name: &str| !name.starts_with("blk.") || name.starts_with("blk.0.");
        for tensor in file.tensors().iter().filter(|tensor| of_layer(&tensor.name)) {
            let mut wider = tensor.shape.clone();
            *wider.last_mut().unwrap() += 32;
            let mut longer = tensor.shape.clone();
            longer[0] += 32;
            let lies = [
                ("missing", None),
                ("of integers", Some((TensorKind::I32, tensor.shape.clone()))),
                ("wider", Some((tensor.kind, wider))),
                ("longer", Some((tensor.kind, longer))),
                ("of more dimensions", Some((tensor.kind, [&[1], &tensor.shape[..]].concat()))),
            ];
            for (lie, made) in lies {
                let own = |name: &str, kind: TensorKind, shape: &[usize]| match name == tensor.name {
                    true => made.clone(),
                    false => Some((kind, shape.to_vec())),
                };
                let bytes = changed(&file, |_, value| Some(value.clone()), own);
                let what = format!("{architecture}, {} is {lie}", tensor.name);
                // Sizes that a tensor alone knows are those of the next, which is named then.
                let part = tensor.name.rsplit_once('.').unwrap().0;
                let near = part.replace("_gate", "_up").replace("_up", "_down");
                let names = [tensor.name.clone(), near, part.replace("_gate", "_up"), "output.weight".into()];
                let found = refused(&what, Model::from_gguf(bytes), &names);
                let optional = tensor.name.ends_with("bias")
                    || ["q_norm", "k_norm", "sinks", "output.weight", "post_", "gate_inp"]
                        .iter()
                        .any(|part| tensor.name.contains(part));
                assert!(found || (lie == "missing" && optional), "{what}: it was loaded");
            }
        }
    }
}

/// The names that an error may have: keys, tensors of the folder and of layers that are not there.
fn folder_names(config: &Json, recorded: &Recorded) -> Vec<String> {
    let keys = config.as_object().unwrap().keys().cloned();
    let tensors = recorded.json["tensors"].as_array().unwrap().iter();
    let tensors = tensors.map(|entry| entry[0].as_str().unwrap().to_string());
    let more = ["blk.", "token_embd", "rope_scaling", "config.json"].map(str::to_string);
    keys.chain(tensors).chain(more).collect()
}

fn load_with(folder: &Path, config: &Json) -> Result<Model, Error> {
    std::fs::write(folder.join("config.json"), config.to_string()).unwrap();
    Model::load(folder)
}

#[test]
fn configurations_that_lie_are_errors_that_name_a_key_or_a_tensor() {
    let chosen = ["qwen3_moe", "gpt_oss_mxfp4", "mamba2_groups", "qwen3_next", "phi3_longrope"];
    for recorded in Recorded::all().iter().filter(|recorded| chosen.contains(&recorded.name.as_str())) {
        let folder = recorded.folder("lying-keys");
        let text = recorded.json["config"].as_str().unwrap();
        let config: Json = serde_json::from_str(&text.replace("Infinity", "null")).unwrap();
        let names = folder_names(&config, recorded);
        assert!(load_with(&folder.0, &config).is_ok());
        for (key, value) in config.as_object().unwrap() {
            let number = value.as_u64().unwrap_or(3);
            let lies = [
                json!(null),
                json!("text"),
                json!(-1),
                json!(0),
                json!(number + 1),
                json!(2 * number),
                json!(number / 2),
                json!(1u64 << 20),
                json!(u64::MAX),
                json!(-0.5),
                json!([]),
                json!({ "factor": 0 }),
                json!({ "rope_type": "yarn", "factor": -1 }),
            ];
            let shaping = [
                "vocab_size",
                "hidden_size",
                "num_hidden_layers",
                "num_key_value_heads",
                "linear_num_value_heads",
                "state_size",
                "num_heads",
            ];
            for lie in lies {
                let mut changed = config.clone();
                changed[key] = lie.clone();
                let what = format!("{}, {key} is {lie}", recorded.name);
                let found = refused(&what, load_with(&folder.0, &changed), &names);
                let same = lie == *value || lie.is_null();
                assert!(found || same || !shaping.contains(&key.as_str()), "{what}: it was loaded");
            }
        }
        assert!(refused("no object", load_with(&folder.0, &json!([1])), &["config.json".into()]));
    }
}

#[test]
fn tensors_of_folders_that_lie_are_errors_that_name_them() {
    for name in ["qwen3_moe", "gpt_oss_mxfp4", "gpt_oss", "mamba2_groups", "qwen3_next"] {
        let recorded = Recorded::all().into_iter().find(|recorded| recorded.name == name).unwrap();
        let folder = recorded.folder("lying-tensors");
        let all = recorded.tensors();
        let chosen = |name: &str| {
            !name.contains("layers.") || name.contains("layers.0.") && !name.contains("experts.1.")
        };
        for (at, (tensor, value)) in all.iter().enumerate().filter(|(_, (tensor, _))| chosen(tensor)) {
            let dims = value.shape().dims();
            let mut longer = dims.to_vec();
            longer[0] += 1;
            let zeros =
                |dtype: DType, dims: &[usize]| Some(Tensor::zeros(dtype, Shape::new(dims).unwrap()).unwrap());
            let lies = [
                ("missing", None),
                ("of integers", zeros(DType::I32, dims)),
                ("longer", zeros(value.dtype(), &longer)),
                ("empty", zeros(value.dtype(), &[&[0], &dims[1..]].concat())),
                ("of more dimensions", zeros(value.dtype(), &[&[2], dims].concat())),
            ];
            for (lie, made) in lies {
                let mut tensors = all.clone();
                match made {
                    Some(made) => tensors[at].1 = made,
                    None => drop(tensors.remove(at)),
                }
                olivine_safetensors::save(folder.0.join("model.safetensors"), &tensors).unwrap();
                let what = format!("{name}, {tensor} is {lie}");
                let stem = tensor.trim_end_matches("_blocks").trim_end_matches("_scales");
                let experts =
                    [".mlp.experts.", "_exps", ".mlp.", "lm_head", "token_embd"].map(str::to_string);
                let names = [vec![stem.to_string()], experts.to_vec()].concat();
                let found = refused(&what, Model::load(&folder.0), &names);
                let optional = tensor.ends_with("bias")
                    || ["q_norm", "k_norm", "sinks", "lm_head", "mlp.", "shared_expert"]
                        .iter()
                        .any(|part| tensor.contains(part));
                assert!(found || (lie == "missing" && optional), "{what}: it was loaded");
            }
        }
    }
}

/// Heads that are not whole blocks cannot be in packed caches: the error names the key, before a tensor is read.
#[test]
fn packed_caches_of_heads_that_are_no_blocks_are_errors_that_name_a_key() {
    let model = TempModel::new("qwen3", "no-blocks");
    let file = Gguf::open(model.path()).unwrap();
    let session = Session::new(Device::Cpu).unwrap();
    for end in ["key_length", "value_length"] {
        let entry =
            |key: &str, value: &Value| Some(if key.ends_with(end) { Value::U32(80) } else { value.clone() });
        let path = model.0.join("heads.gguf");
        std::fs::write(&path, changed(&file, entry, |_, kind, shape| Some((kind, shape.to_vec())))).unwrap();
        let changed = LanguageModel::load(&path).unwrap();
        let error = changed.engine(&session, &EngineOptions::default().cache(CacheType::Q8_0)).err().unwrap();
        let message = error.to_string();
        assert!(message.contains(&format!("qwen3.attention.{end}")), "{message}");
        assert!(message.contains("q8_0") && message.contains("80"), "{message}");
    }
}
