//! Expert ids, read at run time.

use olivine_ir::DType;
use olivine_kernel::{Access, Buf, Builder, Elem, Scalar, Val};

use crate::launch::Launch;
use crate::matmul::problem::Experts;

/// Declared ids. Those of 64 bits are read as two words, which every device can.
pub(crate) struct Ids<'k> {
    words: Buf<'k>,
    per_id: u32,
    count: Val<'k>,
}

impl<'k> Ids<'k> {
    /// Declares the ids and their bound.
    pub(crate) fn declare(l: &Launch<'k>, experts: &Experts) -> Self {
        let per_id = if experts.ids.ty.dtype == DType::I64 { 2 } else { 1 };
        Ids {
            words: l.bind("experts", Elem::U32, Access::Read, experts.ids.memory),
            per_id,
            count: l.size("expert_count", experts.count),
        }
    }

    /// The id at a position, and whether it is in range; 0 if it is not.
    pub(crate) fn at(&self, k: &'k Builder, position: Val<'k>) -> (Val<'k>, Val<'k>) {
        let low = self.words.load(position * self.per_id);
        let mut known = low.lt(self.count);
        if self.per_id == 2 {
            known = known & self.words.load(position * 2u32 + 1u32).eq(0u32);
        }
        (known.select(low, k.u32(0)), known)
    }

    /// In checked kernels, reports an id that is out of range.
    pub(crate) fn check(&self, k: &'k Builder, position: Val<'k>) {
        let (_, known) = self.at(k, position);
        k.if_(!known, || {
            let low = self.words.load(position * self.per_id);
            let value = if self.per_id == 2 && k.target().i64 {
                low.join(self.words.load(position * 2u32 + 1u32)).bitcast(Scalar::I64)
            } else {
                low.bitcast(Scalar::I32)
            };
            k.report(position, value, self.count);
        });
    }

    /// How many experts there are.
    pub(crate) fn count(&self) -> Val<'k> {
        self.count
    }
}
