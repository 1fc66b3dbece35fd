//! ONNX models as graphs.
//!
//! ```text
//!   file ── Model: parsed, checked, weights decoded
//!             │  specialise(bindings: shapes of inputs, values where shapes depend on them)
//!             ▼
//!           Outcome: a whole graph · names of inputs whose values decide shapes · a stage, or a loop, to run first
//! ```
//!
//! Shapes in a graph are fixed, those of ONNX models need not be: a model becomes a graph when its inputs' shapes are
//! known. Operands that decide shapes (the second of Reshape, the limits of Slice) must have values then. What follows
//! from constants and shapes is computed on the spot; what follows from inputs makes those inputs' values part of the
//! bindings; and what is left (how many elements are not zero) is computed by a graph of its own, a stage, whose result
//! joins the bindings of the next. A loop whose shapes change while it runs is run by the caller, which asks for graphs of
//! its iterations once their shapes are known.
#![deny(unsafe_code)]

mod data;
mod element;
mod error;
mod files;
mod import;
mod model;
mod ops;
#[allow(missing_docs, unreachable_pub, unused_qualifications, clippy::all, reason = "generated")]
#[rustfmt::skip]
mod proto;
mod sparse;
mod stored;
mod tensor;

pub use data::DataValue;
pub use error::{Error, Unsupported};
pub use files::{Links, LoadOptions};
pub use import::{
    Argument, ArgumentSource, Bindings, Bound, Known, LoopCall, LoopResults, Made, Outcome, Part,
    Specialised, Stage,
};
pub use model::{Model, NodeInfo};
pub use olivine_ir::port::{Dim, ElementType, Kind, Port};
