//! The tokenizer of a BERT encoder.

use olivine_tokenizer::Tokenizer;
use wasm_bindgen::prelude::*;

use crate::thrown;

/// A BERT encoder's tokenizer from its `vocab.txt`.
#[wasm_bindgen]
pub struct WordPiece {
    tokenizer: Tokenizer,
    most: usize,
}

#[wasm_bindgen]
impl WordPiece {
    /// Reads the text of a `vocab.txt`; texts become at most so many tokens.
    #[wasm_bindgen(constructor)]
    pub fn new(vocabulary: &str, lowercase: bool, most: usize) -> Result<WordPiece, JsError> {
        let tokenizer = Tokenizer::from_bert_vocab(vocabulary, lowercase).map_err(thrown)?;
        if most < 2 {
            return Err(JsError::new("maxTokens: expected room for [CLS] and [SEP]"));
        }
        Ok(WordPiece { tokenizer, most })
    }

    /// The tokens of a text, from `[CLS]` to `[SEP]`.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>, JsError> {
        let mut ids = self.tokenizer.encode(text, true, false).map_err(thrown)?;
        if let Some(last) = ids.pop() {
            ids.truncate(self.most - 1);
            ids.push(last);
        }
        Ok(ids)
    }
}
