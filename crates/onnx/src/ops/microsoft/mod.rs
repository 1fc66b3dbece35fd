//! Operators of com.microsoft that exported transformers use.
//!
//! ```text
//!   attention.rs    Attention, QAttention, MultiHeadAttention
//!   group_query.rs  GroupQueryAttention and its cache
//!   rotary.rs       RotaryEmbedding
//!   norm.rs         norms with a residual
//!   embedding.rs    embeddings with a norm
//!   activation.rs   the family of gelu, and activations by name
//!   matmul.rs       matmuls with epilogues
//!   blocks.rs       weights of few bits, quantised by blocks
//!   moe.rs          QMoE
//!   quantize.rs     quantised matmuls, convolutions and activations
//!   lstm.rs         DynamicQuantizeLSTM
//! ```

mod activation;
mod attention;
mod blocks;
mod embedding;
mod group_query;
mod lstm;
mod matmul;
mod moe;
mod norm;
mod quantize;
mod rotary;

use super::Entry;
use crate::ops::arity::Takes;

/// All of them.
pub(super) const FAMILIES: &[&[Entry]] = &[OPERATORS, lstm::OPERATORS, quantize::OPERATORS];

const OPERATORS: &[Entry] = &[
    ("Attention", Takes(7, 2), attention::attention),
    ("BiasAdd", Takes(3, 1), activation::bias_add),
    ("BiasGelu", Takes(2, 1), activation::gelu),
    ("BiasSplitGelu", Takes(2, 1), activation::bias_split_gelu),
    ("EmbedLayerNormalization", Takes(9, 3), embedding::embed_layer_norm),
    ("FastGelu", Takes(2, 1), activation::fast_gelu),
    ("FusedConv", Takes(4, 1), matmul::fused_conv),
    ("FusedGemm", Takes(3, 1), matmul::fused_gemm),
    ("FusedMatMul", Takes(2, 1), matmul::fused_matmul),
    ("GatherBlockQuantized", Takes(4, 1), blocks::gather),
    ("Gelu", Takes(1, 1), activation::gelu),
    ("GroupQueryAttention", Takes(16, 4), group_query::group_query_attention),
    ("MatMulNBits", Takes(6, 1), blocks::matmul),
    ("MultiHeadAttention", Takes(10, 4), attention::multi_head_attention),
    ("QAttention", Takes(9, 2), attention::quantized_attention),
    ("QEmbedLayerNormalization", Takes(18, 2), embedding::quantized_embed_layer_norm),
    ("QMoE", Takes(21, 1), moe::mixture),
    ("QuickGelu", Takes(1, 1), activation::quick_gelu),
    ("RotaryEmbedding", Takes(4, 1), rotary::rotary_embedding),
    ("SimplifiedLayerNormalization", Takes(2, 3), norm::simplified_layer_norm),
    ("SkipLayerNormalization", Takes(5, 4), norm::skip_layer_norm),
    ("SkipSimplifiedLayerNormalization", Takes(4, 4), norm::skip_simplified_layer_norm),
];

/// Operators that ONNX Runtime adds to ONNX's own domain.
pub(super) const IN_ONNX: &[Entry] =
    &[("SimplifiedLayerNormalization", Takes(2, 3), norm::simplified_layer_norm)];
