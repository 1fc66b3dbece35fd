//! `olivine tune`: which kernel serves a shape best on this device? Candidates are timed by the device itself, and what
//! was found is cached for later sessions.

mod search;
mod shapes;

use std::collections::HashSet;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::Args;
use olivine::internals::SessionExt as _;
use olivine::internals::gpu::Record;
use olivine::{PipelineCache, Session};
use serde_json::json;

use crate::Global;
use crate::answer::{Answer, Failure};
use crate::measure::Runs;
use crate::model::Sizes;
use crate::progress::Progress;
use crate::source;
use crate::table::Table;
use crate::timing::short;
use search::{Found, Search};
use shapes::Subject;

/// Arguments of `tune`.
#[derive(Args)]
pub(crate) struct TuneArgs {
    /// Tune what a model needs: a file with a graph in text form, or a built-in model (bert-base, encoder).
    #[arg(long, value_name = "MODEL", conflicts_with = "shapes")]
    model: Option<String>,
    #[command(flatten)]
    sizes: Sizes,
    /// Tune matmuls of these sizes, as MxNxK with commas between.
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    shapes: Vec<String>,
    /// Types of the matmuls and attentions: f32, f16, bf16.
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "f32,f16")]
    dtypes: Vec<String>,
    /// Only this family of kernels: matmul, attention.
    #[arg(long, value_name = "NAME")]
    family: Option<String>,
    /// A few small shapes and few runs, to see that it works.
    #[arg(long)]
    quick: bool,
    /// Begin no other shape after so many seconds.
    #[arg(long, value_name = "SECONDS")]
    limit: Option<u64>,
    /// Cache the record and compiled pipelines in this folder instead of the user's.
    #[arg(long, value_name = "DIR")]
    cache: Option<PathBuf>,
    /// Measure and print, and cache nothing.
    #[arg(long)]
    dry_run: bool,
}

/// Enough for a median to choose by; the device is warm from the candidate before.
const STEADY: Runs = Runs { warmup: 3, warmup_time: Duration::from_millis(10), timed: 15 };
/// A gain below this part of the default's time is noise.
const WORTH: f64 = 0.02;

pub(crate) fn run(global: &Global, args: &TuneArgs) -> Result<Answer, Failure> {
    let session = open(global, args)?;
    let Some(tuning) = session.tuning() else {
        return Err(Failure::new("the CPU's kernels have nothing to tune").hint("choose a GPU with --device"));
    };
    let subjects = subjects(args)?;
    let runs = if args.quick { Runs::QUICK } else { STEADY };
    let mut record = Record::clone(tuning);
    let (mut found, mut failed, mut seen) = (Vec::new(), Vec::new(), HashSet::new());
    let (began, limit) = (Instant::now(), args.limit.map(Duration::from_secs));
    let (mut kept_at, mut left) = (None, 0);
    let mut progress = Progress::new(subjects.len(), global.quiet);
    for subject in &subjects {
        if limit.is_some_and(|limit| began.elapsed() > limit) {
            left += 1;
            continue;
        }
        progress.begin(&subject.name);
        let mut search = Search { session: &session, subject, runs, family: args.family.as_deref() };
        let outcome =
            search.run(&mut record, &mut seen, &mut |what: &str| progress.begin(what), &mut |row| {
                // Written at once: an interrupted run has lost nothing but the class it was at.
                if !args.dry_run && row.keep() {
                    let mut line = Record::default();
                    line.set(row.family, &row.class, &row.best);
                    kept_at = session.save_tuning(&line)?.or(kept_at.take());
                }
                found.push(row);
                Ok(())
            });
        if let Err(failure) = outcome {
            failed.push(failure.context(subject.name.clone()));
        }
        progress.step();
    }
    drop(progress);
    if let Some(family) = args.family.as_ref().filter(|_| found.is_empty() && failed.is_empty() && left == 0)
    {
        return Err(Failure::new(format!("these shapes have no choice of the family `{family}`"))
            .hint("the families are matmul and attention"));
    }
    let answer = report(&session, &found, &failed, left, kept_at);
    Ok(answer.with_failure(failed.into_iter().next()))
}

fn open(global: &Global, args: &TuneArgs) -> Result<Session, Failure> {
    let pipeline_cache = match &args.cache {
        Some(folder) => PipelineCache::Folder(folder.clone()),
        None => PipelineCache::User,
    };
    let options = global.options().pipeline_cache(pipeline_cache);
    Ok(Session::with_options(global.device()?, options)?)
}

fn subjects(args: &TuneArgs) -> Result<Vec<Subject>, Failure> {
    let dtypes = args.dtypes.iter().map(|d| shapes::dtype(d)).collect::<Result<Vec<_>, _>>()?;
    if let Some(model) = &args.model {
        return Ok(vec![Subject { name: model.clone(), graph: source::graph(model, &args.sizes)? }]);
    }
    if !args.shapes.is_empty() {
        return shapes::matmuls(&args.shapes, &dtypes);
    }
    shapes::standard(&dtypes, args.quick)
}

fn report(
    session: &Session,
    found: &[Found],
    failed: &[Failure],
    left: usize,
    kept_at: Option<PathBuf>,
) -> Answer {
    let mut table = Table::new(&["family", "class", "default", ">ms", "best", ">ms", ">gain", ">tried"]);
    for row in found {
        table.row([
            row.family.into(),
            row.class.clone(),
            row.default.clone(),
            short(row.default_ms),
            if row.best == row.default { "the same".into() } else { row.best.clone() },
            short(row.best_ms),
            format!("{:.2}x", row.default_ms / row.best_ms),
            row.tried.to_string(),
        ]);
    }
    let mut text = format!("{}\n\n{table}", session.device_name());
    for note in session.tuning_notes() {
        text.push_str(&format!("note: {note}\n"));
    }
    for row in found {
        row.notes.iter().for_each(|note| text.push_str(&format!("{} {}: {note}\n", row.family, row.class)));
    }
    failed.iter().skip(1).for_each(|failure| text.push_str(&format!("failed: {}\n", failure.line())));
    if left > 0 {
        text.push_str(&format!("{left} shapes were not begun: the time was up\n"));
    }
    match &kept_at {
        Some(path) => text.push_str(&format!("kept in {}\n", path.display())),
        None => text.push_str("nothing to keep\n"),
    }
    let rows: Vec<_> = found
        .iter()
        .map(|row| {
            json!({
                "family": row.family, "class": row.class, "default": row.default, "default_ms": row.default_ms,
                "best": row.best, "best_ms": row.best_ms, "candidates": row.tried, "notes": row.notes,
            })
        })
        .collect();
    let path = kept_at.map(|p| p.display().to_string());
    Answer::new(text, json!({ "device": session.device_name(), "rows": rows, "kept": path, "left": left }))
}
