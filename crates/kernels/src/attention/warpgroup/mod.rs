//! Attention of f16 and bf16 by warpgroups (NVIDIA's Hopper): kernels that print as PTX only.
//!
//! ```text
//!   k ─ packed in every run ─ slots of 128 keys x 32 elements ─┐ one thread copies, tile after tile
//!   v ─ packed in every run ─ slots of 32 or 64 keys ──────────┴─► ring of 5 slots
//!   q ─ fragments of 128 rows, in registers ─► two warpgroups of 64 rows: scores = q·kᵀ ─► maxima, weights in registers ─► accumulators
//! ```
//! Workgroups are persistent. Weights are left operands where they are: the accumulators of scores have the layout of fragments.
//! Elements of k are in the order in which a lane's eight neighbours of q are its words of two k-steps, and columns of v in the
//! order in which a lane has four neighbours of a row of the result ([`pack`]).

mod kernel;
mod pack;
#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic, reason = "a failed expectation is a failed test")]
mod tests;

use std::fmt;

use olivine_kernel::WARPGROUP;
use olivine_program::DeviceCaps;

use super::coop;
use super::coop::operands::OperandPrecision;
use super::problem::Problem;
use super::visible::KeyTiles;
use crate::ring::Ring;
pub(super) use kernel::emit;

/// Subgroups that multiply, and their rows.
const MULTIPLIERS: u32 = 8;
const ROWS: u32 = MULTIPLIERS * 16;
/// Keys of a tile.
const KEYS: u32 = 128;
/// Invocations: those that multiply, and a warpgroup whose first one copies.
const GROUP: u32 = MULTIPLIERS * 32 + WARPGROUP;
/// Registers of each invocation, by role: all that a core has.
const REGISTERS: [u32; 2] = [232, 40];
/// Slots of the ring, and bytes of each.
const SLOTS: u32 = 5;
const SLOT: u32 = 8192;
/// Indices along K of a multiply.
const STEP: u32 = 16;
/// Elements of k in a slot.
const K_ELEMENTS: u32 = 2 * STEP;
/// The widest rows of k and v whose fragments and accumulators stay in registers.
const MOST_WIDTH: usize = 128;

/// Rows are tiles of 128, and so are keys.
const TILES: KeyTiles = KeyTiles { rows: ROWS, keys: KEYS, align: KEYS, least: 1 };

/// What large attentions of 16-bit elements are computed by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Method {
    CooperativeMatrices,
    Warpgroups,
}

impl fmt::Display for Method {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Method::CooperativeMatrices => "matrices",
            Method::Warpgroups => "warpgroups",
        })
    }
}

/// How k and v are divided into slots.
#[derive(Clone, Copy)]
struct Cut {
    /// Slots of k in a tile, each with 32 elements of all keys.
    k_slots: u32,
    /// Columns of v, with those that fill a multiply.
    v_width: u32,
    /// Keys of a slot of v.
    v_keys: u32,
}

impl Cut {
    fn of(p: &Problem<'_>) -> Self {
        let v_width = (p.value_dim as u32).next_multiple_of(STEP);
        let v_keys = if v_width <= 64 { 64 } else { 32 };
        Cut { k_slots: (p.dim as u32).div_ceil(K_ELEMENTS), v_width, v_keys }
    }

    /// Slots of v in a tile.
    fn v_slots(self) -> u32 {
        KEYS / self.v_keys
    }

    /// Bytes of a slot of v.
    fn v_bytes(self) -> u32 {
        self.v_keys * self.v_width * 2
    }
}

/// Whether an attention can be computed by these kernels on a device.
pub(super) fn serves(p: &Problem<'_>, caps: &DeviceCaps) -> bool {
    let target = &caps.target;
    let width = p.dim.max(p.value_dim);
    target.warpgroups
        && target.subgroup == Some(WARPGROUP / 4)
        && target.max_invocations >= GROUP
        && target.shared_bytes >= Ring::shared_bytes(SLOTS, SLOT)
        && matches!(coop::precision(p), Some(OperandPrecision::Whole(_)))
        && p.dim > 0
        && p.value_dim > 0
        && width <= MOST_WIDTH
        && p.keys >= KEYS as usize
        && p.rows() >= ROWS as usize
        && pack::bytes(p).is_some_and(|bytes| bytes <= caps.max_buffer_bytes)
}
