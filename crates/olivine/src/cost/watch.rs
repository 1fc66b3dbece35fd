//! Real runs beside their predictions: where they are far apart, clocks or drivers have changed and the device is measured
//! again.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use web_time::Instant;

use super::store;
use crate::Session;

/// Runs that are not counted: the first ones load weights and raise clocks.
const FIRST: u32 = 3;
/// Runs that are timed after them; later ones cost nothing.
const TIMED: u32 = 9;
/// A calibration is doubted where the median of these runs is so many times its prediction, or so small a part.
const FAR: f64 = 3.0;

/// The first runs of an executable, timed where its session has a calibration. Two readings of a clock for each of twelve
/// runs, and an atomic load for the others.
#[derive(Default)]
pub(crate) struct Watch {
    runs: AtomicU32,
    busy: AtomicBool,
    times: Mutex<Vec<f64>>,
}

impl Watch {
    /// When a run that is to be timed begins; `None` for others. Runs that overlap are not timed.
    pub(crate) fn begin(&self, session: &Session) -> Option<Instant> {
        let is_over = self.runs.load(Ordering::Relaxed) >= FIRST + TIMED;
        if is_over || session.inner.calibration.get().is_none() || self.busy.swap(true, Ordering::Relaxed) {
            return None;
        }
        Some(Instant::now())
    }

    /// Counts a run that took so long; `predicted` is asked after the last that counts.
    pub(crate) fn end(
        &self,
        session: &Session,
        begun: Instant,
        predicted: impl FnOnce() -> Option<Duration>,
    ) {
        let took = begun.elapsed().as_secs_f64();
        let runs = self.runs.fetch_add(1, Ordering::Relaxed) + 1;
        let mut times = self.times.lock().unwrap_or_else(PoisonError::into_inner);
        if runs > FIRST {
            times.push(took);
        }
        self.busy.store(false, Ordering::Relaxed);
        if runs != FIRST + TIMED {
            return;
        }
        let mut times = std::mem::take(&mut *times);
        times.sort_by(f64::total_cmp);
        let median = times.get(times.len() / 2).copied();
        let (Some(median), Some(predicted)) = (median, predicted().map(|time| time.as_secs_f64())) else {
            return;
        };
        if is_far(median, predicted)
            && let Some(calibration) = session.inner.calibration.get()
        {
            tracing::debug!(
                median,
                predicted,
                "runs are far from their prediction: the device is to be measured again"
            );
            store::doubt(session, calibration);
        }
    }
}

/// Whether a time is out of all proportion to its prediction.
fn is_far(time: f64, predicted: f64) -> bool {
    predicted > 0.0 && time > 0.0 && (time > FAR * predicted || predicted > FAR * time)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_times_more_or_less_is_far() {
        assert!(is_far(3.1, 1.0) && is_far(1.0, 3.1));
        assert!(!is_far(2.9, 1.0) && !is_far(1.0, 2.9) && !is_far(1.0, 1.0));
        assert!(!is_far(0.0, 1.0) && !is_far(1.0, 0.0), "nothing was measured or predicted");
    }
}
