//! Hugging Face folders: the models of `common` written as such, which must compute what their GGUF files do; and folders that
//! lie.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test says what it expects")]

mod common;

use std::path::Path;

use common::{CONTEXT, HIDDEN, Reference, TempModel};
use olivine::prelude::*;
use olivine_gguf::Gguf;
use olivine_lm::LanguageModel;
use serde_json::{Value, json};

/// A tensor's names in a folder: one, or one for each expert.
fn names(architecture: &str, gguf: &str, experts: usize) -> Vec<String> {
    let gemma = architecture.starts_with("gemma");
    let (stem, suffix) = gguf.rsplit_once('.').unwrap();
    let part = match stem {
        "token_embd" => return vec![format!("model.embed_tokens.{suffix}")],
        "output_norm" => return vec![format!("model.norm.{suffix}")],
        "output" => return vec![format!("lm_head.{suffix}")],
        _ => stem.strip_prefix("blk.").unwrap(),
    };
    let (layer, part) = part.split_once('.').unwrap();
    let part = match part {
        "attn_norm" => "input_layernorm",
        "attn_q" => "self_attn.q_proj",
        "attn_k" => "self_attn.k_proj",
        "attn_v" => "self_attn.v_proj",
        "attn_qkv" => "self_attn.qkv_proj",
        "attn_q_norm" => "self_attn.q_norm",
        "attn_k_norm" => "self_attn.k_norm",
        "attn_output" => "self_attn.o_proj",
        "ffn_norm" if gemma => "pre_feedforward_layernorm",
        "ffn_norm" => "post_attention_layernorm",
        "post_attention_norm" => "post_attention_layernorm",
        "post_ffw_norm" => "post_feedforward_layernorm",
        "ffn_gate" => "mlp.gate_proj",
        "ffn_up" if architecture == "phi3" => "mlp.gate_up_proj",
        "ffn_up" => "mlp.up_proj",
        "ffn_down" => "mlp.down_proj",
        "ffn_gate_inp" => "mlp.gate",
        other => {
            let part = other.strip_prefix("ffn_").unwrap().strip_suffix("_exps").unwrap();
            let one = |e: usize| format!("model.layers.{layer}.mlp.experts.{e}.{part}_proj.{suffix}");
            return (0..experts).map(one).collect();
        }
    };
    vec![format!("model.layers.{layer}.{part}.{suffix}")]
}

/// Rows of a head as Hugging Face orders them: GGUF's llama has pairs side by side.
fn unpaired(x: &[f32], dim: usize, columns: usize) -> Vec<f32> {
    let row = |i: usize| {
        let (head, at) = (i / dim, i % dim);
        head * dim + if at < dim / 2 { 2 * at } else { 2 * (at - dim / 2) + 1 }
    };
    (0..x.len() / columns).flat_map(|i| x[row(i) * columns..][..columns].to_vec()).collect()
}

fn write_folder(architecture: &str, file: &Gguf, folder: &Path, shards: usize) {
    let number = |key: &str| file.metadata().integer(&format!("{architecture}.{key}")).unwrap();
    let (heads, dim) = (number("attention.head_count"), number("attention.key_length"));
    let model_type = match architecture {
        "qwen3moe" => "qwen3_moe",
        "gemma3" => "gemma3_text",
        other => other,
    };
    let mut config = json!({
        "model_type": model_type, "hidden_size": HIDDEN, "num_attention_heads": heads, "head_dim": dim,
        "num_key_value_heads": number("attention.head_count_kv"), "num_hidden_layers": number("block_count"),
        "max_position_embeddings": CONTEXT, "rms_norm_eps": 1e-5f32 as f64, "rope_theta": 50_000.0,
    });
    match architecture {
        "qwen3moe" => {
            config["num_experts"] = number("expert_count").into();
            config["num_experts_per_tok"] = number("expert_used_count").into();
            config["norm_topk_prob"] = true.into();
        }
        "gemma2" => {
            config["attn_logit_softcapping"] = 5.0.into();
            config["final_logit_softcapping"] = 3.0.into();
            config["query_pre_attn_scalar"] = dim.into();
            config["sliding_window"] = 5.into();
        }
        "gemma3" => {
            config["query_pre_attn_scalar"] = dim.into();
            config["sliding_window"] = 5.into();
            config["rope_local_base_freq"] = 10_000.0.into();
            config["rope_scaling"] = json!({ "rope_type": "linear", "factor": 8.0 });
        }
        "phi3" => config["sliding_window"] = 5.into(),
        _ => {}
    }
    std::fs::write(folder.join("config.json"), config.to_string()).unwrap();
    let mut parts: Vec<Vec<(String, Tensor)>> = vec![Vec::new(); shards];
    for (i, tensor) in file.tensors().iter().enumerate() {
        let mut x = file.decode(tensor).unwrap();
        let paired = tensor.name.contains("attn_q.weight") || tensor.name.contains("attn_k.weight");
        if architecture == "llama" && paired {
            x = unpaired(&x, dim as usize, HIDDEN);
        }
        if architecture.starts_with("gemma") && tensor.name.ends_with("norm.weight") {
            x.iter_mut().for_each(|x| *x -= 1.0);
        }
        let experts = if tensor.shape.len() == 3 { tensor.shape[0] } else { 1 };
        let shape = if experts > 1 { &tensor.shape[1..] } else { &tensor.shape[..] };
        let size = x.len() / experts;
        for (e, name) in names(architecture, &tensor.name, experts).into_iter().enumerate() {
            let one = Tensor::new(Shape::new(shape).unwrap(), x[e * size..][..size].to_vec()).unwrap();
            parts[i % shards].push((name, one));
        }
    }
    if shards == 1 {
        return olivine_safetensors::save(folder.join("model.safetensors"), &parts[0]).unwrap();
    }
    let mut map = serde_json::Map::new();
    for (i, part) in parts.iter().enumerate() {
        let name = format!("model-{i}.safetensors");
        olivine_safetensors::save(folder.join(&name), part).unwrap();
        map.extend(part.iter().map(|(tensor, _)| (tensor.clone(), Value::from(name.clone()))));
    }
    let index = json!({ "weight_map": map });
    std::fs::write(folder.join("model.safetensors.index.json"), index.to_string()).unwrap();
}

fn folder_of(architecture: &str, test: &str, shards: usize) -> (TempModel, std::path::PathBuf) {
    let file = TempModel::new(architecture, test);
    let folder = file.0.join("folder");
    std::fs::create_dir_all(&folder).unwrap();
    write_folder(architecture, &Gguf::open(file.path()).unwrap(), &folder, shards);
    (file, folder)
}

#[test]
fn folders_compute_what_their_definitions_say() {
    let session = Session::new(Device::Cpu).unwrap();
    let tokens: Vec<i64> = (0..13).map(|i| (i * 11 + 3) % 160).collect();
    for (i, architecture) in
        ["llama", "qwen2", "qwen3", "qwen3moe", "phi3", "gemma2", "gemma3"].into_iter().enumerate()
    {
        let (file, folder) = folder_of(architecture, "folder", 1 + i % 3);
        let model = Model::load(&folder).unwrap();
        let input = Tensor::new([1, tokens.len()], tokens.clone()).unwrap();
        let out = session.compile(&model).unwrap().run([("tokens", &input)]).unwrap();
        let got = out["logits"].as_slice::<f32>().unwrap();
        let want: Vec<f64> = Reference::new(file.path()).logits(&tokens).concat();
        let scale = want.iter().map(|x| x * x).sum::<f64>().sqrt();
        let error = got.iter().zip(&want).map(|(g, w)| (f64::from(*g) - w).powi(2)).sum::<f64>().sqrt();
        assert!(error < 1e-4 * scale, "{architecture}: relative error {:e}", error / scale);
        let model = LanguageModel::load(&folder).unwrap();
        assert_eq!(model.context(), CONTEXT);
        assert_eq!(model.scorer(&session).unwrap().logprobs(&tokens).unwrap().len(), tokens.len() - 1);
    }
}

#[test]
fn folders_that_lie_are_errors_that_say_where() {
    let (_file, folder) = folder_of("qwen3", "lies", 1);
    let good = std::fs::read_to_string(folder.join("config.json")).unwrap();
    let refused = |change: &dyn Fn(&mut Value)| {
        let mut config: Value = serde_json::from_str(&good).unwrap();
        change(&mut config);
        std::fs::write(folder.join("config.json"), config.to_string()).unwrap();
        Model::load(&folder).map(drop).unwrap_err().to_string()
    };
    for (change, named) in [
        (("model_type", json!("mamba")), "mamba"),
        (("hidden_size", json!(0)), "hidden_size"),
        (("hidden_size", json!(64)), "token_embd.weight"),
        (("num_hidden_layers", json!(4)), "blk.3.attn_norm.weight"),
        (("num_attention_heads", json!(8)), "blk.0.attn_q.weight"),
        (("num_key_value_heads", json!(3)), "num_key_value_heads"),
        (("head_dim", json!(63)), "head_dim"),
        (("rope_scaling", json!({ "rope_type": "odd" })), "odd"),
        (("max_position_embeddings", Value::Null), "max_position_embeddings"),
    ] {
        let found = refused(&|config| config[change.0] = change.1.clone());
        assert!(found.contains(named), "{}: {found}", change.0);
    }
    std::fs::write(folder.join("config.json"), &good).unwrap();
    std::fs::write(folder.join("model.safetensors.index.json"), r#"{"weight_map":{"a":"../x.safetensors"}}"#)
        .unwrap();
    let found = Model::load(&folder).map(drop).unwrap_err().to_string();
    assert!(found.contains("../x.safetensors"), "{found}");
}

#[test]
fn gguf_files_that_lie_are_errors_that_say_where() {
    use olivine_gguf::{TensorKind, Value, Writer};
    let refused = |change: &dyn Fn(&mut Writer)| {
        let mut writer = Writer::new();
        change(&mut writer);
        Model::from_gguf(writer.to_bytes().unwrap()).map(drop).unwrap_err().to_string()
    };
    let sizes = |w: &mut Writer, architecture: &str, more: &[(&str, u32)]| {
        w.metadata("general.architecture", Value::from(architecture)).unwrap();
        let all = [("block_count", 1u32), ("embedding_length", 64), ("attention.head_count", 2)];
        for (name, value) in all.iter().chain(more) {
            w.metadata(format!("{architecture}.{name}"), Value::U32(*value)).unwrap();
        }
    };
    let used = refused(&|w| sizes(w, "qwen3moe", &[("expert_count", 4), ("expert_used_count", 5)]));
    assert!(used.contains("expert_used_count"), "{used}");
    let none = refused(&|w| sizes(w, "qwen3moe", &[("expert_count", 4)]));
    assert!(none.contains("qwen3moe.expert_used_count"), "{none}");
    let narrow = refused(&|w| {
        sizes(w, "gemma2", &[]);
        w.tensor("token_embd.weight", TensorKind::F32, &[7, 32], vec![0; 7 * 32 * 4]).unwrap();
    });
    assert!(narrow.contains("token_embd.weight") && narrow.contains("64"), "{narrow}");
    let kind = refused(&|w| {
        sizes(w, "llama", &[]);
        w.metadata("llama.rope.scaling.type", Value::from("odd")).unwrap();
    });
    assert!(kind.contains("llama.rope.scaling.type"), "{kind}");
}
