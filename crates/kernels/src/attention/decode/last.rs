//! Where keys are split, the workgroup that is done last combines what all of them have: a dispatch less.
//!
//! ```text
//!   partial results ── fence, barrier ── one invocation adds 1 to the pair's counter ── barrier, fence
//!     all others were there before: it combines their ranges in order, and leaves 0 for the next run
//! ```
//! Nobody waits for another workgroup. What is combined, and in which order, does not depend on who is last.

use olivine_kernel::{AtomicOp, Buf, Elem, Val};
use olivine_program::Addressing;

use super::super::args::{AttentionTarget, WorkgroupCoord};
use super::super::combine::State;
use super::super::problem::Problem;
use super::super::softmax::{Accumulated, lowest, merge};
use super::super::tile::fours;
use super::super::visible::Range;
use super::kernel::Kernel;
use crate::site::Site;

/// The same target, combined without another dispatch where the device orders stores between workgroups.
pub(in super::super) fn combined_by_last(
    p: &Problem<'_>,
    target: AttentionTarget,
    site: &mut Site<'_>,
) -> Result<AttentionTarget, String> {
    let orders = site.caps.target.device_fences && site.caps.addressing == Addressing::Pointers;
    Ok(match target {
        AttentionTarget::Partial { values, sums, split, .. } if orders => {
            let arrivals = Some(site.counters(p.batch * p.kv_heads)?);
            AttentionTarget::Partial { values, sums, split, arrivals }
        }
        other => other,
    })
}

impl<'k> Kernel<'k, '_> {
    /// Counts the range of this workgroup as done, and combines all if the others are. The whole workgroup comes here together.
    pub(super) fn combine_if_last(
        &self,
        (values, sums, arrivals): (Buf<'k>, Buf<'k>, Buf<'k>),
        place: &WorkgroupCoord<'k>,
        range: &Range<'k>,
        length: Val<'k>,
    ) {
        let (k, plan) = (self.k, self.plan);
        let me = k.local_index();
        let found = k.shared(Elem::U32, 1, 1);
        k.device_fence();
        k.barrier();
        k.if_(me.eq(0u32), || {
            // What all of the workgroup stored comes before the addition, and what others stored before what it reads.
            k.device_fence();
            let before = arrivals.atomic(AtomicOp::Add, place.pair, k.u32(1));
            k.device_fence();
            let is_last = (before + 1u32).eq(range.count);
            k.if_(is_last, || {
                arrivals.atomic(AtomicOp::Exchange, place.pair, k.u32(0));
            });
            found.store(k.u32(0), is_last.select(range.count, k.u32(0)));
        });
        k.barrier();
        // None, but in the last workgroup.
        let ranges = found.load(k.u32(0));
        k.if_(ranges.ne(0u32), || k.device_fence());

        let groups = fours(self.p.value_dim);
        let (width, group) = (groups.next_power_of_two(), k.group());
        let all = width * plan.rows;
        let columns = (group / all).max(1);
        let combine = |item: Val<'k>, column: Val<'k>| {
            let (row, four) = (item / width, item % width);
            let inside = four.lt(groups) & row.lt(self.args.rows);
            let (row, four) = (row.min(self.args.rows - 1), four.min(groups - 1));
            let state = State::new(k, self.p.scalar);
            let zero = k.f32(0.0);
            k.for_(k.u32(0), ranges, k.u32(columns * self.at_once), |first| {
                let load = |i: u32| {
                    let number = first + column + i * columns;
                    let known = number.lt(ranges);
                    let at = self.args.part_of(place, row, number.min(ranges - 1));
                    let of = sums.load_vec(at * 2, 2);
                    let values = values.load_vec((at * groups + four) * 4, 4);
                    Accumulated {
                        maximum: known.select(of[0], of[0].like(lowest(self.p.scalar))),
                        sum: known.select(of[1], zero),
                        values: values.into_iter().map(|v| known.select(v, zero)).collect(),
                    }
                };
                let loaded = std::iter::once(state.get()).chain((0..self.at_once).map(load));
                state.set(&merge(&loaded.collect::<Vec<_>>()));
            });
            let row = self.args.row_at(place, row, length);
            (state.get(), row, four, inside & ranges.ne(0u32))
        };
        if columns == 1 {
            return k.for_(me, k.u32(all), k.u32(group), |item| {
                let (mine, row, four, inside) = combine(item, k.u32(0));
                k.if_(inside, || self.store(place, &row, four, &mine));
            });
        }
        let (item, column) = (me % all, me / all);
        let (mine, row, four, inside) = combine(item, column);
        // Invocations past the last column repeat it, and store nothing.
        let (of_rows, of_values) =
            (self.of_rows.reserve(columns * all), self.of_values.reserve(columns * all));
        k.if_(column.lt(columns), || {
            of_rows.store_vec(me, &[mine.maximum, mine.sum]);
            of_values.store_vec(me, &mine.values);
        });
        k.barrier();
        k.if_(column.eq(0u32) & inside, || {
            let of_column = |i: u32| {
                let of = of_rows.load_vec(item + i * all);
                Accumulated { maximum: of[0], sum: of[1], values: of_values.load_vec(item + i * all) }
            };
            let merged = merge(&(0..columns).map(of_column).collect::<Vec<_>>());
            self.store(place, &row, four, &merged);
        });
    }
}
