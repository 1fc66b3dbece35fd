//! Tokenizers and chat templates of folders as Hugging Face writes them.

use std::path::Path;

use crate::{ChatTemplate, Error, Tokenizer};

/// Bytes of a file at most.
const LARGEST_FILE: u64 = 1 << 28;

fn read(path: &Path) -> Result<String, Error> {
    let failed = |e: std::io::Error| Error::Read { path: path.display().to_string(), problem: e.to_string() };
    olivine_files::read_text(path, LARGEST_FILE).map_err(failed)
}

impl Tokenizer {
    /// The tokenizer of a folder: `tokenizer.json`, with what `tokenizer_config.json` adds if there is one.
    pub fn from_folder(folder: impl AsRef<Path>) -> Result<Tokenizer, Error> {
        let folder = folder.as_ref();
        let tokenizer = Tokenizer::from_json(&read(&folder.join("tokenizer.json"))?)?;
        let config = folder.join("tokenizer_config.json");
        if config.is_file() { tokenizer.with_config(&read(&config)?) } else { Ok(tokenizer) }
    }
}

impl ChatTemplate {
    /// The template of a folder: `chat_template.jinja`, or the one in `tokenizer_config.json`.
    pub fn from_folder(folder: impl AsRef<Path>, tokenizer: &Tokenizer) -> Result<ChatTemplate, Error> {
        let template = folder.as_ref().join("chat_template.jinja");
        if template.is_file() {
            return ChatTemplate::for_tokenizer(&read(&template)?, tokenizer);
        }
        ChatTemplate::from_config(&read(&folder.as_ref().join("tokenizer_config.json"))?, tokenizer)
    }
}
