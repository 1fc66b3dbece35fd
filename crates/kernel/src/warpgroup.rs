//! Statements of devices with warpgroups (NVIDIA's Hopper): four subgroups that multiply together, copies that run beside
//! the kernel, barriers in workgroup memory, and subgroups with roles of their own. They print as PTX only.
//!
//! ```text
//!   role "copies": await empty ─ arrive, expecting bytes ─ copy ──► workgroup memory ──► await full ─ multiply ─ arrive empty: role "multiplies"
//! ```

use crate::ir::{ArgId, Block, SharedId, Value, VarId};
use crate::types::{Elem, Scalar};

/// Invocations of a warpgroup.
pub const WARPGROUP: u32 = 128;

/// Subgroups that do the same, next to those of the role before.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Role {
    /// Subgroups, in whole warpgroups.
    pub subgroups: u32,
    /// Registers of each invocation, a multiple of 8 from 24 to 240.
    pub registers: u32,
    /// What they do.
    pub body: Block,
}

/// A barrier in workgroup memory, an element of an array of u64. It completes a phase when as many invocations as it was
/// made for have arrived, and all bytes that they expect have come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AsyncBarrier {
    /// The array.
    pub shared: SharedId,
    /// u32: which element.
    pub index: Value,
}

/// The right operand of a warpgroup's multiply in workgroup memory: blocks of 8 columns, each with 16 bytes along k.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct WarpgroupOperand {
    /// The array.
    pub shared: SharedId,
    /// u32: the array's element where the first block begins, at a multiple of 16 bytes.
    pub index: Value,
    /// Bytes from a block to the next along k, a multiple of 16.
    pub k_stride: u32,
    /// Bytes from a block to the next along n, a multiple of 16.
    pub n_stride: u32,
}

/// What warpgroups do, and what goes on beside them.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum WarpgroupStmt {
    /// Every subgroup runs the block of its role; they go on together.
    Roles(Vec<Role>),
    /// Makes a barrier for so many arrivals; a workgroup barrier must follow before it is used.
    Init(AsyncBarrier, u32),
    /// Arrives, and expects so many bytes of copies besides.
    Arrive(AsyncBarrier, u32),
    /// Waits until the phase of a parity (u32, 0 or 1) is complete. The first phase has parity 0; of a fresh barrier, that of
    /// parity 1 counts as complete.
    Await(AsyncBarrier, Value),
    /// Copies bytes of a buffer, a multiple of 16, to an array; the barrier counts them when they have come.
    Copy {
        /// To this array.
        shared: SharedId,
        /// u32: from this element on, at a multiple of 16 bytes.
        to: Value,
        /// Out of this buffer.
        arg: ArgId,
        /// u32 or u64: from this element on, at a multiple of 16 bytes.
        from: Value,
        /// How many bytes.
        bytes: u32,
        /// Which barrier counts them.
        barrier: AsyncBarrier,
    },
    /// Asks for bytes of a buffer, a multiple of 16, in the cache that all cores share; nothing waits for them.
    Prefetch {
        /// Of this buffer.
        arg: ArgId,
        /// u32 or u64: from this element on, at a multiple of 16 bytes.
        from: Value,
        /// How many bytes.
        bytes: u32,
    },
    /// Before the first multiply, and before one that follows other uses of its variables.
    Fence,
    /// Begins 64 x n += 64 x k · k x n, with k of 32 bytes. Its variables must not be used before it was waited for.
    Multiply {
        /// Of the left and of the right operand: f16 or bf16 twice, or i8 or u8 each.
        elems: [Elem; 2],
        /// n / 2 variables of f32, or of i32 for integers, whose sums wrap. Of subgroup s, lane l holds rows 16s + l / 4 (and 8 more)
        /// and columns 8j + l % 4 · 2 (and 1 more): variable 4j + 2 (row) + (column).
        sums: Vec<VarId>,
        /// Four variables of u32, of rows as above: the l % 4-th four bytes along k of both rows, then those 16 bytes further on.
        left: [VarId; 4],
        /// The right operand.
        right: WarpgroupOperand,
        /// bool: whether it adds to the sums, or begins them anew.
        adds: Value,
    },
    /// Makes the multiplies since the last one a group.
    Commit,
    /// Waits until so many groups, and no more, are still running.
    Wait(u32),
}

/// Bytes along k of a multiply.
pub(crate) const K_BYTES: u32 = 32;

/// The type of a multiply's sums; none for elements that warpgroups do not multiply.
pub(crate) fn accumulator(elems: [Elem; 2]) -> Option<Scalar> {
    match elems {
        [Elem::F16, Elem::F16] | [Elem::BF16, Elem::BF16] => Some(Scalar::F32),
        [Elem::I8 | Elem::U8, Elem::I8 | Elem::U8] => Some(Scalar::I32),
        _ => None,
    }
}
