//! What can be wrong with a tokenizer, a template or what is asked of them.

/// Why a tokenizer cannot be made or used, or a chat cannot be rendered.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file that cannot be read.
    #[error("cannot read `{path}`: {problem}")]
    Read {
        /// Which.
        path: String,
        /// Why.
        problem: String,
    },
    /// An entry of GGUF metadata that is missing or contradicts itself.
    #[error("metadata `{key}`: {problem}")]
    Metadata {
        /// The key.
        key: String,
        /// What is wrong with it.
        problem: String,
    },
    /// A field of `tokenizer.json` that is missing or contradicts itself.
    #[error("tokenizer.json, `{field}`: {problem}")]
    File {
        /// The path of the field, such as `model.vocab`.
        field: String,
        /// What is wrong with it.
        problem: String,
    },
    /// A `vocab.txt` that lacks tokens.
    #[error("vocab.txt: {problem}")]
    BertVocab {
        /// What is wrong with it.
        problem: String,
    },
    /// Text that is not JSON.
    #[error("invalid JSON at byte {at}: {problem}")]
    Json {
        /// Where.
        at: usize,
        /// What is wrong there.
        problem: String,
    },
    /// A regular expression that is invalid or needs more than linear time.
    #[error("regular expression `{pattern}`: {problem}")]
    Pattern {
        /// The expression.
        pattern: String,
        /// What is wrong with it.
        problem: String,
    },
    /// An id that the vocabulary does not have.
    #[error("token {id} is out of range: the vocabulary has {size} tokens")]
    UnknownId {
        /// The id.
        id: u32,
        /// How many tokens there are.
        size: usize,
    },
    /// A text that is too long to be encoded at once.
    #[error("the text has {bytes} bytes; at most {limit} are encoded at once")]
    TextTooLong {
        /// Its bytes.
        bytes: usize,
        /// The limit.
        limit: usize,
    },
    /// A text in which an expression of the tokenizer is searched for too long.
    #[error("an expression of the tokenizer takes too long to be found in {bytes} bytes of text")]
    SearchTooLong {
        /// The text's bytes.
        bytes: usize,
    },
    /// A text that the tokenizer's own steps make too much of.
    #[error("the tokenizer's steps make more than {limit} bytes of a text of {bytes}")]
    TextGrows {
        /// Bytes of the text.
        bytes: usize,
        /// The limit.
        limit: usize,
    },
    /// A chat template that cannot be parsed, raises an error or does not end.
    #[error("chat template: {problem}")]
    Template {
        /// What is wrong with it.
        problem: String,
    },
    /// A grammar that cannot be parsed, or a token that it does not allow.
    #[error("grammar: {problem}")]
    Grammar {
        /// What is wrong with it.
        problem: String,
    },
}

impl Error {
    pub(crate) fn metadata(key: &str, problem: impl Into<String>) -> Error {
        Error::Metadata { key: shortened(key), problem: problem.into() }
    }

    pub(crate) fn file(field: &str, problem: impl Into<String>) -> Error {
        Error::File { field: shortened(field), problem: problem.into() }
    }
}

/// A name as it goes into messages.
pub(crate) fn shortened(name: &str) -> String {
    const LONGEST: usize = 200;
    let mut end = name.len().min(LONGEST);
    while !name.is_char_boundary(end) {
        end -= 1;
    }
    if end < name.len() { format!("{}…", &name[..end]) } else { name.to_string() }
}
