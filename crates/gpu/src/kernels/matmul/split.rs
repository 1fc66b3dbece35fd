//! The sum of a split product's parts, in their order, and its epilogue.

use olivine_kernel::{Access, Val};

use crate::kernels::elementwise;
use crate::lower::launch::{Launch, bytes};
use crate::lower::site::{Memory, Operand, Site, linear_group};
use crate::lower::walk::Walk;
use crate::math::{self, Typed};

use super::finish::{settled, sum_elem};
use super::problem::Problem;

/// Emits the sum of `count` parts, each as large as the target and lying like it; no part makes zeros. `extras` are
/// those of the problem, as they broadcast to the target.
pub(super) fn emit(
    problem: &Problem<'_>,
    parts: Memory,
    count: usize,
    extras: &[Operand],
    site: &mut Site<'_>,
) -> Result<(), String> {
    let target = &problem.target;
    let dims = target.ty.shape.dims();
    let mut strides = Vec::with_capacity(extras.len() + 1);
    for operand in extras {
        let over = operand.broadcast_to(dims);
        strides.push(over.ok_or_else(|| format!("{} does not broadcast", operand.ty))?);
    }
    strides.push(target.ty.shape.strides().iter().map(|s| *s as i64).collect());
    let walk = Walk::new(dims, &strides);
    let size = walk.numel();
    let elem = sum_elem(math::elem(problem.dtype()));
    let lanes = elementwise::lanes(&walk, extras, std::slice::from_ref(target));
    let lanes = if size.is_multiple_of(lanes) && elem.size() as usize * lanes <= 16 { lanes } else { 1 };

    let group = site.group_size(256);
    let k = site.builder("matmul_sum", group);
    let l = Launch::new(&k);
    let source = l.bind("parts", elem, Access::Read, parts);
    let riders: Vec<_> = extras.iter().enumerate().map(|(i, o)| l.read(&format!("x{i}"), o)).collect();
    let out = l.write("out", target);
    let (count_of_parts, size_of_part) = (l.size("count", count), l.size("size", size));
    let offsets: Vec<usize> = extras.iter().map(|o| o.offset).chain([0]).collect();
    let walker = walk.declare(&l, &offsets);

    let at = (linear_group(&k) * group + k.local_index()) * lanes;
    k.if_(at.lt(size_of_part), || {
        let zero = k.number(elem.scalar(), 0.0);
        let sums: Vec<_> = (0..lanes).map(|_| k.var(zero)).collect();
        k.for_(k.u32(0), count_of_parts, k.u32(1), |part| {
            let index = part * size_of_part + at;
            let loaded = source.load_vec(index, lanes as u8);
            sums.iter().zip(loaded).for_each(|(sum, x)| sum.set(sum.get() + x));
        });
        let indices = walker.at(at);
        let loaded: Vec<Vec<Val<'_>>> = riders
            .iter()
            .enumerate()
            .map(|(i, rider)| elementwise::load(*rider, indices[i], walk.inner(i), lanes))
            .collect();
        let results: Vec<Val<'_>> = sums
            .iter()
            .enumerate()
            .map(|(lane, sum)| {
                let (bias, further) = if problem.bias { loaded.split_last().unzip() } else { (None, None) };
                let sum = bias.map_or(sum.get(), |bias: &Vec<Val<'_>>| sum.get() + bias[lane]);
                let Some(region) = problem.region else { return sum };
                let mut inputs = vec![settled(sum, problem.dtype())];
                for (values, operand) in further.unwrap_or(&loaded).iter().zip(extras) {
                    inputs.push(Typed { val: values[lane], dtype: operand.ty.dtype });
                }
                math::region(region, &inputs).first().map_or(sum, |result| result.val)
            })
            .collect();
        out.store_vec(at, &results);
    });
    let moved = (size * count) as u64 * u64::from(elem.size())
        + extras.iter().map(|o| bytes(&o.ty)).sum::<u64>()
        + bytes(&target.ty);
    let bound = l.done();
    site.dispatch(
        k,
        bound,
        size.div_ceil(lanes).div_ceil(group as usize) as u64,
        ((size * count) as u64, moved),
    )
}
