//! All sums of a subgroup's part of a block on their way out.

use olivine_kernel::{Builder, Val};

use crate::matmul::coop::operands::Feed;
use crate::matmul::coop::store::{Grain, Out};
use crate::matmul::coop::{SIDE, way_out};

/// The way out of a block whose feeds have given all they had, for a subgroup by its number in the workgroup:
/// `teams` have a part each, shared by `slices` of them. The whole workgroup must come here together.
pub(crate) fn leave<'k>(
    k: &'k Builder,
    feeds: [&Feed<'k>; 2],
    (team, slice): (Val<'k>, Val<'k>),
    (teams, slices): (u32, u32),
) -> Out<'k> {
    let (memory, slots) = way_out(k, feeds, teams * slices);
    // Nobody reads the panels any more.
    k.barrier();
    Out { k, memory, slots, grain: Grain::Whole, team, slice, teams, slices }
}

/// Hands on the matrices of a subgroup, `wide` side by side, whose first element is at `row` and `column`; rows from
/// `end` on are left out. All subgroups that share a part must come here together.
pub(crate) fn store_block<'k>(
    out: &Out<'k>,
    (sums, wide): (&[Val<'k>], u32),
    (row, end): (Val<'k>, Val<'k>),
    column: Val<'k>,
    is_long: bool,
    put: impl Fn(Val<'k>, Val<'k>, &[Val<'k>]),
) {
    let at_once = out.at_once().min(wide);
    for (i, line) in (0u32..).zip(sums.chunks(wide as usize)) {
        for (j, some) in (0u32..).zip(line.chunks(at_once as usize)) {
            let column = column + j * at_once * SIDE;
            out.store(some, (row + i * SIDE, end), column, is_long, &put);
        }
    }
}
