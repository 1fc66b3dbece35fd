//! Measuring a device in two seconds at most, beside whatever else the machine does.
//!
//! ```text
//!   ramp: clocks rise ── points: each row at its sizes, what matters most first ── rounds: a short sample of every point,
//!   again and again, so that other work on the machine falls on all points alike ── what is typical of a point's samples
//! ```

use std::collections::BTreeMap;
use std::time::Duration;

use olivine_ir::{DType, Graph, Tensor};
use web_time::Instant;

use super::calibration::Rates;
use super::curve::Curve;
use super::probes::{self, PROBES, Probe, Quantity};
use crate::engine::DeviceTensor;
use crate::{Backend, Error, Executable, Session};

/// Called before each point is prepared: its row's name, how many are done, and how many there are.
pub type Progress<'a> = &'a mut dyn FnMut(&str, usize, usize);

/// A measurement of a device takes no longer than about this.
const LIMIT: Duration = Duration::from_millis(1800);
/// The part of that in which points are prepared; rounds of samples follow.
const PREPARING: f64 = 0.75;
/// The part of that for clocks to rise, and samples that are enough for it.
const RAMP: f64 = 0.03;
const RAMP_SAMPLES: usize = 64;
/// Sizes whose run is expected to take longer than this are left out.
const LONG: f64 = 0.004;
/// Samples of a point.
const SAMPLES: usize = 7;
/// How long a sample should take: far more than a clock's tick.
const SAMPLE: f64 = 0.0004;
/// Samples that take longer than the shortest by more than this are of a machine that did something else.
const OUTLIER: f64 = 1.5;
/// Steps of the graphs that show what a step costs.
const STEPS: usize = 17;
/// Bytes whose way to the device and back is measured.
const MOVED: usize = 4 << 20;
/// Points of more bytes are sampled at once and released, so that not all of them are held together.
const LARGE: f64 = 48e6;

/// What runs graphs for a measurement.
pub(crate) trait Bench {
    /// What a run of a graph does; nothing is built for it.
    fn count(&mut self, graph: &Graph) -> Result<Counted, Error>;

    /// Makes a graph ready and runs it, so that later runs build nothing.
    fn prepare(&mut self, graph: &Graph) -> Result<Box<dyn Sampled>, Error>;

    /// Whether a type is worth a row of its own.
    fn computes(&self, dtype: DType) -> bool;
}

/// What the steps of a run do.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counted {
    pub(crate) flops: f64,
    pub(crate) bytes: f64,
    pub(crate) steps: usize,
}

/// A graph that is ready to be timed.
pub(crate) trait Sampled {
    /// Seconds of a run on the device, of so many in a row.
    fn device(&mut self, runs: u32) -> Result<f64, Error>;

    /// Seconds of a run from inputs on the host to outputs there.
    fn wall(&mut self) -> Result<f64, Error>;
}

/// A graph with its samples.
struct Point {
    /// `None` after the last sample of a large one.
    graph: Option<Box<dyn Sampled>>,
    runs: u32,
    device: Vec<f64>,
    /// Of points whose way from the host and back counts.
    wall: Option<Vec<f64>>,
}

impl Point {
    fn new(bench: &mut dyn Bench, graph: &Graph, wall: bool) -> Result<Self, Error> {
        let mut graph = bench.prepare(graph)?;
        let once = graph.device(1)?.max(1e-8);
        let runs = (SAMPLE / once).clamp(1.0, 64.0) as u32;
        let device = if runs == 1 { vec![once] } else { Vec::new() };
        let mut point = Point { graph: Some(graph), runs, device, wall: wall.then(Vec::new) };
        point.sample()?;
        Ok(point)
    }

    /// Adds a sample, unless there are enough.
    fn sample(&mut self) -> Result<(), Error> {
        if let Some(graph) = &mut self.graph
            && self.device.len() < SAMPLES
        {
            self.device.push(graph.device(self.runs)?);
            if let Some(wall) = &mut self.wall {
                wall.push(graph.wall()?);
            }
        }
        Ok(())
    }

    fn seconds(&self) -> f64 {
        typical(&self.device)
    }

    fn wall(&self) -> f64 {
        typical(self.wall.as_deref().unwrap_or_default())
    }
}

/// The median of the samples that are near the shortest: other work on the machine makes a sample longer, nothing makes it
/// shorter.
fn typical(samples: &[f64]) -> f64 {
    let mut near = samples.to_vec();
    near.sort_by(f64::total_cmp);
    let least = near.first().copied().unwrap_or(0.0);
    near.retain(|time| *time <= OUTLIER * least);
    near.get(near.len().saturating_sub(1) / 2).copied().unwrap_or(0.0)
}

/// A point of a row.
struct RowPoint {
    row: &'static str,
    work: f64,
    steps: usize,
    point: Point,
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
    let all = rows.iter().map(|probe| probe.sizes.len()).sum::<usize>() + 1;
    progress("launch", 0, all);
    let one = Point::new(bench, &probes::dependent(1)?, true)?;
    let mut launch = Launch { one, points: Vec::new() };
    for _ in 0..RAMP_SAMPLES {
        if let Some(graph) = launch.one.graph.as_mut().filter(|_| begun.elapsed() < limit.mul_f64(RAMP)) {
            graph.device(launch.one.runs)?;
        }
    }
    // On the CPU a step that comes after one of another kind takes longer than one of a kind that just ran.
    let chain = if threads > 0 { probes::mixed()? } else { probes::dependent(STEPS)? };
    let steps = bench.count(&chain)?.steps.max(2);
    for graph in [&chain, &probes::independent(STEPS)?] {
        launch.points.push(Point::new(bench, graph, false)?);
    }
    let n = MOVED / 4;
    for graph in [&probe("read", n)?, &probe("write", n)?] {
        launch.points.push(Point::new(bench, graph, true)?);
    }
    let mut points: Vec<RowPoint> = Vec::new();
    let mut done = 0;
    let most = rows.iter().map(|probe| probe.sizes.len()).max().unwrap_or(0);
    for rank in 0..most {
        for (probe, size) in rows.iter().filter_map(|probe| Some((*probe, *probe.sizes.get(rank)?))) {
            done += 1;
            if !points.is_empty() && begun.elapsed() > limit.mul_f64(PREPARING) {
                continue;
            }
            progress(probe.row, done, all);
            let at = Instant::now();
            if let Some(point) = row_point(bench, probe, size, &points)? {
                points.push(point);
            }
            tracing::debug!(row = probe.row, size, took = ?at.elapsed(), "prepared");
        }
    }
    for _ in 0..SAMPLES {
        for point in launch.all().chain(points.iter_mut().map(|row| &mut row.point)) {
            if begun.elapsed() < limit {
                point.sample()?;
            }
        }
    }
    Ok(launch.rates(threads, steps, &points))
}

/// A point of a row at a size; `None` where it would take too long by what is known of the row.
fn row_point(
    bench: &mut dyn Bench,
    probe: &Probe,
    size: usize,
    known: &[RowPoint],
) -> Result<Option<RowPoint>, Error> {
    let graph = probe.graph(size)?;
    let counted = bench.count(&graph)?;
    let work = if probe.quantity == Quantity::Bytes { counted.bytes } else { counted.flops };
    let of_row = known.iter().filter(|other| other.row == probe.row);
    let curve = Curve::new(of_row.map(|other| (other.work, other.point.seconds())));
    if curve.time(work).is_some_and(|time| time > LONG) {
        return Ok(None);
    }
    let mut point = Point::new(bench, &graph, false)?;
    if counted.bytes > LARGE {
        (0..SAMPLES / 2).try_for_each(|_| point.sample())?;
        point.graph = None;
    }
    Ok(Some(RowPoint { row: probe.row, work, steps: counted.steps, point }))
}

/// The points that show what a run and its steps take beside their work.
struct Launch {
    /// A run of one small step.
    one: Point,
    /// Steps that wait for each other, steps that do not, a large input, a large output.
    points: Vec<Point>,
}

impl Launch {
    fn all(&mut self) -> impl Iterator<Item = &mut Point> {
        std::iter::once(&mut self.one).chain(&mut self.points)
    }

    /// What the samples say; `steps` are those of the chain of steps that wait for each other.
    fn rates(&self, threads: usize, steps: usize, rows: &[RowPoint]) -> Rates {
        // What every measured time has beside its work: on a GPU one step; on the CPU the way into the executor too.
        let one = self.one.seconds();
        let of = |i: usize| self.points.get(i).map_or(one, Point::seconds);
        let each = |time: f64, steps: usize| ((time - one) / (steps - 1) as f64).max(1e-9);
        let step = each(of(0), steps);
        let dispatch = each(of(1), STEPS).min(step);
        let run = (self.one.wall() - dispatch.min(one)).max(1e-7);
        let moved = |i: usize| {
            let wall = self.points.get(i).map_or(0.0, Point::wall);
            ((wall - of(i) - run) / MOVED as f64).max(0.0)
        };
        let mut points: BTreeMap<&str, Vec<(f64, f64)>> = BTreeMap::new();
        for row in rows {
            let time = row.point.seconds();
            // Steps after the first begin like those of any run.
            let launches = one + row.steps.saturating_sub(1) as f64 * dispatch;
            points.entry(row.row).or_default().push((row.work, (time - launches).max(time * 0.02)));
        }
        let curve = |(row, points): (&str, Vec<_>)| (row.to_string(), Curve::new(increasing(points)));
        let mut rows: BTreeMap<String, Curve> = points.into_iter().map(curve).collect();
        rows.retain(|_, curve| !curve.points().is_empty());
        let (upload, download) = (moved(2), moved(3));
        Rates { threads, run, dispatch, barrier: step - dispatch, upload, download, rows }
    }
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

/// More work takes no less time: what noise says otherwise is levelled. Noise makes times longer, so the lesser of two counts.
fn increasing(mut points: Vec<(f64, f64)>) -> Vec<(f64, f64)> {
    points.sort_by(|a, b| a.0.total_cmp(&b.0));
    let mut most = f64::INFINITY;
    for (_, time) in points.iter_mut().rev() {
        *time = time.min(most);
        most = *time;
    }
    points
}

/// A session as what runs graphs.
pub(crate) struct SessionBench<'a>(pub(crate) &'a Session);

impl Bench for SessionBench<'_> {
    fn count(&mut self, graph: &Graph) -> Result<Counted, Error> {
        let inner = &self.0.inner;
        let lowered = inner.engine.lowered(&inner.compile(graph, false)?)?;
        let sum = |of: &dyn Fn(&crate::cost::Work) -> u64| -> f64 {
            lowered.steps.iter().map(|step| of(&step.work) as f64).sum()
        };
        let (flops, bytes) = (sum(&|work| work.flops), sum(&|work| work.bytes));
        Ok(Counted { flops, bytes, steps: lowered.steps.len() })
    }

    fn prepare(&mut self, graph: &Graph) -> Result<Box<dyn Sampled>, Error> {
        let session = self.0;
        let executable = session.compile(graph)?;
        for (name, id) in graph.params() {
            executable.set_param(name, filled(graph.ty(id)?)?)?;
        }
        executable.load()?;
        let host = graph
            .inputs()
            .map(|(name, id)| Ok((name.to_string(), filled(graph.ty(id)?)?)))
            .collect::<Result<Vec<_>, Error>>()?;
        let on_cpu = session.device().backend() == Backend::Cpu;
        let uploaded = |(name, tensor): &(String, Tensor)| Ok((name.clone(), session.upload(tensor)?));
        let device =
            if on_cpu { None } else { Some(host.iter().map(uploaded).collect::<Result<_, Error>>()?) };
        let mut ready = Ready { executable, host, device };
        ready.device(1)?;
        Ok(Box::new(ready))
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

/// An executable with its inputs.
struct Ready {
    executable: Executable,
    host: Vec<(String, Tensor)>,
    /// On a GPU, the inputs in its memory.
    device: Option<Vec<(String, DeviceTensor)>>,
}

impl Sampled for Ready {
    fn device(&mut self, runs: u32) -> Result<f64, Error> {
        if let Some(inputs) = &self.device {
            let given = inputs.iter().map(|(name, tensor)| (name.as_str(), tensor));
            return Ok(self.executable.time_runs(given, runs)?.0.as_secs_f64());
        }
        // Results go into the memory of those before, as they do in a program's runs.
        let begun = Instant::now();
        for _ in 0..runs {
            self.executable.run(self.host.iter().map(|(name, tensor)| (name.as_str(), tensor)))?;
        }
        Ok(begun.elapsed().as_secs_f64() / f64::from(runs.max(1)))
    }

    fn wall(&mut self) -> Result<f64, Error> {
        let begun = Instant::now();
        self.executable.run(self.host.iter().map(|(name, tensor)| (name.as_str(), tensor)))?;
        Ok(begun.elapsed().as_secs_f64())
    }
}

/// Small positive numbers of any type.
fn filled(ty: olivine_ir::TensorType) -> Result<Tensor, Error> {
    let data = olivine_ir::Data::from_bytes(ty.dtype, &olivine_ir::memory::filled(0x3c, ty.bytes())?)?;
    Ok(Tensor::from_data(ty.shape, data)?)
}

#[cfg(test)]
pub(crate) mod tests {
    use std::cell::Cell;
    use std::rc::Rc;

    use super::*;

    /// A device whose every step takes a microsecond and whose work goes at one rate. It is lost after some runs, and every
    /// third sample takes five times as long, as if the machine did something else.
    pub(crate) struct Synthetic {
        rate: f64,
        left: Rc<Cell<usize>>,
        noisy: bool,
    }

    impl Synthetic {
        pub(crate) fn new(left: usize) -> Self {
            Synthetic { rate: 1e10, left: Rc::new(Cell::new(left)), noisy: false }
        }
    }

    struct SyntheticGraph {
        time: f64,
        left: Rc<Cell<usize>>,
        noisy: bool,
    }

    impl Bench for Synthetic {
        fn count(&mut self, graph: &Graph) -> Result<Counted, Error> {
            let numel: usize = graph.values().iter().map(|value| value.ty.shape.numel()).sum();
            let work = numel as f64 * 4.0;
            Ok(Counted { flops: work, bytes: work, steps: graph.nodes().len() })
        }

        fn prepare(&mut self, graph: &Graph) -> Result<Box<dyn Sampled>, Error> {
            let counted = self.count(graph)?;
            let time = counted.bytes / self.rate + counted.steps as f64 * 1e-6;
            Ok(Box::new(SyntheticGraph { time, left: self.left.clone(), noisy: self.noisy }))
        }

        fn computes(&self, dtype: DType) -> bool {
            dtype == DType::F32
        }
    }

    impl Sampled for SyntheticGraph {
        fn device(&mut self, _: u32) -> Result<f64, Error> {
            let left = self.left.get().checked_sub(1);
            self.left.set(left.ok_or(olivine_gpu::Error::DeviceLost { during: None })?);
            let slow = self.noisy && self.left.get().is_multiple_of(3);
            Ok(if slow { 5.0 * self.time } else { self.time })
        }

        fn wall(&mut self) -> Result<f64, Error> {
            Ok(self.device(1)? + 1e-5)
        }
    }

    #[test]
    fn rows_are_measured_beside_the_launch_whatever_else_the_machine_does() -> Result<(), Error> {
        for noisy in [false, true] {
            let mut seen = Vec::new();
            let mut bench = Synthetic { noisy, ..Synthetic::new(1 << 30) };
            let mut progress = |row: &str, done: usize, all: usize| seen.push((row.to_string(), done, all));
            let rates = measure(&mut bench, 0, Duration::from_secs(1), &mut progress)?;
            assert!((rates.dispatch + rates.barrier - 1e-6).abs() < 1e-7, "{rates:?}");
            assert!((rates.run - 1e-5).abs() < 2e-6, "{rates:?}");
            let copy = rates.rows.get("copy").and_then(Curve::rate).unwrap_or_default();
            assert!((copy / 1e10 - 1.0).abs() < 0.1, "{copy}");
            assert!(!rates.rows.contains_key("matmul f16"), "it computes f32 alone");
            assert_eq!(seen.first().map(|(row, done, _)| (row.as_str(), *done)), Some(("launch", 0)));
            assert!(seen.iter().all(|(_, done, all)| done < all));
        }
        Ok(())
    }

    #[test]
    fn a_device_lost_in_the_middle_is_an_error_wherever_it_happens() {
        for left in 0..300 {
            let lost = measure(&mut Synthetic::new(left), 0, Duration::from_secs(1), &mut |_, _, _| {});
            assert!(matches!(lost, Err(Error::Gpu(olivine_gpu::Error::DeviceLost { .. }))), "after {left}");
        }
    }

    #[test]
    fn without_time_the_first_row_is_measured_still() -> Result<(), Error> {
        let rates = measure(&mut Synthetic::new(1 << 30), 0, Duration::ZERO, &mut |_, _, _| {})?;
        assert_eq!(rates.rows.keys().collect::<Vec<_>>(), ["copy"]);
        Ok(())
    }

    #[test]
    fn sizes_that_would_take_long_are_left_out() -> Result<(), Error> {
        let mut bench = Synthetic { rate: 1e8, ..Synthetic::new(1 << 30) };
        let rates = measure(&mut bench, 0, Duration::from_secs(1), &mut |_, _, _| {})?;
        let times = rates.rows.values().flat_map(|curve| curve.points().iter().skip(1).map(|(_, t)| *t));
        let longest = times.fold(0.0, f64::max);
        assert!(longest > 0.0 && longest < 2.0 * LONG, "{longest}");
        Ok(())
    }

    #[test]
    fn noise_that_says_that_more_takes_less_is_levelled() {
        assert_eq!(
            increasing(vec![(3.0, 1.0), (1.0, 2.0), (2.0, 1.5)]),
            [(1.0, 1.0), (2.0, 1.0), (3.0, 1.0)]
        );
    }

    #[test]
    fn samples_of_a_busy_machine_do_not_count() {
        assert_eq!(typical(&[1.0, 1.1, 9.0, 1.2, 30.0, 8.0, 9.0]), 1.1);
        assert_eq!(typical(&[2.0]), 2.0);
        assert_eq!(typical(&[]), 0.0);
    }
}
