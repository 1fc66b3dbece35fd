//! Stores the accumulators of a subgroup's part of a block tile.

use olivine_kernel::{Builder, Val};

use crate::matmul::coop::form::MatrixForm;
use crate::matmul::coop::operands::OperandLoader;
use crate::matmul::coop::store::{AccumulatorStore, StorePrecision};
use crate::matmul::coop::store_memory;

/// The store of a block whose operands are consumed, for a subgroup by its number in the workgroup:
/// `subgroups` have a part each, shared by `slices` of them. The whole workgroup must call it.
pub(crate) fn leave<'k>(
    k: &'k Builder,
    form: MatrixForm,
    feeds: [&OperandLoader<'k>; 2],
    (subgroup, slice): (Val<'k>, Val<'k>),
    (subgroups, slices): (u32, u32),
) -> AccumulatorStore<'k> {
    let (memory, slots) = store_memory(k, form, feeds, subgroups * slices);
    // The panels are free from here on.
    k.barrier();
    AccumulatorStore {
        k,
        form,
        memory,
        slots,
        grain: StorePrecision::F32,
        subgroup,
        slice,
        subgroups,
        slices,
    }
}

/// Stores the matrices of a subgroup, `wide` side by side, whose first element is at `row` and `column`; rows from
/// `end` on are left out. All subgroups that share a part must call it together.
pub(crate) fn store_block<'k>(
    out: &AccumulatorStore<'k>,
    (sums, wide): (&[Val<'k>], u32),
    (row, end): (Val<'k>, Val<'k>),
    column: Val<'k>,
    is_long: bool,
    put: impl Fn(Val<'k>, Val<'k>, &[Val<'k>]),
) {
    let (at_once, side) = (out.at_once().min(wide), out.form.side);
    for (i, line) in (0u32..).zip(sums.chunks(wide as usize)) {
        for (j, some) in (0u32..).zip(line.chunks(at_once as usize)) {
            let column = column + j * at_once * side;
            out.store(some, (row + i * side, end), column, is_long, &put);
        }
    }
}
