//! A dispatch of matmuls with packed weights, one or several of the same x.
//!
//! ```text
//!   workgroups   0 .. a     a .. b    b .. c
//!   work         rows of q  rows of k  rows of v      each its own code: formats, sizes and epilogues may differ
//! ```
//! All read the whole of x, and make its digits for themselves. What waits for none of the others need not be a dispatch of its own.

use olivine_ir::Dim;
use olivine_kernel::{Elem, Target, Val};
use olivine_program::{Addressing, DeviceCaps};

use super::norm::RowNorm;
use super::quantize::{DeclaredDigits, DigitLayout, RunShape, XSource};
use super::x::XReader;
use super::{Gemv, GemvCut, WeightRows, XRows, vector_lanes};
use crate::launch::Launch;
use crate::matmul::epilogue::{BatchOffset, Destination, Epilogue};
use crate::matmul::grouped::experts;
use crate::matmul::problem::Problem;
use crate::packed::pool::Pool;
use crate::packed::weight::{DeclaredWeight, SMALL_TABLE, Weight};
use crate::site::{Memory, Site, linear_group};
use crate::walk::Walker;

/// A matmul of a dispatch: batches of at most some rows, or single rows with experts.
#[derive(Clone)]
pub(crate) struct Part<'p> {
    pub(crate) problem: Problem<'p>,
    pub(crate) weight: Weight,
    /// A weight whose columns and those of the other take turns.
    pub(crate) twin: Option<Weight>,
    pub(crate) cut: GemvCut,
}

impl Part<'_> {
    fn matrices(&self) -> u32 {
        1 + u32::from(self.twin.is_some())
    }

    /// Columns of the result.
    fn columns(&self) -> usize {
        self.problem.columns() / self.matrices() as usize
    }

    /// Workgroups to a row of them.
    fn across(&self) -> usize {
        self.columns().div_ceil(self.cut.span as usize)
    }

    fn groups(&self) -> Dim {
        self.problem.m.div_ceil(self.cut.rows) * (self.across() * self.problem.batch_count())
    }

    fn chunks(&self) -> usize {
        self.problem.k_number().div_ceil(self.cut.chunk() as usize)
    }

    /// Whether sums are complete after one round.
    fn once(&self) -> bool {
        self.chunks() <= self.cut.clusters as usize
    }

    fn layout(&self) -> Option<DigitLayout> {
        (self.cut.digits > 0).then(|| DigitLayout::new(&self.problem, &self.weight, self.cut))
    }

    /// Whether every workgroup makes the digits of x.
    pub(crate) fn makes_digits(&self, target: &Target) -> bool {
        self.cut.makes_digits(&self.weight, self.problem.k_number(), target)
    }

    /// Totals of the clusters.
    fn sums(&self) -> u32 {
        self.cut.span * self.matrices() * self.cut.rows * self.cut.clusters
    }

    /// Bytes of workgroup memory that the digits of x take.
    fn staged_bytes(&self, target: &Target) -> usize {
        let layout = self.layout().filter(|_| self.makes_digits(target));
        layout.map_or(0, |layout| layout.staged_bytes(self.cut.rows))
    }

    /// The same of floats of x on their way to registers, at most.
    fn float_bytes(&self, target: &Target) -> usize {
        if self.cut.digits > 0 { 0 } else { target.shared_bytes as usize / 2 }
    }

    /// Buffers that it binds beside x.
    fn buffers(&self, target: &Target) -> usize {
        let digits = usize::from(self.cut.digits > 0 && !self.makes_digits(target));
        let experts = usize::from(self.problem.experts.is_some());
        let weights = self.weight.buffers() + usize::from(self.twin.is_some());
        weights + digits + experts + 1 + self.problem.extras.len()
    }

    fn cost(&self) -> (Dim, Dim) {
        let p = &self.problem;
        let read = self.weight.bytes() * self.matrices() / experts_read(p);
        (2 * p.m * p.n * p.k * p.batches(), read + crate::launch::bytes(&p.target.ty))
    }
}

/// Whether one dispatch can compute all parts, which have the same x, after a norm if one is given.
pub(crate) fn fits_together(parts: &[Part<'_>], norm: Option<&RowNorm>, caps: &DeviceCaps) -> bool {
    let (Some(first), target) = (parts.first(), &caps.target) else { return false };
    let of = |part: &Part<'_>| (part.cut.group(), part.cut.rows, part.cut.digits, part.makes_digits(target));
    let alike = parts.iter().all(|part| of(part) == of(first) && part.problem.experts.is_none());
    let buffers = 1 + norm.map_or(0, RowNorm::buffers);
    let buffers = buffers + parts.iter().map(|part| part.buffers(target)).sum::<usize>();
    let bound = match caps.addressing {
        Addressing::Pointers => true,
        Addressing::Bindings { max_count, .. } => buffers <= max_count as usize,
    };
    let free = room(parts, 0, target) as u32;
    // Reductions need a little as well.
    alike && bound && free >= target.shared_bytes / 16
}

/// Emits a dispatch of matmuls of one x for which [`fits_together`] holds; one alone may be any.
pub(crate) fn emit(parts: &[Part<'_>], norm: Option<&RowNorm>, site: &mut Site<'_>) -> Result<(), String> {
    let Some(first) = parts.first() else { return Ok(()) };
    let group = first.cut.group();
    if parts.iter().any(|part| part.cut.group() != group) {
        return Err("matmuls of one dispatch with workgroups of different sizes".into());
    }
    let mut ready: Vec<(String, Memory)> = Vec::new();
    let mut digits = Vec::with_capacity(parts.len());
    for part in parts {
        digits.push(match part.layout().filter(|_| !part.makes_digits(&site.caps.target)) {
            None => None,
            Some(layout) => {
                let how = format!("{layout:?}");
                let known = ready.iter().find(|(of, _)| *of == how).map(|(_, memory)| *memory);
                let memory = match known {
                    Some(memory) => memory,
                    None => layout.make(&part.problem, site)?,
                };
                ready.push((how, memory));
                Some((layout, memory))
            }
        });
    }
    let name = norm.map_or("dequant_gemv".into(), |norm| format!("{}_gemv", norm.name()));
    let k = site.builder(&name, group);
    let l = Launch::new(&k);
    let pool = Pool::new(&k);
    let problem = &first.problem;
    let x = l.read("x", &problem.a.operand);
    let k_size = l.size("k", problem.k);
    let x = X {
        source: XSource { x, k_size, lanes: 1, norm: norm.map(|norm| norm.declare(&l, k_size)) },
        m: l.size("m", problem.m),
        outer: l.stride("x_row", problem.a.outer),
    };
    let id = linear_group(&k);
    let (mut groups, mut cost) = (Dim::ZERO, (Dim::ZERO, Dim::ZERO));
    for (part, digits) in parts.iter().zip(digits) {
        let declared = DeclaredPart::new(part, digits, &l);
        // Totals of a norm need a little as well.
        let kept = if norm.is_some() { site.caps.target.shared_bytes as usize / 16 } else { 0 };
        let room = room(parts, part.weight.entry_words(), &site.caps.target).saturating_sub(kept);
        let count = part.groups();
        if parts.len() == 1 {
            let total = l.size("groups", count);
            declared.run(id.min(total - 1u32), id.lt(total), &x, (&pool, room));
        } else {
            let (from, to) = (l.size("first", groups), l.size("end", groups + count));
            k.if_(id.ge(from) & id.lt(to), || declared.run(id - from, k.bool(true), &x, (&pool, room)));
        }
        pool.release();
        groups += count;
        let (flops, moved) = part.cost();
        cost = (cost.0 + flops, cost.1 + moved);
    }
    let bound = l.done();
    site.dispatch(k, bound, groups, cost)
}

/// Bytes of workgroup memory that sums, digits and tables leave, but for tables with entries of so many words.
fn room(parts: &[Part<'_>], without: u32, target: &Target) -> usize {
    let most = |of: &dyn Fn(&Part<'_>) -> usize| parts.iter().map(of).max().unwrap_or(0);
    let tables = |entry: u32| match entry == without {
        true => 0,
        false => most(&|part| match part.weight.entry_words() == entry {
            true => 4 * part.weight.table_words() as usize,
            false => 0,
        }),
    };
    let floats = most(&|part| part.float_bytes(target));
    let used = most(&|part| 4 * part.sums() as usize) + most(&|part| part.staged_bytes(target));
    (target.shared_bytes as usize).saturating_sub(used + floats + tables(1) + tables(2))
}

/// What all parts read.
struct X<'k> {
    source: XSource<'k>,
    m: Val<'k>,
    outer: Val<'k>,
}

/// A part, declared to a kernel.
struct DeclaredPart<'k, 'p> {
    part: &'p Part<'p>,
    weight: DeclaredWeight<'k>,
    twin: Option<DeclaredWeight<'k>>,
    digits: Option<DeclaredDigits<'k>>,
    n: Val<'k>,
    across: Val<'k>,
    chunks: Val<'k>,
    passes: Val<'k>,
    epilogue: Epilogue<'k, 'p>,
    walker: Walker<'k>,
    experts: Option<experts::Ids<'k>>,
}

impl<'k, 'p> DeclaredPart<'k, 'p> {
    /// Declares a part; `digits` are those of x, if they were made before.
    fn new(part: &'p Part<'p>, digits: Option<(DigitLayout, Memory)>, l: &Launch<'k>) -> Self {
        let problem = &part.problem;
        let weight = part.weight.declare(l);
        let n = l.size("n", part.columns());
        let (across, chunks) = (l.size("across", part.across()), l.size("chunks", part.chunks()));
        let passes = l.size("passes", problem.m.div_ceil(part.cut.rows));
        let group = weight.groups(part.cut.run).0;
        DeclaredPart {
            part,
            n,
            across,
            chunks,
            passes,
            epilogue: Epilogue::declare(l, problem, &Destination::Target, n * part.matrices()),
            walker: problem.batch.declare(l, &problem.offsets()),
            experts: problem.experts.as_ref().map(|experts| experts::Ids::declare(l, experts)),
            digits: digits.map(|(layout, memory)| layout.declare(l, memory, group)),
            twin: part.twin.as_ref().map(|twin| weight.for_twin(l, twin)),
            weight,
        }
    }

    /// What a workgroup does; numbers past the last repeat it and are not live.
    fn run(self, number: Val<'k>, live: Val<'k>, all: &X<'k>, (pool, room): (&Pool<'k>, usize)) {
        let (part, k) = (self.part, number.builder());
        let (problem, weight) = (&part.problem, &part.weight);
        let GemvCut { rows, run, span, clusters, width, lines, .. } = part.cut;
        let XSource { x, k_size, norm, .. } = all.source;
        let (n, m, matrices) = (self.n, all.m, part.matrices());
        let (group, count) = (k.group(), part.sums());
        let sums = pool.take("sums", Elem::F32, 1, count);
        let me = k.local_index();
        let cluster = me / width;
        let (line, cluster) = match lines {
            1 => (k.u32(0), cluster),
            _ => (cluster / clusters, cluster % clusters),
        };
        let shape = RunShape::new(run, weight.is_strided(run));
        let makes_digits = part.makes_digits(k.target());
        let mut declared = self.weight;
        let copies = table_copies(weight, room, part.cut.digits > 0, k.target());
        declared.share_table(k, pool, weight.table_words(), copies);
        let twin = self.twin.map(|twin| twin.with_table_of(&declared));
        let mut gemv = Gemv {
            k,
            x: XReader {
                k,
                x,
                cut: part.cut,
                shape,
                k_size,
                lanes: vector_lanes(problem, run),
                whole: problem.k.is_multiple_of(run * shape.turns()),
                lane: me % width,
                groups: declared.groups(run),
                digits: self.digits,
            },
            weights: [declared].into_iter().chain(twin).collect(),
            cut: part.cut,
            sums,
            staging: None,
            line,
            cluster,
            once: part.once(),
            loads_ahead: part.cut.loads_ahead(weight),
        };
        gemv.staging = gemv.x.staging(pool);
        let rest = number / self.across;
        let first_column = (number - rest * self.across) * span;
        let (batch, pass) = (rest / self.passes, rest % self.passes);
        let first_row = pass * rows;
        let at = self.walker.at(batch);
        let expert = self.experts.as_ref().map(|ids| {
            k.if_(me.eq(0u32), || ids.check(k, batch));
            ids.at(k, batch)
        });
        let matrix = expert.map_or(k.u32(0), |(expert, _)| expert * n);
        let weight_rows = WeightRows { matrix, first: first_column, n };
        if !gemv.once {
            k.for_(me, k.u32(count), k.u32(group), |i| sums.store(i, k.f32(0.0)));
            k.barrier();
        }
        let x_rows = XRows { batch, start: at[0], first: first_row, m, outer: all.outer };
        let own = part.layout().filter(|_| makes_digits);
        let own = own
            .map(|layout| (layout, XSource { x, k_size, lanes: vector_lanes(problem, layout.unit()), norm }));
        gemv.multiply(&weight_rows, &x_rows, (own, pool), self.chunks);
        k.barrier();
        let base = BatchOffset { out: batch * m * n, extras: at[2..].to_vec() };
        k.for_(me, k.u32(span * rows), k.u32(group), |i| {
            let (r, column) = (i / span, i % span);
            let row = first_row + r;
            k.if_(live & row.lt(m) & (first_column + column).lt(n), || {
                let sum_of = |matrix: u32| {
                    let from = ((column * matrices + matrix) * rows + r) * clusters;
                    let sum = (1..clusters).fold(sums.load(from), |sum, c| sum + sums.load(from + c));
                    // Rows without an expert are zeros.
                    expert.map_or(sum, |(_, known)| known.select(sum, k.f32(0.0)))
                };
                let of_column: Vec<Val<'_>> = (0..matrices).map(sum_of).collect();
                self.epilogue.store(&base, row, (first_column + column) * matrices, &of_column);
            });
        });
    }
}

/// How many copies of a small table so many bytes have room for; 1 of others.
fn table_copies(weight: &Weight, room: usize, digits: bool, target: &Target) -> u32 {
    let apt = digits && weight.table_words() == SMALL_TABLE && target.subgroup.is_some_and(|s| s >= 16);
    let room = room as u32 / (4 * SMALL_TABLE);
    if apt && room > 1 { 1 << room.min(32).ilog2() } else { 1 }
}

/// How many matrices there are to one that a matmul reads at least.
fn experts_read(problem: &Problem<'_>) -> u64 {
    problem.experts.as_ref().map_or(1, |e| (e.count / problem.batch_count().max(1)).max(1) as u64)
}
