//! The second dispatch where keys are split: the ranges' partial results become one. Where stores can be ordered between workgroups,
//! decoding has none: see `decode::last`.
//!
//! A workgroup takes a row. Its columns of invocations take ranges in turn, several loads at a time, and meet in
//! workgroup memory. Rows whose keys are one range are finished already.

use olivine_kernel::{Access, Builder, Elem, Scalar, Val, Var};
use olivine_program::DeviceCaps;

use super::args::AttentionTarget;
use super::problem::Problem;
use super::softmax::{Accumulated, lowest, merge, normaliser};
use super::tile::fours;
use super::visible::VisibleKeys;
use crate::launch::{Launch, bytes};
use crate::math;
use crate::site::{Site, linear_group};

/// Invocations of a workgroup at most.
const GROUP: u32 = 128;
/// Columns of invocations at most.
const COLUMNS: u32 = 8;
/// Ranges that an invocation loads at a time, and where kernels should be short.
const AT_ONCE: u32 = 8;
const AT_ONCE_SHORT: u32 = 2;

/// Ranges that an invocation loads at a time.
pub(super) fn at_once(caps: &DeviceCaps) -> u32 {
    if caps.wants_short_kernels() { AT_ONCE_SHORT } else { AT_ONCE }
}

/// Emits the combination of an [`AttentionTarget::Partial`].
pub(super) fn emit(p: &Problem<'_>, sink: &AttentionTarget, site: &mut Site<'_>) -> Result<(), String> {
    let AttentionTarget::Partial { values, sums, split, arrivals: None } = sink else { return Ok(()) };
    let groups = fours(p.value_dim);
    let width = groups.next_power_of_two().min(GROUP);
    let columns = (GROUP / width).min(COLUMNS);
    let at_once = at_once(site.caps);
    let count = p.batch * p.kv_heads * p.rows();
    let k = site.builder("attention_combine", width * columns);
    let l = Launch::new(&k);
    let elem = math::elem(p.partial());
    let (parts, sums) =
        (l.bind("part_values", elem, Access::Read, *values), l.bind("part_sums", elem, Access::Read, *sums));
    let sinks = p.sinks.as_ref().map(|s| l.read("sinks", s));
    let out = l.write("out", &p.target);
    let visible = VisibleKeys::declare(&l, p);
    let (n, most) = (l.size("n", count), l.size("splits", split.most));
    let (kv_heads, heads) = (l.size("kv_heads", p.kv_heads), l.size("heads", p.heads));
    let (of_columns, of_values) = (k.shared(elem, 2, columns), k.shared(elem, 4, width * columns));
    let (lane, column) = (k.local_index() % width, k.local_index() / width);

    let row = linear_group(&k);
    let combine = |ranges: Val<'_>, group: Val<'_>| {
        let inside = group.lt(groups);
        let four = group.min(groups - 1);
        let state = State::new(&k, p.scalar);
        k.for_(k.u32(0), ranges, k.u32(columns * at_once), |first| {
            let load = |i: u32| {
                let range = first + column + i * columns;
                let at = row * most + range.min(ranges - 1);
                let of = sums.load_vec(at * 2, 2);
                let start = at * (groups * 4) + four * 4;
                let values: Vec<_> = match elem {
                    Elem::F64 => (0..4).map(|i| parts.load(start + i)).collect(),
                    _ => parts.load_vec(start, 4),
                };
                // Ranges past the last weigh nothing.
                let known = range.lt(ranges);
                let zero = k.number(p.scalar, 0.0);
                Accumulated {
                    maximum: known.select(of[0], of[0].like(lowest(p.scalar))),
                    sum: known.select(of[1], zero),
                    values: values.into_iter().map(|v| known.select(v, zero)).collect(),
                }
            };
            let loaded: Vec<_> = std::iter::once(state.get()).chain((0..at_once).map(load)).collect();
            state.set(&merge(&loaded));
        });
        let mine = state.get();
        // What was combined before is read.
        k.barrier();
        k.if_(lane.eq(0), || of_columns.store_vec(column, &[mine.maximum, mine.sum]));
        of_values.store_vec(k.local_index(), &mine.values);
        k.barrier();
        k.if_(column.eq(0) & inside, || {
            let of_column = |i: u32| {
                let of = of_columns.load_vec(k.u32(i));
                let values = of_values.load_vec(lane + i * width);
                Accumulated { maximum: of[0], sum: of[1], values }
            };
            let all = merge(&(0..columns).map(of_column).collect::<Vec<_>>());
            let (pair, number) = (row / visible.rows, row % visible.rows);
            let group = visible.group;
            let (query, head) = (number / group, pair % kv_heads * group + number % group);
            let sink = sinks.map(|s| s.load(head) * std::f64::consts::LOG2_E);
            let scale = normaliser(all.maximum, all.sum, sink);
            let to = super::target_row(p.op.layout, pair / kv_heads, head, query, heads, visible.sq);
            let results: Vec<_> = all.values.iter().map(|v| *v * scale).collect();
            let start = to * p.value_dim + four * 4;
            if p.value_dim.is_multiple_of(4) && out.elem() != Elem::F64 {
                return out.store_vec(start, &results);
            }
            for (i, result) in results.iter().enumerate() {
                k.if_((four * 4 + i).lt(p.value_dim), || out.store(start + i, *result));
            }
        });
    };
    k.if_(row.lt(n), || {
        let length = visible.length(row / visible.rows / kv_heads);
        let first_row = row % visible.rows / split.tiles.rows * split.tiles.rows;
        let ranges = visible.ranges(first_row, split.tiles, most, length).count;
        k.if_(ranges.gt(1), || match groups <= width {
            true => combine(ranges, lane),
            false => k.for_(k.u32(0), k.u32(groups), k.u32(width), |first| combine(ranges, first + lane)),
        });
    });
    let bound = l.done();
    site.dispatch(k, bound, count, (0, bytes(&p.target.ty)))
}

/// What an invocation combined so far.
pub(super) struct State<'k> {
    maximum: Var<'k>,
    sum: Var<'k>,
    values: Vec<Var<'k>>,
}

impl<'k> State<'k> {
    pub(super) fn new(k: &'k Builder, scalar: Scalar) -> Self {
        let number = |x: f64| k.var(k.number(scalar, x));
        State {
            maximum: number(lowest(scalar)),
            sum: number(0.0),
            values: (0..4).map(|_| number(0.0)).collect(),
        }
    }

    pub(super) fn get(&self) -> Accumulated<'k> {
        Accumulated {
            maximum: self.maximum.get(),
            sum: self.sum.get(),
            values: self.values.iter().map(|v| v.get()).collect(),
        }
    }

    pub(super) fn set(&self, to: &Accumulated<'k>) {
        self.maximum.set(to.maximum);
        self.sum.set(to.sum);
        for (var, value) in self.values.iter().zip(&to.values) {
            var.set(*value);
        }
    }
}
