//! Responses and chunks of a stream, as JSON.

use serde_json::{Value, json};

use super::calls::{CallParser, Calls, Delta};
use super::logprobs::Logprobs;
use crate::text::{Piece, Token};
use crate::worker::Reason;

/// A call of a tool.
#[derive(Debug)]
struct Call {
    id: String,
    name: String,
    arguments: String,
}

/// What a choice has so far.
pub(crate) struct Choice {
    parser: Option<CallParser>,
    text: String,
    calls: Vec<Call>,
    tokens: Vec<Token>,
    pub(crate) reason: Option<Reason>,
    generated: usize,
}

impl Choice {
    pub(crate) fn new(format: &Format) -> Self {
        let parser = format.parser();
        Choice {
            parser,
            text: String::new(),
            calls: Vec::new(),
            tokens: Vec::new(),
            reason: None,
            generated: 0,
        }
    }

    pub(crate) fn add(&mut self, piece: Piece) {
        self.tokens.extend(piece.tokens);
        match &mut self.parser {
            Some(parser) => {
                let deltas = parser.push(&piece.text);
                self.add_deltas(deltas);
            }
            None => self.text += &piece.text,
        }
    }

    fn add_deltas(&mut self, deltas: Vec<Delta>) {
        for delta in deltas {
            match delta {
                Delta::Content(text) => self.text += &text,
                Delta::Call { id, name, .. } => {
                    self.calls.push(Call { id, name, arguments: String::new() });
                }
                Delta::Arguments { text, .. } => {
                    if let Some(call) = self.calls.last_mut() {
                        call.arguments += &text;
                    }
                }
            }
        }
    }

    pub(crate) fn end(&mut self, reason: Reason, generated: usize) {
        let rest = self.parser.as_mut().map(CallParser::finish).unwrap_or_default();
        self.add_deltas(rest);
        (self.reason, self.generated) = (Some(reason), generated);
    }

    fn message(&self) -> Value {
        let mut message = json!({ "role": "assistant", "content": self.text, "refusal": null });
        if !self.calls.is_empty() {
            let one = |call: &Call| {
                let function = json!({ "name": call.name, "arguments": call.arguments });
                json!({ "id": call.id, "type": "function", "function": function })
            };
            message["tool_calls"] = self.calls.iter().map(one).collect();
            if self.text.is_empty() {
                message["content"] = Value::Null;
            }
        }
        message
    }
}

/// The shape of a response.
pub(crate) struct Format {
    pub(crate) is_chat: bool,
    pub(crate) id: String,
    pub(crate) model: String,
    pub(crate) created: u64,
    pub(crate) include_usage: bool,
    /// How log-probabilities are written, if they are wanted.
    pub(crate) logprobs: Option<Logprobs>,
    /// The texts of prompts, if completions repeat them, and how many choices each has.
    pub(crate) echo: Option<(Vec<String>, usize)>,
    /// Calls that texts may have.
    pub(crate) calls: Option<Calls>,
}

impl Format {
    /// What finds calls in the text of a choice.
    pub(crate) fn parser(&self) -> Option<CallParser> {
        self.calls.clone().map(CallParser::new)
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

    /// The JSON of a response that is not a stream.
    pub(crate) fn whole(&self, choices: Vec<Choice>, prompt_tokens: usize) -> String {
        let one = |(index, choice): (usize, Choice)| {
            let reason = choice.reason.map(|reason| name(reason, !choice.calls.is_empty()));
            let logprobs = self.logprobs_of(&choice.tokens, &mut 0);
            match self.is_chat {
                true => json!({
                    "index": index, "finish_reason": reason, "logprobs": logprobs,
                    "message": choice.message(),
                }),
                false => json!({
                    "index": index, "finish_reason": reason, "logprobs": logprobs,
                    "text": format!("{}{}", self.before(index), choice.text),
                }),
            }
        };
        let mut json = self.head(if self.is_chat { "chat.completion" } else { "text_completion" });
        json["usage"] = usage(prompt_tokens, choices.iter().map(|choice| choice.generated).sum());
        let mut text = json.to_string();
        text.pop();
        text.push_str(",\"choices\":[");
        // Log-probabilities take twelve times their text as values, so only those of one choice are in memory.
        for (index, choice) in choices.into_iter().enumerate() {
            text.push_str(if index > 0 { "," } else { "" });
            text.push_str(&one((index, choice)).to_string());
        }
        text.push_str("]}");
        text
    }

    /// A chunk with a part of a choice and its tokens. `offset` counts the characters of completions with log-probabilities.
    pub(crate) fn chunk(&self, choice: usize, delta: &Delta, tokens: &[Token], offset: &mut usize) -> Value {
        let mut one =
            json!({ "index": choice, "finish_reason": null, "logprobs": self.logprobs_of(tokens, offset) });
        match (self.is_chat, delta) {
            (true, Delta::Content(text)) => one["delta"] = json!({ "content": text }),
            (false, Delta::Content(text)) => one["text"] = json!(text),
            (_, Delta::Call { index, id, name }) => {
                let function = json!({ "name": name, "arguments": "" });
                let call = json!({ "index": index, "id": id, "type": "function", "function": function });
                one["delta"] = json!({ "tool_calls": [call] });
            }
            (_, Delta::Arguments { index, text }) => {
                let call = json!({ "index": index, "function": { "arguments": text } });
                one["delta"] = json!({ "tool_calls": [call] });
            }
        }
        self.with_choices(json!([one]))
    }

    /// The chunk that ends a choice, with or without calls.
    pub(crate) fn end(&self, choice: usize, reason: Reason, has_calls: bool) -> Value {
        let mut one = json!({ "index": choice, "finish_reason": name(reason, has_calls), "logprobs": null });
        match self.is_chat {
            true => one["delta"] = json!({}),
            false => one["text"] = json!(""),
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
        self.logprobs.as_ref().map_or(Value::Null, |logprobs| logprobs.json(tokens, offset))
    }
}

fn name(reason: Reason, has_calls: bool) -> &'static str {
    match reason {
        Reason::Stop if has_calls => "tool_calls",
        Reason::Stop => "stop",
        Reason::Length => "length",
    }
}

fn usage(prompt: usize, generated: usize) -> Value {
    json!({ "prompt_tokens": prompt, "completion_tokens": generated, "total_tokens": prompt + generated })
}
