//! Which batches of an f32 matmul have rows or columns that f16 parts serve badly: other kernels compute these.

use olivine_kernel::{Access, Elem};

use super::kernel::walk;
use super::pack::Packed;
use crate::launch::Launch;
use crate::matmul::problem::Problem;
use crate::matmul::split_f32::split::OUTLIER;
use crate::site::{Memory, Site, linear_group};

/// A word for every batch, not 0 where a scale of either operand is marked.
pub(super) fn find(
    problem: &Problem<'_>,
    a: &Packed,
    b: &Packed,
    site: &mut Site<'_>,
) -> Result<Memory, String> {
    let batches = problem.batches();
    let flags = site.scratch(4 * batches);
    let group = site.group_size(1024);
    let k = site.builder("matmul_warpgroup_outliers", group);
    let l = Launch::new(&k);
    let mut sides = Vec::new();
    for (name, packed) in [("a", a), ("b", b)] {
        let words = l.bind(name, Elem::U32, Access::Read, packed.memory);
        sides.push((
            words,
            l.size(&format!("{name}_words"), packed.words),
            l.size(&format!("{name}_scales"), packed.scales),
        ));
    }
    let out = l.bind("flags", Elem::U32, Access::Write, flags);
    let total = l.size("batches", batches);
    let walker = walk(problem, [Some(a), Some(b)]).declare(&l, &[0usize; 2]);
    let batch = linear_group(&k);
    k.if_(batch.lt(total), || {
        let all = k.var(k.u32(0));
        for ((words, first, count), number) in sides.into_iter().zip(walker.at(batch)) {
            let first = first + number * count;
            k.for_(k.local_index() * 4u32, count, k.u32(4 * group), |position| {
                let some = words.load_vec(first + position, 4);
                all.set(some.into_iter().fold(all.get(), |all, scale| all | scale));
            });
        }
        let all = k.group_reduce_with(all.get(), |a, b| a | b);
        let marked = all.ge(OUTLIER).select(k.u32(1), k.u32(0));
        k.if_(k.local_index().eq(0u32), || out.store(batch, marked));
    });
    let bound = l.done();
    site.dispatch(k, bound, batches, (0, 4 * (problem.m + problem.n) * batches))?;
    Ok(flags)
}
