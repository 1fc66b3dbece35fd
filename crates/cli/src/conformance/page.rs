//! The section of a page on ONNX's backend tests: how many pass, and why each of the others does not.

use super::Results;
use super::suite::{Case, Facts};

/// What stands before and after the section in its page.
const MARKS: [&str; 2] =
    ["<!-- backend tests: written by `cargo xtask onnx --update` -->\n", "<!-- end of backend tests -->\n"];

const HEADING: &str = "\
## ONNX's backend tests

The cases are those of the `onnx` package named in `zoo/zoo.json`, without `light` (its weights are constants: it cannot
fail) and `real`. *Plain* are the node cases whose inputs and outputs are tensors of f32, f16, integers and bools. *Idle*
are those that a backend would pass by giving zeros or its first input; what counts is what passes beyond them. The cases
that pass are listed by device in `zoo/passing`, and `cargo xtask onnx` fails if one of them does not.

";

/// A page with the section in the place of the one that it has, or at its end.
pub(super) fn put(page: &str, section: &str) -> String {
    let [begin, end] = MARKS;
    let (before, after) = match page.split_once(begin) {
        Some((before, rest)) => (before, rest.split_once(end).map_or("", |(_, after)| after)),
        None => (page, ""),
    };
    format!("{before}{begin}{section}{end}{after}")
}

/// The section.
pub(super) fn section(cases: &[Case], facts: &[Facts], results: &[Results]) -> String {
    let mut text = HEADING.to_string();
    text += "| cases | all | idle |";
    results.iter().for_each(|r| text += &format!(" {} |", r.device));
    text += &format!("\n|---|---|---|{}\n", "---|".repeat(results.len()));
    let mut groups: Vec<&str> = cases.iter().map(|c| group(&c.name)).collect();
    groups.dedup();
    for chosen in groups {
        text += &row(chosen, cases, facts, results, |case, _| group(&case.name) == chosen);
        if chosen == "node" {
            text += &row("node, plain", cases, facts, results, |case, facts| {
                group(&case.name) == chosen && facts.is_plain
            });
        }
    }
    text += "\nThese do not pass:\n\n| case | where | why |\n|---|---|---|\n";
    for (i, case) in cases.iter().enumerate() {
        let problem =
            |r: &Results| r.done.get(i).and_then(|d| d.problem.clone()).map(|p| (r.device.clone(), p));
        let problems: Vec<(String, String)> = results.iter().filter_map(problem).collect();
        let Some((_, first)) = problems.first() else { continue };
        let same = problems.len() == results.len();
        let place = if same { "everywhere".to_string() } else { names(&problems) };
        let why = known(&case.name).map_or_else(|| reason(first), str::to_string);
        text += &format!("| {} | {place} | {why} |\n", case.name);
    }
    text
}

fn group(name: &str) -> &str {
    name.split_once('/').map_or("", |(group, _)| group)
}

fn names(problems: &[(String, String)]) -> String {
    problems.iter().map(|(device, _)| device.as_str()).collect::<Vec<_>>().join(", ")
}

fn row(
    title: &str,
    cases: &[Case],
    facts: &[Facts],
    results: &[Results],
    belongs: impl Fn(&Case, &Facts) -> bool,
) -> String {
    let chosen: Vec<usize> = (0..cases.len()).filter(|i| belongs(&cases[*i], &facts[*i])).collect();
    let idle = chosen.iter().filter(|i| facts[**i].is_idle).count();
    let mut line = format!("| {title} | {} | {idle} |", chosen.len());
    for result in results {
        let passed =
            chosen.iter().filter(|i| result.done.get(**i).is_some_and(|d| d.problem.is_none())).count();
        let share = 100.0 * passed as f64 / chosen.len().max(1) as f64;
        line += &format!(" {passed} ({share:.1} %) |");
    }
    line + "\n"
}

/// Why cases do not pass whose data say something else than the specification, by how their names begin.
const KNOWN: &[(&str, &str)] = &[
    ("test_bernoulli", "expects the numbers that NumPy drew"),
    ("test_training_dropout", "expects the numbers that NumPy drew"),
    ("test_dft_inverse", "expects NumPy's rounding error, 1.9e-7, where the result is 0"),
    ("test_dft", "the result is 0 in theory; f32 rounding is above the absolute 1e-7"),
];

fn known(case: &str) -> Option<&'static str> {
    let name = case.rsplit('/').next().unwrap_or(case);
    KNOWN.iter().find(|(prefix, _)| name.starts_with(prefix)).map(|(_, why)| *why)
}

/// A problem in few words, fit for a table.
fn reason(problem: &str) -> String {
    if problem.contains("of type string") || problem.contains("values of kind") {
        return "string tensors live on no device".into();
    }
    if let Some((_, operators)) = problem.split_once("cannot be imported:") {
        let names: Vec<&str> =
            operators.lines().filter_map(|l| l.trim().split_once(':')).map(|(n, _)| n).collect();
        return format!("not imported: {}", names.join(", "));
    }
    problem.replace('\n', " ").replace('|', "\\|")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_section_takes_the_place_of_the_one_before_it() {
        let page = put("# Title\n\n", "first\n");
        assert_eq!(page, format!("# Title\n\n{}first\n{}", MARKS[0], MARKS[1]));
        let again = put(&format!("{page}\nafter\n"), "second\n");
        assert_eq!(again, format!("# Title\n\n{}second\n{}\nafter\n", MARKS[0], MARKS[1]));
    }
}
