//! The free ranges of a block.

/// Free ranges, in order and never touching each other.
#[derive(Debug)]
pub(crate) struct Ranges {
    whole: u64,
    free: Vec<(u64, u64)>,
}

impl Ranges {
    /// A block that is wholly free.
    pub(crate) fn new(bytes: u64) -> Self {
        Ranges { whole: bytes, free: vec![(0, bytes)] }
    }

    /// Takes bytes from the smallest range that has them.
    pub(crate) fn take(&mut self, bytes: u64) -> Option<u64> {
        let fits = self.free.iter().enumerate().filter(|(_, (_, len))| *len >= bytes);
        let (i, (at, len)) = fits.min_by_key(|(_, (_, len))| *len).map(|(i, r)| (i, *r))?;
        if len == bytes {
            self.free.remove(i);
        } else if let Some(range) = self.free.get_mut(i) {
            *range = (at + bytes, len - bytes);
        }
        Some(at)
    }

    /// Frees what was taken; neighbours become one range.
    pub(crate) fn free(&mut self, at: u64, bytes: u64) {
        let i = self.free.partition_point(|(start, _)| *start < at);
        self.free.insert(i, (at, bytes));
        self.merge(i);
        if let Some(before) = i.checked_sub(1) {
            self.merge(before);
        }
    }

    /// Makes one of a range and the next where they touch.
    fn merge(&mut self, i: usize) {
        if let (Some((at, len)), Some((next, more))) =
            (self.free.get(i).copied(), self.free.get(i + 1).copied())
            && at + len == next
        {
            self.free.remove(i + 1);
            if let Some(range) = self.free.get_mut(i) {
                range.1 += more;
            }
        }
    }

    /// Whether nothing is taken.
    pub(crate) fn is_free(&self) -> bool {
        self.free == [(0, self.whole)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_given_back_in_any_order_becomes_one_range() {
        let mut ranges = Ranges::new(1024);
        let taken: Vec<u64> = (0..4).map(|_| ranges.take(256).unwrap()).collect();
        assert_eq!(taken, [0, 256, 512, 768]);
        assert_eq!(ranges.take(1), None);
        for i in [2, 0, 3, 1] {
            assert!(!ranges.is_free());
            ranges.free(taken[i], 256);
        }
        assert!(ranges.is_free());
    }

    #[test]
    fn the_smallest_gap_that_fits_is_taken() {
        let mut ranges = Ranges::new(1000);
        let (a, b, c) = (ranges.take(300).unwrap(), ranges.take(10).unwrap(), ranges.take(100).unwrap());
        ranges.take(20).unwrap();
        ranges.free(a, 300);
        ranges.free(c, 100);
        assert_eq!(ranges.take(90), Some(c));
        assert_eq!(ranges.take(250), Some(a));
        assert_eq!(b, 300);
    }
}
