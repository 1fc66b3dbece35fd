//! `olivine bench gpu`: a device's rates at sizes that show them, by its own timestamps.

mod images;
mod sequences;

use clap::Args;
use olivine::ir::op::{Attention, CumulativeKind, HeadLayout, ReduceKind};
use olivine::ir::{DType, Error, Graph, ValueId};
use olivine::models::Encoder;
use olivine::{Session, SessionOptions};
use serde_json::{Value, json};

use crate::Global;
use crate::answer::{Answer, Failure};
use crate::measure::{Runs, Subject, graph};
use crate::progress::Progress;
use crate::table::Table;
use crate::timing::{Times, short};

#[derive(Args)]
pub(crate) struct GpuArgs {
    /// Only measurements whose name contains this.
    #[arg(long, default_value = "", value_name = "TEXT", hide_default_value = true)]
    filter: String,
    /// Small sizes and few runs, to see that all of it works.
    #[arg(long)]
    quick: bool,
}

/// What a measurement is counted in.
#[derive(Clone, Copy)]
enum Unit {
    /// Floating-point operations of one run.
    Flops(f64),
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

struct Measurement {
    name: String,
    unit: Unit,
    clock: Clock,
    graph: Graph,
}

struct Measured {
    name: String,
    unit: Unit,
    clock: Clock,
    times: Times,
    dispatches: usize,
}

pub(crate) fn run(global: &Global, args: &GpuArgs) -> Result<Answer, Failure> {
    let all = measurements(args.quick)?;
    let chosen: Vec<&Measurement> = all.iter().filter(|m| m.name.contains(args.filter.as_str())).collect();
    if chosen.is_empty() {
        return Err(Failure::new(format!("no measurement's name contains `{}`", args.filter))
            .hint("without --filter, all are made and listed"));
    }
    let device = global.device()?;
    let open = |no_fusion| -> Result<Session, Failure> {
        let options = SessionOptions { no_fusion, ..global.options() };
        Ok(Session::with_options(device.clone(), options)?)
    };
    let fused = open(false)?;
    let runs = if args.quick { Runs::QUICK } else { Runs::STEADY };
    let mut progress = Progress::new(chosen.len(), global.quiet);
    let mut rows = Vec::new();
    let mut failed = Vec::new();
    for measurement in chosen {
        progress.begin(&measurement.name);
        let session = if measurement.clock == Clock::WallUnfused { &open(true)? } else { &fused };
        match measure(session, measurement, runs) {
            Ok(row) => rows.push(row),
            Err(failure) => failed.push(failure.context(measurement.name.clone())),
        }
        progress.step();
    }
    drop(progress);
    let answer = report(&fused, &rows, &failed);
    Ok(answer.with_failure(failed.into_iter().next()))
}

fn measure(session: &Session, measurement: &Measurement, runs: Runs) -> Result<Measured, Failure> {
    let subject = Subject::new(session, &measurement.graph)?;
    let dispatches = subject.profile()?.len();
    let times = match measurement.clock {
        Clock::Device => subject.device_times(runs)?,
        Clock::Wall | Clock::WallUnfused => subject.wall_times(runs)?,
    };
    let Measurement { name, unit, clock, .. } = measurement;
    Ok(Measured { name: name.clone(), unit: *unit, clock: *clock, times, dispatches })
}

impl Measured {
    fn tflops(&self) -> Option<f64> {
        let Unit::Flops(flops) = self.unit else { return None };
        Some(flops / self.times.median() / 1e9)
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
            "tflops": self.tflops(), "gb_per_s": self.gb_per_s(),
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
    let (n, wide) = if quick { (128, 1 << 16) } else { (4096, 64 << 20) };
    let square = 4.0 * (n * n) as f64;
    let mut list = Vec::new();
    let products: &[usize] = if quick { &[64, 128] } else { &[1024, 2048, 4096] };
    for n in products.iter().copied() {
        list.push(device(format!("matmul {n}"), Unit::Flops(2.0 * (n as f64).powi(3)), |g| {
            let (a, b) = (g.input("a", DType::F32, [n, n])?, g.input("b", DType::F32, [n, n])?);
            g.matmul(a, b)
        })?);
    }
    let halves: &[usize] = if quick { &[64] } else { &[1024, 2048, 4096, 8192] };
    for n in halves.iter().copied() {
        list.push(device(format!("matmul f16 {n}"), Unit::Flops(2.0 * (n as f64).powi(3)), |g| {
            let (a, b) = (g.input("a", DType::F16, [n, n])?, g.input("b", DType::F16, [n, n])?);
            g.matmul(a, b)
        })?);
    }
    list.push(device(format!("add {wide}"), Unit::Bytes(12.0 * wide as f64), |g| {
        let (a, b) = (g.input("a", DType::F32, [wide])?, g.input("b", DType::F32, [wide])?);
        g.add(a, b)
    })?);
    let of_square =
        |name: &str, bytes: f64, body: fn(&mut Graph, ValueId, usize) -> Result<ValueId, Error>| {
            device(format!("{name} {n}x{n}"), Unit::Bytes(bytes), |g| {
                let x = g.input("x", DType::F32, [n, n])?;
                body(g, x, n)
            })
        };
    list.push(of_square("layer_norm", 2.0 * square, |g, x, n| {
        let (gamma, beta) = (g.param("n.gamma", DType::F32, [n])?, g.param("n.beta", DType::F32, [n])?);
        g.layer_norm(x, gamma, Some(beta), 1e-5)
    })?);
    list.push(of_square("softmax", 2.0 * square, |g, x, _| g.softmax(x, -1))?);
    list.push(of_square("transpose", 2.0 * square, |g, x, _| g.transpose(x, &[1, 0]))?);
    list.push(of_square("sum rows", square, |g, x, _| g.reduce(ReduceKind::Sum, x, &[-1], false))?);
    list.push(of_square("sum columns", square, |g, x, _| g.reduce(ReduceKind::Sum, x, &[0], false))?);
    list.push(of_square("cumsum rows", 2.0 * square, |g, x, _| running_sum(g, x, 1))?);
    list.push(of_square("cumsum columns", 2.0 * square, |g, x, _| running_sum(g, x, 0))?);
    list.push(device(format!("cumsum {wide}"), Unit::Bytes(8.0 * wide as f64), |g| {
        let x = g.input("x", DType::F32, [wide])?;
        running_sum(g, x, 0)
    })?);
    let long = if quick { 5000 } else { 128 << 10 };
    let ordered = |name: &str, rows: usize, body: fn(&mut Graph, ValueId) -> Result<ValueId, Error>| {
        device(format!("{name} {rows}x{long}"), Unit::Time, |g| {
            let x = g.input("x", DType::F32, [rows, long])?;
            body(g, x)
        })
    };
    list.push(ordered("sort", 64, |g, x| g.sort(x, 1, false))?);
    list.push(ordered("argsort", 64, |g, x| g.argsort(x, 1, false))?);
    for rows in [64, 1] {
        list.push(ordered("top_k 50 of", rows, |g, x| Ok(g.top_k(x, 50, 1, true)?.0))?);
    }
    let (heads, positions, dim) = if quick { (2, 32, 16) } else { (12, 512, 64) };
    let flops = 4.0 * (heads * positions * positions * dim) as f64;
    list.push(device(format!("attention b1 h{heads} s{positions} d{dim}"), Unit::Flops(flops), |g| {
        let shape = [1, heads, positions, dim];
        let q = g.input("q", DType::F32, shape)?;
        let k = g.input("k", DType::F32, shape)?;
        let v = g.input("v", DType::F32, shape)?;
        g.attention(Attention::new(HeadLayout::Bhsd), q, k, v, &[])
    })?);
    list.extend(images::movement(quick)?);
    list.extend(images::convolutions(quick)?);
    list.extend(sequences::state_spaces(quick)?);
    list.extend(sequences::recurrent_layers(quick)?);
    list.extend(sequences::transforms(quick)?);
    let links = if quick { 20 } else { 1000 };
    list.push(Measurement {
        name: format!("chain of {links}"),
        unit: Unit::Time,
        clock: Clock::WallUnfused,
        graph: chain(links)?,
    });
    let encoder = if quick { Encoder { layers: 1, ..Encoder::small() } } else { Encoder::bert_base(1, 128) };
    list.push(Measurement {
        name: if quick { "encoder, 1 layer".into() } else { "bert-base b1 s128".into() },
        unit: Unit::Flops(encoder.flops()),
        clock: Clock::Wall,
        graph: encoder.graph()?,
    });
    Ok(list)
}

fn device(
    name: String,
    unit: Unit,
    body: impl FnOnce(&mut Graph) -> Result<ValueId, Error>,
) -> Result<Measurement, Failure> {
    let graph = graph(&name, body)?;
    Ok(Measurement { name, unit, clock: Clock::Device, graph })
}

fn running_sum(g: &mut Graph, x: ValueId, axis: isize) -> Result<ValueId, Error> {
    g.cumulative(CumulativeKind::Sum, x, axis, false, false)
}

/// Tiny operations, each waiting for the one before; sums and products in turn, so that nothing folds.
fn chain(links: usize) -> Result<Graph, Failure> {
    Ok(graph("chain", |g| {
        let mut y = g.input("x", DType::F32, [256])?;
        let (a, b) = (g.input("a", DType::F32, [256])?, g.input("b", DType::F32, [256])?);
        for i in 0..links {
            y = if i % 2 == 0 { g.mul(y, a)? } else { g.add(y, b)? };
        }
        Ok(y)
    })?)
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
        };
        assert_eq!(row(Unit::Flops(4e9)).tflops(), Some(2.0));
        assert_eq!(row(Unit::Bytes(4e6)).gb_per_s(), Some(2.0));
        assert_eq!((row(Unit::Time).tflops(), row(Unit::Time).gb_per_s()), (None, None));
    }

    #[test]
    fn every_measurement_is_a_valid_graph_and_the_full_ones_are_as_large_as_named() -> Result<(), Failure> {
        let names: Vec<String> = measurements(false)?.iter().map(|m| m.name.clone()).collect();
        for name in [
            "matmul 4096",
            "add 67108864",
            "softmax 4096x4096",
            "conv 3x3/1 b32 64-64 56x56",
            "fft 1048576x64",
            "fft 65537x256",
            "rfft 400x48000",
            "chain of 1000",
            "bert-base b1 s128",
        ] {
            assert!(names.iter().any(|n| n == name), "{name} in {names:?}");
        }
        assert_eq!(measurements(true)?.len() + 4, names.len(), "quick leaves out four sizes of products");
        assert_eq!(chain(7)?.nodes().len(), 7);
        Ok(())
    }
}
