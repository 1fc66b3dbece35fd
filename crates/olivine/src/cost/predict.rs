//! What a run will take: the times of its steps, looked up in what was measured.

use std::collections::HashMap;
use std::time::Duration;

use olivine_ir::DType;

use super::calibration::{Calibration, Rates};
use super::curve::Curve;
use super::work::{Family, Work};
use crate::engine::{Branch, Lowered, Site};

/// What the time of a step goes into.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Bound {
    /// Moving bytes.
    Memory,
    /// Arithmetic.
    Arithmetic,
    /// Beginning the step and waiting for the one before.
    Launch,
}

impl Bound {
    /// In a word.
    pub fn name(self) -> &'static str {
        match self {
            Bound::Memory => "memory",
            Bound::Arithmetic => "arithmetic",
            Bound::Launch => "launch",
        }
    }
}

/// What a run will take on a device.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Prediction {
    /// From inputs on the host to outputs on the host.
    pub total: Duration,
    /// Of that, to submit and wait.
    pub run: Duration,
    /// Of that, inputs to the device and outputs back.
    pub transfers: Duration,
    /// The steps, in order.
    pub steps: Vec<StepPrediction>,
}

/// What a step of a run will take.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct StepPrediction {
    /// The node.
    pub node: String,
    /// The operation.
    pub op: &'static str,
    /// The GPU kernel; the operation again on the CPU.
    pub kernel: String,
    /// Its time.
    pub time: Duration,
    /// What that goes into.
    pub bound: Bound,
    /// What it does.
    pub work: Work,
}

impl Prediction {
    /// The time of all steps.
    pub fn steps_time(&self) -> Duration {
        self.steps.iter().map(|step| step.time).sum()
    }

    /// Why it takes as long as it does, in words: the part that takes the most.
    pub fn reason(&self) -> String {
        let of = |bound: Bound| -> Duration {
            self.steps.iter().filter(|step| step.bound == bound).map(|step| step.time).sum()
        };
        let parts = [
            (self.run, "starting a run".to_string()),
            (self.transfers, "transfers".into()),
            (of(Bound::Memory), "moving memory".into()),
            (of(Bound::Arithmetic), "arithmetic".into()),
            (of(Bound::Launch), format!("launching {} steps", self.steps.len())),
        ];
        let share = |part: Duration| 100.0 * part.as_secs_f64() / self.total.as_secs_f64().max(1e-12);
        let most = parts.into_iter().max_by_key(|(time, _)| *time);
        most.map_or(String::new(), |(time, what)| format!("{:.0} % {what}", share(time)))
    }

    /// Adds a run before or after this one.
    pub(crate) fn add(&mut self, other: Prediction) {
        self.total += other.total;
        self.run += other.run;
        self.transfers += other.transfers;
        self.steps.extend(other.steps);
    }
}

impl Calibration {
    /// The measured numbers of threads around one.
    fn around(&self, threads: usize) -> Option<Between<'_>> {
        let fewer = self.rates.iter().filter(|rates| rates.threads <= threads.max(1));
        let fewer = fewer.max_by_key(|rates| rates.threads);
        let more =
            self.rates.iter().filter(|rates| rates.threads >= threads).min_by_key(|rates| rates.threads);
        let (fewer, more) = (fewer.or(more)?, more.or(fewer)?);
        // What can be divided takes a part of the time by each thread.
        let part = |threads: usize| 1.0 / threads.max(1) as f64;
        let saved = part(fewer.threads) - part(more.threads);
        let share = if saved > 0.0 { (part(fewer.threads) - part(threads)) / saved } else { 1.0 };
        Some(Between { fewer, more, share })
    }

    /// What a run of a lowered graph will take; steps on the host by the host's own calibration.
    pub(crate) fn predict(&self, lowered: &Lowered, host: Option<&Calibration>) -> Prediction {
        let Some(Between { fewer, more, share }) = self.around(lowered.width) else {
            return Prediction::default();
        };
        let between = |fewer: f64, more: f64| fewer + share * (more - fewer);
        let works = lowered.steps.iter().flat_map(|step| std::iter::once(&step.work).chain(&step.inner));
        let run = Traffic::of(works);
        let seconds = |s: f64| Duration::try_from_secs_f64(s).unwrap_or(Duration::MAX);
        let mut steps = Vec::with_capacity(lowered.steps.len());
        for step in &lowered.steps {
            let bytes = step.work.bytes as f64;
            let by_host = host.and_then(|host| host.rates.iter().max_by_key(|rates| rates.threads));
            let (fewer, more) = match (step.site, by_host) {
                (Site::Host, Some(host)) => (host, host),
                _ => (fewer, more),
            };
            let of_step = |rates: &Rates| match step.site {
                Site::Device | Site::Host => rates.step(&step.work, &run),
                Site::ToHost => (rates.download * bytes, Bound::Memory),
                Site::ToDevice => (rates.upload * bytes, Bound::Memory),
            };
            let (mut by_fewer, bound_by_fewer) = of_step(fewer);
            let (mut by_more, bound_by_more) = of_step(more);
            for work in &step.inner {
                by_fewer += fewer.step(work, &run).0 * work.times as f64;
                by_more += more.step(work, &run).0 * work.times as f64;
            }
            steps.push(StepPrediction {
                node: step.node.clone(),
                op: step.op,
                kernel: step.kernel.clone(),
                time: seconds(between(by_fewer, by_more)),
                bound: if share < 0.5 { bound_by_fewer } else { bound_by_more },
                work: step.work,
            });
        }
        let closed = closed(lowered, &steps);
        for (step, is_closed) in steps.iter_mut().zip(closed) {
            if is_closed {
                step.time = step.time.min(seconds(more.launch(&step.work)));
                step.bound = Bound::Launch;
            }
        }
        let run = seconds(between(fewer.run, more.run) * lowered.submissions.max(1) as f64);
        let moved = more.upload * lowered.sent as f64 + more.download * lowered.received as f64;
        let transfers = seconds(moved);
        let total = run + transfers + steps.iter().map(|step| step.time).sum::<Duration>();
        Prediction { total, run, transfers, steps }
    }
}

/// What is written and read again had so many times its bytes moved in between, if the run moves that many. A measured kernel
/// reads again at once what it read before.
const BETWEEN_USES: f64 = 4.0;

/// Bytes that all steps of a run move.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Traffic {
    /// Of weights and constants.
    stored: u64,
    /// All others.
    passing: u64,
}

impl Traffic {
    pub(crate) fn of<'a>(works: impl Iterator<Item = &'a Work>) -> Self {
        works.fold(Traffic::default(), |all, work| Traffic {
            stored: all.stored.saturating_add(work.stored),
            passing: all.passing.saturating_add(work.bytes - work.stored.min(work.bytes)),
        })
    }
}

/// Two measured numbers of threads, one no larger and one no smaller than that of a run.
struct Between<'a> {
    fewer: &'a Rates,
    more: &'a Rates,
    /// Of the time that the larger number saves over the smaller, the part that the run's number saves.
    share: f64,
}

/// For every step whether it belongs to the branch of an `if` that is taken not to run: the one that takes less time. Which one
/// a run takes is not known; the longer is right where it is taken, and no promise is made that half of the runs break.
fn closed(lowered: &Lowered, steps: &[StepPrediction]) -> Vec<bool> {
    let mut times: HashMap<usize, [Duration; 2]> = HashMap::new();
    for (step, predicted) in lowered.steps.iter().zip(steps) {
        if let Some(branch) = step.branch {
            times.entry(branch.gate).or_default()[usize::from(branch.second)] += predicted.time;
        }
    }
    let is_closed = |branch: &Branch| {
        let [first, second] = times.get(&branch.gate).copied().unwrap_or_default();
        branch.second != (second > first)
    };
    lowered.steps.iter().map(|step| step.branch.as_ref().is_some_and(is_closed)).collect()
}

impl Rates {
    /// Seconds of a step beside its work.
    pub(crate) fn launch(&self, work: &Work) -> f64 {
        self.dispatch + if work.waits { self.barrier } else { 0.0 }
    }

    /// Seconds of a step of a run, and what they go into.
    fn step(&self, work: &Work, run: &Traffic) -> (f64, Bound) {
        let (launch, (body, bound)) = (self.launch(work), self.body(work, run));
        (launch + body, if launch > body { Bound::Launch } else { bound })
    }

    /// The same without its launch.
    pub(crate) fn body(&self, work: &Work, run: &Traffic) -> (f64, Bound) {
        let by_flops = |row: &str| self.by_flops(row, work.flops as f64);
        let by_bytes = |row: &str| self.by_bytes(row, row, work, run);
        let (memory, arithmetic) = match work.family {
            Family::Elementwise => {
                let functions = self.by_flops("functions", work.functions as f64);
                let plain = work.flops.saturating_sub(work.functions) as f64;
                (by_bytes("copy"), self.by_flops("arithmetic", plain) + functions)
            }
            Family::Matmul => {
                let dtype = if work.dtype == DType::U8 { DType::I8 } else { work.dtype };
                let typed = format!("matmul {dtype}");
                let row = if self.rows.contains_key(&typed) { typed.as_str() } else { "matmul f32" };
                (by_bytes("gemv"), by_flops(row))
            }
            Family::Gemv => (by_bytes("gemv"), by_flops("matmul f32")),
            // Filters of a convolution with few positions take longer to read than to multiply.
            Family::Conv | Family::Pointwise | Family::FewChannels => {
                let row = match work.family {
                    Family::Pointwise => "conv pointwise",
                    Family::FewChannels => "conv few",
                    _ => "conv",
                };
                let row = if self.rows.contains_key(row) { row } else { "conv" };
                (self.by_bytes("copy", "conv short", work, run), by_flops(row))
            }
            Family::Depthwise => (by_bytes("copy"), by_flops("depthwise")),
            Family::Pool => (by_bytes("copy"), by_flops("pool")),
            Family::Attention => (by_bytes("copy"), by_flops("attention")),
            Family::Rows => (by_bytes("rows"), by_flops("arithmetic")),
            Family::Movement => (by_bytes("movement"), 0.0),
            Family::Recurrence => (by_bytes("gemv"), by_flops("recurrence")),
        };
        let (body, bound) =
            if memory >= arithmetic { (memory, Bound::Memory) } else { (arithmetic, Bound::Arithmetic) };
        // Weights that are laid out in the run are read and written like a transpose's elements, before all else.
        let repacked =
            self.row("movement").and_then(|row| row.time(2.0 * work.repacked as f64)).unwrap_or(0.0);
        let bound = if repacked > body { Bound::Memory } else { bound };
        (body + repacked, bound)
    }

    /// A row by bytes, or that of copies where it was not measured.
    fn row(&self, row: &str) -> Option<&Curve> {
        self.rows.get(row).or_else(|| self.rows.get("copy"))
    }

    fn by_flops(&self, row: &str, flops: f64) -> f64 {
        let curve = self.rows.get(row).or_else(|| self.rows.get("arithmetic"));
        curve.and_then(|curve| curve.time(flops)).unwrap_or(0.0)
    }

    /// Results of earlier steps come from caches as their size allows, with that of what other steps moved in between; weights,
    /// which have a row of their own, as the size of all weights allows, which a run reads once each.
    fn by_bytes(&self, row: &str, weights: &str, work: &Work, run: &Traffic) -> f64 {
        let (bytes, own) = (work.bytes as f64, work.stored as f64);
        if bytes == 0.0 {
            return 0.0;
        }
        let all = (run.stored as f64).max(bytes);
        let around = (run.passing as f64).min(BETWEEN_USES * bytes).max(bytes);
        let time = |row: &str, bytes: f64| self.row(row).and_then(|curve| curve.time(bytes)).unwrap_or(0.0);
        let passing = time(row, around) * (bytes - own) / around;
        passing + time(weights, all) * own / all
    }
}

#[cfg(test)]
mod tests {
    use super::super::calibration::tests::synthetic;
    use super::*;
    use crate::engine::LoweredStep;

    fn work(bytes: u64) -> Work {
        let (family, dtype) = (Family::Elementwise, DType::F32);
        Work { family, dtype, flops: 0, functions: 0, bytes, stored: 0, repacked: 0, waits: true, times: 1 }
    }

    fn step(bytes: u64, branch: Option<Branch>, inner: Vec<Work>) -> LoweredStep {
        let (work, site) = (work(bytes), Site::Device);
        LoweredStep { node: "n".into(), op: "neg", kernel: "neg".into(), work, inner, branch, site }
    }

    fn total(steps: Vec<LoweredStep>) -> f64 {
        let lowered = Lowered { steps, width: 1, submissions: 1, ..Lowered::default() };
        let prediction = synthetic(1e9).predict(&lowered, None);
        (prediction.total - prediction.run).as_secs_f64()
    }

    #[test]
    fn what_other_steps_move_in_between_is_in_the_cache_too() {
        // A cache of 1 MB: ten times as fast.
        let mut device = synthetic(1e9);
        let curve = Curve::new([(1e3, 1e-7), (1e6, 1e-4), (2e6, 2e-3), (1e9, 1.0)]);
        device.rates.iter_mut().for_each(|rates| drop(rates.rows.insert("copy".into(), curve.clone())));
        let time = |others: usize| {
            let steps: Vec<LoweredStep> = (0..=others).map(|_| step(500_000, None, Vec::new())).collect();
            let lowered = Lowered { steps, width: 1, submissions: 1, ..Lowered::default() };
            let first = device.predict(&lowered, None).steps.first().map(|step| step.time.as_secs_f64());
            first.unwrap_or_default() - 3e-6
        };
        assert!((time(0) - 5e-5).abs() < 1e-7, "alone it stays in the cache: {}", time(0));
        assert!((time(3) - 5e-4).abs() < 1e-7, "{}", time(3));
        assert_eq!(time(3), time(99));
    }

    #[test]
    fn threads_between_measured_numbers_of_them_take_a_time_between() {
        let (one, four) = (synthetic(1e9), synthetic(4e9));
        let of = |calibration: &Calibration, threads: usize| {
            let rates = calibration.rates.first().cloned().unwrap_or_default();
            Rates { threads, ..rates }
        };
        let both = Calibration { rates: vec![of(&one, 1), of(&four, 4)], ..one.clone() };
        let time = |width: usize| {
            let steps = vec![step(1_000_000, None, Vec::new())];
            let lowered = Lowered { steps, width, submissions: 1, ..Lowered::default() };
            both.predict(&lowered, None).steps_time().as_secs_f64() - 3e-6
        };
        for (width, expected) in [(1, 1e-3), (2, 5e-4), (4, 2.5e-4), (16, 2.5e-4)] {
            assert!((time(width) - expected).abs() < 1e-7, "{width}: {}", time(width));
        }
    }

    #[test]
    fn of_two_branches_the_longer_counts_and_the_other_is_launched() {
        let branch = |second| Some(Branch { gate: 0, second });
        for second in [false, true] {
            let steps = vec![
                step(0, None, Vec::new()),
                step(1_000_000, branch(second), Vec::new()),
                step(2000, branch(!second), Vec::new()),
                step(1000, None, Vec::new()),
            ];
            // A step that waits takes three microseconds beside its work.
            let time = total(steps);
            assert!((time - (4.0 * 3e-6 + 1e-3 + 1e-6)).abs() < 1e-8, "{time}");
        }
    }

    #[test]
    fn iterations_count_each_and_weights_that_are_laid_out_in_the_run_too() {
        let inner = vec![Work { times: 10, ..work(1_000_000) }];
        let time = total(vec![step(0, None, inner)]);
        assert!((time - (3e-6 + 10.0 * (3e-6 + 1e-3))).abs() < 1e-8, "{time}");
        let mut packed = step(1000, None, Vec::new());
        packed.work.repacked = 500_000;
        let time = total(vec![packed]);
        assert!((time - (3e-6 + 1e-6 + 1e-3)).abs() < 1e-8, "{time}");
    }

    #[test]
    fn steps_on_the_host_take_what_the_host_takes_and_copies_their_transfer() {
        let at = |site, bytes| LoweredStep { site, ..step(bytes, None, Vec::new()) };
        let steps = vec![
            at(Site::Device, 1_000_000),
            at(Site::ToHost, 1000),
            at(Site::Host, 1_000_000),
            at(Site::ToDevice, 1000),
            at(Site::Device, 0),
        ];
        let lowered = Lowered { steps, width: 1, submissions: 2, ..Lowered::default() };
        let prediction = synthetic(1e9).predict(&lowered, Some(&synthetic(1e10)));
        assert!((prediction.run.as_secs_f64() - 2e-5).abs() < 1e-9, "two submissions");
        let times: Vec<f64> = prediction.steps.iter().map(|step| step.time.as_secs_f64()).collect();
        let expected = [1e-3 + 3e-6, 2e-7, 1e-4 + 3e-6, 1e-7, 3e-6];
        let is_near = |(a, b): (&f64, &f64)| (a - b).abs() < 1e-8;
        assert!(times.iter().zip(&expected).all(is_near), "{times:?}");
    }
}
