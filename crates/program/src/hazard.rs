//! Barriers only where bytes really conflict.

use std::ops::Range;

/// What one command touches, in one space of addresses (device addresses, or a buffer's number in the high bits).
#[derive(Clone, Copy, Debug, Default)]
pub struct Touched<'a> {
    /// Bytes read.
    pub reads: &'a [Range<u64>],
    /// Bytes written.
    pub writes: &'a [Range<u64>],
}

/// Follows commands in order and says where a barrier must stand.
#[derive(Debug, Default)]
pub struct Hazards {
    reads: Ranges,
    writes: Ranges,
}

impl Hazards {
    /// Whether the next command conflicts with one since the last barrier: it reads or writes what was written, or
    /// writes what was read. If so the barrier is taken to stand before it.
    pub fn next(&mut self, command: &Touched<'_>) -> bool {
        let conflict = self.writes.overlap(command.reads)
            || self.writes.overlap(command.writes)
            || self.reads.overlap(command.writes);
        if conflict {
            self.reads.sorted.clear();
            self.writes.sorted.clear();
        }
        command.reads.iter().for_each(|range| self.reads.insert(range));
        command.writes.iter().for_each(|range| self.writes.insert(range));
        conflict
    }
}

/// A set of bytes as ranges that do not touch: any number of commands may stand between two barriers.
#[derive(Debug, Default)]
struct Ranges {
    /// Beginnings and ends, in order; the memory stays when it is emptied.
    sorted: Vec<(u64, u64)>,
}

impl Ranges {
    fn overlap(&self, others: &[Range<u64>]) -> bool {
        let meets = |other: &Range<u64>| {
            let before = self.sorted[..self.sorted.partition_point(|(start, _)| *start < other.end)].last();
            other.start < other.end && before.is_some_and(|(_, end)| *end > other.start)
        };
        others.iter().any(meets)
    }

    fn insert(&mut self, range: &Range<u64>) {
        let Range { mut start, mut end } = *range;
        if start >= end {
            return;
        }
        // All that touch it become one with it.
        let first = self.sorted.partition_point(|(_, to)| *to < start);
        let past = self.sorted.partition_point(|(from, _)| *from <= end);
        if let [known, ..] = &self.sorted[first..past] {
            start = start.min(known.0);
            end = end.max(self.sorted[past - 1].1);
        }
        self.sorted.splice(first..past, [(start, end)]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_run_side_by_side_and_conflicts_wait() {
        let mut hazards = Hazards::default();
        let mut next =
            |read: Range<u64>, write: Range<u64>| hazards.next(&Touched { reads: &[read], writes: &[write] });
        assert!(!next(0..4, 8..12));
        assert!(!next(0..4, 4..8), "two readers of one range");
        assert!(next(11..12, 20..24), "read after write");
        assert!(!next(4..8, 30..31), "the barrier before covers this one too");
        assert!(next(90..90, 23..25), "write after write");
        assert!(!next(1..2, 90..90));
        assert!(next(90..90, 1..2), "write after read");
    }

    #[test]
    fn sets_of_ranges_say_the_same_as_lists_of_them() {
        let mut seed = 1u64;
        let mut below = |n: u64| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (seed >> 33) % n
        };
        for _ in 0..200 {
            let (mut set, mut list) = (Ranges::default(), Vec::new());
            for _ in 0..20 {
                let start = below(100);
                let range = start..start + below(8);
                let naive = list.iter().any(|x: &Range<u64>| {
                    x.start < range.end && range.start < x.end && !x.is_empty() && !range.is_empty()
                });
                assert_eq!(set.overlap(std::slice::from_ref(&range)), naive, "{range:?} and {list:?}");
                set.insert(&range);
                list.push(range);
            }
        }
    }
}
