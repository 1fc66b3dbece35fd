//! The second dispatch where keys are split: the ranges' partial results become one.

use olivine_kernel::{Access, Elem};

use super::args::AttentionTarget;
use super::problem::Problem;
use super::softmax::{base, exp2_below, lowest, normaliser};
use super::tile::fours;
use crate::launch::{Launch, bytes};
use crate::math;
use crate::site::{Site, linear_group};

/// Emits the combination of a [`Sink::Partial`]; an invocation takes four elements of a row.
pub(super) fn emit(p: &Problem<'_>, sink: &AttentionTarget, site: &mut Site<'_>) -> Result<(), String> {
    let AttentionTarget::Partial { values, sums, splits } = sink else { return Ok(()) };
    let groups = fours(p.value_dim);
    let count = p.batch * p.kv_heads * p.rows() * groups;
    let group = site.group_size(128);
    let k = site.builder("attention_combine", group);
    let l = Launch::new(&k);
    let elem = math::elem(p.partial());
    let (parts, sums) =
        (l.bind("part_values", elem, Access::Read, *values), l.bind("part_sums", elem, Access::Read, *sums));
    let sinks = p.sinks.as_ref().map(|s| l.read("sinks", s));
    let out = l.write("out", &p.target);
    let n = l.size("n", count);
    let (rows, of_kv, splits) =
        (l.size("rows", p.rows()), l.size("group", p.group()), l.size("splits", *splits));
    let (kv_heads, heads, queries) =
        (l.size("kv_heads", p.kv_heads), l.size("heads", p.heads), l.size("queries", p.queries));

    let work = linear_group(&k) * group + k.local_index();
    k.if_(work.lt(n), || {
        let (row, four) = (work / groups, work % groups);
        let first = row * splits;
        let maximum = k.var(k.number(p.scalar, lowest(p.scalar)));
        k.for_(k.u32(0), splits, k.u32(1), |split| {
            maximum.set(maximum.get().max(sums.load((first + split) * 2)))
        });
        let from = base(maximum.get());
        let total = k.var(k.number(p.scalar, 0.0));
        let values: Vec<_> = (0..4).map(|_| k.var(k.number(p.scalar, 0.0))).collect();
        k.for_(k.u32(0), splits, k.u32(1), |split| {
            let of = sums.load_vec((first + split) * 2, 2);
            let factor = exp2_below(of[0] - from);
            total.set(of[1].fma(factor, total.get()));
            let at = (first + split) * (groups * 4) + four * 4;
            let part = match elem {
                Elem::F64 => (0..4).map(|i| parts.load(at + i)).collect(),
                _ => parts.load_vec(at, 4),
            };
            for (sum, part) in values.iter().zip(part) {
                sum.set(part.fma(factor, sum.get()));
            }
        });
        let (pair, number) = (row / rows, row % rows);
        let (query, head) = (number / of_kv, pair % kv_heads * of_kv + number % of_kv);
        let sink = sinks.map(|s| s.load(head) * std::f64::consts::LOG2_E);
        let scale = normaliser(maximum.get(), total.get(), sink);
        let to = super::target_row(p.op.layout, pair / kv_heads, head, query, heads, queries);
        let results: Vec<_> = values.iter().map(|v| v.get() * scale).collect();
        let start = to * p.value_dim + four * 4;
        if p.value_dim.is_multiple_of(4) && out.elem() != Elem::F64 {
            return out.store_vec(start, &results);
        }
        for (i, result) in results.iter().enumerate() {
            k.if_((four * 4 + i).lt(p.value_dim), || out.store(start + i, *result));
        }
    });
    let bound = l.done();
    site.dispatch(k, bound, count.div_ceil(group), (0, bytes(&p.target.ty)))
}
