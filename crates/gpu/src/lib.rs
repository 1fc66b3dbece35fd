//! The GPU kernel library, the lowering of fused graphs to programs, and what every driver shares.
//!
//! ```text
//!   fused Graph ─ lower ─► Program (kernels, dispatches, buffers) ─ Executable<D: Driver> ─► run
//!                  │ kernels/: one file per family
//!   DeviceCaps ────┘
//! ```
// The constructors of custom kernels that nothing checks are `unsafe`; there is no unsafe block.
#![deny(unsafe_code)]

mod caps;
mod custom;
mod driver;
mod error;
mod executable;
mod fragments;
mod hazard;
mod kept;
mod kernels;
mod lower;
mod math;
mod program;
mod trial;
mod tune;
mod weights;

pub use caps::{Addressing, DeviceCaps, DeviceKind, Mask};
pub use custom::{Args, Call, CodeLaunch, GpuKernel, Scratch};
pub use driver::{Commands, Driver, Timing};
pub use error::Error;
pub use executable::{DeviceTensor, DispatchTime, Executable, Feed, Run, Take};
pub use fragments::ask_fragments;
pub use hazard::{Hazards, Touched};
pub use kept::{Kept, PipelineKey};
pub use lower::{State, lower};
pub use program::{BufferDecl, BufferId, Content, Dispatch, KernelId, Port, Program, Slice};
pub use trial::{Finding, failed_trials, proven, try_matrices};
pub use tune::{Decision, Record, Tuning, tuning_file};
pub use weights::Weights;
