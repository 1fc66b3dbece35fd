//! Operations that copy elements without computing with them.

use olivine_ir::Op;
use olivine_ir::op::{ScatterElements, ScatterMode, ScatterNd};

/// Whether every element of an operation's results is an element of an operand, zero or padding.
pub(super) fn moves_elements(op: &Op) -> bool {
    match op {
        Op::Reshape(_)
        | Op::Transpose(_)
        | Op::Slice(_)
        | Op::Expand(_)
        | Op::View(_)
        | Op::DepthToSpace(_)
        | Op::SpaceToDepth(_)
        | Op::Unfold(_)
        | Op::Concat(_)
        | Op::Split(_)
        | Op::Stack(_)
        | Op::Tile(_)
        | Op::Repeat(_)
        | Op::Reverse(_)
        | Op::Roll(_)
        | Op::Pad(_)
        | Op::Gather(_)
        | Op::GatherElements(_)
        | Op::GatherNd(_)
        | Op::Trilu(_)
        | Op::Fill(_)
        | Op::Im2Col(_)
        | Op::KvAppend(_) => true,
        Op::ScatterElements(ScatterElements { mode, .. }) | Op::ScatterNd(ScatterNd { mode }) => {
            *mode == ScatterMode::Replace
        }
        _ => false,
    }
}
