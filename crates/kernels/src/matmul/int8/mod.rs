//! Matmuls of 8-bit integers in i32, by tiles of packed words in workgroup memory.
//!
//! Words hold four neighbours of K, as i8: u8 is shifted by 128, and so is its zero point. Zero points are taken
//! off at the end: Σ(a − p)(b − q) = Σab − qΣa − pΣb + kpq. A convolution is the same matmul; its right side
//! gathers windows of the image as it loads, padding as the zero point.

mod choice;
mod coop;
mod pack;

use olivine_ir::op::{QConv, QMatMul};
use olivine_ir::{DType, Dim, product};
use olivine_kernel::{Access, Buf, Builder, Elem, Scalar, Shared, Val, Var};

use crate::kernels;
use crate::launch::{Launch, bytes, number};
use crate::matmul::int8::choice::Int8Choice;
use crate::matmul::problem::Problem;
use crate::matmul::warpgroup::{self, ZeroOperands};
use crate::site::{Operand, Site, linear_group};
use crate::walk::Walk;

kernels! { |op, site|
    QMatMul => qmatmul(op, site),
    QConv => qconv(op, site),
}

/// Rows and columns of a workgroup's tile.
const TILE: u32 = 64;
/// Words of K in a tile.
const K_STEP: u32 = 8;
/// Columns of one invocation.
const COLUMNS: u32 = 4;
/// Blocks of four lines and one word that make a tile's side.
const BLOCKS: u32 = TILE / 4 * K_STEP;

/// The layout of an operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Int8Layout {
    /// Words along K.
    K,
    /// Words along rows of the left or columns of the right side.
    Outer,
    /// Single bytes.
    Bytes,
}

/// One side of the matmul, in registers.
struct Int8Operand<'k> {
    layout: Int8Layout,
    buffer: Buf<'k>,
    outer: Val<'k>,
    k_stride: Val<'k>,
    /// Lines that there are.
    count: Val<'k>,
    /// What makes the bytes signed, once and four times.
    sign: (u32, u32),
    image: Option<Image<'k>>,
}

/// The window of a convolution, three axes of it.
struct Image<'k> {
    taps: [Val<'k>; 3],
    windows: [Val<'k>; 3],
    sizes: [Val<'k>; 3],
    strides: [Val<'k>; 3],
    dilations: [Val<'k>; 3],
    pads: [Val<'k>; 3],
    /// The padding's byte.
    zero: Val<'k>,
}

/// An 8-bit operand by lines: rows of the left side, columns of the right.
struct Int8Lines<'a> {
    operand: &'a Operand,
    outer: Dim,
    k_stride: Dim,
    count: Dim,
    /// Strides that where a batch begins is made of.
    batch: &'a [Dim],
}

impl Int8Lines<'_> {
    fn layout(&self, k: usize) -> Int8Layout {
        let aligned = |stride: &Dim| stride.is_multiple_of(4);
        let begins = self.operand.offset.is_multiple_of(4) && self.batch.iter().all(aligned);
        if begins
            && (k == 1 || self.k_stride == 1)
            && k.is_multiple_of(4)
            && (aligned(&self.outer) || self.count == 1)
        {
            Int8Layout::K
        } else if begins
            && (self.outer == 1 || self.count == 1)
            && self.count.is_multiple_of(4)
            && (k == 1 || aligned(&self.k_stride))
        {
            Int8Layout::Outer
        } else {
            Int8Layout::Bytes
        }
    }

    /// What makes four bytes signed.
    fn sign(&self) -> u32 {
        if self.operand.ty.dtype == DType::U8 { 0x8080_8080 } else { 0 }
    }

    fn declare<'k>(&self, l: &Launch<'k>, name: &str, layout: Int8Layout) -> Int8Operand<'k> {
        let elem = if layout == Int8Layout::Bytes { Elem::U8 } else { Elem::U32 };
        Int8Operand {
            layout,
            buffer: l.bind(name, elem, Access::Read, self.operand.memory),
            outer: l.stride(&format!("{name}_outer"), self.outer),
            k_stride: l.stride(&format!("{name}_k_stride"), self.k_stride),
            count: l.size(&format!("{name}_lines"), self.count),
            sign: (self.sign() & 0xff, self.sign()),
            image: None,
        }
    }
}

impl<'k> Int8Operand<'k> {
    /// Four words, of the lines from `line` on and the indices along K from `k_offset` on; what is past the last index
    /// along K is 0, and lines past the last are any.
    fn words(&self, base: Val<'k>, line: Val<'k>, k_offset: Val<'k>, k_size: Val<'k>) -> Vec<Val<'k>> {
        let k = line.builder();
        match self.layout {
            Int8Layout::K => {
                let there = k_offset.lt(k_size);
                let k_offset = there.select(k_offset, k.u32(0));
                let word = |i: u32| {
                    let line = (line + i).min(self.count - 1);
                    let word = self.buffer.load((base + line * self.outer + k_offset) >> 2) ^ self.sign.1;
                    there.select(word, k.u32(0))
                };
                (0..4).map(word).collect()
            }
            Int8Layout::Outer => {
                let line = line.min(self.count - 4);
                let row = |i: u32| {
                    let there = (k_offset + i).lt(k_size);
                    let k_offset = there.select(k_offset + i, k.u32(0));
                    let word = self.buffer.load((base + k_offset * self.k_stride + line) >> 2) ^ self.sign.1;
                    there.select(word, k.u32(0))
                };
                let rows: Vec<Val<'k>> = (0..4).map(row).collect();
                let column = |j: u32| pack(rows.iter().map(|row| (*row >> (8 * j)) & 0xff));
                (0..4).map(column).collect()
            }
            Int8Layout::Bytes => match &self.image {
                Some(image) => self.gathered(image, base, line, k_offset, k_size),
                None => {
                    let byte = |i: u32, j: u32| {
                        let there = (k_offset + j).lt(k_size);
                        let (line, k_offset) =
                            ((line + i).min(self.count - 1), there.select(k_offset + j, k.u32(0)));
                        let at = base + line * self.outer + k_offset * self.k_stride;
                        there.select(self.buffer.load(at) ^ self.sign.0, k.u32(0))
                    };
                    (0..4).map(|i| pack((0..4).map(|j| byte(i, j)))).collect()
                }
            },
        }
    }

    /// The same of windows over an image: lines are windows, indices along K are channels and kernel positions.
    fn gathered(
        &self,
        image: &Image<'k>,
        base: Val<'k>,
        line: Val<'k>,
        k_offset: Val<'k>,
        k_size: Val<'k>,
    ) -> Vec<Val<'k>> {
        let k = line.builder();
        let taps = image.taps[0] * image.taps[1] * image.taps[2];
        let area = image.sizes[0] * image.sizes[1] * image.sizes[2];
        // For four indices along K: whether they are there, where their channel begins, and how far their tap is from
        // the window's first element; the padding before wraps below zero.
        let columns: Vec<_> = (0..4u32)
            .map(|j| {
                let there = (k_offset + j).lt(k_size);
                let k_offset = there.select(k_offset + j, k.u32(0));
                let channel = k_offset / taps;
                let tap = split(k_offset - channel * taps, &image.taps);
                let shift: Vec<Val<'k>> =
                    (0..3).map(|a| tap[a] * image.dilations[a] - image.pads[a]).collect();
                (there, base + channel * area, shift)
            })
            .collect();
        let line = |i: u32| {
            let window = split((line + i).min(self.count - 1), &image.windows);
            let start: Vec<Val<'k>> = (0..3).map(|a| window[a] * image.strides[a]).collect();
            let byte = |(there, first, shift): &(Val<'k>, Val<'k>, Vec<Val<'k>>)| {
                let at: Vec<Val<'k>> = (0..3).map(|a| start[a] + shift[a]).collect();
                let inside = at[0].lt(image.sizes[0]) & at[1].lt(image.sizes[1]) & at[2].lt(image.sizes[2]);
                let flat = *first + (at[0] * image.sizes[1] + at[1]) * image.sizes[2] + at[2];
                let byte = self.buffer.load(inside.select(flat, base)) ^ self.sign.0;
                there.select(inside.select(byte, image.zero), k.u32(0))
            };
            pack(columns.iter().map(byte))
        };
        (0..4).map(line).collect()
    }
}

/// A number's digits to three bases, the last running fastest.
fn split<'k>(x: Val<'k>, sizes: &[Val<'k>; 3]) -> [Val<'k>; 3] {
    let above = x / sizes[2];
    let first = above / sizes[1];
    [first, above - first * sizes[1], x - above * sizes[2]]
}

/// Four bytes as a word, the first lowest.
fn pack<'k>(bytes: impl Iterator<Item = Val<'k>>) -> Val<'k> {
    let shifted = bytes.enumerate().map(|(i, byte)| if i == 0 { byte } else { byte << (8 * i as u32) });
    let mut words: Vec<Val<'k>> = shifted.collect();
    let first = words.remove(0);
    words.into_iter().fold(first, |word, byte| word | byte)
}

/// The sum of four matmuls of i8 and an accumulator.
fn dot<'k>(a: Val<'k>, b: Val<'k>, sum: Val<'k>) -> Val<'k> {
    if a.builder().target().packed_dot {
        return a.packed_dot(b, sum, true);
    }
    let byte = |word: Val<'k>, i: u32| (word << (24 - 8 * i)).bitcast(Scalar::I32) >> 24;
    (0..4).fold(sum, |sum, i| sum + byte(a, i) * byte(b, i))
}

/// Zero points of a side: none, one for all lines, or one each.
struct ZeroPoints<'k> {
    buffer: Option<Buf<'k>>,
    each: bool,
    shift: i32,
}

impl<'k> ZeroPoints<'k> {
    fn declare(l: &Launch<'k>, name: &str, zeros: Option<&Operand>, dtype: DType) -> Self {
        ZeroPoints {
            buffer: zeros.map(|z| l.read(name, z)),
            each: zeros.is_some_and(|z| z.ty.shape.rank() > 0),
            shift: if dtype == DType::U8 { 128 } else { 0 },
        }
    }

    /// Whether there is something to take off.
    fn count(&self) -> bool {
        self.buffer.is_some() || self.shift != 0
    }

    /// That of a line, of bytes made signed.
    fn of(&self, line: Val<'k>) -> Val<'k> {
        let k = line.builder();
        let zero = match self.buffer {
            Some(buffer) => buffer.load(if self.each { line } else { k.u32(0) }).convert(Scalar::I32),
            None => k.i32(0),
        };
        zero - self.shift
    }
}

/// Lowers an integer matrix matmul.
pub(crate) fn qmatmul(op: &QMatMul, site: &mut Site<'_>) -> Result<(), String> {
    let (operands, target) = (site.operands.clone(), site.targets[0].clone());
    let [a, b, rest @ ..] = operands.as_slice() else { return Err("a matmul needs two operands".into()) };
    let dims = target.ty.shape.sizes();
    let (of_a, of_b) = (a.sizes(), b.sizes());
    let ([a_batch @ .., m, k], [b_batch @ .., _, n]) = (&of_a[..], &of_b[..]) else {
        return Err("a matmul of vectors".into());
    };
    // Kernels are written for K; rows, columns and batches may be any number.
    let (m, n, k_size) = (*m, *n, number(*k));
    let batch_dims = &dims[..dims.len() - 2];
    let strides = |operand: &Operand, own: &[Dim]| {
        let mut strides = vec![Dim::ZERO; batch_dims.len()];
        for (axis, size) in own.iter().enumerate() {
            if *size > 1 {
                strides[batch_dims.len() - own.len() + axis] = operand.strides[axis];
            }
        }
        strides
    };
    let mut batch = Walk::new(batch_dims, &[strides(a, a_batch), strides(b, b_batch)]);
    batch.drop_single();
    let of = |operand: &Operand, back: usize, size: Dim| {
        if size == 1 { Dim::ZERO } else { operand.strides[operand.strides.len() - back] }
    };
    let k_dim = Dim::from(k_size);
    let left = Int8Lines {
        operand: a,
        outer: of(a, 2, m),
        k_stride: of(a, 1, k_dim),
        count: m,
        batch: &batch.strides[0],
    };
    let right = Int8Lines {
        operand: b,
        outer: of(b, 1, n),
        k_stride: of(b, 2, k_dim),
        count: n,
        batch: &batch.strides[1],
    };
    let batches = batch.numel();
    if m == 0 || n == 0 || batches == 0 {
        return Ok(());
    }
    let zeros = [rest.first().filter(|_| op.a_zero), rest.get(usize::from(op.a_zero)).filter(|_| op.b_zero)];
    let sizes = coop::Sizes { m, n, k: k_size, batches };
    let blocks = if site.caps.target.warpgroups {
        let problem = Problem::new(&operands[..2], &target, None)?;
        match choice::choose(&problem, sizes, site) {
            Some(Int8Choice::Warpgroup(path)) => {
                let zeros = ZeroOperands { a: zeros[0], b: zeros[1] };
                return warpgroup::emit_int8(&problem, path, &zeros, site);
            }
            Some(Int8Choice::Coop(blocks)) => Some(blocks),
            None => None,
        }
    } else {
        coop::choose(sizes, site.caps)
    };
    if let Some(blocks) = blocks {
        return coop::emit(sizes, blocks, [&left, &right], zeros, &batch, site);
    }

    let group = site.group_size(256);
    let k = site.builder("qmatmul", group);
    let l = Launch::new(&k);
    let (a_side, b_side) =
        (left.declare(&l, "a", left.layout(k_size)), right.declare(&l, "b", right.layout(k_size)));
    let a_zeros = ZeroPoints::declare(&l, "a_zero", zeros[0], a.ty.dtype);
    let b_zeros = ZeroPoints::declare(&l, "b_zero", zeros[1], b.ty.dtype);
    let to = l.write("y", &target);
    let sizes = Sizes { k_size: l.size("k_size", k_size), batches: l.size("batches", batches) };
    let walker = batch.declare(&l, &[a.offset, b.offset]);
    int8_matmul(&k, (a_side, a_zeros), (b_side, b_zeros), &sizes, (to, n), |batch| {
        let at = walker.at(batch);
        BatchOrigin { left: at[0], right: at[1], first_row: k.u32(0) }
    });
    let bound = l.done();
    let cost = cost(m, n, batches * k_size, &operands, site);
    site.dispatch(k, bound, tiles(m, n) * batches, cost)
}

/// Lowers an integer convolution: w times the windows of x, for every image and group.
pub(crate) fn qconv(op: &QConv, site: &mut Site<'_>) -> Result<(), String> {
    let (operands, target) = (site.operands.clone(), site.targets[0].clone());
    let [x, w, rest @ ..] = operands.as_slice() else {
        return Err("a convolution needs two operands".into());
    };
    let (dims, of_x) = (target.ty.shape.sizes(), x.sizes());
    let (rows, windows) = (number(dims[1]) / op.groups, product(&dims[2..]));
    let k_size: usize = w.dims()[1..].iter().product();
    let batches = dims[0] * op.groups;
    if rows == 0 || windows == 0 || batches == 0 {
        return Ok(());
    }
    let spatial = dims.len() - 2;
    let padded = |i: usize| of_x[2 + i] + op.window.pads[i].0 + op.window.pads[i].1;
    if let Some(axis) = (0..spatial).find(|i| padded(*i) > i32::MAX) {
        return Err(format!("axis {axis} with its padding is longer than 2^31"));
    }
    let left = Int8Lines {
        operand: w,
        outer: k_size.into(),
        k_stride: Dim::ONE,
        count: rows.into(),
        batch: &[(rows * k_size).into()],
    };
    let right = Int8Lines { operand: x, outer: Dim::ZERO, k_stride: Dim::ZERO, count: windows, batch: &[] };

    let group = site.group_size(256);
    let k = site.builder("qconv", group);
    let l = Launch::new(&k);
    let w_side = left.declare(&l, "w", left.layout(k_size));
    let mut x_side = right.declare(&l, "x", Int8Layout::Bytes);
    let x_zeros = ZeroPoints::declare(&l, "x_zero", rest.first().filter(|_| op.x_zero), x.ty.dtype);
    let w_zeros =
        ZeroPoints::declare(&l, "w_zero", rest.get(usize::from(op.x_zero)).filter(|_| op.w_zero), w.ty.dtype);
    let to = l.write("y", &target);
    let sizes = Sizes { k_size: l.size("k_size", k_size), batches: l.size("batches", batches) };
    // Axes that are not there stand first, with size 1.
    let three = |name: &str, absent: usize, of: &dyn Fn(usize) -> Dim| {
        [0usize, 1, 2].map(|axis| {
            let value = (axis + spatial).checked_sub(3).map_or(absent.into(), of);
            l.size(&format!("{name}_{axis}"), value)
        })
    };
    x_side.image = Some(Image {
        taps: three("taps", 1, &|i| w.ty.shape.size(2 + i)),
        windows: three("windows", 1, &|i| dims[2 + i]),
        sizes: three("size", 1, &|i| of_x[2 + i]),
        strides: three("stride", 1, &|i| padded(i).min(op.window.strides[i])),
        dilations: three("dilation", 1, &|i| padded(i).min(op.window.dilations[i])),
        pads: three("pad", 0, &|i| op.window.pads[i].0.into()),
        zero: x_zeros.of(k.u32(0)).bitcast(Scalar::U32) & 0xff,
    });
    let groups = l.size("groups", op.groups);
    let (image, matrix) = (l.size("image", product(&of_x[1..]).div_floor(op.groups)), rows * k_size);
    let (matrix, rows_each) = (l.size("matrix", matrix), l.size("rows", rows));
    int8_matmul(&k, (w_side, w_zeros), (x_side, x_zeros), &sizes, (to, windows), |batch| {
        let in_group = batch % groups;
        BatchOrigin { left: in_group * matrix, right: batch * image, first_row: in_group * rows_each }
    });
    let bound = l.done();
    let cost = cost(rows.into(), windows, batches * k_size, &operands, site);
    site.dispatch(k, bound, tiles(rows.into(), windows) * batches, cost)
}

fn tiles(m: Dim, n: Dim) -> Dim {
    m.div_ceil(TILE) * n.div_ceil(TILE)
}

fn cost(m: Dim, n: Dim, k: Dim, operands: &[Operand], site: &Site<'_>) -> (Dim, Dim) {
    let moved = operands.iter().map(|o| bytes(&o.ty)).sum::<Dim>() + bytes(&site.targets[0].ty);
    (2 * m * n * k, moved)
}

/// Numbers of a whole matmul.
struct Sizes<'k> {
    k_size: Val<'k>,
    batches: Val<'k>,
}

/// Where a batch's matrices begin, and which of the left zero points is its first.
struct BatchOrigin<'k> {
    left: Val<'k>,
    right: Val<'k>,
    first_row: Val<'k>,
}

/// A workgroup's tile of one batch: panels of words, sums in registers, zero points at the end.
fn int8_matmul<'k>(
    k: &'k Builder,
    (a, a_zeros): (Int8Operand<'k>, ZeroPoints<'k>),
    (b, b_zeros): (Int8Operand<'k>, ZeroPoints<'k>),
    sizes: &Sizes<'k>,
    (to, columns): (Buf<'k>, Dim),
    place: impl Fn(Val<'k>) -> BatchOrigin<'k>,
) {
    let group = k.group();
    let whole = columns.is_multiple_of(COLUMNS);
    let (m, n) = (a.count, b.count);
    let panel = || k.shared(Elem::U32, 4, BLOCKS);
    let (a_panel, b_panel) = (panel(), panel());
    // Invocations stand 16 across; each has so many rows.
    let across = TILE / COLUMNS;
    let rows = (TILE * across / group).max(4);

    let (down_tiles, across_tiles) = ((m + (TILE - 1)) / TILE, (n + (TILE - 1)) / TILE);
    let id = linear_group(k);
    let each = down_tiles * across_tiles;
    k.if_(id.lt(each * sizes.batches), || {
        let batch = id / each;
        let tile = id - batch * each;
        let column_tile = tile / down_tiles;
        let (first_row, first_column) = ((tile - column_tile * down_tiles) * TILE, column_tile * TILE);
        let place = place(batch);
        let me = k.local_index();
        let (my_rows, my_columns) = (me / across * (rows / 4), me % across);
        let sums: Vec<Var<'k>> = (0..rows * COLUMNS).map(|_| k.var(k.i32(0))).collect();
        let row_sums: Vec<Var<'k>> =
            (0..if b_zeros.count() { rows } else { 0 }).map(|_| k.var(k.i32(0))).collect();
        let column_sums: Vec<Var<'k>> =
            (0..if a_zeros.count() { COLUMNS } else { 0 }).map(|_| k.var(k.i32(0))).collect();
        k.for_(k.u32(0), sizes.k_size, k.u32(K_STEP * 4), |k_offset| {
            k.barrier();
            k.for_(me, k.u32(2 * BLOCKS), k.u32(group), |block| {
                let load =
                    |side: &Int8Operand<'k>, panel: Shared<'k>, base, first: Val<'k>, block: Val<'k>| {
                        // Neighbours walk the axis along which bytes are neighbours.
                        let (line, word) = match side.layout {
                            Int8Layout::K => (block / K_STEP, block % K_STEP),
                            _ => (block % (TILE / 4), block / (TILE / 4)),
                        };
                        let words = side.words(base, first + line * 4, k_offset + word * 4, sizes.k_size);
                        panel.store_vec(word * (TILE / 4) + line, &words);
                    };
                k.if_else(
                    block.lt(BLOCKS),
                    || load(&a, a_panel, place.left, first_row, block),
                    || load(&b, b_panel, place.right, first_column, block - BLOCKS),
                );
            });
            k.barrier();
            let get = |vars: &[Var<'k>]| vars.iter().map(|v| v.get()).collect::<Vec<Val<'k>>>();
            let (mut running, mut by_row, mut by_column) = (get(&sums), get(&row_sums), get(&column_sums));
            let ones = k.u32(0x0101_0101);
            for word in 0..K_STEP {
                let x: Vec<Val<'k>> =
                    (0..rows / 4).flat_map(|i| a_panel.load_vec(my_rows + (word * (TILE / 4) + i))).collect();
                let y = b_panel.load_vec(my_columns + word * (TILE / 4));
                for (row, x) in running.chunks_mut(COLUMNS as usize).zip(&x) {
                    row.iter_mut().zip(&y).for_each(|(sum, y)| *sum = dot(*x, *y, *sum));
                }
                by_row.iter_mut().zip(&x).for_each(|(sum, x)| *sum = dot(*x, ones, *sum));
                by_column.iter_mut().zip(&y).for_each(|(sum, y)| *sum = dot(*y, ones, *sum));
            }
            let set = |vars: &[Var<'k>], values: Vec<Val<'k>>| {
                vars.iter().zip(values).for_each(|(var, value)| var.set(value));
            };
            set(&sums, running);
            set(&row_sums, by_row);
            set(&column_sums, by_column);
        });

        let (row, column) = (first_row + my_rows * 4, first_column + my_columns * COLUMNS);
        let k_size = sizes.k_size.bitcast(Scalar::I32);
        let q: Vec<Val<'k>> = (0..COLUMNS).map(|j| b_zeros.of((column + j).min(n - 1))).collect();
        for i in 0..rows {
            let row = row + i;
            k.if_(row.lt(m), || {
                let p = a_zeros.of(place.first_row + row);
                let value = |j: u32| {
                    let mut sum = sums[(i * COLUMNS + j) as usize].get();
                    if let Some(row_sum) = row_sums.get(i as usize) {
                        sum = sum - q[j as usize] * row_sum.get();
                    }
                    if let Some(column_sum) = column_sums.get(j as usize) {
                        sum = sum - p * column_sum.get();
                    }
                    if row_sums.is_empty() || column_sums.is_empty() {
                        return sum;
                    }
                    sum + k_size * p * q[j as usize]
                };
                let values: Vec<Val<'k>> = (0..COLUMNS).map(value).collect();
                let at = (batch * m + row) * n + column;
                if whole {
                    k.if_(column.lt(n), || to.store_vec(at, &values));
                } else {
                    for (j, value) in values.iter().enumerate() {
                        k.if_((column + j).lt(n), || to.store(at + j, *value));
                    }
                }
            });
        }
    });
}
