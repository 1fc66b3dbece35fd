//! `olivine demo`: a small transformer on every device, with the ways of running it side by side.

use std::time::Duration;

use clap::Args;
use olivine::internals::OptionsExt as _;
use olivine::ir::Tensor;
use olivine::{Device, Session, SessionOptions};
use serde_json::{Value, json};

use crate::Global;
use crate::answer::{Answer, Failure};
use crate::model::{BuiltIn, Model, SEED, Sizes};
use crate::progress::Progress;
use crate::table::Table;
use crate::timing::{Repeat, ms, short, timed};

/// Results further from the reference than this part of its largest number are wrong, not rounded.
const TOLERANCE: f64 = 1e-4;

#[derive(Args)]
pub(crate) struct DemoArgs {
    #[command(flatten)]
    sizes: Sizes,
    /// Timed runs of each row; fewer if they take over two seconds together.
    #[arg(long, default_value_t = 20, value_name = "N")]
    runs: usize,
}

/// One way of running the model.
struct Way {
    device: Device,
    label: &'static str,
    options: SessionOptions,
}

/// What came of it.
struct Measured {
    device: String,
    label: &'static str,
    threads: Option<usize>,
    compile_ms: f64,
    first_ms: f64,
    median_ms: f64,
    runs: usize,
    output: Tensor,
}

pub(crate) fn run(global: &Global, args: &DemoArgs) -> Result<Answer, Failure> {
    let model = Model::new(args.sizes.of(BuiltIn::Encoder)?)?;
    let ways = ways(global)?;
    let mut progress = Progress::new(ways.len(), global.quiet);
    let mut rows = Vec::new();
    for way in &ways {
        progress.begin(&format!("{} {}", way.device, way.label));
        rows.push(measure(global, &model, way, args.runs)?);
        progress.step();
    }
    drop(progress);
    report(&model, &rows)
}

/// The reference first: the CPU, every operation by itself. Then one thread, then every device at its best.
fn ways(global: &Global) -> Result<Vec<Way>, Failure> {
    let best = global.options();
    let mut ways = vec![Way {
        device: Device::Cpu,
        label: "unfused (reference)",
        options: best.clone().no_fusion(true),
    }];
    let chosen: Vec<Device> = match &global.device {
        Some(_) => {
            let device = global.device()?;
            // Opened here so that a device that is not there is an error before anything runs.
            Session::with_options(device.clone(), best.clone())?;
            vec![device]
        }
        None => {
            let there = olivine::devices().into_iter().filter(|info| info.unavailable.is_none());
            there.map(|info| info.device).collect()
        }
    };
    for device in chosen {
        if device == Device::Cpu && global.thread_count() > 1 {
            let options = best.clone().threads(1);
            ways.push(Way { device: Device::Cpu, label: "fused", options });
        }
        ways.push(Way { device, label: "fused", options: best.clone() });
    }
    Ok(ways)
}

fn measure(global: &Global, model: &Model, way: &Way, runs: usize) -> Result<Measured, Failure> {
    let session = Session::with_options(way.device.clone(), way.options.clone())?;
    let (compile, executable) = timed(|| session.compile(&model.graph));
    let executable = executable?;
    executable.set_params(model.params.iter().cloned())?;
    let x = model.input(SEED)?;
    let (first, out) = timed(|| executable.run([("x", &x)]));
    let output = out?.get("y")?.clone();
    let repeat = Repeat { runs, budget: Duration::from_secs(2) };
    let times = repeat.time(|| {
        let (time, out) = timed(|| executable.run([("x", &x)]));
        out?;
        Ok(time)
    })?;
    let threads = way.options.threads.unwrap_or_else(|| global.thread_count());
    Ok(Measured {
        device: way.device.to_string(),
        label: way.label,
        threads: (way.device == Device::Cpu).then_some(threads),
        compile_ms: ms(compile),
        first_ms: ms(first),
        median_ms: times.median(),
        runs: times.count(),
        output,
    })
}

fn report(model: &Model, rows: &[Measured]) -> Result<Answer, Failure> {
    let Some(reference) = rows.first() else { return Err(Failure::new("nothing ran")) };
    let slowest = rows.iter().map(|r| r.median_ms).fold(0.0, f64::max);
    let mut table = Table::new(&[
        "device",
        "way",
        ">threads",
        ">compile ms",
        ">first ms",
        ">median ms",
        ">GFLOP/s",
        ">max diff",
        ">relative",
        ">speed-up",
    ]);
    let (mut json_rows, mut wrong) = (Vec::new(), Vec::new());
    for row in rows {
        let (absolute, relative) = difference(&row.output, &reference.output)?;
        // A NaN is a disagreement too.
        if !relative.le(&TOLERANCE) {
            wrong.push(format!("{} {}", row.device, row.label));
        }
        let gflops = model.encoder.flops() / row.median_ms / 1e6;
        let speed_up = slowest / row.median_ms;
        table.row([
            row.device.clone(),
            row.label.into(),
            row.threads.map_or(String::new(), |t| t.to_string()),
            short(row.compile_ms),
            short(row.first_ms),
            short(row.median_ms),
            short(gflops),
            short(absolute),
            short(relative),
            format!("{speed_up:.2}x"),
        ]);
        json_rows.push(json!({
            "device": row.device, "way": row.label, "threads": row.threads, "runs": row.runs,
            "compile_ms": row.compile_ms, "first_ms": row.first_ms, "median_ms": row.median_ms,
            "gflops": gflops, "max_difference": absolute, "relative_difference": relative,
            "agrees": relative <= TOLERANCE, "speed_up": speed_up,
        }));
    }
    let text = format!("encoder: {}\n\n{table}", model.describe());
    let failure = (!wrong.is_empty())
        .then(|| Failure::new(format!("these do not agree with the reference: {}", wrong.join(", "))));
    Ok(Answer::new(text, json!({ "model": model.json(), "rows": Value::Array(json_rows) }))
        .with_failure(failure))
}

/// The largest difference, and the same as a part of the reference's largest number.
fn difference(got: &Tensor, reference: &Tensor) -> Result<(f64, f64), Failure> {
    if got.ty() != reference.ty() {
        return Err(Failure::new(format!("a result is {} instead of {}", got.ty(), reference.ty())));
    }
    let (got, reference) = (got.to_f64(), reference.to_f64());
    // `f64::max` would drop a NaN.
    let largest = |a: f64, b: f64| if b.is_nan() || b > a { b } else { a };
    let absolute = got.iter().zip(&reference).map(|(a, b)| (a - b).abs()).fold(0.0, largest);
    let scale = reference.iter().map(|x| x.abs()).fold(0.0, f64::max);
    Ok((absolute, if absolute == 0.0 { 0.0 } else { absolute / scale }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tensor(elements: [f32; 3]) -> Tensor {
        Tensor::new([3], elements.to_vec()).unwrap()
    }

    #[test]
    fn the_difference_is_relative_to_the_largest_number_of_the_reference() {
        let (absolute, relative) = difference(&tensor([1.0, 2.0, 4.0]), &tensor([1.0, 2.5, -4.0])).unwrap();
        assert_eq!((absolute, relative), (8.0, 2.0));
        assert_eq!(difference(&tensor([0.0; 3]), &tensor([0.0; 3])).unwrap(), (0.0, 0.0));
    }

    #[test]
    fn a_nan_is_a_difference() {
        let (absolute, relative) =
            difference(&tensor([f32::NAN, 2.0, 9.0]), &tensor([1.0, 2.0, 3.0])).unwrap();
        assert!(absolute.is_nan() || absolute > 0.0);
        assert!(!relative.le(&TOLERANCE));
    }
}
