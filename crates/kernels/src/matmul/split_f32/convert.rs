//! Rows of f32 that become parts on their way into workgroup memory: matmuls of few rows need no pass before them.
//!
//! A workgroup finds the scales over its own indices along K. Sums are brought back from their scales before anything
//! else, so that parts of a split sum may differ in them.

use olivine_kernel::{Builder, Elem, MatrixType, Shared, Val, Var};

use crate::matmul::coop::staging::SLOT;
use crate::matmul::split_f32::split::{F32Runs, RUN, UNIT, measure, power_of, scale, split, together};
use crate::matmul::tiled::panel::TileSpan;

/// Steps that are measured at once.
const AT_ONCE: u32 = 2;

/// Rows of A in memory, along K.
pub(crate) struct UnsplitRows<'k> {
    pub(crate) source: F32Runs<'k>,
    /// Index of the matrix' first element.
    pub(crate) base: Val<'k>,
}

/// What an invocation carries: a unit of a row.
struct UnitLoad<'k> {
    /// Where its high half goes.
    slot: Val<'k>,
    /// Where the row begins.
    base: Val<'k>,
    /// Its first index along K inside the panel.
    k_offset: Val<'k>,
    /// The power of two that scales the row.
    by: Val<'k>,
}

/// A panel of both parts.
pub(crate) struct ConvertedPanel<'k> {
    k: &'k Builder,
    rows: UnsplitRows<'k>,
    shared: Shared<'k>,
    /// Of every row of the panel.
    scales: Shared<'k>,
    first: Val<'k>,
    pitch: u32,
    loads: Vec<UnitLoad<'k>>,
    held: Vec<Var<'k>>,
}

impl<'k> ConvertedPanel<'k> {
    fn pitch(k_offset: u32) -> u32 {
        (2 * k_offset / SLOT) | 1
    }

    /// The panel of a span of rows for indices along K from `start` below `end`; it holds the first step. The workgroup
    /// must be a divisor of the panel's units.
    pub(crate) fn new(
        k: &'k Builder,
        shared: Shared<'k>,
        rows: UnsplitRows<'k>,
        span: &TileSpan<'k>,
        (outer, k_offset): (u32, u32),
        (start, end): (Val<'k>, Val<'k>),
    ) -> Self {
        let (pitch, across) = (Self::pitch(k_offset), k_offset / UNIT);
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
        // Several steps at once, so that many loads are in flight; those past the end may make a scale larger, no more.
        k.for_(start, end, k.u32(AT_ONCE * k_offset), |at| {
            for ((largest, base), (_, unit)) in largest.iter().zip(&bases).zip(&units) {
                let firsts = (0..AT_ONCE).map(|i| at + *unit * UNIT + i * k_offset);
                let words: Vec<Val<'k>> = firsts.flat_map(|first| rows.source.load(*base, first)).collect();
                largest.set(words.into_iter().fold(largest.get(), measure));
            }
        });
        let mut loads = Vec::with_capacity(units.len());
        for ((largest, base), (row, unit)) in largest.iter().zip(bases).zip(units) {
            let scale = scale(k.cluster_reduce_with(across, largest.get(), together));
            k.if_(unit.eq(0), || scales.store(row, scale));
            let slot = row * pitch + unit / (RUN / SLOT) * (2 * RUN / SLOT) + unit % (RUN / SLOT);
            loads.push(UnitLoad { slot, base, k_offset: unit * UNIT, by: power_of(scale) });
        }
        let mut panel =
            ConvertedPanel { k, rows, shared, scales, first: span.first, pitch, loads, held: Vec::new() };
        panel.held = panel.load(start).into_iter().map(|v| k.var(v)).collect();
        panel
    }

    fn load(&self, at: Val<'k>) -> Vec<Val<'k>> {
        self.loads.iter().flat_map(|load| self.rows.source.load(load.base, at + load.k_offset)).collect()
    }

    /// Loads the step at k = `at` into registers. Indices past the end of K repeat others; the other operand's are
    /// zeros.
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

    /// A matrix of the panel: `row` rows on from the first, at `k_offset` along K in both parts' indices along K.
    pub(crate) fn matrix(&self, ty: MatrixType, row: Val<'k>, k_offset: u32) -> Val<'k> {
        self.shared.load_matrix(ty, row * self.pitch + k_offset / SLOT, self.k.u32(self.pitch), false)
    }

    /// The scale of a row of the matmul.
    pub(crate) fn scale(&self, row: Val<'k>) -> Val<'k> {
        self.scales.load(row - self.first)
    }

    /// An element as it was given.
    pub(crate) fn element(&self, row: Val<'k>, k_offset: Val<'k>) -> Val<'k> {
        self.rows.source.one(self.rows.base + row * self.rows.source.line, k_offset)
    }

    /// Indices along K that there are.
    pub(crate) fn k_size(&self) -> Val<'k> {
        self.rows.source.size
    }
}
