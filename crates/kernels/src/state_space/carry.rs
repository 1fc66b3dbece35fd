//! From chunks' own states to the states that chunks begin with: a short scan over chunks for every cell.

use olivine_kernel::{Access, Val};

use super::decay::{Exponents, exp2};
use super::heads::Heads;
use super::selective::{Scan, Weights};
use crate::launch::{Launch, bytes};
use crate::rows::GROUP;
use crate::site::{Memory, Operand, Site, Target, linear_group};

/// Chunks that are loaded at a time.
const AHEAD: u32 = 8;

/// A sequence without steps: the state passes.
pub(super) fn pass(state: Option<&Operand>, out: &Target, site: &mut Site<'_>) -> Result<(), String> {
    let cells = out.ty.shape.numel();
    let group = site.group_size(GROUP);
    let k = site.builder("state_pass", group);
    let l = Launch::new(&k);
    let source = state.map(|s| l.read("state", s));
    let sink = l.write("state_out", out);
    let count = l.size("cells", cells);
    let cell = linear_group(&k) * group + k.local_index();
    k.if_(cell.lt(count), || {
        let zero = k.number(sink.elem().scalar(), 0.0);
        sink.store(cell, source.map_or(zero, |s| s.load(cell)));
    });
    let bound = l.done();
    site.dispatch(k, bound, (cells as u64).div_ceil(u64::from(group)), (0, 2 * bytes(&out.ty)))
}

/// Walks over the chunks of a cell: what is stored as a chunk's own becomes what it begins with. `index` finds a
/// chunk's cell and `decay` what a chunk leaves of what it began with; returns the state after the last.
fn walk<'k>(
    states: olivine_kernel::Buf<'k>,
    initial: Val<'k>,
    chunks: Val<'k>,
    index: impl Fn(Val<'k>) -> Val<'k>,
    decay: impl Fn(Val<'k>) -> Val<'k>,
) -> Val<'k> {
    let k = initial.builder();
    let carried = k.var(initial);
    // Several chunks are loaded at a time: loads do not wait for stores of the same buffer then.
    k.for_(k.u32(0), chunks, k.u32(AHEAD), |first| {
        let read = |i: u32| {
            let chunk = (first + i).min(chunks - 1);
            (index(chunk), states.load(index(chunk)), decay(chunk))
        };
        let loaded: Vec<_> = (0..AHEAD).map(read).collect();
        for (i, (at, own, decay)) in (0..AHEAD).zip(loaded) {
            k.if_((first + i).lt(chunks), || {
                states.store(at, carried.get());
                carried.set(carried.get().fma(decay, own));
            });
        }
    });
    carried.get()
}

/// Carries states from chunk to chunk of every head; `states` is `[batch, head, chunk, key, value]`.
pub(super) fn heads(p: &Heads, exponents: Memory, states: Memory, site: &mut Site<'_>) -> Result<(), String> {
    let cells = p.dk * p.dv;
    let all = p.batch * p.heads * cells;
    let group = site.group_size(GROUP);
    let k = site.builder("state_carry", group);
    let l = Launch::new(&k);
    let exponents = Exponents::read(&l, p.elem, exponents);
    let states = l.bind("states", p.elem, Access::ReadWrite, states);
    let given = p.state.as_ref().map(|s| l.read("state", s));
    let out = l.write("state_out", &p.state_out);
    let (count, cells_) = (l.size("all", all), l.size("cells", cells));
    let (chunks, dv) = (l.size("chunks", p.chunks()), l.size("dv", p.dv));
    let (key_stride, value_stride) = p.state_strides();
    let (key_stride, value_stride) = (l.size("key_stride", key_stride), l.size("value_stride", value_stride));
    let work = linear_group(&k) * group + k.local_index();
    k.if_(work.lt(count), || {
        let (pair, cell) = (work / cells_, work % cells_);
        let surface = pair * cells_ + cell / dv * key_stride + cell % dv * value_stride;
        let initial = given.map_or(k.number(p.scalar, 0.0), |s| s.load(surface));
        let index = |chunk| (pair * chunks + chunk) * cells_ + cell;
        let decay = |chunk| exponents.at((pair * chunks + chunk) * p.chunk + (p.chunk - 1)).decay();
        out.store(surface, walk(states, initial, chunks, index, decay));
    });
    let bound = l.done();
    let cost = (2 * (all * p.chunks()) as u64, 2 * (all * p.chunks()) as u64 * u64::from(p.elem.size()));
    site.dispatch(k, bound, (all as u64).div_ceil(u64::from(group)), cost)
}

/// Carries states from chunk to chunk of every channel; `states` is `[batch, chunk, channel, state]`, and `sums`, the
/// chunks' sums of steps, `[batch, chunk, channel]`.
pub(super) fn channels(
    p: &Scan,
    weights: &Weights,
    states: Memory,
    sums: Memory,
    site: &mut Site<'_>,
) -> Result<(), String> {
    let cells = p.channels * p.states;
    let all = p.batch * cells;
    let group = site.group_size(GROUP);
    let k = site.builder("scan_carry", group);
    let l = Launch::new(&k);
    let weights = weights.declare(&l, p, false);
    let states = l.bind("states", p.elem, Access::ReadWrite, states);
    let sums = l.bind("sums", p.elem, Access::Read, sums);
    let given = p.state.as_ref().map(|s| l.read("state", s));
    let out = l.write("state_out", &p.state_out);
    let (count, cells_) = (l.size("all", all), l.size("cells", cells));
    let (chunks, of_channel) = (l.size("chunks", p.chunks), l.size("states_of", p.states));
    let channels = l.size("channels_of", p.channels);
    let work = linear_group(&k) * group + k.local_index();
    k.if_(work.lt(count), || {
        let (batch, cell) = (work / cells_, work % cells_);
        let (d, n) = (cell / of_channel, cell % of_channel);
        let initial = given.map_or(k.number(p.scalar, 0.0), |s| s.load(work));
        let rate = weights.rate(d, n);
        let index = |chunk| (batch * chunks + chunk) * cells_ + cell;
        let decay = |chunk| exp2(rate * sums.load((batch * chunks + chunk) * channels + d));
        out.store(work, walk(states, initial, chunks, index, decay));
    });
    let bound = l.done();
    let cost = (4 * (all * p.chunks) as u64, 2 * (all * p.chunks) as u64 * u64::from(p.elem.size()));
    site.dispatch(k, bound, (all as u64).div_ceil(u64::from(group)), cost)
}
