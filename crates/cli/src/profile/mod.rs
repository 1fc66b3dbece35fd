//! `olivine profile`: where a model's time goes, beside what the device can do.

mod ceilings;
mod steps;
mod trace;

use std::path::{Path, PathBuf};

use clap::Args;
use olivine::{CompileOptions, StepTime};
use serde_json::{Value, json};

use crate::Global;
use crate::answer::{Answer, Failure};
use crate::measure::{Runs, Subject};
use crate::model::Sizes;
use crate::table::Table;
use crate::timing::short;
use crate::zoo::calibrate;
use crate::{memory, source};
use ceilings::Ceilings;
use steps::{Group, Step};

/// Single dispatches to name in the report.
const SLOWEST: usize = 10;

#[derive(Args)]
pub(crate) struct ProfileArgs {
    /// A built-in model (bert-base, encoder), an ONNX file, a file with a graph in text form, or `-` for stdin.
    model: String,
    #[command(flatten)]
    sizes: Sizes,
    /// Profiled runs; times are medians over them.
    #[arg(long, default_value_t = 20, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    runs: u32,
    /// Write the run of median length as a trace for chrome://tracing or Perfetto.
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// On a GPU, run these operations on the host, by the operation's name or the node's.
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    host_ops: Vec<String>,
    /// Do not measure the device's peak rates.
    #[arg(long)]
    no_ceilings: bool,
}

pub(crate) fn run(global: &Global, args: &ProfileArgs) -> Result<Answer, Failure> {
    let (graph, weights) = source::graph_and_weights(&args.model, &args.sizes)?;
    memory::check_fits(&graph)?;
    // A path that cannot be written is an error before anything runs.
    args.trace.as_deref().map(|path| write(path, &trace::trace(&args.model, "", &[]))).transpose()?;
    let session = global.session()?;
    calibrate(global, &session, false)?;
    let options = CompileOptions::new().host_ops(args.host_ops.iter().cloned());
    let subject = Subject::with_options(&session, &graph, &options)?;
    if !weights.is_empty() {
        subject.executable.set_params(weights)?;
        subject.executable.load()?;
    }
    Runs { warmup: 2, ..Runs::QUICK }.warm(|| subject.profile().map(drop))?;
    let runs: Vec<Vec<StepTime>> =
        (0..args.runs).map(|_| subject.profile()).collect::<Result<_, Failure>>()?;
    let (times, middle) = steps::middle(&runs);
    let device = format!("{} · {}", session.device(), session.device_name());
    if let Some(path) = &args.trace {
        write(path, &trace::trace(&args.model, &device, middle))?;
    }
    let ceilings =
        if args.no_ceilings { None } else { Some(Ceilings::measure(&session, global.thread_count())?) };

    let prediction = subject.executable.predict(subject.inputs(0))?;
    let steps = steps::medians(&runs, &prediction.steps);
    let groups = steps::groups(&steps);
    let total: f64 = steps.iter().map(|s| s.ms).sum();
    let mut text = format!("{}\n{device}\n", args.model);
    text += &format!(
        "{} dispatches, {} ms in kernels, {} ms from first to last, medians of {} runs\n",
        steps.len(),
        short(total),
        short(times.median()),
        runs.len()
    );
    let ms = |time: std::time::Duration| time.as_secs_f64() * 1e3;
    text += &format!(
        "predicted: {} ms in kernels, {} ms a run with its start and transfers\n",
        short(ms(prediction.steps_time())),
        short(ms(prediction.total))
    );
    if let Some(ceilings) = &ceilings {
        text += &ceilings.text();
    }
    text +=
        &format!("\n{}\n{}", by_group(&groups, total, ceilings.as_ref()), slowest(&steps, ceilings.as_ref()));
    if let Some(path) = &args.trace {
        text += &format!("\ntrace: {}\n", path.display());
    }
    let json = json!({
        "model": args.model, "device": session.device().to_string(), "name": session.device_name(),
        "runs": runs.len(), "kernels_ms": total, "span_ms": times.median(), "least_span_ms": times.least(),
        "predicted_kernels_ms": ms(prediction.steps_time()), "predicted_ms": ms(prediction.total),
        "ceilings": ceilings.map(|c| c.json()),
        "groups": groups.iter().map(|g| group_json(g, total, ceilings.as_ref())).collect::<Vec<_>>(),
        "dispatches": steps.iter().map(|s| step_json(s, ceilings.as_ref())).collect::<Vec<_>>(),
        "trace": args.trace,
    });
    Ok(Answer::new(text, json))
}

/// The kernels of profiled runs together by operation, as text and as JSON, without predictions and ceilings.
pub(crate) fn kernels(runs: &[Vec<StepTime>]) -> (String, Value) {
    let (times, _) = steps::middle(runs);
    let steps = steps::medians(runs, &[]);
    let groups = steps::groups_by_size(&steps);
    let total: f64 = steps.iter().map(|s| s.ms).sum();
    let mut table = Table::new(&["op", "kernel", ">count", ">µs each", ">ms", ">share", ">GB/s", ">TFLOP/s"]);
    for g in &groups {
        let share = if total > 0.0 { format!("{:.1} %", 100.0 * g.ms / total) } else { String::new() };
        let [gb_per_s, tflops, _] = Rates::new(g.bytes, g.flops, g.ms, None).cells();
        let each = short(1e3 * g.ms / g.count as f64);
        let (op, kernel, count) = (g.op.to_string(), g.kernel.clone(), g.count.to_string());
        table.row([op, kernel, count, each, short(g.ms), share, gb_per_s, tflops]);
    }
    let text = format!(
        "{} dispatches, {} ms in kernels, {} ms from first to last, medians of {} runs\n{table}",
        steps.len(),
        short(total),
        short(times.median()),
        runs.len()
    );
    let json = json!({
        "kernels_ms": total, "span_ms": times.median(),
        "groups": groups.iter().map(|g| group_json(g, total, None)).collect::<Vec<_>>(),
    });
    (text, json)
}

/// Bytes, operations and time as rates; `None` where nothing was counted.
struct Rates {
    gb_per_s: Option<f64>,
    tflops: Option<f64>,
    of_ceiling: Option<f64>,
}

impl Rates {
    fn new(bytes: u64, flops: u64, ms: f64, ceilings: Option<&Ceilings>) -> Self {
        let rate = |amount: u64, unit: f64| (amount > 0 && ms > 0.0).then(|| amount as f64 / ms * 1e3 / unit);
        Rates {
            gb_per_s: rate(bytes, 1e9),
            tflops: rate(flops, 1e12),
            of_ceiling: ceilings.and_then(|c| c.share(bytes, flops, ms)),
        }
    }

    fn cells(&self) -> [String; 3] {
        let cell = |number: Option<f64>| number.map_or(String::new(), short);
        let share = self.of_ceiling.map_or(String::new(), |s| format!("{:.0} %", 100.0 * s));
        [cell(self.gb_per_s), cell(self.tflops), share]
    }
}

fn by_group(groups: &[Group], total: f64, ceilings: Option<&Ceilings>) -> Table {
    let mut table = Table::new(&[
        "op",
        "kernel",
        ">count",
        ">ms",
        ">predicted",
        ">share",
        ">GB/s",
        ">TFLOP/s",
        ">of ceiling",
    ]);
    for g in groups {
        let share = if total > 0.0 { format!("{:.1} %", 100.0 * g.ms / total) } else { String::new() };
        let cells =
            [g.op.to_string(), g.kernel.clone(), g.count.to_string(), short(g.ms), short(g.predicted), share];
        table.row(cells.into_iter().chain(Rates::new(g.bytes, g.flops, g.ms, ceilings).cells()));
    }
    table
}

fn slowest(steps: &[Step], ceilings: Option<&Ceilings>) -> Table {
    let mut table = Table::new(&[
        "slowest dispatches",
        "op",
        "kernel",
        ">ms",
        ">predicted",
        ">GB/s",
        ">TFLOP/s",
        ">of ceiling",
    ]);
    for s in steps::slowest(steps, SLOWEST) {
        let cells = [s.node.clone(), s.op.to_string(), s.kernel.clone(), short(s.ms), short(s.predicted)];
        table.row(cells.into_iter().chain(Rates::new(s.bytes, s.flops, s.ms, ceilings).cells()));
    }
    table
}

fn group_json(g: &Group, total: f64, ceilings: Option<&Ceilings>) -> Value {
    let rates = Rates::new(g.bytes, g.flops, g.ms, ceilings);
    let share = (total > 0.0).then(|| g.ms / total);
    json!({
        "op": g.op, "kernel": g.kernel, "count": g.count, "ms": g.ms, "predicted_ms": g.predicted, "share": share, "bytes": g.bytes,
        "flops": g.flops, "gb_per_s": rates.gb_per_s, "tflops": rates.tflops, "of_ceiling": rates.of_ceiling,
    })
}

fn step_json(s: &Step, ceilings: Option<&Ceilings>) -> Value {
    let rates = Rates::new(s.bytes, s.flops, s.ms, ceilings);
    json!({
        "node": s.node, "op": s.op, "kernel": s.kernel, "ms": s.ms, "predicted_ms": s.predicted, "bytes": s.bytes, "flops": s.flops,
        "gb_per_s": rates.gb_per_s, "tflops": rates.tflops, "of_ceiling": rates.of_ceiling,
    })
}

fn write(path: &Path, trace: &Value) -> Result<(), Failure> {
    std::fs::write(path, trace.to_string()).map_err(|error| {
        Failure::new(error.to_string())
            .context(format!("cannot write the trace to `{}`", path.display()))
            .hint("give --trace a file in a folder that exists and can be written")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_blank_where_nothing_was_counted() {
        let ceilings = Ceilings { gb_per_s: 100.0, tflops: 1.0 };
        assert_eq!(Rates::new(0, 0, 2.0, Some(&ceilings)).cells(), ["", "", ""]);
        assert_eq!(
            Rates::new(100_000_000, 1_000_000_000, 2.0, Some(&ceilings)).cells(),
            ["50.0", "0.5000", "50 %"]
        );
        assert_eq!(Rates::new(100_000_000, 0, 2.0, None).cells(), ["50.0", "", ""]);
    }

    #[test]
    fn shares_of_nothing_are_blank() {
        let group =
            Group { op: "add", kernel: "add".into(), count: 1, ms: 0.0, predicted: 0.0, flops: 0, bytes: 0 };
        assert!(!by_group(&[group], 0.0, None).to_string().contains("NaN"));
    }
}
