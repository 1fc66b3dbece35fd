//! The tile kernel: a workgroup's queries against the keys they may see.
//!
//! ```text
//!   for each tile of keys:   q, k staged by chunks → scores in registers → masked → row maxima
//!                            weights = 2^(score − maximum), to workgroup memory
//!                            v staged by slabs → accumulators in registers
//!   then, per row:           accumulators / sum of weights, or both kept apart for the combining dispatch
//! ```

use olivine_ir::Dim;
use olivine_kernel::{AtomicOp, Buf, Builder, Elem, Reduction, Shared, Val, Var};

use super::args::{AttentionArgs, AttentionTarget, DeclaredAttentionTarget, WorkgroupCoord};
use super::problem::Problem;
use super::rows::{HeadStart, Rows};
use super::softmax::{base, exp2_below, lowest, normaliser};
use super::tile::{GROUP, Tile, fours};
use super::visible::{Range, Row};
use crate::launch::Launch;
use crate::math;
use crate::site::{Site, linear_group};

/// Emits the tile kernel.
pub(super) fn emit(
    p: &Problem<'_>,
    t: &Tile,
    sink: &AttentionTarget,
    site: &mut Site<'_>,
) -> Result<(), String> {
    let splits = sink.splits();
    let tiles = p.rows().div_ceil(t.rows());
    let name = if splits.is_some() { "attention_split" } else { "attention" };
    let k = site.builder(name, GROUP);
    let l = Launch::new(&k);
    let kernel = Kernel::declare(&l, p, *t, sink);
    let groups = p.batch * p.kv_heads * tiles * splits.unwrap_or(Dim::ONE);
    let (count, tiles) = (l.size("groups", groups), l.size("tiles", tiles));
    let splits = splits.map_or_else(|| k.u32(1), |splits| l.size("splits", splits));
    let kv_heads = l.size("kv_heads", p.kv_heads);

    let number = linear_group(&k);
    k.if_(number.lt(count), || {
        kernel.run(&WorkgroupCoord::of(number, tiles, splits, kv_heads));
    });
    let bound = l.done();
    site.dispatch(k, bound, groups, p.cost())
}

struct Kernel<'k, 'p> {
    k: &'k Builder,
    p: &'p Problem<'p>,
    t: Tile,
    q: Rows<'k>,
    keys: Rows<'k>,
    values: Rows<'k>,
    args: AttentionArgs<'k, 'p>,
    /// q and k, then v.
    stage: Shared<'k>,
    weights: Shared<'k>,
    maxima: Option<Shared<'k>>,
    /// Whether a staged value is not finite: then a weight of 0 must skip it.
    wild: Option<Shared<'k>>,
    /// This invocation's row and column in the grid.
    row: Val<'k>,
    column: Val<'k>,
}

impl<'k, 'p> Kernel<'k, 'p> {
    fn declare(l: &Launch<'k>, p: &'p Problem<'p>, t: Tile, sink: &AttentionTarget) -> Self {
        let k = l.k();
        let layout = p.op.layout;
        let elem = math::elem(p.partial());
        let pages = p.page_table(l);
        Kernel {
            k,
            p,
            t,
            q: Rows::read(l, "q", layout, &p.q, None),
            keys: Rows::read(l, "k", layout, &p.k, pages),
            values: Rows::read(l, "v", layout, &p.v, pages),
            args: AttentionArgs::declare(l, p, sink),
            stage: k.shared(elem, 4, t.stage_len(p.value_dim)),
            weights: k.shared(elem, t.rows_each as u8, t.keys() * t.weight_stride()),
            maxima: (!t.shuffle).then(|| k.shared(elem, 1, t.rows() * t.columns)),
            wild: p.masks_elements().then(|| k.shared(Elem::U32, 1, 1)),
            row: k.local_index() / t.columns,
            column: k.local_index() % t.columns,
        }
    }

    fn number(&self, x: f64) -> Val<'k> {
        self.k.number(self.p.scalar, x)
    }

    /// A workgroup's whole work.
    fn run(&self, place: &WorkgroupCoord<'k>) {
        let (t, length) = (self.t, self.args.length(place));
        let first_row = place.tile * t.rows();
        self.args
            .with_range(place, t.key_tiles(), length, |range| self.walk(place, first_row, length, &range));
    }

    /// The work on a range of keys.
    fn walk(&self, place: &WorkgroupCoord<'k>, first_row: Val<'k>, length: Val<'k>, range: &Range<'k>) {
        let (k, t) = (self.k, self.t);
        let (begin, end) = (range.begin, range.end);
        let mine: Vec<Row<'k>> = (0..t.rows_each)
            .map(|i| {
                let row = self.args.row_at(place, first_row + self.row * t.rows_each + i, length);
                Row { end: row.end.min(end), ..row }
            })
            .collect();
        let state = self.state();
        let staged = self.staged_queries(place, first_row);
        let starts =
            (self.keys.start(place.batch, place.kv_head), self.values.start(place.batch, place.kv_head));
        k.for_(begin, end, k.u32(t.keys()), |key| {
            let scores = self.scores(&staged, starts.0, key, end);
            // Where every row sees every key of the tile nothing is masked.
            let all = range.all_seen(key, t.keys());
            let scores = self.masked(place, &mine, key, end, all, &scores);
            self.weigh(&state, &scores);
            self.accumulate(&state, starts.1, key, end);
        });
        self.finish(place, range, &mine, &state);
    }

    /// Where the elements of q that this invocation stages begin, in the order of [`Kernel::each_staged`].
    fn staged_queries(&self, place: &WorkgroupCoord<'k>, first_row: Val<'k>) -> Vec<Val<'k>> {
        let mut starts = Vec::new();
        let slots = (self.t.rows() * self.t.chunk).div_ceil(GROUP);
        for i in 0..slots {
            let row = (self.k.local_index() + i * GROUP) / self.t.chunk;
            let known = (first_row + row).min(self.args.rows - 1);
            let head = place.kv_head * self.args.group + known % self.args.group;
            starts.push(self.q.row(self.q.start(place.batch, head), known / self.args.group));
        }
        starts
    }

    /// Calls `stage` for this invocation's share of `rows` times `width` staged groups, with row and group.
    fn each_staged(&self, rows: u32, width: u32, stage: impl Fn(usize, Val<'k>, Val<'k>)) {
        let all = rows * width;
        for i in 0..all.div_ceil(GROUP) {
            let at = self.k.local_index() + i * GROUP;
            let one = || stage(i as usize, at / width, at % width);
            if (i + 1) * GROUP <= all { one() } else { self.k.if_(at.lt(all), one) }
        }
    }

    /// The same in a loop where kernels are to be short.
    fn each_staged_again(&self, rows: u32, width: u32, stage: impl Fn(Val<'k>, Val<'k>)) {
        let (k, all) = (self.k, rows * width);
        if self.t.unroll > 1 || all <= GROUP {
            return self.each_staged(rows, width, |_, row, group| stage(row, group));
        }
        k.for_(k.local_index(), k.u32(all), k.u32(GROUP), |at| stage(at / width, at % width));
    }

    /// The dot products of this invocation's rows and keys, not yet scaled.
    fn scores(
        &self,
        queries: &[Val<'k>],
        keys: HeadStart<'k>,
        key: Val<'k>,
        end: Val<'k>,
    ) -> Vec<Vec<Val<'k>>> {
        let (k, t) = (self.k, self.t);
        let zero = self.number(0.0);
        let sums: Vec<Vec<Var<'k>>> =
            (0..t.rows_each).map(|_| (0..t.keys_each).map(|_| k.var(zero)).collect()).collect();
        let chunks = fours(self.p.dim).div_ceil(t.chunk);
        let groups = chunks * t.chunk;
        let stride = t.stage_stride();
        let one_chunk = |chunk: Val<'k>| {
            let first = chunk * t.chunk;
            // All invocations have read what was staged before.
            k.barrier();
            if let Some(wild) = self.wild {
                k.if_(k.local_index().eq(0), || wild.store(k.u32(0), k.u32(0)));
            }
            self.each_staged(t.rows(), t.chunk, |i, row, group| {
                let four = self.q.four(queries[i], first + group, groups);
                self.stage.store_vec(row * stride + group, &four);
            });
            self.each_staged_again(t.keys(), t.chunk, |row, group| {
                // Keys past the end repeat the last one: their scores are masked.
                let at = self.keys.row(keys, (key + row).min(end - 1));
                let four = self.keys.four(at, first + group, groups);
                self.stage.store_vec((row + t.rows()) * stride + group, &four);
            });
            k.barrier();
            let rows: Vec<Val<'k>> =
                (0..t.rows_each).map(|i| (self.row * t.rows_each + i) * stride).collect();
            let columns: Vec<Val<'k>> =
                (0..t.keys_each).map(|n| (self.column + n * t.columns + t.rows()) * stride).collect();
            let unroll = if t.chunk.is_multiple_of(t.unroll) { t.unroll } else { 1 };
            k.for_(k.u32(0), k.u32(t.chunk), k.u32(unroll), |group| {
                for u in 0..unroll {
                    let load = |at: &Val<'k>| self.stage.load_vec(*at + group + u);
                    let (q, keys): (Vec<_>, Vec<_>) =
                        (rows.iter().map(load).collect(), columns.iter().map(load).collect());
                    for (q, sums) in q.iter().zip(&sums) {
                        for (key, sum) in keys.iter().zip(sums) {
                            sum.set(q.iter().zip(key).fold(sum.get(), |sum, (a, b)| a.fma(*b, sum)));
                        }
                    }
                }
            });
        };
        if chunks == 1 {
            one_chunk(k.u32(0))
        } else {
            k.for_(k.u32(0), k.u32(chunks), k.u32(1), one_chunk)
        }
        sums.iter().map(|row| row.iter().map(|s| s.get()).collect()).collect()
    }

    /// Scores as exponents of two: scaled, capped, biased and masked.
    fn masked(
        &self,
        place: &WorkgroupCoord<'k>,
        rows: &[Row<'k>],
        key: Val<'k>,
        end: Val<'k>,
        all: Val<'k>,
        products: &[Vec<Val<'k>>],
    ) -> Vec<Vec<Var<'k>>> {
        let (k, t) = (self.k, self.t);
        let key_of = |n: usize| key + self.column + n as u32 * t.columns;
        let mut scores: Vec<Vec<Var<'k>>> = Vec::with_capacity(rows.len());
        for (row, products) in rows.iter().zip(products) {
            let mask_row = self.args.mask_row(place, row);
            let score = |(n, product): (usize, &Val<'k>)| {
                k.var(self.args.score(*product, mask_row, key_of(n).min(end - 1)))
            };
            scores.push(products.iter().enumerate().map(score).collect());
        }
        k.if_(!all, || {
            for (row, scores) in rows.iter().zip(&scores) {
                for (n, score) in scores.iter().enumerate() {
                    score.set(self.args.seen(score.get(), row, key_of(n)));
                }
            }
        });
        scores
    }

    /// Maximum, sum and accumulators of this invocation's rows. The maximum is that of the whole row; the sum is over
    /// this invocation's keys only until the end.
    fn state(&self) -> Vec<State<'k>> {
        let zero = self.number(0.0);
        let each = fours(self.p.value_dim).div_ceil(self.t.columns) * 4;
        let state = |_| State {
            maximum: self.k.var(self.number(lowest(self.p.scalar))),
            sum: self.k.var(zero),
            values: (0..each).map(|_| self.k.var(zero)).collect(),
        };
        (0..self.t.rows_each).map(state).collect()
    }

    /// Turns scores into weights relative to the rows' new maxima, visible to all after the next barrier, and
    /// rescales the accumulators.
    fn weigh(&self, state: &[State<'k>], scores: &[Vec<Var<'k>>]) {
        let t = self.t;
        let best =
            |row: &Vec<Var<'k>>| row.iter().skip(1).fold(row[0].get(), |best, score| best.max(score.get()));
        let tops = self.over_row(&scores.iter().map(best).collect::<Vec<_>>(), Reduction::Max);
        let mut weights: Vec<Vec<Val<'k>>> = vec![Vec::new(); t.keys_each as usize];
        for ((state, scores), top) in state.iter().zip(scores).zip(tops) {
            let old = state.maximum.get();
            let new = old.max(top);
            let from = base(new);
            let factor = exp2_below(old - from);
            let mut sum = state.sum.get() * factor;
            for (score, of_key) in scores.iter().zip(&mut weights) {
                let weight = exp2_below(score.get() - from);
                sum = sum + weight;
                of_key.push(weight);
            }
            state.maximum.set(new);
            state.sum.set(sum);
            for value in &state.values {
                value.set(value.get() * factor);
            }
        }
        for (n, of_key) in weights.iter().enumerate() {
            let key = self.column + n as u32 * t.columns;
            self.weights.store_vec(key * t.weight_stride() + self.row, of_key);
        }
    }

    /// Combines each of several values over the invocations of a row.
    fn over_row(&self, values: &[Val<'k>], op: Reduction) -> Vec<Val<'k>> {
        let (k, t) = (self.k, self.t);
        let Some(memory) = self.maxima else {
            return values.iter().map(|v| k.cluster_reduce(t.columns, *v, op)).collect();
        };
        let rows: Vec<Val<'k>> = (0..t.rows_each).map(|i| (self.row * t.rows_each + i) * t.columns).collect();
        for (row, value) in rows.iter().zip(values) {
            memory.store(*row + self.column, *value);
        }
        k.barrier();
        let one = |row: &Val<'k>| {
            if t.unroll > 1 {
                return (1..t.columns).fold(memory.load(*row), |sum, c| op.apply(sum, memory.load(*row + c)));
            }
            let sum = k.var(memory.load(*row));
            k.for_(k.u32(1), k.u32(t.columns), k.u32(1), |c| {
                sum.set(op.apply(sum.get(), memory.load(*row + c)))
            });
            sum.get()
        };
        rows.iter().map(one).collect()
    }

    /// Adds the weighted values of a tile of keys.
    fn accumulate(&self, state: &[State<'k>], values: HeadStart<'k>, key: Val<'k>, end: Val<'k>) {
        let (k, t) = (self.k, self.t);
        let groups = fours(self.p.value_dim);
        let slab = |slab: Val<'k>| {
            let first = slab * t.slab;
            // Weights are stored, and all invocations have read what was staged before.
            k.barrier();
            self.each_staged_again(t.slab, groups, |row, group| {
                let at = key + first + row;
                let four = self.values.four(self.values.row(values, at.min(end - 1)), group, groups);
                let inside = at.lt(end);
                let four: Vec<Val<'k>> = four.into_iter().map(|v| inside.select(v, v.like(0.0))).collect();
                if let Some(wild) = self.wild {
                    let most = -lowest(self.p.scalar);
                    let finite = four.iter().map(|v| v.abs().le(most)).reduce(|a, b| a & b);
                    let flag = || {
                        wild.atomic(AtomicOp::Or, k.u32(0), k.u32(1));
                    };
                    if let Some(finite) = finite {
                        k.if_(!finite, flag);
                    }
                }
                self.stage.store_vec(row * groups + group, &four);
            });
            k.barrier();
            match self.wild {
                None => self.add_values(state, first, false),
                Some(wild) => k.if_else(
                    wild.load(k.u32(0)).eq(0),
                    || self.add_values(state, first, false),
                    || self.add_values(state, first, true),
                ),
            }
        };
        let slabs = t.keys() / t.slab;
        if slabs == 1 { slab(k.u32(0)) } else { k.for_(k.u32(0), k.u32(slabs), k.u32(1), slab) }
    }

    /// Adds the staged values times their weights; with `wary`, weights of 0 are skipped.
    fn add_values(&self, state: &[State<'k>], first: Val<'k>, wary: bool) {
        let (k, t) = (self.k, self.t);
        let groups = fours(self.p.value_dim);
        let columns: Vec<Val<'k>> = (0..groups.div_ceil(t.columns))
            // Columns past the last repeat it; they are not stored.
            .map(|j| (self.column + j * t.columns).min(groups - 1))
            .collect();
        let unroll = if !wary && t.slab.is_multiple_of(t.unroll) { t.unroll } else { 1 };
        k.for_(k.u32(0), k.u32(t.slab), k.u32(unroll), |from| {
            for row in (0..unroll).map(|u| from + u) {
                let weights = self.weights.load_vec((first + row) * t.weight_stride() + self.row);
                let start = row * groups;
                let values: Vec<Val<'k>> =
                    columns.iter().flat_map(|c| self.stage.load_vec(start + *c)).collect();
                for (weight, state) in weights.iter().zip(state) {
                    for (value, sum) in values.iter().zip(&state.values) {
                        let more = weight.fma(*value, sum.get());
                        sum.set(if wary { weight.ne(0).select(more, sum.get()) } else { more });
                    }
                }
            }
        });
    }

    /// Writes the rows.
    fn finish(&self, place: &WorkgroupCoord<'k>, range: &Range<'k>, rows: &[Row<'k>], state: &[State<'k>]) {
        let k = self.k;
        if self.maxima.is_some() {
            // The last maxima are read.
            k.barrier();
        }
        let sums = self.over_row(&state.iter().map(|s| s.sum.get()).collect::<Vec<_>>(), Reduction::Add);
        self.args.write_to(range, |to| {
            for ((row, state), sum) in rows.iter().zip(state).zip(&sums) {
                k.if_(row.number.lt(self.args.rows), || self.write(place, to, row, state, *sum));
            }
        });
    }

    fn write(
        &self,
        place: &WorkgroupCoord<'k>,
        to: DeclaredAttentionTarget<'k>,
        row: &Row<'k>,
        state: &State<'k>,
        sum: Val<'k>,
    ) {
        match to {
            DeclaredAttentionTarget::Target(out) => {
                let scale = normaliser(state.maximum.get(), sum, self.args.sink(row));
                let start = self.args.target_row(place, row) * self.p.value_dim;
                let values: Vec<Val<'k>> = state.values.iter().map(|v| v.get() * scale).collect();
                self.store(out, start, &values, self.p.value_dim);
            }
            DeclaredAttentionTarget::Partial { values, sums } => {
                let part = self.args.part(place, row);
                let groups = fours(self.p.value_dim);
                let raw: Vec<Val<'k>> = state.values.iter().map(|v| v.get()).collect();
                self.store(values, part * (groups * 4), &raw, groups as usize * 4);
                self.k.if_(self.column.eq(0), || sums.store_vec(part * 2, &[state.maximum.get(), sum]));
            }
        }
    }

    /// Stores this invocation's groups of four of a row of `width` elements.
    fn store(&self, out: Buf<'k>, start: Val<'k>, values: &[Val<'k>], width: usize) {
        let k = self.k;
        let whole = width.is_multiple_of(4) && out.elem() != Elem::F64;
        let groups = fours(width);
        for (j, four) in values.chunks(4).enumerate() {
            let group = self.column + j as u32 * self.t.columns;
            let put = || {
                if whole {
                    return out.store_vec(start + group * 4, four);
                }
                for (i, value) in four.iter().enumerate() {
                    let at = group * 4 + i;
                    k.if_(at.lt(width), || out.store(start + at, *value));
                }
            };
            if (j as u32 + 1) * self.t.columns <= groups { put() } else { k.if_(group.lt(groups), put) }
        }
    }
}

struct State<'k> {
    maximum: Var<'k>,
    sum: Var<'k>,
    values: Vec<Var<'k>>,
}
