//! The tokenizer and the chat template that come with a model.

use olivine_tokenizer::{ChatTemplate, Tokenizer};

use crate::{Error, LanguageModel};

impl LanguageModel {
    /// The tokenizer of a GGUF file's metadata, or of a folder's `tokenizer.json`.
    pub fn tokenizer(&self) -> Result<Tokenizer, Error> {
        Ok(match self.model.gguf() {
            Some(file) => Tokenizer::from_gguf(file.metadata())?,
            None => Tokenizer::from_folder(&self.path)?,
        })
    }

    /// The chat template of a GGUF file's metadata, or of a folder.
    pub fn chat_template(&self, tokenizer: &Tokenizer) -> Result<ChatTemplate, Error> {
        Ok(match self.model.gguf() {
            Some(file) => ChatTemplate::from_gguf(file.metadata(), tokenizer)?,
            None => ChatTemplate::from_folder(&self.path, tokenizer)?,
        })
    }
}
