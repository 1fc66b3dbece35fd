//! Measuring a device: a few seconds at most, medians, the rows that matter most first.

use std::collections::BTreeMap;
use std::time::Duration;

use olivine_ir::{DType, Graph, Tensor};
use web_time::Instant;

use super::calibration::Rates;
use super::curve::Curve;
use super::probes::{self, PROBES, Probe, Quantity};
use crate::{Backend, Error, Session};

/// Called before each row is measured: its name, how many are done, and how many there are.
pub type Progress<'a> = &'a mut dyn FnMut(&str, usize, usize);

/// A measurement of a device takes no longer than about this.
const LIMIT: Duration = Duration::from_millis(1800);
/// Larger sizes of a row are left out after a run of this length.
const LONG: f64 = 0.002;
/// Samples of a time; the median counts.
const SAMPLES: usize = 5;
/// How long a sample should take: far more than a clock's tick.
const SAMPLE: f64 = 0.0008;
/// Steps of the graphs that show what a step costs.
const STEPS: usize = 17;
/// Bytes whose way to the device and back is measured.
const MOVED: usize = 4 << 20;

/// What runs graphs for a measurement.
pub(crate) trait Bench {
    /// Compiles a graph and measures it; with `wall` from inputs on the host to outputs there, too.
    fn time(&mut self, graph: &Graph, wall: bool) -> Result<Timed, Error>;

    /// Whether a type is worth a row of its own.
    fn computes(&self, dtype: DType) -> bool;
}

/// Medians, in seconds, and what the graph's steps do.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Timed {
    pub(crate) device: f64,
    pub(crate) wall: f64,
    pub(crate) flops: f64,
    pub(crate) bytes: f64,
    pub(crate) steps: usize,
}

/// Measures a device.
pub(crate) fn measure(
    bench: &mut dyn Bench,
    threads: usize,
    limit: Duration,
    progress: Progress<'_>,
) -> Result<Rates, Error> {
    let begun = Instant::now();
    let rows: Vec<&Probe> = PROBES.iter().filter(|probe| bench.computes(probe.dtype)).collect();
    let all = rows.len() + 1;
    progress("launch", 0, all);
    let one = bench.time(&probes::dependent(1)?, true)?;
    let chain = bench.time(&probes::dependent(STEPS)?, false)?;
    let beside = bench.time(&probes::independent(STEPS)?, false)?;
    let each = |many: &Timed| ((many.device - one.device) / (STEPS - 1) as f64).max(1e-9);
    let (step, dispatch) = (each(&chain), each(&beside).min(each(&chain)));
    let run = (one.wall - step).max(1e-7);
    // What every measured time has beside its work: on a GPU one step; on the CPU the way into the executor too.
    let launch = one.device;
    let mut rates = Rates {
        threads,
        run,
        dispatch,
        barrier: step - dispatch,
        upload: 0.0,
        download: 0.0,
        rows: BTreeMap::new(),
    };
    let n = MOVED / 4;
    for (graph, upload) in [(probe("read", n)?, true), (probe("write", n)?, false)] {
        let timed = bench.time(&graph, true)?;
        let per_byte = ((timed.wall - timed.device - run) / MOVED as f64).max(0.0);
        *(if upload { &mut rates.upload } else { &mut rates.download }) = per_byte;
    }
    let mut points: BTreeMap<&'static str, Vec<(f64, f64)>> = BTreeMap::new();
    for (i, probe) in rows.iter().enumerate() {
        progress(probe.row, i + 1, all);
        let at = Instant::now();
        for size in probe.sizes {
            let over = begun.elapsed() > limit;
            if over && (i > 0 || points.contains_key(probe.row)) {
                break;
            }
            let timed = bench.time(&probe.graph(*size)?, false)?;
            let work = if probe.quantity == Quantity::Bytes { timed.bytes } else { timed.flops };
            // Steps after the first begin like those of any run.
            let launches = launch + timed.steps.saturating_sub(1) as f64 * step;
            let body = (timed.device - launches).max(timed.device * 0.02);
            points.entry(probe.row).or_default().push((work, body));
            if timed.device > LONG {
                break;
            }
        }
        tracing::debug!(row = probe.row, took = ?at.elapsed(), "measured");
    }
    rates.rows =
        points.into_iter().map(|(row, points)| (row.to_string(), Curve::new(increasing(points)))).collect();
    rates.rows.retain(|_, curve| !curve.points().is_empty());
    Ok(rates)
}

/// How long a measurement of a device may take.
pub(crate) fn limit() -> Duration {
    LIMIT
}

fn probe(row: &str, size: usize) -> Result<Graph, Error> {
    let found = PROBES.iter().find(|probe| probe.row == row);
    let missing = || Error::Missing { kind: "row", name: row.into(), expected: "a probe".into() };
    Ok(found.ok_or_else(missing)?.graph(size)?)
}

/// More work takes no less time: what noise says otherwise is levelled.
fn increasing(mut points: Vec<(f64, f64)>) -> Vec<(f64, f64)> {
    points.sort_by(|a, b| a.0.total_cmp(&b.0));
    let mut least = 0f64;
    for (_, time) in &mut points {
        *time = time.max(least);
        least = *time;
    }
    points
}

/// A session as what runs graphs.
pub(crate) struct SessionBench<'a>(pub(crate) &'a Session);

impl Bench for SessionBench<'_> {
    fn time(&mut self, graph: &Graph, wall: bool) -> Result<Timed, Error> {
        let session = self.0;
        let executable = session.compile(graph)?;
        for (name, id) in graph.params() {
            executable.set_param(name, filled(graph.ty(id)?)?)?;
        }
        executable.load()?;
        let host = graph
            .inputs()
            .map(|(name, id)| Ok((name, filled(graph.ty(id)?)?)))
            .collect::<Result<Vec<_>, Error>>()?;
        let inputs = host
            .iter()
            .map(|(name, tensor)| Ok((*name, session.upload(tensor)?)))
            .collect::<Result<Vec<_>, Error>>()?;
        let on_cpu = session.device().backend() == Backend::Cpu;
        let on_device = |runs: u32| -> Result<f64, Error> {
            if on_cpu {
                // Results go into the memory of those before, as they do in a program's runs.
                let begun = Instant::now();
                for _ in 0..runs {
                    executable.run(host.iter().map(|(name, tensor)| (*name, tensor)))?;
                }
                return Ok(begun.elapsed().as_secs_f64() / f64::from(runs));
            }
            let given = inputs.iter().map(|(name, tensor)| (*name, tensor));
            Ok(executable.time_runs(given, runs)?.0.as_secs_f64())
        };
        // The first run builds what is built late, the second says how many make a sample.
        on_device(1)?;
        let once = on_device(1)?.max(1e-8);
        let runs = (SAMPLE / once).clamp(1.0, 64.0) as u32;
        let device = median(if once > LONG { 2 } else { SAMPLES }, || on_device(runs))?;
        let wall = if wall {
            let given = || host.iter().map(|(name, tensor)| (*name, tensor));
            executable.run(given())?;
            median(SAMPLES, || {
                let begun = Instant::now();
                executable.run(given())?;
                Ok(begun.elapsed().as_secs_f64())
            })?
        } else {
            0.0
        };
        let lowered = executable.lowered_for(inputs.iter().map(|(name, tensor)| (*name, tensor)))?;
        let sum = |of: &dyn Fn(&crate::cost::Work) -> u64| -> f64 {
            lowered.steps.iter().map(|step| of(&step.work) as f64).sum()
        };
        let (flops, bytes) = (sum(&|work| work.flops), sum(&|work| work.bytes));
        Ok(Timed { device, wall, flops, bytes, steps: lowered.steps.len() })
    }

    fn computes(&self, dtype: DType) -> bool {
        let on_cpu = self.0.device().backend() == Backend::Cpu;
        match dtype {
            // The CPU computes them in f32; software GPUs emulate them.
            DType::F16 => !on_cpu && self.has_matrices(olivine_kernel::Elem::F16),
            DType::BF16 => !on_cpu && self.has_matrices(olivine_kernel::Elem::BF16),
            DType::I8 => on_cpu || self.has_matrices(olivine_kernel::Elem::I8),
            _ => true,
        }
    }
}

impl SessionBench<'_> {
    fn has_matrices(&self, elem: olivine_kernel::Elem) -> bool {
        let caps = self.0.inner.engine.caps();
        caps.is_some_and(|caps| caps.target.matrices.iter().any(|m| m.operand == elem))
    }
}

/// Small positive numbers of any type.
fn filled(ty: olivine_ir::TensorType) -> Result<Tensor, Error> {
    let data = olivine_ir::Data::from_bytes(ty.dtype, &olivine_ir::memory::filled(0x3c, ty.bytes())?)?;
    Ok(Tensor::from_data(ty.shape, data)?)
}

fn median(samples: usize, mut sample: impl FnMut() -> Result<f64, Error>) -> Result<f64, Error> {
    let mut all = (0..samples.max(1)).map(|_| sample()).collect::<Result<Vec<f64>, Error>>()?;
    all.sort_by(f64::total_cmp);
    Ok(all[(all.len() - 1) / 2])
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A device whose every step takes a microsecond and whose work goes at one rate; it is lost after some graphs.
    struct Synthetic {
        rate: f64,
        left: usize,
    }

    impl Bench for Synthetic {
        fn time(&mut self, graph: &Graph, _: bool) -> Result<Timed, Error> {
            self.left = self.left.checked_sub(1).ok_or(olivine_gpu::Error::DeviceLost { during: None })?;
            let numel: usize = graph.values().iter().map(|value| value.ty.shape.numel()).sum();
            let (work, steps) = (numel as f64 * 4.0, graph.nodes().len());
            let device = work / self.rate + steps as f64 * 1e-6;
            Ok(Timed { device, wall: device + 1e-5, flops: work, bytes: work, steps })
        }

        fn computes(&self, dtype: DType) -> bool {
            dtype == DType::F32
        }
    }

    #[test]
    fn rows_are_measured_beside_the_launch() -> Result<(), Error> {
        let mut seen = Vec::new();
        let mut bench = Synthetic { rate: 1e10, left: 1000 };
        let mut progress = |row: &str, done: usize, all: usize| seen.push((row.to_string(), done, all));
        let rates = measure(&mut bench, 0, Duration::from_secs(60), &mut progress)?;
        assert!((rates.dispatch + rates.barrier - 1e-6).abs() < 1e-7, "{rates:?}");
        assert!((rates.run - 1e-5).abs() < 2e-6, "{rates:?}");
        let copy = rates.rows.get("copy").and_then(Curve::rate).unwrap_or_default();
        assert!((copy / 1e10 - 1.0).abs() < 0.1, "{copy}");
        assert!(!rates.rows.contains_key("matmul f16"), "it computes f32 alone");
        assert_eq!(seen.first().map(|(row, done, _)| (row.as_str(), *done)), Some(("launch", 0)));
        assert!(seen.iter().all(|(_, done, all)| done < all));
        Ok(())
    }

    #[test]
    fn a_device_lost_in_the_middle_is_an_error_wherever_it_happens() {
        for left in 0..30 {
            let lost =
                measure(&mut Synthetic { rate: 1e10, left }, 0, Duration::from_secs(60), &mut |_, _, _| {});
            assert!(matches!(lost, Err(Error::Gpu(olivine_gpu::Error::DeviceLost { .. }))), "after {left}");
        }
    }

    #[test]
    fn without_time_the_first_row_is_measured_still() -> Result<(), Error> {
        let mut bench = Synthetic { rate: 1e10, left: 1000 };
        let rates = measure(&mut bench, 0, Duration::ZERO, &mut |_, _, _| {})?;
        assert_eq!(rates.rows.keys().collect::<Vec<_>>(), ["copy"]);
        Ok(())
    }

    #[test]
    fn noise_that_says_that_more_takes_less_is_levelled() {
        assert_eq!(
            increasing(vec![(3.0, 1.0), (1.0, 2.0), (2.0, 1.5)]),
            [(1.0, 2.0), (2.0, 2.0), (3.0, 2.0)]
        );
    }
}
