//! The kernel: one thread copies slots of k and v into a ring, two warpgroups hold 64 rows of q each and walk over the keys.

use olivine_ir::op::MaskKind;
use olivine_kernel::{Access, Buf, Builder, Elem, Reduction, Scalar, SubgroupOp, Val, Var};

use super::super::args::{AttentionArgs, AttentionTarget, WorkgroupCoord};
use super::super::coop::non_finite::{self, Operands};
use super::super::coop::operands::OperandPrecision;
use super::super::coop::staging::Slots;
use super::super::problem::Problem;
use super::super::softmax::{base, lowest, normaliser};
use super::super::visible::{Range, Row};
use super::pack::{self, V_SUBGROUPS};
use super::{Cut, GROUP, KEYS, MULTIPLIERS, REGISTERS, ROWS, SLOT, SLOTS, STEP, TILES};
use crate::launch::Launch;
use crate::math;
use crate::ring::{Ring, RingReader, RingWriter};
use crate::site::{Operand, Site};

/// Rows of a lane.
const PAIR: usize = 2;

/// Emits the kernel and what packs its operands.
pub(in super::super) fn emit(p: &Problem<'_>, site: &mut Site<'_>) -> Result<(), String> {
    let packed = pack::emit(p, site)?;
    let tiles = p.rows().div_ceil(ROWS);
    let count = p.batch * p.kv_heads * tiles;
    let groups = count.min(site.caps.processor_count());
    let precision = OperandPrecision::Whole(math::elem(p.q.ty.dtype));

    let k = site.builder("attention_warpgroup", GROUP);
    let l = Launch::new(&k);
    let read =
        |name: &str, operand: &Operand, pages| Slots::read(&l, name, p.op.layout, operand, pages, precision);
    let args = AttentionArgs::declare(&l, p, &AttentionTarget::Target);
    let q = read("q", &p.q, None);
    let wild = packed.wild.map(|memory| {
        let pages = p.page_table(&l);
        let (keys, values) = (read("k", &p.k, pages), read("v", &p.v, pages));
        let numbers = [("q", &q, &p.q), ("k", &keys, &p.k), ("v", &values, &p.v)]
            .map(|(name, slots, operand)| slots.numbers(&l, &format!("{name}_numbers"), operand));
        let met = l.bind("wild", Elem::U32, Access::Read, memory);
        NonFinite { met, keys, values, numbers }
    });
    let bind = |name: &str, memory| l.bind(name, Elem::U32, Access::Read, memory);
    let kernel = Kernel {
        k: &k,
        p,
        cut: Cut::of(p),
        elem: precision.elem(),
        args,
        q,
        wild,
        packed: [bind("packed_k", packed.k), bind("packed_v", packed.v)],
        key_tiles: l.size("key_tiles", pack::tiles(p)),
        count: l.size("count", count),
        tiles: l.size("tiles", tiles),
        kv_heads: l.size("kv_heads", p.kv_heads),
        ring: Ring::declare(&k, SLOTS, SLOT),
    };
    kernel.ring.init(MULTIPLIERS);
    k.roles(vec![
        (MULTIPLIERS, REGISTERS[0], Box::new(|| kernel.multiply())),
        (GROUP / 32 - MULTIPLIERS, REGISTERS[1], Box::new(|| kernel.copy())),
    ]);
    let bound = l.done();
    site.dispatch(k, bound, groups, p.cost())
}

/// Where keys may be masked, a weight of 0 must not look at values that are not finite.
struct NonFinite<'k> {
    /// What packing found.
    met: Buf<'k>,
    keys: Slots<'k>,
    values: Slots<'k>,
    /// The elements of q, k and v as numbers.
    numbers: [Buf<'k>; 3],
}

struct Kernel<'k, 'p> {
    k: &'k Builder,
    p: &'p Problem<'p>,
    cut: Cut,
    elem: Elem,
    args: AttentionArgs<'k, 'p>,
    q: Slots<'k>,
    wild: Option<NonFinite<'k>>,
    /// Of k and of v.
    packed: [Buf<'k>; 2],
    /// Tiles of keys of a kv head.
    key_tiles: Val<'k>,
    /// Tiles of rows of all kv heads, and of one.
    count: Val<'k>,
    tiles: Val<'k>,
    kv_heads: Val<'k>,
    ring: Ring<'k>,
}

/// What a lane knows of its two rows.
struct Rows<'k> {
    rows: Vec<Row<'k>>,
    /// Fragments of q, four words of each k-step.
    q: Vec<[Var<'k>; 4]>,
    maxima: Vec<Var<'k>>,
    /// Over the keys of this lane only until the end.
    sums: Vec<Var<'k>>,
    /// Accumulators of the weighted values.
    values: Vec<Var<'k>>,
}

impl<'k> Kernel<'k, '_> {
    /// Calls `work` with every tile of rows of this workgroup and the keys that some of the rows see.
    fn each_tile(&self, work: impl FnOnce(&WorkgroupCoord<'k>, Val<'k>, &Range<'k>)) {
        let k = self.k;
        k.for_(k.group_id(0), self.count, k.group_count(0), |number| {
            let place = WorkgroupCoord::of(number, self.tiles, k.u32(1), self.kv_heads);
            let length = self.args.visible.length_in_subgroup(place.batch);
            self.args.with_range(&place, TILES, length, |range| work(&place, length, &range));
        });
    }

    /// One thread copies the slots of k and v, tile after tile, as slots of the ring become empty.
    fn copy(&self) {
        let (k, cut) = (self.k, self.cut);
        let writer: RingWriter<'k> = self.ring.writer();
        self.each_tile(|place, _, range| {
            k.if_(k.local_index().eq(MULTIPLIERS * 32), || {
                k.for_(range.begin, range.end, k.u32(KEYS), |key| {
                    let wide = |x: Val<'k>| x.convert(Scalar::U64);
                    let tile = wide(place.pair) * wide(self.key_tiles) + wide(key / KEYS);
                    let put = |packed: Buf<'k>, slots: u32, bytes: u32| {
                        for slot in 0..slots {
                            let words = bytes / 4;
                            let from = tile * wide(k.u32(slots * words)) + wide(k.u32(slot * words));
                            writer.copy(packed, from, bytes);
                        }
                    };
                    put(self.packed[0], cut.k_slots, SLOT);
                    put(self.packed[1], cut.v_slots(), cut.v_bytes());
                });
            });
        });
    }

    /// The warpgroups multiply what has come.
    fn multiply(&self) {
        let k = self.k;
        let reader = self.ring.reader();
        let number = |x: f64| k.number(Scalar::F32, x);
        let zeros = |count: u32, x: Val<'k>| -> Vec<Var<'k>> { (0..count).map(|_| k.var(x)).collect() };
        let fragments = |count: u32| -> Vec<[Var<'k>; 4]> {
            (0..count).map(|_| std::array::from_fn(|_| k.var(k.u32(0)))).collect()
        };
        let scores = zeros(KEYS / 2, number(0.0));
        let weights = fragments(KEYS / STEP);
        let (q, values) = (fragments(2 * self.cut.k_slots), zeros(self.cut.v_width / 2, number(0.0)));
        self.each_tile(|place, length, range| {
            let first = place.tile * ROWS + k.subgroup_id() * 16u32;
            let row = |i: u32| {
                let row = self.args.row_at(place, first + k.lane() / 4u32 + i * 8, length);
                Row { end: row.end.min(range.end), ..row }
            };
            let rows = Rows {
                rows: (0..PAIR as u32).map(row).collect(),
                q: q.clone(),
                maxima: zeros(PAIR as u32, number(lowest(Scalar::F32))),
                sums: zeros(PAIR as u32, number(0.0)),
                values: values.clone(),
            };
            values.iter().for_each(|sum| sum.set(number(0.0)));
            self.load_queries(place, &rows);
            k.for_(range.begin, range.end, k.u32(KEYS), |key| {
                self.dot_products(&reader, &rows, &scores);
                self.weigh(place, range, &rows, key, &scores, &weights);
                self.accumulate(&reader, &rows, &weights);
            });
            let finish = || self.finish(place, &rows);
            match &self.wild {
                None => finish(),
                Some(wild) => self.finish_checked(wild, place, length, range, first, finish),
            }
            // Stores are for some lanes only; multiplies are for all of them together.
            k.subgroup_barrier();
        });
    }

    /// Loads this lane's rows of q as fragments: of every 32 elements eight neighbours.
    fn load_queries(&self, place: &WorkgroupCoord<'k>, rows: &Rows<'k>) {
        let k = self.k;
        for (i, row) in rows.rows.iter().enumerate() {
            let start = self.q.row(self.q.start(place.batch, row.head), row.query);
            for (slot, steps) in (0..).zip(rows.q.chunks(2)) {
                let words = self.q.load(start, k.lane() % 4u32 + 4 * slot, 4 * self.cut.k_slots);
                for (at, word) in words.into_iter().enumerate() {
                    // Word 2s + h is of k-step s: of both rows in half 0 of it, then of both in half 1.
                    steps[at / 2][2 * (at % 2) + i].set(word);
                }
            }
        }
    }

    /// The dot products of the rows with a tile of keys.
    fn dot_products(&self, reader: &RingReader<'k>, rows: &Rows<'k>, scores: &[Var<'k>]) {
        let k = self.k;
        reader.multiply_by(self.cut.k_slots, |slot, memory, first| {
            for (step, left) in (0..).zip(&rows.q[2 * slot as usize..][..2]) {
                let right = k.warpgroup_operand(memory, first + step * (SLOT / 32), [128, 256]);
                let adds = k.bool(slot > 0 || step > 0);
                k.warpgroup_multiply([self.elem; 2], scores, *left, right, adds);
            }
        });
    }

    /// Whether scores are nothing but scaled dot products, whose order the scale keeps.
    fn is_plain(&self) -> bool {
        let op = self.p.op;
        op.softcap.is_none() && op.mask == MaskKind::None && op.scale_for(self.p.dim) > 0.0
    }

    /// Turns dot products into weights relative to the rows' new maxima, and shrinks what was accumulated before.
    fn weigh(
        &self,
        place: &WorkgroupCoord<'k>,
        range: &Range<'k>,
        rows: &Rows<'k>,
        key: Val<'k>,
        scores: &[Var<'k>],
        weights: &[[Var<'k>; 4]],
    ) {
        let k = self.k;
        let row_of = |i: usize| i / 2 % 2;
        // The key of a lane's i-th element.
        let column = |i: usize| key + k.lane() % 4u32 * 2u32 + (i as u32 / 4 * 8 + i as u32 % 2);
        let plain = self.is_plain();
        if !plain {
            let mask_rows: Vec<_> = rows.rows.iter().map(|row| self.args.mask_row(place, row)).collect();
            for (i, score) in scores.iter().enumerate() {
                let key = column(i).min(range.end - 1);
                score.set(self.args.score(score.get(), mask_rows[row_of(i)], key));
            }
        }
        k.if_(!range.all_seen(key, KEYS), || {
            for (i, score) in scores.iter().enumerate() {
                let sees = self.args.sees(&rows.rows[row_of(i)], column(i));
                // Scaled later, or not at all.
                let least = if plain { f64::NEG_INFINITY } else { lowest(Scalar::F32) };
                score.set(sees.select(score.get(), k.number(Scalar::F32, least)));
            }
        });
        let scale = plain.then(|| self.args.scale());
        let mut from = Vec::with_capacity(PAIR);
        for (row, maximum) in rows.maxima.iter().enumerate() {
            let mine = (0..scores.len()).filter(|i| row_of(*i) == row).map(|i| scores[i].get());
            let old = maximum.get();
            let top = mine.reduce(|a, b| a.max(b)).unwrap_or(old);
            let top = k.cluster_reduce(4, top, Reduction::Max);
            let new = old.max(scale.map_or(top, |by| top * by));
            maximum.set(new);
            from.push(base(new));
            let shrink = (old - from[row]).exp2_native();
            rows.sums[row].set(rows.sums[row].get() * shrink);
            let values = rows.values.iter().enumerate().filter(|(i, _)| row_of(*i) == row);
            values.for_each(|(_, sum)| sum.set(sum.get() * shrink));
        }
        let mut sums: Vec<Val<'k>> = rows.sums.iter().map(|sum| sum.get()).collect();
        for (step, words) in weights.iter().enumerate() {
            for (word, var) in words.iter().enumerate() {
                let row = word % 2;
                // Two neighbouring keys of a row; the other half of the k-step is the next block of 8.
                let at = 8 * step + word / 2 * 4 + 2 * row;
                let pair = [at, at + 1].map(|i| {
                    let score = scores[i].get();
                    let weight = scale.map_or_else(|| score - from[row], |by| score.fma(by, -from[row]));
                    let weight = weight.exp2_native();
                    sums[row] = sums[row] + weight;
                    weight
                });
                var.set(self.packed_pair(pair));
            }
        }
        rows.sums.iter().zip(sums).for_each(|(var, sum)| var.set(sum));
    }

    /// Two numbers as a word of 16-bit elements.
    fn packed_pair(&self, [a, b]: [Val<'k>; 2]) -> Val<'k> {
        match self.elem {
            Elem::BF16 => {
                let bits = |x| math::round_to(x, olivine_ir::DType::BF16).bitcast(Scalar::U32);
                (bits(a) >> 16u32) | bits(b)
            }
            _ => a.pack_half(b),
        }
    }

    /// Adds the weighted values of a tile of keys.
    fn accumulate(&self, reader: &RingReader<'k>, rows: &Rows<'k>, weights: &[[Var<'k>; 4]]) {
        let (k, cut) = (self.k, self.cut);
        let steps = (cut.v_keys / STEP) as usize;
        reader.multiply_by(cut.v_slots(), |slot, memory, first| {
            for (step, left) in (0..).zip(&weights[slot as usize * steps..][..steps]) {
                let first = first + step * (STEP * cut.v_width * 2 / 16);
                let right = k.warpgroup_operand(memory, first, [128, 256]);
                k.warpgroup_multiply([self.elem; 2], &rows.values, *left, right, k.bool(true));
            }
        });
    }

    /// Writes the rows, or computes them again one key at a time where v has numbers that are not finite.
    fn finish_checked(
        &self,
        wild: &NonFinite<'k>,
        place: &WorkgroupCoord<'k>,
        length: Val<'k>,
        range: &Range<'k>,
        first: Val<'k>,
        finish: impl FnOnce(),
    ) {
        let k = self.k;
        let each = self.cut.v_slots() * V_SUBGROUPS;
        let tile = |key: Val<'k>| (place.pair * self.key_tiles + key / KEYS) * each;
        let tiles = (range.end - range.begin + (KEYS - 1)) / KEYS;
        let met = k.var(k.u32(0));
        let begin = tile(range.begin);
        k.for_(begin, begin + tiles * each, k.u32(32), |at| {
            let at = (at + k.lane()).min(begin + tiles * each - 1u32);
            met.set(met.get() | wild.met.load(at));
        });
        let [q, keys, values] = wild.numbers;
        let operands = Operands { q: (&self.q, q), k: (&wild.keys, keys), v: (&wild.values, values) };
        let slowly = || {
            non_finite::rows(k, self.p, &self.args, &operands, place, range, length, (first, 16));
        };
        k.if_else(met.get().ne(0).subgroup(SubgroupOp::Any), slowly, finish);
    }

    /// Writes this lane's rows: of each 16 columns four neighbours.
    fn finish(&self, place: &WorkgroupCoord<'k>, rows: &Rows<'k>) {
        let (k, width) = (self.k, self.p.value_dim as u32);
        let sums: Vec<Val<'k>> =
            rows.sums.iter().map(|s| k.cluster_reduce(4, s.get(), Reduction::Add)).collect();
        let out = self.args.target();
        for (i, row) in rows.rows.iter().enumerate() {
            let scale = normaliser(rows.maxima[i].get(), sums[i], self.args.sink(row));
            k.if_(row.number.lt(self.args.rows), || {
                let start = self.args.target_row(place, row) * width;
                for (block, sums) in (0u32..).zip(rows.values.chunks(8)) {
                    let four = [0, 1, 4, 5].map(|j| sums[2 * i + j].get() * scale);
                    let column = k.lane() % 4u32 * 4u32 + block * STEP;
                    if width.is_multiple_of(4) {
                        let put = || out.store_vec(start + column, &four);
                        if (block + 1) * STEP <= width {
                            put()
                        } else {
                            k.if_(column.lt(width), put)
                        }
                        continue;
                    }
                    for (j, value) in (0u32..).zip(four) {
                        k.if_((column + j).lt(width), || out.store(start + column + j, value));
                    }
                }
            });
        }
    }
}
