//! The kernel: its subgroups take keys in turn.

use olivine_ir::Dim;
use olivine_kernel::{Builder, Elem, Scalar, Shared, SubgroupOp, Val, Var};

use super::super::args::{AttentionArgs, AttentionTarget, DeclaredAttentionTarget, WorkgroupCoord};
use super::super::combine;
use super::super::problem::Problem;
use super::super::rows::{HeadStart, Located, Rows};
use super::super::softmax::{Accumulated, base, exp2_below, lowest, merge, normaliser};
use super::super::tile::fours;
use super::super::visible::{Range, Row};
use super::Plan;
use super::exchange::Exchange;
use super::rows::UnitRows;
use crate::launch::Launch;
use crate::pages::PageTable;
use crate::site::{Site, linear_group};

/// Emits the kernel.
pub(in super::super) fn emit(
    p: &Problem<'_>,
    plan: Plan,
    sink: &AttentionTarget,
    site: &mut Site<'_>,
) -> Result<(), String> {
    let splits = sink.splits();
    let name = if splits.is_some() { "attention_decode_split" } else { "attention_decode" };
    let k = site.builder(name, plan.subgroups * plan.subgroup);
    let l = Launch::new(&k);
    let kernel = Kernel::declare(&l, p, plan, sink, combine::at_once(site.caps));
    let groups = p.batch * p.kv_heads * splits.unwrap_or(Dim::ONE);
    let count = l.size("groups", groups);
    let splits = splits.map_or_else(|| k.u32(1), |splits| l.size("splits", splits));
    let kv_heads = l.size("kv_heads", p.kv_heads);

    let number = linear_group(&k);
    k.if_(number.lt(count), || kernel.run(&WorkgroupCoord::of(number, k.u32(1), splits, kv_heads)));
    let bound = l.done();
    site.dispatch(k, bound, groups, p.cost())
}

/// What a lane loads of a key or a value: the words of each unit.
type Loads<'k> = Vec<Vec<Val<'k>>>;

pub(super) struct Kernel<'k, 'p> {
    pub(super) k: &'k Builder,
    pub(super) p: &'p Problem<'p>,
    pub(super) plan: Plan,
    q: Rows<'k>,
    keys: UnitRows<'k>,
    values: UnitRows<'k>,
    pages: Option<PageTable<'k>>,
    /// Whether keys that a subgroup takes at a time are in one page.
    whole_pages: bool,
    pub(super) args: AttentionArgs<'k, 'p>,
    exchange: Exchange<'k>,
    /// Maximum and sum of each subgroup's rows.
    pub(super) of_rows: Shared<'k>,
    /// What each subgroup accumulated.
    pub(super) of_values: Shared<'k>,
    /// Ranges that an invocation loads at a time when it combines them.
    pub(super) at_once: u32,
    /// Place among the lanes that share a key, and the key of the subgroup.
    lane: Val<'k>,
    column: Val<'k>,
    /// Number of the subgroup.
    subgroup: Val<'k>,
}

/// A row that this lane keeps scores of, relative to its maximum.
struct RowState<'k> {
    row: Row<'k>,
    mask_row: Option<Val<'k>>,
    /// Of all keys of the subgroup.
    maximum: Var<'k>,
    /// Over the keys of this lane only until the end.
    sum: Var<'k>,
}

/// What a subgroup has of its keys.
struct State<'k> {
    /// By row, then by element of this lane.
    q: Vec<Vec<Val<'k>>>,
    rows: Vec<RowState<'k>>,
    /// By row, then by element of this lane.
    values: Vec<Vec<Var<'k>>>,
    /// Whether weights of 0 skip their values: 0 · Inf would be NaN.
    wary: Option<Var<'k>>,
    starts: (HeadStart<'k>, HeadStart<'k>),
}

impl<'k, 'p> Kernel<'k, 'p> {
    fn declare(l: &Launch<'k>, p: &'p Problem<'p>, plan: Plan, sink: &AttentionTarget, at_once: u32) -> Self {
        let k = l.k();
        let layout = p.op.layout;
        let pages = p.page_table(l);
        let lane = k.local_index() % plan.lanes;
        let len = plan.subgroups * plan.rows;
        Kernel {
            k,
            p,
            plan,
            q: Rows::read(l, "q", layout, &p.q, None),
            keys: UnitRows::read(l, "k", layout, &p.k, pages, (plan.unit, p.dim)),
            values: UnitRows::read(l, "v", layout, &p.v, pages, (plan.unit, p.value_dim)),
            pages,
            whole_pages: pages.is_none_or(|pages| pages.positions().is_multiple_of(plan.subgroup_keys())),
            args: AttentionArgs::declare(l, p, sink),
            exchange: Exchange::new(k, plan),
            of_rows: k.shared(Elem::F32, 2, len),
            of_values: k.shared(Elem::F32, 4, len * fours(p.value_dim)),
            at_once,
            lane,
            column: k.local_index() % plan.subgroup / plan.lanes,
            subgroup: k.local_index() / plan.subgroup,
        }
    }

    fn run(&self, place: &WorkgroupCoord<'k>) {
        let length = self.args.length(place);
        let walk = |range: Range<'k>| self.walk(place, length, &range);
        self.args.with_range(place, self.plan.key_tiles(), length, walk);
    }

    /// The work on a range of keys.
    fn walk(&self, place: &WorkgroupCoord<'k>, length: Val<'k>, range: &Range<'k>) {
        let k = self.k;
        let state = self.state(place, range, length);
        match state.wary {
            None => self.all_keys(place, range, &state),
            // Values that are not finite are rare: they show in what was accumulated.
            Some(wary) => {
                let again = k.var(k.u32(1));
                k.while_(
                    || again.get().ne(0),
                    || {
                        self.all_keys(place, range, &state);
                        let most = -lowest(Scalar::F32);
                        let all = state.values.iter().flatten().map(|v| v.get().abs().le(most));
                        let finite = all.reduce(|a, b| a & b).unwrap_or(k.bool(true));
                        let met = (!finite).subgroup(SubgroupOp::Any) & wary.get().eq(0);
                        again.set(met.select(k.u32(1), k.u32(0)));
                        wary.set(k.u32(1));
                    },
                );
            }
        }
        self.meet(&state);
        k.barrier();
        self.finish(place, range, length);
        if let Some(partial) = self.args.last() {
            k.if_(!range.is_only, || self.combine_if_last(partial, place, range, length));
        }
    }

    fn state(&self, place: &WorkgroupCoord<'k>, range: &Range<'k>, length: Val<'k>) -> State<'k> {
        let (k, plan) = (self.k, self.plan);
        let zero = k.f32(0.0);
        let (of_unit, each) = (plan.unit / 4, plan.value_units * plan.unit);
        let groups = plan.lanes * plan.key_units * of_unit;
        let query = |i: u32| {
            let number = k.u32(i).min(self.args.rows - 1);
            let head = place.kv_head * self.args.group + number % self.args.group;
            let start = self.q.row(self.q.start(place.batch, head), number / self.args.group);
            let four = |at: u32| {
                let unit = self.lane + at / of_unit * plan.lanes;
                self.q.four(start, unit * of_unit + at % of_unit, groups)
            };
            (0..plan.key_units * of_unit).flat_map(four).collect()
        };
        let row = |i: u32| {
            let row = self.args.row_at(place, self.exchange.row(i), length);
            let row = Row { end: row.end.min(range.end), ..row };
            let mask_row = self.args.mask_row(place, &row);
            RowState { row, mask_row, maximum: k.var(zero), sum: k.var(zero) }
        };
        State {
            q: (0..plan.rows).map(query).collect(),
            rows: (0..self.exchange.rows_per_lane()).map(row).collect(),
            values: (0..plan.rows).map(|_| (0..each).map(|_| k.var(zero)).collect()).collect(),
            wary: self.p.masks_elements().then(|| k.var(k.u32(0))),
            starts: (
                self.keys.start(place.batch, place.kv_head),
                self.values.start(place.batch, place.kv_head),
            ),
        }
    }

    /// Accumulates all keys of this subgroup.
    fn all_keys(&self, place: &WorkgroupCoord<'k>, range: &Range<'k>, state: &State<'k>) {
        let (k, plan) = (self.k, self.plan);
        for row in &state.rows {
            row.maximum.set(k.f32(lowest(Scalar::F32) as f32));
            row.sum.set(k.f32(0.0));
        }
        state.values.iter().flatten().for_each(|v| v.set(k.f32(0.0)));
        let stride = plan.key_tiles().keys;
        let ahead = self.pages.filter(|_| self.whole_pages).map(|pages| {
            // The page is known before its keys are wanted.
            let at = move |key: Val<'k>| {
                Located::find(Some(pages), place.batch, key.min(range.end - 1)).page().unwrap_or(key)
            };
            let page = k.var(k.u32(0));
            let first = range.begin + self.subgroup * plan.subgroup_keys();
            k.if_(range.begin.lt(range.end), || page.set(at(first)));
            (pages, page, at)
        });
        k.for_(range.begin, range.end, k.u32(stride), |from| {
            let first = from + self.subgroup * plan.subgroup_keys();
            k.if_(first.lt(range.end), || {
                let start = match &ahead {
                    Some((pages, page, at)) => {
                        let now = page.get();
                        page.set(at(first + stride));
                        Some(Located::in_page(*pages, now, first))
                    }
                    None if self.whole_pages => Some(Located::find(None, place.batch, first)),
                    None => None,
                };
                self.step(place, range, state, first, start);
            });
        });
    }

    /// Accumulates the keys that a subgroup takes at a time, from `first` on.
    fn step(
        &self,
        place: &WorkgroupCoord<'k>,
        range: &Range<'k>,
        state: &State<'k>,
        first: Val<'k>,
        start: Option<Located<'k>>,
    ) {
        let (k, plan) = (self.k, self.plan);
        let columns = plan.subgroup / plan.lanes;
        let mut words: Vec<[Loads<'k>; 2]> = Vec::new();
        for j in 0..plan.keys_each {
            let key = first + self.column + j * columns;
            // Keys past the end repeat the last one: their scores are masked.
            let known = key.min(range.end - 1);
            let at = match start {
                Some(start) => start.after(known - first),
                None => Located::find(self.pages, place.batch, known),
            };
            let unit = |u: u32| self.lane + u * plan.lanes;
            let row = self.keys.row(state.starts.0, at);
            let load = |u| self.keys.load(row, unit(u), plan.lanes * plan.key_units, None);
            let of_key: Loads<'k> = (0..plan.key_units).map(load).collect();
            let row = self.values.row(state.starts.1, at);
            let inside = state.wary.is_none().then(|| key.lt(range.end));
            let load = |u| self.values.load(row, unit(u), plan.lanes * plan.value_units, inside);
            words.push([of_key, (0..plan.value_units).map(load).collect()]);
        }
        let mut products: Vec<Vec<Val<'k>>> = vec![Vec::new(); plan.rows as usize];
        for [of_key, _] in &words {
            let key: Vec<Val<'k>> = of_key.iter().flat_map(|w| self.keys.elements(w)).collect();
            for (q, products) in state.q.iter().zip(&mut products) {
                let first = q[0] * key[0];
                products.push(q.iter().zip(&key).skip(1).fold(first, |sum, (q, x)| q.fma(*x, sum)));
            }
        }
        let scores = self.exchange.gather(products.concat());
        let (weights, shrink) = self.weigh(state, range, first, scores);
        for (i, values) in state.values.iter().enumerate() {
            let rescale = self.exchange.of_row(&shrink, i as u32);
            values.iter().for_each(|v| v.set(v.get() * rescale));
        }
        let add = |wary: bool| {
            for (j, [_, words]) in words.iter().enumerate() {
                let elements: Vec<Val<'k>> = words.iter().flat_map(|w| self.values.elements(w)).collect();
                for (i, values) in state.values.iter().enumerate() {
                    let weight = weights[i * plan.keys_each as usize + j];
                    for (sum, x) in values.iter().zip(&elements) {
                        let more = weight.fma(*x, sum.get());
                        sum.set(if wary { weight.ne(0).select(more, sum.get()) } else { more });
                    }
                }
            }
        };
        match state.wary {
            None => add(false),
            Some(wary) => k.if_else(wary.get().eq(0), || add(false), || add(true)),
        }
    }

    /// Turns the scores of this lane into weights relative to the rows' new maxima. Returns the weights of all rows and keys of the
    /// lanes that share keys, and the factor by which the sums of each row shrink.
    fn weigh(
        &self,
        state: &State<'k>,
        range: &Range<'k>,
        first: Val<'k>,
        scores: Vec<Val<'k>>,
    ) -> (Vec<Val<'k>>, Vec<Val<'k>>) {
        let columns = self.plan.subgroup / self.plan.lanes;
        let each = scores.len() / state.rows.len();
        let (mut weights, mut shrink) = (Vec::new(), Vec::new());
        for (n, (row, products)) in state.rows.iter().zip(scores.chunks(each)).enumerate() {
            let score = |(i, product): (usize, &Val<'k>)| {
                let key = first + self.column + self.exchange.key((n * each + i) as u32) * columns;
                let score = self.args.score(*product, row.mask_row, key.min(range.end - 1));
                self.args.seen(score, &row.row, key)
            };
            let scores: Vec<Val<'k>> = products.iter().enumerate().map(score).collect();
            let top = scores.iter().skip(1).fold(scores[0], |top, score| top.max(*score));
            let old = row.maximum.get();
            let new = old.max(self.exchange.over_keys(top, |a, b| a.max(b)));
            let from = base(new);
            let rescale = exp2_below(old - from);
            let of_keys: Vec<Val<'k>> = scores.iter().map(|score| exp2_below(*score - from)).collect();
            let sum = of_keys.iter().fold(row.sum.get() * rescale, |sum, weight| sum + *weight);
            row.maximum.set(new);
            row.sum.set(sum);
            weights.extend(of_keys);
            shrink.push(rescale);
        }
        (self.exchange.spread(&weights), shrink)
    }

    /// Leaves what the subgroup accumulated in workgroup memory.
    fn meet(&self, state: &State<'k>) {
        let (k, plan) = (self.k, self.plan);
        for (i, row) in state.rows.iter().enumerate() {
            let sum = self.exchange.over_keys(row.sum.get(), |a, b| a + b);
            let at = self.subgroup * plan.rows + self.exchange.row(i as u32);
            k.if_(self.exchange.is_first(), || self.of_rows.store_vec(at, &[row.maximum.get(), sum]));
        }
        let (groups, of_unit) = (fours(self.p.value_dim), plan.unit / 4);
        let over_columns = |v: &Var<'k>| self.exchange.over_columns(v.get());
        let values: Vec<Vec<Val<'k>>> =
            state.values.iter().map(|row| row.iter().map(over_columns).collect()).collect();
        k.if_(self.column.eq(0), || {
            for (i, row) in values.iter().enumerate() {
                let start = (self.subgroup * plan.rows + i as u32) * groups;
                for (n, four) in row.chunks(4).enumerate() {
                    let unit = self.lane + n as u32 / of_unit * plan.lanes;
                    let group = unit * of_unit + n as u32 % of_unit;
                    let put = || self.of_values.store_vec(start + group, four);
                    let whole = plan.lanes * plan.value_units * of_unit <= groups;
                    if whole { put() } else { k.if_(group.lt(groups), put) }
                }
            }
        });
    }

    /// Merges what the subgroups have and writes the rows.
    fn finish(&self, place: &WorkgroupCoord<'k>, range: &Range<'k>, length: Val<'k>) {
        let (k, plan) = (self.k, self.plan);
        let groups = fours(self.p.value_dim);
        let count = self.args.rows * groups;
        k.for_(k.local_index(), count, k.u32(plan.subgroups * plan.subgroup), |item| {
            let (number, group) = (item / groups, item % groups);
            let part = |i: u32| {
                let at = number + i * plan.rows;
                let of = self.of_rows.load_vec(at);
                let values = self.of_values.load_vec(at * groups + group);
                Accumulated { maximum: of[0], sum: of[1], values }
            };
            let all = merge(&(0..plan.subgroups).map(part).collect::<Vec<_>>());
            let row = self.args.row_at(place, number, length);
            self.args.write_to(range, |to| match to {
                DeclaredAttentionTarget::Target(_) => self.store(place, &row, group, &all),
                DeclaredAttentionTarget::Partial { values, sums } => {
                    let part = self.args.part(place, &row);
                    values.store_vec((part * groups + group) * 4, &all.values);
                    k.if_(group.eq(0), || sums.store_vec(part * 2, &[all.maximum, all.sum]));
                }
            });
        });
    }

    /// Writes four elements of a row's result.
    pub(super) fn store(
        &self,
        place: &WorkgroupCoord<'k>,
        row: &Row<'k>,
        group: Val<'k>,
        all: &Accumulated<'k>,
    ) {
        let scale = normaliser(all.maximum, all.sum, self.args.sink(row));
        let start = self.args.target_row(place, row) * self.p.value_dim + group * 4;
        let values: Vec<Val<'k>> = all.values.iter().map(|v| *v * scale).collect();
        self.args.out().store_vec(start, &values);
    }
}
