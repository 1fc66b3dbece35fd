//! `olivine verify`: does this device compute what the operations mean? The table of cases against its f64 oracle.

mod umath;
mod words;

use std::path::PathBuf;

use clap::Args;
use olivine::PipelineCache;
use olivine::internals::OptionsExt as _;
use olivine::internals::gpu::Mask;
use olivine_cases::{Backend as _, Denormals, Outcome, Report, SessionBackend, long_axes, run_table, table};
use serde_json::json;

use crate::Global;
use crate::answer::{Answer, Failure};
use crate::table::Table;

/// The length of the long axes: more than 16 bits count.
const LONG: usize = 65_537;

/// Arguments of `verify`.
#[derive(Args)]
pub(crate) struct VerifyArgs {
    /// Only cases whose name contains this.
    #[arg(default_value = "")]
    filter: String,
    /// Runs of every case; all must return the same bits.
    #[arg(long, default_value_t = 3)]
    repeat: usize,
    /// Check every access of every kernel.
    #[arg(long)]
    checked: bool,
    /// Disable subgroup operations.
    #[arg(long)]
    no_subgroups: bool,
    /// Disable 16-bit registers.
    #[arg(long)]
    no_f16: bool,
    /// Disable cooperative matrices.
    #[arg(long)]
    no_matrices: bool,
    /// On wgpu, use only what browsers offer.
    #[arg(long)]
    browser: bool,
    /// On wgpu over Vulkan, use WGSL instead of SPIR-V.
    #[arg(long)]
    wgsl: bool,
    /// On Vulkan, run under the validation layer.
    #[arg(long)]
    validation: bool,
    /// Cases at a time.
    #[arg(long, default_value_t = 1)]
    jobs: usize,
    /// Show how much of its bound every case uses, the least first.
    #[arg(long)]
    bounds: bool,
    /// Run NumPy's validation sets in this folder (`umath-validation-set-*.csv`) instead of the table.
    #[arg(long, value_name = "DIR")]
    umath: Option<PathBuf>,
    /// Count the words of the kernels instead of running them.
    #[arg(long, hide = true)]
    words: bool,
}

pub(crate) fn run(global: &Global, args: &VerifyArgs) -> Result<Answer, Failure> {
    let device = global.device()?;
    let without = Mask { subgroups: args.no_subgroups, f16: args.no_f16, matrices: args.no_matrices };
    let options = global
        .options()
        .checked(args.checked)
        .without(without)
        .browser_dialect(args.browser)
        .wgsl(args.wgsl)
        .validation(args.validation)
        .pipeline_cache(PipelineCache::Off);
    let backend = SessionBackend::new(&device.to_string(), device, options)?.repeated(args.repeat);
    if args.words {
        return words::count(backend.session(), &table(), &args.filter, global.quiet);
    }
    if let Some(folder) = &args.umath {
        return umath::run(backend.session(), folder);
    }
    let name = backend.session().device_name();
    let cases = [table(), long_axes(LONG)].concat();
    let report = run_table(&backend, &cases, &args.filter, args.jobs);
    if report.results.is_empty() {
        return Err(no_case(&args.filter));
    }
    let messages = backend.session().validation_messages();

    let mut text = format!("{} · {name}\n", report.backend);
    if backend.denormals() == Denormals::Flushed {
        text.push_str("f32 denormals are flushed: results that fit that pass too\n");
    }
    text.push('\n');
    if args.bounds {
        text.push_str(&used_bounds(&report));
    }
    for (family, passed, all) in report.families() {
        text.push_str(&format!("{family:<16} {passed:>5} of {all}\n"));
    }
    let refused = report.failures().filter(|r| matches!(r.outcome, Outcome::Refused(_))).count();
    let wrong = report.results.len() - report.passed() - refused;
    text.push_str(&format!(
        "{:<16} {:>5} of {}, {refused} refused, {wrong} wrong; {} run(s) of each gave the same bits\n",
        "all",
        report.passed(),
        report.results.len(),
        args.repeat.max(1)
    ));
    for failure in report.failures() {
        text.push_str(&format!("{}: {}\n", failure.name, failure.outcome));
    }
    for message in &messages {
        text.push_str(&format!("validation: {message}\n"));
    }
    let failures: Vec<_> =
        report.failures().map(|r| json!({ "case": r.name, "outcome": r.outcome.to_string() })).collect();
    let json = json!({
        "device": name, "cases": report.results.len(), "passed": report.passed(), "refused": refused,
        "wrong": wrong, "failures": failures, "validation": messages,
    });
    let failure = (wrong > 0 || !messages.is_empty()).then(|| {
        let problem = format!("{wrong} results are wrong, {} validation messages", messages.len());
        Failure::new(problem)
    });
    Ok(Answer::new(text, json).with_failure(failure))
}

fn no_case(filter: &str) -> Failure {
    Failure::new(format!("no case's name contains `{filter}`")).hint("without a filter, all cases run")
}

/// Cases that are not exact, by the part of their bound that they use.
fn used_bounds(report: &Report) -> String {
    let cases = table();
    let mut rows: Vec<(f64, String, String)> = report
        .results
        .iter()
        .filter_map(|r| match r.outcome {
            Outcome::Pass { worst } => {
                let case = cases.iter().find(|c| c.name == r.name)?;
                (!case.bound.is_exact()).then(|| (worst, r.name.clone(), format!("{:?}", case.bound)))
            }
            _ => None,
        })
        .collect();
    rows.sort_by(|a, b| a.0.total_cmp(&b.0));
    let mut text = Table::new(&["case", "bound", ">used"]);
    for (worst, name, bound) in rows {
        text.row([name, bound, format!("{:.1} %", 100.0 * worst)]);
    }
    format!("{text}\n")
}
