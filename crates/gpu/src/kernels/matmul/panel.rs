//! A tile of one factor on its way through registers into workgroup memory, transposed to depth by depth.
//!
//! Every invocation carries a patch of 4 outer positions and a few depths: loads are straight-line code with clamped
//! addresses, stores to workgroup memory whole vectors. Patches are dealt out so that neighbouring invocations load
//! neighbouring memory, whichever axis that is, and their stores meet different banks.

use olivine_kernel::{Buf, Builder, Shared, Val, Var};

use super::choice::Tile;
use super::problem::{Axis, Lie};

/// A factor in memory.
pub(super) struct Source<'k> {
    pub(super) buffer: Buf<'k>,
    pub(super) lie: Lie,
    /// Strides; one that is known to be 1 is a constant.
    pub(super) outer: Val<'k>,
    pub(super) depth: Val<'k>,
    /// Index of the matrix' first element.
    pub(super) base: Val<'k>,
    /// All depths, above 0.
    pub(super) depths: Val<'k>,
    /// Whether the last step may be cut short.
    pub(super) tail: bool,
}

/// The positions that a workgroup's tile covers: `first` to one below `end`.
pub(super) struct Span<'k> {
    pub(super) first: Val<'k>,
    pub(super) end: Val<'k>,
    /// Where positions really are, if not in their order.
    pub(super) order: Option<Buf<'k>>,
}

/// A panel of `outer` by `depth` in workgroup memory.
pub(super) struct Panel<'k> {
    k: &'k Builder,
    source: Source<'k>,
    shared: Shared<'k>,
    pitch: u32,
    /// Which four outer positions.
    block: Val<'k>,
    /// Depths of the patch inside the panel.
    depths: Vec<Val<'k>>,
    /// Index of each outer position at depth 0.
    rows: Vec<Val<'k>>,
    /// The patch, depth by depth.
    held: Vec<Var<'k>>,
}

impl<'k> Panel<'k> {
    /// A panel of a workgroup; its first patch is the one at depth `start`.
    pub(super) fn new(
        k: &'k Builder,
        shared: Shared<'k>,
        source: Source<'k>,
        span: &Span<'k>,
        (outer, depth): (u32, u32),
        start: Val<'k>,
    ) -> Self {
        let me = k.local_index();
        let blocks = outer / 4;
        let patch = outer * depth / (4 * k.group());
        let (block, depths) = match source.lie.along {
            Axis::Outer => {
                let (block, first) = (me % blocks, me / blocks);
                (block, (0..patch).map(|p| first + p * (depth / patch)).collect::<Vec<_>>())
            }
            Axis::Depth => {
                let near = 4.min(depth / patch);
                let (block, far) = (me / near % blocks, me / (near * blocks));
                let first = (far * near + me % near) * patch;
                (block, (0..patch).map(|p| first + p).collect())
            }
        };
        let step = if source.lie.along == Axis::Outer { source.lie.lanes } else { 1 };
        let last = span.end - step;
        let rows = (0..4)
            .step_by(step)
            .map(|i| {
                let position = (span.first + block * 4u32 + i).min(last);
                let position = span.order.map_or(position, |order| order.load(position));
                source.base + position * source.outer
            })
            .collect();
        let pitch = Tile::pitch(outer) / 4;
        let mut panel = Panel { k, source, shared, pitch, block, depths, rows, held: Vec::new() };
        panel.held = panel.load(start).into_iter().map(|v| k.var(v)).collect();
        panel
    }

    /// The patch of the step at depth `at`, depth by depth, four values each. Depths past the last repeat others.
    fn load(&self, at: Val<'k>) -> Vec<Val<'k>> {
        let (buffer, lanes) = (self.source.buffer, self.source.lie.lanes);
        let within = |depth: Val<'k>, lanes: usize| {
            if self.source.tail { depth.min(self.source.depths - lanes) } else { depth }
        };
        let run = |index: Val<'k>, lanes: usize| buffer.load_vec(index, lanes as u8);
        match self.source.lie.along {
            Axis::Outer => {
                let mut patch = Vec::with_capacity(4 * self.depths.len());
                for depth in &self.depths {
                    let step = within(at + *depth, 1) * self.source.depth;
                    for row in &self.rows {
                        patch.extend(run(*row + step, lanes));
                    }
                }
                patch
            }
            Axis::Depth => {
                let lanes = lanes.min(self.depths.len());
                let mut by_row = vec![Vec::new(); 4];
                for first in self.depths.iter().step_by(lanes) {
                    let step = within(at + *first, lanes) * self.source.depth;
                    for (to, row) in by_row.iter_mut().zip(&self.rows) {
                        to.extend(run(*row + step, lanes));
                    }
                }
                (0..self.depths.len()).flat_map(|d| by_row.iter().map(move |row| row[d])).collect()
            }
        }
    }

    /// Loads the patch of the step at depth `at` into registers.
    pub(super) fn fetch(&self, at: Val<'k>) {
        for (var, value) in self.held.iter().zip(self.load(at)) {
            var.set(value);
        }
    }

    /// Puts the patch in registers, of the step at depth `at`, into workgroup memory; depths past the last are zeros.
    pub(super) fn put(&self, at: Val<'k>) {
        for (depth, held) in self.depths.iter().zip(self.held.chunks(4)) {
            let mut values: Vec<Val<'k>> = held.iter().map(|v| v.get()).collect();
            if self.source.tail {
                let inside = (at + *depth).lt(self.source.depths);
                values.iter_mut().for_each(|v| *v = inside.select(*v, v.like(0.0)));
            }
            self.shared.store_vec(*depth * self.pitch + self.block, &values);
        }
    }

    /// Four neighbours at a depth of the panel.
    pub(super) fn read(&self, depth: u32, block: Val<'k>) -> Vec<Val<'k>> {
        self.shared.load_vec(block + self.k.u32(depth * self.pitch))
    }
}
