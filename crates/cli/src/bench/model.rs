//! `olivine bench model`: a model from compiling to its slowest kernels.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use clap::Args;
use olivine::ir::Tensor;
use olivine::{Executable, StepTime};
use serde_json::{Value, json};

use crate::Global;
use crate::answer::{Answer, Failure};
use crate::model::{BuiltIn, Model, SEED, Sizes};
use crate::onnx;
use crate::progress::Progress;
use crate::table::Table;
use crate::timing::{Times, ms, short, timed};

/// Runs whose kernels are timed one by one; a kernel's time is its median over them.
const PROFILED_RUNS: usize = 5;

/// Single kernels to name in the report.
const SLOWEST: usize = 10;

#[derive(Args)]
pub(crate) struct ModelArgs {
    /// A built-in model (bert-base, encoder) or an ONNX file, whose inputs are random.
    #[arg(value_parser = named)]
    model: String,
    #[command(flatten)]
    sizes: Sizes,
    /// Timed runs, each on an input of its own.
    #[arg(long, default_value_t = 10, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    runs: u32,
    /// Runs before the timed ones.
    #[arg(long, default_value_t = 2, value_name = "N")]
    warmup: u32,
    /// Write the output of a built-in model for the input of seed 0 to a file, as little-endian f32.
    #[arg(long, value_name = "FILE")]
    dump_output: Option<PathBuf>,
}

fn named(text: &str) -> Result<String, String> {
    if BuiltIn::named(text).is_some() || onnx::is_onnx(text) {
        return Ok(text.to_string());
    }
    Err("expected bert-base, encoder or a file whose name ends in .onnx".into())
}

pub(crate) fn run(global: &Global, args: &ModelArgs) -> Result<Answer, Failure> {
    match BuiltIn::named(&args.model) {
        Some(model) => built_in(global, args, model),
        None if !args.sizes.any() && args.dump_output.is_none() => onnx_model(global, args),
        None => Err(Failure::new("sizes and --dump-output are for built-in models")
            .hint("the sizes of an ONNX model are given with --dim NAME=N")),
    }
}

/// An ONNX model on random inputs; sizes without a `--dim` are 1.
fn onnx_model(global: &Global, args: &ModelArgs) -> Result<Answer, Failure> {
    let (load, model) = timed(|| onnx::load(Path::new(&args.model), &args.sizes.dims.load_options()));
    let model = model?;
    let inputs = args.sizes.dims.random(&model)?;
    let session = global.session()?;
    let executable = session.compile(&model)?;
    let given = || inputs.iter().map(|(name, tensor)| (name.as_str(), tensor));
    let (first, out) = timed(|| executable.run(given()));
    out?;
    let mut times = Times::default();
    for i in 0..args.warmup + args.runs {
        let (time, out) = timed(|| executable.run(given()));
        out?;
        if i >= args.warmup {
            times.push(time);
        }
    }
    let profiled = (0..PROFILED_RUNS).map(|_| executable.profile(given()));
    let kernels = Kernels::of(&profiled.collect::<Result<Vec<_>, _>>()?);
    let (device, threads) = (session.device().to_string(), global.thread_count());
    let of: Vec<String> = inputs.iter().map(|(name, tensor)| format!("{name}: {}", tensor.ty())).collect();
    let mut text = format!("{} for {}\n{device}, {threads} threads\n\n", args.model, of.join(", "));
    let mut table = Table::new(&[">load ms", ">first ms", ">median ms", ">least ms", ">runs"]);
    let numbers = [ms(load), ms(first), times.median(), times.least()].map(short);
    table.row(numbers.into_iter().chain([times.count().to_string()]));
    text += &format!("{table}\n{}\n{}", kernels.by_op(), kernels.slowest());
    let json = json!({
        "model": args.model, "inputs": of, "device": device, "threads": threads, "load_ms": ms(load),
        "first_ms": ms(first), "median_ms": times.median(), "least_ms": times.least(), "runs": times.count(),
        "kernels": kernels.json(),
    });
    Ok(Answer::new(text, json))
}

fn built_in(global: &Global, args: &ModelArgs, built_in: BuiltIn) -> Result<Answer, Failure> {
    let model = Model::new(args.sizes.of(built_in)?)?;
    let session = global.session()?;
    let (compile, executable) = timed(|| session.compile(&model.graph));
    let executable = executable?;
    let (load, loaded) = timed(|| {
        executable.set_params(model.params.iter().cloned())?;
        executable.load()
    });
    loaded?;

    let times = time_runs(global, args, &model, &executable)?;
    let x = model.input(SEED)?;
    let out = executable.run([("x", &x)])?;
    let checksum = Checksum::of(out.get("y")?)?;
    if let Some(path) = &args.dump_output {
        dump(path, out.get("y")?)?;
    }
    let kernels = profile(&executable, &x)?;

    let gflops = model.encoder.flops() / times.median() / 1e6;
    let (name, device, threads) = (built_in.name(), session.device().to_string(), global.thread_count());
    let mut text = format!("{name}: {}\n{device}, {threads} threads\n\n", model.describe());
    let mut table = Table::new(&[">compile ms", ">load ms", ">median ms", ">least ms", ">runs", ">GFLOP/s"]);
    table.row([
        short(ms(compile)),
        short(ms(load)),
        short(times.median()),
        short(times.least()),
        times.count().to_string(),
        short(gflops),
    ]);
    text += &format!("{table}\n{}\n{}\n{}", kernels.by_op(), kernels.slowest(), checksum.text());
    let json = json!({
        "model": name, "sizes": model.json(), "device": device, "threads": threads,
        "compile_ms": ms(compile), "load_ms": ms(load), "median_ms": times.median(), "least_ms": times.least(),
        "runs": times.count(), "gflops": gflops, "kernels": kernels.json(), "output": checksum.json(),
    });
    Ok(Answer::new(text, json))
}

/// Warms up, then times each run on an input of its own.
fn time_runs(
    global: &Global,
    args: &ModelArgs,
    model: &Model,
    executable: &Executable,
) -> Result<Times, Failure> {
    let total = args.warmup as usize + args.runs as usize;
    let mut progress = Progress::new(total, global.quiet);
    let mut times = Times::default();
    for i in 0..total {
        progress.begin("runs");
        let x = model.input(SEED + 1 + i as u64)?;
        let (time, out) = timed(|| executable.run([("x", &x)]));
        out?;
        if i >= args.warmup as usize {
            times.push(time);
        }
        progress.step();
    }
    Ok(times)
}

fn dump(path: &Path, output: &Tensor) -> Result<(), Failure> {
    let bytes: Vec<u8> = output.as_slice::<f32>()?.iter().flat_map(|x| x.to_le_bytes()).collect();
    std::fs::write(path, bytes).map_err(|error| {
        Failure::new(error.to_string()).context(format!("cannot write `{}`", path.display()))
    })
}

/// Enough of an output to compare it with another runtime's by eye.
struct Checksum {
    first: Vec<f32>,
    mean: f64,
}

impl Checksum {
    fn of(output: &Tensor) -> Result<Self, Failure> {
        let elements = output.as_slice::<f32>()?;
        let sum: f64 = elements.iter().map(|x| f64::from(*x)).sum();
        let mean = if elements.is_empty() { 0.0 } else { sum / elements.len() as f64 };
        Ok(Checksum { first: elements.iter().take(8).copied().collect(), mean })
    }

    fn text(&self) -> String {
        let first: Vec<String> = self.first.iter().map(|x| format!("{x:.6}")).collect();
        format!("output for seed {SEED}: {} …, mean {:.8}\n", first.join(" "), self.mean)
    }

    fn json(&self) -> Value {
        json!({ "seed": SEED, "first": self.first, "mean": self.mean })
    }
}

/// Kernels with their median times, in the order they run.
struct Kernels {
    times: Vec<(String, &'static str, f64)>,
}

fn profile(executable: &Executable, x: &Tensor) -> Result<Kernels, Failure> {
    let profiles: Vec<Vec<StepTime>> =
        (0..PROFILED_RUNS).map(|_| Ok(executable.profile([("x", x)])?)).collect::<Result<_, Failure>>()?;
    Ok(Kernels::of(&profiles))
}

impl Kernels {
    /// The medians of several runs.
    fn of(profiles: &[Vec<StepTime>]) -> Self {
        let Some(first) = profiles.first() else { return Kernels { times: Vec::new() } };
        let median = |i: usize| {
            let mut times = Times::default();
            profiles.iter().filter_map(|p| p.get(i)).for_each(|step| times.push(step.time));
            times.median()
        };
        let times =
            first.iter().enumerate().map(|(i, step)| (step.node.clone(), step.op, median(i))).collect();
        Kernels { times }
    }

    fn total(&self) -> f64 {
        self.times.iter().map(|(_, _, ms)| ms).sum()
    }

    /// Operations with their counts and times together, slowest first.
    fn ops(&self) -> Vec<(&'static str, usize, f64)> {
        let mut ops: HashMap<&'static str, (usize, f64)> = HashMap::new();
        for (_, op, ms) in &self.times {
            let entry = ops.entry(op).or_default();
            *entry = (entry.0 + 1, entry.1 + ms);
        }
        let mut ops: Vec<_> = ops.into_iter().map(|(op, (count, ms))| (op, count, ms)).collect();
        ops.sort_by(|a, b| b.2.total_cmp(&a.2).then(a.0.cmp(b.0)));
        ops
    }

    fn slowest_first(&self) -> Vec<&(String, &'static str, f64)> {
        let mut times: Vec<_> = self.times.iter().collect();
        times.sort_by(|a, b| b.2.total_cmp(&a.2));
        times.truncate(SLOWEST);
        times
    }

    fn by_op(&self) -> Table {
        let mut table = Table::new(&["op", ">kernels", ">ms", ">share"]);
        for (op, count, ms) in self.ops() {
            let share = 100.0 * ms / self.total();
            table.row([op.to_string(), count.to_string(), short(ms), format!("{share:.1} %")]);
        }
        table
    }

    fn slowest(&self) -> Table {
        let mut table = Table::new(&["slowest kernels", "op", ">ms"]);
        for (node, op, ms) in self.slowest_first() {
            table.row([node.clone(), op.to_string(), short(*ms)]);
        }
        table
    }

    fn json(&self) -> Value {
        let ops: Vec<Value> =
            self.ops().iter().map(|(op, n, ms)| json!({ "op": op, "kernels": n, "ms": ms })).collect();
        let slowest: Vec<Value> = self
            .slowest_first()
            .iter()
            .map(|(node, op, ms)| json!({ "node": node, "op": op, "ms": ms }))
            .collect();
        json!({ "count": self.times.len(), "ms": self.total(), "ops": ops, "slowest": slowest })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernels_of_an_operation_are_counted_together_and_the_slowest_come_first() {
        let times =
            vec![("a".into(), "matmul", 1.0), ("b".into(), "softmax", 5.0), ("c".into(), "matmul", 2.0)];
        let kernels = Kernels { times };
        assert_eq!(kernels.ops(), [("softmax", 1, 5.0), ("matmul", 2, 3.0)]);
        assert_eq!(kernels.slowest_first().iter().map(|k| k.0.as_str()).collect::<Vec<_>>(), ["b", "c", "a"]);
    }

    #[test]
    fn a_checksum_has_the_first_elements_and_the_mean() {
        let output = Tensor::new([2, 5], (0..10).map(|i| i as f32).collect()).unwrap();
        let checksum = Checksum::of(&output).unwrap();
        assert_eq!(checksum.first.len(), 8);
        assert_eq!(checksum.mean, 4.5);
    }
}
