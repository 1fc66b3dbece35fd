//! Olivine: a machine-learning compiler and runtime. Build or load a model, compile it for a device, run it.
//!
//! ```text
//!   Graph ── Session::compile ── Executable ── set_param ── run(inputs) ── Outputs
//!                 │
//!               Device: cpu · vulkan · wgpu
//! ```
//!
//! ```
//! use olivine::prelude::*;
//!
//! let mut g = Graph::new("dense");
//! let x = g.input("x", DType::F32, [1, 3])?;
//! let w = g.param("w", DType::F32, [3, 2])?;
//! let y = g.matmul(x, w)?;
//! let y = g.relu(y)?;
//! g.output("y", y)?;
//!
//! let dense = Session::new(Device::auto()?)?.compile(&g)?;
//! dense.set_param("w", Tensor::from([[1.0f32, -1.0], [0.5, 0.5], [2.0, -2.0]]))?;
//! let x = Tensor::from([[1.0f32, 2.0, 3.0]]);
//! let out = dense.run([("x", &x)])?;
//! assert_eq!(out["y"].to_string(), "[[8. 0.]]");
//! # Ok::<(), olivine::Error>(())
//! ```
//!
//! # Features
//!
//! `vulkan`, `wgpu` and `onnx` are on by default. Without any of them the crate is the CPU alone, for graphs built in Rust
//! or read from their text form, GGUF files and folders of safetensors; a device whose feature is off is listed as
//! unavailable, with that reason. `ndarray` converts tensors from and to arrays; `async` makes a run in flight a future, and
//! has the calls that never block, for browsers.
//!
//! # Warnings and progress
//!
//! The library prints nothing. It reports as [`tracing`] events: warnings (`WARN`) where it falls back, such as a cache folder
//! that others may write, a record of measured choices that cannot be read or cooperative matrices that a driver computes
//! wrongly, and progress (`DEBUG`) of compiling and building pipelines. Any `tracing` subscriber shows them.
#![forbid(unsafe_code)]
#![warn(missing_debug_implementations)]

#[cfg(all(doctest, feature = "vulkan", feature = "wgpu", feature = "onnx"))]
mod book;
pub mod cost;
pub mod custom;
mod device;
mod engine;
mod error;
mod executable;
pub mod internals;
mod model;
mod models;
pub mod npy;
mod process;
mod session;

pub use device::{Backend, Choice, Device, DeviceClass, DeviceInfo, WgpuApi, devices, is_available};
pub use engine::{DeviceTensor, StepTime};
pub use error::Error;
#[cfg(feature = "async")]
pub use executable::PendingFuture;
pub use executable::{
    CompileOptions, Executable, Input, Outputs, OutputsIter, Pending, ResidentOutputs, ResidentRun, State,
};
pub use model::Model;
pub use models::CacheType;
/// The record of measured times by which kernels are chosen; [`TuneBy`] and [`CompileOptions::tuning`] take one.
pub use olivine_gpu::Record as TuningRecord;
#[cfg(feature = "onnx")]
pub use olivine_onnx::{Links, LoadOptions};
pub use session::{Compile, PipelineCache, Precision, Session, SessionOptions, TuneBy};

/// Graphs, operations and tensors: what a model computes.
pub mod ir {
    pub use olivine_ir::{
        BlockFormat, DType, Data, Def, Dim, Element, Error, Graph, IntoShape, MAX_ELEMENTS, MAX_NESTING,
        MAX_RANK, Node, NodeId, Op, Output, Shape, Sizes, SubGraph, Tensor, TensorType, TensorView, Value,
        ValueId, half, op, port,
    };
}

/// What most programs need.
pub mod prelude {
    pub use crate::ir::op::{Attention, HeadLayout};
    pub use crate::ir::port::{ElementType, Port};
    pub use crate::ir::{DType, Graph, Shape, Tensor, TensorType, TensorView, ValueId};
    pub use crate::{
        Backend, CompileOptions, Device, DeviceTensor, Error, Executable, Input, Model, Outputs, Pending,
        Precision, ResidentOutputs, ResidentRun, Session, SessionOptions, State, devices, inputs,
        is_available,
    };
}
