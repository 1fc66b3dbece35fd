//! What running on the CPU can fail with.

use olivine_ir::{DType, TensorType};

/// An error of the CPU executor.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Memory for tensors could not be had.
    #[error("not enough memory: {bytes} bytes are needed at once")]
    OutOfMemory {
        /// Bytes asked for.
        bytes: usize,
    },
    /// The graph needs more memory than the process may use.
    #[error(
        "the graph needs {needed} bytes for its results and for what is made of params; this process may use {available}"
    )]
    TooLarge {
        /// Bytes of the arena, all outputs and what is made of params when they are loaded.
        needed: usize,
        /// Bytes that the machine, the control group and the resource limits leave to the process.
        available: usize,
    },
    /// Sizes of a run for which the graph has no numbers.
    #[error("{0}")]
    Sizes(String),
    /// More threads than a machine has a use for.
    #[error("{asked} threads are asked for; this machine has a use for {most} at most")]
    TooManyThreads {
        /// As asked for.
        asked: usize,
        /// The most there may be.
        most: usize,
    },
    /// Params without elements.
    #[error("params not set: {}", .names.join(", "))]
    MissingParams {
        /// Their names.
        names: Vec<String>,
    },
    /// A tensor of another type than declared.
    #[error("{what}: expected {expected}, got {got}")]
    WrongType {
        /// Which input, param or output.
        what: String,
        /// As declared.
        expected: TensorType,
        /// As given.
        got: TensorType,
    },
    /// Not as many inputs or outputs as declared.
    #[error("expected {expected} {what}, got {got}")]
    WrongCount {
        /// `inputs` or `outputs`.
        what: &'static str,
        /// As declared.
        expected: usize,
        /// As given.
        got: usize,
    },
    /// An output buffer that does not begin where an element may.
    #[error("the buffer of output `{output}` is not aligned for {dtype}")]
    Misaligned {
        /// The output.
        output: String,
        /// Its dtype.
        dtype: DType,
    },
    /// An index out of range, found in checked mode.
    #[error("{op} `{node}`: index {value} at position {position} is out of range for size {size}")]
    IndexOutOfRange {
        /// The operation.
        op: &'static str,
        /// The node.
        node: String,
        /// Flat position among the indices.
        position: usize,
        /// The index.
        value: i64,
        /// The size of the axis it indexes.
        size: usize,
    },
    /// A custom operation's function failed or panicked, or there is none.
    #[error("custom operation `{name}` of node `{node}`: {problem}")]
    Custom {
        /// The operation.
        name: String,
        /// The node.
        node: String,
        /// What it said.
        problem: String,
    },
    /// The compiler left something that no kernel takes; a defect of Olivine, not of the caller.
    #[error("cannot run {op} `{node}` on the CPU: {problem}")]
    Unsupported {
        /// The operation.
        op: &'static str,
        /// The node.
        node: String,
        /// What is in the way.
        problem: String,
    },
    /// Compiling failed.
    #[error("{0}")]
    Compile(String),
}
