//! `olivine bench lengths`: what a run costs more when its sizes are new: more than the same sizes again, and more than sizes
//! that came before others.

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

/// Runs with the same sizes at once after the first, and rounds over all sizes after that.
const REPEATS: usize = 5;

/// Sizes and the times of runs with them.
struct Row {
    sizes: Vec<usize>,
    first: Duration,
    /// The median of the runs at once after the first, which find everything as it is left there.
    again: Duration,
    /// The median of the later rounds, each run after one with other sizes.
    after_others: Duration,
}

impl Row {
    /// What is evaluated, recorded and compiled for new sizes.
    fn cost(&self) -> Duration {
        self.first.saturating_sub(self.again)
    }

    /// What sizes that came before, but not just now, take less than new ones.
    fn cost_over_others(&self) -> Duration {
        self.first.saturating_sub(self.after_others)
    }
}

/// The median and the largest.
fn median_and_worst(costs: impl Iterator<Item = Duration>) -> (Duration, Duration) {
    let mut costs: Vec<Duration> = costs.collect();
    costs.sort_unstable();
    (costs.get(costs.len() / 2).copied().unwrap_or_default(), costs.last().copied().unwrap_or_default())
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

    /// Runs with new sizes in random order, each of which is new once.
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
        let mut rows = Vec::with_capacity(all.len());
        for sizes in all {
            let inputs = (self.inputs)(&sizes)?;
            let first = self.run(&inputs)?;
            let again = (0..REPEATS).map(|_| self.run(&inputs)).collect::<Result<Vec<_>, _>>()?;
            let (again, _) = median_and_worst(again.into_iter());
            rows.push(Row { sizes, first, again, after_others: Duration::ZERO });
        }
        let mut rounds = vec![Vec::with_capacity(REPEATS); rows.len()];
        for _ in 0..REPEATS {
            for (row, times) in rows.iter().zip(&mut rounds) {
                times.push(self.run(&(self.inputs)(&row.sizes)?)?);
            }
        }
        for (row, times) in rows.iter_mut().zip(rounds) {
            (row.after_others, _) = median_and_worst(times.into_iter());
        }
        Ok(rows)
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
    let (median, worst) = median_and_worst(rows.iter().map(Row::cost));
    let (others_median, others_worst) = median_and_worst(rows.iter().map(Row::cost_over_others));
    let plans = executable.compiled();
    let late = plans.saturating_sub(before);
    let device = session.device().to_string();
    let range = |(name, range): &(String, RangeInclusive<usize>)| match range.end() == range.start() {
        true => format!("{name} {}", range.start()),
        false => format!("{name} {} to {}", range.start(), range.end()),
    };
    let sizes: Vec<String> = subject.dims.iter().map(range).collect();
    let mut text = format!(
        "{device}: {}, {} sizes: {}\n\
         compiled ahead in {:.2} s; {plans} plans, {late} of them at a run\n\
         a new size costs {:.3} ms (median), {:.3} ms (worst) over the same size again\n\
         and {:.3} ms (median), {:.3} ms (worst) over a known size after others\n",
        subject.name,
        rows.len(),
        sizes.join(", "),
        prepared.as_secs_f64(),
        ms(median),
        ms(worst),
        ms(others_median),
        ms(others_worst),
    );
    let guards = if args.guards { executable.guards() } else { Vec::new() };
    for (i, guards) in guards.iter().enumerate() {
        text.push_str(&format!("guards {i}\n"));
        guards.iter().for_each(|guard| text.push_str(&format!("  {guard}\n")));
    }
    let each = |row: &Row| {
        json!({
            "sizes": row.sizes,
            "first_ms": ms(row.first),
            "again_ms": ms(row.again),
            "after_others_ms": ms(row.after_others),
        })
    };
    let json = json!({
        "device": device,
        "model": subject.name,
        "dims": subject.dims.iter().map(|(name, _)| name).collect::<Vec<_>>(),
        "prepare_s": prepared.as_secs_f64(),
        "plans": plans,
        "plans_at_a_run": late,
        "median_ms": ms(median),
        "worst_ms": ms(worst),
        "over_others_median_ms": ms(others_median),
        "over_others_worst_ms": ms(others_worst),
        "guards": guards,
        "rows": rows.iter().map(each).collect::<Vec<_>>(),
    });
    Ok(Answer::new(text, json))
}
