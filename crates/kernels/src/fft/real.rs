//! Real signals of even length as complex ones of half the length: joined before, parted after.

use olivine_ir::product;
use olivine_kernel::Access;
use olivine_numerics::fft::root;

use super::butterfly::{Complex, minus, plus, times};
use super::stages::pair;
use super::{Problem, element};
use crate::launch::Launch;
use crate::site::{Memory, Site, linear_group};
use crate::walk::Walk;

/// Invocations of a workgroup that parts spectra.
const GROUP: u32 = 256;

/// `e^(−2πi·k/n)` for every k up to n/2.
pub(super) fn roots(n: usize) -> Vec<(f64, f64)> {
    (0..=n / 2).map(|k| root(k, n)).collect()
}

fn conjugate<'k>(a: Complex<'k>) -> Complex<'k> {
    (a.0, -a.1)
}

/// The spectrum of a real signal at k and at n/2 − k, from those of its packed halves there and the root of k.
pub(super) fn parted<'k>(a: Complex<'k>, b: Complex<'k>, root: Complex<'k>) -> [Complex<'k>; 2] {
    let half = |v: Complex<'k>| (v.0 * 0.5, v.1 * 0.5);
    let even = half(plus(a, conjugate(b)));
    // (a − conj b)/2i
    let difference = half(minus(a, conjugate(b)));
    let odd = times((difference.1, -difference.0), root);
    [plus(even, odd), conjugate(minus(even, odd))]
}

/// A packed spectrum's point k, twice, from the real signal's at k and n/2 − k and the root of k.
pub(super) fn joined<'k>(a: Complex<'k>, b: Complex<'k>, root: Complex<'k>) -> Complex<'k> {
    let even = plus(a, conjugate(b));
    let odd = times(minus(a, conjugate(b)), conjugate(root));
    (even.0 - odd.1, even.1 + odd.0)
}

/// Parts spectra of packed signals in scratch, where each has room for `length` numbers, into the target.
pub(super) fn part(
    problem: &Problem,
    memory: Memory,
    length: usize,
    site: &mut Site<'_>,
) -> Result<(), String> {
    let (points, inner) = (problem.points, problem.inner);
    let pairs = points / 2 + 1;
    let dims = [problem.outer, pairs.into(), inner.into()];
    let count = product(&dims);
    let group = site.group_size(GROUP);
    let y = site.targets[0].clone();
    let k = site.builder("fft_halves", group);
    let l = Launch::new(&k);
    let source = l.bind("x", problem.work(), Access::Read, memory);
    let sink = l.bind("y", element(y.ty.dtype), Access::Write, y.memory);
    let table = problem.table(&l, "halves", roots(problem.n), site);
    let inner_stride = inner as i64;
    let strides = [
        vec![length as i64 * inner_stride, 0, 1],
        vec![problem.bins as i64 * inner_stride, 0, 1],
        vec![0, 1, 0],
    ];
    let walker = Walk::new(&dims, &strides).declare(&l, &[0; 3]);
    let (count_val, points_val) = (l.size("count", count), l.size("points", points));
    let inner_val = if inner == 1 { k.u32(1) } else { l.size("inner", inner) };
    let index = linear_group(&k) * group + k.local_index();
    k.if_(index.lt(count_val), || {
        if let [from, to, point] = walker.at(index)[..] {
            let other = points_val - point;
            let mirror = point.eq(0).select(point, other);
            let [a, b] = [point, mirror].map(|at| pair(source, from + at * inner_val));
            let [first, second] = parted(a, b, pair(table, point));
            let [here, there] = [point, other].map(|at| (to + at * inner_val) * 2);
            sink.store_vec(here, &[first.0, first.1]);
            k.if_(other.ne(point), || sink.store_vec(there, &[second.0, second.1]));
        }
    });
    let bytes = 4 * problem.outer * points * inner * problem.work().size();
    let bound = l.done();
    site.dispatch(k, bound, count.div_ceil(group), (10 * count, bytes))
}
