//! `olivine test zoo` and `olivine bench zoo`: models that others made, against what ONNX Runtime and llama.cpp made of
//! them, and how fast they run beside ONNX Runtime.

mod bench;
mod greedy;
mod oracle;
mod predict;

use std::path::{Path, PathBuf};

use clap::Args;
use olivine::{Device, Session};
use serde_json::{Value, json};

pub(crate) use bench::{ZooBenchArgs, run as run_bench};
use oracle::{Entry, error, load};
pub(crate) use predict::{PredictArgs, calibrate, run as run_predict};

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
    /// Expected results on given inputs, from `zoo/oracle.py`.
    #[arg(long, default_value = "zoo/oracle.json", value_name = "FILE")]
    oracle: PathBuf,
    /// Devices one after another, such as cpu,vulkan,wgpu; the one of --device when not given.
    #[arg(long, value_delimiter = ',', value_name = "DEVICES")]
    devices: Vec<String>,
}

/// What `olivine test zoo` takes besides.
#[derive(Args, Clone)]
pub(crate) struct ZooTestArgs {
    #[command(flatten)]
    zoo: ZooArgs,
    /// Prompts and the tokens that follow them, from `zoo/greedy.py`; `greedy.json` beside --oracle when not given.
    #[arg(long, value_name = "FILE")]
    greedy: Option<PathBuf>,
    /// Decode at most this many tokens after each prompt.
    #[arg(long, default_value_t = usize::MAX, hide_default_value = true, value_name = "N")]
    tokens: usize,
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

    /// Whether a model is wanted and in the folder.
    fn has(&self, model: &str) -> bool {
        model.contains(&self.filter) && self.folder.join(model).exists()
    }

    /// The models with inputs and outputs to run; those that are not in the folder are left out.
    fn entries(&self) -> Result<Vec<Entry>, Failure> {
        let mut entries = load(&self.oracle)?;
        entries.retain(|e| self.has(&e.model));
        Ok(entries)
    }

    /// The failure that a test or a benchmark of nothing is.
    fn nothing(&self, file: &Path) -> Failure {
        let (file, folder) = (file.display(), self.folder.display());
        let problem = match self.filter.as_str() {
            "" => format!("no model of `{file}` is in `{folder}`"),
            filter => format!("no model of `{file}` with `{filter}` in its path is in `{folder}`"),
        };
        Failure::new(problem).hint("bring them with: cargo xtask zoo small")
    }
}

/// The table of results, as text and as JSON.
struct Results {
    table: Table,
    list: Vec<Value>,
    wrong: usize,
}

impl Results {
    fn add(&mut self, (model, prompt): (&str, &str), device: &str, found: Result<f64, Failure>, bound: f64) {
        let (shown, verdict) = match &found {
            Ok(error) if *error <= bound => (format!("{error:.1e}"), "equal".to_string()),
            Ok(error) => (format!("{error:.1e}"), "DIFFERS".to_string()),
            Err(failure) => ("–".to_string(), failure.error().to_string()),
        };
        self.wrong += usize::from(verdict != "equal");
        let name = if prompt.is_empty() { model.to_string() } else { format!("{model} {prompt:?}") };
        self.table.row([name, device.to_string(), shown, format!("{bound:.1e}"), verdict.clone()]);
        let mut row = json!({ "model": model, "device": device, "error": found.ok(), "verdict": verdict });
        if !prompt.is_empty() {
            row["prompt"] = prompt.into();
        }
        self.list.push(row);
    }
}

pub(crate) fn run(global: &Global, args: &ZooTestArgs) -> Result<Answer, Failure> {
    let ZooTestArgs { zoo, greedy, tokens } = args;
    let (sessions, entries) = (zoo.sessions(global)?, zoo.entries()?);
    let greedy = greedy.clone().unwrap_or_else(|| zoo.oracle.with_file_name("greedy.json"));
    let mut prompts = greedy::load(&greedy)?;
    prompts.retain(|p| zoo.has(&p.model));
    if entries.is_empty() && prompts.is_empty() {
        return Err(zoo.nothing(&zoo.oracle));
    }
    let table = Table::new(&["model", "device", ">error", ">bound", "verdict"]);
    let mut results = Results { table, list: Vec::new(), wrong: 0 };
    for entry in &entries {
        let inputs = entry.inputs(&zoo.folder)?;
        for (device, session) in &sessions {
            let found = error(entry, &zoo.folder, session, &inputs);
            results.add((&entry.model, ""), device, found, entry.bound);
        }
    }
    for (device, session) in &sessions {
        for of_model in prompts.chunk_by(|a, b| a.model == b.model) {
            let mut model = greedy::compile(&of_model[0].model, &zoo.folder, session)?;
            for prompt in of_model {
                let found = prompt.decode(&mut model, *tokens);
                results.add((&prompt.model, &prompt.text), device, found, greedy::BOUND);
            }
        }
    }
    let wrong = results.wrong;
    let failure = (wrong > 0).then(|| Failure::new(format!("{wrong} results are not what they should be")));
    Ok(Answer::new(results.table.to_string(), json!({ "results": results.list })).with_failure(failure))
}
