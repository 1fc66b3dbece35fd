//! Which matmuls this kernel serves, and how one is divided.

use std::fmt;

use olivine_ir::{DType, Dim};
use olivine_kernel::{Elem, Fragments};
use olivine_program::{Addressing, DeviceCaps, DeviceKind};

use super::{LANES, QUAD, SIDE};
use crate::launch::number;
use crate::matmul::problem::Problem;
use crate::packed::weight::Weight;

/// How a matmul is divided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CoopCut {
    /// Elements that a lane decodes together.
    pub(crate) run: u32,
    /// Left matrices of a subgroup, 16 rows of the weight each.
    pub(crate) tiles: u32,
    /// Subgroups with rows of the weight of their own.
    pub(crate) across: u32,
    /// Subgroups that divide K.
    pub(crate) deep: u32,
    /// Parts of K, each with workgroups of its own.
    pub(crate) splits: u32,
}

impl CoopCut {
    /// Invocations of a workgroup.
    pub(crate) fn group(self) -> u32 {
        self.across * self.deep * LANES
    }

    /// How many times K is four runs long.
    pub(crate) fn chunks(self, k: usize) -> usize {
        k.div_ceil((QUAD * self.run) as usize)
    }
}

impl fmt::Display for CoopCut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let CoopCut { run, tiles, across, deep, splits } = self;
        write!(f, "coop {run}x{tiles} {across}x{deep} s{splits}")
    }
}

/// Rows from which on matrices may be faster than dot products, and from which on they are if nothing was measured: on an H200 two
/// rows take 3.0 ms for all weights of an 8B Llama in Q4_K by dot products, eight rows 5.1 ms by matrices.
const FEWEST_ROWS: usize = 3;
pub(crate) const PREFERRED_ROWS: usize = 3;
/// Rows whose sums stay in registers.
const MOST_ROWS: usize = 64;

/// The type of matrices that multiply this x, if the kernel serves the matmul. `fast` says that x of f32 may be rounded to f16.
pub(crate) fn matrix_elem(problem: &Problem<'_>, fast: bool, caps: &DeviceCaps) -> Option<Elem> {
    let elem = match problem.dtype() {
        DType::F32 if fast => Elem::F16,
        DType::F16 => Elem::F16,
        DType::BF16 => Elem::BF16,
        _ => return None,
    };
    let target = &caps.target;
    let device = target.multiplies_fully(elem, Elem::F32, [SIDE; 3])
        && target.fragments == Some(Fragments::Quads)
        && target.subgroup == Some(LANES)
        && target.i64
        && target.max_invocations >= SUBGROUPS * LANES
        && matches!(caps.addressing, Addressing::Pointers)
        && !matches!(caps.kind, DeviceKind::Cpu);
    let plain = device && problem.experts.is_none() && problem.batches() == 1;
    let fits = plain && problem.a.k_stride == 1 && problem.m >= FEWEST_ROWS && problem.m <= MOST_ROWS;
    fits.then_some(elem)
}

/// Rows of x in whole matrices: what is lowered then holds for all that have as many.
#[track_caller]
pub(crate) fn rows(m: Dim) -> u32 {
    number(m.div_ceil(SIDE)) as u32 * SIDE
}

/// Subgroups of a workgroup.
const SUBGROUPS: u32 = 8;
/// Words of the weight that a lane loads ahead at most.
const MOST_WORDS: u32 = 80;

/// Elements of all left matrices that a lane decodes together, if nothing was measured.
const DECODED: u32 = 64;

/// The default for a matmul of `m` by `n` by `k` by so many matrices of packed elements: few rows of the weight to a workgroup, whose
/// subgroups divide K. On an H200 that is faster than to divide K among workgroups, whose sums another dispatch adds up.
pub(crate) fn choose(
    weight: &Weight,
    sizes: (usize, usize, usize),
    matrices: u32,
    caps: &DeviceCaps,
) -> CoopCut {
    let all = candidates(weight, sizes, matrices, caps);
    let usual = |cut: &&CoopCut| cut.splits == 1 && cut.tiles == matrices;
    let order = |cut: &&CoopCut| (cut.run * cut.tiles <= DECODED, cut.run, cut.deep);
    let best = all.iter().filter(usual).max_by_key(order);
    best.copied().unwrap_or(CoopCut { run: 8, tiles: matrices, across: 1, deep: SUBGROUPS, splits: 1 })
}

/// Cuts worth a measurement.
pub(crate) fn candidates(
    weight: &Weight,
    (_, n, k): (usize, usize, usize),
    matrices: u32,
    caps: &DeviceCaps,
) -> Vec<CoopCut> {
    let mut all = Vec::new();
    for run in
        [64, 32, 16, 8].into_iter().filter(|run| weight.has_run(*run) && *run <= weight.longest_matrix_run())
    {
        for tiles in [1, 2].into_iter().filter(|tiles| tiles % matrices == 0) {
            if run > 8 && 2 * tiles * weight.run_words(run) > MOST_WORDS {
                continue;
            }
            for across in [1, 2, 4, 8] {
                let deep = SUBGROUPS / across;
                for splits in [1, 2, 4, 8, 16] {
                    let cut = CoopCut { run, tiles, across, deep, splits };
                    let chunks = cut.chunks(k);
                    let rows = (tiles / matrices * SIDE * across) as usize;
                    let groups = n.div_ceil(rows) * splits as usize;
                    // No subgroup without work, and no pairs in parts.
                    let busy = chunks >= (deep * splits) as usize && n >= rows / 2;
                    let few = groups <= 8 * caps.processor_count() as usize;
                    let whole = splits == 1 || (matrices == 1 && few);
                    if whole && (busy || (splits, across) == (1, 1)) {
                        all.push(cut);
                    }
                }
            }
        }
    }
    all
}
