//! `/v1/completions`.

use std::sync::Arc;

use axum::body::Body;
use axum::http::Response;
use olivine_tokenizer::Json;

use super::Left;
use super::body::Received;
use super::fields::Fields;
use super::format::Format;
use super::generate::{Wanted, generate};
use super::logprobs::Logprobs;
use super::params::{self, Params, Prompt, prompts, random};
use super::problem::Problem;
use crate::router::{App, Language};

/// Tokens where a request does not say how many, as in OpenAI's API.
const DEFAULT_TOKENS: usize = 16;
/// Prompts of a request at most.
const MOST_PROMPTS: usize = 128;

/// Parameters beside those of all requests for text.
const KNOWN: [&str; 4] = ["prompt", "suffix", "best_of", "echo"];
/// The likeliest tokens that a request may ask for, as in OpenAI's API.
const MOST_TOP: i64 = 5;

/// Continues prompts.
pub(crate) async fn completions(app: Arc<App>, body: Received) -> Result<Response<Body>, Problem> {
    let its = app.clone();
    let wanted = super::blocking(&app.preparing, move |left| prepare(&its, &body.parse()?, left)).await?;
    let language = app.language()?;
    generate(&app, language, wanted).await
}

fn prepare(app: &App, json: &Json, left: &Left) -> Result<Wanted, Problem> {
    let fields = Fields::of(json, "")?;
    let language = app.language()?;
    let model = app.named(fields.str("model")?)?;
    fields.only(&[&params::KNOWN, &KNOWN])?;
    let constraint = params::response_format(&fields, language)?;
    if fields.str("suffix")?.is_some_and(|suffix| !suffix.is_empty()) {
        return Err(Problem::unsupported("suffix", "text after the completion is not supported"));
    }
    let params = Params::read(&fields)?;
    let best_of = fields.size("best_of")?.unwrap_or(params.choices);
    if best_of != params.choices {
        return Err(Problem::unsupported("best_of", "`best_of` is supported only where it equals `n`"));
    }
    let logprobs = logprobs(&fields, language)?;
    let echo = fields.bool("echo")?.unwrap_or(false);
    if echo && logprobs.is_some() {
        return Err(Problem::unsupported("echo", "log-probabilities of the prompt are not supported"));
    }
    let given = prompts(&fields, "prompt", MOST_PROMPTS)?;
    let tokens = |prompt: &Prompt<'_>| {
        left.check()?;
        match prompt {
            Prompt::Text(text) => language.encode(text, true),
            Prompt::Tokens(ids) => language.check_tokens(ids),
        }
    };
    let prompts = given.iter().map(tokens).collect::<Result<Vec<_>, _>>()?;
    let text = |prompt: &Prompt<'_>| match prompt {
        Prompt::Text(text) => Ok(text.to_string()),
        Prompt::Tokens(ids) => decoded(language, ids),
    };
    let texts = || given.iter().map(text).collect::<Result<Vec<_>, _>>();
    let format = Format {
        is_chat: false,
        id: format!("cmpl-{:016x}", random()),
        model,
        created: crate::router::now(),
        include_usage: params.include_usage,
        logprobs: logprobs.map(|top| Logprobs { tokenizer: language.tokenizer.clone(), top, is_chat: false }),
        echo: if echo { Some((texts()?, params.choices)) } else { None },
        calls: None,
    };
    let max_tokens = params.max_tokens.unwrap_or(DEFAULT_TOKENS);
    Ok(Wanted { prompts, params, max_tokens, constraint, markers: Arc::new([]), format })
}

fn decoded(language: &Language, ids: &[i64]) -> Result<String, Problem> {
    let known: Vec<u32> = ids.iter().filter_map(|id| u32::try_from(*id).ok()).collect();
    language
        .tokenizer
        .decode_with_special(&known)
        .map_err(|error| Problem::param("prompt", error.to_string()))
}

/// How many of the likeliest tokens come with each token's log-probability, if these are wanted.
fn logprobs(fields: &Fields<'_>, language: &Language) -> Result<Option<usize>, Problem> {
    let wanted = fields.integer("logprobs", 0, MOST_TOP)?;
    language.check_logprobs(wanted.is_some())?;
    Ok(wanted.map(|top| usize::try_from(top).unwrap_or(0)))
}
