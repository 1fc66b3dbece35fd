//! `olivine bench gpu`: a device's rates at sizes that show them, by its own timestamps.

mod attention;
mod gemv;
mod images;
mod matmul;
mod memory;
mod models;
mod onnx_files;
mod rows;
mod sequences;

use std::io::Write;

use clap::Args;
use olivine::Session;
use olivine::internals::OptionsExt as _;
use olivine::ir::{Error, Graph, ValueId};
use serde_json::{Value, json};

use crate::Global;
use crate::answer::{Answer, Failure};
use crate::measure::{Busy, Runs, Subject, graph};
use crate::noise::Noise;
use crate::progress::Progress;
use crate::table::Table;
use crate::timing::{Times, short};

use onnx_files::OnnxFile;

#[derive(Args)]
pub(crate) struct GpuArgs {
    /// Only measurements whose name contains this.
    #[arg(long, default_value = "", value_name = "TEXT", hide_default_value = true)]
    filter: String,
    /// Only measurements of exactly this name; may be repeated.
    #[arg(long, value_name = "NAME")]
    only: Vec<String>,
    /// Small sizes and few runs, to see that all of it works.
    #[arg(long)]
    quick: bool,
    /// Also measure whole runs of an ONNX model; may be repeated. Dimensions without a size are 1.
    #[arg(long, value_name = "NAME=FILE[,DIM=N…]", value_parser = onnx_files::parse)]
    onnx: Vec<OnnxFile>,
    /// Also run each this often on the same inputs; all runs must return the same bits.
    #[arg(long, value_name = "RUNS")]
    same_bits: Option<usize>,
    /// Print a line of JSON when a measurement begins and when it ends, instead of all at the end.
    #[arg(long)]
    lines: bool,
}

impl GpuArgs {
    fn wants(&self, name: &str) -> bool {
        name.contains(self.filter.as_str()) && (self.only.is_empty() || self.only.iter().any(|n| n == name))
    }
}

/// What a measurement is counted in.
#[derive(Clone, Copy)]
enum Unit {
    /// Floating-point operations of one run.
    Flops(f64),
    /// Floating-point operations of one run, as its dispatches count them.
    CountedFlops,
    /// Bytes that one run must move.
    Bytes(f64),
    /// Its time alone.
    Time,
}

/// How a measurement is timed.
#[derive(Clone, Copy, PartialEq)]
enum Clock {
    /// By the device, from the first dispatch's beginning to the last one's end.
    Device,
    /// From the call of `run` to the outputs on the host.
    Wall,
    /// As `Wall`, every operation a dispatch of its own.
    WallUnfused,
}

/// What a measurement runs.
enum Source {
    Graph(Graph),
    Onnx(OnnxFile),
}

struct Measurement {
    name: String,
    unit: Unit,
    clock: Clock,
    source: Source,
}

struct Measured {
    name: String,
    unit: Unit,
    clock: Clock,
    times: Times,
    dispatches: usize,
    /// Floating-point operations and bytes that one run must move at least; 0 where they are not counted.
    flops: f64,
    bytes: f64,
}

pub(crate) fn run(global: &Global, args: &GpuArgs) -> Result<Answer, Failure> {
    let mut all = measurements(args.quick)?;
    for file in &args.onnx {
        let (name, source) = (file.name.clone(), Source::Onnx(file.clone()));
        all.push(Measurement { name, unit: Unit::CountedFlops, clock: Clock::Wall, source });
    }
    if let Some(unknown) = args.only.iter().find(|name| !all.iter().any(|m| m.name == **name)) {
        return Err(Failure::new(format!("no measurement is named `{unknown}`"))
            .hint("without --only and --filter, all are made and listed"));
    }
    let chosen: Vec<&Measurement> = all.iter().filter(|m| args.wants(&m.name)).collect();
    if chosen.is_empty() {
        return Err(Failure::new(format!("no measurement's name contains `{}`", args.filter))
            .hint("without --filter, all are made and listed"));
    }
    let device = global.device()?;
    let open = |no_fusion| -> Result<Session, Failure> {
        let options = global.options().no_fusion(no_fusion);
        Ok(Session::with_options(device.clone(), options)?)
    };
    let fused = open(false)?;
    say(args, json!({ "device": device.to_string(), "name": fused.device_name() }))?;
    let mut noise = Noise::default();
    let busy = if args.quick { None } else { Some(Busy::new(&fused)?) };
    let mut progress = Progress::new(chosen.len(), global.quiet);
    let mut rows = Vec::new();
    let mut failed = Vec::new();
    for measurement in chosen {
        progress.begin(&measurement.name);
        say(args, json!({ "begin": measurement.name }))?;
        let session = if measurement.clock == Clock::WallUnfused { &open(true)? } else { &fused };
        match measure(session, measurement, args, &mut noise, busy.as_ref()) {
            Ok(row) => {
                say(args, json!({ "measurement": row.json() }))?;
                rows.push(row);
            }
            Err(failure) => {
                let failure = failure.context(measurement.name.clone());
                say(args, json!({ "failed": failure.json() }))?;
                failed.push(failure);
            }
        }
        progress.step();
    }
    drop(progress);
    let answer = if args.lines { Answer::new("", Value::Null) } else { report(&fused, &rows, &failed) };
    Ok(answer.with_failure(failed.into_iter().next()))
}

/// Prints a line at once, where lines are asked for.
fn say(args: &GpuArgs, line: Value) -> Result<(), Failure> {
    if !args.lines {
        return Ok(());
    }
    let mut out = std::io::stdout().lock();
    let written = writeln!(out, "{line}").and_then(|()| out.flush());
    written.map_err(|error| Failure::new(format!("cannot write a line: {error}")))
}

fn measure(
    session: &Session,
    measurement: &Measurement,
    args: &GpuArgs,
    noise: &mut Noise,
    busy: Option<&Busy>,
) -> Result<Measured, Failure> {
    let runs = if args.quick { Runs::QUICK } else { Runs::STEADY };
    let Measurement { name, unit, clock, source } = measurement;
    let subject = match source {
        Source::Graph(graph) => Subject::with_noise(session, graph, noise)?,
        Source::Onnx(file) => file.subject(session)?,
    };
    let steps = subject.profile()?;
    busy.map_or(Ok(()), Busy::work)?;
    let times = match clock {
        Clock::Device => subject.device_times(runs)?,
        Clock::Wall | Clock::WallUnfused => subject.wall_times(runs)?,
    };
    if let Some(repeats) = args.same_bits {
        subject.same_bits(repeats)?;
    }
    let touched = match source {
        Source::Graph(graph) => {
            let values = graph.inputs().chain(graph.params()).map(|(_, id)| id);
            let values = values.chain(graph.outputs().iter().map(|o| o.value));
            values.filter_map(|id| Some(graph.ty(id).ok()?.bytes() as f64)).sum()
        }
        // The file's bytes are nearly all weights.
        Source::Onnx(file) => file.bytes()?,
    };
    let counted = || steps.iter().map(|s| s.flops as f64).sum();
    let (flops, bytes) = match unit {
        Unit::Flops(flops) => (*flops, touched),
        Unit::CountedFlops => (counted(), touched),
        Unit::Bytes(bytes) => (counted(), *bytes),
        Unit::Time => (0.0, touched),
    };
    let (name, unit, clock) = (name.clone(), *unit, *clock);
    Ok(Measured { name, unit, clock, times, dispatches: steps.len(), flops, bytes })
}

impl Measured {
    fn tflops(&self) -> Option<f64> {
        let counts = matches!(self.unit, Unit::Flops(_) | Unit::CountedFlops);
        counts.then(|| self.flops / self.times.median() / 1e9)
    }

    fn gb_per_s(&self) -> Option<f64> {
        let Unit::Bytes(bytes) = self.unit else { return None };
        Some(bytes / self.times.median() / 1e6)
    }

    fn clock(&self) -> &'static str {
        if self.clock == Clock::Device { "device" } else { "wall" }
    }

    fn json(&self) -> Value {
        json!({
            "name": self.name, "clock": self.clock(), "median_ms": self.times.median(),
            "least_ms": self.times.least(), "runs": self.times.count(), "dispatches": self.dispatches,
            "tflops": self.tflops(), "gb_per_s": self.gb_per_s(), "flops": self.flops, "bytes": self.bytes,
        })
    }
}

/// All rows, and what could not be measured.
fn report(session: &Session, rows: &[Measured], failed: &[Failure]) -> Answer {
    let headings = ["measurement", "clock", ">median ms", ">least ms", ">dispatches", ">TFLOP/s", ">GB/s"];
    let mut table = Table::new(&headings);
    let cell = |number: Option<f64>| number.map_or(String::new(), short);
    for row in rows {
        table.row([
            row.name.clone(),
            row.clock().into(),
            short(row.times.median()),
            short(row.times.least()),
            row.dispatches.to_string(),
            cell(row.tflops()),
            cell(row.gb_per_s()),
        ]);
    }
    let (device, name) = (session.device().to_string(), session.device_name());
    let list: Vec<Value> = rows.iter().map(Measured::json).collect();
    let failed: Vec<Value> = failed.iter().map(Failure::json).collect();
    Answer::new(
        format!("{device} · {name}\n\n{table}"),
        json!({ "device": device, "name": name, "measurements": list, "failed": failed }),
    )
}

/// The measurements; bytes are those that must move at least.
fn measurements(quick: bool) -> Result<Vec<Measurement>, Failure> {
    let mut list = Vec::new();
    list.extend(matmul::squares(quick)?);
    list.extend(matmul::by_weights(quick)?);
    list.extend(gemv::small_m(quick)?);
    list.extend(gemv::integers(quick)?);
    list.extend(gemv::grouped(quick)?);
    list.extend(attention::heads(quick)?);
    list.push(attention::decode(quick)?);
    list.extend(memory::elementwise(quick)?);
    list.extend(memory::squares(quick)?);
    list.extend(memory::ordered(quick)?);
    list.extend(rows::rows(quick)?);
    list.extend(rows::transposes(quick)?);
    list.extend(images::movement(quick)?);
    list.extend(images::convolutions(quick)?);
    list.extend(sequences::state_spaces(quick)?);
    list.extend(sequences::recurrent_layers(quick)?);
    list.extend(sequences::transforms(quick)?);
    list.extend(models::whole(quick)?);
    Ok(list)
}

fn device(
    name: String,
    unit: Unit,
    body: impl FnOnce(&mut Graph) -> Result<ValueId, Error>,
) -> Result<Measurement, Failure> {
    let source = Source::Graph(graph(&name, body)?);
    Ok(Measurement { name, unit, clock: Clock::Device, source })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn rates_come_from_the_median() {
        let mut times = Times::default();
        for ms in [1, 2, 9] {
            times.push(Duration::from_millis(ms));
        }
        let row = |unit| Measured {
            name: "x".into(),
            unit,
            clock: Clock::Device,
            times: times.clone(),
            dispatches: 1,
            flops: 4e9,
            bytes: 0.0,
        };
        assert_eq!(row(Unit::Flops(4e9)).tflops(), Some(2.0));
        assert_eq!(row(Unit::CountedFlops).tflops(), Some(2.0));
        assert_eq!(row(Unit::Bytes(4e6)).gb_per_s(), Some(2.0));
        assert_eq!((row(Unit::Time).tflops(), row(Unit::Time).gb_per_s()), (None, None));
    }

    #[test]
    fn every_measurement_is_a_valid_graph_and_the_full_ones_are_as_large_as_named() -> Result<(), Failure> {
        let names: Vec<String> = measurements(false)?.iter().map(|m| m.name.clone()).collect();
        for name in [
            "matmul f32 8192",
            "matmul f16 256",
            "matmul i8 4096",
            "matmul f16 m128 n3072 k768",
            "gemv f16 4096 x16",
            "grouped f16 m4096 k2048 n1408 e64",
            "attention f16 b1 h32 s4096 d128",
            "attention f32 b4 h16 s2048 d64 causal",
            "gelu chain 67108864",
            "softmax 4096x4096",
            "softmax f16 1048576x16",
            "sum f32 64x1024x256 axis 1",
            "transpose u8 8192x8192 to 10",
            "conv 3x3/1 b32 64-64 56x56",
            "fft 1048576x64",
            "rfft 400x48000",
            "chain of 1000",
            "bert-base f32 b1 s512",
            "bert-base f16 b32 s128",
        ] {
            assert!(names.iter().any(|n| n == name), "{name} in {names:?}");
        }
        let quick: Vec<String> = measurements(true)?.iter().map(|m| m.name.clone()).collect();
        let of_rows = |quick| -> Result<usize, Failure> {
            Ok(rows::rows(quick)?.len() + rows::transposes(quick)?.len())
        };
        let (small, full) = (quick.len() - of_rows(true)?, names.len() - of_rows(false)?);
        assert_eq!(small, full, "the quick ones are the same in small, but for classes of rows");
        for list in [names, quick] {
            let mut once = list.clone();
            once.sort();
            once.dedup();
            assert_eq!(once.len(), list.len(), "a name means one measurement: {list:?}");
        }
        Ok(())
    }
}
