//! Profiled runs as medians by dispatch, and together by operation and kernel.

use std::collections::BTreeMap;

use olivine::StepTime;
use olivine::cost::StepPrediction;

use crate::measure::span;
use crate::timing::{Times, ms};

/// One dispatch over all runs.
#[derive(Clone, Debug)]
pub(crate) struct Step {
    pub(crate) node: String,
    pub(crate) op: &'static str,
    pub(crate) kernel: String,
    /// Median over the runs.
    pub(crate) ms: f64,
    /// What it was predicted to take.
    pub(crate) predicted: f64,
    pub(crate) flops: u64,
    pub(crate) bytes: u64,
}

/// Dispatches of one operation and kernel together.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Group {
    pub(crate) op: &'static str,
    pub(crate) kernel: String,
    pub(crate) count: usize,
    pub(crate) ms: f64,
    pub(crate) predicted: f64,
    pub(crate) flops: u64,
    pub(crate) bytes: u64,
}

/// Every dispatch with its median time, in the order they run.
pub(crate) fn medians(runs: &[Vec<StepTime>], predicted: &[StepPrediction]) -> Vec<Step> {
    let Some(first) = runs.first() else { return Vec::new() };
    let step = |(i, step): (usize, &StepTime)| {
        let mut times = Times::default();
        runs.iter().filter_map(|run| run.get(i)).for_each(|s| times.push(s.time));
        Step {
            node: step.node.clone(),
            op: step.op,
            kernel: step.kernel.clone(),
            ms: times.median(),
            predicted: predicted.get(i).map_or(f64::NAN, |step| ms(step.time)),
            flops: step.flops,
            bytes: step.bytes,
        }
    };
    first.iter().enumerate().map(step).collect()
}

/// Dispatches together by operation and kernel, most time first.
pub(crate) fn groups(steps: &[Step]) -> Vec<Group> {
    groups_by(steps, |_| 0)
}

/// The same, those that move as many bytes together.
pub(crate) fn groups_by_size(steps: &[Step]) -> Vec<Group> {
    groups_by(steps, |step| step.bytes)
}

fn groups_by(steps: &[Step], size: impl Fn(&Step) -> u64) -> Vec<Group> {
    let mut groups: BTreeMap<(&str, &str, u64), Group> = BTreeMap::new();
    for step in steps {
        let group = groups.entry((step.op, &step.kernel, size(step))).or_insert_with(|| Group {
            op: step.op,
            kernel: step.kernel.clone(),
            count: 0,
            ms: 0.0,
            predicted: 0.0,
            flops: 0,
            bytes: 0,
        });
        group.count += 1;
        group.ms += step.ms;
        group.predicted += step.predicted;
        group.flops = group.flops.saturating_add(step.flops);
        group.bytes = group.bytes.saturating_add(step.bytes);
    }
    let mut groups: Vec<Group> = groups.into_values().collect();
    groups.sort_by(|a, b| b.ms.total_cmp(&a.ms));
    groups
}

/// The slowest dispatches, slowest first.
pub(crate) fn slowest(steps: &[Step], most: usize) -> Vec<&Step> {
    let mut slowest: Vec<&Step> = steps.iter().collect();
    slowest.sort_by(|a, b| b.ms.total_cmp(&a.ms));
    slowest.truncate(most);
    slowest
}

/// Times of whole runs on the device, and the run in the middle.
pub(crate) fn middle(runs: &[Vec<StepTime>]) -> (Times, &[StepTime]) {
    let mut times = Times::default();
    runs.iter().for_each(|run| times.push(span(run)));
    let mut order: Vec<&Vec<StepTime>> = runs.iter().collect();
    order.sort_by(|a, b| ms(span(a)).total_cmp(&ms(span(b))));
    (times, order.get(order.len() / 2).map_or(&[], |run| run.as_slice()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::step;

    #[test]
    fn a_dispatch_has_its_median_and_groups_add_up() {
        let run = |a, b, c| vec![step("x", "add", 0, a), step("y", "mul", 10, b), step("z", "add", 50, c)];
        let runs = [run(1000, 2000, 500), run(3000, 2000, 700), run(2000, 9000, 600)];
        let steps = medians(&runs, &[]);
        assert_eq!(steps.iter().map(|s| s.ms).collect::<Vec<_>>(), [2.0, 2.0, 0.6]);
        let groups = groups(&steps);
        assert_eq!(groups.iter().map(|g| (g.op, g.count)).collect::<Vec<_>>(), [("add", 2), ("mul", 1)]);
        assert!((groups[0].ms - 2.6).abs() < 1e-9);
        assert_eq!(slowest(&steps, 2).iter().map(|s| s.node.as_str()).collect::<Vec<_>>(), ["x", "y"]);
    }

    #[test]
    fn the_middle_run_is_the_one_of_median_length() {
        let runs = [vec![step("a", "add", 0, 9)], vec![step("b", "add", 0, 1)], vec![step("c", "add", 0, 5)]];
        let (times, run) = middle(&runs);
        assert_eq!((times.median(), run[0].node.as_str()), (0.005, "c"));
    }

    #[test]
    fn no_runs_are_no_dispatches() {
        assert!(medians(&[], &[]).is_empty() && groups(&[]).is_empty() && slowest(&[], 3).is_empty());
        assert!(middle(&[]).1.is_empty());
        assert!(medians(&[vec![]], &[]).is_empty());
    }
}
