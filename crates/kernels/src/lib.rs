//! The GPU kernel library: one module per family, for any device that [`DeviceCaps`](olivine_program::DeviceCaps)
//! describes.
//!
//! ```text
//!   node ── Site: operands, targets, scratch, device ── lower ── a family's module ── Site::emitted: dispatches
//!                                                                   │
//!                                        Launch: a kernel and what it is bound to    math: scalar functions
//! ```
//!
//! A family turns a node's [`Site`] into dispatches, or says why it cannot. Memory has no address yet: `olivine-gpu`
//! places it when all nodes of a graph are lowered.
//!
//! ```
//! use olivine_ir::op::{ScalarOp, Unary};
//! use olivine_ir::{DType, Op, Shape, TensorType, ValueId};
//! use olivine_kernel::Target as Features;
//! use olivine_kernels::{Memory, Site, Target};
//! use olivine_program::{Addressing, DeviceCaps, DeviceKind};
//! let caps = DeviceCaps {
//!     name: "a device".into(),
//!     driver: "a driver".into(),
//!     kind: DeviceKind::Discrete,
//!     target: Features::plain(),
//!     addressing: Addressing::Pointers,
//!     max_groups: [65535; 3],
//!     max_buffer_bytes: 1 << 32,
//!     memory_bytes: 1 << 34,
//!     tuning: Default::default(),
//! };
//! let ty = TensorType::new(DType::F32, Shape::new(&[1024])?);
//! let value = |i| Target { ty, memory: Memory::Value(ValueId::new(i)) };
//! let mut site = Site::new(&caps, vec![value(0).as_operand()], vec![value(1)]);
//! olivine_kernels::lower(&Op::ScalarOp(ScalarOp::Unary(Unary::Exp)), &mut site)?;
//! assert_eq!(site.emitted.len(), 1);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![forbid(unsafe_code)]

mod arg_reduce;
mod attention;
mod cells;
mod concat;
mod conv;
mod copy;
mod create;
mod cumulative;
mod elementwise;
mod fft;
mod gather;
mod group_norm;
mod index;
mod integers;
mod interleave;
mod interpolate;
mod kv_append;
mod launch;
mod math;
mod matmul;
mod nonzero;
mod norm;
mod order;
mod pad;
mod pool;
mod random;
mod recurrent;
mod reduce;
mod resize;
mod rope;
mod rotations;
mod rows;
mod sample;
mod scatter;
mod site;
mod softmax;
mod state_space;
mod transpose;
mod walk;

use olivine_ir::Op;

pub use copy::{Move, Side, emit as copy_strided};
pub use elementwise::{WHOLE_COPY, copy, whole_copy};
pub use launch::{Bound, Launch};
pub use math::elem;
pub use matmul::Unsummed;
pub use site::{Emitted, Gating, Made, Memory, Operand, Site, Target, linear_group};

/// Whether a family reads packed operands that begin anywhere in their memory.
pub fn reads_offset(op: &Op) -> bool {
    matches!(op, Op::Fft(_))
}

/// Emits the dispatches of several nodes together; their operands and targets stand one after another.
/// Every operation comes with how many of the operands are its own.
pub fn lower_together(ops: &[(&Op, usize)], site: &mut Site<'_>) -> Result<(), String> {
    match ops {
        [(Op::MatMul(_), _), (Op::Fused(op), _)] => matmul::paired(&op.region, site),
        [(Op::MatMul(_), _), (Op::ScalarOp(op), inputs)] => {
            matmul::paired(&elementwise::region_of(op, *inputs), site)
        }
        _ => rotations::rotations(ops, site),
    }
}

/// Emits a node's dispatches.
pub fn lower(op: &Op, site: &mut Site<'_>) -> Result<(), String> {
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
        Op::Conv(op) => conv::conv(op, site),
        Op::ConvTranspose(op) => conv::conv_transpose(op, site),
        Op::Im2Col(op) => conv::im2col(op, site),
        Op::Attention(op) => attention::attention(op, site),
        Op::KvAppend(op) => kv_append::kv_append(op, site),
        Op::Rope(op) => rope::rope(op, site),
        Op::Pool(op) => pool::pool(op, site),
        Op::AdaptivePool(op) => pool::adaptive_pool(op, site),
        Op::Resize(op) => resize::resize(op, site),
        Op::GridSample(op) => interpolate::grid_sample(op, site),
        Op::RoiAlign(op) => interpolate::roi_align(op, site),
        Op::SelectiveScan(op) => state_space::selective_scan(op, site),
        Op::Mamba2(op) => state_space::mamba2(op, site),
        Op::GatedDeltaNet(op) => state_space::gated_delta_net(op, site),
        Op::CausalConv1d(op) => state_space::causal_conv1d(op, site),
        Op::Recurrence(op) => recurrent::recurrence(op, site),
        Op::Fft(op) => fft::fft(op, site),
        Op::RngUniform(op) => random::uniform(op, site),
        Op::RngNormal(op) => random::normal(op, site),
        Op::Sample(op) => sample::sample(op, site),
        Op::QMatMul(op) => matmul::qmatmul(op, site),
        Op::QConv(op) => matmul::qconv(op, site),
        _ => Err("has no GPU kernel yet".into()),
    }
}
