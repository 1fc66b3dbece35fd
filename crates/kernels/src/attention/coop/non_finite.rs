//! The path of workgroups whose operands have Inf or NaN: one row and one key at a time. A weight of 0 skips its value,
//! since 0 · Inf would be NaN.

use olivine_kernel::{Buf, Builder, Scalar, Val};

use super::super::args::{AttentionArgs, DeclaredAttentionTarget, WorkgroupCoord};
use super::super::problem::Problem;
use super::super::softmax::{base, exp2_below, lowest, normaliser};
use super::super::tile::fours;
use super::super::visible::Range;
use super::LANES;
use super::staging::Slots;

/// q, k and v, and how their elements are loaded.
pub(in super::super) struct Operands<'a, 'k> {
    pub(in super::super) q: (&'a Slots<'k>, Buf<'k>),
    pub(in super::super) k: (&'a Slots<'k>, Buf<'k>),
    pub(in super::super) v: (&'a Slots<'k>, Buf<'k>),
}

/// Computes and writes `rows` rows from `first` on, one after another; the lanes of the subgroup share the elements.
pub(in super::super) fn rows<'k>(
    k: &'k Builder,
    p: &Problem<'_>,
    args: &AttentionArgs<'k, '_>,
    operands: &Operands<'_, 'k>,
    place: &WorkgroupCoord<'k>,
    range: &Range<'k>,
    length: Val<'k>,
    (first, rows): (Val<'k>, u32),
) {
    let ((q, queries), (keys, of_keys), (values, of_values)) = (operands.q, operands.k, operands.v);
    let elements = |width: usize| -> Vec<(Val<'k>, Val<'k>)> {
        let each = (width as u32).div_ceil(LANES);
        (0..each)
            .map(|i| {
                let at = k.lane() + i * LANES;
                (at.min(width - 1), at.lt(width))
            })
            .collect()
    };
    let (depths, columns) = (elements(p.dim), elements(p.value_dim));
    let zero = k.f32(0.0);
    let starts = (keys.start(place.batch, place.kv_head), values.start(place.batch, place.kv_head));
    let end = args.rows.min(first + rows);
    k.for_(first, end, k.u32(1), |number| {
        let row = args.row_at(place, number, length);
        let mask_row = args.mask_row(place, &row);
        let start = q.row(q.start(place.batch, row.head), row.query);
        let query: Vec<Val<'k>> =
            depths.iter().map(|(at, inside)| inside.select(q.number(queries, start, *at), zero)).collect();
        let (maximum, sum) = (k.var(k.f32(lowest(Scalar::F32) as f32)), k.var(zero));
        let sums: Vec<_> = columns.iter().map(|_| k.var(zero)).collect();
        k.for_(row.first.max(range.begin), row.end.min(range.end), k.u32(1), |key| {
            let at = keys.row(starts.0, key);
            let products = depths.iter().zip(&query).map(|((depth, inside), q)| {
                let key = keys.number(of_keys, at, *depth);
                inside.select(*q * key, zero)
            });
            let product = k.subgroup_sum(products.reduce(|a, b| a + b).unwrap_or(zero));
            let score = args.score(product, mask_row, key);
            let old = maximum.get();
            let new = old.max(score);
            let from = base(new);
            let (shrink, weight) = (exp2_below(old - from), exp2_below(score - from));
            maximum.set(new);
            sum.set(sum.get().fma(shrink, weight));
            let at = values.row(starts.1, key);
            for ((column, _), sum) in columns.iter().zip(&sums) {
                let shrunk = sum.get() * shrink;
                let more = weight.fma(values.number(of_values, at, *column), shrunk);
                sum.set(weight.ne(0).select(more, shrunk));
            }
        });
        args.write_to(range, |target| {
            let (out, to, scale) = match target {
                DeclaredAttentionTarget::Target(out) => {
                    let scale = normaliser(maximum.get(), sum.get(), args.sink(&row));
                    (out, args.target_row(place, &row) * p.value_dim, scale)
                }
                DeclaredAttentionTarget::Partial { values, sums } => {
                    let part = args.part(place, &row);
                    k.if_(k.lane().eq(0), || sums.store_vec(part * 2, &[maximum.get(), sum.get()]));
                    (values, part * (fours(p.value_dim) * 4), k.f32(1.0))
                }
            };
            for ((column, inside), sum) in columns.iter().zip(&sums) {
                k.if_(*inside, || out.store(to + *column, sum.get() * scale));
            }
        });
    });
}
