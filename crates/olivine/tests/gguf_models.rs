//! GGUF files as models: the logits of a small decoder against the mathematics, in f64, and files that lie.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test says what it expects")]

use olivine::prelude::*;
use olivine_gguf::{Gguf, TensorKind, Value, Writer};
use olivine_ir::BlockFormat;

const HIDDEN: usize = 256;
const HEADS: usize = 4;
const KV_HEADS: usize = 2;
const DIM: usize = 64;
const FEED: usize = 512;
const VOCABULARY: usize = 96;
const LAYERS: usize = 2;

/// Numbers like those of weights.
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
        TensorKind::F16 => x.iter().flat_map(|x| olivine_ir::half::f16::from_f32(*x).to_le_bytes()).collect(),
        TensorKind::Blocks(format) => olivine_quant::encode(format, x, None).unwrap(),
        other => panic!("no {other} here"),
    }
}

/// A decoder in a file: `kind` is the type of its matrices.
fn file(architecture: &str, kind: TensorKind) -> Writer {
    let mut w = Writer::new();
    let key = |key: &str| format!("{architecture}.{key}");
    w.metadata("general.architecture", Value::from(architecture)).unwrap();
    for (name, value) in [
        ("block_count", LAYERS),
        ("embedding_length", HIDDEN),
        ("feed_forward_length", FEED),
        ("attention.head_count", HEADS),
        ("attention.head_count_kv", KV_HEADS),
        ("context_length", 64),
    ] {
        w.metadata(key(name), Value::U32(value as u32)).unwrap();
    }
    w.metadata(key("attention.layer_norm_rms_epsilon"), Value::F32(1e-5)).unwrap();
    w.metadata(key("rope.freq_base"), Value::F32(10_000.0)).unwrap();
    let mut seed = 0;
    let mut put = |name: &str, kind: TensorKind, shape: &[usize], scale: f32| {
        seed += 1;
        let x = numbers(shape.iter().product(), seed, scale);
        w.tensor(name, kind, shape, bytes(kind, &x)).unwrap();
    };
    put("token_embd.weight", kind, &[VOCABULARY, HIDDEN], 1.0);
    for layer in 0..LAYERS {
        let name = |part: &str| format!("blk.{layer}.{part}");
        put(&name("attn_norm.weight"), TensorKind::F32, &[HIDDEN], 1.0);
        put(&name("ffn_norm.weight"), TensorKind::F32, &[HIDDEN], 1.0);
        put(&name("attn_q.weight"), kind, &[HEADS * DIM, HIDDEN], 0.1);
        put(&name("attn_k.weight"), kind, &[KV_HEADS * DIM, HIDDEN], 0.1);
        put(&name("attn_v.weight"), kind, &[KV_HEADS * DIM, HIDDEN], 0.1);
        put(&name("attn_output.weight"), kind, &[HIDDEN, HEADS * DIM], 0.1);
        put(&name("ffn_gate.weight"), kind, &[FEED, HIDDEN], 0.1);
        put(&name("ffn_up.weight"), kind, &[FEED, HIDDEN], 0.1);
        put(&name("ffn_down.weight"), kind, &[HIDDEN, FEED], 0.1);
        if architecture == "qwen2" {
            put(&name("attn_q.bias"), TensorKind::F32, &[HEADS * DIM], 0.5);
            put(&name("attn_k.bias"), TensorKind::F32, &[KV_HEADS * DIM], 0.5);
            put(&name("attn_v.bias"), TensorKind::F32, &[KV_HEADS * DIM], 0.5);
        }
        if architecture == "qwen3" {
            put(&name("attn_q_norm.weight"), TensorKind::F32, &[DIM], 1.0);
            put(&name("attn_k_norm.weight"), TensorKind::F32, &[DIM], 1.0);
        }
    }
    put("output_norm.weight", TensorKind::F32, &[HIDDEN], 1.0);
    w
}

/// The decoder by definition, in f64, on the weights as the file decodes them.
struct Reference<'a>(&'a Gguf);

impl Reference<'_> {
    fn weight(&self, name: &str) -> Option<Vec<f64>> {
        let tensor = self.0.tensor(name)?;
        Some(self.0.decode(tensor).unwrap().into_iter().map(f64::from).collect())
    }

    fn linear(&self, x: &[f64], name: &str) -> Vec<f64> {
        let w = self.weight(&format!("{name}.weight")).unwrap();
        let mut y: Vec<f64> =
            w.chunks(x.len()).map(|row| row.iter().zip(x).map(|(w, x)| w * x).sum()).collect();
        if let Some(bias) = self.weight(&format!("{name}.bias")) {
            y.iter_mut().zip(bias).for_each(|(y, b)| *y += b);
        }
        y
    }

    fn norm(&self, x: &[f64], name: &str) -> Vec<f64> {
        let gamma = self.weight(&format!("{name}.weight")).unwrap();
        x.chunks(gamma.len())
            .flat_map(|x| {
                let scale = 1.0 / (x.iter().map(|x| x * x).sum::<f64>() / x.len() as f64 + 1e-5).sqrt();
                x.iter().zip(&gamma).map(move |(x, g)| x * scale * g).collect::<Vec<_>>()
            })
            .collect()
    }

    fn rotated(x: &[f64], position: usize, pairs: bool) -> Vec<f64> {
        let mut out = x.to_vec();
        for head in out.chunks_mut(DIM) {
            for i in 0..DIM / 2 {
                let angle = position as f64 * 10_000f64.powf(-2.0 * i as f64 / DIM as f64);
                let (a, b) = if pairs { (2 * i, 2 * i + 1) } else { (i, i + DIM / 2) };
                let (x, y) = (head[a], head[b]);
                (head[a], head[b]) = (x * angle.cos() - y * angle.sin(), x * angle.sin() + y * angle.cos());
            }
        }
        out
    }

    fn logits(&self, tokens: &[i64], pairs: bool) -> Vec<f64> {
        let embedding = self.weight("token_embd.weight").unwrap();
        let mut xs: Vec<Vec<f64>> =
            tokens.iter().map(|t| embedding[*t as usize * HIDDEN..][..HIDDEN].to_vec()).collect();
        for layer in 0..LAYERS {
            let name = |part: &str| format!("blk.{layer}.{part}");
            let head_norm = |x: Vec<f64>, part: &str| match self.0.tensor(&format!("{part}.weight")) {
                Some(_) => self.norm(&x, part),
                None => x,
            };
            let (mut keys, mut values) = (Vec::new(), Vec::new());
            let mut queries = Vec::new();
            for (position, x) in xs.iter().enumerate() {
                let h = self.norm(x, &name("attn_norm"));
                let q = head_norm(self.linear(&h, &name("attn_q")), &name("attn_q_norm"));
                let k = head_norm(self.linear(&h, &name("attn_k")), &name("attn_k_norm"));
                queries.push(Self::rotated(&q, position, pairs));
                keys.push(Self::rotated(&k, position, pairs));
                values.push(self.linear(&h, &name("attn_v")));
            }
            for (position, x) in xs.iter_mut().enumerate() {
                let mut context = Vec::new();
                for head in 0..HEADS {
                    let kv = head / (HEADS / KV_HEADS) * DIM;
                    let scores: Vec<f64> = keys[..=position]
                        .iter()
                        .map(|k| {
                            let q = &queries[position][head * DIM..][..DIM];
                            q.iter().zip(&k[kv..]).map(|(q, k)| q * k).sum::<f64>() / (DIM as f64).sqrt()
                        })
                        .collect();
                    let most = scores.iter().copied().fold(f64::MIN, f64::max);
                    let sum: f64 = scores.iter().map(|s| (s - most).exp()).sum();
                    context.extend((0..DIM).map(|i| {
                        let weighted = scores.iter().zip(&values).map(|(s, v)| (s - most).exp() * v[kv + i]);
                        weighted.sum::<f64>() / sum
                    }));
                }
                let attended = self.linear(&context, &name("attn_output"));
                x.iter_mut().zip(attended).for_each(|(x, y)| *x += y);
                let h = self.norm(x, &name("ffn_norm"));
                let (gate, up) = (self.linear(&h, &name("ffn_gate")), self.linear(&h, &name("ffn_up")));
                let h: Vec<f64> = gate.iter().zip(up).map(|(g, u)| g / (1.0 + (-g).exp()) * u).collect();
                let down = self.linear(&h, &name("ffn_down"));
                x.iter_mut().zip(down).for_each(|(x, y)| *x += y);
            }
        }
        xs.iter().flat_map(|x| self.linear(&self.norm(x, "output_norm"), "token_embd")).collect()
    }
}

fn check(device: Device, architecture: &str, kind: TensorKind) {
    let folder = std::env::temp_dir()
        .join(format!("olivine-gguf-{}-{device}-{architecture}-{kind}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let path = folder.join("model.gguf");
    file(architecture, kind).save(&path).unwrap();
    let session = Session::new(device).unwrap();
    let executable = session.compile(&Model::load(&path).unwrap()).unwrap();
    for tokens in [vec![5i64], vec![1, 95, 17, 4, 4, 60, 33]] {
        let input = Tensor::new([1, tokens.len()], tokens.clone()).unwrap();
        let outputs = executable.run([("tokens", &input)]).unwrap();
        let got = outputs["logits"].as_slice::<f32>().unwrap();
        let want = Reference(&Gguf::open(&path).unwrap()).logits(&tokens, architecture == "llama");
        let scale = want.iter().map(|x| x * x).sum::<f64>().sqrt();
        let error = got.iter().zip(&want).map(|(g, w)| (f64::from(*g) - w).powi(2)).sum::<f64>().sqrt();
        assert_eq!(got.len(), want.len());
        assert!(error < 2e-5 * scale, "{architecture} {kind}: relative error {:e}", error / scale);
    }
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn decoders_compute_what_their_definition_says() {
    for architecture in ["llama", "qwen2", "qwen3"] {
        check(Device::Cpu, architecture, TensorKind::Blocks(BlockFormat::Q8_0));
    }
    for kind in [TensorKind::F32, TensorKind::F16] {
        check(Device::Cpu, "llama", kind);
    }
    for format in [BlockFormat::Q4_K, BlockFormat::Q6_K, BlockFormat::Q4_1, BlockFormat::MXFP4] {
        check(Device::Cpu, "llama", TensorKind::Blocks(format));
    }
}

#[test]
fn a_file_in_memory_is_the_same_model() {
    let bytes = file("qwen3", TensorKind::Blocks(BlockFormat::Q8_0)).to_bytes().unwrap();
    let path = std::env::temp_dir().join(format!("olivine-gguf-memory-{}.gguf", std::process::id()));
    std::fs::write(&path, &bytes).unwrap();
    let session = Session::new(Device::Cpu).unwrap();
    let tokens = Tensor::new([1, 3], vec![1i64, 95, 17]).unwrap();
    let [of_file, of_bytes] = [Model::load(&path), Model::from_gguf(bytes)].map(|model| {
        let executable = session.compile(&model.unwrap()).unwrap();
        executable.run([("tokens", &tokens)]).unwrap()["logits"].clone()
    });
    std::fs::remove_file(&path).unwrap();
    assert_eq!(of_file.bytes(), of_bytes.bytes());
    assert!(Model::from_gguf(b"GGUF".to_vec()).is_err());
}

#[cfg(feature = "vulkan")]
#[test]
fn decoders_compute_the_same_on_vulkan() {
    for format in [BlockFormat::Q4_K, BlockFormat::Q8_0] {
        check("vulkan".parse().unwrap(), "llama", TensorKind::Blocks(format));
    }
}

#[test]
fn files_that_no_decoder_fits_are_refused_by_name() {
    let refused = |writer: &Writer| {
        let folder = std::env::temp_dir().join(format!("olivine-gguf-bad-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let path = folder.join("model.gguf");
        let _ = std::fs::remove_file(&path);
        writer.save(&path).unwrap();
        Model::load(&path).map(drop).unwrap_err().to_string()
    };
    let mut other = Writer::new();
    other.metadata("general.architecture", Value::from("clip")).unwrap();
    assert!(refused(&other).contains("`clip`"), "{}", refused(&other));
    assert!(refused(&Writer::new()).contains("general.architecture"));
    let mut bare = Writer::new();
    bare.metadata("general.architecture", Value::from("llama")).unwrap();
    assert!(refused(&bare).contains("llama.embedding_length"), "{}", refused(&bare));
    for (name, value) in [("block_count", 1u32), ("embedding_length", 64), ("attention.head_count", 0)] {
        bare.metadata(format!("llama.{name}"), Value::U32(value)).unwrap();
    }
    assert!(refused(&bare).contains("head_count"), "{}", refused(&bare));
    // A tensor that is missing, and one of another size than the metadata say.
    let sized = || {
        let mut writer = Writer::new();
        writer.metadata("general.architecture", Value::from("llama")).unwrap();
        for (name, value) in [("block_count", 1u32), ("embedding_length", 64), ("attention.head_count", 2)] {
            writer.metadata(format!("llama.{name}"), Value::U32(value)).unwrap();
        }
        writer
    };
    let (mut short, mut narrow) = (sized(), sized());
    assert!(refused(&short).contains("token_embd.weight"), "{}", refused(&short));
    narrow.tensor("token_embd.weight", TensorKind::F32, &[7, 32], vec![0; 7 * 32 * 4]).unwrap();
    assert!(refused(&narrow).contains("token_embd.weight") && refused(&narrow).contains("64"));
    short.tensor("token_embd.weight", TensorKind::F32, &[7, 64], vec![0; 7 * 64 * 4]).unwrap();
    assert!(refused(&short).contains("blk.0.attn_norm.weight"), "{}", refused(&short));
    short.tensor("blk.0.attn_norm.weight", TensorKind::F32, &[64], vec![0; 256]).unwrap();
    assert!(!refused(&short).is_empty());
}
