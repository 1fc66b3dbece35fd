//! Attention by cooperative matrices, on devices that tell which of their elements an invocation holds.
//!
//! ```text
//!   a subgroup keeps its rows of q as matrices, and walks over the keys with the rest of its workgroup:
//!     k, v staged by tiles → scores = q·kᵀ in matrices → masked, maxima, weights = 2^(score − maximum), in registers
//!     weights as left operands → accumulators = accumulators·shrink + weights·v
//! ```
//!
//! Rows of a matrix belong to four neighbouring lanes, so maxima and sums are two shuffles away, and weights become a
//! operand where they are. f32 is multiplied as sums of two f16 (`f16`).

mod kernel;
pub(super) mod non_finite;
pub(super) mod operands;
pub(super) mod staging;

use olivine_ir::DType;
use olivine_kernel::{Elem, Fragments};
use olivine_program::DeviceCaps;

use super::LEAST_TILES;
use super::problem::Problem;
use super::visible::KeyTiles;
use crate::math;
pub(super) use kernel::emit;
use operands::OperandPrecision;
use staging::Panel;

/// M, N and K of a matrix.
const SIDE: u32 = 16;
/// Lanes of a subgroup.
const LANES: u32 = 32;
/// Rows below which other kernels serve better.
const LEAST_ROWS: usize = 8;
/// Workgroups below which they are made smaller.
const FEW_GROUPS: usize = 96;
/// Keys that count as few, and the plan for them.
const SHORT: usize = 256;
const NARROW: Plan = Plan { blocks: 1, subgroups: 4, keys: 32 };
/// The widest rows whose accumulators stay in registers.
const MOST_WIDTH: usize = 256;

/// How the work is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Plan {
    /// Blocks of 16 rows of a subgroup.
    pub(super) blocks: u32,
    /// Subgroups of a workgroup.
    pub(super) subgroups: u32,
    /// Keys of a tile.
    pub(super) keys: u32,
}

impl Plan {
    /// Rows of a workgroup.
    pub(super) fn rows(self) -> u32 {
        self.blocks * self.subgroups * SIDE
    }

    /// The plan as what keys are divided by.
    pub(super) fn key_tiles(self) -> KeyTiles {
        KeyTiles { rows: self.rows(), keys: self.keys, align: 1, least: LEAST_TILES as u32 }
    }

    /// Slots of the panels of k and v; rows of q pass through the same memory.
    fn panels(self, slots: (u32, u32), precision: OperandPrecision) -> u32 {
        let len = |rows, slots| Panel::len(rows, slots, precision.planes());
        let queries = self.subgroups * len(SIDE, SIDE / staging::SLOT);
        queries.max(len(self.keys, slots.0) + len(self.keys, slots.1))
    }

    fn shared_bytes(self, slots: (u32, u32), precision: OperandPrecision) -> u32 {
        // Beside the panels a word or two for each subgroup, and one for all.
        self.panels(slots, precision) * 16 + self.subgroups * 8 + 32
    }
}

/// Slots of padded rows of q and k, and of v.
fn slots(p: &Problem<'_>) -> (u32, u32) {
    let of = |width: usize| (width as u32).next_multiple_of(SIDE) / staging::SLOT;
    (of(p.dim), of(p.value_dim))
}

/// How elements become operands; `None` for types that are not multiplied by matrices.
pub(super) fn precision(p: &Problem<'_>) -> Option<OperandPrecision> {
    match p.q.ty.dtype {
        DType::F16 | DType::BF16 => Some(OperandPrecision::Whole(math::elem(p.q.ty.dtype))),
        DType::F32 => Some(OperandPrecision::Split),
        _ => None,
    }
}

/// The plan for a problem; `None` where the kernel without matrices serves it.
pub(super) fn choose(p: &Problem<'_>, caps: &DeviceCaps) -> Option<Plan> {
    let precision = precision(p)?;
    let target = &caps.target;
    let offered = target.multiplies_fully(precision.elem(), Elem::F32, [SIDE, SIDE, SIDE]);
    let known = target.fragments == Some(Fragments::Quads) && target.subgroup == Some(LANES);
    if !(offered && known) || p.rows() < LEAST_ROWS {
        return None;
    }
    let width = p.dim.max(p.value_dim);
    if width * precision.planes() as usize > MOST_WIDTH || p.dim == 0 || p.value_dim == 0 {
        return None;
    }
    let groups = |plan: Plan| p.groups(plan.rows());
    let mut plan = match (width, precision) {
        // So few keys are over before many rows of a subgroup pay.
        (0..=64, OperandPrecision::Whole(_)) if p.keys <= SHORT && groups(NARROW) >= FEW_GROUPS => NARROW,
        (0..=64, OperandPrecision::Whole(_)) => Plan { blocks: 2, subgroups: 4, keys: 64 },
        (0..=64, OperandPrecision::Split) => Plan { blocks: 1, subgroups: 8, keys: 64 },
        (65..=128, OperandPrecision::Whole(_)) => Plan { blocks: 1, subgroups: 8, keys: 64 },
        (65..=128, OperandPrecision::Split) => Plan { blocks: 1, subgroups: 8, keys: 32 },
        _ => Plan { blocks: 1, subgroups: 4, keys: 16 },
    };
    // Smaller workgroups where large ones would leave cores idle.
    while groups(plan) < FEW_GROUPS && plan.rows() > 2 * SIDE {
        match plan {
            Plan { blocks: 2, .. } => plan.blocks = 1,
            _ => plan.subgroups /= 2,
        }
        if precision == OperandPrecision::Split {
            plan.keys = plan.keys.min(32);
        }
    }
    let fits = plan.subgroups * LANES <= target.max_invocations
        && plan.shared_bytes(slots(p), precision) <= target.shared_bytes;
    fits.then_some(plan)
}
