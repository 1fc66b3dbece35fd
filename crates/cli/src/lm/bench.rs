//! `olivine bench lm`: prefill, decode, time to the first token and memory of a language model.

use std::time::Instant;

use clap::Args;
use olivine_lm::{Engine, Event, Request, Share};
use serde_json::json;

use super::{EngineArgs, ModelArgs, complete};
use crate::Global;
use crate::answer::{Answer, Failure};
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
    /// Sequences that are decoded at once.
    #[arg(long, value_name = "N", default_value_t = 1)]
    sequences: usize,
    /// How often to measure; the best counts.
    #[arg(long, value_name = "N", default_value_t = 3)]
    runs: usize,
}

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
    let session = global.session()?;
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
        format!("decode of {}, {} at once, tokens/s", args.tokens, args.sequences),
        short(best.decode),
    ]);
    table.row(["key-value caches".into(), bytes(cache)]);
    if let Some(device) = device {
        table.row(["memory on the device".into(), bytes(usize::try_from(device).unwrap_or(usize::MAX))]);
    }
    let json = json!({
        "device": session.device_name(),
        "start_ms": ms(start),
        "first_token_ms": best.first_ms,
        "prefill_tokens_per_s": best.prefill,
        "decode_tokens_per_s": best.decode,
        "sequences": args.sequences,
        "cache_bytes": cache,
        "device_bytes": device,
        "plans": engine.compiled(),
    });
    Ok(Answer::new(format!("{}\n{table}", session.device_name()), json))
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
    // Decoding from a short prompt, of all sequences together.
    for i in 0..args.sequences.max(1) {
        engine.add(Request::new(prompt(engine, 8, 100 + i), args.tokens + 1))?;
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
