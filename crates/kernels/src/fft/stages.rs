//! Stockham stages of a workgroup: butterflies in registers, exchanges through workgroup memory.

use std::cell::Cell;

use olivine_kernel::{Buf, Builder, Elem, Shared, Val};
use olivine_numerics::fft::root;

use super::butterfly::{Complex, times, transform};
use super::tile::{Tile, spread};

/// A butterfly of an invocation: its line in the workgroup and its number in the line.
#[derive(Clone, Copy)]
pub(super) struct ButterflyIndex<'k> {
    pub(super) line: Val<'k>,
    pub(super) number: Val<'k>,
    /// Whether it is one at all; `None` where all are.
    live: Option<Val<'k>>,
}

impl<'k> ButterflyIndex<'k> {
    /// Runs `then` if the spot is one.
    pub(super) fn if_live(&self, k: &'k Builder, then: impl FnOnce()) {
        match self.live {
            None => then(),
            Some(live) => k.if_(live, then),
        }
    }
}

/// A butterfly's numbers.
pub(super) struct Butterfly<'k> {
    pub(super) spot: ButterflyIndex<'k>,
    pub(super) values: Vec<Complex<'k>>,
}

/// Numbers of a butterfly and their places in workgroup memory.
pub(super) type ButterflyStores<'k> = (ButterflyIndex<'k>, Vec<(Val<'k>, Complex<'k>)>);

/// The memory and the roots by which a workgroup transforms its tile.
pub(super) struct Stages<'k> {
    k: &'k Builder,
    tile: Tile,
    roots: Option<Buf<'k>>,
    shared: Option<Shared<'k>>,
    used: Cell<bool>,
}

/// The roots of all stages after the first: of a stage that follows p points, `e^(−2πi·qk/(p·r))` for q from 1 and k
/// below p.
pub(super) fn roots(radices: &[usize]) -> Vec<(f64, f64)> {
    let mut out = Vec::new();
    let mut p = 1;
    for r in radices {
        if p > 1 {
            out.extend((1..*r).flat_map(|q| (0..p).map(move |k| root(q * k, p * r))));
        }
        p *= r;
    }
    out
}

impl<'k> Stages<'k> {
    /// `exchanges` where more than the stages themselves pass through workgroup memory.
    pub(super) fn new(
        k: &'k Builder,
        tile: &Tile,
        elem: Elem,
        roots: Option<Buf<'k>>,
        exchanges: bool,
    ) -> Self {
        let len = (tile.lines * tile.pitch) as u32;
        let lanes = if tile.together { 2 } else { 1 };
        let shared = (exchanges || tile.radices.len() > 1).then(|| k.shared(elem, lanes, len));
        Stages { k, tile: tile.clone(), roots, shared, used: Cell::new(false) }
    }

    /// This invocation's share of `per_line` pieces of work in every line; neighbours take neighbouring lines if
    /// `by_line`.
    pub(super) fn spots(&self, per_line: usize, by_line: bool) -> Vec<ButterflyIndex<'k>> {
        let k = self.k;
        let total = self.tile.lines * per_line;
        let group = self.tile.group as usize;
        (0..total.div_ceil(group))
            .map(|round| {
                let me = k.local_index();
                let index = me + round * group;
                let whole = (round + 1) * group <= total;
                let live = (!whole).then(|| index.lt(total));
                let index = if whole { index } else { index.min(total - 1) };
                let (line, number) = match (by_line, self.tile.lines, per_line) {
                    (_, 1, _) => (k.u32(0), index),
                    (_, _, 1) => (index, k.u32(0)),
                    // Plainly the same line in every round, so that its place is computed once.
                    (true, lines, _) if whole && group.is_multiple_of(lines) => (me % lines, index / lines),
                    (true, lines, _) => (index % lines, index / lines),
                    (false, ..) => (index / per_line, index % per_line),
                };
                ButterflyIndex { line, number, live }
            })
            .collect()
    }

    /// Where a line's point is in workgroup memory.
    pub(super) fn shared_index(&self, line: Val<'k>, point: Val<'k>) -> Val<'k> {
        let wide = if spread(self.tile.points) == self.tile.points { point } else { point + point / 16 };
        line * self.tile.pitch + wide
    }

    /// Puts numbers in workgroup memory and takes others out, once all of the workgroup have put theirs.
    pub(super) fn exchange(&self, put: &[ButterflyStores<'k>], take: &[Val<'k>]) -> Vec<Complex<'k>> {
        let k = self.k;
        let Some(shared) = self.shared else {
            k.fail("an exchange without workgroup memory");
            return Vec::new();
        };
        if self.used.replace(true) {
            k.barrier();
        }
        let store = |part: usize| {
            for (spot, values) in put {
                spot.if_live(k, || {
                    for (at, value) in values {
                        match part {
                            0 => shared.store(*at, value.0),
                            1 => shared.store(*at, value.1),
                            _ => shared.store_vec(*at, &[value.0, value.1]),
                        }
                    }
                });
            }
            k.barrier();
        };
        if self.tile.together {
            store(2);
            return take
                .iter()
                .map(|at| match shared.load_vec(*at)[..] {
                    [re, im] => (re, im),
                    _ => (*at, *at),
                })
                .collect();
        }
        store(0);
        let re: Vec<Val<'k>> = take.iter().map(|at| shared.load(*at)).collect();
        k.barrier();
        store(1);
        re.into_iter().zip(take).map(|(re, at)| (re, shared.load(*at))).collect()
    }

    /// What the first stage works on: `load` returns a line's point, for neighbouring lines together if `by_line`.
    pub(super) fn load(
        &self,
        load: impl Fn(&ButterflyIndex<'k>, Val<'k>) -> Complex<'k>,
        by_line: bool,
    ) -> Vec<Butterfly<'k>> {
        let (spots, r) = self.first(by_line);
        let load = |spot: &ButterflyIndex<'k>| {
            self.points_of(spot, r).into_iter().map(|at| load(spot, at)).collect()
        };
        spots.into_iter().map(|spot| Butterfly { values: load(&spot), spot }).collect()
    }

    /// The same out of workgroup memory, after `put` was put there.
    pub(super) fn reload(&self, put: &[ButterflyStores<'k>], by_line: bool) -> Vec<Butterfly<'k>> {
        let (spots, r) = self.first(by_line);
        self.take(put, spots, r)
    }

    /// The first stage's butterflies and its radix.
    fn first(&self, by_line: bool) -> (Vec<ButterflyIndex<'k>>, usize) {
        let r = self.tile.radices.first().copied().unwrap_or(1);
        (self.spots(self.tile.points / r, by_line), r)
    }

    /// The points of a butterfly of radix r.
    fn points_of(&self, spot: &ButterflyIndex<'k>, r: usize) -> Vec<Val<'k>> {
        (0..r).map(|q| spot.number + q * (self.tile.points / r)).collect()
    }

    fn take(
        &self,
        put: &[ButterflyStores<'k>],
        spots: Vec<ButterflyIndex<'k>>,
        r: usize,
    ) -> Vec<Butterfly<'k>> {
        let place = |s: &ButterflyIndex<'k>| {
            self.points_of(s, r).into_iter().map(|at| self.shared_index(s.line, at)).collect()
        };
        let places: Vec<Vec<Val<'k>>> = spots.iter().map(place).collect();
        let taken = self.exchange(put, &places.concat());
        spots
            .into_iter()
            .zip(taken.chunks(r))
            .map(|(spot, v)| Butterfly { spot, values: v.to_vec() })
            .collect()
    }

    /// Transforms what [`Stages::load`] gave: value q of a butterfly becomes the line's result at
    /// `number + q·step`. Neighbours hold results of neighbouring lines if `by_line`, and there are several stages.
    pub(super) fn run(&self, mut held: Vec<Butterfly<'k>>, by_line: bool) -> Vec<Butterfly<'k>> {
        let radices = &self.tile.radices;
        let (mut p, mut table) = (1, 0);
        for (stage, r) in radices.iter().enumerate() {
            for Butterfly { spot, values } in &mut held {
                if p > 1 {
                    self.turn(*spot, values, p, table);
                }
                *values = transform(values);
            }
            let Some(next) = radices.get(stage + 1) else { break };
            let put: Vec<ButterflyStores<'k>> = held
                .iter()
                .map(|Butterfly { spot, values }| {
                    let (block, k) = self.block(*spot, p, *r);
                    let at = |q: usize| self.shared_index(spot.line, block * (p * r) + k + q * p);
                    (*spot, values.iter().enumerate().map(|(q, v)| (at(q), *v)).collect())
                })
                .collect();
            held = self.take(&put, self.spots(self.tile.points / next, by_line), *next);
            table += if p > 1 { (r - 1) * p } else { 0 };
            p *= r;
        }
        held
    }

    /// The distance in a line between two neighbouring results of an invocation.
    pub(super) fn step(&self) -> usize {
        self.tile.points / self.tile.radices.last().copied().unwrap_or(1)
    }

    /// A butterfly's number as a block and a position below p.
    fn block(&self, spot: ButterflyIndex<'k>, p: usize, r: usize) -> (Val<'k>, Val<'k>) {
        match p {
            1 => (spot.number, self.k.u32(0)),
            p if p * r == self.tile.points => (self.k.u32(0), spot.number),
            p => (spot.number / p, spot.number % p),
        }
    }

    fn turn(&self, spot: ButterflyIndex<'k>, values: &mut [Complex<'k>], p: usize, table: usize) {
        let Some(roots) = self.roots else {
            self.k.fail("stages without their roots");
            return;
        };
        let (_, k) = self.block(spot, p, values.len());
        for (q, value) in values.iter_mut().enumerate().skip(1) {
            *value = times(*value, pair(roots, k + (table + (q - 1) * p)));
        }
    }
}

/// The complex number at an index of a table.
pub(super) fn pair<'k>(table: Buf<'k>, index: Val<'k>) -> Complex<'k> {
    match table.load_vec(index * 2, 2)[..] {
        [re, im] => (re, im),
        _ => (index, index),
    }
}
