//! Rotated rows that become blocks of a packed cache: every invocation makes four neighbouring elements.
//!
//! The other element of a pair is read again, and its angle calculated twice: the rows are short, and no invocation waits for another.

use olivine_ir::op::RopeStyle;
use olivine_kernel::Val;

use super::kv_append::CacheRows;
use super::rope::DeclaredRotation;
use crate::math;
use crate::q8_0;

impl<'k> DeclaredRotation<'k, '_> {
    /// Rotates four elements and packs them, together with the other invocations of their block.
    pub(super) fn pack(&self, work: Val<'k>, cache: &CacheRows<'k>) {
        let is_any = work.lt(self.n);
        let item = self.item(work.min(self.n - 1u32));
        let first = item.unit * 4u32;
        let values: Vec<Val<'k>> = match self.of.lanes {
            4 => self.rotated(item.start, item.place, first, 4),
            _ => (0..4u32).flat_map(|i| self.rotated(item.start, item.place, first + i, 1)).collect(),
        };
        // As if they had been stored in between.
        let dtype = self.of.x.ty.dtype;
        let values: Vec<Val<'k>> = values.into_iter().map(|x| math::round_to(x, dtype)).collect();
        let (inside, row) = cache.at(item.index);
        q8_0::store_four(cache.sink, is_any & inside, row, item.unit, &values);
    }

    /// One element of a row, or four from a multiple of four on; then pairs are a multiple of four too.
    fn rotated(&self, start: Val<'k>, place: Val<'k>, first: Val<'k>, count: usize) -> Vec<Val<'k>> {
        let k = start.builder();
        let pairs = (self.of.op.rotary / 2) as u32;
        let load = |at: Val<'k>| self.from.load(start + at * self.element, count);
        let own = load(first);
        if pairs == 0 {
            return own;
        }
        let turns = first.lt(2 * pairs);
        // The others of the pairs, whether an element is its pair's first, and its pair.
        let (others, fronts, numbers): (Vec<Val<'k>>, Vec<Val<'k>>, Vec<Val<'k>>) = match self.of.op.style {
            RopeStyle::NeoX => {
                let front = first.lt(pairs);
                let other = front.select(first + pairs, turns.select(first - pairs, first));
                let number = front.select(first, turns.select(first - pairs, k.u32(0)));
                let numbers = (0..count as u32).map(|i| number + i).collect();
                (load(other), vec![front; count], numbers)
            }
            RopeStyle::GptJ if count == 4 => {
                let number = turns.select(first >> 1u32, k.u32(0));
                let fronts = [true, false, true, false].map(|front| k.bool(front)).to_vec();
                let numbers = [0u32, 0, 1, 1].map(|i| number + i).to_vec();
                (vec![own[1], own[0], own[3], own[2]], fronts, numbers)
            }
            RopeStyle::GptJ => {
                let other = turns.select(first ^ 1u32, first);
                let number = turns.select(first >> 1u32, k.u32(0));
                (load(other), vec![(first & 1u32).eq(0)], vec![number])
            }
        };
        let mut rotated = Vec::with_capacity(count);
        for (i, x) in own.into_iter().enumerate() {
            let (cos, sin) = self.angles.at(place * pairs, place, numbers[i]);
            let other = others[i] * sin;
            let turned = x.fma(cos, fronts[i].select(-other, other));
            rotated.push(turns.select(turned, x));
        }
        rotated
    }
}
