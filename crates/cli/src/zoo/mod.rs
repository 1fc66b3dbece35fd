//! `olivine test zoo` and `olivine bench zoo`: models that others made, against what ONNX Runtime made of them, and how
//! fast they run beside it.

mod bench;
mod oracle;

use std::path::PathBuf;

use clap::Args;
use olivine::{Device, Session};
use serde_json::json;

pub(crate) use bench::{ZooBenchArgs, run as run_bench};
use oracle::{Entry, error, load};

use crate::Global;
use crate::answer::{Answer, Failure};
use crate::table::Table;

/// Where the models are, and which.
#[derive(Args, Clone)]
pub(crate) struct ZooArgs {
    /// Folder that `zoo/fetch` filled.
    folder: PathBuf,
    /// Only models whose path contains this.
    #[arg(default_value = "")]
    filter: String,
    /// What the models make of given inputs, from `zoo/oracle.py`.
    #[arg(long, default_value = "zoo/oracle.json", value_name = "FILE")]
    oracle: PathBuf,
    /// Devices one after another, such as cpu,vulkan,wgpu; the one of --device when not given.
    #[arg(long, value_delimiter = ',', value_name = "DEVICES")]
    devices: Vec<String>,
}

impl ZooArgs {
    fn sessions(&self, global: &Global) -> Result<Vec<(String, Session)>, Failure> {
        let names =
            if self.devices.is_empty() { vec![global.device()?.to_string()] } else { self.devices.clone() };
        let open = |name: String| {
            let session = Session::with_options(name.parse::<Device>()?, global.options())?;
            Ok((name, session))
        };
        names.into_iter().map(open).collect()
    }

    /// The models to run; those that are not in the folder are left out, unless that leaves none.
    fn entries(&self) -> Result<Vec<Entry>, Failure> {
        let mut entries = load(&self.oracle)?;
        entries.retain(|e| e.model.contains(&self.filter) && self.folder.join(&e.model).exists());
        if entries.is_empty() {
            let (oracle, folder) = (self.oracle.display(), self.folder.display());
            let problem = match self.filter.as_str() {
                "" => format!("no model of `{oracle}` is in `{folder}`"),
                filter => format!("no model of `{oracle}` with `{filter}` in its path is in `{folder}`"),
            };
            return Err(Failure::new(problem).hint("bring them with: cargo xtask zoo small"));
        }
        Ok(entries)
    }
}

pub(crate) fn run(global: &Global, args: &ZooArgs) -> Result<Answer, Failure> {
    let (sessions, entries) = (args.sessions(global)?, args.entries()?);
    let mut table = Table::new(&["model", "device", ">error", ">bound", "verdict"]);
    let mut list = Vec::new();
    let mut wrong = 0;
    for entry in &entries {
        let inputs = entry.inputs(&args.folder)?;
        for (device, session) in &sessions {
            let found = error(entry, &args.folder, session, &inputs);
            let (shown, verdict) = match &found {
                Ok(error) if *error <= entry.bound => (format!("{error:.1e}"), "equal".to_string()),
                Ok(error) => (format!("{error:.1e}"), "DIFFERS".to_string()),
                Err(failure) => ("–".to_string(), failure.error().to_string()),
            };
            wrong += usize::from(verdict != "equal");
            let bound = format!("{:.0e}", entry.bound);
            table.row([entry.model.clone(), device.clone(), shown, bound, verdict.clone()]);
            list.push(
                json!({ "model": entry.model, "device": device, "error": found.ok(), "verdict": verdict }),
            );
        }
    }
    let failure = (wrong > 0).then(|| Failure::new(format!("{wrong} results are not what they should be")));
    Ok(Answer::new(table.to_string(), json!({ "results": list })).with_failure(failure))
}
