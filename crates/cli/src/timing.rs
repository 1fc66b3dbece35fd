//! Times and how they are written.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

use crate::answer::Failure;

static START: OnceLock<Instant> = OnceLock::new();

/// When the process began; the first call, at the head of `main`, sets it.
pub(crate) fn process_started() -> Instant {
    *START.get_or_init(Instant::now)
}

/// Times of repeated runs.
#[derive(Clone, Debug, Default)]
pub(crate) struct Times {
    sorted: Vec<f64>,
}

impl Times {
    pub(crate) fn push(&mut self, time: Duration) {
        let ms = time.as_secs_f64() * 1e3;
        let at = self.sorted.partition_point(|t| *t < ms);
        self.sorted.insert(at, ms);
    }

    /// The middle time in milliseconds, or NaN without any.
    pub(crate) fn median(&self) -> f64 {
        let n = self.sorted.len();
        let at = |i: usize| self.sorted.get(i).copied().unwrap_or(f64::NAN);
        if n % 2 == 1 { at(n / 2) } else { (at(n / 2) + at((n / 2).wrapping_sub(1))) / 2.0 }
    }

    /// The shortest time in milliseconds, or NaN without any.
    pub(crate) fn least(&self) -> f64 {
        self.sorted.first().copied().unwrap_or(f64::NAN)
    }

    pub(crate) fn count(&self) -> usize {
        self.sorted.len()
    }
}

/// How often to repeat a run: at least `runs` times unless `budget` is used up first, and never less than once.
#[derive(Clone, Copy)]
pub(crate) struct Repeat {
    pub(crate) runs: usize,
    pub(crate) budget: Duration,
}

impl Repeat {
    /// Times `work` again and again; `work` returns what it took, so that it may prepare untimed.
    pub(crate) fn time(self, mut work: impl FnMut() -> Result<Duration, Failure>) -> Result<Times, Failure> {
        let (start, mut times) = (Instant::now(), Times::default());
        while times.count() == 0 || (times.count() < self.runs && start.elapsed() < self.budget) {
            times.push(work()?);
        }
        Ok(times)
    }
}

/// How long `work` takes, and what it returns.
pub(crate) fn timed<R>(work: impl FnOnce() -> R) -> (Duration, R) {
    let start = Instant::now();
    let result = work();
    (start.elapsed(), result)
}

/// Milliseconds of a duration.
pub(crate) fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

/// A number with about three digits that count: `0.0123`, `1.23`, `123`, `12345`, `1.23e12`.
pub(crate) fn short(number: f64) -> String {
    let size = number.abs();
    if !number.is_finite() {
        return "–".into();
    }
    if size == 0.0 {
        return "0".into();
    }
    match size {
        s if s >= 1e9 => format!("{number:.2e}"),
        s if s >= 100.0 => format!("{number:.0}"),
        s if s >= 10.0 => format!("{number:.1}"),
        s if s >= 1.0 => format!("{number:.2}"),
        s if s >= 0.001 => format!("{number:.4}"),
        _ => format!("{number:.1e}"),
    }
}

/// Bytes in words.
pub(crate) fn bytes(count: usize) -> String {
    let mut size = count as f64;
    for unit in ["B", "KiB", "MiB", "GiB"] {
        if size < 1024.0 {
            return format!("{} {unit}", short(size));
        }
        size /= 1024.0;
    }
    format!("{} TiB", short(size))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_the_middle_time_or_the_mean_of_the_two_in_the_middle() {
        let mut times = Times::default();
        assert!(times.median().is_nan() && times.least().is_nan());
        for t in [9, 1, 5] {
            times.push(Duration::from_millis(t));
        }
        assert_eq!((times.median(), times.least(), times.count()), (5.0, 1.0, 3));
        times.push(Duration::from_millis(7));
        assert_eq!(times.median(), 6.0);
    }

    #[test]
    fn repeating_stops_at_the_budget_but_runs_once() -> Result<(), Failure> {
        let none = Repeat { runs: 10, budget: Duration::ZERO };
        assert_eq!(none.time(|| Ok(Duration::ZERO))?.count(), 1);
        let ample = Repeat { runs: 10, budget: Duration::from_secs(60) };
        assert_eq!(ample.time(|| Ok(Duration::ZERO))?.count(), 10);
        Ok(())
    }

    #[test]
    fn numbers_are_written_with_the_digits_that_count() {
        for (number, text) in [
            (0.0, "0"),
            (1234.6, "1235"),
            (12.34, "12.3"),
            (1.234, "1.23"),
            (0.01234, "0.0123"),
            (1e-7, "1.0e-7"),
            (-123456789.0, "-123456789"),
            (1.234e300, "1.23e300"),
        ] {
            assert_eq!(short(number), text);
        }
        assert_eq!(bytes(0), "0 B");
        assert_eq!(bytes(3 << 19), "1.50 MiB");
    }
}
