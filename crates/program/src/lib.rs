//! What GPU drivers need: programs, what a device can do, and the [`Driver`] trait.
//!
//! ```text
//!   Program: kernels, dispatches, buffers ──┐
//!   DeviceCaps: what lowering asks          ├── Commands ── Driver::record ── Recording ── submit, wait
//!   Hazards: which dispatches must wait ────┘                  │
//!   PipelineCache: built kernels by content ───────────────────┘
//! ```
//!
//! Lowering (`olivine-gpu`) makes programs; drivers (`olivine-vulkan`, `olivine-wgpu`) run them. Neither knows the
//! other.
//!
//! ```
//! use olivine_program::{Hazards, Touched};
//! // The second dispatch reads what the first writes: a barrier goes between them.
//! let mut hazards = Hazards::default();
//! assert!(!hazards.next(&Touched { reads: vec![0..64], writes: vec![64..128] }));
//! assert!(hazards.next(&Touched { reads: vec![64..128], writes: vec![128..192] }));
//! ```
#![forbid(unsafe_code)]

mod caps;
mod driver;
mod error;
mod fragments;
mod hazard;
mod pipeline_cache;
mod program;
mod tuning;

pub use caps::{ALIGNMENT, Addressing, DeviceCaps, DeviceKind, Mask};
pub use driver::{Commands, Driver, KernelSource, Timing};
pub use error::Error;
pub use fragments::ask_fragments;
pub use hazard::{Hazards, Touched};
pub use pipeline_cache::{PipelineCache, PipelineKey};
pub use program::{BufferDecl, BufferId, Content, Dispatch, Fusion, KernelId, Port, Program, Slice};
pub use tuning::{Decision, Record};
