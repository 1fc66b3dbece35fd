//! `olivine test onnx`: the ONNX backend tests, case by case, on one device or several.

mod compare;
mod page;
mod suite;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use clap::Args;
use olivine::{Device, Session};
use serde_json::json;

use crate::Global;
use crate::answer::{Answer, Failure};
use suite::{Case, Done};

/// Arguments of `test onnx`.
#[derive(Args)]
pub(crate) struct ConformanceArgs {
    /// Folder of the tests: it holds `node`, `simple`, `pytorch-operator` and so on, or cases themselves.
    suite: PathBuf,
    /// Only cases whose name contains this.
    #[arg(default_value = "")]
    filter: String,
    /// Devices one after another, such as cpu,vulkan,wgpu; the one of --device when not given.
    #[arg(long, value_delimiter = ',', value_name = "DEVICES")]
    devices: Vec<String>,
    /// Cases at a time.
    #[arg(long, default_value_t = 1)]
    jobs: usize,
    /// Folder of lists of cases that pass, one a device: fail if one of them does not.
    #[arg(long, value_name = "DIR")]
    passing: Option<PathBuf>,
    /// Add cases that pass now to the lists.
    #[arg(long, requires = "passing")]
    update: bool,
    /// Put into a page how many cases pass, and why others do not.
    #[arg(long, value_name = "FILE")]
    page: Option<PathBuf>,
}

/// What became of all cases on a device.
struct Results {
    device: String,
    done: Vec<Done>,
}

pub(crate) fn run(global: &Global, args: &ConformanceArgs) -> Result<Answer, Failure> {
    let cases = suite::cases(&args.suite, &args.filter)?;
    let devices =
        if args.devices.is_empty() { vec![global.device()?.to_string()] } else { args.devices.clone() };
    let mut results = Vec::new();
    for device in devices {
        let session = Session::with_options(device.parse::<Device>()?, global.options())?;
        let done = suite::run_all(&cases, &session, args.jobs);
        results.push(Results { device, done });
    }
    if let Some(path) = &args.page {
        let facts: Vec<suite::Facts> = cases.iter().map(suite::facts).collect();
        let old = if path.exists() { std::fs::read_to_string(path) } else { Ok(String::new()) };
        old.and_then(|old| std::fs::write(path, page::put(&old, &page::section(&cases, &facts, &results))))
            .map_err(|e| Failure::new(format!("cannot write `{}`: {e}", path.display())))?;
    }
    let mut lost = Vec::new();
    if let Some(folder) = &args.passing {
        for result in &results {
            lost.extend(keep(folder, result, &cases, args.update)?);
        }
    }
    let failure = (!lost.is_empty()).then(|| {
        let shown: Vec<String> = lost.iter().take(20).cloned().collect();
        let problem = format!("{} cases that passed do not: {}", lost.len(), shown.join("; "));
        Failure::new(problem).hint("run `olivine test onnx SUITE CASE --device …` to see why")
    });
    Ok(report(&results).with_failure(failure))
}

/// Compares with the list of cases that pass on a device, adds to it if asked to, and answers those that are lost.
fn keep(folder: &Path, result: &Results, cases: &[Case], update: bool) -> Result<Vec<String>, Failure> {
    let path = folder.join(format!("{}.txt", result.device.split(':').next().unwrap_or_default()));
    let failed = |e: std::io::Error| Failure::new(format!("cannot use `{}`: {e}", path.display()));
    let text = match std::fs::read_to_string(&path) {
        Ok(text) => text,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound && update => String::new(),
        Err(e) => return Err(failed(e)),
    };
    let mut listed: BTreeSet<&str> = text.lines().filter(|line| !line.is_empty()).collect();
    let chosen: BTreeSet<&str> = cases.iter().map(|case| case.name.as_str()).collect();
    let passed: BTreeSet<&str> =
        result.done.iter().filter(|d| d.problem.is_none()).map(|d| d.name.as_str()).collect();
    let lost = |name: &&&str| chosen.contains(**name) && !passed.contains(**name);
    let lost: Vec<String> =
        listed.iter().filter(lost).map(|name| format!("{name} on {}", result.device)).collect();
    if update {
        listed.extend(&passed);
        let lines: String = listed.iter().map(|name| format!("{name}\n")).collect();
        std::fs::create_dir_all(folder).and_then(|()| std::fs::write(&path, lines)).map_err(failed)?;
    }
    Ok(lost)
}

fn report(results: &[Results]) -> Answer {
    let mut text = String::new();
    for result in results {
        let mut groups: BTreeMap<&str, (usize, usize)> = BTreeMap::new();
        for case in &result.done {
            let group = case.name.split_once('/').map_or("", |(group, _)| group);
            let (passed, all) = groups.entry(group).or_default();
            *all += 1;
            match &case.problem {
                None => *passed += 1,
                Some(problem) => text += &format!("{}: {}\n", case.name, problem.replace('\n', " ")),
            }
        }
        for (group, (passed, all)) in &groups {
            text += &format!("{:<8} {group:<20} {passed} of {all}\n", result.device);
        }
    }
    let devices: Vec<_> = results
        .iter()
        .map(|result| {
            let cases: Vec<_> = result
                .done
                .iter()
                .map(|c| json!({ "name": c.name, "passed": c.problem.is_none(), "problem": c.problem }))
                .collect();
            json!({ "device": result.device, "cases": cases })
        })
        .collect();
    Answer::new(text, json!({ "devices": devices }))
}
