//! What can go wrong on a GPU.

use olivine_ir::TensorType;

/// What lowering, loading and running can fail with.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Nodes that the device cannot run: all of them, each with its reason.
    #[error("{device} cannot run {}", .nodes.join("; "))]
    Unsupported {
        /// The device.
        device: String,
        /// Operation, node and reason.
        nodes: Vec<String>,
    },
    /// The memory plan could not be made.
    #[error("memory plan: {0}")]
    Plan(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// Sizes of a run for which the program has no numbers.
    #[error("{0}")]
    Sizes(String),
    /// A kernel of ours is wrong, or the device lacks what it uses.
    #[error("kernel `{kernel}`: {source}")]
    Kernel {
        /// The kernel.
        kernel: String,
        /// What is wrong.
        source: olivine_kernel::Error,
    },
    /// The graph needs more memory than the device has.
    #[error("{what} needs {needed} bytes, {device} has {available}")]
    TooLarge {
        /// What needs them.
        what: String,
        /// Bytes.
        needed: u64,
        /// The device.
        device: String,
        /// Bytes.
        available: u64,
    },
    /// The device is out of memory.
    #[error("out of memory: {what} asked for {bytes} bytes{}", .available.map_or(String::new(), |b| format!(", {b} were free")))]
    OutOfMemory {
        /// What for.
        what: String,
        /// Bytes.
        bytes: u64,
        /// Free at that time, if the driver reports it.
        available: Option<u64>,
    },
    /// The device stopped answering; open a new session.
    #[error("the device was lost{}", .during.as_ref().map_or(String::new(), |d| format!(" during {d}")))]
    DeviceLost {
        /// The dispatch that ran, as far as it is known.
        during: Option<String>,
    },
    /// A checked run met an index of the user's data that is out of range.
    #[error("{op} `{node}`: index {value} at position {position} is out of range for size {size}")]
    IndexOutOfRange {
        /// The operation.
        op: &'static str,
        /// The node.
        node: String,
        /// Where the index stands in its operand.
        position: usize,
        /// The index.
        value: i64,
        /// What it must stay below.
        size: usize,
    },
    /// A checked run met an access past the end of a buffer: a defect of the kernel.
    #[error("{op} `{node}`: kernel `{kernel}` reached element {index} of `{arg}`, which has {size}")]
    OutOfBounds {
        /// The operation.
        op: &'static str,
        /// The node.
        node: String,
        /// The kernel.
        kernel: String,
        /// Its argument.
        arg: String,
        /// The index.
        index: u64,
        /// Elements.
        size: u64,
    },
    /// Params that were not set before the run.
    #[error("params not set: {}", .names.join(", "))]
    MissingParams {
        /// All of them.
        names: Vec<String>,
    },
    /// A value of another type than the graph's.
    #[error("{what}: expected {expected}, got {got}")]
    WrongType {
        /// Which value.
        what: String,
        /// The graph's type.
        expected: TensorType,
        /// What it got.
        got: TensorType,
    },
    /// A tensor in the memory of another device, or of the same one opened a second time.
    #[error("{what}: the tensor is on another device")]
    OtherDevice {
        /// Which value.
        what: String,
    },
    /// Another number of values or bytes than the graph's.
    #[error("expected {expected} {what}, got {got}")]
    WrongCount {
        /// Of what.
        what: String,
        /// The graph's.
        expected: usize,
        /// What it got.
        got: usize,
    },
    /// The driver cannot be used on this machine.
    #[error("{0}")]
    Unavailable(String),
    /// The driver refused a call.
    #[error("{call}: {problem}")]
    Driver {
        /// Which call.
        call: &'static str,
        /// What it said.
        problem: String,
    },
}
