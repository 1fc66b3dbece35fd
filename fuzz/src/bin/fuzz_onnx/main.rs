//! Throws broken models at the importer: no case may panic, take over a second or much memory.
//!
//! ```text
//! cargo run -p olivine-fuzz --bin fuzz_onnx -- --cases 1000000 [--seed N] [--only CASE] [--suite DIR] [--all]
//! ```
//!
//! The corpus is written by code; `--suite` adds every `model.onnx` below a folder. A case is named by the seed, the corpus
//! and its number: `--only` runs that one again and shows the panic; `--all` goes on after a failure and prints every
//! place where there was one. Built without optimisations that hide overflow: a sum that wraps is a panic here.

mod corpus;
mod hostile;
mod memory;
mod mutate;
#[allow(dead_code, reason = "a part is enough here")]
#[path = "../../../../crates/onnx/tests/wire/mod.rs"]
mod wire;

use std::backtrace::Backtrace;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use corpus::Corpus;
use mutate::Rng;
use olivine_cpu::CpuEvaluator;
use olivine_ir::{DType, Data, Shape, Tensor, TensorType};
use olivine_onnx::{
    Argument, Bindings, Bound, Dim, Kind, Known, LoopCall, LoopResults, Made, Model, Outcome, Stage,
};

/// No case takes longer.
const LONGEST: Duration = Duration::from_secs(1);

/// No case holds more bytes at a time.
const MOST_MEMORY: usize = 1 << 30;

/// Values that are brought to an import before it is given up.
const ROUNDS: usize = 6;

/// Models that are read from a file, in percent. They take ten times as long as others.
const FROM_FILE: u64 = 1;

/// The largest tensor that is brought to an import, in elements.
const LARGEST: usize = 4096;

/// Time after which the watch ends a case: what it computes, and on the clock, for one that waits.
const MOST_COMPUTED: Duration = Duration::from_secs(30);
const MOST_WAITED: Duration = Duration::from_secs(900);

/// The case that runs now, for the watch.
static CASE: AtomicU64 = AtomicU64::new(0);

thread_local! {
    /// Where the last panic was and what it said.
    static PANIC: RefCell<String> = const { RefCell::new(String::new()) };
}

struct Options {
    cases: u64,
    seed: u64,
    only: Option<u64>,
    suite: Option<PathBuf>,
    all: bool,
}

fn options() -> Result<Options, String> {
    let mut options = Options { cases: 1_000_000, seed: 1, only: None, suite: None, all: false };
    let mut args = std::env::args().skip(1);
    while let Some(name) = args.next() {
        if name == "--all" {
            options.all = true;
            continue;
        }
        let value = args.next().ok_or_else(|| format!("{name} needs a value"))?;
        let number = || value.parse().map_err(|_| format!("{name}: `{value}` is not a number"));
        match name.as_str() {
            "--cases" => options.cases = number()?,
            "--seed" => options.seed = number()?,
            "--only" => options.only = Some(number()?),
            "--suite" => options.suite = Some(value.into()),
            _ => return Err(format!("unknown option {name}: --cases, --seed, --only, --suite, --all")),
        }
    }
    Ok(options)
}

fn main() -> ExitCode {
    match options().and_then(|options| run(&options)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(problem) => {
            eprintln!("error: {problem}");
            ExitCode::FAILURE
        }
    }
}

fn run(options: &Options) -> Result<(), String> {
    let corpus = corpus::build(options.suite.as_deref())?;
    if let Some(number) = options.only {
        let outcome = case(&corpus, options.seed, number)?;
        hostile::remove();
        println!("case {number} is fine: {outcome}");
        return Ok(());
    }
    std::panic::set_hook(Box::new(|info| {
        let place = info.location().map_or(String::new(), |l| format!("{}:{}", l.file(), l.line()));
        let text = info.payload_as_str().unwrap_or_default();
        // Where the standard library panics, who called it is what matters.
        let trace =
            if place.starts_with("crates/") { String::new() } else { Backtrace::force_capture().to_string() };
        let caller = trace
            .lines()
            .map(str::trim)
            .find(|line| line.starts_with("at ") && line.contains("crates/onnx/src"));
        let caller = caller.map_or(String::new(), |line| format!(" by {}", &line[3..]));
        PANIC.with_borrow_mut(|panic| *panic = format!("{place}{caller}: {text}"));
    }));
    let start = Instant::now();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| watch(start, &stop));
        let done = cases(options, &corpus, start);
        stop.store(true, Ordering::Relaxed);
        done
    })
}

/// Runs all cases and prints how they went.
fn cases(options: &Options, corpus: &Corpus, start: Instant) -> Result<(), String> {
    let mut outcomes: BTreeMap<&'static str, u64> = BTreeMap::new();
    let mut failures: BTreeMap<String, (u64, u64)> = BTreeMap::new();
    for number in 0..options.cases {
        CASE.store(number, Ordering::Relaxed);
        memory::reset();
        let began = Instant::now();
        let outcome = guarded(corpus, options.seed, number);
        let (mut took, peak) = (began.elapsed(), memory::peak());
        if took > LONGEST {
            // Perhaps other work on the machine took the time: once more, and only what this thread computes counts.
            let began = busy(start);
            let _ = guarded(corpus, options.seed, number);
            took = busy(start).saturating_sub(began);
        }
        let outcome = match outcome {
            Ok(_) if took > LONGEST => Err(format!("slow: {:.1} s", took.as_secs_f64())),
            Ok(_) if peak > MOST_MEMORY => Err(format!("large: {} MiB", peak >> 20)),
            other => other,
        };
        match outcome {
            Ok(kind) => *outcomes.entry(kind).or_default() += 1,
            Err(problem) if options.all => {
                let seen = failures.entry(digest(&problem)).or_insert((number, 0));
                seen.1 += 1;
                if seen.1 == 1 {
                    eprintln!("case {number}: {problem}");
                }
            }
            Err(problem) => {
                hostile::remove();
                return Err(format!(
                    "case {number}: {problem}\nagain: --seed {} --only {number}",
                    options.seed
                ));
            }
        }
        if (number + 1) % 100_000 == 0 {
            eprintln!("{} cases in {:.0} s", number + 1, start.elapsed().as_secs_f64());
        }
    }
    for (problem, (first, count)) in &failures {
        println!("{count} times, first case {first}: {problem}");
    }
    hostile::remove();
    let each: Vec<String> = outcomes.iter().map(|(kind, n)| format!("{n} {kind}")).collect();
    let (models, seconds) = (corpus.models.len() + corpus.external.len(), start.elapsed().as_secs_f64());
    let rate = options.cases as f64 / seconds;
    println!(
        "{} cases of {models} models in {seconds:.0} s ({rate:.0} a second): {}",
        options.cases,
        each.join(", ")
    );
    match failures.values().map(|(_, count)| count).sum::<u64>() {
        0 => Ok(()),
        failed => Err(format!("{failed} cases failed, at {} places", failures.len())),
    }
}

/// A case; a panic is an error.
fn guarded(corpus: &Corpus, seed: u64, number: u64) -> Result<&'static str, String> {
    catch_unwind(AssertUnwindSafe(|| case(corpus, seed, number)))
        .unwrap_or_else(|_| Err(format!("panicked at {}", PANIC.with_borrow(String::clone))))
}

/// Time that the main thread has computed, where the system reports it: other work on the machine does not make a case slow.
fn busy(start: Instant) -> Duration {
    let text = std::fs::read_to_string("/proc/self/schedstat").ok();
    let nanoseconds = text.and_then(|text| text.split(' ').next()?.parse().ok());
    nanoseconds.map_or_else(|| start.elapsed(), Duration::from_nanos)
}

/// Failures at one place are one: numbers in what they say differ.
fn digest(problem: &str) -> String {
    let (place, rest) = problem.split_once(": ").unwrap_or((problem, ""));
    let rest: String = rest.chars().filter(|c| !c.is_ascii_digit()).take(160).collect();
    format!("{place}: {rest}")
}

/// Ends the process when a case does not end.
fn watch(start: Instant, stop: &AtomicBool) {
    let (mut seen, mut computed, mut began) = (u64::MAX, busy(start), Instant::now());
    while !stop.load(Ordering::Relaxed) {
        std::thread::sleep(Duration::from_millis(200));
        let case = CASE.load(Ordering::Relaxed);
        if case != seen {
            (seen, computed, began) = (case, busy(start), Instant::now());
        }
        let ran = busy(start).saturating_sub(computed);
        if ran > MOST_COMPUTED || began.elapsed() > MOST_WAITED {
            let (ran, passed) = (ran.as_secs(), began.elapsed().as_secs());
            eprintln!("error: case {case} does not end: {ran} s of computing in {passed} s");
            std::process::exit(1);
        }
    }
}

/// One case and how it went; an error is a broken promise other than a panic.
fn case(corpus: &Corpus, seed: u64, number: u64) -> Result<&'static str, String> {
    let mut rng = Rng::new(seed.wrapping_mul(0x2545_F491_4F6C_DD1D) ^ number);
    // Some models come from a file among others that mean harm.
    let read = if rng.chance(FROM_FILE) {
        hostile::load(&mutate::mutated(&corpus.external, &mut rng), &mut rng)?
    } else {
        Model::from_bytes(mutate::mutated(&corpus.models, &mut rng))
    };
    let model = match read {
        Ok(model) => model,
        Err(error) => {
            let text = error.to_string();
            return Ok(if text.starts_with("not an ONNX") { "no models" } else { "refused when read" });
        }
    };
    let (_, _, _) = (model.operators(), model.opsets(), model.outputs());
    let mut bindings = Bindings::default();
    for port in model.inputs() {
        if let Some(bound) = bound(&port.kind, &mut rng, 0) {
            bindings.inputs.push((port.name, bound));
        }
    }
    for _ in 0..ROUNDS {
        match model.specialise(&bindings, &CpuEvaluator) {
            Err(error) => {
                let _ = error.to_string();
                return Ok("refused when imported");
            }
            Ok(Outcome::Whole(whole)) => {
                whole.graph.verify().map_err(|e| format!("the graph does not verify: {e}"))?;
                return Ok("imported");
            }
            Ok(Outcome::NeedsInputs(names)) => {
                if !bring(&mut bindings, &names, &mut rng) {
                    return Ok("given up");
                }
            }
            Ok(Outcome::Stage(Stage { graph: stage, stage_values })) => {
                stage.verify().map_err(|e| format!("a stage does not verify: {e}"))?;
                let ty = stage.outputs().first().and_then(|o| stage.ty(o.value).ok());
                bindings.stage_values.extend(stage_values);
                match ty.and_then(|ty| tensor(ty, &mut rng)) {
                    Some(value) => bindings.known.push(Known::Value(value)),
                    None => return Ok("given up"),
                }
            }
            Ok(Outcome::Loop(call)) => {
                let known = looped(&model, *call, &mut bindings)?;
                bindings.known.push(known);
            }
        }
    }
    Ok("given up")
}

/// A loop as if it ended before its first iteration; what a first one becomes is looked at all the same.
fn looped(model: &Model, call: LoopCall, bindings: &mut Bindings) -> Result<Known, String> {
    let state: Vec<Made> = call.carried.iter().map(Argument::made).collect();
    match model.iterations(&call, &state, &Bindings::default(), &CpuEvaluator) {
        Ok(Outcome::Whole(whole)) => {
            whole.graph.verify().map_err(|e| format!("an iteration does not verify: {e}"))?;
        }
        Ok(Outcome::Stage(stage)) => {
            stage.graph.verify().map_err(|e| format!("a stage of an iteration does not verify: {e}"))?;
        }
        Ok(_) => {}
        Err(error) => drop(error.to_string()),
    }
    if let Some(stage) = call.arguments {
        stage.graph.verify().map_err(|e| format!("a loop's arguments do not verify: {e}"))?;
        bindings.stage_values.extend(stage.stage_values);
    }
    Ok(Known::Loop(LoopResults { carried: state, rows: None }))
}

/// What an input of a kind may be bound to.
fn bound(kind: &Kind, rng: &mut Rng, depth: usize) -> Option<Bound> {
    match kind {
        Kind::Tensor { element, dims } => {
            let dims: Vec<usize> = match dims {
                Some(dims) => dims
                    .iter()
                    .map(|dim| match dim {
                        Dim::Fixed(size) => *size,
                        _ => rng.below(4),
                    })
                    .collect(),
                None => (0..rng.below(4)).map(|_| rng.below(4)).collect(),
            };
            let ty = TensorType::new(element.dtype()?, Shape::new(&dims).ok()?);
            Some(Bound::Tensor { ty, value: None })
        }
        Kind::Sequence(inner) if depth < 3 => {
            let items = (0..rng.below(3)).map(|_| bound(inner, rng, depth + 1)).collect::<Option<_>>()?;
            Some(Bound::Sequence(items))
        }
        Kind::Optional(inner) if depth < 3 => {
            if rng.chance(50) {
                Some(Bound::Nothing)
            } else {
                bound(inner, rng, depth + 1)
            }
        }
        _ => None,
    }
}

/// Gives inputs values; false where that cannot be done.
fn bring(bindings: &mut Bindings, names: &[String], rng: &mut Rng) -> bool {
    names.iter().all(|name| {
        let base = name.split_once('[').map_or(name.as_str(), |(base, _)| base);
        let found = bindings.inputs.iter_mut().find(|(n, _)| n == name || n == base);
        found.is_some_and(|(_, bound)| fill(bound, rng))
    })
}

fn fill(bound: &mut Bound, rng: &mut Rng) -> bool {
    match bound {
        Bound::Tensor { ty, value } => {
            *value = tensor(*ty, rng);
            value.is_some()
        }
        Bound::Sequence(items) => items.iter_mut().all(|item| fill(item, rng)),
        Bound::Nothing => false,
    }
}

/// A tensor of sizes, mostly: small numbers, and now and then one that no size is.
fn tensor(ty: TensorType, rng: &mut Rng) -> Option<Tensor> {
    if ty.shape.numel() > LARGEST {
        return None;
    }
    let wild = [0, -1, 7, 1 << 20, 1 << 31, 1 << 40, i64::MAX, i64::MIN];
    let mut number = || if rng.chance(85) { rng.below(5) as i64 } else { rng.pick(&wild) };
    if ty.dtype == DType::I64 {
        let values = (0..ty.shape.numel()).map(|_| number()).collect();
        return Tensor::new(ty.shape, values).ok();
    }
    let values = (0..ty.shape.numel()).map(|_| Tensor::scalar_of(ty.dtype, number() as f64));
    let bytes: Vec<u8> = values.flat_map(|t| t.bytes().to_vec()).collect();
    Tensor::from_data(ty.shape, Data::from_bytes(ty.dtype, &bytes).ok()?).ok()
}
