//! The bounded queue: permits for sequences in slots and before them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// A place of one sequence, which is free again when this is dropped.
pub(crate) type Permit = OwnedSemaphorePermit;

/// Permits for so many sequences at once.
pub(crate) struct Admission {
    permits: Arc<Semaphore>,
    slots: usize,
    capacity: usize,
    /// A running mean of how long a sequence takes, in microseconds.
    mean: AtomicU64,
}

impl Admission {
    pub(crate) fn new(slots: usize, queue: usize) -> Self {
        let capacity = slots.saturating_add(queue).min(Semaphore::MAX_PERMITS);
        let permits = Arc::new(Semaphore::new(capacity));
        Admission { permits, slots, capacity, mean: AtomicU64::new(0) }
    }

    /// Sequences that fit at most.
    pub(crate) fn capacity(&self) -> usize {
        self.capacity
    }

    /// Whether not even one more fits.
    pub(crate) fn is_full(&self) -> bool {
        self.permits.available_permits() == 0
    }

    /// Permits for all of them or for none.
    pub(crate) fn take(&self, count: usize) -> Option<Vec<Permit>> {
        let all = u32::try_from(count).ok()?;
        let mut permits = self.permits.clone().try_acquire_many_owned(all).ok()?;
        (0..count).map(|_| permits.split(1)).collect()
    }

    /// A sequence took so long.
    pub(crate) fn took(&self, time: Duration) {
        let new = u64::try_from(time.as_micros()).unwrap_or(u64::MAX) / 8;
        // Whatever a race loses is one sample of a mean.
        let old = self.mean.load(Ordering::Relaxed);
        self.mean.store((old - old / 8).saturating_add(new), Ordering::Relaxed);
    }

    /// Seconds after which a place may be free: what is ahead, by the mean of those before.
    pub(crate) fn retry_after(&self) -> u64 {
        let ahead = self.capacity.saturating_sub(self.slots) as u64 / self.slots.max(1) as u64 + 1;
        (self.mean.load(Ordering::Relaxed).saturating_mul(ahead) / 1_000_000).clamp(1, 60)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn permits_are_for_all_sequences_or_none_and_come_back() {
        let admission = Admission::new(2, 1);
        let two = admission.take(2).unwrap();
        assert!(admission.take(2).is_none());
        let one = admission.take(1).unwrap();
        assert!(admission.take(1).is_none());
        drop(two);
        assert_eq!(admission.take(2).map(|permits| permits.len()), Some(2));
        drop(one);
        assert!(admission.take(4).is_none() && admission.take(3).is_some());
    }

    #[test]
    fn the_time_to_retry_follows_how_long_sequences_take() {
        let admission = Admission::new(2, 8);
        assert_eq!(admission.retry_after(), 1);
        (0..100).for_each(|_| admission.took(Duration::from_secs(4)));
        assert!((18..=20).contains(&admission.retry_after()), "{}", admission.retry_after());
        (0..100).for_each(|_| admission.took(Duration::from_secs(4000)));
        assert_eq!(admission.retry_after(), 60);
    }
}
