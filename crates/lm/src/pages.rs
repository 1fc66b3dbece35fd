//! Which sequence has which page of the caches, and what sequences share.
//!
//! ```text
//!   free ── take ──► a sequence's own ── publish ──► a shared prefix, held by sequences
//!    ▲                    │ give back                     │ the last lets go
//!    └────────────────────┴──────── evicted ◄──────── idle, oldest first
//! ```
//!
//! A shared prefix is a number of pages, always the same, after another prefix or at the beginning. It is found by the prefix before it and
//! by its tokens, which are compared and not only hashed.

use std::collections::{BTreeMap, HashMap};

/// The number of a page.
pub(crate) type Page = i32;

/// The number of a shared prefix; 0 is the empty one.
type PrefixId = u64;

/// Pages that sequences may share.
#[derive(Debug)]
struct Prefix {
    before: PrefixId,
    tokens: Box<[i64]>,
    pages: Vec<Page>,
    /// Sequences that hold it.
    holders: usize,
    /// When the last released it.
    idle_since: u64,
}

/// A page that a sequence has released because none of its tokens will see it again.
const RELEASED: Page = -1;

/// The pages of a sequence.
#[derive(Debug, Default)]
pub(crate) struct PageTable {
    prefixes: Vec<PrefixId>,
    /// In the order of positions, those of prefixes first.
    pages: Vec<Page>,
    /// How many of them are shared.
    shared: usize,
    /// How many of the prefixes it has released, and how many of the pages: the first ones.
    released: (usize, usize),
}

impl PageTable {
    /// The pages in the order of positions, -1 where they are released.
    pub(crate) fn pages(&self) -> &[Page] {
        &self.pages
    }

    /// How many of them are released.
    pub(crate) fn released(&self) -> usize {
        self.released.1
    }
}

/// All pages.
#[derive(Debug)]
pub(crate) struct Pages {
    free: Vec<Page>,
    count: usize,
    /// Pages of a prefix, and the tokens that they hold.
    unit: (usize, usize),
    prefixes: HashMap<PrefixId, Prefix>,
    found: HashMap<(PrefixId, Box<[i64]>), PrefixId>,
    /// Prefixes that nobody holds, by when the last released them.
    idle: BTreeMap<u64, PrefixId>,
    next_id: PrefixId,
    clock: u64,
}

impl Pages {
    /// So many pages; prefixes are of `unit` pages with so many tokens.
    pub(crate) fn new(count: usize, unit: (usize, usize)) -> Self {
        let mut pages = Pages {
            free: Vec::new(),
            count: 0,
            unit,
            prefixes: HashMap::new(),
            found: HashMap::new(),
            idle: BTreeMap::new(),
            next_id: 1,
            clock: 0,
        };
        pages.grow(count);
        pages
    }

    /// All pages there are.
    pub(crate) fn count(&self) -> usize {
        self.count
    }

    /// Pages that no sequence holds.
    pub(crate) fn available(&self) -> usize {
        self.free.len() + self.idle.len() * self.unit.0
    }

    /// Adds pages.
    pub(crate) fn grow(&mut self, count: usize) {
        // The lowest are taken first.
        let fresh = (self.count..count.max(self.count)).rev().map(|page| page as Page);
        self.free = fresh.chain(std::mem::take(&mut self.free)).collect();
        self.count = self.count.max(count);
    }

    /// Gives a sequence pages until it has so many; false, and no page, if there are not enough.
    pub(crate) fn take(&mut self, table: &mut PageTable, count: usize) -> bool {
        let missing = count.saturating_sub(table.pages.len());
        if missing > self.available() {
            return false;
        }
        while self.free.len() < missing {
            self.evict();
        }
        table.pages.extend(self.free.drain(self.free.len() - missing..).rev());
        true
    }

    /// Forgets the prefix that was idle for longest.
    fn evict(&mut self) {
        let Some((_, id)) = self.idle.pop_first() else { return };
        let Some(prefix) = self.prefixes.remove(&id) else { return };
        self.found.remove(&(prefix.before, prefix.tokens));
        self.free.extend(prefix.pages.into_iter().rev());
    }

    /// Gives a new sequence the shared pages of the longest prefix of its tokens; the number of tokens that they hold.
    pub(crate) fn share(&mut self, table: &mut PageTable, tokens: &[i64]) -> usize {
        let mut before = 0;
        for unit in tokens.chunks_exact(self.unit.1) {
            let Some(id) = self.found.get(&(before, unit.into())).copied() else { break };
            self.hold(table, id);
            before = id;
        }
        table.prefixes.len() * self.unit.1
    }

    fn hold(&mut self, table: &mut PageTable, id: PrefixId) {
        let Some(prefix) = self.prefixes.get_mut(&id) else { return };
        if prefix.holders == 0 {
            self.idle.remove(&prefix.idle_since);
        }
        prefix.holders += 1;
        table.prefixes.push(id);
        table.pages.splice(table.shared..table.shared, prefix.pages.iter().copied());
        table.shared += prefix.pages.len();
    }

    /// Shares what a sequence has computed: `tokens` are those that its pages hold. Pages whose prefix is shared by another sequence already are
    /// given back, and the sequence goes on with the other's.
    pub(crate) fn publish(&mut self, table: &mut PageTable, tokens: &[i64]) {
        let (pages, unit) = self.unit;
        let done = table.prefixes.len();
        for tokens in tokens.chunks_exact(unit).skip(done) {
            let own = table.shared..table.shared + pages;
            // Without pages that are released, nothing after them is found.
            if own.end > table.pages.len() || table.released.1 > own.start {
                return;
            }
            let before = table.prefixes.last().copied().unwrap_or(0);
            let own: Vec<Page> = table.pages.drain(own).collect();
            if let Some(id) = self.found.get(&(before, tokens.into())).copied() {
                self.free.extend(own.into_iter().rev());
                self.hold(table, id);
                continue;
            }
            let id = self.next_id;
            self.next_id += 1;
            self.found.insert((before, tokens.into()), id);
            let prefix = Prefix { before, tokens: tokens.into(), pages: own, holders: 0, idle_since: 0 };
            self.prefixes.insert(id, prefix);
            self.hold(table, id);
        }
    }

    /// Takes all pages of a sequence; those that are shared stay until the room is needed.
    pub(crate) fn release(&mut self, table: &mut PageTable) {
        let PageTable { prefixes, pages, shared, released } = std::mem::take(table);
        self.free.extend(pages[shared.max(released.1)..].iter().rev());
        // Later ones go first: without those before them they cannot be found.
        for id in prefixes.into_iter().skip(released.0).rev() {
            self.drop_holder(id);
        }
    }

    fn drop_holder(&mut self, id: PrefixId) {
        let Some(prefix) = self.prefixes.get_mut(&id) else { return };
        prefix.holders -= 1;
        if prefix.holders == 0 {
            self.clock += 1;
            prefix.idle_since = self.clock;
            self.idle.insert(self.clock, id);
        }
    }

    /// Takes the first pages of a sequence, so many of them, which it does not see any more. Prefixes go as a whole.
    pub(crate) fn trim(&mut self, table: &mut PageTable, count: usize) {
        let count = count.min(table.pages.len());
        while table.released.0 < table.prefixes.len() && table.released.1 + self.unit.0 <= count {
            self.drop_holder(table.prefixes[table.released.0]);
            table.pages[table.released.1..table.released.1 + self.unit.0].fill(RELEASED);
            table.released = (table.released.0 + 1, table.released.1 + self.unit.0);
        }
        while table.released.1 >= table.shared && table.released.1 < count {
            self.free.push(std::mem::replace(&mut table.pages[table.released.1], RELEASED));
            table.released.1 += 1;
        }
    }

    /// Forgets all prefixes that nobody holds.
    pub(crate) fn forget(&mut self) {
        while !self.idle.is_empty() {
            self.evict();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(pages: &mut Pages, count: usize) -> PageTable {
        let mut table = PageTable::default();
        assert!(pages.take(&mut table, count));
        table
    }

    #[test]
    fn pages_are_taken_once_and_come_back() {
        let mut pages = Pages::new(5, (1, 4));
        let mut a = taken(&mut pages, 3);
        assert_eq!(a.pages(), [0, 1, 2]);
        let mut b = PageTable::default();
        assert!(!pages.take(&mut b, 3) && b.pages().is_empty());
        assert!(pages.take(&mut b, 2));
        assert_eq!(b.pages(), [3, 4]);
        pages.release(&mut a);
        assert_eq!(pages.available(), 3);
        assert!(pages.take(&mut b, 5));
        assert_eq!(b.pages(), [3, 4, 0, 1, 2]);
        pages.grow(7);
        assert!(pages.take(&mut b, 7) && pages.available() == 0);
        pages.release(&mut b);
        assert_eq!(pages.available(), pages.count());
    }

    #[test]
    fn prefixes_are_shared_kept_and_evicted_oldest_first() {
        let mut pages = Pages::new(6, (2, 4));
        let tokens: Vec<i64> = (0..11).collect();
        let mut a = taken(&mut pages, 5);
        pages.publish(&mut a, &tokens[..9]);
        assert_eq!(a.pages(), [0, 1, 2, 3, 4]);
        // Another that begins alike holds the same pages.
        let mut b = PageTable::default();
        assert_eq!(pages.share(&mut b, &[0, 1, 2, 3, 9, 9, 9, 9]), 4);
        assert_eq!(b.pages(), [0, 1]);
        pages.release(&mut a);
        assert_eq!(pages.available(), 4);
        // Idle prefixes are found again, with what follows them.
        assert_eq!(pages.share(&mut a, &tokens), 8);
        assert_eq!(a.pages(), [0, 1, 2, 3]);
        pages.release(&mut a);
        pages.release(&mut b);
        assert_eq!(pages.available(), 6);
        // The second prefix goes before the first.
        let mut c = taken(&mut pages, 4);
        assert_eq!(pages.share(&mut a, &tokens), 4);
        pages.release(&mut a);
        pages.release(&mut c);
        pages.forget();
        assert_eq!((pages.available(), pages.free.len()), (6, 6));
        assert_eq!(pages.share(&mut a, &tokens), 0);
    }

    #[test]
    fn two_that_computed_the_same_go_on_with_one() {
        let mut pages = Pages::new(8, (1, 2));
        let (mut a, mut b) = (taken(&mut pages, 2), taken(&mut pages, 3));
        pages.publish(&mut a, &[7, 8, 9]);
        pages.publish(&mut b, &[7, 8, 1, 2]);
        assert_eq!(a.pages(), [0, 1]);
        assert_eq!(b.pages(), [0, 3, 4]);
        assert_eq!(pages.available(), 4);
        pages.release(&mut a);
        pages.release(&mut b);
        assert_eq!(pages.available(), 8);
    }

    #[test]
    fn pages_that_nobody_sees_again_come_back_before_the_end() {
        let mut pages = Pages::new(8, (2, 4));
        let tokens: Vec<i64> = (0..10).collect();
        let mut a = taken(&mut pages, 6);
        pages.publish(&mut a, &tokens);
        let mut b = PageTable::default();
        assert_eq!(pages.share(&mut b, &tokens), 8);
        // Half of a prefix stays, one that another holds does not become free, and own pages go one by one.
        pages.trim(&mut a, 1);
        assert_eq!(a.pages(), [0, 1, 2, 3, 4, 5]);
        pages.trim(&mut a, 5);
        assert_eq!(a.pages(), [-1, -1, -1, -1, -1, 5]);
        assert_eq!(pages.available(), 3);
        pages.trim(&mut a, 5);
        assert_eq!(pages.available(), 3);
        pages.trim(&mut b, 2);
        assert_eq!((b.pages(), pages.available()), ([-1, -1, 2, 3].as_slice(), 5));
        // More positions are after those that are released.
        assert!(pages.take(&mut a, 7) && a.pages()[..5] == [-1; 5] && a.pages().len() == 7);
        pages.release(&mut a);
        pages.release(&mut b);
        assert_eq!(pages.available(), 8);
    }
}
