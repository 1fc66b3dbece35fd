//! A graph on a device with inputs that are there already, and the time its kernels take there.

use std::time::{Duration, Instant};

use olivine::ir::{Error, Graph, ValueId};
use olivine::{DeviceTensor, Executable, Session, StepTime};

use crate::answer::Failure;
use crate::source;
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

/// A compiled graph with seeded params and inputs on the device.
pub(crate) struct Subject {
    pub(crate) executable: Executable,
    inputs: Vec<(String, DeviceTensor)>,
}

impl Subject {
    pub(crate) fn new(session: &Session, graph: &Graph) -> Result<Self, Failure> {
        let executable = session.compile(graph)?;
        executable.set_params(source::params(graph)?)?;
        executable.load()?;
        let inputs = source::inputs(graph)?
            .iter()
            .map(|(name, tensor)| Ok((name.clone(), session.upload(tensor)?)))
            .collect::<Result<_, Failure>>()?;
        Ok(Subject { executable, inputs })
    }

    /// The inputs as they are.
    pub(crate) fn inputs(&self) -> impl Iterator<Item = (&str, &DeviceTensor)> {
        self.inputs.iter().map(|(name, tensor)| (name.as_str(), tensor))
    }

    /// Runs once with a timestamp around every dispatch; outputs stay on the device.
    pub(crate) fn profile(&self) -> Result<Vec<StepTime>, Failure> {
        Ok(self.executable.profile(self.inputs())?)
    }

    /// Time on the device from the first dispatch's beginning to the last one's end.
    pub(crate) fn device_times(&self, runs: Runs) -> Result<Times, Failure> {
        runs.warm(|| self.profile().map(drop))?;
        let mut times = Times::default();
        for _ in 0..runs.timed {
            times.push(span(&self.profile()?));
        }
        Ok(times)
    }

    /// Time from the call to its answer on the host.
    pub(crate) fn wall_times(&self, runs: Runs) -> Result<Times, Failure> {
        runs.warm(|| Ok(self.executable.run(self.inputs()).map(drop)?))?;
        let mut times = Times::default();
        for _ in 0..runs.timed {
            let (time, out) = timed(|| self.executable.run(self.inputs()));
            out?;
            times.push(time);
        }
        Ok(times)
    }
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
    StepTime {
        node: node.into(),
        op,
        kernel: op.into(),
        start: Duration::from_micros(start_us),
        time: Duration::from_micros(time_us),
        flops: 0,
        bytes: 0,
    }
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
