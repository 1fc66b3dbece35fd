//! `/v1/models`.

use axum::body::Body;
use axum::http::{Response, StatusCode};
use serde_json::{Value, json};

use super::problem::{Problem, respond};
use crate::router::{App, Served};

fn entry(app: &App, name: &str) -> Value {
    let (context, embeds) = match &app.served {
        Served::Language(language) => (language.context, false),
        Served::Encoder(encoder) => (encoder.context, true),
    };
    json!({
        "id": name, "object": "model", "created": app.created, "owned_by": "olivine",
        "max_model_len": context, "task": if embeds { "embedding" } else { "generation" },
    })
}

/// The model under each of its names.
pub(crate) fn models(app: &App) -> Response<Body> {
    let data: Vec<Value> = app.names.iter().map(|name| entry(app, name)).collect();
    respond(StatusCode::OK, &json!({ "object": "list", "data": data }))
}

/// The model under one name.
pub(crate) fn model(app: &App, name: &str) -> Result<Response<Body>, Problem> {
    Ok(respond(StatusCode::OK, &entry(app, &app.named(Some(name))?)))
}
