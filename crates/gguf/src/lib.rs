//! GGUF files: metadata and tensors of a model, memory-mapped; several files of one model as one.
//!
//! ```text
//!   path ── Gguf::open ──┬── metadata: key ──► Value
//!   (all parts)          └── tensors: name, type, shape, bytes in the mapping ──► decode ──► f32
//!
//!   Writer: metadata, tensors ──► file
//!   quantize: a file with the types of a Preset
//! ```
//!
//! Nothing of a file is believed before it is checked: counts against the bytes that are left, tensors against the file's
//! end, against each other and against the alignment. Versions 1 to 3 are read, version 3 is written.
//!
//! ```
//! use olivine_gguf::{Gguf, TensorKind, Value, Writer};
//! let mut writer = Writer::new();
//! writer.metadata("general.architecture", Value::from("llama"))?;
//! writer.tensor("output.weight", TensorKind::F32, &[2, 4], vec![0; 32])?;
//! let file = Gguf::from_bytes(writer.to_bytes()?)?;
//! assert_eq!(file.metadata().string("general.architecture")?, "llama");
//! assert_eq!(file.tensors()[0].shape, [2, 4]);
//! # Ok::<(), olivine_gguf::Error>(())
//! ```
#![forbid(unsafe_code)]

mod bytes;
mod error;
mod file;
mod kind;
mod metadata;
mod preset;
mod quantize;
mod read;
mod write;

pub use error::Error;
pub use file::{Gguf, Tensor};
pub use kind::TensorKind;
pub use metadata::{Metadata, Value};
pub use preset::Preset;
pub use quantize::quantize;
pub use write::Writer;
