//! The page that says which operation passed on which backend in which dtype.

use std::collections::{BTreeMap, BTreeSet};

use olivine_ir::DType;

use crate::case::Case;
use crate::check::Report;

/// Passed and all cases of one cell.
type Count = (usize, usize);

/// Operations with the dtypes that their rules admit, as far as the cases' graphs show it.
pub fn admitted(cases: &[Case]) -> Result<BTreeSet<(&'static str, DType)>, String> {
    let mut all = BTreeSet::new();
    for case in cases {
        all.extend(case.admits().map_err(|problem| format!("{}: {problem}", case.name))?);
    }
    Ok(all)
}

/// Markdown: operations and backends against dtypes; `✓12` when all of 12 cases passed, `9/12` when some did not, `–`
/// for a dtype that the operation does not take.
pub fn ops_markdown(reports: &[Report], admitted: &BTreeSet<(&'static str, DType)>) -> String {
    let mut out = String::from(
        "| operation | backend | f32 | f16 | bf16 | f64 | i8 | u8 | i16 | i32 | u32 | i64 | bool |\n\
         |---|---|---|---|---|---|---|---|---|---|---|---|---|\n",
    );
    let counts: Vec<BTreeMap<(&str, DType), Count>> = reports.iter().map(counted).collect();
    let mut ops: Vec<&str> = counts.iter().flat_map(|c| c.keys().map(|(op, _)| *op)).collect();
    ops.sort_unstable();
    ops.dedup();
    for op in ops {
        for (report, counts) in reports.iter().zip(&counts) {
            out.push_str(&format!("| `{op}` | {} |", report.backend));
            for dtype in DType::ALL {
                out.push_str(&match counts.get(&(op, dtype)) {
                    None if admitted.contains(&(op, dtype)) => "  |".to_string(),
                    None => " – |".to_string(),
                    Some((passed, all)) if passed == all => format!(" ✓{all} |"),
                    Some((passed, all)) => format!(" {passed}/{all} |"),
                });
            }
            out.push('\n');
        }
    }
    out
}

fn counted(report: &Report) -> BTreeMap<(&str, DType), Count> {
    let mut counts: BTreeMap<(&str, DType), Count> = BTreeMap::new();
    for result in &report.results {
        for (op, dtype) in &result.uses {
            let cell = counts.entry((op, *dtype)).or_default();
            cell.0 += usize::from(result.outcome.passed());
            cell.1 += 1;
        }
    }
    counts
}
