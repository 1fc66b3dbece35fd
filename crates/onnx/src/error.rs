//! What can be wrong with a model file.

use std::fmt;
use std::path::PathBuf;

/// An error of the importer; it names what is wrong and where.
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
    /// Bytes that are no ONNX model.
    #[error("not an ONNX model: {problem}")]
    NotOnnx {
        /// What is wrong with them.
        problem: String,
    },
    /// A model that contradicts itself or the ONNX specification.
    #[error("{location}: {problem}")]
    Invalid {
        /// The node, tensor or graph.
        location: String,
        /// What is wrong there.
        problem: String,
    },
    /// Arithmetic on sizes, for the shape of something, that has no value for the sizes of a run.
    #[error("{location}: {problem}")]
    Size {
        /// The node.
        location: String,
        /// The expression, why it has no value, and the sizes.
        problem: String,
    },
    /// Nodes that there is no import for: all of them.
    #[error("the model has operators that cannot be imported:{}", lines(.0))]
    Unsupported(Vec<Unsupported>),
}

/// An operator that cannot be imported.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unsupported {
    /// The operator, with its domain where that is not ONNX's own.
    pub operator: String,
    /// How many nodes there are of it.
    pub count: usize,
    /// The first of them.
    pub first: String,
}

impl fmt::Display for Unsupported {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Unsupported { operator, count, first } = self;
        write!(f, "{operator}: {count} node{}, first {first}", if *count == 1 { "" } else { "s" })
    }
}

fn lines(all: &[Unsupported]) -> String {
    all.iter().map(|u| format!("\n  {u}")).collect()
}

impl Error {
    pub(crate) fn invalid(location: impl Into<String>, problem: impl Into<String>) -> Self {
        Error::Invalid { location: location.into(), problem: problem.into() }
    }
}
