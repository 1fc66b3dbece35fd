//! How many inputs and outputs an operator has at most, from the schemas of ONNX 1.23 and of ONNX Runtime: a node with
//! more was meant for another operator or version, and what it has too much would be ignored.

pub(super) use Arity::{Since, Takes};

/// As many as a node names.
pub(super) const ANY: usize = usize::MAX;

/// A version of an operator, and its most inputs and outputs from then on.
type Version = (i64, usize, usize);

/// The most inputs and outputs of an operator.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Arity {
    /// In every version.
    Takes(usize, usize),
    /// By the version that they changed in; versions before the first have the first's.
    Since(&'static [Version]),
}

impl Arity {
    /// The most inputs and outputs in a version of the operator set.
    pub(super) fn most(self, opset: i64) -> (usize, usize) {
        match self {
            Takes(inputs, outputs) => (inputs, outputs),
            Since(versions) => {
                let version = versions.iter().rfind(|(since, ..)| *since <= opset).or(versions.first());
                version.map_or((ANY, ANY), |(_, inputs, outputs)| (*inputs, *outputs))
            }
        }
    }
}
