//! `/v1/chat/completions`.

use std::sync::Arc;

use axum::body::Body;
use axum::http::Response;
use olivine_tokenizer::{ChatOptions, Json, Message};

use super::fields::Fields;
use super::format::Format;
use super::generate::{Wanted, generate};
use super::params::{Params, random};
use super::problem::Problem;
use crate::router::{App, Language};

/// Parameters that would change the answer, and that are not there.
const REFUSED: [&str; 5] = ["functions", "function_call", "audio", "prediction", "web_search_options"];
/// Messages of a request at most.
const MOST_MESSAGES: usize = 10_000;

/// Answers a chat.
pub(crate) async fn chat(app: Arc<App>, json: Json) -> Result<Response<Body>, Problem> {
    let (wanted, app) = super::blocking(move || {
        let wanted = prepare(&app, &json)?;
        Ok((wanted, app))
    })
    .await?;
    let language = app.language()?;
    generate(&app, language, wanted).await
}

fn prepare(app: &App, json: &Json) -> Result<Wanted, Problem> {
    let fields = Fields::of(json, "")?;
    let language = app.language()?;
    let model = app.named(fields.str("model")?)?;
    fields.refuse(&REFUSED)?;
    refuse_tools(&fields)?;
    refuse_modalities(&fields)?;
    let constraint = super::params::response_format(&fields, language)?;
    let params = Params::read(&fields)?;
    let logprobs = logprobs(&fields, language)?;
    let messages = messages(&fields)?;
    let prompt = prompt(&fields, language, &messages)?;
    let format = Format {
        is_chat: true,
        id: format!("chatcmpl-{:016x}", random()),
        model,
        created: crate::router::now(),
        include_usage: params.include_usage,
        logprobs: logprobs.then(|| language.tokenizer.clone()),
        echo: None,
    };
    let max_tokens = params.max_tokens.unwrap_or(usize::MAX);
    Ok(Wanted { prompts: vec![prompt], params, max_tokens, constraint, format })
}

/// The tokens of a conversation, by the model's template.
fn prompt(fields: &Fields<'_>, language: &Language, messages: &[Message]) -> Result<Vec<i64>, Problem> {
    let no_template = |why: &String| Problem::bad(format!("the model has no chat template: {why}"));
    let template = language.template.as_ref().map_err(no_template)?;
    let variables = fields.entries("chat_template_kwargs")?.to_vec();
    let options = ChatOptions { add_generation_prompt: true, variables, ..ChatOptions::default() };
    let refused = |error: olivine_tokenizer::Error| Problem::param("messages", error.to_string());
    let text = template.render(messages, &options).map_err(refused)?;
    let tokenizer = &language.tokenizer;
    let bos = tokenizer.special().bos.and_then(|bos| tokenizer.token_text(bos).ok());
    let has_bos = bos.is_some_and(|bos| text.starts_with(bos));
    language.encode(&text, !has_bos)
}

fn messages(fields: &Fields<'_>) -> Result<Vec<Message>, Problem> {
    let Some(items) = fields.array("messages")? else { return Err(fields.wrong("messages", "is missing")) };
    if items.is_empty() || items.len() > MOST_MESSAGES {
        return Err(fields.wrong("messages", format_args!("has to have 1 to {MOST_MESSAGES} messages")));
    }
    items.iter().enumerate().map(|(i, item)| message(item, &format!("messages[{i}]"))).collect()
}

fn message(item: &Json, path: &str) -> Result<Message, Problem> {
    let fields = Fields::of(item, path)?;
    let role = match fields.str("role")? {
        Some(role @ ("system" | "user" | "assistant" | "tool")) => role,
        // The newer name of system messages.
        Some("developer") => "system",
        Some(other) => {
            let roles = "system, developer, user, assistant or tool";
            return Err(fields.wrong("role", format_args!("has to be {roles}, not `{}`", short(other))));
        }
        None => return Err(fields.wrong("role", "is missing")),
    };
    let calls = fields.array("tool_calls")?;
    let content = match content(&fields)? {
        Some(content) => content,
        None if role == "assistant" && calls.is_some() => String::new(),
        None => return Err(fields.wrong("content", "is missing")),
    };
    let mut message = Message::new(role, &content);
    for key in ["name", "tool_call_id", "reasoning_content"] {
        if let Some(value) = fields.str(key)? {
            message = message.with(key, value.into());
        }
    }
    Ok(match calls {
        Some(calls) => message.with("tool_calls", Json::Array(calls.to_vec())),
        None => message,
    })
}

/// Text, or parts of text.
fn content(fields: &Fields<'_>) -> Result<Option<String>, Problem> {
    let parts = match fields.get("content") {
        None => return Ok(None),
        Some(Json::String(text)) => return Ok(Some(text.clone())),
        Some(Json::Array(parts)) => parts,
        Some(_) => return Err(fields.wrong("content", "has to be a string or an array of parts")),
    };
    let mut all = String::new();
    for (i, part) in parts.iter().enumerate() {
        let part = Fields::of(part, fields.name(&format!("content[{i}]")))?;
        match (part.str("type")?, part.str("text")?) {
            (Some("text"), Some(text)) => all += text,
            (Some("text"), None) => return Err(part.wrong("text", "is missing")),
            (Some(other), _) => {
                return Err(
                    part.wrong("type", format_args!("is `{}`; the model reads text only", short(other)))
                );
            }
            (None, _) => return Err(part.wrong("type", "is missing")),
        }
    }
    Ok(Some(all))
}

fn short(name: &str) -> String {
    name.chars().take(40).collect()
}

fn refuse_tools(fields: &Fields<'_>) -> Result<(), Problem> {
    let tools = fields.array("tools")?.is_some_and(|tools| !tools.is_empty());
    let never = fields.get("tool_choice").and_then(Json::as_str) == Some("none");
    match tools && !never {
        true => Err(Problem::unsupported("tools", "calls of tools are not supported")),
        false => Ok(()),
    }
}

fn refuse_modalities(fields: &Fields<'_>) -> Result<(), Problem> {
    let kinds = fields.array("modalities")?.unwrap_or_default();
    match kinds.iter().all(|kind| kind.as_str() == Some("text")) {
        true => Ok(()),
        false => Err(Problem::unsupported("modalities", "the model writes text only")),
    }
}

/// Whether log-probabilities of the tokens are wanted.
fn logprobs(fields: &Fields<'_>, language: &Language) -> Result<bool, Problem> {
    if fields.integer("top_logprobs", 0, 20)?.unwrap_or(0) > 0 {
        return Err(Problem::unsupported(
            "top_logprobs",
            "log-probabilities of other tokens than the chosen one are not supported; use 0",
        ));
    }
    let wanted = fields.bool("logprobs")?.unwrap_or(false);
    language.check_logprobs(wanted)
}
