//! Attention, rotary positions and the key-value cache by the kernel interpreter: devices that are not here, and
//! arithmetic as poor as devices may have it.

mod common;

use common::Interpreter;
use olivine_cases::{Case, attention_cases, run_table, table};

/// Every third case of the families, from one of the first three on; devices run the whole table.
fn cases(from: usize) -> Vec<Case> {
    let ours = |c: &Case| ["attention", "rope"].contains(&c.family);
    table().into_iter().filter(ours).skip(from).step_by(3).collect()
}

fn pass(backend: &Interpreter, cases: &[Case]) {
    let report = run_table(backend, cases, "", 2);
    let wrong: Vec<String> = report.failures().map(|r| format!("{}: {}", r.name, r.outcome)).collect();
    assert!(!report.results.is_empty());
    assert!(wrong.is_empty(), "{} of {}:\n{}", wrong.len(), report.results.len(), wrong.join("\n"));
}

fn without_doubles(mut cases: Vec<Case>) -> Vec<Case> {
    cases.retain(|c| !c.name.ends_with("/f64"));
    cases
}

#[test]
fn subgroups_of_eight_that_are_narrower_than_some_rows() {
    pass(&Interpreter::rich(8), &cases(0));
}

#[test]
fn subgroups_of_thirty_two() {
    pass(&Interpreter::rich(32), &cases(1));
}

#[test]
fn no_subgroups_and_the_least_memory() {
    pass(&Interpreter::plain(), &without_doubles(cases(2)));
}

#[test]
fn random_shapes_and_views_agree_with_the_oracle() {
    pass(&Interpreter::rich(32), &attention_cases(25, 1));
    pass(&Interpreter::plain(), &without_doubles(attention_cases(25, 26)));
}
