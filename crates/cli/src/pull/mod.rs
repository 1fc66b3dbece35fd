//! `olivine pull`: a model from a URL, a file or a folder, resumed and hashed.
//!
//! ```text
//!   source ── http.rs     requests, ranges, validators ──┐
//!          └─ local.rs    files and folders ─────────────┴─ partial.rs   `.NAME.part`, hashed, renamed in the end
//! ```

mod http;
mod local;
mod partial;

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use serde_json::{Value, json};

use crate::Global;
use crate::answer::{Answer, Failure};
use crate::timing::bytes;

/// Seconds of a year: the clock has an end.
const LONGEST_TIMEOUT: u64 = 365 * 24 * 3600;

#[derive(Args)]
pub(crate) struct PullArgs {
    /// Where the model is: a URL, a file or a folder.
    #[arg(value_name = "SOURCE")]
    source: String,
    /// The file to write, or a folder to write it into; the current folder for a URL. A path without --out is hashed where it is.
    #[arg(long, value_name = "PATH")]
    out: Option<PathBuf>,
    /// The SHA-256 that the file must have.
    #[arg(long, value_name = "HEX", value_parser = digest)]
    sha256: Option<String>,
    /// Replace a file that is there.
    #[arg(long)]
    force: bool,
    /// Seconds without a byte after which a connection counts as dead.
    #[arg(long, value_name = "SECONDS", default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=LONGEST_TIMEOUT))]
    timeout: u64,
}

fn digest(text: &str) -> Result<String, String> {
    match text.len() == 64 && text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        true => Ok(text.to_ascii_lowercase()),
        false => Err("expected 64 hexadecimal digits".into()),
    }
}

/// A file that was pulled.
struct Pulled {
    path: PathBuf,
    bytes: u64,
    sha256: String,
    /// Bytes that an earlier run had left.
    resumed: u64,
}

impl Pulled {
    fn json(&self) -> Value {
        json!({ "path": self.path, "bytes": self.bytes, "sha256": self.sha256, "resumed": self.resumed })
    }

    fn line(&self) -> String {
        let size = bytes(usize::try_from(self.bytes).unwrap_or(usize::MAX));
        format!("{}  {}  ({size})\n", self.sha256, self.path.display())
    }
}

fn failed(what: &str, path: &Path, error: &std::io::Error) -> Failure {
    Failure::new(error.to_string()).context(format!("cannot {what} `{}`", path.display()))
}

/// Compares a digest with the one that was asked for.
fn check(path: &Path, found: &str, wanted: Option<&str>) -> Result<(), Failure> {
    match wanted {
        Some(wanted) if wanted != found => {
            Err(Failure::new(format!("the SHA-256 of `{}` is {found}, not {wanted}", path.display())))
        }
        _ => Ok(()),
    }
}

/// The file to write: as given, or with a name in the folder that is given.
fn target(out: Option<&Path>, name: Option<&str>, force: bool) -> Result<PathBuf, Failure> {
    let path = match (out, name) {
        (Some(out), _) if !out.is_dir() && !out.as_os_str().to_string_lossy().ends_with('/') => {
            out.to_path_buf()
        }
        (out, Some(name)) => out.unwrap_or(Path::new(".")).join(name),
        (_, None) => {
            return Err(Failure::new("the URL has no name for a file").hint("--out FILE names one"));
        }
    };
    if let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
        std::fs::create_dir_all(folder).map_err(|e| failed("make", folder, &e))?;
    }
    if path.symlink_metadata().is_ok() && !force {
        return Err(
            Failure::new(format!("`{}` is there already", path.display())).hint("--force replaces it")
        );
    }
    // A device that is renamed over is gone.
    if path.metadata().is_ok_and(|meta| !meta.is_file()) {
        return Err(Failure::new(format!("`{}` is not a plain file", path.display())));
    }
    Ok(path)
}

pub(crate) fn run(global: &Global, args: &PullArgs) -> Result<Answer, Failure> {
    let lower = args.source.to_ascii_lowercase();
    let all = if lower.starts_with("http://") || lower.starts_with("https://") {
        vec![pull_url(global, args)?]
    } else if lower.contains("://") {
        return Err(Failure::new(format!("`{}` is neither a path nor a URL of http", args.source))
            .hint("https://…, http://…, or the path of a file or a folder"));
    } else {
        local::pull(Path::new(&args.source), args, global.quiet)?
    };
    let text = all.iter().map(Pulled::line).collect::<String>();
    Ok(Answer::new(text, json!({ "files": all.iter().map(Pulled::json).collect::<Vec<_>>() })))
}

fn pull_url(global: &Global, args: &PullArgs) -> Result<Pulled, Failure> {
    let name = http::file_name(&args.source);
    // A file that is there and has the digest is what was asked for.
    if let (Some(wanted), Ok(path)) = (&args.sha256, target(args.out.as_deref(), name.as_deref(), true))
        && path.is_file()
    {
        let found = local::hash(&path, global.quiet)?;
        if found.sha256 == *wanted {
            return Ok(found);
        }
    }
    let path = target(args.out.as_deref(), name.as_deref(), args.force)?;
    let fetch =
        http::Fetch { url: &args.source, silence: Duration::from_secs(args.timeout), quiet: global.quiet };
    fetch.run(&path, args.sha256.as_deref())
}
