//! Where a language model's tensors come from. They have the names of GGUF; a folder's are translated.

use olivine_gguf::{Gguf, TensorKind};
use olivine_ir::{DType, Data, Shape, Tensor, TensorType};

use super::config::{Config, Key};
use super::folder::Folder;
use super::from_gguf::bad_key;
use crate::Error;

/// An open model.
pub(super) enum Source {
    Gguf(Gguf),
    Folder(Folder),
}

/// An error that names a tensor.
pub(super) fn bad_tensor(name: &str, problem: impl Into<String>) -> Error {
    olivine_gguf::Error::Tensor { name: name.to_string(), problem: problem.into() }.into()
}

impl Source {
    /// An error that names a tensor as its file does, and as GGUF does.
    pub(super) fn bad(&self, name: &str, problem: impl Into<String>) -> Error {
        match self {
            Source::Gguf(_) => bad_tensor(name, problem),
            Source::Folder(folder) => folder.bad(name, problem),
        }
    }

    /// An error that names an entry of the metadata.
    pub(super) fn bad_key(&self, key: Key, problem: String) -> Error {
        match self {
            Source::Gguf(file) => bad_key(file, key, problem),
            Source::Folder(folder) => folder.bad_key(key, problem),
        }
    }

    /// What the model is built from.
    pub(super) fn config(&self) -> Result<Config, Error> {
        match self {
            Source::Gguf(file) => Config::of_gguf(file),
            Source::Folder(folder) => folder.config(),
        }
    }

    pub(super) fn has(&self, name: &str) -> bool {
        match self {
            Source::Gguf(file) => file.tensor(name).is_some(),
            Source::Folder(folder) => folder.has(name),
        }
    }

    /// A weight as it is stored; a missing one is an error. `experts` are stacked where each is a tensor of its own.
    pub(super) fn tensor(&self, name: &str, experts: usize) -> Result<Tensor, Error> {
        match self {
            Source::Gguf(file) => stored(file, name),
            Source::Folder(folder) => folder.tensor(name, experts),
        }
    }

    /// A small weight, such as a norm's, in f32.
    pub(super) fn floats(&self, name: &str) -> Result<Tensor, Error> {
        match self {
            Source::Gguf(file) => {
                let tensor = file.tensor(name).ok_or_else(|| bad_tensor(name, "it is missing"))?;
                if !is_weight(tensor.kind) {
                    return Err(bad_tensor(name, format!("weights of {} cannot be run", tensor.kind)));
                }
                Ok(Tensor::new(Shape::new(&tensor.shape)?, file.decode(tensor)?)?)
            }
            Source::Folder(folder) => folder.floats(name),
        }
    }
}

/// Whether weights may be of this kind.
fn is_weight(kind: TensorKind) -> bool {
    matches!(kind, TensorKind::Blocks(_) | TensorKind::F32 | TensorKind::F16 | TensorKind::BF16)
}

/// A tensor of a GGUF file, which stays in the mapping.
fn stored(file: &Gguf, name: &str) -> Result<Tensor, Error> {
    let fail = |problem: String| bad_tensor(name, problem);
    let tensor = file.tensor(name).ok_or_else(|| fail("it is missing".into()))?;
    let plain = |dtype| Shape::new(&tensor.shape).map(|shape| TensorType::new(dtype, shape));
    let ty = match tensor.kind {
        TensorKind::Blocks(format) => TensorType::packed(format, &tensor.shape),
        TensorKind::F32 => plain(DType::F32),
        TensorKind::F16 => plain(DType::F16),
        TensorKind::BF16 => plain(DType::BF16),
        other => return Err(fail(format!("weights of {other} cannot be run"))),
    };
    let ty = ty.map_err(|e| fail(e.to_string()))?;
    let bytes = file.shared_bytes(tensor);
    // A file whose alignment is too small for its elements is copied.
    let shared = Tensor::from_shared(ty, bytes.clone());
    let copied = |_| Tensor::from_data(ty.shape, Data::from_bytes(ty.dtype, &bytes)?);
    shared.or_else(copied).map_err(|e| fail(e.to_string()))
}
