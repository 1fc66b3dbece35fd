//! `olivine bench lengths`: what a run costs more when its sizes are new.

use std::collections::HashSet;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::Args;
use olivine::internals::ExecutableExt as _;
use olivine::internals::models::{Encoder, seeded_input, seeded_params};
use olivine::ir::{Shape, Tensor};
use olivine::{Executable, Model, Session};
use serde_json::json;

use crate::Global;
use crate::answer::{Answer, Failure};
use crate::model::SEED;
use crate::onnx::inputs::DimArgs;
use crate::onnx::prepare::size_range;
use crate::timing::ms;

#[derive(Args)]
pub(crate) struct LengthsArgs {
    /// A model with open sizes; without one, an encoder like BERT-base.
    #[arg(requires = "dims")]
    model: Option<PathBuf>,
    /// Sizes of a dimension of the model: `sequence=1..512` or `batch=1`.
    #[arg(long = "dim", value_name = "NAME=FROM..TO", value_parser = size_range, requires = "model")]
    dims: Vec<(String, RangeInclusive<usize>)>,
    /// Sequences of the encoder have 1 to this many positions.
    #[arg(long, default_value_t = 512, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    most: u32,
    /// Sizes to try, in random order.
    #[arg(long, default_value_t = 60, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    count: u32,
    /// Sequences of a run of the encoder.
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    batch: u32,
    /// Layers of the encoder.
    #[arg(long, default_value_t = 12, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    layers: u32,
    /// Do not compile ahead for all sizes.
    #[arg(long)]
    unprepared: bool,
    /// Print what imports and plans assume of the sizes.
    #[arg(long)]
    guards: bool,
}

/// Makes the inputs of a run for some sizes.
type MakeInputs = Box<dyn Fn(&[usize]) -> Result<Vec<(String, Tensor)>, Failure>>;

/// What is run, and for which sizes.
struct Subject {
    name: String,
    executable: Executable,
    dims: Vec<(String, RangeInclusive<usize>)>,
    inputs: MakeInputs,
}

/// Rounds over all sizes after the first.
const ROUNDS: usize = 5;

/// Sizes, the first run with them and the median of those in later rounds, each after a run with other sizes.
struct Row {
    sizes: Vec<usize>,
    first: Duration,
    again: Duration,
}

impl Row {
    fn cost(&self) -> Duration {
        self.first.saturating_sub(self.again)
    }
}

fn encoder(session: &Session, args: &LengthsArgs) -> Result<Subject, Failure> {
    let (most, batch) = (args.most as usize, args.batch as usize);
    let encoder = Encoder { layers: args.layers as usize, ..Encoder::bert_base(batch, most) };
    let graph = encoder.graph()?;
    let executable = session.compile(&graph)?;
    executable.set_params(seeded_params(&graph, SEED)?)?;
    let inputs = move |sizes: &[usize]| {
        let shape = Shape::new(&[sizes[0], sizes[1], encoder.hidden])?;
        Ok(vec![("x".to_string(), seeded_input("x", shape, SEED)?)])
    };
    Ok(Subject {
        name: format!("encoder of {} layers", args.layers),
        executable,
        dims: vec![("batch".into(), batch..=batch), ("sequence".into(), 1..=most)],
        inputs: Box::new(inputs),
    })
}

fn model(session: &Session, path: &PathBuf, args: &LengthsArgs) -> Result<Subject, Failure> {
    let model = Model::load(path)?;
    let executable = session.compile(&model)?;
    let names: Vec<String> = args.dims.iter().map(|(name, _)| name.clone()).collect();
    let inputs = move |sizes: &[usize]| DimArgs::of_sizes(names.iter().zip(sizes)).random(&model);
    Ok(Subject {
        name: path.display().to_string(),
        executable,
        dims: args.dims.clone(),
        inputs: Box::new(inputs),
    })
}

impl Subject {
    fn run(&self, inputs: &[(String, Tensor)]) -> Result<Duration, Failure> {
        let begun = Instant::now();
        self.executable.run(inputs.iter().map(|(name, tensor)| (name.as_str(), tensor)))?;
        Ok(begun.elapsed())
    }

    /// Runs with new sizes in random order, each of which comes once.
    fn rows(&self, count: usize) -> Result<Vec<Row>, Failure> {
        let largest: Vec<usize> = self.dims.iter().map(|(_, range)| *range.end()).collect();
        // Weights are loaded and threads awake before the first sizes count.
        let warm = (self.inputs)(&largest)?;
        for _ in 0..3 {
            self.run(&warm)?;
        }
        let combinations =
            self.dims.iter().fold(1usize, |n, (_, range)| n.saturating_mul(range.end() - range.start() + 1));
        let mut random = SEED | 1;
        let mut below = |n: usize| {
            random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (random >> 33) as usize % n
        };
        let mut seen = HashSet::from([largest]);
        let mut all = Vec::new();
        while all.len() < count && seen.len() < combinations {
            let ranges = self.dims.iter().map(|(_, range)| range);
            let sizes: Vec<usize> =
                ranges.map(|range| range.start() + below(range.end() - range.start() + 1)).collect();
            if !seen.insert(sizes.clone()) {
                continue;
            }
            all.push(sizes);
        }
        let mut times = vec![Vec::with_capacity(1 + ROUNDS); all.len()];
        for _ in 0..=ROUNDS {
            for (sizes, times) in all.iter().zip(&mut times) {
                times.push(self.run(&(self.inputs)(sizes)?)?);
            }
        }
        let row = |(sizes, times): (Vec<usize>, Vec<Duration>)| {
            let mut again = times[1..].to_vec();
            again.sort_unstable();
            Row { sizes, first: times[0], again: again[ROUNDS / 2] }
        };
        Ok(all.into_iter().zip(times).map(row).collect())
    }
}

pub(crate) fn run(global: &Global, args: &LengthsArgs) -> Result<Answer, Failure> {
    let session = global.session()?;
    let subject = match &args.model {
        Some(path) => model(&session, path, args)?,
        None => encoder(&session, args)?,
    };
    let executable = &subject.executable;
    let begun = Instant::now();
    if !args.unprepared {
        executable.prepare(subject.dims.iter().map(|(name, range)| (name.as_str(), range.clone())))?;
    }
    let prepared = begun.elapsed();
    let before = executable.compiled();
    let rows = subject.rows(args.count as usize)?;
    let mut costs: Vec<Duration> = rows.iter().map(Row::cost).collect();
    costs.sort_unstable();
    let median = costs.get(costs.len() / 2).copied().unwrap_or_default();
    let worst = costs.last().copied().unwrap_or_default();
    let (plans, late) = (executable.compiled(), executable.compiled() - before);
    let device = session.device().to_string();
    let range = |(name, range): &(String, RangeInclusive<usize>)| match range.end() == range.start() {
        true => format!("{name} {}", range.start()),
        false => format!("{name} {} to {}", range.start(), range.end()),
    };
    let sizes: Vec<String> = subject.dims.iter().map(range).collect();
    let mut text = format!(
        "{device}: {}, {} sizes: {}\n\
         compiled ahead in {:.2} s; {plans} plans, {late} of them at a run\n\
         a new size costs {:.3} ms (median), {:.3} ms (worst)\n",
        subject.name,
        rows.len(),
        sizes.join(", "),
        prepared.as_secs_f64(),
        ms(median),
        ms(worst),
    );
    let guards = if args.guards { executable.guards() } else { Vec::new() };
    for (i, guards) in guards.iter().enumerate() {
        text.push_str(&format!("guards {i}\n"));
        guards.iter().for_each(|guard| text.push_str(&format!("  {guard}\n")));
    }
    let each = |row: &Row| json!({"sizes": row.sizes, "first_ms": ms(row.first), "again_ms": ms(row.again)});
    let json = json!({
        "device": device,
        "model": subject.name,
        "dims": subject.dims.iter().map(|(name, _)| name).collect::<Vec<_>>(),
        "prepare_s": prepared.as_secs_f64(),
        "plans": plans,
        "plans_at_a_run": late,
        "median_ms": ms(median),
        "worst_ms": ms(worst),
        "guards": guards,
        "rows": rows.iter().map(each).collect::<Vec<_>>(),
    });
    Ok(Answer::new(text, json))
}
