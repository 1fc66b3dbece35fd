//! What can go wrong with a density or a chain.

/// Why a density cannot be written or a chain cannot run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The text form of a density cannot be read.
    #[error("line {line}, column {column}: {problem}")]
    Parse {
        /// Line, from 1.
        line: usize,
        /// Column in characters, from 1.
        column: usize,
        /// What is wrong there.
        problem: String,
    },
    /// An expression that is no density.
    #[error("{0}")]
    Expression(String),
    /// An expression beyond a limit of this crate.
    #[error("the density has more than {limit} {what}")]
    TooLarge {
        /// What there is too much of.
        what: &'static str,
        /// How much is allowed.
        limit: usize,
    },
    /// Data that does not fit the density or the chain.
    #[error("{0}")]
    Data(String),
    /// Arguments of a dispatch that break the contract.
    #[error("{0}")]
    Contract(String),
    /// What the device cannot do.
    #[error("{0}")]
    Unsupported(String),
    /// A kernel that cannot be printed.
    #[error(transparent)]
    Kernel(#[from] olivine_kernel::Error),
    /// The device could not run the chain.
    #[error(transparent)]
    Run(#[from] olivine::Error),
}

impl From<olivine_ir::Error> for Error {
    fn from(error: olivine_ir::Error) -> Self {
        Error::Run(error.into())
    }
}
