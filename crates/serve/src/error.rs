//! Why a server cannot start.

use std::net::SocketAddr;

/// Why a model cannot be served.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The device or an encoder.
    #[error(transparent)]
    Olivine(#[from] olivine::Error),
    /// The language model.
    #[error(transparent)]
    Model(#[from] olivine_lm::Error),
    /// The tokenizer or the chat template.
    #[error(transparent)]
    Tokenizer(#[from] olivine_tokenizer::Error),
    /// A file beside the model.
    #[error("cannot use `{path}`: {problem}")]
    File {
        /// Which.
        path: String,
        /// What is wrong with it.
        problem: String,
    },
    /// An option that cannot be used.
    #[error("{what} cannot be {value}")]
    Option {
        /// Which.
        what: &'static str,
        /// Its value.
        value: String,
    },
    /// An address that cannot be listened on.
    #[error("cannot listen on {address}: {source}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// Why.
        source: std::io::Error,
    },
    /// A thread or the runtime that cannot be started.
    #[error("cannot start the server: {0}")]
    Start(std::io::Error),
    /// A model that fails at its first token.
    #[error("the model does not answer: {0}")]
    Warmup(String),
}

impl From<olivine::ir::Error> for Error {
    fn from(error: olivine::ir::Error) -> Self {
        Error::Olivine(error.into())
    }
}
