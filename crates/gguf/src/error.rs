//! What can be wrong with a file.

use std::path::PathBuf;

/// Why a file cannot be read or written.
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
    /// Bytes that are no GGUF file, or end too early.
    #[error("not a GGUF file: {problem}")]
    NotGguf {
        /// What is wrong with them.
        problem: String,
    },
    /// An entry of the metadata that contradicts itself, or is not what was asked for.
    #[error("metadata `{key}`: {problem}")]
    Metadata {
        /// The key.
        key: String,
        /// What is wrong with it.
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
    /// A model in several files that do not fit together.
    #[error("part `{}`: {problem}", .path.display())]
    Part {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        problem: String,
    },
}

/// Bytes of a name that go into messages.
const LONGEST_NAME: usize = 200;

/// A name as it goes into messages.
pub(crate) fn shortened(name: &str) -> String {
    let mut end = name.len().min(LONGEST_NAME);
    while !name.is_char_boundary(end) {
        end -= 1;
    }
    if end < name.len() { format!("{}…", &name[..end]) } else { name.to_string() }
}
