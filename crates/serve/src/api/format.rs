//! Responses and chunks of a stream, as JSON.

use std::sync::Arc;

use olivine_tokenizer::Tokenizer;
use serde_json::{Value, json};

use crate::text::{Piece, Token};
use crate::worker::Reason;

/// What a choice has so far.
#[derive(Default)]
pub(crate) struct Choice {
    text: String,
    tokens: Vec<Token>,
    pub(crate) reason: Option<Reason>,
    pub(crate) generated: usize,
}

impl Choice {
    pub(crate) fn add(&mut self, piece: Piece) {
        self.text += &piece.text;
        self.tokens.extend(piece.tokens);
    }
}

/// The shape of a response.
pub(crate) struct Format {
    pub(crate) is_chat: bool,
    pub(crate) id: String,
    pub(crate) model: String,
    pub(crate) created: u64,
    pub(crate) include_usage: bool,
    /// The tokenizer, if log-probabilities are wanted.
    pub(crate) logprobs: Option<Arc<Tokenizer>>,
    /// The texts of prompts, if completions repeat them, and how many choices each has.
    pub(crate) echo: Option<(Vec<String>, usize)>,
}

impl Format {
    pub(crate) fn has_logprobs(&self) -> bool {
        self.logprobs.is_some()
    }

    fn head(&self, object: &str) -> Value {
        json!({
            "id": self.id, "object": object, "created": self.created, "model": self.model,
            "system_fingerprint": concat!("olivine-", env!("CARGO_PKG_VERSION")),
        })
    }

    /// The text that precedes a choice.
    pub(crate) fn before(&self, choice: usize) -> &str {
        let echo = self.echo.as_ref();
        echo.and_then(|(prompts, choices)| prompts.get(choice / choices)).map_or("", String::as_str)
    }

    /// A response that is not a stream.
    pub(crate) fn whole(&self, choices: &[Choice], prompt_tokens: usize) -> Value {
        let one = |(index, choice): (usize, &Choice)| {
            let reason = choice.reason.map(name);
            let logprobs = self.logprobs_of(&choice.tokens, &mut 0);
            match self.is_chat {
                true => json!({
                    "index": index, "finish_reason": reason, "logprobs": logprobs,
                    "message": { "role": "assistant", "content": choice.text, "refusal": null },
                }),
                false => json!({
                    "index": index, "finish_reason": reason, "logprobs": logprobs,
                    "text": format!("{}{}", self.before(index), choice.text),
                }),
            }
        };
        let mut json = self.head(if self.is_chat { "chat.completion" } else { "text_completion" });
        json["choices"] = choices.iter().enumerate().map(one).collect();
        json["usage"] = usage(prompt_tokens, choices.iter().map(|choice| choice.generated).sum());
        json
    }

    /// A chunk with text of a choice, its end or both. `offset` counts the characters of completions with log-probabilities.
    pub(crate) fn chunk(
        &self,
        choice: usize,
        piece: Option<&Piece>,
        reason: Option<Reason>,
        offset: &mut usize,
    ) -> Value {
        let tokens = piece.map_or(&[][..], |piece| &piece.tokens);
        let logprobs = if piece.is_some() { self.logprobs_of(tokens, offset) } else { Value::Null };
        let text = piece.map(|piece| piece.text.as_str());
        let mut one = json!({ "index": choice, "finish_reason": reason.map(name), "logprobs": logprobs });
        match (self.is_chat, text) {
            (true, Some(text)) => one["delta"] = json!({ "content": text }),
            (true, None) => one["delta"] = json!({}),
            (false, text) => one["text"] = json!(text.unwrap_or_default()),
        }
        self.with_choices(json!([one]))
    }

    /// The first chunk of a choice: the role of a chat, or the prompt that is repeated.
    pub(crate) fn first(&self, choice: usize) -> Option<Value> {
        let one = match self.is_chat {
            true => json!({ "delta": { "role": "assistant", "content": "" }, "logprobs": null }),
            false if self.before(choice).is_empty() => return None,
            false => json!({ "text": self.before(choice), "logprobs": null }),
        };
        let mut one = one;
        (one["index"], one["finish_reason"]) = (json!(choice), Value::Null);
        Some(self.with_choices(json!([one])))
    }

    /// The last chunk, if usage is wanted.
    pub(crate) fn usage(&self, prompt_tokens: usize, generated: usize) -> Option<Value> {
        let mut json = self.with_choices(json!([]));
        json["usage"] = usage(prompt_tokens, generated);
        self.include_usage.then_some(json)
    }

    fn with_choices(&self, choices: Value) -> Value {
        let mut json = self.head(if self.is_chat { "chat.completion.chunk" } else { "text_completion" });
        json["choices"] = choices;
        if self.include_usage {
            json["usage"] = Value::Null;
        }
        json
    }

    fn logprobs_of(&self, tokens: &[Token], offset: &mut usize) -> Value {
        let Some(tokenizer) = &self.logprobs else { return Value::Null };
        let bytes = |token: &Token| tokenizer.token_bytes(token.id).unwrap_or_default();
        let text = |token: &Token| String::from_utf8_lossy(bytes(token)).into_owned();
        if self.is_chat {
            let one = |token: &Token| json!({ "token": text(token), "bytes": bytes(token), "logprob": token.logprob, "top_logprobs": [] });
            return json!({ "content": tokens.iter().map(one).collect::<Vec<_>>(), "refusal": null });
        }
        let texts: Vec<String> = tokens.iter().map(text).collect();
        let mut offsets = Vec::with_capacity(texts.len());
        for text in &texts {
            offsets.push(*offset);
            *offset += text.chars().count();
        }
        let values: Vec<Option<f32>> = tokens.iter().map(|token| token.logprob).collect();
        json!({ "tokens": texts, "token_logprobs": values, "top_logprobs": null, "text_offset": offsets })
    }
}

fn name(reason: Reason) -> &'static str {
    match reason {
        Reason::Stop => "stop",
        Reason::Length => "length",
    }
}

fn usage(prompt: usize, generated: usize) -> Value {
    json!({ "prompt_tokens": prompt, "completion_tokens": generated, "total_tokens": prompt + generated })
}
