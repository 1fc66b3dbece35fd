//! `olivine bench ops --cases`: the table of cases on a device, family by family.

use std::collections::HashMap;
use std::sync::Mutex;

use olivine::Session;
use olivine::ir::{Graph, Tensor};
use olivine_cases::{Backend, Report, run_table, table};
use serde_json::{Value, json};

use crate::Global;
use crate::answer::{Answer, Failure};
use crate::table::Table;
use crate::timing::{ms, short, timed};

/// A session that runs cases and remembers how long each took.
struct Timed<'a> {
    session: &'a Session,
    name: String,
    run_ms: Mutex<HashMap<String, f64>>,
}

impl Backend for Timed<'_> {
    fn name(&self) -> &str {
        &self.name
    }

    fn run(
        &self,
        graph: &Graph,
        inputs: &[(String, Tensor)],
        params: &[(String, Tensor)],
    ) -> Result<Vec<Tensor>, String> {
        let run = || -> Result<Vec<Tensor>, olivine::Error> {
            let executable = self.session.compile(graph)?;
            executable.set_params(params.iter().cloned())?;
            let views = || inputs.iter().map(|(name, tensor)| (name.as_str(), tensor));
            executable.run(views())?;
            let (time, out) = timed(|| executable.run(views()));
            self.run_ms.lock().unwrap_or_else(|e| e.into_inner()).insert(graph.name().to_string(), ms(time));
            Ok(out?.into_tensors())
        };
        run().map_err(|error| error.to_string())
    }
}

pub(crate) fn run(global: &Global, session: &Session, filter: &str) -> Result<Answer, Failure> {
    let backend = Timed { session, name: session.device().to_string(), run_ms: Mutex::default() };
    // One case at a time: cases that share the cores would not be timed.
    let report = run_table(&backend, &table(), filter, 1);
    if report.results.is_empty() {
        return Err(Failure::new(format!("no case's name contains `{filter}`")));
    }
    let times = backend.run_ms.into_inner().unwrap_or_else(|e| e.into_inner());
    Ok(answer(global, &report, &times))
}

fn answer(global: &Global, report: &Report, times: &HashMap<String, f64>) -> Answer {
    let mut table = Table::new(&["family", ">passed", ">cases", ">run ms, together"]);
    let mut families: Vec<Value> = Vec::new();
    for (family, passed, all) in report.families() {
        let of_family = report.results.iter().filter(|r| r.family == family);
        let together: f64 = of_family.filter_map(|r| times.get(&r.name)).sum();
        table.row([family.to_string(), passed.to_string(), all.to_string(), short(together)]);
        families.push(json!({ "family": family, "passed": passed, "cases": all, "run_ms": together }));
    }
    let failures: Vec<String> = report.failures().map(|r| format!("{}: {}", r.name, r.outcome)).collect();
    let mut text = format!("{}, {} threads\n\n{table}", report.backend, global.thread_count());
    for failure in &failures {
        text += &format!("{failure}\n");
    }
    let failed = (!failures.is_empty())
        .then(|| Failure::new(format!("{} of {} cases failed", failures.len(), report.results.len())));
    let json = json!({
        "device": report.backend, "threads": global.thread_count(), "families": families, "failures": failures,
    });
    Answer::new(text, json).with_failure(failed)
}
