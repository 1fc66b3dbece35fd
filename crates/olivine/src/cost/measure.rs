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
use super::predict::Traffic;
use super::probes::{self, PROBES, Probe};
use super::work::Work;
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
/// Sizes whose run is expected to take longer than this are left out, unless they are required.
const LONG: f64 = 0.004;
/// Samples of a point.
const SAMPLES: usize = 7;
/// Samples of a point that takes longer than [`LONG`] and is measured all the same.
const LONG_SAMPLES: usize = 5;
/// How long a sample should take: far more than a clock's tick.
const SAMPLE: f64 = 0.0004;
/// Samples that take longer than the shortest by more than this are of a machine that did something else.
const OUTLIER: f64 = 1.5;
/// Steps that a row is not about take no more of its time than this part.
const OTHERS: f64 = 0.75;
/// Steps of the graphs that show what a step costs.
const STEPS: usize = 17;
/// Bytes whose way to the device and back is measured.
const MOVED: usize = 4 << 20;
/// Points of more bytes are sampled at once and released, so that not all of them are held together.
const LARGE: f64 = 48e6;

/// What runs graphs for a measurement.
pub(crate) trait Bench {
    /// What the steps of a run do; nothing is built for it.
    fn count(&mut self, graph: &Graph) -> Result<Vec<Work>, Error>;

    /// Makes a graph ready and runs it, so that later runs build nothing.
    fn prepare(&mut self, graph: &Graph) -> Result<Box<dyn Sampled>, Error>;

    /// Whether a type is worth a row of its own.
    fn computes(&self, dtype: DType) -> bool;
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
    /// How many samples are enough.
    enough: usize,
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
        let enough = if once > LONG { LONG_SAMPLES } else { SAMPLES };
        let mut point = Point { graph: Some(graph), runs, enough, device, wall: wall.then(Vec::new) };
        point.sample()?;
        Ok(point)
    }

    /// Adds a sample, unless there are enough.
    fn sample(&mut self) -> Result<(), Error> {
        if let Some(graph) = &mut self.graph
            && self.device.len() < self.enough
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
    size: usize,
    /// What the steps do that the row is about.
    work: f64,
    /// The steps in order, and whether each is one that the row is about: operands may be packed first, or sums be added up.
    steps: Vec<(Work, bool)>,
    point: Point,
}

impl RowPoint {
    fn has_others(&self) -> bool {
        self.steps.iter().any(|(_, own)| !own)
    }

    /// The time of the steps that the row is about, beside their launches. `rates` knows what others take.
    fn seconds(&self, one: f64, rates: &Rates) -> f64 {
        let time = self.point.seconds();
        // Steps after the first begin like those of any run.
        let launches: f64 = self.steps.iter().skip(1).map(|(work, _)| rates.launch(work)).sum();
        let body = (time - one - launches).max(time * 0.02);
        let others = self.steps.iter().filter(|(_, own)| !own);
        let run = Traffic::of(self.steps.iter().map(|(work, _)| work));
        let others: f64 = others.map(|(work, _)| rates.body(work, &run).0).sum();
        body - others.min(body * OTHERS)
    }
}

/// Measures a device.
pub(crate) fn measure(
    bench: &mut dyn Bench,
    threads: usize,
    limit: Duration,
    progress: Progress<'_>,
) -> Result<Rates, Error> {
    let begun = Instant::now();
    let is_measured = |probe: &&Probe| bench.computes(probe.dtype) && (threads > 0 || !probe.on_host);
    let rows: Vec<&Probe> = PROBES.iter().filter(is_measured).collect();
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
    let steps = bench.count(&chain)?.len().max(2);
    for graph in [&chain, &probes::independent(STEPS)?] {
        launch.points.push(Point::new(bench, graph, false)?);
    }
    let n = MOVED / 4;
    for graph in [&probe("read", n)?, &probe("write", n)?] {
        launch.points.push(Point::new(bench, graph, true)?);
    }
    let mut points: Vec<RowPoint> = Vec::new();
    let most = rows.iter().map(|probe| probe.sizes.len()).max().unwrap_or(0);
    let required = rows.iter().filter_map(|probe| Some((*probe, probe.required?)));
    let ranked = (0..most)
        .flat_map(|rank| rows.iter().filter_map(move |probe| Some((*probe, *probe.sizes.get(rank)?))))
        .filter(|(probe, size)| probe.required != Some(*size));
    for (at, (probe, size)) in required.chain(ranked).enumerate() {
        let is_required = probe.required == Some(size);
        if !is_required && begun.elapsed() > limit.mul_f64(PREPARING) {
            break;
        }
        progress(probe.row, at + 1, all);
        let began = Instant::now();
        if let Some(point) = row_point(bench, probe, size, &points)? {
            points.push(point);
        }
        tracing::debug!(row = probe.row, size, took = ?began.elapsed(), "prepared");
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
    let steps = bench.count(&graph)?;
    let family = steps.iter().max_by_key(|work| probe.amount(work)).map(|work| work.family);
    let steps: Vec<(Work, bool)> =
        steps.into_iter().map(|work| (work, Some(work.family) == family)).collect();
    let own = steps.iter().filter(|(_, own)| *own);
    let work = own.map(|(work, _)| probe.amount(work) as f64).sum();
    let of_row = known.iter().filter(|other| other.row == probe.row);
    let curve = Curve::new(of_row.map(|other| (other.work, other.point.seconds())));
    if probe.required != Some(size) && curve.time(work).is_some_and(|time| time > LONG) {
        return Ok(None);
    }
    let mut point = Point::new(bench, &graph, false)?;
    if steps.iter().map(|(work, _)| work.bytes as f64).sum::<f64>() > LARGE {
        (0..SAMPLES / 2).try_for_each(|_| point.sample())?;
        point.graph = None;
    }
    Ok(Some(RowPoint { row: probe.row, size, work, steps, point }))
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
        let (upload, download, barrier) = (moved(2), moved(3), step - dispatch);
        let mut rates = Rates { threads, run, dispatch, barrier, upload, download, rows: BTreeMap::new() };
        // Rows with steps of other rows come last, when those are known.
        let mixed: Vec<&str> = rows.iter().filter(|row| row.has_others()).map(|row| row.row).collect();
        for is_mixed in [false, true] {
            let mut points: BTreeMap<&str, Vec<(f64, f64)>> = BTreeMap::new();
            for row in rows.iter().filter(|row| mixed.contains(&row.row) == is_mixed) {
                let seconds = row.seconds(one, &rates);
                tracing::debug!(row = row.row, size = row.size, work = row.work, seconds, "measured");
                points.entry(row.row).or_default().push((row.work, seconds));
            }
            let curves =
                points.into_iter().map(|(row, points)| (row.to_string(), Curve::new(increasing(points))));
            rates.rows.extend(curves.filter(|(_, curve)| !curve.points().is_empty()));
        }
        rates
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
    fn count(&mut self, graph: &Graph) -> Result<Vec<Work>, Error> {
        let inner = &self.0.inner;
        let lowered = inner.engine.lowered(&inner.compile(graph, false)?)?;
        Ok(lowered.steps.into_iter().map(|step| step.work).collect())
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

    use super::super::work::Family;
    use super::*;

    /// A device whose every step takes a microsecond and whose work goes at one rate. It is lost after some runs, and every
    /// third sample takes five times as long, as if the machine did something else.
    pub(crate) struct Synthetic {
        rate: f64,
        left: Rc<Cell<usize>>,
        noisy: bool,
        /// Whether matmuls pack an operand first, which moves as many bytes as they compute.
        packs: bool,
    }

    impl Synthetic {
        pub(crate) fn new(left: usize) -> Self {
            Synthetic { rate: 1e10, left: Rc::new(Cell::new(left)), noisy: false, packs: false }
        }
    }

    struct SyntheticGraph {
        time: f64,
        left: Rc<Cell<usize>>,
        noisy: bool,
    }

    impl Bench for Synthetic {
        fn count(&mut self, graph: &Graph) -> Result<Vec<Work>, Error> {
            let numel: usize = graph.values().iter().map(|value| value.ty.shape.numel()).sum();
            let (steps, work) = (graph.nodes().len() as u64, 4 * numel as u64);
            if self.packs && graph.name().starts_with("matmul") {
                let (bytes, flops) = (0, work);
                let matmul = Work { family: Family::Matmul, flops, bytes, ..Work::moving(0) };
                return Ok(vec![Work::moving(work), matmul]);
            }
            let each = |step| work * (step + 1) / steps - work * step / steps;
            let step = |step| Work { flops: each(step), ..Work::moving(each(step)) };
            Ok((0..steps).map(step).collect())
        }

        fn prepare(&mut self, graph: &Graph) -> Result<Box<dyn Sampled>, Error> {
            let steps = self.count(graph)?;
            let bytes: u64 = steps.iter().map(|work| work.bytes.max(work.flops)).sum();
            let time = bytes as f64 / self.rate + steps.len() as f64 * 1e-6;
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
    fn a_row_is_what_its_own_steps_take() -> Result<(), Error> {
        let rate = |packs: bool| -> Result<f64, Error> {
            let mut bench = Synthetic { packs, ..Synthetic::new(1 << 30) };
            let rates = measure(&mut bench, 0, Duration::from_secs(1), &mut |_, _, _| {})?;
            Ok(rates.rows.get("matmul f32").and_then(Curve::rate).unwrap_or_default())
        };
        // Packing is predicted beside the matmul, so the matmul's row must not have it.
        let (alone, packed) = (rate(false)?, rate(true)?);
        assert!((packed / alone - 1.0).abs() < 0.1, "{packed} {alone}");
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
    fn without_time_the_required_rows_are_measured_still() -> Result<(), Error> {
        let rates = measure(&mut Synthetic::new(1 << 30), 0, Duration::ZERO, &mut |_, _, _| {})?;
        assert_eq!(rates.rows.keys().collect::<Vec<_>>(), ["copy", "matmul f32", "read", "write"]);
        Ok(())
    }

    #[test]
    fn sizes_that_would_take_long_are_left_out() -> Result<(), Error> {
        let mut bench = Synthetic { rate: 1e8, ..Synthetic::new(1 << 30) };
        let rates = measure(&mut bench, 0, Duration::from_secs(1), &mut |_, _, _| {})?;
        let is_required = |row: &str| PROBES.iter().any(|probe| probe.row == row && probe.required.is_some());
        let rows = rates.rows.iter().filter(|(row, _)| !is_required(row)).map(|(_, curve)| curve);
        let times = rows.flat_map(|curve| curve.points().iter().skip(1).map(|(_, t)| *t));
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
