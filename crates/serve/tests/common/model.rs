//! Files of models with random weights.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

use olivine_gguf::{TensorKind, Value, Writer};
use olivine_ir::Tensor;

const HIDDEN: usize = 32;
const FEED: usize = 48;
pub(crate) const CONTEXT: usize = 4096;
/// Bytes, control tokens, and one that only the model has.
pub(crate) const VOCABULARY: usize = 260;
const CONTROL: [&str; 3] = ["<|im_start|>", "<|im_end|>", "<|endoftext|>"];

fn numbers(count: usize, seed: usize, scale: f32) -> Vec<f32> {
    let mut state = seed as u64 * 0x9e37_79b9 + 12345;
    let mut uniform = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1 << 24) as f32
    };
    (0..count).map(|_| scale * ((0..4).map(|_| uniform()).sum::<f32>() - 2.0)).collect()
}

/// Where files go; only tests in `tests` have a folder under `target`.
fn folder() -> PathBuf {
    option_env!("CARGO_TARGET_TMPDIR").map_or_else(std::env::temp_dir, PathBuf::from)
}

/// The characters that GPT-2 writes for bytes.
fn byte_tokens() -> Vec<String> {
    let plain =
        |byte: u32| (33..=126).contains(&byte) || (161..=172).contains(&byte) || (174..=255).contains(&byte);
    let mut others = 256..;
    let code = |byte: u32| if plain(byte) { byte } else { others.next().unwrap() };
    (0..256).map(code).map(|code| char::from_u32(code).unwrap().to_string()).collect()
}

/// A language model of one layer whose tokens are bytes, with a chat template that refuses and loops on demand.
fn writer() -> Writer {
    let mut w = Writer::new();
    let mut put = |key: &str, value: Value| w.metadata(key, value).unwrap();
    put("general.architecture", Value::from("llama"));
    for (key, value) in [
        ("block_count", 1),
        ("embedding_length", HIDDEN),
        ("feed_forward_length", FEED),
        ("attention.head_count", 2),
        ("attention.head_count_kv", 1),
        ("context_length", CONTEXT),
    ] {
        put(&format!("llama.{key}"), Value::U32(value as u32));
    }
    put("llama.attention.layer_norm_rms_epsilon", Value::F32(1e-5));
    put("llama.rope.freq_base", Value::F32(10_000.0));
    put("tokenizer.ggml.model", Value::from("gpt2"));
    put("tokenizer.ggml.pre", Value::from("gpt-2"));
    let tokens = byte_tokens().into_iter().chain(CONTROL.map(str::to_string)).collect::<Vec<_>>();
    let kinds = (0..tokens.len()).map(|id| if id < 256 { 1 } else { 3 }).collect::<Vec<i32>>();
    put("tokenizer.ggml.tokens", Value::Strings(tokens));
    put("tokenizer.ggml.token_type", Value::I32s(kinds));
    put("tokenizer.ggml.merges", Value::Strings(Vec::new()));
    put("tokenizer.ggml.bos_token_id", Value::U32(256));
    put("tokenizer.ggml.eos_token_id", Value::U32(257));
    put("tokenizer.ggml.add_bos_token", Value::Bool(false));
    let template = "{% for m in messages %}{% if m.content == 'refuse' %}{{ raise_exception('no such talk') }}{% endif %}\
        {% if m.content == 'loop' %}{% for a in range(9999) %}{% for b in range(9999) %}{{ a }}{% endfor %}{% endfor %}{% endif %}\
        {{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}{% endfor %}{{ '<|im_start|>assistant\\n' }}";
    put("tokenizer.chat_template", Value::from(template));
    let mut seed = 0;
    let mut tensor = |name: &str, shape: &[usize], scale: f32| {
        seed += 1;
        let bytes =
            numbers(shape.iter().product(), seed, scale).iter().flat_map(|x| x.to_le_bytes()).collect();
        w.tensor(name, TensorKind::F32, shape, bytes).unwrap();
    };
    tensor("token_embd.weight", &[VOCABULARY, HIDDEN], 1.0);
    tensor("blk.0.attn_norm.weight", &[HIDDEN], 1.0);
    tensor("blk.0.attn_q.weight", &[HIDDEN, HIDDEN], 0.3);
    tensor("blk.0.attn_k.weight", &[HIDDEN / 2, HIDDEN], 0.3);
    tensor("blk.0.attn_v.weight", &[HIDDEN / 2, HIDDEN], 0.3);
    tensor("blk.0.attn_output.weight", &[HIDDEN, HIDDEN], 0.3);
    tensor("blk.0.ffn_norm.weight", &[HIDDEN], 1.0);
    tensor("blk.0.ffn_gate.weight", &[FEED, HIDDEN], 0.3);
    tensor("blk.0.ffn_up.weight", &[FEED, HIDDEN], 0.3);
    tensor("blk.0.ffn_down.weight", &[HIDDEN, FEED], 0.3);
    tensor("output_norm.weight", &[HIDDEN], 1.0);
    w
}

/// The model's file, which is written once for a process.
pub(crate) fn path() -> &'static Path {
    static PATH: OnceLock<PathBuf> = OnceLock::new();
    PATH.get_or_init(|| {
        let folder = folder().join(format!("olivine-serve-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let path = folder.join("model.gguf");
        writer().save(&path).unwrap();
        path
    })
}

/// A folder with a BERT encoder of one layer, by how its states are pooled.
pub(crate) fn encoder(pooling: &str) -> PathBuf {
    // Each call has a folder of its own: another test may be reading.
    static CALLS: AtomicUsize = AtomicUsize::new(0);
    let call = CALLS.fetch_add(1, Ordering::Relaxed);
    let folder = folder().join(format!("olivine-serve-bert-{pooling}-{}-{call}", std::process::id()));
    std::fs::create_dir_all(folder.join("1_Pooling")).unwrap();
    let put = |name: &str, text: &str| std::fs::write(folder.join(name), text).unwrap();
    put(
        "config.json",
        r#"{"model_type": "bert", "hidden_act": "gelu", "num_hidden_layers": 1, "hidden_size": 16, "num_attention_heads": 2,
            "layer_norm_eps": 1e-12, "max_position_embeddings": 12, "vocab_size": 30}"#,
    );
    put(
        "1_Pooling/config.json",
        &format!(r#"{{"word_embedding_dimension": 16, "pooling_mode_{pooling}": true}}"#),
    );
    let letters: Vec<String> = ('a'..='z').enumerate().map(|(i, c)| format!("\"{c}\": {}", i + 4)).collect();
    put(
        "tokenizer.json",
        &format!(
            r#"{{"added_tokens": [{{"id": 1, "content": "[CLS]", "special": true}}, {{"id": 2, "content": "[SEP]", "special": true}}],
            "pre_tokenizer": {{"type": "Whitespace"}},
            "post_processor": {{"type": "TemplateProcessing", "single": [{{"SpecialToken": {{"id": "[CLS]", "type_id": 0}}}},
                {{"Sequence": {{"id": "A", "type_id": 0}}}}, {{"SpecialToken": {{"id": "[SEP]", "type_id": 0}}}}], "pair": [],
                "special_tokens": {{"[CLS]": {{"id": "[CLS]", "ids": [1], "tokens": ["[CLS]"]}}, "[SEP]": {{"id": "[SEP]", "ids": [2], "tokens": ["[SEP]"]}}}}}},
            "model": {{"type": "WordLevel", "unk_token": "[UNK]", "vocab": {{"[PAD]": 0, "[CLS]": 1, "[SEP]": 2, "[UNK]": 3, {}}}}}}}"#,
            letters.join(", ")
        ),
    );
    let mut tensors: Vec<(String, Tensor)> = Vec::new();
    let mut add = |name: &str, shape: &[usize]| {
        let x = numbers(shape.iter().product(), tensors.len() + 1, 0.5);
        let tensor = match shape {
            [rows, columns] => Tensor::new([*rows, *columns], x).unwrap(),
            _ => Tensor::new([x.len()], x).unwrap(),
        };
        tensors.push((name.to_string(), tensor));
    };
    add("embeddings.word_embeddings.weight", &[30, 16]);
    add("embeddings.position_embeddings.weight", &[12, 16]);
    add("embeddings.token_type_embeddings.weight", &[2, 16]);
    let linears = [
        ("attention.self.query", 16, 16),
        ("attention.self.key", 16, 16),
        ("attention.self.value", 16, 16),
        ("attention.output.dense", 16, 16),
        ("intermediate.dense", 32, 16),
        ("output.dense", 16, 32),
    ];
    for (part, rows, columns) in linears {
        add(&format!("encoder.layer.0.{part}.weight"), &[rows, columns]);
        add(&format!("encoder.layer.0.{part}.bias"), &[rows]);
    }
    for part in [
        "embeddings.LayerNorm",
        "encoder.layer.0.attention.output.LayerNorm",
        "encoder.layer.0.output.LayerNorm",
    ] {
        add(&format!("{part}.weight"), &[16]);
        add(&format!("{part}.bias"), &[16]);
    }
    olivine_safetensors::save(folder.join("model.safetensors"), &tensors).unwrap();
    folder
}

/// The encoder of a folder as a GGUF file, by the names of llama.cpp.
pub(crate) fn encoder_gguf(folder: &Path, pooling: u32) -> PathBuf {
    let mut w = Writer::new();
    let mut put = |key: &str, value: Value| w.metadata(key, value).unwrap();
    put("general.architecture", Value::from("bert"));
    for (key, value) in [
        ("block_count", 1),
        ("embedding_length", 16),
        ("attention.head_count", 2),
        ("context_length", 12),
        ("pooling_type", pooling),
    ] {
        put(&format!("bert.{key}"), Value::U32(value));
    }
    put("bert.attention.layer_norm_epsilon", Value::F32(1e-12));
    put("tokenizer.ggml.model", Value::from("bert"));
    let special = ["[PAD]", "[CLS]", "[SEP]", "[UNK]"].map(str::to_string);
    put(
        "tokenizer.ggml.tokens",
        Value::Strings(special.into_iter().chain(('a'..='z').map(|c| format!("▁{c}"))).collect()),
    );
    put("tokenizer.ggml.token_type", Value::I32s((0..30).map(|id| if id < 4 { 3 } else { 1 }).collect()));
    for (key, id) in
        [("bos", 1), ("cls", 1), ("seperator", 2), ("eos", 2), ("unknown", 3), ("padding", 0), ("mask", 3)]
    {
        put(&format!("tokenizer.ggml.{key}_token_id"), Value::U32(id));
    }
    let weights = olivine_safetensors::Weights::load(folder.join("model.safetensors")).unwrap();
    let names = [
        ("embeddings.word_embeddings", "token_embd"),
        ("embeddings.position_embeddings", "position_embd"),
        ("embeddings.token_type_embeddings", "token_types"),
        ("embeddings.LayerNorm", "token_embd_norm"),
        ("encoder.layer.0.attention.self.query", "blk.0.attn_q"),
        ("encoder.layer.0.attention.self.key", "blk.0.attn_k"),
        ("encoder.layer.0.attention.self.value", "blk.0.attn_v"),
        ("encoder.layer.0.attention.output.dense", "blk.0.attn_output"),
        ("encoder.layer.0.attention.output.LayerNorm", "blk.0.attn_output_norm"),
        ("encoder.layer.0.intermediate.dense", "blk.0.ffn_up"),
        ("encoder.layer.0.output.dense", "blk.0.ffn_down"),
        ("encoder.layer.0.output.LayerNorm", "blk.0.layer_output_norm"),
    ];
    for name in weights.names() {
        let (path, kind) = name.rsplit_once('.').unwrap();
        let there = names.iter().find(|(known, _)| *known == path).unwrap().1;
        let tensor = weights.tensor(name).unwrap();
        let bytes = tensor.as_slice::<f32>().unwrap().iter().flat_map(|x| x.to_le_bytes()).collect();
        w.tensor(format!("{there}.{kind}"), TensorKind::F32, tensor.shape(), bytes).unwrap();
    }
    let path = folder.join("encoder.gguf");
    w.save(&path).unwrap();
    path
}
