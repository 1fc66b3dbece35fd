//! The table proves itself: the oracle passes it, and wrong backends do not.

use std::collections::{BTreeMap, HashSet};

use olivine_cases::oracle::{Numbers, Value};
use olivine_cases::{
    Backend, Case, Oracle, Outcome, Report, admitted, fuzz_cases, ops_markdown, run_table, table, to_tensor,
};
use olivine_ir::{Graph, Op, Tensor};

const THREADS: usize = 2;

#[test]
fn every_case_has_its_own_name_and_builds() {
    let cases = table();
    assert!(cases.len() >= 600, "{} cases", cases.len());
    let mut names = HashSet::new();
    for case in &cases {
        assert!(names.insert(case.name.clone()), "{} stands twice", case.name);
        if let Err(problem) = case.graph() {
            panic!("{}: {problem}", case.name);
        }
    }
}

#[test]
fn the_table_exercises_every_operation() {
    let mut seen = HashSet::new();
    for case in table() {
        seen.extend(case.uses().expect("builds").into_iter().map(|(op, _)| op));
    }
    let missing: Vec<&str> = Op::names().into_iter().filter(|op| !seen.contains(op)).collect();
    assert_eq!(missing, WITHOUT_CASES);
}

/// Operations that no case names: users' own, and what the compiler alone makes of `rnn`, `gru` and `lstm`.
const WITHOUT_CASES: [&str; 2] = ["recurrence", "custom"];

#[test]
fn every_dtype_that_an_operation_takes_has_a_case() {
    let cases = table();
    let seen: HashSet<_> = cases.iter().flat_map(|case| case.uses().expect("builds")).collect();
    let mut missing = BTreeMap::<&str, Vec<&str>>::new();
    for (op, dtype) in admitted(&cases).expect("cases build") {
        if !seen.contains(&(op, dtype)) {
            missing.entry(op).or_default().push(dtype.name());
        }
    }
    assert!(missing.is_empty(), "no case of {missing:#?}");
}

#[test]
fn the_oracle_passes_the_table() {
    let report = run_table(&Oracle, &table(), "", THREADS);
    assert_eq!(report.passed(), report.results.len(), "{report}");
}

#[test]
fn the_oracle_passes_random_cases() {
    let report = run_table(&Oracle, &fuzz_cases(2000, 1), "", THREADS);
    assert_eq!(report.passed(), report.results.len(), "{report}");
}

#[test]
fn the_coverage_page_counts_passes_by_operation_backend_and_dtype() {
    let cases = table();
    let reports = [
        run_table(&Oracle, &cases, "softmax/first-axis", 1),
        run_table(&Refuses, &cases, "softmax/first-axis", 1),
    ];
    let page = ops_markdown(&reports, &admitted(&cases).expect("cases build"));
    assert!(page.contains("| `softmax` | oracle | ✓3 | ✓3 | ✓3 | ✓3 | – | – |"), "{page}");
    assert!(page.contains("| `softmax` | refuses | 0/3 | 0/3 | 0/3 | 0/3 | – | – |"), "{page}");
}

/// Runs nothing.
struct Refuses;

impl Backend for Refuses {
    fn name(&self) -> &str {
        "refuses"
    }

    fn run(
        &self,
        graph: &Graph,
        _inputs: &[(String, Tensor)],
        _params: &[(String, Tensor)],
    ) -> Result<Vec<Tensor>, String> {
        Err(format!("{} is not for me", graph.name()))
    }
}

/// The oracle's results, corrupted.
struct Corrupted(&'static str, fn(&mut Value, &[(String, Tensor)]));

impl Backend for Corrupted {
    fn name(&self) -> &str {
        self.0
    }

    fn run(
        &self,
        graph: &Graph,
        inputs: &[(String, Tensor)],
        params: &[(String, Tensor)],
    ) -> Result<Vec<Tensor>, String> {
        let right = Oracle.run(graph, inputs, params)?;
        right
            .iter()
            .map(|t| {
                let mut value = Value::of(t);
                (self.1)(&mut value, inputs);
                to_tensor(&value)
            })
            .collect()
    }
}

/// Cases with something to get wrong: a result that is not empty. The largest are left out for time.
fn corruptible() -> Vec<Case> {
    let mut cases = table();
    cases.retain(|c| !c.name.contains("20M"));
    cases.retain(|c| {
        c.graph().is_ok_and(|graph| {
            let size = |id| graph.ty(id).map_or(0, |ty| ty.shape.numel());
            graph.outputs().iter().any(|o| size(o.value) > 0)
        })
    });
    cases
}

fn caught(report: &Report) -> f64 {
    let wrong = report.results.iter().filter(|r| matches!(r.outcome, Outcome::Wrong { .. })).count();
    assert!(report.results.iter().all(|r| !matches!(r.outcome, Outcome::Broken(_))), "{report}");
    wrong as f64 / report.results.len() as f64
}

fn missed(report: &Report) -> String {
    let names = report.results.iter().filter(|r| r.outcome.passed()).map(|r| r.name.as_str());
    names.collect::<Vec<_>>().join("\n")
}

#[test]
fn a_backend_that_returns_zeros_fails() {
    let zeros = Corrupted("zeros", |v, _| match &mut v.data {
        Numbers::Floats(v) => v.fill(0.0),
        Numbers::Ints(v) => v.fill(0),
    });
    let report = run_table(&zeros, &corruptible(), "", THREADS);
    assert!(caught(&report) >= 0.97, "{} missed:\n{}", caught(&report), missed(&report));
}

#[test]
fn a_backend_that_is_a_thousandth_off_fails() {
    // Whole numbers and bools cannot be a thousandth off; they are one off. Narrow floats are one per cent off.
    let scaled = Corrupted("scaled", |v, _| {
        let factor = if matches!(v.ty.dtype.name(), "f16" | "bf16") { 1.02 } else { 1.001 };
        match &mut v.data {
            Numbers::Floats(v) => v.iter_mut().for_each(|x| *x *= factor),
            Numbers::Ints(v) => v.iter_mut().for_each(|x| *x ^= 1),
        }
    });
    let report = run_table(&scaled, &corruptible(), "", THREADS);
    assert!(caught(&report) >= 0.95, "{} missed:\n{}", caught(&report), missed(&report));
}

#[test]
fn a_backend_that_gets_the_last_element_wrong_fails() {
    let last = Corrupted("last", |v, _| match &mut v.data {
        Numbers::Floats(v) => {
            if let Some(x) = v.last_mut() {
                *x = if x.is_finite() { *x + 1.0 + x.abs() } else { 0.5 };
            }
        }
        Numbers::Ints(v) => v.iter_mut().rev().take(1).for_each(|x| *x ^= 1),
    });
    let report = run_table(&last, &corruptible(), "", THREADS);
    assert!(caught(&report) >= 0.995, "{} missed:\n{}", caught(&report), missed(&report));
}

#[test]
fn a_backend_that_returns_its_first_input_fails() {
    let echo = Corrupted("echo", |v, inputs| {
        let Some((_, first)) = inputs.first() else { return };
        let first = Value::of(first);
        match (&mut v.data, &first.data) {
            (Numbers::Floats(v), Numbers::Floats(f)) if !f.is_empty() => {
                v.iter_mut().enumerate().for_each(|(i, x)| *x = f[i % f.len()]);
            }
            (Numbers::Ints(v), Numbers::Ints(f)) if !f.is_empty() => {
                v.iter_mut().enumerate().for_each(|(i, x)| *x = f[i % f.len()]);
            }
            _ => v.data = Numbers::Floats(vec![0.0; v.len()]),
        }
        if let (false, Numbers::Floats(f)) = (v.ty.dtype.is_float(), &v.data) {
            v.data = Numbers::Ints(vec![0; f.len()]);
        }
    });
    let report = run_table(&echo, &corruptible(), "", THREADS);
    assert!(caught(&report) >= 0.9, "{} missed:\n{}", caught(&report), missed(&report));
}
