//! Which buffers stay above which others, for other sizes than those of the compile.

use olivine_ir::Dim;
use olivine_ir::size::ArenaLayout;

use super::{Lifetime, Placement};

/// Keeps the order of a placement.
pub(super) fn layout(
    sizes: Vec<Dim>,
    lifetimes: &[Lifetime],
    placement: &Placement,
    alignment: usize,
) -> ArenaLayout {
    let mut order: Vec<u32> = (0..lifetimes.len() as u32).collect();
    // Buffers without bytes come first among those at one offset: the next begins where they do.
    order.sort_by_key(|i| (placement.offsets[*i as usize], lifetimes[*i as usize].size, *i));
    let mut below = lower_neighbours(lifetimes, &order);
    ArenaLayout::new(sizes, order, alignment, |rank, all| all.append(&mut below[rank]))
}

/// For every position of the order the buffers before it that live at the same time.
fn lower_neighbours(lifetimes: &[Lifetime], order: &[u32]) -> Vec<Vec<u32>> {
    let mut ranks = vec![0; lifetimes.len()];
    order.iter().enumerate().for_each(|(rank, buffer)| ranks[*buffer as usize] = rank);
    let mut by_first: Vec<u32> = (0..lifetimes.len() as u32).collect();
    by_first.sort_by_key(|i| lifetimes[*i as usize].first);
    let mut below = vec![Vec::new(); lifetimes.len()];
    // Those that are alive at the step that is looked at.
    let mut alive: Vec<u32> = Vec::new();
    for buffer in by_first {
        let (own, rank) = (&lifetimes[buffer as usize], ranks[buffer as usize]);
        alive.retain(|other| lifetimes[*other as usize].overlaps(own));
        for other in &alive {
            match ranks[*other as usize] {
                lower if lower < rank => below[rank].push(*other),
                higher => below[higher].push(buffer),
            }
        }
        alive.push(buffer);
    }
    below
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::place;

    /// A generator of numbers that tests repeat.
    fn numbers(mut seed: u64) -> impl FnMut(usize) -> usize {
        move |below| {
            seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (seed >> 33) as usize % below.max(1)
        }
    }

    #[test]
    fn buffers_that_live_together_never_overlap_for_any_sizes() {
        let mut next = numbers(7);
        for _ in 0..300 {
            let count = 1 + next(40);
            let lifetimes: Vec<Lifetime> = (0..count)
                .map(|_| {
                    let first = next(30);
                    Lifetime { size: next(5) * 100, first, last: first + next(8) }
                })
                .collect();
            let placement = place(&lifetimes, 64).unwrap();
            let sizes = lifetimes.iter().map(|l| Dim::from(l.size)).collect();
            let layout = layout(sizes, &lifetimes, &placement, 64);
            let mut offsets = vec![0; count];
            let same: Vec<u64> = lifetimes.iter().map(|l| l.size as u64).collect();
            let arena = layout.place(&same, &mut offsets).unwrap();
            assert!(arena <= placement.peak as u64, "{arena} {}", placement.peak);
            for _ in 0..4 {
                let sizes: Vec<u64> = (0..count).map(|_| next(1000) as u64).collect();
                let arena = layout.place(&sizes, &mut offsets).unwrap();
                for (a, b) in (0..count).flat_map(|a| (0..a).map(move |b| (a, b))) {
                    let apart = offsets[a] + sizes[a] <= offsets[b] || offsets[b] + sizes[b] <= offsets[a];
                    let empty = sizes[a] == 0 || sizes[b] == 0;
                    assert!(empty || apart || !lifetimes[a].overlaps(&lifetimes[b]));
                }
                assert!((0..count).all(|i| offsets[i] + sizes[i] <= arena && offsets[i].is_multiple_of(64)));
            }
        }
    }
}
