//! Small models with random weights in GGUF files, and what they compute by definition, in f64.
#![allow(
    dead_code,
    clippy::unwrap_used,
    clippy::panic,
    reason = "shared by tests, which say what they expect"
)]

pub(crate) mod recorded;

use std::path::PathBuf;

use olivine_gguf::{Gguf, TensorKind, Value, Writer};
use olivine_ir::BlockFormat;

pub(crate) const HIDDEN: usize = 128;
pub(crate) const VOCABULARY: usize = 160;
const HEADS: usize = 4;
const KV_HEADS: usize = 2;
const FEED: usize = 192;
const EXPERTS: usize = 6;
const USED: usize = 2;
const WINDOW: usize = 5;
const LAYERS: usize = 7;
pub(crate) const CONTEXT: usize = 700;

pub(crate) const ARCHITECTURES: [&str; 8] =
    ["llama", "qwen2", "qwen3", "qwen3moe", "phi3", "gemma2", "gemma3", "gpt-oss"];

/// How many layers a model has: as many as show where windows are.
fn layers(architecture: &str) -> usize {
    if architecture == "gemma3" { LAYERS } else { 3 }
}

/// Head dims that differ from hidden / heads where the architecture allows it.
fn dim(architecture: &str) -> usize {
    if matches!(architecture, "gemma2" | "gemma3" | "qwen3" | "gpt-oss") { 64 } else { HIDDEN / HEADS }
}

fn numbers(count: usize, seed: usize, scale: f32) -> Vec<f32> {
    let mut state = seed as u64 * 0x9e37_79b9 + 12345;
    let mut uniform = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1 << 24) as f32
    };
    (0..count).map(|_| scale * ((0..4).map(|_| uniform()).sum::<f32>() - 2.0)).collect()
}

fn bytes(kind: TensorKind, x: &[f32]) -> Vec<u8> {
    match kind {
        TensorKind::F32 => x.iter().flat_map(|x| x.to_le_bytes()).collect(),
        TensorKind::Blocks(format) => olivine_quant::encode(format, x, None).unwrap(),
        other => panic!("no {other} here"),
    }
}

/// A model of an architecture in a file.
pub(crate) fn writer(architecture: &str) -> Writer {
    let mut w = Writer::new();
    let key = |key: &str| format!("{architecture}.{key}");
    w.metadata("general.architecture", Value::from(architecture)).unwrap();
    let moe = matches!(architecture, "qwen3moe" | "gpt-oss");
    let dim = dim(architecture);
    let mut sizes = vec![
        ("block_count", layers(architecture)),
        ("embedding_length", HIDDEN),
        ("feed_forward_length", FEED),
        ("attention.head_count", HEADS),
        ("attention.head_count_kv", KV_HEADS),
        ("attention.key_length", dim),
        ("attention.value_length", dim),
        ("context_length", CONTEXT),
    ];
    if moe {
        sizes.extend([
            ("expert_count", EXPERTS),
            ("expert_used_count", USED),
            ("expert_feed_forward_length", 96),
        ]);
    }
    if matches!(architecture, "gemma2" | "gemma3" | "gpt-oss" | "phi3") {
        sizes.push(("attention.sliding_window", WINDOW));
    }
    let mut floats = vec![("attention.layer_norm_rms_epsilon", 1e-5f32), ("rope.freq_base", 50_000.0)];
    if architecture == "gemma2" {
        floats.extend([("attn_logit_softcapping", 5.0), ("final_logit_softcapping", 3.0)]);
    }
    if architecture == "gpt-oss" {
        sizes.push(("rope.scaling.original_context_length", 64));
        floats.push(("rope.scaling.factor", 8.0));
        w.metadata(key("rope.scaling.type"), Value::from("yarn")).unwrap();
    }
    if architecture == "gemma3" {
        floats.push(("rope.scaling.factor", 8.0));
        w.metadata(key("rope.scaling.type"), Value::from("linear")).unwrap();
    }
    for (name, value) in sizes {
        w.metadata(key(name), Value::U32(value as u32)).unwrap();
    }
    for (name, value) in floats {
        w.metadata(key(name), Value::F32(value)).unwrap();
    }
    let mut seed = 0;
    let mut put = |name: &str, kind: TensorKind, shape: &[usize], scale: f32| {
        seed += 1;
        let x = numbers(shape.iter().product(), seed, scale);
        w.tensor(name, kind, shape, bytes(kind, &x)).unwrap();
    };
    let (f32s, packed) = (TensorKind::F32, TensorKind::Blocks(BlockFormat::Q8_0));
    put("token_embd.weight", packed, &[VOCABULARY, HIDDEN], 1.0);
    let (q, kv) = (HEADS * dim, KV_HEADS * dim);
    for layer in 0..layers(architecture) {
        let name = |part: &str| format!("blk.{layer}.{part}");
        put(&name("attn_norm.weight"), f32s, &[HIDDEN], 1.0);
        match architecture {
            "phi3" => put(&name("attn_qkv.weight"), packed, &[q + 2 * kv, HIDDEN], 0.2),
            _ => {
                put(&name("attn_q.weight"), packed, &[q, HIDDEN], 0.2);
                put(&name("attn_k.weight"), packed, &[kv, HIDDEN], 0.2);
                put(&name("attn_v.weight"), packed, &[kv, HIDDEN], 0.2);
            }
        }
        put(&name("attn_output.weight"), packed, &[HIDDEN, q], 0.2);
        if matches!(architecture, "qwen2" | "gpt-oss") {
            put(&name("attn_q.bias"), f32s, &[q], 0.5);
            put(&name("attn_k.bias"), f32s, &[kv], 0.5);
            put(&name("attn_v.bias"), f32s, &[kv], 0.5);
        }
        if matches!(architecture, "qwen3" | "qwen3moe" | "gemma3") {
            put(&name("attn_q_norm.weight"), f32s, &[dim], 1.0);
            put(&name("attn_k_norm.weight"), f32s, &[dim], 1.0);
        }
        if architecture == "gpt-oss" {
            put(&name("attn_output.bias"), f32s, &[HIDDEN], 0.5);
            put(&name("attn_sinks.weight"), f32s, &[HEADS], 2.0);
        }
        put(&name(ffn_norm(architecture)), f32s, &[HIDDEN], 1.0);
        if matches!(architecture, "gemma2" | "gemma3") {
            put(&name("post_attention_norm.weight"), f32s, &[HIDDEN], 0.5);
            put(&name("post_ffw_norm.weight"), f32s, &[HIDDEN], 0.5);
        }
        if moe {
            let experts =
                if architecture == "gpt-oss" { TensorKind::Blocks(BlockFormat::MXFP4) } else { packed };
            put(&name("ffn_gate_inp.weight"), f32s, &[EXPERTS, HIDDEN], 0.3);
            put(&name("ffn_gate_exps.weight"), experts, &[EXPERTS, 96, HIDDEN], 0.2);
            put(&name("ffn_up_exps.weight"), experts, &[EXPERTS, 96, HIDDEN], 0.2);
            put(&name("ffn_down_exps.weight"), experts, &[EXPERTS, HIDDEN, 96], 0.2);
            if architecture == "gpt-oss" {
                put(&name("ffn_gate_inp.bias"), f32s, &[EXPERTS], 0.5);
                put(&name("ffn_gate_exps.bias"), f32s, &[EXPERTS, 96], 0.5);
                put(&name("ffn_up_exps.bias"), f32s, &[EXPERTS, 96], 0.5);
                put(&name("ffn_down_exps.bias"), f32s, &[EXPERTS, HIDDEN], 0.5);
            }
        } else if architecture == "phi3" {
            put(&name("ffn_up.weight"), packed, &[2 * FEED, HIDDEN], 0.2);
            put(&name("ffn_down.weight"), packed, &[HIDDEN, FEED], 0.2);
        } else {
            put(&name("ffn_gate.weight"), packed, &[FEED, HIDDEN], 0.2);
            put(&name("ffn_up.weight"), packed, &[FEED, HIDDEN], 0.2);
            put(&name("ffn_down.weight"), packed, &[HIDDEN, FEED], 0.2);
        }
    }
    put("output_norm.weight", f32s, &[HIDDEN], 1.0);
    if architecture != "llama" {
        put("output.weight", packed, &[VOCABULARY, HIDDEN], 0.2);
    }
    w
}

fn ffn_norm(architecture: &str) -> &'static str {
    if architecture == "gpt-oss" { "post_attention_norm.weight" } else { "ffn_norm.weight" }
}

/// A file in a folder of its own, removed in the end.
pub(crate) struct TempModel(pub(crate) PathBuf);

impl TempModel {
    pub(crate) fn new(architecture: &str, test: &str) -> Self {
        let folder =
            std::env::temp_dir().join(format!("olivine-lm-{}-{test}-{architecture}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        writer(architecture).save(folder.join("model.gguf")).unwrap();
        TempModel(folder)
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.0.join("model.gguf")
    }
}

impl Drop for TempModel {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// The model by definition.
pub(crate) struct Reference {
    file: Gguf,
    architecture: String,
    /// The blocks that keys and values are rounded to, if they are.
    cache: Option<BlockFormat>,
    weights: std::cell::RefCell<std::collections::HashMap<String, std::rc::Rc<Vec<f64>>>>,
}

impl Reference {
    pub(crate) fn new(path: PathBuf) -> Self {
        let file = Gguf::open(path).unwrap();
        let architecture = file.metadata().string("general.architecture").unwrap().to_string();
        Reference { file, architecture, cache: None, weights: Default::default() }
    }

    /// The same with keys and values that were packed as blocks.
    pub(crate) fn with_cache(self, cache: Option<BlockFormat>) -> Self {
        Reference { cache, ..self }
    }

    /// A row of keys or values as a cache gives it back.
    fn cached(&self, row: Vec<f64>) -> Vec<f64> {
        let Some(format) = self.cache else { return row };
        let row: Vec<f32> = row.iter().map(|x| *x as f32).collect();
        let mut back = vec![0.0; row.len()];
        olivine_quant::decode(format, &olivine_quant::encode(format, &row, None).unwrap(), &mut back)
            .unwrap();
        back.into_iter().map(f64::from).collect()
    }

    fn weight(&self, name: &str) -> Option<std::rc::Rc<Vec<f64>>> {
        let tensor = self.file.tensor(name)?;
        let mut weights = self.weights.borrow_mut();
        let decoded =
            || std::rc::Rc::new(self.file.decode(tensor).unwrap().into_iter().map(f64::from).collect());
        Some(weights.entry(name.to_string()).or_insert_with(decoded).clone())
    }

    fn linear(&self, x: &[f64], name: &str) -> Vec<f64> {
        self.expert(x, name, 0, 1)
    }

    /// Row `which` of `count` matrices.
    fn expert(&self, x: &[f64], name: &str, which: usize, count: usize) -> Vec<f64> {
        let w = self.weight(&format!("{name}.weight")).unwrap();
        let size = w.len() / count;
        let rows = w[which * size..][..size].chunks(x.len());
        let mut y: Vec<f64> = rows.map(|row| row.iter().zip(x).map(|(w, x)| w * x).sum()).collect();
        if let Some(bias) = self.weight(&format!("{name}.bias")) {
            let own = &bias[which * y.len()..][..y.len()];
            y.iter_mut().zip(own).for_each(|(y, b)| *y += b);
        }
        y
    }

    fn norm(&self, x: Vec<f64>, name: &str) -> Vec<f64> {
        let Some(gamma) = self.weight(&format!("{name}.weight")) else { return x };
        let one = |x: &[f64]| {
            let scale = 1.0 / (x.iter().map(|x| x * x).sum::<f64>() / x.len() as f64 + 1e-5f32 as f64).sqrt();
            x.iter().zip(gamma.iter()).map(|(x, g)| x * scale * g).collect::<Vec<_>>()
        };
        x.chunks(gamma.len()).flat_map(one).collect()
    }

    /// Angles per position, and a factor on cos and sin.
    fn frequencies(&self, local: bool) -> (Vec<f64>, f64) {
        let dim = dim(&self.architecture) as f64;
        let base: f64 = if local && self.architecture == "gemma3" { 10_000.0 } else { 50_000.0 };
        let plain = |i: usize| base.powf(-2.0 * i as f64 / dim);
        let pairs = 0..dim as usize / 2;
        match self.architecture.as_str() {
            "gemma3" if !local => (pairs.map(|i| plain(i) / 8.0).collect(), 1.0),
            "gpt-oss" => {
                // YaRN: dimensions that turn more than 32 times in 64 positions keep their frequency, those that turn
                // less than once are divided by the factor.
                let at = |turns: f64| dim * (64.0 / (turns * std::f64::consts::TAU)).ln() / (2.0 * base.ln());
                let (low, high) = (at(32.0).floor().max(0.0), at(1.0).ceil().min(dim - 1.0));
                let ramp = |i: usize| ((i as f64 - low) / (high - low).max(0.001)).clamp(0.0, 1.0);
                let mixed = |i: usize| plain(i) * (1.0 - ramp(i)) + plain(i) / 8.0 * ramp(i);
                (pairs.map(mixed).collect(), 0.1 * 8f64.ln() + 1.0)
            }
            _ => (pairs.map(plain).collect(), 1.0),
        }
    }

    fn rotated(&self, x: &[f64], position: usize, local: bool) -> Vec<f64> {
        let dim = dim(&self.architecture);
        let (frequencies, amplitude) = self.frequencies(local);
        let mut out = x.to_vec();
        for head in out.chunks_mut(dim) {
            for (i, frequency) in frequencies.iter().enumerate() {
                let (sin, cos) = (position as f64 * frequency).sin_cos();
                let (a, b) = if self.architecture == "llama" { (2 * i, 2 * i + 1) } else { (i, i + dim / 2) };
                let (x, y) = (head[a], head[b]);
                (head[a], head[b]) = ((x * cos - y * sin) * amplitude, (x * sin + y * cos) * amplitude);
            }
        }
        out
    }

    fn is_local(&self, layer: usize) -> bool {
        match self.architecture.as_str() {
            "gemma2" | "gpt-oss" => layer.is_multiple_of(2),
            "gemma3" => layer % 6 != 5,
            "phi3" => true,
            _ => false,
        }
    }

    fn gated(&self, gate: &[f64], up: &[f64]) -> Vec<f64> {
        let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
        let one = |(g, u): (&f64, &f64)| match self.architecture.as_str() {
            "gemma2" | "gemma3" => {
                let inner = (2.0 / std::f64::consts::PI).sqrt() * (g + 0.044715 * g * g * g);
                0.5 * g * (1.0 + inner.tanh()) * u
            }
            "gpt-oss" => {
                let (g, u) = (g.min(7.0), u.clamp(-7.0, 7.0));
                g * sigmoid(1.702 * g) * (u + 1.0)
            }
            _ => g * sigmoid(*g) * u,
        };
        gate.iter().zip(up).map(one).collect()
    }

    fn feed_forward(&self, h: &[f64], layer: usize) -> Vec<f64> {
        let name = |part: &str| format!("blk.{layer}.ffn_{part}");
        if self.file.tensor(&format!("{}.weight", name("gate_inp"))).is_some() {
            let scores = self.linear(h, &name("gate_inp"));
            let mut order: Vec<usize> = (0..scores.len()).collect();
            order.sort_by(|a, b| scores[*b].total_cmp(&scores[*a]));
            order.truncate(USED);
            let sum: f64 = order.iter().map(|e| scores[*e].exp()).sum();
            let mut out = vec![0.0; HIDDEN];
            for e in order {
                let gate = self.expert(h, &name("gate_exps"), e, EXPERTS);
                let up = self.expert(h, &name("up_exps"), e, EXPERTS);
                let y = self.expert(&self.gated(&gate, &up), &name("down_exps"), e, EXPERTS);
                out.iter_mut().zip(y).for_each(|(o, y)| *o += scores[e].exp() / sum * y);
            }
            return out;
        }
        let h = if self.architecture == "phi3" {
            let both = self.linear(h, &name("up"));
            self.gated(&both[..FEED], &both[FEED..])
        } else {
            self.gated(&self.linear(h, &name("gate")), &self.linear(h, &name("up")))
        };
        self.linear(&h, &name("down"))
    }

    /// The logits of every position.
    pub(crate) fn logits(&self, tokens: &[i64]) -> Vec<Vec<f64>> {
        let embedding = self.weight("token_embd.weight").unwrap();
        let gemma = self.architecture.starts_with("gemma");
        let scale = if gemma { (HIDDEN as f64).sqrt() } else { 1.0 };
        let row = |t: &i64| embedding[*t as usize * HIDDEN..][..HIDDEN].iter().map(|x| x * scale).collect();
        let mut xs: Vec<Vec<f64>> = tokens.iter().map(row).collect();
        let layers = layers(&self.architecture);
        for layer in 0..layers {
            self.layer(&mut xs, layer);
        }
        let output = if self.file.tensor("output.weight").is_some() { "output" } else { "token_embd" };
        let logits = |x: &Vec<f64>| {
            let y = self.linear(&self.norm(x.clone(), "output_norm"), output);
            let cap = |y: f64| if self.architecture == "gemma2" { 3.0 * (y / 3.0).tanh() } else { y };
            y.into_iter().map(cap).collect()
        };
        xs.iter().map(logits).collect()
    }

    fn layer(&self, xs: &mut [Vec<f64>], layer: usize) {
        let name = |part: &str| format!("blk.{layer}.{part}");
        let dim = dim(&self.architecture);
        let (q_size, kv_size) = (HEADS * dim, KV_HEADS * dim);
        let local = self.is_local(layer);
        let (mut queries, mut keys, mut values) = (Vec::new(), Vec::new(), Vec::new());
        for (position, x) in xs.iter().enumerate() {
            let h = self.norm(x.clone(), &name("attn_norm"));
            let (q, k, v) = if self.architecture == "phi3" {
                let all = self.linear(&h, &name("attn_qkv"));
                let (q, rest) = all.split_at(q_size);
                let (k, v) = rest.split_at(kv_size);
                (q.to_vec(), k.to_vec(), v.to_vec())
            } else {
                let part = |part: &str| self.linear(&h, &name(part));
                (part("attn_q"), part("attn_k"), part("attn_v"))
            };
            queries.push(self.rotated(&self.norm(q, &name("attn_q_norm")), position, local));
            keys.push(self.cached(self.rotated(&self.norm(k, &name("attn_k_norm")), position, local)));
            values.push(self.cached(v));
        }
        let sinks = self.weight(&name("attn_sinks.weight"));
        for (position, x) in xs.iter_mut().enumerate() {
            let first = if local { (position + 1).saturating_sub(WINDOW) } else { 0 };
            let mut context = Vec::new();
            for head in 0..HEADS {
                let kv = head / (HEADS / KV_HEADS) * dim;
                let score = |k: &Vec<f64>| {
                    let q = &queries[position][head * dim..][..dim];
                    let s = q.iter().zip(&k[kv..]).map(|(q, k)| q * k).sum::<f64>() / (dim as f64).sqrt();
                    if self.architecture == "gemma2" { 5.0 * (s / 5.0).tanh() } else { s }
                };
                let scores: Vec<f64> = keys[first..=position].iter().map(score).collect();
                let sink = sinks.as_ref().map(|sinks| sinks[head].exp()).unwrap_or(0.0);
                let sum: f64 = scores.iter().map(|s| s.exp()).sum::<f64>() + sink;
                context.extend((0..dim).map(|i| {
                    let weighted = scores.iter().zip(&values[first..]).map(|(s, v)| s.exp() * v[kv + i]);
                    weighted.sum::<f64>() / sum
                }));
            }
            let mut attended = self.linear(&context, &name("attn_output"));
            if self.architecture.starts_with("gemma") {
                attended = self.norm(attended, &name("post_attention_norm"));
            }
            x.iter_mut().zip(attended).for_each(|(x, y)| *x += y);
            let h = self.norm(x.clone(), name(ffn_norm(&self.architecture)).trim_end_matches(".weight"));
            let fed = self.norm(self.feed_forward(&h, layer), &name("post_ffw_norm"));
            x.iter_mut().zip(fed).for_each(|(x, y)| *x += y);
        }
    }
}

/// The logarithm of softmax.
pub(crate) fn log_softmax(logits: &[f64]) -> Vec<f64> {
    let most = logits.iter().copied().fold(f64::MIN, f64::max);
    let sum: f64 = logits.iter().map(|x| (x - most).exp()).sum();
    logits.iter().map(|x| x - most - sum.ln()).collect()
}
