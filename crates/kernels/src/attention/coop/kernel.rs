//! The kernel by cooperative matrices.

use olivine_ir::Dim;
use olivine_kernel::{
    AtomicOp, Buf, Builder, Elem, Fragments, MatrixType, MatrixUse, Reduction, Scalar, Shared, SubgroupOp,
    Val, Var,
};

use super::super::args::{AttentionArgs, AttentionTarget, DeclaredAttentionTarget, WorkgroupCoord};
use super::super::problem::Problem;
use super::super::softmax::{base, exp2_below, lowest, normaliser};
use super::super::tile::fours;
use super::super::visible::{Range, Row};
use super::non_finite::{self, Operands};
use super::operands::{OperandPrecision, high_low, is_wild, magnitude, not_finite, scales, split};
use super::staging::{Panel, SLOT, Slots, Stage};
use super::{LANES, Plan, SIDE, precision, slots};
use crate::launch::Launch;
use crate::site::{Operand, Site, linear_group};

/// Emits the kernel.
pub(in super::super) fn emit(
    p: &Problem<'_>,
    plan: Plan,
    sink: &AttentionTarget,
    site: &mut Site<'_>,
) -> Result<(), String> {
    let splits = sink.splits();
    let tiles = p.rows().div_ceil(plan.rows());
    let name = if splits.is_some() { "attention_coop_split" } else { "attention_coop" };
    let k = site.builder(name, plan.subgroups * LANES);
    let l = Launch::new(&k);
    let kernel = Kernel::declare(&l, p, plan, sink)?;
    let groups = p.batch * p.kv_heads * tiles * splits.unwrap_or(Dim::ONE);
    let (count, tiles) = (l.size("groups", groups), l.size("tiles", tiles));
    let splits = splits.map_or_else(|| k.u32(1), |splits| l.size("splits", splits));
    let kv_heads = l.size("kv_heads", p.kv_heads);

    let number = linear_group(&k);
    k.if_(number.lt(count), || kernel.run(&WorkgroupCoord::of(number, tiles, splits, kv_heads)));
    let bound = l.done();
    site.dispatch(k, bound, groups, p.cost())
}

/// Rows of a block that a lane holds elements of.
const PAIR: usize = 2;
/// What weights are multiplied by on their way to f16.
const WEIGHT_SCALE: f64 = 16384.0;

/// Which of its lane's two rows the i-th element of a matrix belongs to.
fn row_of(part: usize) -> usize {
    Fragments::Quads.position(0, part as u32).0 as usize / (SIDE as usize / PAIR)
}

/// What tells of numbers that are not finite.
struct NonFinite<'k> {
    /// Not 0 if there is one.
    flag: Shared<'k>,
    /// The elements of q, k and v as numbers.
    numbers: [Buf<'k>; 3],
}

struct Kernel<'k, 'p> {
    k: &'k Builder,
    p: &'p Problem<'p>,
    plan: Plan,
    precision: OperandPrecision,
    args: AttentionArgs<'k, 'p>,
    q: Slots<'k>,
    keys: Slots<'k>,
    values: Slots<'k>,
    wild: Option<NonFinite<'k>>,
    memory: Shared<'k>,
    /// The largest magnitude of k, then of v, that each subgroup loaded, as bits.
    largest: Option<Shared<'k>>,
    left: MatrixType,
    right: MatrixType,
    sum: MatrixType,
    /// Slots of a padded row of q and k, and of v.
    slots: (u32, u32),
}

/// What a lane knows of a block of its subgroup's rows.
struct Block<'k> {
    rows: Vec<Row<'k>>,
    /// The block's rows of q, by index along K, then by plane.
    q: Vec<Vec<Val<'k>>>,
    /// What matmuls with each row of split q are multiplied by.
    unscale: Option<Vec<Val<'k>>>,
    maxima: Vec<Var<'k>>,
    /// Over the keys of this lane only until the end.
    sums: Vec<Var<'k>>,
    values: Vec<Var<'k>>,
}

/// The weights of a tile of keys for a block.
struct Weights<'k> {
    /// By keys, then by plane.
    fragments: Vec<Vec<Val<'k>>>,
    /// What was accumulated of each row shrinks by this.
    shrink: Vec<Val<'k>>,
}

impl<'k, 'p> Kernel<'k, 'p> {
    fn declare(
        l: &Launch<'k>,
        p: &'p Problem<'p>,
        plan: Plan,
        sink: &AttentionTarget,
    ) -> Result<Self, String> {
        let (k, layout) = (l.k(), p.op.layout);
        let precision = precision(p).ok_or("attention by matrices of a type that has none")?;
        let matrix = |elem, role| MatrixType { elem, rows: SIDE, columns: SIDE, role };
        let slots = slots(p);
        let pages = p.page_table(l);
        let read =
            |name: &str, operand: &Operand, pages| Slots::read(l, name, layout, operand, pages, precision);
        // Weights of 0 must not look at values that are not finite; split numbers must all be finite.
        let wild = precision == OperandPrecision::Split || p.masks_elements();
        let args = AttentionArgs::declare(l, p, sink);
        let (q, keys, values) = (read("q", &p.q, None), read("k", &p.k, pages), read("v", &p.v, pages));
        let wild = wild.then(|| NonFinite {
            flag: k.shared(Elem::U32, 1, 1),
            numbers: [("q", &q, &p.q), ("k", &keys, &p.k), ("v", &values, &p.v)]
                .map(|(name, slots, operand)| slots.numbers(l, &format!("{name}_numbers"), operand)),
        });
        Ok(Kernel {
            k,
            p,
            plan,
            precision,
            args,
            q,
            keys,
            values,
            wild,
            memory: k.shared(Elem::U32, 4, plan.panels(slots, precision)),
            largest: (precision == OperandPrecision::Split)
                .then(|| k.shared(Elem::U32, 1, 2 * plan.subgroups)),
            left: matrix(precision.elem(), MatrixUse::A),
            right: matrix(precision.elem(), MatrixUse::B),
            sum: matrix(Elem::F32, MatrixUse::Accumulator),
            slots,
        })
    }

    /// A workgroup's whole work.
    fn run(&self, place: &WorkgroupCoord<'k>) {
        let length = self.args.length(place);
        let walk = |range: Range<'k>| self.walk(place, length, &range);
        self.args.with_range(place, self.plan.key_tiles(), length, walk);
    }

    /// The work on a range of keys.
    fn walk(&self, place: &WorkgroupCoord<'k>, length: Val<'k>, range: &Range<'k>) {
        let (k, plan) = (self.k, self.plan);
        let first_row = place.tile * plan.rows();
        let (begin, end) = (range.begin, range.end);
        if let Some(wild) = &self.wild {
            k.if_(k.local_index().eq(0), || wild.flag.store(k.u32(0), k.u32(0)));
            k.barrier();
        }
        let key_panel = Panel::new(self.memory, k.u32(0), plan.keys, self.slots.0);
        let after = Panel::len(plan.keys, self.slots.0, self.precision.planes());
        let value_panel = Panel::new(self.memory, k.u32(after), plan.keys, self.slots.1);
        let keys = Stage::new(&self.keys, key_panel);
        let values = Stage::new(&self.values, value_panel);
        let starts =
            (self.keys.start(place.batch, place.kv_head), self.values.start(place.batch, place.kv_head));
        let fetch = |key: Val<'k>| {
            keys.fetch(starts.0, key, end);
            values.fetch(starts.1, key, end);
        };
        // Under way before the rows of q are waited for.
        k.if_(begin.lt(end), || fetch(begin));
        let mine = first_row + k.subgroup_id() * (plan.blocks * SIDE);
        let blocks: Vec<Block<'k>> =
            (0..plan.blocks).map(|b| self.block(place, mine + b * SIDE, length, end)).collect();

        k.for_(begin, end, k.u32(plan.keys), |key| {
            self.tell_largest(&keys, &values);
            // Everyone is done with what was staged before.
            k.barrier();
            let unscale = self.put(&keys, &values, key, end);
            k.barrier();
            // The last step loads once more what it has, so that the body stays straight-line code.
            let next = key + plan.keys;
            fetch(next.lt(end).select(next, key));
            let products = self.dot_products(&blocks, &key_panel);
            let all = range.all_seen(key, plan.keys);
            let weights: Vec<Weights<'k>> = blocks
                .iter()
                .zip(products)
                .map(|(block, products)| {
                    let unscale = block
                        .unscale
                        .as_ref()
                        .zip(unscale)
                        .map(|(rows, (keys, _))| rows.iter().map(|row| *row * keys).collect::<Vec<_>>());
                    let scores = self.scores(place, range, block, key, &products, unscale);
                    self.mask(block, key, all, &scores);
                    self.weigh(block, &scores)
                })
                .collect();
            self.accumulate(&blocks, &weights, &value_panel, unscale.map(|(_, values)| values));
        });
        let finish = || blocks.iter().for_each(|block| self.finish(place, range, block));
        let Some(wild) = &self.wild else { return finish() };
        k.barrier();
        let met = wild.flag.load(k.u32(0)).ne(0).subgroup(SubgroupOp::Any);
        let [q, keys, values] = wild.numbers;
        let operands = Operands { q: (&self.q, q), k: (&self.keys, keys), v: (&self.values, values) };
        let rows = (mine, plan.blocks * SIDE);
        let non_finite = || non_finite::rows(k, self.p, &self.args, &operands, place, range, length, rows);
        k.if_else(met, non_finite, finish);
    }

    /// A block of rows from `first` on: its rows of q as matrices, nothing accumulated.
    fn block(&self, place: &WorkgroupCoord<'k>, first: Val<'k>, length: Val<'k>, end: Val<'k>) -> Block<'k> {
        let k = self.k;
        let row = |i: u32| {
            let row = self.args.row_at(place, first + k.lane() / 4u32 + i * 8, length);
            Row { end: row.end.min(end), ..row }
        };
        let number = |x: f64| k.number(Scalar::F32, x);
        let each = |x: Val<'k>| (0..PAIR).map(|_| k.var(x)).collect();
        let zero = number(0.0).splat(self.sum);
        let (q, unscale) = self.queries(place, first);
        Block {
            rows: (0..PAIR as u32).map(row).collect(),
            q,
            unscale,
            maxima: each(number(lowest(Scalar::F32))),
            sums: each(number(0.0)),
            values: (0..self.slots.1 * SLOT / SIDE).map(|_| k.var(zero)).collect(),
        }
    }

    /// The rows of q from `first` on as matrices, by way of the subgroup's own part of workgroup memory, and what
    /// undoes the scales of this lane's rows.
    fn queries(
        &self,
        place: &WorkgroupCoord<'k>,
        first: Val<'k>,
    ) -> (Vec<Vec<Val<'k>>>, Option<Vec<Val<'k>>>) {
        let k = self.k;
        let (slots, planes) = (SIDE / SLOT, self.precision.planes());
        let part = k.subgroup_id() * Panel::len(SIDE, slots, planes);
        let panel = Panel::new(self.memory, part, SIDE, slots);
        let (row, slot) = (k.lane() / slots, k.lane() % slots);
        let known = (first + row).min(self.args.rows - 1);
        let head = place.kv_head * self.args.group + known % self.args.group;
        let start = self.q.row(self.q.start(place.batch, head), known / self.args.group);
        let loaded: Vec<Vec<Val<'k>>> = (0..self.slots.0 / slots)
            .map(|depth| self.q.load(start, slot + depth * slots, self.slots.0))
            .collect();
        let scale = (self.precision == OperandPrecision::Split).then(|| {
            let all = loaded.iter().flatten().map(|x| magnitude(*x));
            let largest = all.reduce(|a, b| a.max(b)).unwrap_or(k.u32(0));
            let largest = k.cluster_reduce(slots, largest, Reduction::Max);
            self.watch(largest);
            scales(largest)
        });
        let mut matrices = Vec::new();
        for loaded in loaded {
            let words = scale.map_or_else(|| vec![loaded.clone()], |(scale, _)| split(&loaded, scale));
            panel.store(row, slot, &words);
            k.subgroup_barrier();
            matrices.push((0..planes).map(|i| panel.matrix(self.left, i, (0, 0), false)).collect());
            k.subgroup_barrier();
        }
        let of_row = |inverse: Val<'k>, i: u32| inverse.shuffle((k.lane() / 4u32 + i * 8) * slots);
        let unscale = scale.map(|(_, inverse)| (0..PAIR as u32).map(|i| of_row(inverse, i)).collect());
        (matrices, unscale)
    }

    /// Sets the flag if a magnitude is none of a finite number.
    fn watch(&self, magnitude: Val<'k>) {
        if let Some(wild) = &self.wild {
            let raise = || {
                wild.flag.atomic(AtomicOp::Or, self.k.u32(0), self.k.u32(1));
            };
            self.k.if_(is_wild(magnitude), raise);
        }
    }

    /// Tells the workgroup the largest magnitudes of split k and v that this subgroup loaded.
    fn tell_largest(&self, keys: &Stage<'k, '_>, values: &Stage<'k, '_>) {
        let Some(memory) = self.largest else { return };
        let k = self.k;
        let (of_keys, of_values) = (keys.largest(), values.largest());
        k.if_(k.lane().eq(0), || {
            memory.store(k.subgroup_id(), of_keys);
            memory.store(k.subgroup_id() + self.plan.subgroups, of_values);
        });
    }

    /// Puts k and v into their panels; rows of v past the last key are zeros. What undoes the scales of split ones.
    fn put(
        &self,
        keys: &Stage<'k, '_>,
        values: &Stage<'k, '_>,
        key: Val<'k>,
        end: Val<'k>,
    ) -> Option<(Val<'k>, Val<'k>)> {
        let k = self.k;
        let before_end = |row: Val<'k>, slot: Vec<Val<'k>>| -> Vec<Val<'k>> {
            let inside = (key + row).lt(end);
            slot.into_iter().map(|x| inside.select(x, x.like(0.0))).collect()
        };
        let Some(memory) = self.largest else {
            keys.put(k, |_, words| vec![words]);
            values.put(k, |row, words| {
                let words = before_end(row, words);
                self.watch_words(&words);
                vec![words]
            });
            return None;
        };
        let subgroups = self.plan.subgroups;
        let largest = |first: u32| {
            let of_subgroup = memory.load(k.lane() % subgroups + first);
            of_subgroup.subgroup(SubgroupOp::Max)
        };
        let (of_keys, of_values) = (largest(0), largest(subgroups));
        self.watch(of_keys.max(of_values));
        let ((key_scale, key_unscale), (value_scale, value_unscale)) = (scales(of_keys), scales(of_values));
        keys.put(k, |_, numbers| split(&numbers, key_scale));
        values.put(k, |row, numbers| split(&before_end(row, numbers), value_scale));
        Some((key_unscale, value_unscale * (1.0 / WEIGHT_SCALE)))
    }

    /// Sets the flag if a word holds a 16-bit element that is not finite.
    fn watch_words(&self, words: &[Val<'k>]) {
        let (k, Some(wild)) = (self.k, &self.wild) else { return };
        let Some(met) = not_finite(self.left.elem, words.iter().copied()) else { return };
        k.if_(met, || {
            wild.flag.atomic(AtomicOp::Or, k.u32(0), k.u32(1));
        });
    }

    /// The matmuls of every block's rows with a tile of keys, not yet scaled: for each block, matrices by key.
    fn dot_products(&self, blocks: &[Block<'k>], keys: &Panel<'k>) -> Vec<Vec<Val<'k>>> {
        let wide = self.plan.keys / SIDE;
        let planes = self.precision.planes();
        let zero = self.k.f32(0.0).splat(self.sum);
        // Those with a low half apart: the unit cuts off what does not fit when it adds to large sums.
        let mut sums = vec![vec![vec![zero; wide as usize]; planes as usize]; blocks.len()];
        for depth in 0..self.slots.0 * SLOT / SIDE {
            for j in 0..wide {
                let at = (j * SIDE, depth * SIDE / SLOT);
                let key: Vec<Val<'k>> = (0..planes).map(|i| keys.matrix(self.right, i, at, true)).collect();
                for (block, sums) in blocks.iter().zip(&mut sums) {
                    let q = &block.q[depth as usize];
                    let mut add = |plane: usize, left: usize, right: usize| {
                        let sum = &mut sums[plane][j as usize];
                        *sum = q[left].matrix_mul_add(key[right], *sum);
                    };
                    add(0, 0, 0);
                    if self.precision == OperandPrecision::Split {
                        add(1, 1, 0);
                        add(1, 0, 1);
                    }
                }
            }
        }
        let all = |planes: Vec<Vec<Val<'k>>>| {
            let mut planes = planes.into_iter();
            let first = planes.next().unwrap_or_default();
            planes
                .fold(first, |sums, more| sums.into_iter().zip(more).map(|(a, b)| a.matrix_add(b)).collect())
        };
        sums.into_iter().map(all).collect()
    }

    /// The column of the i-th element that this lane holds of a matrix.
    fn column(&self, part: usize) -> Val<'k> {
        self.k.lane() % 4u32 * 2u32 + Fragments::Quads.position(0, part as u32).1
    }

    /// A block's scores as exponents of two, as if every row saw every key.
    fn scores(
        &self,
        place: &WorkgroupCoord<'k>,
        range: &Range<'k>,
        block: &Block<'k>,
        key: Val<'k>,
        products: &[Val<'k>],
        unscale: Option<Vec<Val<'k>>>,
    ) -> Vec<Vec<Var<'k>>> {
        let mask_rows: Vec<_> = block.rows.iter().map(|row| self.args.mask_row(place, row)).collect();
        let one = |j: usize, (part, product): (usize, Val<'k>)| {
            let product = unscale.as_ref().map_or(product, |by| product * by[row_of(part)]);
            let key = (key + j as u32 * SIDE + self.column(part)).min(range.end - 1);
            self.k.var(self.args.score(product, mask_rows[row_of(part)], key))
        };
        let matrix = |(j, matrix): (usize, &Val<'k>)| {
            matrix.matrix_parts().into_iter().enumerate().map(|part| one(j, part)).collect()
        };
        products.iter().enumerate().map(matrix).collect()
    }

    /// Masks scores, unless every row sees all keys of the tile.
    fn mask(&self, block: &Block<'k>, key: Val<'k>, all: Val<'k>, scores: &[Vec<Var<'k>>]) {
        self.k.if_(!all, || {
            for (j, scores) in scores.iter().enumerate() {
                for (part, score) in scores.iter().enumerate() {
                    let key = key + j as u32 * SIDE + self.column(part);
                    score.set(self.args.seen(score.get(), &block.rows[row_of(part)], key));
                }
            }
        });
    }

    /// 2^x for x ≤ 0, as exact as the weights will be.
    fn power(&self, x: Val<'k>) -> Val<'k> {
        match self.precision {
            OperandPrecision::Whole(_) => x.exp2_native(),
            OperandPrecision::Split => exp2_below(x),
        }
    }

    /// Turns a block's scores into weights relative to the rows' new maxima, as left operands.
    fn weigh(&self, block: &Block<'k>, scores: &[Vec<Var<'k>>]) -> Weights<'k> {
        let k = self.k;
        let scores: Vec<Vec<Val<'k>>> =
            scores.iter().map(|s| s.iter().map(|score| score.get()).collect()).collect();
        let (mut shrink, mut from) = (Vec::new(), Vec::new());
        for (row, maximum) in block.maxima.iter().enumerate() {
            let mine = scores.iter().flat_map(|s| s.iter().enumerate().filter(|(i, _)| row_of(*i) == row));
            let old = maximum.get();
            let top = mine.map(|(_, s)| *s).reduce(|a, b| a.max(b)).unwrap_or(old);
            let new = old.max(k.cluster_reduce(4, top, Reduction::Max));
            maximum.set(new);
            from.push(base(new));
            shrink.push(self.power(old - from[row]));
        }
        let mut sums: Vec<Val<'k>> =
            block.sums.iter().zip(&shrink).map(|(sum, by)| sum.get() * *by).collect();
        let mut fragments = Vec::with_capacity(scores.len());
        for scores in &scores {
            let weigh = |(part, score): (usize, &Val<'k>)| {
                let weight = self.power(*score - from[row_of(part)]);
                sums[row_of(part)] = sums[row_of(part)] + weight;
                weight
            };
            let weights: Vec<Val<'k>> = scores.iter().enumerate().map(weigh).collect();
            fragments.push(match self.precision {
                OperandPrecision::Whole(_) => vec![k.matrix_of(self.left, &weights)],
                OperandPrecision::Split => {
                    let parts = weights.iter().map(|w| high_low(*w * WEIGHT_SCALE));
                    let (high, low): (Vec<_>, Vec<_>) = parts.unzip();
                    vec![k.matrix_of(self.left, &high), k.matrix_of(self.left, &low)]
                }
            });
        }
        block.sums.iter().zip(sums).for_each(|(var, sum)| var.set(sum));
        Weights { fragments, shrink }
    }

    /// Adds the weighted values of a tile of keys; `unscale` undoes the scales of split weights and values.
    fn accumulate(
        &self,
        blocks: &[Block<'k>],
        weights: &[Weights<'k>],
        values: &Panel<'k>,
        unscale: Option<Val<'k>>,
    ) {
        let k = self.k;
        let zero = k.f32(0.0).splat(self.sum);
        let shrunk = |sum: Val<'k>, weights: &Weights<'k>| {
            let parts = sum.matrix_parts().into_iter().enumerate();
            let parts: Vec<Val<'k>> = parts.map(|(i, v)| v * weights.shrink[row_of(i)]).collect();
            k.matrix_of(self.sum, &parts)
        };
        for n in 0..self.slots.1 * SLOT / SIDE {
            let old: Vec<Val<'k>> = blocks.iter().map(|b| b.values[n as usize].get()).collect();
            let mut sums: Vec<Val<'k>> = match self.precision {
                OperandPrecision::Whole(_) => {
                    old.iter().zip(weights).map(|(sum, w)| shrunk(*sum, w)).collect()
                }
                // The unit cuts off what does not fit: what it adds up is added to the sum apart.
                OperandPrecision::Split => vec![zero; blocks.len()],
            };
            for j in 0..self.plan.keys / SIDE {
                let value = |plane: u32| values.matrix(self.right, plane, (j * SIDE, n * SIDE / SLOT), false);
                let high = value(0);
                let low = (self.precision == OperandPrecision::Split).then(|| value(1));
                for (sum, weights) in sums.iter_mut().zip(weights) {
                    let weights = &weights.fragments[j as usize];
                    if let Some(low) = low {
                        *sum = weights[1].matrix_mul_add(high, *sum);
                        *sum = weights[0].matrix_mul_add(low, *sum);
                    }
                    *sum = weights[0].matrix_mul_add(high, *sum);
                }
            }
            for (i, block) in blocks.iter().enumerate() {
                let sum = unscale.map_or(sums[i], |by| {
                    let parts = old[i].matrix_parts().into_iter().zip(sums[i].matrix_parts()).enumerate();
                    let shrink = &weights[i].shrink;
                    let parts: Vec<Val<'k>> =
                        parts.map(|(part, (old, new))| old.fma(shrink[row_of(part)], new * by)).collect();
                    k.matrix_of(self.sum, &parts)
                });
                block.values[n as usize].set(sum);
            }
        }
    }

    /// Writes a block's rows.
    fn finish(&self, place: &WorkgroupCoord<'k>, range: &Range<'k>, block: &Block<'k>) {
        let k = self.k;
        let sums: Vec<Val<'k>> =
            block.sums.iter().map(|s| k.cluster_reduce(4, s.get(), Reduction::Add)).collect();
        let values: Vec<Vec<Val<'k>>> = block.values.iter().map(|v| v.get().matrix_parts()).collect();
        self.args.write_to(range, |to| {
            for (i, row) in block.rows.iter().enumerate() {
                let maximum = block.maxima[i].get();
                k.if_(row.number.lt(self.args.rows), || {
                    let (out, start, width, scale) = match to {
                        DeclaredAttentionTarget::Target(out) => {
                            let start = self.args.target_row(place, row) * self.p.value_dim;
                            let scale = normaliser(maximum, sums[i], self.args.sink(row));
                            (out, start, self.p.value_dim as u32, Some(scale))
                        }
                        DeclaredAttentionTarget::Partial { values, sums: of_rows } => {
                            let part = self.args.part(place, row);
                            let width = fours(self.p.value_dim) * 4;
                            let first = (k.lane() % 4u32).eq(0);
                            k.if_(first, || of_rows.store_vec(part * 2, &[maximum, sums[i]]));
                            (values, part * width, width, None)
                        }
                    };
                    for (n, parts) in values.iter().enumerate() {
                        for first in (0..parts.len()).step_by(2).filter(|part| row_of(*part) == i) {
                            let pair = [parts[first], parts[first + 1]];
                            let pair = pair.map(|v| scale.map_or(v, |by| v * by));
                            self.store(out, start, (n as u32 * SIDE, self.column(first)), width, pair);
                        }
                    }
                });
            }
        });
    }

    /// Stores two neighbours of a row of `width` elements: those at a column of the matrix from `first` on.
    fn store(
        &self,
        out: Buf<'k>,
        start: Val<'k>,
        (first, column): (u32, Val<'k>),
        width: u32,
        pair: [Val<'k>; 2],
    ) {
        let k = self.k;
        let (whole, column) = (first + SIDE <= width, column + first);
        if width.is_multiple_of(2) {
            let put = || out.store_vec(start + column, &pair);
            return if whole { put() } else { k.if_(column.lt(width), put) };
        }
        for (i, value) in pair.into_iter().enumerate() {
            let at = column + i;
            let put = || out.store(start + at, value);
            if whole { put() } else { k.if_(at.lt(width), put) }
        }
    }
}
