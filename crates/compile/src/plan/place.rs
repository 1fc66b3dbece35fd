//! Offsets for buffers with known lifetimes: several greedy orders, then a bounded search over orders.
//!
//! Given an order, each buffer goes to a free gap between those already placed that live at the same time; the order
//! decides everything. Finding the best is NP-hard, so a few good orders are tried and the best of them is improved by
//! moving the buffers that define the peak to earlier places.

use super::sweep::sweep;
use super::{Error, Lifetime, Placement};

/// More buffers than this are not compared with each other.
const MOST_COMPARED: usize = 4096;

/// The search ends as soon as the peak is within this many thousandths of the lower bound.
const GOOD_ENOUGH: usize = 1010;

/// Comparisons of pairs of buffers that the search may spend: a few milliseconds.
const SEARCH_BUDGET: usize = 3_000_000;

/// Orders tried at most, for graphs so small that the budget never binds.
const MOST_ORDERS: usize = 4_000;

/// Orders without progress after which the search starts afresh from a shuffled greedy order.
const PATIENCE: usize = 120;

/// The largest number of bytes alive at one step, sizes rounded up to the alignment: no placement has a lower peak.
pub fn lower_bound(lifetimes: &[Lifetime], alignment: usize) -> Result<usize, Error> {
    let mut events = Vec::with_capacity(lifetimes.len() * 2);
    for l in lifetimes {
        let size = aligned(l, alignment)?;
        if size > 0 {
            events.push((l.first, true, size));
            events.push((l.last.max(l.first).saturating_add(1), false, size));
        }
    }
    // Ends come before beginnings of the same step, so that the running sum never counts a dead buffer.
    events.sort_unstable();
    let (mut live, mut most) = (0usize, 0usize);
    for (step, begins, size) in events {
        if begins {
            live = live.checked_add(size).ok_or(Error::TooLarge { step })?;
            most = most.max(live);
        } else {
            live -= size;
        }
    }
    Ok(most)
}

/// Gives every buffer an offset such that no two that live at the same step overlap.
///
/// The result depends on nothing but the arguments: the search's random numbers have a fixed seed.
pub fn place(lifetimes: &[Lifetime], alignment: usize) -> Result<Placement, Error> {
    let bound = lower_bound(lifetimes, alignment)?;
    let mut arena = Arena::new(lifetimes, alignment)?;
    let good = bound.saturating_add(bound / 1000 * (GOOD_ENOUGH - 1000));
    if arena.buffers.len() > MOST_COMPARED {
        let too_large = || Error::TooLarge { step: lifetimes.iter().map(|l| l.first).min().unwrap_or(0) };
        let peak = sweep(&arena.buffers, &mut arena.offsets).ok_or_else(too_large)?;
        return Ok(Placement { offsets: arena.offsets, peak });
    }
    let mut best = Best { order: Vec::new(), offsets: vec![0; lifetimes.len()], peak: usize::MAX };

    for order in greedy_orders(&arena.buffers) {
        for fit in [Fit::Lowest, Fit::Tightest] {
            if let Some(peak) = arena.fill(&order, fit, best.peak.saturating_sub(1)) {
                best = Best { order: order.clone(), offsets: arena.offsets.clone(), peak };
            }
            if best.peak <= good {
                return Ok(best.placement());
            }
        }
    }
    search(&mut arena, &mut best, good);
    if best.peak == usize::MAX {
        return Err(Error::TooLarge { step: lifetimes.iter().map(|l| l.first).min().unwrap_or(0) });
    }
    Ok(best.placement())
}

/// Bytes of a buffer, rounded up.
fn aligned(l: &Lifetime, alignment: usize) -> Result<usize, Error> {
    l.size.checked_next_multiple_of(alignment.max(1)).ok_or(Error::TooLarge { step: l.first })
}

struct Best {
    order: Vec<usize>,
    offsets: Vec<usize>,
    peak: usize,
}

impl Best {
    fn placement(self) -> Placement {
        Placement { offsets: self.offsets, peak: self.peak }
    }
}

/// How a gap is chosen.
#[derive(Clone, Copy, PartialEq)]
enum Fit {
    /// The first that is wide enough.
    Lowest,
    /// The narrowest that is wide enough; at the end of all only if there is none.
    Tightest,
}

/// A buffer with bytes; empty ones never get here.
#[derive(Clone, Copy)]
pub(super) struct Buffer {
    pub(super) id: usize,
    pub(super) size: usize,
    pub(super) first: usize,
    pub(super) last: usize,
}

struct Arena {
    buffers: Vec<Buffer>,
    offsets: Vec<usize>,
    /// `(offset, end, first, last)` of what is placed, by offset.
    placed: Vec<(usize, usize, usize, usize)>,
    /// Pairs compared so far.
    work: usize,
}

impl Arena {
    fn new(lifetimes: &[Lifetime], alignment: usize) -> Result<Self, Error> {
        let mut buffers = Vec::with_capacity(lifetimes.len());
        for (id, l) in lifetimes.iter().enumerate() {
            let size = aligned(l, alignment)?;
            if size > 0 {
                buffers.push(Buffer { id, size, first: l.first, last: l.last.max(l.first) });
            }
        }
        Ok(Arena { buffers, offsets: vec![0; lifetimes.len()], placed: Vec::new(), work: 0 })
    }

    /// Places all buffers in an order (positions in `self.buffers`); `None` once the peak exceeds `limit`.
    fn fill(&mut self, order: &[usize], fit: Fit, limit: usize) -> Option<usize> {
        self.placed.clear();
        let mut peak = 0;
        for &i in order {
            let b = self.buffers[i];
            let offset = self.gap_for(&b, fit);
            let end = offset.checked_add(b.size)?;
            if end > limit {
                return None;
            }
            peak = peak.max(end);
            self.offsets[b.id] = offset;
            let at = self.placed.partition_point(|p| p.0 <= offset);
            self.placed.insert(at, (offset, end, b.first, b.last));
        }
        Some(peak)
    }

    fn gap_for(&mut self, b: &Buffer, fit: Fit) -> usize {
        let mut free_from = 0;
        let mut tightest: Option<(usize, usize)> = None;
        self.work += self.placed.len() + 1;
        for &(offset, end, first, last) in &self.placed {
            if first > b.last || b.first > last {
                continue;
            }
            if offset >= free_from && offset - free_from >= b.size {
                if fit == Fit::Lowest {
                    return free_from;
                }
                let width = offset - free_from;
                if tightest.is_none_or(|(w, _)| width < w) {
                    tightest = Some((width, free_from));
                }
            }
            free_from = free_from.max(end);
        }
        tightest.map_or(free_from, |(_, at)| at)
    }
}

/// By size, by size times duration, by duration and by beginning.
fn greedy_orders(buffers: &[Buffer]) -> Vec<Vec<usize>> {
    use std::cmp::Reverse;
    let sorted = |key: &dyn Fn(&Buffer) -> (u128, u128)| {
        let mut order: Vec<usize> = (0..buffers.len()).collect();
        order.sort_by_key(|i| (Reverse(key(&buffers[*i])), buffers[*i].first));
        order
    };
    let steps = |b: &Buffer| (b.last - b.first) as u128 + 1;
    let size = |b: &Buffer| b.size as u128;
    let mut orders = vec![
        sorted(&|b| (size(b), steps(b))),
        sorted(&|b| (size(b) * steps(b), size(b))),
        sorted(&|b| (steps(b), size(b))),
    ];
    let mut in_time: Vec<usize> = (0..buffers.len()).collect();
    in_time.sort_by_key(|i| (buffers[*i].first, Reverse(buffers[*i].size)));
    orders.push(in_time);
    orders.push(breadth_first(buffers));
    orders
}

/// Buffers of the fullest step first, then of the next fullest: where there is no slack, decide first.
fn breadth_first(buffers: &[Buffer]) -> Vec<usize> {
    let mut steps: Vec<usize> = buffers.iter().map(|b| b.first).collect();
    steps.sort_unstable();
    steps.dedup();
    let mut change = vec![0i128; steps.len() + 1];
    let mut load = vec![0i128; buffers.len()];
    let span =
        |b: &Buffer| (steps.partition_point(|s| *s < b.first), steps.partition_point(|s| *s <= b.last));
    for b in buffers {
        let (from, to) = span(b);
        change[from] += b.size as i128;
        change[to] -= b.size as i128;
    }
    let mut sum = 0;
    for c in &mut change {
        sum += *c;
        *c = sum;
    }
    for (i, b) in buffers.iter().enumerate() {
        let (from, to) = span(b);
        load[i] = change[from..to].iter().copied().max().unwrap_or(0);
    }
    let mut order: Vec<usize> = (0..buffers.len()).collect();
    order.sort_by_key(|i| (std::cmp::Reverse((load[*i], buffers[*i].size)), buffers[*i].first));
    order
}

/// Moves buffers that define the peak earlier, keeping what is no worse, until good enough or out of budget.
fn search(arena: &mut Arena, best: &mut Best, good: usize) {
    let count = arena.buffers.len();
    if count < 2 || best.order.len() != count {
        return;
    }
    let mut random = XorShift(0x9E37_79B9_7F4A_7C15);
    let mut order = best.order.clone();
    let mut offsets = best.offsets.clone();
    let mut peak = best.peak;
    let mut stale = 0;
    let budget = arena.work.saturating_add(SEARCH_BUDGET);
    for _ in 0..MOST_ORDERS {
        if best.peak <= good || arena.work >= budget {
            return;
        }
        if stale > PATIENCE {
            order.clone_from(&best.order);
            for _ in 0..1 + count / 8 {
                order.swap(random.below(count), random.below(count));
            }
            peak = usize::MAX - 1;
            stale = 0;
        }
        let tops: Vec<usize> = (0..count)
            .filter(|at| {
                let b = &arena.buffers[order[*at]];
                *at > 0 && offsets[b.id].saturating_add(b.size) >= peak
            })
            .collect();
        let from = if tops.is_empty() { random.below(count) } else { tops[random.below(tops.len())] };
        let to = random.below(from.max(1));
        let mut next = order.clone();
        if random.below(3) == 0 {
            next.swap(from, to);
        } else {
            next[to..=from].rotate_right(1);
        }
        let fit = if random.below(2) == 0 { Fit::Lowest } else { Fit::Tightest };
        stale += 1;
        if let Some(reached) = arena.fill(&next, fit, peak) {
            if reached < peak {
                stale = 0;
            }
            order = next;
            peak = reached;
            offsets.clone_from(&arena.offsets);
            if peak < best.peak {
                *best = Best { order: order.clone(), offsets: offsets.clone(), peak };
            }
        }
    }
}

/// A small random-number generator; its quality does not matter, only that it repeats.
struct XorShift(u64);

impl XorShift {
    fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        ((self.0 >> 16) % n.max(1) as u64) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn life(size: usize, first: usize, last: usize) -> Lifetime {
        Lifetime { size, first, last }
    }

    #[test]
    fn nothing_needs_nothing() -> Result<(), Error> {
        assert_eq!(place(&[], 64)?, Placement { offsets: vec![], peak: 0 });
        assert_eq!(place(&[life(0, 0, 9)], 64)?, Placement { offsets: vec![0], peak: 0 });
        Ok(())
    }

    #[test]
    fn a_chain_needs_two_buffers() -> Result<(), Error> {
        let chain: Vec<Lifetime> = (0..10).map(|i| life(100, i, i + 1)).collect();
        assert_eq!(place(&chain, 64)?.peak, 256);
        assert_eq!(lower_bound(&chain, 64)?, 256);
        Ok(())
    }

    #[test]
    fn very_many_buffers_do_not_overlap_and_take_little_more_than_they_must() -> Result<(), Error> {
        let mut random = XorShift(7);
        let count = 3 * MOST_COMPARED;
        let lives: Vec<Lifetime> = (0..count)
            .map(|i| {
                let long = if random.below(50) == 0 { count / 2 } else { 20 };
                life(random.below(5000), i, i + random.below(long))
            })
            .collect();
        let placed = place(&lives, 64)?;
        let bound = lower_bound(&lives, 64)?;
        assert!(placed.peak >= bound && placed.peak <= bound + bound / 2, "{} for {bound}", placed.peak);
        let mut order: Vec<usize> = (0..count).filter(|i| lives[*i].size > 0).collect();
        order.sort_by_key(|i| placed.offsets[*i]);
        for (at, i) in order.iter().enumerate() {
            let end = placed.offsets[*i] + lives[*i].size;
            let mut above = order[at + 1..].iter().take_while(|j| placed.offsets[**j] < end);
            assert!(above.all(|j| !lives[*i].overlaps(&lives[*j])), "{i}");
            assert!(end <= placed.peak && placed.offsets[*i] % 64 == 0);
        }
        Ok(())
    }

    #[test]
    fn sizes_beyond_the_address_space_are_an_error() {
        let huge = [life(usize::MAX - 63, 0, 3), life(usize::MAX / 2, 2, 4)];
        assert!(matches!(place(&huge, 64), Err(Error::TooLarge { .. })));
        assert!(matches!(lower_bound(&[life(usize::MAX, 0, 0)], 64), Err(Error::TooLarge { .. })));
    }

    #[test]
    fn offsets_are_aligned_and_an_alignment_of_zero_is_one() -> Result<(), Error> {
        let lives = [life(1, 0, 1), life(65, 0, 1), life(3, 1, 2)];
        assert!(place(&lives, 64)?.offsets.iter().all(|o| o % 64 == 0));
        assert_eq!(place(&lives, 0)?.peak, 69);
        Ok(())
    }
}
