//! Operators of com.microsoft that exported transformers use.
//!
//! ```text
//!   attention.rs    Attention, QAttention, MultiHeadAttention
//!   group_query.rs  GroupQueryAttention and its cache
//!   rotary.rs       RotaryEmbedding
//!   norm.rs         norms with a residual
//!   embedding.rs    embeddings with a norm
//!   activation.rs   the family of gelu, and activations by name
//!   product.rs      products with what follows them
//!   blocks.rs       weights of few bits, quantised by blocks
//! ```

mod activation;
mod attention;
mod blocks;
mod embedding;
mod group_query;
mod norm;
mod product;
mod rotary;

use super::Entry;

pub(super) const OPERATORS: &[Entry] = &[
    ("Attention", attention::attention),
    ("BiasAdd", activation::bias_add),
    ("BiasGelu", activation::gelu),
    ("BiasSplitGelu", activation::bias_split_gelu),
    ("EmbedLayerNormalization", embedding::embed_layer_norm),
    ("FastGelu", activation::fast_gelu),
    ("FusedConv", product::fused_conv),
    ("FusedGemm", product::fused_gemm),
    ("FusedMatMul", product::fused_matmul),
    ("GatherBlockQuantized", blocks::gather),
    ("Gelu", activation::gelu),
    ("GroupQueryAttention", group_query::group_query_attention),
    ("MatMulNBits", blocks::matmul),
    ("MultiHeadAttention", attention::multi_head_attention),
    ("QAttention", attention::quantized_attention),
    ("QEmbedLayerNormalization", embedding::quantized_embed_layer_norm),
    ("QuickGelu", activation::quick_gelu),
    ("RotaryEmbedding", rotary::rotary_embedding),
    ("SimplifiedLayerNormalization", norm::simplified_layer_norm),
    ("SkipLayerNormalization", norm::skip_layer_norm),
    ("SkipSimplifiedLayerNormalization", norm::skip_simplified_layer_norm),
];

/// Operators that ONNX Runtime adds to ONNX's own domain.
pub(super) const IN_ONNX: &[Entry] = &[("SimplifiedLayerNormalization", norm::simplified_layer_norm)];
