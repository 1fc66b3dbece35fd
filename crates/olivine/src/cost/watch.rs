//! Real runs beside their predictions: where they are far apart, clocks or drivers have changed and the device is measured
//! again.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use web_time::Instant;

use super::calibration::Calibration;
use super::store;
use crate::Session;
use crate::engine::{Lowered, Prepared};

/// Runs that are not counted: the first ones load weights and raise clocks.
const FIRST: u32 = 3;
/// Runs that are timed after them; later ones cost nothing.
const TIMED: u32 = 9;
/// Timed runs that are enough to doubt a calibration: others overlapped, or were the first of their sizes.
const ENOUGH: usize = 3;
/// A calibration is doubted where the median of the runs is so many times its prediction, or so small a part.
const FAR: f64 = 3.0;

/// The first runs of an executable, timed where a calibration of its device is known. Two readings of a clock for each of twelve
/// runs, and an atomic load for the others.
#[derive(Default)]
pub(crate) struct Watch {
    /// Runs that were begun.
    begun: AtomicU32,
    in_flight: AtomicU32,
    /// What has run, and how long it took.
    runs: Mutex<Vec<TimedRun>>,
}

/// A run that was timed.
struct TimedRun {
    /// Plans may go while their executable stays; a run of one that has gone does not count.
    of: Weak<dyn Prepared>,
    moved: Moved,
    /// Seconds; `None` of a run that other runs overlapped, or the first of its sizes.
    took: Option<f64>,
}

/// Bytes that a run moves between the host and the device.
#[derive(Clone, Copy, Default)]
pub(crate) struct Moved {
    pub(crate) sent: u64,
    pub(crate) received: u64,
}

/// A run that is watched. One that is dropped before its end does not count.
pub(crate) struct WatchedRun {
    watch: Arc<Watch>,
    number: u32,
    /// Whether no other was in flight when it began.
    alone: bool,
    of: Weak<dyn Prepared>,
    moved: Moved,
    begun: Instant,
}

impl Watch {
    /// A run that is watched and begins now; `None` for later ones, and where no calibration is known.
    pub(crate) fn begin(
        self: &Arc<Self>,
        session: &Session,
        of: &Arc<dyn Prepared>,
        moved: impl FnOnce() -> Moved,
    ) -> Option<WatchedRun> {
        // A browser cannot wait for a run.
        if cfg!(target_arch = "wasm32") || self.begun.load(Ordering::Relaxed) >= FIRST + TIMED {
            return None;
        }
        store::stored(session)?;
        let number = self.begun.fetch_add(1, Ordering::Relaxed) + 1;
        let alone = self.in_flight.fetch_add(1, Ordering::Relaxed) == 0;
        let (watch, of, moved) = (self.clone(), Arc::downgrade(of), moved());
        Some(WatchedRun { watch, number, alone, of, moved, begun: Instant::now() })
    }
}

impl WatchedRun {
    /// The run has ended. After the last that is watched all are compared with their predictions.
    pub(crate) fn end(self, session: &Session) {
        let took = self.begun.elapsed().as_secs_f64();
        let alone = self.alone && self.watch.begun.load(Ordering::Relaxed) == self.number;
        let mut runs = self.watch.runs.lock().unwrap_or_else(PoisonError::into_inner);
        let is_first = !runs.iter().any(|run| Weak::ptr_eq(&run.of, &self.of));
        let counts = alone && !is_first && self.number > FIRST;
        let took = counts.then_some(took);
        runs.push(TimedRun { of: self.of.clone(), moved: self.moved, took });
        if self.number < FIRST + TIMED {
            return;
        }
        let runs = std::mem::take(&mut *runs);
        let Some(calibration) = session.inner.calibration.get() else { return };
        let mut ratios = ratios(&runs, &calibration);
        ratios.sort_by(f64::total_cmp);
        let Some(median) = ratios.get(ratios.len() / 2).filter(|_| ratios.len() >= ENOUGH) else { return };
        if is_far(*median) {
            tracing::debug!(
                median,
                "runs are far from their predictions: the device is to be measured again"
            );
            store::doubt(session, &calibration);
        }
    }
}

impl Drop for WatchedRun {
    fn drop(&mut self) {
        self.watch.in_flight.fetch_sub(1, Ordering::Relaxed);
    }
}

/// What timed runs took, each divided by its own prediction.
fn ratios(runs: &[TimedRun], calibration: &Calibration) -> Vec<f64> {
    let mut known: Vec<(Arc<dyn Prepared>, Lowered)> = Vec::new();
    let mut ratios = Vec::new();
    for (run, took) in runs.iter().filter_map(|run| Some((run, run.took?))) {
        let Some(of) = run.of.upgrade() else { continue };
        let at = known.iter().position(|(other, _)| Arc::ptr_eq(other, &of)).unwrap_or_else(|| {
            let lowered = of.lowered();
            known.push((of, lowered));
            known.len() - 1
        });
        let Some((_, lowered)) = known.get_mut(at) else { continue };
        // What the host takes is not this calibration's to say.
        if lowered.has_host_steps() {
            continue;
        }
        (lowered.sent, lowered.received) = (run.moved.sent, run.moved.received);
        ratios.push(ratio(took, calibration.predict(lowered, None).total));
    }
    ratios
}

/// How many times its prediction a run took; 1 where nothing was predicted.
fn ratio(took: f64, predicted: Duration) -> f64 {
    let predicted = predicted.as_secs_f64();
    if predicted > 0.0 && took > 0.0 { took / predicted } else { 1.0 }
}

/// Whether times are out of all proportion to their predictions.
fn is_far(ratio: f64) -> bool {
    !(1.0 / FAR..=FAR).contains(&ratio)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_times_more_or_less_is_far() {
        let is_far = |took: f64, predicted: f64| is_far(ratio(took, Duration::from_secs_f64(predicted)));
        assert!(is_far(3.1, 1.0) && is_far(1.0, 3.1));
        assert!(!is_far(2.9, 1.0) && !is_far(1.0, 2.9) && !is_far(1.0, 1.0));
        assert!(!is_far(0.0, 1.0) && !is_far(1.0, 0.0), "nothing was measured or predicted");
    }
}
