//! Matmuls of f16 and bf16 by warpgroups (NVIDIA's Hopper): kernels that print as PTX only. Their structure is that of
//! kernels that were measured at 762 TFLOP/s (A by rows) and 790 (A packed) for 4096³ on an H200.
//!
//! ```text
//!   B ─ packed, at load for weights ─ one thread copies 8 KiB a k-step ─► ring of 5 slots ─────────┐
//!   A ─ by rows, or packed in fragments ─ 16 bytes a lane, 8 k-steps in flight ─► registers ───────┴─► two warpgroups,
//!                                                                        64 x 256 sums each ─► epilogue, from registers
//! ```
//! Workgroups are persistent: there is one to a core, and with n of them each takes every n-th tile. K is in another order
//! inside packed operands, so that a lane's words of two k-steps are 16 neighbouring bytes of a row of A, and columns of B
//! are in another order, so that a lane's sums are four neighbouring columns ([`pack`]).

mod kernel;
mod pack;
#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic, reason = "a failed expectation is a failed test")]
mod tests;

use std::fmt;

use olivine_ir::{DType, Dim};
use olivine_kernel::WARPGROUP;
use olivine_program::DeviceCaps;

use crate::matmul::choice::Shape;
use crate::matmul::problem::Problem;

pub(crate) use kernel::emit;

/// Rows and columns of a tile: two warpgroups of 64 rows.
const TILE: [u32; 2] = [128, 256];
/// Subgroups that multiply.
const MULTIPLIERS: u32 = TILE[0] / 16;
/// Invocations: those that multiply, and a warpgroup whose first one copies.
const GROUP: u32 = MULTIPLIERS * 32 + WARPGROUP;
/// Registers of each invocation, by role: all that a core has.
const REGISTERS: [u32; 2] = [240, 24];
/// K of a step: 32 bytes.
const STEP: u32 = 16;
/// K-steps whose words of A are loaded together; two such buffers take turns.
const BATCH: u32 = 8;
/// K of both buffers, which packed operands have whole multiples of.
const K_BLOCK: u32 = 2 * BATCH * STEP;
/// Slots of the ring, and bytes of each: a k-step of all columns.
const SLOTS: u32 = 5;
const SLOT: u32 = TILE[1] * STEP * 2;
/// Workgroup memory: the ring and two barriers to a slot.
const SHARED: u32 = SLOTS * (SLOT + 16);
/// Tile rows that are walked together, column by column, so that both operands stay in the cache.
const BAND: u32 = 8;

/// How A comes to the warpgroups.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum PathOfA {
    /// As it is, row by row.
    Rows,
    /// In the order of fragments: packed at load for weights, in every run for anything else.
    Packed,
}

impl fmt::Display for PathOfA {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            PathOfA::Rows => "rows",
            PathOfA::Packed => "packed",
        })
    }
}

/// Indices along K from which on tiles are worth their start and end.
const LEAST_K: usize = 512;
/// Rows, or columns, from which on the other operand may be packed in every run. At 4096 x 4096 packing takes 25 µs, and
/// 400 rows by cooperative matrices take as much longer than by warpgroups.
const PACKED_IN_RUN: usize = 512;
/// Percents of the tiles' work in all waves that must be the matmul's: cooperative matrices reach 0.4 of the rate.
const LEAST_USE: u64 = 45;

/// Whether a matmul can be computed by these kernels on a device.
fn serves(problem: &Problem<'_>, caps: &DeviceCaps) -> bool {
    let target = &caps.target;
    target.warpgroups
        && target.subgroup == Some(WARPGROUP / 4)
        && target.max_invocations >= GROUP
        && target.shared_bytes >= SHARED
        && matches!(problem.dtype(), DType::F16 | DType::BF16)
        && problem.experts.is_none()
        && problem.taps.is_none()
        && problem.packed.is_none()
}

/// Whether a lane's words of A are where rows are: 16 aligned bytes, and no k-step past the end of a row.
fn has_whole_rows(problem: &Problem<'_>) -> bool {
    let a = &problem.a;
    let steps = problem.batch.strides[0].iter().copied().chain([a.outer, a.operand.offset]);
    a.k_stride == 1 && problem.k.is_multiple_of(K_BLOCK) && pack::are_slots(steps)
}

/// How A comes to the warpgroups; `None` where other kernels serve the matmul better.
pub(crate) fn choose(problem: &Problem<'_>, shape: &Shape, caps: &DeviceCaps) -> Option<PathOfA> {
    if !serves(problem, caps) || shape.m == 0 || shape.n == 0 || shape.batches == 0 || shape.k < LEAST_K {
        return None;
    }
    let rows = Dim::from(shape.m);
    let tiles = rows.div_ceil(TILE[0]) * shape.n.div_ceil(TILE[1]) * shape.batches;
    let cores = caps.processor_count();
    let all = tiles.div_ceil(cores) * cores * (TILE[0] * TILE[1]);
    if shape.n * shape.batches * shape.m * 100 < all * LEAST_USE {
        return None;
    }
    if !problem.b.operand.stored && shape.m < PACKED_IN_RUN {
        return None;
    }
    let path = path_of_a(problem);
    let packs_a = path == PathOfA::Packed && !problem.a.operand.stored;
    if packs_a && shape.n < PACKED_IN_RUN {
        return None;
    }
    let most = caps.max_buffer_bytes;
    let fits =
        pack::bytes_of_b(problem) <= most && (path == PathOfA::Rows || pack::bytes_of_a(problem) <= most);
    fits.then_some(path)
}

/// Rows of A are read as they are where they can be: packing gains 3 % and costs a dispatch.
fn path_of_a(problem: &Problem<'_>) -> PathOfA {
    if has_whole_rows(problem) { PathOfA::Rows } else { PathOfA::Packed }
}

/// Both ways of A, where they compute the matmul: what the tuner may choose from.
pub(crate) fn candidates(problem: &Problem<'_>, caps: &DeviceCaps) -> Vec<PathOfA> {
    if !serves(problem, caps) || problem.k == 0 || pack::bytes_of_b(problem) > caps.max_buffer_bytes {
        return Vec::new();
    }
    let mut all = Vec::new();
    all.extend(has_whole_rows(problem).then_some(PathOfA::Rows));
    all.extend((pack::bytes_of_a(problem) <= caps.max_buffer_bytes).then_some(PathOfA::Packed));
    all
}
