//! A graph on a device with inputs that are there already, and the time its kernels take there.

use std::ops::Range;
use std::time::{Duration, Instant};

use olivine::internals::DeviceTensorExt as _;
use olivine::internals::ExecutableExt as _;
use olivine::ir::{DType, Data, Error, Graph, Tensor, TensorType, ValueId};
use olivine::{CompileOptions, DeviceTensor, Executable, Model, Session, StepTime};

use crate::answer::Failure;
use crate::noise::Noise;
use crate::timing::{Times, timed};

/// How often to run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Runs {
    /// Untimed runs go on until there are so many and they took so long: clocks rise with work.
    pub(crate) warmup: usize,
    pub(crate) warmup_time: Duration,
    /// Timed runs.
    pub(crate) timed: usize,
}

impl Runs {
    /// Enough for a median that can be repeated.
    pub(crate) const STEADY: Runs = Runs { warmup: 3, warmup_time: Duration::from_millis(100), timed: 25 };
    /// Enough to see that it works.
    pub(crate) const QUICK: Runs = Runs { warmup: 1, warmup_time: Duration::ZERO, timed: 3 };

    pub(crate) fn warm(self, mut work: impl FnMut() -> Result<(), Failure>) -> Result<(), Failure> {
        let (start, mut count) = (Instant::now(), 0);
        while count < self.warmup || start.elapsed() < self.warmup_time {
            work()?;
            count += 1;
        }
        Ok(())
    }
}

/// Sets of inputs that runs take in turn, at most.
const SETS: usize = 8;
/// Bytes of inputs that runs go through before the first come again: more than the caches of today's devices hold.
const ROUND: usize = 192 << 20;
/// Bytes of inputs that stay in a device's cache anyhow.
const SMALL: usize = 8 << 20;
/// Runs shorter than this on small inputs are timed several in a row, as a model's are.
const SHORT: Duration = Duration::from_micros(200);
const ROW: u32 = 8;
/// Pieces of an output that are looked at where it is long, and elements in each.
const PIECES: usize = 32;
const PIECE: usize = 4096;
/// Bytes of an output that are compared all.
const READABLE: usize = 64 << 20;

/// Work that keeps a device busy before a measurement: clocks fall within seconds while the host makes inputs.
pub(crate) struct Busy(Subject);

impl Busy {
    /// How long it works.
    const TIME: Duration = Duration::from_millis(300);

    pub(crate) fn new(session: &Session) -> Result<Self, Failure> {
        let matmul = graph("busy", |g| {
            let x = g.input("x", DType::F32, [1024, 1024])?;
            g.matmul(x, x)
        })?;
        Ok(Busy(Subject::new(session, &matmul)?))
    }

    pub(crate) fn work(&self) -> Result<(), Failure> {
        let start = Instant::now();
        while start.elapsed() < Busy::TIME {
            self.0.executable.time(self.0.inputs(0), ROW)?;
        }
        Ok(())
    }
}

/// A compiled graph with random params and several sets of random inputs on the device.
pub(crate) struct Subject {
    pub(crate) executable: Executable,
    /// The first set in host memory.
    host: Vec<(String, Tensor)>,
    sets: Vec<Vec<(String, DeviceTensor)>>,
    /// Whether a device's cache holds the inputs anyhow.
    small: bool,
}

impl Subject {
    pub(crate) fn new(session: &Session, graph: &Graph) -> Result<Self, Failure> {
        Subject::with_noise(session, graph, &mut Noise::default())
    }

    /// As [`Subject::new`], compiled with options.
    pub(crate) fn with_options(
        session: &Session,
        graph: &Graph,
        options: &CompileOptions,
    ) -> Result<Self, Failure> {
        Subject::compiled(session, graph, options, &mut Noise::default())
    }

    /// As [`Subject::new`]; subjects that share their noise are made faster.
    pub(crate) fn with_noise(session: &Session, graph: &Graph, noise: &mut Noise) -> Result<Self, Failure> {
        Subject::compiled(session, graph, &CompileOptions::new(), noise)
    }

    fn compiled(
        session: &Session,
        graph: &Graph,
        options: &CompileOptions,
        noise: &mut Noise,
    ) -> Result<Self, Failure> {
        let executable = session.compile_with(graph, options)?;
        executable.set_params(noise.params(graph)?)?;
        executable.load()?;
        let bytes: usize = graph.inputs().filter_map(|(_, id)| Some(graph.ty(id).ok()?.bytes())).sum();
        let count = ROUND.checked_div(bytes).map_or(1, |sets| (sets + 1).clamp(1, SETS));
        let host = noise.inputs(graph)?;
        let mut sets = Vec::with_capacity(count);
        for i in 0..count {
            let fresh = if i == 0 { host.clone() } else { noise.inputs(graph)? };
            let upload = |(name, tensor): &(String, Tensor)| Ok((name.clone(), session.upload(tensor)?));
            sets.push(fresh.iter().map(upload).collect::<Result<_, Failure>>()?);
        }
        Ok(Subject { executable, host, sets, small: bytes <= SMALL })
    }

    /// A model with its own weights and one set of inputs.
    pub(crate) fn of_model(
        session: &Session,
        model: &Model,
        inputs: Vec<(String, Tensor)>,
    ) -> Result<Self, Failure> {
        let executable = session.compile(model)?;
        executable.load()?;
        let upload = |(name, tensor): &(String, Tensor)| Ok((name.clone(), session.upload(tensor)?));
        let set = inputs.iter().map(upload).collect::<Result<_, Failure>>()?;
        let bytes: usize = inputs.iter().map(|(_, tensor)| tensor.ty().bytes()).sum();
        Ok(Subject { executable, host: inputs, sets: vec![set], small: bytes <= SMALL })
    }

    /// A set of inputs.
    pub(crate) fn inputs(&self, set: usize) -> impl Iterator<Item = (&str, &DeviceTensor)> {
        let set = self.sets.get(set).into_iter().flatten();
        set.map(|(name, tensor)| (name.as_str(), tensor))
    }

    /// Runs once with a timestamp around every dispatch; outputs stay on the device.
    pub(crate) fn profile(&self) -> Result<Vec<StepTime>, Failure> {
        Ok(self.executable.profile(self.inputs(0))?)
    }

    /// Time on the device from the first dispatch's beginning to the last one's end, each time with other inputs than the
    /// one before; short runs on small inputs are timed several in a row, and a run's share counts. The outputs' memory
    /// is poisoned beforehand, and a run that leaves some of it unwritten is an error.
    pub(crate) fn device_times(&self, runs: Runs) -> Result<Times, Failure> {
        let sets = self.sets.len().min(runs.timed).max(1);
        let short = self.executable.time(self.inputs(0), 1)?.0 < SHORT;
        let row = if short && self.small { ROW } else { 1 };
        let mut run = 0;
        runs.warm(|| {
            self.executable.time(self.inputs(run % sets), row)?;
            run += 1;
            Ok(())
        })?;
        for set in 0..sets {
            for (_, output) in self.executable.time(self.inputs(set), row)?.1 {
                output.poison()?;
            }
        }
        let mut times = Times::default();
        let mut last = Vec::new();
        for run in 0..runs.timed {
            let (time, outputs) = self.executable.time(self.inputs(run % sets), row)?;
            times.push(time);
            // Whoever holds an output keeps later runs out of its memory: only each set's last are held.
            if run + sets >= runs.timed {
                last.extend(outputs);
            }
        }
        last.iter().try_for_each(|(name, output)| check_written(name, output))?;
        Ok(times)
    }

    /// Time from the call, the inputs in host memory, to the outputs in host memory.
    pub(crate) fn wall_times(&self, runs: Runs) -> Result<Times, Failure> {
        let inputs = || self.host.iter().map(|(name, tensor)| (name.as_str(), tensor));
        let mut results = self.executable.run(inputs())?.into_tensors();
        let outputs = self.executable.outputs();
        // Results go into the same tensors every time: fresh memory would be measured with the run.
        let mut run = || -> Result<Duration, Failure> {
            let mut targets: Vec<(&str, &mut Tensor)> =
                outputs.iter().map(|o| o.name.as_str()).zip(&mut results).collect();
            let (time, done) = timed(|| self.executable.run_into(inputs(), &mut targets));
            done?;
            Ok(time)
        };
        runs.warm(|| run().map(drop))?;
        let mut times = Times::default();
        for _ in 0..runs.timed {
            times.push(run()?);
        }
        Ok(times)
    }

    /// Whether `repeats` runs of the same inputs give the same bits; outputs too large to read are sampled.
    pub(crate) fn same_bits(&self, repeats: usize) -> Result<(), Failure> {
        let mut first: Option<Vec<Data>> = None;
        for run in 0..repeats {
            let mut bits = Vec::new();
            for (_, output) in self.executable.time(self.inputs(0), 1)?.1 {
                for piece in pieces(output.ty(), READABLE) {
                    bits.push(output.read_elements(piece)?);
                }
            }
            let same = |a: &Vec<Data>| a.iter().zip(&bits).all(|(a, b)| a.as_bytes() == b.as_bytes());
            if first.as_ref().is_some_and(|first| !same(first)) {
                return Err(Failure::new(format!(
                    "run {run} of the same inputs gave other bits than the first"
                )));
            }
            first.get_or_insert(bits);
        }
        Ok(())
    }
}

/// An error if an output still has elements with all bits set, as `poison` leaves them.
fn check_written(name: &str, output: &DeviceTensor) -> Result<(), Failure> {
    let ty = output.ty();
    for piece in pieces(ty, PIECE * ty.dtype.size()) {
        let data = output.read_elements(piece.clone())?;
        let mut elements = data.as_bytes().chunks_exact(ty.dtype.size());
        let poisoned = |element: &[u8]| element.iter().all(|byte| *byte == 0xff);
        // An integer may well be -1, a whole piece of them not.
        let left = if ty.dtype.is_float() { elements.any(poisoned) } else { elements.all(poisoned) };
        if left && !piece.is_empty() {
            return Err(Failure::new(format!(
                "elements of `{name}` from {} on were not written",
                piece.start
            )));
        }
    }
    Ok(())
}

/// All elements of a tensor where they take no more than `most` bytes; else pieces from its beginning to its very end.
fn pieces(ty: TensorType, most: usize) -> Vec<Range<usize>> {
    let all = ty.shape.numel();
    if ty.bytes() <= most {
        return std::iter::once(0..all).collect();
    }
    let last = all.saturating_sub(PIECE);
    (0..PIECES).map(|i| last / (PIECES - 1) * i).chain([last]).map(|at| at..(at + PIECE).min(all)).collect()
}

/// From the first step's beginning to the last one's end.
pub(crate) fn span(steps: &[StepTime]) -> Duration {
    let begin = steps.iter().map(|s| s.start).min().unwrap_or_default();
    let end = steps.iter().map(|s| s.start + s.time).max().unwrap_or_default();
    end.saturating_sub(begin)
}

/// A graph of one output `y`.
pub(crate) fn graph(
    name: &str,
    body: impl FnOnce(&mut Graph) -> Result<ValueId, Error>,
) -> Result<Graph, Error> {
    let mut graph = Graph::new(name);
    let y = body(&mut graph)?;
    graph.output("y", y)?;
    Ok(graph)
}

#[cfg(test)]
pub(crate) fn step(node: &str, op: &'static str, start_us: u64, time_us: u64) -> StepTime {
    let mut step = StepTime::default();
    (step.node, step.op, step.kernel) = (node.into(), op, op.into());
    (step.start, step.time) = (Duration::from_micros(start_us), Duration::from_micros(time_us));
    step
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_spans_from_its_first_beginning_to_its_last_end() {
        assert_eq!(span(&[]), Duration::ZERO);
        let steps = [step("a", "add", 5, 10), step("b", "mul", 12, 20), step("c", "sum", 20, 3)];
        assert_eq!(span(&steps), Duration::from_micros(27));
    }

    #[test]
    fn long_outputs_are_looked_at_in_pieces_from_their_beginning_to_their_end() -> Result<(), Failure> {
        let ty = |n: usize| -> Result<TensorType, Failure> {
            Ok(TensorType::new(DType::F32, olivine::ir::Shape::new(&[n])?))
        };
        assert_eq!(pieces(ty(5)?, 20), vec![0..5; 1]);
        assert_eq!(pieces(ty(0)?, 20), vec![0..0; 1]);
        let long = pieces(ty(1_000_001)?, 20);
        assert_eq!((long[0].clone(), long[PIECES].end, long.len()), (0..PIECE, 1_000_001, PIECES + 1));
        assert_eq!(pieces(ty(7)?, 20)[0], 0..7, "shorter than one piece");
        Ok(())
    }

    #[test]
    fn a_subject_is_timed_on_every_set_and_gives_the_same_bits_again() -> Result<(), Failure> {
        let graph = graph("twice", |g| {
            let x = g.input("x", DType::F32, [8])?;
            g.add(x, x)
        })?;
        let session = Session::new(olivine::Device::Cpu)?;
        let subject = Subject::new(&session, &graph)?;
        assert_eq!(subject.sets.len(), SETS);
        subject.same_bits(3)?;
        assert_eq!(subject.device_times(Runs::QUICK)?.count(), 3);
        assert_eq!(subject.wall_times(Runs::QUICK)?.count(), 3);
        Ok(())
    }

    #[test]
    fn warming_up_goes_on_until_both_counts_and_time_are_reached() -> Result<(), Failure> {
        let mut count = 0;
        Runs { warmup: 4, warmup_time: Duration::ZERO, timed: 0 }.warm(|| {
            count += 1;
            Ok(())
        })?;
        assert_eq!(count, 4);
        Ok(())
    }
}
