//! What GPU drivers need: programs, what a device can do, and the [`Driver`] trait.
//!
//! ```text
//!   Program: kernels, dispatches, buffers ──┐
//!   DeviceCaps: what lowering asks          ├── Commands ── Driver::record ── Recording ── submit, wait
//!   Hazards: which dispatches must wait ────┘                  │
//!   SharedPipelines: built kernels by content ───────────────────┘
//! ```
//!
//! Lowering (`olivine-gpu`) makes programs; drivers (`olivine-vulkan`, `olivine-wgpu`) run them. Neither knows the
//! other.
//!
//! ```
//! use olivine_program::{Hazards, Touched};
//! // The second dispatch reads what the first writes: a barrier goes between them.
//! let mut hazards = Hazards::default();
//! assert!(!hazards.next(&Touched { reads: &[0..64], writes: &[64..128] }));
//! assert!(hazards.next(&Touched { reads: &[64..128], writes: &[128..192] }));
//! ```
#![forbid(unsafe_code)]

mod caps;
mod driver;
mod error;
mod fragments;
mod hazard;
mod load;
mod parallel;
mod program;
mod shared_pipelines;
mod sizing;
mod subgroups;
mod table;
mod tuning;

pub use caps::{
    ALIGNMENT, Addressing, DeviceCaps, DeviceKind, DeviceOrder, Mask, PROCESSOR_CLASS, Ptx, SOFTWARE_CLASS,
    device_order,
};
pub use driver::{Commands, Driver, KernelSource, ModuleCall, Timing};
pub use error::Error;
pub use fragments::ask_fragments;
pub use hazard::{Hazards, Touched};
pub use load::LoadBatch;
pub use olivine_ir::Fusion;
pub use parallel::in_parallel;
pub use program::{BufferDecl, BufferId, Content, Dispatch, KernelId, Port, Program, Slice};
pub use shared_pipelines::{PipelineKey, SharedPipelines};
pub use sizing::{SizedDispatch, SizedProgram, SizedSlice, Sizing};
pub use subgroups::ask_subgroups;
pub use table::{HostTable, SizedTable};
pub use tuning::{Decision, Record};
