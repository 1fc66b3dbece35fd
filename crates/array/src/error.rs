//! The one error: a stable code, a stable name and words.

use olivine::internals::gpu;

/// What kind of problem it is. Numbers and names never change; new kinds take fresh numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[repr(u32)]
pub enum ErrorKind {
    /// A buffer is too small for the sizes given, or the sizes overflow.
    SizeMismatch = 1,
    /// An argument that no device could accept: an unknown op code, operands that do not fit, a module that is not valid.
    BadInput = 2,
    /// A SPIR-V file cannot be read.
    SpvReadFailed = 3,
    /// The device or its driver failed to run the work.
    DispatchFailed = 4,
    /// There is not enough memory.
    OutOfMemory = 5,
    /// The device, or this operation for that dtype, cannot do it.
    Unsupported = 6,
    /// The device stopped answering; open a new context.
    DeviceLost = 7,
    /// The device cannot be opened.
    Unavailable = 8,
}

impl ErrorKind {
    /// All kinds, in the order of their numbers.
    pub const ALL: [ErrorKind; 8] = [
        ErrorKind::SizeMismatch,
        ErrorKind::BadInput,
        ErrorKind::SpvReadFailed,
        ErrorKind::DispatchFailed,
        ErrorKind::OutOfMemory,
        ErrorKind::Unsupported,
        ErrorKind::DeviceLost,
        ErrorKind::Unavailable,
    ];

    /// The stable name, for bindings.
    pub fn name(self) -> &'static str {
        match self {
            ErrorKind::SizeMismatch => "size_mismatch",
            ErrorKind::BadInput => "bad_input",
            ErrorKind::SpvReadFailed => "spv_read_failed",
            ErrorKind::DispatchFailed => "dispatch_failed",
            ErrorKind::OutOfMemory => "out_of_memory",
            ErrorKind::Unsupported => "unsupported",
            ErrorKind::DeviceLost => "device_lost",
            ErrorKind::Unavailable => "unavailable",
        }
    }
}

/// What went wrong: a kind with a stable number and name, and a message with the facts.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Error {
    kind: ErrorKind,
    message: String,
}

impl Error {
    pub(crate) fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Error { kind, message: message.into() }
    }

    pub(crate) fn size(message: impl Into<String>) -> Self {
        Error::new(ErrorKind::SizeMismatch, message)
    }

    pub(crate) fn bad(message: impl Into<String>) -> Self {
        Error::new(ErrorKind::BadInput, message)
    }

    pub(crate) fn unsupported(message: impl Into<String>) -> Self {
        Error::new(ErrorKind::Unsupported, message)
    }

    /// What kind of problem it is.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// The stable number of the kind.
    pub fn code(&self) -> u32 {
        self.kind as u32
    }

    /// The stable name of the kind.
    pub fn name(&self) -> &'static str {
        self.kind.name()
    }

    /// The message.
    pub fn message(&self) -> &str {
        &self.message
    }
}

impl From<olivine_ir::Error> for Error {
    fn from(error: olivine_ir::Error) -> Self {
        let kind = match &error {
            olivine_ir::Error::OutOfMemory { .. } => ErrorKind::OutOfMemory,
            _ => ErrorKind::BadInput,
        };
        Error::new(kind, error.to_string())
    }
}

impl From<olivine::Error> for Error {
    fn from(error: olivine::Error) -> Self {
        use olivine::internals::{compile, cpu};
        let kind = match &error {
            olivine::Error::Graph(graph) => return graph_error(graph),
            olivine::Error::Gpu(error) => match error {
                gpu::Error::OutOfMemory { .. } | gpu::Error::TooLarge { .. } => ErrorKind::OutOfMemory,
                gpu::Error::Unsupported { .. } => ErrorKind::Unsupported,
                gpu::Error::DeviceLost { .. } => ErrorKind::DeviceLost,
                gpu::Error::Unavailable(_) => ErrorKind::Unavailable,
                gpu::Error::WrongType { .. } | gpu::Error::OtherDevice { .. } => ErrorKind::BadInput,
                _ => ErrorKind::DispatchFailed,
            },
            olivine::Error::Cpu(error) => match error {
                cpu::Error::OutOfMemory { .. } | cpu::Error::TooLarge { .. } => ErrorKind::OutOfMemory,
                cpu::Error::Unsupported { .. } => ErrorKind::Unsupported,
                _ => ErrorKind::DispatchFailed,
            },
            olivine::Error::Compile(compile::Error::Unsupported { .. }) => ErrorKind::Unsupported,
            olivine::Error::Unavailable { .. } => ErrorKind::Unavailable,
            olivine::Error::WorkerDied | olivine::Error::Compile(_) => ErrorKind::DispatchFailed,
            _ => ErrorKind::BadInput,
        };
        Error::new(kind, error.to_string())
    }
}

fn graph_error(error: &olivine_ir::Error) -> Error {
    let kind = match error {
        olivine_ir::Error::OutOfMemory { .. } => ErrorKind::OutOfMemory,
        _ => ErrorKind::BadInput,
    };
    Error::new(kind, error.to_string())
}
