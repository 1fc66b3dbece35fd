//! The loop over numbered cases, which the fuzzers share, with bounds of each case's time and of the process's memory.
//!
//! ```text
//!   arguments ── run_cases ── case_of(a number of seed and case) ── counts, or the case that failed
//! ```

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// What a case may take on a busy machine; it is milliseconds as a rule.
const LONGEST_CASE: Duration = Duration::from_secs(60);
/// Bytes that the process may have held at once.
const MOST_MEMORY: u64 = 3 << 30;

struct Options {
    cases: u64,
    seed: u64,
    only: Option<u64>,
}

fn options() -> Result<Options, String> {
    let mut options = Options { cases: 1_000_000, seed: 1, only: None };
    let mut args = std::env::args().skip(1);
    while let Some(name) = args.next() {
        let value = args.next().ok_or_else(|| format!("{name} needs a number"))?;
        let number = value.parse().map_err(|_| format!("{name}: `{value}` is not a number"))?;
        match name.as_str() {
            "--cases" => options.cases = number,
            "--seed" => options.seed = number,
            "--only" => options.only = Some(number),
            _ => return Err(format!("unknown option {name}; there are --cases, --seed and --only")),
        }
    }
    Ok(options)
}

/// Runs as many cases as the arguments say: each is named by the seed and its number. A case says how it went; an error is a
/// broken promise other than a panic.
pub fn run_cases(case_of: impl Fn(u64) -> Result<&'static str, String>) -> ExitCode {
    let options = match options() {
        Ok(options) => options,
        Err(e) => {
            eprintln!("error: {e}");
            return ExitCode::FAILURE;
        }
    };
    let run = |case: u64| case_of(options.seed.wrapping_mul(0x2545_F491_4F6C_DD1D) ^ case);
    if let Some(case) = options.only {
        return match run(case) {
            Ok(kind) => {
                eprintln!("case {case} ({kind}) is fine");
                ExitCode::SUCCESS
            }
            Err(e) => {
                eprintln!("case {case}: {e}");
                ExitCode::FAILURE
            }
        };
    }
    std::panic::set_hook(Box::new(|_| ()));
    let start = Instant::now();
    let mut counts: Vec<(&str, u64)> = Vec::new();
    for case in 0..options.cases {
        let begun = Instant::now();
        let ended = catch_unwind(AssertUnwindSafe(|| run(case)));
        let problem = match ended {
            Ok(Ok(_)) if begun.elapsed() > LONGEST_CASE => Some(format!("it took {:?}", begun.elapsed())),
            Ok(Ok(_)) if peak_memory() > MOST_MEMORY => {
                Some(format!("the process has held {} MiB", peak_memory() >> 20))
            }
            Ok(Ok(kind)) => {
                match counts.iter_mut().find(|(k, _)| *k == kind) {
                    Some((_, count)) => *count += 1,
                    None => counts.push((kind, 1)),
                }
                None
            }
            Ok(Err(e)) => Some(e),
            Err(_) => Some("a panic".to_string()),
        };
        if let Some(problem) = problem {
            eprintln!("case {case}: {problem}");
            eprintln!("again: --seed {} --only {case}", options.seed);
            return ExitCode::FAILURE;
        }
        if (case + 1) % 100_000 == 0 {
            eprintln!("{} cases in {:.1} s", case + 1, start.elapsed().as_secs_f64());
        }
    }
    counts.sort_unstable();
    let each: Vec<String> = counts.iter().map(|(kind, n)| format!("{n} {kind}")).collect();
    let seconds = start.elapsed().as_secs_f64();
    println!(
        "{} cases without a panic in {seconds:.1} s ({:.0} a second): {}",
        options.cases,
        options.cases as f64 / seconds,
        each.join(", ")
    );
    ExitCode::SUCCESS
}

/// The most bytes that this process has held at once, where the system says so.
fn peak_memory() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    line.and_then(|line| line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()).unwrap_or(0) << 10
}
