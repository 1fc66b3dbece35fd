//! The cooperative matrices that a device offers to these kernels.

use olivine_kernel::{Builder, Elem, MatrixSupport, MatrixType, MatrixUse, Shared, Target};

use crate::matmul::coop::staging::SLOT;
use crate::matmul::coop::{LANES, SIDE};

/// Square matrices of a side, who holds them, and what they are loaded from and stored to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct MatrixForm {
    /// M, N and K of a matrix.
    pub(crate) side: u32,
    /// Lanes of a subgroup.
    pub(crate) lanes: u32,
    /// Whether workgroup memory holds elements of the matrices' own type, not words in vectors of four: there
    /// panels and accumulators cannot share memory, and elements come and go one by one.
    pub(crate) is_typed: bool,
}

impl MatrixForm {
    /// Of the cards that most kernels are written for.
    pub(crate) const CARD: MatrixForm = MatrixForm { side: SIDE, lanes: LANES, is_typed: false };

    /// The matrices for operands of a type whose products are summed in f32; `None` where the device has none.
    pub(crate) fn of(elem: Elem, target: &Target) -> Option<MatrixForm> {
        let is_typed = target.matrix_support == MatrixSupport::Basic;
        let offers = |side: u32| target.multiplies(elem, Elem::F32, [side; 3]);
        // Operands in words are of 16 bits.
        let has_memory = match elem {
            Elem::F16 => !is_typed || target.f16,
            Elem::BF16 => !is_typed,
            Elem::F32 => is_typed,
            _ => false,
        };
        match target.subgroup? {
            _ if !has_memory => None,
            LANES if offers(SIDE) => Some(MatrixForm { is_typed, ..MatrixForm::CARD }),
            // Lanes must have the same columns in all rounds of a store (`AccumulatorStore`). Of devices that take SPIR-V
            // only Mesa's software one is known to have small matrices; it keeps the kernels it had.
            lanes @ (8 | 16 | 32) if is_typed && offers(8) => Some(MatrixForm { side: 8, lanes, is_typed }),
            _ => None,
        }
    }

    /// The type of a matrix.
    pub(crate) fn matrix(self, elem: Elem, role: MatrixUse) -> MatrixType {
        MatrixType { elem, rows: self.side, columns: self.side, role }
    }

    /// Memory for a panel of so many slots of operands of a type.
    pub(crate) fn panel<'k>(self, k: &'k Builder, elem: Elem, slots: u32) -> Shared<'k> {
        match self.is_typed {
            true => k.shared(elem, 1, slots * SLOT),
            false => k.shared(Elem::U32, 4, slots),
        }
    }

    /// Memory for accumulators on their way, in slots of four.
    pub(crate) fn store_memory(self, k: &Builder, slots: u32) -> Shared<'_> {
        match self.is_typed {
            true => k.shared(Elem::F32, 1, slots * 4),
            false => k.shared(Elem::U32, 4, slots),
        }
    }

    /// Bytes of workgroup memory for panels of operands of a type, of so many slots each, and for the accumulators of
    /// so many subgroups, which pass through the largest panel where they can.
    pub(crate) fn shared_bytes(self, elem: Elem, panels: [u32; 2], subgroups: u32) -> u32 {
        let slots: u32 = panels.iter().sum();
        let out = self.store_slots(subgroups);
        if self.is_typed {
            return slots * SLOT * elem.size() + 16 * out;
        }
        16 * (slots + if panels[0].max(panels[1]) < out { out } else { 0 })
    }
}

#[cfg(test)]
mod tests {
    use olivine_kernel::MatrixShape;

    use super::*;

    fn target(operands: &[Elem], side: u32, lanes: u32, matrix_support: MatrixSupport) -> Target {
        let shape = |operand: &Elem| MatrixShape {
            operand: *operand,
            accumulator: Elem::F32,
            m: side,
            n: side,
            k: side,
        };
        let matrices = operands.iter().map(shape).collect();
        Target { subgroup: Some(lanes), f16: true, matrices, matrix_support, ..Target::plain() }
    }

    #[test]
    fn a_device_has_the_matrices_that_its_memory_allows() {
        use MatrixSupport::{Basic, Full};
        let all = [Elem::F16, Elem::BF16, Elem::F32];
        let of = |elem, side, lanes, support| MatrixForm::of(elem, &target(&all, side, lanes, support));
        assert_eq!(of(Elem::F16, 16, 32, Full), Some(MatrixForm::CARD));
        assert_eq!(of(Elem::BF16, 16, 32, Full), Some(MatrixForm::CARD));
        assert_eq!(of(Elem::F32, 16, 32, Full), None);
        let metal = Some(MatrixForm { side: 8, lanes: 32, is_typed: true });
        assert_eq!(of(Elem::F16, 8, 32, Basic), metal);
        assert_eq!(of(Elem::F32, 8, 32, Basic), metal);
        assert_eq!(of(Elem::BF16, 8, 32, Basic), None);
        assert_eq!(of(Elem::F16, 8, 64, Basic), None);
        assert_eq!(of(Elem::F16, 16, 8, Full), None);
        assert_eq!(of(Elem::F16, 8, 8, Full), None);
        let narrow = Target { f16: false, ..target(&all, 8, 32, Basic) };
        assert_eq!(MatrixForm::of(Elem::F16, &narrow), None);
        assert_eq!(MatrixForm::of(Elem::F32, &narrow), metal);
        assert_eq!(MatrixForm::of(Elem::F32, &target(&[Elem::F16], 8, 32, Basic)), None);
        assert_eq!(MatrixForm::of(Elem::F16, &Target { subgroup: None, ..target(&all, 8, 32, Basic) }), None);
    }
}
