//! Which type each tensor of a model is quantised to. Presets mix types as llama.cpp's do: tensors that matter more for the
//! result, and layers at both ends of the model, get more bits.

use std::fmt;
use std::str::FromStr;

use olivine_quant::BlockFormat as B;

use crate::{Gguf, Metadata, Tensor, TensorKind};

/// A named choice of types.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Preset(&'static Row);

/// Name, number in `general.file_type`, the type of most tensors, and how much is mixed.
#[derive(Debug, PartialEq, Eq)]
struct Row(&'static str, u32, TensorKind, Mix);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mix {
    /// One type for all matrices, the output layer excepted.
    None,
    /// The smallest with some tensors larger: `_s`.
    Small,
    /// `_m`.
    Medium,
    /// `_l`.
    Large,
}

const fn blocks(name: &'static str, id: u32, format: B, mix: Mix) -> Row {
    Row(name, id, TensorKind::Blocks(format), mix)
}

/// Numbers are llama.cpp's.
const PRESETS: [Row; 27] = [
    Row("f32", 0, TensorKind::F32, Mix::None),
    Row("f16", 1, TensorKind::F16, Mix::None),
    blocks("q4_0", 2, B::Q4_0, Mix::None),
    blocks("q4_1", 3, B::Q4_1, Mix::None),
    blocks("q8_0", 7, B::Q8_0, Mix::None),
    blocks("q5_0", 8, B::Q5_0, Mix::None),
    blocks("q5_1", 9, B::Q5_1, Mix::None),
    blocks("q2_k", 10, B::Q2_K, Mix::Medium),
    blocks("q3_k_s", 11, B::Q3_K, Mix::Small),
    blocks("q3_k_m", 12, B::Q3_K, Mix::Medium),
    blocks("q3_k", 12, B::Q3_K, Mix::Medium),
    blocks("q3_k_l", 13, B::Q3_K, Mix::Large),
    blocks("q4_k_s", 14, B::Q4_K, Mix::Small),
    blocks("q4_k_m", 15, B::Q4_K, Mix::Medium),
    blocks("q4_k", 15, B::Q4_K, Mix::Medium),
    blocks("q5_k_s", 16, B::Q5_K, Mix::Small),
    blocks("q5_k_m", 17, B::Q5_K, Mix::Medium),
    blocks("q5_k", 17, B::Q5_K, Mix::Medium),
    blocks("q6_k", 18, B::Q6_K, Mix::None),
    blocks("q2_k_s", 21, B::Q2_K, Mix::Small),
    blocks("iq4_nl", 25, B::IQ4_NL, Mix::None),
    blocks("iq4_xs", 30, B::IQ4_XS, Mix::None),
    Row("bf16", 32, TensorKind::BF16, Mix::None),
    blocks("tq1_0", 36, B::TQ1_0, Mix::None),
    blocks("tq2_0", 37, B::TQ2_0, Mix::None),
    blocks("mxfp4", 38, B::MXFP4, Mix::None),
    blocks("nvfp4", 39, B::NVFP4, Mix::None),
];

impl Preset {
    /// Every preset.
    pub fn all() -> impl Iterator<Item = Preset> {
        PRESETS.iter().map(Preset)
    }

    /// The name, in lower case: `q4_k_m`.
    pub fn name(self) -> &'static str {
        self.0.0
    }

    /// The number that `general.file_type` has for it.
    pub fn file_type(self) -> u32 {
        self.0.1
    }

    /// The type of every tensor of a file, in its order.
    pub fn kinds(self, file: &Gguf) -> Vec<TensorKind> {
        let model = Shape::of(file);
        let mut values = 0;
        file.tensors().iter().map(|tensor| self.kind(&model, tensor, &mut values)).collect()
    }

    fn kind(self, model: &Shape, tensor: &Tensor, values: &mut usize) -> TensorKind {
        if !is_matrix(tensor) {
            return tensor.kind;
        }
        let Row(_, _, most, mix) = *self.0;
        let kind = match most {
            TensorKind::Blocks(format) => TensorKind::Blocks(mixed(model, tensor, format, mix, values)),
            plain => plain,
        };
        fitting(kind, tensor.shape.last().copied().unwrap_or(1))
    }
}

/// Whether a tensor is one that presets change: weights of matrix products. Norms, biases, routers of experts and small tables
/// stay as they are.
fn is_matrix(tensor: &Tensor) -> bool {
    let small = ["_norm.weight", "ffn_gate_inp.weight", "ffn_gate_inp_shexp.weight", "rope_freqs.weight"];
    let other = [
        "altup",
        "laurel",
        "per_layer_model_proj",
        "ssm_conv1d",
        "shortconv.conv",
        "position_embd",
        "token_types",
        "attn_rel_b",
        "time_mix_",
    ];
    tensor.name.ends_with("weight")
        && tensor.shape.iter().filter(|size| **size > 1).count() >= 2
        && !small.iter().any(|end| tensor.name.ends_with(end))
        && !other.iter().any(|part| tensor.name.contains(part))
}

/// What of a model the mixes ask.
struct Shape {
    layers: usize,
    experts: u64,
    /// Query heads that share a key head.
    sharing: u64,
    /// Tensors of values: `attn_v`, and those that hold values with others.
    values: usize,
    /// Whether the embedding is the output layer too.
    tied: bool,
    falcon: bool,
    /// Whether it is a model of 70 billion parameters whose query heads share key heads.
    seventy: bool,
}

impl Shape {
    fn of(file: &Gguf) -> Shape {
        let metadata = file.metadata();
        let architecture = metadata.string("general.architecture").unwrap_or_default();
        let number = |key: &str| first_number(metadata, &format!("{architecture}.{key}"));
        let heads = number("attention.head_count").unwrap_or(1);
        let shared = number("attention.head_count_kv").unwrap_or(heads).max(1);
        let named = |part: &str| file.tensors().iter().filter(|t| t.name.contains(part)).count();
        let layers = number("block_count").and_then(|n| usize::try_from(n).ok()).unwrap_or(0);
        Shape {
            layers,
            experts: number("expert_count").unwrap_or(0),
            sharing: heads / shared,
            values: named("attn_v.weight") + named("attn_qkv.weight") + named("attn_kv_b.weight"),
            tied: file.tensor("output.weight").is_none(),
            falcon: architecture == "falcon",
            seventy: layers == 80 && matches!(architecture, "llama" | "qwen2") && shared < heads,
        }
    }
}

/// A number, or the first of an array with one for each layer.
fn first_number(metadata: &Metadata, key: &str) -> Option<u64> {
    let value = metadata.get(key)?;
    match value {
        crate::Value::U32s(all) => all.first().map(|n| u64::from(*n)),
        crate::Value::I32s(all) => all.first().and_then(|n| u64::try_from(*n).ok()),
        single => single.as_u64(),
    }
}

/// The first and last eighth of layers, and every third between.
fn more_bits(i: usize, n: usize) -> bool {
    // 7 * n / 8, for every n.
    let late = n / 8 * 7 + n % 8 * 7 / 8;
    i < n / 8 || i >= late || (i - n / 8) % 3 == 2
}

/// The layer of `blk.N.…`.
fn layer(name: &str) -> usize {
    name.strip_prefix("blk.").and_then(|rest| rest.split('.').next()?.parse().ok()).unwrap_or(0)
}

fn mixed(model: &Shape, tensor: &Tensor, format: B, mix: Mix, values: &mut usize) -> B {
    let name = tensor.name.as_str();
    let is = |part: &str| name.ends_with(&format!("{part}.weight"));
    if name == "output.weight" || (model.tied && name == "token_embd.weight") {
        return if matches!(format, B::Q8_0 | B::MXFP4) || model.falcon { B::Q8_0 } else { B::Q6_K };
    }
    if format == B::MXFP4 {
        // Experts alone.
        let experts = tensor.shape.len() > 2 && tensor.shape[..tensor.shape.len() - 2].iter().any(|n| *n > 1);
        return if experts { format } else { B::Q8_0 };
    }
    if name == "token_embd.weight" {
        return if matches!(format, B::TQ1_0 | B::TQ2_0) { B::Q4_K } else { format };
    }
    if is("attn_v") || is("attn_kv_b") || is("attn_qkv") {
        let i = *values;
        *values += 1;
        let wide = model.sharing >= 4;
        let kind = match (format, mix) {
            (B::Q2_K, Mix::Medium) if wide => B::Q4_K,
            (B::Q2_K, Mix::Medium) => B::Q3_K,
            (B::Q2_K, Mix::Small) if wide => B::Q4_K,
            (B::Q3_K, Mix::Medium) if i < 2 => B::Q5_K,
            (B::Q3_K, Mix::Medium) => B::Q4_K,
            (B::Q3_K, Mix::Large) => B::Q5_K,
            (B::IQ4_NL | B::IQ4_XS, _) if wide => B::Q5_K,
            (B::Q4_K | B::Q5_K, Mix::Medium) if more_bits(i, model.values) => B::Q6_K,
            (B::Q4_K, Mix::Small) if i < 4 => B::Q5_K,
            _ => format,
        };
        let kind = if model.seventy && matches!(kind, B::Q3_K | B::Q4_K) { B::Q5_K } else { kind };
        return if model.experts == 8 { B::Q8_0 } else { kind };
    }
    if is("attn_k") && model.experts == 8 {
        return B::Q8_0;
    }
    if is("ffn_down") || is("ffn_down_exps") || is("ffn_down_shexp") {
        let (i, n) = (layer(name), model.layers);
        return match (format, mix) {
            (B::Q2_K, Mix::Medium) => B::Q3_K,
            (B::Q2_K, Mix::Small) if i < n / 8 => B::Q4_K,
            (B::Q3_K, Mix::Medium) if i < n / 16 => B::Q5_K,
            (B::Q3_K, Mix::Medium) if model.falcon && !more_bits(i, n) => B::Q3_K,
            (B::Q3_K, Mix::Medium) => B::Q4_K,
            (B::Q3_K, Mix::Large) if model.falcon => B::Q4_K,
            (B::Q3_K, Mix::Large) => B::Q5_K,
            (B::Q4_K, Mix::Medium) if model.falcon && i < n / 16 => B::Q6_K,
            (B::Q4_K, Mix::Medium) if model.falcon && more_bits(i, n) => B::Q5_K,
            (B::Q4_K, Mix::Medium) if model.falcon => B::Q4_K,
            (B::Q4_K | B::Q5_K, Mix::Medium) if more_bits(i, n) => B::Q6_K,
            (B::Q4_K, Mix::Small) if i < n / 8 && !model.falcon => B::Q5_K,
            (B::IQ4_NL | B::IQ4_XS, _) if i < n / 8 => B::Q5_K,
            _ => format,
        };
    }
    if is("attn_output") {
        return match (format, mix) {
            (B::Q3_K, Mix::Large) if model.falcon => B::Q4_K,
            _ if model.falcon => format,
            (B::Q2_K, Mix::Small) | (B::Q3_K, Mix::Large) if model.experts == 8 => format,
            (B::Q2_K | B::Q3_K | B::Q4_K | B::IQ4_NL | B::IQ4_XS, _) if model.experts == 8 => B::Q5_K,
            (B::Q2_K, Mix::Medium) => B::Q3_K,
            (B::Q3_K, Mix::Medium) => B::Q4_K,
            (B::Q3_K, Mix::Large) => B::Q5_K,
            _ => format,
        };
    }
    format
}

/// The type, or one with smaller blocks where rows are not whole blocks.
fn fitting(kind: TensorKind, row: usize) -> TensorKind {
    if row.is_multiple_of(kind.block_elements()) {
        return kind;
    }
    let smaller = match kind {
        TensorKind::Blocks(B::IQ4_XS) => B::IQ4_NL,
        TensorKind::Blocks(B::Q2_K | B::Q3_K) => B::Q4_0,
        TensorKind::Blocks(B::Q4_K) => B::Q5_0,
        TensorKind::Blocks(B::Q5_K) => B::Q5_1,
        TensorKind::Blocks(B::Q6_K) => B::Q8_0,
        TensorKind::Blocks(B::TQ1_0 | B::TQ2_0) => B::Q4_0,
        _ => return TensorKind::F16,
    };
    fitting(TensorKind::Blocks(smaller), row)
}

impl fmt::Display for Preset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Preset {
    type Err = String;
    fn from_str(name: &str) -> Result<Self, String> {
        Preset::all().find(|preset| preset.name().eq_ignore_ascii_case(name)).ok_or_else(|| {
            let names: Vec<_> = Preset::all().map(Preset::name).collect();
            format!("there is no preset `{name}`; there are {}", names.join(", "))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Value, Writer};

    fn of(blocks: Value) -> Vec<TensorKind> {
        let mut writer = Writer::new();
        writer.metadata("general.architecture", Value::from("llama")).unwrap();
        writer.metadata("llama.block_count", blocks).unwrap();
        for name in ["blk.0.ffn_down.weight", "blk.18446744073709551615.attn_v.weight", "blk.9.attn_v.weight"]
        {
            writer.tensor(name, TensorKind::F32, &[2, 256], vec![0; 2 * 256 * 4]).unwrap();
        }
        let file = Gguf::from_bytes(writer.to_bytes().unwrap()).unwrap();
        Preset::all().flat_map(|preset| preset.kinds(&file)).collect()
    }

    #[test]
    fn layers_beyond_all_bounds_have_types_too() {
        for blocks in [0, 1, 1 << 61, 1 << 63, u64::MAX] {
            assert_eq!(of(Value::from(blocks)).len(), 3 * Preset::all().count());
        }
        assert_eq!((0..32).filter(|i| more_bits(*i, 32)).count(), 4 + 8 + 4);
        assert!(more_bits(usize::MAX, usize::MAX) && more_bits(usize::MAX - 1, usize::MAX));
    }
}
