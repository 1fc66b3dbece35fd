//! Running cases on a backend and telling what came out.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use olivine_ir::{DType, Graph, Tensor};

use crate::bound::Mismatch;
use crate::case::{Case, Prepared};
use crate::denormals::{Denormals, nearest};
use crate::oracle::{self, Value};

/// Something that runs graphs.
pub trait Backend: Sync {
    /// A name for reports.
    fn name(&self) -> &str;

    /// What the device does with denormal numbers. Where it flushes them, results that fit that are right too.
    fn denormals(&self) -> Denormals {
        Denormals::Kept
    }

    /// The outputs of a graph in order, or why it cannot run.
    fn run(
        &self,
        graph: &Graph,
        inputs: &[(String, Tensor)],
        params: &[(String, Tensor)],
    ) -> Result<Vec<Tensor>, String>;
}

/// What a backend made of a case.
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    /// Within the bound.
    Pass {
        /// The worst error as a part of what is allowed.
        worst: f64,
    },
    /// Outside the bound.
    Wrong {
        /// Which output.
        output: usize,
        /// Where and by how much.
        mismatch: Box<Mismatch>,
    },
    /// Outputs of another count, dtype or shape than the graph's.
    Malformed(String),
    /// The backend does not run it.
    Refused(String),
    /// The backend panicked.
    Panicked(String),
    /// The case itself is broken: its graph does not build or the oracle cannot run it.
    Broken(String),
}

impl Outcome {
    /// Whether the case passed.
    pub fn passed(&self) -> bool {
        matches!(self, Outcome::Pass { .. })
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Outcome::Pass { worst } => write!(f, "passed, worst error {:.0} % of the bound", worst * 100.0),
            Outcome::Wrong { output, mismatch: m } => write!(
                f,
                "wrong: output {output} at {}: got {:e}, want {:e}, error {:e} above {:e}",
                m.index, m.got, m.want, m.error, m.bound
            ),
            Outcome::Malformed(problem) => write!(f, "malformed: {problem}"),
            Outcome::Refused(problem) => write!(f, "refused: {problem}"),
            Outcome::Panicked(problem) => write!(f, "panicked: {problem}"),
            Outcome::Broken(problem) => write!(f, "the case is broken: {problem}"),
        }
    }
}

fn feeds(prepared: &Prepared) -> Vec<(String, Value)> {
    prepared.inputs.iter().chain(&prepared.params).map(|(n, t)| (n.clone(), Value::of(t))).collect()
}

/// What the oracle says of a prepared case: results, and where the bound needs them results on magnitudes.
pub(crate) fn expected(case: &Case, prepared: &Prepared) -> Result<(Vec<Value>, Option<Vec<Value>>), String> {
    let feeds = feeds(prepared);
    let magnitudes = if case.bound.needs_magnitude() {
        let feeds: Vec<_> = feeds.iter().map(|(n, v)| (n.clone(), v.magnitude())).collect();
        Some(oracle::run(&prepared.graph, &feeds, oracle::Between::Unrounded)?)
    } else {
        None
    };
    Ok((oracle::run(&prepared.graph, &feeds, case.between)?, magnitudes))
}

/// Runs one case.
pub fn check(case: &Case, backend: &dyn Backend) -> Outcome {
    let prepared = match case.prepare() {
        Ok(prepared) => prepared,
        Err(problem) => return Outcome::Broken(problem),
    };
    let run =
        catch_unwind(AssertUnwindSafe(|| backend.run(&prepared.graph, &prepared.inputs, &prepared.params)));
    let got = match run {
        Ok(Ok(got)) => got,
        Ok(Err(problem)) => return Outcome::Refused(problem),
        Err(payload) => {
            let text = payload.downcast_ref::<String>().map(String::as_str);
            let text = text.or(payload.downcast_ref::<&str>().copied()).unwrap_or("without a message");
            return Outcome::Panicked(text.into());
        }
    };
    judge(case, &prepared, backend.denormals(), &got)
}

/// Runs one case by a function that need not block, on a device that treats denormal numbers so.
pub async fn check_async(
    case: &Case,
    denormals: Denormals,
    run: impl AsyncFnOnce(&Graph, &[(String, Tensor)], &[(String, Tensor)]) -> Result<Vec<Tensor>, String>,
) -> Outcome {
    let prepared = match case.prepare() {
        Ok(prepared) => prepared,
        Err(problem) => return Outcome::Broken(problem),
    };
    let got = match run(&prepared.graph, &prepared.inputs, &prepared.params).await {
        Ok(got) => got,
        Err(problem) => return Outcome::Refused(problem),
    };
    judge(case, &prepared, denormals, &got)
}

/// Judges what a device returned for a prepared case.
fn judge(case: &Case, prepared: &Prepared, denormals: Denormals, got: &[Tensor]) -> Outcome {
    let (want, magnitudes) = match expected(case, prepared) {
        Ok(expected) => expected,
        Err(problem) => return Outcome::Broken(problem),
    };
    let outcome = compare(case, &want, magnitudes.as_deref(), got);
    if denormals == Denormals::Kept || !matches!(outcome, Outcome::Wrong { .. }) {
        return outcome;
    }
    let flushed = match oracle::run(&prepared.graph, &feeds(prepared), oracle::Between::Flushed) {
        Ok(flushed) => flushed,
        Err(problem) => return Outcome::Broken(problem),
    };
    let both = want.iter().zip(&flushed);
    let want: Vec<Value> = both.zip(got).map(|((want, flushed), got)| nearest(want, flushed, got)).collect();
    compare(case, &want, magnitudes.as_deref(), got)
}

/// Judges outputs against the oracle's.
pub(crate) fn compare(case: &Case, want: &[Value], magnitudes: Option<&[Value]>, got: &[Tensor]) -> Outcome {
    if want.len() != got.len() {
        return Outcome::Malformed(format!("{} outputs instead of {}", got.len(), want.len()));
    }
    let mut worst = 0.0f64;
    for (output, (want, got)) in want.iter().zip(got).enumerate() {
        if want.ty != got.ty() {
            return Outcome::Malformed(format!("output {output} is {}, not {}", got.ty(), want.ty));
        }
        match case.bound.judge(want, magnitudes.and_then(|m| m.get(output)), got) {
            Ok(part) => worst = worst.max(part),
            Err(mismatch) => return Outcome::Wrong { output, mismatch },
        }
    }
    Outcome::Pass { worst }
}

/// One case's row in a report.
#[derive(Clone, Debug)]
pub struct CaseResult {
    /// The case's family.
    pub family: &'static str,
    /// The case's name.
    pub name: String,
    /// Operations and dtypes it exercises.
    pub uses: Vec<(&'static str, DType)>,
    /// What came out.
    pub outcome: Outcome,
}

/// What a backend made of many cases.
#[derive(Clone, Debug)]
pub struct Report {
    /// The backend's name.
    pub backend: String,
    /// One row per case, in the table's order.
    pub results: Vec<CaseResult>,
}

impl Report {
    /// How many cases passed.
    pub fn passed(&self) -> usize {
        self.results.iter().filter(|r| r.outcome.passed()).count()
    }

    /// The rows that did not pass.
    pub fn failures(&self) -> impl Iterator<Item = &CaseResult> {
        self.results.iter().filter(|r| !r.outcome.passed())
    }

    /// `(family, passed, all)` in the table's order.
    pub fn families(&self) -> Vec<(&'static str, usize, usize)> {
        let mut counts: Vec<(&'static str, usize, usize)> = Vec::new();
        for r in &self.results {
            let at = counts.iter().position(|c| c.0 == r.family).unwrap_or_else(|| {
                counts.push((r.family, 0, 0));
                counts.len() - 1
            });
            counts[at].1 += usize::from(r.outcome.passed());
            counts[at].2 += 1;
        }
        counts
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (family, passed, all) in self.families() {
            writeln!(f, "{family:<16} {passed:>4} of {all}")?;
        }
        writeln!(f, "{:<16} {:>4} of {} on {}", "all", self.passed(), self.results.len(), self.backend)?;
        for r in self.failures() {
            writeln!(f, "{}: {}", r.name, r.outcome)?;
        }
        Ok(())
    }
}

/// Runs the cases whose names contain `filter` on so many threads.
pub fn run_table(backend: &dyn Backend, cases: &[Case], filter: &str, threads: usize) -> Report {
    let chosen: Vec<&Case> = cases.iter().filter(|c| c.name.contains(filter)).collect();
    let next = AtomicUsize::new(0);
    let done: Mutex<Vec<(usize, CaseResult)>> = Mutex::new(Vec::with_capacity(chosen.len()));
    std::thread::scope(|scope| {
        for _ in 0..threads.max(1) {
            scope.spawn(|| {
                while let Some((at, case)) = {
                    let at = next.fetch_add(1, Ordering::Relaxed);
                    chosen.get(at).map(|case| (at, case))
                } {
                    let result = CaseResult {
                        family: case.family,
                        name: case.name.clone(),
                        uses: case.uses().unwrap_or_default(),
                        outcome: check(case, backend),
                    };
                    done.lock().unwrap_or_else(|e| e.into_inner()).push((at, result));
                }
            });
        }
    });
    let mut rows = done.into_inner().unwrap_or_else(|e| e.into_inner());
    rows.sort_by_key(|(at, _)| *at);
    Report { backend: backend.name().into(), results: rows.into_iter().map(|(_, r)| r).collect() }
}
