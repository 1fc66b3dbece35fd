//! What a run will take: the times of its steps, looked up in what was measured.

use std::time::Duration;

use olivine_ir::DType;

use super::calibration::{Calibration, Rates};
use super::work::{Family, Work};
use crate::engine::Lowered;

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
    /// What a run of a lowered graph will take.
    pub(crate) fn predict(&self, lowered: &Lowered) -> Prediction {
        let alone = self.rates.iter().min_by_key(|rates| rates.threads);
        let all = self.rates.iter().max_by_key(|rates| rates.threads);
        let (Some(alone), Some(all)) = (alone, all) else { return Prediction::default() };
        // Of the time that all threads save over one, so many of them save a part.
        let most = all.threads.max(1) as f64;
        let width = (lowered.width.max(1) as f64).min(most);
        let share = if most > 1.0 { (1.0 - 1.0 / width) / (1.0 - 1.0 / most) } else { 1.0 };
        let between = |alone: f64, all: f64| alone + share * (all - alone);
        let works = lowered.steps.iter().flat_map(|step| std::iter::once(&step.work).chain(&step.inner));
        let stored: u64 = works.map(|work| work.stored).fold(0, u64::saturating_add);
        let seconds = |s: f64| Duration::try_from_secs_f64(s).unwrap_or(Duration::MAX);
        let mut steps = Vec::with_capacity(lowered.steps.len());
        for step in &lowered.steps {
            let (mut time_alone, bound_alone) = alone.step(&step.work, stored);
            let (mut time_all, bound_all) = all.step(&step.work, stored);
            for work in &step.inner {
                time_alone += alone.step(work, stored).0;
                time_all += all.step(work, stored).0;
            }
            steps.push(StepPrediction {
                node: step.node.clone(),
                op: step.op,
                kernel: step.kernel.clone(),
                time: seconds(between(time_alone, time_all)),
                bound: if share < 0.5 { bound_alone } else { bound_all },
                work: step.work,
            });
        }
        let run = seconds(between(alone.run, all.run));
        let moved = all.upload * lowered.sent as f64 + all.download * lowered.received as f64;
        let transfers = seconds(moved);
        let total = run + transfers + steps.iter().map(|step| step.time).sum::<Duration>();
        Prediction { total, run, transfers, steps }
    }
}

impl Rates {
    /// Seconds of a step in a run that reads so many bytes of weights, and what they go into.
    fn step(&self, work: &Work, stored: u64) -> (f64, Bound) {
        let launch = self.dispatch + if work.waits { self.barrier } else { 0.0 };
        let by_flops = |row: &str| self.by_flops(row, work.flops as f64);
        let by_bytes = |row: &str| self.by_bytes(row, work, stored);
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
            Family::Conv => (by_bytes("copy"), by_flops("conv")),
            Family::Depthwise => (by_bytes("copy"), by_flops("depthwise")),
            Family::Pool => (by_bytes("copy"), by_flops("pool")),
            Family::Attention => (by_bytes("copy"), by_flops("attention")),
            Family::Rows => (by_bytes("rows"), by_flops("arithmetic")),
            Family::Movement => (by_bytes("movement"), 0.0),
            Family::Recurrence => (by_bytes("gemv"), by_flops("recurrence")),
        };
        let (body, bound) =
            if memory >= arithmetic { (memory, Bound::Memory) } else { (arithmetic, Bound::Arithmetic) };
        (launch + body, if launch > body { Bound::Launch } else { bound })
    }

    fn by_flops(&self, row: &str, flops: f64) -> f64 {
        let curve = self.rows.get(row).or_else(|| self.rows.get("arithmetic"));
        curve.and_then(|curve| curve.time(flops)).unwrap_or(0.0)
    }

    /// Results of earlier steps come from caches as their size allows; weights as the size of all weights allows, which
    /// a run reads once each.
    fn by_bytes(&self, row: &str, work: &Work, stored: u64) -> f64 {
        let Some(curve) = self.rows.get(row).or_else(|| self.rows.get("copy")) else { return 0.0 };
        let (bytes, own) = (work.bytes as f64, work.stored as f64);
        if bytes == 0.0 {
            return 0.0;
        }
        let all = (stored as f64).max(bytes);
        let passing = curve.time(bytes).unwrap_or(0.0) * (bytes - own) / bytes;
        let weights = curve.time(all).unwrap_or(0.0) * own / all;
        passing + weights
    }
}
