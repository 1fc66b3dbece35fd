//! Weights from safetensors files: a header of names, types and places, and the elements after it.
//!
//! ```text
//!   8 bytes: length of the header ── header: JSON ── elements, little endian
//! ```
//!
//! Tensors must cover the file without overlap or gap, and no name may come twice, as the format's own library demands.
#![forbid(unsafe_code)]

mod header;
mod save;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use header::Entry;
use olivine_files::Contents;
use olivine_ir::{Data, Tensor, TensorType};

pub use save::save;

/// What can be wrong with a file.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file that cannot be read.
    #[error("cannot read `{}`: {source}", .path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// A file that cannot be written.
    #[error("cannot write `{}`: {source}", .path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// Bytes that are no safetensors file.
    #[error("not a safetensors file: {problem}")]
    NotSafetensors {
        /// What is wrong with them.
        problem: String,
    },
    /// A tensor that contradicts itself or cannot be held.
    #[error("tensor `{name}`: {problem}")]
    Tensor {
        /// The tensor.
        name: String,
        /// What is wrong with it.
        problem: String,
    },
}

/// The tensors of a file.
pub struct Weights {
    entries: BTreeMap<String, Entry>,
    bytes: Bytes,
}

impl Weights {
    /// Opens a file. Tensors are parts of its mapping where their elements are aligned, and are read when they are used.
    pub fn load(path: impl AsRef<Path>) -> Result<Self, Error> {
        let path = path.as_ref();
        let map = Contents::map(path).map_err(|source| Error::File { path: path.to_path_buf(), source })?;
        Weights::read(map)
    }

    /// Reads a file from memory.
    pub fn from_bytes(bytes: Vec<u8>) -> Result<Self, Error> {
        Weights::read(Contents::Owned(bytes))
    }

    fn read(bytes: Contents) -> Result<Self, Error> {
        let entries = header::read(&bytes)?;
        Ok(Weights { entries, bytes: Bytes::from_owner(bytes) })
    }

    /// The tensors' names, in order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.entries.keys().map(String::as_str)
    }

    /// A tensor's type; `None` if there is no such tensor, or no dtype for its elements.
    pub fn ty(&self, name: &str) -> Option<TensorType> {
        let entry = self.entries.get(name)?;
        Some(TensorType::new(entry.dtype.dtype()?, entry.shape))
    }

    /// A tensor.
    pub fn tensor(&self, name: &str) -> Result<Tensor, Error> {
        let wrong = |problem: String| Error::Tensor { name: name.into(), problem };
        let entry = self.entries.get(name).ok_or_else(|| {
            let near = olivine_ir::nearest(name, self.names());
            wrong(near.map_or("there is none".into(), |n| format!("there is none; did you mean `{n}`?")))
        })?;
        let dtype = entry
            .dtype
            .dtype()
            .ok_or_else(|| wrong(format!("elements of type {} cannot be held", entry.dtype)))?;
        let inside = entry.bytes.start <= entry.bytes.end && entry.bytes.end <= self.bytes.len();
        let bytes = if inside { self.bytes.slice(entry.bytes.clone()) } else { Bytes::new() };
        // Elements that are not aligned are copied, and so are bools, whose bytes have to be looked at.
        let shared = Tensor::from_shared(TensorType::new(dtype, entry.shape), bytes.clone());
        let copied = |_| Tensor::from_data(entry.shape, Data::from_bytes(dtype, &bytes)?);
        shared.or_else(copied).map_err(|e| wrong(e.to_string()))
    }
}
