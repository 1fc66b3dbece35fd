//! `olivine bench lm`: prefill, decode, time to the first token and memory of a language model.

use std::time::Instant;

use clap::Args;
use olivine_lm::{Engine, Event, Request, Share};
use serde_json::{Value, json};

use super::{EngineArgs, ModelArgs, complete};
use crate::Global;
use crate::answer::{Answer, Failure};
use crate::profile::kernels;
use crate::table::Table;
use crate::timing::{bytes, ms, short};

#[derive(Args)]
pub(crate) struct BenchLmArgs {
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    engine: EngineArgs,
    /// Tokens of the prompt.
    #[arg(long, value_name = "N", default_value_t = 512)]
    prompt: usize,
    /// Tokens to generate.
    #[arg(long, value_name = "N", default_value_t = 128)]
    tokens: usize,
    /// Tokens that sequences have before they are decoded.
    #[arg(long, value_name = "N", default_value_t = 8)]
    depth: usize,
    /// Sequences that are decoded at once.
    #[arg(long, value_name = "N", default_value_t = 1)]
    sequences: usize,
    /// How often to measure; the best counts.
    #[arg(long, value_name = "N", default_value_t = 3)]
    runs: usize,
    /// Show which kernels a step of decoding spends its time in, after a prompt of --prompt tokens.
    #[arg(long)]
    profile: bool,
}

/// Steps that are profiled; times are medians.
const PROFILED: usize = 20;

/// Rates of one run.
#[derive(Clone, Copy, Default)]
struct Rates {
    first_ms: f64,
    prefill: f64,
    decode: f64,
}

pub(crate) fn run(global: &Global, args: &BenchLmArgs) -> Result<Answer, Failure> {
    let begun = Instant::now();
    let model = args.model.load()?;
    let session = global.decoding_session()?;
    let mut engine = args.engine.engine(&model, &session, args.sequences.max(1), Share::Nothing)?;
    let warm = Request::new(prompt(&engine, args.prompt, 0), 2);
    complete(&mut engine, warm, |_| Ok(()))?;
    let start = begun.elapsed();
    let mut best = Rates::default();
    for run in 0..args.runs.max(1) {
        let found = measure(&mut engine, args, run)?;
        best.prefill = best.prefill.max(found.prefill);
        best.decode = best.decode.max(found.decode);
        best.first_ms = if run == 0 { found.first_ms } else { best.first_ms.min(found.first_ms) };
    }
    let cache = engine.cache_bytes();
    let device = session.memory_taken();
    let mut table = Table::new(&["", "value"]);
    table.row(["load, compile and first run, ms".into(), short(ms(start))]);
    table.row([format!("time to first token of {}, ms", args.prompt), short(best.first_ms)]);
    table.row([format!("prefill of {}, tokens/s", args.prompt), short(best.prefill)]);
    table.row([
        format!("decode of {} after {}, {} at once, tokens/s", args.tokens, args.depth, args.sequences),
        short(best.decode),
    ]);
    table.row(["key-value caches".into(), bytes(cache)]);
    if let Some(device) = device {
        table.row(["memory on the device".into(), bytes(usize::try_from(device).unwrap_or(usize::MAX))]);
    }
    let kernels = if args.profile { Some(profile(&mut engine, args)?) } else { None };
    let mut text = format!("{}\n{table}", session.device_name());
    if let Some((kernels, _)) = &kernels {
        text += &format!("\n{kernels}");
    }
    let json = json!({
        "device": session.device_name(),
        "start_ms": ms(start),
        "first_token_ms": best.first_ms,
        "prefill_tokens_per_s": best.prefill,
        "decode_tokens_per_s": best.decode,
        "depth": args.depth,
        "sequences": args.sequences,
        "cache_bytes": cache,
        "device_bytes": device,
        "plans": engine.compiled(),
        "kernels": kernels.map(|(_, json)| json),
    });
    Ok(Answer::new(text, json))
}

/// Tokens that depend on a number, so that no two prompts are the same.
fn prompt(engine: &Engine, count: usize, seed: usize) -> Vec<i64> {
    let vocabulary = engine.vocabulary() as u64;
    let token = |i: u64| (i.wrapping_mul(2_654_435_761).wrapping_add(seed as u64 * 97) >> 3) % vocabulary;
    (1..=count.max(1) as u64).map(|i| token(i) as i64).collect()
}

fn measure(engine: &mut Engine, args: &BenchLmArgs, run: usize) -> Result<Rates, Failure> {
    let begun = Instant::now();
    let alone = complete(engine, Request::new(prompt(engine, args.prompt, run + 1), 1), |_| Ok(()))?;
    let first = begun.elapsed();
    // Decoding of all sequences together.
    for i in 0..args.sequences.max(1) {
        engine.add(Request::new(prompt(engine, args.depth, 100 + i), args.tokens + 1))?;
    }
    let (mut started, mut count) = (None, 0usize);
    while !engine.is_idle() {
        let events = engine.step()?;
        if started.is_some() {
            count += events.iter().filter(|event| matches!(event, Event::Token { .. })).count();
        }
        if started.is_none() && engine.prefilling() == 0 {
            started = Some(Instant::now());
        }
    }
    let decode = started.map_or(0.0, |started: Instant| count as f64 / started.elapsed().as_secs_f64());
    Ok(Rates { first_ms: ms(first), prefill: args.prompt as f64 / alone.first.as_secs_f64(), decode })
}

/// The kernels of a step that decodes, as text and as JSON.
fn profile(engine: &mut Engine, args: &BenchLmArgs) -> Result<(String, Value), Failure> {
    let ids = (0..args.sequences.max(1))
        .map(|i| engine.add(Request::new(prompt(engine, args.prompt, 200 + i), 2 + PROFILED)))
        .collect::<Result<Vec<_>, _>>()?;
    while engine.prefilling() > 0 {
        engine.step()?;
    }
    let runs = (0..PROFILED).map(|_| engine.profile()).collect::<Result<Vec<_>, _>>()?;
    for id in ids {
        engine.cancel(id);
    }
    Ok(kernels(&runs))
}
