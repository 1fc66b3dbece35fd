//! Errors of a request, in the JSON shape of OpenAI's API.

use axum::body::Body;
use axum::http::{HeaderValue, Response, StatusCode, header};
use serde_json::{Value, json};

/// Why a request is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Problem {
    pub(crate) status: StatusCode,
    message: String,
    param: Option<String>,
    code: Option<&'static str>,
    retry_after: Option<u64>,
}

impl Problem {
    pub(crate) fn new(status: StatusCode, message: impl Into<String>) -> Self {
        Problem { status, message: message.into(), param: None, code: None, retry_after: None }
    }

    /// The client's fault.
    pub(crate) fn bad(message: impl Into<String>) -> Self {
        Problem::new(StatusCode::BAD_REQUEST, message)
    }

    /// A parameter that cannot be used.
    pub(crate) fn param(name: impl Into<String>, message: impl Into<String>) -> Self {
        Problem { param: Some(name.into()), ..Problem::bad(message) }
    }

    /// A parameter that is known and not supported.
    pub(crate) fn unsupported(name: &str, message: impl Into<String>) -> Self {
        Problem::param(name, message).code("unsupported_parameter")
    }

    /// The server's fault.
    pub(crate) fn internal(message: impl Into<String>) -> Self {
        Problem::new(StatusCode::INTERNAL_SERVER_ERROR, message)
    }

    /// The model does not answer, now.
    pub(crate) fn unavailable(message: impl Into<String>) -> Self {
        Problem { retry_after: Some(5), ..Problem::new(StatusCode::SERVICE_UNAVAILABLE, message) }
    }

    /// The queue is full.
    pub(crate) fn busy(retry_after: u64) -> Self {
        let message = format!("the queue is full; try again in {retry_after} s");
        let problem = Problem::new(StatusCode::TOO_MANY_REQUESTS, message).code("queue_full");
        Problem { retry_after: Some(retry_after), ..problem }
    }

    pub(crate) fn code(self, code: &'static str) -> Self {
        Problem { code: Some(code), ..self }
    }

    /// The kind of error, by the status.
    fn kind(&self) -> &'static str {
        match self.status.as_u16() {
            401 => "authentication_error",
            429 => "rate_limit_error",
            500.. => "server_error",
            _ => "invalid_request_error",
        }
    }

    pub(crate) fn json(&self) -> Value {
        json!({ "error": {
            "message": self.message, "type": self.kind(), "param": self.param, "code": self.code,
        }})
    }

    pub(crate) fn response(&self) -> Response<Body> {
        let mut response = respond(self.status, &self.json());
        if let Some(seconds) = self.retry_after {
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        if self.status == StatusCode::UNAUTHORIZED {
            response.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }
}

impl From<&olivine_lm::Error> for Problem {
    fn from(error: &olivine_lm::Error) -> Self {
        use olivine_lm::Error as E;
        let message = error.to_string();
        match error {
            E::PromptTooLong { .. } => Problem::param("prompt", message).code("context_length_exceeded"),
            E::EmptyPrompt | E::UnknownToken { .. } | E::Invalid { .. } => Problem::bad(message),
            _ => Problem::internal(message),
        }
    }
}

/// A response with a JSON body.
pub(crate) fn respond(status: StatusCode, json: &Value) -> Response<Body> {
    respond_text(status, json.to_string())
}

/// [`respond`] with JSON that is written.
pub(crate) fn respond_text(status: StatusCode, json: String) -> Response<Body> {
    let mut response = Response::new(Body::from(json));
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}
