//! `olivine bench lengths`: what a run costs more when its length is a new one.

use std::time::{Duration, Instant};

use clap::Args;
use olivine::internals::models::{Encoder, seeded_input, seeded_params};
use olivine::ir::Shape;
use serde_json::json;

use crate::Global;
use crate::answer::{Answer, Failure};
use crate::model::SEED;
use crate::timing::ms;

#[derive(Args)]
pub(crate) struct LengthsArgs {
    /// Lengths go from 1 to this.
    #[arg(long, default_value_t = 512, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    most: u32,
    /// Lengths to try, in random order.
    #[arg(long, default_value_t = 60, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    count: u32,
    /// Sequences of a run.
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    batch: u32,
    /// Layers of the encoder, BERT-base otherwise.
    #[arg(long, default_value_t = 12, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    layers: u32,
    /// Do not compile ahead for all lengths.
    #[arg(long)]
    unprepared: bool,
}

/// A length, its first run and the fastest of those after it.
struct Row {
    length: usize,
    first: Duration,
    again: Duration,
}

impl Row {
    fn cost(&self) -> Duration {
        self.first.saturating_sub(self.again)
    }
}

pub(crate) fn run(global: &Global, args: &LengthsArgs) -> Result<Answer, Failure> {
    let (most, batch) = (args.most as usize, args.batch as usize);
    let encoder = Encoder { layers: args.layers as usize, ..Encoder::bert_base(batch, most) };
    let graph = encoder.graph()?;
    let session = global.session()?;
    let executable = session.compile(&graph)?;
    executable.set_params(seeded_params(&graph, SEED)?)?;
    let begun = Instant::now();
    if !args.unprepared {
        executable.prepare([("batch", batch..=batch), ("sequence", 1..=most)])?;
    }
    let prepared = begun.elapsed();
    // Weights are loaded and threads awake before the first length counts.
    let input = |length: usize| seeded_input("x", Shape::new(&[batch, length, encoder.hidden])?, SEED);
    for _ in 0..3 {
        executable.run([("x", &input(most)?)])?;
    }
    let before = executable.compiled();
    let mut rows: Vec<Row> = Vec::new();
    let mut random = SEED | 1;
    while rows.len() < args.count as usize && rows.len() + 1 < most {
        random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        let length = 1 + (random >> 33) as usize % most;
        if length == most || rows.iter().any(|row| row.length == length) {
            continue;
        }
        let x = input(length)?;
        let time = || -> Result<Duration, Failure> {
            let begun = Instant::now();
            executable.run([("x", &x)])?;
            Ok(begun.elapsed())
        };
        let first = time()?;
        let again =
            (0..5).map(|_| time()).collect::<Result<Vec<_>, _>>()?.into_iter().min().unwrap_or_default();
        rows.push(Row { length, first, again });
    }
    let mut costs: Vec<Duration> = rows.iter().map(Row::cost).collect();
    costs.sort_unstable();
    let median = costs.get(costs.len() / 2).copied().unwrap_or_default();
    let worst = costs.last().copied().unwrap_or_default();
    let (plans, late) = (executable.compiled(), executable.compiled() - before);
    let device = session.device().to_string();
    let text = format!(
        "{device}: encoder of {} layers, batch {batch}, {} lengths from 1 to {most}\n\
         compiled ahead in {:.2} s; {plans} plans, {late} of them at a run\n\
         a new length costs {:.3} ms (median), {:.3} ms (worst)\n",
        args.layers,
        rows.len(),
        prepared.as_secs_f64(),
        ms(median),
        ms(worst),
    );
    let each =
        |row: &Row| json!({"length": row.length, "first_ms": ms(row.first), "again_ms": ms(row.again)});
    let json = json!({
        "device": device,
        "layers": args.layers,
        "batch": batch,
        "prepare_s": prepared.as_secs_f64(),
        "plans": plans,
        "plans_at_a_run": late,
        "median_ms": ms(median),
        "worst_ms": ms(worst),
        "lengths": rows.iter().map(each).collect::<Vec<_>>(),
    });
    Ok(Answer::new(text, json))
}
