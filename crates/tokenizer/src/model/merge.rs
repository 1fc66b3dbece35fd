//! Merging of adjacent symbols in the order of ranks, in time `n log n`.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::hash::Map;
use crate::trie::NONE;

/// Pairs of ids that merge: their rank, and the id they become.
pub(crate) type Merges = Map<u64, (u32, u32)>;

pub(crate) fn pair(left: u32, right: u32) -> u64 {
    u64::from(left) << 32 | u64::from(right)
}

/// Up to here the least rank is searched for in a list; beyond, in a heap.
const SHORT: usize = 32;

/// Merges until no pair merges: the least rank first, of equal ranks the leftmost.
pub(crate) fn merge(merges: &Merges, symbols: &mut Vec<u32>) {
    if symbols.len() <= SHORT { merge_short(merges, symbols) } else { merge_long(merges, symbols) }
}

fn merge_short(merges: &Merges, symbols: &mut Vec<u32>) {
    let rank_of = |symbols: &[u32], i: usize| match (symbols.get(i), symbols.get(i + 1)) {
        (Some(&a), Some(&b)) => merges.get(&pair(a, b)).copied().unwrap_or((NONE, NONE)),
        _ => (NONE, NONE),
    };
    let mut ranks = [(NONE, NONE); SHORT];
    for i in 0..symbols.len() {
        ranks[i] = rank_of(symbols, i);
    }
    loop {
        let n = symbols.len();
        let mut best = 0;
        for i in 1..n {
            if ranks[i].0 < ranks[best].0 {
                best = i;
            }
        }
        if n < 2 || ranks[best].0 == NONE {
            return;
        }
        symbols[best] = ranks[best].1;
        symbols.remove(best + 1);
        ranks.copy_within(best + 2..n, best + 1);
        ranks[best] = rank_of(symbols, best);
        if best > 0 {
            ranks[best - 1] = rank_of(symbols, best - 1);
        }
    }
}

fn merge_long(merges: &Merges, symbols: &mut Vec<u32>) {
    let n = symbols.len();
    if n >= NONE as usize {
        return;
    }
    let mut next: Vec<u32> = (1..=n as u32).collect();
    let mut previous: Vec<u32> = (0..n as u32).map(|i| i.wrapping_sub(1)).collect();
    let rank_at = |symbols: &[u32], next: &[u32], i: u32| -> Option<(u32, u32)> {
        let right = *next.get(i as usize)?;
        merges.get(&pair(symbols[i as usize], *symbols.get(right as usize)?)).copied()
    };
    let mut heap = BinaryHeap::new();
    for i in 0..n as u32 {
        if let Some((rank, _)) = rank_at(symbols, &next, i) {
            heap.push(Reverse(u64::from(rank) << 32 | u64::from(i)));
        }
    }
    while let Some(Reverse(key)) = heap.pop() {
        let (rank, i) = ((key >> 32) as u32, key as u32);
        // A symbol that was merged away is NONE, which no pair has.
        let Some((now, id)) = rank_at(symbols, &next, i) else { continue };
        if now != rank {
            continue;
        }
        let right = next[i as usize];
        let after = next[right as usize];
        symbols[i as usize] = id;
        symbols[right as usize] = NONE;
        next[i as usize] = after;
        if let Some(back) = previous.get_mut(after as usize) {
            *back = i;
        }
        for at in [previous[i as usize], i] {
            if at != NONE
                && let Some((rank, _)) = rank_at(symbols, &next, at)
            {
                heap.push(Reverse(u64::from(rank) << 32 | u64::from(at)));
            }
        }
    }
    symbols.retain(|&id| id != NONE);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_and_the_heap_agree() {
        let mut merges = Merges::default();
        let mut seed = 1u64;
        let mut random = |below: u64| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (seed >> 33) % below
        };
        for rank in 0..60 {
            let (a, b) = (random(4 + u64::from(rank) / 2) as u32, random(4 + u64::from(rank) / 2) as u32);
            merges.entry(pair(a, b)).or_insert((rank, 4 + rank));
        }
        for _ in 0..2000 {
            let symbols: Vec<u32> = (0..random(SHORT as u64 + 1)).map(|_| random(4) as u32).collect();
            let (mut list, mut heap) = (symbols.clone(), symbols.clone());
            merge_short(&merges, &mut list);
            merge_long(&merges, &mut heap);
            assert_eq!(list, heap, "{symbols:?}");
        }
    }
}
