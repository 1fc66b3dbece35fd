//! A tile of packed rows, decoded on its way into workgroup memory, transposed to one index along K at a time.
//!
//! Every invocation carries eight neighbours along K of one row: their bytes while the step before is multiplied, their
//! values when it is done.

use std::rc::Rc;

use olivine_kernel::{Builder, Shared, Val, Var};

use crate::matmul::choice::Tile;
use crate::matmul::tiled::panel::TileSpan;
use crate::packed::weight::{DeclaredWeight, Loaded};

/// Neighbours along K that are decoded together.
const RUN: u32 = 8;

/// Eight elements of a row.
struct Octet<'k> {
    /// Its first byte and its number.
    row: (Val<'k>, Val<'k>),
    /// Which four rows of the panel, and which of them.
    block: Val<'k>,
    lane: Val<'k>,
    /// The first index along K inside of the panel.
    k_offset: Val<'k>,
    /// Whether the panel has it.
    inside: Option<Val<'k>>,
}

/// A panel of `outer` by `k_offset` in workgroup memory.
pub(crate) struct DecodedPanel<'k> {
    k: &'k Builder,
    weight: Rc<DeclaredWeight<'k>>,
    shared: Shared<'k>,
    pitch: u32,
    octets: Vec<Octet<'k>>,
    held: Vec<Vec<Var<'k>>>,
    k_size: Val<'k>,
    tail: bool,
}

impl<'k> DecodedPanel<'k> {
    /// A panel of a workgroup that holds nothing yet; the weight's rows are counted from `base` on.
    pub(crate) fn new(
        k: &'k Builder,
        shared: Shared<'k>,
        (weight, base): (Rc<DeclaredWeight<'k>>, Val<'k>),
        span: &TileSpan<'k>,
        (outer, k_step): (u32, u32),
        (k_size, tail): (Val<'k>, bool),
    ) -> Self {
        let (all, per_row) = (outer * k_step / RUN, k_step / RUN);
        let octet = |i: u32| {
            let number = k.local_index() + i * k.group();
            let inside = (!all.is_multiple_of(k.group())).then(|| number.lt(all));
            let number = if inside.is_some() { number.min(all - 1) } else { number };
            // Neighbours store the same scalar of their vectors.
            let (lane, number) = (number / (all / 4), number % (all / 4));
            let (block, k_offset) = (number / per_row, number % per_row * RUN);
            let row = base + (span.first + block * 4u32 + lane).min(span.end - 1u32);
            Octet { row: (weight.row(row), row), block, lane, k_offset, inside }
        };
        let octets: Vec<Octet<'k>> = (0..all.div_ceil(k.group())).map(octet).collect();
        let words = weight.loads(RUN);
        let zeros = || (0..words).map(|_| k.var(k.u32(0))).collect();
        let held = octets.iter().map(|_| zeros()).collect();
        DecodedPanel { k, weight, shared, pitch: Tile::pitch(outer) / 4, octets, held, k_size, tail }
    }

    /// The first element of an octet in the step at k = `at`, that of another past the end of K.
    fn place(&self, octet: &Octet<'k>, at: Val<'k>) -> Val<'k> {
        let place = at + octet.k_offset;
        if self.tail { place.min((self.k_size - 1u32) / RUN * RUN) } else { place }
    }

    /// Loads the bytes of the step at k = `at` into registers.
    pub(crate) fn fetch(&self, at: Val<'k>) {
        for (octet, held) in self.octets.iter().zip(&self.held) {
            let Loaded(words) = self.weight.load(octet.row.0, self.place(octet, at), RUN);
            held.iter().zip(words).for_each(|(var, word)| var.set(word));
        }
    }

    /// Decodes the bytes in registers, of the step at k = `at`, into workgroup memory; indices past the end of K are
    /// zeros.
    pub(crate) fn put(&self, at: Val<'k>) {
        for (octet, held) in self.octets.iter().zip(&self.held) {
            let put = || {
                let loaded = Loaded(held.iter().map(|var| var.get()).collect());
                let values = self.weight.values(&loaded, octet.row, self.place(octet, at), RUN);
                let cut = |(i, value): (u32, Val<'k>)| match self.tail {
                    true => (at + octet.k_offset + i).lt(self.k_size).select(value, value.like(0.0)),
                    false => value,
                };
                let values: Vec<Val<'k>> = (0u32..).zip(values).map(cut).collect();
                let first = octet.k_offset * self.pitch + octet.block;
                for lane in 0..4u8 {
                    self.k.if_(octet.lane.eq(u32::from(lane)), || {
                        for (i, value) in (0u32..).zip(&values) {
                            self.shared.store_lane(first + i * self.pitch, lane, *value);
                        }
                    });
                }
            };
            match octet.inside {
                Some(inside) => self.k.if_(inside, put),
                None => put(),
            }
        }
    }

    /// Four neighbours at an index along K of the panel, which counts from `first` on if there is one.
    pub(crate) fn read(&self, first: Option<Val<'k>>, k_offset: u32, block: Val<'k>) -> Vec<Val<'k>> {
        let at = block + self.k.u32(k_offset * self.pitch);
        self.shared.load_vec(first.map_or(at, |first| at + first * self.pitch))
    }
}
