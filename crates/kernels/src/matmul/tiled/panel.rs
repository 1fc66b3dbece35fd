//! A tile of one operand staged through registers into workgroup memory, transposed to one index along K at a time.
//!
//! Every invocation carries a patch of 4 outer positions and a few indices along K: loads are straight-line code with
//! clamped addresses, stores to workgroup memory whole vectors. Patches are divided so that neighbouring invocations
//! load neighbouring memory, whichever axis that is, and their stores meet different banks.

use std::rc::Rc;

use olivine_kernel::{Buf, Builder, Shared, Val, Var};

use crate::conv::taps::{DeclaredTaps, Pattern, TapEntry};
use crate::matmul::choice::Tile;
use crate::matmul::problem::{Axis, Layout};
use crate::packed::weight::DeclaredWeight;

/// An operand in memory.
pub(crate) struct TileOperand<'k> {
    pub(crate) buffer: Buf<'k>,
    pub(crate) layout: Layout,
    /// Strides; one that is known to be 1 is a constant.
    pub(crate) outer: Val<'k>,
    pub(crate) k_stride: Val<'k>,
    /// Index of the matrix' first element.
    pub(crate) base: Val<'k>,
    /// Size of K, above 0.
    pub(crate) k_size: Val<'k>,
    /// Whether the last step may be cut short.
    pub(crate) tail: bool,
    /// How elements are found if not by strides.
    pub(crate) reach: IndexMode<'k>,
}

/// How an operand's elements are found.
#[derive(Clone)]
pub(crate) enum IndexMode<'k> {
    /// By strides.
    Strides,
    /// Outer positions by stride, indices along K as the table says where weights are.
    Weights(Rc<DeclaredTaps<'k>>, Pattern<'k>),
    /// Pixels and taps of an image.
    Taps(Rc<DeclaredTaps<'k>>, Pattern<'k>),
    /// Rows of packed bytes; `base` counts rows.
    Packed(Rc<DeclaredWeight<'k>>),
}

/// The positions that a workgroup's tile covers: `first` to one below `end`.
pub(crate) struct TileSpan<'k> {
    pub(crate) first: Val<'k>,
    pub(crate) end: Val<'k>,
    /// Where positions really are, if not in their order; they are loaded one by one then.
    pub(crate) order: Option<Buf<'k>>,
}

/// A panel of `outer` by `k_offset` in workgroup memory.
pub(crate) struct Panel<'k> {
    k: &'k Builder,
    source: TileOperand<'k>,
    shared: Shared<'k>,
    pitch: u32,
    /// Which four outer positions.
    block: Val<'k>,
    /// Indices along K of the patch inside the panel.
    k_size: Vec<Val<'k>>,
    /// Index of each outer position at k = 0.
    rows: Vec<Val<'k>>,
    /// What tells which taps of each outer position are outside.
    bounds: Vec<Vec<Val<'k>>>,
    /// The patch, one index along K at a time.
    held: Vec<Var<'k>>,
    /// What tells whether each index along K of the patch is outside.
    held_bounds: Vec<Vec<Var<'k>>>,
}

/// Registers that begin with some values.
fn registers(values: Vec<Val<'_>>) -> Vec<Var<'_>> {
    values.into_iter().map(|v| v.builder().var(v)).collect()
}

impl<'k> Panel<'k> {
    /// A panel of a workgroup; it holds the patch at k = `start`, or nothing that counts without one.
    pub(crate) fn new(
        k: &'k Builder,
        shared: Shared<'k>,
        source: TileOperand<'k>,
        span: &TileSpan<'k>,
        (outer, k_offset): (u32, u32),
        start: Option<Val<'k>>,
    ) -> Self {
        let me = k.local_index();
        let blocks = outer / 4;
        let patch = outer * k_offset / (4 * k.group());
        let (block, k_size) = match source.layout.along {
            Axis::Outer => {
                let (block, first) = (me % blocks, me / blocks);
                (block, (0..patch).map(|p| first + p * (k_offset / patch)).collect::<Vec<_>>())
            }
            Axis::K => {
                let near = 4.min(k_offset / patch);
                let (block, far) = (me / near % blocks, me / (near * blocks));
                let first = (far * near + me % near) * patch;
                (block, (0..patch).map(|p| first + p).collect())
            }
        };
        let step = if source.layout.along == Axis::Outer { source.layout.lanes } else { 1 };
        let last = span.end - step;
        let positions: Vec<Val<'k>> = (0..4)
            .step_by(step)
            .map(|i| {
                let position = (span.first + block * 4u32 + i).min(last);
                span.order.map_or(position, |order| order.load(position))
            })
            .collect();
        let (rows, bounds) = match &source.reach {
            IndexMode::Taps(taps, class) => {
                let offsets_of = taps.offsets_of(class, source.base, &positions);
                offsets_of.into_iter().map(|s| (s.index, s.bounds)).unzip()
            }
            _ => (positions.into_iter().map(|p| source.base + p * source.outer).collect(), Vec::new()),
        };
        let pitch = Tile::pitch(outer) / 4;
        let (held, held_bounds) = (Vec::new(), Vec::new());
        let mut panel = Panel { k, source, shared, pitch, block, k_size, rows, bounds, held, held_bounds };
        let (values, bounds) = match start {
            Some(start) => {
                let (values, entries) = panel.load(start);
                (values, entries.into_iter().map(|e| e.bounds).collect())
            }
            None => {
                let zero = k.number(panel.source.buffer.elem().scalar(), 0.0);
                let words = match &panel.source.reach {
                    IndexMode::Taps(taps, _) => vec![vec![k.u32(0); taps.bound_words()]; panel.k_size.len()],
                    _ => Vec::new(),
                };
                (vec![zero; 4 * panel.k_size.len()], words)
            }
        };
        panel.held = registers(values);
        panel.held_bounds = bounds.into_iter().map(registers).collect();
        panel
    }

    /// The patch where strides do not tell: one element at a time, those outside read from the input's first.
    fn gather(&self, k_size: &[Val<'k>]) -> (Vec<Val<'k>>, Vec<TapEntry<'k>>) {
        let buffer = self.source.buffer;
        let (mut patch, mut entries) = (Vec::with_capacity(4 * k_size.len()), Vec::new());
        for k_offset in k_size {
            match &self.source.reach {
                IndexMode::Taps(taps, class) => {
                    let entry = taps.entry(class, *k_offset);
                    for (row, bounds) in self.rows.iter().zip(&self.bounds) {
                        let index = *row + entry.offset;
                        let index = match taps.inside(bounds, &entry.bounds) {
                            Some(inside) => inside.select(index, self.k.u32(0)),
                            None => index,
                        };
                        patch.push(buffer.load(index));
                    }
                    entries.push(entry);
                }
                IndexMode::Weights(taps, class) => {
                    let step = taps.weight(class, *k_offset);
                    patch.extend(self.rows.iter().map(|row| buffer.load(*row + step)));
                }
                IndexMode::Strides | IndexMode::Packed(_) => {}
            }
        }
        (patch, entries)
    }

    /// The patch of the step at k = `at`, one index along K at a time, four values each. Indices past the end of K
    /// repeat others.
    fn load(&self, at: Val<'k>) -> (Vec<Val<'k>>, Vec<TapEntry<'k>>) {
        let (buffer, lanes) = (self.source.buffer, self.source.layout.lanes);
        let within = |k_offset: Val<'k>, lanes: usize| {
            if self.source.tail { k_offset.min(self.source.k_size - lanes) } else { k_offset }
        };
        if !matches!(self.source.reach, IndexMode::Strides) {
            // There may be no index along K at all, but there is something in its place.
            let last = self.source.k_size.max(1u32) - 1u32;
            let k_offset = |d: &Val<'k>| if self.source.tail { (at + *d).min(last) } else { at + *d };
            return self.gather(&self.k_size.iter().map(k_offset).collect::<Vec<_>>());
        }
        let run = |index: Val<'k>, lanes: usize| buffer.load_vec(index, lanes as u8);
        let patch = match self.source.layout.along {
            Axis::Outer => {
                let mut patch = Vec::with_capacity(4 * self.k_size.len());
                for k_offset in &self.k_size {
                    let step = within(at + *k_offset, 1) * self.source.k_stride;
                    for row in &self.rows {
                        patch.extend(run(*row + step, lanes));
                    }
                }
                patch
            }
            Axis::K => {
                let lanes = lanes.min(self.k_size.len());
                let mut by_row = vec![Vec::new(); 4];
                for first in self.k_size.iter().step_by(lanes) {
                    let step = within(at + *first, lanes) * self.source.k_stride;
                    for (to, row) in by_row.iter_mut().zip(&self.rows) {
                        to.extend(run(*row + step, lanes));
                    }
                }
                (0..self.k_size.len()).flat_map(|d| by_row.iter().map(move |row| row[d])).collect()
            }
        };
        (patch, Vec::new())
    }

    /// Loads the patch of the step at k = `at` into registers.
    pub(crate) fn fetch(&self, at: Val<'k>) {
        let (values, entries) = self.load(at);
        self.held.iter().zip(values).for_each(|(var, value)| var.set(value));
        for (vars, entry) in self.held_bounds.iter().zip(entries) {
            vars.iter().zip(entry.bounds).for_each(|(var, value)| var.set(value));
        }
    }

    /// Puts the patch in registers, of the step at k = `at`, into workgroup memory; indices past the end of K are
    /// zeros.
    pub(crate) fn put(&self, at: Val<'k>) {
        for (i, (k_offset, held)) in self.k_size.iter().zip(self.held.chunks(4)).enumerate() {
            let mut values: Vec<Val<'k>> = held.iter().map(|v| v.get()).collect();
            // Only now: what waits for a load should stand after the matmuls that hide it.
            if let (IndexMode::Taps(taps, _), Some(entry)) = (&self.source.reach, self.held_bounds.get(i)) {
                let entry: Vec<Val<'k>> = entry.iter().map(|v| v.get()).collect();
                for (value, bounds) in values.iter_mut().zip(&self.bounds) {
                    if let Some(inside) = taps.inside(bounds, &entry) {
                        *value = inside.select(*value, value.like(0.0));
                    }
                }
            }
            if self.source.tail {
                let inside = (at + *k_offset).lt(self.source.k_size);
                values.iter_mut().for_each(|v| *v = inside.select(*v, v.like(0.0)));
            }
            self.shared.store_vec(*k_offset * self.pitch + self.block, &values);
        }
    }

    /// Four neighbours at an index along K of the panel, which counts from `first` on if there is one.
    pub(crate) fn read(&self, first: Option<Val<'k>>, k_offset: u32, block: Val<'k>) -> Vec<Val<'k>> {
        let at = block + self.k.u32(k_offset * self.pitch);
        self.shared.load_vec(first.map_or(at, |first| at + first * self.pitch))
    }
}
