//! Matmuls of small matrices inside a workgroup: sums in registers, operands in workgroup memory, either put there
//! panel by panel or already in it.

use olivine_kernel::{Builder, Elem, Shared, Val, Var};

/// Multiply-adds that are written out one after another.
const WRITTEN: u32 = 128;

/// The shape of a matmul: `m` rows by `n` columns, of which an invocation has `rows` by `columns`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Tile {
    pub(super) m: u32,
    pub(super) n: u32,
    /// Rows of an invocation: 1, 2, 4 or 8.
    pub(super) rows: u32,
    /// Columns of an invocation: 1, 2 or 4.
    pub(super) columns: u32,
    /// Indices along K of a panel; a power of two.
    pub(super) k_step: u32,
}

impl Tile {
    /// The tile of `m` by `n` that `group` invocations share, four rows before several columns to each.
    pub(super) const fn new(m: u32, n: u32, group: u32, k_step: u32) -> Tile {
        let (rows, columns) = match m * n / group {
            0 | 1 => (1, 1),
            2 => (2, 1),
            4 => (4, 1),
            8 => (4, 2),
            16 => (4, 4),
            _ => (8, 4),
        };
        Tile { m, n, rows, columns, k_step }
    }

    const fn row_lanes(&self) -> u32 {
        if self.rows < 4 { self.rows } else { 4 }
    }

    /// Elements of the right operand's shared array hold so many columns.
    pub(super) const fn column_lanes(&self) -> u32 {
        self.columns
    }

    /// Shared elements from one index along K of a left operand to the next: one more than needed, against bank
    /// conflicts.
    pub(super) const fn left_pitch(&self) -> u32 {
        self.m / self.row_lanes() + 1
    }

    /// The same of a right operand.
    pub(super) const fn right_pitch(&self) -> u32 {
        self.n / self.column_lanes() + 1
    }

    /// Numbers of a left operand's panel.
    pub(super) const fn left_numbers(&self) -> u32 {
        self.k_step * self.left_pitch() * self.row_lanes()
    }

    /// Numbers of a right operand's panel.
    pub(super) const fn right_numbers(&self) -> u32 {
        self.k_step * self.right_pitch() * self.column_lanes()
    }
}

/// The axis along which an operand is contiguous.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum ContiguousAxis {
    K,
    Outer,
}

/// An operand's element at an outer position (row or column of the tile) and an index along K; zero outside the matrix.
pub(super) type ElementFn<'a, 'k> = &'a dyn Fn(Val<'k>, Val<'k>) -> Val<'k>;

/// Where an operand comes from.
pub(super) enum PanelSource<'a, 'k> {
    /// From anywhere, panel by panel through workgroup memory.
    Staged { panel: Shared<'k>, along: ContiguousAxis, load: ElementFn<'a, 'k> },
    /// From workgroup memory, which holds all of it `[index along K, outer]` at the tile's pitch. Indices along K past
    /// the last up to the next multiple of the panel's are there and zero.
    Resident(Shared<'k>),
}

/// An invocation's place in a tile.
pub(super) struct ThreadTile<'k> {
    k: &'k Builder,
    pub(super) tile: Tile,
    x: Val<'k>,
    y: Val<'k>,
}

impl<'k> ThreadTile<'k> {
    pub(super) fn new(k: &'k Builder, tile: Tile) -> Self {
        let across = tile.n / tile.columns;
        if across * (tile.m / tile.rows) != k.group() {
            k.fail(format!("{tile:?} is not for {} invocations", k.group()));
        }
        ThreadTile { k, tile, x: k.local_index() % across, y: k.local_index() / across }
    }

    /// A panel of left operands.
    pub(super) fn left_panel(&self, elem: Elem) -> Shared<'k> {
        self.left_memory(elem, self.tile.k_step)
    }

    /// A panel of right operands.
    pub(super) fn right_panel(&self, elem: Elem) -> Shared<'k> {
        self.right_memory(elem, self.tile.k_step)
    }

    /// Workgroup memory for a left operand of so large a K.
    pub(super) fn left_memory(&self, elem: Elem, k_len: u32) -> Shared<'k> {
        self.k.shared(elem, self.tile.row_lanes() as u8, k_len * self.tile.left_pitch())
    }

    /// Workgroup memory for a right operand of so large a K.
    pub(super) fn right_memory(&self, elem: Elem, k_len: u32) -> Shared<'k> {
        self.k.shared(elem, self.tile.column_lanes() as u8, k_len * self.tile.right_pitch())
    }

    /// Sums of zero, row by row.
    pub(super) fn sums(&self, zero: Val<'k>) -> Vec<Var<'k>> {
        (0..self.tile.rows * self.tile.columns).map(|_| self.k.var(zero)).collect()
    }

    /// This invocation's groups of neighbouring rows.
    fn row_groups(&self) -> Vec<Val<'k>> {
        let down = self.tile.m / self.tile.rows;
        (0..self.tile.rows / self.tile.row_lanes()).map(|i| self.y + i * down).collect()
    }

    /// The tile's rows that this invocation has, in the order of its sums.
    pub(super) fn rows(&self) -> Vec<Val<'k>> {
        let lanes = self.tile.row_lanes();
        self.row_groups().into_iter().flat_map(|g| (0..lanes).map(move |i| g * lanes + i)).collect()
    }

    /// The tile's columns that it has, which are neighbours.
    pub(super) fn columns(&self) -> Vec<Val<'k>> {
        (0..self.tile.columns).map(|j| self.x * self.tile.columns + j).collect()
    }

    /// Puts numbers where this invocation's sums are into the memory of a left operand whose indices along K are the
    /// columns.
    pub(super) fn put_left(&self, memory: Shared<'k>, numbers: &[Val<'k>], pitch: u32) {
        let (lanes, columns) = (self.tile.row_lanes() as usize, self.tile.columns as usize);
        for (j, column) in self.columns().into_iter().enumerate() {
            for (g, group) in self.row_groups().into_iter().enumerate() {
                let four: Vec<Val<'k>> = (0..lanes).map(|i| numbers[(g * lanes + i) * columns + j]).collect();
                memory.store_vec(column * pitch + group, &four);
            }
        }
    }

    /// Puts a row of numbers, one for each of this invocation's columns, into the memory of a right operand.
    pub(super) fn put_right(&self, memory: Shared<'k>, index: Val<'k>, numbers: &[Val<'k>]) {
        memory.store_vec(index * self.tile.right_pitch() + self.x, numbers);
    }

    /// The numbers at an index along K and this invocation's columns in the memory of a right operand.
    pub(super) fn get_right(&self, memory: Shared<'k>, index: Val<'k>) -> Vec<Val<'k>> {
        memory.load_vec(index * self.tile.right_pitch() + self.x)
    }

    /// Adds left times right, summed over K below `k_offset`, to the sums. The whole workgroup must come here; what it
    /// wrote to workgroup memory before is seen. Panels may still be read when an invocation returns.
    pub(super) fn multiply(
        &self,
        sums: &[Var<'k>],
        k_size: Val<'k>,
        left: &PanelSource<'_, 'k>,
        right: &PanelSource<'_, 'k>,
    ) {
        let (k, t) = (self.k, self.tile);
        let left = PanelPipeline::new(self.k, left, t.m, t.row_lanes(), t.left_pitch(), t.k_step);
        let right = PanelPipeline::new(self.k, right, t.n, t.column_lanes(), t.right_pitch(), t.k_step);
        let zero = k.u32(0);
        left.fetch(zero);
        right.fetch(zero);
        let row_groups = self.row_groups();
        k.for_(zero, k_size, k.u32(t.k_step), |at| {
            k.barrier();
            left.put();
            right.put();
            k.barrier();
            left.fetch(at + t.k_step);
            right.fetch(at + t.k_step);
            // A few indices along K are written out, so that kernels stay short; compilers unroll further if they like.
            let few = (WRITTEN / (t.rows * t.columns)).clamp(1, t.k_step);
            k.for_(zero, k.u32(t.k_step), k.u32(few), |base| {
                let mut running: Vec<Val<'k>> = sums.iter().map(|s| s.get()).collect();
                for d in 0..few {
                    let x: Vec<Val<'k>> =
                        row_groups.iter().flat_map(|g| left.read(at, base + d, *g)).collect();
                    let y = right.read(at, base + d, self.x);
                    for (row, x) in running.chunks_mut(t.columns as usize).zip(&x) {
                        for (sum, y) in row.iter_mut().zip(&y) {
                            *sum = x.fma(*y, *sum);
                        }
                    }
                }
                sums.iter().zip(running).for_each(|(var, value)| var.set(value));
            });
        });
    }
}

/// One operand on its way: the next panel's elements wait in registers while this one is multiplied.
struct PanelPipeline<'a, 'k> {
    k: &'k Builder,
    memory: Shared<'k>,
    staged: Option<(ContiguousAxis, ElementFn<'a, 'k>)>,
    /// Outer elements of one shared element.
    lanes: u32,
    /// Shared elements of an index along K.
    groups: u32,
    pitch: u32,
    k_step: u32,
    waiting: Vec<Var<'k>>,
}

impl<'a, 'k> PanelPipeline<'a, 'k> {
    fn new(
        k: &'k Builder,
        source: &PanelSource<'a, 'k>,
        outer: u32,
        lanes: u32,
        pitch: u32,
        k_step: u32,
    ) -> Self {
        let groups = outer / lanes;
        let (memory, staged) = match source {
            PanelSource::Staged { panel, along, load } => (*panel, Some((*along, *load))),
            PanelSource::Resident(memory) => (*memory, None),
        };
        let mut side = PanelPipeline { k, memory, staged, lanes, groups, pitch, k_step, waiting: Vec::new() };
        if staged.is_some() {
            // The type of what is loaded.
            let zero = side.memory.load_vec(k.u32(0))[0].like(0.0);
            side.waiting = (0..side.rounds() * lanes).map(|_| k.var(zero)).collect();
        }
        side
    }

    fn rounds(&self) -> u32 {
        (self.groups * self.k_step).div_ceil(self.k.group())
    }

    /// Calls `body` with the group of outer elements and the index along K of every shared element that this invocation
    /// stages.
    fn each(&self, along: ContiguousAxis, body: impl Fn(usize, Val<'k>, Val<'k>)) {
        let (k, all) = (self.k, self.groups * self.k_step);
        for i in 0..self.rounds() {
            let at = k.local_index() + i * k.group();
            let (group, index) = match along {
                ContiguousAxis::K => (at / self.k_step, at % self.k_step),
                ContiguousAxis::Outer => (at % self.groups, at / self.groups),
            };
            let one = || body(i as usize, group, index);
            if (i + 1) * k.group() <= all { one() } else { k.if_(at.lt(all), one) }
        }
    }

    fn fetch(&self, at: Val<'k>) {
        let Some((along, load)) = self.staged else { return };
        self.each(along, |i, group, index| {
            for lane in 0..self.lanes {
                let value = load(group * self.lanes + lane, at + index);
                self.waiting[i * self.lanes as usize + lane as usize].set(value);
            }
        });
    }

    fn put(&self) {
        let Some((along, _)) = self.staged else { return };
        self.each(along, |i, group, index| {
            let first = i * self.lanes as usize;
            let four: Vec<Val<'k>> =
                self.waiting[first..first + self.lanes as usize].iter().map(|v| v.get()).collect();
            self.memory.store_vec(index * self.pitch + group, &four);
        });
    }

    /// The outer elements of a group at index along K `at + d`.
    fn read(&self, at: Val<'k>, d: Val<'k>, group: Val<'k>) -> Vec<Val<'k>> {
        let index = if self.staged.is_some() { d } else { at + d };
        self.memory.load_vec(index * self.pitch + group)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tiles_cover_their_rows_and_columns_once() {
        for (m, n) in [(64, 64), (32, 64), (32, 32), (64, 16), (32, 16), (64, 8), (32, 8), (64, 4), (32, 4)] {
            let tile = Tile::new(m, n, 128, 8);
            assert_eq!((m / tile.rows) * (n / tile.columns), 128, "{tile:?}");
        }
    }
}
