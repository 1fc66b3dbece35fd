//! A small model with random weights behind a server, and a client of HTTP that does nothing by itself.
#![allow(
    dead_code,
    clippy::unwrap_used,
    clippy::panic,
    reason = "shared by tests, which say what they expect"
)]

pub(crate) mod client;
pub(crate) mod model;

use std::time::{Duration, Instant};

use olivine::prelude::*;
use olivine_lm::EngineOptions;
use olivine_serve::{ServeOptions, ServedModel, Server};

use client::get;

/// The model's name in requests.
pub(crate) const NAME: &str = "tiny";

/// Options on any free port.
pub(crate) fn options() -> ServeOptions {
    ServeOptions::new().port(0).names([NAME.to_string(), "other/name".to_string()])
}

/// The tiny model behind a server.
pub(crate) fn serve(slots: usize, options: ServeOptions) -> Server {
    Server::start(loaded(slots), options).unwrap()
}

/// The tiny model.
pub(crate) fn loaded(slots: usize) -> ServedModel {
    let session = Session::with_options(Device::Cpu, SessionOptions::new().threads(Some(1))).unwrap();
    let engine = EngineOptions::default().slots(slots).logprobs(true).top_logprobs(20).chunk(64);
    ServedModel::load(model::path(), &session, &engine).unwrap()
}

/// A number of `/metrics`.
pub(crate) fn metric(server: &Server, name: &str) -> f64 {
    let text = get(server, "/metrics").text();
    let line = text.lines().find(|line| line.split(' ').next() == Some(name));
    line.unwrap_or_else(|| panic!("{name} is not in\n{text}")).rsplit(' ').next().unwrap().parse().unwrap()
}

/// Waits until something is so, and returns how long that took.
pub(crate) fn wait_until(most: Duration, what: &str, mut so: impl FnMut() -> bool) -> Duration {
    let begun = Instant::now();
    while !so() {
        assert!(begun.elapsed() < most, "{what}: not within {most:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
    begun.elapsed()
}
