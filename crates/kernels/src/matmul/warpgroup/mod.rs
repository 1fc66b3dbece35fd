//! Matmuls of f16, bf16, f32 and 8-bit integers by warpgroups (NVIDIA's Hopper): kernels that print as PTX only. Their
//! structure is that of sketches that were measured at 762 TFLOP/s (A by rows) and 790 (A packed) for 4096³ in f16 on an H200,
//! and at 1424 and 1483 TOP/s in i8.
//!
//! ```text
//!   B ─ packed, at load for weights ─ one thread copies 8 KiB a k-step ─► ring of 5 slots ─────────┐
//!   A ─ by rows, or packed in fragments ─ 16 bytes a lane, 8 k-steps in flight ─► registers ───────┴─► two warpgroups,
//!                                                                        64 x 256 sums each ─► epilogue, from registers
//! ```
//! Workgroups are persistent: there is one to a core, and with n of them each takes every n-th tile. K is in another order
//! inside packed operands, so that a lane's words of two k-steps are 16 neighbouring bytes of a row of A, and columns of B
//! are in another order, so that a lane's sums are four neighbouring columns ([`pack`]). Integers are multiplied as they are,
//! signed or not; zero points are taken off at the end ([`finish`]).
//!
//! f32 is multiplied as two f16 parts ([`split`]), three matmuls in one: a slot of B's ring has both parts of 128 columns.
//! Batches with [`outliers`] are computed by tiles of f32 instead.

mod finish;
#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic, reason = "a failed expectation is a failed test")]
mod int8_tests;
mod kernel;
mod left;
mod outliers;
mod pack;
#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic, reason = "a failed expectation is a failed test")]
mod tests;

use std::fmt;

use olivine_ir::{DType, Dim};
use olivine_kernel::{Elem, WARPGROUP};
use olivine_program::DeviceCaps;

use crate::matmul::choice::Shape;
use crate::matmul::problem::Problem;
use crate::matmul::split_f32::split;
use crate::matmul::vector_load::MatrixRole;
use crate::ring::Ring;

pub(crate) use finish::ZeroOperands;
pub(crate) use kernel::{emit, emit_int8};

/// Rows of a warpgroup.
const ROWS: u32 = 64;
/// Rows of a tile: two warpgroups.
const TILE_ROWS: u32 = 2 * ROWS;
/// Subgroups that multiply.
const MULTIPLIERS: u32 = TILE_ROWS / 16;
/// Invocations: those that multiply, and a warpgroup whose first one copies.
const GROUP: u32 = MULTIPLIERS * 32 + WARPGROUP;
/// Registers of each invocation, by role: all that a core has.
const REGISTERS: [u32; 2] = [240, 24];
/// Bytes along K of a step.
const STEP: u32 = 32;
/// Slots of the ring, and bytes of each: a k-step of all columns.
const SLOTS: u32 = 5;
const SLOT: u32 = 8 << 10;
/// Workgroup memory: the ring and two barriers to a slot.
const SHARED: u32 = Ring::shared_bytes(SLOTS, SLOT);
/// Tile rows that are walked together, column by column, so that both operands stay in the cache.
const BAND: u32 = 8;

/// How operands of some types are multiplied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Form {
    /// Elements of A and of B.
    elems: [Elem; 2],
    /// Columns of a tile.
    columns: u32,
    /// K-steps whose words of A are loaded together; two such buffers take turns.
    batch: u32,
    /// Parts of an element: two f16 of f32.
    parts: u32,
}

impl Form {
    /// Of a problem; `None` for types that warpgroups do not multiply.
    fn of(problem: &Problem<'_>) -> Option<Form> {
        let [a, b] = [&problem.a, &problem.b].map(|side| side.operand.ty.dtype);
        let elems = match (a, b) {
            (DType::F16, DType::F16) => [Elem::F16; 2],
            (DType::BF16, DType::BF16) => [Elem::BF16; 2],
            // Sums stay in i32.
            (DType::I8 | DType::U8, DType::I8 | DType::U8) if problem.target.ty.dtype == DType::I32 => {
                [a, b].map(|dtype| if dtype == DType::I8 { Elem::I8 } else { Elem::U8 })
            }
            // Half the columns, because sums are begun anew with every two steps: there are two sets of them.
            (DType::F32, DType::F32) => {
                return Some(Form { elems: [Elem::F16; 2], columns: 128, batch: 4, parts: 2 });
            }
            _ => return None,
        };
        Some(Form { elems, columns: 256, batch: 8, parts: 1 })
    }

    /// The same, or what is wrong with the problem.
    fn expect(problem: &Problem<'_>) -> Result<Form, String> {
        Form::of(problem).ok_or_else(|| format!("warpgroups do not multiply {}", problem.dtype()))
    }

    /// Bytes of an element.
    fn size(self) -> u32 {
        self.elems[0].size()
    }

    /// K of a step.
    fn step(self) -> u32 {
        STEP / self.size()
    }

    /// K of both buffers of A, which packed operands have whole multiples of.
    fn k_block(self) -> u32 {
        2 * self.batch * self.step()
    }

    fn is_integer(self) -> bool {
        self.size() == 1
    }

    /// Percents of the tiles' work in all waves that must be the matmul's. Cooperative matrices reach 0.4 of the rate in f16 and
    /// should reach as much in i8, and half of it in f32.
    fn least_use(self) -> u64 {
        if self.parts > 1 { 60 } else { 45 }
    }
}

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
/// How a matmul is computed by these kernels on a device; `None` where it cannot be.
fn serves(problem: &Problem<'_>, caps: &DeviceCaps) -> Option<Form> {
    let target = &caps.target;
    let offered = target.warpgroups
        && target.subgroup == Some(WARPGROUP / 4)
        && target.max_invocations >= GROUP
        && target.shared_bytes >= SHARED
        && problem.experts.is_none()
        && problem.taps.is_none()
        && problem.packed.is_none();
    let form = if offered { Form::of(problem)? } else { return None };
    let integers = target.int8_warpgroups && target.packed_dot;
    // Kernels count the elements of parts in 32 bits.
    let counts = |side| split::elements(problem, side) <= u32::MAX;
    let can = match form {
        Form { parts: 2, .. } => counts(MatrixRole::A) && counts(MatrixRole::B),
        form => integers || !form.is_integer(),
    };
    can.then_some(form)
}

/// Whether a lane's words of A are where rows are: 16 aligned bytes, all inside of a row or all past it. Past the end of a row
/// others are multiplied by the zeros of B instead, which floats may not be: infinities times zero are NaN.
fn has_whole_rows(form: Form, problem: &Problem<'_>) -> bool {
    let a = &problem.a;
    let steps = problem.batch.strides[0].iter().copied().chain([a.outer, a.operand.offset]);
    form.parts == 1
        && a.k_stride == 1
        && problem.k.is_multiple_of(if form.is_integer() { 16 } else { form.k_block() })
        && pack::are_slots(form.size(), steps)
}

/// How A comes to the warpgroups; `None` where other kernels serve the matmul better.
pub(crate) fn choose(problem: &Problem<'_>, shape: &Shape, caps: &DeviceCaps) -> Option<PathOfA> {
    let form = serves(problem, caps)?;
    if shape.m == 0 || shape.n == 0 || shape.batches == 0 || shape.k < LEAST_K {
        return None;
    }
    let rows = Dim::from(shape.m);
    let tiles = rows.div_ceil(TILE_ROWS) * shape.n.div_ceil(form.columns) * shape.batches;
    let cores = caps.processor_count();
    let all = tiles.div_ceil(cores) * cores * (TILE_ROWS * form.columns);
    if shape.n * shape.batches * shape.m * 100 < all * form.least_use() {
        return None;
    }
    if !problem.b.operand.stored && shape.m < PACKED_IN_RUN {
        return None;
    }
    let path = path_of_a(form, problem);
    let packs_a = path == PathOfA::Packed && !problem.a.operand.stored;
    if packs_a && shape.n < PACKED_IN_RUN {
        return None;
    }
    let most = caps.max_buffer_bytes;
    let fits = pack::bytes_of_b(form, problem) <= most
        && (path == PathOfA::Rows || pack::bytes_of_a(form, problem) <= most);
    fits.then_some(path)
}

/// Rows of A are read as they are where they can be: packing gains 3 % and costs a dispatch.
fn path_of_a(form: Form, problem: &Problem<'_>) -> PathOfA {
    if has_whole_rows(form, problem) { PathOfA::Rows } else { PathOfA::Packed }
}

/// Both ways of A, where they compute the matmul: what the tuner may choose from.
pub(crate) fn candidates(problem: &Problem<'_>, caps: &DeviceCaps) -> Vec<PathOfA> {
    let most = caps.max_buffer_bytes;
    let mut all = Vec::new();
    let Some(form) = serves(problem, caps) else { return all };
    if problem.k == 0 || pack::bytes_of_b(form, problem) > most {
        return all;
    }
    all.extend(has_whole_rows(form, problem).then_some(PathOfA::Rows));
    all.extend((pack::bytes_of_a(form, problem) <= most).then_some(PathOfA::Packed));
    all
}
