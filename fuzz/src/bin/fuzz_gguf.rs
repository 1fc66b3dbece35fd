//! Throws broken GGUF files at the reader; nothing may panic, and what is read must be read again after it is written.
//!
//! ```text
//! cargo run -p olivine-fuzz --bin fuzz_gguf -- --cases 1000000 [--seed N] [--only CASE]
//! ```

#[path = "../../../crates/ir/tests/generate/rng.rs"]
#[allow(dead_code, reason = "the tests of olivine-ir use all of it")]
mod rng;

use std::process::ExitCode;

use olivine::internals::models::{Bert, CausalLm};
use olivine_gguf::{Gguf, Preset, TensorKind, Value, Writer};
use olivine_ir::BlockFormat;
use rng::Rng;

/// Tensors beyond this are not decoded.
const MAX_ELEMENTS: usize = 1 << 14;

fn main() -> ExitCode {
    olivine_fuzz::run_cases(|seed| case_of(&mut Rng::new(seed)))
}

fn case_of(rng: &mut Rng) -> Result<&'static str, String> {
    if rng.below(8) == 0 {
        return model(rng);
    }
    let mut bytes = valid(rng)?;
    let valid = Gguf::from_bytes(bytes.clone()).map_err(|e| format!("a written file is not read: {e}"))?;
    same_again(&valid)?;
    for _ in 0..rng.below(4) {
        mutate(rng, &mut bytes);
    }
    match Gguf::from_bytes(bytes) {
        Ok(file) => {
            for tensor in file.tensors().iter().filter(|tensor| tensor.elements() <= MAX_ELEMENTS) {
                let decoded =
                    file.decode(tensor).map_err(|e| format!("a tensor that was read is not decoded: {e}"))?;
                if decoded.len() != tensor.elements() {
                    return Err(format!(
                        "`{}` has {} elements, {} decoded",
                        tensor.name,
                        tensor.elements(),
                        decoded.len()
                    ));
                }
            }
            same_again(&file)?;
            Ok("files accepted")
        }
        Err(e) => {
            let _ = e.to_string();
            Ok("files refused")
        }
    }
}

/// A file that says it is a model, with sizes and tensors that may contradict each other: what is built of it, and the types that presets
/// give its tensors.
fn model(rng: &mut Rng) -> Result<&'static str, String> {
    let architectures =
        ["llama", "qwen2", "qwen3moe", "phi3", "gemma3", "gpt-oss", "mamba2", "qwen3next", "bert"];
    let architecture = architectures[rng.below(architectures.len())];
    let mut writer = Writer::new();
    let mut number = |rng: &mut Rng, key: &str, usual: u64| {
        let extreme = [0, 1, 3, 1 << 20, 1 << 31, 1 << 61, 1 << 63, u64::MAX];
        let value = if rng.below(12) == 0 { extreme[rng.below(extreme.len())] } else { usual };
        let value = u32::try_from(value).map_or(Value::from(value), Value::from);
        writer.metadata(format!("{architecture}.{key}"), value).map_err(|e| e.to_string())
    };
    let layers = rng.below(3) as u64;
    for (key, usual) in [
        ("block_count", layers),
        ("embedding_length", 64),
        ("feed_forward_length", 96),
        ("attention.head_count", 4),
        ("attention.head_count_kv", 2),
        ("attention.key_length", 16),
        ("attention.value_length", 16),
        ("context_length", 32),
        ("expert_count", 4),
        ("expert_used_count", 2),
        ("expert_feed_forward_length", 96),
        ("attention.sliding_window", 8),
        ("rope.dimension_count", 16),
        ("ssm.conv_kernel", 4),
        ("ssm.inner_size", 64),
        ("ssm.state_size", 16),
        ("ssm.time_step_rank", 4),
        ("ssm.group_count", 1),
    ] {
        if rng.below(30) > 0 {
            number(rng, key, usual)?;
        }
    }
    for key in ["attention.layer_norm_rms_epsilon", "attention.layer_norm_epsilon", "rope.freq_base"] {
        writer.metadata(format!("{architecture}.{key}"), Value::from(1e-5f32)).map_err(|e| e.to_string())?;
    }
    writer.metadata("general.architecture", Value::from(architecture)).map_err(|e| e.to_string())?;
    let mut tensors = vec![
        ("token_embd.weight".to_string(), vec![20, 64]),
        ("output.weight".to_string(), vec![20, 64]),
        ("output_norm.weight".to_string(), vec![64]),
        ("position_embd.weight".to_string(), vec![32, 64]),
        ("token_types.weight".to_string(), vec![2, 64]),
        ("token_embd_norm.weight".to_string(), vec![64]),
        ("token_embd_norm.bias".to_string(), vec![64]),
    ];
    for layer in 0..layers {
        for (name, shape) in [
            ("attn_norm.weight", vec![64]),
            ("attn_q.weight", vec![64, 64]),
            ("attn_k.weight", vec![32, 64]),
            ("attn_v.weight", vec![32, 64]),
            ("attn_qkv.weight", vec![128, 64]),
            ("attn_output.weight", vec![64, 64]),
            ("ffn_norm.weight", vec![64]),
            ("ffn_gate.weight", vec![96, 64]),
            ("ffn_up.weight", vec![96, 64]),
            ("ffn_down.weight", vec![64, 96]),
            ("ffn_gate_inp.weight", vec![4, 64]),
            ("ffn_down_exps.weight", vec![4, 64, 96]),
        ] {
            tensors.push((format!("blk.{layer}.{name}"), shape));
        }
    }
    for (name, mut shape) in tensors.into_iter().filter(|_| rng.below(40) > 0).collect::<Vec<_>>() {
        if rng.below(40) == 0 {
            let at = rng.below(shape.len());
            shape[at] = rng.below(70);
        }
        let kind = if shape[shape.len() - 1].is_multiple_of(32) && rng.below(3) == 0 {
            TensorKind::Blocks(BlockFormat::Q8_0)
        } else {
            TensorKind::F32
        };
        let bytes = vec![0; kind.bytes_of(&shape)?];
        writer.tensor(name, kind, &shape, bytes).map_err(|e| e.to_string())?;
    }
    let file = Gguf::from_bytes(writer.to_bytes().map_err(|e| e.to_string())?).map_err(|e| e.to_string())?;
    for preset in Preset::all() {
        if preset.kinds(&file).len() != file.tensors().len() {
            return Err(format!("{preset} has other tensors"));
        }
    }
    if architecture == "bert" {
        let _ = Bert::sizes(&file);
        return Ok(if Bert::of_gguf(&file).is_ok() { "encoders built" } else { "encoders refused" });
    }
    Ok(match CausalLm::of_gguf(file).and_then(|model| model.whole()) {
        Ok(_) => "models built",
        Err(_) => "models refused",
    })
}

/// Whatever is read can be written, and is then the same. The alignment is the writer's own, and it writes at most four sizes.
fn same_again(file: &Gguf) -> Result<(), String> {
    let mut writer = Writer::new();
    for (key, value) in file.metadata().iter() {
        if !key.is_empty() && key.len() <= 65_535 && key != "general.alignment" {
            writer.metadata(key, value.clone()).map_err(|e| e.to_string())?;
        }
    }
    for tensor in file.tensors().iter().filter(|tensor| tensor.shape.len() <= 4) {
        let bytes = file.bytes(tensor).to_vec();
        writer.tensor(&tensor.name, tensor.kind, &tensor.shape, bytes).map_err(|e| e.to_string())?;
    }
    let again = writer
        .to_bytes()
        .and_then(Gguf::from_bytes)
        .map_err(|e| format!("what was read is not written: {e}"))?;
    for tensor in again.tensors() {
        let before = file.tensor(&tensor.name).ok_or("a tensor appeared")?;
        if (before.kind, &before.shape) != (tensor.kind, &tensor.shape)
            || file.bytes(before) != again.bytes(tensor)
        {
            return Err(format!("`{}` changed", tensor.name));
        }
    }
    Ok(())
}

fn valid(rng: &mut Rng) -> Result<Vec<u8>, String> {
    let mut writer = Writer::new();
    for i in 0..rng.below(6) {
        writer.metadata(format!("key.{i}"), value(rng, 3)).map_err(|e| e.to_string())?;
    }
    let kinds: Vec<TensorKind> = TensorKind::all().collect();
    for i in 0..rng.below(5) {
        let kind = kinds[rng.below(kinds.len())];
        let mut shape: Vec<usize> = (0..rng.below(4)).map(|_| rng.below(4)).collect();
        if let Some(row) = shape.last_mut() {
            *row *= kind.block_elements();
        } else if kind.block_elements() > 1 {
            shape.push(kind.block_elements());
        }
        let length = kind.bytes_of(&shape)?;
        let bytes = (0..length).map(|_| rng.below(256) as u8).collect();
        writer.tensor(format!("tensor.{i}"), kind, &shape, bytes).map_err(|e| e.to_string())?;
    }
    writer.to_bytes().map_err(|e| e.to_string())
}

fn value(rng: &mut Rng, nesting: usize) -> Value {
    let number = rng.below(1 << 20);
    match rng.below(if nesting > 0 { 10 } else { 9 }) {
        0 => Value::from(number as u8),
        1 => Value::from(number as u32),
        2 => Value::from(-(number as i64)),
        3 => Value::from(number as f32),
        4 => Value::from(number.is_multiple_of(2)),
        5 => Value::from("text".repeat(rng.below(3))),
        6 => Value::from(vec![number as u16; rng.below(4)]),
        7 => Value::from(vec!["x".to_string(); rng.below(4)]),
        8 => Value::from(vec![true; rng.below(4)]),
        _ => {
            let inner = (0..rng.below(3)).map(|_| value(rng, nesting - 1));
            Value::Arrays(inner.filter(|value| value.array_len().is_some()).collect())
        }
    }
}

/// Changes bytes, lengths, or where the file ends.
fn mutate(rng: &mut Rng, bytes: &mut Vec<u8>) {
    // Most of what can go wrong is before the tensors.
    let end = bytes.len().min(if rng.below(4) == 0 { usize::MAX } else { 400 });
    let at = rng.below(end.max(1));
    let extreme = [0u64, 1, 31, 33, 1 << 31, u64::from(u32::MAX), 1 << 62, 1 << 63, u64::MAX - 31, u64::MAX];
    match rng.below(6) {
        0 | 1 => {
            if let Some(byte) = bytes.get_mut(at) {
                *byte = rng.below(256) as u8;
            }
        }
        2 | 3 => {
            let number = extreme[rng.below(extreme.len())].to_le_bytes();
            let width = if rng.below(2) == 0 { 4 } else { 8 };
            for (byte, new) in bytes.iter_mut().skip(at).zip(&number[..width]) {
                *byte = *new;
            }
        }
        4 => bytes.truncate(at),
        _ => {
            let inserted: Vec<u8> = (0..rng.below(9)).map(|_| rng.below(256) as u8).collect();
            bytes.splice(at.min(bytes.len())..at.min(bytes.len()), inserted);
        }
    }
}
