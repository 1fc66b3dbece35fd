//! Device buffers with immediate operations, and lazy arrays whose operations are joined into one graph before they run.
//!
//! ```text
//!   Buffer ── binary, unary, reduce, matmul, transpose_2d ──┐  op codes, sizes checked first
//!   Array ─── apply(op), apply_text("…"), methods ──────────┤
//!                                                           ▼
//!                             operations that wait ── eval ── one graph ── executable, cached by content
//!                                                                              │
//!   Context: a device (cpu · vulkan · wgpu), the cache, work in flight ◀───────┘  wait · is_ready · on_ready
//! ```
//!
//! ```
//! use olivine_array::{Array, Context, Device};
//!
//! let context = Context::new(Device::Cpu)?;
//! let x = Array::from_slice(&context, [2, 3], &[1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0])?;
//! let row = Array::from_slice(&context, [3], &[10.0f32, 20.0, 30.0])?;
//! // Nothing runs yet; then all of it is one dispatch.
//! let y = x.mul(&row)?.sqrt()?.square()?.apply_text("reduce_sum {axes=[1], keepdims=false}", &[])?;
//! assert_eq!(y[0].to_vec::<f32>()?.iter().map(|v| v.round()).collect::<Vec<_>>(), [140.0, 320.0]);
//! # Ok::<(), olivine_array::Error>(())
//! ```
//!
//! Buffers are bytes; each operation says which dtype it reads them as. Handles are reference-counted: work in flight keeps
//! the memory alive.
//!
//! ```
//! use olivine_array::{Context, DType, Device, ops};
//!
//! let context = Context::new(Device::Cpu)?;
//! let bytes = |numbers: &[f32]| numbers.iter().flat_map(|n| n.to_ne_bytes()).collect::<Vec<u8>>();
//! let a = context.upload(&bytes(&[1.0, 2.0, 3.0]))?;
//! let out = context.alloc(12)?;
//! context.binary(&out, &a, &a, 3, ops::binary::ADD, DType::F32)?;
//! assert_eq!(out.download()?, bytes(&[2.0, 4.0, 6.0]));
//! # Ok::<(), olivine_array::Error>(())
//! ```
#![forbid(unsafe_code)]

mod array;
mod buffer;
mod cache;
mod context;
mod error;
mod eval;
mod flight;
mod immediate;
mod methods;
mod node;
mod notify;
pub mod ops;
mod outline;
mod spv;

pub use array::Array;
pub use buffer::Buffer;
pub use context::{CacheStats, Context, ContextOptions};
pub use error::{Error, ErrorKind};
pub use olivine::{Device, DeviceTensor, Session, SessionOptions};
pub use olivine_ir::{DType, Element, Graph, IntoShape, Op, Shape, Tensor, TensorType, op};
pub use spv::SpvModule;

/// The guide's examples, run as doc tests.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/guides/arrays.md")]
struct Guide;
