//! f32 operands as two f16 parts: every element, scaled by a power of two of its row of A or column of B, is the sum
//! of a high and a low half to 22 bits.
//!
//! The scale brings the largest finite magnitude of a row into [2^14, 2^15), so that an element's error is below 2^-38
//! of that magnitude however small it is. Rows that the split serves badly are marked: [`NON_FINITE`] for infinities
//! and NaN, [`OUTLIER`] for a few elements that outweigh all others.
//!
//! The parts keep the layout of their operand, along K or along outer positions, as one matrix of twice the K: 16 of
//! the high part, the same 16 of the low one, and so on. Indices along K are filled up with zeros to a multiple of
//! [`K_MULTIPLE`]. Or they lie in the order of fragments: cooperative matrices as the lanes of a subgroup hold them,
//! down the indices along K of 16 columns before the next 16, so that no workgroup memory is needed on the way to the
//! matrix units. Fragments may have their indices along K [`dealt`], so that a lane that loads A by itself finds its
//! four indices along K of 16 side by side.

use olivine_ir::Dim;
use olivine_kernel::{Access, Buf, Elem, MatrixType, MatrixUse, Reduction, Scalar, Val};

use crate::launch::{self, Launch};
use crate::matmul::problem::{Axis, Layout, MatrixOperand, Problem};
use crate::matmul::vector_load::MatrixRole;
use crate::site::{Memory, Site, linear_group};
use crate::walk::{Walk, Walker};

/// Indices along K of one part that are contiguous.
pub(crate) const RUN: u32 = 16;
/// Parts have a multiple of so large a K.
pub(crate) const K_MULTIPLE: usize = 64;
/// Neighbours that an invocation splits at once: a slot of each part.
pub(crate) const UNIT: u32 = 8;
/// The bit of a measure, and of a scale, for infinities or NaN.
pub(crate) const NON_FINITE: u32 = 0x8000_0000;
/// The bit of a scale that says that the largest magnitude is more than [`SPREAD`] times the mean one.
pub(crate) const OUTLIER: u32 = 0x4000_0000;
/// Sums of rows that are more uneven hang on few terms. Rounding errors of single precision do not add up in those, and
/// what the split leaves out of a term, one bit of 24, is more than they are.
const SPREAD: f32 = 128.0;

const MAGNITUDE: u32 = 0x7fff_ffff;
const INFINITY: u32 = 0x7f80_0000;

/// An operand's parts in memory.
#[derive(Clone, Debug)]
pub(crate) struct SplitOperand {
    /// Words of two f16 each; behind them one word for every outer position: the biased exponent of its scale, and
    /// [`NON_FINITE`].
    pub(crate) memory: Memory,
    /// Words of parts, where scales begin.
    pub(crate) scales: Dim,
    pub(crate) order: SplitLayout,
    /// Outer positions with those that fill the last matrix.
    pub(crate) outer: Dim,
    /// Indices along K of one part.
    pub(crate) k_size: usize,
    /// Strides over the problem's batches, in matrices.
    pub(crate) batch: Vec<i64>,
    /// Matrices that differ.
    pub(crate) matrices: usize,
    /// Whether each 16 indices along K of lines are [`dealt`].
    dealt: bool,
    /// Blocks of 64 rows of a matrix whose rows are brought into the order of warpgroups' fragments.
    blocks: Option<Dim>,
}

/// The layout of the parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum SplitLayout {
    /// In lines along an axis.
    Lines(Axis),
    /// As lanes hold matrices of B; each 16 indices along K [`dealt`] or as they are.
    Fragments { dealt: bool },
}

/// The layout that is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SplitForm {
    /// In lines, as their operand does.
    Lines,
    /// In fragments, for B.
    Fragments,
    /// In fragments with indices along K [`dealt`].
    Dealt,
}

/// An operand's sizes.
struct OperandExtent {
    outer: Dim,
    k_size: usize,
    matrices: usize,
    layout: Layout,
}

impl OperandExtent {
    fn padded(&self) -> (Dim, usize) {
        (self.outer.next_multiple_of(RUN), self.k_size.next_multiple_of(K_MULTIPLE))
    }

    /// Words of parts.
    fn words(&self) -> Dim {
        let (outer, k_size) = self.padded();
        outer * k_size * self.matrices
    }

    /// Bytes of parts and scales.
    fn bytes(&self) -> Dim {
        4 * (self.words() + self.padded().0 * self.matrices)
    }
}

impl SplitOperand {
    /// Parts in lines, in memory that has room for them.
    fn new(memory: Memory, extent: &OperandExtent, batch: Vec<i64>) -> Self {
        let (outer, k_size) = extent.padded();
        let (scales, matrices) = (extent.words(), extent.matrices);
        let order = SplitLayout::Lines(extent.layout.along);
        SplitOperand { memory, scales, order, outer, k_size, batch, matrices, dealt: false, blocks: None }
    }
}

/// f16 elements of an operand's parts; kernels must be able to count them.
pub(crate) fn elements(problem: &Problem<'_>, side: MatrixRole) -> Dim {
    let extent = extent(problem, side);
    let (outer, k_size) = extent.padded();
    outer * (2 * k_size) * extent.matrices
}

fn extent(problem: &Problem<'_>, side: MatrixRole) -> OperandExtent {
    let (outer, layout, number) = match side {
        MatrixRole::A => (problem.m, problem.layout_of_a(), 0),
        MatrixRole::B => (problem.n, problem.layout_of_b(), 1),
    };
    let (dims_of_batch, strides) = (problem.batch.dims(), &problem.batch.strides(number));
    let matrices = dims_of_batch.iter().zip(strides).filter(|(_, s)| **s != 0).map(|(d, _)| *d).product();
    OperandExtent { outer, k_size: problem.k_number(), matrices, layout }
}

/// Strides over batches that count an operand's different matrices.
fn numbering(dims: &[usize], strides: &[i64]) -> Vec<i64> {
    let mut numbers = vec![0; dims.len()];
    let mut matrices = 1;
    for (d, number) in numbers.iter_mut().enumerate().rev().filter(|(d, _)| strides[*d] != 0) {
        *number = matrices as i64;
        matrices *= dims[d];
    }
    numbers
}

/// Emits what makes an operand's parts: at load where the operand is stored, otherwise in every run.
pub(crate) fn emit(
    problem: &Problem<'_>,
    side: MatrixRole,
    form: SplitForm,
    site: &mut Site<'_>,
) -> Result<SplitOperand, String> {
    let extent = extent(problem, side);
    let (operand, walk, batch) = matrices(problem, side);
    let lines = SplitLayout::Lines(extent.layout.along);
    let (fragments, dealt) = (form != SplitForm::Lines, form == SplitForm::Dealt);
    let order = if fragments { SplitLayout::Fragments { dealt } } else { lines };
    let planes =
        |memory, order| SplitOperand { order, dealt, ..SplitOperand::new(memory, &extent, batch.clone()) };
    let bytes = extent.bytes();
    let make = |site: &mut Site<'_>, memory: Memory| {
        let first = planes(if fragments { site.scratch(bytes) } else { memory }, lines);
        match extent.layout.along {
            Axis::K => by_rows(operand, &extent, &walk, &first, site)?,
            Axis::Outer => by_columns(operand, &extent, &walk, &first, site)?,
        }
        if fragments { to_fragments(&first, extent.matrices, memory, site) } else { Ok(()) }
    };
    if operand.operand.stored {
        let how = format!(
            "planes of {} {}x{} by {},{} {walk:?} {order:?}",
            extent.matrices, extent.outer, extent.k_size, operand.outer, operand.k_stride
        );
        return Ok(planes(site.at_load(how, &operand.operand, launch::number(bytes) as u64, make)?, order));
    }
    let memory = site.scratch(bytes);
    make(site, memory)?;
    Ok(planes(memory, order))
}

/// The sizes of an operand's parts.
pub(crate) struct PartSizes {
    /// Outer positions with those that fill up.
    pub(crate) outer: Dim,
    /// Matrices that differ, and their numbers as strides over the problem's batches.
    pub(crate) matrices: usize,
    pub(crate) batch: Vec<i64>,
}

/// The sizes of what [`lines`] makes.
pub(crate) fn sizes(problem: &Problem<'_>, side: MatrixRole) -> PartSizes {
    let extent = extent(problem, side);
    let (_, _, batch) = matrices(problem, side);
    PartSizes { outer: extent.padded().0, matrices: extent.matrices, batch }
}

/// Emits what makes an operand's parts in lines, into scratch memory: of this run, or of what is made at load.
pub(crate) fn lines(
    problem: &Problem<'_>,
    side: MatrixRole,
    site: &mut Site<'_>,
) -> Result<SplitOperand, String> {
    let extent = extent(problem, side);
    let (operand, walk, batch) = matrices(problem, side);
    let planes = SplitOperand::new(site.scratch(extent.bytes()), &extent, batch);
    match extent.layout.along {
        Axis::K => by_rows(operand, &extent, &walk, &planes, site)?,
        Axis::Outer => by_columns(operand, &extent, &walk, &planes, site)?,
    }
    Ok(planes)
}

/// Emits the parts of A straight in the order of warpgroups' fragments, K filled up to `k_size`, with the scales from word
/// `scales` on. Returns whether it could: rows must be contiguous along K.
pub(crate) fn warpgroup_rows(
    problem: &Problem<'_>,
    (memory, scales): (Memory, Dim),
    (blocks, k_size): (Dim, usize),
    site: &mut Site<'_>,
) -> Result<bool, String> {
    let extent = extent(problem, MatrixRole::A);
    if extent.layout.along != Axis::K {
        return Ok(false);
    }
    let (operand, walk, batch) = matrices(problem, MatrixRole::A);
    let planes = SplitOperand::new(memory, &extent, batch);
    by_rows(operand, &extent, &walk, &SplitOperand { scales, k_size, blocks: Some(blocks), ..planes }, site)?;
    Ok(true)
}

/// An operand with its matrices that differ: where they are, and their numbers as strides over the problem's batches.
fn matrices<'p>(problem: &'p Problem<'_>, side: MatrixRole) -> (&'p MatrixOperand, Walk, Vec<i64>) {
    let (operand, number) = match side {
        MatrixRole::A => (&problem.a, 0),
        MatrixRole::B => (&problem.b, 1),
    };
    let (dims_of_batch, strides) = (problem.batch.dims(), &problem.batch.strides(number));
    let kept = dims_of_batch.iter().zip(strides).filter(|(_, s)| **s != 0);
    let (dims, own): (Vec<usize>, Vec<i64>) = kept.map(|(d, s)| (*d, *s)).unzip();
    (operand, Walk::new(&dims, &[own]), numbering(&dims_of_batch, strides))
}

/// Words of a fragment.
pub(crate) const FRAGMENT: u32 = RUN * RUN / 2;

/// Brings parts of B in lines into the order of fragments, a subgroup to each.
fn to_fragments(
    lines: &SplitOperand,
    matrices: usize,
    to: Memory,
    site: &mut Site<'_>,
) -> Result<(), String> {
    let group = site.group_size(256);
    let run = RUN as usize;
    let count = matrices * lines.outer.div_floor(run) * (2 * lines.k_size / run);
    let k = site.builder("split_f32_fragments", group);
    let l = Launch::new(&k);
    let halves = l.bind("lines", Elem::F16, Access::Read, lines.memory);
    let words = l.bind("words", Elem::U32, Access::Read, lines.memory);
    let out = l.bind("planes", Elem::U32, Access::Write, to);
    let (outer, interleaved) = (l.size("outer", lines.outer), l.size("interleaved", 2 * lines.k_size));
    let (scales, total) = (l.size("scales", lines.scales), l.size("fragments", count));

    let subgroups = group / 32;
    let number = linear_group(&k) * subgroups + k.subgroup_id();
    k.if_(number.lt(total), || {
        // Columns of 16 of all matrices, and 16 indices along K of a part.
        let across = interleaved / RUN;
        let columns = number / across;
        let k_offset = (number - columns * across) * RUN;
        let per_matrix = outer / RUN;
        let matrix = columns / per_matrix;
        let column = (columns - matrix * per_matrix) * RUN;
        let base = matrix * outer * interleaved;
        let ty = MatrixType { elem: Elem::F16, rows: RUN, columns: RUN, role: MatrixUse::B };
        let fragment = match lines.order {
            SplitLayout::Lines(Axis::Outer) => {
                halves.load_matrix(ty, base + k_offset * outer + column, outer, false)
            }
            _ => halves.load_matrix(ty, base + column * interleaved + k_offset, interleaved, true),
        };
        out.store_vec(number * FRAGMENT + k.lane() * 4u32, &fragment.matrix_words(4));
        k.if_(k_offset.eq(0) & k.lane().lt(RUN), || {
            let scale = scales + columns * RUN + k.lane();
            out.store(scale, words.load(scale));
        });
    });
    let bound = l.done();
    site.dispatch(k, bound, count.div_ceil(subgroups), (0, 8 * lines.scales))
}

/// Words of f32 in memory that are loaded a unit at a time, along the contiguous axis.
pub(crate) struct F32Runs<'k> {
    buffer: Buf<'k>,
    /// From one to the next; 1 where several are loaded at once.
    stride: Val<'k>,
    /// Over the other axis.
    pub(crate) line: Val<'k>,
    /// How many are loaded at once.
    lanes: u32,
    /// Positions along the first axis.
    pub(crate) size: Val<'k>,
}

impl<'k> F32Runs<'k> {
    pub(crate) fn declare(
        l: &Launch<'k>,
        name: &str,
        operand: &MatrixOperand,
        layout: Layout,
        size: Val<'k>,
    ) -> Self {
        let (unit, line) = match layout.along {
            Axis::K => (operand.k_stride, operand.outer),
            Axis::Outer => (operand.outer, operand.k_stride),
        };
        F32Runs {
            buffer: l.bind(name, Elem::U32, Access::Read, operand.operand.memory),
            stride: if layout.lanes > 1 { l.k().u32(1) } else { l.stride(&format!("{name}_unit"), unit) },
            line: l.stride(&format!("{name}_line"), line),
            lanes: layout.lanes as u32,
            size,
        }
    }

    /// A unit of words from position `first` on, of the line at `base`; positions past the last repeat others.
    pub(crate) fn load(&self, base: Val<'k>, first: Val<'k>) -> Vec<Val<'k>> {
        let at = |i: u32| base + (first + i).min(self.size - self.lanes) * self.stride;
        let firsts = (0..UNIT).step_by(self.lanes as usize);
        firsts.flat_map(|i| self.buffer.load_vec(at(i), self.lanes as u8)).collect()
    }

    /// The same with zeros past the last position.
    fn load_filled(&self, base: Val<'k>, first: Val<'k>) -> Vec<Val<'k>> {
        let words = self.load(base, first).into_iter().enumerate();
        let zero = first.builder().u32(0);
        words.map(|(i, word)| (first + i).lt(self.size).select(word, zero)).collect()
    }

    /// The number at a position of the line at `base`.
    pub(crate) fn one(&self, base: Val<'k>, position: Val<'k>) -> Val<'k> {
        let at = base + position.min(self.size - 1u32) * self.stride;
        self.buffer.load(at).bitcast(Scalar::F32)
    }
}

/// What is measured of some elements: the largest finite magnitude, and [`NON_FINITE`] if there were others.
pub(crate) fn measure<'k>(so_far: Val<'k>, word: Val<'k>) -> Val<'k> {
    let magnitude = word & MAGNITUDE;
    let k = word.builder();
    together(so_far, magnitude.lt(INFINITY).select(magnitude, k.u32(NON_FINITE)))
}

/// The measure of two sets of elements.
pub(crate) fn together<'k>(a: Val<'k>, b: Val<'k>) -> Val<'k> {
    (a & MAGNITUDE).max(b & MAGNITUDE) | ((a | b) & NON_FINITE)
}

/// The scale that follows from a measure: its biased exponent, that of a normal number, and the mark.
pub(crate) fn scale(measure: Val<'_>) -> Val<'_> {
    let exponent = (measure & MAGNITUDE) >> 23;
    let biased = measure.builder().u32(127 + 127 + 14) - exponent;
    biased.min(253u32) | (measure & NON_FINITE)
}

/// The same with a verdict on how even elements are: `sum` is that of their magnitudes, `spread` as [`spread`] has it.
fn judged<'k>(measure: Val<'k>, sum: Val<'k>, spread: Val<'k>) -> Val<'k> {
    let largest = (measure & MAGNITUDE).bitcast(Scalar::F32);
    let k = measure.builder();
    scale(measure) | largest.gt(sum * spread).select(k.u32(OUTLIER), k.u32(0))
}

/// How many times the sum of so many magnitudes the largest may be.
fn spread(k_size: usize) -> f32 {
    SPREAD / k_size as f32
}

/// The magnitude of a word.
fn magnitude(word: Val<'_>) -> Val<'_> {
    (word & MAGNITUDE).bitcast(Scalar::F32)
}

/// 2^s of a scale.
pub(crate) fn power_of(scale: Val<'_>) -> Val<'_> {
    ((scale & 0xffu32) << 23).bitcast(Scalar::F32)
}

/// The power of two that takes a sum back from the scales of its row and column, as two factors of which neither, nor
/// the sum times one of them, leaves the range of f32 unless the result does.
pub(crate) fn back<'k>(row: Val<'k>, column: Val<'k>) -> [Val<'k>; 2] {
    // Scales are 127 + s and 127 + t; wanted is 2^-(s + t) as two factors of about half of it.
    let both = row.builder().u32(2 * 127 + 2 * 127) - ((row & 0xffu32) + (column & 0xffu32));
    let half = both >> 1;
    [half, both - half].map(|e| (e << 23).bitcast(Scalar::F32))
}

/// The words of both parts, high first, of a unit of elements and their scales' powers.
pub(crate) fn split<'k>(words: &[Val<'k>], by: &[Val<'k>]) -> [Vec<Val<'k>>; 2] {
    let halves: Vec<[Val<'k>; 2]> = words
        .iter()
        .zip(by)
        .map(|(word, by)| {
            let scaled = word.bitcast(Scalar::F32) * *by;
            let bits = scaled.bitcast(Scalar::U32);
            // By integers: compilers take a number less its own rounding to be zero.
            let rounded = (bits + 0x1000u32) & 0xffff_e000u32;
            let rest = (scaled - rounded.bitcast(Scalar::F32)).bitcast(Scalar::U32);
            let finite = (*word & MAGNITUDE).lt(INFINITY);
            let zero = word.builder().u32(0);
            [finite.select(rounded, *word), finite.select(rest, zero)].map(|b| b.bitcast(Scalar::F32))
        })
        .collect();
    [0, 1].map(|plane| halves.chunks(2).map(|pair| pair[0][plane].pack_half(pair[1][plane])).collect())
}

/// Where index along K `k_offset` of the high part is among both parts' indices along K; the low part's is [`RUN`]
/// further.
pub(crate) fn interleaved(k_offset: Val<'_>) -> Val<'_> {
    k_offset / RUN * (2 * RUN) + k_offset % RUN
}

/// Stores a unit of both parts, whose first elements are at those positions.
fn store<'k>(out: Buf<'k>, at: [Val<'k>; 2], planes: &[Vec<Val<'k>>; 2]) {
    for (at, words) in at.into_iter().zip(planes) {
        out.store_vec(at / 2u32, words);
    }
}

/// Where an index along K lies among 16 that are dealt: pairs go to the first eight and the last eight by turns, as the
/// four neighbours that a lane has of a row of A lie in its matrix.
fn dealt(k_offset: Val<'_>) -> Val<'_> {
    let within = k_offset % RUN;
    k_offset / RUN * RUN + within / 4u32 * 2u32 + (within / 2u32 % 2u32) * (RUN / 2) + within % 2u32
}

/// The same as [`store`] for a unit of indices along K that are dealt.
fn store_dealt<'k>(out: Buf<'k>, at: [Val<'k>; 2], planes: &[Vec<Val<'k>>; 2]) {
    for (at, words) in at.into_iter().zip(planes) {
        for (half, pairs) in [[words[0], words[2]], [words[1], words[3]]].iter().enumerate() {
            out.store_vec(at / 2u32 + half as u32 * (RUN / 4), pairs);
        }
    }
}

/// The same for a unit of a row of A from index `at` along K on, in the order of warpgroups' fragments: `first` is the number
/// of the matrix' first block of 64 rows.
fn store_for_warpgroups<'k>(
    out: Buf<'k>,
    (first, row): (Val<'k>, Val<'k>),
    (at, k_size): (Val<'k>, Val<'k>),
    planes: &[Vec<Val<'k>>; 2],
) {
    // Of 32 indices along K a warpgroup has 8 KiB: of each part the upper rows, then the lower ones, 16 bytes to a lane.
    let pair = (first + row / 64u32) * (k_size / 32u32) + at / 32u32;
    let lane = row % 64u32 / 16u32 * 32u32 + row % 8u32 * 4u32 + at % 32u32 / UNIT;
    let to = pair * 2048u32 + row % 16u32 / 8u32 * 512u32 + lane * 4u32;
    for (to, words) in [to, to + 1024u32].into_iter().zip(planes) {
        out.store_vec(to, words);
    }
}

/// Units that an invocation has in flight.
const AT_ONCE: u32 = 4;

/// Parts of an operand that is contiguous along K: a few invocations to a row, which they read twice.
fn by_rows(
    operand: &MatrixOperand,
    extent: &OperandExtent,
    walk: &Walk,
    planes: &SplitOperand,
    site: &mut Site<'_>,
) -> Result<(), String> {
    let group = site.group_size(256);
    let width = if extent.k_size > 4096 { group } else { group.min(32) };
    let rows = planes.outer * extent.matrices;
    let k = site.builder("split_f32_rows", group);
    let l = Launch::new(&k);
    let (outer, k_size) = (l.size("outer", extent.outer), l.size("k_size", extent.k_size));
    let (total, padded) = (l.size("rows", rows), l.size("padded", planes.k_size));
    let (pitch, spread) = (l.size("pitch", planes.outer), l.f32("spread", spread(extent.k_size)));
    let source = F32Runs::declare(&l, "x", operand, extent.layout, k_size);
    let walker = walk.declare(&l, &[operand.operand.offset]);
    let out = l.bind("planes", Elem::U32, Access::Write, planes.memory);
    let scales = l.size("scales", planes.scales);
    let blocks = planes.blocks.map(|blocks| l.size("blocks", blocks));

    let each = group / width;
    let me = k.local_index();
    let wanted = linear_group(&k) * each + me / width;
    let row = wanted.min(total - 1u32);
    let matrix = row / pitch;
    // Rows that fill up are the last once more.
    let position = (row - matrix * pitch).min(outer - 1u32);
    let base = walker.at(matrix)[0] + position * source.line;
    let (first, step) = (me % width * UNIT, k.u32(AT_ONCE * width * UNIT));
    let (largest, sum) = (k.var(k.u32(0)), k.var(k.f32(0.0)));
    k.for_(first, k_size, step, |k_offset| {
        let starts = (0..AT_ONCE).map(|i| k_offset + i * width * UNIT);
        let loads: Vec<_> = starts.map(|start| source.load_filled(base, start)).collect();
        for words in loads {
            sum.set(words.iter().fold(sum.get(), |sum, word| sum + magnitude(*word)));
            largest.set(words.into_iter().fold(largest.get(), measure));
        }
    });
    let largest = k.cluster_reduce_with(width, largest.get(), together);
    let scale = judged(largest, k.cluster_reduce(width, sum.get(), Reduction::Add), spread);
    k.if_(wanted.lt(total), || {
        k.if_((me % width).eq(0), || out.store(scales + row, scale));
        let by = vec![power_of(scale); UNIT as usize];
        let start = row * (padded * 2u32);
        k.for_(first, padded, step, |k_offset| {
            let starts = (0..AT_ONCE).map(|i| k_offset + i * width * UNIT);
            let loads: Vec<_> = starts.map(|start| (start, source.load_filled(base, start))).collect();
            for (at, words) in loads {
                k.if_(at.lt(padded), || {
                    let halves = split(&words, &by);
                    if let Some(blocks) = blocks {
                        let number = matrix * blocks;
                        store_for_warpgroups(out, (number, row - matrix * pitch), (at, padded), &halves);
                    } else if planes.dealt {
                        let high = start + interleaved(dealt(at));
                        store_dealt(out, [high, high + RUN], &halves);
                    } else {
                        let high = start + interleaved(at);
                        store(out, [high, high + RUN], &halves);
                    }
                });
            }
        });
    });
    let bound = l.done();
    site.dispatch(k, bound, rows.div_ceil(each), (0, 8 * (rows * extent.k_size)))
}

/// Invocations side by side on units of a line.
const ACROSS: u32 = 32;
/// Strips along K that are measured, at most.
const STRIPS: usize = 16;
/// Indices along K to a workgroup that splits.
const LINES: u32 = 64;

/// Parts of an operand that is contiguous along outer positions: strips along K are measured first, then all is split.
fn by_columns(
    operand: &MatrixOperand,
    extent: &OperandExtent,
    walk: &Walk,
    planes: &SplitOperand,
    site: &mut Site<'_>,
) -> Result<(), String> {
    let strips = (extent.k_size / 64).clamp(1, STRIPS);
    let strip = extent.k_size.div_ceil(strips);
    let strips = extent.k_size.div_ceil(strip);
    let each = strips * planes.outer * extent.matrices;
    let (measures, sums) = (site.scratch(4 * each), site.scratch(4 * each));
    let blocks = planes.outer.div_ceil(ACROSS * UNIT) * extent.matrices;
    let group = site.group_size(256);
    let down = group / ACROSS;
    let bytes = 4 * (extent.outer * extent.k_size * extent.matrices);

    let k = site.builder("split_f32_scales", group);
    let l = Launch::new(&k);
    let columns = SplitColumns::declare(&l, operand, extent, walk, planes);
    let (rows, blocks_of_all) = (l.size("strip", strip), l.size("blocks", blocks));
    let total = l.size("groups", blocks * strips);
    let out = l.bind("measures", Elem::U32, Access::Write, measures);
    let out_sums = l.bind("sums", Elem::F32, Access::Write, sums);
    let met = k.shared(Elem::U32, 1, group * UNIT);
    let met_sums = k.shared(Elem::F32, 1, group * UNIT);
    let id = linear_group(&k);
    k.if_(id.lt(total), || {
        let number = id / blocks_of_all;
        let at = columns.at(id - number * blocks_of_all);
        let (me, first) = (k.local_index(), number * rows);
        let (line, unit) = (me / ACROSS, me % ACROSS);
        let largest: Vec<_> = (0..UNIT).map(|_| k.var(k.u32(0))).collect();
        let sums: Vec<_> = (0..UNIT).map(|_| k.var(k.f32(0.0))).collect();
        let end = (first + rows).min(columns.k_size);
        k.for_(first + line, end, k.u32(AT_ONCE * down), |k_offset| {
            let k_size = (0..AT_ONCE).map(|i| k_offset + i * down);
            let loads: Vec<_> =
                k_size.map(|k_offset| (k_offset.lt(end), columns.load(&at, k_offset))).collect();
            for (inside, words) in loads {
                for ((largest, sum), word) in largest.iter().zip(&sums).zip(words) {
                    let word = inside.select(word, k.u32(0));
                    largest.set(measure(largest.get(), word));
                    sum.set(sum.get() + magnitude(word));
                }
            }
        });
        for (i, (largest, sum)) in (0u32..).zip(largest.iter().zip(&sums)) {
            let at = line * (ACROSS * UNIT) + unit * UNIT + i;
            met.store(at, largest.get());
            met_sums.store(at, sum.get());
        }
        k.barrier();
        let spread = ACROSS * UNIT / group;
        for own in (0..spread).map(|i| me + i * group) {
            let (mut all, mut sum) = (met.load(own), met_sums.load(own));
            for line in 1..down {
                all = together(all, met.load(own + line * (ACROSS * UNIT)));
                sum = sum + met_sums.load(own + line * (ACROSS * UNIT));
            }
            let column = at.first + own;
            k.if_(column.lt(columns.pitch), || {
                let index = (number * columns.matrices + at.matrix) * columns.pitch + column;
                out.store(index, all);
                out_sums.store(index, sum);
            });
        }
    });
    let bound = l.done();
    site.dispatch(k, bound, blocks * strips, (0, bytes))?;

    let rounds = planes.k_size.div_ceil(LINES as usize);
    let k = site.builder("split_f32_columns", group);
    let l = Launch::new(&k);
    let columns = SplitColumns::declare(&l, operand, extent, walk, planes);
    let (strips, blocks_of_all) = (l.size("strips", strips), l.size("blocks", blocks));
    let (total, padded) = (l.size("groups", blocks * rounds), l.size("padded", planes.k_size));
    let measures = l.bind("measures", Elem::U32, Access::Read, measures);
    let (sums, spread) =
        (l.bind("sums", Elem::F32, Access::Read, sums), l.f32("spread", spread(extent.k_size)));
    let out = l.bind("planes", Elem::U32, Access::Write, planes.memory);
    let scales = l.size("scales", planes.scales);
    let found = k.shared(Elem::U32, 1, ACROSS * UNIT);
    let id = linear_group(&k);
    k.if_(id.lt(total), || {
        let number = id / blocks_of_all;
        let at = columns.at(id - number * blocks_of_all);
        let me = k.local_index();
        let (line, unit) = (me / ACROSS, me % ACROSS);
        for own in (0..ACROSS * UNIT / group).map(|i| me + i * group) {
            let column = (at.first + own).min(columns.pitch - 1u32);
            let (mut largest, mut sum) = (k.u32(0), k.f32(0.0));
            for strip in 0..STRIPS as u32 {
                let here = (strips - 1u32).min(strip);
                let index = (here * columns.matrices + at.matrix) * columns.pitch + column;
                largest = together(largest, measures.load(index));
                let apart = sums.load(index);
                sum = sum + here.eq(strip).select(apart, k.f32(0.0));
            }
            let scale = judged(largest, sum, spread);
            found.store(own, scale);
            k.if_(number.eq(0), || out.store(scales + at.matrix * columns.pitch + column, scale));
        }
        k.barrier();
        let by: Vec<Val<'_>> = (0..UNIT).map(|i| power_of(found.load(unit * UNIT + i))).collect();
        let first = number * LINES + line;
        for k_offset in (0..LINES / down).map(|i| first + i * down) {
            let words = columns.load(&at, k_offset);
            let inside = k_offset.lt(columns.k_size);
            let words: Vec<Val<'_>> = words.into_iter().map(|w| inside.select(w, k.u32(0))).collect();
            k.if_(k_offset.lt(padded) & at.column.lt(columns.pitch), || {
                let start = at.matrix * (padded * 2u32);
                let place = interleaved(if planes.dealt { dealt(k_offset) } else { k_offset });
                let high = (start + place) * columns.pitch + at.column;
                store(out, [high, high + columns.pitch * RUN], &split(&words, &by));
            });
        }
    });
    let bound = l.done();
    site.dispatch(k, bound, blocks * rounds, (0, 2 * bytes))
}

/// An operand's columns in blocks of a workgroup's width.
struct SplitColumns<'k> {
    source: F32Runs<'k>,
    walker: Walker<'k>,
    k_size: Val<'k>,
    /// Columns of a matrix of parts.
    pitch: Val<'k>,
    matrices: Val<'k>,
}

/// A workgroup's block, and the unit of an invocation.
struct SplitBlock<'k> {
    matrix: Val<'k>,
    /// The block's first column.
    first: Val<'k>,
    /// The unit's first column.
    column: Val<'k>,
    /// Where the matrix begins.
    base: Val<'k>,
}

impl<'k> SplitColumns<'k> {
    fn declare(
        l: &Launch<'k>,
        operand: &MatrixOperand,
        extent: &OperandExtent,
        walk: &Walk,
        planes: &SplitOperand,
    ) -> Self {
        let columns = l.size("columns", extent.outer);
        SplitColumns {
            source: F32Runs::declare(l, "x", operand, extent.layout, columns),
            walker: walk.declare(l, &[operand.operand.offset]),
            k_size: l.size("k_size", extent.k_size),
            pitch: l.size("pitch", planes.outer),
            matrices: l.size("matrices", extent.matrices),
        }
    }

    /// An invocation's unit at an index along K; indices along K past the last repeat it.
    fn load(&self, at: &SplitBlock<'k>, k_offset: Val<'k>) -> Vec<Val<'k>> {
        self.source.load(at.base + k_offset.min(self.k_size - 1u32) * self.source.line, at.column)
    }

    fn at(&self, block: Val<'k>) -> SplitBlock<'k> {
        let k = block.builder();
        let wide = ACROSS * UNIT;
        let across = (self.pitch + (wide - 1)) / wide;
        let matrix = block / across;
        let first = (block - matrix * across) * wide;
        SplitBlock {
            matrix,
            first,
            column: first + k.local_index() % ACROSS * UNIT,
            base: self.walker.at(matrix)[0],
        }
    }
}
