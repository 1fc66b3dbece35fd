//! How rows are given to invocations, and how those that share a row combine what they hold.
//!
//! A row belongs to a cluster of neighbouring invocations, a power of two of them: short rows share a workgroup, long
//! rows have one of their own.

use std::cell::RefCell;

use olivine_ir::{DType, Dim};
use olivine_kernel::{Builder, Elem, Scalar, Shared, Target, Val};

use crate::launch::number;

/// Several registers that belong together.
pub(crate) type State<'k> = Vec<Val<'k>>;

/// Invocations of a workgroup where nothing asks for more.
pub(crate) const GROUP: u32 = 256;

/// Workgroups that keep a large device busy; below, work is split further.
pub(crate) const BUSY: usize = 1024;

/// Elements of one vector load: 16 bytes of 32-bit numbers.
pub(crate) fn vector(dtype: DType) -> usize {
    if dtype.size() > 4 { 2 } else { 4 }
}

/// What workgroup memory and scratch hold a register as.
pub(crate) fn stored(scalar: Scalar) -> Elem {
    match scalar {
        Scalar::I32 => Elem::I32,
        Scalar::I64 => Elem::I64,
        Scalar::U64 => Elem::U64,
        Scalar::F64 => Elem::F64,
        Scalar::F32 | Scalar::F16 => Elem::F32,
        Scalar::U32 | Scalar::Bool => Elem::U32,
    }
}

/// The type a float is computed in.
pub(crate) fn wide(dtype: DType) -> Scalar {
    if dtype == DType::F64 { Scalar::F64 } else { Scalar::F32 }
}

/// Rows whose elements stay in registers between reading and writing. All numbers are baked into the kernel; the
/// row's length is not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RowTile {
    /// Invocations of a workgroup.
    pub(crate) group: u32,
    /// Invocations to a row; a power of two.
    pub(crate) width: u32,
    /// Loads of one invocation.
    pub(crate) loads: u32,
    /// Elements of one load.
    pub(crate) lanes: u32,
    /// Rows of a cluster: short ones are held together.
    pub(crate) each: u32,
}

/// Elements of a row that one invocation holds though they are no vector.
const TINY: usize = 8;

/// Rows that a cluster may hold together.
const TOGETHER: u32 = 4;

/// Lengths of rows up to which neighbours with the same tile are looked for; all longer ones have none.
const LONGEST: usize = 1 << 17;

impl RowTile {
    /// The tile for rows of `n` elements, packed one after another; `None` if they are too long for registers. Open lengths
    /// are restricted to those around that have the same tile.
    #[track_caller]
    pub(crate) fn of(n: Dim, dtype: DType, most: u32) -> Option<Self> {
        let Some(now) = n.value().ok().and_then(|n| usize::try_from(n).ok()) else {
            return RowTile::new(number(n), dtype, most);
        };
        let lanes = if n.is_multiple_of(vector(dtype)) { vector(dtype) } else { 1 };
        let of = |n: usize| RowTile::with_lanes(n, lanes, dtype.size() > 4, most);
        let tile = of(now);
        if n.is_constant() {
            return tile;
        }
        let is_alike = |size: &usize| of(*size) == tile;
        let least = (1..=now).rev().step_by(lanes).take_while(is_alike).last().unwrap_or(now);
        let largest = (now..LONGEST.max(now + 1)).step_by(lanes).take_while(is_alike).last().unwrap_or(now);
        let is_inside = n >= least && (largest + lanes >= LONGEST || n <= largest);
        if is_inside { tile } else { RowTile::new(number(n), dtype, most) }
    }

    /// The same of a number.
    pub(crate) fn new(n: usize, dtype: DType, most: u32) -> Option<Self> {
        let vector = vector(dtype);
        let lanes = if n.is_multiple_of(vector) { vector } else { 1 };
        RowTile::with_lanes(n, lanes, dtype.size() > 4, most)
    }

    /// The same with vectors of a given length, which must divide the row's.
    pub(crate) fn with_lanes(n: usize, lanes: usize, double: bool, most: u32) -> Option<Self> {
        let most = most as usize;
        let (good, largest) = if double { (10, 16) } else { (20, 32) };
        let vectors = n.div_ceil(lanes).max(1);
        // Neighbours read neighbouring vectors, but of rows that fill none: those are better whole.
        let near = if lanes == 1 && n <= TINY { 1 } else { vectors.min(32) };
        let width = n.div_ceil(good).max(near).next_power_of_two().min(most);
        let loads = vectors.div_ceil(width);
        // Long rows of nearly the same length share a kernel.
        let loads = loads.next_multiple_of(RowTile::rounding(loads));
        let group = width.max((GROUP as usize).min(most));
        let fits = loads * lanes <= largest;
        fits.then_some(RowTile {
            group: group as u32,
            width: width as u32,
            loads: loads as u32,
            lanes: lanes as u32,
            each: 1,
        })
    }

    /// What numbers of loads are multiples of.
    fn rounding(loads: usize) -> usize {
        (loads.next_power_of_two() / 8).max(1)
    }

    /// Whether an invocation's i-th load is inside a row of `n`, beginning at a position: known of all but the last.
    pub(crate) fn inside<'k>(&self, i: u32, at: Val<'k>, n: Val<'k>) -> Val<'k> {
        let sure = i + 1 + RowTile::rounding(self.loads as usize) as u32 <= self.loads;
        if sure { at.builder().bool(true) } else { at.lt(n) }
    }

    /// The same for so many rows: where there are very many short ones, clusters hold several at once, so that more of
    /// memory is under way. Their states meet by shuffles.
    pub(crate) fn for_rows(self, rows: Dim, target: &Target) -> Self {
        let near = target.subgroup.is_some_and(|s| self.width <= s);
        let short = self.loads * self.lanes * TOGETHER <= 16;
        let several = near && short && self.groups(rows) >= 2 * BUSY;
        RowTile { each: if several { TOGETHER } else { 1 }, ..self }
    }

    /// Rows of one workgroup.
    pub(crate) fn rows(&self) -> u32 {
        self.clusters() * self.each
    }

    fn clusters(&self) -> u32 {
        self.group / self.width
    }

    /// Workgroups for so many rows.
    pub(crate) fn groups(&self, rows: Dim) -> Dim {
        rows.div_ceil(self.rows())
    }

    /// The rows of this invocation, given its workgroup's number, and its place in their cluster.
    pub(crate) fn rows_of<'k>(&self, group: Val<'k>) -> (Vec<Val<'k>>, Val<'k>) {
        let me = group.builder().local_index();
        if self.width == self.group {
            return (vec![group], me);
        }
        let first = group * self.rows() + me / self.width;
        ((0..self.each).map(|i| first + i * self.clusters()).collect(), me % self.width)
    }

    /// Where the i-th load of an invocation begins in its row.
    pub(crate) fn position<'k>(&self, lane: Val<'k>, i: u32) -> Val<'k> {
        lane * self.lanes + i * self.width * self.lanes
    }
}

/// Clusters of neighbouring invocations that combine values. Every invocation of the workgroup must take part in each
/// of its methods.
pub(crate) struct Clusters<'k> {
    k: &'k Builder,
    width: u32,
    /// Whether every exchange happens once, in memory of its own.
    once: bool,
    /// Workgroup memory, used again by every exchange.
    memory: RefCell<Vec<(Elem, Shared<'k>)>>,
}

impl<'k> Clusters<'k> {
    /// Clusters of `width` invocations, a power of two.
    pub(crate) fn new(k: &'k Builder, width: u32) -> Self {
        if !width.is_power_of_two() || width > k.group() {
            k.fail(format!("clusters of {width} in a workgroup of {}", k.group()));
        }
        Clusters { k, width, once: false, memory: RefCell::default() }
    }

    /// The same for exchanges outside of every loop: where subgroups leave little to exchange, each has memory of its
    /// own, and nobody waits until it may be used again.
    pub(crate) fn once(k: &'k Builder, width: u32) -> Self {
        let once = k.target().subgroup.is_some_and(|s| k.group() / s.min(k.group()) <= 32);
        Clusters { once, ..Clusters::new(k, width) }
    }

    /// Memory for a state of each `within` invocations, an array for every register.
    fn memory(&self, state: &[Val<'k>], within: u32) -> Vec<Shared<'k>> {
        let mut all = self.memory.borrow_mut();
        if self.once {
            all.clear();
        }
        let mut taken = Vec::with_capacity(state.len());
        for value in state {
            let elem = stored(value.scalar());
            let free = (0..all.len()).find(|i| all[*i].0 == elem && !taken.contains(i));
            taken.push(free.unwrap_or_else(|| {
                all.push((elem, self.k.shared(elem, 1, self.k.group() / within)));
                all.len() - 1
            }));
        }
        taken.into_iter().map(|i| all[i].1).collect()
    }

    /// How many neighbours exchange by subgroup operations.
    fn within(&self) -> u32 {
        self.k.target().subgroup.map_or(1, |s| s.min(self.k.group()))
    }

    /// Combines the states of each cluster; all of it get the result. `join` is associative and commutative.
    pub(crate) fn join(
        &self,
        state: State<'k>,
        join: impl Fn(&[Val<'k>], &[Val<'k>]) -> State<'k>,
    ) -> State<'k> {
        let near = self.join_near(state, &join);
        self.join_far(near, join)
    }

    /// Combines the states of those of a cluster who are in one subgroup; all of them get the result.
    pub(crate) fn join_near(
        &self,
        mut state: State<'k>,
        join: impl Fn(&[Val<'k>], &[Val<'k>]) -> State<'k>,
    ) -> State<'k> {
        let mut step = 1;
        while step < self.within().min(self.width) {
            let other: State<'k> = state.iter().map(|v| v.shuffle_xor(step)).collect();
            state = join(&state, &other);
            step *= 2;
        }
        state
    }

    /// Combines what [`Clusters::join_near`] left.
    pub(crate) fn join_far(
        &self,
        mut state: State<'k>,
        join: impl Fn(&[Val<'k>], &[Val<'k>]) -> State<'k>,
    ) -> State<'k> {
        let (k, width, within) = (self.k, self.width, self.within());
        if width <= within {
            return state;
        }
        let (parts, all) = (width / within, k.group() / within);
        let memory = self.memory(&state, within);
        let me = k.local_index();
        let store = || put(&memory, me / within, &state);
        if within == 1 {
            store()
        } else {
            k.if_((me % within).eq(0), store)
        }
        k.barrier();
        let first = if parts == all { k.u32(0) } else { me / width * parts };
        if parts <= 8 {
            let loaded: Vec<State<'k>> = (0..parts).map(|i| get(&memory, first + i)).collect();
            state = tree(loaded, &join);
        } else if parts <= within {
            // Every subgroup joins all parts for itself.
            state = get(&memory, first + k.lane() % parts);
            let mut step = 1;
            while step < parts {
                let other: State<'k> = state.iter().map(|v| v.shuffle_xor(step)).collect();
                state = join(&state, &other);
                step *= 2;
            }
        } else {
            let part = me % width;
            let mut half = parts / 2;
            while half > 0 {
                k.if_(part.lt(half), || {
                    let at = first + part;
                    put(&memory, at, &join(&get(&memory, at), &get(&memory, at + half)));
                });
                k.barrier();
                half /= 2;
            }
            state = get(&memory, first);
        }
        // The next exchange writes the memory again.
        if !self.once {
            k.barrier();
        }
        state
    }

    /// Combines single values.
    pub(crate) fn join_one(&self, value: Val<'k>, join: impl Fn(Val<'k>, Val<'k>) -> Val<'k>) -> Val<'k> {
        self.join(vec![value], |a, b| vec![join(a[0], b[0])])[0]
    }

    /// The values before this one in its cluster combined, and all of the cluster's.
    pub(crate) fn scan(
        &self,
        value: Val<'k>,
        identity: Val<'k>,
        join: impl Fn(Val<'k>, Val<'k>) -> Val<'k>,
    ) -> (Val<'k>, Val<'k>) {
        let (before, all) = self.scan_many(&[value], identity, join);
        (before[0], all[0])
    }

    /// The same for several values of each invocation, every one on its own.
    pub(crate) fn scan_many(
        &self,
        values: &[Val<'k>],
        identity: Val<'k>,
        join: impl Fn(Val<'k>, Val<'k>) -> Val<'k>,
    ) -> (State<'k>, State<'k>) {
        let (k, width, within) = (self.k, self.width, self.within());
        let each = |a: &[Val<'k>], b: &[Val<'k>]| -> State<'k> {
            a.iter().zip(b).map(|(a, b)| join(*a, *b)).collect()
        };
        let nothing = vec![identity; values.len()];
        if width == 1 {
            return (nothing, values.to_vec());
        }
        let among = |width: u32| -> State<'k> {
            values.iter().map(|v| subgroup_scan(k, width, *v, identity, &join)).collect()
        };
        if width <= within {
            let before = among(width);
            let last = k.lane() | (width - 1);
            let all = each(&before, values).iter().map(|v| v.shuffle(last)).collect();
            return (before, all);
        }
        let me = k.local_index();
        let memory = self.memory(values, within);
        let before = if within > 1 { among(within) } else { nothing.clone() };
        let slot = me / within;
        let once = |state: &[Val<'k>]| {
            let store = || put(&memory, slot, state);
            if within == 1 { store() } else { k.if_((me % within).eq(within - 1), store) }
        };
        once(&each(&before, values));
        k.barrier();
        let (slots, at) = (width / within, me % width / within);
        if slots <= 8 {
            // Few enough for every invocation to read them all.
            let loaded: Vec<State<'k>> = (0..slots).map(|i| get(&memory, me / width * slots + i)).collect();
            let (mut earlier, mut all) = (nothing.clone(), nothing);
            for (i, state) in loaded.iter().enumerate() {
                earlier = earlier.iter().zip(&all).map(|(e, a)| at.eq(i).select(*a, *e)).collect();
                all = if i == 0 { state.clone() } else { each(&all, state) };
            }
            k.barrier();
            return (each(&earlier, &before), all);
        }
        // Sums of ever longer runs of slots; all are read before any is written.
        let mut step = 1;
        while step < slots {
            let reaches = at.ge(step);
            let from = reaches.select(slot - step, slot);
            let other = get(&memory, from).into_iter().map(|v| reaches.select(v, identity));
            let sum = each(&other.collect::<State<'k>>(), &get(&memory, slot));
            k.barrier();
            once(&sum);
            k.barrier();
            step *= 2;
        }
        let first = at.eq(0);
        let earlier = get(&memory, first.select(slot, slot - 1));
        let earlier: State<'k> = earlier.into_iter().map(|v| first.select(identity, v)).collect();
        let all = get(&memory, (me / width + 1) * slots - 1);
        k.barrier();
        (each(&earlier, &before), all)
    }
}

/// The values of the lanes before this one in its part of a subgroup, combined.
fn subgroup_scan<'k>(
    k: &'k Builder,
    width: u32,
    value: Val<'k>,
    identity: Val<'k>,
    join: &impl Fn(Val<'k>, Val<'k>) -> Val<'k>,
) -> Val<'k> {
    let lane = k.lane();
    let part = lane % width;
    let from = |v: Val<'k>, step: u32| {
        // Lanes without one before them ask themselves.
        let reaches = part.ge(step);
        let other = v.shuffle(reaches.select(lane - step, lane));
        reaches.select(other, identity)
    };
    let mut sum = value;
    let mut step = 1;
    while step < width {
        sum = join(from(sum, step), sum);
        step *= 2;
    }
    from(sum, 1)
}

/// Two lists combined one by one.
pub(crate) fn pairs<'k>(
    a: &[Val<'k>],
    b: &[Val<'k>],
    join: impl Fn(Val<'k>, Val<'k>) -> Val<'k>,
) -> State<'k> {
    a.iter().zip(b).map(|(a, b)| join(*a, *b)).collect()
}

/// Workgroup memory for as many states as `len`, an array for every register.
pub(crate) fn shared<'k>(k: &'k Builder, like: &[Val<'k>], len: u32) -> Vec<Shared<'k>> {
    like.iter().map(|v| k.shared(stored(v.scalar()), 1, len)).collect()
}

/// Stores a state.
pub(crate) fn put<'k>(memory: &[Shared<'k>], at: Val<'k>, state: &[Val<'k>]) {
    memory.iter().zip(state).for_each(|(m, v)| m.store(at, *v));
}

/// Loads a state.
pub(crate) fn get<'k>(memory: &[Shared<'k>], at: Val<'k>) -> State<'k> {
    memory.iter().map(|m| m.load(at)).collect()
}

/// States combined pairwise; there is at least one.
pub(crate) fn tree<'k>(
    mut states: Vec<State<'k>>,
    join: impl Fn(&[Val<'k>], &[Val<'k>]) -> State<'k>,
) -> State<'k> {
    while states.len() > 1 {
        states = states
            .chunks(2)
            .map(|pair| match pair {
                [a, b] => join(a, b),
                one => one.concat(),
            })
            .collect();
    }
    states.pop().unwrap_or_default()
}

/// Values added pairwise; there is at least one.
pub(crate) fn sum(values: Vec<Val<'_>>) -> Val<'_> {
    let mut values = values;
    while values.len() > 1 {
        values = values.chunks(2).map(|p| p.iter().copied().reduce(|a, b| a + b).unwrap_or(p[0])).collect();
    }
    values[0]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_get_as_many_invocations_as_keep_their_elements_in_registers() {
        let tile = |n, most| RowTile::new(n, DType::F32, most);
        let of = |group, width, loads, lanes| Some(RowTile { group, width, loads, lanes, each: 1 });
        assert_eq!(tile(4096, 1024), of(256, 256, 4, 4));
        assert_eq!(tile(64, 1024), of(256, 16, 1, 4));
        assert_eq!(tile(33, 1024), of(256, 32, 2, 1));
        assert_eq!(tile(1, 1024), of(256, 1, 1, 1));
        assert_eq!(tile(0, 1024), of(256, 1, 1, 4));
        assert_eq!(tile(32768, 1024), of(1024, 1024, 8, 4));
        assert_eq!(tile(4096, 128), of(128, 128, 8, 4));
        assert_eq!(tile(65537, 1024), None);
    }

    #[test]
    fn every_tile_covers_its_row_and_no_more_registers_than_allowed() {
        for dtype in [DType::F32, DType::F16, DType::F64] {
            for most in [128, 256, 1024] {
                for n in (0..6000).chain([8191, 8192, 16384, 32767, 32768, 40000]) {
                    let Some(t) = RowTile::new(n, dtype, most) else { continue };
                    assert!((t.width * t.loads * t.lanes) as usize >= n, "{n} {t:?}");
                    assert!(t.group <= most && t.group.is_multiple_of(t.width), "{n} {t:?}");
                    assert!(t.loads * t.lanes <= if dtype == DType::F64 { 16 } else { 32 });
                    assert!(n.is_multiple_of(t.lanes as usize));
                }
            }
        }
    }
}
