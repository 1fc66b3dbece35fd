//! Few rows by a packed weight, bound by the speed at which the weight is read.
//!
//! A workgroup has some rows of the weight. Its clusters of invocations divide K among them. An invocation loads its part
//! of x once and keeps it in registers while it goes through the rows: what is read again and again is the weight
//! alone. Totals of the clusters meet in workgroup memory.
//!
//! Where the device has integer dot products, x is made integers first: by each workgroup, in its memory, or where that has no room by
//! one dispatch for all of them: see `quantize`. The first rows of the weight are on their way by then, and the next ones while rows are
//! multiplied. A norm before the matmul is computed on the way to the integers: see `norm`. Several matmuls of one x are one dispatch: see
//! `dispatch`.

mod cut;
mod dispatch;
mod norm;
mod quantize;
mod x;

use olivine_kernel::{Builder, Reduction, Shared, Val, Var};

use crate::math;
use crate::matmul::problem::Problem;
use crate::packed::pool::Pool;
use crate::packed::weight::{DeclaredWeight, Loaded};
use quantize::{DigitLayout, XSource};
use x::{XReader, XRow, XRun};

pub(crate) use cut::{GemvCut, candidates, choose, digits};
pub(crate) use dispatch::{Part, emit, fits_together};
pub(crate) use norm::RowNorm;
pub(crate) use quantize::RunShape;

/// The name of the family in records.
pub(crate) const FAMILY: &str = "dequant_gemv";

/// What a workgroup reads.
struct Gemv<'k> {
    k: &'k Builder,
    /// The weight, and the one whose rows are multiplied beside its own.
    weights: Vec<DeclaredWeight<'k>>,
    x: XReader<'k>,
    cut: GemvCut,
    /// Totals of the clusters.
    sums: Shared<'k>,
    /// Floats of x on their way to registers.
    staging: Option<Shared<'k>>,
    line: Val<'k>,
    cluster: Val<'k>,
    /// Whether totals are complete after one round.
    once: bool,
    /// Whether rows of the weight are loaded before they are needed.
    loads_ahead: bool,
}

/// The rows of the weight that a workgroup has.
struct WeightRows<'k> {
    /// The first of its matrix.
    matrix: Val<'k>,
    /// The first of the workgroup in the matrix.
    first: Val<'k>,
    /// Rows of the matrix.
    n: Val<'k>,
}

impl<'k> WeightRows<'k> {
    /// The number of a row; past the last, that of the last.
    fn number(&self, column: Val<'k>) -> Val<'k> {
        self.matrix + (self.first + column).min(self.n - 1u32)
    }
}

/// The rows of x that a workgroup has.
struct XRows<'k> {
    batch: Val<'k>,
    /// The first element of the batch.
    start: Val<'k>,
    /// The first row in the batch.
    first: Val<'k>,
    m: Val<'k>,
    outer: Val<'k>,
}

impl<'k> XRows<'k> {
    /// The number of a row in its batch; past the last, that of the last.
    fn number(&self, r: Val<'k>) -> Val<'k> {
        (self.first + r).min(self.m - 1u32)
    }

    /// The first element of a row.
    fn element(&self, r: Val<'k>) -> Val<'k> {
        self.start + self.number(r) * self.outer
    }
}

impl<'k> Gemv<'k> {
    /// Goes through all of K for all rows; sums of clusters are in workgroup memory after the next barrier.
    fn multiply(
        &mut self,
        rows: &WeightRows<'k>,
        x: &XRows<'k>,
        (own, pool): (Option<(DigitLayout, XSource<'k>)>, &Pool<'k>),
        chunks: Val<'k>,
    ) {
        let k = self.k;
        let stages = own.is_some();
        let stage = |gemv: &mut Self| {
            let Some((layout, source)) = &own else { return };
            let first = |r: Val<'k>| x.element(r);
            gemv.x.digits = Some(layout.stage(source, gemv.cut.rows, first, (gemv.x.groups.0, pool)));
            k.barrier();
        };
        let first = |gemv: &Self, places: &[(Val<'k>, Val<'k>)]| {
            gemv.loads_ahead.then(|| gemv.load(rows, gemv.line * gemv.cut.unroll, places))
        };
        if self.once {
            let places = self.places(self.cluster);
            let first = first(self, &places);
            stage(self);
            return self.round(rows, (x, stages), k.u32(0), &places, first);
        }
        stage(self);
        // All clusters go round as often, those without a chunk by zeros.
        k.for_(k.u32(0), chunks, k.u32(self.cut.clusters), |number| {
            let places = self.places(number + self.cluster);
            let first = first(self, &places);
            self.round(rows, (x, stages), number, &places, first);
        });
    }

    /// Multiplies the chunks of all clusters, from one on, for all rows. `first` is what was loaded of the weight for the first, where
    /// rows are loaded ahead.
    fn round(
        &self,
        rows: &WeightRows<'k>,
        (x, staged): (&XRows<'k>, bool),
        round: Val<'k>,
        places: &[(Val<'k>, Val<'k>)],
        first: Option<Vec<Val<'k>>>,
    ) {
        let GemvCut { rows: x_rows, run, unroll, span, clusters, lines, .. } = self.cut;
        let k = self.k;
        let matrices = self.weights.len() as u32;
        let row_at = |r: u32| {
            let r = k.u32(r);
            let number = if staged { r } else { x.batch * x.m + x.number(r) };
            XRow { number, first: x.element(r) }
        };
        // By rows of x, then by runs.
        let held: Vec<Vec<XRun<'k>>> = (0..x_rows)
            .map(|r| self.x.hold(self.staging, row_at(r), (round, self.cluster), places))
            .collect();
        let loaded: Vec<Var<'k>> = first.iter().flatten().map(|word| k.var(*word)).collect();
        let step = lines * unroll;
        k.for_(self.line * unroll, k.u32(span), k.u32(step), |column| {
            let words: Vec<Val<'k>> = match first.is_some() {
                true => loaded.iter().map(|word| word.get()).collect(),
                false => self.load(rows, column, places),
            };
            if first.is_some() && span > step {
                // The next rows are on their way while these are multiplied.
                k.if_((column + step).lt(span), || {
                    let next = self.load(rows, column + step, places);
                    loaded.iter().zip(next).for_each(|(word, next)| word.set(next));
                });
            }
            let mut words = words.chunks(words.len() / ((unroll * matrices) as usize * places.len()));
            let mut totals = Vec::new();
            for (u, weight) in (0..unroll).flat_map(|u| self.weights.iter().map(move |weight| (u, weight))) {
                let row = rows.number(column + u);
                let mut of_row = vec![k.f32(0.0); x_rows as usize];
                for (i, ((at, _), words)) in places.iter().zip(words.by_ref()).enumerate() {
                    let loaded = Loaded(words.to_vec());
                    let groups = weight.decode(&loaded, (weight.row(row), row), *at, run);
                    for (total, held) in of_row.iter_mut().zip(&held) {
                        *total = held[i].dot(&groups, *total);
                    }
                }
                totals.extend(of_row);
            }
            self.reduce(totals, |i, total| {
                let to = (column * (matrices * x_rows) + i) * clusters + self.cluster;
                self.sums.store(to, if self.once { total } else { self.sums.load(to) + total });
            });
        });
    }

    /// Loads an invocation's runs of some rows from `column` on.
    fn load(&self, rows: &WeightRows<'k>, column: Val<'k>, places: &[(Val<'k>, Val<'k>)]) -> Vec<Val<'k>> {
        let mut words = Vec::new();
        for u in 0..self.cut.unroll {
            for weight in &self.weights {
                let row = weight.row(rows.number(column + u));
                for (at, _) in places {
                    words.extend(weight.load(row, *at, self.cut.run).0);
                }
            }
        }
        words
    }

    /// The first element of an invocation's runs in a chunk, moved back to the last run where there is none.
    fn places(&self, chunk: Val<'k>) -> Vec<(Val<'k>, Val<'k>)> {
        let GemvCut { run, runs, width, .. } = self.cut;
        let last = (self.x.k_size - 1u32) / run;
        let place = |i: u32| {
            let number = (chunk * runs + i) * width + self.x.lane;
            (self.x.shape.first(number.min(last)), number.le(last))
        };
        (0..runs).map(place).collect()
    }

    /// The totals of a cluster, each passed to `put` with its number by one invocation.
    fn reduce(&self, mut totals: Vec<Val<'k>>, put: impl Fn(Val<'k>, Val<'k>)) {
        let (k, width, lane) = (self.k, self.cut.width, self.x.lane);
        let count = totals.len() as u32;
        let exchanged = k.target().subgroup.is_some_and(|s| s >= width) && count <= width;
        if !exchanged {
            let all: Vec<Val<'k>> =
                totals.iter().map(|t| k.cluster_reduce(width, *t, Reduction::Add)).collect();
            k.if_(lane.eq(0u32), || {
                (0u32..).zip(&all).for_each(|(i, total)| put(k.u32(i), *total));
            });
            return;
        }
        // Half of the lanes take over one half of the totals, half of those one half of the rest, and so on.
        let mut step = width / 2;
        while totals.len() > 1 {
            let upper = (lane & step).ne(0u32);
            let (low, high) = totals.split_at(totals.len() / 2);
            totals = (low.iter().zip(high))
                .map(|(a, b)| upper.select(*b, *a) + upper.select(*a, *b).shuffle_xor(step))
                .collect();
            step /= 2;
        }
        let mut total = totals[0];
        while step > 0 {
            total = total + total.shuffle_xor(step);
            step /= 2;
        }
        let each = width / count;
        k.if_((lane % each).eq(0u32), || put(lane / each, total));
    }
}

/// Neighbours of x that one load may take: x is contiguous along K.
pub(in crate::packed) fn vector_lanes(problem: &Problem<'_>, run: u32) -> u32 {
    if !problem.k.is_multiple_of(run) {
        return 1;
    }
    let batch = &problem.batch.strides[0];
    let mut steps = batch.iter().chain([&problem.a.outer]);
    let aligned = steps.all(|stride| stride.is_multiple_of(4)) && problem.a.operand.offset.is_multiple_of(4);
    if aligned && math::elem(problem.dtype()).size() <= 4 { 4 } else { 1 }
}
