//! A server of one language model or one embedding model, by the protocol of OpenAI's API.
//!
//! ```text
//!   client ── http.rs     connections, limits, timeouts, shutdown
//!               │
//!             router.rs   routes, API keys, CORS, metrics
//!               │
//!             api/        JSON to requests; tokens to JSON or server-sent events
//!               │ jobs                     ▲ text
//!             worker.rs   one thread with the Engine: every step serves all sequences
//!             embed.rs    one thread with an encoder, for embeddings
//! ```
//!
//! A sequence whose client has left is cancelled before the next step. The queue is bounded: what does not fit is answered with
//! 429 at once. [`Server::start`] returns when the model answers.
//!
//! ```no_run
//! use olivine::prelude::*;
//! use olivine_lm::EngineOptions;
//! use olivine_serve::{ServeOptions, ServedModel, Server};
//!
//! let session = Session::new(Device::auto()?)?;
//! let model = ServedModel::load("model.gguf", &session, &EngineOptions::default().slots(4))?;
//! let server = Server::start(model, ServeOptions::new().port(8080))?;
//! println!("http://{}", server.address());
//! server.run_until_signal()?;
//! # Ok::<(), olivine_serve::Error>(())
//! ```
#![forbid(unsafe_code)]

mod admission;
mod api;
mod auth;
mod embed;
mod error;
mod http;
mod metrics;
mod model;
mod options;
mod router;
mod server;
mod status;
mod stop;
mod text;
mod worker;

pub use error::Error;
pub use model::ServedModel;
pub use options::ServeOptions;
pub use server::Server;

/// The guide, whose example is compiled as a doc test.
#[doc = include_str!("../../../docs/guides/serving.md")]
#[cfg(doctest)]
struct Guide;
