//! Text to tokens and back, by the tokenizer that comes with a model.

use olivine_lm::LanguageModel;
use olivine_tokenizer::Tokenizer;

use super::ModelArgs;
use crate::answer::Failure;

/// Bytes of a `tokenizer.json` at most.
const LARGEST_FILE: u64 = 1 << 28;

impl ModelArgs {
    /// The tokenizer of a GGUF file's metadata, or of a folder's `tokenizer.json`.
    pub(crate) fn tokenizer(&self, model: &LanguageModel) -> Result<Tokenizer, Failure> {
        let failed = |e: olivine_tokenizer::Error| {
            Failure::new(e.to_string())
                .context(format!("cannot use the tokenizer of `{}`", self.path.display()))
                .hint("--ids takes token ids, which need no tokenizer")
        };
        if let Some(file) = model.inner().gguf() {
            return Tokenizer::from_gguf(file.metadata()).map_err(failed);
        }
        let read = |name: &str| {
            let path = self.path.join(name);
            olivine_files::read_text(&path, LARGEST_FILE)
                .map_err(|e| Failure::new(e.to_string()).context(format!("cannot read `{}`", path.display())))
        };
        let tokenizer = Tokenizer::from_json(&read("tokenizer.json")?).map_err(failed)?;
        match self.path.join("tokenizer_config.json").is_file() {
            true => tokenizer.with_config(&read("tokenizer_config.json")?).map_err(failed),
            false => Ok(tokenizer),
        }
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
