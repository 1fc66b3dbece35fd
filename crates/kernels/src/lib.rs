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
//!     processors: None,
//!     keeps_denormals: true,
//!     ptx: None,
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
mod packed;
mod pad;
mod pages;
mod pool;
mod q8_0;
mod random;
mod recurrent;
mod reduce;
mod resize;
mod ring;
mod rope;
mod rope_append;
mod rope_pack;
mod rows;
mod sample;
mod scatter;
mod site;
mod slice_scatter;
mod softmax;
mod state_space;
mod transpose;
mod walk;

use olivine_ir::{Op, for_each_kernel};

/// Functions of f32 and f64 registers, for kernels written outside of this crate.
pub mod float {
    pub use crate::math::{binary, compare, pick, unary};
}

pub use copy::{CopyLayout, StridedCopy, emit as copy_strided};
pub use elementwise::{WHOLE_COPY, copy, whole_copy};
pub use launch::{Bound, Launch};
pub use math::elem;
pub use matmul::SplitKPartials;
pub use packed::joins_as_gemv;
pub use site::{Emitted, Gating, Memory, Operand, Prepacked, Shared, Site, Target, linear_group};

/// Whether a family reads packed operands that begin anywhere in their memory.
pub fn reads_offset(op: &Op) -> bool {
    matches!(op, Op::Fft(_))
}

/// Emits the dispatches of several nodes together; their operands and targets stand one after another.
/// Every operation comes with how many of the operands are its own.
pub fn lower_together(ops: &[(&Op, usize)], site: &mut Site<'_>) -> Result<(), String> {
    match ops {
        [(Op::MatMul(_), _), (Op::Fused(op), _)] => matmul::gated(&op.region, site),
        [(Op::MatMul(_), _), (Op::ScalarOp(op), inputs)] => {
            matmul::gated(&elementwise::region_of(op, *inputs), site)
        }
        [.., (Op::DequantMatMul(_), _)] => packed::together(ops, site),
        _ => rope_append::rope_append(ops, site),
    }
}

/// How an operation becomes dispatches: every operation with a kernel implements it, by [`kernels!`] beside its function.
trait Lower {
    /// Emits the dispatches, or says why the device cannot run them.
    fn lower(&self, site: &mut Site<'_>) -> Result<(), String>;
}

/// Implements [`Lower`]: `kernels! { |op, site| Pad => pad(op, site), }`.
macro_rules! kernels {
    (|$op:ident, $site:ident| $($name:ident => $lower:expr),* $(,)?) => {$(
        impl $crate::Lower for olivine_ir::op::$name {
            #[allow(unused_variables, reason = "not every kernel has attributes")]
            fn lower(&self, $site: &mut $crate::Site<'_>) -> Result<(), String> {
                let $op = self;
                $lower
            }
        }
    )*};
}
use kernels;

/// Emits a node's dispatches.
pub fn lower(op: &Op, site: &mut Site<'_>) -> Result<(), String> {
    macro_rules! lower {
        ($($name:ident,)*) => {
            match op {
                $(Op::$name(op) => op.lower(site),)*
                _ => Err("has no kernel in the library".into()),
            }
        };
    }
    for_each_kernel!(lower)
}
