//! What differs between architectures of language models. A new one is a row of [`ARCHITECTURES`], and whatever
//! is optional in it (biases, norms of heads, fused matrices, experts) is found by the tensors that a file has.

use olivine_ir::op::RopeStyle;

/// The function between the matmuls of a feed-forward block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Activation {
    /// `silu(gate)·up`.
    Silu,
    /// `gelu(gate)·up`, by tanh.
    GeluTanh,
    /// `g·sigmoid(1.702·g)·(u + 1)` with g at most 7 and u within ±7.
    ClampedSilu,
}

/// One architecture.
pub(super) struct Architecture {
    /// Its name in GGUF, which begins the keys of its metadata.
    pub(super) name: &'static str,
    /// The `model_type`s of its Hugging Face configurations.
    pub(super) model_types: &'static [&'static str],
    /// Pairs that rotate together, as GGUF orders rows of q and k. Hugging Face orders all as NeoX.
    pub(super) style: RopeStyle,
    pub(super) activation: Activation,
    /// Embeddings are multiplied by √hidden.
    pub(super) scaled_embedding: bool,
    /// Hugging Face stores what its norms add to 1.
    pub(super) norms_from_one: bool,
    /// The norm before the feed-forward block.
    pub(super) ffn_norm: &'static str,
    /// Where layers have windows: each but every nth, counted from 1; 1 if all have them.
    pub(super) global_every: usize,
    /// The base of rotations in layers with a window, where it is another than elsewhere.
    pub(super) local_base: Option<f64>,
    /// Scores are scaled by (hidden/heads)^-1/2 instead of dim^-1/2 in the model of so many layers: GGUF does not say it.
    pub(super) width_scale_layers: Option<usize>,
    /// Names of tensors in Hugging Face folders that differ from Llama's, by their names in GGUF.
    pub(super) renamed: &'static [(&'static str, &'static str)],
}

/// Llama, from which others differ.
const LLAMA: Architecture = Architecture {
    name: "llama",
    model_types: &[],
    // llama.cpp's converter orders rows of q and k so that neighbours are pairs.
    style: RopeStyle::GptJ,
    activation: Activation::Silu,
    scaled_embedding: false,
    norms_from_one: false,
    ffn_norm: "ffn_norm",
    global_every: 1,
    local_base: None,
    width_scale_layers: None,
    renamed: &[],
};

const NEOX: Architecture = Architecture { style: RopeStyle::NeoX, ..LLAMA };

const GEMMA: Architecture = Architecture {
    activation: Activation::GeluTanh,
    scaled_embedding: true,
    norms_from_one: true,
    renamed: &[
        ("ffn_norm", "pre_feedforward_layernorm"),
        ("post_attention_norm", "post_attention_layernorm"),
        ("post_ffw_norm", "post_feedforward_layernorm"),
    ],
    ..NEOX
};

pub(super) const ARCHITECTURES: [Architecture; 8] = [
    Architecture { model_types: &["llama", "mistral"], ..LLAMA },
    Architecture { name: "qwen2", model_types: &["qwen2"], ..NEOX },
    Architecture { name: "qwen3", model_types: &["qwen3"], ..NEOX },
    Architecture { name: "qwen3moe", model_types: &["qwen3_moe"], ..NEOX },
    Architecture {
        name: "phi3",
        model_types: &["phi3"],
        renamed: &[("attn_qkv", "self_attn.qkv_proj"), ("ffn_up", "mlp.gate_up_proj")],
        ..NEOX
    },
    Architecture {
        name: "gemma2",
        model_types: &["gemma2"],
        global_every: 2,
        width_scale_layers: Some(46),
        ..GEMMA
    },
    Architecture {
        name: "gemma3",
        model_types: &["gemma3_text"],
        global_every: 6,
        local_base: Some(10_000.0),
        width_scale_layers: Some(62),
        ..GEMMA
    },
    Architecture {
        name: "gpt-oss",
        // The folders have their experts in a layout of their own, which is not read.
        model_types: &[],
        activation: Activation::ClampedSilu,
        ffn_norm: "post_attention_norm",
        global_every: 2,
        ..NEOX
    },
];

/// The tensors of a layer: their names in GGUF, and in Hugging Face folders where an architecture does not rename them.
pub(super) const LAYER_TENSORS: [(&str, &str); 15] = [
    ("attn_norm", "input_layernorm"),
    ("attn_q", "self_attn.q_proj"),
    ("attn_k", "self_attn.k_proj"),
    ("attn_v", "self_attn.v_proj"),
    ("attn_q_norm", "self_attn.q_norm"),
    ("attn_k_norm", "self_attn.k_norm"),
    ("attn_output", "self_attn.o_proj"),
    ("ffn_norm", "post_attention_layernorm"),
    ("ffn_gate", "mlp.gate_proj"),
    ("ffn_up", "mlp.up_proj"),
    ("ffn_down", "mlp.down_proj"),
    ("ffn_gate_inp", "mlp.gate"),
    ("ffn_gate_exps", "mlp.experts.*.gate_proj"),
    ("ffn_up_exps", "mlp.experts.*.up_proj"),
    ("ffn_down_exps", "mlp.experts.*.down_proj"),
];
