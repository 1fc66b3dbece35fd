//! The candidates of one graph's choices, timed one after another.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use olivine::internals::SessionExt as _;
use olivine::internals::gpu::{Decision, Record};
use olivine::ir::{Graph, Shape, Tensor};
use olivine::{CompileOptions, DeviceTensor, Executable, Session, StepTime};

use super::WORTH;
use super::shapes::Subject;
use crate::answer::Failure;
use crate::measure::{Runs, span};
use crate::noise::Noise;
use crate::timing::{Times, short};

/// A candidate that takes so many times the best one's time at first sight is not looked at again.
const HOPELESS: f64 = 1.25;
/// Timed runs at first sight.
const GLANCE: usize = 3;

/// What was found for a class.
pub(super) struct Found {
    pub(super) family: &'static str,
    pub(super) class: String,
    pub(super) default: String,
    pub(super) default_ms: f64,
    pub(super) best: String,
    pub(super) best_ms: f64,
    /// Candidates that ran.
    pub(super) tried: usize,
    /// Candidates that did not, and why.
    pub(super) notes: Vec<String>,
    /// Whether the record in use says something else than the best.
    news: bool,
}

impl Found {
    /// Whether it belongs in the record.
    pub(super) fn keep(&self) -> bool {
        self.news
    }
}

/// One graph on a device.
pub(super) struct Search<'a> {
    pub(super) session: &'a Session,
    pub(super) subject: &'a Subject,
    pub(super) runs: Runs,
    pub(super) family: Option<&'a str>,
}

impl Search<'_> {
    /// Times the candidates of every class that was not `seen`; the best go into `record` and, one by one, to `found`.
    pub(super) fn run(
        &mut self,
        record: &mut Record,
        seen: &mut HashSet<(&'static str, String)>,
        say: &mut dyn FnMut(&str),
        found: &mut dyn FnMut(Found) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let compiled = self.session.explain(&self.subject.graph)?;
        let program = self.session.program(&compiled)?;
        let decisions = program.map(|p| p.decisions).unwrap_or_default();
        if !decisions.iter().any(|d| self.is_new(d, seen)) {
            return Ok(());
        }
        let tensors = Tensors::new(&self.subject.graph, self.session)?;
        for decision in &decisions {
            if !self.is_new(decision, seen) {
                continue;
            }
            seen.insert((decision.family, decision.class.clone()));
            let alike = |d: &&Decision| (d.family, &d.class) == (decision.family, &decision.class);
            let nodes: HashSet<&str> = decisions.iter().filter(alike).map(|d| d.node.as_str()).collect();
            let row = self.class(decision, &nodes, &tensors, record, say)?;
            record.set(row.family, &row.class, &row.best);
            found(row)?;
        }
        Ok(())
    }

    /// Whether a choice is to be measured and was not yet.
    fn is_new(&self, decision: &Decision, seen: &HashSet<(&'static str, String)>) -> bool {
        let wanted = self.family.is_none_or(|family| family == decision.family);
        wanted && !seen.contains(&(decision.family, decision.class.clone()))
    }

    /// Finds the best candidate of a class that some nodes are of.
    fn class(
        &self,
        decision: &Decision,
        nodes: &HashSet<&str>,
        tensors: &Tensors,
        record: &Record,
        say: &mut dyn FnMut(&str),
    ) -> Result<Found, Failure> {
        let Decision { family, class, default, .. } = decision;
        let first = self.ready(decision, default, tensors, record)?;
        let default_ms = self.time(&first, nodes, self.runs)?.median();
        let reference = first.sample()?;
        drop(first);
        let (mut best, mut best_ms, mut tried, mut notes) = (default.clone(), default_ms, 1, Vec::new());
        for (i, candidate) in decision.candidates.iter().enumerate() {
            if candidate == default {
                continue;
            }
            say(&format!(
                "{family} {class}: {candidate} ({}/{}), best {best} {} ms, {:.2}x",
                i + 1,
                decision.candidates.len(),
                short(best_ms),
                default_ms / best_ms
            ));
            let attempt = || -> Result<Option<f64>, Failure> {
                let ready = self.ready(decision, candidate, tensors, record)?;
                let glance = Runs { warmup: 1, warmup_time: Duration::ZERO, timed: GLANCE };
                if self.time(&ready, nodes, glance)?.median() > best_ms * HOPELESS {
                    return Ok(None);
                }
                if !agree(&ready.sample()?, &reference) {
                    return Err(Failure::new("its results differ from the default's"));
                }
                Ok(Some(self.time(&ready, nodes, self.runs)?.median()))
            };
            match attempt() {
                Ok(Some(ms)) if ms < best_ms => (best, best_ms) = (candidate.clone(), ms),
                Ok(_) => {}
                Err(failure) => notes.push(format!("{candidate}: {}", failure.line())),
            }
            tried += 1;
        }
        // The clock wavers: what is hardly better is not worth another kernel.
        if best_ms > default_ms * (1.0 - WORTH) {
            (best, best_ms) = (default.clone(), default_ms);
        }
        tried -= notes.len();
        let (family, class, default) = (*family, class.clone(), default.clone());
        let news = best != decision.chosen;
        Ok(Found { family, class, default, default_ms, best, best_ms, tried, notes, news })
    }

    /// The graph compiled with one candidate, and its inputs on the device.
    fn ready<'t>(
        &self,
        decision: &Decision,
        candidate: &str,
        tensors: &'t Tensors,
        record: &Record,
    ) -> Result<Ready<'t>, Failure> {
        let mut record = record.clone();
        record.set(decision.family, &decision.class, candidate);
        let options = CompileOptions::new().tuning(Arc::new(record));
        let executable = self.session.compile_with(&self.subject.graph, &options)?;
        executable.set_params(tensors.params.iter().cloned())?;
        executable.load()?;
        Ok(Ready { executable, inputs: &tensors.inputs })
    }

    /// Time on the device of some nodes together.
    fn time(&self, ready: &Ready<'_>, nodes: &HashSet<&str>, runs: Runs) -> Result<Times, Failure> {
        runs.warm(|| ready.profile().map(drop))?;
        let mut times = Times::default();
        for _ in 0..runs.timed {
            let steps = ready.profile()?;
            let of = |node: &str| {
                let own: Vec<StepTime> = steps.iter().filter(|s| s.node == node).cloned().collect();
                span(&own)
            };
            times.push(nodes.iter().map(|node| of(node)).sum());
        }
        Ok(times)
    }
}

/// An executable and what it is run on.
struct Ready<'t> {
    executable: Executable,
    inputs: &'t [(String, DeviceTensor)],
}

impl Ready<'_> {
    fn inputs(&self) -> impl Iterator<Item = (&str, &DeviceTensor)> {
        self.inputs.iter().map(|(name, tensor)| (name.as_str(), tensor))
    }

    fn profile(&self) -> Result<Vec<StepTime>, Failure> {
        Ok(self.executable.profile(self.inputs())?)
    }

    /// The first elements of the first output.
    fn sample(&self) -> Result<Vec<f64>, Failure> {
        let outputs = self.executable.run_resident(self.inputs())?;
        let Ok(tensor) = outputs.at(0) else { return Ok(Vec::new()) };
        let all = tensor.ty().shape.numel();
        let count = all.min(4096);
        let data = tensor.read_elements(0..count)?;
        Ok(Tensor::from_data(Shape::new(&[count])?, data)?.to_f64())
    }
}

/// Whether two results are the same but for the order of their sums.
fn agree(got: &[f64], expected: &[f64]) -> bool {
    let size = (expected.iter().map(|x| x * x).sum::<f64>() / expected.len().max(1) as f64).sqrt();
    got.len() == expected.len()
        && got.iter().zip(expected).all(|(a, b)| (a - b).abs() <= 0.02 * size.max(b.abs()) || a == b)
}

/// Random inputs, on the device, and params of a graph.
struct Tensors {
    inputs: Vec<(String, DeviceTensor)>,
    params: Vec<(String, Tensor)>,
}

impl Tensors {
    fn new(graph: &Graph, session: &Session) -> Result<Self, Failure> {
        let mut noise = Noise::default();
        let params = noise.params(graph)?;
        let mut inputs = Vec::new();
        for (name, tensor) in noise.inputs(graph)? {
            inputs.push((name, session.upload(&tensor)?));
        }
        Ok(Tensors { inputs, params })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_agree_up_to_rounding_and_no_further() {
        assert!(agree(&[1.0, -2.001], &[1.0, -2.0]));
        assert!(!agree(&[1.0, -1.5], &[1.0, -2.0]));
        assert!(!agree(&[f64::NAN, 1.0], &[0.0, 1.0]));
        assert!(!agree(&[1.0], &[1.0, 1.0]));
        assert!(agree(&[0.0; 3], &[0.0; 3]));
        assert!(!agree(&[1.0; 3], &[0.0; 3]));
    }
}
