//! Barriers only where bytes really conflict.

use std::ops::Range;

/// What one command touches, in one space of addresses (device addresses, or a buffer's number in the high bits).
#[derive(Clone, Debug, Default)]
pub struct Touched {
    /// Bytes read.
    pub reads: Vec<Range<u64>>,
    /// Bytes written.
    pub writes: Vec<Range<u64>>,
}

/// Follows commands in order and says where a barrier must stand.
#[derive(Debug, Default)]
pub struct Hazards {
    reads: Vec<Range<u64>>,
    writes: Vec<Range<u64>>,
}

impl Hazards {
    /// Whether the next command conflicts with one since the last barrier: it reads or writes what was written, or
    /// writes what was read. If so the barrier is taken to stand before it.
    pub fn next(&mut self, command: &Touched) -> bool {
        let conflict = overlap(&self.writes, &command.reads)
            || overlap(&self.writes, &command.writes)
            || overlap(&self.reads, &command.writes);
        if conflict {
            self.reads.clear();
            self.writes.clear();
        }
        self.reads.extend(command.reads.iter().cloned());
        self.writes.extend(command.writes.iter().cloned());
        conflict
    }
}

fn overlap(a: &[Range<u64>], b: &[Range<u64>]) -> bool {
    a.iter().any(|x| b.iter().any(|y| x.start < y.end && y.start < x.end))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn touched(read: Range<u64>, write: Range<u64>) -> Touched {
        Touched { reads: vec![read], writes: vec![write] }
    }

    #[test]
    fn neighbours_run_side_by_side_and_conflicts_wait() {
        let mut hazards = Hazards::default();
        assert!(!hazards.next(&touched(0..4, 8..12)));
        assert!(!hazards.next(&touched(0..4, 4..8)), "two readers of one range");
        assert!(hazards.next(&touched(11..12, 20..24)), "read after write");
        assert!(!hazards.next(&touched(4..8, 30..31)), "the barrier before covers this one too");
        assert!(hazards.next(&touched(90..90, 23..25)), "write after write");
        assert!(!hazards.next(&touched(1..2, 90..90)));
        assert!(hazards.next(&touched(90..90, 1..2)), "write after read");
    }
}
