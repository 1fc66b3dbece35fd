//! Softmax and its logarithm along any axis.
//!
//! Rows that fit in registers are read once and written once. Others, and columns, have their maxima and sums folded
//! first; a second kernel writes the results.

use olivine_kernel::{Access, Reduction, Val};

use super::reduce::{self, Folded, LogSumExp};
use super::rows::{Clusters, GROUP, RowTile, vector, wide};
use crate::lower::launch::{Launch, bytes};
use crate::lower::site::{Operand, Site, Target, linear_group};
use crate::math;

/// Lowers a softmax, or its logarithm.
pub(crate) fn softmax(axis: usize, log: bool, site: &mut Site<'_>) -> Result<(), String> {
    let (x, y) = (site.operands[0].clone(), site.targets[0].clone());
    let dims = x.dims();
    let n = dims.get(axis).copied().ok_or_else(|| format!("there is no axis {axis}"))?;
    reduce::admit(x.ty.dtype, site)?;
    if x.ty.shape.numel() == 0 {
        return Ok(());
    }
    let inner: usize = dims[axis + 1..].iter().product();
    match RowTile::new(n, x.ty.dtype, site.group_size(1024)) {
        Some(tile) if inner == 1 => in_registers(tile, n, log, &x, &y, site),
        _ => in_two_steps(axis, inner, log, &x, &y, site),
    }
}

/// What the kernels of both ways are called.
fn name(log: bool, way: &str) -> String {
    format!("{}softmax_{way}", if log { "log_" } else { "" })
}

/// Flops and bytes: a subtraction, an exponential, a sum and a scaling for every element.
fn cost(x: &Operand, y: &Target) -> (u64, u64) {
    (4 * x.ty.shape.numel() as u64, bytes(&x.ty) + bytes(&y.ty))
}

fn in_registers(
    tile: RowTile,
    n: usize,
    log: bool,
    x: &Operand,
    y: &Target,
    site: &mut Site<'_>,
) -> Result<(), String> {
    let rows = x.ty.shape.numel() / n;
    let k = site.builder(&name(log, "rows"), tile.group);
    let l = Launch::new(&k);
    let (source, sink) = (l.read("x", x), l.write("y", y));
    let (count, length) = (l.size("rows", rows), l.size("n", n));
    let (row, lane) = tile.place(linear_group(&k));
    let base = row.min(count - 1) * length;
    let lanes = tile.lanes;

    let scalar = wide(x.ty.dtype);
    let lowest = k.number(scalar, f64::NEG_INFINITY);
    let mut held: Vec<(Val<'_>, Vec<Val<'_>>)> = Vec::new();
    for i in 0..tile.loads {
        let at = tile.position(lane, i);
        // Loads past the end repeat the row's last vector, so that none waits for a branch.
        let values = source.load_vec(base + at.min(length - lanes), lanes as u8);
        let inside = at.lt(length);
        held.push((at, values.into_iter().map(|v| inside.select(v, lowest)).collect()));
    }
    let clusters = Clusters::new(&k, tile.width);
    let max = held.iter().flat_map(|(_, v)| v.iter().copied()).reduce(|a, b| a.max(b)).unwrap_or(lowest);
    // A NaN may get lost here: it comes back in the sum.
    let max = clusters.join_one(max, |a, b| Reduction::Max.apply(a, b));
    let mut sums = Vec::new();
    for (at, values) in &mut held {
        let inside = at.lt(length);
        let mut terms = Vec::with_capacity(values.len());
        for v in values.iter_mut() {
            // Where the largest is the value itself, a compiler that expects no ∞ would make this 0 of ∞ - ∞.
            let distance = *v - max.opaque();
            let term = math::exp(distance);
            *v = if log { distance } else { term };
            // Of a row of −∞ every distance is NaN, and so is what lies past its end.
            terms.push(inside.select(term, k.number(scalar, 0.0)));
        }
        sums.push(super::rows::sum(terms));
    }
    let sum = clusters.join_one(super::rows::sum(sums), |a, b| a + b);
    let scale = if log { math::log(sum) } else { sum.like(1.0) / sum };
    let live = row.lt(count);
    for (at, values) in &held {
        k.if_(live & at.lt(length), || {
            let results: Vec<Val<'_>> =
                values.iter().map(|v| if log { *v - scale } else { *v * scale }).collect();
            sink.store_vec(base + *at, &results);
        });
    }
    let bound = l.done();
    site.dispatch(k, bound, tile.groups(rows), cost(x, y))
}

fn in_two_steps(
    axis: usize,
    inner: usize,
    log: bool,
    x: &Operand,
    y: &Target,
    site: &mut Site<'_>,
) -> Result<(), String> {
    let n = x.dims()[axis];
    let numel = x.ty.shape.numel();
    let states = reduce::states(&LogSumExp(x.ty.dtype), x, Folded::packed(x.dims(), &[axis]), site)?;
    let vector = vector(x.ty.dtype);
    let run = if inner == 1 { n } else { inner };
    let lanes = if run.is_multiple_of(vector) { vector } else { 1 };

    let group = site.group_size(GROUP);
    let k = site.builder(&name(log, "apply"), group);
    let l = Launch::new(&k);
    let (source, sink) = (l.read("x", x), l.write("y", y));
    let arrays = states.bind(&l, Access::Read);
    let (count, length) = (l.size("vectors", numel / lanes), l.size("n", n));
    let work = linear_group(&k) * group + k.local_index();
    let columns = (inner > 1).then(|| l.size("inner", inner));
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
        let results: Vec<Val<'_>> = values
            .iter()
            .enumerate()
            .map(|(i, v)| {
                let (max, sum) = (states[0][i], states[1][i]);
                // A row whose largest is infinite has no softmax.
                let sum = math::is_inf(max).select(sum.like(f64::NAN), sum);
                let distance = *v - max.opaque();
                if log { distance - math::log(sum) } else { math::exp(distance) / sum }
            })
            .collect();
        sink.store_vec(at, &results);
    });
    let bound = l.done();
    site.dispatch(k, bound, (numel / lanes).div_ceil(group as usize) as u64, cost(x, y))
}
