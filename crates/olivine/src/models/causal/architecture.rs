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

/// What carries positions on in layers without attention: a state of fixed size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Recurrence {
    /// Mamba-2 in every layer, without feed-forward blocks.
    Mamba2,
    /// The gated delta net in each layer but every nth, which has attention.
    GatedDelta,
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
    /// What layers without attention have.
    pub(super) recurrence: Option<Recurrence>,
    /// Rows of the projection of queries are a head's query and then its gate, which multiplies what the head attends to.
    pub(super) gated_attention: bool,
    /// What begins the names of layers in Hugging Face folders.
    pub(super) layers: &'static str,
    /// Names of tensors in Hugging Face folders that differ from Llama's, by their names in GGUF: with what follows the last
    /// dot, or without to rename weight and bias.
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
    recurrence: None,
    gated_attention: false,
    layers: "model.layers",
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

pub(super) const ARCHITECTURES: [Architecture; 10] = [
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
        model_types: &["gpt_oss"],
        activation: Activation::ClampedSilu,
        ffn_norm: "post_attention_norm",
        global_every: 2,
        renamed: &[
            ("post_attention_norm", "post_attention_layernorm"),
            ("attn_sinks.weight", "self_attn.sinks"),
            ("ffn_gate_inp", "mlp.router"),
        ],
        ..NEOX
    },
    Architecture {
        name: "mamba2",
        model_types: &["mamba2"],
        recurrence: Some(Recurrence::Mamba2),
        layers: "backbone.layers",
        renamed: &[
            ("token_embd", "backbone.embeddings"),
            ("output_norm", "backbone.norm_f"),
            ("attn_norm", "norm"),
            ("ssm_in", "mixer.in_proj"),
            ("ssm_conv1d", "mixer.conv1d"),
            ("ssm_dt.bias", "mixer.dt_bias"),
            ("ssm_a", "mixer.A_log"),
            ("ssm_d", "mixer.D"),
            ("ssm_norm", "mixer.norm"),
            ("ssm_out", "mixer.out_proj"),
        ],
        ..NEOX
    },
    Architecture {
        name: "qwen3next",
        model_types: &["qwen3_next"],
        norms_from_one: true,
        ffn_norm: "post_attention_norm",
        global_every: 4,
        recurrence: Some(Recurrence::GatedDelta),
        gated_attention: true,
        renamed: &[
            ("post_attention_norm", "post_attention_layernorm"),
            ("ssm_in", "linear_attn.in_proj_qkvz"),
            ("ssm_ba", "linear_attn.in_proj_ba"),
            ("ssm_conv1d", "linear_attn.conv1d"),
            ("ssm_dt.bias", "linear_attn.dt_bias"),
            ("ssm_a", "linear_attn.A_log"),
            ("ssm_norm", "linear_attn.norm"),
            ("ssm_out", "linear_attn.out_proj"),
        ],
        ..NEOX
    },
];

/// The tensors of a layer: their names in GGUF, and in Hugging Face folders where an architecture does not rename them.
pub(super) const LAYER_TENSORS: [(&str, &str); 19] = [
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
    ("ffn_gate_inp_shexp", "mlp.shared_expert_gate"),
    ("ffn_gate_shexp", "mlp.shared_expert.gate_proj"),
    ("ffn_up_shexp", "mlp.shared_expert.up_proj"),
    ("ffn_down_shexp", "mlp.shared_expert.down_proj"),
];
