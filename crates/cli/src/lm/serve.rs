//! `olivine serve`: a model behind OpenAI's API.

use std::io::Write as _;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use olivine_lm::MOST_TOP_LOGPROBS;
use olivine_serve::{ServeOptions, ServedModel, Server};
use serde_json::json;

use super::{EngineArgs, ModelArgs};
use crate::Global;
use crate::answer::{Answer, Failure};

/// Bytes of a file with keys or a template at most.
const LARGEST_FILE: u64 = 1 << 24;

#[derive(Args)]
pub(crate) struct ServeArgs {
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    engine: EngineArgs,
    /// The address to listen on.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1")]
    host: IpAddr,
    /// The port; 0 for any that is free.
    #[arg(long, value_name = "PORT", default_value_t = 8080)]
    port: u16,
    /// Sequences that are decoded at once.
    #[arg(long, value_name = "N", default_value_t = 8)]
    slots: usize,
    /// Sequences that may wait for a slot; further ones get 429.
    #[arg(long, value_name = "N", default_value_t = 256)]
    queue: usize,
    /// A name of the model in requests; the file's name if none is given. May be given several times.
    #[arg(long, value_name = "NAME")]
    alias: Vec<String>,
    /// A key that requests must have. Others on this machine can see it; --api-key-file hides it.
    #[arg(long, value_name = "KEY")]
    api_key: Vec<String>,
    /// A file with keys, one a line.
    #[arg(long, value_name = "FILE")]
    api_key_file: Option<PathBuf>,
    /// An origin whose pages may use the server, such as https://example.com; `*` for all. May be given several times.
    #[arg(long, value_name = "ORIGIN")]
    cors: Vec<String>,
    /// A name of this machine that requests may be sent to, beside addresses and localhost; needed only where --host is this machine's
    /// own address and there are no keys. May be given several times.
    #[arg(long, value_name = "NAME")]
    allow_host: Vec<String>,
    /// A chat template in Jinja, in place of the model's own.
    #[arg(long, value_name = "FILE")]
    chat_template: Option<PathBuf>,
    /// Let requests ask for log-probabilities.
    #[arg(long)]
    logprobs: bool,
    /// Bytes of a request at most.
    #[arg(long, value_name = "BYTES", default_value_t = 4 << 20)]
    body_limit: usize,
    /// Seconds that a client may take to send a request, or to read what is sent.
    #[arg(long, value_name = "SECONDS", default_value_t = 30)]
    client_timeout: u64,
    /// Seconds that requests may go on after SIGINT or SIGTERM.
    #[arg(long, value_name = "SECONDS", default_value_t = 30)]
    drain: u64,
}

fn read(path: &std::path::Path) -> Result<String, Failure> {
    olivine_files::read_text(path, LARGEST_FILE)
        .map_err(|e| Failure::new(e.to_string()).context(format!("cannot read `{}`", path.display())))
}

impl ServeArgs {
    fn keys(&self) -> Result<Vec<String>, Failure> {
        let mut keys = self.api_key.clone();
        if let Some(path) = &self.api_key_file {
            let text = read(path)?;
            let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
            let before = keys.len();
            keys.extend(lines.map(str::to_string));
            if keys.len() == before {
                return Err(Failure::new(format!("`{}` has no key", path.display())));
            }
        }
        Ok(keys)
    }

    fn options(&self) -> Result<ServeOptions, Failure> {
        Ok(ServeOptions::new()
            .host(self.host)
            .port(self.port)
            .names(self.alias.iter().cloned())
            .queue(self.queue)
            .api_keys(self.keys()?)
            .cors(self.cors.iter().cloned())
            .hosts(self.allow_host.iter().cloned())
            .body_limit(self.body_limit)
            .client_timeout(Duration::from_secs(self.client_timeout))
            .drain(Duration::from_secs(self.drain)))
    }
}

pub(crate) fn run(global: &Global, args: &ServeArgs) -> Result<Answer, Failure> {
    let options = args.options()?;
    let session = global.decoding_session()?;
    let top = if args.logprobs { MOST_TOP_LOGPROBS } else { 0 };
    let engine = args.engine.options(&session, args.slots).logprobs(args.logprobs).top_logprobs(top);
    let named = |e: Failure| e.context(format!("cannot serve `{}`", args.model.path.display()));
    let model = ServedModel::load(&args.model.path, &session, &engine).map_err(|e| named(e.into()))?;
    let model = match &args.chat_template {
        Some(path) => model.with_chat_template(&read(path)?)?,
        None => model,
    };
    let name = args.alias.first().cloned().unwrap_or_else(|| model.name().to_string());
    let open = options.api_keys.is_empty() && !options.host.is_loopback();
    let server = Server::start(model, options)?;
    let url = format!("http://{}", server.address());
    let line = match global.json {
        true => json!({ "url": url, "model": name, "device": session.device_name() }).to_string(),
        false => format!("{name} on {} at {url}", session.device_name()),
    };
    if writeln!(std::io::stdout(), "{line}").and_then(|()| std::io::stdout().flush()).is_err() {
        return Err(Failure::new("cannot write the address to stdout"));
    }
    if open && !global.quiet {
        eprintln!("warning: others can reach {url} without a key; --api-key-file asks for one");
    }
    server.run_until_signal()?;
    Ok(Answer::nothing())
}
