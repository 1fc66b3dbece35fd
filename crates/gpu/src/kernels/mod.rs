//! The kernel library: one file per family. A family turns a node's [`Site`] into dispatches, or says why it cannot.

mod arg_reduce;
mod attention;
mod cells;
mod concat;
mod copy;
mod create;
mod cumulative;
mod elementwise;
mod gather;
mod group_norm;
mod index;
mod integers;
mod kv_append;
mod matmul;
mod nonzero;
mod norm;
mod order;
mod pad;
mod reduce;
mod rope;
mod rows;
mod scatter;
mod softmax;
mod transpose;

use olivine_ir::Op;

use crate::lower::site::Site;

pub(crate) use elementwise::{WHOLE_COPY, copy};

/// Emits a node's dispatches.
pub(crate) fn lower(op: &Op, site: &mut Site<'_>) -> Result<(), String> {
    match op {
        Op::ScalarOp(op) => elementwise::scalar(op, site),
        Op::Fused(op) => elementwise::fused(&op.region, site),
        Op::Concat(op) => concat::concat(op, site),
        Op::Pad(op) => pad::pad(op, site),
        Op::Gather(op) => gather::gather(op, site),
        Op::GatherElements(op) => gather::gather_elements(op, site),
        Op::GatherNd(op) => gather::gather_nd(op, site),
        Op::ScatterElements(op) => scatter::scatter_elements(op, site),
        Op::ScatterNd(op) => scatter::scatter_nd(op, site),
        Op::OneHot(op) => create::one_hot(op, site),
        Op::Trilu(op) => create::trilu(op, site),
        Op::Range(op) => create::range(op, site),
        Op::NonZero(op) => nonzero::nonzero(op, site),
        Op::Sort(op) => order::sort(op, site),
        Op::ArgSort(op) => order::argsort(op, site),
        Op::TopK(op) => order::top_k(op, site),
        Op::Reduce(op) => reduce::reduce(op, site),
        Op::LayerNorm(op) => norm::layer_norm(op, site),
        Op::RmsNorm(op) => norm::rms_norm(op, site),
        Op::GroupNorm(op) => group_norm::group_norm(op, site),
        Op::Cumulative(op) => cumulative::cumulative(op, site),
        Op::ArgReduce(op) => arg_reduce::arg_reduce(op, site),
        Op::Softmax(op) => softmax::softmax(op.axis, false, site),
        Op::LogSoftmax(op) => softmax::softmax(op.axis, true, site),
        Op::MatMul(op) => matmul::matmul(op, site),
        Op::GroupedMatMul(_) => matmul::grouped(site),
        Op::Attention(op) => attention::attention(op, site),
        Op::KvAppend(op) => kv_append::kv_append(op, site),
        Op::Rope(op) => rope::rope(op, site),
        _ => Err("has no GPU kernel yet".into()),
    }
}
