//! f32 matmuls by three f16 matmuls on cooperative matrices: low·high + high·low + high·high of [`split`].
//!
//! What is left out, low·low, is below 2^-22 of a term. Matrices of sums are begun anew with every step and added to
//! f32 registers, because the matrix units of some devices truncate when they add: so the error stays below that of a
//! kernel that adds term by term. Where a row or column is marked as one that the split serves badly, the matmul is
//! done once more by [`tiled`] instead; where A has no parts in memory, only sums with an infinity or NaN are, term by
//! term.

mod block;
mod convert;
mod operands;
pub(crate) mod small_m;
pub(crate) mod split;
#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic, reason = "a failed expectation is a failed test")]
mod tests;

use olivine_ir::{DType, Dim};
use olivine_kernel::{Access, Elem};
use olivine_program::DeviceCaps;

use crate::launch::{Launch, number};
use crate::matmul::candidates::even_splits;
use crate::matmul::choice::{Choice, SMALL_M, Shape, busy, choose as choose_tiles, quotient};
use crate::matmul::epilogue::{BatchOffset, Destination, Epilogue};
use crate::matmul::problem::{Axis, Problem};
use crate::matmul::split_f32::block::{BlockWork, multiply};
use crate::matmul::split_f32::convert::UnsplitRows;
use crate::matmul::split_f32::operands::{DeclaredSplit, OperandA, UnsplitB};
use crate::matmul::split_f32::split::{F32Runs, SplitForm};
use crate::matmul::tiled;
use crate::matmul::tiled::{TileCoord, tile_coord};
use crate::matmul::vector_load::MatrixRole;
use crate::site::{Site, linear_group};
use crate::walk::Walk;

/// A workgroup's part of the matmul, and a subgroup's part of that.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct SplitF32Tile {
    pub(crate) m: u32,
    pub(crate) n: u32,
    /// Size of a step along K.
    pub(crate) k: u32,
    pub(crate) rows: u32,
    pub(crate) columns: u32,
}

/// How a matmul is done: blocks, and parts of K.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct SplitF32Config {
    pub(crate) blocks: SplitF32Tile,
    pub(crate) splits: usize,
    /// Whether A becomes parts on its way into workgroup memory, without a pass before.
    pub(crate) raw: bool,
    /// Whether B's planes are stored in the order of fragments, which are loaded straight into the matrix units.
    pub(crate) direct: bool,
}

/// M, N and K of a matrix.
pub(crate) const SIDE: u32 = 16;
/// Lanes of a subgroup.
pub(crate) const LANES: u32 = 32;

const LARGE: SplitF32Tile = SplitF32Tile { m: 128, n: 128, k: 32, rows: 64, columns: 32 };
const MEDIUM: SplitF32Tile = SplitF32Tile { m: 64, n: 64, k: 32, rows: 32, columns: 32 };
/// For rows that are split on the way: few steps, since each waits for memory.
const LOW: SplitF32Tile = SplitF32Tile { m: 32, n: 64, k: 64, rows: 32, columns: 16 };

/// All blocks that are ever chosen.
#[cfg(test)]
pub(crate) const BLOCKS: [SplitF32Tile; 3] = [LARGE, MEDIUM, LOW];

impl SplitF32Tile {
    pub(crate) fn group(self) -> u32 {
        self.m / self.rows * (self.n / self.columns) * LANES
    }

    fn count(self, shape: &Shape) -> Dim {
        shape.n.div_ceil(self.n) * shape.batches * shape.m.div_ceil(self.m as usize)
    }
}

/// How a matmul of f32 is done by matrices of f16; `None` where other kernels serve it.
pub(crate) fn choose(problem: &Problem<'_>, shape: &Shape, caps: &DeviceCaps) -> Option<SplitF32Config> {
    let offered = caps.target.multiplies_fully(Elem::F16, Elem::F32, [SIDE, SIDE, SIDE]);
    let roomy = caps.target.max_invocations >= 256 && caps.target.shared_bytes >= 48 << 10;
    let plain = problem.experts.is_none() && problem.taps.is_none();
    if !(problem.dtype() == DType::F32 && offered && roomy && plain) || caps.target.subgroup != Some(LANES) {
        return None;
    }
    let Shape { m, k, .. } = *shape;
    let least = if problem.b.operand.stored { WORTHWHILE_STORED } else { WORTHWHILE };
    if shape.is_small(SMALL_M) || k < 64 || shape.work() < least {
        return None;
    }
    // Kernels count elements in 32 bits.
    if [MatrixRole::A, MatrixRole::B].iter().any(|side| split::elements(problem, *side) > u32::MAX) {
        return None;
    }
    let stored = problem.b.operand.stored;
    let raw = stored && m <= SMALL_M_ROWS && problem.layout_of_a().along == Axis::K;
    let busy = busy(caps);
    let blocks = match raw {
        true => LOW,
        false if LARGE.count(shape) * 2 >= busy => LARGE,
        false => MEDIUM,
    };
    // Workgroups that wait for memory at every step are better many; of the others, few. Where there is one for every
    // core without parts, adding them up would cost what they save.
    let (count, enough) = (blocks.count(shape), if raw { busy * 9 / 8 } else { busy * 9 / 16 });
    let parts = match count * 2 >= busy || k < 2 * 128 {
        true => 1,
        false => number(quotient(enough, count).min(k.div_floor(128)).clamp(1, 32)),
    };
    let splits = even_splits(k, parts, split::K_MULTIPLE as u32);
    Some(SplitF32Config { blocks, splits, raw, direct: raw })
}

/// Terms from which on making parts costs less than it saves: of both operands, and of A alone.
const WORTHWHILE: usize = 1 << 28;
const WORTHWHILE_STORED: usize = 1 << 23;
/// Rows up to which every workgroup measures and splits those that it needs itself.
const SMALL_M_ROWS: usize = 512;

/// Emits a split-f32 matmul, with the parts of the operands, and what takes its place where they serve badly.
pub(crate) fn emit(
    problem: &Problem<'_>,
    config: SplitF32Config,
    destination: &Destination,
    site: &mut Site<'_>,
) -> Result<(), String> {
    let SplitF32Config { blocks, splits, raw, direct } = config;
    let a = if raw { None } else { Some(split::emit(problem, MatrixRole::A, SplitForm::Lines, site)?) };
    let form = if direct { SplitForm::Fragments } else { SplitForm::Lines };
    let b = split::emit(problem, MatrixRole::B, form, site)?;
    let batches = problem.batches();
    let tiles = problem.m.div_ceil(blocks.m) * problem.n.div_ceil(blocks.n);
    let groups = tiles * batches * splits;
    let chunk = problem.k_number().div_ceil(splits).next_multiple_of(split::K_MULTIPLE);
    let outlier_flags = site.scratch(4 * batches);

    let k = site.builder("matmul_split_f32", blocks.group());
    let l = Launch::new(&k);
    let (m, n, k_size) = (l.size("m", problem.m), l.size("n", problem.n), l.size("k", b.k_size));
    let b_side = DeclaredSplit::new(&l, "b", &b);
    let a_side = a.as_ref().map(|a| DeclaredSplit::new(&l, "a", a));
    let rows = || F32Runs::declare(&l, "a", &problem.a, problem.layout_of_a(), l.size("a_k_size", problem.k));
    let mut a_rows = if raw { Some(rows()) } else { None };
    let judges = a.as_ref().map(|_| l.bind("outlier_flags", Elem::U32, Access::Write, outlier_flags));
    let given = || {
        let buffer = l.bind("b_given", Elem::F32, Access::Read, problem.b.operand.memory);
        (buffer, l.stride("b_given_outer", problem.b.outer), l.stride("b_given_k_stride", problem.b.k_stride))
    };
    let given = if raw { Some(given()) } else { None };
    let total = l.size("groups", groups);
    let parts = (splits > 1).then(|| (l.size("chunk", chunk), l.size("batches", batches)));
    let epilogue = Epilogue::declare(&l, problem, destination, n);
    let mut strides = problem.batch.strides.clone();
    let mut offsets = problem.offsets();
    for (number, planes) in [(0, a.as_ref()), (1, Some(&b))] {
        if let Some(planes) = planes {
            strides[number] = planes.batch.iter().map(|s| Dim::from(*s)).collect();
            offsets[number] = Dim::ZERO;
        }
    }
    strides.push(problem.batch.strides[1].clone());
    offsets.push(problem.b.operand.offset);
    let walker = Walk { dims: problem.batch.dims.clone(), strides }.declare(&l, &offsets);

    let id = linear_group(&k);
    k.if_(id.lt(total), || {
        let TileCoord { first, rest, batch, start, end } =
            tile_coord(id, (m, n, k_size), (blocks.m, blocks.n), parts);
        let mut at = walker.at(batch);
        let base = at.pop();
        let left = match (&a_side, judges, a_rows.take(), given.zip(base)) {
            (Some(planes), Some(judges), ..) => {
                OperandA::Split(planes.operand(at[0], k_size, m), judges, batch)
            }
            (_, _, Some(source), Some(((buffer, outer, k_stride), base))) => OperandA::Unsplit(
                UnsplitRows { source, base: at[0] },
                UnsplitB { buffer, base, outer, k_stride },
            ),
            _ => return k.fail("a matmul without a left operand"),
        };
        let work = BlockWork {
            b: b_side.operand(at[1], k_size, n),
            first,
            size: (m, n),
            start,
            end,
            base: BatchOffset { out: rest * m * n, extras: at[2..].to_vec() },
        };
        multiply(&k, blocks, left, work, &epilogue);
    });
    let bound = l.done();
    site.dispatch(k, bound, groups, problem.cost())?;
    if raw {
        return Ok(());
    }
    match choose_tiles(&Shape::of(problem), problem.layout_of_a(), problem.layout_of_b(), 4, site.caps) {
        Choice::Tiled { tile, .. } => {
            tiled::emit_where(problem, tile, splits, destination, Some(outlier_flags), site)
        }
        other => Err(format!("{other:?} instead of tiles")),
    }
}
