//! Operations of your own: everything that defining one takes, in one place.
//!
//! A [`CustomOp`] has a name, a shape rule, and a part for each kind of device that can compute it: a [`CpuFunction`] for the
//! CPU, a [`GpuKernel`] for GPUs. `docs/custom-ops.md` is a worked example.

pub use olivine_cpu::{CpuFunction, ResultMut};
pub use olivine_gpu::{Args, Call, CodeLaunch, GpuKernel, Scratch};
pub use olivine_ir::attr::{Attr, Attrs};
pub use olivine_ir::op::{Custom, CustomOp, Registry};
pub use olivine_kernel::{Foreign, SpirvModule, WgslModule};

/// The kernel language, for kernels of your own.
pub mod kernel {
    pub use olivine_kernel::{
        Access, AtomicOp, BinaryOp, Buf, Builder, CompareOp, Elem, Error, Fragments, Kernel,
        MAX_BOUNDED_LENGTH, MatrixShape, MatrixSupport, MatrixType, MatrixUse, Number, Reduction, Scalar,
        Shared, SubgroupOp, Target, Type, UnaryOp, Val, Var, bounded,
    };
}
