//! `/v1/chat/completions`.

use std::sync::Arc;

use axum::body::Body;
use axum::http::Response;
use olivine_lm::MOST_TOP_LOGPROBS;
use olivine_tokenizer::{ChatOptions, ChatTemplate, Json, Message};

use super::Left;
use super::body::Received;
use super::fields::Fields;
use super::format::Format;
use super::generate::{Wanted, generate};
use super::logprobs::Logprobs;
use super::params::{self, Params, random};
use super::problem::Problem;
use super::tools::{Tools, tools};
use crate::router::{App, Language};

/// Parameters beside those of all requests for text.
const KNOWN: [&str; 10] = [
    "messages",
    "tools",
    "tool_choice",
    "parallel_tool_calls",
    "top_logprobs",
    "chat_template_kwargs",
    "modalities",
    "store",
    "service_tier",
    "functions",
];
/// Parameters that may be there as long as they ask for nothing.
const EMPTY: [&str; 2] = ["store", "functions"];
/// Messages of a request at most.
const MOST_MESSAGES: usize = 10_000;

/// Answers a chat.
pub(crate) async fn chat(app: Arc<App>, body: Received) -> Result<Response<Body>, Problem> {
    let its = app.clone();
    let wanted = super::blocking(&app.preparing, move |left| prepare(&its, &body.parse()?, left)).await?;
    let language = app.language()?;
    generate(&app, language, wanted).await
}

fn prepare(app: &App, json: &Json, left: &Left) -> Result<Wanted, Problem> {
    let fields = Fields::of(json, "")?;
    let language = app.language()?;
    let model = app.named(fields.str("model")?)?;
    fields.refuse(&EMPTY)?;
    fields.only(&[&params::KNOWN, &KNOWN])?;
    refuse_modalities(&fields)?;
    refuse_tier(&fields)?;
    let template = language.template.as_ref();
    let template = template.map_err(|why| Problem::bad(format!("the model has no chat template: {why}")))?;
    let tools = tools(&fields, template)?;
    let constraint = params::response_format(&fields, language)?;
    if constraint.is_some() && tools.is_some() {
        let message = "JSON is not supported in chats with tools; use `tool_choice: \"none\"`";
        return Err(Problem::unsupported("response_format", message));
    }
    let constraint = match &tools {
        Some(tools) => tools.constraint(language)?,
        None => constraint,
    };
    let params = Params::read(&fields)?;
    let logprobs = logprobs(&fields, language)?;
    let messages = messages(&fields)?;
    left.check()?;
    let prompt = prompt(&fields, language, template, &messages, tools.as_ref())?;
    let format = Format {
        is_chat: true,
        id: format!("chatcmpl-{:016x}", random()),
        model,
        created: crate::router::now(),
        include_usage: params.include_usage,
        logprobs: logprobs.map(|top| Logprobs { tokenizer: language.tokenizer.clone(), top, is_chat: true }),
        echo: None,
        calls: tools.as_ref().map(|tools| tools.calls.clone()),
    };
    let max_tokens = params.max_tokens.unwrap_or(usize::MAX);
    let markers = tools.map_or_else(|| Arc::new([]) as Arc<[u32]>, |tools| tools.markers(language));
    Ok(Wanted { prompts: vec![prompt], params, max_tokens, constraint, markers, format })
}

/// The tokens of a conversation, by the model's template.
fn prompt(
    fields: &Fields<'_>,
    language: &Language,
    template: &ChatTemplate,
    messages: &[Message],
    tools: Option<&Tools>,
) -> Result<Vec<i64>, Problem> {
    let variables = fields.entries("chat_template_kwargs")?.to_vec();
    let definitions = tools.map(|tools| tools.definitions.clone()).unwrap_or_default();
    let options =
        ChatOptions { add_generation_prompt: true, tools: definitions, variables, ..ChatOptions::default() };
    let refused = |error: olivine_tokenizer::Error| Problem::param("messages", error.to_string());
    let mut text = template.render(messages, &options).map_err(refused)?;
    if let Some(tools) = tools.filter(|tools| tools.calls.forced) {
        text += tools.calls.syntax.forcing();
    }
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
    fields.refuse(&["function_call", "audio"])?;
    let earlier = |(i, call): (usize, &Json)| earlier_call(&fields, i, call);
    let calls = fields.array("tool_calls")?.map(|calls| calls.iter().enumerate().map(earlier).collect());
    let calls: Option<Vec<Json>> = calls.transpose()?;
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
        Some(calls) => message.with("tool_calls", Json::Array(calls)),
        None => message,
    })
}

/// A call of an earlier answer. Its arguments are a string in the API, and an object in templates.
fn earlier_call(message: &Fields<'_>, index: usize, call: &Json) -> Result<Json, Problem> {
    let path = message.name(&format!("tool_calls[{index}]"));
    let call = Fields::of(call, path.clone())?;
    let Some(function) = call.get("function") else { return Err(call.wrong("function", "is missing")) };
    let function = Fields::of(function, format!("{path}.function"))?;
    let Some(name) = function.str("name")? else { return Err(function.wrong("name", "is missing")) };
    let text = function.str("arguments")?.unwrap_or("{}");
    let arguments = Json::parse(text).unwrap_or_else(|_| text.into());
    let function = vec![("name".into(), name.into()), ("arguments".into(), arguments)];
    let mut entries = vec![("type".into(), "function".into()), ("function".into(), Json::Object(function))];
    if let Some(id) = call.str("id")? {
        entries.insert(0, ("id".into(), id.into()));
    }
    Ok(Json::Object(entries))
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

fn refuse_tier(fields: &Fields<'_>) -> Result<(), Problem> {
    match fields.str("service_tier")? {
        None | Some("auto" | "default") => Ok(()),
        Some(_) => Err(Problem::unsupported("service_tier", "there is one tier only")),
    }
}

fn refuse_modalities(fields: &Fields<'_>) -> Result<(), Problem> {
    let kinds = fields.array("modalities")?.unwrap_or_default();
    match kinds.iter().all(|kind| kind.as_str() == Some("text")) {
        true => Ok(()),
        false => Err(Problem::unsupported("modalities", "the model writes text only")),
    }
}

/// How many of the likeliest tokens come with each token's log-probability, if these are wanted.
fn logprobs(fields: &Fields<'_>, language: &Language) -> Result<Option<usize>, Problem> {
    let wanted = fields.bool("logprobs")?.unwrap_or(false);
    let top = fields.integer("top_logprobs", 0, MOST_TOP_LOGPROBS as i64)?;
    if top.is_some() && !wanted {
        return Err(fields.wrong("top_logprobs", "needs `logprobs`"));
    }
    language.check_logprobs(wanted)?;
    Ok(wanted.then(|| usize::try_from(top.unwrap_or(0)).unwrap_or(0)))
}
