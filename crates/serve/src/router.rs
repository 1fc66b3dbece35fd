//! Routes, and what their handlers share.

use std::sync::mpsc::Sender;
use std::sync::{Arc, OnceLock};
use std::time::{SystemTime, UNIX_EPOCH};

use axum::Router;
use axum::body::Body;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::http::{HeaderValue, Request, Response, StatusCode, header};
use axum::middleware::{Next, from_fn_with_state};
use axum::routing::{get, post};
use olivine_lm::JsonConstraints;
use olivine_tokenizer::{ChatTemplate, Tokenizer};
use serde_json::json;

use crate::ServeOptions;
use crate::admission::Admission;
use crate::api::{self, Budget, Problem, Received, respond};
use crate::auth::{Hosts, Keys, Origins};
use crate::embed::EmbedJob;
use crate::metrics::Metrics;
use crate::status::Status;
use crate::worker::Command;

/// The chat page.
const PAGE: &str = include_str!("page.html");

/// What all handlers share.
pub(crate) struct App {
    pub(crate) served: Served,
    /// Names of the model; the first is the one in responses.
    pub(crate) names: Vec<String>,
    /// Seconds from 1970 to the server's start.
    pub(crate) created: u64,
    pub(crate) status: Arc<Status>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) admission: Arc<Admission>,
    /// Requests that are parsed, rendered and tokenised at once.
    pub(crate) preparing: Admission,
    pub(crate) keys: Keys,
    pub(crate) origins: Origins,
    pub(crate) hosts: Hosts,
    pub(crate) options: ServeOptions,
    pub(crate) budget: Arc<Budget>,
}

/// The model, as handlers see it.
pub(crate) enum Served {
    Language(Box<Language>),
    Encoder(Encoder),
}

/// A language model behind its thread.
pub(crate) struct Language {
    pub(crate) tokenizer: Arc<Tokenizer>,
    pub(crate) template: Result<ChatTemplate, String>,
    pub(crate) commands: Sender<Command>,
    pub(crate) context: usize,
    pub(crate) vocabulary: usize,
    pub(crate) logprobs: bool,
    /// Made when the first request asks for JSON.
    pub(crate) constraints: OnceLock<Result<JsonConstraints, String>>,
}

/// An encoder behind its thread.
pub(crate) struct Encoder {
    pub(crate) tokenizer: Arc<Tokenizer>,
    pub(crate) jobs: Sender<EmbedJob>,
    pub(crate) context: usize,
    pub(crate) hidden: usize,
    pub(crate) vocabulary: usize,
}

impl App {
    pub(crate) fn language(&self) -> Result<&Language, Problem> {
        match &self.served {
            Served::Language(language) => Ok(language),
            Served::Encoder(_) => Err(Problem::bad(format!(
                "`{}` is an encoder for /v1/embeddings; it generates no text",
                self.names[0]
            ))),
        }
    }

    pub(crate) fn encoder(&self) -> Result<&Encoder, Problem> {
        match &self.served {
            Served::Encoder(encoder) => Ok(encoder),
            Served::Language(_) => {
                let name = &self.names[0];
                Err(Problem::bad(format!(
                    "`{name}` is a language model and has no embeddings; serve an encoder such as BERT"
                )))
            }
        }
    }

    /// The model's name for a response to a request that names it so.
    pub(crate) fn named(&self, name: Option<&str>) -> Result<String, Problem> {
        match name {
            None => Ok(self.names[0].clone()),
            Some(name) if self.names.iter().any(|known| known == name) => Ok(name.to_string()),
            Some(name) => {
                let name: String = name.chars().take(100).collect();
                let message =
                    format!("the model `{name}` is not here; this server has {}", self.names.join(", "));
                Err(Problem::new(StatusCode::NOT_FOUND, message).code("model_not_found"))
            }
        }
    }
}

impl Language {
    /// The tokens of a text, in which control tokens may be written.
    pub(crate) fn encode(&self, text: &str, add_special: bool) -> Result<Vec<i64>, Problem> {
        let wrong = |error: olivine_tokenizer::Error| Problem::param("prompt", error.to_string());
        // Without making the tokens of a text that cannot fit.
        let (tokens, context) = (self.tokenizer.fewest_tokens(text.len()), self.context);
        if tokens >= context {
            return Err(Problem::from(&olivine_lm::Error::PromptTooLong { tokens, context }));
        }
        let ids = self.tokenizer.encode(text, add_special, true).map_err(wrong)?;
        self.check_tokens(&ids.into_iter().map(i64::from).collect::<Vec<_>>())
    }

    /// A prompt that the engine takes.
    pub(crate) fn check_tokens(&self, ids: &[i64]) -> Result<Vec<i64>, Problem> {
        use olivine_lm::Error as E;
        let context = self.context;
        if ids.is_empty() {
            return Err(Problem::from(&E::EmptyPrompt));
        }
        if ids.len() >= context {
            return Err(Problem::from(&E::PromptTooLong { tokens: ids.len(), context }));
        }
        let vocabulary = self.vocabulary;
        let unknown = ids.iter().position(|id| !usize::try_from(*id).is_ok_and(|id| id < vocabulary));
        match unknown {
            Some(position) => {
                Err(Problem::from(&E::UnknownToken { token: ids[position], position, vocabulary }))
            }
            None => Ok(ids.to_vec()),
        }
    }

    /// Constraints to JSON.
    pub(crate) fn json(&self) -> Result<&JsonConstraints, Problem> {
        let make = || JsonConstraints::new(&self.tokenizer).map_err(|error| error.to_string());
        self.constraints.get_or_init(make).as_ref().map_err(|why| Problem::internal(why.clone()))
    }

    pub(crate) fn check_logprobs(&self, wanted: bool) -> Result<bool, Problem> {
        match wanted && !self.logprobs {
            true => Err(Problem::unsupported("logprobs", "the server was started without log-probabilities")),
            false => Ok(wanted),
        }
    }
}

/// Seconds since 1970.
pub(crate) fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs())
}

/// All routes.
pub(crate) fn router(app: Arc<App>) -> Router {
    Router::new()
        .route("/", get(page))
        .route("/health", get(health))
        .route("/metrics", get(metrics))
        .route("/v1/models", get(models))
        .route("/v1/models/{*name}", get(model))
        .route("/v1/chat/completions", post(chat))
        .route("/v1/completions", post(completions))
        .route("/v1/embeddings", post(embeddings))
        .fallback(|| async {
            Problem::new(StatusCode::NOT_FOUND, "there is nothing at this path").response()
        })
        .method_not_allowed_fallback(|| async {
            Problem::new(StatusCode::METHOD_NOT_ALLOWED, "this path takes another method").response()
        })
        .layer(from_fn_with_state(app.clone(), guard))
        .with_state(app)
}

/// A path as metrics have it.
fn route(path: &str) -> &'static str {
    const KNOWN: [&str; 7] = [
        "/",
        "/health",
        "/metrics",
        "/v1/models",
        "/v1/chat/completions",
        "/v1/completions",
        "/v1/embeddings",
    ];
    match KNOWN.into_iter().find(|known| *known == path) {
        Some(known) => known,
        None if path.starts_with("/v1/models/") => "/v1/models",
        None => "other",
    }
}

/// Checks the API key, answers browsers about origins, and counts responses.
async fn guard(State(app): State<Arc<App>>, request: Request<Body>, next: Next) -> Response<Body> {
    let route = route(request.uri().path());
    let origin = app.origins.allowed(request.headers());
    let open = matches!(route, "/" | "/health");
    let mut response = match app.origins.preflight(&request) {
        _ if !app.hosts.allow(&request) => {
            let message = "the server does not know this name of its own; start it with `--allow-host NAME` or with an API key";
            Problem::new(StatusCode::MISDIRECTED_REQUEST, message).code("unknown_host").response()
        }
        Some(response) => response,
        None if !open && !app.keys.allow(request.headers()) => {
            let message = "the API key is missing or wrong; send it as `Authorization: Bearer KEY`";
            Problem::new(StatusCode::UNAUTHORIZED, message).code("invalid_api_key").response()
        }
        None => next.run(request).await,
    };
    let headers = response.headers_mut();
    if let Some(origin) = origin {
        headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin);
        headers.insert(header::VARY, HeaderValue::from_static("origin"));
    }
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    app.metrics.responded(route, response.status().as_u16());
    response
}

async fn page() -> Response<Body> {
    let mut response = Response::new(Body::from(PAGE));
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/html; charset=utf-8"));
    let policy = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'; \
                  img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";
    headers.insert(header::CONTENT_SECURITY_POLICY, HeaderValue::from_static(policy));
    response
}

async fn health(State(app): State<Arc<App>>) -> Response<Body> {
    match app.status.problem() {
        None => respond(StatusCode::OK, &json!({ "status": "ok", "model": app.names[0] })),
        Some(why) => {
            respond(StatusCode::SERVICE_UNAVAILABLE, &json!({ "status": "unavailable", "reason": why }))
        }
    }
}

async fn metrics(State(app): State<Arc<App>>) -> Response<Body> {
    let mut response = Response::new(Body::from(app.metrics.text(app.status.problem().is_none())));
    let kind = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
    response
}

async fn models(State(app): State<Arc<App>>) -> Response<Body> {
    api::models(&app)
}

async fn model(State(app): State<Arc<App>>, name: Result<Path<String>, PathRejection>) -> Response<Body> {
    let named = name.map_err(|why| Problem::bad(why.body_text()));
    named.and_then(|Path(name)| api::model(&app, &name)).unwrap_or_else(|problem| problem.response())
}

async fn chat(State(app): State<Arc<App>>, request: Request<Body>) -> Response<Body> {
    answer(app, request, api::chat).await
}

async fn completions(State(app): State<Arc<App>>, request: Request<Body>) -> Response<Body> {
    answer(app, request, api::completions).await
}

async fn embeddings(State(app): State<Arc<App>>, request: Request<Body>) -> Response<Body> {
    answer(app, request, api::embeddings).await
}

/// Receives a request's body and answers it, where the model answers and the queue has room.
async fn answer<F>(
    app: Arc<App>,
    request: Request<Body>,
    handler: impl FnOnce(Arc<App>, Received) -> F,
) -> Response<Body>
where
    F: Future<Output = Result<Response<Body>, Problem>>,
{
    let answered = async {
        if let Some(why) = app.status.problem() {
            return Err(Problem::unavailable(why));
        }
        if app.admission.is_full() {
            return Err(Problem::busy(app.admission.retry_after()));
        }
        let options = &app.options;
        let body = api::receive(request, options.body_limit, options.client_timeout, &app.budget).await?;
        handler(app.clone(), body).await
    };
    answered.await.unwrap_or_else(|problem| problem.response())
}
