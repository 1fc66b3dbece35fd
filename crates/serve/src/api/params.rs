//! What requests for completions and chats have in common: sampling, lengths, stop strings.

use std::hash::{BuildHasher as _, Hasher as _, RandomState};

use olivine_lm::{Constraint, Sampling};
use olivine_tokenizer::{Json, JsonSchema};

use super::fields::Fields;
use super::problem::Problem;
use crate::router::Language;

/// Choices of one request at most.
const MOST_CHOICES: i64 = 128;
/// Biases of one request at most.
const MOST_BIASES: usize = 1024;
/// Stop strings of one request at most, and bytes of one.
const MOST_STOPS: usize = 16;
const LONGEST_STOP: usize = 1024;

/// What requests for text may have.
pub(crate) const KNOWN: [&str; 25] = [
    "model",
    "stream",
    "stream_options",
    "n",
    "seed",
    "max_tokens",
    "max_completion_tokens",
    "stop",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "frequency_penalty",
    "presence_penalty",
    "repetition_penalty",
    "repeat_last_n",
    "logit_bias",
    "ignore_eos",
    "logprobs",
    "response_format",
    // These change nothing: who asks, and what OpenAI's servers remember.
    "user",
    "metadata",
    "safety_identifier",
    "prompt_cache_key",
    "prompt_cache_retention",
];

/// How a request wants its text.
#[derive(Clone, Debug)]
pub(crate) struct Params {
    pub(crate) sampling: Sampling,
    pub(crate) choices: usize,
    pub(crate) max_tokens: Option<usize>,
    pub(crate) stops: Vec<String>,
    pub(crate) stream: bool,
    pub(crate) include_usage: bool,
    /// Whether tokens that end a text do not.
    pub(crate) ignore_eos: bool,
}

impl Params {
    pub(crate) fn read(fields: &Fields<'_>) -> Result<Self, Problem> {
        let stream = fields.bool("stream")?.unwrap_or(false);
        fields.str("user")?;
        fields.entries("metadata")?;
        Ok(Params {
            sampling: sampling(fields)?,
            choices: usize::try_from(fields.integer("n", 1, MOST_CHOICES)?.unwrap_or(1)).unwrap_or(1),
            max_tokens: max_tokens(fields)?,
            stops: stops(fields)?,
            stream,
            include_usage: include_usage(fields, stream)?,
            ignore_eos: fields.bool("ignore_eos")?.unwrap_or(false),
        })
    }

    /// How tokens of a choice are drawn: each has a seed of its own.
    pub(crate) fn sampling_of(&self, choice: usize) -> Sampling {
        let seed = self.sampling.seed.wrapping_add(choice as u64);
        Sampling { seed, ..self.sampling.clone() }
    }
}

fn sampling(fields: &Fields<'_>) -> Result<Sampling, Problem> {
    let none = Sampling::default();
    let top_k = fields.integer("top_k", -1, i64::from(i32::MAX))?.unwrap_or(0).max(0);
    Ok(Sampling {
        temperature: fields.number("temperature", 0.0, 2.0)?.unwrap_or(1.0),
        top_k: i32::try_from(top_k).unwrap_or(i32::MAX),
        top_p: fields.number("top_p", 0.0, 1.0)?.unwrap_or(1.0),
        min_p: fields.number("min_p", 0.0, 1.0)?.unwrap_or(0.0),
        repetition: fields.number("repetition_penalty", 0.01, 100.0)?.unwrap_or(1.0),
        frequency: fields.number("frequency_penalty", -2.0, 2.0)?.unwrap_or(0.0),
        presence: fields.number("presence_penalty", -2.0, 2.0)?.unwrap_or(0.0),
        last_tokens: fields.size("repeat_last_n")?.unwrap_or(none.last_tokens),
        bias: biases(fields)?,
        seed: match fields.integer("seed", i64::MIN, i64::MAX)? {
            Some(seed) => seed as u64,
            None => random(),
        },
    })
}

/// A number that nobody can foresee, as seeds of hash maps are.
pub(crate) fn random() -> u64 {
    RandomState::new().build_hasher().finish()
}

fn biases(fields: &Fields<'_>) -> Result<Vec<(i64, f32)>, Problem> {
    let entries = fields.entries("logit_bias")?;
    if entries.len() > MOST_BIASES {
        return Err(fields.wrong("logit_bias", format_args!("has over {MOST_BIASES} entries")));
    }
    let mut biases: Vec<(i64, f32)> = Vec::with_capacity(entries.len());
    for (token, bias) in entries {
        let id = token.parse::<i64>().ok().filter(|id| *id >= 0);
        let id = id.ok_or_else(|| fields.wrong("logit_bias", "has a key that is not a token's number"))?;
        let bias = bias.as_f64().filter(|bias| (-100.0..=100.0).contains(bias));
        let bias =
            bias.ok_or_else(|| fields.wrong("logit_bias", "has a value that is not from -100 to 100"))?;
        // A key that is given twice counts once, as in a map.
        biases.retain(|(other, _)| *other != id);
        // -100 bans a token by the words of the API.
        biases.push((id, if bias == -100.0 { f32::NEG_INFINITY } else { bias as f32 }));
    }
    Ok(biases)
}

fn max_tokens(fields: &Fields<'_>) -> Result<Option<usize>, Problem> {
    Ok(fields.size("max_completion_tokens")?.or(fields.size("max_tokens")?))
}

fn stops(fields: &Fields<'_>) -> Result<Vec<String>, Problem> {
    let stops = match fields.get("stop") {
        None => Vec::new(),
        Some(Json::String(stop)) => vec![stop.clone()],
        Some(Json::Array(items)) => {
            let text = |item: &Json| item.as_str().map(str::to_string);
            let all: Option<Vec<String>> = items.iter().map(text).collect();
            all.ok_or_else(|| fields.wrong("stop", "has an element that is not a string"))?
        }
        Some(_) => return Err(fields.wrong("stop", "has to be a string or an array of strings")),
    };
    if stops.len() > MOST_STOPS {
        return Err(fields.wrong("stop", format_args!("has over {MOST_STOPS} strings")));
    }
    match stops.iter().find(|stop| stop.is_empty() || stop.len() > LONGEST_STOP) {
        Some(_) => Err(fields.wrong("stop", format_args!("needs strings of 1 to {LONGEST_STOP} bytes"))),
        None => Ok(stops),
    }
}

fn include_usage(fields: &Fields<'_>, stream: bool) -> Result<bool, Problem> {
    let Some(options) = fields.get("stream_options") else { return Ok(false) };
    let options = Fields::of(options, "stream_options")?;
    if !stream {
        return Err(fields.wrong("stream_options", "is for requests with `stream`"));
    }
    options.refuse(&["include_obfuscation"])?;
    options.only(&[&["include_usage", "include_obfuscation"]])?;
    Ok(options.bool("include_usage")?.unwrap_or(false))
}

/// Texts as a string, several, or tokens: `prompt` of completions and `input` of embeddings.
pub(crate) enum Prompt<'a> {
    Text(&'a str),
    Tokens(Vec<i64>),
}

/// Reads a field with one or several texts.
pub(crate) fn prompts<'a>(fields: &Fields<'a>, key: &str, most: usize) -> Result<Vec<Prompt<'a>>, Problem> {
    let wrong =
        || fields.wrong(key, "has to be a string, an array of strings, of tokens or of arrays of tokens");
    let tokens = |items: &[Json]| -> Result<Prompt<'a>, Problem> {
        let id = |item: &Json| match item {
            Json::Int(id) => Ok(*id),
            _ => Err(wrong()),
        };
        Ok(Prompt::Tokens(items.iter().map(id).collect::<Result<_, _>>()?))
    };
    let all = match fields.get(key) {
        None => return Err(fields.wrong(key, "is missing")),
        Some(Json::String(text)) => vec![Prompt::Text(text)],
        Some(Json::Array(items)) if matches!(items.first(), Some(Json::Int(_))) => vec![tokens(items)?],
        Some(Json::Array(items)) => {
            let one = |item: &'a Json| match item {
                Json::String(text) => Ok(Prompt::Text(text)),
                Json::Array(ids) => tokens(ids),
                _ => Err(wrong()),
            };
            items.iter().map(one).collect::<Result<_, _>>()?
        }
        Some(_) => return Err(wrong()),
    };
    match all.len() {
        0 => Err(fields.wrong(key, "is empty")),
        count if count > most => {
            Err(fields.wrong(key, format_args!("has {count} texts; {most} are allowed")))
        }
        _ => Ok(all),
    }
}

/// The grammar that a request's text has to follow.
pub(crate) fn response_format(
    fields: &Fields<'_>,
    language: &Language,
) -> Result<Option<Constraint>, Problem> {
    let Some(format) = fields.get("response_format") else { return Ok(None) };
    let format = Fields::of(format, "response_format")?;
    match format.str("type")? {
        Some("text") => Ok(None),
        Some("json_object") => Ok(Some(language.json()?.object())),
        Some("json_schema") => {
            let Some(inner) = format.get("json_schema") else {
                return Err(format.wrong("json_schema", "is missing"));
            };
            let inner = Fields::of(inner, "response_format.json_schema")?;
            let Some(schema) = inner.get("schema") else { return Err(inner.wrong("schema", "is missing")) };
            let refused =
                |error: olivine_tokenizer::Error| Problem::param("response_format", error.to_string());
            Ok(Some(language.json()?.of_schema(JsonSchema::from_json(schema).map_err(refused)?)))
        }
        Some(_) => Err(format.wrong("type", "has to be `text`, `json_object` or `json_schema`")),
        None => Err(format.wrong("type", "is missing")),
    }
}
