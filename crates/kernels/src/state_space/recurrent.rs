//! Step by step: for short sequences, above all a single token. Neighbouring invocations share a column of the state,
//! which stays in their registers.

use olivine_kernel::{Reduction, Val, Var};
use olivine_program::Addressing;

use super::decay::exp2;
use super::heads::{GROUP, Heads, Kind, Sizes};
use crate::launch::{Launch, bytes};
use crate::site::{Site, linear_group};

/// Elements of a key that an invocation keeps where it may choose.
const HELD: usize = 16;
/// The most it keeps.
const MOST: usize = 64;

/// Whether the device can bind all that one dispatch reads and writes.
pub(super) fn binds(p: &Heads, site: &Site<'_>) -> bool {
    let Addressing::Bindings { max_count, .. } = site.caps.addressing else { return true };
    let mut count = 7 + usize::from(p.state.is_some());
    if let Kind::Mamba { skip: Some(_), .. } = p.kind {
        count += 1;
    }
    count <= max_count as usize
}

/// Emits the walk.
pub(super) fn emit(p: &Heads, site: &mut Site<'_>) -> Result<(), String> {
    let lanes = p.dk.div_ceil(HELD).next_power_of_two().min(GROUP as usize);
    let held = p.dk.div_ceil(lanes);
    if held > MOST {
        return Err(format!("keys of {} elements are more than {}", p.dk, MOST * GROUP as usize));
    }
    let lanes = lanes as u32;
    let columns = p.batch * p.heads * p.dv;

    let k = site.builder("state_steps", GROUP);
    let l = Launch::new(&k);
    write(&l, p, lanes, held);
    let groups = columns.div_ceil((GROUP / lanes) as usize);
    let bound = l.done();
    let (flops, moved) = p.cost(3);
    let carried = (1 + u64::from(p.state.is_some())) * bytes(&p.state_out.ty);
    site.dispatch(k, bound, groups as u64, (flops, moved + carried))
}

fn write<'k>(l: &Launch<'k>, p: &Heads, lanes: u32, held: usize) {
    let k = l.k();
    let (queries, keys) = (l.read("queries", &p.queries), l.read("keys", &p.keys));
    let (values, steps) = (l.read("values", &p.values), l.read("steps", &p.steps));
    let state = p.state.as_ref().map(|s| l.read("state", s));
    let (out, state_out) = (l.write("out", &p.out), l.write("state_out", &p.state_out));
    let (rates, skip, betas, scale) = match &p.kind {
        Kind::Mamba { rates, skip } => {
            (Some(l.read("rates", rates)), skip.as_ref().map(|s| l.read("skip", s)), None, None)
        }
        Kind::Delta { betas, scale } => {
            let scale = match p.scalar {
                olivine_kernel::Scalar::F64 => k.f64(*scale),
                _ => l.f32("scale", *scale as f32),
            };
            (None, None, Some(l.read("betas", betas)), Some(scale))
        }
    };
    let sizes = Sizes::declare(l, p);
    let (count, pitch) = (l.size("columns", p.batch * p.heads * p.dv), l.size("cells", p.dk * p.dv));
    let (key_stride, value_stride) = p.state_strides();
    let (key_stride, value_stride) = (l.size("key_stride", key_stride), l.size("value_stride", value_stride));

    let me = k.local_index();
    let (lane, column) = (me % lanes, linear_group(k) * (GROUP / lanes) + me / lanes);
    let live = column.lt(count);
    let column = column.min(count - 1);
    let (pair, v) = (column / sizes.dv, column % sizes.dv);
    let head = sizes.head(pair);
    let zero = k.number(p.scalar, 0.0);
    // This lane's elements of a key; those past the last read as zeros and leave nothing behind.
    let own: Vec<(Val<'k>, Val<'k>)> = (0..held)
        .map(|i| {
            let d = lane + i as u32 * lanes;
            (d.lt(sizes.dk), d.min(sizes.dk - 1))
        })
        .collect();
    let cell = |d: Val<'k>| pair * pitch + d * key_stride + v * value_stride;
    let cells: Vec<Var<'k>> = own
        .iter()
        .map(|(inside, d)| {
            k.var(state.map_or(zero, |s| {
                let loaded = s.load(pair * pitch + *d * key_stride + v * value_stride);
                inside.select(loaded, zero)
            }))
        })
        .collect();
    let rate = rates.map(|r| r.load(head.head));
    let skip = skip.map(|s| s.load(head.head));
    k.for_(k.u32(0), sizes.length, k.u32(1), |t| {
        let step = steps.load(head.step(t));
        let value = values.load(head.value(t) + v);
        let first = head.key(t);
        let row = |rows: olivine_kernel::Buf<'k>| -> Vec<_> {
            own.iter().map(|(inside, d)| inside.select(rows.load(first + *d), zero)).collect()
        };
        let (key, query) = (row(keys), row(queries));
        let exponent = rate.map_or(step, |r| step * r) * std::f64::consts::LOG2_E;
        let decay = exp2(exponent);
        let decayed: Vec<Val<'k>> = cells.iter().map(|c| c.get() * decay).collect();
        let all = |terms: Vec<Val<'k>>| {
            let sum = crate::rows::sum(terms);
            if lanes > 1 { k.cluster_reduce(lanes, sum, Reduction::Add) } else { sum }
        };
        let change = match betas {
            None => step * value,
            Some(betas) => {
                let seen = all(decayed.iter().zip(&key).map(|(s, x)| *s * *x).collect());
                (value - seen) * betas.load(head.step(t))
            }
        };
        let updated: Vec<Val<'k>> = decayed.iter().zip(&key).map(|(s, x)| x.fma(change, *s)).collect();
        cells.iter().zip(&updated).for_each(|(c, s)| c.set(*s));
        let mut result = all(updated.iter().zip(&query).map(|(s, x)| *s * *x).collect());
        if let Some(scale) = scale {
            result = result * scale;
        }
        if let Some(skip) = skip {
            result = skip.fma(value, result);
        }
        k.if_(live & lane.eq(0), || out.store(head.value(t) + v, result));
    });
    for ((inside, d), value) in own.iter().zip(&cells) {
        k.if_(live & *inside, || state_out.store(cell(*d), value.get()));
    }
}
