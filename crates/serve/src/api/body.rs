//! The body of a request: bounded in bytes and time, and JSON.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::body::{Body, HttpBody};
use axum::http::{Request, StatusCode, header};
use olivine_tokenizer::Json;

use super::problem::Problem;

/// Bytes of all bodies in memory at most, whoever sends them.
const ALL_BODIES: usize = 512 << 20;

/// Bytes of bodies in memory.
#[derive(Default)]
pub(crate) struct Budget(AtomicUsize);

/// The part of a budget that a body takes, until it is dropped.
struct Taken {
    budget: Arc<Budget>,
    bytes: usize,
}

impl Taken {
    fn more(&mut self, bytes: usize) -> Result<(), Problem> {
        self.bytes += bytes;
        match self.budget.0.fetch_add(bytes, Ordering::Relaxed) + bytes > ALL_BODIES {
            true => Err(Problem::unavailable("too many large requests at once")),
            false => Ok(()),
        }
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        self.budget.0.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// A body that has come. It is parsed by who uses it, on one thread: values take many times the bytes of their text, so those of all
/// requests that wait must not be in memory.
pub(crate) struct Received {
    bytes: Vec<u8>,
    _taken: Taken,
}

impl Received {
    /// Parses the body, which must be JSON.
    pub(crate) fn parse(self) -> Result<Json, Problem> {
        let text = std::str::from_utf8(&self.bytes).map_err(|_| Problem::bad("the body is not UTF-8"))?;
        Json::parse(text).map_err(|error| Problem::bad(format!("the body is not JSON: {error}")))
    }
}

/// Reads a body of at most `limit` bytes that comes in time.
pub(crate) async fn receive(
    request: Request<Body>,
    limit: usize,
    timeout: Duration,
    budget: &Arc<Budget>,
) -> Result<Received, Problem> {
    // Pages of other origins cannot send this type without asking first (CORS).
    let kind = request.headers().get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
    let kind = kind.and_then(|kind| kind.split(';').next()).unwrap_or_default().trim();
    if !kind.eq_ignore_ascii_case("application/json") {
        let message = "the request needs the header `Content-Type: application/json`";
        return Err(Problem::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, message));
    }
    let mut taken = Taken { budget: budget.clone(), bytes: 0 };
    match tokio::time::timeout(timeout, collect(request.into_body(), limit, &mut taken)).await {
        Ok(bytes) => Ok(Received { bytes: bytes?, _taken: taken }),
        Err(_) => {
            let message = format!("the body did not come within {} s", timeout.as_secs());
            Err(Problem::new(StatusCode::REQUEST_TIMEOUT, message))
        }
    }
}

async fn collect(mut body: Body, limit: usize, taken: &mut Taken) -> Result<Vec<u8>, Problem> {
    let mut bytes = Vec::new();
    let over = || {
        let message = format!("the body has over {limit} bytes");
        Problem::new(StatusCode::PAYLOAD_TOO_LARGE, message)
    };
    if body.size_hint().lower() > limit as u64 {
        return Err(over());
    }
    while let Some(frame) = poll_fn(|cx| Pin::new(&mut body).poll_frame(cx)).await {
        let frame = frame.map_err(|error| Problem::bad(format!("the body cannot be read: {error}")))?;
        let Ok(data) = frame.into_data() else { continue };
        if bytes.len() + data.len() > limit {
            return Err(over());
        }
        taken.more(data.len())?;
        bytes.extend_from_slice(&data);
    }
    Ok(bytes)
}
