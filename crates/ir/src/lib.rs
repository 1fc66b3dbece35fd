//! Typed tensor graphs: what a model computes, and nothing about how.
//!
//! ```text
//!   Graph ── values (type, definition) ── nodes (Op, operands, results) ── named outputs
//!     │            │                         │
//!     │            Tensor / Shape / DType    op/: attribute struct + shape rule per operation
//!     ├── verify: every rule of the IR checked again
//!     └── text:   prints, and parses back to an equal graph
//! ```
//!
//! ```
//! use olivine_ir::{DType, Graph};
//! let mut g = Graph::new("dense");
//! let x = g.input("x", DType::F32, [4, 8])?;
//! let w = g.param("w", DType::F32, [8, 2])?;
//! let y = g.matmul(x, w)?;
//! let y = g.gelu(y)?;
//! g.output("y", y)?;
//! let text = g.to_string();
//! assert_eq!(text.parse::<Graph>()?, g);
//! # Ok::<(), olivine_ir::Error>(())
//! ```
#![forbid(unsafe_code)]

pub mod attr;
mod convert;
mod display;
mod dtype;
mod error;
mod evaluate;
mod fusion;
mod graph;
mod id;
pub mod memory;
#[cfg(feature = "ndarray")]
mod ndarray;
pub mod op;
pub mod port;
mod recycle;
mod shape;
mod subgraph;
mod tensor;
mod text;
mod verify;

pub use dtype::{DType, Element, round_to_odd};
pub use error::{Error, nearest};
pub use evaluate::Evaluate;
pub use fusion::Fusion;
pub use graph::{Def, Graph, Node, Output, Value, open_symbol};
pub use half;
pub use id::{NodeId, ValueId};
pub use olivine_quant::BlockFormat;
pub use olivine_size as size;
pub use olivine_size::Dim;
pub use op::Op;
pub use recycle::Recycler;
pub use shape::{IntoShape, MAX_ELEMENTS, MAX_RANK, Shape, Sizes, TensorType, broadcast_size, product};
pub use subgraph::{MAX_NESTING, SubGraph};
pub use tensor::{Data, Tensor, TensorView};
pub use text::Printer;
