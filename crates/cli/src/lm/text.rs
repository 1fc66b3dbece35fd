//! Text to tokens and back, by the tokenizer that comes with a model.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use olivine_lm::{Constraint, JsonConstraints, LanguageModel};
use olivine_tokenizer::{TokenStream, Tokenizer};

use super::ModelArgs;
use crate::answer::Failure;

impl ModelArgs {
    /// The tokenizer that comes with the model.
    pub(crate) fn tokenizer(&self, model: &LanguageModel) -> Result<Tokenizer, Failure> {
        model.tokenizer().map_err(|e| {
            Failure::from(e)
                .context(format!("cannot use the tokenizer of `{}`", self.path.display()))
                .hint("--ids takes token ids, which need no tokenizer")
        })
    }
}

/// The tokens of a text.
pub(crate) fn encode(
    tokenizer: &Tokenizer,
    text: &str,
    (add_special, parse_special): (bool, bool),
) -> Result<Vec<i64>, Failure> {
    let ids = tokenizer.encode(text, add_special, parse_special).map_err(|e| Failure::new(e.to_string()))?;
    Ok(ids.into_iter().map(i64::from).collect())
}

/// The text that is complete with a token. A token that only the embedding has, as where its rows are padded, has no text.
pub(crate) fn push(stream: &mut TokenStream<'_>, token: i64) -> String {
    u32::try_from(token).ok().and_then(|id| stream.push(id).ok()).unwrap_or_default()
}

/// Tokens after which the model has finished.
pub(crate) fn ends(tokenizer: &Tokenizer) -> impl Iterator<Item = i64> + '_ {
    tokenizer.special().end.iter().map(|id| i64::from(*id))
}

/// What text is held to.
#[derive(Args)]
pub(crate) struct FormatArgs {
    /// What the text must be.
    #[arg(long, value_enum)]
    format: Option<TextFormat>,
    /// A file with a JSON schema that the text must follow.
    #[arg(long, value_name = "FILE", conflicts_with = "format")]
    json_schema: Option<PathBuf>,
}

/// Bytes of a JSON schema at most.
const LARGEST_SCHEMA: u64 = 1 << 24;

/// What a text is held to.
#[derive(Clone, Copy, ValueEnum)]
enum TextFormat {
    /// One JSON value.
    Json,
}

impl FormatArgs {
    /// The constraint of a text, if there is one.
    pub(crate) fn constraint(&self, tokenizer: &Tokenizer) -> Result<Option<Constraint>, Failure> {
        if let Some(TextFormat::Json) = self.format {
            return Ok(Some(JsonConstraints::new(tokenizer)?.value()));
        }
        let Some(path) = &self.json_schema else { return Ok(None) };
        let named = |e: Failure| e.context(format!("cannot use `{}`", path.display()));
        let schema =
            olivine_files::read_text(path, LARGEST_SCHEMA).map_err(|e| named(Failure::new(e.to_string())))?;
        JsonConstraints::new(tokenizer)?.schema(&schema).map(Some).map_err(|e| named(e.into()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_that_the_tokenizer_does_not_have_have_no_text() {
        let json = r#"{"model": {"type": "WordLevel", "vocab": {"a": 0}}, "decoder": {"type": "Fuse"}}"#;
        let tokenizer = Tokenizer::from_json(json).unwrap();
        let mut stream = tokenizer.stream().continued();
        let texts: Vec<String> = [0, 1, i64::MAX, -1, 0].map(|token| push(&mut stream, token)).into();
        assert_eq!(texts, ["a", "", "", "", "a"]);
    }
}
