//! `/v1/embeddings`.

use std::sync::Arc;
use std::time::Instant;

use axum::body::Body;
use axum::http::{Response, StatusCode};
use olivine_tokenizer::Json;
use serde_json::{Value, json};
use tokio::sync::oneshot;

use super::Left;
use super::body::Received;
use super::fields::Fields;
use super::params::{Prompt, prompts};
use super::problem::{Problem, respond};
use crate::embed::EmbedJob;
use crate::router::{App, Encoder};

/// Texts of a request at most, as in OpenAI's API.
const MOST_TEXTS: usize = 2048;

/// What is to be embedded.
struct Wanted {
    model: String,
    texts: Vec<Vec<i64>>,
    base64: bool,
}

/// Embeds texts.
pub(crate) async fn embeddings(app: Arc<App>, body: Received) -> Result<Response<Body>, Problem> {
    let begun = Instant::now();
    let its = app.clone();
    let prepared = super::blocking(&app.preparing, move |left| prepare(&its, &body.parse()?, left)).await;
    let Wanted { model, texts, base64 } = prepared?;
    let encoder = app.encoder()?;
    let busy = || Problem::busy(app.admission.retry_after());
    let permit = app.admission.take(1).and_then(|mut permits| permits.pop()).ok_or_else(busy)?;
    let tokens: usize = texts.iter().map(Vec::len).sum();
    let (reply, answer) = oneshot::channel();
    let gone = || Problem::unavailable("the model does not answer");
    encoder.jobs.send(EmbedJob { texts, reply, permit, begun }).map_err(|_| gone())?;
    let vectors = answer.await.map_err(|_| gone())?.map_err(Problem::internal)?;
    let one = |(index, vector): (usize, &Vec<f32>)| {
        let value = if base64 { Value::from(encoded(vector)) } else { json!(vector) };
        json!({ "object": "embedding", "index": index, "embedding": value })
    };
    let data: Vec<Value> = vectors.iter().enumerate().map(one).collect();
    app.metrics.request.record(begun.elapsed());
    let usage = json!({ "prompt_tokens": tokens, "total_tokens": tokens });
    Ok(respond(StatusCode::OK, &json!({ "object": "list", "data": data, "model": model, "usage": usage })))
}

fn prepare(app: &App, json: &Json, left: &Left) -> Result<Wanted, Problem> {
    let fields = Fields::of(json, "")?;
    fields.only(&[&["model", "input", "encoding_format", "dimensions", "user"]])?;
    let model = app.named(fields.str("model")?)?;
    let encoder = app.encoder()?;
    let base64 = match fields.str("encoding_format")? {
        None | Some("float") => false,
        Some("base64") => true,
        Some(_) => return Err(fields.wrong("encoding_format", "has to be `float` or `base64`")),
    };
    if fields.size("dimensions")?.is_some_and(|wanted| wanted != encoder.hidden) {
        let message = format!("the model's vectors have {} elements, and no others", encoder.hidden);
        return Err(Problem::unsupported("dimensions", message));
    }
    let given = prompts(&fields, "input", MOST_TEXTS)?;
    let tokens = |prompt: &Prompt<'_>| left.check().and_then(|()| tokens(encoder, prompt));
    let texts = given.iter().map(tokens).collect::<Result<Vec<_>, _>>()?;
    Ok(Wanted { model, texts, base64 })
}

fn tokens(encoder: &Encoder, prompt: &Prompt<'_>) -> Result<Vec<i64>, Problem> {
    let wrong = |message: String| Problem::param("input", message);
    let ids: Vec<i64> = match prompt {
        Prompt::Text("") => return Err(wrong("a text of `input` is empty".into())),
        Prompt::Text(text) => {
            let ids =
                encoder.tokenizer.encode(text, true, false).map_err(|error| wrong(error.to_string()))?;
            ids.into_iter().map(i64::from).collect()
        }
        Prompt::Tokens(ids) => ids.clone(),
    };
    if let Some(id) = ids.iter().find(|id| !usize::try_from(**id).is_ok_and(|id| id < encoder.vocabulary)) {
        return Err(wrong(format!("token {id} is not below {}", encoder.vocabulary)));
    }
    match ids.len() {
        0 => Err(wrong("a text of `input` has no tokens".into())),
        count if count > encoder.context => {
            let message = format!("a text has {count} tokens; the model reads {}", encoder.context);
            Err(wrong(message).code("context_length_exceeded"))
        }
        _ => Ok(ids),
    }
}

/// Elements in little-endian order, in base64.
fn encoded(vector: &[f32]) -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let bytes: Vec<u8> = vector.iter().flat_map(|x| x.to_le_bytes()).collect();
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for part in bytes.chunks(3) {
        let at = |i: usize| u32::from(part.get(i).copied().unwrap_or(0));
        let bits = at(0) << 16 | at(1) << 8 | at(2);
        for i in 0..4 {
            let digit = ALPHABET[(bits >> (18 - 6 * i) & 63) as usize];
            text.push(if i <= part.len() { char::from(digit) } else { '=' });
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::encoded;

    #[test]
    fn vectors_are_written_in_base64() {
        // As Python's base64.b64encode(struct.pack("<2f", 1.0, -2.5)) has it.
        assert_eq!(encoded(&[1.0, -2.5]), "AACAPwAAIMA=");
        assert_eq!(encoded(&[1.0]), "AACAPw==");
        assert_eq!(encoded(&[1.0, 0.1, 3.0]), "AACAP83MzD0AAEBA");
        assert_eq!(encoded(&[]), "");
    }
}
