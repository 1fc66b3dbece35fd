//! A stream of server-sent events.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::{HeaderValue, Response, header};
use http_body::Frame;
use serde_json::Value;
use tokio::time::{Instant, Interval, MissedTickBehavior, interval_at};

use super::calls::{CallParser, Delta};
use super::format::Format;
use super::generate::Running;
use super::problem::Problem;
use crate::text::Token;
use crate::worker::{Progress, Update};

/// How often a comment is sent while nothing else is, so that nobody between takes the connection for dead.
const KEEP_ALIVE: Duration = Duration::from_secs(10);
/// Bytes of one frame; what is ready beyond them waits for the next.
const LARGEST_FRAME: usize = 64 << 10;

/// What was sent of a choice.
struct Sent {
    has_begun: bool,
    /// Characters.
    offset: usize,
    parser: Option<CallParser>,
}

/// The events of running sequences. Dropping it, as happens when the client leaves, cancels them.
pub(crate) struct Events {
    running: Running,
    format: Format,
    choices: Vec<Sent>,
    left: usize,
    generated: usize,
    keep_alive: Interval,
    ended: bool,
}

impl Events {
    pub(crate) fn response(running: Running, format: Format) -> Response<Body> {
        let mut keep_alive = interval_at(Instant::now() + KEEP_ALIVE, KEEP_ALIVE);
        keep_alive.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let left = running.choices;
        let sent = |_| Sent { has_begun: false, offset: 0, parser: format.parser() };
        let choices = (0..left).map(sent).collect();
        let events = Events { running, format, choices, left, generated: 0, keep_alive, ended: false };
        let mut response = Response::new(Body::new(events));
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
        // Proxies such as nginx would collect the stream otherwise.
        headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
        response
    }

    fn take(&mut self, update: Update, out: &mut String) {
        let Update { choice, what } = update;
        match what {
            Progress::Accepted => {}
            Progress::Refused(error) => self.fail(&Problem::from(&error), out),
            Progress::Failed(why) => self.fail(&Problem::internal(why), out),
            Progress::Text(piece) => {
                self.begin(choice, out);
                let deltas = match &mut self.choices[choice].parser {
                    Some(parser) => parser.push(&piece.text),
                    None => vec![Delta::Content(piece.text)],
                };
                self.send(choice, deltas, &piece.tokens, out);
            }
            Progress::Done { reason, generated } => {
                self.begin(choice, out);
                let rest = self.choices[choice].parser.as_mut().map(CallParser::finish).unwrap_or_default();
                self.send(choice, rest, &[], out);
                let has_calls = self.choices[choice].parser.as_ref().is_some_and(CallParser::has_calls);
                event(out, &self.format.end(choice, reason, has_calls));
                self.generated += generated;
                self.left -= 1;
                if self.left == 0 {
                    if let Some(usage) = self.format.usage(self.running.prompt_tokens, self.generated) {
                        event(out, &usage);
                    }
                    out.push_str("data: [DONE]\n\n");
                    self.ended = true;
                }
            }
        }
    }

    /// Parts of a choice; tokens come with the first of them.
    fn send(&mut self, choice: usize, mut deltas: Vec<Delta>, mut tokens: &[Token], out: &mut String) {
        if deltas.is_empty() && !tokens.is_empty() {
            deltas.push(Delta::Content(String::new()));
        }
        for delta in deltas {
            let offset = &mut self.choices[choice].offset;
            event(out, &self.format.chunk(choice, &delta, std::mem::take(&mut tokens), offset));
        }
    }

    fn begin(&mut self, choice: usize, out: &mut String) {
        if !std::mem::replace(&mut self.choices[choice].has_begun, true)
            && let Some(first) = self.format.first(choice)
        {
            event(out, &first);
        }
    }

    fn fail(&mut self, problem: &Problem, out: &mut String) {
        event(out, &problem.json());
        self.ended = true;
    }
}

fn event(out: &mut String, json: &Value) {
    out.push_str("data: ");
    out.push_str(&json.to_string());
    out.push_str("\n\n");
}

impl http_body::Body for Events {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let this = self.get_mut();
        let mut out = String::new();
        while !this.ended && out.len() < LARGEST_FRAME {
            match this.running.poll_next(cx) {
                Poll::Ready(Some(update)) => this.take(update, &mut out),
                Poll::Ready(None) => this.fail(&Problem::internal("the model does not answer"), &mut out),
                Poll::Pending => break,
            }
        }
        if !out.is_empty() {
            this.keep_alive.reset();
            return Poll::Ready(Some(Ok(Frame::data(out.into()))));
        }
        if this.ended {
            return Poll::Ready(None);
        }
        match this.keep_alive.poll_tick(cx) {
            Poll::Ready(_) => Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(b": waiting\n\n"))))),
            Poll::Pending => Poll::Pending,
        }
    }
}
