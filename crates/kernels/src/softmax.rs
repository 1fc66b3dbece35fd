//! Softmax and its logarithm along any axis.
//!
//! Rows that fit in registers are read once and written once. Others, and columns, have their maxima and sums folded
//! first; a second kernel writes the results.

use olivine_ir::{Dim, product};
use olivine_kernel::{Access, Reduction, Val};

use super::reduce::{self, Folded, LogSumExp};
use super::rows::{Clusters, GROUP, RowTile, State, pairs, vector, wide};
use crate::kernels;
use crate::launch::{Launch, bytes};
use crate::math;
use crate::site::{Operand, Site, Target, linear_group, reversed_group};

kernels! { |op, site|
    Softmax => softmax(op.axis, false, site),
    LogSoftmax => softmax(op.axis, true, site),
}

/// Lowers a softmax, or its logarithm.
pub(crate) fn softmax(axis: usize, log: bool, site: &mut Site<'_>) -> Result<(), String> {
    let (x, y) = (site.operands[0].clone(), site.targets[0].clone());
    let dims = x.sizes();
    let n = dims.get(axis).copied().ok_or_else(|| format!("there is no axis {axis}"))?;
    reduce::admit(x.ty.dtype, site)?;
    if n == 0 || dims.numel() == 0 {
        return Ok(());
    }
    let inner = product(&dims[axis + 1..]);
    if inner != 1 {
        return in_two_steps(axis, inner, log, &x, &y, site);
    }
    match RowTile::of(n, x.ty.dtype, site.group_size(1024)) {
        Some(tile) => {
            let rows = product(&dims[..axis]);
            let tile = tile.for_rows(rows, &site.caps.target);
            in_registers(tile, (rows, n), log, &x, &y, site)
        }
        None => in_two_steps(axis, inner, log, &x, &y, site),
    }
}

/// What the kernels of both ways are called.
fn name(log: bool, way: &str) -> String {
    format!("{}softmax_{way}", if log { "log_" } else { "" })
}

/// Flops and bytes: a subtraction, an exponential, a sum and a scaling for every element.
fn cost(x: &Operand, y: &Target) -> (Dim, Dim) {
    (4 * x.sizes().numel(), bytes(&x.ty) + bytes(&y.ty))
}

fn in_registers(
    tile: RowTile,
    (rows, n): (Dim, Dim),
    log: bool,
    x: &Operand,
    y: &Target,
    site: &mut Site<'_>,
) -> Result<(), String> {
    let k = site.builder(&name(log, "rows"), tile.group);
    let l = Launch::new(&k);
    let (source, sink) = (l.read("x", x), l.write("y", y));
    let (count, length) = (l.size("rows", rows), l.size("n", n));
    let (numbers, lane) = tile.rows_of(linear_group(&k));
    let lanes = tile.lanes;

    let scalar = wide(x.ty.dtype);
    let lowest = k.number(scalar, f64::NEG_INFINITY);
    let mut held: Vec<SoftmaxRow<'_>> = (numbers.into_iter())
        .map(|row| {
            let base = row.min(count - 1) * length;
            let load = |i: u32| {
                let at = tile.position(lane, i);
                // Loads past the end repeat the row's last vector, so that none waits for a branch.
                let values = source.load_vec(base + at.min(length - lanes), lanes as u8);
                let inside = tile.inside(i, at, length);
                (at, inside, values.into_iter().map(|v| inside.select(v, lowest)).collect())
            };
            SoftmaxRow { live: row.lt(count), base, values: (0..tile.loads).map(load).collect() }
        })
        .collect();
    let clusters = Clusters::once(&k, tile.width);
    // A NaN may get lost here: it comes back in the sum.
    let largest = held.iter().map(|h| h.all().reduce(|a, b| a.max(b)).unwrap_or(lowest)).collect();
    let largest = clusters.join(largest, |a, b| pairs(a, b, |a, b| Reduction::Max.apply(a, b)));
    let mut sums = State::new();
    let mut unit = k.number(scalar, 1.0);
    for (held, largest) in held.iter_mut().zip(largest) {
        // Where the largest is the value itself, a compiler that expects no ∞ would make this 0 of ∞ - ∞.
        let largest = largest.opaque();
        let mut terms = Vec::new();
        for (_, inside, values) in &mut held.values {
            for v in values {
                let distance = *v - largest;
                // All are the same multiple, which the scale takes off.
                let (term, one) = math::exp_multiple(distance);
                unit = one;
                *v = if log { distance } else { term };
                // Of a row of −∞ every distance is NaN, and so is what lies past its end.
                terms.push(inside.select(term, k.number(scalar, 0.0)));
            }
        }
        sums.push(super::rows::sum(terms));
    }
    let sums = clusters.join(sums, |a, b| pairs(a, b, |a, b| a + b));
    for (held, sum) in held.iter().zip(sums) {
        let scale = if log { math::log(sum * unit) } else { sum.like(1.0) / sum };
        for (at, inside, values) in &held.values {
            k.if_(held.live & *inside, || {
                let result = values.iter().map(|v| if log { *v - scale } else { *v * scale });
                sink.store_vec(held.base + *at, &result.collect::<Vec<_>>());
            });
        }
    }
    let bound = l.done();
    site.dispatch(k, bound, tile.groups(rows), cost(x, y))
}

/// What an invocation holds of a row.
struct SoftmaxRow<'k> {
    /// Whether there is such a row.
    live: Val<'k>,
    /// Where the row begins.
    base: Val<'k>,
    /// Positions, whether they are in the row, and the elements from there on.
    values: Vec<(Val<'k>, Val<'k>, Vec<Val<'k>>)>,
}

impl<'k> SoftmaxRow<'k> {
    fn all(&self) -> impl Iterator<Item = Val<'k>> {
        self.values.iter().flat_map(|(_, _, v)| v.iter().copied())
    }
}

fn in_two_steps(
    axis: usize,
    inner: Dim,
    log: bool,
    x: &Operand,
    y: &Target,
    site: &mut Site<'_>,
) -> Result<(), String> {
    // How long rows and columns are folded is chosen by numbers.
    let _ = x.dims();
    let n = x.sizes()[axis];
    let states = reduce::states(&LogSumExp(x.ty.dtype), x, Folded::packed(&x.sizes(), &[axis]), site)?;
    let vector = vector(x.ty.dtype);
    let is_rows = inner == 1;
    let run = if is_rows { n } else { inner };
    let lanes = if run.is_multiple_of(vector) { vector } else { 1 };
    let vectors = x.sizes().numel().div_floor(lanes);

    let group = site.group_size(GROUP);
    let k = site.builder(&name(log, "apply"), group);
    let l = Launch::new(&k);
    let (source, sink) = (l.read("x", x), l.write("y", y));
    let arrays = states.bind(&l, Access::Read);
    let (count, length) = (l.size("vectors", vectors), l.size("n", n));
    let work = reversed_group(&l, vectors.div_ceil(group)) * group + k.local_index();
    let columns = (!is_rows).then(|| l.size("inner", inner));
    k.if_(work.lt(count), || {
        let at = work * lanes;
        let values = source.load_vec(at, lanes as u8);
        let states: Vec<Vec<Val<'_>>> = match columns {
            None => arrays.iter().map(|a| vec![a.load(at / length); lanes]).collect(),
            Some(inner) => {
                let line = at / inner;
                let first = line / length * inner + (at - line * inner);
                arrays.iter().map(|a| a.load_vec(first, lanes as u8)).collect()
            }
        };
        let unit = math::exp_multiple(values[0].like(0.0)).1;
        let scale = |i: usize| {
            let (max, sum) = (states[0][i], states[1][i]);
            // A row whose largest is infinite has no softmax.
            let sum = math::is_inf(max).select(sum.like(f64::NAN), sum);
            (max.opaque(), if log { math::log(sum) } else { sum.like(1.0) / sum * unit })
        };
        // Along a row all have one.
        let scales: Vec<(Val<'_>, Val<'_>)> = match columns {
            None => vec![scale(0); lanes],
            Some(_) => (0..lanes).map(scale).collect(),
        };
        let results: Vec<Val<'_>> = values
            .iter()
            .zip(scales)
            .map(|(v, (max, scale))| {
                let distance = *v - max;
                if log { distance - scale } else { math::exp_multiple(distance).0 * scale }
            })
            .collect();
        sink.store_vec(at, &results);
    });
    let bound = l.done();
    site.dispatch(k, bound, vectors.div_ceil(group), cost(x, y))
}
