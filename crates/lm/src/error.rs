//! What can go wrong.

/// Why a model cannot be loaded or a request cannot be served.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The model or the device.
    #[error(transparent)]
    Olivine(#[from] olivine::Error),
    /// A tokenizer, or a grammar of its tokens.
    #[error(transparent)]
    Tokenizer(#[from] olivine_tokenizer::Error),
    /// A prompt without tokens.
    #[error("the prompt has no tokens")]
    EmptyPrompt,
    /// A prompt that leaves no room for a token.
    #[error("the prompt has {tokens} tokens, and the context holds {context} with what is generated")]
    PromptTooLong {
        /// Tokens of the prompt.
        tokens: usize,
        /// Positions of a sequence.
        context: usize,
    },
    /// A token that the model does not have.
    #[error("token {token} at position {position} is not below {vocabulary}")]
    UnknownToken {
        /// The token.
        token: i64,
        /// Where it stands in the prompt, the text or the biases.
        position: usize,
        /// How many tokens there are.
        vocabulary: usize,
    },
    /// A number of a request or of options that cannot be used.
    #[error("{what} cannot be {value}")]
    Invalid {
        /// Which.
        what: &'static str,
        /// The number.
        value: String,
    },
    /// A result that the model should have and has not.
    #[error("the run returned no {0}")]
    NoResult(&'static str),
}

impl From<olivine::ir::Error> for Error {
    fn from(error: olivine::ir::Error) -> Self {
        Error::Olivine(error.into())
    }
}
