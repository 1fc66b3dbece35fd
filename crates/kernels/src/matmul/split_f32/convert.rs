//! Rows of f32 that become planes on their way into workgroup memory: products of few rows need no pass before them.
//!
//! A workgroup finds the scales over its own depths. Sums are brought back from their scales before anything else, so
//! that parts of a split sum may differ in them.

use olivine_kernel::{Builder, Elem, MatrixType, Shared, Val, Var};

use crate::matmul::coop::staging::SLOT;
use crate::matmul::split_f32::split::{Neighbours, RUN, UNIT, factor_of, measure, scale, split, together};
use crate::matmul::tiled::panel::Span;

/// Steps that are measured at once.
const AT_ONCE: u32 = 2;

/// Rows of A in memory, along depths.
pub(crate) struct Rows<'k> {
    pub(crate) source: Neighbours<'k>,
    /// Index of the matrix' first element.
    pub(crate) base: Val<'k>,
}

/// What an invocation carries: a unit of a row.
struct Load<'k> {
    /// Where its high half goes.
    slot: Val<'k>,
    /// Where the row begins.
    base: Val<'k>,
    /// Its first depth inside the panel.
    depth: Val<'k>,
    /// The power of two that scales the row.
    by: Val<'k>,
}

/// A panel of both planes.
pub(crate) struct Raw<'k> {
    k: &'k Builder,
    rows: Rows<'k>,
    shared: Shared<'k>,
    /// Of every row of the panel.
    scales: Shared<'k>,
    first: Val<'k>,
    pitch: u32,
    loads: Vec<Load<'k>>,
    held: Vec<Var<'k>>,
}

impl<'k> Raw<'k> {
    fn pitch(depth: u32) -> u32 {
        (2 * depth / SLOT) | 1
    }

    /// The panel of a span of rows for depths from `start` below `end`; it holds the first step. The workgroup must be a
    /// divisor of the panel's units.
    pub(crate) fn new(
        k: &'k Builder,
        shared: Shared<'k>,
        rows: Rows<'k>,
        span: &Span<'k>,
        (outer, depth): (u32, u32),
        (start, end): (Val<'k>, Val<'k>),
    ) -> Self {
        let (pitch, across) = (Self::pitch(depth), depth / UNIT);
        let scales = k.shared(Elem::U32, 1, outer);
        let units: Vec<(Val<'k>, Val<'k>)> = (0..outer * across / k.group())
            .map(|i| k.local_index() + i * k.group())
            .map(|number| (number / across, number % across))
            .collect();
        let bases: Vec<Val<'k>> = units
            .iter()
            .map(|(row, _)| rows.base + (span.first + *row).min(span.end - 1u32) * rows.source.line)
            .collect();
        let largest: Vec<Var<'k>> = units.iter().map(|_| k.var(k.u32(0))).collect();
        // Several steps at once, so that many loads are under way; those past the end may make a scale larger, no more.
        k.for_(start, end, k.u32(AT_ONCE * depth), |at| {
            for ((largest, base), (_, unit)) in largest.iter().zip(&bases).zip(&units) {
                let firsts = (0..AT_ONCE).map(|i| at + *unit * UNIT + i * depth);
                let words: Vec<Val<'k>> = firsts.flat_map(|first| rows.source.load(*base, first)).collect();
                largest.set(words.into_iter().fold(largest.get(), measure));
            }
        });
        let mut loads = Vec::with_capacity(units.len());
        for ((largest, base), (row, unit)) in largest.iter().zip(bases).zip(units) {
            let scale = scale(k.cluster_reduce_with(across, largest.get(), together));
            k.if_(unit.eq(0), || scales.store(row, scale));
            let slot = row * pitch + unit / (RUN / SLOT) * (2 * RUN / SLOT) + unit % (RUN / SLOT);
            loads.push(Load { slot, base, depth: unit * UNIT, by: factor_of(scale) });
        }
        let mut panel = Raw { k, rows, shared, scales, first: span.first, pitch, loads, held: Vec::new() };
        panel.held = panel.load(start).into_iter().map(|v| k.var(v)).collect();
        panel
    }

    fn load(&self, at: Val<'k>) -> Vec<Val<'k>> {
        self.loads.iter().flat_map(|load| self.rows.source.load(load.base, at + load.depth)).collect()
    }

    /// Loads the step at depth `at` into registers. Depths past the last repeat others; the other factor's are zeros.
    pub(crate) fn fetch(&self, at: Val<'k>) {
        self.held.iter().zip(self.load(at)).for_each(|(var, value)| var.set(value));
    }

    /// Puts what is in registers into workgroup memory.
    pub(crate) fn put(&self) {
        for (load, held) in self.loads.iter().zip(self.held.chunks(UNIT as usize)) {
            let words: Vec<Val<'k>> = held.iter().map(|v| v.get()).collect();
            let [high, low] = split(&words, &[load.by; UNIT as usize]);
            self.shared.store_vec(load.slot, &high);
            self.shared.store_vec(load.slot + RUN / SLOT, &low);
        }
    }

    /// A matrix of the panel: `row` rows on from the first, `depth` deep in both planes' depths.
    pub(crate) fn matrix(&self, ty: MatrixType, row: Val<'k>, depth: u32) -> Val<'k> {
        self.shared.load_matrix(ty, row * self.pitch + depth / SLOT, self.k.u32(self.pitch), false)
    }

    /// The scale of a row of the product.
    pub(crate) fn scale(&self, row: Val<'k>) -> Val<'k> {
        self.scales.load(row - self.first)
    }

    /// An element as it was given.
    pub(crate) fn given(&self, row: Val<'k>, depth: Val<'k>) -> Val<'k> {
        self.rows.source.one(self.rows.base + row * self.rows.source.line, depth)
    }

    /// Depths that there are.
    pub(crate) fn depths(&self) -> Val<'k> {
        self.rows.source.size
    }
}
