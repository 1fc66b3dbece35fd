//! Lowering of compiled graphs to GPU programs, and their execution on any driver.
//!
//! ```text
//!   fused Graph ─ lower ─► Program ─ Executable<D: Driver> ─► run
//!                  │ fusion: nodes that one dispatch serves
//!                  │ olivine-kernels: dispatches of each
//!   DeviceCaps ────┤ memory plan: where every value lives
//!   Record ────────┘ measured choices of kernels
//! ```
//!
//! ```
//! use olivine_compile::{Options, compile};
//! use olivine_gpu::{Addressing, DeviceCaps, DeviceKind, Record, lower};
//! use olivine_ir::{DType, Graph};
//! let mut g = Graph::new("dense");
//! let (x, w) = (g.input("x", DType::F32, [64, 64])?, g.param("w", DType::F32, [64, 64])?);
//! let y = g.matmul(x, w)?;
//! let y = g.gelu(y)?;
//! g.output("y", y)?;
//! let caps = DeviceCaps {
//!     name: "a device".into(),
//!     driver: "a driver".into(),
//!     kind: DeviceKind::Discrete,
//!     target: olivine_kernel::Target::plain(),
//!     addressing: Addressing::Pointers,
//!     max_groups: [65535; 3],
//!     max_buffer_bytes: 1 << 32,
//!     memory_bytes: 1 << 34,
//!     processors: None,
//!     keeps_denormals: true,
//!     ptx: None,
//! };
//! let program = lower(&compile(&g, &Options::default())?, &caps, &Record::new(), &[])?;
//! // The activation is the matmul's epilogue.
//! assert_eq!(program.run.len(), 1);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
// The constructors of custom kernels that nothing checks are `unsafe`; there is no unsafe block.
#![deny(unsafe_code)]

mod custom;
mod executable;
mod lower;
mod module;
mod trial;
mod tune;
mod weights;

pub use custom::{Args, Call, CodeLaunch, GpuKernel, Scratch};
pub use executable::{DeviceTensor, DispatchTime, Executable, Input, Run, Take, Typed, check_memory};
pub use lower::{State, lower};
pub use module::ModuleRun;
pub use olivine_program::{
    Addressing, BufferDecl, BufferId, Commands, Content, Decision, DeviceCaps, DeviceKind, Dispatch, Driver,
    Error, Fusion, Hazards, KernelId, KernelSource, Mask, PROCESSOR_CLASS, Port, Program, Ptx, Record, Slice,
    Timing, Touched, device_order,
};
pub use trial::{Finding, proven, try_matrices};
pub use tune::{Tuning, shipped_record, tuning_file};
pub use weights::Weights;
