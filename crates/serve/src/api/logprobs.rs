//! Log-probabilities of tokens, as JSON.

use std::sync::Arc;

use olivine_tokenizer::Tokenizer;
use serde_json::{Map, Value, json};

use crate::text::Token;

/// How log-probabilities are written.
pub(crate) struct Logprobs {
    pub(crate) tokenizer: Arc<Tokenizer>,
    /// How many of the likeliest tokens come with each.
    pub(crate) top: usize,
    pub(crate) is_chat: bool,
}

impl Logprobs {
    fn bytes(&self, id: u32) -> &[u8] {
        self.tokenizer.token_bytes(id).unwrap_or_default()
    }

    fn text(&self, id: u32) -> String {
        String::from_utf8_lossy(self.bytes(id)).into_owned()
    }

    /// Of some tokens. `offset` counts the characters of completions so far.
    pub(crate) fn json(&self, tokens: &[Token], offset: &mut usize) -> Value {
        if self.is_chat {
            let content: Vec<Value> = tokens.iter().map(|token| self.of_chat(token)).collect();
            return json!({ "content": content, "refusal": null });
        }
        let texts: Vec<String> = tokens.iter().map(|token| self.text(token.id)).collect();
        let mut offsets = Vec::with_capacity(texts.len());
        for text in &texts {
            offsets.push(*offset);
            *offset += text.chars().count();
        }
        let values: Vec<Option<f32>> = tokens.iter().map(|token| token.logprob).collect();
        let top = match self.top {
            0 => Value::Null,
            _ => tokens.iter().map(|token| self.top_of_completion(token)).collect(),
        };
        json!({ "tokens": texts, "token_logprobs": values, "top_logprobs": top, "text_offset": offsets })
    }

    fn of_chat(&self, token: &Token) -> Value {
        let one = |id: u32, logprob: Option<f32>| json!({ "token": self.text(id), "bytes": self.bytes(id), "logprob": logprob });
        let mut json = one(token.id, token.logprob);
        json["top_logprobs"] = token.top.iter().map(|(id, logprob)| one(*id, Some(*logprob))).collect();
        json
    }

    /// By text; the token that was chosen is always there.
    fn top_of_completion(&self, token: &Token) -> Value {
        let mut all = Map::new();
        let chosen = token.logprob.map(|logprob| (token.id, logprob));
        for (id, logprob) in token.top.iter().copied().chain(chosen) {
            // Of tokens with the same text, the likeliest.
            all.entry(self.text(id)).or_insert_with(|| json!(logprob));
        }
        Value::Object(all)
    }
}
