//! f32 factors as two planes of f16: every element, scaled by a power of two of its row of A or column of B, is the sum
//! of a high and a low half to 22 bits.
//!
//! The scale brings the largest finite magnitude of a row into [2^14, 2^15), so that an element's error is below 2^-38 of
//! that magnitude however small it is. Rows that planes serve badly are marked: [`MARK`] says of infinities and NaN,
//! [`WILD`] of a few elements that outweigh all others.
//!
//! Planes lie as their factor does, along depths or along outer positions, as one matrix of twice the depths: 16 of the
//! high plane, the same 16 of the low one, and so on. Depths are filled up with zeros to a multiple of [`DEPTHS`]. Or
//! they lie in the order of fragments: cooperative matrices as the lanes of a subgroup hold them, down the depths of 16
//! columns before the next 16, so that no workgroup memory is needed on the way to the matrix units. Fragments may have
//! their depths [`dealt`], so that a lane that loads A by itself finds its four depths of 16 side by side.

use olivine_kernel::{Access, Buf, Elem, MatrixType, MatrixUse, Reduction, Scalar, Val};

use crate::launch::Launch;
use crate::matmul::problem::{Axis, Factor, Lie, Problem};
use crate::site::{Memory, Site, linear_group};
use crate::walk::{Walk, Walker};

/// Depths of one plane that lie side by side.
pub(crate) const RUN: u32 = 16;
/// Planes have a multiple of so many depths.
pub(crate) const DEPTHS: usize = 64;
/// Neighbours that an invocation splits at once: a slot of each plane.
pub(crate) const UNIT: u32 = 8;
/// The bit of a measure, and of a scale, that says of infinities or NaN.
pub(crate) const MARK: u32 = 0x8000_0000;
/// The bit of a scale that says that the largest magnitude is more than [`SPREAD`] times the mean one.
pub(crate) const WILD: u32 = 0x4000_0000;
/// Sums of rows that are more uneven hang on few terms. Rounding errors of single precision do not add up in those, and
/// what planes leave out of a term, one bit of 24, is more than they are.
const SPREAD: f32 = 128.0;

const MAGNITUDE: u32 = 0x7fff_ffff;
const INFINITY: u32 = 0x7f80_0000;

/// A factor's planes in memory.
#[derive(Clone, Debug)]
pub(crate) struct Planes {
    /// Words of two f16 each; behind them one word for every outer position: the biased exponent of its scale, and
    /// [`MARK`].
    pub(crate) memory: Memory,
    /// Words of planes, where scales begin.
    pub(crate) scales: usize,
    pub(crate) order: Order,
    /// Outer positions with those that fill the last matrix.
    pub(crate) outer: usize,
    /// Depths of one plane.
    pub(crate) depths: usize,
    /// Strides over the problem's batches, in matrices.
    pub(crate) batch: Vec<i64>,
    /// Whether each 16 depths of lines are [`dealt`].
    dealt: bool,
}

/// How planes lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Order {
    /// In lines along an axis.
    Lines(Axis),
    /// As lanes hold matrices of B; each 16 depths [`dealt`] or as they are.
    Fragments { dealt: bool },
}

/// How planes shall lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// In lines, as their factor does.
    Lines,
    /// In fragments, for B.
    Fragments,
    /// In fragments with depths [`dealt`].
    Dealt,
}

/// Which factor of a product.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    /// A, whose outer positions are rows.
    Left,
    /// B, whose outer positions are columns.
    Right,
}

/// A factor's measures.
struct Extent {
    outer: usize,
    depths: usize,
    matrices: usize,
    lie: Lie,
}

impl Extent {
    fn padded(&self) -> (usize, usize) {
        (self.outer.next_multiple_of(RUN as usize), self.depths.next_multiple_of(DEPTHS))
    }
}

/// f16 elements of a factor's planes; kernels must be able to count them.
pub(crate) fn elements(problem: &Problem<'_>, side: Side) -> usize {
    let extent = extent(problem, side);
    let (outer, depths) = extent.padded();
    outer.saturating_mul(2 * depths).saturating_mul(extent.matrices)
}

fn extent(problem: &Problem<'_>, side: Side) -> Extent {
    let (outer, lie, number) = match side {
        Side::Left => (problem.m, problem.lie_of_a(), 0),
        Side::Right => (problem.n, problem.lie_of_b(), 1),
    };
    let strides = &problem.batch.strides[number];
    let matrices =
        problem.batch.dims.iter().zip(strides).filter(|(_, s)| **s != 0).map(|(d, _)| *d).product();
    Extent { outer, depths: problem.k, matrices, lie }
}

/// Strides over batches that count a factor's different matrices.
fn numbering(dims: &[usize], strides: &[i64]) -> Vec<i64> {
    let mut numbers = vec![0; dims.len()];
    let mut matrices = 1;
    for (d, number) in numbers.iter_mut().enumerate().rev().filter(|(d, _)| strides[*d] != 0) {
        *number = matrices as i64;
        matrices *= dims[d];
    }
    numbers
}

/// Emits what makes a factor's planes: at load where the factor is stored, otherwise in every run.
pub(crate) fn emit(
    problem: &Problem<'_>,
    side: Side,
    form: Form,
    site: &mut Site<'_>,
) -> Result<Planes, String> {
    let extent = extent(problem, side);
    let (outer, depths) = extent.padded();
    let (factor, number) = match side {
        Side::Left => (&problem.a, 0),
        Side::Right => (&problem.b, 1),
    };
    let strides = &problem.batch.strides[number];
    let kept = problem.batch.dims.iter().zip(strides).filter(|(_, s)| **s != 0);
    let (dims, own): (Vec<usize>, Vec<i64>) = kept.map(|(d, s)| (*d, *s)).unzip();
    let walk = Walk::new(&dims, &[own]);
    let scales = outer * depths * extent.matrices;
    let bytes = 4 * (scales + outer * extent.matrices) as u64;
    let batch = numbering(&problem.batch.dims, strides);
    let lines = Order::Lines(extent.lie.along);
    let (fragments, dealt) = (form != Form::Lines, form == Form::Dealt);
    let order = if fragments { Order::Fragments { dealt } } else { lines };
    let planes = |memory, order| Planes { memory, scales, order, outer, depths, batch: batch.clone(), dealt };
    let make = |site: &mut Site<'_>, memory: Memory| {
        let first = planes(if fragments { site.scratch(bytes) } else { memory }, lines);
        match extent.lie.along {
            Axis::Depth => by_rows(factor, &extent, &walk, &first, site)?,
            Axis::Outer => by_columns(factor, &extent, &walk, &first, site)?,
        }
        if fragments { in_fragments(&first, extent.matrices, memory, site) } else { Ok(()) }
    };
    if factor.operand.stored {
        let how = format!(
            "planes of {} {}x{} by {},{} {walk:?} {order:?}",
            extent.matrices, extent.outer, extent.depths, factor.outer, factor.depth
        );
        return Ok(planes(site.at_load(how, &factor.operand, bytes, make)?, order));
    }
    let memory = site.scratch(bytes);
    make(site, memory)?;
    Ok(planes(memory, order))
}

/// Words of a fragment.
pub(crate) const FRAGMENT: u32 = RUN * RUN / 2;

/// Brings planes of B in lines into the order of fragments, a subgroup to each.
fn in_fragments(lines: &Planes, matrices: usize, to: Memory, site: &mut Site<'_>) -> Result<(), String> {
    let group = site.group_size(256);
    let run = RUN as usize;
    let count = matrices * (lines.outer / run) * (2 * lines.depths / run);
    let k = site.builder("matmul_planes_fragments", group);
    let l = Launch::new(&k);
    let halves = l.bind("lines", Elem::F16, Access::Read, lines.memory);
    let words = l.bind("words", Elem::U32, Access::Read, lines.memory);
    let out = l.bind("planes", Elem::U32, Access::Write, to);
    let (outer, doubled) = (l.size("outer", lines.outer), l.size("doubled", 2 * lines.depths));
    let (scales, total) = (l.size("scales", lines.scales), l.size("fragments", count));

    let teams = group / 32;
    let number = linear_group(&k) * teams + k.subgroup_id();
    k.if_(number.lt(total), || {
        // Columns of 16 of all matrices, and 16 depths of a plane.
        let across = doubled / RUN;
        let columns = number / across;
        let depth = (number - columns * across) * RUN;
        let per_matrix = outer / RUN;
        let matrix = columns / per_matrix;
        let column = (columns - matrix * per_matrix) * RUN;
        let base = matrix * outer * doubled;
        let ty = MatrixType { elem: Elem::F16, rows: RUN, columns: RUN, role: MatrixUse::B };
        let fragment = match lines.order {
            Order::Lines(Axis::Outer) => halves.load_matrix(ty, base + depth * outer + column, outer, false),
            _ => halves.load_matrix(ty, base + column * doubled + depth, doubled, true),
        };
        out.store_vec(number * FRAGMENT + k.lane() * 4u32, &fragment.matrix_words(4));
        k.if_(depth.eq(0) & k.lane().lt(RUN), || {
            let scale = scales + columns * RUN + k.lane();
            out.store(scale, words.load(scale));
        });
    });
    let bound = l.done();
    let bytes = 8 * lines.scales as u64;
    site.dispatch(k, bound, count.div_ceil(teams as usize) as u64, (0, bytes))
}

/// Words of f32 in memory that are loaded a unit at a time, along the axis that they lie along.
pub(crate) struct Neighbours<'k> {
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

impl<'k> Neighbours<'k> {
    pub(crate) fn declare(l: &Launch<'k>, name: &str, factor: &Factor, lie: Lie, size: Val<'k>) -> Self {
        let (unit, line) = match lie.along {
            Axis::Depth => (factor.depth, factor.outer),
            Axis::Outer => (factor.outer, factor.depth),
        };
        Neighbours {
            buffer: l.bind(name, Elem::U32, Access::Read, factor.operand.memory),
            stride: if lie.lanes > 1 { l.k().u32(1) } else { l.stride(&format!("{name}_unit"), unit) },
            line: l.stride(&format!("{name}_line"), line),
            lanes: lie.lanes as u32,
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

/// What is measured of some elements: the largest finite magnitude, and [`MARK`] if there were others.
pub(crate) fn measure<'k>(so_far: Val<'k>, word: Val<'k>) -> Val<'k> {
    let magnitude = word & MAGNITUDE;
    let k = word.builder();
    together(so_far, magnitude.lt(INFINITY).select(magnitude, k.u32(MARK)))
}

/// The measure of two sets of elements.
pub(crate) fn together<'k>(a: Val<'k>, b: Val<'k>) -> Val<'k> {
    (a & MAGNITUDE).max(b & MAGNITUDE) | ((a | b) & MARK)
}

/// The scale that follows from a measure: its biased exponent, that of a normal number, and the mark.
pub(crate) fn scale(measure: Val<'_>) -> Val<'_> {
    let exponent = (measure & MAGNITUDE) >> 23;
    let biased = measure.builder().u32(127 + 127 + 14) - exponent;
    biased.min(253u32) | (measure & MARK)
}

/// The same with a verdict on how even elements are: `sum` is that of their magnitudes, `spread` as [`spread`] has it.
fn judged<'k>(measure: Val<'k>, sum: Val<'k>, spread: Val<'k>) -> Val<'k> {
    let largest = (measure & MAGNITUDE).bitcast(Scalar::F32);
    let k = measure.builder();
    scale(measure) | largest.gt(sum * spread).select(k.u32(WILD), k.u32(0))
}

/// How many times the sum of so many magnitudes the largest may be.
fn spread(depths: usize) -> f32 {
    SPREAD / depths as f32
}

/// The magnitude of a word.
fn magnitude(word: Val<'_>) -> Val<'_> {
    (word & MAGNITUDE).bitcast(Scalar::F32)
}

/// 2^s of a scale.
pub(crate) fn factor_of(scale: Val<'_>) -> Val<'_> {
    ((scale & 0xffu32) << 23).bitcast(Scalar::F32)
}

/// The power of two that takes a sum back from the scales of its row and column, as two factors of which neither, nor
/// the product of the sum with one, leaves the range of f32 unless the result does.
pub(crate) fn back<'k>(row: Val<'k>, column: Val<'k>) -> [Val<'k>; 2] {
    // Scales are 127 + s and 127 + t; wanted is 2^-(s + t) as two factors of about half of it.
    let both = row.builder().u32(2 * 127 + 2 * 127) - ((row & 0xffu32) + (column & 0xffu32));
    let half = both >> 1;
    [half, both - half].map(|e| (e << 23).bitcast(Scalar::F32))
}

/// The words of both planes, high first, of a unit of elements and their scales' powers.
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

/// Where depth `depth` of the high plane is among both planes' depths; the low plane's is [`RUN`] further.
pub(crate) fn doubled(depth: Val<'_>) -> Val<'_> {
    depth / RUN * (2 * RUN) + depth % RUN
}

/// Stores a unit of both planes, whose first elements are at those positions.
fn store<'k>(out: Buf<'k>, at: [Val<'k>; 2], planes: &[Vec<Val<'k>>; 2]) {
    for (at, words) in at.into_iter().zip(planes) {
        out.store_vec(at / 2u32, words);
    }
}

/// Where a depth lies among 16 that are dealt: pairs go to the first eight and the last eight by turns, as the four
/// neighbours that a lane has of a row of A lie in its matrix.
fn dealt(depth: Val<'_>) -> Val<'_> {
    let within = depth % RUN;
    depth / RUN * RUN + within / 4u32 * 2u32 + (within / 2u32 % 2u32) * (RUN / 2) + within % 2u32
}

/// The same as [`store`] for a unit of depths that are dealt.
fn store_dealt<'k>(out: Buf<'k>, at: [Val<'k>; 2], planes: &[Vec<Val<'k>>; 2]) {
    for (at, words) in at.into_iter().zip(planes) {
        for (half, pairs) in [[words[0], words[2]], [words[1], words[3]]].iter().enumerate() {
            out.store_vec(at / 2u32 + half as u32 * (RUN / 4), pairs);
        }
    }
}

/// Units that an invocation has under way.
const AT_ONCE: u32 = 4;

/// Planes of a factor that lies along depths: a few invocations to a row, which they read twice.
fn by_rows(
    factor: &Factor,
    extent: &Extent,
    walk: &Walk,
    planes: &Planes,
    site: &mut Site<'_>,
) -> Result<(), String> {
    let group = site.group_size(256);
    let width = if extent.depths > 4096 { group } else { group.min(32) };
    let rows = planes.outer * extent.matrices;
    let k = site.builder("matmul_planes_rows", group);
    let l = Launch::new(&k);
    let (outer, depths) = (l.size("outer", extent.outer), l.size("depths", extent.depths));
    let (total, padded) = (l.size("rows", rows), l.size("padded", planes.depths));
    let (pitch, spread) = (l.size("pitch", planes.outer), l.f32("spread", spread(extent.depths)));
    let source = Neighbours::declare(&l, "x", factor, extent.lie, depths);
    let walker = walk.declare(&l, &[factor.operand.offset]);
    let out = l.bind("planes", Elem::U32, Access::Write, planes.memory);
    let scales = l.size("scales", planes.scales);

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
    k.for_(first, depths, step, |depth| {
        let starts = (0..AT_ONCE).map(|i| depth + i * width * UNIT);
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
        let by = vec![factor_of(scale); UNIT as usize];
        let start = row * (padded * 2u32);
        k.for_(first, padded, step, |depth| {
            let starts = (0..AT_ONCE).map(|i| depth + i * width * UNIT);
            let loads: Vec<_> = starts.map(|start| (start, source.load_filled(base, start))).collect();
            for (at, words) in loads {
                k.if_(at.lt(padded), || {
                    let halves = split(&words, &by);
                    if planes.dealt {
                        let high = start + doubled(dealt(at));
                        store_dealt(out, [high, high + RUN], &halves);
                    } else {
                        let high = start + doubled(at);
                        store(out, [high, high + RUN], &halves);
                    }
                });
            }
        });
    });
    let bound = l.done();
    let cost = (0, 8 * (rows * extent.depths) as u64);
    site.dispatch(k, bound, (rows.div_ceil(each as usize)) as u64, cost)
}

/// Invocations side by side on units of a line.
const ACROSS: u32 = 32;
/// Strips of depths that are measured, at most.
const STRIPS: usize = 16;
/// Depths to a workgroup that splits.
const LINES: u32 = 64;

/// Planes of a factor that lies along outer positions: strips of depths are measured first, then all is split.
fn by_columns(
    factor: &Factor,
    extent: &Extent,
    walk: &Walk,
    planes: &Planes,
    site: &mut Site<'_>,
) -> Result<(), String> {
    let strips = (extent.depths / 64).clamp(1, STRIPS);
    let strip = extent.depths.div_ceil(strips);
    let strips = extent.depths.div_ceil(strip);
    let each = strips * planes.outer * extent.matrices;
    let (measures, sums) = (site.scratch(4 * each as u64), site.scratch(4 * each as u64));
    let blocks = planes.outer.div_ceil((ACROSS * UNIT) as usize) * extent.matrices;
    let group = site.group_size(256);
    let down = group / ACROSS;
    let bytes = 4 * (extent.outer * extent.depths * extent.matrices) as u64;

    let k = site.builder("matmul_planes_measure", group);
    let l = Launch::new(&k);
    let columns = Columns::declare(&l, factor, extent, walk, planes);
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
        let end = (first + rows).min(columns.depths);
        k.for_(first + line, end, k.u32(AT_ONCE * down), |depth| {
            let depths = (0..AT_ONCE).map(|i| depth + i * down);
            let loads: Vec<_> = depths.map(|depth| (depth.lt(end), columns.load(&at, depth))).collect();
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
    site.dispatch(k, bound, (blocks * strips) as u64, (0, bytes))?;

    let rounds = planes.depths.div_ceil(LINES as usize);
    let k = site.builder("matmul_planes_columns", group);
    let l = Launch::new(&k);
    let columns = Columns::declare(&l, factor, extent, walk, planes);
    let (strips, blocks_of_all) = (l.size("strips", strips), l.size("blocks", blocks));
    let (total, padded) = (l.size("groups", blocks * rounds), l.size("padded", planes.depths));
    let measures = l.bind("measures", Elem::U32, Access::Read, measures);
    let (sums, spread) =
        (l.bind("sums", Elem::F32, Access::Read, sums), l.f32("spread", spread(extent.depths)));
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
        let by: Vec<Val<'_>> = (0..UNIT).map(|i| factor_of(found.load(unit * UNIT + i))).collect();
        let first = number * LINES + line;
        for depth in (0..LINES / down).map(|i| first + i * down) {
            let words = columns.load(&at, depth);
            let inside = depth.lt(columns.depths);
            let words: Vec<Val<'_>> = words.into_iter().map(|w| inside.select(w, k.u32(0))).collect();
            k.if_(depth.lt(padded) & at.column.lt(columns.pitch), || {
                let start = at.matrix * (padded * 2u32);
                let place = doubled(if planes.dealt { dealt(depth) } else { depth });
                let high = (start + place) * columns.pitch + at.column;
                store(out, [high, high + columns.pitch * RUN], &split(&words, &by));
            });
        }
    });
    let bound = l.done();
    site.dispatch(k, bound, (blocks * rounds) as u64, (0, 2 * bytes))
}

/// A factor's columns in blocks of a workgroup's width.
struct Columns<'k> {
    source: Neighbours<'k>,
    walker: Walker<'k>,
    depths: Val<'k>,
    /// Columns of a matrix of planes.
    pitch: Val<'k>,
    matrices: Val<'k>,
}

/// A workgroup's block, and the unit of an invocation.
struct Block<'k> {
    matrix: Val<'k>,
    /// The block's first column.
    first: Val<'k>,
    /// The unit's first column.
    column: Val<'k>,
    /// Where the matrix begins.
    base: Val<'k>,
}

impl<'k> Columns<'k> {
    fn declare(l: &Launch<'k>, factor: &Factor, extent: &Extent, walk: &Walk, planes: &Planes) -> Self {
        let columns = l.size("columns", extent.outer);
        Columns {
            source: Neighbours::declare(l, "x", factor, extent.lie, columns),
            walker: walk.declare(l, &[factor.operand.offset]),
            depths: l.size("depths", extent.depths),
            pitch: l.size("pitch", planes.outer),
            matrices: l.size("matrices", extent.matrices),
        }
    }

    /// An invocation's unit at a depth; depths past the last repeat it.
    fn load(&self, at: &Block<'k>, depth: Val<'k>) -> Vec<Val<'k>> {
        self.source.load(at.base + depth.min(self.depths - 1u32) * self.source.line, at.column)
    }

    fn at(&self, block: Val<'k>) -> Block<'k> {
        let k = block.builder();
        let wide = ACROSS * UNIT;
        let across = (self.pitch + (wide - 1)) / wide;
        let matrix = block / across;
        let first = (block - matrix * across) * wide;
        Block {
            matrix,
            first,
            column: first + k.local_index() % ACROSS * UNIT,
            base: self.walker.at(matrix)[0],
        }
    }
}
