//! `olivine bench start`: from the start of this process to a model's first result. Run twice with one `--cache` folder,
//! the first run is cold and the second warm.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use olivine::internals::SessionExt as _;
use olivine::internals::compile::{Options, compile};
use olivine::internals::cpu::CpuEvaluator;
use olivine::{PipelineCache, Session};
use serde_json::{Map, json};

use crate::Global;
use crate::answer::{Answer, Failure};
use crate::model::{BuiltIn, Model, SEED, Sizes};
use crate::table::Table;
use crate::timing::{ms, process_started, short, timed};

#[derive(Args)]
pub(crate) struct StartArgs {
    /// The model.
    #[arg(value_enum, default_value = "bert-base")]
    model: BuiltIn,
    #[command(flatten)]
    sizes: Sizes,
    /// Cache compiled pipelines in this folder instead of the user's.
    #[arg(long, value_name = "DIR", conflicts_with = "no_cache")]
    cache: Option<PathBuf>,
    /// Compile every pipeline anew, without a cache.
    #[arg(long)]
    no_cache: bool,
}

pub(crate) fn run(global: &Global, args: &StartArgs) -> Result<Answer, Failure> {
    let before = process_started().elapsed();
    let encoder = args.sizes.of(args.model)?;
    let pipeline_cache = match &args.cache {
        Some(folder) => PipelineCache::Folder(folder.clone()),
        None if args.no_cache => PipelineCache::Off,
        None => PipelineCache::User,
    };
    let options = global.options().pipeline_cache(pipeline_cache);
    let (open, session) =
        timed(|| -> Result<_, Failure> { Ok(Session::with_options(global.device()?, options)?) });
    let session = session?;
    let (make, model) = timed(|| Model::new(encoder));
    let model = model?;
    let (compile, executable) = timed(|| session.compile(&model.graph));
    let executable = executable?;
    let (load, loaded) = timed(|| {
        executable.set_params(model.params.iter().cloned())?;
        executable.load()
    });
    loaded?;
    let x = model.input(SEED)?;
    let (first, out) = timed(|| executable.run([("x", &x)]));
    let out = out?;
    let total = process_started().elapsed();
    let sum: f64 = out.get("y")?.to_f64().iter().sum();
    if !sum.is_finite() {
        return Err(Failure::new("the first result has numbers that are not finite"));
    }
    let (second, again) = timed(|| executable.run([("x", &x)]));
    again?;

    let stages = Stages::measure(&session, &model)?;

    let parts = [
        ("arguments", before),
        ("open the device", open),
        ("make the weights", make),
        ("compile", compile),
        ("load", load),
        ("first run", first),
        ("process start to first result", total),
        ("without making the weights", total.saturating_sub(make)),
        ("second run", second),
        ("compiling again: graph passes", stages.passes),
        ("compiling again: lowering", stages.lowering),
        ("compiling again: all, with cached pipelines", stages.again),
    ];
    let mut table = Table::new(&["part", ">ms"]);
    let mut parts_ms = Map::new();
    for (name, time) in parts {
        table.row([name.into(), short(ms(time))]);
        parts_ms.insert(name.replace([':', ','], "").replace(' ', "_"), json!(ms(time)));
    }
    let name = format!("{} · {}", session.device(), session.device_name());
    let text = format!("{}: {}\n{name}\n\n{table}", args.model.name(), model.describe());
    let json = json!({
        "model": args.model.name(), "sizes": model.json(), "device": session.device().to_string(),
        "name": session.device_name(), "cache": args.cache, "ms": parts_ms,
    });
    Ok(Answer::new(text, json))
}

/// The stages of compiling by themselves. What comes with the first compilation beyond these is building pipelines.
struct Stages {
    passes: Duration,
    lowering: Duration,
    again: Duration,
}

impl Stages {
    fn measure(session: &Session, model: &Model) -> Result<Self, Failure> {
        let options = Options { evaluator: Some(&CpuEvaluator), ..Options::default() };
        let (passes, compiled) = timed(|| compile(&model.graph, &options));
        let compiled = compiled.map_err(olivine::Error::from)?;
        let (lowering, program) = timed(|| session.program(&compiled));
        program?;
        let (again, executable) = timed(|| session.compile(&model.graph));
        executable?;
        Ok(Stages { passes, lowering, again })
    }
}
