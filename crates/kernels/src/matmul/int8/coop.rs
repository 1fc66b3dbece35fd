//! Matmuls of 8-bit integers by cooperative matrices: panels of bytes in workgroup memory, i32 sums in the matrices of
//! subgroups, sums of lines for the zero points counted as the panels pass.

use std::fmt;

use olivine_ir::Dim;
use olivine_kernel::{
    Access, Buf, Builder, Elem, MatrixType, MatrixUse, Reduction, Scalar, Shared, Val, Var,
};
use olivine_program::{Addressing, DeviceCaps};

use crate::launch::Launch;
use crate::matmul::int8::pack::{PackedInt8, pack};
use crate::matmul::int8::{Int8Lines, ZeroPoints, cost, dot};
use crate::matmul::tiled::swizzle;
use crate::site::{Operand, Site, linear_group};
use crate::walk::Walk;

/// A workgroup's part of the matmul, and a subgroup's part of that.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Int8CoopTile {
    m: u32,
    n: u32,
    rows: u32,
    columns: u32,
    /// Bytes of K in a step.
    k_step: u32,
}

/// Rows and columns of a matrix of sums.
const SIDE: u32 = 16;
/// K of a matrix.
const PACK_K: u32 = 32;
/// Bytes that a load takes.
const SLOT: u32 = 16;
/// Lanes of a subgroup.
const LANES: u32 = 32;

/// Workgroups from which on large blocks keep a device busy.
const BUSY: u64 = 128;

const LARGE: Int8CoopTile = Int8CoopTile { m: 128, n: 128, rows: 64, columns: 64, k_step: 64 };
const MEDIUM: Int8CoopTile = Int8CoopTile { m: 64, n: 64, rows: 32, columns: 32, k_step: 64 };

/// All tiles that are ever chosen.
pub(crate) const TILES: [Int8CoopTile; 2] = [LARGE, MEDIUM];

impl fmt::Display for Int8CoopTile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}x{}x{}", self.m, self.n, self.k_step)
    }
}

impl Int8CoopTile {
    fn group(self) -> u32 {
        self.m / self.rows * (self.n / self.columns) * LANES
    }

    fn count(self, m: Dim, n: Dim, batches: Dim) -> Dim {
        m.div_ceil(self.m) * n.div_ceil(self.n) * batches
    }
}

/// The sizes of a matmul: rows, columns, indices along K and batches.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sizes {
    pub(crate) m: Dim,
    pub(crate) n: Dim,
    pub(crate) k: usize,
    pub(crate) batches: Dim,
}

/// The blocks for a matmul; `None` where the device has no such matrices, or too little would come of them.
pub(crate) fn choose(sizes: Sizes, caps: &DeviceCaps) -> Option<Int8CoopTile> {
    let offered = caps.target.multiplies_fully(Elem::I8, Elem::I32, [SIDE, SIDE, PACK_K]);
    let pointers = matches!(caps.addressing, Addressing::Pointers);
    let subgroups = caps.target.subgroup == Some(LANES);
    if !(offered && pointers && subgroups) || sizes.m <= 8 || sizes.n <= 8 || sizes.k < PACK_K as usize {
        return None;
    }
    let large = LARGE.count(sizes.m, sizes.n, sizes.batches) >= BUSY;
    Some(if large { LARGE } else { MEDIUM })
}

/// Emits a matmul of two operands by lines, with their zero points.
pub(crate) fn emit(
    sizes: Sizes,
    blocks: Int8CoopTile,
    lines: [&Int8Lines<'_>; 2],
    zeros: [Option<&Operand>; 2],
    batch: &Walk,
    site: &mut Site<'_>,
) -> Result<(), String> {
    let target = site.targets.first().ok_or("a matmul needs a target")?.clone();
    let Sizes { m, n, k: k_size, batches } = sizes;
    let step = blocks.k_step as usize;
    let [left, right] =
        [pack(lines[0], k_size, step, &batch.dims, site)?, pack(lines[1], k_size, step, &batch.dims, site)?];

    let k = site.builder("qmatmul_coop", blocks.group());
    let l = Launch::new(&k);
    let declare = |name: &str, packed: &PackedInt8, lines: &Int8Lines<'_>| ByteLines {
        buffer: l.bind(name, Elem::U32, Access::Read, packed.memory),
        outer: l.stride(&format!("{name}_outer"), packed.outer),
        count: l.size(&format!("{name}_lines"), lines.count),
        k_size: l.size(&format!("{name}_depths"), packed.k_size),
        sign: if packed.shifted { 0 } else { lines.sign() },
        tail: !packed.k_size.is_multiple_of(step),
    };
    let (a, b) = (declare("a", &left, lines[0]), declare("b", &right, lines[1]));
    let dtypes = lines.map(|lines| lines.operand.ty.dtype);
    let a_zeros = ZeroPoints::declare(&l, "a_zero", zeros[0], dtypes[0]);
    let b_zeros = ZeroPoints::declare(&l, "b_zero", zeros[1], dtypes[1]);
    let to = l.write("y", &target);
    let groups = blocks.count(m, n, batches);
    let (end, total) = (l.size("k_size", k_size), l.size("groups", groups));
    let walk = Walk::unmerged(&batch.dims, &[left.batch.clone(), right.batch.clone()]);
    let walker = walk.declare(&l, &[left.offset, right.offset]);

    let wide = n.is_multiple_of(4);
    let id = linear_group(&k);
    k.if_(id.lt(total), || {
        let (down, across) = ((a.count + (blocks.m - 1)) / blocks.m, (b.count + (blocks.n - 1)) / blocks.n);
        let batch = id / (down * across);
        let (row_block, column_block) = swizzle(id - batch * (down * across), down, across);
        let at = walker.at(batch);
        let (first_row, first_column) = (row_block * blocks.m, column_block * blocks.n);
        let end_of = Int8Epilogue { to, batch, k_size: end, wide };
        let a_panel = BytePanel::new(&k, a, blocks.m, blocks.k_step, (at[0], first_row), b_zeros.count());
        let b_panel = BytePanel::new(&k, b, blocks.n, blocks.k_step, (at[1], first_column), a_zeros.count());
        multiply(&k, blocks, a_panel, b_panel, (first_row, first_column), &end_of, (&a_zeros, &b_zeros));
    });
    let bound = l.done();
    let cost = cost(m, n, batches * k_size, &site.operands.clone(), site);
    site.dispatch(k, bound, groups, cost)
}

/// An operand in memory, by lines of bytes.
#[derive(Clone, Copy)]
struct ByteLines<'k> {
    buffer: Buf<'k>,
    outer: Val<'k>,
    /// Lines that there are.
    count: Val<'k>,
    /// Bytes of a line.
    k_size: Val<'k>,
    /// What makes four bytes signed.
    sign: u32,
    /// Whether the last step may be cut short.
    tail: bool,
}

/// A panel of a workgroup: lines of some bytes, an odd number of slots apart.
struct BytePanel<'k> {
    k: &'k Builder,
    source: ByteLines<'k>,
    shared: Shared<'k>,
    lines: u32,
    slots: u32,
    loads: Vec<ByteLoad<'k>>,
    /// Sums of the lines, where zero points ask for them.
    sums: Option<Shared<'k>>,
}

/// A slot that an invocation carries.
struct ByteLoad<'k> {
    /// Its destination.
    slot: Val<'k>,
    /// Its first byte at k = 0, and its index along K inside the panel.
    first: Val<'k>,
    k_offset: Val<'k>,
    words: Vec<Var<'k>>,
    sum: Option<Var<'k>>,
}

impl<'k> BytePanel<'k> {
    fn new(
        k: &'k Builder,
        source: ByteLines<'k>,
        lines: u32,
        k_offset: u32,
        (base, first): (Val<'k>, Val<'k>),
        summed: bool,
    ) -> Self {
        let slots = k_offset / SLOT;
        let pitch = slots | 1;
        // The memory serves the accumulators that are stored as well.
        let shared = k.shared(Elem::U32, 4, lines * pitch);
        let load = |i: u32| {
            let number = k.local_index() + i * k.group();
            let (line, slot) = (number / slots, number % slots);
            let row = (first + line).min(source.count - 1u32);
            ByteLoad {
                slot: line * pitch + slot,
                first: base + row * source.outer,
                k_offset: slot * SLOT,
                words: (0..4).map(|_| k.var(k.u32(0))).collect(),
                sum: summed.then(|| k.var(k.i32(0))),
            }
        };
        let loads = (0..(lines * slots).div_ceil(k.group())).map(load).collect();
        let sums = summed.then(|| k.shared(Elem::I32, 1, lines));
        let panel = BytePanel { k, source, shared, lines, slots, loads, sums };
        panel.fetch(k.u32(0));
        panel
    }

    fn pitch(&self) -> u32 {
        self.slots | 1
    }

    /// Loads the slots of the step at k = `at` into registers; indices past the end of K repeat others.
    fn fetch(&self, at: Val<'k>) {
        for load in &self.loads {
            let k_offset = at + load.k_offset;
            let k_offset = if self.source.tail { k_offset.min(self.source.k_size - SLOT) } else { k_offset };
            let words = self.source.buffer.load_vec((load.first + k_offset) / 4u32, 4);
            load.words.iter().zip(words).for_each(|(var, word)| var.set(word));
        }
    }

    /// Puts the slots in registers, of the step at k = `at`, into workgroup memory; indices past the end of K are
    /// zeros.
    fn put(&self, at: Val<'k>) {
        let k = self.k;
        for load in &self.loads {
            let inside = self.source.tail.then(|| (at + load.k_offset).lt(self.source.k_size));
            let word = |var: &Var<'k>| {
                let word = if self.source.sign == 0 { var.get() } else { var.get() ^ self.source.sign };
                inside.map_or(word, |inside| inside.select(word, k.u32(0)))
            };
            let words: Vec<Val<'k>> = load.words.iter().map(word).collect();
            if let Some(sum) = load.sum {
                sum.set(words.iter().fold(sum.get(), |sum, word| dot(*word, k.u32(0x0101_0101), sum)));
            }
            let put = || self.shared.store_vec(load.slot, &words);
            if (self.lines * self.slots).is_multiple_of(k.group()) {
                put();
            } else {
                k.if_(load.slot.lt(self.lines * self.pitch()), put);
            }
        }
    }

    /// The matrix of 16 lines from `line` on, `k_offset` bytes deep in the panel.
    fn matrix(&self, role: MatrixUse, line: Val<'k>, k_offset: u32) -> Val<'k> {
        let left = role == MatrixUse::A;
        let (rows, columns) = if left { (SIDE, PACK_K) } else { (PACK_K, SIDE) };
        let ty = MatrixType { elem: Elem::I8, rows, columns, role };
        let index = line * self.pitch() + k_offset / SLOT;
        self.shared.load_matrix(ty, index, self.k.u32(self.pitch()), !left)
    }

    /// Brings the sums of lines together. The whole workgroup must come here.
    fn gather(&self) {
        let Some(sums) = self.sums else { return };
        for load in &self.loads {
            let Some(sum) = load.sum else { continue };
            let all = self.k.cluster_reduce(self.slots, sum.get(), Reduction::Add);
            let line = load.slot / self.pitch();
            self.k.if_(load.k_offset.eq(0u32) & line.lt(self.lines), || sums.store(line, all));
        }
    }
}

/// What the end of a matmul needs.
struct Int8Epilogue<'k> {
    to: Buf<'k>,
    batch: Val<'k>,
    k_size: Val<'k>,
    /// Whether four columns may be stored at once.
    wide: bool,
}

/// Multiplies one block and finishes it. The whole workgroup must call it.
fn multiply<'k>(
    k: &'k Builder,
    blocks: Int8CoopTile,
    a: BytePanel<'k>,
    b: BytePanel<'k>,
    (row, column): (Val<'k>, Val<'k>),
    ends: &Int8Epilogue<'k>,
    zeros: (&ZeroPoints<'k>, &ZeroPoints<'k>),
) {
    let sum = MatrixType { elem: Elem::I32, rows: SIDE, columns: SIDE, role: MatrixUse::Accumulator };
    let subgroup = k.subgroup_id();
    let across = blocks.n / blocks.columns;
    let (my_row, my_column) = (subgroup / across * blocks.rows, subgroup % across * blocks.columns);
    let (down, wide) = (blocks.rows / SIDE, blocks.columns / SIDE);
    let sums: Vec<Var<'k>> = (0..down * wide).map(|_| k.var(k.i32(0).splat(sum))).collect();
    let step = k.u32(blocks.k_step);
    k.for_(k.u32(0), ends.k_size, step, |at| {
        k.barrier();
        a.put(at);
        b.put(at);
        k.barrier();
        // The last step loads once more what it has, so that the body stays straight-line code.
        let next = at + step;
        let next = next.lt(ends.k_size).select(next, at);
        a.fetch(next);
        b.fetch(next);
        let mut running: Vec<Val<'k>> = sums.iter().map(|s| s.get()).collect();
        for k_offset in (0..blocks.k_step).step_by(PACK_K as usize) {
            let x: Vec<Val<'k>> =
                (0..down).map(|i| a.matrix(MatrixUse::A, my_row + i * SIDE, k_offset)).collect();
            for j in 0..wide {
                let y = b.matrix(MatrixUse::B, my_column + j * SIDE, k_offset);
                for (i, x) in x.iter().enumerate() {
                    let sum = &mut running[i * wide as usize + j as usize];
                    *sum = x.matrix_mul_add(y, *sum);
                }
            }
        }
        sums.iter().zip(running).for_each(|(var, value)| var.set(value));
    });

    a.gather();
    b.gather();
    k.barrier();
    // A part of the left panel's memory to each subgroup.
    let subgroups = blocks.group() / LANES;
    let pitch = SIDE / 4 + 1;
    let mine = subgroup * (pitch * SIDE);
    debug_assert!(subgroups * pitch * SIDE <= a.lines * a.pitch());
    let (m, n) = (a.source.count, b.source.count);
    for i in 0..down {
        for j in 0..wide {
            a.shared.store_matrix(mine, k.u32(pitch), false, sums[(i * wide + j) as usize].get());
            k.subgroup_barrier();
            for round in 0..SIDE * SIDE / 4 / LANES {
                let number = k.lane() + round * LANES;
                let (line, run) = (number / (SIDE / 4), number % (SIDE / 4));
                let row_in = my_row + i * SIDE + line;
                let column_in = my_column + j * SIDE + run * 4u32;
                let (row, column) = (row + row_in, column + column_in);
                k.if_(row.lt(m) & column.lt(n), || {
                    let words: Vec<Val<'k>> = a.shared.load_vec(mine + line * pitch + run);
                    let p = zeros.0.of(row);
                    let row_sum = a.sums.map(|sums| sums.load(row_in));
                    let value = |(j, word): (usize, &Val<'k>)| {
                        let mut sum = word.bitcast(Scalar::I32);
                        let q = zeros.1.of((column + j).min(n - 1u32));
                        if let Some(row_sum) = row_sum {
                            sum = sum - q * row_sum;
                        }
                        if let Some(sums) = b.sums {
                            sum = sum - p * sums.load(column_in + j);
                        }
                        if row_sum.is_none() || b.sums.is_none() {
                            return sum;
                        }
                        sum + ends.k_size.bitcast(Scalar::I32) * p * q
                    };
                    let values: Vec<Val<'k>> = words.iter().enumerate().map(value).collect();
                    let at = (ends.batch * m + row) * n + column;
                    if ends.wide {
                        ends.to.store_vec(at, &values);
                    } else {
                        for (j, value) in values.iter().enumerate() {
                            k.if_((column + j).lt(n), || ends.to.store(at + j, *value));
                        }
                    }
                });
            }
            k.subgroup_barrier();
        }
    }
}
