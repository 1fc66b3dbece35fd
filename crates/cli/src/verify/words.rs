//! How long the kernels of the table are: what a driver's compiler has to read when none of them is in its cache.

use std::collections::{BTreeMap, HashSet};

use olivine::Session;
use olivine::internals::KernelSource;
use olivine::internals::SessionExt as _;
use olivine_cases::Case;
use serde_json::json;

use crate::answer::{Answer, Failure};
use crate::progress::Progress;
use crate::table::Table;

/// Kernels of one name.
#[derive(Default)]
struct Kernels {
    count: usize,
    words: usize,
    longest: usize,
}

/// Lowers the cases whose names contain `filter`, and counts every distinct kernel once; nothing runs.
pub(super) fn count(session: &Session, cases: &[Case], filter: &str, quiet: bool) -> Result<Answer, Failure> {
    let chosen: Vec<&Case> = cases.iter().filter(|c| c.name.contains(filter)).collect();
    if chosen.is_empty() {
        return Err(super::no_case(filter));
    }
    let mut progress = Progress::new(chosen.len(), quiet);
    let (mut by_name, mut seen) = (BTreeMap::<String, Kernels>::new(), HashSet::new());
    for case in &chosen {
        progress.begin(&case.name);
        let graph = case.graph().map_err(Failure::new)?;
        let program = session.program(&session.explain(&graph)?)?;
        let Some(program) = program else {
            return Err(
                Failure::new("the CPU runs no kernels of this kind").hint("choose a GPU with --device")
            );
        };
        for kernel in &program.kernels {
            if !seen.insert(kernel.content_hash()) {
                continue;
            }
            let words = match session.kernel_source(kernel)? {
                Some(KernelSource::Spirv(words)) => words.len(),
                Some(KernelSource::Wgsl(text) | KernelSource::Ptx(text)) => text.len().div_ceil(4),
                None => 0,
            };
            let of = by_name.entry(kernel.name.clone()).or_default();
            of.count += 1;
            of.words += words;
            of.longest = of.longest.max(words);
        }
        progress.step();
    }
    drop(progress);
    let mut rows: Vec<(String, Kernels)> = by_name.into_iter().collect();
    rows.sort_by_key(|(_, k)| std::cmp::Reverse(k.words));
    let (count, words) = rows.iter().fold((0, 0), |(c, w), (_, k)| (c + k.count, w + k.words));
    let mut table = Table::new(&["kernel", ">kernels", ">words", ">longest"]);
    for (name, k) in &rows {
        table.row([name.clone(), k.count.to_string(), k.words.to_string(), k.longest.to_string()]);
    }
    table.row(["all".into(), count.to_string(), words.to_string(), String::new()]);
    let json = json!({
        "cases": chosen.len(), "kernels": count, "words": words,
        "by_name": rows.iter().map(|(name, k)| json!({
            "kernel": name, "kernels": k.count, "words": k.words, "longest": k.longest,
        })).collect::<Vec<_>>(),
    });
    Ok(Answer::new(table.to_string(), json))
}
