//! Digits in workgroup memory, made by every workgroup for itself: of x, or of what a norm makes of it.

use olivine_kernel::{Builder, Elem, Val, Var};

use super::super::norm::{self, DeclaredNorm, Terms};
use super::{DeclaredDigits, DigitLayout, DigitMemory, Unit, XSource};
use crate::norm::Scaling;
use crate::packed::pool::Pool;

/// Units that an invocation makes in straight-line code, so that their loads are in flight together.
const UNROLLED: u32 = 4;

/// The units of some rows, dealt out to the invocations of a workgroup.
struct Deal<'k, 'a> {
    k: &'k Builder,
    layout: DigitLayout,
    x: &'a XSource<'k>,
    /// The first element of a row.
    first: &'a dyn Fn(Val<'k>) -> Val<'k>,
    /// Units of a row, and of all.
    of_row: u32,
    total: u32,
    rows: u32,
}

/// A unit and the row that it is of.
type UnitOfRow<'k> = (Val<'k>, Unit<'k>);

impl<'k> Deal<'k, '_> {
    fn rounds(&self) -> u32 {
        self.total.div_ceil(self.k.group())
    }

    /// Whether all invocations have a unit in every round.
    fn is_even(&self) -> bool {
        self.total.is_multiple_of(self.k.group())
    }

    /// The number of an invocation's unit in a round of straight-line code.
    fn number(&self, round: u32) -> Val<'k> {
        self.k.local_index() + round * self.k.group()
    }

    /// Loads a unit; past the last, that.
    fn load(&self, number: Val<'k>) -> UnitOfRow<'k> {
        let number = number.min(self.total - 1u32);
        let row = number / self.of_row;
        (row, self.layout.load(self.x, (self.first)(row), number - row * self.of_row))
    }

    /// Calls `work` with the numbers of an invocation's units.
    fn each(&self, work: impl Fn(Val<'k>)) {
        let k = self.k;
        match self.rounds() <= UNROLLED {
            true => (0..self.rounds()).for_each(|round| work(self.number(round))),
            false => k.for_(k.u32(0), k.u32(self.rounds()), k.u32(1), |round| {
                work(round * k.group() + k.local_index());
            }),
        }
    }

    /// How a norm scales each row, and the units that invocations loaded for that: where they are few, they stay in registers.
    fn normed(&self, norm: &DeclaredNorm<'k>, pool: &Pool<'k>) -> (Vec<Scaling<'k>>, Vec<UnitOfRow<'k>>) {
        let few = if self.rounds() <= UNROLLED { self.rounds() } else { 0 };
        let held: Vec<UnitOfRow<'k>> = (0..few).map(|round| self.load(self.number(round))).collect();
        let scalings = norm.scalings(|count, terms| {
            let zero = self.k.f32(0.0);
            let sums: Vec<Var<'k>> = (0..self.rows as usize * count).map(|_| self.k.var(zero)).collect();
            match held.is_empty() {
                true => self.each(|number| self.add(number, &self.load(number), (&sums, count), terms)),
                false => (0u32..).zip(&held).for_each(|(round, unit)| {
                    self.add(self.number(round), unit, (&sums, count), terms);
                }),
            }
            let sums = sums.iter().map(|sum| sum.get()).collect();
            let all = norm::totals(self.k, pool, self.layout.width, sums);
            all.chunks(count).map(<[_]>::to_vec).collect()
        });
        (scalings, held)
    }

    /// Adds terms of a unit's elements to the sums of its row.
    fn add(
        &self,
        number: Val<'k>,
        (row, unit): &UnitOfRow<'k>,
        (sums, count): (&[Var<'k>], usize),
        terms: Terms<'_, 'k>,
    ) {
        let (k, zero) = (self.k, self.k.f32(0.0));
        for (r, sums) in sums.chunks(count).enumerate() {
            let counts = if self.rows == 1 { k.bool(true) } else { row.eq(r as u32) };
            let counts = if self.is_even() { counts } else { counts & number.lt(self.total) };
            for (sum, of_unit) in sums.iter().zip(unit.sums(|v| terms(r, v))) {
                sum.set(sum.get() + counts.select(of_unit, zero));
            }
        }
    }
}

impl DigitLayout {
    /// Makes the digits of some rows in workgroup memory; `first` is the first element of a row. The whole workgroup must come here
    /// together, and wait before it reads. `group` elements share a scale of the weight.
    pub(crate) fn stage<'k>(
        self,
        x: &XSource<'k>,
        rows: u32,
        first: impl Fn(Val<'k>) -> Val<'k>,
        (group, pool): (u32, &Pool<'k>),
    ) -> DeclaredDigits<'k> {
        let k = x.k_size.builder();
        let (lanes, runs) = (self.lanes(), self.stretches as u32 * self.width);
        let words = pool.take("words", Elem::U32, lanes as u8, rows * runs * self.words() / lanes);
        let scales = pool.take("scales", Elem::F32, 1, rows * runs);
        let of_row = self.units(self.each(k)) as u32;
        let deal = Deal { k, layout: self, x, first: &first, of_row, total: rows * of_row, rows };
        let put = |number: Val<'k>, (row, unit): &UnitOfRow<'k>, scaling: Option<&Scaling<'k>>| {
            let unit = self.quantize(unit, scaling);
            let put = || {
                let base = *row * (runs * self.words());
                for (i, some) in (0u32..).step_by(lanes as usize).zip(unit.words.chunks(lanes as usize)) {
                    words.store_vec((base + self.word_at(&unit, i)) / lanes, some);
                }
                k.if_(unit.element.eq(0u32), || scales.store(*row * runs + unit.run, unit.largest));
            };
            if deal.is_even() { put() } else { k.if_(number.lt(deal.total), put) }
        };
        match &x.norm {
            None => deal.each(|number| put(number, &deal.load(number), None)),
            Some(norm) => {
                let (scalings, held) = deal.normed(norm, pool);
                let put = |number: Val<'k>, unit: &UnitOfRow<'k>| {
                    put(number, unit, Some(&norm::of_row(&scalings, unit.0)));
                };
                match held.is_empty() {
                    true => deal.each(|number| put(number, &deal.load(number))),
                    false => {
                        (0u32..).zip(&held).for_each(|(round, unit)| put(deal.number(round), unit));
                    }
                }
            }
        }
        let memory = DigitMemory::Workgroup { words, scales };
        DeclaredDigits { layout: self, memory, stretches: k.u32(self.stretches as u32), group }
    }
}
