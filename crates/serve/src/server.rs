//! A server that runs: its threads, its address, its end.

use std::net::{SocketAddr, TcpListener};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, OnceLock};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use tokio::runtime::{Builder, Runtime};
use tokio::sync::watch;

use crate::admission::Admission;
use crate::auth::{Hosts, Keys, Origins};
use crate::metrics::Metrics;
use crate::model::{self, Kind};
use crate::router::{App, Encoder, Language, Served, now, router};
use crate::status::Status;
use crate::worker::{self, Command, Shared};
use crate::{Error, ServeOptions, ServedModel, embed, http};

/// Threads that serve connections.
const CONNECTION_THREADS: usize = 2;
/// Threads that parse requests and encode prompts.
const PREPARING_THREADS: usize = 4;
/// How long connections have to send errors, after their requests were ended.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// A server that accepts requests until it is stopped or dropped.
pub struct Server {
    address: SocketAddr,
    runtime: Option<Runtime>,
    connections: Option<tokio::task::JoinHandle<()>>,
    closing: watch::Sender<bool>,
    worker: Option<JoinHandle<()>>,
    /// Of a language model.
    commands: Option<Sender<Command>>,
    status: Arc<Status>,
    drain: Duration,
}

/// What is shared by the model's thread and by handlers.
struct Parts {
    status: Arc<Status>,
    metrics: Arc<Metrics>,
    admission: Arc<Admission>,
}

impl Server {
    /// Listens, and returns when the model has computed its first token.
    pub fn start(model: ServedModel, options: ServeOptions) -> Result<Server, Error> {
        check(&options)?;
        let address = SocketAddr::new(options.host, options.port);
        let listen = || {
            let listener = TcpListener::bind(address)?;
            listener.set_nonblocking(true)?;
            Ok((listener.local_addr()?, listener))
        };
        let (address, listener) = listen().map_err(|source| Error::Listen { address, source })?;
        let ServedModel { kind, name } = model;
        let slots = match &kind {
            Kind::Language(language) => language.slots,
            Kind::Encoder(_) => 1,
        };
        let parts = Parts {
            status: Arc::new(Status::new()),
            metrics: Arc::new(Metrics::default()),
            admission: Arc::new(Admission::new(slots, options.queue)),
        };
        parts.metrics.slots.set(slots);
        let (served, worker, commands) = match kind {
            Kind::Language(language) => start_language(*language, &parts)?,
            Kind::Encoder(encoder) => start_encoder(*encoder, &parts)?,
        };
        if let Some(problem) = parts.status.started() {
            return Err(Error::Warmup(problem));
        }
        let names = if options.names.is_empty() { vec![name] } else { options.names.clone() };
        let Parts { status, metrics, admission } = parts;
        let drain = options.drain;
        let app = Arc::new(App {
            served,
            names,
            created: now(),
            status: status.clone(),
            metrics: metrics.clone(),
            admission,
            preparing: Admission::new(slots, options.queue),
            keys: Keys::new(&options.api_keys),
            origins: Origins::new(&options.cors),
            hosts: Hosts::new(&options.hosts, options.host, !options.api_keys.is_empty()),
            options: options.clone(),
            budget: Arc::default(),
        });
        let mut builder = Builder::new_multi_thread();
        builder
            .worker_threads(CONNECTION_THREADS)
            .max_blocking_threads(PREPARING_THREADS)
            .thread_name("serve");
        let runtime = builder.enable_all().build().map_err(Error::Start)?;
        let (closing, closes) = watch::channel(false);
        let guard = runtime.enter();
        let listener = tokio::net::TcpListener::from_std(listener).map_err(Error::Start)?;
        drop(guard);
        let connections = runtime
            .spawn(async move { http::serve(listener, router(app), &options, &metrics, closes).await });
        Ok(Server {
            address,
            runtime: Some(runtime),
            connections: Some(connections),
            closing,
            worker: Some(worker),
            commands,
            status,
            drain,
        })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Serves until SIGINT or SIGTERM (Ctrl-C elsewhere), then stops as [`Server::stop`] does. A second signal stops at once.
    pub fn run_until_signal(mut self) -> Result<(), Error> {
        let Some(runtime) = &self.runtime else { return Ok(()) };
        let mut signals = {
            let _guard = runtime.enter();
            Signals::new().map_err(Error::Start)?
        };
        runtime.block_on(signals.next());
        let drain = self.drain;
        self.end(drain, async move { signals.next().await });
        Ok(())
    }

    /// Accepts no more requests, waits for those that are there as long as [`ServeOptions::drain`] says, and ends the rest.
    pub fn stop(mut self) {
        let drain = self.drain;
        self.end(drain, std::future::pending());
    }

    fn end(&mut self, drain: Duration, hurry: impl Future<Output = ()>) {
        let Some(runtime) = self.runtime.take() else { return };
        self.status.close();
        self.closing.send_replace(true);
        let connections = self.connections.take();
        runtime.block_on(async {
            let Some(mut connections) = connections else { return };
            let done = tokio::select! {
                ended = tokio::time::timeout(drain, &mut connections) => ended.is_ok(),
                () = hurry => false,
            };
            // What is still there gets an error instead of the rest of its text.
            if let Some(commands) = self.commands.take() {
                let _ = commands.send(Command::End);
            }
            if !done {
                let _ = tokio::time::timeout(LAST_WORDS, &mut connections).await;
                connections.abort();
            }
        });
        // Handlers hold the senders of jobs; without them the model's thread ends.
        runtime.shutdown_timeout(LAST_WORDS);
        if let Some(worker) = self.worker.take() {
            let _ = worker.join();
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.end(Duration::ZERO, std::future::pending());
    }
}

fn check(options: &ServeOptions) -> Result<(), Error> {
    if options.api_keys.iter().any(|key| key.trim().is_empty()) {
        return Err(Error::Option { what: "an API key", value: "empty".into() });
    }
    if options.names.iter().any(String::is_empty) {
        return Err(Error::Option { what: "a name of the model", value: "empty".into() });
    }
    if options.body_limit == 0 || options.client_timeout.is_zero() {
        return Err(Error::Option { what: "the limit of a body or the time of clients", value: "0".into() });
    }
    Ok(())
}

type Started = (Served, JoinHandle<()>, Option<Sender<Command>>);

fn start_language(language: model::Language, parts: &Parts) -> Result<Started, Error> {
    let model::Language { engine, tokenizer, template, logprobs, .. } = language;
    let (context, vocabulary) = (engine.context(), engine.vocabulary());
    let tokenizer = Arc::new(tokenizer);
    let (commands, received) = channel();
    let shared = Shared {
        status: parts.status.clone(),
        metrics: parts.metrics.clone(),
        admission: parts.admission.clone(),
    };
    let its = tokenizer.clone();
    let run = move || worker::run(engine, &its, &received, &shared);
    let thread = thread::Builder::new().name("engine".into()).spawn(run).map_err(Error::Start)?;
    let constraints = OnceLock::new();
    let language = Language {
        tokenizer,
        template,
        commands: commands.clone(),
        context,
        vocabulary,
        logprobs,
        constraints,
    };
    Ok((Served::Language(Box::new(language)), thread, Some(commands)))
}

fn start_encoder(encoder: embed::Encoder, parts: &Parts) -> Result<Started, Error> {
    let (context, hidden, vocabulary) = (encoder.context, encoder.hidden, encoder.vocabulary);
    let tokenizer = encoder.tokenizer.clone();
    let (jobs, received) = channel();
    let (status, metrics, admission) = (parts.status.clone(), parts.metrics.clone(), parts.admission.clone());
    let run = move || embed::run(&encoder, &received, (&status, &metrics, &admission));
    let thread = thread::Builder::new().name("encoder".into()).spawn(run).map_err(Error::Start)?;
    Ok((Served::Encoder(Encoder { tokenizer, jobs, context, hidden, vocabulary }), thread, None))
}

/// Signals that ask the process to end.
struct Signals {
    #[cfg(unix)]
    interrupt: tokio::signal::unix::Signal,
    #[cfg(unix)]
    terminate: tokio::signal::unix::Signal,
}

impl Signals {
    #[cfg(unix)]
    fn new() -> std::io::Result<Self> {
        use tokio::signal::unix::{SignalKind, signal};
        Ok(Signals {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
        })
    }

    #[cfg(not(unix))]
    fn new() -> std::io::Result<Self> {
        Ok(Signals {})
    }

    #[cfg(unix)]
    async fn next(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }

    #[cfg(not(unix))]
    async fn next(&mut self) {
        let _ = tokio::signal::ctrl_c().await;
    }
}
