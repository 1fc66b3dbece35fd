//! The one error of the public face.

use olivine_ir::TensorType;

/// What can go wrong, with the facts needed to fix it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A graph or tensor is not valid.
    #[error(transparent)]
    Graph(#[from] olivine_ir::Error),
    /// A model file cannot be imported.
    #[cfg(feature = "onnx")]
    #[error(transparent)]
    Onnx(#[from] olivine_onnx::Error),
    /// A file that is no model.
    #[error("`{}` is not a model: {problem}{}", .path.display(), .advice.as_ref().map_or(String::new(), |a| format!("; {a}")))]
    NotAModel {
        /// The file.
        path: std::path::PathBuf,
        /// Why.
        problem: String,
        /// What to do with it.
        advice: Option<String>,
    },
    /// Bytes that are no `.npy` file, or not one of the elements that are wanted.
    #[error("{problem}")]
    Npy {
        /// Why.
        problem: String,
    },
    /// A file of weights cannot be used.
    #[error(transparent)]
    Safetensors(#[from] olivine_safetensors::Error),
    /// A model's configuration cannot be used.
    #[error("cannot use `{}`: {problem}", .path.display())]
    Config {
        /// The file.
        path: std::path::PathBuf,
        /// What is wrong with it.
        problem: String,
    },
    /// A GGUF file that cannot be read, or whose model cannot be run.
    #[error(transparent)]
    Gguf(#[from] olivine_gguf::Error),
    /// The compiler refused the graph.
    #[error(transparent)]
    Compile(#[from] olivine_compile::Error),
    /// The CPU could not run it.
    #[error(transparent)]
    Cpu(#[from] olivine_cpu::Error),
    /// A GPU could not run it.
    #[error(transparent)]
    Gpu(#[from] olivine_gpu::Error),
    /// Elements past the end of a tensor.
    #[error("elements {}..{} of a tensor that has {all}", .elements.start, .elements.end)]
    BadRange {
        /// As asked for.
        elements: std::ops::Range<usize>,
        /// What there is.
        all: usize,
    },
    /// A tensor of another device than the executable's, or of another session on the same GPU.
    #[error(
        "the tensor belongs to another device or session than the model: upload it to the model's session"
    )]
    OtherDevice,
    /// The record of measured choices cannot be written.
    #[error("cannot write `{}`: {source}", .path.display())]
    Tuning {
        /// The file.
        path: std::path::PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// A background run ended without a result.
    #[error("a background run ended without a result")]
    WorkerDied,
    /// A call that would block where nothing can: in a browser.
    #[error("a browser cannot block: `{call}` has a form that is awaited")]
    CannotBlock {
        /// The call.
        call: &'static str,
    },
    /// A session of the process that this one was forked from.
    #[error("the session belongs to the process that this one was forked from: open one here")]
    Forked,
    /// A device's name that cannot be read.
    #[error("device `{text}`: {problem}")]
    BadDevice {
        /// As given.
        text: String,
        /// What is wrong.
        problem: String,
    },
    /// A name that is no [`Precision`](crate::Precision).
    #[error("`{name}` is no precision: exact or fast")]
    UnknownPrecision {
        /// As given.
        name: String,
    },
    /// A device that is not there.
    #[error("device `{device}` is not available: {reason}")]
    Unavailable {
        /// The device.
        device: String,
        /// Why.
        reason: String,
    },
    /// A name the model does not have.
    #[error("the model has no {kind} `{name}`{}", hint(.nearest))]
    UnknownName {
        /// `input`, `param` or `output`.
        kind: &'static str,
        /// As given.
        name: String,
        /// The nearest name it has.
        nearest: Option<String>,
    },
    /// An operation for the host that the model does not have.
    #[error("the model has no operation or node `{name}` to run on the host{}; its operations are {ops}", hint(.nearest))]
    UnknownHostOp {
        /// As given.
        name: String,
        /// The operations that it has.
        ops: String,
        /// The nearest name of a node.
        nearest: Option<String>,
    },
    /// An output that cannot be a later run's input.
    #[error("state `{input}` cannot be replaced by output `{output}`: {problem}")]
    BadState {
        /// The input.
        input: String,
        /// The output.
        output: String,
        /// How they differ.
        problem: String,
    },
    /// A state whose first value has no size.
    #[error("state `{input}` has open sizes ({declared}): give its first value to `Executable::state_from`")]
    OpenState {
        /// The input.
        input: String,
        /// As declared.
        declared: String,
    },
    /// Weights that belong to a model file.
    #[error("the weights belong to the model file: change them with `Model::with_weights` and compile again")]
    FixedWeights,
    /// An input or output given twice.
    #[error("{kind} `{name}` is given twice")]
    GivenTwice {
        /// `input` or `output`.
        kind: &'static str,
        /// Which one.
        name: String,
    },
    /// An input or output not given.
    #[error("{kind} `{name}` is missing: expected {expected}")]
    Missing {
        /// `input` or `output`.
        kind: &'static str,
        /// Which one.
        name: String,
        /// As declared; open sizes by name.
        expected: String,
    },
    /// A tensor of another type than declared.
    #[error("{kind} `{name}`: expected {expected}, got {got}")]
    WrongType {
        /// `input`, `param` or `output`.
        kind: &'static str,
        /// Which one.
        name: String,
        /// As declared; free sizes by name.
        expected: String,
        /// As given.
        got: TensorType,
    },
}

fn hint(nearest: &Option<String>) -> String {
    nearest.as_ref().map(|n| format!("; did you mean `{n}`?")).unwrap_or_default()
}

impl Error {
    /// Whether params were not set yet.
    pub(crate) fn is_missing_params(&self) -> bool {
        matches!(
            self,
            Error::Cpu(olivine_cpu::Error::MissingParams { .. })
                | Error::Gpu(olivine_gpu::Error::MissingParams { .. })
        )
    }
}
