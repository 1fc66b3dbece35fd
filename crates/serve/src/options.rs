//! How a model is served.

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

/// How a model is served. The default listens on `127.0.0.1:8080`, without an API key.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ServeOptions {
    /// The address to listen on.
    pub host: IpAddr,
    /// The port; 0 for any that is free.
    pub port: u16,
    /// Names of the model that requests may use; the first is the one that responses have.
    pub names: Vec<String>,
    /// Sequences that may wait for a slot; further ones are refused with 429.
    pub queue: usize,
    /// Keys of which a request must have one; none are needed if there are none.
    pub api_keys: Vec<String>,
    /// Origins whose pages may use the server; `*` for all.
    pub cors: Vec<String>,
    /// Names of this machine that requests may be sent to, beside addresses and `localhost`. They count where the server listens for this
    /// machine alone and asks for no key; a page whose name leads to this machine could use it otherwise.
    pub hosts: Vec<String>,
    /// Bytes of a request's body at most.
    pub body_limit: usize,
    /// How long a client may take to send its headers, its body or to read what is sent.
    pub client_timeout: Duration,
    /// How long requests may go on after a signal to end.
    pub drain: Duration,
    /// Connections at once; further ones wait.
    pub connections: usize,
}

impl Default for ServeOptions {
    fn default() -> Self {
        ServeOptions {
            host: IpAddr::V4(Ipv4Addr::LOCALHOST),
            port: 8080,
            names: Vec::new(),
            queue: 256,
            api_keys: Vec::new(),
            cors: Vec::new(),
            hosts: Vec::new(),
            body_limit: 4 << 20,
            client_timeout: Duration::from_secs(30),
            drain: Duration::from_secs(30),
            connections: 4096,
        }
    }
}

impl ServeOptions {
    /// The default.
    pub fn new() -> Self {
        ServeOptions::default()
    }

    /// Sets [`ServeOptions::host`].
    pub fn host(self, host: IpAddr) -> Self {
        ServeOptions { host, ..self }
    }

    /// Sets [`ServeOptions::port`].
    pub fn port(self, port: u16) -> Self {
        ServeOptions { port, ..self }
    }

    /// Sets [`ServeOptions::names`].
    pub fn names(self, names: impl IntoIterator<Item = String>) -> Self {
        ServeOptions { names: names.into_iter().collect(), ..self }
    }

    /// Sets [`ServeOptions::queue`].
    pub fn queue(self, queue: usize) -> Self {
        ServeOptions { queue, ..self }
    }

    /// Sets [`ServeOptions::api_keys`].
    pub fn api_keys(self, keys: impl IntoIterator<Item = String>) -> Self {
        ServeOptions { api_keys: keys.into_iter().collect(), ..self }
    }

    /// Sets [`ServeOptions::cors`].
    pub fn cors(self, origins: impl IntoIterator<Item = String>) -> Self {
        ServeOptions { cors: origins.into_iter().collect(), ..self }
    }

    /// Sets [`ServeOptions::hosts`].
    pub fn hosts(self, names: impl IntoIterator<Item = String>) -> Self {
        ServeOptions { hosts: names.into_iter().collect(), ..self }
    }

    /// Sets [`ServeOptions::body_limit`].
    pub fn body_limit(self, body_limit: usize) -> Self {
        ServeOptions { body_limit, ..self }
    }

    /// Sets [`ServeOptions::client_timeout`].
    pub fn client_timeout(self, client_timeout: Duration) -> Self {
        ServeOptions { client_timeout, ..self }
    }

    /// Sets [`ServeOptions::drain`].
    pub fn drain(self, drain: Duration) -> Self {
        ServeOptions { drain, ..self }
    }

    /// Sets [`ServeOptions::connections`].
    pub fn connections(self, connections: usize) -> Self {
        ServeOptions { connections, ..self }
    }
}
