//! The yardstick of row kernels: copying memory with the same threads.

use std::time::Duration;

use crate::timing::timed;

/// Two buffers and the threads that copy one to the other.
pub(crate) struct Copy {
    from: Vec<f32>,
    to: Vec<f32>,
    threads: usize,
}

impl Copy {
    /// Buffers of so many elements, touched so that the system has given them memory.
    pub(crate) fn new(elements: usize, threads: usize) -> Self {
        Copy { from: vec![1.0; elements], to: vec![2.0; elements], threads: threads.max(1) }
    }

    /// Copies everything once, each thread its own part.
    pub(crate) fn time(&mut self) -> Duration {
        let part = self.from.len().div_ceil(self.threads).max(1);
        let (from, to) = (&self.from, &mut self.to);
        timed(|| {
            std::thread::scope(|scope| {
                for (from, to) in from.chunks(part).zip(to.chunks_mut(part)) {
                    scope.spawn(move || to.copy_from_slice(from));
                }
            });
        })
        .0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_part_is_copied() {
        for (elements, threads) in [(0, 2), (1, 4), (10, 3), (1000, 7)] {
            let mut copy = Copy::new(elements, threads);
            copy.time();
            assert_eq!(copy.to, copy.from, "{elements} by {threads}");
        }
    }
}
