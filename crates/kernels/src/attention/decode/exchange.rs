//! How the lanes that share a key exchange scores and weights.
//!
//! Every lane begins with its part of the products of all rows and keys, and the lanes halve them between neighbours:
//! a lane keeps one half and gets its neighbour's part of it, until it has whole products of a few. Their weights are computed
//! once instead of in every lane, and go back to all lanes.

use olivine_kernel::{Builder, Val};

use super::Plan;

/// The lanes that share keys, and which scores they keep.
pub(super) struct Exchange<'k> {
    plan: Plan,
    /// Scores of all rows and keys; those of a row are neighbours.
    scores: u32,
    /// Halvings; later bits of a lane's number make copies.
    halvings: u32,
    /// Whether this lane keeps the upper half, by halving.
    upper: Vec<Val<'k>>,
    /// The first score that this lane keeps.
    first: Val<'k>,
    /// The first of the lanes that share this lane's keys.
    cluster: Val<'k>,
    lane: Val<'k>,
}

impl<'k> Exchange<'k> {
    pub(super) fn new(k: &'k Builder, plan: Plan) -> Self {
        let scores = plan.rows * plan.keys_each;
        let halvings = scores.min(plan.lanes).ilog2();
        let lane = k.local_index() % plan.subgroup;
        let bit = |i: u32| (lane >> i) & 1u32;
        let first = (0..halvings).map(|i| bit(i) * (scores >> (i + 1))).reduce(|a, b| a + b);
        Exchange {
            plan,
            scores,
            halvings,
            upper: (0..halvings).map(|i| bit(i).ne(0)).collect(),
            first: first.unwrap_or(k.u32(0)),
            cluster: lane / plan.lanes * plan.lanes,
            lane,
        }
    }

    /// Scores that a lane keeps.
    fn scores_per_lane(&self) -> u32 {
        self.scores >> self.halvings
    }

    /// Rows that a lane keeps scores of.
    pub(super) fn rows_per_lane(&self) -> u32 {
        self.scores_per_lane().div_ceil(self.plan.keys_each)
    }

    /// The `i`-th of these rows.
    pub(super) fn row(&self, i: u32) -> Val<'k> {
        self.first / self.plan.keys_each + i
    }

    /// Which of an invocation's keys the `i`-th kept score is of.
    pub(super) fn key(&self, i: u32) -> Val<'k> {
        (self.first + i) % self.plan.keys_each
    }

    /// The whole products that this lane keeps, from its part of all of them.
    pub(super) fn gather(&self, mut parts: Vec<Val<'k>>) -> Vec<Val<'k>> {
        for (i, upper) in self.upper.iter().enumerate() {
            let (low, high) = parts.split_at(parts.len() / 2);
            let halve = |(low, high): (&Val<'k>, &Val<'k>)| {
                let (kept, sent) = (upper.select(*high, *low), upper.select(*low, *high));
                kept + sent.shuffle_xor(1 << i)
            };
            parts = low.iter().zip(high).map(halve).collect();
        }
        for i in self.halvings..self.plan.lanes.ilog2() {
            parts = parts.iter().map(|part| *part + part.shuffle_xor(1 << i)).collect();
        }
        parts
    }

    /// What the lane that keeps the score has of it, for every score.
    pub(super) fn spread(&self, kept: &[Val<'k>]) -> Vec<Val<'k>> {
        (0..self.scores)
            .map(|score| self.broadcast(kept[(score % self.scores_per_lane()) as usize], score))
            .collect()
    }

    /// What the lanes that hold a row have of it.
    pub(super) fn of_row(&self, values: &[Val<'k>], row: u32) -> Val<'k> {
        let score = row * self.plan.keys_each;
        self.broadcast(values[(score % self.scores_per_lane() / self.plan.keys_each) as usize], score)
    }

    /// Shuffles a score, from the lane that keeps it, to all lanes of the cluster.
    fn broadcast(&self, value: Val<'k>, score: u32) -> Val<'k> {
        if self.halvings == 0 {
            return value;
        }
        let bit = |i: u32| ((score / (self.scores >> (i + 1))) & 1) << i;
        value.shuffle(self.cluster + (0..self.halvings).map(bit).sum::<u32>())
    }

    /// Bits of a lane's number by which lanes differ that keep scores of the same row for other keys of the subgroup.
    fn key_bits(&self) -> impl Iterator<Item = u32> + '_ {
        let within = (0..self.halvings).filter(|i| self.scores >> (i + 1) < self.plan.keys_each);
        within.chain(self.plan.lanes.ilog2()..self.plan.subgroup.ilog2()).map(|i| 1 << i)
    }

    /// Combines a value of a row over all keys of the subgroup.
    pub(super) fn over_keys(&self, value: Val<'k>, combine: impl Fn(Val<'k>, Val<'k>) -> Val<'k>) -> Val<'k> {
        self.key_bits().fold(value, |value, bit| combine(value, value.shuffle_xor(bit)))
    }

    /// Adds a value over the lanes that have the same elements.
    pub(super) fn over_columns(&self, value: Val<'k>) -> Val<'k> {
        let bits = self.plan.lanes.ilog2()..self.plan.subgroup.ilog2();
        bits.fold(value, |sum, i| sum + sum.shuffle_xor(1 << i))
    }

    /// Whether this lane is the first of those that keep scores of its rows.
    pub(super) fn is_first(&self) -> Val<'k> {
        let copies = (self.halvings..self.plan.lanes.ilog2()).map(|i| 1 << i);
        let others: u32 = self.key_bits().chain(copies).sum();
        (self.lane & others).eq(0)
    }
}
