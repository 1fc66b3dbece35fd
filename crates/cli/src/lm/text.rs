//! Text to tokens and back, by the tokenizer that comes with a model.

use olivine_lm::LanguageModel;
use olivine_tokenizer::Tokenizer;

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

/// The text that is complete with a token.
pub(crate) fn push(stream: &mut olivine_tokenizer::TokenStream<'_>, token: i64) -> Result<String, Failure> {
    let id = u32::try_from(token).map_err(|_| Failure::new(format!("{token} is no token")))?;
    stream.push(id).map_err(|e| Failure::new(e.to_string()))
}

/// Tokens after which the model has finished.
pub(crate) fn ends(tokenizer: &Tokenizer) -> impl Iterator<Item = i64> + '_ {
    tokenizer.special().end.iter().map(|id| i64::from(*id))
}
