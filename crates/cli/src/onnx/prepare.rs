//! `olivine prepare`: compiles a model for ranges of sizes, and leaves its kernels in the cache on disk.

use std::ops::RangeInclusive;
use std::path::PathBuf;

use clap::Args;
use olivine::Model;
use serde_json::json;

use crate::Global;
use crate::answer::{Answer, Failure};
use crate::timing::timed;

#[derive(Args)]
pub(crate) struct PrepareArgs {
    /// The model.
    model: PathBuf,
    /// Sizes of a named dimension: `sequence=1..512` (both ends count) or `batch=1`.
    #[arg(long = "dim", value_name = "NAME=FROM..TO", value_parser = size_range)]
    dims: Vec<(String, RangeInclusive<usize>)>,
}

/// Reads `sequence=1..512`.
pub(crate) fn size_range(text: &str) -> Result<(String, RangeInclusive<usize>), String> {
    let wrong = || format!("expected NAME=FROM..TO or NAME=N, got `{text}`");
    let (name, range) = text.split_once('=').ok_or_else(wrong)?;
    let number = |text: &str| text.trim().parse::<usize>().map_err(|_| wrong());
    let (from, to) = match range.split_once("..") {
        Some((from, to)) => (number(from)?, number(to.trim_start_matches('='))?),
        None => (number(range)?, number(range)?),
    };
    if name.is_empty() || from > to {
        return Err(wrong());
    }
    Ok((name.to_string(), from..=to))
}

pub(crate) fn run(global: &Global, args: &PrepareArgs) -> Result<Answer, Failure> {
    let model = Model::load(&args.model)?;
    let session = global.session()?;
    let executable = session.compile(&model)?;
    let ranges = args.dims.iter().map(|(name, range)| (name.as_str(), range.clone()));
    let (time, plans) = timed(|| executable.prepare(ranges));
    let plans = plans?;
    let (device, seconds) = (session.device().to_string(), time.as_secs_f64());
    let text = format!("{device}: {plans} plans compiled in {seconds:.2} s\n");
    Ok(Answer::new(text, json!({"device": device, "plans": plans, "seconds": seconds})))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_read_and_others_refused() {
        assert_eq!(size_range("sequence=1..512"), Ok(("sequence".into(), 1..=512)));
        assert_eq!(size_range("batch=4"), Ok(("batch".into(), 4..=4)));
        for text in ["batch", "=1", "n=5..2", "n=..", "n=a..b", "n=-1"] {
            assert!(size_range(text).is_err(), "{text}");
        }
    }
}
